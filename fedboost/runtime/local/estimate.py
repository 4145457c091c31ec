"""What a training would take on machines like this one, by protection: a calibration of a few seconds, and
arithmetic.

Promises: seconds and bytes of a round are those of full trees, so a training rarely takes longer; what a
party, the key holder and the aggregator do is timed with the very code that does it.
Refuses: nothing itself; protections whose extra is not installed are left out.
"""

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Int64, cell_bits
from fedboost.people.facts import EstimateFacts
from fedboost.privacy.bit_packing import Segment
from fedboost.privacy.masked.pairwise import Group, Handshake
from fedboost.privacy.protection import Opener, Sealer, Tag
from fedboost.privacy.protections import PROTECTIONS, AggregatorSetup, PartySetup, Protection
from fedboost.runtime.local.simulation import simulate
from fedboost.terms.terms import Terms

SAMPLE_ROWS, SAMPLE_FEATURES, SAMPLE_ROUNDS, SAMPLE_DEPTH = 20_000, 10, 3, 6
SESSION = bytes(32)
T = TypeVar("T")


@dataclass(frozen=True)
class Speed:
    """Seconds for a cell at a party, at the key holder, at the aggregator for each party; bytes of one."""

    seal: float
    help: float
    open: float
    size: float


def cells_of(terms: Terms, rows: int) -> tuple[int, int]:
    """Cells of a round's histograms in full trees, and the bits of one: of each pair of sums one cell, if
    both fit 64 bits; of each level the smaller children."""
    bins = len(terms.columns.numeric) * terms.histograms.max_bin + sum(terms.columns.category_counts)
    nodes = len(terms.roots) * 2 ** (terms.trees.max_depth - 1)
    bits = 2 * cell_bits(1 << (terms.bits - 1), max(rows, 1)) - 1
    return (nodes * bins, bits) if bits <= 64 else (2 * nodes * bins, -(-bits // 2))


def speed_of(protection: Protection, parties: int, key_bits: int, bits: int) -> Speed:
    """Seal and open a sum of that many parties here. ConfigError if the protection's extra is not
    installed."""
    names = tuple(f"p{number}" for number in range(parties))
    cells = protection.sample_cells
    tag = Tag(1, 1, 0, names, SESSION, (Segment(cells, bits),))
    sealers, opener = _ends(protection, names, key_bits, tag)
    values: Int64 = np.random.default_rng(0).integers(-1000, 1000, cells)
    warm_up = dataclasses.replace(tag, turn=0)  # tables are made, the first time
    _ = [*sealers[names[0]].seal(values, warm_up)]
    first, sealing = _timed(lambda: [*sealers[names[0]].seal(values, tag)])
    parts = {names[0]: first} | {name: [*sealers[name].seal(values, tag)] for name in names[1:]}
    begin = time.perf_counter()
    for name in names:
        for number, part in enumerate(parts[name]):
            opener.add(name, number, part)
        opener.note(name, sealers[name].note())
    helped = 0.0
    while requests := opener.requests():
        for name, request in requests.items():
            answer, took = _timed(partial(sealers[name].assist, request))
            helped += took
            opener.assist(name, answer)
    total = opener.open()
    whole = time.perf_counter() - begin
    if not np.array_equal(total, parties * values):
        raise AssertionError("the sum that was opened is another one")
    size = sum(map(len, parts[names[0]])) / cells
    return Speed(sealing / cells, helped / cells, (whole - helped) / cells / parties, size)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and the seconds that it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def _ends(
    protection: Protection, names: tuple[str, ...], key_bits: int, tag: Tag
) -> tuple[dict[str, Sealer], Opener]:
    group, keyholder, draw = Group.of(names, 0), names[0], os.urandom
    hands = {name: Handshake(draw) for name in names}
    publics = {name: hand.public for name, hand in hands.items()}
    secret = protection.encryption().new_secret(key_bits) if protection.uses_key_holder else None
    public = None if secret is None else secret.public
    sealers = {}
    for name, hand in hands.items():
        keys, own = partial(hand.pair_keys, name, publics, SESSION), secret if name == keyholder else None
        setup = PartySetup(name, group, SESSION, keys, draw, public, own, max_openings=1, sparse=True)
        sealers[name] = protection.sealer(setup)
    return sealers, protection.opener(tag, AggregatorSetup(group, SESSION, draw, public, keyholder))


def seconds_of_trees(terms: Terms, rows: int, parties: int) -> float:
    """The seconds of a round without any protection, at a party with an equal share of the rows."""
    draw = np.random.default_rng(0)
    table = {f"f{i}": draw.standard_normal(SAMPLE_ROWS) for i in range(SAMPLE_FEATURES)}
    table["y"] = (table["f0"] + table["f1"] > 0).astype(float)
    columns = {"label": "y", "numeric": [name for name in table if name != "y"]}
    kind = {"rounds": SAMPLE_ROUNDS, "max_depth": SAMPLE_DEPTH, "protection": "plain"}
    sample, marks = Terms.read({"columns": columns, **kind}), [time.perf_counter()]
    simulate(sample, [table], on_round=lambda row: marks.append(time.perf_counter()))
    per_cell = (marks[-1] - marks[1]) / (SAMPLE_ROUNDS - 1) / SAMPLE_ROWS / SAMPLE_FEATURES / SAMPLE_DEPTH
    features = len(terms.columns.features)
    return per_cell * rows / parties * features * terms.trees.max_depth * len(terms.roots)


def estimate(terms: Terms, rows: int, parties: int) -> list[EstimateFacts]:
    """The estimates for each protection whose extra is installed."""
    cells, bits = cells_of(terms, rows)
    trees = seconds_of_trees(terms, rows, parties)
    estimates = []
    for name, protection in PROTECTIONS.items():
        try:
            speed = speed_of(protection, max(parties, 2), terms.hiding.key_bits, bits)
        except ConfigError:
            continue
        a_round = trees + cells * (speed.seal + speed.help + speed.open * parties)
        estimates.append(EstimateFacts(name, a_round, a_round * terms.trees.rounds, cells * speed.size / 1e6))
    return estimates
