"""`fedboost aggregator`, `fedboost party` and `fedboost keyholder`: run until told to stop (SIGTERM or
Ctrl-C). `fedboost health`: ask whether the first is up."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from fedboost.cli.show import print_json
from fedboost.errors import ConfigError, SessionFailed
from fedboost.runtime.config import check_address, choose_keys, read_aggregator, read_party
from fedboost.runtime.data.allocator import keep_freed_memory, share_freed_memory
from fedboost.runtime.telemetry import logger


def run_aggregator(config_file: Path, insecure_loopback: bool, as_json: bool) -> None:
    """`fedboost aggregator`."""
    config = read_aggregator(config_file)
    bundle = choose_keys(config.keys, "aggregator", config.listen, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(config, logger("aggregator"), bundle)
        await server.start()
        if as_json:
            print_json(event="listening", address=server.address)
        else:
            how = "without encryption" if bundle is None else "for parties and analysts with keys"
            print(f"aggregator listening on {server.address}, {how}", flush=True)
        try:
            await server.serve()
        finally:
            await server.stop()

    share_freed_memory()
    _run_until_stopped(serve())


def run_party(
    config_file: Path, wait: float, once: bool, insecure_loopback: bool, holds_rows: bool = True
) -> None:
    """`fedboost party`; `fedboost keyholder`, which holds no rows."""
    config = read_party(config_file, holds_rows)
    bundle = choose_keys(config.keys, "party", config.aggregator, insecure_loopback)
    if bundle is not None and bundle.signer.name != config.party:
        raise ConfigError(
            f"{config_file}: party is {config.party!r}, and {config.keys} is the bundle of "
            f"{bundle.signer.name!r}"
        )
    from fedboost.runtime.site.node import PartyNode

    node = PartyNode(config, logger("party"), bundle)
    _run_until_stopped(node.run(wait, once))
    if once and node.ended and node.ended[-1]:
        raise SessionFailed(f"the session ended without a model: {node.ended[-1]}")


def run_health(address: str, keys: Path | None, insecure_loopback: bool, wait: float) -> None:
    """`fedboost health`. A bundle of a party serves as well as an analyst's: whoever may dial may ask."""
    from fedboost.privacy.identity.certificates import role_of
    from fedboost.runtime.net import health
    from fedboost.runtime.net.keys import CERTIFICATE, read_certificates

    check_address(address, "--aggregator")
    role = role_of(read_certificates(keys / CERTIFICATE)[0]) if keys and keys.is_dir() else None
    bundle = choose_keys(keys, "party" if role == "party" else "analyst", address, insecure_loopback)
    asyncio.run(health.ask(address, bundle, wait))
    print("serving")


def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or until SIGTERM or SIGINT, which cancel it."""
    keep_freed_memory()

    async def supervised() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(supervised())
