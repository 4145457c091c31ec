"""Sessions under `masked` whose roster cannot change: one leg, and what holds it up. A condition of the
written argument (docs/decisions/0016-masks-in-one-leg.md) is named by its number, C1 to C12.
"""

import dataclasses
import gc
import weakref
from collections import Counter
from types import GeneratorType

import numpy as np
import pytest
from gathering import Together, reason_of
from inprocess import model_of, randomly
from liar import SMALL, Left, Liar, X, Y, agreed, never, places, root_of

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import ConfigError
from fedboost.privacy import ends, packing, pairwise
from fedboost.privacy.pairwise import Group, Handshake, PairMasks
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import (
    Ask,
    Introduce,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Report,
    digest_of_roster,
)
from fedboost.protocol.party import PartySession
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.store import make_file

PARTS = randomly(len(X), 4)
MASKED = {"protection": "masked", **SMALL}


# ---- one leg ----------------------------------------------------------------------------------------

SECOND_LEG = {
    "shares are dealt": (pairwise, "split"),
    "shares are joined": (pairwise, "combine"),
    "shares are sealed": (ends, "AESGCM"),
    "a self mask is added": (ends, "self_key"),
    "a self mask is taken away": (ends, "self_key"),
    "a self mask is committed to": (ends, "commitment"),
    "a commitment is checked": (ends, "commitment"),
}


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_no_share_quorum_or_recovery_code_runs_where_the_roster_cannot_change(on_loss, monkeypatch):
    calls = dict.fromkeys([*SECOND_LEG, "the threshold"], 0)

    def counted(what, call):
        def counting(*arguments):
            calls[what] += 1
            return call(*arguments)

        return counting

    for what, (module, name) in SECOND_LEG.items():
        monkeypatch.setattr(module, name, counted(what, getattr(module, name)))
    threshold = property(counted("the threshold", Group.threshold.fget))
    monkeypatch.setattr(Group, "threshold", threshold)
    model = model_of(X, Y, PARTS, on_loss=on_loss, **MASKED)
    assert model == model_of(X, Y, PARTS, **SMALL)
    if on_loss == "shrink":
        assert all(count for what, count in calls.items() if what != "shares are joined"), calls
    else:
        assert not any(calls.values()), calls


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_a_turn_is_one_round_trip_or_two(on_loss):
    together, said = Together(lambda message: None, protection="masked", on_loss=on_loss), []
    handle = together.session.handle
    together.session.handle = lambda party, event: said.append(event) or handle(party, event)
    assert together.play().phase == "done"
    assert any(isinstance(event, OpenShare) for event in said) == (on_loss == "shrink")
    reports = [event for event in said if isinstance(event, Report)]
    assert all(len(report.ctx) == (32 if report.part == 0 else 0) for report in reports)
    assert any(report.note for report in reports) == (on_loss == "shrink")


@pytest.mark.parametrize("kind", ["commit", "recover", ""])
def test_help_is_refused(kind):
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery())
    with pytest.raises(Left, match="masks cancel without help"):
        liar.say("p0", OpenRequest(1, 1, kind.encode()))


# ---- who is at fault --------------------------------------------------------------------------------


class Twisted(Together):
    """A session whose aggregator, or network, changes what p3 hears and says."""

    def __init__(self, hears=lambda message: message, says=lambda message: message, **settings):
        super().__init__(self.twist, protection="masked", **settings)
        self.hears, self.says = hears, says

    def twist(self, message):
        return [self.says(reply) for reply in self.ends["p3"].handle(self.hears(message))]


def other_question(message):
    """Other rows behind the sum, so that the cells are wider, in the first histogram."""
    if not isinstance(message, Ask) or not isinstance(message.query.parts[-1], HistogramQuery):
        return message
    *others, histogram = message.query.parts
    if histogram.splits:
        return message
    changed = dataclasses.replace(histogram, rows=histogram.rows + 1)
    return dataclasses.replace(message, query=Several((*others, changed)) if others else changed)


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_a_party_that_was_asked_another_question_is_named_by_its_context(on_loss):
    twisted = Twisted(other_question, on_loss=on_loss)
    opened = []
    take = twisted.session.run.take
    twisted.session.run.take = lambda total: opened.append(twisted.session.run.pending) or take(total)
    session = twisted.play(3000, may_wait=True)
    said = "its report is for a different query, roster or attempt than the other parties' reports in turn"
    if on_loss == "shrink":
        assert said in session.attendance.away["p3"][1]
    else:
        assert reason_of(session).startswith("party p3 broke the protocol: " + said)
        assert not any(isinstance(query.parts[-1], HistogramQuery) for query in opened)


@pytest.mark.parametrize("ctx", [b"", bytes(32)])
def test_a_report_under_no_context_or_another_is_refused_before_it_is_added(ctx):
    def says(message):
        return dataclasses.replace(message, ctx=ctx) if isinstance(message, Report) else message

    session = Twisted(says=says).play()
    assert "party p3 broke the protocol: its report is for a different query" in reason_of(session)


def test_a_context_in_a_later_part_is_refused(monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_CELLS", 64)

    def says(message):
        return dataclasses.replace(message, ctx=bytes(32)) if isinstance(message, Report) else message

    def later(message):
        return says(message) if isinstance(message, Report) and message.part else message

    assert "is for a different query" in reason_of(Twisted(says=later).play())


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
@pytest.mark.parametrize("part", [0, 1, -1])
def test_a_wrong_sum_is_noticed_by_the_check_cell_of_its_part(part, on_loss, monkeypatch):
    """Right context, another mask: p3 masks a part with what is no stream of its pairs."""
    monkeypatch.setattr(packing, "CHUNK_CELLS", 64)
    taken = []

    def says(message):
        if not isinstance(message, Report) or message.turn != 1 or message.part != part % 7:
            return message
        garbage = np.random.default_rng(0).bytes(len(message.cells))
        return dataclasses.replace(message, cells=garbage)

    twisted = Twisted(says=says, on_loss=on_loss)
    twisted.session.run.take = taken.append
    session = twisted.play()
    assert reason_of(session).startswith("turn 1: the masks of the 4 parties did not cancel in turn 1: a")
    assert "train again" in reason_of(session)
    assert "\n" not in reason_of(session)
    assert taken == [], "neither the journal nor the program saw it"


# ---- C1: the roster is all parties ------------------------------------------------------------------


@pytest.mark.parametrize("on_loss", ["wait", "stop"])
def test_c1_every_other_roster_is_refused(on_loss):
    p0, p1, p2, p3 = agreed().parties
    for roster in ((p0, p1, p2), (p0, p1, p2, p2), (p0, p1, p2, p3, p3), (p0, p1, p2, p3, "p4")):
        liar = Liar(on_loss=on_loss)
        liar.gather()
        with pytest.raises(Left, match=r"^the roster does not match the introduced parties$"):
            liar.say(p0, Ask(1, 1, digest_of_roster(roster), RowsQuery()))
    liar = Liar(on_loss=on_loss)
    with pytest.raises(Left, match="the introduced parties do not match the terms"):
        liar.gather(roster=(p0, p1, p2))
    assert liar.terms.min_roster == 4


# ---- C5: keys live in one process and one attempt ---------------------------------------------------


@pytest.fixture
def pair_keys(monkeypatch):
    """Every key that two parties agree on, and those that follow from it."""
    known, agree = set(), Handshake.pair_keys

    def listening(*arguments):
        keys = agree(*arguments)
        known.update(keys.values())
        return keys

    monkeypatch.setattr(Handshake, "pair_keys", listening)
    return known


def test_c5_no_file_holds_a_key(pair_keys, tmp_path):
    sites = places(agreed())
    for name, site in sites.items():
        make_file(tmp_path / f"{name}.memory", "rows")
        memory = FileMemory(tmp_path / f"{name}.memory", name, "rows", None)
        sites[name] = dataclasses.replace(site, memory=memory)
    assert Together(lambda message: None, sites=sites, protection="masked").play().phase == "done"
    for site in sites.values():
        site.memory.close()
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(pair_keys) == 6
    assert not any(key in data or key.hex().encode() in data for key in pair_keys for data in written)


@pytest.fixture
def alive(monkeypatch):
    """The pairs' keys, key pairs and vectors being masked of which something still holds a reference."""
    things, begin = weakref.WeakSet(), pairwise.mask
    for kind in (PairMasks, Handshake):

        def listening(self, *arguments, begin=kind.__init__):
            begin(self, *arguments)
            things.add(self)

        monkeypatch.setattr(kind, "__init__", listening)

    def masking(*arguments):
        chunks = begin(*arguments)
        things.add(chunks)
        return chunks

    monkeypatch.setattr(pairwise, "mask", masking)

    def counted():
        gc.collect()
        return Counter(type(thing) for thing in things)

    return counted


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang up", "another attempt", "refusal"])
def test_c5_keys_and_masks_are_dropped(how, alive, monkeypatch):
    """Those of an answer that was not said to its end, too."""
    monkeypatch.setattr(packing, "CHUNK_CELLS", 64)
    liar = Liar()
    liar.gather()
    end = liar.ends["p0"]
    liar.ends = {"p0": end}
    next(end.handle(Ask(1, 1, digest_of_roster(liar.terms.parties), RowsQuery())))
    assert alive() == {PairMasks: 1, GeneratorType: 1}
    if how == "hang up":
        end.hang_up()
    elif how == "another attempt":
        liar.say("p0", Offer("s", liar.terms, 2))
    else:
        list(end.handle(Ask(7, 1, digest_of_roster(liar.terms.parties), RowsQuery())))
    assert alive() == ({Handshake: 1} if how == "another attempt" else {})


def test_c5_a_restarted_party_cannot_answer_in_the_old_attempt():
    liar = Liar()
    liar.gather()
    ask = Ask(1, 1, digest_of_roster(liar.terms.parties), RowsQuery())
    liar.say("p0", ask)
    for first in (Offer("s", liar.terms, 1), ask):
        end = PartySession(liar.sites["p0"])
        (reply,) = end.handle(first)
        assert isinstance(reply, Leave)


def test_a_party_that_was_cut_off_does_not_answer_in_that_attempt():
    liar = Liar()
    liar.gather()
    liar.ends["p0"].hang_up()
    with pytest.raises(Left, match=r"a query before the introduction$"):
        liar.say("p0", Ask(1, 1, digest_of_roster(liar.terms.parties), RowsQuery()))


def test_a_session_goes_on_in_another_attempt_after_a_party_was_cut_off():
    liar = Liar()
    root = liar.train(never, before=root_of(1))
    for end in liar.ends.values():
        end.hang_up()
    liar.gather()
    assert liar.ask(root).any()


# ---- C8: what streams depend on ---------------------------------------------------------------------


@pytest.mark.parametrize("change", ["session", "attempt", "terms"])
def test_c8_streams_are_of_one_attempt_of_one_session_under_one_set_of_terms(change):
    """The same parties, rows and question: what p0 sends is unrelated."""
    seen = []
    for other in (False, True):
        liar = Liar(**({"rounds": 9} if other and change == "terms" else {}))
        name = "t" if other and change == "session" else "s"
        for attempt in (1, 2) if other and change == "attempt" else (1,):
            joins = [liar.say(p, Offer(name, liar.terms, attempt))[0] for p in liar.terms.parties]
            for party in liar.terms.parties:
                greetings, certificates = zip(*((j.greeting, j.certificate) for j in joins), strict=True)
                liar.say(party, Introduce(greetings, liar.state, certificates))
        (report,) = liar.say("p0", Ask(1, attempt, digest_of_roster(liar.terms.parties), RowsQuery()))
        seen.append(report)
    one, two = (np.frombuffer(report.cells, np.uint8) for report in seen)
    assert seen[0].ctx != seen[1].ctx
    assert np.count_nonzero(one == two) < one.size // 50


# ---- C11: two parties do not collude ----------------------------------------------------------------


@pytest.mark.parametrize("parties", [3, 4, 7])
def test_c11_at_least_two_parties_do_not_collude(parties):
    assert agreed(parties, colluding=parties - 2).signers == parties
    with pytest.raises(ConfigError, match=f"set colluding to at most {parties - 2}$"):
        agreed(parties, colluding=parties - 1)


# ---- C12: late and old ------------------------------------------------------------------------------


def test_c12_a_party_answers_in_no_attempt_but_the_last():
    liar = Liar()
    liar.gather()
    liar.gather()
    for attempt in (1, 3):
        with pytest.raises(Left, match=f"a query of attempt {attempt} during attempt 2$"):
            liar.say(f"p{attempt}", Ask(1, attempt, digest_of_roster(liar.terms.parties), RowsQuery()))


@pytest.mark.parametrize("late", [1, 2, 3])
def test_c12_reports_of_earlier_attempts_that_come_late_are_not_added(late):
    """Attempts are given up after p3 has answered; what it said arrives attempts later, said again and again,
    and the sums are those that they are without."""
    kept, rows = [], []
    together = None

    def change(message):
        session = together.session
        replies = list(together.ends["p3"].handle(message))
        if isinstance(message, Ask) and session.attempt <= 3:
            kept.extend(replies)
            session.tick(together.now)  # the attempt is given up: time is out
            return []
        old = [reply for reply in kept if session.attempt - reply.attempt >= late]
        return [*old, *replies, *old]

    together = Together(change, protection="masked")
    take = together.session.run.take

    def counting(total):
        if isinstance(together.session.run.pending.parts[0], RowsQuery):
            rows.append(int(total[0]))
        take(total)

    together.session.run.take = counting
    session = together.play()
    assert (session.phase, rows, session.attempt) == ("done", [len(X)], 4)
    assert {report.attempt for report in kept} == {1, 2, 3}
    assert session.booster.to_xgboost() == model_of(X, Y, randomly(len(X), 4), **SMALL)
