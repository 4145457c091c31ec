"""Trainings that are ended from Python: by callbacks in this process, by the analyst over the network."""

import asyncio
import time

import numpy as np
import pytest
from memories import noisy
from raised import raised
from sites import bundles_of, consortium, shared_out, terms, until

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.analyst import Training
from fedboost.runtime.net import channel
from fedboost.wire.messages import TrainCommand

TABLES = shared_out(3)


def test_simulate_calls_back_after_each_round():
    seen, rows = [], []

    def stop(number, metrics):
        seen.append((number, metrics["logloss"]))
        return metrics["logloss"] < 0.6

    agreement = terms(rounds=40, learning_rate=0.1)
    result = fb.simulate(agreement, TABLES, callbacks=[stop], on_round=rows.append)
    assert 1 < len(seen) < 40
    assert seen[-1][1] < 0.6 <= seen[-2][1]
    assert [(number, float(f"{value:.4g}")) for number, value in seen] == [
        (row["round"], row["logloss"]) for row in result.history
    ]
    assert rows == result.history
    due = fb.simulate(agreement.changed(rounds=len(seen)), TABLES).model
    assert result.model.fingerprint == due.fingerprint
    loaded = fb.Model.from_bytes(result.model.to_bytes())
    assert (loaded.kept, len(loaded.rounds)) == (len(seen), len(seen))


def test_estimators_have_callbacks():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(80, 3))
    y = X[:, 0] + draw.normal(size=80)
    stops = fb.FederatedRegressor(n_estimators=20, callbacks=[lambda number, metrics: number == 4]).fit(X, y)
    assert len(stops.history_) == 5
    assert stops.model_.fingerprint == fb.FederatedRegressor(n_estimators=5).fit(X, y).model_.fingerprint


def test_estimators_continue_a_model(tmp_path):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(90, 3))
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + draw.normal(size=90), [-0.5, 0.5])]
    whole = fb.FederatedClassifier(n_estimators=6).fit(X, y).model_
    first = fb.FederatedClassifier(n_estimators=3).fit(X, y)
    first.model_.save(tmp_path / "first.json")
    sites = np.array(["north", "south", "east"])[np.arange(90) % 3]
    for earlier in (first.model_, tmp_path / "first.json"):
        again = fb.FederatedClassifier(n_estimators=3).fit(X, y, sites=sites, xgb_model=earlier)
        assert again.model_.fingerprint == whole.fingerprint
    with raised(fb.ConfigError, "estimator-parameters-invalid"):
        again.fit(X, np.char.upper(y), xgb_model=first.model_)


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["plain", "masked"])
async def test_an_analyst_can_have_the_model_so_far(tmp_path, protection):
    agreement = terms(TABLES, rounds=3000, protection=protection)
    bundles = bundles_of(tmp_path / "keys", TABLES) if protection == "masked" else None
    async with consortium(tmp_path / "c", TABLES, (), bundles, state=tmp_path / "state") as one:

        def follow():
            training = one.analyst.train(agreement)
            for row in training:
                if row["round"] == 2:
                    training.finish()
            return training

        training, log = await asyncio.to_thread(follow), one.log
    rounds = len(training.history)
    assert 3 <= rounds < 3000
    due = fb.simulate(agreement.changed(rounds=rounds), TABLES).model
    assert training.model.fingerprint == due.fingerprint
    assert set(training.model.attestations) == (set(TABLES) if bundles else set())
    assert log.named("session done")


async def test_an_aggregator_that_was_away_hears_of_it_later(tmp_path, monkeypatch):
    """The wish is said again after the next round."""
    agreement, told = terms(TABLES, rounds=3000), []
    command = Training._command

    def lost_once(self, wish):
        told.append(wish)
        return len(told) > 1 and command(self, wish)

    monkeypatch.setattr(Training, "_command", lost_once)
    async with consortium(tmp_path / "c", TABLES) as one:
        training = one.analyst.train(agreement)
        rows = iter(training)
        await asyncio.to_thread(next, rows)
        training.finish()
        await asyncio.to_thread(list, rows)
    assert told == [TrainCommand.FINISH, TrainCommand.FINISH, TrainCommand.STOP]
    assert 2 <= len(training.history) < 3000
    assert len(training.model.rounds) == len(training.history)


def test_trainings_with_noise_can_end_early():
    agreement = noisy(rounds=6, noise={"epsilon": 1.0, "delta": 1e-5})
    stopped = fb.simulate(agreement, TABLES, callbacks=[lambda number, _: number == 1])
    assert [row["round"] for row in stopped.history] == [0, 1]
    assert len(stopped.model.booster.trees) == 2


# ---- an aggregator that does not answer ---------------------------------------------------------------


def test_who_waits_for_an_aggregator_says_so_once_and_stops_soon(monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.05)
    heard = []
    training = fb.connect("127.0.0.1:1", insecure_loopback=True).train(terms(TABLES), 0.4, heard.append)
    with raised(ConfigError, "aggregator-unreachable"):
        list(training)
    assert heard == [("the aggregator at 127.0.0.1:1, which does not answer yet",)]
    began = time.monotonic()
    training.stop()
    assert time.monotonic() - began < 0.9


@pytest.mark.slow
async def test_who_lost_an_aggregator_says_so_once_and_stops_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.05)
    heard = []
    async with consortium(tmp_path / "c", {}) as one:
        training = one.analyst.train(terms(TABLES), 1.5, heard.append)
        following = asyncio.create_task(asyncio.to_thread(list, training))
        await until(lambda: heard)  # it waits for the parties
        await one.server.stop()
        await until(lambda: len(heard) > 1)
        began = time.monotonic()
        await asyncio.to_thread(training.stop)
        seconds = time.monotonic() - began
        with pytest.raises(ConfigError, match="no aggregator answers"):
            await following
        address = one.address
    assert heard == [tuple(TABLES), (f"the aggregator at {address}, which does not answer yet",)]
    assert seconds < 0.9
