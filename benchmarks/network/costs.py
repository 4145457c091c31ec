"""Cost model of a tree: seconds and bytes from rows, features, bins, depth, parties and links.

`parties.py` measures the constants and prints predictions. The model is of full trees on dense numeric
rows; real trees are smaller.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import nnls

from fedboost.privacy.pairwise import degree

PART_CELLS = 1 << 16
"""Cells of a part of a report (`privacy.packing`)."""
GRADIENT_BITS = 16
SMALLER = 0.33
"""Row share of the smaller child: the mean in trees of generated rows."""
READ_AHEAD = 1 << 20
"""Bytes of a report that are sent without a request (`runtime.aggregator.limits`)."""
OF_NODE = 28.7
"""Bits of a node's pair of sums but for 2 log2(rows): what generated rows take with 16 bits a gradient."""
SPARSE = 0.5
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Case:
    """One training. rows: of all parties together; votes: `vote_top_k`; cores: of the machine that all share,
    0 where each party and the aggregator have a machine of their own; threads: of a party; round_trip:
    seconds; bandwidth and aggregator_bandwidth: bytes a second of a party's link and of the aggregator's (0:
    any number)."""

    rows: float
    features: int
    parties: int
    masked: bool
    bins: int = 256
    depth: int = 6
    votes: int = 0
    cores: int = 0
    threads: int = 1
    round_trip: float = 0.0
    bandwidth: float = 0.0
    aggregator_bandwidth: float = 0.0

    @property
    def turns(self) -> int:
        """Turns of a tree, a round trip each: one a level, of which the root shares the end of a round; with
        votes two below."""
        return self.depth + (self.depth - 1 if self.votes else 0)

    @property
    def neighbours(self) -> int:
        """Parties with which a party shares masks, if one party may collude."""
        return degree(self.parties, 1) if self.masked else 0

    @property
    def levels(self) -> list[tuple[int, float, float]]:
        """Of each level: nodes that are asked for, features of each, and rows in one.

        Below the root it is the smaller of two siblings. With votes the other is asked for as well, but for
        what follows from the parent: both together have twice `votes` features at most.
        """
        features = min(self.features, 2 * self.votes) if self.votes else self.features
        below = [
            (1 << (level - 1), float(features), self.rows * SMALLER / (1 << (level - 1)))
            for level in range(1, self.depth)
        ]
        return [(1, float(self.features), self.rows), *below]

    def pair_bits(self, level: int) -> float:
        """Bits of the sums of gradient and hessian of a bin: at the root those of all rows can need, below
        those of the node's own."""
        rows = self.levels[level][2]
        gradient = ((1 << (GRADIENT_BITS - 1)) * max(int(rows), 1)).bit_length() + 1
        at_root = 2 * gradient - 1 if 2 * gradient - 1 <= 64 else 2 * gradient
        return float(at_root) if level == 0 else max(2 * math.log2(max(rows, 1)) + OF_NODE, 2)

    @property
    def cells(self) -> float:
        """Integers that a party sends per tree."""
        return sum(nodes * features * self.bins * 2 for nodes, features, _ in self.levels)

    @property
    def dense(self) -> float:
        """Bytes of all cells, to which masks are added."""
        pairs = (nodes * features * self.bins for nodes, features, _ in self.levels)
        return sum(number * self.pair_bits(level) / 8 for level, number in enumerate(pairs))

    @property
    def parts(self) -> int:
        """Messages of a report."""
        pairs = (nodes * features * self.bins for nodes, features, _ in self.levels)
        return self.turns - self.depth + sum(math.ceil(number / PART_CELLS) for number in pairs)

    @property
    def level_bytes(self) -> list[float]:
        """Bytes of a party's report of each level. With `plain` bins without rows are left out where they are
        half of all at least."""
        sizes = []
        for level, (nodes, features, rows) in enumerate(self.levels):
            bits = self.pair_bits(level)
            filled = 1 - math.exp(-rows / self.parties / self.bins)
            if not self.masked and filled <= SPARSE:
                bits = 1 + filled * bits
            sizes.append(nodes * features * self.bins * bits / 8)
        return sizes

    @property
    def sent(self) -> float:
        """Bytes a party sends a tree; messages' headers and check cells are left out."""
        return sum(self.level_bytes)

    @property
    def windows(self) -> int:
        """Additional round trips of reports above READ_AHEAD."""
        return sum(max(math.ceil(size / READ_AHEAD) - 1, 0) for size in self.level_bytes)

    @property
    def updates(self) -> float:
        """Additions to a bin, of all parties: all rows at the root, the rows of the smaller siblings below.
        These are half of the rows at most; what they are is in the constant."""
        return self.rows * self.features * (1 + (self.depth - 1) / 2)


@dataclass(frozen=True)
class Constants:
    """Seconds, each of one core.

    A party: update: a row, feature and level, added to a bin; row: a row and turn, routed, quantised, scored;
    pack: a cell, made and packed; mask: a byte under one mask; answer: a turn, whatever it has.

    The aggregator's session: add: a byte of a party, added; decide: a cell of the sum, checked, subtracted
    and searched for splits; message: a party and turn; turn: a turn.

    The network: rpc: a message at the aggregator, with the answer to it; byte: a byte there, decrypted and
    copied; party_rpc, party_byte: the same at a party; wait: a turn over a link, whatever it carries, while
    processes wake one another. busy is a share: of the cores that all processes share, what they get done.
    """

    update: float
    row: float
    pack: float
    mask: float
    answer: float
    add: float
    decide: float
    message: float
    turn: float
    rpc: float = 0.0
    byte: float = 0.0
    party_rpc: float = 0.0
    party_byte: float = 0.0
    wait: float = 0.0
    busy: float = 1.0


# ---- what each side computes: counts of every constant -------------------------------------------------


def party_counts(case: Case) -> dict[str, float]:
    """Multiples of a party's constants in a tree, for all parties together."""
    parties = case.parties
    return {
        "update": case.updates,
        "row": case.rows * case.turns,
        "pack": case.cells * parties,
        "mask": case.dense * parties * case.neighbours,
        "answer": case.turns * parties,
    }


def aggregator_counts(case: Case) -> dict[str, float]:
    """Multiples of the constants of the aggregator's session."""
    return {
        "add": case.sent * case.parties,
        "decide": case.cells,
        "message": case.turns * case.parties,
        "turn": case.turns,
    }


def rpc_counts(case: Case) -> dict[str, float]:
    """Messages and bytes of the network at the aggregator."""
    return {"rpc": case.parts * case.parties, "byte": case.sent * case.parties}


def fit(counts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Fit nonnegative constants that minimise the relative errors."""
    names = list(counts[0])
    table = np.array([[one[name] for name in names] for one in counts])
    measured = np.array(seconds)
    scaled = table / measured[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1.0)
    found, _ = nnls(scaled / sizes, np.ones(len(measured)))
    return dict(zip(names, (found / sizes).tolist(), strict=True))


def total(counts: Mapping[str, float], constants: Constants) -> float:
    """Total seconds of the counts."""
    return sum(number * getattr(constants, name) for name, number in counts.items())


# ---- a tree ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Seconds of a tree, and what they are: `party` computes, `masks` of that, the `aggregator` computes,
    `trips` and `transfer` on the links. Some happen at the same time, so `seconds` is not their sum."""

    seconds: float
    party: float
    masks: float
    aggregator: float
    trips: float
    transfer: float
    sent: float

    @property
    def bottleneck(self) -> str:
        """Name of the largest part."""
        rest = {"rows": self.party - self.masks, "masks": self.masks, "aggregator": self.aggregator}
        parts = rest | {"round trips": self.trips, "bandwidth": self.transfer}
        return max(parts, key=lambda name: parts[name])


def simulated(case: Case, constants: Constants) -> float:
    """Seconds of a tree with all parties and the aggregator in one thread."""
    return total(party_counts(case), constants) + total(aggregator_counts(case), constants)


def predict(case: Case, constants: Constants) -> Cost:
    """A tree of processes on a network.

    A turn is as long as a party computes, then the slowest of its link, the aggregator's link and the
    aggregator: parts are sent while the next are made, and added while others come. Where all share `cores`,
    a tree is at least all CPU seconds through the cores.
    """
    counts, parties = party_counts(case), case.parties
    own = {name: count / parties for name, count in counts.items()}
    own["update"], own["row"] = own["update"] / case.threads, own["row"] / case.threads
    network = rpc_counts(case)
    party_network = total(
        {"party_rpc": network["rpc"] / parties, "party_byte": network["byte"] / parties}, constants
    )
    party = total(own, constants) + party_network
    masks = total({"mask": own["mask"]}, constants)
    aggregator = total(aggregator_counts(case) | network, constants)
    trips = case.turns * (case.round_trip + constants.wait) if case.round_trip else 0.0
    if not case.bandwidth or case.bandwidth * case.round_trip > READ_AHEAD:
        trips += case.windows * case.round_trip
    links = [case.sent / case.bandwidth] if case.bandwidth else []
    links += [case.sent * parties / case.aggregator_bandwidth] if case.aggregator_bandwidth else []
    transfer = max(links, default=0.0)
    seconds = party + max(transfer, aggregator)
    if case.cores:
        work = (party * parties + aggregator) / case.cores
        seconds = max(max(seconds, work) / constants.busy, transfer)
    seconds += trips
    return Cost(seconds, party, masks, aggregator, trips, transfer, case.sent)


def as_json(case: Case) -> dict[str, object]:
    """A case as JSON values."""
    return asdict(case)
