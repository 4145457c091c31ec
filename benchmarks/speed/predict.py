"""What does a prediction cost compared with XGBoost's?

    python benchmarks/speed/predict.py

100 trees of depth 6, trained on 100,000 generated rows, predict 1,000,000 x 50 float32 values with one
thread, and the sides alternate. fedboost and XGBoost (`inplace_predict`, the faster of its two ways) load
the same model file, and their predictions are compared. LightGBM and scikit-learn have their own trees. The
times are CPU time.

The claim: fedboost takes at most XGBoost's time.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import peers
import xgboost
from common import Float32, spread, verdict
from peers import FEDBOOST, LIGHTGBM, SKLEARN, XGBOOST, Rows
from threadpoolctl import threadpool_limits

import fedboost as fb

AT_MOST = 1.0
TRAINED_ON, TREES, FEATURES = 100_000, 100, 50
SAME = 1e-5
"""Tolerance of predictions of the same trees: XGBoost adds leaf values as float32."""


def main() -> None:
    """Predict with all sides alternately."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.rows < 100 or options.repeats < 1:
        common.fail("--rows must be at least 100, --repeats at least 1")
    rows = Rows.of(*common.generate(options.rows, FEATURES)).matrix
    sides = trained(min(TRAINED_ON, options.rows))
    few = rows[:1000]
    if not np.allclose(sides[FEDBOOST](few), sides[XGBOOST](few), rtol=0, atol=SAME):
        common.fail("fedboost and XGBoost predict differently with the same trees")
    for predict in sides.values():
        predict(few)  # compile, make tables of the trees
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.repeats):
        print(f"repeat {number + 1} of {options.repeats} ...", file=sys.stderr)
        for side, predict in sides.items():
            start = time.process_time()
            predict(rows)
            seconds[side].append(time.process_time() - start)
    report(seconds, options)


def trained(count: int) -> dict[str, Callable[[Float32], Any]]:
    """Function of each side that predicts probabilities."""
    rows = Rows.of(*common.generate(count, FEATURES))
    model = fb.simulate(peers.terms_of([*rows.columns], TREES), [rows.table]).model
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(model.to_bytes()))
    booster.set_param({"nthread": 1})
    light = peers.train_lightgbm(rows.matrix, rows.label, 1, TREES, lambda *_: None, "col")
    scikit = peers.train_sklearn(rows.matrix, rows.label, 1, TREES)

    def of_scikit(values: Float32) -> Any:
        with threadpool_limits(1, user_api="openmp"):
            return scikit.predict_proba(values)

    return {
        FEDBOOST: model.predict,
        XGBOOST: booster.inplace_predict,
        LIGHTGBM: lambda values: light.predict(values, num_threads=1),
        SKLEARN: of_scikit,
    }


def report(seconds: dict[str, list[float]], options: argparse.Namespace) -> None:
    """The table and the JSON file."""
    ratios = {
        side: [mine / its for mine, its in zip(seconds[FEDBOOST], of, strict=True)]
        for side, of in seconds.items()
    }
    rows = []
    for side, of in seconds.items():
        row = [side, spread(of, 3), spread(ratios[side], 2) if side != FEDBOOST else ""]
        holds = statistics.median(ratios[side]) <= AT_MOST
        rows.append([*row, f"{AT_MOST:g}", verdict(holds)] if side == XGBOOST else [*row, "", ""])
    shown = common.Table(
        f"CPU seconds, {options.rows:,} x {FEATURES}, {TREES} trees, one thread: "
        f"median (least - most) of {options.repeats}",
        ("side", "seconds", "fedboost / this", "claim", "holds"),
        rows,
    )
    common.publish(options, [shown], {"rows": options.rows, "trees": TREES, "seconds": seconds})


if __name__ == "__main__":
    main()
