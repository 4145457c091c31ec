"""Options shared by several commands. Modules that read tables or train are slow to import, so this module
does not import them."""

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
SiteFile = Annotated[Path, typer.Option(help="This site's configuration file (TOML).")]
Tables = Annotated[
    list[str],
    typer.Option(
        help="Table whose rows or columns are split among sites, or PARTY=TABLE for each party (may be "
        "repeated)."
    ),
]
Site = Annotated[str | None, typer.Option("--site", help="Column that contains the site of each row.")]
Aggregator = Annotated[str, typer.Option(help="Aggregator's address: HOST:PORT, or wss:// or grpcs:// URL.")]
Keys = Annotated[Path | None, typer.Option(help="Folder with the analyst's keys.")]
InsecureLoopback = Annotated[
    bool, typer.Option("--insecure-loopback", help="Run without keys or encryption, on this machine only.")
]
SomeAggregator = Annotated[
    str | None, typer.Option(help="Aggregator's address: HOST:PORT, or wss:// or grpcs:// URL.")
]
Label = Annotated[str | None, typer.Option(help="Column to predict.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Column to leave out (may be repeated).")]
SaveTerms = Annotated[
    Path | None, typer.Option(help="Save the terms to this file, so that sites can approve them.")
]
MinCount = Annotated[
    int | None, typer.Option(help="Hide counts of fewer rows than this (overrides the terms).", min=1)
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)]
PageFile = Annotated[
    Path | None, typer.Option("--report", help="Also write the result as an HTML page, e.g. report.html.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Once = Annotated[bool, typer.Option("--once", help="Exit after one session.")]
LogFormat = Annotated[
    str, typer.Option(metavar="text|json", help="Log format: text, or one JSON object per line.")
]
LogLevel = Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Minimum severity to log.")]
MIN_ROWS_PER_LEVEL = 10
"""By default, drafted terms and offers of columns leave out levels with fewer rows than this. A rare level's
name, or a split on the level, can identify a person. The default policy requires the same number of rows per
leaf."""
MinRowsPerLevel = Annotated[int, typer.Option(help="Leave out levels with fewer rows than this.", min=1)]
_TABLES: dict[str, Any] = {"rich_help_panel": "Table format"}


def gathers(name: str, make: Callable[..., Any]) -> Decorator:
    """Return a decorator that turns the parameters of `make` into options of a command. The command receives
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
        str | None,
        typer.Option(help="Column separator of a text file (default: comma; tab in .tsv).", **_TABLES),
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal separator of a text file: . or , (default: .).", **_TABLES)
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Text encoding, e.g. latin-1 or utf-16 (default: utf-8).", **_TABLES)
    ] = None,
    na: Annotated[
        list[str] | None, typer.Option(help="String to read as a missing value (may be repeated).", **_TABLES)
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="SELECT statement that reads the table from a database.", **_TABLES)
    ] = None,
    query_file: Annotated[
        Path | None, typer.Option(help="File that contains the SELECT statement.", **_TABLES)
    ] = None,
    sheet: Annotated[
        str | None, typer.Option(help="Sheet of a workbook (default: the first one).", **_TABLES)
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
"""Decorator that adds the options for reading a table to a command. The command receives them as `read`."""


def is_agreed(question: str, way_out: str) -> bool:
    """Ask a question at the terminal and return whether the answer is yes. Raises ConfigError if standard
    input is not a terminal; its message ends with `way_out`, which says what to do instead."""
    try:
        return is_yes(ask_terminal(question))
    except Refused:
        raise ConfigError(
            "terminal-missing",
            f"standard input is not a terminal, so the question cannot be answered; {way_out}",
        ) from None


def check_page(page: Path | None, *inputs: Path, force: bool, outputs: tuple[Path, ...] = ()) -> None:
    """Check that a report page can be written later. Raises ConfigError if it is not writable, or is also an
    input or another output of the command."""
    if page is None:
        return
    if os.path.realpath(page) in map(os.path.realpath, outputs):
        raise ConfigError(
            "output-twice",
            f"--report: {page} is already another output of this command; choose another name for the page",
        )
    check_writable(page, *inputs, force=force)
