"""`fedboost health`: a question to an aggregator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Aggregator, InsecureLoopback

if TYPE_CHECKING:
    from fedboost.runtime.net.keys import Bundle

EPILOG = "Example: fedboost health --aggregator fed.example.org:7070 --keys keys/marie"


def health(
    aggregator: Aggregator,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of a party's or an analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0)] = 5,
) -> None:
    """Ask an aggregator whether it is up: prints `serving`, or exits with code 2."""
    import asyncio

    from fedboost.runtime.aggregator import admission as probe
    from fedboost.runtime.config import check_address

    check_address(aggregator, "--aggregator")
    bundle = choose_member_keys(keys, aggregator, insecure_loopback)
    asyncio.run(probe.ask(aggregator, bundle, wait))
    print("serving")


def choose_member_keys(keys: Path | None, aggregator: str, insecure_loopback: bool) -> "Bundle | None":
    """The bundle of a party or of an analyst: anyone who may dial may ask."""
    from fedboost.privacy.identity import role_of
    from fedboost.runtime.config import choose_keys
    from fedboost.runtime.net.keys import CERTIFICATE, check_folder, read_certificates

    role = None
    if keys is not None:
        check_folder(keys, "the bundle of a party or an analyst, which `fedboost keys` makes")
        role = role_of(read_certificates(keys / CERTIFICATE)[0])
    return choose_keys(keys, "party" if role == "party" else "analyst", aggregator, insecure_loopback)
