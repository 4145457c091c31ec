"""`fedboost train` and `fedboost simulate`: training over the network or in this process, with progress."""

import itertools
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedboost.cli import common
from fedboost.cli.output import notice, print_json, show
from fedboost.errors import ConfigError, SchemaMismatch
from fedboost.results.base import Ended, Traffic
from fedboost.results.model import Training as EndOfTraining
from fedboost.runtime.analyst import Training, connect
from fedboost.runtime.config import check_address
from fedboost.runtime.data.check import alike_sites
from fedboost.runtime.data.database import Database, Reading
from fedboost.runtime.data.draft import split_by_blocks, split_by_site, split_by_weights
from fedboost.runtime.data.locations import local_files, shown
from fedboost.runtime.data.shard import to_shard, undeclared
from fedboost.runtime.data.table import read_table
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import listing
from fedboost.runtime.files import check_writable, saved
from fedboost.runtime.local import simulation
from fedboost.runtime.model import Model, signature_facts
from fedboost.runtime.signed_model import PartyModel, SignedModel, session_file, written
from fedboost.runtime.site.models import NAME_CHARS
from fedboost.runtime.tasks import read_training
from fedboost.runtime.tracking import MLflowCallback
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms
from fedboost.views.aggregator import waiting
from fedboost.views.approval import not_hidden
from fedboost.views.model import figures
from fedboost.views.model import training as end_of_training
from fedboost.views.results import notices
from fedboost.views.words import MINUTE, counted, duration, one_line, shorten, size

TRAIN_EPILOG = (
    "Example: fedboost train terms.toml --aggregator fed.example.org:7070 --keys keys/marie --out model.json"
)


def train(
    terms: common.TermsFile,
    aggregator: common.Aggregator,
    out: Annotated[Path, typer.Option(help="File for the model.")],
    keys: common.Keys = None,
    insecure_loopback: common.InsecureLoopback = False,
    wait: common.Wait = 60,
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible",
            help="Write the session's details and the signatures to a separate file next to the model, so "
            "that the model file is byte-for-byte reproducible for the same terms, parties and rows.",
        ),
    ] = False,
    report: common.PageFile = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Also log the training run to this MLflow server.")
    ] = None,
    force: common.Force = False,
    json: common.Json = False,
) -> None:
    """Submit terms to an aggregator and receive the model. The command waits indefinitely for absent parties.
    The first Ctrl-C ends the training after the current round and saves the model trained so far. The second
    one stops immediately without saving."""
    check_address(aggregator, "--aggregator")
    agreed = read_training(terms)
    check_outputs(agreed, out, report, terms, force)
    with tracked(agreed, mlflow) as log:

        def on_waiting(parties: tuple[str, ...]) -> None:
            notice(waiting(parties, session.absent))

        session = connect(aggregator, keys, insecure_loopback).train(agreed, wait, on_waiting)
        follow(session, agreed, json, log or (lambda row: None))
        model, asked = session.model, session.asked
        if asked is not None:
            notice(f"this is the model of your request from {asked:%Y-%m-%d %H:%M} UTC, under the same terms")
        save(model, out, reproducible)
        if report is not None:
            write_report(report, model, session, keys)
        show_end(json, model, session.traffic, out, session.uncounted)
        notice_parts(model)
        if log is not None:
            log.log_model(model)


# ---- Tables: the rows of each site, and notices about rows ----------------------------------------------
# Guarantees: notices name columns, never rows.


@contextmanager
def rows_as_in_file(table: Any, terms: Terms, data: object) -> Iterator[None]:
    """If rows do not fit the terms, report the row number in the file, not the number among one site's rows.
    Raises ConfigError instead of SchemaMismatch."""
    try:
        yield
    except SchemaMismatch:
        try:
            to_shard(table, terms, shown(data))
        except SchemaMismatch as error:
            raise ConfigError(
                "table-misfit", f"the rows of {shown(data)} do not fit the terms", error.detail
            ) from None
        raise


def rows_of_sites(terms: Terms, terms_file: Path, table: Any, data: object, column: str) -> dict[str, Any]:
    """Split a table by the column that contains the site of each row. Returns site -> its rows. Prints a
    notice if names of sites differ only in whitespace or case.

    Args:
        terms: the terms. If they use the column, it is kept in the rows.
        terms_file: path of the terms, for messages.
        table: the rows of all sites.
        data: location of the table, for messages.
        column: name of the column.

    Raises:
        ConfigError: the sites are not the parties in the terms, or the table is sparse.
    """
    if isinstance(table, SparseTable):
        raise ConfigError(
            "table-sparse-sites",
            f"{shown(data)} is a sparse table, which cannot have a column with site names; use a .csv, "
            f".tsv or .parquet file",
        )
    sites = split_by_site(table, column, column in (*terms.columns.features, *terms.columns.others))
    if terms.parties and set(terms.parties) != set(sites):
        raise ConfigError(
            "sites-not-parties",
            f"{terms_file} names the parties {listing(sorted(terms.parties))}, but column {column!r} of "
            f"{shown(data)} contains {listing(list(sites))}",
        )
    for line in notices(alike_sites(sites)):
        notice(line)
    return sites


def own_tables(terms: Terms, given: Sequence[str]) -> dict[str, str]:
    """Read --data options of the form PARTY=TABLE. Returns party -> location of its table, or an empty dict
    if there is a single table with all rows. Raises ConfigError if a party has no table or several tables."""
    pairs = [text.partition("=") for text in given]
    if len(given) == 1 and pairs[0][0] not in terms.parties:
        return {}
    tables: dict[str, str] = {}
    for name, sign, table in pairs:
        if not sign or not table:
            raise ConfigError(
                "data-party-missing", f"--data {name} does not say whose table it is; use --data PARTY={name}"
            )
        if terms.parties and name not in terms.parties:
            known = listing(list(terms.parties))
            raise ConfigError(
                "data-party-unknown", f"--data {name}={table}: {name!r} is not one of the parties ({known})"
            )
        if name in tables:
            raise ConfigError(
                "data-party-twice",
                f"--data {name}={table}: party {name!r} already has the table {tables[name]}",
            )
        tables[name] = table
    absent = [name for name in terms.parties if name not in tables]
    if absent:
        raise ConfigError("data-missing", f"party {absent[0]!r} has no table; add --data {absent[0]}=TABLE")
    return tables


def notice_undeclared(table: pa.Table, schema: Schema) -> None:
    """Print a notice for each categorical column with categories that the terms do not declare."""
    notice_categories(undeclared(table, schema))


def notice_categories(strange: Iterable[tuple[str, str, int]]) -> None:
    """Print a notice for each column with undeclared categories. strange: tuples of the column, an example of
    such a category, and the number of rows that have one."""
    for column, category, count in strange:
        notice(
            f"{column} has {counted(count, 'row')} with undeclared categories ({category!r}, ...), which are "
            f"treated as missing"
        )


def notice_shared_groups(table: pa.Table, group: str, site: str) -> None:
    """Print a notice if ranking groups have rows at several sites, each of which ranks its own rows."""
    pairs = table.select([group, site]).group_by([group, site]).aggregate([])
    counts = Counter(pairs.column(group).to_pylist())
    shared = [name for name, sites in counts.items() if sites > 1]
    if shared:
        notice(
            f"several sites have rows of the same {counted(len(shared), 'group')} of {group} "
            f"({shared[0]!r}, ...); each site ranks its own rows as a separate group"
        )


# ---- Trained models: saved and shown -------------------------------------------------------------------


def save(model: SignedModel, out: Path | None, reproducible: bool = False) -> None:
    """Save a model to `out`, if given. If that fails, the model is saved to a temporary folder, because the
    aggregator no longer has it, and ConfigError is raised. reproducible: as in `Model.save`."""
    if out is None:
        return
    try:
        model.save(out, reproducible)
    except ConfigError as error:
        spare = Path(tempfile.mkdtemp(prefix="fedboost-")) / out.name
        model.save(spare, reproducible)
        raise ConfigError(
            "model-saved-elsewhere", f"{error}; the model was saved to {spare} instead"
        ) from None


def show_end(
    json: bool, model: SignedModel, traffic: Traffic, file: Path | None, since_restart: bool = False
) -> None:
    """Print the summary of a training run.

    Args:
        json: True to print JSON instead of text.
        model: the trained model.
        traffic: bytes by party.
        file: path of the saved model, None if it was not saved.
        since_restart: True if the aggregator restarted, so that `traffic` covers only the time since then.
    """
    saved_as = str(file) if file else None
    end = EndOfTraining.of(model.outline, traffic, saved_as, traffic_since_restart=since_restart)
    show(json, [end.summary], end_of_training(end))


def check_outputs(agreed: Terms, out: Path, report: Path | None, terms: Path, force: bool) -> None:
    """Raise ConfigError if the model, its session file or its report cannot be written after training."""
    files = out, session_file(out)
    for file in files:
        check_writable(file, terms, force=force)
    common.check_page(report, terms, force=force, outputs=files)
    if report is not None and agreed.keeps_parts:
        raise ConfigError(
            "report-of-parts", "--report requires a whole model, but here each party keeps its own part"
        )


def write_report(page: Path, model: SignedModel, session: Training, keys: Path | None) -> None:
    """Write the report of a trained model.

    Args:
        page: path of the HTML page.
        model: the model, which must be whole.
        session: the session that trained it; its traffic and time are shown.
        keys: folder with the analyst's keys, to check the signatures; None to leave them unchecked.
    """
    assert isinstance(model, Model)
    signatures = None if keys is None else signature_facts(model, keys)
    traffic, history = session.traffic, session.history
    followed = Ended(model.terms, (), traffic, history, since_restart=session.uncounted)
    saved(written(model, None, signatures, followed), page)


def notice_parts(model: SignedModel) -> None:
    """If each party keeps a part of the model, print the model's id and where the parts are."""
    if isinstance(model, PartyModel):
        name = model.id[:NAME_CHARS]
        notice(f"model id {name}: each party keeps its part in its state folder, as models/{name}.json")


@contextmanager
def tracked(terms: Terms, uri: str | None) -> Iterator[MLflowCallback | None]:
    """Log training to the MLflow server at `uri`, if given. Yields the logger, or None. Failures to log
    during training are printed as notices."""
    if uri is None:
        yield None
        return
    with warnings.catch_warnings(), MLflowCallback(terms, uri) as log:
        warnings.showwarning = lambda message, *about, **more: notice(str(message))
        yield log


# ---- Progress of training: a bar on a terminal, plain lines elsewhere, or JSON --------------------------
# Guarantees: nothing is drawn before there is something to show. Without a bar, about ten lines are printed.


Draw = Callable[[Mapping[str, float]], None]
"""Function to call with each round's row of the history: metrics, bytes and seconds by name."""
SLOW_SECONDS = 30.0
"""Without a progress bar, a line is also printed when this many seconds have passed since the last."""
BESIDE = 42
"""Number of terminal columns reserved for the round number, the bar, the bytes and the time."""
_BETWEEN = ", "
RECENT = 5  # number of last rounds from which the remaining time is estimated
ESTIMATED_SECONDS = 3600.0
"""The remaining time is estimated from the progress in the last seconds, up to this many. The period is long
because, with encryption, a round may take minutes."""


def notice_not_hidden(terms: Terms) -> None:
    """Unless the protection hides each party's values, print what the aggregator and other parties see."""
    if not terms.protection.hides:
        notice(f"protection {terms.hiding.protection}: {not_hidden(terms)}")


@contextmanager
def progress(terms: Terms, json: bool) -> Iterator[Draw]:
    """Show the progress of training. Yields the function to call after each round."""
    if json:
        yield lambda row: print_json({"event": "round", **row})
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(None, table_column=Column(max_width=40)),
        TextColumn("{task.fields[metric]}", markup=False, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[bytes]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar, rounds = Progress(*columns, speed_estimate_period=ESTIMATED_SECONDS), terms.trees.rounds
    task = bar.add_task("train", total=rounds, metric="", bytes="")
    has_bar = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    total = unsaid = 0.0
    seconds = list[float]()

    def draw(row: Mapping[str, float]) -> None:
        nonlocal total, unsaid
        total += row["bytes"]
        if has_bar:
            bar.start()  # not before there is something to show
            metric = _last(figures(row, terms, _BETWEEN).split(_BETWEEN), bar.console.width - BESIDE)
            bar.update(task, advance=1, metric=metric, bytes=size(total))
            return
        unsaid += row["seconds"]
        seconds.append(row["seconds"])
        done = int(row["round"]) + 1
        if done == rounds or done % max(1, rounds // 10) == 0 or unsaid > SLOW_SECONDS:
            unsaid = 0.0
            left = time_left(seconds, rounds - done)
            texts = f"round {done}/{rounds}", figures(row, terms), size(total), left
            print(" ".join(filter(None, texts)), flush=True)

    try:
        yield draw
    finally:
        if has_bar:
            bar.stop()


def time_left(seconds: Sequence[float], rounds: int) -> str:
    """Return the estimated time of the remaining rounds as a phrase, or "" if under a minute. seconds: of
    each finished round; the first, in which kernels are compiled and keys created, is ignored."""
    left = median(seconds[1:][-RECENT:] or [0.0]) * rounds
    return f"about {duration(left)} left" if left >= MINUTE else ""


def _last(texts: list[str], room: int) -> str:
    """Return as many of the last texts as fit into `room` terminal columns, joined. Returns at least the last
    one, because early stopping uses the last metric."""
    while len(texts) > 1 and len(" ".join(texts)) > room:
        texts = texts[1:]
    return " ".join(texts)


@contextmanager
def steps(total: int, json: bool) -> Iterator[Callable[[str], None]]:
    """Show the progress of `total` training runs. Yields a function to call with each run's name."""
    name_of = TextColumn("{task.fields[name]}", markup=False)
    columns = TextColumn("training"), MofNCompleteColumn(), BarColumn(20), name_of, TimeRemainingColumn()
    hidden = json or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task, numbers = bar.add_task("train", total=total, name=""), itertools.count()

        def step(name: str) -> None:
            number = next(numbers)
            bar.update(task, advance=min(number, 1), name=shorten(one_line(name), 30))
            if hidden and not json and number % max(1, total // 10) == 0:
                notice(f"training {number + 1}/{total}: {name}")

        yield step


# ---- Ctrl-C during training: the first one ends it after the current round, the second one immediately ---
# Guarantees: before the end of the first round, and the second time, Ctrl-C raises KeyboardInterrupt as
# usual. If the parent process disabled Ctrl-C, it remains disabled.


class Interruption:
    """Handler of Ctrl-C that ends training early but keeps the finished rounds. After Ctrl-C, `asked` is true
    and `finish` is called in another thread. The training loop calls `count` after each round."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.asked = False
        self._finish = finish
        self._rounds = 0
        # Not in the signal handler, which may run in the middle of a print or while a gRPC lock is held.
        self._teller = threading.Thread(target=self._tell, daemon=True)

    def count(self) -> None:
        self._rounds += 1

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT. Raises KeyboardInterrupt if no round is finished yet, or for the second signal."""
        if self.asked or not self._rounds:
            raise KeyboardInterrupt
        self.asked = True
        self._teller.start()

    def wait(self) -> None:
        """Wait until `finish` has returned, if it was called."""
        if self.asked:
            self._teller.join()

    def _tell(self) -> None:
        notice(
            f"stopping after the current round ({self._rounds} done); press Ctrl-C again to stop "
            "immediately, without saving"
        )
        self._finish()


@contextmanager
def finish_at_interrupt(finish: Callable[[], None] = lambda: None) -> Iterator[Interruption]:
    """At the first Ctrl-C, end training but keep the finished rounds. finish: function that ends training; it
    is called in another thread."""
    interruption = Interruption(finish)
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, interruption.take)
    try:
        yield interruption
        interruption.wait()
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


# ---- Training over the network, followed until it ends -------------------------------------------------


def follow(training: Training, terms: Terms, json: bool, on_row: Draw) -> None:
    """Show the progress of a session until it ends, or until Ctrl-C.

    Args:
        training: the session.
        terms: its terms.
        json: True to print rounds as JSON.
        on_row: function to call with each row of the history.
    """
    try:
        with finish_at_interrupt(training.finish) as interruption, progress(terms, json) as draw:
            for row in training:
                if row["round"] == 0:
                    notice_not_hidden(terms)
                draw(row)
                on_row(row)
                interruption.count()
    except KeyboardInterrupt:
        training.stop()
        raise


# ---- `fedboost simulate`: training in this process ------------------------------------------------------


ALL = ""  # key of a table with the rows of all parties
SIMULATE_EPILOG = "Example: fedboost simulate terms.toml --data all.csv --site hospital --out model.json"


@common.reads_a_table
def simulate(
    terms: common.TermsFile,
    data: common.Tables,
    read: Reading,
    site: common.Site = None,
    parties: Annotated[
        int | None, typer.Option(help="Split the rows evenly among this many parties.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for splitting rows and for message order.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the model.")] = None,
    force: common.Force = False,
    json: common.Json = False,
) -> None:
    """Train in one process, as if the rows were at several sites. The first Ctrl-C ends the training after
    the current round. The second one stops immediately without saving."""
    if site is not None and parties is not None:
        raise ConfigError("option-conflict", "--site and --parties cannot be combined; remove one of them")
    agreed = read_training(terms)
    sources = _sources(agreed, data, read, site is not None or parties is not None)
    inputs = [name for source in sources.values() for name in local_files(source)]
    for file in (out, session_file(out)) if out is not None else ():
        check_writable(file, terms, *inputs, force=force)
    tables = {name: read_table(source, None, read.options) for name, source in sources.items()}
    shards: Mapping[str, Any] = tables
    misfits: AbstractContextManager[None] = nullcontext()
    if ALL in tables:
        shards = _shares(agreed, terms, tables[ALL], sources[ALL], site, parties, seed)
        if not agreed.blocks:
            misfits = rows_as_in_file(tables[ALL], agreed, sources[ALL])
    with misfits, finish_at_interrupt() as interruption, progress(agreed, json) as draw:

        def after_round(row: Mapping[str, float]) -> None:
            draw(row)
            interruption.count()

        callbacks = [lambda number, metrics: interruption.asked]
        result = simulation.simulate(agreed, shards, seed=seed, on_round=after_round, callbacks=callbacks)
    for name, read_rows in tables.items():
        notice_undeclared(read_rows, agreed.blocks.columns_of(name))
    if site is not None and agreed.columns.group is not None:
        notice_shared_groups(tables[ALL], agreed.columns.group, site)
    save(result.model, out)
    show_end(json, result.model, result.traffic, out)


def _sources(
    agreed: Terms, data: Sequence[str], read: Reading, splits_rows: bool
) -> dict[str, str | Database]:
    """Return party -> location of its table, or ALL -> location of a single table. splits_rows: True if
    --site or --parties is given."""
    own = own_tables(agreed, data)
    if splits_rows and (own or agreed.blocks):
        reason = "each party has its own table" if own else "under these terms parties have different columns"
        raise ConfigError("option-split", f"--site and --parties split one table by rows, but {reason}")
    return {name: read.source(text) for name, text in (own or {ALL: data[0]}).items()}


def _shares(
    agreed: Terms, terms: Path, table: Any, source: Any, site: str | None, parties: int | None, seed: int
) -> dict[str, Any]:
    """Return party -> its share of a table: its columns if parties hold different columns, else the rows of
    its site or an equal number of rows."""
    if agreed.blocks:
        return split_by_blocks(table, agreed, seed)
    if site is not None:
        return rows_of_sites(agreed, terms, table, source, site)
    by_terms = parties is None and agreed.parties
    names = agreed.parties if by_terms else [f"party-{i + 1}" for i in range(parties or 3)]
    return split_by_weights(table, names, [1.0] * len(names), seed, agreed.columns.group)
