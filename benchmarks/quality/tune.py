"""Does a session that compares candidates find settings as good as random search on pooled rows?

    python benchmarks/quality/tune.py --data FOLDER

`fb.tune` compares 27 candidates in one session of three uneven parties, and drops a third at a time.
XGBoost (`hist`) draws 27 at random from the same space, trains each for all rounds on pooled rows, and
keeps the best round of the best. Both use the AUC of the same validation rows, a fifth of the table, one
split per seed. XGBoost searches with as many seeds of its own and counts their mean, because the draw
decides among few candidates.

The claims: the mean validation AUC over the seeds is at least as high. The turns are at most half of
those of one session per candidate, including dropped candidates.
"""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
import xgboost as xgb

import fedboost as fb
from fedboost.runtime.data.shard import to_features, to_shard
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.tasks import SPACE, TRIALS, Tuning, terms_to_tune

DATASETS = (common.ADULT, common.DEFAULT_CREDIT, common.BANK_MARKETING)
HELD = "held"
SEARCHES = 3
MIN_CHILD_WEIGHT = [1.0, 12.0]
MOST_TURNS = 0.5


@dataclass(frozen=True)
class Run:
    """One seed: AUC of both, seconds of both, turns of the session, and of one for each candidate."""

    dataset: str
    tuned: float
    searched: float
    seconds: float
    search_seconds: float
    turns: int
    apart: int


def main() -> None:
    """Compare on all tables."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, default=100, help="most trees (default 100)")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"candidates (default {TRIALS})")
    options = parser.parse_args()
    runs = []
    for dataset in DATASETS:
        table = common.load(options.data, dataset)
        for seed in range(options.seeds):
            print(f"{dataset.name}, seed {seed} ...", file=sys.stderr)
            runs.append(run(dataset, table, seed, options.rounds, options.trials))
    rows, holds = [], []
    for dataset in DATASETS:
        own = [each for each in runs if each.dataset == dataset.name]
        difference = np.array([each.tuned - each.searched for each in own])
        share = max(each.turns / each.apart for each in own)
        holds.append(float(difference.mean()) >= 0 and share <= MOST_TURNS)
        rows.append(
            [
                dataset.name,
                common.spread([each.tuned for each in own], 4),
                common.spread([each.searched for each in own], 4),
                f"{difference.mean():+.4f}",
                f"{difference.std(ddof=1):.4f}" if len(own) > 1 else "",
                f"{own[0].turns}",
                f"{own[0].apart}",
                f"{np.mean([each.seconds for each in own]):.1f}",
                f"{np.mean([each.search_seconds for each in own]):.1f}",
                common.verdict(holds[-1]),
            ]
        )
    headings = ["table", "tune", "random search", "difference", "sd of it", "turns", "turns apart"]
    headings += ["tune, s", "search, s", "holds"]
    title = f"Validation AUC, {options.trials} candidates, at most {options.rounds} rounds"
    shown = common.Table(title, headings, rows)
    common.publish(options, [shown], {"rounds": options.rounds, "runs": [asdict(each) for each in runs]})


def run(dataset: common.Dataset, table: pa.Table, seed: int, rounds: int, trials: int) -> Run:
    """Run both on one split."""
    train, held = common.train_and_test(table, seed)
    split = pa.concat_tables(
        [part.append_column(HELD, pa.array([flag] * part.num_rows)) for part, flag in ((train, 0), (held, 1))]
    )
    draft = fb.Terms.draft(table, dataset.label, rounds=rounds, eval_metric="auc", seed=seed)
    terms = draft.changed(columns={**draft.model_dump(mode="json")["columns"], "validation": HELD})
    space = {**SPACE, "min_child_weight": MIN_CHILD_WEIGHT}
    agreed, shards = terms_to_tune(terms, space, trials), common.parties(split, seed)
    began = time.process_time()
    session, meter, _ = run_session(agreed, shards)
    seconds = time.process_time() - began
    if session.error is not None:
        raise session.error
    outcome = session.run.outcome
    assert outcome is not None
    found = Tuning(agreed, "auc", tuple(outcome.summary["trials"]), outcome.summary["best"], meter.traffic)
    apart = sum(
        own.trees.max_depth * own.trees.rounds for own in (agreed.candidate(n) for n in range(trials))
    )
    began = time.process_time()
    searched = np.mean([search(terms, train, held, 1000 * seed + n, rounds, trials) for n in range(SEARCHES)])
    search_seconds = (time.process_time() - began) / SEARCHES
    best = found.trials[found.best].value("auc")
    return Run(dataset.name, best, float(searched), seconds, search_seconds, session.turn, apart)


def search(terms: fb.Terms, train: pa.Table, held: pa.Table, seed: int, rounds: int, trials: int) -> float:
    """The validation AUC of random search on pooled rows."""
    columns = terms.columns
    kinds = ["q"] * len(columns.numeric) + ["c"] * len(columns.categorical)
    plain = terms.changed(columns={**terms.model_dump(mode="json")["columns"], "validation": None})
    sets = [
        xgb.DMatrix(
            to_features(part, columns, "table"),
            to_shard(part, plain, "all").label,
            feature_types=kinds,
            enable_categorical=True,
        )
        for part in (train, held)
    ]
    draws, best = np.random.default_rng(seed), 0.0
    for _ in range(trials):
        params = {name: value(draws, *bounds) for name, bounds in SPACE.items()}
        params["min_child_weight"] = value(draws, *MIN_CHILD_WEIGHT)
        params |= {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256, "nthread": 1}
        scores: dict[str, dict[str, list[float]]] = {}
        params["eval_metric"] = "auc"
        xgb.train(params, sets[0], rounds, [(sets[1], "v")], evals_result=scores, verbose_eval=False)
        best = max(best, *scores["v"]["auc"])
    return best


def value(draws: np.random.Generator, low: float, high: float) -> float | int:
    """Draw a setting: integers and shares uniformly, others log-uniformly."""
    if isinstance(low, int) and isinstance(high, int):
        return int(draws.integers(low, high + 1))
    if high <= 1.0 and low >= 0.5:
        return float(draws.uniform(low, high))
    return float(np.exp(draws.uniform(np.log(low), np.log(high))))


if __name__ == "__main__":
    main()
