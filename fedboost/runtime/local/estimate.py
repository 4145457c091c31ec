"""Estimates the time, traffic and memory that training takes under each protection.

Trees are grown on this machine for a few seconds, on the user's table or on generated rows, with the same
queries as in a training session. The work of the parties, the key holder and the aggregator is timed with the
code that sessions use, and extrapolated to the full number of rounds and rows. Protections whose extra is not
installed are omitted.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.base import view_of
from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64, Int64
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.holders.column_rows import PAIR_BYTES
from fedboost.privacy.packing import Segment, chunks_of
from fedboost.privacy.pairwise import AggregatorSetup, Group, Handshake, PartySetup
from fedboost.privacy.points import POINT_BYTES, TOKEN_WORDS, check_points, multiply, points_of, tokens_of
from fedboost.privacy.protection import Opener, Sealer, Tag
from fedboost.privacy.protections import PROTECTIONS, Protection
from fedboost.results.model import ColumnsEstimate, Estimate, Estimates, Layout, PartyCosts, Workers
from fedboost.runtime.config import cores
from fedboost.runtime.data.draft import split_by_weights
from fedboost.runtime.local.row_costs import Grown as GrownColumns
from fedboost.runtime.local.row_costs import RowCosts, Turn, block_of, relays, row_costs, timed
from fedboost.runtime.local.row_costs import grow as grow_columns
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.telemetry import Row
from fedboost.runtime.workers.holder import growing_bytes, loading_bytes
from fedboost.terms.terms import Terms

# ---- Generated rows, where there is no table yet --------------------------------------------------------
# The table fits its terms. The same terms and number of rows give the same table.


ROWS_OF_A_GROUP = 20
MAX_RELEVANCE = 4
MIN_CLASSES = 2
VALIDATION = 5  # one row in this many is for validation, if the terms name a validation column


def table_for(terms: Terms, rows: int) -> "pa.Table":
    """Generate a table with all columns that the terms name. The features are independent, and the label
    depends on some of them. The same terms and number of rows always give the same table."""
    draw, columns = np.random.default_rng(0), terms.columns
    table: dict[str, Any] = {name: draw.standard_normal(rows).astype(np.float32) for name in columns.numeric}
    codes = {name: draw.integers(0, len(known), rows) for name, known in columns.categorical.items()}
    for name, known in columns.categorical.items():
        table[name] = pa.array(np.array(known, object)[codes[name]], pa.string())
    for name, buckets in columns.target_means.items():
        codes[name] = draw.integers(0, buckets, rows)
        table[name] = pa.array(codes[name].astype(str))
    signals = [*(table[name] for name in columns.numeric), *(code % 3 - 1.0 for code in codes.values())]
    first, second, third = (signals[number % len(signals)] for number in range(3))
    score = (first + second * third + np.sin(2 * third)) / 2 + draw.logistic(size=rows)
    table[columns.label] = _label(terms, score)
    if columns.label_upper_bound is not None:
        table[columns.label_upper_bound] = table[columns.label]
    if columns.group is not None:
        table[columns.group] = np.arange(rows) // ROWS_OF_A_GROUP
    if columns.weight is not None:
        table[columns.weight] = np.ones(rows)
    if columns.base_margin is not None:
        table[columns.base_margin] = np.zeros(rows)
    if columns.validation is not None:
        table[columns.validation] = np.arange(rows) % VALIDATION == 0
    if columns.row_id is not None:
        table[columns.row_id] = pa.array([str(row) for row in range(rows)])
    return pa.table(table)


def _label(terms: Terms, score: Float64) -> Any:
    columns, kind = terms.columns, terms.objective.loss.xgboost_equivalent.label_kind
    if kind is LabelKind.CLASS:
        number = terms.objective.num_class or MIN_CLASSES
        codes = np.digitize(score, np.quantile(score, np.arange(1, number) / number))
        if columns.classes:
            return np.array(columns.classes)[codes]
        return codes if columns.positive is None else np.where(codes == 1, columns.positive, "another")
    if kind is LabelKind.RELEVANCE:
        return np.clip(np.floor(score + 1), 0, MAX_RELEVANCE)
    return score if kind is LabelKind.NUMBER else np.floor(np.exp(np.clip(score, -3, 3))) + 1


# ---- Costs of a training by protection, from trees grown here for some seconds --------------------------


MAX_VALUES = 8_000_000  # maximum of rows times features for growing trees; larger tables are cut
MAX_SECONDS = 10.0  # seconds of growing trees; further rounds are assumed to be like the last
FIRST_ROUNDS = 10  # rounds to measure how long one takes
MESSAGE_SECONDS = 1.4e-3
"""Seconds that both ends spend on a query to one party and its answer: gRPC, TLS, audit log and site memory.
Measured on two cores (docs/scaling.md): between 1.1 and 1.6 ms for 3 to 30 parties."""
MESSAGE_BYTES = 120  # bytes of a report without its cells
MIN_ROWS_A_PARTY = 20
SAMPLED_PARTIES = 100  # with more parties, each seals a smaller sample
FEWER = 4
"""Trees are first grown on only one in this many rows of a sample. The cost per row follows from the
difference in time."""
ALONE: dict[str, object] = {
    **{"protection": "plain", "parties": [], "keyholder": None, "keyholder_rows": True},
    **{"on_loss": "wait", "quorum": None, "early_stopping_rounds": None, "party_metrics": False},
    "program": "boosting",
}
"""Settings with which the same trees are grown in one process, without protection and without
disconnections."""
SESSION = bytes(32)


@dataclass(frozen=True)
class Speed:
    """Measured cost of sealing (hiding) the parties' vectors and opening (revealing) their sum.

    Args:
        seal: seconds per cell at a party.
        help: seconds per cell to answer the aggregator's requests, such as decryption by the key holder.
        open: seconds per cell and party at the aggregator.
        size: bytes per cell.
        beside: additional bytes that a party sends per sum.
        trips: round trips per sum.
    """

    seal: float
    help: float
    open: float
    size: float
    beside: int
    trips: int


@dataclass(frozen=True)
class Grown:
    """Measurements of trees that were grown on this machine.

    Args:
        segments: layout of each query's answer, including the queries before the first round.
        first: number of answers up to the end of the first round.
        rounds: number of rounds grown.
        a_round: seconds per round, summed over all parties and the aggregator.
        deciding: part of `a_round` that is spent in the aggregator's program.
        a_row: seconds per round for each additional row.
        start: seconds before the first round, for loading kernels and reading rows.
        sent: bytes that a party sends without protection, up to the end of the first round and afterwards.
    """

    segments: list[tuple[Segment, ...]]
    first: int
    rounds: int
    a_round: float
    deciding: float
    a_row: float
    start: float
    sent: tuple[float, float]

    def weight(self, rounds: int) -> float:
        """Return the factor by which to multiply the cost of the measured rounds after the first, to get the
        cost of all rounds after the first in a full training run. rounds: number of rounds in the full
        run."""
        return (rounds - 1) / max(self.rounds - 1, 1)


def grow(terms: Terms, table: Any, parties: int, whole: bool, shares_turns: bool = True) -> Grown:
    """Grow trees on a table for a few seconds, and measure the cost. parties: number of parties among which
    the rows are split; whole: True if the table has all rows, so that the cost of additional rows is not
    needed; shares_turns: True if several queries may share a turn."""
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

    marks = [time.process_time()]  # CPU time, which other processes do not affect
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
    """Split one in `FEWER` rows of a sample among the parties, to measure the cost per row."""
    weights = [1.0] * len(names) + [(FEWER - 1.0) * len(names)]
    shards = split_by_weights(table, [*names, "others"], weights, 0, terms.columns.group)
    return {name: shards[name] for name in names}


def speed_of(protection: Protection, parties: int, key_bits: int, bits: int, shrinks: bool = False) -> Speed:
    """Measure how long it takes to seal and open a sum. Raises ConfigError if the protection's extra is not
    installed.

    Args:
        parties: number of parties.
        key_bits: size of the key under encryption.
        bits: bits per cell.
        shrinks: True if the session may continue without a lost party, which needs additional masks.
    """
    names = tuple(f"p{number}" for number in range(parties))
    cells = protection.sample_cells * min(parties, SAMPLED_PARTIES) // parties
    tag = Tag(1, 1, names, SESSION, (Segment(cells, bits),))
    sealers, opener = _ends(protection, names, key_bits, tag, shrinks)
    most = max(0, min(1000, (1 << bits - 1) // parties - 1))  # the sum of all parties must fit its cell
    values: Int64 = np.random.default_rng(0).integers(-most, most + 1, cells)
    parts = {names[0]: [*sealers[names[0]].seal(values, tag)]}  # the first time makes tables, so is not timed
    parts[names[1]], sealing = timed(lambda: [*sealers[names[1]].seal(values, tag)], time.perf_counter)
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
            answer, took = timed(partial(sealers[name].assist, request), time.perf_counter)
            helped += took
            opener.assist(name, answer)
            beside += len(answer) if name == names[0] else 0
    total = opener.open()
    whole = time.perf_counter() - begin
    if not np.array_equal(total, parties * values):
        raise AssertionError("the opened sum is wrong")
    size = sum(map(len, parts[names[0]])) / cells
    opening = (whole - helped) / cells / parties
    return Speed(sealing / cells, helped / cells, opening, size, beside, trips)


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
    """Cost of training without protection, scaled to all rows. asked: how often each query occurs in the
    training run, and the layout of its answer; in_turn: seconds per round, summed over all parties and the
    aggregator; start: seconds before the first round; cells, turns: mean numbers per round; bits: mean number
    of bits per cell."""

    rows: int
    grown: Grown
    asked: list[tuple[float, tuple[Segment, ...]]]
    in_turn: float
    start: float
    cells: float
    turns: float
    bits: int

    def computing(self, parties: int) -> float:
        return (self.in_turn - self.grown.deciding) / parties


def _sample(alone: Terms, rows: int, least: int, table: Any) -> tuple[Terms, Any, float]:
    """Return the terms and a sample of rows for growing trees, and the sample's share of all rows. Settings
    that depend on row counts are scaled by this share. least: minimum number of rows in the sample; table:
    table whose first rows form the sample (default: generated rows)."""
    most = min(rows, max(MAX_VALUES // len(alone.columns.features), least))
    if table is None:
        table = table_for(alone, most)
    elif table.num_rows > most:
        table = table.slice(0, most)
    share = min(1.0, table.num_rows / rows)
    if share < 1:
        params = ("min_child_weight", "reg_lambda", "gamma")
        alone = alone.changed(**{name: getattr(alone.trees, name) * share for name in params})
    return alone, table, share


def costs_of(terms: Terms, rows: int, parties: int, table: Any = None) -> Costs:
    """Grow trees on a sample, and return the cost of training without protection. rows: number of rows of all
    parties; parties: number of parties; table: rows to grow trees on (default: generated rows)."""
    alone, table, share = _sample(terms.changed(**ALONE), rows, MIN_ROWS_A_PARTY * parties, table)
    grown = grow(alone, table, parties, share == 1.0, terms.shares_turns)
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
    return Costs(rows, grown, asked, in_turn, start, cells, turns, bits)


def estimates(costs: Costs, terms: Terms, parties: int) -> list[Estimate]:
    """Return an estimate for each protection whose extra is installed and that allows this number of
    parties."""
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
        out.append(
            Estimate(
                protection=name,
                seconds_a_round=a_round,
                seconds=costs.start + a_round * rounds,
                megabytes=sent / 1e6,
                round_trips=trips,
                seconds_apart=apart,
                rows=costs.rows,
                parties=parties,
            )
        )
    return out


def missing(known: list[Estimate], parties: int) -> dict[str, str]:
    """Return the protections that have no estimate in `known`, each with the reason."""
    names = [each.protection for each in known]
    return {
        name: f'not installed; run pip install "fedboost[{name}]"'
        if row.max_parties is None or parties <= row.max_parties
        else f"allows at most {row.max_parties} parties"
        for name, row in PROTECTIONS.items()
        if name not in names
    }


# ---- Costs of a training whose parties have different columns -------------------------------------------


SAMPLE_IDS = 500
WORD_BYTES = 4
PROCESS_MB = 130.0  # memory of the interpreter, libraries and compiled kernels (docs/benchmarks.md, Turns)
ROW_BYTES, LINE_BYTES = 32, 64
"""Bytes per row that each party needs for the row's node and gradient, and size of a cache line in bytes. A
row's bins are padded to whole cache lines."""
COPIES = 7, 4  # measured copies of encrypted gradients: at the label holder, at a feature holder
TABLE_KEY, TABLE_BYTES = 256, (67e6, 21e6)
"""Bytes of a 2048-bit key, and bytes of its tables of powers at the label holder and at a feature holder."""
BY_ONE_PARTY: dict[str, object] = {
    **{"protection": "plain", "keyholder": None, "keyholder_rows": True, "on_loss": "wait"},
    **{"rows": "in_order", "min_common_rows": None, "max_ids": None, "repeated_ids": False},
    "label_epsilon": None,
    **{"id_form": None, "early_stopping_rounds": None},
}
"""Settings with which the same trees are grown without encryption, on rows that all parties have in the same
order."""


class _Counts:
    """Means per round: number of turns, round trips and relays, and bytes that each party sends and
    receives."""

    def __init__(self, terms: Terms, grown: GrownColumns, rows: int, gradient_bytes: int) -> None:
        self.turns = self.trips = self.relays = 0.0
        self.bytes: dict[str, tuple[float, float]] = {}
        relayed = Counter[tuple[str, bool]]()
        for weight, turn in grown.weights(terms.trees.rounds):
            self.turns += weight
            self.trips += weight * (1 + bool(turn.splits) + turn.begins)
            self.relays += weight * (len(turn.splits) + turn.begins * len(terms.blocks))
            for way, size in relays(terms, turn, rows, gradient_bytes).items():
                relayed[way] += weight * size  # type: ignore[assignment]
        self.relayed = {party: [relayed[party, way] for way in (False, True)] for party in terms.parties}
        for party, (sent, received) in self.relayed.items():
            base = grown.base_bytes(party, terms.trees.rounds)
            self.bytes[party] = base[0] + sent, base[1] + received


@dataclass(frozen=True)
class _Aligned:
    """Cost of matching rows by id. seconds: time summed over all parties; apart: time if each party has its
    own machine; sent, received: bytes per party."""

    seconds: float = 0.0
    apart: float = 0.0
    sent: float = 0.0
    received: float = 0.0


def _aligned(terms: Terms, rows: int) -> _Aligned:
    """Measure the cost of matching rows by id if all ids are common to all parties. Ids are hashed to points
    of an elliptic curve, and each party multiplies every party's points once."""
    if not terms.vertical.aligns:
        return _Aligned()
    ids = [str(row).encode() for row in range(SAMPLE_IDS)]
    points, hashing = timed(lambda: points_of(ids, b"an estimate"))
    product, multiplying = timed(lambda: multiply(points, os.urandom(32)))
    _, checking = timed(lambda: check_points(product, SAMPLE_IDS, ""))
    _, telling = timed(lambda: tokens_of(product))
    share = rows // len(terms.blocks)
    parties = max(len(block.parties) for block in terms.blocks)
    apart = share * (hashing + parties * (multiplying + checking) + telling) / SAMPLE_IDS
    hops = POINT_BYTES * (parties - 1)
    token_bytes = TOKEN_WORDS * WORD_BYTES
    return _Aligned(
        apart * len(terms.parties), apart, share * (hops + token_bytes), share * (hops + WORD_BYTES)
    )


def estimate_columns(terms: Terms, rows: int, table: Any = None) -> Estimates:
    """Return the estimates for parties that hold different columns. rows: number of matched rows in all
    blocks; table: rows to grow trees on, with the columns of all parties (default: generated rows)."""
    if not terms.parties:
        named = [party for block in terms.vertical.blocks for party in block.parties]
        terms = terms.with_parties(named or [str(terms.vertical.label_holder), *terms.columns.held])
    alone, table, share = _sample(terms.changed(**BY_ONE_PARTY), rows, 1, table)
    grown, a_row = grow_columns(alone, table), 0.0
    if share < 1:
        less = grow_columns(
            alone.changed(rounds=min(4, alone.trees.rounds)), table.slice(0, -(-table.num_rows // FEWER))
        )
        a_row = max(grown.a_round - less.a_round, 0.0) / max(grown.rows - less.rows, 1)
    in_turn = grown.a_round + a_row * (rows - grown.rows)
    aligned = _aligned(terms, rows)
    found, without = [_plain(terms, grown, rows, in_turn, aligned)], dict[str, str]()
    try:
        agreed = terms.changed(protection="paillier")
        costs = row_costs(terms.hiding.key_bits, grown.limit, rows, terms.histograms.max_bin)
        found.append(_encrypted(agreed, grown, rows, in_turn, aligned, costs))
    except ConfigError as error:
        without["paillier"] = str(error)
    return Estimates(
        protection=terms.hiding.protection,
        rounds=terms.trees.rounds,
        missing=without,
        by_columns=tuple(found),
        matches=terms.vertical.aligns,
    )


def _plain(
    terms: Terms, grown: GrownColumns, rows: int, in_turn: float, aligned: _Aligned
) -> ColumnsEstimate:
    counts = _Counts(terms, grown, rows, PAIR_BYTES)
    messages = MESSAGE_SECONDS * (counts.turns * len(terms.parties) + counts.relays)
    a_round = in_turn + messages
    start = max(grown.seconds[0] - grown.a_round, 0.0)
    by_party = {
        party: _party(terms, party, rows, counts.bytes[party], aligned, PAIR_BYTES, 0.0)
        for party in terms.parties
    }
    return ColumnsEstimate(
        protection="plain",
        seconds_a_round=a_round,
        seconds=start + aligned.seconds + a_round * terms.trees.rounds,
        seconds_to_match=aligned.seconds,
        seconds_apart=in_turn / len(terms.parties) + messages,
        round_trips=counts.trips,
        stages={},
        by_party=by_party,
        rows=rows,
    )


@dataclass
class _Reports:
    """Mean numbers per round under encryption. turns: turns whose sums are opened; cells: cells in answers;
    ciphertexts, products: feature holder -> ciphertexts that it reports, and products that it computes for
    these ciphertexts."""

    trees: float
    turns: float
    cells: float
    ciphertexts: dict[str, float]
    products: dict[str, float]

    @classmethod
    def of(cls, terms: Terms, grown: GrownColumns, rows: int, costs: RowCosts) -> "_Reports":
        """Compute the means. Raises ConfigError if a turn has more ciphertexts than the label holder decrypts
        in one turn."""
        bins = _bins(terms, grown)
        found = cls(0.0, 0.0, 0.0, dict.fromkeys(bins, 0.0), dict.fromkeys(bins, 0.0))
        for weight, turn in grown.weights(terms.trees.rounds):
            found.trees += weight * turn.begins
            found.turns += weight * bool(turn.nodes)
            found.cells += weight * turn.cells
            counts = {party: -(-turn.nodes * int(own.sum()) // costs.cells) for party, own in bins.items()}
            for party, count in counts.items():
                found.ciphertexts[party] += weight * count
                found.products[party] += weight * _products(bins[party], turn, rows)
            if sum(counts.values()) > costs.most_opened:
                raise ConfigError(
                    "estimate-too-many-sums",
                    f"a turn has {sum(counts.values()):,} encrypted sums, but the label holder decrypts at "
                    f"most {costs.most_opened:,} per turn; lower max_bin or max_depth, or use fewer columns",
                )
        return found

    def stages(self, costs: RowCosts, encrypted: float) -> tuple[dict[str, float], float]:
        """Return the seconds per round of each step, and the seconds of all steps together if each party has
        its own machine. encrypted: number of rows that are encrypted per round."""
        reported, holders = sum(self.ciphertexts.values()), len(self.ciphertexts)
        relayed = costs.relay * 2 * costs.key * encrypted
        opened = {
            name: line(self.turns, reported)
            for name, line in (("blind", costs.blind), ("open", costs.open), ("check", costs.check))
        }
        stages = {
            "encrypt": costs.encrypt * encrypted,
            "relay": relayed * (1 + holders) / 2,
            "take in": costs.take_in * encrypted * holders,
            "sums": costs.product * sum(self.products.values()),
            "close": costs.close * reported,
            **opened,
        }
        slowest = max(
            costs.product * products + costs.close * self.ciphertexts[party]
            for party, products in self.products.items()
        )
        apart = stages["encrypt"] + relayed + costs.take_in * encrypted + slowest + sum(opened.values())
        return stages, apart


def _encrypted(
    terms: Terms, grown: GrownColumns, rows: int, in_turn: float, aligned: _Aligned, costs: RowCosts
) -> ColumnsEstimate:
    (block,), cipher = terms.blocks, 2 * costs.key
    counts, reports = _Counts(terms, grown, rows, cipher), _Reports.of(terms, grown, rows, costs)
    stages, one_by_one = reports.stages(costs, rows * len(terms.roots) * reports.trees)
    messages = MESSAGE_SECONDS * ((counts.turns + reports.turns) * len(terms.parties) + counts.relays)
    a_round = in_turn + messages + sum(stages.values())
    by_party, opened = {}, cipher * sum(reports.ciphertexts.values())
    for party in terms.parties:
        sent, received = counts.bytes[party]
        holds_key = party == block.label_holder
        if holds_key:
            sent, received = sent + opened, received + opened
        else:  # its own integers are all 0, and take a bit each
            own = cipher * reports.ciphertexts[party] + reports.cells / 8 + MESSAGE_BYTES * counts.turns
            sent = counts.relayed[party][0] + own
        powers = TABLE_BYTES[not holds_key] * (costs.key / TABLE_KEY) ** 2
        moved = sent, received
        by_party[party] = _party(terms, party, rows, moved, aligned, COPIES[not holds_key] * cipher, powers)
    start = max(grown.seconds[0] - grown.a_round, 0.0) + aligned.seconds + costs.once
    return ColumnsEstimate(
        protection="paillier",
        seconds_a_round=a_round,
        seconds=start + a_round * terms.trees.rounds,
        seconds_to_match=aligned.seconds,
        seconds_apart=in_turn / len(terms.parties) + messages + one_by_one,
        round_trips=counts.trips + reports.turns,
        stages=stages,
        by_party=by_party,
        rows=rows,
    )


def _bins(terms: Terms, grown: GrownColumns) -> dict[str, Any]:
    """Return the number of bins of each column, by feature holder."""
    assert grown.layout is not None
    sizes, found = grown.layout.value_bins + grown.layout.missing, {}
    for party in terms.blocks.blocks[0].feature_holders:
        view = view_of(terms, party)
        assert view is not None
        found[party] = sizes[view.own_features]
    return found


def _products(bins: Any, turn: Turn, rows: int) -> float:
    """Return the number of products needed for the sums of a turn. Columns are summed in pairs, by their
    joint bins (`scheme.plan`)."""
    # A node's rows fall into `used` of the `joint` bins on average, if they are spread evenly.
    if not turn.nodes:
        return 0.0
    in_node, found = turn.passes * rows / turn.nodes, 0.0
    for pair in (bins[at : at + 2] for at in range(0, len(bins), 2)):
        joint = float(np.prod(pair))
        used = joint * -math.expm1(-in_node / joint)
        found += turn.nodes * (in_node + len(pair) * used)
    return found


def _party(
    terms: Terms,
    party: str,
    rows: int,
    moved: tuple[float, float],
    aligned: _Aligned,
    row_bytes: int,
    more: float,
) -> PartyCosts:
    """Return the costs of a party. moved: bytes that the party sends and receives per round; row_bytes: bytes
    of gradients per row and root; more: additional bytes of memory."""
    block, share = block_of(terms, party, rows)
    own = len(terms.blocks.columns_of(party).features)
    sets = (len(block.parties) - 1 + row_bytes) * len(terms.roots)
    bins = own + -(-own // LINE_BYTES) * LINE_BYTES
    memory = PROCESS_MB + (share * (ROW_BYTES + bins + sets) + more) / 1e6
    return PartyCosts(
        sent=moved[0] / 1e6,
        received=moved[1] / 1e6,
        sent_to_match=aligned.sent / 1e6,
        received_to_match=aligned.received / 1e6,
        memory=memory,
    )


# ---- Costs of workers at one site -----------------------------------------------------------------------


ANSWER_SECONDS = 1e-4  # seconds for a query to a worker and its empty answer: over loopback, 0.19 ms for two
SAMPLE_CELLS = 1 << 20


def of_workers(costs: Costs, terms: Terms, parties: int, workers: int) -> Workers:
    """Return the estimate for a site whose rows are on several workers. The estimate assumes that the site
    holds an equal share of all rows, and that training uses no votes. workers: number of workers."""
    own = math.ceil(math.ceil(costs.rows / parties) / workers)
    features = len(terms.columns.features)
    pack, add = _seconds_a_cell(costs.bits)
    seconds = costs.computing(parties) / workers + costs.cells * (pack + workers * add)
    seconds += costs.turns * workers * ANSWER_SECONDS
    return Workers(
        event="workers",
        workers=workers,
        rows=own,
        loading_bytes=loading_bytes(own, features),
        growing_bytes=growing_bytes(own, features),
        bytes_a_round=workers * costs.cells * costs.bits / 8,
        seconds_a_round=seconds,
    )


def _seconds_a_cell(bits: int) -> tuple[float, float]:
    """Measure how many seconds it takes to pack a cell, and how many to add a cell to a sum."""
    words = np.zeros(SAMPLE_CELLS, np.uint64)
    chunks = chunks_of((Segment(SAMPLE_CELLS, bits),))
    marks = []
    for _ in range(2):  # the first time loads the kernels
        begin = time.perf_counter()
        packed = [chunk.packed(chunk.of(words)) for chunk in chunks]
        middle = time.perf_counter()
        for chunk, content in zip(chunks, packed, strict=True):
            chunk.add(chunk.of(words), content)
        marks = [begin, middle, time.perf_counter()]
    packing, adding = np.diff(marks) / SAMPLE_CELLS
    return float(packing), float(adding)


# ---- Costs of training over links, by layout: histograms of all features, votes, rows in one place ----
# The time of a round is the sum of computation, round trips, and transfer of its bytes over a party's link.


HISTOGRAMS, VOTES, ONE_PLACE = "histograms", "votes", "one place"
USUAL_VOTES = 20  # `vote_top_k` of the layout with votes, unless the terms have one
VALUE_BYTES = 4  # bytes per value of a row that is sent
MAX_RTT_MS = 60_000
MIN_BANDWIDTH_MBIT, MAX_BANDWIDTH_MBIT = 0.001, 1_000_000
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Link:
    """A network link between a party and the aggregator: round-trip time in milliseconds, and bandwidth in
    Mbit/s (or infinity)."""

    rtt_ms: float = 0.0
    bandwidth_mbit: float = math.inf

    @classmethod
    def of(cls, rtt: float | None, bandwidth: float | None) -> "Link | None":
        if rtt is None and bandwidth is None:
            return None
        link = cls(0.0 if rtt is None else rtt, math.inf if bandwidth is None else bandwidth)
        if not 0 <= link.rtt_ms <= MAX_RTT_MS:
            raise ConfigError(
                "estimate-rtt-range", f"--rtt is {rtt:g}; specify milliseconds from 0 to {MAX_RTT_MS:,}"
            )
        if bandwidth is not None and not MIN_BANDWIDTH_MBIT <= bandwidth <= MAX_BANDWIDTH_MBIT:
            limits = f"from {MIN_BANDWIDTH_MBIT} to {MAX_BANDWIDTH_MBIT:,}"
            raise ConfigError(
                "estimate-bandwidth-range", f"--bandwidth is {bandwidth:g}; specify Mbit/s {limits}"
            )
        return link

    @property
    def facts(self) -> dict[str, float]:
        limited = {"bandwidth_mbit": self.bandwidth_mbit} if math.isfinite(self.bandwidth_mbit) else {}
        return {"rtt_ms": self.rtt_ms, **limited}

    def seconds(self, round_trips: float, megabytes: float) -> float:
        """Return the time in seconds for consecutive round trips and a transfer in one direction."""
        return round_trips * self.rtt_ms / 1e3 + megabytes * 1e6 / (self.bandwidth_mbit * MBIT)


def over_link(layout: str, own: Estimate, rounds: int, link: Link) -> Layout:
    """Estimate training over a link, with every party and the aggregator on a separate machine. layout: what
    is sent, `HISTOGRAMS` or `VOTES`; own: the estimate on this machine."""
    a_round = own.seconds_apart + link.seconds(own.round_trips, own.megabytes)
    changed = {"seconds_a_round": a_round, "seconds": a_round * rounds, "megabytes": own.megabytes * rounds}
    return Layout(**{**vars(own), **changed, **link.facts}, layout=layout)


def in_one_place(terms: Terms, plain: Estimate, link: Link) -> Layout:
    """Estimate the cost of sending all rows to one machine and training there. plain: estimate for protection
    `plain`; it supplies the time of a round."""
    values, rounds = len(terms.columns.features) + len(terms.columns.others), terms.trees.rounds
    sent = plain.rows / plain.parties * values * VALUE_BYTES / 1e6
    a_round = plain.seconds_a_round - plain.round_trips * plain.parties * MESSAGE_SECONDS
    changed = {"protection": "", "round_trips": 1 / rounds, "megabytes": sent}
    changed |= {"seconds_a_round": a_round, "seconds": link.seconds(1, sent) + a_round * rounds}
    return Layout(**{**vars(plain), **changed, **link.facts}, layout=ONE_PLACE)


def layouts(terms: Terms, table: Any, known: list[Estimate], link: Link) -> tuple[list[Layout], str]:
    """Return estimates over a link for each layout: histograms, votes, and all rows in one place. Also return
    the reason why votes are omitted, or "" if they are not. known: the estimates for the terms on this
    machine."""
    rounds, top_k = terms.trees.rounds, terms.histograms.vote_top_k
    usual, other = (VOTES, HISTOGRAMS) if top_k else (HISTOGRAMS, VOTES)
    every, no_votes = [over_link(usual, each, rounds, link) for each in known], ""
    plain = next(each for each in known if not PROTECTIONS[each.protection].hides)
    if not top_k and len(terms.columns.features) <= 2 * USUAL_VOTES:
        no_votes = f"this layout saves bytes only with more than {2 * USUAL_VOTES} features"
    else:
        try:
            changed = terms.changed(vote_top_k=0 if top_k else USUAL_VOTES)
        except ConfigError as error:
            no_votes = f"this layout is not possible under these terms: {error}"
        else:
            further = estimates(costs_of(changed, plain.rows, plain.parties, table), changed, plain.parties)
            every += [over_link(other, each, rounds, link) for each in further]
    return [*every, in_one_place(terms, plain, link)], no_votes


def estimate(
    terms: Terms, rows: int, parties: int, table: Any, link: Link | None, workers: int | None
) -> Estimates:
    """Return all estimates for parties that hold different rows. Raises ConfigError if `workers` is combined
    with votes.

    Args:
        rows: number of rows of all parties.
        parties: number of parties.
        table: rows to grow trees on (default: generated rows).
        link: if given, layouts are also compared over this link.
        workers: if given, a site with this number of workers is also estimated.
    """
    if workers is not None and terms.histograms.vote_top_k:
        raise ConfigError(
            "estimate-workers-votes",
            "--workers cannot be combined with vote_top_k, because the traffic of votes is not estimated; "
            "remove one of them",
        )
    costs = costs_of(terms, rows, parties, table)
    known = estimates(costs, terms, parties)
    over_links, no_votes = ([], "") if link is None else layouts(terms, table, known, link)
    return Estimates(
        protection=terms.hiding.protection,
        rounds=terms.trees.rounds,
        missing=missing(known, parties),
        by_rows=tuple(known),
        layouts=tuple(over_links),
        no_votes=no_votes,
        workers=None if workers is None else of_workers(costs, terms, parties, workers),
    )
