"""`fedboost aggregator`: the process that parties and analysts dial."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import InsecureLoopback, Json, LogFormat, LogLevel

if TYPE_CHECKING:
    from fedboost.cli.live import LiveDisplay
    from fedboost.runtime.aggregator.handshakes import Handshakes
    from fedboost.runtime.aggregator.server import AggregatorServer

EPILOG = "Example: fedboost aggregator --config aggregator.toml"


def aggregator(
    config: Annotated[Path, typer.Option(help="The aggregator's file, TOML.", show_default=False)],
    insecure_loopback: InsecureLoopback = False,
    json: Json = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run the aggregator: parties and analysts dial it."""
    from contextlib import ExitStack

    from fedboost.runtime.aggregator import handshakes

    with ExitStack() as stack:
        traced = stack.enter_context(handshakes.watched()) if handshakes.begin_trace() else None
        _run(config, insecure_loopback, json, log_format, log_level, traced)


def _run(
    config: Path,
    insecure_loopback: bool,
    json: bool,
    log_format: str,
    log_level: str,
    traced: "Handshakes | None",
) -> None:
    from fedboost.cli.live import live_display
    from fedboost.cli.output import print_json
    from fedboost.cli.serving import run_until_stopped
    from fedboost.runtime.aggregator.config import read_aggregator
    from fedboost.runtime.config import choose_keys
    from fedboost.runtime.data.values import share_freed_memory
    from fedboost.runtime.telemetry import LogTail, logger

    tail, display = LogTail(), live_display(plain=json or log_format != "text")
    log = logger("aggregator", log_format, log_level, display, tail)
    settings = read_aggregator(config)
    bundle = choose_keys(settings.keys, "aggregator", settings.listen, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(settings, log, bundle, tail)
        if traced is not None:
            traced.note = server.refusals.handshake
        try:
            await server.start()
        except BaseException:
            await server.pages.stop()
            server.pages.close()
            raise
        console = server.pages.console
        if json:
            served = {} if console is None else {"console": console.url}
            print_json({"event": "listening", "address": server.address, **served})
        else:
            how = "without encryption" if bundle is None else "for parties and analysts with keys"
            print(f"aggregator listening on {server.address}, {how}", flush=True)
            if console is not None:
                print(f"console at {console.url}", flush=True)
        try:
            await _serve(server, display)
        finally:
            await server.stop()

    share_freed_memory()
    run_until_stopped(serve())


async def _serve(server: "AggregatorServer", display: "LiveDisplay | None") -> None:
    """Serve until stopped, with a display on the terminal if there is one."""
    if display is None:
        await server.serve()
        return
    from fedboost.runtime.aggregator.live import AggregatorProgress

    with display.showing(AggregatorProgress(server).facts):
        await display.beside(server.serve())
