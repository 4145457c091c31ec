"""A site's memory on disk: what it noted is there after a crash, no release is uncharged, none is charged
twice, nothing goes beyond the budget, and a file that is no memory is never used."""

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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sites import bundles_of, consortium, fedboost, in_time, shared_out, terms

from fedboost.boosting.queries.cut_points import RangeQuery
from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import ConfigError, DurabilityError, LocalProtocolError, Refused
from fedboost.horizontal.holder import holder_of
from fedboost.horizontal.shard import Shard
from fedboost.people.privacy_report import report_of
from fedboost.people.summary import summary
from fedboost.privacy.noise import accounting
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import NOWHERE
from fedboost.protocol.ledger import Spending
from fedboost.protocol.messages import Admit, Leave
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.protocol.site_memory import Limits, Offer, Question
from fedboost.runtime.model_file import Model
from fedboost.runtime.site import memory_file
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.audit_entry import Released
from fedboost.runtime.site.budget import Budget
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.memory_file import NAME, make_file, read_spent
from fedboost.runtime.site.policy import Policy
from fedboost.terms.reading import read_model
from fedboost.terms.terms import Terms

ROOT = Path(__file__).parents[2]
THREE = ("north", "south", "east")
BUDGET = Budget(1.2, 1e-5)
ANY = Limits(max_sessions=1000)
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


CENTRAL = noisy(noise={"epsilon": 0.1, "delta": 1e-5, "placement": "central"})
LONG = noisy(1.2, rounds=18)
"""With 20 releases, which spend nearly all of the budget."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / NAME


@contextmanager
def opened(path, dataset="patients", budget=None, party="north", **settings):
    """A memory, closed at the end; made if there is none."""
    if not path.exists():
        make_file(path, dataset)
    memory = FileMemory(path, party, dataset, budget, **settings)
    try:
        yield memory
    finally:
        memory.close()


def begun(memory, session="s", agreement=None, **settings):
    """A session of the memory."""
    return memory.begin(Offer(session, agreement or noisy(), **settings), ANY)


def spend_all(memory, session, agreement):
    """Charge everything that terms plan."""
    session = begun(memory, session, agreement)
    for release in agreement.plan.releases.values():
        for number in range(release.times):
            session.charge(f"{release.what} {number}", release.cost)
    return session


def cost_of(path):
    return read_spent(path).cost


def question(turn):
    """A question, at another position each turn."""
    before, after = (
        replace(NOWHERE, rounds=number, model=bytes([number]) * 32) for number in (turn, turn + 1)
    )
    return Question(turn, bytes([turn]) * 32, True, before, after)


def files_with(folder, data):
    """The files in a folder in which some bytes are."""
    return [file.name for file in folder.iterdir() if file.is_file() and data in file.read_bytes()]


# ---- what is kept -----------------------------------------------------------------------------------


def test_the_memory_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "state" / "patients" / NAME
        with opened(path) as memory:
            begun(memory).ask(question(1), NOWHERE, NOWHERE)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            assert modes == dict.fromkeys([NAME, f"{NAME}-shm", f"{NAME}-wal", "north.lock"], 0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {file.name for file in path.parent.iterdir()} == {NAME, "north.lock"}


def test_a_secret_is_gone_from_the_disk_with_its_session(path):
    with opened(path) as memory:
        session = begun(memory)
        secret, asked = session.secret, question(3)
        session.ask(asked, NOWHERE, asked.after)
        assert files_with(path.parent, secret)
        assert files_with(path.parent, asked.digest)
        session.end("")
        assert files_with(path.parent, secret) == files_with(path.parent, asked.digest) == []
        for late in (lambda: session.secret, session.sign, lambda: session.charge("a", 0.1)):
            with pytest.raises(LocalProtocolError, match="has ended"):
                late()
        with pytest.raises(Refused, match="has ended"):
            begun(memory)


def test_a_session_without_noise_has_its_secret_too_and_spends_nothing(path):
    with opened(path, budget=None) as memory:
        session = begun(memory, agreement=terms(THREE))
        assert len(session.secret) == 32
        with pytest.raises(Refused, match="more releases than its terms plan"):
            session.charge("one", 0.1)
    assert (read_spent(path).with_noise, cost_of(path)) == (0, 0.0)


def test_a_release_is_charged_once_and_sessions_add(path):
    agreement = noisy()
    with opened(path) as memory:
        spend_all(memory, "s", agreement)
    with opened(path) as memory:
        spend_all(memory, "s", agreement)  # a restart; all of it was charged
        assert cost_of(path) == pytest.approx(agreement.plan.cost, rel=1e-12, abs=0)
        spend_all(memory, "t", agreement).end("")
    spent = read_spent(path)
    assert spent.cost == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)
    assert (spent.sessions, spent.releases) == (2, 8)
    assert spent.epsilon(1e-5) == accounting.epsilon_of(math.sqrt(spent.cost), 1e-5)


def test_a_memory_is_of_one_dataset(path, tmp_path):
    other = tmp_path / "other" / NAME
    with opened(path, budget=BUDGET) as one, opened(other, "others", BUDGET) as two:
        spend_all(one, "s", noisy(1.2))
        spend_all(two, "s", noisy(1.2))
        with pytest.raises(Refused):
            begun(one, "t", noisy(0.5))
    assert (read_spent(path).dataset, read_spent(other).dataset) == ("patients", "others")
    assert cost_of(path) == cost_of(other)
    with pytest.raises(ConfigError, match="is the memory of the rows 'others', not of 'patients'"):
        FileMemory(other, "north", "patients")


# ---- the budget -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_when_it_is_offered_with_what_is_left(path):
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", noisy())
        with pytest.raises(Refused) as error:
            begun(memory, "t")
    left = BUDGET.left(cost_of(path))
    assert str(error.value) == (
        "party north: the terms ask for epsilon 1 at delta 1e-05, and its budget for these rows, epsilon 1.2 "
        f"at delta 1e-05, has {math.floor(left * 1e4) / 1e4:g} left; lower the epsilon of the noise to "
        f"{math.floor(left * 1e4) / 1e4:g} at most at delta 1e-05, unless the site "
        "raises `epsilon` in its policy"
    )
    assert 0.2 < left < 1.0


def test_a_refusal_says_which_epsilon_fits_at_the_delta_of_the_terms(path):
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", noisy())
        asked = noisy(noise={"epsilon": 1.0, "delta": 1e-7})
        with pytest.raises(Refused) as error:
            begun(memory, "t", asked)
        fits = float(re.search(r"to (\S+) at most at delta 1e-07", str(error.value))[1])
        assert fits > BUDGET.left(cost_of(path))
        with pytest.raises(Refused):
            begun(memory, "u", noisy(noise={"epsilon": fits + 0.002, "delta": 1e-7}))
        spend_all(memory, "v", noisy(noise={"epsilon": fits, "delta": 1e-7}))
    assert cost_of(path) <= BUDGET.cost


def test_what_is_left_can_be_spent_to_the_last_and_then_nothing(path):
    with opened(path, budget=BUDGET) as memory:
        sessions, left = 0, 1.0
        while left >= 0.01:
            spend_all(memory, f"s{sessions}", noisy(left))
            sessions, left = sessions + 1, math.floor(BUDGET.left(cost_of(path)) * 1e4) / 1e4
        assert sessions >= 2
        with pytest.raises(Refused, match="no session with noise fits"):
            begun(memory, "u", noisy(0.01))
    assert cost_of(path) <= BUDGET.cost


def test_a_session_that_goes_on_needs_only_the_rest_of_its_plan(path):
    agreement = noisy(1.2)
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", agreement)
    with opened(path, budget=BUDGET) as memory:
        session = spend_all(memory, "s", agreement)
        with pytest.raises(Refused, match="session s asks for more releases than its terms plan"):
            session.charge("another", agreement.plan.releases["sums of all rows"].cost)
    assert cost_of(path) <= BUDGET.cost


def test_no_session_is_charged_more_than_its_terms_plan_whether_there_is_a_budget_or_not(path):
    """Else an aggregator that asks again and again would have the model less private than its card says."""
    agreement = noisy()
    with opened(path) as memory:
        session = spend_all(memory, "s", agreement)
        with pytest.raises(Refused, match=r"north: session s asks for more .* less private than they say"):
            session.charge("another", agreement.plan.releases["sums of all rows"].cost)
        spend_all(memory, "t", agreement)  # another session


def test_sums_that_the_aggregator_sees_exactly_fit_no_budget(path):
    """At ebe8635 terms with placement = "central" and epsilon .01 fitted any budget, and were charged .01."""
    with opened(path, budget=BUDGET) as memory:
        for epsilon in (0.01, 1.0):
            asked = noisy(noise={"epsilon": epsilon, "delta": 1e-5, "placement": "central"})
            with pytest.raises(Refused, match=r'placement = "central" nothing hides .* no such session fits'):
                begun(memory, "s", asked)
    with opened(path) as memory:  # without a budget
        session = begun(memory, "s", CENTRAL)
        with pytest.raises(Refused, match="more releases than its terms plan"):
            session.charge("one", CENTRAL.plan.cost)


def test_parties_of_one_dataset_draw_noise_of_their_own_in_one_session(path):
    """By the same secret two that hold the same rows would draw the same noise, and be charged for one."""
    agreement = noisy()
    with opened(path) as north, opened(path, party="south") as south:
        sessions = [spend_all(memory, "s", agreement) for memory in (north, south)]
        assert sessions[0].secret != sessions[1].secret
    assert cost_of(path) == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)


def test_parties_of_one_dataset_know_each_others_sessions(path):
    """One session at both of them is one."""
    with opened(path) as north, opened(path, party="south") as south:
        for memory in (north, south):
            memory.begin(Offer("s", noisy(), 1, "ann", b"nonce"), Limits(max_sessions=1)).meet(1)
        with pytest.raises(Refused, match="took part in 1 sessions"):
            south.begin(Offer("t", noisy()), Limits(max_sessions=1))
        begun(south, "t")
        more = noisy(parties=[*THREE, "west"])
        with pytest.raises(Refused, match="would show fewer than 3 of them"):
            begun(north, "u", more)
        assert north.sessions == 2


def test_releases_beyond_the_budget_are_refused_one_by_one(path):
    with opened(path, budget=BUDGET) as one, opened(path, budget=BUDGET, party="south") as other:
        agreement = noisy(1.2)
        sessions = begun(one, "s", agreement), begun(other, "t", agreement)
        costs = [release.cost for release in agreement.plan.releases.values() for _ in range(release.times)]
        for number, cost in enumerate(costs):
            sessions[0].charge(f"{number}", cost)
        with pytest.raises(Refused, match="session t asks for one more release"):
            sessions[1].charge("one", costs[0])


def test_of_two_that_were_admitted_the_later_is_refused_in_the_middle(path):
    with opened(path, budget=BUDGET) as one, opened(path, budget=BUDGET, party="south") as other:
        begun(one, "s")
        begun(other, "t")
        spend_all(one, "s", noisy())
        with pytest.raises(Refused):
            spend_all(other, "t", noisy())
    assert cost_of(path) <= BUDGET.cost


# ---- answers ----------------------------------------------------------------------------------------


def tag(roster=THREE, turn=1):
    """Of an answer."""
    return Tag(turn, 1, -1, roster, b"", ())


def test_the_same_answer_after_a_restart_is_the_same_bytes_and_another_roster_is_charged(path):
    agreement, query = noisy(), RangeQuery(1 << 40, 2)
    values = np.arange(query.cells)
    with opened(path) as memory:
        spending = Spending(agreement, begun(memory, agreement=agreement))
        before, _ = spending.release(query, NOTHING_YET, tag(), values)
    once = cost_of(path)
    with opened(path) as memory:
        spending = Spending(agreement, begun(memory, agreement=agreement))
        assert (spending.release(query, NOTHING_YET, tag(turn=7), values)[0] == before).all()
        assert cost_of(path) == once
        fewer, _ = spending.release(query, NOTHING_YET, tag(THREE[:2]), values)
        charges = {
            spending.release(query, NOTHING_YET, tag(roster), values)[1]
            for roster in (THREE, THREE[:2], THREE[:2])
        }
    assert np.mean(fewer == before) < 0.5
    assert cost_of(path) == 2 * once == math.fsum(charge.cost for charge in charges)


def test_a_session_whose_plan_does_not_fit_leaves_before_it_reads_a_row(path):
    with opened(path, budget=Budget(0.5, 1e-5)) as memory:
        site = Site(
            "north", holder_of(lambda _: pytest.fail("rows were read"), "north"), os.urandom, memory=memory
        )
        (reply,) = PartySession(site).handle(Admit("s", noisy()))
    assert isinstance(reply, Leave)
    assert "has 0.5 left" in reply.reason


@pytest.mark.parametrize("noise", [None, {"epsilon": 1.0, "delta": 1e-5, "placement": "local"}])
def test_a_session_goes_on_with_the_rows_it_began_with_and_no_others(path, noise):
    """Of two answers to one question, about rows before and after a change, the difference would show what
    changed; at ebe8635 only sessions with noise were held to their rows."""
    agreement = noisy(protection="plain", noise=noise)
    columns = tuple(np.arange(8, dtype=np.float32) for _ in range(3))

    def joined(session, rows=slice(None), label=0.0):
        labels, weights = np.full(8, label, np.float32)[rows], np.ones(8, np.float32)[rows]
        shard = Shard(tuple(column[rows] for column in columns), labels, weights)
        with opened(path) as memory:
            party = PartySession(
                Site("north", holder_of(lambda _: shard, "north"), os.urandom, memory=memory)
            )
            (reply,) = party.handle(Admit(session, agreement))
        return (reply.reason, party.ended) if isinstance(reply, Leave) else "joined"

    fewer = slice(1, None)
    assert joined("s") == joined("s") == joined("t", fewer) == "joined"
    for session, other in (("s", {"rows": fewer}), ("t", {"label": 1.0, "rows": fewer})):
        outside, own = joined(session, **other)
        assert outside == f"party north does not go on with session {session}; train anew"
        assert "its rows are not those that the session began with" in own
    assert "has ended here" in joined("s")[0]


def test_a_memory_that_cannot_be_written_lets_nothing_leave(path):
    for gone in (path, path.with_name(f"{NAME}-wal")):
        with opened(path) as memory:
            begun(memory, f"before {gone.name}")
            site = Site(
                "north",
                holder_of(lambda _: pytest.fail("rows were read"), "north"),
                os.urandom,
                memory=memory,
            )
            gone.rename(path.parent / "away")
            with pytest.raises(DurabilityError, match="was removed or replaced"):
                list(PartySession(site).handle(Admit("s", noisy())))
            (path.parent / "away").rename(gone)


# ---- processes --------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, "tests/shell")
from test_memory_file import *
path, party, work = Path(sys.argv[1]), *sys.argv[2:]
memory = FileMemory(path, party, "patients", BUDGET if party in THREE else None)
session = begun(memory, f"s {party}", LONG)
costs = [release.cost for release in LONG.plan.releases.values() for _ in range(release.times)]
print("ready", flush=True)
sys.stdin.readline()
try:
    for number in range(20):
        if work == "charge":
            session.charge(f"{number}", costs[number])
        else:
            session.ask(question(number), NOWHERE, question(number).after)
        print(number, flush=True)
except Refused:
    print("refused", flush=True)
if work == "ask":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def working(path, party="north", work="charge"):
    """A process of a party that notes one thing after another, once it is told to begin."""
    words = [sys.executable, "-c", CHILD, str(path), party, work]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=ROOT, env=environment, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_two_processes_do_not_both_spend_the_last(path):
    make_file(path, "patients")
    with working(path) as one, working(path, "south") as other:
        for process in (one, other):
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate()[0].split() for process in (one, other)]
    charged = sum(len(lines) - ("refused" in lines) for lines in outputs)
    assert any("refused" in lines for lines in outputs)
    spent = read_spent(path)
    assert spent.releases == charged < 40
    assert 0.9 * BUDGET.cost < spent.cost <= BUDGET.cost


def test_a_party_has_one_process(path):
    make_file(path, "patients")
    with working(path):
        with pytest.raises(ConfigError, match="another process of party 'north' works with this memory"):
            FileMemory(path, "north", "patients")
        with opened(path, party="south") as memory:
            begun(memory)
        assert read_spent(path).sessions == 2


def test_a_question_that_was_noted_by_a_process_that_was_killed_is_known(path):
    make_file(path, "patients")
    with working(path, work="ask") as process:
        process.communicate("\n")
        assert process.returncode == -signal.SIGKILL
    with opened(path) as memory:
        standing = begun(memory, "s north", LONG).standing
    assert standing.questions == tuple(question(number) for number in range(20))
    assert standing.reached == question(19).after


@pytest.mark.slow
@pytest.mark.parametrize("work", ["charge", "ask"])
def test_a_process_that_is_killed_anywhere_leaves_what_it_said_it_noted(path, work):
    make_file(path, "patients")
    for trial in range(8):
        with working(path, f"{trial}", work) as process:
            process.stdin.write("\n")
            process.stdin.flush()
            lines = [process.stdout.readline() for _ in range(trial % 4)]
            process.kill()
            lines += process.stdout.readlines()
            process.wait()
        noted = {line.strip() for line in lines if line.endswith("\n")} - {"refused"}
        with opened(path, party=f"{trial}") as memory:
            asked = {str(one.turn) for one in begun(memory, f"s {trial}", LONG).standing.questions}
        reader = sqlite3.connect(path)
        charged = {
            name for (name,) in reader.execute("SELECT release FROM charges WHERE party = ?", f"{trial}")
        }
        reader.close()
        assert noted <= (charged if work == "charge" else asked)


# ---- files that are no memory -----------------------------------------------------------------------


def test_no_byte_of_a_memory_can_be_changed_or_cut_off_unseen(path, tmp_path):
    with opened(path) as memory:
        spend_all(memory, "s", noisy()).ask(question(1), NOWHERE, NOWHERE)
    data, before = path.read_bytes(), read_spent(path)
    (other := tmp_path / "other" / NAME).parent.mkdir()
    found = 0
    for place in range(0, len(data), 37):
        for file in other.parent.iterdir():
            file.unlink()
        other.write_bytes(data[:place] + bytes([data[place] ^ 0x24]) + data[place + 1 :])
        try:
            assert read_spent(other) == before, place  # what no row and no page needs
        except ConfigError:
            found += 1
    assert found > 20
    for size in range(0, len(data), 511):
        other.write_bytes(data[:size])
        with pytest.raises(ConfigError):
            FileMemory(other, "north", "patients")
        assert other.stat().st_size == size  # it was not begun anew


def test_another_file_is_no_memory(path):
    for content in (b"", b"party,epsilon\n" * 100):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"memory.*put back the newest copy"):
            FileMemory(path, "north", "patients")
        assert path.read_bytes() == content
    path.unlink()
    sqlite3.connect(path).executescript("CREATE TABLE charges (cost)").connection.close()
    with pytest.raises(ConfigError, match="this memory is not of this version"):
        FileMemory(path, "north", "patients")
    with pytest.raises(ConfigError, match="memory"):
        FileMemory(path.parent, "north", "patients")
    with pytest.raises(ConfigError, match="there is a memory already"):
        make_file(path, "patients")


def test_a_disk_that_is_full_is_one_line_and_notes_nothing(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as memory:
        session = begun(memory)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
            for note in (lambda: session.charge("one", 0.01), lambda: session.meet(1)):
                with pytest.raises(DurabilityError, match="cannot write this memory"):
                    note()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert cost_of(path) == 0.0
        assert session.standing.attempt == 0
        session.charge("one", 0.01)
        session.meet(1)
    assert cost_of(path) == 0.01


def test_a_memory_that_cannot_be_begun_or_is_held_is_one_line(path, monkeypatch):
    (path.parent / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make this state folder"):
        make_file(path.parent / "file" / "folder" / NAME, "patients")
    with opened(path) as memory:
        pass
    monkeypatch.setattr(memory_file, "PATIENCE", 0.05)
    with opened(path) as memory:
        session = begun(memory)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DurabilityError, match="locked"):
            session.charge("one", 0.1)
        holder.close()


# ---- the policy and the network ---------------------------------------------------------------------


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


def test_memory_audit_log_and_card_say_the_same(tmp_path):
    tables, files = shared_out(3), tmp_path / "files"
    state = tmp_path / "c" / "state"

    async def scenario():
        bundles = bundles_of(tmp_path / "keys", THREE)
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            files.mkdir()
            for name in THREE:
                one.start_party(name, tables[name], audit=files / f"{name}.jsonl")
            return [(await one.train(noisy())).model for _ in range(2)]

    models = in_time(scenario())
    card = report_of(models[0].terms)
    due = math.fsum(release["cost"] for release in card["releases"] for _ in range(release["times"]))
    assert card["cost"] == pytest.approx(due, rel=1e-12, abs=0)
    assert models[0].fingerprint != models[1].fingerprint  # each session has noise of its own
    for name in THREE:
        spent = read_spent(state / name / NAME)
        events = [entry.event for entry in read_log(files / f"{name}.jsonl")]
        released = [one for one in events if isinstance(one, Released) and one.cost is not None]
        logged = math.fsum({one.charge: one.cost for one in released}.values())
        assert spent.cost == logged == math.fsum([due, due])
        assert (spent.dataset, spent.sessions, spent.releases) == (name, 2, 8)
    loaded = Model.from_bytes(models[0].to_bytes())
    assert report_of(loaded.terms) == card
    assert loaded.to_bytes() == models[0].to_bytes()
    assert b'"fedboost.privacy"' in models[0].to_bytes()
    said = fedboost("audit", files / "north.jsonl").out
    assert f"epsilon {card['epsilon_spent']:.4g} was spent" in said
    assert "sums over the rows in each leaf of a tree" in said
