"""`fedboost health`: a question to an aggregator."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Aggregator, InsecureLoopback

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

    from fedboost.privacy.identity.certificates import role_of
    from fedboost.runtime.config import check_address, choose_keys
    from fedboost.runtime.net import health as probe
    from fedboost.runtime.net.keys import CERTIFICATE, read_certificates

    check_address(aggregator, "--aggregator")
    role = role_of(read_certificates(keys / CERTIFICATE)[0]) if keys and keys.is_dir() else None
    # A bundle of a party serves as well as an analyst's: anyone who may dial may ask.
    bundle = choose_keys(keys, "party" if role == "party" else "analyst", aggregator, insecure_loopback)
    asyncio.run(probe.ask(aggregator, bundle, wait))
    print("serving")
