"""The costs of a training whose parties hold different columns: trees that are really grown here, and
arithmetic.

Promises: questions and relays are those of a real training (`columns_grown`); what encryption takes is timed
with the very code that does it (`row_costs`).
Refuses: nothing itself; a protection that the terms or this machine do not take is left out, with the reason.
"""

import math
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.boosting.queries.base import view_of
from fedboost.errors import ConfigError
from fedboost.holders.gradients import PAIR_BYTES
from fedboost.people.estimates import ColumnsFacts, PartyFacts
from fedboost.privacy.points import POINT_BYTES, TOKEN_WORDS, check_points, multiply, points_of, tokens_of
from fedboost.runtime.local.columns_grown import Grown, Turn, block_of, grow, relays
from fedboost.runtime.local.estimate import FEWER, MAX_VALUES, MESSAGE_BYTES, MESSAGE_SECONDS
from fedboost.runtime.local.generated import table_for
from fedboost.runtime.local.row_costs import RowCosts, row_costs, timed
from fedboost.terms.terms import Terms

SAMPLE_IDS = 500
WORD_BYTES = 4
PROCESS_MB = 130.0
"""Of interpreter, libraries and compiled kernels (docs/benchmarks.md, Turns)."""
ROW_BYTES, LINE_BYTES = 32, 64
"""Of a row at each party: where it is in the tree, and its gradient; and its bins, in whole cache lines."""
COPIES = 7, 4
"""Of encrypted gradients, measured: at who makes and seals them, and at who opens them and takes them in."""
TABLE_KEY, TABLE_BYTES = 256, (67e6, 21e6)
"""Bytes of a key of 2048 bits, and of the tables of powers for it: of who encrypts, and of who sums."""
ALONE: dict[str, object] = {
    **{"protection": "plain", "keyholder": None, "keyholder_rows": True, "on_loss": "wait"},
    **{"rows": "in_order", "min_common_rows": None, "max_ids": None, "repeated_ids": False},
    "label_epsilon": None,
    **{"id_form": None, "early_stopping_rounds": None},
}
"""Settings of the same trees with rows that stand in order, and nothing encrypted."""


class _Counts:
    """Of a round: what turns relay, and how many messages that takes, one after the other."""

    def __init__(self, terms: Terms, grown: Grown, rows: int, gradient_bytes: int) -> None:
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
    """Seconds of matching rows by their ids, all parties in turn and each on its own machine; bytes that a
    party sends and receives for it."""

    seconds: float = 0.0
    apart: float = 0.0
    sent: float = 0.0
    received: float = 0.0


def _aligned(terms: Terms, rows: int) -> _Aligned:
    """Of parties that enter as many ids as rows are common: each list is multiplied once by each party."""
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


def estimate(terms: Terms, rows: int, table: Any = None) -> tuple[list[ColumnsFacts], dict[str, str]]:
    """The estimates, and the protections without one with the reason. rows: in common, of all blocks; table:
    with the columns of all parties, that trees are grown over; unless given it is generated."""
    if not terms.parties:
        named = [party for block in terms.vertical.blocks for party in block.parties]
        terms = terms.with_parties(named or [str(terms.vertical.label_holder), *terms.columns.held])
    alone = terms.changed(**ALONE)
    most = max(MAX_VALUES // len(terms.columns.features), 1)
    if table is None:
        table = table_for(alone, min(rows, most))
    table = table.slice(0, min(rows, most))
    share = min(1.0, table.num_rows / rows)
    params = ("min_child_weight", "reg_lambda", "gamma")
    fewer = {name: getattr(terms.trees, name) * share for name in params} if share < 1 else {}
    alone = alone.changed(**fewer)
    grown, a_row = grow(alone, table), 0.0
    if share < 1:
        less = grow(
            alone.changed(rounds=min(4, alone.trees.rounds)), table.slice(0, -(-table.num_rows // FEWER))
        )
        a_row = max(grown.a_round - less.a_round, 0.0) / max(grown.rows - less.rows, 1)
    in_turn = grown.a_round + a_row * (rows - grown.rows)
    aligned = _aligned(terms, rows)
    plain = _plain(terms, grown, rows, in_turn, aligned)
    facts, missing = [plain], dict[str, str]()
    try:
        agreed = terms.changed(protection="paillier")
        costs = row_costs(terms.hiding.key_bits, grown.limit, rows, terms.histograms.max_bin)
        facts.append(_encrypted(agreed, grown, rows, in_turn, aligned, costs))
    except ConfigError as error:
        missing["paillier"] = str(error)
    return facts, missing


def _plain(terms: Terms, grown: Grown, rows: int, in_turn: float, aligned: _Aligned) -> ColumnsFacts:
    counts = _Counts(terms, grown, rows, PAIR_BYTES)
    messages = MESSAGE_SECONDS * (counts.turns * len(terms.parties) + counts.relays)
    a_round = in_turn + messages
    start = max(grown.seconds[0] - grown.a_round, 0.0)
    by_party = {
        party: _party(terms, party, rows, counts.bytes[party], aligned, PAIR_BYTES, 0.0)
        for party in terms.parties
    }
    times = a_round, start + aligned.seconds + a_round * terms.trees.rounds, aligned.seconds
    apart = in_turn / len(terms.parties) + messages
    return ColumnsFacts("plain", *times, apart, counts.trips, {}, by_party)


@dataclass
class _Reports:
    """Of a round under encryption: trees, turns that are opened, cells of answers; of each feature holder the
    ciphertexts of its reports, and the products that they take."""

    trees: float
    turns: float
    cells: float
    ciphertexts: dict[str, float]
    products: dict[str, float]

    @classmethod
    def of(cls, terms: Terms, grown: Grown, rows: int, costs: RowCosts) -> "_Reports":
        """ConfigError for more ciphertexts in a turn than the label holder opens."""
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
                    f"{sum(counts.values()):,} encrypted sums in a turn, the label holder opens "
                    f"{costs.most_opened:,} at most: lower max_bin or max_depth, or have fewer columns"
                )
        return found

    def stages(self, costs: RowCosts, encrypted: float) -> tuple[dict[str, float], float]:
        """Seconds of each step; and of all, where each party has a machine of its own. encrypted: rows."""
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
    terms: Terms, grown: Grown, rows: int, in_turn: float, aligned: _Aligned, costs: RowCosts
) -> ColumnsFacts:
    """With encrypted gradients. ConfigError for more sums in a turn than the label holder opens."""
    (block,), cipher, rounds = terms.blocks, 2 * costs.key, terms.trees.rounds
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
        else:  # its own integers are 0, a bit each
            own = cipher * reports.ciphertexts[party] + reports.cells / 8 + MESSAGE_BYTES * counts.turns
            sent = counts.relayed[party][0] + own
        powers = TABLE_BYTES[not holds_key] * (costs.key / TABLE_KEY) ** 2
        moved = sent, received
        by_party[party] = _party(terms, party, rows, moved, aligned, COPIES[not holds_key] * cipher, powers)
    start = max(grown.seconds[0] - grown.a_round, 0.0) + aligned.seconds + costs.once
    apart = in_turn / len(terms.parties) + messages + one_by_one
    times = a_round, start + a_round * rounds, aligned.seconds, apart
    return ColumnsFacts("paillier", *times, counts.trips + reports.turns, stages, by_party)


def _bins(terms: Terms, grown: Grown) -> dict[str, Any]:
    """The bins of the columns of each feature holder."""
    assert grown.layout is not None
    sizes, found = grown.layout.value_bins + grown.layout.missing, {}
    for party in terms.blocks.blocks[0].feature_holders:
        view = view_of(terms, party)
        assert view is not None
        found[party] = sizes[view.own_features]
    return found


def _products(bins: Any, turn: Turn, rows: int) -> float:
    """Products for the sums of a turn: two columns at a time, by joint bins first (`segments.plan`)."""
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
) -> PartyFacts:
    """row_bytes: of gradients, for a row and root; more: bytes of memory besides."""
    block, share = block_of(terms, party, rows)
    own = len(terms.blocks.columns_of(party).features)
    sets = (len(block.parties) - 1 + row_bytes) * len(terms.roots)
    bins = own + -(-own // LINE_BYTES) * LINE_BYTES
    memory = PROCESS_MB + (share * (ROW_BYTES + bins + sets) + more) / 1e6
    before = aligned.sent / 1e6, aligned.received / 1e6
    return PartyFacts(moved[0] / 1e6, moved[1] / 1e6, *before, memory)
