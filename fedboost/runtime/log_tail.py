"""The last lines of a process's log, in memory: for its own pages.

Promises: at most MAX_LINES, each of bounded length and without control characters.
Refuses: nothing.
"""

from collections import deque
from collections.abc import Iterator, MutableMapping
from typing import Any

from fedboost.errors import quoted

MAX_LINES = 300
MAX_LINE = 1000
_OWN = "timestamp", "level", "event", "role"


class LogTail:
    """A processor of structlog that keeps lines: iterate for them, the latest last."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._lines])

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Keep an event, and pass it on."""
        values = " ".join(f"{key}={_shown(value)}" for key, value in event.items() if key not in _OWN)
        time = str(event.get("timestamp", ""))[:19].replace("T", " ")
        line = f"{time} {event.get('level', ''):<7} {event.get('event', '')} {values}"
        self._lines.append(quoted(line.rstrip(), MAX_LINE))
        return event


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return repr(value) if isinstance(value, str) and " " in value else str(value)
