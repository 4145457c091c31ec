"""The costs of a training, by protection: trees that are really grown here for some seconds, and arithmetic.

Promises: the questions are those of a real training of the given terms, over the user's table or rows that
are generated; what a party, the key holder and the aggregator do is timed with the very code that does it.
Refuses: nothing itself; protections whose extra is not installed are left out.
"""

import math
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedboost.boosting.programs import boosting
from fedboost.errors import ConfigError
from fedboost.fixedpoint import Int64
from fedboost.people.facts import EstimateFacts
from fedboost.privacy.bit_packing import Segment
from fedboost.privacy.masked.keys import Group, Handshake
from fedboost.privacy.protection import Opener, Sealer, Tag
from fedboost.privacy.protections import PROTECTIONS, AggregatorSetup, PartySetup, Protection
from fedboost.runtime.config import cores
from fedboost.runtime.data.draft import split_by_weights
from fedboost.runtime.local.generated import table_for
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.telemetry import Row
from fedboost.terms.terms import Terms

MAX_VALUES = 8_000_000
"""Rows times features of the trees that are grown; of more rows a part is taken."""
MAX_SECONDS = 10.0
"""Of trees that are grown; further rounds are taken to be like the last."""
FIRST_ROUNDS = 10
"""Rounds that tell how long one takes."""
MESSAGE_SECONDS = 1.4e-3
"""Of a question to one party and its answer, at both ends: gRPC, TLS, the audit log and the memory of the
site. Measured on two cores (docs/scaling.md): between 1.1 and 1.6 ms from 3 parties to 30."""
MESSAGE_BYTES = 120
"""Of a report beside its cells."""
MIN_ROWS_A_PARTY = 20
SAMPLED_PARTIES = 100
"""Of more parties, each seals a smaller sample."""
FEWER = 4
"""Of a sample, one row in so many is taken for the first trees: what all of them take longer is the rows'."""
ALONE: dict[str, object] = {
    **{"protection": "plain", "parties": [], "keyholder": None, "keyholder_rows": True},
    **{"on_loss": "wait", "quorum": None, "early_stopping_rounds": None, "party_metrics": False},
    "program": "boosting",
}
"""Settings of the same trees in one process, with nobody to hide rows from, or to lose."""
SESSION = bytes(32)
T = TypeVar("T")


@dataclass(frozen=True)
class Speed:
    """Seconds for a cell at a party, at the key holder, at the aggregator for each party; bytes of one; bytes
    that a party sends for a sum besides; round trips of a sum."""

    seal: float
    help: float
    open: float
    size: float
    beside: int
    trips: int


@dataclass(frozen=True)
class Grown:
    """Trees that were grown: the parts of each question's answer, those before the first round too; how many
    of them until the end of the first round; rounds; seconds of a round, of all parties and the aggregator in
    turn, of which the program decides for some, and that each further row takes; seconds before the first, in
    which kernels are loaded and rows read; bytes that a party sent without protection: in the first round,
    with all before it, and in all later ones."""

    segments: list[tuple[Segment, ...]]
    first: int
    rounds: int
    a_round: float
    deciding: float
    a_row: float
    start: float
    sent: tuple[float, float]

    def weight(self, rounds: int) -> float:
        """The weight of each later round in a training of this number of rounds."""
        return (rounds - 1) / max(self.rounds - 1, 1)


def grow(terms: Terms, table: Any, parties: int, whole: bool, shares_turns: bool = True) -> Grown:
    """Grow trees over the rows of a table, for some seconds; whole: those are all rows. shares_turns: queries
    may share a turn."""
    names, segments = [f"p{number}" for number in range(parties)], list[tuple[Segment, ...]]()
    shards = split_by_weights(table, names, [1.0] * parties, 0, terms.columns.group)
    few = shards if whole else _fewer(table, names, terms)

    deciding, ends = list[float](), list[int]()

    def watched(agreed: Terms, state: Any) -> Generator[Any, Any, Any]:
        program, answer = boosting.train(agreed, state), None
        while True:
            begin = time.process_time()
            try:
                query = program.send(answer) if answer is not None else next(program)
            except StopIteration as end:
                return end.value
            finally:
                deciding.append(time.process_time() - begin)
            segments.extend([query.segments] if shares_turns else [part.segments for part in query.parts])
            answer = yield query

    marks = [time.process_time()]  # not those of the wall, on which others' work would count
    first = terms.changed(rounds=min(FIRST_ROUNDS, terms.trees.rounds))
    simulate(first, few, nthread=1, on_round=lambda row: marks.append(time.process_time()))
    start, *further = np.diff(marks)
    usual = float(np.median(further)) if further else start
    rounds = min(terms.trees.rounds, max(FIRST_ROUNDS, int(MAX_SECONDS / usual)))
    begin = time.process_time()
    marks = []

    def mark(row: Row) -> None:
        ends.append(len(segments))
        marks.append(time.process_time())

    result = simulate(terms.changed(rounds=rounds), shards, nthread=1, program=watched, on_round=mark)
    grown = len(result.history)
    same = np.diff(marks)[: len(further)]
    longer = max(float(np.median(same)) - usual, 0.0) if same.size else 0.0
    a_row = 0.0 if whole else longer / (table.num_rows * (1 - 1 / FEWER))
    a_round, decides = (time.process_time() - begin) / grown, sum(deciding) / grown
    sent = sum(sent for sent, _ in result.traffic.values()) / parties
    moved = [row["bytes"] for row in result.history]
    begins = sent * moved[0] / sum(moved)
    bytes_sent = begins, sent - begins
    return Grown(segments, ends[0], grown, a_round, decides, a_row, float(start - usual), bytes_sent)


def _fewer(table: Any, names: list[str], terms: Terms) -> Any:
    """The shards of a part of the rows, to see what a row takes."""
    weights = [1.0] * len(names) + [(FEWER - 1.0) * len(names)]
    shards = split_by_weights(table, [*names, "others"], weights, 0, terms.columns.group)
    return {name: shards[name] for name in names}


def speed_of(protection: Protection, parties: int, key_bits: int, bits: int, shrinks: bool = False) -> Speed:
    """Seal and open a sum of that many parties here. ConfigError if the protection's extra is not
    installed."""
    names = tuple(f"p{number}" for number in range(parties))
    cells = protection.sample_cells * min(parties, SAMPLED_PARTIES) // parties
    tag = Tag(1, 1, names, SESSION, (Segment(cells, bits),))
    sealers, opener = _ends(protection, names, key_bits, tag, shrinks)
    most = max(0, min(1000, (1 << bits - 1) // parties - 1))  # so that the sum fits its cell
    values: Int64 = np.random.default_rng(0).integers(-most, most + 1, cells)
    parts = {names[0]: [*sealers[names[0]].seal(values, tag)]}  # tables are made, the first time
    parts[names[1]], sealing = _timed(lambda: [*sealers[names[1]].seal(values, tag)])
    parts |= {name: [*sealers[name].seal(values, tag)] for name in names[2:]}
    begin = time.perf_counter()
    for name in names:
        for number, part in enumerate(parts[name]):
            opener.add(name, number, part)
        opener.note(name, sealers[name].note())
    helped, trips, beside = 0.0, 1, len(sealers[names[0]].note())
    while requests := opener.requests():
        trips += 1
        for name, request in requests.items():
            answer, took = _timed(partial(sealers[name].assist, request))
            helped += took
            opener.assist(name, answer)
            beside += len(answer) if name == names[0] else 0
    total = opener.open()
    whole = time.perf_counter() - begin
    if not np.array_equal(total, parties * values):
        raise AssertionError("the sum that was opened is another one")
    size = sum(map(len, parts[names[0]])) / cells
    opening = (whole - helped) / cells / parties
    return Speed(sealing / cells, helped / cells, opening, size, beside, trips)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and the seconds that it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def _ends(
    protection: Protection, names: tuple[str, ...], key_bits: int, tag: Tag, shrinks: bool
) -> tuple[dict[str, Sealer], Opener]:
    group, keyholder, draw = Group.of(names, 0), names[0], os.urandom
    hands = {name: Handshake(draw) for name in names}
    publics = {name: hand.public for name, hand in hands.items()}
    secret = protection.encryption().new_secret(key_bits) if protection.uses_key_holder else None
    public = None if secret is None else secret.public
    sealers = {}
    for name, hand in hands.items():
        keys, own = partial(hand.pair_keys, name, publics, SESSION), secret if name == keyholder else None
        setup = PartySetup(name, group, SESSION, keys, draw, public, own, 1, sparse=True, shrinks=shrinks)
        sealers[name] = protection.sealer(setup)
    return sealers, protection.opener(tag, AggregatorSetup(group, SESSION, draw, public, keyholder, shrinks))


@dataclass(frozen=True)
class Costs:
    """What a training costs before anything is hidden: the trees that were grown; by question how often it
    comes, and its answer's cells; seconds of a round, of all parties and the aggregator in turn; seconds
    before the first; mean cells and questions of a round, and bits of a cell."""

    grown: Grown
    asked: list[tuple[float, tuple[Segment, ...]]]
    in_turn: float
    start: float
    cells: float
    turns: float
    bits: int

    def computing(self, parties: int) -> float:
        """Seconds of a round at one party."""
        return (self.in_turn - self.grown.deciding) / parties


def costs_of(terms: Terms, rows: int, parties: int, table: Any = None) -> Costs:
    """Grow trees. table: the rows that trees are grown over; unless given they are generated."""
    alone = terms.changed(**ALONE)
    most = max(MAX_VALUES // len(terms.columns.features), MIN_ROWS_A_PARTY * parties)
    if table is None:
        table = table_for(alone, min(rows, most))
    elif table.num_rows > min(rows, most):
        table = table.slice(0, min(rows, most))
    share = min(1.0, table.num_rows / rows)
    trees, params = alone.trees, ("min_child_weight", "reg_lambda", "gamma")
    fewer = {name: getattr(trees, name) * share for name in params} if share < 1 else {}
    grown = grow(alone.changed(**fewer), table, parties, share == 1.0, terms.shares_turns)
    in_turn = grown.a_round + grown.a_row * (rows - table.num_rows)
    more_bits = math.ceil(math.log2(1 / share))
    segments = [
        tuple(Segment(s.cells, min(64, s.bits + more_bits)) for s in answer) for answer in grown.segments
    ]
    rounds, weight = terms.trees.rounds, grown.weight(terms.trees.rounds)
    weights = [1.0] * grown.first + [weight] * (len(segments) - grown.first)
    asked = [*zip(weights, segments, strict=True)]
    cells = sum(often * segment.cells for often, answer in asked for segment in answer) / rounds
    bits = round(sum(often * s.cells * s.bits for often, answer in asked for s in answer) / rounds / cells)
    turns, start = sum(weights) / rounds, grown.start * max(1.0, (parties + 1) / cores())
    return Costs(grown, asked, in_turn, start, cells, turns, bits)


def estimate(terms: Terms, rows: int, parties: int, table: Any = None) -> list[EstimateFacts]:
    """The estimates for each protection whose extra is installed. table: as `costs_of`."""
    return estimates(costs_of(terms, rows, parties, table), terms, parties)


def estimates(costs: Costs, terms: Terms, parties: int) -> list[EstimateFacts]:
    """The estimates for each protection whose extra is installed."""
    grown, cells, turns, rounds = costs.grown, costs.cells, costs.turns, terms.trees.rounds
    out = []
    for name, protection in PROTECTIONS.items():
        if protection.max_parties is not None and parties > protection.max_parties:
            continue
        try:
            shrinks = terms.session.on_loss == "shrink" and protection.may_shrink
            speed = speed_of(protection, max(parties, 2), terms.hiding.key_bits, costs.bits, shrinks)
        except ConfigError:
            continue
        if not protection.hides:
            first, later = grown.sent
            sent, sealing, opening = (first + grown.weight(rounds) * later) / rounds, 0.0, 0.0
        else:
            sealing, opening = cells * speed.seal, cells * (parties * speed.open + speed.help)
            size = cells * speed.size
            if (known := protection.sealed_size) is not None:
                tags = ((often, Tag(1, 1, (), SESSION, answer)) for often, answer in costs.asked)
                size = sum(often * known(tag) for often, tag in tags) / rounds
            sent = size + turns * (MESSAGE_BYTES + speed.beside)
        trips = turns * speed.trips
        messages = trips * parties * MESSAGE_SECONDS
        a_round = costs.in_turn + parties * sealing + opening + messages
        apart = costs.computing(parties) + sealing + opening + grown.deciding + messages
        facts = EstimateFacts(name, a_round, costs.start + a_round * rounds, sent / 1e6, trips, apart)
        out.append(facts)
    return out
