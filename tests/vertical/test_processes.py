"""Parties with different columns as processes of their own, with keys: whoever is killed, the model is that
of pooled rows."""

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest
from anything import ANYTHING
from consortium import installed
from crashes import Followed, crashed
from sites import bundles_of, consortium, until, written

import fedboost as fb
from fedboost.holders.alignment import IDS
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.aggregator.sessions import TURN_SECONDS
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.cluster import LocalCluster
from tests.helpers.columns_apart import LAYOUTS, matched, pooled, scattered, terms_of, train_pooled

KILLS, ROWS = 2, 4_000
SETTINGS = {"rounds": 40, "max_depth": 5}


def apart(folder, layout):
    """Terms, the parties' tables as files, and the model file of pooled rows."""
    table = pooled(ROWS)
    tables = LAYOUTS[layout].tables(table)
    terms = terms_of(LAYOUTS[layout], **SETTINGS).with_parties(list(tables))
    return terms, written(folder, tables), train_pooled(table, **SETTINGS).model


@pytest.mark.slow
async def test_every_party_logs_each_round_once(tmp_path):
    table, layout = pooled(), LAYOUTS["three holders"]
    tables = layout.tables(table)
    terms = terms_of(layout).with_parties(list(tables))
    bundles = bundles_of(tmp_path / "keys", terms.parties)
    async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
        model, rounds = (await one.train(terms)).model, one.log.named("round")
    assert model.booster.to_xgboost() == train_pooled(table).model.booster.to_xgboost()
    for party in terms.parties:
        own = [row["round"] for row in rounds if row.get("party") == party]
        assert own == [*range(1, terms.trees.rounds + 1)]


@pytest.mark.long
@pytest.mark.slow
async def test_an_aggregator_that_is_told_to_stop_finishes_the_turn_alone(tmp_path):
    table, layout = pooled(ROWS), LAYOUTS["three holders"]
    tables = layout.tables(table)
    terms = terms_of(layout, **SETTINGS).with_parties(list(tables))
    bundles, state = bundles_of(tmp_path / "keys", terms.parties), tmp_path / "state"
    async with consortium(tmp_path / "c", tables, (), bundles, state=state) as one:
        training = asyncio.create_task(one.train(terms))
        for turn in (20, 40, 60):
            await until(lambda turn=turn: turn_of(one) > turn)
            before, began = turn_of(one), time.monotonic()
            await one.server.stop()
            assert time.monotonic() - began < TURN_SECONDS / 4
            config = AggregatorConfig(listen=one.address, state=state)
            one.server = AggregatorServer(config, one.log, bundles["aggregator"])
            await one.server.start()
            assert turn_of(one) <= before + 1
        model = (await training).model
    assert model.booster.to_xgboost() == train_pooled(table, **SETTINGS).model.booster.to_xgboost()


def turn_of(one):
    """The turn of the session under way at the aggregator, 0 without one."""
    active = one.server.sessions.active
    return active.session.turn if active else 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_processes_that_come_back_change_nothing(tmp_path):
    terms, files, whole = apart(tmp_path, "three holders")
    model, kills, _ = crashed(tmp_path, files, terms, KILLS, 1, ANYTHING)
    assert kills == KILLS
    assert model.booster.to_xgboost() == whole.booster.to_xgboost()
    assert set(model.attestations) == set(files)


@pytest.mark.slow
@pytest.mark.long
def test_killed_processes_tell_the_same_groups_of_bins_when_they_come_back(tmp_path):
    layout, settings = LAYOUTS["two holders"], {**SETTINGS, "min_rows_per_bin": 20, "subsample": 0.8}
    settings["columns"] = {"row_id": "id"}
    tables = layout.tables(pooled(ROWS))
    terms = terms_of(layout, **settings).with_parties(list(tables))
    whole = fb.simulate(terms, tables).model
    model, kills, _ = crashed(tmp_path, written(tmp_path, tables), terms, KILLS, 1, ANYTHING)
    assert kills == KILLS
    assert model.booster.to_xgboost() == whole.booster.to_xgboost()


@pytest.mark.slow
@pytest.mark.long
def test_processes_killed_while_gradients_are_hidden_change_nothing(tmp_path):
    """A label holder that comes back has another key."""
    if not installed("paillier"):
        pytest.skip("needs the extra paillier")
    layout, settings, rows = LAYOUTS["two holders"], {"rounds": 8, "max_depth": 3, "max_bin": 8}, 300
    hidden = {"protection": "paillier", "key_bits": 2048}
    tables = layout.tables(pooled(rows))
    terms = terms_of(layout, **settings, **hidden).with_parties(list(tables))
    files, whole = written(tmp_path, tables), train_pooled(pooled(rows), **settings).model
    model, kills, _ = crashed(tmp_path, files, terms, 2, 1, ANYTHING, ["bank"], state=tmp_path / "state")
    assert kills == 2
    parts = list((tmp_path / "state").glob("*/models/*.json"))
    assert len(parts) == len(files)
    assert all(file.stem == model.id[:16] and file.stat().st_mode & 0o077 == 0 for file in parts)
    together = fb.assemble([model, *parts])
    assert together.booster.to_xgboost() == whole.booster.to_xgboost()
    assert set(together.attestations) == set(files)


@pytest.mark.slow
@pytest.mark.long
def test_processes_killed_while_rows_are_matched_change_nothing(tmp_path):
    """Whoever is killed, somebody has relayed a list of ids since the kill before."""
    layout, settings = LAYOUTS["three holders"], {"rounds": 3, "max_depth": 3}
    tables, common = scattered(layout, pooled(ROWS))
    terms = matched(layout, **settings).with_parties(list(tables))
    files = written(tmp_path, tables)
    with LocalCluster(tmp_path, files, policy=ANYTHING) as one:
        training, seen = Followed(one.analyst, terms), 0
        for victim in ("telco", "aggregator", "bank"):
            seen = more_lists(one.state, training, seen)
            assert training.rounds == 0
            process = one.aggregator if victim == "aggregator" else one.parties[victim]
            process.kill()
            process.wait()
            if victim == "aggregator":
                one.start_aggregator()
            else:
                one.start_party(victim)
        model = training.end()
    assert model.booster.to_xgboost() == train_pooled(common, **settings).model.booster.to_xgboost()
    assert set(model.attestations) == set(files)


def lists_in(store):
    """The number of lists of ids in a party's audit log."""
    with closing(sqlite3.connect(store)) as file:
        query = "SELECT count(*) FROM entries WHERE instr(line, ?)"
        return file.execute(query, (f'"{IDS}"'.encode(),)).fetchone()[0]


def more_lists(logs, training, seen):
    """The number of lists of ids in the audit logs of all parties, once it is more than this."""
    end = time.monotonic() + 60
    while training.is_alive() and time.monotonic() < end:
        count = sum(map(lists_in, logs.glob("**/memory.sqlite")))
        if count > seen:
            return count
        time.sleep(0.002)
    raise AssertionError(f"no more lists than {seen}: {training.error}")
