"""What a training over the network does now: a display on the analyst's terminal, or lines and a bar.

Promises: rounds, published metrics and bytes as the aggregator tells them; an aggregator tells no analyst who
has answered, only for whom it waits.
Refuses: nothing.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from fedboost.cli.interruption import finish_at_interrupt
from fedboost.cli.live import live_display
from fedboost.cli.output import notice
from fedboost.cli.progress import Draw, notice_not_hidden, progress
from fedboost.people import status
from fedboost.people.live import AWAITED, AWAY, PATIENCE_SECONDS, LiveFacts, LiveParty, names, passed, watched
from fedboost.people.text import counted, delimited
from fedboost.runtime.analyst import Training
from fedboost.terms.terms import Terms


class TrainingProgress:
    """A training as its analyst sees it: `waiting` is called with the parties that it waits for; `training`
    is to be set before."""

    training: Training

    def __init__(self, terms: Terms, aggregator: str) -> None:
        self.terms, self._aggregator = terms, aggregator
        self._start = self._since = time.monotonic()
        self._waiting: tuple[str, ...] | None = None
        """The parties that are waited for, none where another session runs; None where nobody is."""
        self._shown = False

    def waiting(self, parties: tuple[str, ...]) -> None:
        """The training waits for these parties, for another session if there are none."""
        self._waiting, self._since = parties, time.monotonic()
        if not self._shown:
            notice(status.waiting(parties, self.training.absent))

    @contextmanager
    def shown(self, json: bool) -> Iterator[Draw]:
        """Show the training: a function to call with each row of the history."""
        display = live_display(plain=json or not sys.stdout.isatty())
        if display is None:
            with progress(self.terms, json) as draw:
                yield draw
            return
        self._shown = True
        with display.showing(self.facts), display.refreshed():
            yield lambda row: self._go_on()
            display.refresh()

    def _go_on(self) -> None:
        """A round ended: nobody is waited for any longer."""
        self._waiting, self._since = None, time.monotonic()

    def facts(self) -> LiveFacts:
        """What the training does now. Runs in the display's thread."""
        terms, traffic, rows = self.terms, dict(self.training.traffic), tuple(self.training.history)
        absent, waiting = dict(self.training.absent), self._waiting or ()
        now = time.monotonic()
        so_long = f" ({passed(now - self._since)})" if now - self._since >= PATIENCE_SECONDS else ""
        parties = []
        for name in terms.parties:
            awaited = name in waiting
            state = AWAY if awaited and name in absent else AWAITED if awaited else ""
            note = _seen(absent[name]) if state == AWAY else ""
            if state or traffic:
                parties.append(LiveParty(name, state, note, *traffic.get(name, (0, 0))))
        known = set(waiting) <= set(terms.parties)
        others = names(waiting) if known else ", ".join(waiting)
        agreed = counted(len(terms.parties), "party", "parties"), terms.hiding.protection
        return LiveFacts(
            f"training at {delimited(self._aggregator)}",
            f"for {passed(now - self._start)}",
            f"terms {terms.digest[:12]}, {', '.join(agreed)}",
            len(rows),
            terms.trees.rounds,
            watched(rows, terms),
            tuple(row["seconds"] for row in rows),
            sum(sent for sent, _ in traffic.values()),
            sum(received for _, received in traffic.values()),
            f"{self._now(len(rows))}{so_long}",
            f"{others}{so_long}" if others else "",
            parties=tuple(parties),
        )

    def _now(self, rounds: int) -> str:
        if self._waiting == ():
            return "another session runs: this one waits"
        if rounds == self.terms.trees.rounds:
            return "the parties sign the model"
        if self.training.is_ending:
            return "the training ends with the round under way"
        return f"round {rounds + 1} is under way"


def follow(training: Training, progress: TrainingProgress, json: bool, on_row: Draw) -> None:
    """Follow a training to its end, or to Ctrl-C. on_row: called with each row of the history."""
    try:
        with finish_at_interrupt(training.finish) as interruption, progress.shown(json) as draw:
            for row in training:
                if row["round"] == 0:
                    notice_not_hidden(progress.terms)
                draw(row)
                on_row(row)
                interruption.count()
    except KeyboardInterrupt:
        training.stop()
        raise


def _seen(seen: datetime | None) -> str:
    return "never connected there" if seen is None else f"since {seen.astimezone():%H:%M}"
