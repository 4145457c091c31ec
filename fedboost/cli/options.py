"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
Data = Annotated[
    str,
    typer.Argument(
        help="A table: .csv, .tsv, .parquet, .libsvm, or a database's URI with --query.", show_default=False
    ),
]
Query = Annotated[
    str | None,
    typer.Option(
        help="The rows of a database: SELECT ..., with DATA postgresql://..., sqlite:///FILE or "
        "duckdb:///FILE.",
        show_default=False,
    ),
]
QueryFile = Annotated[Path | None, typer.Option(help="A file that has the query.", show_default=False)]
TermsFile = Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)]
ModelFile = Annotated[Path, typer.Argument(help="A model file.", show_default=False)]
SiteFile = Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)]
Site = Annotated[
    str | None, typer.Option("--site", help="Column that names the site of each row.", show_default=False)
]
Aggregator = Annotated[str, typer.Option(help="HOST:PORT of the aggregator.", show_default=False)]
InsecureLoopback = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="No keys, no encryption: on this machine alone."),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for an aggregator that is away.", min=0)]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Once = Annotated[bool, typer.Option("--once", help="Exit after one session.")]
LogFormat = Annotated[
    str, typer.Option(metavar="text|json", help="Lines for people, or a JSON object a line.")
]
LogLevel = Annotated[
    str, typer.Option(metavar="debug|info|warning|error", help="Log nothing less serious than this.")
]
