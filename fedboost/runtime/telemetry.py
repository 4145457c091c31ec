"""A process's log and events, measurement of traffic and time, and questions to a person at the terminal.

The log is written to standard error, one line per event, with date, time, UTC offset and level. Traffic is
measured in bytes of complete messages, in both directions.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fedboost.errors import ConfigError, Refused
from fedboost.system import forget_typed, is_typed
from fedboost.terms.reading import nearest

if TYPE_CHECKING:
    from fedboost.protocol.run import Round
    from fedboost.terms.terms import Terms

TABLE_AVAILABLE: Literal["at hand"] = "at hand"
"""Kind of the event that a party reports when it has connected to the aggregator."""

Row = dict[str, float]
"""One round of the history: `round`, metrics by name, `seconds` and `bytes`."""


FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


def logger(role: str, log_format: str = "text", log_level: str = "info") -> Any:
    """Return a structured logger that writes to standard error: `time [level] event key=value ...`, or one
    JSON object per line. Text is coloured if the terminal supports it and NO_COLOR is not set. Raises
    ConfigError if the format or level is unknown."""
    import structlog  # late, because it imports rich, and a training in this process needs neither

    _check_choice("--log-format", log_format, FORMATS)
    _check_choice("--log-level", log_level, LEVELS)
    coloured = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    text = structlog.dev.ConsoleRenderer(colors=coloured, pad_event_to=0, pad_level=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _add_time,
            *([structlog.processors.JSONRenderer()] if log_format == "json" else [_join_lists, text]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger().bind(role=role)


def _check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ConfigError(
            "option-value-unknown", f"{option} cannot be {value!r}{nearest(value, choices)}; choose {known}"
        )


def _add_time(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["timestamp"] = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return event


def _join_lists(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn lists into text: names separated by commas, sentences by semicolons."""
    for key, value in event.items():
        if isinstance(value, (list, tuple)):
            event[key] = ("; " if key == "reasons" else ", ").join(map(str, value))
    return event


# ---- Events of sessions and connections, for the log, metrics and pages of a process --------------------
# Aggregators and parties report each event once, and each observer uses the kinds that concern it.


Kind = Literal[
    "party here",
    "party gone",
    "at hand",
    "aggregator gone",
    "bytes",
    "session offered",
    "session begins",
    "session goes on",
    "session paused",
    "turn",
    "answer",
    "round",
    "session done",
    "session failed",
    "left the session",
]
"""Kinds of events. A session that is offered or continued, or a turn, may have started before this process. A
paused session is not running, but has not ended. "bytes" reports that bytes were received or sent."""
LINES: dict[Kind, tuple[str, ...]] = {
    "party here": ("party", "adder"),
    "party gone": ("party", "reason"),
    "at hand": ("aggregator",),
    "session offered": ("session", "analyst", "terms"),
    "session begins": ("session", "analyst", "parties", "terms"),
    "session goes on": ("session", "analyst", "parties", "terms"),
    "round": ("session", "analyst", "round", "of", "metrics", "seconds", "bytes"),
    "session done": ("session", "analyst", "rounds", "seconds"),
    "session failed": ("session", "analyst", "reason"),
    "left the session": ("session", "reason"),
}
"""Maps each kind of event that is logged to the fields of `Event` in its log line."""
WARNINGS = "session failed", "left the session"


class Event(NamedTuple):  # created for each message: a frozen dataclass takes five times as long
    """An event in this process, for the log, metrics and web pages. Unused fields keep their defaults.

    Attributes:
        analyst: name, '' if analysts have no keys.
        adder: adder through which the party is connected, '' if it is connected directly.
        turn, round: number of the turn (query) and of the round, starting at 1.
        of: number of rounds in the terms.
        rounds: number of completed rounds.
        metrics: metrics over the rows of all parties.
        seconds: duration of the round, session or answer.
        received, sent: numbers of bytes.
    """

    kind: Kind
    session: str = ""
    analyst: str = ""
    aggregator: str = ""
    party: str = ""
    adder: str = ""
    parties: Sequence[str] = ()
    terms: "Terms | None" = None
    turn: int = 0
    round: int = 0
    of: int = 0
    rounds: int | None = None
    metrics: Mapping[str, float] | None = None
    seconds: float | None = None
    bytes: int | None = None
    received: int = 0
    sent: int = 0
    reason: str = ""


class Observer(Protocol):
    """Protocol for objects that are notified of events."""

    def observe(self, event: Event) -> None:
        """Process or ignore an event."""


class Events:
    """Forwards each event of a process to its observers and writes it to the log. digits: number of digits of
    a terms digest to log (default: all)."""

    def __init__(self, log: Any, *observers: Observer, digits: int | None = None) -> None:
        self._log, self._observers, self._digits = log, observers, digits

    def observe(self, event: Event) -> None:
        for observer in self._observers:
            observer.observe(event)
        if event.kind not in LINES:
            return
        values: dict[str, Any] = {}
        for key in LINES[event.kind]:
            match getattr(event, key):
                case "" | None:
                    pass
                case float(seconds):
                    values[key] = round(seconds, 3)
                case Mapping() as metrics:
                    values |= metrics
                case value:
                    values[key] = value.digest[: self._digits] if key == "terms" else value
        write = self._log.warning if event.kind in WARNINGS else self._log.info
        write(event.kind, **values)


REPORT_SECONDS = 15.0
"""Minimum number of seconds between two reports of traffic to metrics."""


class Meter:
    """Measures a session's traffic in bytes per party and the duration of its rounds in seconds."""

    def __init__(
        self, parties: Iterable[str], moved: Callable[..., object] = lambda party, received, sent: None
    ) -> None:
        """Start measuring. parties: names of the parties; moved: called from time to time with the keyword
        arguments `party`, `received` (further bytes received from this party) and `sent` (further bytes sent
        to this party)."""
        self._moved, self._bytes_before = moved, 0
        self.traffic: dict[str, tuple[int, int]] = dict.fromkeys(parties, (0, 0))
        self.history: list[Row] = []
        self._start = self._last = time.monotonic()
        self._reported, self._next_report = dict(self.traffic), 0.0

    def count(self, party: str, sent: int = 0, received: int = 0) -> None:
        before = self.traffic.get(party, (0, 0))
        self.traffic[party] = before[0] + sent, before[1] + received

    def report(self) -> None:
        """Call `moved` for each party whose traffic has grown since the last call."""
        # Not for each message: with a thousand parties, that would take most of a small tree's time.
        self._next_report = time.monotonic() + REPORT_SECONDS
        for party, (sent, received) in self.traffic.items():
            before = self._reported.get(party, (0, 0))
            if before != (sent, received):
                self._moved(party=party, received=sent - before[0], sent=received - before[1])
        self._reported = dict(self.traffic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def rows(self, rounds: "Sequence[Round]") -> list[Row]:
        """Return one history row for each new round, with the seconds and bytes since the previous row."""
        if len(rounds) == len(self.history):
            return []
        new = rounds[len(self.history) :]
        for done in new:
            now, total = time.monotonic(), sum(map(sum, self.traffic.values()))
            seconds, size = now - self._last, total - self._bytes_before
            self.history.append({"round": done.round, **done.published, "seconds": seconds, "bytes": size})
            self._last, self._bytes_before = now, total
        if self._last >= self._next_report:
            self.report()
        return self.history[len(self.history) - len(new) :]


# ---- A question at the terminal of a site ---------------------------------------------------------------


ANSWER_POLL = 0.2  # seconds between two checks whether the answer is still needed


def has_terminal() -> bool:
    """Return whether standard input is a terminal, so that a person can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask_terminal(question: str, stopped: Callable[[], bool] = lambda: False) -> str:
    """Print a question at the terminal and return the line typed as an answer. Input typed earlier is
    ignored. Raises Refused if standard input is not a terminal, or if `stopped` returns True because the
    answer is no longer needed."""
    if not has_terminal():
        raise Refused("terminal-missing", "its standard input is not a terminal, so no one can be asked")
    forget_typed()
    sys.stdout.flush()  # what the question is about
    print(question, end="", file=sys.stderr, flush=True)
    while not is_typed(ANSWER_POLL):
        if stopped():
            print("\nthe answer is no longer needed: the session or its connection ended", file=sys.stderr)
            raise Refused("terminal-no-answer", "no one answered before the session or its connection ended")
    return sys.stdin.readline().strip()


def terminal_ask(text: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Show a text at the terminal, ask whether to take part, and return whether the person agrees. Raises
    Refused in the same cases as `ask_terminal`."""
    text = f"\n{text}\nTake part under these terms with the rows of this site? [y/N] "
    return is_yes(ask_terminal(text, stopped))


def is_yes(answer: str) -> bool:
    return answer.lower() in ("y", "yes")
