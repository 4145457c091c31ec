"""Is joining columns worthwhile, and does the joined model equal the model of pooled rows?

    python benchmarks/quality/joined.py --data FOLDER

Each table is divided by columns: a label holder has those of one kind, a feature holder those of the other.
On the same training rows the script trains the label holder alone, both holders, three holders (the third
has half of the feature holder's columns), and one party with all columns. Trainings have 50 rounds, depth
5, 32 bins, one 80/20 split per seed, and protection `plain` unless --protection names another.

The claims: the models of two and three holders equal the pooled model byte for byte. Joining raises the
test AUC in every split, except on kddcup99_10pct, where either half separates the classes.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.metrics import roc_auc_score

import fedboost as fb
from fedboost.runtime.data.shard import to_shard

HOLDER, OTHER, THIRD = "label_holder", "feature_holder", "third"


@dataclass(frozen=True)
class Parted:
    """A table and the columns of the feature holder."""

    dataset: common.Dataset
    parted: str
    others: tuple[str, ...]
    binary: bool = True


PARTED = (
    Parted(
        common.ADULT,
        "person | work",
        ("workclass", "occupation", "capital-gain", "capital-loss", "hours-per-week"),
    ),
    Parted(
        common.DEFAULT_CREDIT,
        "bank | payments",
        tuple(
            [f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)] + [f"PAY_AMT{month}" for month in range(1, 7)]
        ),
    ),
    Parted(
        common.BANK_MARKETING,
        "client | economy",
        ("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed", "month"),
    ),
    Parted(common.HIGGS, "measured | derived", tuple(f"f{number}" for number in range(21, 28))),
    Parted(common.KDDCUP, "connection | traffic", (), binary=False),
)
"""kddcup99_10pct: attacks of any kind against normal connections; traffic is every column from `count` on."""


@dataclass(frozen=True)
class Joined:
    """AUC on the test rows of each seed."""

    table: str
    parted: str
    alone: list[float]
    joined: list[float]
    equal: bool
    saturated: bool

    @property
    def least_gain(self) -> float:
        """Smallest difference of both over the seeds."""
        return float(min(np.subtract(self.joined, self.alone)))


def main() -> None:
    """Train on the selected tables."""
    parser = common.arguments(__doc__ or "")
    names = [parted.dataset.name for parted in PARTED]
    parser.add_argument("--datasets", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits (default 5)")
    parser.add_argument("--rounds", type=int, default=50, help="trees (default 50)")
    parser.add_argument("--protection", choices=("plain", "paillier"), default="plain")
    options = parser.parse_args()
    if options.seeds < 1 or options.rounds < 1:
        common.fail("--seeds and --rounds must be at least 1")
    results = []
    for parted in PARTED:
        if parted.dataset.name in options.datasets:
            print(f"{parted.dataset.name} ...", file=sys.stderr)
            results.append(compare(parted, *prepared(options.data, parted), options))
    rows = [
        (
            result.table,
            result.parted,
            f"{np.mean(result.alone):.4f}",
            f"{np.mean(result.joined):.4f}",
            f"{result.least_gain:+.4f}",
            common.verdict(result.equal and (result.saturated or result.least_gain > 0)),
        )
        for result in results
    ]
    headings = ("table", "columns", "label holder alone", "joined", "least gain", "holds")
    seeds = f"mean of {options.seeds} splits"
    title = f"AUC, {options.protection}, {options.rounds} rounds, depth 5, 32 bins, {seeds}"
    note = "The models of two holders, of three and of pooled rows are compared byte for byte."
    shown = common.Table(title, headings, rows, [note])
    common.publish(options, [shown], {"results": [asdict(result) for result in results]})


def prepared(folder: Path, parted: Parted) -> tuple[pa.Table, tuple[str, ...]]:
    """The table with a label of two values, and the columns of the other holder."""
    table, label = common.load(folder, parted.dataset), parted.dataset.label
    if parted.binary:
        return table, parted.others
    normal = pc.match_substring(pc.cast(table[label], pa.string()), "normal")
    column = table.schema.get_field_index(label)
    table = table.set_column(column, label, pc.cast(pc.invert(normal), pa.int8()))
    names = [name for name in table.column_names if name != label]
    return table, tuple(names[names.index("count") :])


def compare(parted: Parted, table: pa.Table, others: tuple[str, ...], options: argparse.Namespace) -> Joined:
    """Train in each layout on every split."""
    alone, joined, equal = [], [], True
    label, rounds = parted.dataset.label, options.rounds
    for seed in range(options.seeds):
        train, test = common.train_and_test(table, seed)
        terms = fb.Terms.draft(
            train, label, rounds=rounds, max_depth=5, max_bin=32, protection="plain", exclude=()
        )
        features = [name for name in terms.columns.features if name in others]
        truth = to_shard(test, terms, "all").label
        own = without(terms, features)
        alone.append(roc_auc_score(truth, fb.simulate(own, {HOLDER: train}).model.predict(test)))
        pooled = fb.simulate(terms, {HOLDER: train}).model
        half = len(features) // 2
        for held in ({OTHER: features}, {OTHER: features[:half], THIRD: features[half:]}):
            apart = apart_terms(terms, held).changed(protection=options.protection)
            if options.protection == "paillier":
                apart = apart.changed(key_bits=2048)
            model = fb.simulate(apart, dict.fromkeys((HOLDER, *held), train)).model
            equal &= model.booster.to_xgboost() == pooled.booster.to_xgboost()
        joined.append(roc_auc_score(truth, pooled.predict(test)))
    return Joined(parted.dataset.name, parted.parted, alone, joined, equal, not parted.binary)


def without(terms: fb.Terms, features: list[str]) -> fb.Terms:
    """The terms without some features."""
    columns = terms.columns.model_dump(mode="json", exclude_defaults=True)
    columns["numeric"] = [name for name in terms.columns.numeric if name not in features]
    kept = {n: levels for n, levels in terms.columns.categorical.items() if n not in features}
    return terms.changed(columns={**columns, "categorical": kept})


def apart_terms(terms: fb.Terms, held: dict[str, list[str]]) -> fb.Terms:
    """The terms with columns held by different parties."""
    columns = terms.columns.model_dump(mode="json", exclude_defaults=True)
    apart = {"label_holder": HOLDER, "rows": "in_order", "parties": (HOLDER, *held)}
    return terms.changed(columns={**columns, "held": held}, **apart)


if __name__ == "__main__":
    main()
