"""How many bytes does a party send per round?

    python benchmarks/network/wire.py --data FOLDER

Trains on all rows of a table at three uneven parties: 100 rounds, depth 6, 256 bins, `masked`. Counts whole
messages on the wire, in MB of 10^6 bytes, of the party that sends most. The generated table is 200,000 x
50.

Training twice separates the rounds from joining, cut points and base score. A longer training begins with
the messages of a training of one round, so sent(100 rounds) - sent(1 round) is what 99 rounds send.

The claims: at most 0.13 MB per round for adult, 0.58 MB for default_credit, 0.20 MB for default_credit with
vote_top_k 5, 3.3 MB for the generated rows.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
from common import LABEL, generate

import fedboost as fb

LEARNING_RATES = (0.1, 0.3)


@dataclass(frozen=True)
class Claim:
    """A table, the most bytes a party may send per round, and a figure to set beside it.

    allreduce: bytes a worker receives per round from XGBoost's own allreduce of histograms (four workers,
    depth 6, 256 bins): a figure for comparison that this script does not measure.
    """

    dataset: common.Dataset
    at_most: float
    allreduce: float | None
    vote_top_k: int = 0


GENERATED = common.Dataset("generated", LABEL)
GENERATED_ROWS, GENERATED_FEATURES = 200_000, 50
CLAIMS = (
    Claim(common.ADULT, 0.13e6, 0.56e6),
    Claim(common.DEFAULT_CREDIT, 0.58e6, 2.5e6),
    Claim(common.DEFAULT_CREDIT, 0.20e6, None, vote_top_k=5),
    Claim(GENERATED, 3.3e6, None),
)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one training.

    sent: of the party that sends most, per round after the first; sent_with_start: of that party, all
    messages divided by the rounds; both_ways: sent and received per round after the first, mean of the
    parties.
    """

    dataset: str
    learning_rate: float
    sent: float
    sent_with_start: float
    both_ways: float
    at_most: float
    allreduce: float | None

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return self.sent <= self.at_most


def main() -> None:
    """Train on all tables and count bytes."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=100, help="trees (default 100)")
    options = parser.parse_args()
    if options.rounds < 2:
        common.fail("--rounds must be at least 2: the first round is subtracted from the others")
    tables = [(claim, table_of(claim.dataset, options.data)) for claim in CLAIMS]
    results = []
    for claim, table in tables:
        for learning_rate in LEARNING_RATES:
            print(f"{claim.dataset.name}, learning rate {learning_rate} ...", file=sys.stderr)
            results.append(measure(claim, table, learning_rate, options.rounds))
    shown = common.Table(
        f"MB per round, depth 6, 256 bins, mean of {options.rounds} rounds",
        ("dataset", "rate", "sent", "claim", "holds", "sent, with start", "both ways", "XGBoost allreduce*"),
        [
            (
                r.dataset,
                f"{r.learning_rate}",
                f"{r.sent / 1e6:.3f}",
                f"{r.at_most / 1e6:.2f}",
                "yes" if r.holds else "NO",
                f"{r.sent_with_start / 1e6:.3f}",
                f"{r.both_ways / 1e6:.3f}",
                f"{r.allreduce / 1e6:.2f}" if r.allreduce else "",
            )
            for r in results
        ],
        ["* received per worker, four workers: a constant for comparison, not measured by this script"],
    )
    common.publish(
        options,
        [shown],
        {
            "rounds": options.rounds,
            "unit": "bytes",
            "results": [{**asdict(r), "holds": r.holds} for r in results],
        },
    )


def table_of(dataset: common.Dataset, folder: Path) -> pa.Table:
    """Read or generate the rows of a table."""
    if dataset != GENERATED:
        return common.load(folder, dataset)
    columns, label = generate(GENERATED_ROWS, GENERATED_FEATURES)
    return pa.table({**columns, LABEL: label})


def measure(claim: Claim, table: pa.Table, learning_rate: float, rounds: int) -> Traffic:
    """Train with all rounds and with one."""
    terms = fb.Terms.draft(
        table, claim.dataset.label, rounds=rounds, learning_rate=learning_rate, vote_top_k=claim.vote_top_k
    )
    shards = common.parties(table, seed=0)
    full, first = fb.simulate(terms, shards), fb.simulate(terms.changed(rounds=1), shards)
    most = max(full.traffic, key=lambda party: full.traffic[party][0])
    sent = full.traffic[most][0]
    both_ways = float(np.mean([row["bytes"] for row in full.history[1:]])) / len(shards)
    return Traffic(
        claim.dataset.name + (f", vote_top_k {claim.vote_top_k}" if claim.vote_top_k else ""),
        learning_rate,
        (sent - first.traffic[most][0]) / (rounds - 1),
        sent / rounds,
        both_ways,
        claim.at_most,
        claim.allreduce,
    )


if __name__ == "__main__":
    main()
