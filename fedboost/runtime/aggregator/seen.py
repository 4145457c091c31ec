"""The parties that an aggregator has seen, and when it last did, in a file of its state folder.

Promises: a party that was here is told from one that never dialled, over restarts too; a name is on the disk
some seconds after it arrived, and what could not be written is one event in the log.
Refuses: a file that is none of these (ConfigError that names it).
"""

import json
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError
from fedboost.runtime.files import write_atomically

FILE = "seen.json"
MAX_NAMES = 4096
"""Names that are kept: beyond it the one that was seen longest ago is forgotten."""
WRITE_SECONDS = 2.0
"""Seconds between two writes, at least."""


class Seen:
    """The names of parties, and when they were last here (seconds since 1970). Without a folder it ends with
    the process."""

    def __init__(self, log: Any) -> None:
        self.times: dict[str, int] = {}
        self._log = log
        self._path: Path | None = None
        self._changed = False
        self._written = 0.0
        self._failed = False

    def open(self, folder: Path) -> None:
        """Go on with the file in this folder. ConfigError."""
        self._path = folder / FILE
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot read: {error.strerror}") from None
        try:
            times = json.loads(text)
            if not isinstance(times, dict) or not all(type(seen) is int for seen in times.values()):
                raise ValueError
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{self._path}: not the list of parties that an aggregator has seen; move it away to begin "
                f"a new one"
            ) from None
        self.times = times

    def note(self, party: str, now: float) -> None:
        """Note that a party is here, or was up to now."""
        self.times.pop(party, None)
        self.times[party] = int(now)
        if len(self.times) > MAX_NAMES:
            del self.times[next(iter(self.times))]
        self._changed = True

    def last(self, party: str) -> int:
        """The time when this party was last here; 0 if it never was."""
        return self.times.get(party, 0)

    def write(self, now: float, at_once: bool = False) -> None:
        """Write the file if something changed, unless it was written just before."""
        if self._path is None or not self._changed or (now - self._written < WRITE_SECONDS and not at_once):
            return
        self._written, self._changed = now, False
        try:
            write_atomically(self._path, json.dumps(self.times).encode(), 0o600)
        except ConfigError as error:
            self._changed = True
            if not self._failed:
                self._log.error("cannot write down which parties were here", reason=str(error))
        self._failed = self._changed
