"""Options that several commands share. Imports nothing that reads rows or trains, since that is slow."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from fedboost.errors import ConfigError, Refused
from fedboost.runtime.data.database import Reading, ReadOptions
from fedboost.runtime.files import check_writable
from fedboost.runtime.telemetry import ask_terminal, is_yes

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one object per line.")]
Data = Annotated[
    str,
    typer.Argument(
        help="Table: a file (.csv, .parquet, .xlsx, ...), a folder or glob of Parquet files, a URL (s3://, "
        "https://), or a database (postgresql://, sqlite:///, duckdb:///) with --query."
    ),
]
TermsFile = Annotated[Path, typer.Argument(help="Terms file (TOML).")]
ModelFile = Annotated[Path, typer.Argument(help="Model file.")]
SiteFile = Annotated[Path, typer.Option(help="This site's file (TOML).")]
Tables = Annotated[
    list[str],
    typer.Option(help="Table whose rows or columns are split among sites, or PARTY=TABLE for each party."),
]
Site = Annotated[str | None, typer.Option("--site", help="Column with the site of each row.")]
Aggregator = Annotated[str, typer.Option(help="HOST:PORT of the aggregator.")]
Keys = Annotated[Path | None, typer.Option(help="Folder of the analyst's keys.")]
InsecureLoopback = Annotated[
    bool, typer.Option("--insecure-loopback", help="Run without keys or encryption, on this machine only.")
]
SomeAggregator = Annotated[str | None, typer.Option(help="HOST:PORT of the aggregator.")]
Label = Annotated[str | None, typer.Option(help="Column to predict.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Column to leave out (may be repeated).")]
SaveTerms = Annotated[Path | None, typer.Option(help="Save the terms to this file, for sites to approve.")]
MinCount = Annotated[int | None, typer.Option(help="Fewest rows of a count, overriding the terms.", min=1)]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)]
PageFile = Annotated[Path | None, typer.Option("--report", help="Also write an HTML page, e.g. report.html.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Once = Annotated[bool, typer.Option("--once", help="Exit after one session.")]
LogFormat = Annotated[str, typer.Option(metavar="text|json", help="Log text, or one JSON object per line.")]
LogLevel = Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Lowest level to log.")]
MIN_ROWS_PER_LEVEL = 10
"""Levels with fewer rows are not written for others, unless their owner sets another minimum: the name of a
rare level may identify a person, and so may a split on it. By default sites want as many rows in a leaf."""
MinRowsPerLevel = Annotated[int, typer.Option(help="Fewest rows of a level; rarer ones are left out.", min=1)]
_TABLES: dict[str, Any] = {"rich_help_panel": "Table format"}


def gathers(name: str, make: Callable[..., Any]) -> Decorator:
    """Return a decorator that adds the parameters of `make` to a command as options, and passes the command
    the result of `make` as its argument `name`."""
    options = inspect.signature(make).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**arguments: Any) -> None:
            made = make(**{option: arguments.pop(option) for option in options})
            command(**arguments, **{name: made})

        own = inspect.signature(command)
        parameters = [parameter for parameter in own.parameters.values() if parameter.name != name]
        parameters += [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()]
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _reading(
    separator: Annotated[
        str | None, typer.Option(help="Column separator of a text (default: comma; in .tsv, tab).", **_TABLES)
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal separator of a text file: . or , (default: .).", **_TABLES)
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Text encoding, e.g. latin-1 or utf-16 (default: utf-8).", **_TABLES)
    ] = None,
    na: Annotated[
        list[str] | None, typer.Option(help="Word that means a missing value (may be repeated).", **_TABLES)
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT statement for a database.", **_TABLES)] = None,
    query_file: Annotated[Path | None, typer.Option(help="File with the query.", **_TABLES)] = None,
    sheet: Annotated[
        str | None, typer.Option(help="Sheet of a workbook (default: the first).", **_TABLES)
    ] = None,
) -> Reading:
    values: dict[str, Any] = {
        "separator": separator,
        "decimal": decimal,
        "encoding": encoding,
        "na": na,
        "sheet": sheet,
    }
    try:
        options = ReadOptions(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError("option-invalid", f"--{fault['loc'][0]}: {fault['ctx']['error']}") from None
    return Reading(options, query, query_file)


reads_a_table = gathers("read", _reading)
"""Add the options for reading a table to a command, which receives them as `read`."""


def is_agreed(question: str, way_out: str) -> bool:
    """Return whether the person at the terminal answers yes. ConfigError, with the way out, without one."""
    try:
        return is_yes(ask_terminal(question))
    except Refused:
        raise ConfigError(
            "terminal-missing", f"standard input is not a terminal, so no one can answer; {way_out}"
        ) from None


def check_page(page: Path | None, *inputs: Path, force: bool, outputs: tuple[Path, ...] = ()) -> None:
    """Raise ConfigError if a page could not be written later, or would replace an input or an output."""
    if page is None:
        return
    if os.path.realpath(page) in map(os.path.realpath, outputs):
        raise ConfigError(
            "output-twice", f"--report: {page} is another output of this command; give the page another name"
        )
    check_writable(page, *inputs, force=force)
