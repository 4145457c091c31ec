"""`fedboost explain`: what a model goes by, one of its trees, what each feature adds for each row, and what
predictions are by the values of one feature."""

import csv
import io
from pathlib import Path

import numpy as np

from fedboost.cli.show import notice_undeclared, print_json, printable
from fedboost.cli.tables import write
from fedboost.errors import ConfigError
from fedboost.gbdt.booster import IMPORTANCES
from fedboost.runtime.data.features import to_base_margin, to_features
from fedboost.runtime.data.table import read_table
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.model_file import Model

_ONE_OF = ("--tree", "--shap", "--partial-dependence")
BIAS = "bias"
CLASS = "class"
PREDICTION = "prediction"


def run_explain(
    model_file: Path,
    tree: int | None,
    svg: Path | None,
    shap: Path | None,
    feature: str | None,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """`fedboost explain`."""
    given = [name for name, one in zip(_ONE_OF, (tree, shap, feature), strict=True) if one is not None]
    if len(given) > 1:
        raise ConfigError(f"give {' or '.join(given)}, not both")
    if (feature is None) != (data is None):
        raise ConfigError("--partial-dependence FEATURE and --data DATA go together: rows to predict for")
    if svg is not None and tree is None:
        raise ConfigError("--svg draws one tree; say which, such as --tree 0")
    if out is not None and shap is None and feature is None:
        raise ConfigError(
            "--out is for the CSV of --shap or --partial-dependence; a picture goes to the file of --svg"
        )
    if as_json and given:
        raise ConfigError(f"--json prints the importances; leave it out with {given[0]}")
    if shap is not None:
        _shap(model_file, shap, out)
    elif feature is not None and data is not None:
        _partial_dependence(model_file, feature, data, out)
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
    noise = model.terms.noise
    if noise is not None and noise.method != "hist":
        print(
            "trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts; --shap and --partial-dependence do"
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


def _partial_dependence(model_file: Path, feature: str, data: Path, out: Path | None) -> None:
    if out is not None:
        check_writable(out, model_file, data)
    model = Model.load(model_file)
    table = read_table(data)
    values, means = model.partial_dependence(table, feature)
    notice_undeclared(table, model.terms.columns)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([feature, *(model.classes if means.ndim == 2 else [PREDICTION])])
    for value, mean in zip(values, means, strict=True):
        lines.writerow([value, *np.atleast_1d(mean).tolist()])
    write(text.getvalue(), out)
