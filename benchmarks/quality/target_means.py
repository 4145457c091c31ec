"""What is a column of 20,000 levels worth as label means, and how much of it remains with noise?

    python benchmarks/quality/target_means.py

Generates eight numbers and a level. The label depends on four of the numbers and on an effect of the level;
level frequencies are as uneven as those of merchants. 400,000 rows train, 100,000 are scored, one table per
seed. Three uneven parties train under masks without the column and with `target_means` of 131,072 buckets:
exact, with all levels and without levels of fewer than ten rows, and with distributed noise of epsilon 1
and 8 at delta 1e-6, with its own trees. XGBoost trains on the pooled rows with scikit-learn's
TargetEncoder. Trainings without noise have 100 rounds, depth 6 and learning rate 0.1.

The claims: with all levels, the AUC is at most 0.002 below TargetEncoder and XGBoost. With epsilon 8, the
column raises the AUC in every seed.
"""

import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
import xgboost
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import TargetEncoder

import fedboost as fb

ROWS, LEVELS, NUMBERS, BUCKETS = 500_000, 20_000, 8, 1 << 17
AUC_WITHIN = 0.002
WITHOUT, BESIDE = "exact, without", "TargetEncoder and XGBoost, pooled"
ALL, TEN = "exact, min_count 1", "exact, min_count 10"
NOISY = {epsilon: (f"epsilon {epsilon}, without", f"epsilon {epsilon}") for epsilon in (1, 8)}


def main() -> None:
    """Measure all variants on tables of several seeds."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--seeds", type=int, default=5, help="number of tables (default 5)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of each (default {ROWS})")
    options = parser.parse_args()
    if options.seeds < 2 or options.rows < 100:
        common.fail("--seeds must be at least 2, --rows 100")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(options.seeds):
        print(f"seed {seed} ...", file=sys.stderr)
        train, test = common.train_and_test(table_of(options.rows, seed), seed)
        for way, figures in measured(train, test, seed).items():
            found.setdefault(way, []).append(figures)
    aucs = {way: np.array([auc for auc, _, _ in runs]) for way, runs in found.items()}
    claims = {
        ALL: bool((aucs[ALL] - aucs[BESIDE]).mean() >= -AUC_WITHIN),
        NOISY[8][1]: bool((aucs[NOISY[8][1]] > aucs[NOISY[8][0]]).all()),
    }
    rows = [
        (
            way,
            f"{own.mean():.4f}",
            f"{own.std(ddof=1):.4f}",
            *(f"{np.mean([run[place] for run in found[way]]):.1f}" for place in (1, 2)),
            common.verdict(claims[way]) if way in claims else "",
        )
        for way, own in aucs.items()
    ]
    title = f"{options.rows} rows, {LEVELS} levels, mean of {options.seeds} tables"
    headings = ("way", "AUC", "sd", "seconds", "MB a party", "holds")
    values = {way: own.tolist() for way, own in aucs.items()}
    common.publish(options, [common.Table(title, headings, rows)], {"aucs": values})


def table_of(rows: int, seed: int) -> pa.Table:
    """Generate the table of one seed."""
    draw = np.random.default_rng(seed)
    share = (np.arange(LEVELS) + 50.0) ** -0.7
    level, effect = draw.choice(LEVELS, rows, p=share / share.sum()), draw.normal(size=LEVELS)
    x = draw.normal(size=(NUMBERS, rows)).astype(np.float32)
    margin = x[0] - 0.7 * x[1] + 0.5 * x[2] * x[3] + effect[level] - 1.0
    label = (draw.random(rows) < 1.0 / (1.0 + np.exp(-margin))).astype(np.int64)
    columns = {f"x{number}": values for number, values in enumerate(x)}
    return pa.table({**columns, "merchant": level, "y": label, "id": np.arange(rows)})


def measured(train: pa.Table, test: pa.Table, seed: int) -> dict[str, tuple[float, float, float]]:
    """AUC, seconds, and megabytes that a party sends, by variant."""
    numeric, label = [f"x{number}" for number in range(NUMBERS)], test["y"].to_numpy()
    parts = common.parties(train, seed)
    columns = {"label": "y", "numeric": numeric, "row_id": "id"}
    means, ranges = {"target_means": {"merchant": BUCKETS}}, {"ranges": {name: [-4, 4] for name in numeric}}
    trees = {"rounds": 100, "max_depth": 6, "learning_rate": 0.1}
    out = {}

    def add(way: str, **settings: object) -> None:
        began = time.perf_counter()
        result = fb.simulate(fb.Terms.read(settings), parts)
        seconds, sent = time.perf_counter() - began, max(own for own, _ in result.traffic.values())
        out[way] = roc_auc_score(label, result.model.predict(test)), seconds, sent / 1e6

    add(WITHOUT, columns=columns, **trees)
    add(ALL, columns=columns | means, min_count=1, **trees)
    add(TEN, columns=columns | means, **trees)
    out[BESIDE] = beside(train, test, numeric, trees)
    for epsilon, (without, way) in NOISY.items():
        noise = {"epsilon": epsilon, "delta": 1e-6}
        add(without, columns=columns | ranges, noise=noise)
        add(way, columns=columns | ranges | means, noise=noise)
    return out


def beside(
    train: pa.Table, test: pa.Table, numeric: list[str], trees: dict[str, float]
) -> tuple[float, float, float]:
    """AUC and seconds of TargetEncoder with XGBoost on the pooled rows."""
    began = time.perf_counter()
    label, encoder = train["y"].to_numpy(), TargetEncoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        levels = encoder.fit_transform(train.select(["merchant"]).to_pandas(), label)
    of_test = encoder.transform(test.select(["merchant"]).to_pandas())
    rows, new = (np.column_stack([part[name].to_numpy() for name in numeric]) for part in (train, test))
    settings = {"objective": "binary:logistic", "max_depth": trees["max_depth"], "nthread": 1}
    settings |= {"learning_rate": trees["learning_rate"]}
    booster = xgboost.train(
        settings, xgboost.DMatrix(np.column_stack([rows, levels]), label), int(trees["rounds"])
    )
    predicted = booster.predict(xgboost.DMatrix(np.column_stack([new, of_test])))
    return roc_auc_score(test["y"].to_numpy(), predicted), time.perf_counter() - began, 0.0


if __name__ == "__main__":
    main()
