"""What AUC does it cost to evaluate only the features that the parties elect?

    python benchmarks/quality/votes.py --data FOLDER

Trains three uneven parties on the same rows with and without `vote_top_k`, and scores both on the same test
rows: 100 rounds, depth 6, 256 bins, learning rates 0.1 and 0.3, one 80/20 split per seed. MB are 10^6 bytes
that a party sends per round after the first.

The claim: the mean difference over the seeds is at most 0.002 AUC.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.metrics import roc_auc_score

import fedboost as fb
from fedboost.runtime.data.shard import to_shard

DATASETS = (common.ADULT, common.DEFAULT_CREDIT, common.BANK_MARKETING)
LEARNING_RATES = (0.1, 0.3)
AUC_WITHIN = 0.002


@dataclass(frozen=True)
class Comparison:
    """AUC on the test rows and bytes a round, of each seed."""

    dataset: str
    learning_rate: float
    without: list[float]
    voted: list[float]
    bytes_without: float
    bytes_voted: float

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """AUC with votes minus AUC without, of each seed."""
        return np.subtract(self.voted, self.without)

    @property
    def within(self) -> bool:
        """Whether the claim holds."""
        return float(np.mean(self.differences)) >= -AUC_WITHIN


def main() -> None:
    """Compare on all tables."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, default=100, help="trees (default 100)")
    parser.add_argument("--vote-top-k", type=int, default=5, metavar="K", help="features (default 5)")
    options = parser.parse_args()
    if options.seeds < 2 or options.rounds < 2:
        common.fail("--seeds and --rounds must be at least 2")
    results = []
    for dataset in DATASETS:
        table = common.load(options.data, dataset)
        for learning_rate in LEARNING_RATES:
            print(f"{dataset.name}, learning rate {learning_rate} ...", file=sys.stderr)
            terms = fb.Terms.draft(table, dataset.label, rounds=options.rounds, learning_rate=learning_rate)
            voted = terms.changed(vote_top_k=options.vote_top_k)
            scores = [[score(of, table, seed) for seed in range(options.seeds)] for of in (terms, voted)]
            auc, sent = transposed(scores)
            results.append(Comparison(dataset.name, learning_rate, *auc, *map(float, np.mean(sent, axis=1))))
    shown = common.Table(
        f"Test AUC, {options.rounds} rounds, vote_top_k {options.vote_top_k}, mean of {options.seeds} splits",
        ("dataset", "rate", "without", "voted", "difference", "sd of it", "within", "MB without", "MB voted"),
        [
            (
                r.dataset,
                f"{r.learning_rate}",
                f"{np.mean(r.without):.4f}",
                f"{np.mean(r.voted):.4f}",
                f"{np.mean(r.differences):+.4f}",
                f"{np.std(r.differences, ddof=1):.4f}",
                "yes" if r.within else "NO",
                f"{r.bytes_without / 1e6:.3f}",
                f"{r.bytes_voted / 1e6:.3f}",
            )
            for r in results
        ],
    )
    common.publish(
        options,
        [shown],
        {
            "rounds": options.rounds,
            "vote_top_k": options.vote_top_k,
            "results": [{**asdict(r), "within": r.within} for r in results],
        },
    )


def score(terms: fb.Terms, table: pa.Table, seed: int) -> tuple[float, float]:
    """AUC on the test rows of one split, and bytes a party sends per round."""
    train, test = common.train_and_test(table, seed)
    shards = common.parties(train, seed)
    full, first = fb.simulate(terms, shards), fb.simulate(terms.changed(rounds=1), shards)
    sent = max(full.traffic[party][0] - first.traffic[party][0] for party in shards)
    auc = float(roc_auc_score(to_shard(test, terms, "all").label, full.model.predict(test)))
    return auc, sent / (terms.trees.rounds - 1)


def transposed(scores: list[list[tuple[float, float]]]) -> tuple[list[list[float]], list[list[float]]]:
    """AUC of each seed and bytes of each seed, without votes and with."""
    return [[auc for auc, _ in of] for of in scores], [[sent for _, sent in of] for of in scores]


if __name__ == "__main__":
    main()
