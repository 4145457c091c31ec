"""Processes that run until they are told to stop (SIGTERM or Ctrl-C)."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedboost.cli.live import live_display
from fedboost.errors import ConfigError, SessionFailed
from fedboost.runtime.config import choose_keys
from fedboost.runtime.data.values import keep_freed_memory
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.telemetry import logger

if TYPE_CHECKING:
    from fedboost.runtime.net.keys import Bundle


def take_part(
    role: str,
    config: Path,
    wait: float,
    once: bool,
    insecure_loopback: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Take part in sessions, as a party or as a key holder, which holds no rows."""
    from fedboost.runtime.site.node import PartyNode

    display = live_display(plain=log_format != "text")
    log = logger(role, log_format, log_level, display)
    site, bundle = site_and_keys(config, insecure_loopback, holds_rows=role == "party")
    node = PartyNode(site, log, bundle)
    if role == "party":
        _compile_kernels(log)
    if display is None:
        run_until_stopped(node.run(wait, once))
    else:
        node.watch.ask = display.asking(node.watch.ask)
        with display.showing(node.watch.progress.facts):
            run_until_stopped(display.beside(node.run(wait, once)))
    if once and node.ended and node.ended[-1]:
        raise SessionFailed(f"the session ended without a model: {node.ended[-1]}")


def _compile_kernels(log: Any) -> None:
    """Compile before the first session, which others would wait in; nothing where it was done before."""
    from fedboost.kernel_cache import unready

    if unready():
        from fedboost.runtime.local.warm_up import compile_usual

        compile_usual(log.info)


def site_and_keys(
    config: Path, insecure_loopback: bool, holds_rows: bool | None
) -> "tuple[PartyConfig, Bundle | None]":
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
