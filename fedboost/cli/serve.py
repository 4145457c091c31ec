"""Processes that run until they are stopped (aggregator, party, key holder); questions to an aggregator."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from fedboost.cli.common import (
    Aggregator,
    InsecureLoopback,
    Json,
    LogFormat,
    LogLevel,
    Once,
    SiteFile,
    Wait,
    gathers,
)
from fedboost.cli.output import print_json, show
from fedboost.errors import ConfigError, SessionFailed
from fedboost.gbdt.binned import MIN_SPARSE_FEATURES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.partition import SHARED
from fedboost.kernel_cache import COMPILING, folders, unready
from fedboost.privacy.identity import role_of
from fedboost.privacy.protections import scheme_of
from fedboost.runtime.config import check_address, choose_keys, read_aggregator
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import keep_freed_memory, share_freed_memory
from fedboost.runtime.local.simulation import predict_jointly, simulate
from fedboost.runtime.model import Model
from fedboost.runtime.net.keys import CERTIFICATE, Bundle, check_folder, read_certificates
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.telemetry import logger
from fedboost.terms.terms import Terms
from fedboost.views import aggregator as views

# ---- Processes that run until they are told to stop (SIGTERM or Ctrl-C) ---------------------------------


@dataclass(frozen=True)
class Part:
    """How a process takes part in sessions."""

    wait: Wait = 600
    once: Once = False
    insecure_loopback: InsecureLoopback = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    def take(self, role: str, config: Path) -> None:
        """Take part in sessions, as a party or as a key holder, which holds no rows."""
        from fedboost.runtime.site.node import PartyNode

        log = logger(role, self.log_format, self.log_level)
        site, bundle = site_and_keys(config, self.insecure_loopback, holds_rows=role == "party")
        node = PartyNode(site, log, bundle)
        if role == "party" and unready():  # before the first session, which others would wait in
            compile_usual(log.info)
        run_until_stopped(node.run(self.wait, self.once))
        if self.once and node.ended and node.ended[-1]:
            raise SessionFailed(f"the session ended without a model: {node.ended[-1]}")


def site_and_keys(
    config: Path, insecure_loopback: bool, holds_rows: bool | None
) -> tuple[PartyConfig, Bundle | None]:
    """A site's file, and its keys. ConfigError. holds_rows: as for `read_party`."""
    site = read_party(config, holds_rows)
    bundle = choose_keys(site.keys, "party", site.aggregator, insecure_loopback)
    if bundle is not None and bundle.signer.name != site.party:
        raise ConfigError(
            f"{config}: party is {site.party!r}, and {site.keys} is the bundle of {bundle.signer.name!r}"
        )
    return site, bundle


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or until SIGTERM or SIGINT, which cancel it."""
    keep_freed_memory()

    async def supervised() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(supervised())


# ---- `fedboost aggregator`: the process that parties and analysts dial ----------------------------------


AGGREGATOR_EPILOG = "Example: fedboost aggregator --config aggregator.toml"


def aggregator(
    config: Annotated[Path, typer.Option(help="The aggregator's file, TOML.")],
    insecure_loopback: InsecureLoopback = False,
    json: Json = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run the aggregator: parties and analysts dial it."""
    log = logger("aggregator", log_format, log_level)
    settings = read_aggregator(config)
    bundle = choose_keys(settings.keys, "aggregator", settings.listen, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(settings, log, bundle)
        try:
            await server.start()
        except BaseException:
            await server.pages.stop()
            raise
        console = server.pages.console
        if json:
            served = {} if console is None else {"console": console.url}
            print_json({"event": "listening", "address": server.address, **served})
        else:
            how = "without encryption" if bundle is None else "for parties and analysts with keys"
            print(f"aggregator listening on {server.address}, {how}", flush=True)
            if console is not None:
                print(f"console at {console.url}", flush=True)
        try:
            await server.serve()
        finally:
            await server.stop()

    share_freed_memory()
    run_until_stopped(serve())


# ---- `fedboost party` and `fedboost keyholder`: the processes of a site with rows, and of one without ---


PARTY_EPILOG = "Example: fedboost party --config party.toml"


@gathers("part", Part)
def party(config: SiteFile, part: Part) -> None:
    """Take part with this site's rows, session after session."""
    part.take("party", config)


KEYHOLDER_EPILOG = "Example: fedboost keyholder --config keyholder.toml"


@gathers("part", Part)
def keyholder(
    config: Annotated[Path, typer.Option(help="The key holder's file, TOML.")],
    part: Part,
) -> None:
    """Hold the key of sessions that encrypt sums: take part without rows, and open sums it cannot read."""
    part.take("keyholder", config)


# ---- `fedboost health` and `fedboost status`: questions to an aggregator --------------------------------


MemberKeys = Annotated[Path | None, typer.Option(help="Folder of a party's or an analyst's keys.")]
HEALTH_EPILOG = "Example: fedboost health --aggregator fed.example.org:7070 --keys keys/marie"


@dataclass(frozen=True)
class Question:
    """Options of a question to an aggregator."""

    keys: MemberKeys = None
    insecure_loopback: InsecureLoopback = False
    wait: Wait = 5

    def bundle(self, aggregator: str) -> Bundle | None:
        """The bundle of a party or of an analyst: anyone who may dial may ask."""
        check_address(aggregator, "--aggregator")
        role = None
        if self.keys is not None:
            check_folder(self.keys, "the bundle of a party or an analyst, which `fedboost keys` makes")
            role = role_of(read_certificates(self.keys / CERTIFICATE)[0])
        known = "party" if role == "party" else "analyst"
        return choose_keys(self.keys, known, aggregator, self.insecure_loopback)


@gathers("question", Question)
def health(aggregator: Aggregator, question: Question) -> None:
    """Ask an aggregator whether it is up: prints `serving`, or exits with code 2."""
    from fedboost.runtime.aggregator import parties as probe

    asyncio.run(probe.ask(aggregator, question.bundle(aggregator), question.wait))
    print("serving")


STATUS_EPILOG = "Example: fedboost status --aggregator fed.example.org:7070 --keys keys/marie"


@gathers("question", Question)
def status(aggregator: Aggregator, question: Question, json: Json = False) -> None:
    """Say who is connected to an aggregator, which sessions run or wait, and for whom. An analyst sees all of
    them, a party those that name it."""
    from fedboost.runtime.analyst import Connection

    facts = Connection(aggregator, question.bundle(aggregator)).status(question.wait)
    show(json, [facts.summary], views.status(facts))


# ---- `fedboost warm-up`: kernels compiled ahead, for images and for accounts that cannot write ----------


WARM_UP_EPILOG = "Example: FEDBOOST_CACHE=/var/cache/fedboost fedboost warm-up"


def warm_up() -> None:
    """Compile all kernels ahead, and say where they are kept: for images and service accounts."""
    start = perf_counter()
    folder = compile_all()
    print(f"kernels are compiled, in {perf_counter() - start:.0f} s, and kept in {folder}")


ROWS = 240
PARTIES = 3
KEY_BITS = 2048
"""The shortest that is taken: kernels are the same for all."""
RARE = [f"rare {number}" for number in range(MIN_SPARSE_FEATURES)]
"""Columns that are mostly 0."""
_SMALL = {"rounds": 2, "max_depth": 3, "max_bin": 16}
_FEATURES = {"numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c", "d", "e"]}}
_LABELS: dict[LabelKind, dict[str, Any]] = {
    LabelKind.INTERVAL: {"label": "days", "label_upper_bound": "until"},
    LabelKind.RELEVANCE: {"label": "classes", "group": "query"},
}
_OTHERS: tuple[dict[str, Any], ...] = (
    {"protection": "plain"},
    {"vote_top_k": 1},
    {"validation_fraction": 0.25, "eval_metric": ["logloss", "error", "auc", "aucpr"]},
    {"subsample": 0.5, "sampling_method": "gradient_based", "colsample_bynode": 0.5},
    {"subsample": 0.5, "sampling_method": "bootstrap"},
    {"grow_policy": "lossguide", "max_leaves": 4, "max_cat_to_onehot": 256},
)


def compile_all() -> Path:
    """Compile every kernel, by small trainings; return the folder that they are kept in."""
    table = _table()
    for settings in _trainings():
        model = simulate(Terms.read(settings), [table] * PARTIES).model
        model.predict(table)
    numeric = _settings(
        "binary:logistic", protection="plain", columns={"numeric": ["dose"], "label": "benign"}
    )
    simulate(Terms.read(numeric), [_sparse(table)])
    for apart in _by_columns():
        tables = {"own": table, "other": table}
        parts = simulate(Terms.read(apart), tables).party_models
        predict_jointly(parts, tables, min_common_rows=1)
    model = _of_many_rows(table)
    model.shap_values(table)
    model.partial_dependence(table, "age")
    if ready := unready():
        ready.touch()
    if (folder := folders().write) is None:
        raise ConfigError(f"the kernels are compiled, and cannot be kept: {folders().reasons}")
    return folder


def compile_usual(say: Callable[[str], None]) -> None:
    """Compile what most trainings need, unless that was done on this machine. say: takes a line before it
    begins, and one after."""
    if (ready := unready()) is None:
        return
    start = time.perf_counter()
    say(COMPILING)
    table = _table()
    for name in ("binary:logistic", "reg:squarederror", "multi:softprob"):
        simulate(Terms.read(_settings(name)), [table] * PARTIES).model.predict(table)
    _of_many_rows(table)
    ready.touch()
    say(f"kernels are compiled, in {time.perf_counter() - start:.0f} s")


def _of_many_rows(table: pa.Table) -> Model:
    """Train with so many rows that threads share their splits; return a model of these ones."""
    terms = Terms.read(_settings("binary:logistic", protection="plain"))
    simulate(terms, [table.take(np.arange(SHARED) % ROWS)], nthread=2)
    return simulate(terms, [table]).model


def _trainings() -> Iterator[dict[str, Any]]:
    for name in OBJECTIVES:
        yield _settings(name)
    for other in _OTHERS:
        yield _settings("binary:logistic", **other)
    yield _settings("reg:squarederror", columns={**_FEATURES, "label": "days", "weight": "weight"})
    yield _settings("binary:logistic", columns={"numeric": ["age", *RARE], "label": "benign"})
    ranges = {"age": [-4, 4], "dose": [0, 1]}
    for method in ("additive", "hist"):
        noisy = {"columns": {**_FEATURES, "ranges": ranges, "label": "benign"}, "protection": "masked"}
        yield {**noisy, "rounds": 2, "noise": {"epsilon": 8.0, "delta": 1e-6, "method": method}}


def _by_columns() -> Iterator[dict[str, Any]]:
    """Trainings of parties with different columns; one of encrypted rows, where its extra is installed."""
    held = {**_FEATURES, "label": "benign", "row_id": "id", "held": {"other": ["dose", "ward"]}}
    who = {"label_holder": "own", "min_common_rows": 1, "model": "parties", "columns": held}
    yield _settings("binary:logistic", protection="plain", **who)
    yield _settings("binary:logistic", protection="plain", min_rows_per_bin=2, **who)
    try:
        scheme_of("paillier")
    except ConfigError:
        return
    yield _settings("binary:logistic", protection="paillier", key_bits=KEY_BITS, **who)


def _settings(objective: str, **settings: Any) -> dict[str, Any]:
    kind = OBJECTIVES[objective].label_kind
    label = {"label": "classes" if objective == "multi:softprob" else "benign"}
    if kind is not LabelKind.CLASS:
        label = _LABELS.get(kind, {"label": "days"})
    own: dict[str, dict[str, Any]] = {
        "multi:softprob": {"num_class": 3},
        "reg:quantileerror": {"quantile_alpha": 0.5},
    }
    columns = {"columns": {**_FEATURES, **label}}
    return {"objective": objective, **_SMALL, **own.get(objective, {}), **columns, **settings}


def _table() -> pa.Table:
    """Return rows with missing values, columns that are mostly 0, levels, and a label of each kind."""
    draw = np.random.default_rng(0)
    age, dose = draw.normal(size=ROWS), draw.random(ROWS)
    days = draw.exponential(1, ROWS) + 0.1
    return pa.table(
        {
            "age": pa.array(np.where(draw.random(ROWS) < 0.1, np.nan, age), from_pandas=True),
            "dose": dose,
            "ward": np.array(list("abcde"))[draw.integers(0, 5, ROWS)],
            "benign": draw.integers(0, 2, ROWS),
            "classes": draw.integers(0, 3, ROWS),
            "days": days,
            "until": np.where(draw.random(ROWS) < 0.3, np.inf, days),
            "query": draw.integers(0, 12, ROWS),
            "id": np.arange(ROWS),
            "weight": draw.random(ROWS),
            **{name: np.where(draw.random(ROWS) < 0.97, 0.0, dose) for name in RARE},
        }
    )


def _sparse(table: pa.Table) -> SparseTable:
    """The labels, and one column of which only the values that are not 0 are kept."""
    values = table["dose"].to_numpy().astype(np.float32)
    rows = np.flatnonzero(values)
    return SparseTable(
        ROWS, table.select(["benign"]), ("dose",), np.array([0, rows.size]), rows, values[rows]
    )
