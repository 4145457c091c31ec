"""The display of a process on its terminal, below its log.

Promises: there is one only where standard error is a terminal that moves the cursor and has Unicode; it is
drawn again when something changed, four times a second at most; a line of the log, or of whatever else is
printed, stands above it; when it ends, after an error or Ctrl-C, too, the terminal is as before, and a line
says where the process stood. A process that is killed leaves it there.
Refuses: nothing.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedboost.people.live import LiveFacts, last_line, live

if TYPE_CHECKING:
    from rich.console import Console, ConsoleDimensions
    from rich.live import Live
    from rich.segment import Segment

P = ParamSpec("P")
T = TypeVar("T")

REFRESH_SECONDS = 0.25
"""Seconds after which there may be something else to show."""


def live_display(plain: bool = False) -> "LiveDisplay | None":
    """Return the display of this process; None where its terminal has lines alone, and if they are wanted."""
    if plain or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    has_blocks = (sys.stderr.encoding or "").lower().startswith("utf")
    return LiveDisplay(sys.stderr) if has_blocks else None


class LiveDisplay:
    """A display, and the stream of the log above it."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal
        self._begun = ""
        """The beginning of a line that is not whole."""
        self._lock = threading.RLock()
        self._facts: Callable[[], LiveFacts] | None = None
        self._shown: tuple[LiveFacts, Any] | None = None
        """The facts and the size of the terminal that were drawn last."""
        self._live: Live | None = None
        """None while nothing is drawn."""

    def write(self, text: str) -> None:
        """Write lines of a log above the display, each once it is whole."""
        with self._lock:
            lines, end, self._begun = (self._begun + text).rpartition("\n")
            if self._live is None:
                self._terminal.write(lines + end)
            elif end:
                self._live.console.print(_Raw(lines + end), end="", soft_wrap=True)

    def flush(self) -> None:
        """Write what was held back."""
        self._terminal.flush()

    @contextmanager
    def showing(self, facts: Callable[[], LiveFacts]) -> Iterator[None]:
        """Show these facts, whenever `refresh` is called; then leave a line of those that were shown last."""
        self._facts = facts
        self._begin()
        try:
            yield
        finally:
            shown, self._facts = self._shown, None
            self._end()
            self.write(last_line(shown[0] if shown else facts()) + "\n")
            self.flush()

    def asking(self, ask: Callable[P, T]) -> Callable[P, T]:
        """The same question at the terminal, with the display away meanwhile."""

        @wraps(ask)
        def hidden(*arguments: P.args, **options: P.kwargs) -> T:
            self._end()
            try:
                return ask(*arguments, **options)
            finally:
                self._begin()

        return hidden

    def refresh(self) -> None:
        """Draw the display again, if something changed."""
        with self._lock:
            if self._live is None or self._facts is None:
                return
            console = self._live.console
            console.size = _size(self._terminal)
            shown = self._facts(), console.size
            if shown != self._shown:
                self._shown = shown
                self._live.update(_drawn(console, *shown), refresh=True)

    async def beside(self, work: Awaitable[None]) -> None:
        """Do this work of the event loop, and refresh meanwhile."""

        async def keep_up() -> None:
            while True:
                self.refresh()
                await asyncio.sleep(REFRESH_SECONDS)

        refreshing = asyncio.ensure_future(keep_up())
        try:
            await work
            self.refresh()
        finally:
            refreshing.cancel()

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        """Refresh in a thread meanwhile."""
        ended = threading.Event()

        def keep_up() -> None:
            while not ended.wait(REFRESH_SECONDS):
                self.refresh()

        thread = threading.Thread(target=keep_up, name="display", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _begin(self) -> None:
        from rich.live import Live

        with self._lock:
            if self._live is None and self._facts is not None:
                console = _console(self._terminal)
                self._shown = None
                self._live = Live(
                    console=console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=sys.stdout.isatty(),
                    vertical_overflow="crop",
                )
                self._live.start()

    def _end(self) -> None:
        with self._lock:
            shown, self._live = self._live, None
            if shown is not None:
                shown.stop()


def _console(terminal: Any) -> "Console":
    from rich.console import Console

    class Visible(Console):
        """A console whose cursor stays visible: a process that is killed could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Visible(file=terminal, force_terminal=True, highlight=False)


def _size(terminal: Any) -> "ConsoleDimensions":
    """The size of the terminal now: not that of standard input, which may be another."""
    from rich.console import ConsoleDimensions

    columns, lines = os.get_terminal_size(terminal.fileno())
    return ConsoleDimensions(columns or 80, lines or 24)


def _drawn(console: "Console", facts: LiveFacts, size: Any) -> Any:
    """The display as it goes to the terminal, so that a line of the log above it costs no second drawing."""
    from rich.segment import Segment, Segments

    lines = console.render_lines(live(facts, size.width, size.height), pad=False)
    joined = [segment for line in lines for segment in (*line, Segment.line())]
    return Segments(joined[:-1])


class _Raw:
    """Text that goes to the terminal as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: "Console", options: Any) -> "Iterable[Segment]":
        from rich.segment import Segment

        yield Segment(self._text)
