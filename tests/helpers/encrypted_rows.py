"""Rows that are encrypted, summed and opened, and the sums that are due. For tests of `privacy.rowsums`."""

import hashlib
import itertools

import numpy as np
from gmpy2 import mpz

from fedboost.gbdt.threads import Threads
from fedboost.privacy.rowsums.scheme import Slots
from fedboost.privacy.rowsums.sums import RowEncryption, RowSums

LIMIT = 1 << 15
ONE, TWO = Threads(1), Threads(2)


def stream(seed):
    """`draw` of bytes that the seed says."""
    numbers = itertools.count()
    return lambda size: hashlib.shake_256(f"{seed} {next(numbers)}".encode()).digest(size)


def packed(gradients, hessians):
    """Packed pairs, int64 [rows]."""
    return (np.array(gradients, np.int64) << 32) + np.array(hessians, np.int64)


def drawn(rng, rows):
    """Gradients and hessians of rows, some of both 0."""
    gradients, hessians = rng.integers(-LIMIT, LIMIT + 1, rows), rng.integers(0, LIMIT + 1, rows)
    gradients[::5] = hessians[::5] = 0
    return gradients, hessians


def numbers_of(data, size):
    """Numbers of `size` bytes each, little-endian."""
    return [mpz.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def ends(secret, rows, *engine, draw=None, threads=ONE, limit=LIMIT):
    """Slots of sums over so many rows, and both ends."""
    slots = Slots.of(limit, rows, secret.public.n.bit_length())
    draws = (draw or stream("rows")), (draw or stream("sums"))
    return (
        slots,
        RowEncryption(secret, slots, threads, draws[0], *engine),
        RowSums(secret.public, slots, threads, draws[1], *engine),
    )


def opened(secret, slots, report, cells):
    """The sums in a report."""
    size = secret.public.bytes
    plain = secret.decrypt(numbers_of(report, 2 * size))
    return slots.read(numbers_of(plain, size), cells)


def due(gradients, hessians, nodes, codes, bins):
    """The sums of each node, column and bin: int64 [cells, 2]; gradients, hessians: [roots, rows]."""
    sums = [
        [int(of[root, part][at].sum()) for of in (gradients, hessians)]
        for root, part in nodes
        for column, size in enumerate(bins)
        for at in (codes[column, part] == bin_ for bin_ in range(size))
    ]
    return np.array(sums, np.int64).reshape(-1, 2)
