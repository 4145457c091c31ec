"""Progress of trainings: a bar on a terminal, plain lines elsewhere, or JSON.

Promises: nothing is drawn before there is something to show; about ten lines where no bar is drawn.
Refuses: nothing.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fedboost.cli.output import notice, print_json
from fedboost.people import as_json
from fedboost.people.live import time_left
from fedboost.people.summary import not_hidden
from fedboost.people.text import one_line, shorten, size
from fedboost.people.training import figures
from fedboost.terms.terms import Terms

Draw = Callable[[Mapping[str, float]], None]
"""A function to call with each row of the history."""
ROWS_EVERY_SECONDS = 10.0
"""How often a line says how many rows are done, where no bar is drawn."""

SLOW_SECONDS = 30.0
"""A line is printed after any round that ends so long after the last line, where no bar is drawn."""
BESIDE = 42
"""Columns of a terminal that a bar takes at least, with the number of the round, bytes and time."""
_BETWEEN = ", "

ESTIMATED_SECONDS = 3600.0
"""Of rounds that tell a bar how long the others take: where rows are encrypted one may take minutes."""


def notice_not_hidden(terms: Terms) -> None:
    """Print what the aggregator and other parties see of single parties, where they do."""
    if not terms.protection.hides:
        notice(f"protection {terms.hiding.protection}: {not_hidden(terms)}")


@contextmanager
def progress(terms: Terms, json: bool) -> Iterator[Draw]:
    """Show the rounds of a training."""
    if json:
        yield lambda row: print_json(as_json.round_of(row))
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        with _bar_of_rounds(terms) as draw:
            yield draw
    else:
        yield _lines_of_rounds(terms)


def _lines_of_rounds(terms: Terms) -> Draw:
    total = unsaid = 0.0
    seconds = list[float]()

    def draw(row: Mapping[str, float]) -> None:
        nonlocal total, unsaid
        total += row["bytes"]
        unsaid += row["seconds"]
        seconds.append(row["seconds"])
        done, rounds = int(row["round"]) + 1, terms.trees.rounds
        if done == rounds or done % max(1, rounds // 10) == 0 or unsaid > SLOW_SECONDS:
            unsaid = 0.0
            texts = (
                f"round {done}/{rounds}",
                figures(row, terms),
                size(total),
                time_left(seconds, rounds - done),
            )
            print(" ".join(filter(None, texts)), flush=True)

    return draw


@contextmanager
def _bar_of_rounds(terms: Terms) -> Iterator[Draw]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(None, table_column=Column(max_width=40)),
        TextColumn("{task.fields[metric]}", markup=False, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[bytes]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar, total = Progress(*columns, speed_estimate_period=ESTIMATED_SECONDS), 0.0
    task = bar.add_task("train", total=terms.trees.rounds, metric="", bytes="")

    def draw(row: Mapping[str, float]) -> None:
        nonlocal total
        total += row["bytes"]
        bar.start()  # not before there is something to show
        metric = _last(figures(row, terms, _BETWEEN).split(_BETWEEN), bar.console.width - BESIDE)
        bar.update(task, advance=1, metric=metric, bytes=size(total))

    try:
        yield draw
    finally:
        bar.stop()


def _last(texts: list[str], room: int) -> str:
    """The last texts that fit, one at least: a training watches the last metric."""
    while len(texts) > 1 and len(" ".join(texts)) > room:
        texts = texts[1:]
    return " ".join(texts)


@contextmanager
def steps(total: int, json: bool) -> Iterator[Callable[[str], None]]:
    """Show several trainings: a function to call with the name of each that begins."""
    if json:
        yield lambda name: None
    elif sys.stderr.isatty():
        with _bar_of_steps(total) as draw:
            yield draw
    else:
        yield _lines_of_steps(total)


def _lines_of_steps(total: int) -> Callable[[str], None]:
    done = 0

    def draw(name: str) -> None:
        nonlocal done
        if done % max(1, total // 10) == 0:
            notice(f"training {done + 1}/{total}: {name}")
        done += 1

    return draw


@contextmanager
def _bar_of_steps(total: int) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[name]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("train", total=total, name="")
    started = False

    def draw(name: str) -> None:
        nonlocal started
        bar.update(task, advance=1 if started else 0, name=shorten(one_line(name), 30))
        started = True

    with bar:
        yield draw


@contextmanager
def rows_done(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many rows are done: a function to call with those of each part. total: how many there are, if
    that is known."""
    if sys.stderr.isatty():
        with _bar_of_rows(total) as draw:
            yield draw
    else:
        yield _lines_of_rows(total)


def _lines_of_rows(total: int | None) -> Callable[[int], None]:
    done, last = 0, time.monotonic()

    def draw(rows: int) -> None:
        nonlocal done, last
        done += rows
        if time.monotonic() - last > ROWS_EVERY_SECONDS:
            last = time.monotonic()
            notice(f"{done:,} rows" + (f" of {total:,}" if total else ""))

    return draw


@contextmanager
def _bar_of_rows(total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.completed:,} rows"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("rows", total=total)
    with bar:
        yield lambda rows: bar.update(task, advance=rows)
