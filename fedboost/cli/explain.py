"""`fedboost explain`: what a model goes by, one of its trees, and what each feature adds for each row."""

import csv
import io
from pathlib import Path

import numpy as np

from fedboost.cli.show import notice_undeclared, print_json, printable
from fedboost.cli.tables import write
from fedboost.errors import ConfigError
from fedboost.gbdt.model import IMPORTANCES
from fedboost.shell.data import read_table, to_base_margin, to_features
from fedboost.shell.files import check_writable, write_atomically
from fedboost.shell.model import Model

BIAS = "bias"
CLASS = "class"


def run_explain(
    model_file: Path, tree: int | None, svg: Path | None, shap: Path | None, out: Path | None, as_json: bool
) -> None:
    """`fedboost explain`."""
    if shap is not None and tree is not None:
        raise ConfigError("give --tree or --shap, not both")
    if svg is not None and tree is None:
        raise ConfigError("--svg draws one tree; say which, such as --tree 0")
    if out is not None and shap is None:
        raise ConfigError("--out is for the CSV of --shap DATA; a picture goes to the file of --svg")
    if as_json and (shap is not None or tree is not None):
        raise ConfigError("--json prints the importances; leave it out with --tree and --shap")
    if shap is not None:
        _shap(model_file, shap, out)
    elif tree is not None:
        _tree(model_file, tree, svg)
    else:
        _importances(Model.load(model_file), as_json)


def _importances(model: Model, as_json: bool) -> None:
    by_kind = {kind: model.importance(kind) for kind in IMPORTANCES}
    table = {name: [of[name] for of in by_kind.values()] for name in by_kind[IMPORTANCES[0]]}
    if as_json:
        for name, values in table.items():
            print_json(feature=name, **dict(zip(IMPORTANCES, values, strict=True)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    booster = model.booster
    print(
        f"{booster.objective}, {len(booster.trees)} trees; "
        f"{len(table)} of {len(booster.features)} features split"
    )
    shown = Table("feature", *IMPORTANCES, box=None, pad_edge=False)
    shown.columns[0].overflow = "fold"
    for column in shown.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for name, values in table.items():
        shown.add_row(Text(printable(name)), *(f"{value:.6g}" for value in values))
    Console().print(shown)


def _tree(model_file: Path, tree: int, svg: Path | None) -> None:
    if svg is None:
        write(Model.load(model_file).tree_text(tree), None)
        return
    check_writable(svg, model_file)
    write_atomically(svg, Model.load(model_file).tree_svg(tree).encode())


def _shap(model_file: Path, data: Path, out: Path | None) -> None:
    if out is not None:
        check_writable(out, model_file, data)
    model = Model.load(model_file)
    table = read_table(data)
    base_margin = to_base_margin(table, model.terms, str(data))
    values = model.booster.contributions(to_features(table, model.terms.columns, str(data)), base_margin)
    notice_undeclared(table, model.terms.columns)
    classes = [[name] for name in model.classes] if values.ndim == 3 else [[]]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*([CLASS] if values.ndim == 3 else []), *model.booster.features, BIAS])
    for row in values:
        for name, of_class in zip(classes, np.atleast_2d(row).tolist(), strict=True):
            lines.writerow([*name, *of_class])
    write(text.getvalue(), out)
