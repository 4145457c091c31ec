"""DataFrames of polars in the estimators, and XGBoost on the frame that one was fitted on."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from raised import raised
from sites import rows

import fedboost as fb
from fedboost.errors import ConfigError

SMALL = {"n_estimators": 4, "max_depth": 3, "max_bin": 16}
TABLE = rows().select(["ward", "age", "dose", "site"])
PANDAS, POLARS = TABLE.to_pandas(), pl.from_arrow(TABLE)
Y = rows().column("y").to_numpy()


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["c", "b", "a"])], ids=str)
def test_a_polars_frame_with_words_is_one_of_pandas(kind):
    frame = POLARS.with_columns(pl.col("ward").cast(kind))
    one = fb.FederatedClassifier(**SMALL).fit(frame, pl.Series(Y), eval_set=[(frame, pl.Series(Y))])
    other = fb.FederatedClassifier(**SMALL).fit(PANDAS, Y)
    assert one.feature_names_in_.tolist() == ["ward", "age", "dose", "site"]
    assert one.model_.terms.columns.categorical["ward"] == ("a", "b", "c")
    assert set(one.model_.booster.features) == set(other.model_.booster.features)
    assert one.predict_proba(PANDAS).tolist() == one.predict_proba(frame).tolist()
    plain = fb.FederatedClassifier(**SMALL).fit(POLARS, Y)
    assert plain.model_.booster == other.model_.booster
    assert plain.predict(POLARS[:5]).tolist() == other.predict(PANDAS[:5]).tolist()


def test_a_polars_frame_of_numbers_needs_no_pandas(monkeypatch):
    monkeypatch.setattr(pl.DataFrame, "to_pandas", None)
    numbers = POLARS.select(["age", "dose"]).with_columns(old=pl.col("age") > 60)
    one = fb.FederatedClassifier(**SMALL).fit(numbers, Y)
    assert one.predict(numbers).shape == Y.shape


def test_without_pandas_a_polars_frame_with_words_is_refused(monkeypatch):
    def fails(self):
        raise ModuleNotFoundError("pandas")

    monkeypatch.setattr(pl.DataFrame, "to_pandas", fails)
    with raised(ConfigError, "estimator-pandas-missing"):
        fb.FederatedClassifier(**SMALL).fit(POLARS, Y)


def test_xgboost_predicts_the_same_from_the_frame_in_the_order_of_the_terms(tmp_path):
    one = fb.FederatedClassifier(**SMALL).fit(PANDAS, Y)
    one.model_.save(tmp_path / "model.json")
    columns = one.model_.terms.columns
    levels = {name: pd.CategoricalDtype(list(words)) for name, words in columns.categorical.items()}
    other = xgboost.XGBClassifier(enable_categorical=True)
    other.load_model(tmp_path / "model.json")
    assert other.get_booster().feature_names == list(columns.features)
    with pytest.raises(ValueError, match="feature_names mismatch"):
        other.predict_proba(PANDAS.astype(levels))
    found = other.predict_proba(PANDAS[list(columns.features)].astype(levels))
    assert np.abs(found - one.predict_proba(PANDAS)).max() < 1e-6
