"""Logs, and the meter of bytes and seconds.

Promises: logs go to standard error, one line an event; bytes are those of whole messages, both ways.
Refuses nothing.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fedboost.protocol.run import Round

AT_HAND = "at hand"
"""What a party logs when it has reached the aggregator."""

Row = dict[str, float]
"""One round: `round`, metrics by name, `seconds`, `bytes`."""


def logger(role: str) -> Any:
    """A structured logger that writes `time [level] event key=value ...` to standard error, in colours where
    that is a terminal that has them and NO_COLOR is not set."""
    import structlog

    coloured = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=coloured, pad_event_to=0),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger().bind(role=role)


class Meter:
    """Counts of the bytes of messages and the seconds of rounds of one session."""

    def __init__(self, parties: Iterable[str]) -> None:
        self.traffic: dict[str, tuple[int, int]] = dict.fromkeys(parties, (0, 0))
        self.history: list[Row] = []
        self._start = self._last = time.monotonic()
        self._bytes_before = 0

    def sent(self, party: str, size: int) -> None:
        """Count a message of `size` bytes that a party sent."""
        sent, received = self.traffic.get(party, (0, 0))
        self.traffic[party] = sent + size, received

    def received(self, party: str, size: int) -> None:
        """Count a message of `size` bytes that was sent to a party."""
        sent, received = self.traffic.get(party, (0, 0))
        self.traffic[party] = sent, received + size

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._start

    def rows(self, rounds: Sequence[Round]) -> list[Row]:
        """Rows for the rounds that are new, with the seconds and bytes since the row before."""
        new = rounds[len(self.history) :]
        for done in new:
            now, total = time.monotonic(), sum(map(sum, self.traffic.values()))
            seconds, size = now - self._last, total - self._bytes_before
            self.history.append({"round": done.round, **done.published, "seconds": seconds, "bytes": size})
            self._last, self._bytes_before = now, total
        return self.history[len(self.history) - len(new) :]
