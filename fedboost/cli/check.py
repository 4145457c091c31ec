"""`fedboost check`: would the sites take part under some terms?"""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Aggregator, InsecureLoopback, Json, TermsFile

EPILOG = "Example: fedboost check terms.toml --aggregator fed.example.org:7070 --keys keys/marie"


def check(
    terms: TermsFile,
    aggregator: Aggregator,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of the analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)] = 60,
    json: Json = False,
) -> None:
    """Ask all sites at once whether they would take part under some terms, without a session; each says all
    its reasons. Exit code 1 unless all would."""
    from fedboost.cli.check_sites import check_sites

    check_sites(terms, aggregator, keys, insecure_loopback, wait, json)
