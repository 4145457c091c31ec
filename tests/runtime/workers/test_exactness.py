"""Rows on workers: the model that one machine would give, byte for byte."""

from unittest import mock

import numpy as np
import pytest
from dask_rows import cluster, cuts_of, on_workers, shared_out, table, terms

import fedboost as fb
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.protocol import site

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")

LABELS = {
    LabelKind.CLASS: {"label": "benign"},
    LabelKind.INTERVAL: {"label": "days", "label_upper_bound": "until"},
    LabelKind.RELEVANCE: {"label": "classes", "group": "query"},
}
OWN = {
    "multi:softprob": {"num_class": 3, "columns": {"label": "classes"}},
    "reg:quantileerror": {"quantile_alpha": 0.5},
    "count:poisson": {"columns": {"label": "count", "base_margin": "margin"}},
}
CASES = {
    name: {"objective": name, "columns": LABELS.get(kind.label_kind, {"label": "days"})} | OWN.get(name, {})
    for name, kind in OBJECTIVES.items()
}
CASES |= {
    "the words of a label": {"columns": {"label": "word", "positive": "yes"}},
    "target means": {"columns": {"target_means": {"query": 64}}, "min_count": 5},
    "row weights": {"columns": {"weight": "weight"}},
    "subsample by place": {"subsample": 0.5, "validation_fraction": 0.25, "eval_metric": ["auc", "logloss"]},
    "subsample by row id": {"subsample": 0.5, "columns": {"row_id": "id"}},
    "gradient based": {"subsample": 0.5, "sampling_method": "gradient_based"},
    "bootstrap": {"subsample": 0.5, "sampling_method": "bootstrap", "num_parallel_tree": 2},
    "validation column": {"columns": {"validation": "held_out"}, "early_stopping_rounds": 1},
    "lossguide": {"grow_policy": "lossguide", "max_leaves": 5},
    "symmetric": {"grow_policy": "symmetric"},
    "ranking, sampled groups": {
        "objective": "rank:ndcg",
        "validation_fraction": 0.3,
        "columns": {"label": "classes", "group": "query", "row_id": "id"},
    },
    "classes, several trees": {
        "objective": "multi:softprob",
        "num_class": 3,
        "num_parallel_tree": 2,
        "columns": {"label": "classes"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_model_is_that_of_one_machine(name):
    agreed, frame = terms(**CASES[name]), table()
    north = shared_out(frame, cuts_of(frame, 4))
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    assert on_workers(agreed, {"north": north}, 3).to_bytes() == expected


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "parts"), [(1, 1), (1, 9), (2, 2), (7, 1), (7, 9)])
def test_any_workers_and_any_sharing_out(workers, parts):
    agreed, frame = terms(subsample=0.7, validation_fraction=0.2), table()
    north = shared_out(frame, cuts_of(frame, parts, seed=parts))
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    assert on_workers(agreed, {"north": north}, workers).to_bytes() == expected


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"vote_top_k": 1}, {"vote_top_k": 2}])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_among_other_parties_votes_and_masks_are_the_sites_own(settings, protection):
    agreed = terms(**settings, max_depth=4, protection=protection)
    frame, others = table(), {"south": table(150, seed=1), "east": table(90, seed=2)}
    north = shared_out(frame, cuts_of(frame, 5))
    expected = fb.simulate(agreed, {"north": frame, **others}).model.booster
    assert on_workers(agreed, {"north": north, **others}, 3).booster == expected


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"validation_fraction": 0.3, "columns": {"weight": "weight"}}])
def test_risk_sets_are_over_all_workers_and_parties(more):
    columns = {"label": "days", "label_upper_bound": "until", **more.get("columns", {})}
    agreed = terms(**{**more, "objective": "survival:cox", "protection": "masked", "columns": columns})
    assert agreed.sums_risk
    frame, others = table(), {"south": table(150, seed=1), "east": table(90, seed=2)}
    both = {"north": frame, **others}, {"north": shared_out(frame, cuts_of(frame, 5)), **others}
    with cluster(3).as_current():
        expected, found = (fb.simulate(agreed, tables) for tables in both)
        assert found.model.booster == expected.model.booster
        losses = [[{**row, "seconds": 0, "bytes": 0} for row in each.history] for each in (found, expected)]
        assert losses[0] == losses[1]
        for ask in (
            lambda tables: fb.describe(agreed, tables, min_count=1),
            lambda tables: fb.evaluate(expected.model, tables, rows="all", at=[1.0], min_count=1),
        ):
            assert ask(both[1]).summary == ask(both[0]).summary


def test_noise_is_the_sites_own():
    """With the noise taken away, the sums of a site with workers are those of one machine."""
    ranges = {"age": [20, 80], "dose": [-3, 3]}
    noise = {"epsilon": 8.0, "delta": 1e-6}
    others = {"south": table(150, seed=1), "east": table(90, seed=2)}
    frame = table()
    silent = mock.patch.object(site, "noise_of", lambda key, share, size: np.zeros(size, np.int64))
    agreed = terms(columns={"ranges": ranges}, protection="masked", noise=noise, rounds=2)
    with silent:
        expected = fb.simulate(agreed, {"north": frame, **others}).model.booster
        north = shared_out(frame, cuts_of(frame, 5))
        assert on_workers(agreed, {"north": north, **others}, 3).booster == expected


def test_descriptions_evaluations_and_drift_are_those_of_one_machine():
    agreed, frame = terms(reference=True), table()
    model = fb.simulate(agreed, {"north": frame}).model
    north = shared_out(frame, cuts_of(frame, 5))
    for ask in (
        lambda rows: fb.describe(agreed, {"north": rows}, min_count=1),
        lambda rows: fb.evaluate(model, {"north": rows}, min_count=1),
        lambda rows: fb.drift(model, {"north": rows}, min_count=1),
    ):
        expected = ask(frame)
        with cluster(3).as_current():
            assert ask(north).summary == expected.summary
