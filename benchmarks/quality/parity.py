"""Does every objective and option learn as well as in XGBoost?

    python benchmarks/quality/parity.py --data FOLDER [--cases WORD ...]

Trains both with the same parameters on the same rows and features, and scores both on the same test rows:
one 80/20 split per seed, depth 6, 256 bins, defaults otherwise. fedboost has three uneven parties, XGBoost
(`hist`) the pooled rows. Both split categories by sets of levels, and missing values stay missing.

Ranking tables keep each group at one party, and wholly in training or in test. The groups and labels are:

- bike_sharing: the hours of a day; the label is the fifth of the day's counts that contains the hour's
  count.
- beMTPL97: the policyholders of a postcode; the label is the number of claims.
- california_housing: districts in a square of half a degree; the label is the fifth of the square's median
  values that contains the district's.

The claims: the mean difference over the seeds is at most its standard deviation, or in fedboost's favour.
Claims per exposure (beMTPL97, `count:poisson`) are within 0.5 % of XGBoost's deviance. The 23 classes of
kddcup99 do not diverge at the default settings.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xgboost as xgb
from pyarrow import compute
from scipy import stats
from sklearn import metrics

import fedboost as fb
from fedboost.holders.shard import Shard
from fedboost.runtime.data.shard import to_features, to_shard
from fedboost.runtime.data.values import column_of, texts

Float64 = npt.NDArray[np.float64]
Score = Callable[[npt.NDArray[np.float32], Float64], float]

UPPER = "upper"
"""Column of upper bounds, if labels are intervals."""

CLAIMS = common.Dataset("beMTPL97", "nclaims", ("id", "claim", "amount", "average", "postcode"))
AMOUNTS = common.Dataset("beMTPL97", "amount", ("id", "claim", "nclaims", "average", "postcode"))
BIKES = common.Dataset("bike_sharing", "count", ("date",))
DAYS = common.Dataset("bike_sharing", "count")
POSTCODES = common.Dataset("beMTPL97", "nclaims", ("id", "claim", "amount", "average"))
SQUARES = common.Dataset("california_housing", "MedHouseVal")
FIFTHS = 5
TOP = 32
"""Cutoff of NDCG."""
DEVIANCE_WITHIN = 0.005
CENSORING_SEED = 0
DIVERGED = 0.1
"""A log loss of 23 classes above this counts as diverged. Predicting the class shares has 1.1."""


def _pseudo_huber(label: npt.NDArray[np.float32], predicted: Float64) -> float:
    return float(np.mean(np.sqrt(1.0 + (predicted - label) ** 2) - 1.0))


def _classes_loss(label: npt.NDArray[np.float32], predicted: Float64) -> float:
    own = predicted[np.arange(label.size), label.astype(int)]
    return float(-np.log(np.maximum(own, 1e-16)).mean())


def _ndcg(label: npt.NDArray[np.float32], predicted: Float64) -> float:
    return float(metrics.ndcg_score([2.0**label - 1.0], [predicted], k=TOP))


def _aft_loss(label: npt.NDArray[np.float32], predicted: Float64, scale: float = 1.0) -> float:
    """XGBoost's aft-nloglik, with normal noise."""
    lower, upper = label.astype(np.float64)
    low, high = ((np.log(bound) - np.log(predicted)) / scale for bound in (lower, upper))
    likelihood = np.where(
        lower == upper, stats.norm.pdf(low) / (scale * lower), stats.norm.cdf(high) - stats.norm.cdf(low)
    )
    return float(-np.log(np.maximum(likelihood, 1e-12)).mean())


SCORES: dict[str, Score] = {
    "NDCG@32": _ndcg,
    "AUC": metrics.roc_auc_score,
    "log loss": metrics.log_loss,
    "RMSE": metrics.root_mean_squared_error,
    "MAE": metrics.mean_absolute_error,
    "pinball, 0.9": partial(metrics.mean_pinball_loss, alpha=0.9),
    "pseudo-Huber": _pseudo_huber,
    "Poisson deviance": metrics.mean_poisson_deviance,
    "gamma deviance": metrics.mean_gamma_deviance,
    "Tweedie deviance": partial(metrics.mean_tweedie_deviance, power=1.5),
    "aft-nloglik": _aft_loss,
    "aft-nloglik, 0.3": partial(_aft_loss, scale=0.3),
    "class log loss": _classes_loss,
}
"""Metrics of labels and predictions. Lower is better, except for:"""
GROWS = ("AUC", "NDCG@32")


def as_they_are(table: pa.Table) -> pa.Table:
    """All rows."""
    return table


def with_exposure(table: pa.Table) -> pa.Table:
    """The exposure as a base margin."""
    exposure = compute.ln(column_of(table, "expo"))
    return table.drop_columns(["expo"]).append_column("log_expo", exposure)


def with_claims(table: pa.Table) -> pa.Table:
    """The rows with an amount above 0, without the exposure."""
    return table.filter(compute.greater(table.column("amount"), 0.0)).drop_columns(["expo"])


def with_capped_prices(table: pa.Table) -> pa.Table:
    """Prices as intervals; a price that the table caps at 5 has no upper bound."""
    price = table.column("MedHouseVal").to_numpy()
    return _with_bounds(table, "MedHouseVal", np.minimum(price, 5.0), np.where(price < 5.0, price, np.inf))


def with_censored_amounts(table: pa.Table) -> pa.Table:
    """Amounts of claims as intervals, drawn by CENSORING_SEED: of one third the amount is known, of one third
    that it is above some lower one, of one third that it is between a lower and a higher one."""
    claims = with_claims(table)
    draw, amount = np.random.default_rng(CENSORING_SEED), claims.column("amount").to_numpy()
    kind, factor = draw.integers(0, 3, amount.size), np.exp(draw.exponential(0.5, (2, amount.size)))
    lower = np.where(kind == 0, amount, amount / factor[0])
    upper = np.where(kind == 0, amount, np.where(kind == 1, np.inf, amount * factor[1]))
    return _with_bounds(claims, "amount", lower, upper)


def _with_bounds(table: pa.Table, label: str, lower: Float64, upper: Float64) -> pa.Table:
    """The table with lower bounds as labels and a column of upper bounds."""
    return table.drop_columns([label]).append_column(label, [lower]).append_column(UPPER, [upper])


def with_numbered_labels(table: pa.Table) -> pa.Table:
    """The table with labels replaced by their index in the sorted label values."""
    codes, found = texts(column_of(table, "label"), "label")
    rank = np.argsort(np.argsort(found))
    return table.drop_columns(["label"]).append_column("label", [rank[codes]])


def with_squares(table: pa.Table) -> pa.Table:
    """The table with a column for the row's square of half a degree; labels as `with_fifths`."""
    sides = [np.floor(2.0 * column_of(table, name).to_numpy()) for name in ("Latitude", "Longitude")]
    squares = [f"{north:.0f} {east:.0f}" for north, east in zip(*sides, strict=True)]
    return with_fifths(table.append_column("square", [squares]), "MedHouseVal", "square")


def with_fifths(table: pa.Table, label: str, group: str) -> pa.Table:
    """The table with labels replaced by their fifth within the group: 0 to 4."""
    values, codes = column_of(table, label).to_numpy(), texts(column_of(table, group), group)[0]
    fifth = np.empty(values.size, np.int64)
    for code in range(int(codes.max()) + 1):
        rows = np.flatnonzero(codes == code)
        rank = np.searchsorted(np.sort(values[rows]), values[rows])
        fifth[rows] = rank * FIFTHS // rows.size
    return table.drop_columns([label]).append_column(label, [fifth])


@dataclass(frozen=True)
class Case:
    """One row of the table: a real table, an objective, its metric, and further settings of both sides."""

    name: str
    dataset: common.Dataset
    objective: str
    score: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[pa.Table], pa.Table] = as_they_are
    base_margin: str | None = None
    rounds: int = 100
    group: str | None = None
    """Column of groups in ranking tables. Scores are means over groups with more than one label."""
    of_xgboost: Mapping[str, Any] = field(default_factory=dict)
    """Replacement settings for XGBoost, which lacks some of fedboost's."""


SLOW = {"learning_rate": 0.1}
FOREST = {"num_parallel_tree": 50, "subsample": 0.6, "colsample_bynode": 0.5, "learning_rate": 1.0}
TOGETHER = [["MedInc", "HouseAge", "AveRooms"], ["Latitude", "Longitude"]]
GROWTH: dict[str, Mapping[str, Any]] = {
    "subsample 0.7": {"subsample": 0.7},
    "colsample_bytree 0.7, bynode 0.7": {"colsample_bytree": 0.7, "colsample_bynode": 0.7},
    "lossguide, max_leaves 24": {"grow_policy": "lossguide", "max_leaves": 24},
    "monotone_constraints": {"monotone_constraints": {"MedInc": 1}},
    "interaction_constraints": {"interaction_constraints": TOGETHER},
}
FEWER = {"learning_rate": 0.1, "subsample": 0.3}
BY_GRADIENTS = {**FEWER, "sampling_method": "gradient_based"}
BOOTSTRAPS = {
    "sampling_method": "bootstrap",
    "num_parallel_tree": 100,
    "colsample_bynode": 0.5,
    "learning_rate": 1.0,
    "reg_lambda": 1e-5,
}
"""A random forest; of XGBoost one whose trees each grow on as many of the rows, without replacement."""
ONCE_EACH = {"sampling_method": "uniform", "subsample": 0.632}
CASES = (
    Case("adult", common.ADULT, "binary:logistic", "AUC"),
    Case("adult, scale_pos_weight 3", common.ADULT, "binary:logistic", "AUC", {"scale_pos_weight": 3.0}),
    Case("adult, max_delta_step 0.5", common.ADULT, "binary:logistic", "log loss", {"max_delta_step": 0.5}),
    Case("california_housing", common.CALIFORNIA, "reg:squarederror", "RMSE"),
    Case(
        "california_housing, base_score 2",  # from where XGBoost starts without, its steps explode
        common.CALIFORNIA,
        "reg:pseudohubererror",
        "pseudo-Huber",
        {"base_score": 2.0},
    ),
    Case("california_housing", common.CALIFORNIA, "reg:absoluteerror", "MAE"),
    Case(
        "california_housing, quantile_alpha 0.9",
        common.CALIFORNIA,
        "reg:quantileerror",
        "pinball, 0.9",
        {"quantile_alpha": 0.9},
    ),
    Case("beMTPL97", CLAIMS, "count:poisson", "Poisson deviance", SLOW, with_exposure, "log_expo"),
    Case("beMTPL97, amounts", AMOUNTS, "reg:tweedie", "Tweedie deviance", SLOW, with_exposure, "log_expo"),
    Case("beMTPL97, amounts of claims", AMOUNTS, "reg:gamma", "gamma deviance", SLOW, with_claims),
    Case("bike_sharing", BIKES, "count:poisson", "Poisson deviance"),
    Case(
        "california_housing, capped prices",
        common.CALIFORNIA,
        "survival:aft",
        "aft-nloglik, 0.3",
        {"aft_loss_distribution_scale": 0.3},
        with_capped_prices,
    ),
    Case("beMTPL97, censored amounts", AMOUNTS, "survival:aft", "aft-nloglik", SLOW, with_censored_amounts),
    *(
        Case(f"california_housing, {name}", common.CALIFORNIA, "reg:squarederror", "RMSE", settings)
        for name, settings in GROWTH.items()
    ),
    Case("california_housing, 50 trees", common.CALIFORNIA, "reg:squarederror", "RMSE", FOREST, rounds=1),
    *(
        Case(f"{dataset.name}, {name}", dataset, "binary:logistic", "log loss", settings)
        for dataset in (common.ADULT, common.DEFAULT_CREDIT)
        for name, settings in (("subsample 0.3", FEWER), ("gradient_based 0.3", BY_GRADIENTS))
    ),
    *(
        Case(
            f"{dataset.name}, 100 bootstraps",
            dataset,
            "binary:logistic",
            "AUC",
            BOOTSTRAPS,
            rounds=1,
            of_xgboost=ONCE_EACH,
        )
        for dataset in (common.ADULT, common.DEFAULT_CREDIT)
    ),
    Case(
        "kddcup99, 23 classes",
        common.KDDCUP,
        "multi:softprob",
        "class log loss",
        {"num_class": 23},
        with_numbered_labels,
        rounds=20,
    ),
    *(
        Case(name, dataset, objective, "NDCG@32", rows=rows, group=group)
        for name, dataset, rows, group in (
            ("bike_sharing, days", DAYS, partial(with_fifths, label="count", group="date"), "date"),
            ("beMTPL97, postcodes", POSTCODES, as_they_are, "postcode"),
            ("california_housing, squares", SQUARES, with_squares, "square"),
        )
        for objective in ("rank:ndcg", "rank:pairwise")
    ),
)


@dataclass(frozen=True)
class Comparison:
    """Scores on the test rows of each seed."""

    case: Case
    xgboost: list[float]
    fedboost: list[float]

    @property
    def mean(self) -> float:
        """Mean of fedboost's score minus XGBoost's."""
        return float(np.mean(np.subtract(self.fedboost, self.xgboost)))

    @property
    def deviation(self) -> float:
        """Standard deviation of the difference over the seeds."""
        return float(np.std(np.subtract(self.fedboost, self.xgboost), ddof=1))

    @property
    def verdict(self) -> str:
        """Whether the claim holds."""
        if abs(self.mean) <= self.deviation:
            return "yes"
        return "better" if (self.mean > 0) == (self.case.score in GROWS) else common.verdict(False)


def main() -> None:
    """Compare the selected cases."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, help="trees (default: those of each case)")
    parser.add_argument(
        "--cases", nargs="+", metavar="WORD", help="only those whose name or objective has it"
    )
    options = parser.parse_args()
    if options.seeds < 2 or (options.rounds or 1) < 1:
        common.fail("--seeds must be at least 2, --rounds at least 1")
    wanted = options.cases or [""]
    chosen = [case for case in CASES if any(word in f"{case.name} {case.objective}" for word in wanted)]
    if not chosen:
        common.fail(f"no case has {' or '.join(wanted)} in its name or objective")
    comparisons = []
    for case in chosen:
        table = case.rows(common.load(options.data, case.dataset))
        scores = []
        for seed in range(options.seeds):
            print(f"{case.name}, {case.objective}, seed {seed} ...", file=sys.stderr)
            scores.append(compare(case, table, options.rounds or case.rounds, seed))
        comparisons.append(Comparison(case, *map(list, zip(*scores, strict=True))))
    shown = common.Table(
        f"Test scores, depth 6, 256 bins, mean of {options.seeds} splits",
        ("table", "objective", "rounds", "score", "XGBoost", "fedboost", "difference", "sd of it", "within"),
        [
            (
                c.case.name,
                c.case.objective,
                f"{options.rounds or c.case.rounds}",
                c.case.score,
                f"{np.mean(c.xgboost):.5g}",
                f"{np.mean(c.fedboost):.5g}",
                f"{c.mean:+.2g}",
                f"{c.deviation:.2g}",
                c.verdict,
            )
            for c in comparisons
        ],
        notes(comparisons),
    )
    results = [
        {
            "case": c.case.name,
            "objective": c.case.objective,
            "score": c.case.score,
            "settings": dict(c.case.settings),
            "xgboost": c.xgboost,
            "fedboost": c.fedboost,
            "verdict": c.verdict,
        }
        for c in comparisons
    ]
    common.publish(options, [shown], {"results": results})


def notes(comparisons: list[Comparison]) -> list[str]:
    """Notes on the two claims on single cases, if these were measured."""
    found = []
    for c in comparisons:
        if c.case.dataset == CLAIMS:
            off = abs(c.mean) / float(np.mean(c.xgboost))
            verdict = common.verdict(off <= DEVIANCE_WITHIN)
            found.append(
                f"Claims per exposure: {off:.2%} off XGBoost's deviance; claimed at most 0.5 %: {verdict}."
            )
        if c.case.dataset == common.KDDCUP:
            worst = max(c.fedboost)
            verdict = common.verdict(worst <= DIVERGED)
            found.append(f"23 classes: worst log loss {worst:.4f}; claimed at most {DIVERGED}: {verdict}.")
    return found


def compare(case: Case, table: pa.Table, rounds: int, seed: int) -> tuple[float, float]:
    """XGBoost's and fedboost's score on the test rows of one split."""
    told = {"objective": case.objective, **case.settings}
    upper = UPPER if UPPER in table.column_names else None
    columns = {"base_margin": case.base_margin, "label_upper_bound": upper, "group": case.group}
    terms = fb.Terms.draft(table, case.dataset.label, **columns, rounds=rounds, **told)
    train, test = common.train_and_test(table, seed, case.group)
    shards = [to_shard(part, terms, "all") for part in (train, test)]
    kinds = ["q"] * len(terms.columns.numeric) + ["c"] * len(terms.columns.categorical)
    data = [
        _data(to_features(part, terms.columns, case.name), shard, terms.columns.features, kinds)
        for part, shard in zip((train, test), shards, strict=True)
    ]
    told |= {"max_depth": 6, "max_bin": 256, "tree_method": "hist", **case.of_xgboost}
    pooled = xgb.train(told, data[0], rounds)
    model = fb.simulate(terms, common.parties(train, seed, case.group)).model
    of_xgboost = pooled.predict(data[1]).astype(np.float64)
    ours = model.predict(test)[_order(shards[1])]
    return _score(case, shards[1], of_xgboost), _score(case, shards[1], ours)


def _order(shard: Shard) -> npt.NDArray[np.int64]:
    """Row order with contiguous groups, which XGBoost requires."""
    return np.arange(shard.rows) if shard.group is None else np.argsort(shard.group, kind="stable")


def _data(features: npt.NDArray[np.float32], shard: Shard, names: Any, kinds: list[str]) -> xgb.DMatrix:
    order = _order(shard)
    margin, group = shard.base_margin, shard.group
    return xgb.DMatrix(
        features[order],
        **_labels(shard.label[..., order]),
        base_margin=None if margin is None else margin[order],
        qid=None if group is None else np.unique(group[order], return_inverse=True)[1],
        feature_names=names,
        feature_types=kinds,
        enable_categorical=True,
    )


def _score(case: Case, shard: Shard, predicted: Float64) -> float:
    """The score of predictions in that order."""
    score, order = SCORES[case.score], _order(shard)
    label = shard.label[..., order]
    if shard.group is None:
        return float(score(label, predicted))
    ends = np.flatnonzero(np.diff(shard.group[order])) + 1
    groups = zip(np.split(label, ends), np.split(predicted, ends), strict=True)
    return float(np.mean([score(own, given) for own, given in groups if np.unique(own).size > 1]))


def _labels(label: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
    """Labels in XGBoost's format."""
    if label.ndim == 1:
        return {"label": label}
    return {"label_lower_bound": label[0], "label_upper_bound": label[1]}


if __name__ == "__main__":
    main()
