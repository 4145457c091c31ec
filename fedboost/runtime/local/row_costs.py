"""What sums over encrypted rows cost on this machine: measured on some rows, with a key that is made for it.

Promises: what is timed is the code of a session, in one thread.
Refuses: keys that cannot be, and encryption that is not installed (ConfigError).
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedboost.gbdt.threads import ONE
from fedboost.privacy.protections import scheme_of
from fedboost.privacy.relay import open_sealed, seal

SAMPLE_ROWS = 1024
REPORTED = 32
"""Ciphertexts of the reports that are closed here, four times what kernels take at once."""
OPENED = 12, 36
"""Ciphertexts that are opened here: what each takes, and what a turn takes besides."""
SEALED_BYTES = 4_000_000
COLUMNS = 2
"""Summed at a time."""
PARTY = "bank"
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """Seconds of a turn, and of each of its ciphertexts."""

    turn: float
    each: float

    @classmethod
    def through(cls, few: float, many: float) -> "Line":
        """The line through the seconds of OPENED."""
        each = max(many - few, 0.0) / (OPENED[1] - OPENED[0])
        return cls(max(few - each * OPENED[0], 0.0), each)

    def __call__(self, turns: float, ciphertexts: float) -> float:
        """Seconds of so many turns with so many ciphertexts in all."""
        return self.turn * turns + self.each * ciphertexts


@dataclass(frozen=True)
class RowCosts:
    """Seconds of a row that is encrypted, and taken in; of a product; of a ciphertext that is closed; of
    blinded openings, at the aggregator, at the label holder, and checked at the aggregator; of a relayed
    byte, at both ends; of keys and their tables, once. cells: pairs of sums in a ciphertext; key: bytes of
    the key's modulus."""

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
        """Ciphertexts that the label holder opens in a turn, at most."""
        from fedboost.privacy.rowsums.ends import MAX_OPENING_BYTES

        return MAX_OPENING_BYTES // (2 * self.key)


def row_costs(key_bits: int, limit: int, rows: int, bins: int) -> RowCosts:
    """Measure them. limit: the magnitude of a gradient and hessian, at most; rows: of a sum, at most; bins:
    of a column. ConfigError if paillier is not installed."""
    scheme_of("paillier")
    from fedboost.privacy.rowsums.openings import blind, open_blinded, unblind
    from fedboost.privacy.rowsums.scheme import Slots, plan
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
    """Seconds of a relayed byte: sealed, and opened."""
    key, context = bytes(32), b"an estimate"
    content = bytes(SEALED_BYTES)
    sealed, sealing = timed(lambda: seal(content, PARTY, {"telco": key}, context, os.urandom))
    _, opening = timed(lambda: open_sealed(sealed, PARTY, "telco", key, context))
    return (sealing + opening) / SEALED_BYTES


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and the CPU seconds that it took."""
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin
