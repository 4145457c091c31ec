"""The attack: a difference of two exact means over sets of rows that differ by one row, or the mean of a few,
is a label or a value of a single row. The analyst gets four significant digits, and nothing of fewer than ten
rows; the program at the aggregator goes on with the exact sums."""

import json

import numpy as np
import pyarrow as pa
import pytest
from raised import raised
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms, written

import fedboost as fb
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import metrics
from fedboost.runtime.tasks import terms_to_toml

TABLES = shared_out(3)


def with_validation(table, count):
    """The table with so many validation rows."""
    chosen = np.zeros(table.num_rows, np.int64)
    chosen[:count] = 1
    return table.append_column("held_out", pa.array(chosen))


def validated(parties, **settings):
    columns = {"label": "y", "numeric": ["age", "dose"], "validation": "held_out"}
    return terms(parties, columns=columns, **settings)


def metrics_in(row):
    return {name: value for name, value in row.items() if name not in ("round", "seconds", "bytes")}


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["masked", "plain"])
async def test_the_analyst_gets_four_digits_and_the_program_all(tmp_path, protection):
    """Over the network, in the model file, and in a simulation: the same."""
    agreement = terms([*TABLES], protection=protection, rounds=4, eval_metric=["logloss", "error", "auc"])
    bundles = bundles_of(tmp_path / "keys", TABLES)
    exact = []
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        outcome = await one.train(agreement)
    training, result = (
        outcome,
        fb.simulate(agreement, TABLES, callbacks=[lambda number, found: exact.append(dict(found))]),
    )
    assert [*map(metrics_in, training.history)] == [*map(metrics_in, result.history)]
    assert [*map(metrics_in, training.history)] == [*map(metrics_in, training.model.rounds)]
    assert training.model.rounds == result.model.rounds
    for told, known in zip(training.history, exact, strict=True):
        assert metrics_in(told) == {name: float(f"{value:.4g}") for name, value in known.items()}
    assert any(metrics_in(told) != known for told, known in zip(training.history, exact, strict=True))


@pytest.mark.parametrize(("held_out", "published"), [(9, False), (10, True)])
def test_nothing_is_published_of_fewer_than_ten_rows(tmp_path, held_out, published):
    """Of all parties together: a site's policy is for what its own rows show."""
    agreement = validated(["a", "b"], rounds=3, early_stopping_rounds=2)
    tables = {"a": with_validation(rows(60), held_out - 4), "b": with_validation(rows(60, seed=1), 4)}
    seen = []
    result = fb.simulate(agreement, tables, callbacks=[lambda number, found: seen.append(dict(found))])
    shown = {name for row in result.history for name in metrics_in(row)}
    assert shown == ({"logloss", "validation-logloss"} if published else {"logloss"})
    assert [set(metrics_in(row)) for row in result.model.rounds] == [shown] * len(result.history)
    assert all("validation-logloss" in found for found in seen), "early stopping watches it"


def test_nor_of_a_party_that_has_fewer(tmp_path):
    tables = {"a": rows(60), "b": rows(9, seed=1), "c": rows(60, seed=2)}
    agreement = terms([*tables], party_metrics=True)
    result = fb.simulate(agreement, tables)
    assert set(metrics.by_party(metrics_in(result.history[-1]))) == {"a", "c"}


def test_weights_are_counted_as_rows_of_the_largest():
    """One row of weight 1000 among a hundred of weight 1 is nearly all of a mean."""
    names, sets = ("error",), (metrics.TRAIN,)
    scale = Scale(10, 16)

    def of(weights):
        total = np.array([scale.encode(np.array(weights, np.float64)).sum(), 0], np.int64)
        return metrics.published(names, sets, total, scale)

    assert of([1024.0] * 10) == {"error": 0.0}
    assert of([1024.0] * 9) == {}
    assert of([1000.0] + [1.0] * 100) == {}
    assert metrics.published(names, sets, np.array([9, 1]), UNIT) == {}
    assert metrics.published(names, sets, np.array([10, 1]), UNIT) == {"error": 0.1}


def test_sums_that_cannot_be_are_refused_as_before():
    with raised(fb.FedboostError, "metric-sums-inconsistent"):
        metrics.published(("error",), (metrics.TRAIN,), np.array([-100, 1]), UNIT)


def test_the_command_line_shows_a_dash(tmp_path):
    table = with_validation(rows(60), 5)
    table = table.set_column(table.column_names.index("site"), "site", pa.array(["a"] * 51 + ["b"] * 9))
    data = written(tmp_path, {"all": table})["all"]
    agreement = validated([], party_metrics=True)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreement))
    told = fedboost("simulate", tmp_path / "terms.toml", "--data", data, "--site", "site")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert all(" validation-logloss - " in line for line in lines if line.startswith("round ")), told.out
    assert ["logloss", "-", "(on", "held-out", "rows)"] in [line.split() for line in lines]
    assert ["b", "-"] in [line.split() for line in lines]
    told = fedboost("simulate", tmp_path / "terms.toml", "--data", data, "--site", "site", "--json")
    *events, done = map(json.loads, told.out.splitlines())
    assert set(done["metrics"]) == {"logloss"}
    assert all("validation-logloss" not in event for event in events)
