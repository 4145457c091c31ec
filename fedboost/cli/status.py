"""`fedboost status`: who is connected to an aggregator, and which sessions there are."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Aggregator, InsecureLoopback, Json

EPILOG = "Example: fedboost status --aggregator fed.example.org:7070 --keys keys/marie"


def status(
    aggregator: Aggregator,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of a party's or an analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0)] = 5,
    json: Json = False,
) -> None:
    """Say who is connected to an aggregator, which sessions run or wait, and for whom. An analyst sees all of
    them, a party those that name it."""
    from fedboost.cli.health import choose_member_keys
    from fedboost.cli.output import show
    from fedboost.people import as_json
    from fedboost.people import status as text
    from fedboost.runtime.analyst import Connection
    from fedboost.runtime.config import check_address

    check_address(aggregator, "--aggregator")
    bundle = choose_member_keys(keys, aggregator, insecure_loopback)
    facts = Connection(aggregator, bundle).status(wait)
    show(json, [as_json.status(facts)], text.status(facts))
