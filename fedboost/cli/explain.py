"""`fedboost explain`: what a model goes by, one of its trees, what each feature adds for each row, and what
predictions are by the values of one feature."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Force, Json, ModelFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Database, Reading

EPILOG = (
    "Example: fedboost explain model.json\n\n"
    "Example: fedboost explain model.json --tree 0 --svg tree.svg\n\n"
    "Example: fedboost explain model.json --shap new.csv --out shap.csv\n\n"
    "Example: fedboost explain model.json --partial-dependence age --data new.csv"
)


@reads_a_table
def explain(
    model: ModelFile,
    read: "Reading",
    tree: Annotated[
        int | None, typer.Option(help="Print this tree, counted from 0.", min=0, show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the tree to this file instead.", show_default=False)
    ] = None,
    shap: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Say what each feature adds to the margin of each row of this table, as a CSV.",
            show_default=False,
        ),
    ] = None,
    partial_dependence: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURE",
            help="The mean prediction over the rows of --data by the values of this feature, as a CSV.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows for --partial-dependence.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the CSV of the two above.", show_default="standard output"),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Say which features a model goes by (gain, cover, weight), print or draw a tree, explain rows, or show
    how predictions depend on a feature."""
    asked = {"--tree": tree, "--shap": shap, "--partial-dependence": partial_dependence}
    options = [option for option, value in asked.items() if value is not None]
    if len(options) > 1:
        raise ConfigError(f"give {' or '.join(options)}, not both")
    _check_together(tree, svg, shap, partial_dependence, data, out)
    if json and options:
        raise ConfigError(f"--json prints the importances; leave it out with {options[0]}")
    rows = shap or data
    if (read.query or read.query_file) and rows is None:
        raise ConfigError("--query is for the rows of --shap or --data: name the database there")
    source = None if rows is None else read.source(rows)
    _check_outputs([svg, out], model, source, force)
    if source is not None and partial_dependence is not None:
        _dependence(model, partial_dependence, source, read, out)
    elif source is not None:
        _contributions(model, source, read, out)
    elif tree is not None:
        _tree(model, tree, svg)
    else:
        _importances(model, json)


def _check_together(
    tree: int | None,
    svg: Path | None,
    shap: str | None,
    partial_dependence: str | None,
    data: str | None,
    out: Path | None,
) -> None:
    """ConfigError for a file that nothing is read from or written to."""
    if (partial_dependence is None) != (data is None):
        raise ConfigError("--partial-dependence FEATURE and --data DATA go together: rows to predict for")
    if svg is not None and tree is None:
        raise ConfigError("--svg draws one tree; say which, such as --tree 0")
    if out is not None and shap is None and partial_dependence is None:
        raise ConfigError(
            "--out is for the CSV of --shap or --partial-dependence; a picture goes to the file of --svg"
        )


def _check_outputs(
    outputs: list[Path | None], model: Path, data: "str | Database | None", force: bool
) -> None:
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.files import check_writable

    for path in filter(None, outputs):
        check_writable(path, model, *(local_files(data) if data else ()), force=force)


def _importances(model: Path, json: bool) -> None:
    from fedboost.cli.output import show
    from fedboost.gbdt.booster import IMPORTANCES
    from fedboost.people import as_json
    from fedboost.people.training import importances
    from fedboost.runtime.model import Model

    trained = Model.load(model)
    by_kind = {kind: trained.importance(kind) for kind in IMPORTANCES}
    by_feature = {name: [values[name] for values in by_kind.values()] for name in by_kind[IMPORTANCES[0]]}
    text = importances(trained.booster, trained.terms, IMPORTANCES, by_feature)
    show(json, as_json.importances(IMPORTANCES, by_feature), text)


def _tree(model: Path, tree: int, svg: Path | None) -> None:
    from fedboost.cli.output import write
    from fedboost.runtime.model import Model

    if svg is None:
        write(Model.load(model).tree_text(tree), None)
    else:
        write(Model.load(model).tree_svg(tree), svg)


def _contributions(model: Path, data: "str | Database", read: "Reading", out: Path | None) -> None:
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.cli.output import write
    from fedboost.people import as_json
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.data.shard import to_base_margin, to_features
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.model import Model

    trained = Model.load(model)
    table, columns = read_table(data, None, read.options), trained.terms.columns
    base_margin = to_base_margin(table, trained.terms, shown(data))
    features = to_features(table, columns, shown(data), trained.booster.target_means)
    values = trained.booster.contributions(features, base_margin)
    notice_undeclared(table, columns)
    classes = trained.classes if values.ndim == 3 else ()
    write(as_json.contributions(values, trained.booster.features, classes), out)


def _dependence(model: Path, feature: str, data: "str | Database", read: "Reading", out: Path | None) -> None:
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.cli.output import write
    from fedboost.people import as_json
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.model import Model

    trained, table = Model.load(model), read_table(data, None, read.options)
    grid, means = trained.partial_dependence(table, feature)
    notice_undeclared(table, trained.terms.columns)
    write(as_json.dependence(feature, grid, means, trained.classes if means.ndim == 2 else ()), out)
