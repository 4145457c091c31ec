"""`fedboost predict`: predictions as a CSV or Parquet file."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Data, Force, InsecureLoopback, ModelFile, Wait, reads_a_table
from fedboost.cli.predict_jointly import MinCommonRows, Party, predicted_jointly
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Reading

EPILOG = (
    "Example: fedboost predict model.json new.csv --out predictions.csv\n\n"
    "Example: fedboost predict model.json new.parquet --keep patient --out predictions.parquet\n\n"
    "Example: fedboost predict part.json new.csv --party bank.toml --keep customer --out predictions.csv"
)


@reads_a_table
def predict(
    model: ModelFile,
    data: Data,
    read: "Reading",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column to write beside the prediction (may be repeated).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions: .csv or .parquet.", show_default="standard output"),
    ] = None,
    party: Party = None,
    min_common_rows: MinCommonRows = None,
    wait: Wait = 60,
    insecure_loopback: InsecureLoopback = False,
    force: Force = False,
) -> None:
    """Predict each row of a table of any size: a column `prediction`. With classes it is the most probable
    one, and a column named after each class has its probability."""
    from fedboost.cli.inputs import notice_categories
    from fedboost.cli.output import write
    from fedboost.cli.progress import rows_done
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.data.table import in_parts
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.model import Model
    from fedboost.runtime.predictions import Predictor, check_form, csv_writer, writing

    source = read.source(data)
    if out is not None:
        check_writable(out, model, *local_files(source), force=force)
        check_form(out)
    table, kept = in_parts(source, read.options), keep or []
    predictor = None
    if party is not None:
        options = min_common_rows, wait, insecure_loopback
        parts = predicted_jointly(model, party, source, read, table, kept, *options)
    elif min_common_rows is not None:
        raise ConfigError("--min-common-rows is for predictions with other parties: give --party")
    else:
        predictor = Predictor(Model.load(model), table, kept)
        parts = predictor.parts()
    with ExitStack() as stack:
        seen = out is None and sys.stdout.isatty()  # the rows themselves are progress
        done = (lambda rows: None) if seen else stack.enter_context(rows_done(table.rows))
        write_rows = stack.enter_context(writing(out)) if out else csv_writer(lambda text: write(text, None))
        for part in parts:
            write_rows(part)
            done(len(next(iter(part.values()))))
    if predictor is not None:
        notice_categories((name, *strange) for name, strange in predictor.strange.items())
