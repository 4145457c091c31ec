"""Options that several commands share. Nothing that reads rows or trains is imported here: it takes long."""

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
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
Data = Annotated[
    str,
    typer.Argument(
        help="A table: a file (.csv, .parquet, .xlsx, ...), a folder or glob of Parquet files, an address "
        "(s3://, https://), or a database (postgresql://, sqlite:///, duckdb:///) with --query."
    ),
]
TermsFile = Annotated[Path, typer.Argument(help="The terms, a TOML file.")]
ModelFile = Annotated[Path, typer.Argument(help="A model file.")]
SiteFile = Annotated[Path, typer.Option(help="This site's file, TOML.")]
Tables = Annotated[
    list[str],
    typer.Option(
        help="The table whose rows, or columns, the sites share out; or PARTY=TABLE for each of them."
    ),
]
Site = Annotated[str | None, typer.Option("--site", help="Column that names the site of each row.")]
Aggregator = Annotated[str, typer.Option(help="HOST:PORT of the aggregator.")]
Keys = Annotated[Path | None, typer.Option(help="Folder of the analyst's keys.")]
InsecureLoopback = Annotated[
    bool, typer.Option("--insecure-loopback", help="No keys, no encryption: on this machine alone.")
]
SomeAggregator = Annotated[str | None, typer.Option(help="HOST:PORT of the aggregator.")]
Label = Annotated[str | None, typer.Option(help="The column to predict.")]
Exclude = Annotated[list[str] | None, typer.Option(help="A column to leave out (may be repeated).")]
SaveTerms = Annotated[Path | None, typer.Option(help="Save the terms of the session, for sites to approve.")]
MinCount = Annotated[
    int | None, typer.Option(help="Fewest rows of a count, in place of the terms' own.", min=1)
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)]
PageFile = Annotated[
    Path | None,
    typer.Option("--report", help="Also write a page for people to this file, such as report.html."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Once = Annotated[bool, typer.Option("--once", help="Exit after one session.")]
LogFormat = Annotated[
    str, typer.Option(metavar="text|json", help="Lines for people, or a JSON object a line.")
]
LogLevel = Annotated[
    str, typer.Option(metavar="debug|info|warning|error", help="Log nothing less serious than this.")
]
MIN_ROWS_PER_LEVEL = 10
"""A level of fewer rows is not written for others unless its owner says otherwise: its name may point at a
person, and so may a split on it. As many rows as sites want in a leaf."""
MinRowsPerLevel = Annotated[
    int, typer.Option(help="Rows that a level has at least; others are left out.", min=1)
]
_TABLES: dict[str, Any] = {"rich_help_panel": "How the table is read"}


def gathers(name: str, make: Callable[..., Any]) -> Decorator:
    """A decorator that adds the parameters of `make` to a command as options. The command receives what
    `make` returns, as `name`."""
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
        typer.Option(help="What stands between columns of a text (a comma; in a .tsv a tab).", **_TABLES),
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="What stands in numbers of a text: . or ,", **_TABLES)
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of a text, such as latin-1 or utf-16 (utf-8).", **_TABLES)
    ] = None,
    na: Annotated[
        list[str] | None, typer.Option(help="A word that means a missing value (may be repeated).", **_TABLES)
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT ...: the rows of a database.", **_TABLES)] = None,
    query_file: Annotated[Path | None, typer.Option(help="A file that has the query.", **_TABLES)] = None,
    sheet: Annotated[str | None, typer.Option(help="Of a workbook (the first one).", **_TABLES)] = None,
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
        raise ConfigError(f"--{fault['loc'][0]}: {fault['ctx']['error']}") from None
    return Reading(options, query, query_file)


reads_a_table = gathers("read", _reading)
"""Give a command the options by which a table is read; it gets them as `read`."""


def is_agreed(question: str, way_out: str) -> bool:
    """True if the person at the terminal says yes. ConfigError, with the way out, if there is no terminal."""
    try:
        return is_yes(ask_terminal(question))
    except Refused:
        raise ConfigError(f"standard input is not a terminal, so nobody can answer; {way_out}") from None


def check_page(page: Path | None, *inputs: Path, force: bool, outputs: tuple[Path, ...] = ()) -> None:
    """Raise ConfigError now if a page could not be written later, or would replace an input or an output."""
    if page is None:
        return
    if os.path.realpath(page) in map(os.path.realpath, outputs):
        raise ConfigError(
            f"--report: {page} is another output of this very command; give the page another name"
        )
    check_writable(page, *inputs, force=force)
