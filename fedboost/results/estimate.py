"""Cost of training by formulas: seconds, bytes and memory, by layout and part.

docs/scaling.md explains the model. Nothing is trained or measured here, and nothing imported that is slow.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.privacy.protections import Protection
    from fedboost.terms.terms import Terms

ROWS, VOTES, COLUMNS, BLOCKS = "rows", "votes", "columns", "blocks"
ADDERS, ONE_PLACE = "rows with adders", "one place"
LAYOUTS = (ROWS, ADDERS, VOTES, COLUMNS, BLOCKS, ONE_PLACE)
USUAL_VOTES = 20  # `vote_top_k` of the layout `votes`, unless the terms set it
MBIT = 1e6 / 8
# Constants of modules that are slow to import; a test compares them.
CHUNK_CELLS, SPARSE, WORD_BITS, READ_AHEAD, MAX_CELLS, PAIR_BYTES = 1 << 16, 0.5, 64, 1 << 20, 1 << 27, 8
# Bytes of a report beside its cells, of a chunk's check cell, and of a share for one party (`shrink`).
MESSAGE_BYTES, CHECK_BYTES, SHARE_BYTES = 120, 8, 93
# Cut points: cells of a feature's first grid and their bits, cells of later grids per bin, and the part of
# these bytes that reports with few nonzero cells take.
GRID, GRID_BITS, LATER_CELLS, PLAIN_START = 2048, 49, 11.6, 0.6
# With noise: parts of a feature's range whose rows are counted, the bits of a count, and of a pair of sums.
PARTS, COUNT_BITS, NOISY_PAIR_BITS = 512, 42, 124
# With noise: rounds of a feature and of a pair, the largest side of its grid, seconds for an effect.
ROUNDS_A_FEATURE, ROUNDS_A_PAIR, SIDE, EFFECT_SECONDS = 4, 2, 10, 6e-3
# Seconds to load kernels, to bin a value and to match an id at one party; round trips before the start.
START_SECONDS, VALUE_SECONDS, ID_SECONDS, START_TRIPS = 1.0, 40e-9, 41e-6, 6
# Memory of a process, a value, a row and a pair of sums; bytes of a value that is moved, and of an id.
PROCESS_BYTES, VALUE_MEMORY, ROW_MEMORY, PAIR_MEMORY, MOVED_BYTES, ID_BYTES = 130e6, 2.3, 32, 16, 4, 32
NEWLY_ELECTED = 0.6  # share of elected features whose histograms are not known for the parent
WORTH_VOTES = 0.8  # votes give another model: they are chosen only up to this share of the others' time
# Shares of a node's hessians that the smaller child gets, equally frequent: quantiles in measured trees.
EARLY, LATE = (0.2, 0.33, 0.4, 0.45), (0.01, 0.05, 0.15, 0.3)
# The frequency of early trees falls by e in LEARNING * sqrt(features) rounds with learning_rate 0.3. Even in
# early trees, nodes of fewer rows than SIGNAL_ROWS follow noise.
LEARNING, SIGNAL_ROWS = 2.5, 500.0

CONSTANTS: Mapping[str, float] = {
    "update": 0.621e-9,  # a party: a value and level, added to a bin
    "row": 4.41e-9,  # a row and turn
    "pack": 2.84e-9,  # an integer, made and packed
    "mask": 0.138e-9,  # a byte under one mask
    "stream": 24.1e-6,  # a message under one mask
    "answer": 107e-6,  # a turn
    "gain": 8.0e-9,  # an integer, searched for a vote
    "relay": 1.5e-9,  # a byte, encrypted or decrypted for another party
    "relays": 0.25e-3,  # a message, encrypted or decrypted for another party
    "add": 0.0997e-9,  # the aggregator: a byte, added
    "decide": 7.54e-9,  # an integer of the sum, checked, subtracted and searched for splits
    "message": 29.9e-6,  # a party and turn
    "turn": 175e-6,  # a turn
    "rpc": 390e-6,  # the network at the aggregator: a message
    "byte": 3.01e-9,  # a byte
    "party_rpc": 862e-6,  # the network at a party: a message
    "party_byte": 8.94e-9,  # a byte
    "wait": 3.07e-3,  # a turn over a link
    "busy": 0.87,  # share of the cores that processes on one machine get done
}
"""Seconds of one core, fitted to measurements by benchmarks/network/parties.py; `gain`, `relay` and `relays`
are from benchmarks/network/estimates.py."""
NETWORK = ("rpc", "byte", "party_rpc", "party_byte")

# Seconds of one core with a key of 2,048 bits. A ciphertext, if parties have different rows:
SEAL, ADD, DECRYPT = 1.1e-3, 0.011e-3, 6.4e-3
# If they have different columns: a row, a product, a turn; a ciphertext, closed; blinded, opened, checked.
ENCRYPT, PRODUCT, TURN, CLOSE, OPEN = 54e-6 + 2.6e-6, 0.54e-6, 0.09, 1.5e-3, 1.6e-3 + 4.5e-3 + 0.42e-3


@dataclass(frozen=True)
class Case:
    """A training, by its parameters in the terms, and the machines and links. 0 means unlimited."""

    rows: float  # of all parties
    features: int  # of all parties
    parties: int
    max_bin: int = 256
    max_depth: int = 6
    max_leaves: int = 0
    rounds: int = 100
    learning_rate: float = 0.3
    min_child_weight: float = 1.0
    share: float = 1.0  # of the rows, sampled for each tree
    roots: int = 1  # trees of a round
    hessian: float = 0.15  # mean of the rows
    groups_of_bins: float = 0.0  # with noise: groups of rows whose sums a round asks for, on average
    gradient_bits: int = 16
    levels: tuple[int, ...] = ()  # of each categorical feature
    protection: "Protection | None" = None  # None hides nothing
    shrinks: bool = False
    colluding: int = 1
    key_bits: int = 3072
    vote_top_k: int = USUAL_VOTES
    groups: int = 1  # of parties with the same rows (layout `blocks`)
    adders: int = 0
    own_root: bool = False  # a tree's root has its own turn
    matches: bool = False  # rows are matched by id before the start
    nthread: int = 1  # of each party
    cores: int = 0  # of the machine that all processes share; 0: each has its own
    round_trip: float = 0.0  # seconds
    bandwidth: float = 0.0  # bytes per second, as the next
    aggregator_bandwidth: float = 0.0
    max_rows: int = 0  # that a party can hold
    subtraction: bool = True  # only the smaller of two siblings is requested

    @classmethod
    def of(cls, terms: "Terms", rows: float, parties: int, **machines: Any) -> "Case":
        """Return the training that the terms describe. machines: fields that do not follow from terms."""
        trees, columns, name = terms.trees, terms.columns, terms.objective.name
        is_squared = name.startswith(("reg:", "count:")) and name != "reg:logistic"
        same = ("max_depth", "rounds", "learning_rate", "min_child_weight")
        if terms.noise is not None:
            groups = terms.groups_of_bins(rows)
            levels = sum(map(len, columns.categorical.values())) + len(columns.features)
            of_features = ROUNDS_A_FEATURE * (levels + groups * len(columns.ordered))
            of_pairs = ROUNDS_A_PAIR * terms.pairs * min(math.isqrt(int(2 * groups)), SIDE) ** 2
            machines |= {"groups_of_bins": (of_features + of_pairs) / trees.rounds}
        return cls(
            **{key: getattr(trees, key) for key in same} | machines,
            rows=rows,
            features=len(columns.features),
            parties=parties,
            max_bin=terms.histograms.max_bin,
            max_leaves=trees.max_leaves or 0,
            share=terms.draws.subsample,
            roots=len(terms.roots),
            hessian=1.0 if is_squared else cls.hessian,
            gradient_bits=terms.bits,
            levels=(*map(len, columns.categorical.values()), *columns.target_means.values()),
            protection=terms.hiding.row,
            shrinks=terms.session.on_loss == "shrink",
            colluding=terms.hiding.colluding or cls.colluding,
            key_bits=terms.hiding.key_bits,
            vote_top_k=terms.histograms.vote_top_k or USUAL_VOTES,
            groups=max(len(terms.blocks), 1),
            own_root=not terms.shares_turns or terms.needs_exponent_counts,
            matches=terms.vertical.aligns,
        )

    @property
    def name(self) -> str:
        """Name of the protection."""
        return "plain" if self.protection is None else self.protection.name

    @property
    def hides(self) -> bool:
        return self.protection is not None and self.protection.hides

    @property
    def encrypts(self) -> bool:
        return self.protection is not None and self.protection.uses_key_holder

    @property
    def bins(self) -> float:
        """Mean number of bins of a feature."""
        numeric = (self.features - len(self.levels)) * min(self.max_bin, self.rows)
        return float(numeric + sum(self.levels)) / self.features

    @cached_property
    def neighbours(self) -> int:
        """Number of masks of a report: one per neighbour, and a party's own if the roster may shrink."""
        if not self.hides or self.parties <= 60 or self.shrinks:
            return self.hides * (self.parties - 1 + self.shrinks)
        from fedboost.privacy.pairwise import degree

        return degree(self.parties, self.colluding)

    @cached_property
    def tree(self) -> "list[Level]":
        """Levels of early and late trees, weighted by their frequency."""
        if self.groups_of_bins:
            return [Level(1.0, [(self.groups_of_bins, 1.0 / self.groups_of_bins)])]
        rounds = LEARNING * math.sqrt(self.features) * 0.3 / self.learning_rate
        early = rounds / self.rounds * -math.expm1(-self.rounds / rounds)
        return [*_levels(self, True, early), *_levels(self, False, 1 - early)]


@dataclass
class Level:
    """Nodes that one level's query asks for."""

    weight: float  # frequency of such trees
    nodes: list[tuple[float, float]]  # number of nodes of similar size, and their share of all hessians
    children: float = 1.0  # number of nodes that may split again
    splits: float = 0.0  # before the query

    @property
    def count(self) -> float:
        return sum(number for number, _ in self.nodes)

    @property
    def share(self) -> float:
        return sum(number * share for number, share in self.nodes)


def _levels(case: Case, is_early: bool, weight: float) -> Iterator[Level]:
    """Yield the levels of a tree. A child with too few hessians for two children is a leaf."""
    least = max(case.min_child_weight, case.hessian) / max(case.rows * case.share * case.hessian, 1e-9)
    known, leaves = [(1.0, 1.0)], 1.0
    yield Level(weight, known)
    for _ in range(1, case.max_depth):
        known = [(number, share) for number, share in known if share >= 2 * least]
        possible = sum(number for number, _ in known)
        splits = min(possible, case.max_leaves - leaves) if case.max_leaves else possible
        if splits < 0.01:
            return
        level, part = Level(weight, [], 0.0, splits), splits / possible / len(EARLY)
        leaves += splits
        new = dict[int, tuple[float, float]]()
        for (number, share), (early, late) in product(known, zip(EARLY, LATE, strict=True)):
            signal = -math.expm1(-share * case.rows / SIGNAL_ROWS) * is_early
            for split, frequency in ((early, signal), (late, 1 - signal)):
                count, smaller = number * part * frequency, max(split * share, least)
                growing = [child for child in (smaller, share - smaller) if child >= 2 * least]
                asked = [smaller][: len(growing)] if case.subtraction else growing
                level.nodes += [(count, child) for child in asked]
                level.children += count * len(growing)
                for child in growing:
                    size = round(4 * math.log2(child))
                    others, mass = new.get(size, (0.0, 0.0))
                    new[size] = others + count, mass + count * child
        known = [(number, mass / number) for number, mass in new.values() if number]
        if level.nodes:
            yield level


def _pair_bits(case: Case, share: float) -> float:
    """Return the bits of a bin's gradient and hessian sums, in a node with this share of all hessians. At the
    root they follow from the number of rows, below it from the parent's sums."""
    if case.groups_of_bins:
        return NOISY_PAIR_BITS
    rows, bits = max(case.rows, 1), case.gradient_bits - 1
    gradient = (int(rows) << bits).bit_length() + 1
    at_root = 2 * gradient - (2 * gradient <= WORD_BITS + 1)
    return at_root if share >= 1 else min(max(2 * (math.log2(rows * share) + bits), 2.0), at_root)


def _report_bytes(case: Case, level: Level, pairs: float, rows: float, width: float) -> float:
    """Return the bytes of a report with `pairs` of sums per node, of a party with these rows and this part of
    the columns. A chunk with rows in at most half of its cells is sent as a bitmap and these cells, unless it
    is masked."""
    # Bins are quantiles, so a node's rows are equally likely to fall into any of a feature's bins.
    empty = [math.expm1(-share * rows / case.bins) for _, share in level.nodes]
    fills = [1.0 if case.hides else width * -part for part in empty]
    mean = sum(number * fill for (number, _), fill in zip(level.nodes, fills, strict=True)) / level.count
    shares_chunks, size = min(CHUNK_CELLS / pairs, level.count) >= 2, 0.0
    for (number, share), fill in zip(level.nodes, fills, strict=True):
        bits, is_sparse = _pair_bits(case, share), (mean if shares_chunks else fill) <= SPARSE
        size += number * pairs * (1 + fill * bits if is_sparse else bits) / 8
    return size


@dataclass
class Load:
    """Work and bytes of a round."""

    holders: float  # parties of a group, with different columns of the same rows; 1: each has its own rows
    rows: float  # of the busiest party
    values: float  # of the busiest party
    turns: float
    trips: float
    messages: float  # of a party
    party: dict[str, float]  # multiples of CONSTANTS
    masks: dict[str, float]  # multiples of CONSTANTS
    encryption: float = 0.0  # seconds, one after the other
    sent: float = 0.0  # bytes of a party, on average
    link: float = 0.0  # bytes that the busiest party sends or receives
    out: float = 0.0  # bytes that the aggregator passes on
    largest: float = 0.0  # pairs of sums in the largest report

    def aggregator(self, senders: float) -> dict[str, float]:
        """Return the aggregator's multiples of CONSTANTS. senders: number of parties or adders."""
        received, messages = self.sent * senders, (self.messages + self.party["relays"]) * senders
        own = {"add": received, "decide": self.party["pack"], "message": self.turns * senders}
        return own | {"turn": self.turns, "rpc": messages, "byte": received + self.out}


def load_of(case: Case, layout: str) -> Load:
    """Return what a round takes under a layout."""
    is_apart, roots, scale = layout in (COLUMNS, BLOCKS), case.roots, math.pow(case.key_bits / 2048, 2.6)
    holders = case.parties / case.groups if is_apart else 1.0
    rows = case.rows / (case.groups if is_apart else case.parties)
    values, neighbours = rows * case.features / holders, 0 if is_apart else case.neighbours
    turns = sum(level.weight * min(level.count, 1.0) for level in case.tree) + case.own_root
    turns = 2 * turns - 1 if layout == VOTES else turns
    trips = turns * (1 + (case.encrypts or (case.hides and case.shrinks)))
    summed = rows if case.groups_of_bins else values
    built = roots * case.share * sum(level.weight * level.share for level in case.tree) * summed
    party = {"update": built / case.nthread, "row": rows * turns / case.nthread, "pack": 0.0, "answer": turns}
    party |= {"gain": 0.0, "relay": 0.0, "relays": float(is_apart)}
    load = Load(
        holders, rows, values, turns, trips, float(case.own_root), party, {"mask": 0.0, "stream": 0.0}
    )
    top, bits, sets = min(case.vote_top_k, case.features), case.parties.bit_length() + 1, 0.0
    vote_bits = bits if case.hides else min(bits, 1 + top / case.features * bits)
    for level in case.tree:
        weight, features, votes = level.weight * roots, float(case.features), 0.0
        if layout == VOTES and level.splits:
            # A sibling's histograms follow only from those of the parent's that are known.
            features = top * (1.0 if level.splits < 1.5 else 1 + NEWLY_ELECTED)
            votes = level.children * case.features
        pairs = 1.0 if case.groups_of_bins else features * case.bins + 1
        if case.encrypts and layout != VOTES:
            size, seconds = _encrypted(case, level, pairs, holders, level.share * values * is_apart)
            load.encryption += seconds * scale
        else:
            size = _report_bytes(case, level, pairs, rows, 1 / holders) + votes * vote_bits / 8
        chunks = math.ceil(roots * level.count * pairs / CHUNK_CELLS)
        beside = CHECK_BYTES * chunks + case.shrinks * SHARE_BYTES * case.parties
        load.sent += weight * size + level.weight * (beside if case.hides and not is_apart else 0)
        load.messages += level.weight * chunks
        load.messages += level.weight * (votes > 0)
        load.largest = max(load.largest, roots * (level.count * pairs), roots * votes * case.bins)
        load.masks["mask"] += weight * size * neighbours
        load.masks["stream"] += level.weight * chunks * neighbours
        party["pack"] += 2 * weight * (level.count * pairs)
        party["gain"] += 2 * weight * votes * case.bins
        if is_apart:  # The holder of a split's column passes on which rows go left, also of the last splits.
            splitting = level.weight * holders * -math.expm1(-level.splits * roots / holders)
            sets += splitting * roots * rows / 8 * (1 + 1 / turns)
            party["relays"] += splitting
    if is_apart:  # The label holder passes on gradients.
        sampled = roots * rows * case.share
        gradients = sampled * (case.key_bits / 4 if case.encrypts else PAIR_BYTES)
        load.encryption += sampled * ENCRYPT * scale * case.encrypts
        passed, load.link = gradients + sets, load.sent + gradients + sets / holders
        load.sent, load.out = load.sent + passed / holders, passed * (holders - 1) * case.groups
        load.trips, load.messages, party["relay"] = trips + turns + 1, load.messages + turns + 1, passed
    load.sent += MESSAGE_BYTES * turns
    load.link = max(load.link, load.sent)
    return load


def _encrypted(case: Case, level: Level, pairs: float, holders: float, values: float) -> tuple[float, float]:
    """Return the bytes of a party's encrypted report, and the seconds. values: those of its own columns in
    the nodes; 0 if each party has its own rows, and one party decrypts."""
    weight, key = case.roots * level.weight, case.key_bits // 8
    if not values:
        guard = (case.parties - 1).bit_length()
        widths = ((number, math.ceil((_pair_bits(case, share) + guard) / 8)) for number, share in level.nodes)
        count = sum(number * pairs / (key // width) for number, width in widths)
        seconds = weight * count * (SEAL + ADD * case.parties + DECRYPT)
        return count * case.key_bits / 8 * (2 + 1 / case.parties), seconds
    count = level.count * (pairs / holders) / (key // (2 * math.ceil(_pair_bits(case, 1.0) / 16)))
    seconds = count * CLOSE + (case.parties - 1) * count * OPEN + values / 2 * PRODUCT + TURN
    return level.count * pairs / 8 + count * case.key_bits / 4, weight * seconds


@dataclass(frozen=True)
class Cost:
    """Cost of a training under one layout and protection."""

    layout: str
    protection: str
    seconds: float  # of a round
    total: float  # seconds of the training with its start
    parts: dict[str, float]  # seconds of a round; some happen at the same time, so the sum is larger
    sent: float  # bytes that a party sends in a round, on average
    total_sent: float  # and in the training
    aggregator: float  # bytes that the aggregator receives or sends in a round
    round_trips: float  # of a round
    memory: float  # bytes, of the busiest party
    aggregator_memory: float
    reason: str = ""  # why this is not possible; "" if it is

    @property
    def most(self) -> str:
        """The part that takes most of a round."""
        return max(self.parts, key=lambda name: self.parts[name])


def total(counts: Mapping[str, float], constants: Mapping[str, float] = CONSTANTS) -> float:
    """Return the seconds of these multiples of constants."""
    return sum(float(number * constants[name]) for name, number in counts.items())


def predict(case: Case, layout: str = ROWS, constants: Mapping[str, float] = CONSTANTS) -> Cost:
    """Return the cost of a training. In a turn, a party computes; then its chunks pass its link and the
    aggregator's, and are added, at the same time. Where processes share cores, a round takes at least all CPU
    seconds divided by the cores."""
    if layout == ONE_PLACE:
        return _in_one_place(case, constants)
    if layout == BLOCKS and case.groups == 1:  # about as many groups as parties in each
        numbers = range(1, math.isqrt(case.parties) + 1)
        case = replace(case, groups=max(number for number in numbers if case.parties % number == 0))
    load, parties, bandwidth = load_of(case, layout), case.parties, case.bandwidth or math.inf
    senders, trips = case.adders if layout == ADDERS else parties, load.trips
    network = load.messages * constants["party_rpc"] + load.link * constants["party_byte"]
    rows, masks = total(load.party, constants) + network, total(load.masks, constants) + load.encryption
    effect = EFFECT_SECONDS * (case.groups_of_bins > 0)
    aggregator, collected = total(load.aggregator(senders), constants) + effect, load.sent * senders
    if layout == ADDERS:
        # An adder collects like the aggregator, one chunk earlier: only its link's latency is added.
        adder = load.aggregator(parties / senders) | {"decide": 0.0}
        aggregator, trips = max(aggregator, total(adder, constants)), trips + load.turns
        collected = max(collected, load.sent * (parties / senders))
    if bandwidth * case.round_trip > READ_AHEAD:
        trips += max(math.ceil(load.link / load.turns / READ_AHEAD) - 1, 0) * load.turns
    links = max(max(collected, load.out) / (case.aggregator_bandwidth or math.inf), load.link / bandwidth)
    waits = trips * case.round_trip + load.turns * constants["wait"] * (case.round_trip > 0)
    seconds = rows + masks + max(links, aggregator)
    if case.cores:
        work = (rows * parties + masks * (1 if case.encrypts else parties) + aggregator) / case.cores
        seconds = max(max(seconds, work) / constants["busy"], links)
    start_sent, start = _start(case, load)
    memory = VALUE_MEMORY * load.values + ROW_MEMORY * load.rows + PAIR_MEMORY * load.largest
    return Cost(
        layout=layout,
        protection=case.name,
        seconds=seconds + waits,
        total=start + (seconds + waits) * case.rounds,
        parts={"rows": rows, "masks": masks, "aggregator": aggregator, "round trips": waits, "links": links},
        sent=load.sent,
        total_sent=start_sent + load.sent * case.rounds,
        aggregator=load.sent * senders + load.out,
        round_trips=load.trips,
        memory=PROCESS_BYTES + memory,
        aggregator_memory=PROCESS_BYTES + 4 * PAIR_MEMORY * load.largest + 2e6 * senders,
        reason=_reason(case, layout, load.rows, 2 * load.largest),
    )


def _start(case: Case, load: Load) -> tuple[float, float]:
    """Return a party's bytes, and the seconds, before the first round: of matched ids and of cut points."""
    cells = GRID * GRID_BITS + LATER_CELLS * case.bins * (2 + math.log2(max(case.rows, 2)))
    sent = case.features / load.holders * cells / 8 * (1 if case.hides else PLAIN_START)
    if case.groups_of_bins:
        sent = (case.features - len(case.levels)) * PARTS * COUNT_BITS / 8
    seconds = START_SECONDS + load.values * VALUE_SECONDS / case.nthread + START_TRIPS * case.round_trip
    if case.matches:
        sent += load.rows * ID_BYTES * (load.holders - 0.5)
        seconds += load.rows * load.holders * ID_SECONDS
    if case.cores:
        seconds *= max(case.parties + 1, case.cores) / case.cores
    return sent, seconds + sent / (case.bandwidth or math.inf)


def _in_one_place(case: Case, constants: Mapping[str, float]) -> Cost:
    """For comparison: all rows are sent to one machine, which trains without messages."""
    alone = replace(case, parties=1, protection=None, cores=0)
    alone = replace(alone, round_trip=0.0, bandwidth=0.0, aggregator_bandwidth=0.0)
    own = predict(alone, ROWS, {**constants, **dict.fromkeys(NETWORK, 0.0)})
    sent = case.rows / case.parties * (case.features + 1) * MOVED_BYTES
    collected = sent * case.parties / (case.aggregator_bandwidth or math.inf)
    moving = case.round_trip + max(sent / (case.bandwidth or math.inf), collected)
    return replace(
        own,
        layout=ONE_PLACE,
        protection="",
        seconds=own.seconds + moving / case.rounds,
        total=own.total + moving,
        parts={**own.parts, "links": moving / case.rounds},
        sent=sent / case.rounds,
        total_sent=sent,
        aggregator=sent * case.parties / case.rounds,
        round_trips=1 / case.rounds,
        reason=_reason(alone, ONE_PLACE, case.rows, 0.0),
    )


def _reason(case: Case, layout: str, rows: float, largest: float) -> str:
    """Return why a layout is not possible, or "" if it is. largest: integers of the largest report."""
    is_apart, row = layout in (COLUMNS, BLOCKS), case.protection
    if (is_apart and case.hides > case.encrypts) or (case.encrypts and layout not in (ROWS, COLUMNS)):
        return f"not possible under protection {case.name}"
    if row is not None and not is_apart:
        most = (case.shrinks and row.max_shrinking) or row.max_parties or math.inf
        if not row.min_parties <= case.parties <= most:
            return f"protection {case.name} needs {row.min_parties} to {most:,} parties"
        if largest > (row.max_cells or math.inf):
            return f"a sum has {largest:,.0f} integers, but at most {row.max_cells:,} are allowed"
    if layout == VOTES and case.features <= 2 * case.vote_top_k:
        return f"votes save bytes only with more than {2 * case.vote_top_k} features"
    if layout == BLOCKS and not 1 < case.groups < case.parties:
        return "the parties cannot be divided into groups of equal size"
    if is_apart and case.features < case.parties / case.groups:
        return "there are fewer features than parties"
    if largest > MAX_CELLS:
        return f"a turn has {largest:,.0f} integers, but at most {MAX_CELLS:,} are allowed; lower max_depth"
    full = f"one machine would hold {rows:,.0f} rows, but at most {case.max_rows:,} fit"
    return full if 0 < case.max_rows < rows else ""


def least_of(costs: list[Cost]) -> Cost:
    """Return the cost of the layout that takes the least time, of those that are possible and move no rows.
    Raises ConfigError if none is possible."""
    known = [cost for cost in costs if not cost.reason and cost.layout != ONE_PLACE]
    if not known:
        reasons = "; ".join(f"{cost.layout}: {cost.reason}" for cost in costs if cost.reason)
        raise ConfigError("estimate-no-layout", f"no layout is possible ({reasons})")
    return min(known, key=lambda cost: cost.seconds / (WORTH_VOTES if cost.layout == VOTES else 1))
