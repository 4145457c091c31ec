"""`fedboost approve`: what a person at a site reads, and what it allows."""

import json
import stat
import sys
from pathlib import Path

import pyarrow as pa
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
from pyarrow import csv
from sites import fedboost, rows, terms

from fedboost.cli import common
from fedboost.runtime.config import to_toml
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.policy import COMMAND
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.views.approval import summary

ASKED = "Approve these terms for the rows of this site? [y/N] "
BROKEN = "They break 1 rule (min_rows_per_leaf). "


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


def test_yes_allows_these_terms_and_no_others(folder, typed):
    assert COMMAND in permits(offered())
    typed("y")
    end = run()
    assert end.code == 0, end.err
    assert ASKED in end.err
    assert permits(offered()) == ""
    assert end.out.splitlines()[-1] == "approved; `fedboost approve --withdraw` withdraws the approval"
    config = read_party(Path("party.toml"), None)
    (written,) = decisions(config, "approved").values()
    assert stat.S_IMODE(memory_path(config).stat().st_mode) == 0o600
    assert stat.S_IMODE(memory_path(config).parent.stat().st_mode) == 0o700
    assert written.pop("time")
    assert written.pop("at")
    assert {role: names for role, names in written["columns"].items() if names} == {
        "label": ["y"],
        "features": ["age", "dose", "ward"],
    }
    del written["columns"]
    assert written == {
        "digest": offered().digest,
        "parties": list(THREE),
        "analysts": [],
        "relaxed": {"min_rows_per_leaf": 4},
        "relaxed_from": {"min_rows_per_leaf": 10},
    }
    changed = offered(rounds=4)
    assert permits(changed) == (
        f"site north refuses: it has not approved these terms (their digest is {changed.digest[:8]}..., but "
        f"it approved {offered().digest[:8]}...); run `{COMMAND}` at that site"
    )
    (folder / "party.toml").write_text(SITE + f"policy = {{ parties = {to_toml(THREE)} }}\n")
    assert permits(changed).startswith("site north refuses: its policy has columns.label = [], ")
    (folder / "party.toml").write_text(SITE)
    assert run("--withdraw").out == f"withdrawn: {offered().digest}\n"  # the next offer is refused again
    assert COMMAND in permits(offered())


@pytest.mark.parametrize("answer", ["n", "", "yess"])
def test_no_allows_nothing(folder, typed, answer):
    typed(answer)
    end = run()
    assert (end.code, approvals(folder)) == (1, [])
    assert end.err.endswith("not approved: nothing was written\n")
    assert COMMAND in permits(offered())


def test_the_text_fits_a_terminal_and_says_all(folder):
    wide = offered(
        max_depth=9, eval_metric=["auc", "error@0.3"], validation_fraction=0.2, num_parallel_tree=101
    )
    (folder / "terms.toml").write_text(terms_to_toml(wide))
    end = run("--yes")
    assert end.code == 0, end.err
    assert all(len(line) < 80 for line in end.out.splitlines()[:-1])
    assert f"this site    north, {rows().num_rows} rows of rows.csv" in end.out
    wards = rows().column("ward").to_pylist()
    counts = ", ".join(f"{ward} {wards.count(ward)}" for ward in "abc")
    assert f"categories   ward: {counts}" in end.out
    assert end.out.startswith("The terms break 5 rules of this site's policy.\n")
    for rule in (
        "max_depth = 8",
        "min_rows_per_leaf = 10",
        "validation = false",
        "metrics_at_thresholds = false",
        "max_trees_per_round = 100",
    ):
        assert f"\n{rule}\n" in end.out
    assert permits(wide) == ""


def test_a_level_of_one_person_is_marked(folder):
    table = rows()
    person = ["person 4" if i == 4 else "others" for i in range(table.num_rows)]
    csv.write_csv(table.append_column("who", pa.array(person)), "rows.csv")
    columns = {"label": "y", "categorical": {"who": ["person 4", "others", "elsewhere"]}}
    agreement = offered(columns=columns)
    (folder / "terms.toml").write_text(terms_to_toml(agreement))
    end = run("--yes")
    others = table.num_rows - 1
    assert f'categories   who: "person 4" 1 (!), others {others}, elsewhere 0\n' in end.out
    assert "(!) fewer than 10 rows at this site" in end.out
    assert "(!)" not in summary(agreement)


@pytest.mark.parametrize(
    ("labels", "columns", "settings", "shown"),
    [
        (
            ["HIV", *["none"] * 199],
            {"positive": "HIV"},
            {},
            'label, rows  y: "not HIV" 199, HIV 1 (!)',
        ),
        ([1, *[0] * 199], {}, {}, "label, rows  y: 0 199, 1 1 (!)"),
        (
            [*["flu"] * 20, *["cold"] * 171, *["HIV"] * 9],
            {"classes": ["cold", "flu", "HIV", "gout"]},
            {"objective": "multi:softprob"},
            "label, rows  y: cold 171, flu 20, HIV 9 (!), gout 0",
        ),
        (
            [*[1] * 20, *[0] * 180],
            {},
            {"objective": "multi:softprob", "num_class": 3},
            "label, rows  y: 0 180, 1 20, 2 0",
        ),
        ([*range(200)], {}, {"objective": "reg:squarederror"}, ""),
    ],
)
def test_the_rows_of_each_label_value_are_counted(folder, labels, columns, settings, shown):
    """With one row of "HIV" among 200 nothing was said of it."""
    csv.write_csv(pa.table({"age": [*range(200)], "y": labels}), "rows.csv")
    agreement = offered(columns={"label": "y", "numeric": ["age"], **columns}, **settings)
    (folder / "terms.toml").write_text(terms_to_toml(agreement))
    end = run("--yes")
    assert end.code == 0, end.err
    lines = [line for line in end.out.splitlines() if line.startswith("label, rows")]
    assert lines == [shown] * bool(shown)
    assert ("(!) fewer than 10 rows at this site" in end.out) == ("(!)" in shown)


def test_label_values_that_the_terms_name_are_shown_without_a_table():
    named = {"label": "y", "numeric": ["age"]}
    assert "positive     HIV: the label value that is read as 1" in summary(
        offered(columns={**named, "positive": "HIV"})
    )
    of_three = offered(columns={**named, "classes": ["a", "b c", "d"]}, objective="multi:softprob")
    assert 'classes      a, "b c", d\n' in summary(of_three)


def test_what_is_loud(folder):
    plain = offered(protection="plain")
    (folder / "terms.toml").write_text(terms_to_toml(plain))
    end = run("--yes")
    assert "THE AGGREGATOR SEES THIS SITE'S OWN NUMBERS" in end.out
    assert permits(plain) == ""


def test_no_approval_spends_a_budget(folder):
    (folder / "party.toml").write_text(SITE + "policy = { epsilon = 1.0, delta = 1e-5 }\n")
    end = run("--yes")
    assert (end.code, approvals(folder)) == (2, [])
    assert end.err == (
        "fedboost: party north cannot approve these terms: its policy has epsilon = 1, but the terms have no "
        "noise, so they would exceed any budget; add noise with delta = 1e-05, or change the policy\n"
    )
    (folder / "party.toml").write_text(SITE)
    assert run("--yes").code == 0
    config = read_party(Path("party.toml"), None)
    (approval,) = decisions(config).values()
    relaxed = {**approval, "relaxed": {"epsilon": 99.0}}
    rewrite(config, "approved", offered().digest, json.dumps(relaxed))
    assert permits(offered()) == (
        f"site north refuses: its approval of these terms cannot be read; run `{COMMAND}` at that site"
    )


def test_a_rule_that_became_stricter_wants_another_approval(folder):
    assert run("--yes").code == 0
    (folder / "party.toml").write_text(SITE + "policy = { max_rounds = 2 }\n")
    assert "max_rounds = 2" in permits(offered())


def test_rows_with_categories_that_nobody_declared_are_counted(folder):
    for missing, said in (
        (1, "; 1 row with another category is treated as missing"),
        (2, "; 2 rows with other categories are treated as missing"),
    ):
        wards = ["a"] * (30 - missing) + ["d", "e"][:missing]
        numbers = {name: [1] * 15 + [0] * 15 for name in ("age", "dose", "y")}
        csv.write_csv(pa.table({**numbers, "ward": wards}), "rows.csv")
        text = " ".join(run("--yes").out.split())
        assert f"categories ward: a {30 - missing}, b 0, c 0{said}" in text


@pytest.mark.parametrize(
    ("parties", "settings", "said"),
    [
        (3, {}, "if another site colludes with the aggregator, they can learn this site's numbers"),
        (4, {}, "1 other site may collude with the aggregator without learning this site's numbers"),
        (
            7,
            {"colluding": 2},
            "up to 2 other sites may collude with the aggregator without learning this site's numbers",
        ),
    ],
)
def test_who_may_work_with_the_aggregator(parties, settings, said):
    agreement = terms([f"site {number}" for number in range(parties)], protection="masked", **settings)
    assert f"colluders {said} model " in " ".join(summary(agreement).split())


def test_nobody_to_ask(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    end = run()
    assert (end.code, approvals(folder)) == (2, [])
    assert end.err.endswith("use `fedboost approve --yes` to approve without asking\n")
    (folder / "party.toml").write_text(SITE + 'keys = "keys/north"\n')
    end = run("--yes")
    assert (end.code, approvals(folder)) == (2, [])
    assert end.err == "fedboost: no analyst was named; specify who may use these terms with --analyst NAME\n"


def test_a_key_holder_approves_without_rows(folder):
    agreement = terms((*THREE, "keys"), protection="paillier", keyholder="keys", keyholder_rows=False)
    (folder / "terms.toml").write_text(terms_to_toml(agreement))
    (folder / "party.toml").write_text('party = "keys"\naggregator = "localhost:7070"\n')
    end = run("--yes")
    assert end.code == 0, end.err
    assert "this site    keys\n" in end.out  # and no rows
    assert "keys decrypts sums and has no rows" in end.out
    assert permits(agreement) == ""


def test_digest_says_how_to_approve(folder):
    end = fedboost("terms", "terms.toml", "--digest")
    assert end.out.startswith(summary(read_terms(folder / "terms.toml")))
    assert end.out.splitlines()[-1] == COMMAND


def test_the_question_names_the_analysts(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(common, "ask_terminal", lambda question: asked.append(question) or "n")
    assert run("--analyst", "marie").code == 1
    assert run("--analyst", "marie", "--analyst", "Paul B").code == 1
    assert run().code == 1
    assert asked == [
        f"{BROKEN}Approve these terms, for analyst marie, for the rows of this site? [y/N] ",
        f'{BROKEN}Approve these terms, for analysts marie, "Paul B", for the rows of this site? [y/N] ',
        f"{BROKEN}{ASKED}",
    ]


def test_all_names_are_shown_whole(folder):
    """Columns of every role, also those that a rule of the policy lacks, and parties: none is left out."""
    features = [f"measurement number {i} of the first visit in spring" for i in range(60)]
    roles = {"label": "the outcome", "weight": "the weight of a row", "row_id": "the id of a row"}
    wards = {"the ward of a patient": [f"ward {i}" for i in range(30)]}
    columns = {**roles, "numeric": features, "categorical": wards}
    names = [*features, *roles.values(), *wards, *wards["the ward of a patient"]]
    draw, count = rows(), rows().num_rows
    numbers = {name: draw.column("age") for name in [*features, "the weight of a row", "the id of a row"]}
    levels = {"the ward of a patient": [f"ward {i % 30}" for i in range(count)]}
    csv.write_csv(pa.table({**numbers, **levels, "the outcome": draw.column("y")}), "rows.csv")
    (folder / "terms.toml").write_text(terms_to_toml(offered(columns=columns)))
    named = 'policy = { columns = { label = ["y"] } }\n'
    for policy in ("", named):
        (folder / "party.toml").write_text(SITE + policy)
        end = run("--yes", "--full")
        assert end.code == 0, end.err
        text = " ".join(end.out.split())
        assert not [name for name in names if f'"{name}"' not in text]
        assert "and 52 more" not in text or "All 61: " in text
        assert all(len(line) < 80 for line in end.out.splitlines()[:-1])
        short = run("--yes").out
        assert "--full shows more: " in short
        assert "all names" in " ".join(short.split())
        assert len(short) < len(end.out)


def test_many_levels_are_counted_and_those_of_few_rows_named(folder):
    """A clinical table had 165 lines."""
    count = rows().num_rows
    codes = {f"code {k}": [f"level {i}" for i in range(12)] for k in range(12)}
    levels = {name: [values[i % 12] for i in range(count)] for name, values in codes.items()}
    levels["code 3"] = [
        level if level != "level 7" or i == 7 else "level 0" for i, level in enumerate(levels["code 3"])
    ]
    csv.write_csv(pa.table({**levels, "y": rows().column("y")}), "rows.csv")
    (folder / "terms.toml").write_text(terms_to_toml(offered(columns={"label": "y", "categorical": codes})))
    short, full = run("--yes").out, run("--yes", "--full").out
    assert len(short.splitlines()) < 50 < 70 < len(full.splitlines())
    assert '"code 3: level 7" 1' in " ".join(short.split())
    assert "levels of 12 categorical columns" in short
    text = " ".join(full.split())
    assert not [name for name in codes if f'categories "{name}": ' not in text]
    assert text.count('"level 11"') == 12
