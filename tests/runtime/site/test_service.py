"""Scoring services of three parties, connected by an aggregator: what one does to the others, limits over
restarts, and long answers."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow.parquet as pq
import pytest
from columns_apart import LAYOUTS, matched, pooled, scattered
from raised import raised
from sites import Log

import fedboost as fb
from fedboost.errors import ConfigError, PeerError, Refused, SchemaMismatch
from fedboost.holders import scoring
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.cluster import write_consortium
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.site import service
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.scores_api import status_of
from fedboost.runtime.site.service import FeatureService, LabelService, ServiceStore

NAMES = "bank", "telco", "shop"
LAYOUT = LAYOUTS["three holders"]


@pytest.fixture(scope="module")
def trained():
    """Parts of a model, tables of other rows without labels, and the predictions of these rows."""
    tables, _ = scattered(LAYOUT, pooled(240))
    parts = fb.simulate(matched(LAYOUT, model="parties"), tables).party_models
    new, _ = scattered(LAYOUT, pooled(120, seed=7))
    return parts, new, fb.predict_jointly(parts, new, min_common_rows=1)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    write_consortium(folder, {name: name for name in NAMES}, days=1)
    return folder


class Consortium:
    """Services in this process, which start and stop one by one."""

    def __init__(self, folder, keys, trained, address):
        self.folder, self.keys, self.address = folder, keys, address
        self.parts, self.tables, self.due = trained
        self.services, self.tasks, self.stores, self.logs = {}, {}, {}, {}

    def config(self, name, **serve):
        path, table = self.folder / f"{name}.toml", self.folder / f"{name}.parquet"
        pq.write_table(self.tables[name], table)
        own = {} if name == "bank" else {"max_ids": 10**6, "min_known_ids": 1}
        lines = [f"{key} = {str(value).lower()}" for key, value in {**own, **serve}.items()]
        path.write_text(
            f'party = "{name}"\naggregator = "{self.address}"\ndata = "{table}"\n'
            f'keys = "{self.keys / name}"\nstate = "{self.folder / name}"\n[serve]\n' + "\n".join(lines)
        )
        return read_party(path)

    def start(self, name, **serve):
        config, log = self.config(name, **serve), Log()
        store, kind = ServiceStore(config), LabelService if name == "bank" else FeatureService
        made = kind(config, read_bundle(self.keys / name, "party"), self.parts[name], store, log)
        self.services[name], self.stores[name], self.logs[name] = made, store, log
        self.tasks[name] = asyncio.create_task(made.run(20))
        return made

    async def stop(self, name):
        task = self.tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self.stores[name].close()

    async def until(self, true):
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.02)

    async def until_ready(self, **ready):
        await self.until(lambda: self.services["bank"].ready == {"telco": True, "shop": True, **ready})

    async def score(self, rows=slice(None)):
        table = self.tables["bank"].take(np.arange(self.tables["bank"].num_rows)[rows])
        columns = self.services["bank"].columns
        return await self.services["bank"].score(table.select(list(columns)), "app", False)


@pytest.fixture
def consortium(tmp_path, keys, trained):
    @asynccontextmanager
    async def opened(**of_bank):
        config = AggregatorConfig(listen="127.0.0.1:0", state=tmp_path / "state", keys=keys / "aggregator")
        server = AggregatorServer(config, Log(), read_bundle(keys / "aggregator", "aggregator"))
        await server.start()
        one = Consortium(tmp_path, keys, trained, server.address)
        try:
            for name in NAMES:
                one.start(name, **(of_bank if name == "bank" else {}))
            await one.until_ready()
            yield one
        finally:
            for name in [*one.tasks]:
                await one.stop(name)
            await server.stop()

    return opened


async def test_scores_of_three_parties_are_those_of_a_joint_prediction(consortium):
    async with consortium() as one:
        values, _, without = await one.score()
        assert (values == one.due).all()
        assert without == []
        for row in range(0, len(one.due), 37):
            assert (await one.score(slice(row, row + 1)))[0].tolist() == [one.due[row]]


async def test_long_messages_travel_in_parts(consortium, monkeypatch):
    monkeypatch.setattr(scoring, "_PART_BYTES", 50)
    async with consortium() as one:
        assert ((await one.score())[0] == one.due).all()


async def test_one_party_that_is_gone_is_named_and_others_still_answer(consortium):
    async with consortium(partial=True) as one:
        await one.stop("shop")
        await one.until_ready(shop=False)
        values, _, without = await one.score()
        nobody = {**one.tables, "shop": one.tables["shop"].slice(0, 1)}
        assert without == ["shop"]
        known = one.tables["bank"]["id"].to_pylist()
        differs = [row not in one.tables["shop"]["id"].to_pylist()[:1] for row in known]
        due = fb.predict_jointly(one.parts, nobody, min_common_rows=1)
        assert (values == due)[differs].all()
        one.start("shop")
        await one.until_ready()
        assert ((await one.score())[0] == one.due).all()


@pytest.mark.parametrize(
    "content", [b"\0", scoring.message(scoring.READY, b"again"), scoring.message(scoring.ASK, b"", b"")]
)
async def test_a_party_that_breaks_the_protocol_is_left_out_alone_and_connects_anew(consortium, content):
    async with consortium() as one:
        shop = one.services["shop"]
        await shop.say(shop.peers["bank"], content)
        await one.until(lambda: one.logs["bank"].named("a party is left out"))
        assert one.services["bank"].ready["telco"]
        await one.until_ready()
        assert ((await one.score())[0] == one.due).all()
        connected = [len(one.logs[name].named("scoring service is connected")) for name in NAMES]
        assert connected == [1, 1, 2]


async def test_a_party_that_does_not_answer_is_late_and_others_are_not(consortium, monkeypatch):
    async with consortium(timeout=0.3) as one:

        async def nothing(peer, content):
            pass

        monkeypatch.setattr(one.services["shop"], "take", nothing)
        with raised(Refused, "score-party-late"):
            await one.score(slice(1))
        assert one.services["bank"].ready == {"telco": True, "shop": True}


async def test_a_party_that_reads_nothing_makes_requests_late_but_ends_no_connection(consortium, monkeypatch):
    """All queues on the way to it are full. A task that is cancelled while it writes would end the call."""
    async with consortium(timeout=0.5) as one:
        goes_on, take = asyncio.Event(), one.services["shop"].take

        async def later(peer, content):
            await goes_on.wait()
            await take(peer, content)

        monkeypatch.setattr(one.services["shop"], "take", later)
        asked = [one.score() for _ in range(150)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {error.code for error in answers} == {"score-party-late"}
        goes_on.set()
        async with asyncio.timeout(30):
            while True:
                with suppress(Refused):
                    assert ((await one.score())[0] == one.due).all()
                    break
        assert [len(one.logs[name].named("scoring service is connected")) for name in NAMES] == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused("score-party-late", "late"), 503),
        (Refused("score-limit", "too many"), 403),
        (Refused("of the other party", "no"), 403),
        (SchemaMismatch("table-misfit", "no"), 400),
        (ConfigError("score-value", "no"), 400),
        (PeerError("leaf-bits-impossible", "a lie"), 502),
    ],
)
def test_a_client_can_tell_its_own_faults_from_those_of_others(error, status):
    assert status_of(error) == status


# ---- what a service remembers ---------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "telco.toml"
    path.write_text(f'party = "telco"\naggregator = "127.0.0.1:1"\ndata = "x.csv"\nstate = "{tmp_path}"\n')
    return read_party(path)


def test_charges_are_added_by_the_hour_and_hold_over_restarts(config):
    store = ServiceStore(config)
    for ids in (2, 3):
        store.charge("ids", "m", 9, ids)
    store.charge("ids", "other", 9, 3)
    with raised(Refused, "score-limit"):
        store.charge("ids", "m", 9, 2)
    store.charge("client app", "m", 9, 9)
    store.close()
    store = ServiceStore(config)
    with raised(Refused, "score-limit"):
        store.charge("ids", "m", 9, 2)
    store.charge("ids", "m", 9, 1)
    store.close()
    with sqlite3.connect(store.folder / "service.sqlite") as file:
        kept = file.execute(
            "SELECT name, model, sum(requests), sum(ids) FROM charges GROUP BY 1, 2"
        ).fetchall()
    assert kept == [("client app", "m", 1, 9), ("ids", "m", 3, 6), ("ids", "other", 1, 3)]


@pytest.mark.parametrize(
    ("more", "code"),
    [("", "serve-rows"), ('data = "x.csv"\n[workers]\ndask = "local"', "serve-rows")],
)
def test_rows_that_a_service_cannot_read_are_an_error(tmp_path, trained, keys, more, code):
    path = tmp_path / "telco.toml"
    path.write_text(f'party = "telco"\naggregator = "127.0.0.1:1"\nstate = "{tmp_path}"\n{more}')
    config, bundle = read_party(path, holds_rows=None), read_bundle(keys / "telco", "party")
    with raised(ConfigError, code):
        FeatureService(config, bundle, trained[0]["telco"], ServiceStore(config), Log())


async def test_a_service_does_not_connect_to_adders(tmp_path, trained, keys):
    path = tmp_path / "bank.toml"
    path.write_text(f'party = "bank"\naggregator = "127.0.0.1:1"\nthrough = "eu"\nstate = "{tmp_path}"\n')
    config, bundle = read_party(path, holds_rows=None), read_bundle(keys / "bank", "party")
    with raised(ConfigError, "aggregator-only-adders"):
        await LabelService(config, bundle, trained[0]["bank"], ServiceStore(config), Log()).run(1)


def test_lists_are_limited_within_a_day(config, monkeypatch):
    store, now = ServiceStore(config), datetime(2026, 1, 1, 10, 59, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, zone):
            return now

    monkeypatch.setattr(service, "datetime", Clock)
    for _ in range(service.LISTS_A_DAY):
        store.begin_list("list", "m")
    now += timedelta(hours=24)
    with raised(Refused, "score-many-lists"):
        store.begin_list("list", "m")
    store.begin_list("list of shop", "m")
    now += timedelta(hours=1)
    store.begin_list("list", "m")
    store.close()


def test_a_damaged_store_is_an_error(config):
    store = ServiceStore(config)
    with raised(ConfigError, "serve-in-use"):
        ServiceStore(config)
    store.close()
    (store.folder / "service.sqlite").write_bytes(b"no database" * 100)
    with raised(ConfigError, "serve-store-damaged"):
        ServiceStore(config)


def test_a_message_that_never_ends_is_an_error(monkeypatch):
    from scorings import Scoring

    monkeypatch.setattr(scoring, "_PART_BYTES", 10)
    monkeypatch.setattr(scoring, "MAX_BYTES", 30)
    ours, theirs = Scoring("two holders").linked("telco")
    *early, last = ours.seal(b"x" * 30)
    assert [theirs.open(frame) for frame in early] == [None, None]
    assert theirs.open(last) == b"x" * 30
    with raised(PeerError, "link-long"):
        for frame in ours.seal(b"x" * 31):
            theirs.open(frame)
