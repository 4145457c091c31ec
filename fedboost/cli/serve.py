"""Long-running processes (aggregator, party, key holder), status queries, and `fedboost warm-up`."""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from fedboost.cli import common
from fedboost.cli.output import print_json, show
from fedboost.errors import ConfigError, SessionFailed
from fedboost.gbdt.binned import MIN_SPARSE_FEATURES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.threads import SEARCH, SEARCH_THREADS, SHARED, Threads
from fedboost.kernel_cache import folders, say_compiling, unready
from fedboost.privacy.identity import role_of
from fedboost.privacy.protections import scheme_of
from fedboost.runtime.config import (
    check_address,
    choose_keys,
    is_loopback,
    read_adder,
    read_aggregator,
    to_toml,
)
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import keep_freed_memory, share_freed_memory
from fedboost.runtime.local.simulation import predict_jointly, simulate
from fedboost.runtime.model import Model
from fedboost.runtime.net.keys import CERTIFICATE, Bundle, check_folder, read_certificates
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.telemetry import logger
from fedboost.runtime.web.serving import need_extra
from fedboost.system import LOCAL, POSIX, at_stop
from fedboost.terms.terms import Terms
from fedboost.views import aggregator as views

# ---- Processes that run until SIGTERM or Ctrl-C ---------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Options of a process that takes part in sessions (a party or a key holder)."""

    wait: common.Wait = 600
    once: common.Once = False
    insecure_loopback: common.InsecureLoopback = False
    log_format: common.LogFormat = "text"
    log_level: common.LogLevel = "info"

    def take(self, role: str, config: Path) -> None:
        """Take part in sessions until stopped: as a party with rows, or as a key holder without rows."""
        from fedboost.runtime.site.node import PartyNode

        log = logger(role, self.log_format, self.log_level)
        site, bundle = site_and_keys(config, self.insecure_loopback, holds_rows=role == "party")
        node = PartyNode(site, log, bundle)
        if role == "party" and unready():  # else other parties would wait in the first session
            compile_usual(log.info)
        run_until_stopped(node.run(self.wait, self.once))
        if self.once and node.ended and node.ended[-1]:
            raise SessionFailed("session-no-model", f"the session ended without a model: {node.ended[-1]}")


def site_and_keys(
    config: Path, insecure_loopback: bool, holds_rows: bool | None
) -> tuple[PartyConfig, Bundle | None]:
    """Return a site's configuration and its key bundle; the bundle is None if there are no keys. holds_rows:
    as in `read_party`. Raises ConfigError if the bundle belongs to another party."""
    site = read_party(config, holds_rows)
    remote = [address for address in site.aggregator if not is_loopback(address)]
    bundle = choose_keys(site.keys, "party", (remote or site.aggregator)[0], insecure_loopback)
    if bundle is not None and bundle.signer.name != site.party:
        raise ConfigError(
            "keys-other-party",
            f"{config} sets party = {site.party!r}, but {site.keys} is the bundle of {bundle.signer.name!r}",
        )
    return site, bundle


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends, or until it is cancelled by SIGTERM or SIGINT."""
    keep_freed_memory()

    async def supervised() -> None:
        task = asyncio.ensure_future(work)
        at_stop(asyncio.get_running_loop(), task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(supervised())


def need_posix(command: str) -> None:
    """Raise ConfigError on a system without the limits and durable files that a server for others needs."""
    if not POSIX and LOCAL not in os.environ:
        raise ConfigError(
            "system-unsupported",
            f"{command} runs only on Linux and macOS; run it there, and connect parties and analysts to it",
        )


# ---- `fedboost aggregator`: the process that parties and analysts connect to ----------------------------


AGGREGATOR_EPILOG = "Example: fedboost aggregator --config aggregator.toml"


def aggregator(
    config: Annotated[Path, typer.Option(help="Aggregator's configuration file (TOML).")],
    adders: Annotated[
        int,
        typer.Option(
            help="Number of adder processes to run on this machine, at the next ports. They use further "
            "cores if many sites connect.",
            min=0,
            max=64,
        ),
    ] = 0,
    adder_keys: Annotated[
        Path | None, typer.Option(help="With --adders: folder of their key bundle.")
    ] = None,
    insecure_loopback: common.InsecureLoopback = False,
    json: common.Json = False,
    log_format: common.LogFormat = "text",
    log_level: common.LogLevel = "info",
) -> None:
    """Run the aggregator, which parties and analysts connect to."""
    need_posix("fedboost aggregator")
    log = logger("aggregator", log_format, log_level)
    settings = read_aggregator(config)
    bundle = choose_keys(settings.keys, "aggregator", settings.listen, insecure_loopback)
    options = ["--log-format", log_format, "--log-level", log_level]
    options += ["--insecure-loopback"] if insecure_loopback else []
    if adder_keys is not None and not adders:
        raise ConfigError("option-conflict", "--adder-keys requires --adders")
    if adders:  # before anything starts
        choose_keys(adder_keys, "adder", settings.listen, insecure_loopback, "--adder-keys FOLDER")

    async def serve() -> None:
        from fedboost.runtime.aggregator.server import AggregatorServer

        server = AggregatorServer(settings, log, bundle)
        try:
            await server.start()
        except BaseException:
            await server.pages.stop()
            raise
        gc.freeze()  # what exists now stays, and need not be looked through again and again
        console = server.pages.console
        if json:
            served = {} if console is None else {"console": console.url}
            print_json({"event": "listening", "address": server.address, **server.tunnels, **served})
        else:
            how = "without encryption" if bundle is None else "for parties and analysts with keys"
            print(f"aggregator listening on {server.address}, {how}", flush=True)
            for kind, address in server.tunnels.items():
                print(f"tunnels over {kind} on {address}", flush=True)
            if console is not None:
                print(f"console at {console.url}", flush=True)
        try:
            async with local_adders(server.address, adders, adder_keys, log, options):
                await server.serve()
        finally:
            await server.stop()

    share_freed_memory()
    SEARCH.set(Threads(min(os.cpu_count() or 1, SEARCH_THREADS)))  # parties wait meanwhile
    run_until_stopped(serve())


@contextlib.asynccontextmanager
async def local_adders(
    address: str, number: int, keys: Path | None, log: Any, options: list[str]
) -> AsyncIterator[None]:
    """Context manager that runs adder processes at the ports after the aggregator's. keys: folder of their
    key bundle, or None to run without keys; options: further options of each process."""
    if not number:
        yield
        return

    from fedboost.runtime.aggregator.adder import keep_running

    host, _, port = address.rpartition(":")
    upstream = f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address
    with TemporaryDirectory(prefix="fedboost-") as folder:
        files = [Path(folder, f"adder-{each}.toml") for each in range(1, number + 1)]
        for each, file in enumerate(files, 1):
            values = {"listen": f"{host}:{int(port) + each}", "upstream": upstream}
            values |= {} if keys is None else {"keys": str(keys.resolve())}
            file.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in values.items()))
        running = asyncio.create_task(keep_running(files, log, *options))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


# ---- `fedboost adder`: a process between some sites and the aggregator ----------------------------------


ADDER_EPILOG = "Example: fedboost adder --config adder.toml"


def adder(
    config: Annotated[Path, typer.Option(help="Adder's configuration file (TOML).")],
    insecure_loopback: common.InsecureLoopback = False,
    json: common.Json = False,
    log_format: common.LogFormat = "text",
    log_level: common.LogLevel = "info",
) -> None:
    """Run an adder, which adds the reports of some sites and sends one sum to the aggregator. Sites connect
    to it instead of the aggregator."""
    need_posix("fedboost adder")
    settings = read_adder(config)
    bundle = choose_keys(settings.keys, "adder", settings.listen, insecure_loopback)
    log = logger("adder", log_format, log_level).bind(
        adder=settings.listen if bundle is None else f"{bundle.signer.name} at {settings.listen}"
    )
    if bundle is None:
        choose_keys(None, "adder", settings.upstream, insecure_loopback)

    async def serve() -> None:
        from fedboost.runtime.aggregator.adder import AdderServer, until_orphaned

        server = AdderServer(settings, log, bundle)
        await server.start()
        gc.freeze()
        if json:
            print_json({"event": "listening", "address": server.address, **server.tunnels})
        else:
            print(f"adder listening on {server.address}, for {settings.upstream}", flush=True)
        running = asyncio.create_task(server.run())
        orphaned = asyncio.create_task(until_orphaned())
        try:
            done, _ = await asyncio.wait({running, orphaned}, return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                running.result()
        finally:
            running.cancel()
            orphaned.cancel()
            await asyncio.gather(running, orphaned, return_exceptions=True)
            await server.stop()

    share_freed_memory()
    run_until_stopped(serve())


# ---- `fedboost party` and `fedboost keyholder`: the processes of a site with rows, and of one without ---


PARTY_EPILOG = "Example: fedboost party --config party.toml"


@common.gathers("part", Part)
def party(config: common.SiteFile, part: Part) -> None:
    """Run this site's party: connect to the aggregator and take part in sessions, one after another."""
    part.take("party", config)


SERVE_EPILOG = "Example: fedboost serve --config bank.toml"


def serve(
    config: common.SiteFile,
    model: Annotated[
        Path | None,
        typer.Option(help="This site's part of the model (default: the only one in its models folder)."),
    ] = None,
    wait: common.Wait = 600,
    log_format: common.LogFormat = "text",
    log_level: common.LogLevel = "info",
) -> None:
    """Run this site's scoring service: score rows online with the parts of a model that the parties keep. The
    label holder serves a REST API; other parties answer about their rows. Runs beside `fedboost party`."""
    from fedboost.runtime.site import service

    log = logger("serve", log_format, log_level)
    site, bundle = site_and_keys(config, False, holds_rows=None)
    part = service.part_of(site, model)

    def app_of(own: service.LabelService) -> Any:
        need_extra("fedboost serve", "console")
        from fedboost.runtime.site.scores_api import scores_app

        return scores_app(site, own, log)

    if unready():
        compile_usual(log.info)
    run_until_stopped(service.serve(site, bundle, part, wait, log, app_of))


KEYHOLDER_EPILOG = "Example: fedboost keyholder --config keyholder.toml"


@common.gathers("part", Part)
def keyholder(
    config: Annotated[Path, typer.Option(help="Key holder's configuration file (TOML).")], part: Part
) -> None:
    """Take part in sessions as the key holder, without rows. The key holder has the decryption key. The
    aggregator blinds sums before the key holder decrypts them, so that the key holder cannot read them."""
    part.take("keyholder", config)


# ---- `fedboost status`: queries to an aggregator --------------------------------------------------------


MemberKeys = Annotated[Path | None, typer.Option(help="Folder with the keys of a party or an analyst.")]
STATUS_EPILOG = (
    "Example: fedboost status --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost status --aggregator fed.example.org:7070 --keys keys/marie --health\n\n"
    "Example: fedboost status --aggregator eu.example.org:7071 --keys keys/marie --health --adder eu"
)


def status(
    aggregator: common.Aggregator,
    keys: MemberKeys = None,
    insecure_loopback: common.InsecureLoopback = False,
    wait: common.Wait = 5,
    health: Annotated[
        bool,
        typer.Option(
            "--health",
            help="Only check that the aggregator is up: print `serving`, or exit with code 2.",
        ),
    ] = False,
    adder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the adder at this address, with --health.")
    ] = None,
    json: common.Json = False,
) -> None:
    """Show an aggregator's sessions, and who is connected to it. Lists running and waiting sessions, and the
    parties that each session waits for. Analysts see all sessions; parties see only their own sessions."""
    if health and json:
        raise ConfigError("option-conflict", "--json and --health cannot be combined; remove one of them")
    if adder is not None and not health:
        raise ConfigError(
            "option-conflict",
            "--adder requires --health, because an adder has no status; ask the aggregator for the status",
        )
    bundle = _member_bundle(aggregator, keys, insecure_loopback)
    if health:
        from fedboost.runtime.aggregator import parties as probe

        asyncio.run(probe.ask(Server(aggregator, adder or ""), bundle, wait))
        print("serving")
        return
    from fedboost.runtime.analyst import Connection

    facts = Connection(Server(aggregator), bundle).status(wait)
    show(json, [facts.summary], views.status(facts))


def _member_bundle(aggregator: str, keys: Path | None, insecure_loopback: bool) -> Bundle | None:
    """Return the key bundle of a party or an analyst, or None if there are no keys. Every member may query
    the status."""
    check_address(aggregator, "--aggregator")
    role = None
    if keys is not None:
        check_folder(keys, "the bundle of a party or an analyst, created by `fedboost keys`")
        role = role_of(read_certificates(keys / CERTIFICATE)[0])
    return choose_keys(keys, "party" if role == "party" else "analyst", aggregator, insecure_loopback)


# ---- `fedboost warm-up`: kernels compiled in advance, for images and for accounts that cannot write -----


WARM_UP_EPILOG = "Example: FEDBOOST_CACHE=/var/cache/fedboost fedboost warm-up"


def warm_up() -> None:
    """Compile all kernels before the first training run. Prints the cache folder. Run this command when you
    build container images, or when you set up a service account."""
    start = perf_counter()
    folder = compile_all()
    print(f"kernels compiled in {perf_counter() - start:.0f} s and cached in {folder}")


ROWS = 240
PARTIES = 3
KEY_BITS = 2048  # the shortest allowed: kernels are the same for all lengths
RARE = [f"rare {number}" for number in range(MIN_SPARSE_FEATURES)]
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
    """Compile every kernel by training small models. Returns the cache folder. Raises ConfigError if the
    kernels cannot be cached."""
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
        raise ConfigError(
            "kernels-not-kept", f"kernels were compiled but cannot be cached: {folders().reasons}"
        )
    return folder


def compile_usual(say: Callable[[str], None]) -> None:
    """Compile the kernels that most training runs need, unless they are cached. say: function that prints a
    line; it is called before and after compiling."""
    if (ready := unready()) is None:
        return
    start = time.perf_counter()
    say_compiling(say)
    table = _table()
    for name in ("binary:logistic", "reg:squarederror", "multi:softprob"):
        simulate(Terms.read(_settings(name)), [table] * PARTIES).model.predict(table)
    _of_many_rows(table)
    ready.touch()
    say(f"kernels compiled in {time.perf_counter() - start:.0f} s")


def _of_many_rows(table: pa.Table) -> Model:
    """Train on so many rows that several threads work on one split. Then train on `table` and return the
    resulting model."""
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
    known = {**_FEATURES, "ranges": {"age": [-4, 4], "dose": [0, 1]}}
    noisy = {"protection": "masked", "rounds": 2, "noise": {"epsilon": 8.0, "delta": 1e-6}}
    yield {**noisy, "columns": {**known, "label": "benign"}}
    numbers = {**known, "label": "days", "label_range": [0, 100]}
    yield {**noisy, "objective": "reg:squarederror", "columns": numbers}


def _by_columns() -> Iterator[dict[str, Any]]:
    """Yield settings for parties with different columns. The last settings use encryption, if its package is
    installed."""
    held = {**_FEATURES, "label": "benign", "row_id": "id", "held": {"other": ["dose", "ward"]}}
    who = {"label_holder": "own", "min_common_rows": 1, "model": "parties", "columns": held}
    yield _settings("binary:logistic", protection="plain", **who)
    yield _settings("binary:logistic", protection="plain", min_rows_per_bin=2, **who)
    if can_encrypt():
        yield _settings("binary:logistic", protection="paillier", key_bits=KEY_BITS, **who)


def can_encrypt() -> bool:
    """Return whether the extra `paillier` is installed."""
    try:
        scheme_of("paillier")
    except ConfigError:
        return False
    return True


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
    """Return a table with missing values, columns that are mostly zero, a categorical column and each kind of
    label."""
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
    """Return a sparse table with the label and one other column, whose zeros are not stored."""
    values = table["dose"].to_numpy().astype(np.float32)
    rows = np.flatnonzero(values)
    return SparseTable(
        ROWS, table.select(["benign"]), ("dose",), np.array([0, rows.size]), rows, values[rows]
    )
