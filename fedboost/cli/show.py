"""What people see: progress, tables, sizes. Promises plain lines where standard output is no terminal."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedboost.errors import quoted
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.terms import Schema, Terms
from fedboost.runtime.data.features import undeclared
from fedboost.runtime.model_file import Model
from fedboost.runtime.telemetry import Row

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LINE = 2000
ACCOUNTED = ("round", "seconds", "bytes")


def signatures(model: Model) -> str:
    """Which parties signed what they did for a model, and which did not."""
    missing = [party for party in model.parties if party not in model.attestations]
    if len(missing) == len(model.parties):
        return f"protection {model.protection}, signed by nobody"
    lacking = f", NOT by {', '.join(missing)}" if missing else ""
    return f"protection {model.protection}, signed by {', '.join(model.attestations)}{lacking}"


def absences(model: Model) -> list[str]:
    """From which round on sums were without which parties; nothing where they always were over all."""
    lines = []
    for first, roster in model.rosters.items():
        away = [party for party in model.parties if party not in roster]
        lines.append(
            f"from round {first + 1} on " + (f"without {', '.join(away)}" if away else "with all again")
        )
    return lines


def print_json(**values: Any) -> None:
    """One object on one line of standard output."""
    print(json.dumps(values), flush=True)


@contextmanager
def unless_nobody_reads() -> Iterator[None]:
    """Print for a reader that may go away, as `| head -1` does: what is left to print is then dropped."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer


def notice(text: str) -> None:
    """A line on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def notice_not_hidden(terms: Terms) -> None:
    """Print that the aggregator sees single parties' numbers, where it does."""
    if not PROTECTIONS[terms.protection].hides:
        observed = "each party's own counts, histograms and metric sums"
        notice(f"protection {terms.protection}: the aggregator sees {observed}")


def notice_undeclared(table: "pa.Table", schema: Schema) -> None:
    """A line for each categorical column that has levels nobody declared."""
    for column, level, count in undeclared(table, schema):
        notice(
            f"{column} has {count} rows with a level nobody declared ({level!r}, ...): they count as missing"
        )


def notice_shared_groups(table: "pa.Table", group: str, site: str) -> None:
    """A line if groups have rows at several sites: they are ranked as a group of each."""
    pairs = table.select([group, site]).group_by([group, site]).aggregate([])
    counts = Counter(pairs.column(group).to_pylist())
    shared = [name for name, sites in counts.items() if sites > 1]
    if shared:
        notice(
            f"groups of {group} with rows at several sites: {len(shared)} ({shared[0]!r}, ...); groups do "
            f"not cross sites, so each site's rows of them are a group of their own"
        )


def printable(text: str) -> str:
    """The text on one line of about 2,000 characters at most: names and peers' words may hold anything."""
    return quoted(text, MAX_LINE)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def metrics_of(row: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a row of the history, over the rows of all parties."""
    return metrics.of_all({name: value for name, value in row.items() if name not in ACCOUNTED})


def figures(row: Mapping[str, float], terms: Terms, between: str = " ") -> str:
    """The same in words, a dash for those that are not published."""
    found = metrics_of(row)
    whole = [of for of in terms.sets if metrics.OF_PARTY not in of]
    names = [("" if of == metrics.TRAIN else f"{of}-") + name for of in whole for name in terms.metrics]
    shown = dict.fromkeys(names, "-") | {name: f"{value:.5f}" for name, value in found.items()}
    return printable(between.join(f"{name} {value}" for name, value in shown.items()))


@contextmanager
def progress(terms: Terms, as_json: bool) -> Iterator[Callable[[Row], None]]:
    """A function to call with each row of the history: draws a bar, prints lines where standard output is no
    terminal, or prints JSON."""
    if as_json:
        yield lambda row: print_json(event="round", **row)
        return
    so_far = 0.0

    def told(row: Row) -> tuple[str, str]:
        nonlocal so_far
        so_far += row["bytes"]
        return figures(row, terms), size(so_far)

    if not sys.stdout.isatty():

        def tell(row: Row) -> None:
            numbers, total = told(row)
            done = int(row["round"]) + 1
            if done == terms.rounds or done % max(1, terms.rounds // 10) == 0:
                print(" ".join(filter(None, (f"round {done}/{terms.rounds}", numbers, total))), flush=True)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[metric]}", markup=False),
        TextColumn("{task.fields[bytes]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar = Progress(*columns)
    task = bar.add_task("train", total=terms.rounds, metric="", bytes="")

    def draw(row: Row) -> None:
        numbers, total = told(row)
        bar.start()  # not before there is something to show
        bar.update(task, advance=1, metric=numbers, bytes=total)

    try:
        yield draw
    finally:
        bar.stop()


def print_party_metrics(row: Mapping[str, float], parties: Iterable[str]) -> None:
    """Metrics of each party's rows alone, if there are any in a row of the history; a dash for those that are
    not published."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = metrics.by_party(row)
    names = list(dict.fromkeys(name for of in found.values() for name in of))
    table = Table("party", *names, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for party in parties:
        of = found.get(party, {})
        told = (f"{of[name]:.5f}" if name in of else "-" for name in names)
        table.add_row(Text(printable(party)), *told)
    if found:
        Console().print(table)


def print_traffic(traffic: Mapping[str, tuple[int, int]], rounds: int | None) -> None:
    """Bytes of each party: in all, and sent per round, unless it is not known in how many rounds."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    per_round = [] if rounds is None else ["sent per round"]
    table = Table("party", "sent", "received", *per_round, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for party, (sent, received) in traffic.items():
        each = [] if rounds is None else [size(sent / max(rounds, 1))]
        table.add_row(Text(printable(party)), size(sent), size(received), *each)
    Console().print(table)
