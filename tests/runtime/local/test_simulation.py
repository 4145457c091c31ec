"""Training in one process: the same model whoever holds the rows and in whatever order they speak."""

import json

import pyarrow as pa
import pytest
from raised import raised
from sites import NAMES, rows, shared_out, terms

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.errors import ConfigError, FedboostError, SessionFailed
from fedboost.gbdt.booster import Booster
from fedboost.privacy.pairwise import Handshake, degree
from fedboost.runtime.local.simulation import simulate


def test_the_model_is_the_same_for_every_partition_and_every_order_of_messages():
    pooled = simulate(terms(), {"pooled": rows()}).model.booster.to_xgboost()
    assert (
        json.loads(pooled)["learner"]["gradient_booster"]["model"]["trees"][0]["tree_param"]["num_nodes"]
        > "1"
    )
    for parties in (1, 2, 3, 5):
        for seed in range(3):
            model = simulate(terms(), shared_out(parties), seed=seed).model
            assert model.booster.to_xgboost() == pooled, (parties, seed)
            assert model.parties == NAMES[:parties]


@pytest.mark.slow
def test_parties_that_do_not_all_share_masks_make_the_model_of_one(monkeypatch):
    """Most of them have a single row."""
    exchanged, derive = [], Handshake.pair_keys

    def pair_keys(handshake, *arguments):
        keys = derive(handshake, *arguments)
        exchanged.append(len(keys))
        return keys

    monkeypatch.setattr(Handshake, "pair_keys", pair_keys)
    table = rows()
    few = terms(rounds=2, max_depth=2, max_bin=8)
    many = {f"party-{i}": table.slice(i, 1) for i in range(100)} | {"party-100": table.slice(100)}
    model = simulate(few.changed(protection="masked"), many).model
    assert len(model.attestations) == 101
    assert exchanged == [degree(101, 1)] * 101
    assert degree(101, 1) < 50
    assert len(model.booster.trees[0]) > 1
    assert model.booster == simulate(few, {"pooled": table}).model.booster


def test_other_rows_make_another_model():
    one, other = (simulate(terms(), {"a": rows(seed=seed)}).model for seed in (0, 1))
    assert one.fingerprint != other.fingerprint


def test_the_whole_file_is_the_same_for_the_same_parties():
    first, second = (simulate(terms(), shared_out(3), seed=seed).model.to_bytes() for seed in (0, 9))
    assert first == second


def test_the_history_has_a_row_a_round_and_accounts_for_every_byte():
    heard = []
    result = simulate(terms(eval_metric=["auc", "logloss"]), shared_out(3), on_round=heard.append)
    assert heard == result.history
    assert [row["round"] for row in heard] == [0, 1, 2]
    for row in heard:
        assert list(row) == ["round", "auc", "logloss", "seconds", "bytes"]
        assert row["seconds"] > 0
        assert row["bytes"] > 0
    losses = [row["logloss"] for row in heard]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 0.69
    assert set(result.traffic) == set(NAMES[:3])
    assert all(min(both) > 0 for both in result.traffic.values())
    assert len({received for _, received in result.traffic.values()}) == 1  # all are told the same
    farewells = sum(map(sum, result.traffic.values())) - sum(row["bytes"] for row in heard)
    assert 0 < farewells < 3 * 150  # Close, Attest and SessionEnded, after the last round
    assert [dict(row) for row in result.model.rounds] == [
        {k: v for k, v in row.items() if k not in ("seconds", "bytes")} for row in heard
    ]


def test_rounds_are_told_while_the_training_goes_on():
    """Whoever listens may stop the training from within."""

    class EnoughError(Exception):
        pass

    heard = []

    def listen(row):
        heard.append(row)
        if len(heard) == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        simulate(terms(), shared_out(2), on_round=listen)
    assert len(heard) == 2


def test_parties_without_names_are_numbered():
    result = simulate(terms(parties=["ignored"]), list(shared_out(2).values()))
    assert result.model.parties == ("party-1", "party-2")
    assert set(result.traffic) == {"party-1", "party-2"}


def test_a_table_may_be_a_path_a_frame_or_arrays(tmp_path):
    from pyarrow import csv

    table = rows()
    csv.write_csv(table, tmp_path / "rows.csv")
    expected = simulate(terms(), {"a": table}).model.to_bytes()
    for data in (tmp_path / "rows.csv", str(tmp_path / "rows.csv"), table.to_pandas(), table.to_pydict()):
        assert simulate(terms(), {"a": data}).model.to_bytes() == expected


# ---- custom programs --------------------------------------------------------------------------------


def half_as_many(terms, grown):
    """Boosting, half as long."""
    return (yield from train(terms.changed(rounds=max(1, terms.trees.rounds // 2)), grown))


def no_model(terms, grown):
    yield RowsQuery()


def test_a_program_of_ones_own_trains():
    halved = simulate(terms(rounds=4), shared_out(3), program=half_as_many)
    short = simulate(terms(rounds=2), shared_out(3))
    assert halved.model.booster == short.model.booster
    assert len(halved.history) == 2
    assert halved.model.terms.trees.rounds == 4


def test_the_terms_name_the_program_and_simulate_must_have_it():
    with raised(ConfigError, "program-not-given"):
        simulate(terms(program="lab:halved"), shared_out(2))
    model = simulate(terms(program="lab:halved"), shared_out(2), program=half_as_many).model
    assert model.terms.session.program == "lab:halved"


def test_a_program_without_a_model_is_refused():
    with pytest.raises(SessionFailed, match="'boosting' returned no model"):
        simulate(terms(), shared_out(2), program=no_model)


def test_a_program_may_learn_nothing_but_what_the_terms_allow():
    def greedy(terms, grown):
        return (yield from train(terms.changed(rounds=terms.trees.rounds + 5), grown))

    with pytest.raises(SessionFailed, match="the terms have rounds = 3"):
        simulate(terms(), shared_out(2), program=greedy)


def test_an_error_of_a_program_ends_the_session_with_its_sentence():
    def fussy(terms, grown):
        yield RowsQuery()
        raise ConfigError("test", "this program wants more rows")

    with pytest.raises(SessionFailed, match="this program wants more rows"):
        simulate(terms(), shared_out(2), program=fussy)


def test_a_program_may_end_without_trees():
    def constant(terms, grown):
        yield RowsQuery()
        return Booster(terms.objective.loss, 0.5, terms.columns.features, ())

    result = simulate(terms(), shared_out(2), program=constant)
    assert result.history == []
    assert result.model.predict(rows()).tolist() == [0.5] * rows().num_rows


# ---- refusals ---------------------------------------------------------------------------------------


def test_one_table_is_not_taken_for_several():
    with raised(ConfigError, "simulate-one-table"):
        simulate(terms(), "all.csv")


@pytest.mark.parametrize("shards", [{}, []])
def test_no_parties_are_refused(shards):
    with raised(ConfigError, "simulate-no-parties"):
        simulate(terms(), shards)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.drop_columns(["dose"]), "column 'dose' is missing"),
        (lambda t: t.slice(0, 0), "no rows"),
        (lambda t: t.set_column(0, "age", pa.array(["old"] * t.num_rows)), "column 'age'"),
        (lambda t: t.set_column(4, "y", pa.array([2] * t.num_rows)), "label.*'y'|column 'y'.*label"),
    ],
    ids=["absent", "empty", "words", "label"],
)
def test_a_site_whose_rows_do_not_fit_is_named(spoil, said):
    shards = shared_out(3)
    shards["south"] = spoil(shards["south"])
    with pytest.raises(FedboostError, match=said) as caught:
        simulate(terms(), shards)
    assert "south" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_cannot_be_read_is_named(tmp_path):
    with raised(ConfigError, "source-not-found"):
        simulate(terms(), {"north": rows(), "south": tmp_path / "nowhere.csv"})


def test_a_label_that_is_the_same_everywhere_is_refused():
    table = rows()
    constant = table.set_column(4, "y", pa.array([1] * table.num_rows))
    with pytest.raises(FedboostError, match="nothing to learn"):
        simulate(terms(), shared_out(2, constant))


def test_one_site_may_have_a_constant_label_and_no_values_of_a_feature():
    shards = shared_out(3)
    north = shards["north"]
    empty = pa.array([None] * north.num_rows, pa.float64())
    shards["north"] = north.set_column(4, "y", pa.array([1] * north.num_rows)).set_column(1, "dose", empty)
    pooled = pa.concat_tables(shards.values())
    split, whole = (simulate(terms(), tables).model for tables in (shards, [pooled]))
    assert split.booster.to_xgboost() == whole.booster.to_xgboost()


def test_a_feature_without_any_value_changes_nothing():
    table = rows()
    empty = table.set_column(1, "dose", pa.array([None] * table.num_rows, pa.float64()))
    model = simulate(terms(), shared_out(3, empty)).model
    assert "dose" not in model.importance("weight")
    assert len(model.booster.trees) == 3


def test_threads_do_not_change_the_model():
    one, three = (simulate(terms(), shared_out(2), nthread=number).model.to_bytes() for number in (1, 3))
    assert one == three
    with raised(ConfigError, "nthread-too-low"):
        simulate(terms(), shared_out(2), nthread=0)
