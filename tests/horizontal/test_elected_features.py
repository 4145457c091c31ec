"""Trees over elected features: the same model for every protection and order."""

import pytest
from inprocess import model_of, one_party
from trainings import (
    LEVELS,
    PARTITIONS,
    ROWS,
    SETTINGS,
    SMALL,
    data,
    parts_of,
    pooled_model,
    setting_of,
    turns_of,
)

from fedboost.boosting.queries.trees import HistogramQuery

NOT_WITH_VOTES = "colsample_bytree", "colsample_bylevel", "colsample_bynode", "monotone_constraints"
BY_GRADIENTS = [name for name in SETTINGS if SETTINGS[name][2].get("sampling_method") == "gradient_based"]
SYMMETRIC = [name for name in SETTINGS if SETTINGS[name][2].get("grow_policy") == "symmetric"]
VOTED_ON = [
    name
    for name in SETTINGS
    if name not in (*BY_GRADIENTS, *SYMMETRIC) and not {*NOT_WITH_VOTES} & {*SETTINGS[name][2]}
]
VOTED = {**SMALL, "vote_top_k": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "levels"])
def test_a_model_of_elected_features_is_the_same_for_every_protection_and_order(kind):
    X, y, weight = data(kind)
    levels = {"levels": LEVELS if kind == "levels" else ()}
    parts = PARTITIONS["3 at random"]
    models = {
        model_of(X, y, parts, weight, delivery=seed, protection=protection, **levels, **VOTED)
        for protection in ("plain", "masked")
        for seed in range(3)
    }
    assert len(models) == 1
    assert models != {model_of(X, y, parts, weight, **levels, **SMALL)}
    assert models != {model_of(X, y, PARTITIONS["skewed"], weight, **levels, **VOTED)}  # votes are of parties


@pytest.mark.parametrize("partition", ["one row", "columns of one sign"])
@pytest.mark.parametrize("name", VOTED_ON)
def test_with_all_features_elected_the_model_is_that_of_the_pooled_rows(name, partition):
    X, y, weight, settings = setting_of(name)
    every = {**settings, "vote_top_k": X.shape[1]}
    assert model_of(X, y, parts_of(name, partition), weight, **every) == pooled_model(name)


def test_one_party_with_all_rows_elects_what_it_splits_by():
    """Its own gains are those of all rows: the feature of highest gain is among the elected ones."""
    X, y, _ = data()
    alone = model_of(X, y, one_party(ROWS), vote_top_k=4, rounds=4, max_depth=2)
    assert alone == model_of(X, y, one_party(ROWS), rounds=4, max_depth=2)


def test_only_the_histograms_of_elected_features_are_asked_for():
    X, y, _ = data()
    asked = turns_of(X, y, PARTITIONS["3 at random"], on_loss="shrink", **VOTED)  # each alone
    kinds = [type(query).__name__ for query in asked.values() if hasattr(query, "nodes")]
    first = kinds[:7]
    assert first == ["HistogramQuery", *["VoteQuery", "HistogramQuery"] * 3]
    for query in asked.values():
        if isinstance(query, HistogramQuery) and query.nodes != (0,):
            assert len(query.elected) == len(query.nodes)
            assert all(1 <= len(one.features) <= 2 for one in query.elected)
        elif isinstance(query, HistogramQuery):
            assert not query.elected
