"""The wait of a party for an aggregator that does not answer.

Promises: each try waits longer than the one before, up to a bound; the log says once why nobody is reached.
Refuses: to wait longer than it was told, or for what is no aggregator of this consortium (ConfigError).
"""

import asyncio
import random
from typing import Any

from fedboost.errors import ConfigError
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import TlsFault, tls_fault

FIRST_RETRY, LAST_RETRY = 0.2, 5.0
"""Seconds between two tries to reach the aggregator, doubling from the first to the last."""
SAY_SO = 1.0
"""Seconds of waiting before the log says that the aggregator is waited for."""


class Dialling:
    """The tries to reach one aggregator, which may be lost and reached again. wait: seconds it may take."""

    def __init__(self, address: str, wait: float, log: Any) -> None:
        self._address = address
        self._wait = wait
        self._log = log
        self._waited, self._pause, self._reported = 0.0, FIRST_RETRY, ""
        self._fault: TlsFault | None = None

    async def reached(self, opened: Any, bundle: Bundle | None, attended: bool) -> bool:
        """Try to reach it over this connection. attended: whether it has let this party in before, and is
        waited for whatever answers in its place. ConfigError when it is waited for no longer."""
        try:
            # Not wait_for, which loses a cancellation that comes with the answer (Python 3.11).
            async with asyncio.timeout(min(self._pause, max(self._wait - self._waited, 0.05))):
                await opened.channel_ready()
        except TimeoutError:
            self._waited += self._pause
            if bundle is not None and self._waited >= SAY_SO:
                self._fault = await asyncio.to_thread(tls_fault, self._address, bundle)
                if self._fault and not self._fault.passes and not attended:
                    raise ConfigError(self._fault.reason) from None
            self._give_up_or_say_so()
            self._pause = min(2 * self._pause, LAST_RETRY) * random.uniform(0.5, 1.0)
            return False
        self._waited, self._pause, self._reported = 0.0, FIRST_RETRY, ""
        return True

    def _give_up_or_say_so(self) -> None:
        if self._waited >= self._wait:
            advice = "check `aggregator` in this site's file and that the aggregator runs"
            raise channel.unanswered(self._address, self._wait, self._fault, advice) from None
        why = self._fault.reason if self._fault else "nobody answers there"
        if self._waited >= SAY_SO and self._reported != why:
            self._log.info("waiting for the aggregator", address=self._address, reason=why)
            self._reported = why
