"""`fedboost predict`: predictions as a CSV."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Data, Force, ModelFile, Query, QueryFile

EPILOG = "Example: fedboost predict model.json new.csv --out predictions.csv"


def predict(
    model: ModelFile,
    data: Data,
    query: Query = None,
    query_file: QueryFile = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions.", show_default="standard output")
    ] = None,
    force: Force = False,
) -> None:
    """Predict each row of a table: a CSV with one column, `prediction`. With classes it is the most probable
    one, and a column named after each class has its probability."""
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.cli.output import write
    from fedboost.people import as_csv
    from fedboost.runtime.data.database import source_of
    from fedboost.runtime.data.features import to_base_margin, to_features
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.model_file import Model

    source = source_of(data, query, query_file)
    if out is not None:
        check_writable(out, model, source, force=force)
    trained = Model.load(model)
    table, columns = read_table(source), trained.terms.columns
    base_margin = to_base_margin(table, trained.terms, str(source))
    predictions = trained.booster.predict(to_features(table, columns, str(source)), base_margin)
    notice_undeclared(table, columns)
    write(as_csv.predictions(predictions, trained.classes if predictions.ndim == 2 else ()), out)
