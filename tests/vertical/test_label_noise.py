"""Labels with noise: what leaves the label holder is of these, and they are the same in every session."""

from dataclasses import replace

import numpy as np
import pytest
from columns_apart import LAYOUTS, matched, pooled, scattered, train_pooled
from memories import opened
from raised import raised

import fedboost as fb
from fedboost.errors import ConfigError, Refused
from fedboost.privacy.noise import randomise_labels
from fedboost.runtime.data.shard import ids_of, to_shard, with_label_noise
from fedboost.runtime.local import simulation
from fedboost.runtime.site.memory import label_key
from fedboost.runtime.site.store import put

LAYOUT = LAYOUTS["two holders"]
KEY = bytes(range(32))


def read(table, name="bank"):
    return lambda terms: to_shard(table, terms, name)


def test_a_training_is_that_of_the_changed_labels(monkeypatch):
    keyed = lambda read, party, key_of: with_label_noise(read, party, lambda terms: KEY)  # noqa: E731
    monkeypatch.setattr(simulation, "with_label_noise", keyed)
    tables, common = scattered(LAYOUT, pooled())
    result = fb.simulate(matched(LAYOUT, label_epsilon=1.0), tables)
    true = common["y"].to_numpy()
    labels = randomise_labels(true.astype(np.float32), ids_of(common, ["id"], None), 2, 1.0, KEY)
    assert (labels != true).mean() > 0.15
    changed = common.set_column(common.column_names.index("y"), "y", [labels.astype(int)])
    assert result.model.booster == train_pooled(changed).model.booster


def test_nothing_is_changed_where_rows_are_predicted_or_others_have_the_labels():
    tables, _ = scattered(LAYOUT, pooled())
    terms = matched(LAYOUT, label_epsilon=1.0).with_parties(list(tables))
    shards = {
        name: with_label_noise(read(table, name), name, lambda terms: KEY)(terms)
        for name, table in tables.items()
    }
    true = {name: to_shard(table, terms, name) for name, table in tables.items()}
    assert (shards["bank"].label != true["bank"].label).any()
    assert shards["telco"].label.size == 0
    assert replace(shards["bank"], label=true["bank"].label).label.tolist() == true["bank"].label.tolist()
    predicts = terms.changed(predict_with="0" * 64, predict_rows=10)
    assert with_label_noise(read(tables["bank"]), "bank", lambda terms: 1 / 0)(predicts).rows


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "reg:squarederror"}, "label_epsilon: its noise is only for class labels"),
        ({"rows": "in_order", "min_common_rows": None}, "label_epsilon: noise is drawn per row id"),
        ({"label_epsilon": 0}, "label_epsilon"),
        ({"label_epsilon": 21}, "label_epsilon"),
    ],
)
def test_terms_that_cannot_be(settings, words):
    with pytest.raises(ConfigError, match=words):
        matched(LAYOUT, **{"label_epsilon": 1.0, **settings})


# ---- one secret for all sessions ------------------------------------------------------------------------


def terms_with(**settings):
    return matched(LAYOUT, **{"label_epsilon": 1.0, **settings}).with_parties(["bank", "telco"])


def test_the_secret_is_the_same_in_every_session_and_process(tmp_path):
    with opened(tmp_path / "memory.sqlite", party="bank") as memory:
        first = label_key(memory, terms_with())
        assert label_key(memory, terms_with(rounds=9)) == first
    with opened(tmp_path / "memory.sqlite", party="bank") as memory:
        assert label_key(memory, terms_with()) == first
        other = label_key(memory, terms_with(columns={"label": "held_out", "row_id": "id"}))
    assert len(first) == 32
    assert other != first


@pytest.mark.parametrize(
    "settings", [{"label_epsilon": 2.0}, {"objective": "multi:softprob", "num_class": 3}]
)
def test_another_epsilon_and_other_classes_are_refused(tmp_path, settings):
    with opened(tmp_path / "memory.sqlite", party="bank") as memory:
        label_key(memory, terms_with())
        with raised(Refused, "label-noise-changed"):
            label_key(memory, terms_with(**settings))


def test_a_memory_that_was_begun_anew_draws_no_noise_again(tmp_path):
    with opened(tmp_path / "memory.sqlite", party="bank") as memory:
        with memory.transaction() as file:
            put(file, "labels", "bank", "y", 1.0, "", b"")  # as `fedboost privacy init` takes it over
        with raised(Refused, "label-noise-lost"):
            label_key(memory, terms_with())
