"""`fedboost report`: a model, or the result of another command, as one HTML page.

Promises: the page appears whole or not at all; nothing is sent.
Refuses: a file that exists, without --force; a file that is neither (ConfigError, exit code 2).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Force, MinCount, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Database, Reading
    from fedboost.runtime.model import Model

EPILOG = (
    "Example: fedboost report model.json --out report.html\n\n"
    "Example: fedboost report model.json --data new.csv --keys keys/marie --out report.html\n\n"
    "Example: fedboost report compared.json --out compared.html    (of fedboost compare ... --json)"
)


@reads_a_table
def report(
    file: Annotated[
        Path,
        typer.Argument(
            help="A model file, or what compare, describe, evaluate or drift --json wrote.",
            show_default=False,
        ),
    ],
    read: "Reading",
    out: Annotated[Path, typer.Option(help="File for the page, such as report.html.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help="Rows of your own, with labels, for partial dependence, metrics and curves of a model.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of anybody's keys, to check a model's signatures by.", show_default=False),
    ] = None,
    min_count: MinCount = None,
    force: Force = False,
) -> None:
    """Write one HTML page. Of a model: who agreed to what, learning curves, importance, the first trees, and
    on rows of your own its quality. Of the JSON that compare, describe, evaluate or drift wrote: that result
    with its charts."""
    from fedboost.cli.output import write
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.model import Model
    from fedboost.runtime.result_files import result_in, result_of

    if (read.query or read.query_file) and data is None:
        raise ConfigError("--query is for the rows of --data: name the database there")
    if min_count is not None and data is None:
        raise ConfigError("--min-count is for the rows of --data; give both, or neither")
    source = None if data is None else read.source(data)
    check_writable(out, file, *(() if source is None else local_files(source)), force=force)
    known: tuple[str | None, str] | None = result_of(file)
    if known is None:
        trained = Model.load(file)
        known = result_in(trained, file) or (None, _of_model(trained, source, read, keys, min_count))
    command, page = known
    if command is not None and (data is not None or keys is not None):
        raise ConfigError(f"--data and --keys are for models; {file} is the result of fedboost {command}")
    write(page, out)


def _of_model(
    trained: "Model",
    source: "str | Database | None",
    read: "Reading",
    keys: Path | None,
    min_count: int | None,
) -> str:
    """The page of a model."""
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.report import rows_facts, signature_facts
    from fedboost.runtime.signed_model import written

    rows = None
    signatures = None if keys is None else signature_facts(trained, keys)
    if source is not None:
        table = read_table(source, None, read.options)
        rows = rows_facts(trained, table, min_count, shown(source))
        notice_undeclared(table, trained.terms.columns)
    return written(trained, rows, signatures)
