"""What a tree costs, on paper: seconds and bytes from rows, features, bins, depth, parties and the links.

Promises: plain arithmetic, each term with its reason; the constants come from measurements (`parties.py`) and
nowhere else.
Refuses: nothing. It is a model of full trees on dense numeric rows: real trees are smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import nnls

PART_CELLS = 1 << 16
"""Integers of a part of a report (`privacy.protection`)."""
SHARE_BYTES = 90
"""A sealed share of a self mask, with its party's name."""
GRADIENT_BITS = 16
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Case:
    """One training. rows: of all parties together; cores: of the machine that all share, 0 where each party
    and the aggregator have a machine of their own; threads: of a party; round_trip: seconds; bandwidth and
    aggregator_bandwidth: bytes a second of a party's link and of the aggregator's (0: any number)."""

    rows: float
    features: int
    parties: int
    masked: bool
    bins: int = 256
    depth: int = 6
    cores: int = 0
    threads: int = 1
    round_trip: float = 0.0
    bandwidth: float = 0.0
    aggregator_bandwidth: float = 0.0

    @property
    def turns(self) -> int:
        """Questions of a tree: one a level, and the end of the round."""
        return self.depth + 1

    @property
    def legs(self) -> int:
        """Round trips of a turn: masked sums are opened with one more."""
        return 2 if self.masked else 1

    @property
    def nodes(self) -> int:
        """Nodes whose histograms travel: the root, and the smaller of each two siblings."""
        return 1 << (self.depth - 1)

    @property
    def cells(self) -> int:
        """Integers a party sends a tree."""
        return self.nodes * self.features * self.bins * 2

    @property
    def parts(self) -> int:
        """Messages these travel in."""
        levels = [1, *(1 << level for level in range(self.depth - 1))]
        return 1 + sum(-(-nodes * self.features * self.bins * 2 // PART_CELLS) for nodes in levels)

    @property
    def cell_bytes(self) -> int:
        """Of a cell: room for the sum of a number of 16 bits over all rows."""
        return int((1 << (GRADIENT_BITS - 1)) * max(int(self.rows), 1)).bit_length() // 8 + 1

    @property
    def sent(self) -> float:
        """Bytes a party sends a tree; messages' headers are left out."""
        shares = self.turns * (self.parties - 1) * SHARE_BYTES if self.masked else 0
        return self.cells * self.cell_bytes + shares

    @property
    def updates(self) -> float:
        """Additions to a bin, of all parties: all rows at the root, the rows of the smaller siblings below.
        These are half of the rows at most; what they are is in the constant."""
        return self.rows * self.features * (1 + (self.depth - 1) / 2)


@dataclass(frozen=True)
class Constants:
    """Seconds, each of one core.

    update: of a row, feature and level, to be added to a bin; row: of a row and level, to be routed,
    quantised, scored; pack: of a cell, to be made and packed; mask: of a byte and stream, at a party and the
    same at the aggregator; share: of one share of a self mask, made, opened and relayed; answer: of a turn at a
    party, whatever it has.

    add: of a party's cell, to be added; decide: of a cell of the sum, to be opened, checked, subtracted and
    searched for splits; message: of a party and turn at the aggregator's session; turn: of a turn there.

    rpc: of a party, turn and leg at the aggregator, through gRPC and back; part: of a further message of a
    report, there; byte: of a byte there, decrypted and copied; party_rpc, party_byte: the same at a party.
    wait: of a leg on the wall, whatever it carries: processes that wake one another.
    """

    update: float
    row: float
    pack: float
    mask: float
    party_share: float
    answer: float
    add: float
    decide: float
    open: float
    share: float
    message: float
    turn: float
    rpc: float = 0.0
    byte: float = 0.0
    party_rpc: float = 0.0
    party_byte: float = 0.0
    wait: float = 0.0


# ---- what each side computes: counts of every constant -------------------------------------------------


def party_counts(case: Case) -> dict[str, float]:
    """How often a party's constants count in a tree, for all parties together."""
    parties, masked = case.parties, float(case.masked)
    return {
        "update": case.updates,
        "row": case.rows * case.turns,
        "pack": case.cells * parties,
        "mask": masked * case.cells * case.cell_bytes * parties * parties,
        "party_share": masked * case.turns * parties * (parties - 1),
        "answer": case.turns * parties,
    }


def aggregator_counts(case: Case) -> dict[str, float]:
    """The same of the aggregator's session."""
    parties, masked = case.parties, float(case.masked)
    return {
        "add": case.cells * parties,
        "decide": case.cells,
        "open": masked * case.cells * case.cell_bytes * parties,
        "share": masked * case.turns * parties * (parties - 1),
        "message": case.turns * case.legs * parties,
        "turn": case.turns,
    }


def rpc_counts(case: Case) -> dict[str, float]:
    """What the network adds at the aggregator: messages, and bytes."""
    messages = (case.turns * case.legs + case.parts - case.turns) * case.parties
    return {"rpc": messages, "byte": case.sent * case.parties}


def fit(counts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Constants, none below 0, that make the relative errors small."""
    names = list(counts[0])
    table = np.array([[one[name] for name in names] for one in counts])
    measured = np.array(seconds)
    scaled = table / measured[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1.0)
    found, _ = nnls(scaled / sizes, np.ones(len(measured)))
    return dict(zip(names, (found / sizes).tolist(), strict=True))


def total(counts: Mapping[str, float], constants: Constants) -> float:
    """Seconds of these counts."""
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
        """The largest of them."""
        rest = {"rows": self.party - self.masks, "masks": self.masks, "aggregator": self.aggregator}
        parts = rest | {"round trips": self.trips, "bandwidth": self.transfer}
        return max(parts, key=lambda name: parts[name])


def simulated(case: Case, constants: Constants) -> float:
    """Seconds of a tree where one thread is all parties and the aggregator in turn."""
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
    masks = total({name: own[name] for name in ("mask", "party_share")}, constants)
    aggregator = total(aggregator_counts(case) | network, constants)
    trips = case.turns * case.legs * (case.round_trip + constants.wait)
    links = [case.sent / case.bandwidth] if case.bandwidth else []
    links += [case.sent * parties / case.aggregator_bandwidth] if case.aggregator_bandwidth else []
    transfer = max(links, default=0.0)
    seconds = party + max(transfer, aggregator) + trips
    if case.cores:
        work = party * parties + aggregator
        seconds = max(party + max(transfer, aggregator), work / case.cores, transfer) + trips
    return Cost(seconds, party, masks, aggregator, trips, transfer, case.sent)


def as_json(case: Case) -> dict[str, object]:
    """A case for a file."""
    return asdict(case)
