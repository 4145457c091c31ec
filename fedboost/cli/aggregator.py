"""`fedboost aggregator`: the process that parties and analysts dial."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import InsecureLoopback, Json

EPILOG = "Example: fedboost aggregator --config aggregator.toml"


def aggregator(
    config: Annotated[Path, typer.Option(help="The aggregator's file, TOML.", show_default=False)],
    insecure_loopback: InsecureLoopback = False,
    json: Json = False,
) -> None:
    """Run the aggregator: parties and analysts dial it."""
    from fedboost.cli.output import print_json
    from fedboost.cli.serving import run_until_stopped
    from fedboost.runtime.aggregator.config import read_aggregator
    from fedboost.runtime.config import choose_keys
    from fedboost.runtime.data.allocator import share_freed_memory
    from fedboost.runtime.telemetry import logger

    settings = read_aggregator(config)
    bundle = choose_keys(settings.keys, "aggregator", settings.listen, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(settings, logger("aggregator"), bundle)
        await server.start()
        if json:
            print_json({"event": "listening", "address": server.address})
        else:
            how = "without encryption" if bundle is None else "for parties and analysts with keys"
            print(f"aggregator listening on {server.address}, {how}", flush=True)
        try:
            await server.serve()
        finally:
            await server.stop()

    share_freed_memory()
    run_until_stopped(serve())
