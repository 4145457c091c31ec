"""Collections of Dask as the rows of the estimators."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
from dask_rows import cluster, table

from fedboost import FederatedClassifier, FederatedRanker, FederatedRegressor
from fedboost.errors import ConfigError

SMALL = {"n_estimators": 3, "max_depth": 3, "max_bin": 16}
NUMBERS = ["age", "dose"]


@pytest.fixture
def frame():
    rows = table()
    return rows.assign(ward=rows["ward"].astype("category"))


def fitted(estimator, X, y, **options):
    with cluster(3).as_current():
        return estimator.fit(X, y, **options)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"subsample": 0.5}, {"validation_fraction": 0.3}])
@pytest.mark.parametrize("label", ["benign", "word", "classes"])
def test_a_classifier_of_a_dataframe(frame, label, settings):
    rows = dd.from_pandas(frame, npartitions=4)
    X, names = [*NUMBERS, "ward"], {"feature_names_in_", "n_features_in_"}
    one = FederatedClassifier(**SMALL, **settings).fit(frame[X], frame[label])
    other = fitted(FederatedClassifier(**SMALL, **settings), rows[X], rows[label])
    assert other.model_.booster == one.model_.booster
    assert (other.classes_ == one.classes_).all()
    assert (other.predict(frame[X]) == one.predict(frame[X])).all()
    assert names <= {*vars(other)}


def test_a_regressor_of_arrays_with_weights(frame):
    X, y, weight = frame[NUMBERS].to_numpy(), frame["days"].to_numpy(), frame["weight"].to_numpy()
    one = FederatedRegressor(**SMALL).fit(X, y, sample_weight=weight)
    X, y, weight = (da.from_array(values, chunks=(130, *values.shape[1:])) for values in (X, y, weight))
    other = fitted(FederatedRegressor(**SMALL), X, y, sample_weight=weight)
    assert other.model_.booster == one.model_.booster


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X, y: (X.assign(word="a"), y, {}), "X.categorize"),
        (lambda X, y: (X, y.repartition(npartitions=2), {}), "4 partitions, y 2"),
        (lambda X, y: (X, y, {"sites": np.zeros(3)}), "sites is for rows that are here"),
        (lambda X, y: (X, y * 0, {}), "one class"),
        (lambda X, y: (X, y, {"xgb_model": 5}), "xgb_model"),
    ],
)
def test_what_cannot_be_is_said(frame, spoil, words):
    rows = dd.from_pandas(frame, npartitions=4)
    X, y, options = spoil(rows[NUMBERS], rows["benign"])
    with pytest.raises((ConfigError, ValueError), match=words):
        fitted(FederatedClassifier(**SMALL), X, y, **options)


def test_a_ranker_is_told_where_to_go(frame):
    rows = dd.from_pandas(frame, npartitions=4)
    with pytest.raises(ConfigError, match=r"fedboost\.simulate"):
        fitted(FederatedRanker(**SMALL), rows[NUMBERS], rows["classes"])
