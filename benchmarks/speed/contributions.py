"""What do SHAP values cost compared with XGBoost's?

    python benchmarks/speed/contributions.py

100 trees of depth 6, trained on 100,000 generated rows, explain 10,000 x 50 float32 values with one thread,
and the sides alternate. fedboost and XGBoost (`pred_contribs`) load the same model file, and their values
are compared. LightGBM (`pred_contrib`) has its own trees. fedboost also explains ten times as many rows.
The times are CPU time.

The claims: fedboost takes at most 0.1 times XGBoost's time. With ten times the rows, the time per row is at
most 1.2 times as long.
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
from peers import FEDBOOST, LIGHTGBM, XGBOOST, Rows

import fedboost as fb

AT_MOST, PER_ROW = 0.1, 1.2
TRAINED_ON, TREES, FEATURES, TIMES = 100_000, 100, 50, 10
MORE = "fedboost, more rows"
SAME = 1e-4
"""Values of the same trees differ by at most this share of the largest: XGBoost's are float32."""


def main() -> None:
    """Explain the rows with all sides alternately."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--rows", type=int, default=10_000, help="default 10,000")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.rows < 100 or options.repeats < 1:
        common.fail("--rows must be at least 100, --repeats at least 1")
    rows = Rows.of(*common.generate(TIMES * options.rows, FEATURES)).matrix
    some = rows[: options.rows]
    sides = trained(min(TRAINED_ON, 10 * options.rows))
    ours, theirs = (sides[side](some[:1000]) for side in (FEDBOOST, XGBOOST))
    if np.abs(ours - theirs).max() > SAME * np.abs(theirs).max():
        common.fail("fedboost and XGBoost explain the same trees differently")
    seconds: dict[str, list[float]] = {side: [] for side in (FEDBOOST, MORE, XGBOOST, LIGHTGBM)}
    for number in range(options.repeats):
        print(f"repeat {number + 1} of {options.repeats} ...", file=sys.stderr)
        for side, taken in seconds.items():
            start = time.process_time()
            sides[FEDBOOST if side == MORE else side](rows if side == MORE else some)
            taken.append(time.process_time() - start)
    report(seconds, options)


def trained(count: int) -> dict[str, Callable[[Float32], Any]]:
    """Function of each side that explains rows."""
    rows = Rows.of(*common.generate(count, FEATURES))
    model = fb.simulate(peers.terms_of([*rows.columns], TREES), [rows.table]).model
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(model.to_bytes()))
    booster.set_param({"nthread": 1})
    names = list(model.booster.features)
    light = peers.train_lightgbm(rows.matrix, rows.label, 1, TREES, lambda *_: None, "col")

    def of_xgboost(values: Float32) -> Any:
        return booster.predict(xgboost.DMatrix(values, feature_names=names, nthread=1), pred_contribs=True)

    return {
        FEDBOOST: model.shap_values,
        XGBOOST: of_xgboost,
        LIGHTGBM: lambda values: light.predict(values, pred_contrib=True, num_threads=1),
    }


def report(seconds: dict[str, list[float]], options: argparse.Namespace) -> None:
    """The tables and the JSON file."""
    settings = f"{TREES} trees, one thread: median (least - most) of {options.repeats}"
    rows = []
    for side in (FEDBOOST, XGBOOST, LIGHTGBM):
        ratios = [mine / its for mine, its in zip(seconds[FEDBOOST], seconds[side], strict=True)]
        row = [side, spread(seconds[side], 3), spread(ratios, 3) if side != FEDBOOST else ""]
        holds = statistics.median(ratios) <= AT_MOST
        rows.append([*row, f"{AT_MOST:g}", verdict(holds)] if side == XGBOOST else [*row, "", ""])
    beside = common.Table(
        f"CPU seconds, {options.rows:,} x {FEATURES}, {settings}",
        ("side", "seconds", "fedboost / this", "claim", "holds"),
        rows,
    )
    few, many = (
        [1e6 * one / count for one in seconds[side]]
        for side, count in ((FEDBOOST, options.rows), (MORE, TIMES * options.rows))
    )
    ratios = [more / less for less, more in zip(few, many, strict=True)]
    holds = statistics.median(ratios) <= PER_ROW
    growth = common.Table(
        f"fedboost's CPU microseconds a row, {settings}",
        ("rows", "microseconds", "beside the above", "claim", "holds"),
        [
            [f"{options.rows:,}", spread(few, 1), "", "", ""],
            [f"{TIMES * options.rows:,}", spread(many, 1), spread(ratios, 2), f"{PER_ROW:g}", verdict(holds)],
        ],
    )
    values = {"rows": options.rows, "trees": TREES, "seconds": seconds}
    common.publish(options, [beside, growth], values)


if __name__ == "__main__":
    main()
