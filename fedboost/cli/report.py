"""`fedboost report`: a model as one HTML page.

Promises: the page appears whole or not at all; nothing is sent.
Refuses: a file that exists, without --force (ConfigError, exit code 2).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Force, MinCount, ModelFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Reading

EPILOG = (
    "Example: fedboost report model.json --out report.html\n\n"
    "Example: fedboost report model.json --data new.csv --keys keys/marie --out report.html"
)


@reads_a_table
def report(
    model: ModelFile,
    read: "Reading",
    out: Annotated[Path, typer.Option(help="File for the page, such as report.html.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help="Rows of your own, with labels, for partial dependence, metrics and curves.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of anybody's keys, to check the signatures by.", show_default=False),
    ] = None,
    min_count: MinCount = None,
    force: Force = False,
) -> None:
    """Write the report of a model, one HTML page: who agreed to what, learning curves, importance, the first
    trees, and on rows of your own its quality."""
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.cli.output import write
    from fedboost.runtime.data.locations import local_files, shown
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.model_file import Model
    from fedboost.runtime.report import rows_facts, signature_facts, written

    if (read.query or read.query_file) and data is None:
        raise ConfigError("--query is for the rows of --data: name the database there")
    if min_count is not None and data is None:
        raise ConfigError("--min-count is for the rows of --data; give both, or neither")
    source = None if data is None else read.source(data)
    check_writable(out, model, *(() if source is None else local_files(source)), force=force)
    trained, rows = Model.load(model), None
    signatures = None if keys is None else signature_facts(trained, keys)
    if source is not None:
        table = read_table(source, None, read.options)
        rows = rows_facts(trained, table, min_count, shown(source))
        notice_undeclared(table, trained.terms.columns)
    write(written(trained, rows, signatures), out)
