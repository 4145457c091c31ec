"""What quality do trees with one split per level lose, and what do they save?

    python benchmarks/quality/symmetric.py --data FOLDER

Trains three uneven parties on the same rows with `grow_policy = "symmetric"` and with `depthwise`, and
scores both on the same test rows: 100 rounds, depth 6 (at most 64 leaves), 256 bins, learning rates 0.1 and
0.3, one 80/20 split per seed. CPU seconds are the sum over all parties and the aggregator, kB (10^3 bytes)
what a party sends, both per tree after the first.

The claim: the mean AUC over the seeds is at most 0.004 lower. RMSE has no claim.
"""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.metrics import roc_auc_score, root_mean_squared_error

import fedboost as fb
from fedboost.runtime.data.shard import to_shard

DATASETS = (common.ADULT, common.DEFAULT_CREDIT, common.BANK_MARKETING, common.CALIFORNIA)
LEARNING_RATES = (0.1, 0.3)
POLICIES = ("depthwise", "symmetric")
AUC_WITHIN = 0.004


@dataclass(frozen=True)
class Run:
    """One training: its score on the test rows, the leaves of a tree, CPU seconds and bytes a tree."""

    score: float
    leaves: float
    seconds: float
    sent: float


@dataclass(frozen=True)
class Comparison:
    """The runs of each seed."""

    dataset: str
    metric: str
    learning_rate: float
    depthwise: list[Run]
    symmetric: list[Run]

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """Score with symmetric trees minus that with depthwise ones, of each seed."""
        return np.subtract([run.score for run in self.symmetric], [run.score for run in self.depthwise])

    @property
    def within(self) -> bool:
        """Whether the claim holds."""
        return self.metric != "AUC" or float(np.mean(self.differences)) >= -AUC_WITHIN


def main() -> None:
    """Compare on all tables."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, default=100, help="trees (default 100)")
    parser.add_argument("--depth", type=int, default=6, help="levels of splits (default 6)")
    options = parser.parse_args()
    if options.seeds < 2 or options.rounds < 2:
        common.fail("--seeds and --rounds must be at least 2")
    results = []
    for dataset in DATASETS:
        table = common.load(options.data, dataset)
        for rate in LEARNING_RATES:
            print(f"{dataset.name}, learning rate {rate} ...", file=sys.stderr)
            settings = {"rounds": options.rounds, "learning_rate": rate, "max_depth": options.depth}
            terms = fb.Terms.draft(table, dataset.label, **settings)
            of = [terms.changed(grow_policy=policy) for policy in POLICIES]
            pairs = [[run(own, table, dataset.metric, seed) for own in of] for seed in range(options.seeds)]
            results.append(
                Comparison(dataset.name, dataset.metric, rate, *map(list, zip(*pairs, strict=True)))
            )
    common.publish(
        options,
        [quality(results, options.seeds, options.rounds, options.depth), costs(results)],
        {
            "rounds": options.rounds,
            "depth": options.depth,
            "results": [{**asdict(r), "within": r.within} for r in results],
        },
    )


def run(terms: fb.Terms, table: pa.Table, metric: str, seed: int) -> Run:
    """Train on one split."""
    train, test = common.train_and_test(table, seed)
    shards = common.parties(train, seed)
    fb.simulate(terms.changed(rounds=1), shards)  # whatever is done once is done
    started = time.process_time()
    first = fb.simulate(terms.changed(rounds=1), shards)
    between = time.process_time()
    full = fb.simulate(terms, shards)
    seconds = time.process_time() - between - (between - started)
    sent = max(full.traffic[party][0] - first.traffic[party][0] for party in shards)
    label, found = to_shard(test, terms, "all").label, full.model.predict(test)
    score = roc_auc_score(label, found) if metric == "AUC" else root_mean_squared_error(label, found)
    trees, more = full.model.booster.trees, terms.trees.rounds - 1
    leaves = float(np.mean([len(tree.leaves) for tree in trees]))
    return Run(float(score), leaves, seconds / more, sent / more)


def quality(results: list[Comparison], seeds: int, rounds: int, depth: int) -> common.Table:
    """Scores and leaves."""
    return common.Table(
        f"On the test rows, {rounds} rounds of depth {depth}, mean of {seeds} splits",
        ("dataset", "metric", "rate", *POLICIES, "difference", "sd of it", "within"),
        [
            (
                r.dataset,
                r.metric,
                f"{r.learning_rate}",
                *(f"{mean(runs, 'score'):.4f}" for runs in (r.depthwise, r.symmetric)),
                f"{np.mean(r.differences):+.4f}",
                f"{np.std(r.differences, ddof=1):.4f}",
                common.verdict(r.within) if r.metric == "AUC" else "",
            )
            for r in results
        ],
    )


def costs(results: list[Comparison]) -> common.Table:
    """CPU seconds and bytes per tree."""
    return common.Table(
        "Costs of a tree",
        (
            "dataset",
            "rate",
            *(f"{what} {policy}" for what in ("CPU s", "kB", "leaves") for policy in POLICIES),
        ),
        [
            (
                r.dataset,
                f"{r.learning_rate}",
                *(f"{mean(runs, 'seconds'):.4f}" for runs in (r.depthwise, r.symmetric)),
                *(f"{mean(runs, 'sent') / 1e3:.1f}" for runs in (r.depthwise, r.symmetric)),
                *(f"{mean(runs, 'leaves'):.1f}" for runs in (r.depthwise, r.symmetric)),
            )
            for r in results
        ],
    )


def mean(runs: list[Run], what: str) -> float:
    """The mean over the seeds."""
    return float(np.mean([getattr(run, what) for run in runs]))


if __name__ == "__main__":
    main()
