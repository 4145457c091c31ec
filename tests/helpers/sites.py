"""What the tests of the shell share: small tables, their terms, and a consortium in one event loop.

Everything listens on 127.0.0.1 and on a port the system chose. Who was cut off dials again soon.
"""

import asyncio
import io
import sys
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

import grpc
import numpy as np
import pyarrow as pa
from anything import ANYTHING
from pyarrow import parquet

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.cli.main import main
from fedboost.fixedpoint import UNIT
from fedboost.runtime import analyst
from fedboost.runtime.aggregator import adder, server
from fedboost.runtime.aggregator.adder import AdderServer
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.analyst import Connection
from fedboost.runtime.config import AdderConfig, AggregatorConfig
from fedboost.runtime.local.cluster import write_consortium
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site import node
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.node import PartyNode
from fedboost.runtime.site.store import NAME
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION

NAMES = ("north", "south", "east", "west", "centre")
ROWS = 180
PATIENCE = 75.0
"""Seconds after which a test that waits gives up."""
node.REDIAL = adder.REDIAL = analyst.REDIAL_SECONDS = 0.1
server.TICK_SECONDS = adder.TICK_SECONDS = 0.05
adder.HELD_SECONDS = 0.0


def rows(count=ROWS, seed=0):
    """A table: two numbers, one of them missing now and then, a category, a site, and a label of 0 or 1."""
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(50, 10, count), draw.normal(size=count)
    label = (age / 10 + dose + draw.normal(size=count) > 5).astype(np.int64)
    dose[draw.random(count) < 0.2] = np.nan
    ward = np.array(["a", "b", "c"])[draw.integers(0, 3, count)]
    site = np.array(NAMES[:3])[draw.integers(0, 3, count)]
    dose = pa.array(dose, from_pandas=True)
    return pa.table({"age": age, "dose": dose, "ward": ward, "site": site, "y": label})


def terms(parties=(), **settings):
    """Terms that fit `rows`, small enough to train in a blink; plain unless set otherwise."""
    columns = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}
    small = {"rounds": 3, "max_depth": 3, "max_bin": 16, "protection": "plain"}
    return Terms.read({"columns": columns, "parties": list(parties), **small, **settings})


def shared_out(parties, table=None):
    """The rows shared out among so many parties, unevenly: name to table."""
    table = rows() if table is None else table
    share = np.arange(1, parties + 1)
    owner = np.random.default_rng(7).choice(parties, table.num_rows, p=share / share.sum())
    return {name: table.filter(pa.array(owner == number)) for number, name in enumerate(NAMES[:parties])}


def written(folder, tables):
    """The tables as files: name to path."""
    files = {name: folder / f"{name}.parquet" for name in tables}
    for name, table in tables.items():
        parquet.write_table(table, files[name])
    return files


def bundles_of(folder, parties, adders=()):
    """Bundles of a consortium: of each party and adder, the aggregator and the analyst, by name."""
    folder.mkdir(parents=True)
    write_consortium(folder, {name: name for name in parties}, days=1, adders=adders)
    roles = {**dict.fromkeys(parties, "party"), "aggregator": "aggregator", "analyst": "analyst"}
    roles |= dict.fromkeys(adders, "adder")
    return {name: read_bundle(folder / name, role) for name, role in roles.items()}


def fedboost(*arguments):
    """Run the command in this process: its exit code, and what it wrote to `out` and `err`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = mock.patch.object(sys, "argv", ["fedboost", *map(str, arguments)])
    with argv, redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


STOPS = {"on_loss": "stop", "rejoin_timeout": 0}
"""Terms under which a loss ends the session at once."""


class Log:
    """A logger that remembers: `events` has the name and the values of each event."""

    def __init__(self, events=None, **bound):
        self.events = [] if events is None else events
        self._bound = bound

    def bind(self, **values):
        return Log(self.events, **self._bound, **values)

    def info(self, event, **values):
        self.events.append((event, {**self._bound, **values}))

    warning = error = info

    def named(self, event):
        """The values of every event of that name so far."""
        return [values for name, values in self.events if name == event]


class Consortium:
    """An aggregator and parties in this event loop."""

    def __init__(self, folder, programs, bundles=None, **settings):
        self.log = Log()
        self.folder = folder
        self.bundles = bundles or {}
        config = AggregatorConfig(listen="127.0.0.1:0", programs=programs, **settings)
        self.server = AggregatorServer(config, self.log, self.bundles.get("aggregator"))
        self.nodes = {}
        self.tasks = {}
        self.adders = {}

    @property
    def route_settings(self):
        """Settings of parties about the way to the aggregator."""
        return {}

    @property
    def address(self):
        return self.server.address

    @property
    def analyst(self):
        """An analyst's connection, with its keys if the others have theirs."""
        return Connection(Server(self.address), self.bundles.get("analyst"))

    async def start_adder(self, name, listen="127.0.0.1:0"):
        """Start an adder; its server, and the task that runs it."""
        config = AdderConfig(listen=listen, upstream=self.address)
        server = AdderServer(config, self.log.bind(process=name), self.bundles.get(name))
        await server.start()
        self.adders[name] = server
        self.tasks[name] = asyncio.create_task(server.run())

    async def stop_adder(self, name):
        server = self.adders.pop(name)
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks.pop(name), return_exceptions=True)
        await server.stop()

    def start_party(
        self,
        name,
        table,
        as_name=None,
        state="state",
        policy=None,
        workers=None,
        through=(),
        columns=(),
        **run,
    ):
        """Start a party over a table, or a folder that workers read, with its memory in that folder; the task
        that runs it."""
        (file,) = written(self.folder, {name: table}).values() if workers is None else (table,)
        known = {name: each.address for name, each in self.adders.items()} | {"": self.address}
        addresses = [known[name] for name in through] or self.address
        names = through if self.bundles else ()
        values = {"party": as_name or name, "aggregator": addresses, "through": names, "data": file}
        values |= {"columns": dict(columns), **self.route_settings}
        state = self.folder / state
        config = PartyConfig(**values, state=state, policy=policy or ANYTHING, workers=workers)
        self.nodes[name] = PartyNode(config, self.log, self.bundles.get(name))
        options = {"wait": PATIENCE, "once": False, **run}
        self.tasks[name] = asyncio.create_task(self.nodes[name].run(**options))
        return self.tasks[name]

    def store(self, name, state="state"):
        """The file of a party's memory, which has its audit log."""
        return self.folder / state / name / NAME

    async def stop_party(self, name):
        """Stop a party, and wait until the aggregator has noticed."""
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)
        await until(lambda: any(gone["party"] == name for gone in self.log.named("party gone")))

    async def train(self, terms, on_waiting=None, wait=PATIENCE):
        """Submit terms and wait for the end; the training, or the error that ended it."""

        def follow():
            training = self.analyst.train(terms, wait, on_waiting)
            assert training.model is not None
            return training

        return await asyncio.to_thread(follow)

    def attend(self, opened, name=b"odd", version=str(WIRE_VERSION)):
        """A raw connection of a party, to say anything over."""
        metadata = [(channel.PARTY_KEY, name), (channel.VERSION_KEY, version)]
        given = [(key, value) for key, value in metadata if value is not None]
        return opened.stream_stream(channel.ATTEND)(metadata=given)


@asynccontextmanager
async def consortium(folder, tables, programs=(), bundles=None, kind=Consortium, **settings):
    """An aggregator with these parties, all stopped at the end; encrypted where bundles are given. The
    settings are of the aggregator's file."""
    folder.mkdir(exist_ok=True)
    one = kind(folder, programs, bundles, **settings)
    await one.server.start()
    try:
        for name, table in tables.items():
            one.start_party(name, table)
        yield one
    finally:
        for task in one.tasks.values():
            task.cancel()
        await asyncio.gather(*one.tasks.values(), return_exceptions=True)
        for each in one.adders.values():
            await each.stop()
        await one.server.stop()


def in_time(scenario):
    """Run a coroutine to its end, or fail after a while."""
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def until(condition):
    """Wait until it holds."""
    async with asyncio.timeout(PATIENCE * 0.75):
        while not condition():
            await asyncio.sleep(0.01)


async def status_of(call):
    """The status code and the details a raw call ends with, whatever it received before."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), await call.details()


# ---- programs an aggregator may offer as sites:NAME -------------------------------------------------


def half_as_many(terms, grown):
    """Boosting, half as long."""
    return (yield from boosting.train(terms.changed(rounds=max(1, terms.trees.rounds // 2)), grown))


def fails_later(terms, grown):
    """A program with a defect."""
    yield RowsQuery()
    raise ZeroDivisionError("a defect")


def asks_nonsense(terms, grown):
    """A program that yields what is no query."""
    yield "how old are they?"


def asks_beyond_the_wire(terms, grown):
    """A program whose query has no bytes."""
    (count, *_) = yield RowsQuery()
    cut_points = yield from boosting.find_cut_points(terms, int(count))
    yield HistogramQuery(int(count), -5, (), (0,), len(cut_points.cuts), UNIT, UNIT)


def no_model(terms, grown):
    """A program that ends without a model."""
    yield RowsQuery()


def no_generator(terms, grown):
    """A function that is no program."""


not_even_a_function = 3
