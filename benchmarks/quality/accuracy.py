"""Are federated models as good as XGBoost's on the pooled rows?

    python benchmarks/quality/accuracy.py --data FOLDER

Trains both with the same parameters on the same rows and features, and scores both on the same test rows:
100 rounds, depth 6, 256 bins, learning rates 0.1 and 0.3, defaults otherwise, one 80/20 split per seed.
fedboost has three uneven parties, XGBoost (`hist`) the pooled rows. Both split categories by sets of levels
(XGBoost with `enable_categorical`), and missing values stay missing. Tables with categories are also
trained in fedboost with level numbers as numeric features.

The claim: the mean difference over the seeds is at most 0.002 AUC, or 1 % of XGBoost's RMSE.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xgboost as xgb
from sklearn.metrics import roc_auc_score, root_mean_squared_error

import fedboost as fb
from fedboost.runtime.data.shard import to_features, to_shard

DATASETS = (
    common.ADULT,
    common.DEFAULT_CREDIT,
    common.BANK_MARKETING,
    common.HIGGS,
    common.CALIFORNIA,
)
LEARNING_RATES = (0.1, 0.3)
AUC_WITHIN = 0.002
RMSE_WITHIN = 0.01  # of XGBoost's


@dataclass(frozen=True)
class Comparison:
    """Scores on the test rows of each seed."""

    dataset: str
    metric: str
    learning_rate: float
    xgboost: list[float]
    fedboost: list[float]
    as_numbers: list[float]
    """fedboost's scores with level numbers; empty without categories."""

    @property
    def mean(self) -> float:
        """Mean of fedboost's score minus XGBoost's."""
        return float(np.mean(self._differences))

    @property
    def deviation(self) -> float:
        """Standard deviation of the difference over the seeds (0 for one seed)."""
        return float(np.std(self._differences, ddof=1)) if len(self.xgboost) > 1 else 0.0

    @property
    def within(self) -> bool:
        """Whether the claim holds."""
        limit = AUC_WITHIN if self.metric == "AUC" else RMSE_WITHIN * float(np.mean(self.xgboost))
        return abs(self.mean) <= limit

    @property
    def _differences(self) -> npt.NDArray[np.float64]:
        return np.subtract(self.fedboost, self.xgboost)


def main() -> None:
    """Compare on the selected tables."""
    parser = common.arguments(__doc__ or "")
    names = [dataset.name for dataset in DATASETS]
    parser.add_argument("--datasets", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, default=100, help="trees (default 100)")
    options = parser.parse_args()
    if options.seeds < 1 or options.rounds < 1:
        common.fail("--seeds and --rounds must be at least 1")
    chosen = [dataset for dataset in DATASETS if dataset.name in options.datasets]
    tables = [(dataset, common.load(options.data, dataset)) for dataset in chosen]
    comparisons = []
    for dataset, table in tables:
        for learning_rate in LEARNING_RATES:
            print(f"{dataset.name}, learning rate {learning_rate} ...", file=sys.stderr)
            scores = [
                score(dataset, table, learning_rate, options.rounds, seed) for seed in range(options.seeds)
            ]
            pooled, federated, *as_numbers = map(list, zip(*scores, strict=True))
            of_fedboost = federated, as_numbers[0] if as_numbers else []
            comparisons.append(Comparison(dataset.name, dataset.metric, learning_rate, pooled, *of_fedboost))
    shown = common.Table(
        f"Test scores, {options.rounds} rounds, depth 6, 256 bins, mean of {options.seeds} splits",
        (
            "dataset",
            "metric",
            "rate",
            "XGBoost",
            "fedboost",
            "difference",
            "sd of it",
            "within",
            "levels as numbers",
        ),
        [
            (
                c.dataset,
                c.metric,
                f"{c.learning_rate}",
                f"{np.mean(c.xgboost):.4f}",
                f"{np.mean(c.fedboost):.4f}",
                f"{c.mean:+.4f}",
                f"{c.deviation:.4f}",
                "yes" if c.within else "NO",
                f"{np.mean(c.as_numbers):.4f}" if c.as_numbers else "",
            )
            for c in comparisons
        ],
    )
    results = [
        {**asdict(c), "mean_difference": c.mean, "sd_difference": c.deviation, "within": c.within}
        for c in comparisons
    ]
    common.publish(options, [shown], {"rounds": options.rounds, "results": results})


def score(
    dataset: common.Dataset, table: pa.Table, learning_rate: float, rounds: int, seed: int
) -> tuple[float, ...]:
    """Scores of XGBoost, fedboost, and fedboost with level numbers on one split."""
    terms = fb.Terms.draft(table, dataset.label, rounds=rounds, learning_rate=learning_rate)
    train, test = common.train_and_test(table, seed)
    labels = [to_shard(part, terms, "all").label for part in (train, test)]
    features = [to_features(part, terms.columns, dataset.name) for part in (train, test)]
    categorical = terms.columns.categorical
    kinds = ["c" if name in categorical else "q" for name in terms.columns.features]
    matrices = [
        xgb.DMatrix(part, of, feature_types=kinds, enable_categorical=True)
        for part, of in zip(features, labels, strict=True)
    ]
    booster = xgb.train(
        {
            "objective": terms.objective.name,
            "learning_rate": learning_rate,
            "max_depth": 6,
            "max_bin": 256,
            "tree_method": "hist",
            "nthread": 2,
        },
        matrices[0],
        rounds,
    )
    predicted = [booster.predict(matrices[1])]
    predicted.append(fb.simulate(terms, common.parties(train, seed)).model.predict(test))
    if categorical:
        names = terms.columns.features
        numbers = pa.table({**dict(zip(names, features[0].T, strict=True)), common.LABEL: labels[0]})
        as_numbers = terms.changed(columns={"label": common.LABEL, "numeric": names})
        model = fb.simulate(as_numbers, common.parties(numbers, seed)).model
        predicted.append(model.predict(features[1]))
    metric = roc_auc_score if dataset.metric == "AUC" else root_mean_squared_error
    return tuple(float(metric(labels[1], of)) for of in predicted)


if __name__ == "__main__":
    main()
