"""Processes that run until they are stopped (aggregator, party, key holder); questions to an aggregator."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from fedboost.cli.common import (
    Aggregator,
    InsecureLoopback,
    Json,
    LogFormat,
    LogLevel,
    Once,
    SiteFile,
    Wait,
    gathers,
)
from fedboost.cli.output import print_json, show
from fedboost.errors import ConfigError, SessionFailed
from fedboost.kernel_cache import unready
from fedboost.privacy.identity import role_of
from fedboost.runtime.config import check_address, choose_keys, read_aggregator
from fedboost.runtime.data.values import keep_freed_memory, share_freed_memory
from fedboost.runtime.local.warm_up import compile_all, compile_usual
from fedboost.runtime.net.keys import CERTIFICATE, Bundle, check_folder, read_certificates
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.telemetry import LogTail, logger
from fedboost.views import status as views

# ---- Processes that run until they are told to stop (SIGTERM or Ctrl-C) ---------------------------------


@dataclass(frozen=True)
class Part:
    """How a process takes part in sessions."""

    wait: Wait = 600
    once: Once = False
    insecure_loopback: InsecureLoopback = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    def take(self, role: str, config: Path) -> None:
        """Take part in sessions, as a party or as a key holder, which holds no rows."""
        from fedboost.runtime.site.node import PartyNode

        log = logger(role, self.log_format, self.log_level)
        site, bundle = site_and_keys(config, self.insecure_loopback, holds_rows=role == "party")
        node = PartyNode(site, log, bundle)
        if role == "party" and unready():  # before the first session, which others would wait in
            compile_usual(log.info)
        run_until_stopped(node.run(self.wait, self.once))
        if self.once and node.ended and node.ended[-1]:
            raise SessionFailed(f"the session ended without a model: {node.ended[-1]}")


def site_and_keys(
    config: Path, insecure_loopback: bool, holds_rows: bool | None
) -> tuple[PartyConfig, Bundle | None]:
    """A site's file, and its keys. ConfigError. holds_rows: as for `read_party`."""
    site = read_party(config, holds_rows)
    bundle = choose_keys(site.keys, "party", site.aggregator, insecure_loopback)
    if bundle is not None and bundle.signer.name != site.party:
        raise ConfigError(
            f"{config}: party is {site.party!r}, and {site.keys} is the bundle of {bundle.signer.name!r}"
        )
    return site, bundle


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
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


# ---- `fedboost aggregator`: the process that parties and analysts dial ----------------------------------


AGGREGATOR_EPILOG = "Example: fedboost aggregator --config aggregator.toml"


def aggregator(
    config: Annotated[Path, typer.Option(help="The aggregator's file, TOML.", show_default=False)],
    insecure_loopback: InsecureLoopback = False,
    json: Json = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run the aggregator: parties and analysts dial it."""
    tail = LogTail()
    log = logger("aggregator", log_format, log_level, tail)
    settings = read_aggregator(config)
    bundle = choose_keys(settings.keys, "aggregator", settings.listen, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(settings, log, bundle, tail)
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
            await server.serve()
        finally:
            await server.stop()

    share_freed_memory()
    run_until_stopped(serve())


# ---- `fedboost party`: the process of a site with rows --------------------------------------------------


PARTY_EPILOG = "Example: fedboost party --config party.toml"


@gathers("part", Part)
def party(config: SiteFile, part: Part) -> None:
    """Take part with this site's rows, session after session."""
    part.take("party", config)


# ---- `fedboost keyholder`: the process that holds the key of encrypted sums, without rows ---------------


KEYHOLDER_EPILOG = "Example: fedboost keyholder --config keyholder.toml"


@gathers("part", Part)
def keyholder(
    config: Annotated[Path, typer.Option(help="The key holder's file, TOML.", show_default=False)],
    part: Part,
) -> None:
    """Hold the key of sessions that encrypt sums: take part without rows, and open sums it cannot read."""
    part.take("keyholder", config)


# ---- `fedboost health` and `fedboost status`: questions to an aggregator --------------------------------


MemberKeys = Annotated[
    Path | None, typer.Option(help="Folder of a party's or an analyst's keys.", show_default=False)
]
HEALTH_EPILOG = "Example: fedboost health --aggregator fed.example.org:7070 --keys keys/marie"


@dataclass(frozen=True)
class Question:
    """Options of a question to an aggregator."""

    keys: MemberKeys = None
    insecure_loopback: InsecureLoopback = False
    wait: Wait = 5

    def bundle(self, aggregator: str) -> Bundle | None:
        """The bundle of a party or of an analyst: anyone who may dial may ask."""
        check_address(aggregator, "--aggregator")
        role = None
        if self.keys is not None:
            check_folder(self.keys, "the bundle of a party or an analyst, which `fedboost keys` makes")
            role = role_of(read_certificates(self.keys / CERTIFICATE)[0])
        known = "party" if role == "party" else "analyst"
        return choose_keys(self.keys, known, aggregator, self.insecure_loopback)


@gathers("question", Question)
def health(aggregator: Aggregator, question: Question) -> None:
    """Ask an aggregator whether it is up: prints `serving`, or exits with code 2."""
    from fedboost.runtime.aggregator import parties as probe

    asyncio.run(probe.ask(aggregator, question.bundle(aggregator), question.wait))
    print("serving")


STATUS_EPILOG = "Example: fedboost status --aggregator fed.example.org:7070 --keys keys/marie"


@gathers("question", Question)
def status(aggregator: Aggregator, question: Question, json: Json = False) -> None:
    """Say who is connected to an aggregator, which sessions run or wait, and for whom. An analyst sees all of
    them, a party those that name it."""
    from fedboost.runtime.analyst import Connection

    facts = Connection(aggregator, question.bundle(aggregator)).status(question.wait)
    show(json, [facts.summary], views.status(facts))


# ---- `fedboost warm-up`: kernels compiled ahead ---------------------------------------------------------


WARM_UP_EPILOG = "Example: FEDBOOST_CACHE=/var/cache/fedboost fedboost warm-up"


def warm_up() -> None:
    """Compile all kernels ahead, and say where they are kept: for images and service accounts."""
    start = perf_counter()
    folder = compile_all()
    print(f"kernels are compiled, in {perf_counter() - start:.0f} s, and kept in {folder}")
