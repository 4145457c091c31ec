"""What an approval does not allow: other terms, other analysts, more sessions, a larger budget."""

import asyncio
import json
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
from approvals import (
    SITE,
    THREE,
    approvals,
    decisions,
    keyboard,
    offered,
    permits,
    rewrite,
    run,
    write_site,
)
from processes import free_port
from raised import raised
from sites import Log, fedboost, terms

from fedboost.errors import ConfigError, Refused
from fedboost.protocol.site import Limits, SessionOffer
from fedboost.runtime.config import to_toml
from fedboost.runtime.site.approval import naming_the_command, nothing_approved, policy_for
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.node import PartyNode
from fedboost.runtime.site.policy import COMMAND
from fedboost.runtime.site.store import make_file, put
from fedboost.runtime.tasks import terms_to_toml


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a site without a policy."""
    monkeypatch.chdir(tmp_path)
    return write_site(tmp_path)


@pytest.fixture
def typed(monkeypatch):
    """A person at a terminal."""
    with keyboard(monkeypatch) as lines:
        yield lines


def test_an_approval_of_other_terms_under_this_name_counts_for_nothing(folder):
    assert run("--yes").code == 0
    config, other = read_party(Path("party.toml"), None), offered(rounds=4)
    (content,) = decisions(config).values()
    rewrite(config, "approved", other.digest, json.dumps(content))
    assert "cannot be read" in permits(other)


NAMED = {
    "parties": list(THREE),
    "analysts": ["marie", "joe"],
    "columns": {"label": ["y"], "features": ["age", "dose", "ward"]},
}
KEYED = SITE + 'keys = "keys/north"\n'


def site_file(folder, **policy):
    """Write the file of a site with keys and this policy."""
    (folder / "party.toml").write_text(f"{KEYED}policy = {to_toml(policy)}\n")


@pytest.mark.parametrize("first", [{}, NAMED], ids=["nothing", "names"])
@pytest.mark.parametrize(
    ("then", "said"),
    [
        (
            {"min_rows_per_leaf": 100},
            "min_rows_per_leaf in its policy has changed since it approved these",
        ),
        ({"min_rows_per_leaf": 9}, "min_rows_per_leaf in its policy has changed since it approved these"),
        ({"max_depth": 2}, "its policy has max_depth = 2"),
        ({"analysts": ["marie"]}, "its policy has analysts = [...], but the analyst is joe"),
        ({"parties": ["north", "south"]}, "its policy has parties = [...], but the terms name 'east'"),
        ({"parties": []}, "its policy has parties = []"),
        (
            {"columns": {**NAMED["columns"], "features": ["dose", "ward"]}},
            "its policy has columns.features = [...], but the terms name 'age'",
        ),
    ],
)
def test_what_a_site_takes_back_after_an_approval_does_not_count(folder, first, then, said):
    """Approved for marie and joe, and then the site struck joe, a party or a column, or wrote a stricter rule
    in place of one that the approval relaxed: joe still trained under these terms."""
    site_file(folder, **first)
    assert run("--yes", "--analyst", "marie", "--analyst", "joe").code == 0
    assert permits(offered(), "joe") == ""
    site_file(folder, **{**NAMED, **then})
    sentence = permits(offered(), "joe")
    assert said in sentence
    assert f"run `{COMMAND}` at that site" in sentence
    assert len(sentence.splitlines()) == 1
    site_file(folder, **NAMED)  # names that the approval has, too, change nothing
    assert permits(offered(), "joe") == ""


def test_names_that_the_policy_has_not_are_a_rule_that_is_shown_and_relaxed(folder):
    site_file(folder, **{**NAMED, "columns": {"label": ["y"], "features": ["age", "dose"]}})
    end = run("--yes", "--analyst", "ann")
    text = " ".join(end.out.split())
    assert "The terms break 3 rules of this site's policy." in text
    assert "The terms name 'ward', which is not among them; the policy allows age, dose." in text
    assert "analysts = [...] The analyst is ann; the policy allows marie, joe. Purpose of the rule: " in text
    assert permits(offered(), "ann") == ""
    assert "does not name analyst marie" in permits(offered(), "marie")
    site_file(folder, **{**NAMED, "columns": {"label": ["y"], "features": ["age"]}})
    assert "columns in its policy has changed since it approved" in permits(offered(), "ann")


@pytest.mark.slow
def test_an_approval_names_an_analyst_where_the_policy_lets_any(folder, typed, monkeypatch):
    site_file(folder, analysts="any")
    typed("marie", "y")
    end = run()
    assert end.code == 0, end.err
    assert "analyst      marie: gets the model and the metrics" in end.out
    assert permits(offered(), "marie") == ""
    assert "does not name analyst joe" in permits(offered(), "joe")
    monkeypatch.setattr(sys, "stdin", None)
    assert (
        run("--yes").err
        == "fedboost: no analyst was named; specify who may use these terms with --analyst NAME\n"
    )


@pytest.mark.slow
def test_analysts_of_sites_with_keys(folder, typed):
    (folder / "party.toml").write_text(SITE + 'keys = "keys/north"\n')
    assert run("--yes", "--analyst", "marie", "--analyst", "jo").code == 0
    assert [permits(offered(), name) for name in ("marie", "jo")] == ["", ""]
    assert permits(offered(), "mallory") == (
        "site north refuses: its approval of these terms does not name analyst mallory; "
        f"run `{COMMAND}` at that site"
    )
    typed("bob", "y")
    end = run()
    assert end.code == 0, end.err
    assert "analyst      marie, jo, bob: get the model and the metrics" in end.out
    assert re.search(r"\nApproved on \S+ \S+ UTC for marie, jo; a new approval adds bob\.\n", end.out)
    assert [permits(offered(), name) for name in ("marie", "jo", "bob")] == ["", "", ""]
    end = run("--yes", "--analyst", "jo")
    assert re.search(r"\nApproved on \S+ \S+ UTC for marie, jo, bob\.\n", end.out)
    assert permits(offered(), "marie") == ""
    (folder / "party.toml").write_text(SITE + 'keys = "keys/north"\npolicy = { analysts = ["ann"] }\n')
    assert run("--yes").code == 0
    assert permits(offered(), "ann") == ""


@pytest.mark.parametrize(
    ("analyst", "named"),
    [
        ("marie", True),
        ("m.b-2@uni", True),
        *((name, False) for name in ("", "Paul B", "-x", "a;b", "`a", "é")),
    ],
)
def test_the_command_in_a_refusal_names_the_analyst_if_a_shell_reads_one_word(folder, analyst, named):
    site_file(folder, max_depth=1)
    with pytest.raises(Refused) as error, naming_the_command(offered(), analyst):
        read_party(Path("party.toml")).policy.permit(offered(), "north")
    option = f" --analyst {analyst}" if named else ""
    assert str(error.value).endswith(f"run `{COMMAND}{option}` at that site")


def test_nobody_is_called_any(folder, typed):
    site_file(folder)
    said = "'any' is not an analyst; name the analysts, or set analysts = \"any\" under [policy]\n"
    assert run("--yes", "--analyst", "any").err == f"fedboost: --analyst: {said}"
    typed("any")
    assert run("--yes").err.endswith(f"fedboost: {said}")
    assert approvals(folder) == []


def remember(*agreements, sessions=1):
    """Have the site's memory know sessions under these terms, in which the parties met."""
    path = memory_path(read_party(Path("party.toml")))
    if not path.exists():
        make_file(path, "north")
    with closing(FileMemory(path, "north", "north")) as memory:
        for number, agreement in enumerate(agreements * sessions, memory.sessions):
            memory.begin(SessionOffer(f"session {number}", agreement), Limits(1000, True)).meet(1)


def may_begin(agreement):
    """What the site's memory says to a session under these terms, under the site's policy for them."""
    config = read_party(Path("party.toml"))
    limits = policy_for(config, agreement).permit(agreement, config.party)
    with closing(FileMemory(memory_path(config), "north", "north")) as memory:
        try:
            memory.begin(SessionOffer(f"another {memory.sessions}", agreement), limits)
        except Refused as error:
            return error.public
    return ""


def test_the_sessions_used_are_shown_and_one_more_is_approved(folder):
    """Approved terms were refused by max_sessions all the same, of which nothing had been said."""
    assert "sessions     0 of 20 used (max_sessions)\n" in run("--yes").out
    remember(offered(), sessions=3)
    with closing(FileMemory(memory_path(read_party(Path("party.toml"))), "north", "north")):
        end = run("--yes")  # while the party runs
    assert "sessions     3 of 20 used (max_sessions)\n" in end.out
    assert "max_sessions =" not in end.out
    (folder / "party.toml").write_text(SITE + "policy = { max_sessions = 3 }\n")
    assert "max_sessions = 3" in may_begin(offered())
    end = run("--yes")
    assert f"\nmax_sessions = 3\n{'':13}3 sessions with these rows started before.\n" in end.out
    assert may_begin(offered()) == ""
    remember(offered())
    assert "4 sessions" in may_begin(offered())


def test_groups_whose_sums_show_a_party_are_said_and_approved(folder):
    four = terms((*THREE, "west"), protection="masked", colluding=0)
    assert run("--yes").code == 0
    remember(four)
    assert "would reveal the sum of fewer than 2 of them" in may_begin(offered())
    end = run("--yes")
    assert (
        "similar_groups = false Together with the sums of earlier sessions, the sums over these parties "
        "would reveal the sum of fewer than 2 of them; the sum of west would be revealed. Purpose of the "
        "rule: "
    ) in " ".join(end.out.split())
    assert may_begin(offered()) == ""
    (folder / "fedboost.state" / "north" / "memory.sqlite").write_text("none")
    end = run("--yes")
    assert end.code == 2
    assert "memory.sqlite: this memory is damaged or not a memory file" in end.err


def test_terms_beyond_the_budget_are_not_approved(folder):
    (folder / "party.toml").write_text(SITE + "policy = { epsilon = 1.2, delta = 1e-5 }\n")
    columns = {**offered().columns.model_dump(mode="json"), "ranges": {"age": [0, 100], "dose": [-9, 9]}}

    def noisy(epsilon):
        return terms(
            THREE, protection="masked", columns=columns, rounds=2, noise={"epsilon": epsilon, "delta": 1e-5}
        )

    (folder / "terms.toml").write_text(terms_to_toml(noisy(2.0)))
    end = run("--yes")
    assert (end.code, approvals(folder)) == (2, [])
    assert end.err.startswith(
        "fedboost: not approved: party north: the terms ask for epsilon 2 at delta 1e-05, but its budget for "
        "these rows (epsilon 1.2 at delta 1e-05) has only 1.2 left; lower the epsilon of the noise to at most"
    )
    assert "break no rule of this site's policy" not in end.out
    assert fedboost("privacy", "init", "--config", "party.toml").code == 0
    (folder / "terms.toml").write_text(terms_to_toml(noisy(1.0)))
    end = run("--yes")
    assert end.code == 0
    said = "epsilon 1.2 of 1.2 at delta 1e-05 is left; these terms need 1 at delta 1e-05"
    assert said in " ".join(end.out.split())
    remember(noisy(1.0))
    path = memory_path(read_party(Path("party.toml")))
    with closing(FileMemory(path, "north", "north")) as memory, memory.transaction() as file:
        put(file, "charges", "north", "session 0", "tree 1", noisy(1.0).plan.cost, "")
    end = run("--yes")
    assert end.code == 2
    assert "has only 0.59" in end.err


def test_files_in_each_others_place(folder):
    end = fedboost("approve", "party.toml", "--config", "terms.toml")
    assert (end.code, end.err) == (
        2,
        "fedboost: party.toml is a site's file; specify terms instead\n",
    )


def test_an_approval_that_cannot_be_read_is_replaced(folder):
    assert run("--yes").code == 0
    rewrite(read_party(Path("party.toml"), None), "approved", offered().digest, '{"digest": 1}')
    end = run("--yes")
    assert "! An earlier approval is not valid, and a new one will replace it: " in " ".join(end.out.split())
    assert permits(offered()) == ""


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("terms.toml", None, "terms.toml: cannot read"),
        ("terms.toml", "rounds = [", "terms.toml is not valid TOML"),
        ("party.toml", None, "party.toml: cannot read"),
        ("party.toml", SITE + "policy = { columns = ['age'] }\n", "specify columns by role"),
        (
            "party.toml",
            SITE + "policy = { parties = 'all' }\n",
            'parties: specify a list of names, such as ["north", "south"], or "any"',
        ),
        (
            "party.toml",
            SITE.replace("north", "west"),
            "does not name party 'west' of party.toml; it names",
        ),
        ("party.toml", SITE.replace("rows.csv", "none.csv"), "none.csv"),
        ("rows.csv", "age,dose,ward,y\n1,2,a,7\n", "the rows do not fit the terms"),
        ("rows.csv", "age,dose,y\n1,2,1\n", "column 'ward'"),
    ],
)
def test_files_that_cannot_be_are_one_line(folder, file, content, said):
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    end = run("--yes")
    assert (end.code, [*folder.rglob("*.sqlite")]) == (2, [])
    assert end.err.startswith("fedboost: ")
    assert end.err.count("\n") == 1
    assert said in end.err


def test_a_state_folder_that_cannot_be_is_one_line(folder):
    (folder / "fedboost.state").write_text("a file")
    end = run("--yes")
    assert end.code == 2
    assert "cannot create this state folder" in end.err
    assert end.err.count("\n") == 1


def test_a_party_with_nothing_approved_says_so_when_it_starts(folder):
    config = read_party(Path("party.toml"), None)
    assert f"run `{COMMAND}`" in nothing_approved(config)
    node = PartyNode(config.model_copy(update={"aggregator": f"localhost:{free_port()}"}), log := Log(), None)
    with raised(ConfigError, "aggregator-unreachable"):
        asyncio.run(node.run(wait=0.05, once=True))
    assert nothing_approved(config) in [event for event, _ in log.events]
    assert run("--yes").code == 0
    assert nothing_approved(config) == ""
    (folder / "party.toml").write_text(
        SITE + 'policy = { parties = "any", columns = { label = ["y"] } }\nstate = "other"\n'
    )
    assert nothing_approved(read_party(Path("party.toml"), None)) == ""
