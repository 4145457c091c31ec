"""survival:cox with columns held apart: the label holder has all risk sets, so nothing is summed by time."""

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from columns_apart import LAYOUTS, matched, pooled, scattered, terms_of, train_apart
from encrypted_turn import needs_paillier

import fedboost as fb
from fedboost.errors import ConfigError

COLUMNS = {"label_upper_bound": "until"}
SETTINGS = {"objective": "survival:cox", "rounds": 5, "columns": COLUMNS}


def table_of():
    table = pooled(label="number")
    time = np.exp(-table["y"].to_numpy()).astype(np.float32)
    until = np.where(np.arange(time.size) % 3 > 0, time, np.float32(np.inf))
    at = table.column_names.index("y")
    return table.set_column(at, "y", pa.array(time)).append_column("until", pa.array(until))


@pytest.mark.parametrize("more", [{}, {"columns": {**COLUMNS, "validation": "held_out"}}])
def test_who_holds_which_column_does_not_matter(more):
    table, settings = table_of(), {**SETTINGS, **more}
    two, six = (train_apart(LAYOUTS[name], table, **settings) for name in ("two holders", "one a column"))
    assert two.model.booster == six.model.booster
    losses = [row["cox-nloglik"] for row in two.history]
    assert losses == [row["cox-nloglik"] for row in six.history]
    assert losses == sorted(losses, reverse=True)
    assert ("validation-cox-nloglik" in two.history[-1]) == bool(more)


def test_the_loss_is_xgboosts_of_the_same_model():
    table = table_of()
    result = train_apart(LAYOUTS["two holders"], table, **SETTINGS)
    time, until = table["y"].to_numpy(), table["until"].to_numpy()
    margins = np.log(result.model.predict(table))
    of = xgboost.DMatrix(np.zeros((time.size, 1)), np.where(until < np.inf, time, -time), base_margin=margins)
    said = float(xgboost.Booster({"objective": "survival:cox"}, [of]).eval(of).split(":")[-1])
    assert result.history[-1]["cox-nloglik"] == pytest.approx(said, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "more"),
    [("two holders", {}), ("three holders", {"columns": {**COLUMNS, "validation": "held_out"}})],
)
def test_a_joint_evaluation_has_the_figures_of_one_table(name, more):
    """And no loss of risk sets: how far one row could change it has no bound."""
    layout, table, settings = LAYOUTS[name], table_of(), {**SETTINGS, **more}
    tables, common = scattered(layout, table)
    result = fb.simulate(matched(layout, **settings), tables)
    asked = {"rows": "all", "at": [1.0]}
    found = fb.evaluate(result.party_models or result.model, tables, **asked)
    assert [*found.metrics] == ["cindex", "auc@1", "brier@1"]
    assert found.survival
    assert found.summary == fb.evaluate(result.model, {"one": common}, terms_of(**settings), **asked).summary


@needs_paillier
def test_encrypted_gradients_change_nothing():
    table = table_of()
    plain = train_apart(LAYOUTS["two holders"], table, **SETTINGS)
    hidden = {"protection": "paillier", "key_bits": 2048, "model": "whole"}
    assert (
        train_apart(LAYOUTS["two holders"], table, **SETTINGS, **hidden).model.booster == plain.model.booster
    )


def test_several_label_holders_are_refused():
    with pytest.raises(ConfigError) as caught:
        terms_of(LAYOUTS["blocks"], **SETTINGS)
    assert "set label_holder" in str(caught.value)


def test_no_query_is_about_risk_sets():
    terms = terms_of(LAYOUTS["two holders"], **SETTINGS)
    assert not terms.sums_risk
