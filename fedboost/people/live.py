"""The display of a process under way on its terminal: what happens now, in a few lines that are drawn again.

Promises: the lines fit the width and height that they are given; names and sentences from outside are text
without control characters; where parties are many, those that need attention come first and the others are
counted.
Refuses: nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from fedboost.gbdt.metrics.registry import VALIDATION, grows, own_name
from fedboost.people.text import MINUTE, counted, delimited, duration, one_line, shorten, size
from fedboost.terms.session import TO_TUNE
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

RECENT = 5
"""Rounds that tell how long the others take."""
MAX_LINES = 16
"""Lines of a display at most: the log stands above them."""
ABOVE = 4
"""Lines of a terminal that are left to the log, where it has so few that a display would fill it."""
MAX_BAR, MAX_CURVE = 40, 60
"""Columns of a bar, and of a curve."""
MAX_NAME = 24
MIN_CELL, _GAP = 8, 2
"""Columns of a cell at least, and between two."""
_LEFT_OUT = "session", "moved", "title", "curve", "now"
"""Lines that a low terminal has no room for, the first ones first."""
BLOCKS = "▁▂▃▄▅▆▇█"

PATIENCE_SECONDS = 1.0
"""What takes less time is not said to take any, and who is awaited for less is not named."""

AWAY, AWAITED, ANSWERED, PRESENT = "away", "awaited", "answered", "connected"
_URGENCY = {AWAY: 0, AWAITED: 1}
_STYLES = {AWAY: "red", AWAITED: "yellow", ANSWERED: "green"}


@dataclass(frozen=True)
class LiveParty:
    """A party in a display. state: AWAY, AWAITED, ANSWERED, PRESENT, or "" where it is not known; note: what
    else there is to say; received, sent: bytes from and to it in this session."""

    name: str
    state: str = ""
    note: str = ""
    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Curve:
    """Values by round, the first ones first."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class LiveFacts:
    """A process under way. title: which one; about: what it is, in a sentence; session: the one under way,
    '' where there is none; done, rounds: of its rounds, 0 where it has none; curve: of its metric, say;
    seconds: of each finished round; received, sent: bytes in this session; now: what happens, where no party
    is awaited; waiting: who is waited for; slowest: the party that took longest; parties: those to list."""

    title: str
    about: str = ""
    session: str = ""
    done: int = 0
    rounds: int = 0
    curve: Curve | None = None
    seconds: tuple[float, ...] = ()
    received: int = 0
    sent: int = 0
    now: str = ""
    waiting: str = ""
    slowest: str = ""
    parties: tuple[LiveParty, ...] = ()


def time_left(seconds: Sequence[float], rounds: int) -> str:
    """Return the time that so many further rounds take, as the last ones did; '' if that is less than a
    minute, and after the first, which includes compiling and making keys."""
    left = median(seconds[1:][-RECENT:] or [0.0]) * rounds
    return f"about {duration(left)} left" if left >= MINUTE else ""


def passed(seconds: float) -> str:
    """Return how long something took so far, in whole seconds at first: it is said again and again."""
    return duration(seconds) if seconds >= 10 else f"{int(seconds)} s"


def watched(rows: Sequence[Mapping[str, float]], terms: Terms) -> Curve | None:
    """Return the metric that a training goes by, over the rows of all parties: the last one of the terms, on
    validation rows where there are any; where candidates are tried, the best of them. None without any."""
    if not terms.metrics:
        return None
    name = own_name(terms.metrics[-1])
    if terms.task == TO_TUNE:
        best = max if grows(name) else min
        trials = [f"{VALIDATION}-{number}/{name}" for number in range(len(terms.objective.candidates))]
        of_rows = ([row[trial] for trial in trials if trial in row] for row in rows)
        values = tuple(best(found) for found in of_rows if found)
        return Curve(f"best {name}", values) if values else None
    for known in (f"{VALIDATION}-{name}", name):
        values = tuple(row[known] for row in rows if known in row)
        if values:
            return Curve(known, values)
    return None


def blocks(values: Sequence[float], width: int) -> str:
    """Return values as so many characters at most, from the lowest block to the highest; each stands for
    the mean of its share of the values, a space for those that are no finite numbers."""
    width = min(width, len(values))
    ends = [number * len(values) // width for number in range(width + 1)] if width > 0 else [0]
    shares = (values[start:end] for start, end in pairwise(ends))
    means = [_mean([value for value in share if math.isfinite(value)]) for share in shares]
    known = [value for value in means if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(" " if value is None else _block(value, low, high) for value in means)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(value / len(values) for value in values) if values else None


def _block(value: float, low: float, high: float) -> str:
    half = high / 2 - low / 2  # the difference itself may be more than a float holds
    share = (value / 2 - low / 2) / half if half > 0 else 0.5
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def live(facts: LiveFacts, width: int, height: int) -> "RenderableType":
    """Return the display for a terminal of so many columns and lines."""
    from rich.console import Group

    room = max(min(MAX_LINES, height - ABOVE), 1)
    lines: dict[str, RenderableType] = {"title": _title(facts, width)}
    if facts.session:
        lines["session"] = _line(facts.session, width)
        if facts.rounds:
            lines["rounds"] = _rounds(facts, width)
        if facts.curve is not None:
            lines["curve"] = _curve(facts.curve, width)
        moved = f"in {size(facts.received)}, out {size(facts.sent)}"
        if facts.received or facts.sent:
            lines["moved"] = _line(", ".join(filter(None, [moved, facts.slowest])), width)
    if facts.waiting:
        lines["now"] = _line(f"waiting for {facts.waiting}", width, "yellow")
    elif facts.now:
        lines["now"] = _line(facts.now, width)
    for name in _LEFT_OUT:
        if len(lines) > room:
            lines.pop(name, None)
    shown = [*lines.values()]
    if facts.parties and (left := room - len(shown)) >= 2:
        shown.append(_parties(facts.parties, left, width))
    return Group(*shown)


def last_line(facts: LiveFacts) -> str:
    """Return where the process stands, in one line: what stays on the terminal when the display ends."""
    told = [facts.session or facts.now or facts.about]
    if facts.session:
        told.append(f"round {facts.done}/{facts.rounds}" if facts.rounds else "")
        if facts.curve is not None:
            told.append(f"{facts.curve.name} {facts.curve.values[-1]:.5f}")
        told.append(f"{size(facts.received)} in, {size(facts.sent)} out")
        told.append(f"waiting for {facts.waiting}" if facts.waiting else "")
    return one_line(f"{facts.title}: {', '.join(filter(None, told))}")


def names(parties: Iterable[str], width: int = 30) -> str:
    """Return as many names as fit, and how many others there are."""
    each = [delimited(shorten(party, MAX_NAME)) for party in parties]
    shown = list[str]()
    while len(shown) < len(each) and len(", ".join([*shown, each[len(shown)]])) <= width:
        shown.append(each[len(shown)])
    if each and not shown:
        return counted(len(each), "party", "parties")
    more = len(each) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _line(text: str, width: int, style: str = "") -> "Text":
    from rich.text import Text

    line = Text(one_line(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _title(facts: LiveFacts, width: int) -> "Text":
    line = _line(f"── {facts.title}" + (f" ── {facts.about}" if facts.about else ""), width)
    line.stylize("bold", 0, min(len(f"── {facts.title}"), len(line)))
    return line


def _rounds(facts: LiveFacts, width: int) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    pace = median(facts.seconds[-RECENT:]) if facts.seconds else 0.0
    left = time_left(facts.seconds, facts.rounds - facts.done)
    times = ", ".join(filter(None, [f"{duration(pace)} a round" if pace else "", left]))
    head = f"round {facts.done}/{facts.rounds}"
    line = Table.grid(padding=(0, 1))
    room = width - len(head) - len(times) - 2
    bar = ProgressBar(
        total=facts.rounds, completed=facts.done, width=max(min(room, MAX_BAR), 1), complete_style="cyan"
    )
    line.add_row(
        _line(head, width), *([bar] if room > 3 else []), _line(times, max(width - len(head) - 1, 1))
    )
    return line


def _curve(curve: Curve, width: int) -> "Text":
    head = f"{curve.name} {curve.values[-1]:.5f}"
    line = _line(head, width)
    room = min(width - len(line) - 1, MAX_CURVE)
    if room >= 8 and len(curve.values) > 1:
        line.append(" " + blocks(curve.values, room), style="cyan")
    return line


def _parties(parties: Sequence[LiveParty], room: int, width: int) -> "Table":
    """A line a party, those that are away or awaited first where not all fit, then how many others."""
    from rich.table import Table
    from rich.text import Text

    shown = list(parties)
    if len(shown) > room:
        shown = sorted(shown, key=lambda party: _URGENCY.get(party.state, 2))[: room - 1]
    others = [party.state for party in parties if party not in shown]
    rest = f"and {counted(len(others), 'other')}" if others else ""
    room_of_name = min(max(MIN_CELL, len(rest), *(len(party.name) for party in shown)), MAX_NAME, width)
    sizes: list[tuple[str, ...]] = [
        (f"in {size(party.received)}", f"out {size(party.sent)}") for party in shown
    ]
    numbers = sum(max(map(len, column)) + _GAP for column in zip(*sizes, strict=True))
    moved = any(party.received or party.sent for party in parties)
    if not moved or width - room_of_name - _GAP - numbers < MIN_CELL:
        sizes, numbers = [()] * len(shown), 0
    room_of_state = width - room_of_name - _GAP - numbers
    lines = Table.grid(padding=(0, _GAP, 0, 0))
    for justify in ("left", "left", "right", "right"):
        lines.add_column(justify=justify, no_wrap=True)
    for party, moves in zip(shown, sizes, strict=True):
        state = ", ".join(filter(None, [party.state, one_line(party.note)]))
        cells = [_line(shorten(party.name, room_of_name), room_of_name)]
        if room_of_state >= MIN_CELL:
            cells.append(_line(state, room_of_state, _STYLES.get(party.state, "")))
        lines.add_row(*cells, *map(Text, moves))
    if others:
        kinds = [(others.count(state), state) for state in dict.fromkeys(others) if state]
        told = ", ".join(f"{number} {state}" for number, state in kinds)
        lines.add_row(
            _line(rest, room_of_name), _line(told, room_of_state) if room_of_state >= MIN_CELL else ""
        )
    return lines
