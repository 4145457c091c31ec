"""`fedboost predict` and `fedboost terms`, which read tables, and `fedboost digest`, which reads terms."""

import csv
import sys
from collections.abc import Sequence
from io import StringIO, TextIOWrapper
from pathlib import Path

import numpy as np

from fedboost.cli.show import notice, notice_undeclared
from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64
from fedboost.people.summary import summary
from fedboost.runtime.config import read_terms, terms_to_toml
from fedboost.runtime.data.draft import draft_schema, split_by_site
from fedboost.runtime.data.features import to_base_margin, to_features
from fedboost.runtime.data.table import read_table
from fedboost.runtime.data.values import listing
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.model_file import Model
from fedboost.runtime.site.policy import COMMAND, Policy
from fedboost.terms.terms import Terms


def run_predict(model_file: Path, data: Path, out: Path | None) -> None:
    """`fedboost predict`."""
    if out is not None:
        check_writable(out, model_file, data)
    model = Model.load(model_file)
    table, columns = read_table(data), model.terms.columns
    base_margin = to_base_margin(table, model.terms, str(data))
    predictions = model.booster.predict(to_features(table, columns, str(data)), base_margin)
    notice_undeclared(table, columns)
    if predictions.ndim == 2:
        write(_of_classes(predictions, model.classes), out)
    else:
        write("\n".join(["prediction", *map(repr, predictions.tolist()), ""]), out)


def _of_classes(predictions: Float64, classes: Sequence[object]) -> str:
    """A CSV of the most probable class, the first of equal ones, and the probability of each."""
    names = [str(name) for name in classes]
    first = "prediction"
    while first in names:
        first += "_"
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([first, *names])
    best = np.argmax(predictions, axis=1).tolist()
    lines.writerows([names[of], *row] for of, row in zip(best, predictions.tolist(), strict=True))
    return text.getvalue()


def run_terms(
    data: Path,
    label: str,
    label_upper_bound: str | None,
    weight: str | None,
    base_margin: str | None,
    group: str | None,
    site: str | None,
    exclude: list[str],
    parties: list[str],
    objective: str | None,
    out: Path | None,
) -> None:
    """`fedboost terms`."""
    if site is not None and parties:
        raise ConfigError("give --site or --party, not both: the values of the column are the parties")
    if out is not None:
        check_writable(out)
        if out.is_file():
            raise ConfigError(f"{out}: exists already, and may have been edited; move it away first")
    table = read_table(data)
    if site is not None:
        parties, exclude = list(split_by_site(table, site)), [*exclude, site]
    columns = label_upper_bound, group
    draft = draft_schema(table, label, weight, exclude, base_margin, objective, *columns)
    for column, reason in draft.left_out.items():
        notice(f"left out {column}: {reason}")
    positive = draft.columns.positive
    if positive is not None:
        notice(f"{label} {positive!r}, the rarer value here, counts as 1: predictions are its probability")
    if draft.columns.classes:
        notice(f"{label} has {len(draft.columns.classes)} classes: {listing(draft.columns.classes)}")
    if draft.few_numbers:
        notice(
            f"{label} holds {draft.few_numbers} whole numbers, taken for amounts; if they stand for classes: "
            "--objective multi:softprob"
        )
    for name, value in draft.of_objective.items():
        notice(f"{name} = {value} is drafted; set the one you want")
    leaves = draft.min_child_weight
    settings = {} if leaves is None else {"min_child_weight": leaves}
    terms = Terms.read({**draft.settings(), **settings, "parties": parties})
    comments = {}
    if leaves is not None:
        rows = Policy().min_rows_per_leaf
        comments["min_child_weight"] = f"{rows} rows in a leaf at least: sites refuse fewer by default"
    write(terms_to_toml(terms, comments), out)
    if not parties:
        notice('before training over the network, name the sites: parties = ["north", "south"]')


def run_digest(terms_file: Path) -> None:
    """`fedboost digest`."""
    terms = read_terms(terms_file)
    if not terms.parties:
        raise ConfigError(
            f"{terms_file}: names no parties, and no site is offered such terms; "
            'add parties = ["north", "south"]'
        )
    print(summary(terms))
    print(f"\nA site approves these terms, and no others, by\n{COMMAND}")


def write(text: str, out: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    if out is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as the file would be, whatever the locale
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_atomically(out, text.encode())
