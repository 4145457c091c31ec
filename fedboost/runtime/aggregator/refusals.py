"""The log of callers that were refused.

Promises: each has a line with its name or address and the reason, and none floods the log: after some lines
of a kind a peer has one a minute, which counts those that were left out.
Refuses: nothing.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

from fedboost.runtime.aggregator.limits import MAX_PEERS
from fedboost.runtime.bucket import Bucket
from fedboost.runtime.metrics import AggregatorMetrics

LINES_PER_SECOND, LINES_SAVED = 1 / 60, 5.0
"""Lines of one kind about one peer in the log, and how many in one go after it was quiet."""
OTHERS = "", ""
"""The key under which peers beyond MAX_PEERS are kept."""


@dataclass
class _Lines:
    bucket: Bucket
    left_out: int = 0


class Refusals:
    """Lines about refused callers, and their count in the metrics, if there are any."""

    def __init__(self, log: Any, metrics: AggregatorMetrics | None) -> None:
        self._log = log
        self._metrics = metrics
        self._peers: dict[tuple[str, str], _Lines] = {}
        self._lock = threading.Lock()

    def note(self, event: str, peer: str, reason: str, **values: str) -> None:
        """Log a refusal of a peer, unless it had its lines."""
        if self._metrics is not None:
            self._metrics.refused(event)
        now = time.monotonic()
        with self._lock:
            lines = self._lines_of((event, peer), now)
            if not lines.bucket.take(now):
                lines.left_out += 1
                return
            if lines.left_out:
                values["left_out"] = f"{lines.left_out} since the line before"
                lines.left_out = 0
        self._log.warning(event, peer=peer, **values, reason=reason)

    def handshake(self, address: str, reason: str) -> None:
        """Log that no TLS connection was made with a client, from any thread."""
        host = address.rpartition(":")[0] or address
        self.note("handshake refused", f"a client from {host}", reason, address=address)

    def _lines_of(self, key: tuple[str, str], now: float) -> _Lines:
        if key not in self._peers and len(self._peers) >= MAX_PEERS:
            self._peers = {known: kept for known, kept in self._peers.items() if not kept.bucket.is_full(now)}
            if len(self._peers) >= MAX_PEERS:
                key = OTHERS
        return self._peers.setdefault(key, _Lines(Bucket(LINES_PER_SECOND, LINES_SAVED, now)))
