"""`fedboost keys token`: a token for a console or a site's page.

Promises: the token is printed once, on standard output; the file has its hash alone.
Refuses: a name that has a token already, a file that is none (ConfigError).
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

EPILOG = (
    "Example: fedboost keys token marie --file tokens.toml\n\n"
    "Example: fedboost keys token marie --role analyst --days 30\n\n"
    "Example: fedboost keys token jo --role officer"
)

FILE = Path("tokens.toml")


def token(
    name: Annotated[
        str,
        typer.Argument(help="Whose it is; an analyst's name as in the certificate.", show_default=False),
    ],
    role: Annotated[
        Literal["viewer", "analyst", "officer"],
        typer.Option(
            help="viewer: read; analyst: read an aggregator's console, and submit signed terms; officer: "
            "read a site's page, and approve or refuse terms."
        ),
    ] = "viewer",
    file: Annotated[Path, typer.Option(help="The file that `tokens` in [console] names.")] = FILE,
    days: Annotated[int, typer.Option(help="Days that it counts.", min=1, max=3650)] = 90,
) -> None:
    """Make a token for the console of an aggregator, or for the page of a site."""
    from fedboost.cli.output import notice
    from fedboost.runtime.web.logins import add_token

    made, ends = add_token(file, name, role, days)
    print(made)
    notice(f"{file}: has an entry for the {role} {name!r}, until {ends}; delete it to take the token away")
    notice("the token is printed this once, and is kept nowhere: hand it over in a safe way")
