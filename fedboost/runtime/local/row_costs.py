"""Measures the cost of sums over encrypted rows, for parties that hold different columns.

The cost is measured on this machine with the code that sessions use, in one thread, with a new key and a
sample of rows. Relayed bytes, which pass through the aggregator to other parties, are computed from the
splits of trees that are grown without encryption.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.base import view_of
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.threads import ONE
from fedboost.holders.column_rows import PAIR_BYTES
from fedboost.privacy.pairwise import open_sealed, seal, sealed_size
from fedboost.privacy.protections import scheme_of
from fedboost.privacy.rowsums.scheme import Slots, plan
from fedboost.runtime.data.draft import split_by_blocks
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.telemetry import Row
from fedboost.terms.terms import Terms

SAMPLE_ROWS = 1024
REPORTED = 32  # ciphertexts of the closed reports: four times the batch of the kernels
OPENED = 12, 36
"""Two numbers of ciphertexts whose opening is timed. The two times give the cost per ciphertext and per
turn."""
SEALED_BYTES = 4_000_000
COLUMNS = 2  # columns that are summed together
PARTY = "bank"
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """A duration in seconds: a constant per turn plus a constant per ciphertext."""

    turn: float
    each: float

    @classmethod
    def through(cls, few: float, many: float) -> "Line":
        """Return the line through the seconds measured for the two numbers of ciphertexts in `OPENED`."""
        each = max(many - few, 0.0) / (OPENED[1] - OPENED[0])
        return cls(max(few - each * OPENED[0], 0.0), each)

    def __call__(self, turns: float, ciphertexts: float) -> float:
        return self.turn * turns + self.each * ciphertexts


@dataclass(frozen=True)
class RowCosts:
    """Measured costs in seconds (`encrypt` to `once`), and sizes (`cells`, `key`).

    Args:
        encrypt: per row, to encrypt it at the label holder.
        take_in: per row, to read its ciphertexts at a feature holder.
        product: per product of ciphertexts.
        close: per ciphertext of a finished report.
        blind, open, check: to blind sums, decrypt them at the label holder, and check the plaintexts.
        relay: per byte, to seal and open it.
        once: to generate keys and tables.
        cells: pairs of sums per ciphertext.
        key: bytes of the modulus.
    """

    encrypt: float
    take_in: float
    product: float
    close: float
    blind: Line
    open: Line
    check: Line
    relay: float
    once: float
    cells: int
    key: int

    @property
    def most_opened(self) -> int:
        """Maximum number of ciphertexts that the label holder decrypts in one turn."""
        from fedboost.privacy.rowsums.ends import MAX_OPENING_BYTES

        return MAX_OPENING_BYTES // (2 * self.key)


def row_costs(key_bits: int, limit: int, rows: int, bins: int) -> RowCosts:
    """Measure the costs on this machine. Raises ConfigError if the extra `paillier` is not installed.

    Args:
        key_bits: size of the key.
        limit: largest magnitude of a gradient or hessian.
        rows: maximum number of rows in a sum.
        bins: number of bins of a column.
    """
    scheme_of("paillier")
    from fedboost.privacy.rowsums.ends import blind, open_blinded, unblind
    from fedboost.privacy.rowsums.sums import RowEncryption, RowSums, engine_of

    begin, draw = time.perf_counter(), os.urandom
    secret: Any = scheme_of("paillier").new_secret(key_bits)
    public = secret.public
    slots = Slots.of(limit, rows, key_bits)
    encryption, adder = RowEncryption(secret, slots, ONE, draw), RowSums(public, slots, ONE, draw)
    powers = engine_of(public.n, ONE)
    once = time.perf_counter() - begin
    random = np.random.default_rng(0)
    pairs = (random.integers(-limit, limit + 1, SAMPLE_ROWS) << 32) + random.integers(
        0, limit + 1, SAMPLE_ROWS
    )
    data, encrypting = timed(lambda: encryption.encrypt(pairs))
    taken, taking = timed(lambda: adder.read(data, SAMPLE_ROWS))
    codes = random.integers(0, bins, (COLUMNS, SAMPLE_ROWS)).astype(np.uint8)
    nodes = [(0, np.arange(SAMPLE_ROWS, dtype=np.uint32))] * -(-REPORTED * slots.cells // (COLUMNS * bins))
    products = sum(part.members.size for part in plan(nodes, codes, [bins] * COLUMNS))
    sums, summing = timed(lambda: adder.sums(taken, nodes, codes, [bins] * COLUMNS))
    report, closing = timed(lambda: adder.close(sums))
    numbers = public.read(report, len(report) // (2 * public.bytes))
    opened = []
    for count in OPENED:
        some = [numbers[at % len(numbers)] for at in range(count)]
        (request, kept), blinding = timed(partial(blind, public, some, draw, powers))
        answer, opening = timed(partial(open_blinded, secret, request, count))
        _, checking = timed(partial(unblind, public, answer, kept, PARTY, draw))
        opened.append((blinding, opening, checking))
    (blinds, opens, checks) = (Line.through(*seconds) for seconds in zip(*opened, strict=True))
    return RowCosts(
        encrypting / SAMPLE_ROWS,
        taking / SAMPLE_ROWS,
        summing / products,
        closing / len(numbers),
        blinds,
        opens,
        checks,
        _relaying(),
        once,
        slots.cells,
        public.bytes,
    )


def _relaying() -> float:
    """Return the seconds that it takes to seal and open one relayed byte."""
    key, context = bytes(32), b"an estimate"
    content = bytes(SEALED_BYTES)
    sealed, sealing = timed(lambda: seal(content, PARTY, {"telco": key}, context, os.urandom))
    _, opening = timed(lambda: open_sealed(sealed, PARTY, "telco", key, context))
    return (sealing + opening) / SEALED_BYTES


def timed(work: Callable[[], T], clock: Callable[[], float] = time.process_time) -> tuple[T, float]:
    """Call a function and return its result and the seconds that it took, in CPU time or by another clock."""
    begin = clock()
    result = work()
    return result, clock() - begin


# ---- Trees grown here under `plain`, with parties that have different columns ---------------------------
# Relayed bytes follow from the parties that have the column of each split.


MAX_SECONDS = 5.0  # seconds of growing trees; further rounds are assumed to be like the last
FIRST_ROUNDS = 3  # rounds to measure how long one takes


@dataclass(frozen=True)
class Turn:
    """One turn of the session. once: True if the turn occurs once per training run rather than once per
    round; nodes: number of nodes whose sums are computed; passes: number of rows in these nodes, divided by
    the number of all rows; splits: for each split, the party that holds its column, and True if the whole
    block receives the row set; begins: True if a tree begins; cells: number of cells in the answer."""

    once: bool
    nodes: int = 0
    passes: float = 0.0
    splits: tuple[tuple[str, bool], ...] = ()
    begins: bool = False
    cells: int = 0


@dataclass
class Grown:
    """Measurements of trees that were grown on this machine.

    Args:
        rows: number of matched rows.
        turns: all turns, in order.
        seconds: CPU time up to the end of the first round, and of each later round.
        base: party -> bytes sent and received in the first round, and in all later rounds, without relays.
        layout: bins of all features.
        limit: largest magnitude of gradients and hessians.
    """

    rows: int
    turns: list[Turn] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    base: dict[str, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)
    layout: Layout | None = None
    limit: int = 1

    @property
    def a_round(self) -> float:
        """CPU seconds per round, summed over all parties and the aggregator."""
        return float(np.median(self.seconds[1:] or self.seconds))

    def weights(self, rounds: int) -> Iterator[tuple[float, Turn]]:
        """Yield each turn with its mean number of occurrences per round. rounds: number of rounds in the
        training run."""
        for turn in self.turns:
            yield (1.0 if turn.once else self._later(rounds)) / rounds, turn

    def base_bytes(self, party: str, rounds: int) -> list[float]:
        """Return the mean number of bytes per round that a party sends and receives without relays."""
        pairs = zip(*self.base[party], strict=True)
        return [(first + self._later(rounds) * later) / rounds for first, later in pairs]

    def _later(self, rounds: int) -> float:
        """Return the factor by which to multiply the cost of the measured rounds after the first, to get the
        cost of all rounds after the first in a full training run. rounds: number of rounds in the full
        run."""
        return (rounds - 1) / max(len(self.seconds) - 1, 1)


def grow(terms: Terms, table: Any) -> Grown:
    first = _grow(terms.changed(rounds=min(FIRST_ROUNDS, terms.trees.rounds)), table)
    rounds = min(terms.trees.rounds, int(MAX_SECONDS / first.a_round))
    return _grow(terms.changed(rounds=rounds), table) if rounds > FIRST_ROUNDS else first


def _grow(terms: Terms, table: Any) -> Grown:
    grown, ends = Grown(table.num_rows), list[tuple[float, int]]()
    begin = time.process_time()

    def mark(row: Row) -> None:
        ends.append((time.process_time(), len(grown.turns)))

    result = simulate(
        terms,
        split_by_blocks(table, terms, 0),
        nthread=1,
        program=_Counting(terms, grown).program,
        on_round=mark,
    )
    grown.seconds = np.diff([begin, *(time for time, _ in ends)]).tolist()
    relayed = [relays(terms, turn, grown.rows, PAIR_BYTES) for turn in grown.turns]
    first, every = sum(relayed[: ends[0][1]], Counter()), sum(relayed, Counter[tuple[str, bool]]())
    moved = [row["bytes"] for row in result.history]
    share = (moved[0] - first.total()) / (sum(moved) - every.total())
    for party, both in result.traffic.items():
        kept = [total - every[party, bool(way)] for way, total in enumerate(both)]
        before, later = [size * share for size in kept], [size * (1 - share) for size in kept]
        grown.base[party] = (before[0], before[1]), (later[0], later[1])
    return grown


class _Counting:
    """A boosting program that also records each query."""

    def __init__(self, terms: Terms, grown: Grown) -> None:
        self._terms = terms
        self._grown = grown
        self._of_roots = 1.0
        self._shared = False
        """True if the end of a tree shares a turn with the next tree's root. The end of the last tree does
        not."""

    def program(self, agreed: Terms, state: Any) -> Generator[Any, Any, Any]:
        program, answer = boosting.train(agreed, state), None
        while True:
            try:
                query = program.send(answer) if answer is not None else next(program)
            except StopIteration as end:
                return end.value
            answer = yield query
            self._note(query, answer)

    def _note(self, query: Any, answer: Any) -> None:
        begin, nodes, passes, cells, splits, begins = 0, 0, 0.0, 0, list[tuple[str, bool]](), False
        for part in query.parts:
            end = begin + part.cells
            cells += part.cells
            is_level = isinstance(part, HistogramQuery)
            splits += _splitters(self._terms, part.splits, is_level)
            if isinstance(part, StartQuery):
                self._grown.layout = Layout.of(part.cut_points)
            if is_level:
                hessians = sum(float(of[-1]) for of in part.by_node(answer[begin:end]))
                begins = part.nodes == self._terms.roots
                self._of_roots = hessians or 1.0 if begins else self._of_roots
                nodes, passes = len(part.nodes), len(self._terms.roots) * hessians / self._of_roots
                scale = max(part.gradient.limit, part.hessian.limit)
                self._grown.limit = max(self._grown.limit, scale * self._terms.draws.max_bootstrap_count)
            begin = end
        ends = any(isinstance(part, EndRoundQuery) and part.tree >= 0 for part in query.parts)
        self._shared |= ends and begins
        once = max(part.tree for part in query.parts) < 1 or (ends and not begins and self._shared)
        self._grown.turns.append(Turn(once, nodes, passes, tuple(splits), begins, cells))


def _splitters(terms: Terms, splits: Any, to_all: bool) -> Iterator[tuple[str, bool]]:
    """Yield, for each block, the parties that hold a column of these splits, each with `to_all`."""
    for block in terms.blocks:
        view = view_of(terms, block.label_holder)
        assert view is not None
        for place in np.unique(view.holders[splits.feature]).tolist():
            yield terms.parties[place], to_all


def relays(terms: Terms, turn: Turn, rows: int, gradient_bytes: int) -> Counter[tuple[str, bool]]:
    """Count the bytes that are relayed in a turn: (party, False) -> bytes that the party sends to others,
    (party, True) -> bytes that it receives. rows: number of matched rows in all blocks; gradient_bytes: size
    of the gradients per row and root."""
    found, roots = Counter[tuple[str, bool]](), len(terms.roots)

    def relay(sender: str, to: tuple[str, ...], content: int) -> None:
        if to:
            size = sealed_size(content, to)
            found[sender, False] += size
            found.update({(party, True): size for party in to})

    for party, to_all in turn.splits:
        block, share = block_of(terms, party, rows)
        others = tuple(other for other in block.parties if other != party)
        relay(party, others if to_all else _only(block.label_holder, others), -(-roots * share // 8))
    for block in terms.blocks if turn.begins else ():
        share = rows // len(terms.blocks)
        relay(block.label_holder, block.feature_holders, gradient_bytes * roots * share)
    return found


def block_of(terms: Terms, party: str, rows: int) -> tuple[Any, int]:
    block = terms.blocks.of(party)
    assert block is not None
    return block, rows // len(terms.blocks)


def _only(party: str, among: tuple[str, ...]) -> tuple[str, ...]:
    return (party,) if party in among else ()
