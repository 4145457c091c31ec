"""Both ends of an adder's connection: sums are those of the flat session, and every rule of adding."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from consortium import opener_of, sealers_of
from faults_adders import DIRECT, Scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy import packing
from fedboost.privacy.packing import Segment, chunks_of
from fedboost.privacy.protection import Tag
from fedboost.protocol.adding import (
    MAX_SEGMENTS,
    MAX_WAITING,
    AdderEnd,
    Addition,
    Cut,
    From,
    Gone,
    Held,
    Here,
    RegionEnd,
    RegionSum,
    To,
)
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.protocol.messages import Leave, Report, Summed
from fedboost.protocol.stages import Turn
from fedboost.runtime.aggregator.adder import report_of
from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.messages import (
    decode_from_adder,
    decode_to_adder,
    encode_from_adder,
    encode_from_party,
    encode_to_adder,
)

TREE = {"p0": "adder-0", "p1": "adder-0", "p2": "adder-1", "p3": DIRECT}
FLAT = dict.fromkeys(TREE, DIRECT)


class Adder:
    """An adder's end; all frames pass through the codec."""

    def __init__(self, *parties):
        self.up, self.down, self.cuts = [], [], []
        self.end = AdderEnd(
            lambda frame: self.up.append(decode_from_adder(encode_from_adder(frame))),
            lambda party, frame: self.down.append((party, frame.data)),
            lambda party, frame: self.cuts.append((party, frame)),
            report_of,
        )
        self.end.attach()
        for party in parties:
            self.end.here(party, "1.0")

    def taken(self):
        """What was sent up since."""
        frames, self.up[:] = [*self.up], []
        return frames

    def hears(self, frame):
        self.end.receive(decode_to_adder(encode_to_adder(frame)))

    def says(self, party, message, **kind):
        data = message if isinstance(message, bytes) else encode_from_party(message)
        self.end.message(party, data, **kind)
        return data


# ---- sums -----------------------------------------------------------------------------------------------


@st.composite
def turns(draw):
    """A turn: protection, parties, regions, shape of the vectors, how full they are, and a seed of the order
    in which parts arrive."""
    widths = st.builds(Segment, st.integers(1, 90), st.integers(1, 64))
    return SimpleNamespace(
        protection=draw(st.sampled_from(["plain", "masked"])),
        parties=draw(st.integers(4, 12) | st.just(70)),
        regions=draw(st.integers(1, 5)),
        segments=tuple(draw(st.lists(widths, min_size=1, max_size=4))),
        full=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        draw=draw(st.randoms(use_true_random=False)),
    )


def reports_of(turn, tag):
    """Party -> the parts of its report."""
    sealers = sealers_of(turn.protection, tag.roster)
    numbers = np.random.default_rng(turn.draw.randrange(1 << 32))
    reports, ctx = {}, opener_of(turn.protection, tag).ctx
    for party in tag.roster:
        values = numbers.integers(-(1 << 62), 1 << 62, tag.cells)
        values[numbers.random(tag.cells) >= turn.full] = 0
        sealed = sealers[party].seal(values, tag)
        reports[party] = [
            Report(tag.turn, tag.attempt, part, cells, ctx=b"" if part else ctx)
            for part, cells in enumerate(sealed)
        ]
    return reports


@settings(max_examples=40)
@given(turns())
def test_the_sum_through_adders_is_that_without(turn):
    names = tuple(f"p{number:02}" for number in range(turn.parties))
    with mock.patch.object(packing, "CHUNK_CELLS", 64):
        tag = Tag(1, 1, names, b"transcript".ljust(32, b"."), turn.segments)
        reports = reports_of(turn, tag)
        flat, root = (Turn(1, names, opener_of(turn.protection, tag)) for _ in range(2))
        addition = root.addition(1, turn.segments)
        of = {name: turn.draw.randrange(turn.regions + 1) for name in names}  # 0: it calls the aggregator
        adders = {}
        for number in {*of.values()} - {0}:
            members = tuple(name for name in names if of[name] == number)
            adders[number] = adder, region = Adder(*members), RegionEnd()
            for frame in adder.taken():
                region.here(frame)
            adder.hears(region.to(members, b"question", False, addition))
            assert adder.down == [(name, b"question") for name in members]
        left = {name: [*parts] for name, parts in reports.items()}
        sums = 0
        while waiting := [name for name in names if left[name]]:
            name = turn.draw.choice(waiting)
            report = left[name].pop(0)
            flat.report((name,), report)
            if not of[name]:
                root.report((name,), report)
                continue
            adder, region = adders[of[name]]
            adder.says(name, report)
            for frame in adder.taken():
                assert isinstance(frame, RegionSum)
                sums += 1
                cells = Report(frame.turn, frame.attempt, frame.part, frame.cells, ctx=frame.ctx)
                root.report(tuple(region.summed(frame)), cells)
        assert sums == len(adders) * len(tag.chunks)
        assert not root.reporting
        assert (root.open() == flat.open()).all()


# ---- the adder's end ------------------------------------------------------------------------------------


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_CELLS", 64)


CTX = bytes(range(32))
ASKED = Addition(3, 2, CTX, (Segment(100, 16),), False)
"""A question whose answers have two parts of 64 and 36 cells."""


def answer(party="a", addition=ASKED):
    """The parts of a party's answer."""
    words = np.random.default_rng(party.encode()[0]).integers(1, 1 << 15, 100).astype(np.uint64)
    return [
        Report(addition.turn, addition.attempt, part, chunk.packed(chunk.of(words)), ctx=b"" if part else CTX)
        for part, chunk in enumerate(chunks_of(addition.segments))
    ]


def asked(*parties, addition=ASKED):
    """An adder whose parties were asked."""
    adder = Adder(*parties)
    numbers = tuple(frame.number for frame in adder.taken())
    adder.hears(To(numbers, b"question", adds=addition))
    return adder


pytestmark = pytest.mark.usefixtures("short_chunks")


def test_a_part_leaves_once_all_asked_parties_gave_it():
    adder = asked("a", "b", "c")
    for party in "ab":
        for part in answer(party):
            adder.says(party, part)
    assert adder.taken() == []
    first, second = answer("c")
    size = len(adder.says("c", first))
    (summed,) = adder.taken()
    words = np.zeros(64, np.uint64)
    for party in "abc":
        chunks_of(ASKED.segments)[0].add(words, answer(party)[0].cells)
    assert summed == RegionSum(3, 2, 0, chunks_of(ASKED.segments)[0].packed(words), CTX, (size,), 3)
    adder.says("c", second)
    (summed,) = adder.taken()
    assert (summed.part, summed.ctx, summed.last) == (1, b"", 3)


def test_different_sizes_are_told_in_the_order_of_the_question():
    adder = Adder("a", "b")
    adder.taken()
    adder.hears(To((2, 1), b"question", adds=ASKED))
    whole = answer("a")[0]
    few = np.zeros(64, np.uint64)
    few[3] = 7
    sparse = replace(whole, cells=chunks_of(ASKED.segments)[0].packed_sparsely(few))
    sizes = len(adder.says("a", whole)), len(adder.says("b", sparse))
    (summed,) = adder.taken()
    assert sizes[0] > sizes[1]
    assert summed.sizes == sizes[::-1]


def test_a_repeated_part_is_dropped():
    adder = asked("a", "b")
    first, second = answer()
    for part in (first, first, second, first, second, second):
        adder.says("a", part)
    assert adder.taken() == []
    for part in answer("b"):
        adder.says("b", part)
    assert [frame.part for frame in adder.taken()] == [0, 1]
    adder.says("a", first)
    assert adder.taken() == []


UNFIT = {
    "a part out of order": lambda parts: parts[1],
    "no such part": lambda parts: replace(parts[1], part=7),
    "another context": lambda parts: replace(parts[0], ctx=bytes(32)),
    "no context": lambda parts: replace(parts[0], ctx=b""),
    "an earlier attempt": lambda parts: replace(parts[0], attempt=1),
    "a later attempt": lambda parts: replace(parts[0], attempt=3),
    "an earlier turn": lambda parts: replace(parts[0], turn=2),
    "a later turn": lambda parts: replace(parts[0], turn=4),
    "a note": lambda parts: replace(parts[0], note=b"note"),
    "too few cells": lambda parts: replace(parts[0], cells=parts[0].cells[:-9]),
    "no cells": lambda parts: replace(parts[0], cells=b""),
    "other messages": lambda parts: Leave("it has had enough"),
    "no message at all": lambda parts: b"\xff\xff",
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_added_is_passed_on_unchanged(unfit):
    adder = asked("a", "b")
    data = adder.says("a", unfit(answer()))
    assert adder.taken() == [From(1, data)]


def test_after_malformed_cells_the_parts_of_other_parties_are_passed_on():
    """The sum is spoilt, and the aggregator begins another attempt once it has the malformed part."""
    adder = asked("a", "b")
    adder.says("b", answer("b")[0])
    bad = adder.says("a", replace(answer()[0], cells=b"x"))
    rest = adder.says("b", answer("b")[1])
    assert adder.taken() == [From(1, bad), From(2, rest)]


def test_a_party_that_was_not_asked_is_passed_on():
    adder = asked("a", "b")
    adder.end.here("c", "1.0")
    data = adder.says("c", answer()[0])
    assert adder.taken() == [Here(3, "c", "1.0"), From(3, data)]


def test_without_a_question_that_can_be_added_reports_are_passed_on():
    adder = Adder("a", "b")
    adder.taken()
    adder.hears(To((1, 2), b"question"))
    data = adder.says("a", answer()[0])
    assert adder.taken() == [From(1, data)]


def test_a_party_that_is_lost_after_its_last_part_is_gone_after_the_sum():
    """What follows about it, its return included, stays behind the sum, too."""
    adder = asked("a", "b")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost")
    adder.end.here("a", "1.1")
    leave = adder.says("a", Leave("enough"))
    assert adder.taken() == []
    for part in answer("b"):
        adder.says("b", part)
    first, second, *rest = adder.taken()
    assert (first.part, second.part) == (0, 1)
    assert rest == [Gone(1, "lost"), Here(3, "a", "1.1"), From(3, leave)]


def test_a_party_that_is_lost_before_its_last_part_is_gone_at_once_and_the_sum_never_leaves():
    adder = asked("a", "b")
    adder.says("a", answer()[0])
    adder.end.gone("a", "lost")
    assert adder.taken() == [Gone(1, "lost")]
    passed = [From(2, adder.says("b", part)) for part in answer("b")]
    assert adder.taken() == passed


def test_a_part_that_all_gave_leaves_even_if_a_party_is_lost_before_its_last_part():
    adder = asked("a", "b")
    for party in "ab":
        adder.says(party, answer(party)[0])
    adder.end.gone("a", "lost")
    adder.says("b", answer("b")[1])
    summed, gone, passed = adder.taken()
    assert (summed.part, gone.number, passed.number) == (0, 1, 2)


def test_a_loss_that_spoils_the_sum_releases_the_losses_that_wait_for_it():
    adder = asked("a", "b", "c")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost first")
    adder.end.gone("b", "lost next")
    assert {frame.reason for frame in adder.taken()} == {"lost first", "lost next"}


def test_a_party_that_waits_for_a_sum_cannot_fill_the_memory():
    adder = asked("a", "b")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost")
    adder.end.here("a", "1.0")
    for _ in range(3 * MAX_WAITING):
        adder.says("a", Leave("again"))
    adder.end.gone("a", "lost again")
    for part in answer("b"):
        adder.says("b", part)
    frames = adder.taken()
    assert sum(isinstance(frame, From) for frame in frames) <= MAX_WAITING
    assert [frame.number for frame in frames if isinstance(frame, Gone)] == [1, 3]


def test_a_question_of_a_new_attempt_drops_the_running_sum():
    adder = asked("a", "b")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost")
    adder.end.here("a", "1.0")
    again = replace(ASKED, attempt=3)
    adder.hears(To((3, 2), b"question", adds=again))
    assert adder.taken() == [Gone(1, "lost"), Here(3, "a", "1.0")]
    for party in "ab":
        for part in answer(party, again):
            adder.says(party, part)
    assert [(frame.attempt, frame.part) for frame in adder.taken()] == [(3, 0), (3, 1)]


def test_a_party_that_left_while_the_question_was_on_its_way_is_no_reason_to_add():
    adder = Adder("a", "b")
    adder.end.gone("a", "lost")
    adder.taken()
    adder.hears(To((1, 2), b"question", adds=ASKED))
    assert adder.down == [("b", b"question")]
    passed = [From(2, adder.says("b", part)) for part in answer("b")]
    assert adder.taken() == passed


SHAPES = {
    "no bits": (Segment(10, 0),),
    "too many bits": (Segment(10, 65),),
    "too many cells": (Segment(MAX_CELLS + 1, 8),),
    "too many cells in all": (Segment(MAX_CELLS, 8), Segment(1, 8)),
}


@pytest.mark.parametrize("segments", SHAPES.values(), ids=SHAPES)
def test_vectors_of_an_impossible_shape_are_refused(segments):
    adder = Adder("a")
    with raised(PeerError, "addition-shape"):
        adder.hears(To((1,), b"question", adds=replace(ASKED, segments=segments)))


def test_too_many_segments_are_no_message():
    many = replace(ASKED, segments=(Segment(1, 8),) * (MAX_SEGMENTS + 1))
    with pytest.raises(PeerError):
        decode_to_adder(encode_to_adder(To((1,), b"question", adds=many)))


@pytest.mark.parametrize("numbers", [(7,), (1, 7), (), (1, 1)])
def test_numbers_that_no_party_has_do_no_harm(numbers):
    adder = Adder("a", "b")
    adder.taken()
    adder.hears(To(numbers, b"question", adds=ASKED))
    data = adder.says("b", Leave("enough"))
    adder.hears(Cut(7, True, "party-name-taken", "taken"))
    assert adder.taken() == [From(2, data)]
    assert adder.cuts == []


def test_nothing_that_was_meant_for_a_call_reaches_the_next_one():
    adder = Adder("a")
    adder.end.gone("a", "lost")
    adder.end.here("a", "1.0")
    adder.hears(To((1,), b"old"))
    adder.hears(Cut(1, False, "part-order", "old"))
    assert (adder.down, adder.cuts) == ([], [])
    adder.hears(To((2,), b"new"))
    adder.hears(Cut(2, False, "part-order", "new"))
    assert adder.down == [("a", b"new")]
    assert [(party, cut.reason) for party, cut in adder.cuts] == [("a", "new")]


def test_a_message_without_numbers_is_for_those_of_the_one_before():
    adder, region = Adder("a", "b", "c"), RegionEnd()
    for frame in adder.taken():
        region.here(frame)
    both = region.to(("a", "c"), b"1", False, None)
    again = region.to(("a", "c"), b"2", False, None)
    assert (both.numbers, again.numbers) == ((1, 3), ())
    adder.hears(both)
    adder.hears(again)
    assert adder.down == [("a", b"1"), ("c", b"1"), ("a", b"2"), ("c", b"2")]


def test_a_preflight_check_does_not_change_whom_the_next_question_is_for():
    adder, region = Adder("a", "b"), RegionEnd()
    for frame in adder.taken():
        region.here(frame)
    adder.hears(region.to(("a", "b"), b"introduction", False, None))
    adder.hears(To((1,), b"check", advises=True))
    adder.hears(region.to(("a", "b"), b"question", False, ASKED))
    assert adder.down[-2:] == [("a", b"question"), ("b", b"question")]
    for part in answer():
        adder.says("a", part)
    assert adder.taken() == [], "no sum over one of two"


def test_a_preflight_check_does_not_hurry_a_loss_ahead_of_the_sum():
    adder = asked("a", "b")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost")
    adder.hears(To((2,), b"check", advises=True))
    data = adder.says("b", b"objections", advises=True)
    assert adder.taken() == [From(2, data, True)]


def test_a_new_connection_has_the_parties_that_are_here_and_no_sum():
    adder = asked("a", "b")
    for part in answer():
        adder.says("a", part)
    adder.end.gone("a", "lost")
    adder.end.detach()
    adder.says("b", answer("b")[0])
    adder.end.here("c", "1.0")
    assert adder.taken() == []
    adder.end.attach()
    assert adder.taken() == [Here(4, "b", "1.0"), Here(5, "c", "1.0")]
    data = adder.says("b", answer("b")[0])
    assert adder.taken() == [From(4, data)]


def test_the_adder_says_once_a_turn_whose_reports_it_holds():
    """Also if they are the same parties as in the turn before."""
    adder = asked("a", "b")
    adder.end.tell_held()
    for turn in (3, 4):
        addition = replace(ASKED, turn=turn)
        adder.hears(To((1, 2), b"question", adds=addition))
        for part in answer("a", addition):
            adder.says("a", part)
        for _ in range(2):
            adder.end.tell_held()
        assert adder.taken() == [Held(turn, 2, (1,))]
        for part in answer("b", addition):
            adder.says("b", part)
        assert {type(frame) for frame in adder.taken()} == {RegionSum}
    adder.end.tell_held()
    assert adder.taken() == []


# ---- the aggregator's end of a region -------------------------------------------------------------------


def region_of(*parties):
    region = RegionEnd()
    for number, party in enumerate(parties, 1):
        region.here(Here(number, party))
    return region


SUM = RegionSum(3, 2, 0, b"cells", CTX, (5,), 1)


@pytest.mark.parametrize("again", [Here(2, "c"), Here(1, "c"), Here(0, "c"), Here(3, "a")])
def test_a_number_or_party_that_is_announced_twice_is_refused(again):
    with raised(PeerError, "region-number"):
        region_of("a", "b").here(again)


def test_a_region_has_so_many_parties():
    region = region_of(*(f"p{number}" for number in range(MAX_PARTIES)))
    with raised(PeerError, "region-too-large"):
        region.here(Here(MAX_PARTIES + 1, "one more"))


@pytest.mark.parametrize("name", ["", "n" * 257])
def test_a_party_has_a_name_of_some_length(name):
    with pytest.raises(PeerError):
        decode_from_adder(encode_from_adder(Here(1, name)))


def test_a_party_that_calls_again_has_another_number():
    region = region_of("a", "b")
    region.forget("a")
    region.forget("a")
    region.here(Here(9, "a"))
    assert region.to(("a", "b"), b"", False, None).numbers == (9, 2)
    assert region.names == {2: "b", 9: "a"}


def test_a_sum_is_over_the_parties_that_were_asked():
    region = region_of("a", "b", "c")
    region.to(("c", "a"), b"question", False, ASKED)
    assert region.summed(SUM) == {"c": 5, "a": 5}
    region.to(("c", "a", "b"), b"other", False, None)
    assert region.summed(replace(SUM, sizes=(5, 6))) == {"c": 5, "a": 6}


@pytest.mark.parametrize("label", [{"turn": 4}, {"attempt": 3}, {"attempt": 3, "turn": 1}])
def test_a_sum_that_nobody_asked_for_is_refused(label):
    region = region_of("a", "b")
    with raised(PeerError, "region-sum-unasked"):
        region.summed(SUM)
    region.to(("a", "b"), b"question", False, ASKED)
    with raised(PeerError, "region-sum-unasked"):
        region.summed(replace(SUM, **label))


@pytest.mark.parametrize("label", [{"turn": 2}, {"attempt": 1}, {"attempt": 1, "turn": 9}])
def test_a_sum_of_an_earlier_question_is_ignored(label):
    region = region_of("a", "b")
    region.to(("a", "b"), b"question", False, ASKED)
    assert region.summed(replace(SUM, **label)) is None


@pytest.mark.parametrize("sizes", [(), (5, 5, 5)])
def test_a_sum_with_a_wrong_number_of_sizes_is_refused(sizes):
    region = region_of("a", "b")
    region.to(("a", "b"), b"question", False, ASKED)
    with raised(PeerError, "region-sum-sizes"):
        region.summed(replace(SUM, sizes=sizes))


# ---- the session ----------------------------------------------------------------------------------------

TURN = 3


@pytest.fixture
def shorter_chunks(monkeypatch):
    """Answers of several parts in the small sessions of the simulator."""
    monkeypatch.setattr(packing, "CHUNK_CELLS", 4)


def summed_by(world, key="adder-0"):
    """The parts of the sum of an adder's region, which the aggregator does not have yet."""
    adder = world.adders[key]
    for name in (name for name, route in world.routes.items() if route == key):
        while world.up[name]:
            adder.end.message(name, world.up[name].popleft())
    frames = [*adder.up]
    adder.up.clear()
    parts = []
    for frame in map(decode_from_adder, frames):
        report = Report(frame.turn, frame.attempt, frame.part, frame.cells, ctx=frame.ctx)
        parts.append(Summed(tuple(adder.region.summed(frame)), report))
    return parts


@pytest.fixture(params=["plain", "masked"])
def world(request, shorter_chunks):
    world = Scripted(TREE, request.param)
    world.asked(TURN)
    return world


def changed(summed, **values):
    return replace(summed, report=replace(summed.report, **values))


def test_the_parts_of_a_sum_are_taken_in_order_and_once(world):
    first, second, *rest = summed_by(world)
    handle = world.session.handle_sum
    with raised(PeerError, "part-order"):
        handle(second)
    assert handle(first) == []
    with raised(PeerError, "part-order"):
        handle(first)
    with raised(PeerError, "part-order"):
        handle(rest[0])
    for part in (second, *rest):
        assert handle(part) == []
    with raised(PeerError, "part-order"):
        handle(first)
    assert world.session.awaited == ("p2", "p3")


def test_a_sum_for_other_parties_is_refused(world):
    (first, *_) = summed_by(world)
    handle, session = world.session.handle_sum, world.session
    with raised(PeerError, "region-not-introduced"):
        handle(replace(first, parties=("p0", "stranger")))
    for parties in ((), ("p0", "p0"), ("p0", "p1", "p0")):
        with raised(PeerError, "part-order"):
            handle(replace(first, parties=parties))
    assert session.awaited == tuple(TREE)
    assert handle(first) == []
    with raised(PeerError, "part-order"):
        handle(replace(first, parties=("p1", "p2")))


def test_a_sum_beside_a_report_of_one_of_its_parties_is_refused(world):
    """An adder that passes on what it also adds."""
    (report, *_) = map(report_of, world.up["p0"])
    (first, *_) = summed_by(world)
    world.session.handle("p0", report)
    with raised(PeerError, "part-order"):
        world.session.handle_sum(first)


def test_a_sum_of_another_context_is_refused(world):
    first, second, *_ = summed_by(world)
    with raised(PeerError, "report-other-context"):
        world.session.handle_sum(changed(first, ctx=bytes(32)))
    world.session.handle_sum(first)
    with raised(PeerError, "report-other-context"):
        world.session.handle_sum(changed(second, ctx=bytes(32)))


def test_a_sum_of_another_time_is_ignored_or_refused(world):
    (first, *_) = summed_by(world)
    for earlier in ({"turn": TURN - 1}, {"attempt": 0}, {"attempt": 0, "turn": TURN + 1}):
        assert world.session.handle_sum(changed(first, **earlier)) == []
    with raised(PeerError, "report-wrong-turn"):
        world.session.handle_sum(changed(first, turn=TURN + 1))


def test_a_sum_of_malformed_cells_is_refused(world):
    (first, *_) = summed_by(world)
    with raised(PeerError, "cells-length"):
        world.session.handle_sum(changed(first, cells=first.report.cells + b"x"))


def test_a_sum_while_parties_join_is_refused(world):
    (first, *_) = summed_by(world)
    world.drop("p3")
    session = world.session
    assert session.phase == "joining"
    assert session.handle_sum(first) == [], "of the attempt before"
    with raised(PeerError, "region-not-introduced"):
        session.handle_sum(changed(first, attempt=session.attempt))
    with raised(PeerError, "region-sum-unasked"):
        session.handle_sum(Summed((), replace(first.report, attempt=session.attempt)))


def test_a_sum_at_the_end_is_refused(world):
    (first, *_) = summed_by(world)
    world = Scripted(TREE)
    session = world.session
    world.move(lambda: session.phase == "closing")
    with raised(PeerError, "region-sum-unasked"):
        session.handle_sum(changed(first, attempt=session.attempt, turn=session.turn))
    world.move()
    assert session.phase == "done"
    assert session.handle_sum(first) == []


def test_a_sum_while_a_sum_is_opened_is_refused():
    world = Scripted(TREE, "masked", "shrink")
    session = world.session
    world.move(lambda: session.phase == "opening")
    report = Report(session.turn, session.attempt, 0, b"cells", ctx=CTX)
    with raised(PeerError, "region-sum-unasked"):
        session.handle_sum(Summed(("p0", "p1"), report))


def test_the_parties_of_a_region_share_one_copy_of_each_message_of_an_attempt():
    """An offer has all terms: one copy each would be more than may wait for an adder."""
    world = Scripted(TREE)
    world.asked(TURN)
    adder = world.adders["adder-0"]
    world.send(world.session.restart_attempt())
    (offer,) = map(decode_to_adder, adder.down)
    assert adder.end.receivers(offer) == ["p0", "p1"]


def test_what_cannot_be_added_is_not_asked_for():
    """Masks in two legs have notes."""
    world = Scripted(TREE, "masked", "shrink")
    world.asked(TURN)
    assert world.session.addition is None
    assert all(adder.end._sum is None for adder in world.adders.values())


SPOILT = {
    "a part out of order": lambda report: replace(report, part=report.part + 1),
    "another context": lambda report: replace(report, ctx=bytes(32)),
    "another context later": lambda report: replace(report, ctx=bytes(32)) if report.part else report,
    "no context": lambda report: replace(report, ctx=b""),
    "another turn": lambda report: replace(report, turn=report.turn + 1),
    "a later attempt": lambda report: replace(report, attempt=report.attempt + 1),
    "a note": lambda report: replace(report, note=b"note"),
    "a note first": lambda report: report if report.part else replace(report, note=b"note"),
    "a note later": lambda report: replace(report, note=b"note") if report.part else report,
    "malformed cells": lambda report: replace(report, cells=report.cells[:-1]),
    "malformed cells later": lambda report: (
        replace(report, cells=report.cells[:-1]) if report.part else report
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_a_party_that_breaks_a_rule_is_named_as_in_the_flat_session(spoil, protection, shorter_chunks):
    ends = []
    for routes in (TREE, FLAT):
        world = Scripted(routes, protection)
        world.asked(TURN - 1)
        world.said = lambda name, message: (
            spoil(message) if name == "p1" and isinstance(message, Report) else message
        )
        for name in (*world.sites, *world.sites):
            world.answer(name)
        ends.append(world.finish())
        assert world.session.attempt == 1, "nobody had to wait for a timeout"
    assert ends[0] == ends[1]
    if spoil is not SPOILT["another context later"] and protection == "masked":
        assert ends[0].startswith("party p1 broke the protocol")


def test_an_adder_that_holds_reports_names_the_party_that_is_late(world):
    for name in ("p0", "p2", "p3"):
        world.answer(name)
    session = world.session
    assert session.awaited == ("p0", "p1"), "the region, as long as the adder has said nothing"
    world.adders["adder-0"].end.tell_held()
    world.move()
    assert session.awaited == ("p1",)
    losses = dict(session.attendance.losses)
    world.tick(60.0)
    assert session.attempt == 2
    assert {party for party, count in session.attendance.losses.items() if count != losses.get(party)} == {
        "p1"
    }
    assert [*session.attendance.away] == ["p1"]
    assert world.finish() == world.due_model


def test_reports_that_are_held_of_another_time_count_for_nothing(world):
    session = world.session
    for turn, attempt in ((TURN - 1, 1), (TURN + 1, 1), (TURN, 2)):
        session.hold(turn, attempt, ["p0"])
    assert session.awaited == tuple(TREE)
    session.hold(TURN, 1, TREE)
    assert session.awaited == tuple(TREE), "all are held by adders: none is the late one"


# ---- losses are decided as without adders ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
@pytest.mark.parametrize("when", ["before", "after", "at once"])
def test_a_loss_is_decided_as_in_the_flat_session(protection, on_loss, when, shorter_chunks):
    """before and after: p0 is lost before or after its last part, and away until all others have answered;
    at once: it is back at once."""
    ends = []
    for routes in (TREE, FLAT):
        world = Scripted(routes, protection, on_loss)
        world.asked(TURN)
        parts = len(world.up["p0"])
        assert parts > 1
        world.answer("p0", parts - (when == "before"))
        world.answer("p1", parts - 1)
        world.drop("p0")
        if when == "at once":
            world.back_at_once("p0") if routes is TREE else world.back("p0")
        for name in ("p1", "p2", "p3"):
            world.answer(name)
        here = world.session.attempt, world.session.phase, world.session.turn
        if on_loss != "wait" and when != "at once":
            world.tick(30.0)
        end = world.finish()
        ends.append((here, end, world.session.attempt, world.session.roster, [*world.rosters.values()]))
        if on_loss == "wait":
            assert end == world.due_model
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("regions", "is_noticed"), [(TREE, True), (dict.fromkeys(TREE, "adder-0"), False)])
def test_the_masks_betray_an_earlier_sum_unless_the_adder_has_all_parties(regions, is_noticed):
    """Where all parties call one adder, their masks cancel in its sums: it has to be trusted with them."""
    world, sums = Scripted(regions, "masked"), {}
    end = world.adders["adder-0"].end
    up = end._up

    def old_cells(frame):
        if isinstance(frame, RegionSum):
            sums[frame.turn] = frame.cells
            if frame.turn == 9:
                assert len(sums[7]) == len(sums[9])
                frame = replace(frame, cells=sums[7])
        up(frame)

    end._up = old_cells
    if is_noticed:
        assert "did not cancel" in world.finish()
    else:
        with pytest.raises(AssertionError, match="a sum of something else"):
            world.finish()


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_a_killed_adder_costs_one_attempt(protection, shorter_chunks):
    world = Scripted(TREE, protection)
    world.asked(TURN)
    world.answer("p0")
    world.kill("adder-0")
    world.move()
    assert world.session.attempt == 2
    assert world.finish() == world.due_model
    assert world.session.attempt == 2


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_a_restarted_aggregator_finds_the_adders_parties(protection, shorter_chunks):
    world = Scripted(TREE, protection)
    world.asked(TURN)
    world.answer("p0")
    world.crash()
    assert world.adders["adder-0"].parties == {"p0", "p1"}
    assert world.finish() == world.due_model
