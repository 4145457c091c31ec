"""Cost of training by formulas: seconds, bytes and memory, by layout and part.

docs/scaling.md explains the model. Nothing is trained or measured here: `Constants` and `Encryption` contain
measured seconds. This module imports nothing that is slow to import, so `fedboost estimate` answers at once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
USUAL_VOTES = 20
"""`vote_top_k` of the layout `votes`, unless the terms set it."""
CHUNK_CELLS, SPARSE, WORD_BITS, READ_AHEAD, MAX_CELLS, PAIR_BYTES = 1 << 16, 0.5, 64, 1 << 20, 1 << 27, 8
"""Constants of modules that are slow to import; a test compares them."""
MESSAGE_BYTES, CHECK_BYTES, SHARE_BYTES = 120, 8, 93
"""Bytes of a report beside its cells, of a chunk's check cell, and of a share for one party (`shrink`)."""
GRID, GRID_BITS, LATER_CELLS, PLAIN_START = 2048, 49, 11.6, 0.6
"""Cut points: cells of a feature's first grid and their bits, cells of later grids per bin, and the part of
these bytes that reports with few nonzero cells take."""
START_SECONDS, VALUE_SECONDS, ID_SECONDS, START_TRIPS = 1.0, 40e-9, 41e-6, 6
"""Seconds to load kernels, to bin a value and to match an id at one party; round trips before the start."""
PROCESS_BYTES, VALUE_MEMORY, ROW_MEMORY, PAIR_MEMORY, MOVED_BYTES, ID_BYTES = 130e6, 2.3, 32, 16, 4, 32
"""Memory of a process, a value, a row and a pair of sums; bytes of a value that is moved, and of an id."""
NEWLY_ELECTED = 0.6
"""Share of elected features whose histograms are not known for the parent."""
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Case:
    """A training, by its parameters in the terms, and the machines and links.

    `rows`, `features` and `parties` are of all parties; `share` of the rows is sampled for each tree. A round
    has `roots` trees; rows have a mean `hessian`. Of the features, some are `categorical`, with `levels` in
    total. `protection` None hides nothing. With `own_root`, a tree's root has its own turn. `groups`: number
    of groups of parties with the same rows (layout `blocks`); `adders`: number of adders.

    `nthread`: threads of each party; `cores`: cores of the machine that all processes share, 0 if each has
    its own. `round_trip` is in seconds, `bandwidth` and `aggregator_bandwidth` in bytes per second. A party
    can hold `max_rows`. 0 means unlimited. Without `subtraction`, both siblings are requested.
    """

    rows: float
    features: int
    parties: int
    max_bin: int = 256
    max_depth: int = 6
    max_leaves: int = 0
    rounds: int = 100
    learning_rate: float = 0.3
    min_child_weight: float = 1.0
    share: float = 1.0
    roots: int = 1
    hessian: float = 0.15
    gradient_bits: int = 16
    categorical: int = 0
    levels: int = 0
    protection: "Protection | None" = None
    shrinks: bool = False
    colluding: int = 1
    key_bits: int = 3072
    vote_top_k: int = USUAL_VOTES
    groups: int = 1
    adders: int = 0
    own_root: bool = False
    matches: bool = False
    nthread: int = 1
    cores: int = 0
    round_trip: float = 0.0
    bandwidth: float = 0.0
    aggregator_bandwidth: float = 0.0
    max_rows: int = 0
    subtraction: bool = True

    @classmethod
    def of(cls, terms: "Terms", rows: float, parties: int, **machines: Any) -> "Case":
        """Return the training that the terms describe. machines: fields that do not follow from terms."""
        trees, columns, name = terms.trees, terms.columns, terms.objective.name
        is_squared = name.startswith(("reg:", "count:")) and name != "reg:logistic"
        levels = [*map(len, columns.categorical.values()), *columns.target_means.values()]
        same = {
            key: getattr(trees, key) for key in ("max_depth", "rounds", "learning_rate", "min_child_weight")
        }
        return cls(
            **same,
            **machines,
            rows=rows,
            features=len(columns.features),
            parties=parties,
            max_bin=terms.histograms.max_bin,
            max_leaves=trees.max_leaves or 0,
            share=terms.draws.subsample,
            roots=len(terms.roots),
            hessian=1.0 if is_squared else cls.hessian,
            gradient_bits=terms.bits,
            categorical=len(levels),
            levels=sum(levels),
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
    def hides(self) -> bool:
        return self.protection is not None and self.protection.hides

    @property
    def encrypts(self) -> bool:
        return self.protection is not None and self.protection.uses_key_holder

    @property
    def name(self) -> str:
        """Name of the protection."""
        return "plain" if self.protection is None else self.protection.name

    @property
    def bins(self) -> float:
        """Mean number of bins of a feature."""
        numeric = (self.features - self.categorical) * min(self.max_bin, self.rows)
        return float(numeric + self.levels) / self.features

    @cached_property
    def neighbours(self) -> int:
        """Number of masks of a report: one per neighbour, and a party's own if the roster may shrink."""
        if not self.hides:
            return 0
        if self.parties <= 60 or self.shrinks:
            return self.parties - 1 + self.shrinks
        from fedboost.privacy.pairwise import degree

        return degree(self.parties, self.colluding)

    @cached_property
    def tree(self) -> "list[Level]":
        """Levels of early and late trees, weighted by their frequency."""
        rounds = LEARNING * math.sqrt(self.features) * 0.3 / self.learning_rate
        early = rounds / self.rounds * -math.expm1(-self.rounds / rounds)
        return [*_levels(self, True, early), *_levels(self, False, 1 - early)]


# ---- The shape of a tree: unbalanced, and not full ------------------------------------------------------

EARLY, LATE = (0.2, 0.33, 0.4, 0.45), (0.01, 0.05, 0.15, 0.3)
"""Shares of a node's hessians that the smaller child gets, equally frequent: quantiles in measured trees. The
first trees divide the rows almost evenly. Once the signal is learned, trees split off few rows."""
LEARNING, SIGNAL_ROWS = 2.5, 500.0
"""The frequency of early trees falls by e in LEARNING * sqrt(features) rounds with learning_rate 0.3. Even in
early trees, nodes of fewer rows than SIGNAL_ROWS follow noise."""


@dataclass
class Level:
    """Nodes that one level's query asks for. weight: frequency of such trees; nodes: (number, share of all
    hessians) of nodes of similar size; children: number of nodes that may split again; splits: number of
    splits before the query."""

    weight: float
    nodes: list[tuple[float, float]] = field(default_factory=list)
    children: float = 1.0
    splits: float = 0.0

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
    yield Level(weight, [(1.0, 1.0)])
    for _ in range(1, case.max_depth):
        new = dict[int, tuple[float, float]]()
        known = [(number, share) for number, share in known if share >= 2 * least]
        splits = known_splits = sum(number for number, _ in known)
        if case.max_leaves:
            splits = min(splits, case.max_leaves - leaves)
        if splits < 0.01:
            return
        level, part = Level(weight, children=0.0, splits=splits), splits / known_splits / len(EARLY)
        leaves += splits
        for (number, share), (early, late) in product(known, zip(EARLY, LATE, strict=True)):
            signal = -math.expm1(-share * case.rows / SIGNAL_ROWS) * is_early
            for split, frequency in ((early, signal), (late, 1 - signal)):
                count, smaller = number * part * frequency, max(split * share, least)
                growing = [child for child in (smaller, share - smaller) if child >= 2 * least]
                asked = [smaller][: len(growing)] if case.subtraction else growing
                level.nodes += [(count, child) for child in asked]
                level.children += count * len(growing)
                for child in growing:
                    place = round(4 * math.log2(child))
                    others, mass = new.get(place, (0.0, 0.0))
                    new[place] = others + count, mass + count * child
        known = [(number, mass / number) for number, mass in new.values() if number]
        if level.nodes:
            yield level


# ---- Bytes of a report ----------------------------------------------------------------------------------


def pair_bits(case: Case, share: float) -> float:
    """Return the bits of a bin's gradient and hessian sums, in a node with this share of all hessians. At the
    root they follow from the number of rows, below it from the parent's sums."""
    rows, bits = max(case.rows, 1), case.gradient_bits - 1
    gradient = (int(rows) << bits).bit_length() + 1
    at_root = 2 * gradient - (2 * gradient <= WORD_BITS + 1)
    return at_root if share >= 1 else min(max(2 * (math.log2(rows * share) + bits), 2.0), at_root)


def report_bytes(case: Case, level: Level, pairs: float, rows: float, width: float = 1.0) -> float:
    """Return the bytes of a report about a level's nodes. A chunk with rows in at most half of its cells is
    sent as a bitmap and these cells, unless it is masked.

    Args:
        case: the training.
        level: the nodes.
        pairs: number of bins in each node, of all features in the report.
        rows: number of rows that the report covers.
        width: share of the bins whose columns the sender has.
    """
    found = [(number, pair_bits(case, share), share * rows) for number, share in level.nodes]
    if case.hides:
        return sum(number * pairs * bits / 8 for number, bits, _ in found)
    # Bins are quantiles, so a node's rows are equally likely to fall into any of a feature's bins.
    fills = [width * -math.expm1(-own / case.bins) for _, _, own in found]
    mean = sum(number * fill for (number, _, _), fill in zip(found, fills, strict=True)) / level.count
    shares_chunks, size = min(CHUNK_CELLS / pairs, level.count) >= 2, 0.0
    for (number, bits, _), fill in zip(found, fills, strict=True):
        is_sparse = (mean if shares_chunks else fill) <= SPARSE
        size += number * pairs * (1 + fill * bits if is_sparse else bits) / 8
    return size


# ---- Counts of work and bytes in a round, by layout -----------------------------------------------------


@dataclass
class Load:
    """Work and bytes of a round. The busiest party holds `rows` with `values`; histograms are `built` of this
    share of them, summed over levels. It reports `pairs` of sums and searches `scanned` for votes; the
    aggregator searches `decided` for splits. `masked`: bytes times masks; `streams`: messages times masks;
    `relayed`, `relays`: bytes and messages for other parties; `encryption`: seconds, one after the other.

    A party sends `sent` bytes on average, the busiest one sends or receives `link`, and the aggregator passes
    on `out`. `largest`: pairs of the largest report."""

    rows: float
    values: float
    built: float = 0.0
    pairs: float = 0.0
    scanned: float = 0.0
    decided: float = 0.0
    masked: float = 0.0
    streams: float = 0.0
    relayed: float = 0.0
    relays: float = 0.0
    encryption: float = 0.0
    sent: float = 0.0
    link: float = 0.0
    out: float = 0.0
    turns: float = 0.0
    trips: float = 0.0
    messages: float = 0.0
    largest: float = 0.0

    def report(self, case: Case, level: Level, pairs: float, size: float) -> None:
        """Count a report. pairs: bins in each node; size: bytes of the report."""
        weight, every = level.weight * case.roots, level.count * pairs
        chunks = math.ceil(case.roots * every / CHUNK_CELLS)
        self.pairs, self.decided = self.pairs + weight * every, self.decided + weight * every
        self.largest = max(self.largest, case.roots * every)
        self.messages += level.weight * chunks
        self.masked += weight * size * case.neighbours
        self.streams += level.weight * chunks * case.neighbours
        beside = case.hides * (CHECK_BYTES * chunks + case.shrinks * SHARE_BYTES * case.parties)
        self.sent += weight * size + level.weight * beside


def load_of(case: Case, layout: str) -> Load:
    """Return what a round takes under a layout."""
    parties = case.parties / case.groups if layout in (COLUMNS, BLOCKS) else 1
    rows = case.rows / case.groups if parties > 1 else case.rows / case.parties
    load = Load(rows, rows * case.features / parties, messages=case.own_root)
    load.built = case.roots * case.share * sum(level.weight * level.share for level in case.tree)
    load.turns = sum(level.weight * min(level.count, 1.0) for level in case.tree) + case.own_root
    if layout == VOTES:
        load.turns = 2 * load.turns - 1
    two_legs = case.encrypts or (case.hides and case.shrinks)
    load.trips = load.turns * (1 + two_legs)
    {VOTES: _votes, COLUMNS: _columns, BLOCKS: _columns}.get(layout, _rows)(case, load)
    load.sent += MESSAGE_BYTES * load.turns
    load.link = max(load.link, load.sent)
    return load


def _rows(case: Case, load: Load) -> None:
    """All parties report the histograms of all features."""
    pairs = case.features * case.bins + 1
    for level in case.tree:
        if case.encrypts:
            size = _ciphertexts(case, level, pairs, load)
        else:
            size = report_bytes(case, level, pairs, load.rows)
        load.report(case, level, pairs, size)


def _ciphertexts(case: Case, level: Level, pairs: float, load: Load) -> float:
    """Return the bytes of a report that one party decrypts, and count the seconds."""
    count, guard = 0.0, (case.parties - 1).bit_length()
    for number, share in level.nodes:
        count += number * pairs / (case.key_bits // 8 // math.ceil((pair_bits(case, share) + guard) / 8))
    seconds = PAILLIER.seal + PAILLIER.add * case.parties + PAILLIER.decrypt
    load.encryption += case.roots * level.weight * count * seconds * PAILLIER.scale(case)
    return count * case.key_bits / 8 * (2 + 1 / case.parties)


def _votes(case: Case, load: Load) -> None:
    """Below the root, parties vote for features, and report the histograms of the elected ones."""
    top, bits = min(case.vote_top_k, case.features), case.parties.bit_length() + 1
    a_vote = min(bits, 1 + top / case.features * bits) if not case.hides else bits
    for level in case.tree:
        # A sibling's histograms follow only from those of the parent's that are known.
        known = 1.0 if level.splits < 1.5 else 1 + NEWLY_ELECTED
        pairs = (top * known if level.splits else case.features) * case.bins + 1
        votes = level.children * case.features if level.splits else 0.0
        load.report(case, level, pairs, report_bytes(case, level, pairs, load.rows) + votes * a_vote / 8)
        load.messages += level.weight * (votes > 0)
        load.scanned += case.roots * level.weight * votes * case.bins
        load.largest = max(load.largest, case.roots * votes * case.bins)


def _columns(case: Case, load: Load) -> None:
    """Parties of a group have different columns of the same rows. The label holder passes on gradients, and
    the holder of a split's column which rows go left."""
    encrypts, parties = case.encrypts, case.parties / case.groups
    pairs, turns = case.features * case.bins + 1, load.turns
    gradients = case.roots * load.rows * case.share * (case.key_bits / 4 if encrypts else PAIR_BYTES)
    sets, load.relays = 0.0, 1.0
    for level in case.tree:
        if encrypts:
            size = level.count * pairs / 8 + _encrypted_columns(case, level, pairs / parties, load)
        else:
            size = report_bytes(case, level, pairs, load.rows, 1 / parties)
        load.report(replace(case, protection=None), level, pairs, size)
        splitting = level.weight * parties * -math.expm1(-level.splits * case.roots / parties)
        sets += splitting * case.roots * load.rows / 8 * (1 + 1 / turns)  # and those of the last splits
        load.relays += splitting
    if encrypts:
        seconds = PAILLIER.encrypt + PAILLIER.take_in
        load.encryption += case.roots * load.rows * case.share * seconds * PAILLIER.scale(case)
    load.relayed, load.link = gradients + sets, load.sent + gradients + sets / parties
    load.sent += (gradients + sets) / parties
    load.out = (gradients + sets) * (parties - 1) * case.groups
    load.trips, load.messages = load.trips + turns + 1, load.messages + turns + 1


def _encrypted_columns(case: Case, level: Level, pairs: float, load: Load) -> float:
    """Return the bytes of a party's encrypted sums over its own columns, and count the seconds."""
    width = math.ceil(pair_bits(case, 1.0) / 16)
    count, parties = level.count * pairs / (case.key_bits // 8 // (2 * width)), case.parties - 1
    opened = parties * count * (PAILLIER.blind + PAILLIER.open + PAILLIER.check)
    products = level.share * load.values / 2 * PAILLIER.product
    seconds = count * PAILLIER.close + opened + products + PAILLIER.turn
    load.encryption += case.roots * level.weight * seconds * PAILLIER.scale(case)
    return count * case.key_bits / 4


# ---- Seconds --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """Seconds of one core, fitted to measurements by benchmarks/network/parties.py; `gain`, `relay` and
    `relays` are from benchmarks/network/estimates.py.

    A party: update: a value and level, added to a bin; row: a row and turn; pack: an integer, made and
    packed; mask, stream: a byte and a message under one mask; answer: a turn; gain: an integer, searched for
    a vote; relay, relays: a byte and a message, encrypted or decrypted for another party.

    The aggregator: add: a byte, added; decide: an integer of the sum, checked, subtracted and searched for
    splits; message: a party and turn; turn: a turn.

    The network: rpc, byte: a message and a byte at the aggregator; party_rpc, party_byte: at a party; wait: a
    turn over a link. busy: share of the cores that processes on one machine get done.
    """

    update: float = 0.621e-9
    row: float = 4.41e-9
    pack: float = 2.84e-9
    mask: float = 0.138e-9
    stream: float = 24.1e-6
    answer: float = 107e-6
    gain: float = 8.0e-9
    relay: float = 1.5e-9
    relays: float = 0.25e-3
    add: float = 0.0997e-9
    decide: float = 7.54e-9
    message: float = 29.9e-6
    turn: float = 175e-6
    rpc: float = 390e-6
    byte: float = 3.01e-9
    party_rpc: float = 862e-6
    party_byte: float = 8.94e-9
    wait: float = 3.07e-3
    busy: float = 0.87


CONSTANTS = Constants()


@dataclass(frozen=True)
class Encryption:
    """Seconds of one core with a key of 2,048 bits. seal, add, decrypt: a ciphertext, if parties have
    different rows. The others are for different columns: encrypt, take_in: a row; product: a product; close,
    blind, open, check: a ciphertext of a report; turn: a turn."""

    seal: float = 1.1e-3
    add: float = 0.011e-3
    decrypt: float = 6.4e-3
    encrypt: float = 54e-6
    take_in: float = 2.6e-6
    product: float = 0.54e-6
    close: float = 1.5e-3
    blind: float = 1.6e-3
    open: float = 4.5e-3
    check: float = 0.42e-3
    turn: float = 0.09

    @staticmethod
    def scale(case: Case) -> float:
        return math.pow(case.key_bits / 2048, 2.6)


PAILLIER = Encryption()


def party_counts(load: Load) -> dict[str, float]:
    """Return the multiples of a party's constants in a round."""
    own = {"update": load.built * load.values, "row": load.rows * load.turns, "pack": 2 * load.pairs}
    others = {"gain": 2 * load.scanned, "relay": load.relayed, "relays": load.relays}
    return own | {"mask": load.masked, "stream": load.streams, "answer": load.turns} | others


def aggregator_counts(load: Load, parties: float) -> dict[str, float]:
    """Return the multiples of the constants of the aggregator's session. parties: number of senders."""
    added = {"add": load.sent * parties, "decide": 2 * load.decided}
    return added | {"message": load.turns * parties, "turn": load.turns}


def rpc_counts(load: Load, parties: float) -> dict[str, float]:
    """Return messages and bytes of the network at the aggregator. parties: number of senders."""
    return {"rpc": (load.messages + load.relays) * parties, "byte": load.sent * parties + load.out}


def total(counts: Mapping[str, float], constants: Constants = CONSTANTS) -> float:
    """Return the seconds of these multiples of constants."""
    return sum(float(number * getattr(constants, name)) for name, number in counts.items())


def simulated(case: Case, layout: str = ROWS, constants: Constants = CONSTANTS) -> float:
    """Return the seconds of a round with all parties and the aggregator in one thread (`fb.simulate`)."""
    load = load_of(case, layout)
    parties = case.parties * total(party_counts(load), constants) + load.encryption
    return parties + total(aggregator_counts(load, case.parties), constants)


@dataclass(frozen=True)
class Cost:
    """Cost of a training under one layout and protection.

    Attributes:
        layout, protection: what is compared.
        seconds, total: duration of a round, and of the training with its start.
        parts: maps part -> seconds of a round. Some happen at the same time, so `seconds` is not their sum.
        sent, total_sent: bytes that a party sends in a round and in the training, on average.
        aggregator: bytes that the aggregator receives or sends in a round.
        round_trips: network round trips in a round.
        memory, aggregator_memory: bytes of memory of the busiest party and of the aggregator.
        reason: why this is not possible; "" if it is.
    """

    layout: str
    protection: str
    seconds: float
    total: float
    parts: dict[str, float]
    sent: float
    total_sent: float
    aggregator: float
    round_trips: float
    memory: float
    aggregator_memory: float
    reason: str = ""

    @property
    def most(self) -> str:
        """The part that takes most of a round."""
        return max(self.parts, key=lambda name: self.parts[name])


def predict(case: Case, layout: str = ROWS, constants: Constants = CONSTANTS) -> Cost:
    """Return the cost of a training. In a turn, a party computes; then its chunks pass its link and the
    aggregator's, and are added, at the same time. Where processes share cores, a round takes at least all CPU
    seconds divided by the cores."""
    if layout == ONE_PLACE:
        return _in_one_place(case, constants)
    load, parties = load_of(case, layout), case.parties
    senders = case.adders or parties if layout == ADDERS else parties
    counts = party_counts(load)
    masks = total({name: counts.pop(name) for name in ("mask", "stream")}, constants) + load.encryption
    own = {name: count / (case.nthread if name in ("update", "row") else 1) for name, count in counts.items()}
    network = load.messages * constants.party_rpc + load.link * constants.party_byte
    rows, trips = total(own, constants) + network, load.trips
    aggregator, links = _collect(case, load, senders, constants)
    if layout == ADDERS:
        # An adder collects like the aggregator, one chunk earlier: only its link's latency is added.
        both = (aggregator, links), _collect(case, replace(load, decided=0.0), parties / senders, constants)
        (aggregator, links), trips = map(max, zip(*both, strict=True)), trips + load.turns
    if not case.bandwidth or case.bandwidth * case.round_trip > READ_AHEAD:
        trips += max(math.ceil(load.link / load.turns / READ_AHEAD) - 1, 0) * load.turns
    links = max(links, load.link / (case.bandwidth or math.inf))
    waits = trips * case.round_trip + load.turns * constants.wait * (case.round_trip > 0)
    seconds = rows + masks + max(links, aggregator)
    if case.cores:
        work = (rows * parties + masks * (1 if case.encrypts else parties) + aggregator) / case.cores
        seconds = max(max(seconds, work) / constants.busy, links)
    sent, begin = start_of(case, layout)
    memory = VALUE_MEMORY * load.values + ROW_MEMORY * load.rows + PAIR_MEMORY * load.largest
    return Cost(
        layout=layout,
        protection=case.name,
        seconds=seconds + waits,
        total=begin + (seconds + waits) * case.rounds,
        parts={"rows": rows, "masks": masks, "aggregator": aggregator, "round trips": waits, "links": links},
        sent=load.sent,
        total_sent=sent + load.sent * case.rounds,
        aggregator=load.sent * senders + load.out,
        round_trips=load.trips,
        memory=PROCESS_BYTES + memory,
        aggregator_memory=PROCESS_BYTES + 4 * PAIR_MEMORY * load.largest + 2e6 * senders,
        reason=reason_against(case, layout, load),
    )


def _collect(case: Case, load: Load, senders: float, constants: Constants) -> tuple[float, float]:
    """Return the seconds of the CPU and of the link of a process that collects reports."""
    counts = aggregator_counts(load, senders) | rpc_counts(load, senders)
    moved = max(load.sent * senders, load.out)
    return total(counts, constants), moved / (case.aggregator_bandwidth or math.inf)


def start_of(case: Case, layout: str) -> tuple[float, float]:
    """Return the bytes that a party sends, and the seconds that pass, before the first round: rows may be
    matched, and cut points are found."""
    is_apart = layout in (COLUMNS, BLOCKS)
    parties = case.parties / case.groups if is_apart else 1
    rows = case.rows / (case.groups if is_apart else case.parties)
    cells = GRID * GRID_BITS + LATER_CELLS * case.bins * (2 + math.log2(max(case.rows, 2)))
    sent = case.features / parties * cells / 8 * (1 if case.hides else PLAIN_START)
    binning = rows * case.features / parties * VALUE_SECONDS / case.nthread
    seconds = START_SECONDS + binning + START_TRIPS * case.round_trip
    if case.matches:
        sent, seconds = sent + rows * ID_BYTES * (parties - 0.5), seconds + rows * parties * ID_SECONDS
    if case.cores:
        seconds *= max(case.parties + 1, case.cores) / case.cores
    return sent, seconds + sent / (case.bandwidth or math.inf)


def _in_one_place(case: Case, constants: Constants) -> Cost:
    """For comparison: all rows are sent to one machine, which trains without messages."""
    alone = replace(case, parties=1, protection=None, round_trip=0.0, bandwidth=0.0, cores=0)
    bare = replace(constants, rpc=0.0, byte=0.0, party_rpc=0.0, party_byte=0.0)
    own = predict(replace(alone, aggregator_bandwidth=0.0), ROWS, bare)
    sent = case.rows / case.parties * (case.features + 1) * MOVED_BYTES
    links = (sent, case.bandwidth), (sent * case.parties, case.aggregator_bandwidth)
    moving = case.round_trip + max(size / (bandwidth or math.inf) for size, bandwidth in links)
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
        reason=_too_many(case, case.rows),
    )


# ---- The choice of a layout -----------------------------------------------------------------------------

WORTH_VOTES = 0.8
"""Votes give another model, so they are chosen only if they take at most this share of the time."""


def reason_against(case: Case, layout: str, load: Load) -> str:
    """Return why a layout is not possible, or "" if it is."""
    is_apart, largest = layout in (COLUMNS, BLOCKS), 2 * load.largest
    if (is_apart and case.hides > case.encrypts) or (case.encrypts and layout not in (ROWS, COLUMNS)):
        return f"not possible under protection {case.name}"
    if case.protection is not None and not is_apart:
        most = (case.shrinks and case.protection.max_shrinking) or case.protection.max_parties or math.inf
        if not case.protection.min_parties <= case.parties <= most:
            return f"protection {case.name} needs {case.protection.min_parties} to {most:,} parties"
        if largest > (case.protection.max_cells or math.inf):
            return f"a sum has {largest:,.0f} integers, but at most {case.protection.max_cells:,} are allowed"
    if layout == VOTES and case.features <= 2 * case.vote_top_k:
        return f"votes save bytes only with more than {2 * case.vote_top_k} features"
    if layout == BLOCKS and not 1 < case.groups < case.parties:
        return "the parties cannot be divided into groups of equal size"
    if is_apart and case.features < case.parties / case.groups:
        return "there are fewer features than parties"
    if largest > MAX_CELLS:
        return f"a turn has {largest:,.0f} integers, but at most {MAX_CELLS:,} are allowed; lower max_depth"
    return _too_many(case, load.rows)


def _too_many(case: Case, rows: float) -> str:
    is_full = 0 < case.max_rows < rows
    return f"one machine would hold {rows:,.0f} rows, but at most {case.max_rows:,} fit" if is_full else ""


def least_of(costs: list[Cost]) -> Cost:
    """Return the cost of the layout that takes the least time, of those that are possible and move no rows.
    Raises ConfigError if none is possible."""
    known = [cost for cost in costs if not cost.reason and cost.layout != ONE_PLACE]
    if not known:
        reasons = "; ".join(f"{cost.layout}: {cost.reason}" for cost in costs if cost.reason)
        raise ConfigError("estimate-no-layout", f"no layout is possible ({reasons})")
    return min(known, key=lambda cost: cost.seconds / (WORTH_VOTES if cost.layout == VOTES else 1))


def saved_by_subtraction(case: Case, layout: str) -> tuple[float, float]:
    """Return the bytes of a party and the seconds that a round would take in addition, if the histograms of
    both siblings were requested."""
    one, both = (predict(replace(case, subtraction=chosen), layout) for chosen in (True, False))
    return both.sent - one.sent, both.seconds - one.seconds
