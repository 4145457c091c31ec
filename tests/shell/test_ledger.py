"""A site's ledger: no release is uncharged, none is charged twice, and nothing goes beyond the budget."""

import math
import os
import re
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sites import Log, bundles_of, consortium, fedboost, in_time, shared_out, terms, written

from fedboost.errors import ConfigError, Refused
from fedboost.privacy import accounting
from fedboost.privacy.protection import Tag
from fedboost.protocol.ledger import Charge, Spending
from fedboost.protocol.messages import Admit, Leave
from fedboost.protocol.party import Shard
from fedboost.protocol.party_session import PartySession, Release, Site
from fedboost.protocol.progress import NOTHING_YET
from fedboost.protocol.queries import RangeQuery
from fedboost.protocol.terms import Terms, read_model
from fedboost.shell import ledger as ledgers
from fedboost.shell.audit import AuditLog, Released, read_log
from fedboost.shell.card import card_of
from fedboost.shell.config import PartyConfig
from fedboost.shell.ledger import Budget, SiteLedger, read_ledger
from fedboost.shell.model import Model
from fedboost.shell.party_node import PartyNode
from fedboost.shell.policy import Policy
from fedboost.shell.store import CannotRecord
from fedboost.shell.summary import summary

ROOT = Path(__file__).parents[2]
THREE = ("north", "south", "east")
BUDGET = Budget(1.2, 1e-5)
COLUMNS = {
    "label": "y",
    "numeric": ["age", "dose"],
    "ranges": {"age": [0, 100], "dose": [-5, 5]},
    "categorical": {"ward": ["a", "b", "c"]},
}


def noisy(epsilon=1.0, **settings):
    """Terms with noise that fit the tables of `sites`."""
    noise = {"epsilon": epsilon, "delta": 1e-5}
    return Terms.read({"columns": COLUMNS, "parties": THREE, "rounds": 2, "noise": noise, **settings})


WITHOUT_END = noisy(noise={"epsilon": 0.1, "delta": 1e-5, "placement": "central"})
"""Of which each question may be asked again, and is charged again."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.ledger.sqlite"


@contextmanager
def opened(path, dataset="patients", budget=None, party="north"):
    """A ledger, closed at the end."""
    one = SiteLedger(path, party, dataset, budget)
    try:
        yield one
    finally:
        one.close()


def spend_all(ledger, session, of):
    """Charge everything that terms plan."""
    ledger.admit(session, of)
    for release in of.plan.releases.values():
        for number in range(release.times):
            ledger.charge(session, f"{release.what} {number}", release.cost)


def cost_of(path, dataset="patients"):
    (spent,) = (one for one in read_ledger(path) if one.dataset == dataset)
    return spent.cost


# ---- what is kept -----------------------------------------------------------------------------------


def test_a_session_has_one_secret_whatever_restarts(path):
    one, other = noisy(), noisy(0.5)
    with opened(path) as ledger:
        assert not path.exists()
        secret = ledger.admit("s", one)
        assert ledger.admit("s", one) == secret
    with opened(path) as ledger, opened(path, "others") as apart:
        secrets = [ledger.admit("s", one), ledger.admit("s", other), ledger.admit("t", one)]
        secrets.append(apart.admit("s", one))
    assert secrets[0] == secret
    assert len(set(secrets)) == 4
    assert {len(secret) for secret in secrets} == {32}


def test_the_ledger_is_for_its_owner_alone(path):
    before = os.umask(0)
    try:
        with opened(path) as ledger:
            ledger.admit("s", noisy())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*path.parent.iterdir()] == [path]


def test_a_release_is_charged_once_and_sessions_add(path):
    agreement = noisy()
    with opened(path) as ledger:
        spend_all(ledger, "s", agreement)
    with opened(path) as ledger:
        spend_all(ledger, "s", agreement)  # a restart; all of it was charged
        assert cost_of(path) == pytest.approx(agreement.plan.cost, rel=1e-12, abs=0)
        spend_all(ledger, "t", agreement)
    (spent,) = read_ledger(path)
    assert spent.cost == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)
    assert (spent.sessions, spent.releases) == (2, 8)
    assert spent.epsilon(1e-5) == accounting.epsilon_of(math.sqrt(spent.cost), 1e-5)


def test_datasets_of_one_file_are_apart(path):
    with opened(path, "a", BUDGET) as one, opened(path, "b", BUDGET) as other:
        spend_all(one, "s", noisy(1.2))
        spend_all(other, "s", noisy(1.2))
        with pytest.raises(Refused):
            one.admit("t", noisy(0.5))
    assert [spent.dataset for spent in read_ledger(path)] == ["a", "b"]
    assert cost_of(path, "a") == cost_of(path, "b")


# ---- the budget -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_when_it_is_offered_with_what_is_left(path):
    with opened(path, budget=BUDGET) as ledger:
        spend_all(ledger, "s", noisy())
        with pytest.raises(Refused) as error:
            ledger.admit("t", noisy())
    left = BUDGET.left(cost_of(path))
    assert str(error.value) == (
        "party north: the terms ask for epsilon 1 at delta 1e-05, and its budget for these rows, epsilon 1.2 "
        f"at delta 1e-05, has {math.floor(left * 1e4) / 1e4:g} left; lower the epsilon of the noise to "
        f"{math.floor(left * 1e4) / 1e4:g} at most at delta 1e-05, unless the site "
        "raises `epsilon` in its policy"
    )
    assert 0.2 < left < 1.0


def test_a_refusal_says_which_epsilon_fits_at_the_delta_of_the_terms(path):
    with opened(path, budget=BUDGET) as ledger:
        spend_all(ledger, "s", noisy())
        asked = noisy(noise={"epsilon": 1.0, "delta": 1e-7})
        with pytest.raises(Refused) as error:
            ledger.admit("t", asked)
        fits = float(re.search(r"to (\S+) at most at delta 1e-07", str(error.value))[1])
        assert fits > BUDGET.left(cost_of(path))
        with pytest.raises(Refused):
            ledger.admit("u", noisy(noise={"epsilon": fits + 0.002, "delta": 1e-7}))
        spend_all(ledger, "v", noisy(noise={"epsilon": fits, "delta": 1e-7}))
    assert cost_of(path) <= BUDGET.cost


def test_what_is_left_can_be_spent_to_the_last_and_then_nothing(path):
    with opened(path, budget=BUDGET) as ledger:
        sessions, left = 0, 1.0
        while left >= 0.01:
            spend_all(ledger, f"s{sessions}", noisy(left))
            sessions, left = sessions + 1, math.floor(BUDGET.left(cost_of(path)) * 1e4) / 1e4
        assert sessions >= 2
        with pytest.raises(Refused, match="no session with noise fits"):
            ledger.admit("u", noisy(0.01))
    assert cost_of(path) <= BUDGET.cost


def test_a_session_that_goes_on_needs_only_the_rest_of_its_plan(path):
    agreement = noisy(1.2)
    with opened(path, budget=BUDGET) as ledger:
        spend_all(ledger, "s", agreement)
    with opened(path, budget=BUDGET) as ledger:
        ledger.admit("s", agreement)
        spend_all(ledger, "s", agreement)
        with pytest.raises(Refused, match="session s asks for more releases than its terms plan"):
            ledger.charge("s", "another", agreement.plan.releases["sums of all rows"].cost)
    assert cost_of(path) <= BUDGET.cost


def test_no_session_is_charged_more_than_its_terms_plan_whether_there_is_a_budget_or_not(path):
    """Else an aggregator that says that a site forgot would have it answer again and again, and the model
    would be less private than its card says."""
    agreement = noisy()
    with opened(path) as ledger:
        spend_all(ledger, "s", agreement)
        with pytest.raises(Refused, match=r"north: session s asks for more .* less private than they say"):
            ledger.charge("s", "another", agreement.plan.releases["sums of all rows"].cost)
        spend_all(ledger, "t", agreement)  # another session
        ledger.admit("c", WITHOUT_END)  # whose noise the aggregator draws anew when it asks again
        for number in range(3):
            ledger.charge("c", f"{number}", WITHOUT_END.plan.cost)
        ledger.admit("s", noisy(0.5))  # further terms under the same name
        spend_all(ledger, "s", agreement)
    with opened(path) as ledger, pytest.raises(Refused, match="less private"):
        ledger.charge("never admitted", "one", 0.1)


def test_parties_of_one_dataset_draw_noise_of_their_own_in_one_session(path):
    """By the same secret two that hold the same rows would draw the same noise, and be charged for one."""
    agreement = noisy()
    with opened(path) as north, opened(path, party="south") as south:
        assert north.admit("s", agreement) != south.admit("s", agreement)
        for one in (north, south):
            spend_all(one, "s", agreement)
    assert cost_of(path) == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)


def test_releases_beyond_the_budget_are_refused_one_by_one(path):
    with opened(path, budget=BUDGET) as ledger:
        ledger.admit("s", WITHOUT_END)
        ledger.charge("s", "one", BUDGET.cost)
        with pytest.raises(Refused, match="session s asks for one more release"):
            ledger.charge("s", "two", 1e-6)


def test_of_two_that_were_admitted_the_later_is_refused_in_the_middle(path):
    with opened(path, budget=BUDGET) as one, opened(path, budget=BUDGET) as other:
        one.admit("s", noisy())
        other.admit("t", noisy())
        spend_all(one, "s", noisy())
        with pytest.raises(Refused):
            spend_all(other, "t", noisy())
    assert cost_of(path) <= BUDGET.cost


def tag(roster=THREE, turn=1):
    """Of an answer."""
    return Tag(turn, 1, -1, roster, b"", ())


# ---- answers ----------------------------------------------------------------------------------------


def test_the_same_answer_after_a_restart_is_the_same_bytes_and_another_roster_is_charged(path):
    agreement, query = noisy(), RangeQuery(1 << 40, 2)
    values = np.arange(query.cells)
    with opened(path) as ledger:
        before, _ = Spending("s", agreement, ledger).release(query, NOTHING_YET, tag(), values)
    once = cost_of(path)
    with opened(path) as ledger:
        spending = Spending("s", agreement, ledger)
        assert (spending.release(query, NOTHING_YET, tag(turn=7), values)[0] == before).all()
        assert cost_of(path) == once
        fewer, _ = spending.release(query, NOTHING_YET, tag(THREE[:2]), values)
        charges = {
            spending.release(query, NOTHING_YET, tag(of), values)[1] for of in (THREE, THREE[:2], THREE[:2])
        }
    assert np.mean(fewer == before) < 0.5
    assert cost_of(path) == 2 * once == math.fsum(charge.cost for charge in charges)


def test_a_session_whose_plan_does_not_fit_leaves_before_it_reads_a_row(path):
    with opened(path, budget=Budget(0.5, 1e-5)) as ledger:
        site = Site("north", lambda _: pytest.fail("rows were read"), os.urandom, ledger=ledger)
        (said,) = PartySession(site).handle(Admit("s", noisy()))
    assert isinstance(said, Leave)
    assert "has 0.5 left" in said.reason


def test_a_session_goes_on_with_the_rows_it_began_with_and_no_others(path):
    """Of two answers to one question, about rows before and after a change, both the bytes and what the other
    parties' noise has in common would show that there was one."""
    noise = {"epsilon": 1.0, "delta": 1e-5, "placement": "local"}
    agreement = noisy(protection="plain", noise=noise)
    columns = tuple(np.arange(8, dtype=np.float32) for _ in range(3))

    def begun(session, rows=slice(None), label=0.0):
        labels, weights = np.full(8, label, np.float32)[rows], np.ones(8, np.float32)[rows]
        shard = Shard(tuple(column[rows] for column in columns), labels, weights)
        with opened(path) as ledger:
            site = Site("north", lambda _: shard, os.urandom, ledger=ledger)
            (said,) = PartySession(site).handle(Admit(session, agreement))
        return said.reason if isinstance(said, Leave) else "joined"

    fewer = slice(1, None)
    said = [begun("s"), begun("s"), begun("s", fewer), begun("s", label=1.0), begun("t", fewer)]
    refused = "its rows are not those that session s began with"
    assert [refused in one for one in said] == [False, False, True, True, False]
    assert begun("s") == said[0] == "joined"


def test_a_ledger_that_cannot_be_written_lets_nothing_leave(path):
    with opened(path) as ledger:
        ledger.admit("s", noisy())
        site = Site("north", lambda _: pytest.fail("rows were read"), os.urandom, ledger=ledger)
        path.unlink()
        with pytest.raises(CannotRecord, match="was removed or replaced"):
            list(PartySession(site).handle(Admit("s", noisy())))


# ---- processes --------------------------------------------------------------------------------------

CHARGES = """
import os, signal, sys
from fedboost.errors import Refused
from fedboost.shell.ledger import Budget, SiteLedger
from pathlib import Path
ledger = SiteLedger(Path(sys.argv[1]), "north", "patients", Budget(1.2, 1e-5))
print("ready", flush=True)
sys.stdin.readline()
done = 0
for number in range(20):
    try:
        ledger.charge("s", f"{sys.argv[2]}-{number}", Budget(1.2, 1e-5).cost / 20.5)
    except Refused:
        break
    done += 1
    print(done, flush=True)
if sys.argv[2] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def charging(path, name):
    """A process that charges a twentieth of the budget again and again, once it is told to begin."""
    words = [sys.executable, "-c", CHARGES, str(path), name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_two_processes_do_not_both_spend_the_last(path):
    with opened(path) as ledger:
        ledger.admit("s", WITHOUT_END)
    with charging(path, "a") as one, charging(path, "b") as other:
        for process in (one, other):
            process.stdin.write("\n")
            process.stdin.flush()
        done = [len(process.communicate()[0].split()) for process in (one, other)]
    assert sum(done) == 20
    (spent,) = read_ledger(path)
    assert spent.releases == 20
    assert spent.cost <= BUDGET.cost


def test_what_was_charged_by_a_process_that_was_killed_is_charged(path):
    with opened(path) as ledger:
        ledger.admit("s", WITHOUT_END)
    with charging(path, "dies") as process:
        process.communicate("\n")
        assert process.returncode == -signal.SIGKILL
    assert read_ledger(path)[0].releases == 20
    with opened(path, budget=BUDGET) as ledger:
        ledger.charge("s", "dies-7", BUDGET.cost / 20.5)  # said again: nothing more
        with pytest.raises(Refused):
            ledger.charge("s", "dies-20", BUDGET.cost / 20.5)


@pytest.mark.slow
def test_a_process_that_is_killed_anywhere_leaves_what_it_said_it_charged(path):
    with opened(path) as ledger:
        ledger.admit("s", WITHOUT_END)
    for trial in range(8):
        with charging(path, f"{trial}") as process:
            process.stdin.write("\n")
            process.stdin.flush()
            said = [process.stdout.readline() for _ in range(trial % 4)]
            process.kill()
            said += process.stdout.readlines()
            process.wait()
        charged = sqlite3.connect(path)
        names = {name for (name,) in charged.execute("SELECT release FROM charges")}
        charged.close()
        done = len([line for line in said if line.endswith("\n")])
        assert {f"{trial}-{number}" for number in range(done)} <= names
        read_ledger(path)


# ---- files that are no ledgers ----------------------------------------------------------------------


def test_no_byte_of_a_ledger_can_be_changed_or_cut_off_unseen(path, tmp_path):
    with opened(path) as ledger:
        spend_all(ledger, "s", noisy())
    data, before, other = path.read_bytes(), read_ledger(path), tmp_path / "other.sqlite"
    found = 0
    for place in range(0, len(data), 37):
        other.write_bytes(data[:place] + bytes([data[place] ^ 0x24]) + data[place + 1 :])
        try:
            assert read_ledger(other) == before, place  # what no row and no page needs
        except ConfigError:
            found += 1
    assert found > 20
    for size in range(0, len(data), 511):
        other.write_bytes(data[:size])
        with pytest.raises(ConfigError):
            SiteLedger(other, "north", "patients")
        assert other.stat().st_size == size  # it was not begun anew


def test_another_file_is_no_ledger(path):
    for content in (b"", b"party,epsilon\n" * 100):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"ledger.*put back the newest copy"):
            SiteLedger(path, "north", "patients")
        assert path.read_bytes() == content
    path.unlink()
    sqlite3.connect(path).executescript("CREATE TABLE charges (cost)").connection.close()
    with pytest.raises(ConfigError, match="not a ledger of this version"):
        SiteLedger(path, "north", "patients")
    with pytest.raises(ConfigError, match="ledger"):
        SiteLedger(path.parent, "north", "patients")


def test_a_disk_that_is_full_is_one_line_and_charges_nothing(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as ledger:
        ledger.admit("s", WITHOUT_END)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
            with pytest.raises(CannotRecord, match="cannot write this ledger"):
                ledger.charge("s", "one", 0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert cost_of(path) == 0.0
        ledger.charge("s", "one", 0.1)
    assert cost_of(path) == 0.1


def test_a_ledger_that_cannot_be_begun_or_is_held_is_one_line(path, monkeypatch):
    with pytest.raises(ConfigError, match="no ledger can be made there: no folder"):
        SiteLedger(path.parent / "no folder" / "ledger", "north", "patients")
    (folder := path.parent / "folder").mkdir()
    with opened(folder / "ledger") as ledger:
        folder.rmdir()
        with pytest.raises(CannotRecord, match="begin"):
            ledger.admit("s", noisy())
    monkeypatch.setattr(ledgers, "PATIENCE", 0.05)
    with opened(path) as ledger:
        ledger.admit("s", noisy())
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(CannotRecord, match="locked"):
            ledger.charge("s", "one", 0.1)
        holder.close()


# ---- the policy and the node ------------------------------------------------------------------------


def test_a_budget_refuses_what_has_no_noise_or_a_larger_delta():
    named = {"parties": "any", "columns": "any", "min_rows_per_leaf": 1}
    rules = read_model(Policy, {**named, "epsilon": 3.0, "delta": 1e-6}, "party.toml")
    with pytest.raises(Refused, match=r"policy has epsilon = 3, and the terms have no noise"):
        rules.permit(terms(THREE, protection="masked"), "north")
    with pytest.raises(Refused, match=r"policy has delta = 1e-06, and the noise .* has delta = 1e-05"):
        rules.permit(noisy(), "north")
    rules.permit(noisy(noise={"epsilon": 9.0, "delta": 1e-6}), "north")
    read_model(Policy, named, "party.toml").permit(noisy(), "north")
    assert "epsilon 1 at delta 1e-05" in summary(noisy())


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"epsilon": 3.0}, "epsilon is half a budget: add delta = 1e-5"),
        ({"delta": 1e-5}, "delta is half a budget: add epsilon = 3.0"),
        ({"epsilon": 0, "delta": 1e-5}, "greater than 0"),
        ({"epsilon": 1, "delta": 0.5}, "0.001"),
    ],
)
def test_half_a_budget_is_a_mistake(rules, words):
    with pytest.raises(ConfigError, match=words):
        read_model(Policy, rules, "party.toml")


def test_a_site_whose_ledger_is_gone_does_not_begin_another(path, tmp_path):
    (table,) = written(tmp_path, {"north": shared_out(1)["north"]}).values()
    audit = tmp_path / "north.audit.jsonl"
    config = PartyConfig(party="north", aggregator="localhost:7070", data=table, audit=audit, ledger=path)
    with AuditLog(audit) as log:
        log.admitted("s", terms(THREE))
    PartyNode(config, Log(), None)._close()
    with opened(path, "north") as ledger, AuditLog(audit) as log:
        ledger.admit("s", noisy())
        log.record(Release("s", 1, 0, "RangeQuery", 256, 100, "masked", THREE, Charge("a", 0.1)))
    PartyNode(config, Log(), None)._close()
    path.unlink()
    with pytest.raises(ConfigError, match=r"there is no ledger, and .* has releases that were charged"):
        PartyNode(config, Log(), None)
    AuditLog(audit).close()  # which was let go of


def test_ledger_audit_log_and_card_say_the_same(tmp_path):
    tables, files = shared_out(3), tmp_path / "files"

    async def scenario():
        bundles = bundles_of(tmp_path / "keys", THREE)
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            files.mkdir()
            for name in THREE:
                of = {"audit": files / f"{name}.jsonl", "ledger": files / f"{name}.sqlite"}
                one.start_party(name, tables[name], **of)
            return [(await one.train(noisy())).model for _ in range(2)]

    models = in_time(scenario())
    card = card_of(models[0].terms)
    due = math.fsum(release["cost"] for release in card["releases"] for _ in range(release["times"]))
    assert card["cost"] == pytest.approx(due, rel=1e-12, abs=0)
    assert models[0].fingerprint != models[1].fingerprint  # each session has noise of its own
    for name in THREE:
        (spent,) = read_ledger(files / f"{name}.sqlite")
        events = [entry.event for entry in read_log(files / f"{name}.jsonl")]
        released = [one for one in events if isinstance(one, Released) and one.cost is not None]
        logged = math.fsum({one.charge: one.cost for one in released}.values())
        assert spent.cost == logged == math.fsum([due, due])
        assert (spent.dataset, spent.sessions, spent.releases) == (name, 2, 8)
    loaded = Model.from_bytes(models[0].to_bytes())
    assert card_of(loaded.terms) == card
    assert loaded.to_bytes() == models[0].to_bytes()
    assert b'"fedboost.privacy"' in models[0].to_bytes()
    said = fedboost("audit", files / "north.jsonl").out
    assert f"epsilon {card['epsilon_spent']:.4g} was spent" in said
    assert "sums over the rows in each leaf of a tree" in said
