"""Parties that hold different columns predict together: what the whole model says of the joined table, bit
for bit, in one round trip."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from explained import by_definition
from pyarrow import csv, parquet
from raised import raised

import fedboost as fb
from fedboost.boosting.queries import ids as queries
from fedboost.gbdt import reach
from fedboost.gbdt.reach import Structure
from fedboost.holders.alignment import CHECK, KNOWN
from fedboost.holders.columns import LEAF_BITS
from fedboost.privacy.pairwise import sealed_size
from fedboost.protocol.messages import Ask, Relay
from fedboost.protocol.relaying import max_relayed
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.local.simulation import run_prediction
from fedboost.runtime.signed_model import signed_model_of
from tests.helpers.apart_sessions import NOW
from tests.helpers.boosters import load
from tests.helpers.columns_apart import NUMERIC, terms_of
from tests.helpers.predictions import (
    FEWEST,
    MODEL,
    OTHERS,
    SETTINGS,
    Predicting,
    due,
    joined,
    models_of,
    tables_of,
    terms_for,
    trained,
)


def predicted(layout, setting, tables=None, **settings):
    """The prediction in one process, and what is due."""
    tables = tables_of(layout) if tables is None else tables
    terms = terms_for(layout, setting, tables)
    return run_prediction(terms, models_of(terms, setting), tables, **settings)


def same(prediction, margins, known):
    assert prediction.margins.dtype == np.float64
    assert prediction.margins.tobytes() == margins.tobytes()
    assert (prediction.known == known).all()
    return True


@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, "three holders") for setting in SETTINGS),
        *(("logistic", layout) for layout in OTHERS if layout != "three holders"),
        ("base margins", "no own columns"),
        ("classes", "one a column"),
        ("stump", "one a column"),
    ],
)
def test_the_margins_are_those_of_the_whole_model_on_the_joined_table(setting, layout):
    tables = tables_of(layout)
    prediction = predicted(layout, setting, tables)
    margins, known = due(layout, setting, tables)
    assert same(prediction, margins, known)
    assert (prediction.values == trained(setting).loss.predict(margins)).all()
    assert known.any(axis=1).all()
    assert not known.all(axis=1).any()


def test_the_models_split_by_columns_of_all_holders_and_by_levels():
    """Else the tests above would compare less."""
    for setting in ("logistic", "classes", "absolute", "forest", "lossguide"):
        nodes = [
            (feature, categories)
            for tree in trained(setting).trees
            for feature, left, categories in zip(tree.feature, tree.left, tree.by_category, strict=True)
            if left >= 0
        ]
        assert {1, 3, 4} & {feature for feature, _ in nodes}
        assert any(categories for _, categories in nodes)
    assert trained("base margins").begins_with_a_leaf


@pytest.mark.parametrize("settings", [{"seed": 5}, {"nthread": 2}])
def test_the_prediction_depends_on_no_order_of_messages_and_on_no_threads(settings):
    tables = tables_of("three holders")
    assert same(
        predicted("three holders", "logistic", tables, **settings), *due("three holders", "logistic", tables)
    )


def test_the_order_of_tables_and_how_ids_are_written_change_nothing():
    written = tables_of("three holders", ids=[lambda i: i, lambda i: f" {i} ", lambda i: f"{i:05d}"])
    tables = {
        party: table.take(np.random.default_rng(len(party)).permutation(table.num_rows))
        for party, table in written.items()
    }
    assert same(predicted("three holders", "logistic", tables), *due("three holders", "logistic", tables))
    first = dict(
        zip(written["bank"]["id"].to_pylist(), due("three holders", "logistic", written)[0], strict=True)
    )
    again = predicted("three holders", "logistic", tables).margins
    assert [first[i] for i in tables["bank"]["id"].to_pylist()] == again.tolist()


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_few_ids_and_all_ids_may_be_known(share):
    tables = tables_of("three holders", share=1.0)
    tables["telco"] = tables["telco"].slice(0, round(share * tables["telco"].num_rows))
    prediction = predicted("three holders", "logistic", tables)
    assert same(prediction, *due("three holders", "logistic", tables))
    assert prediction.known.sum(axis=1).tolist() == [tables["telco"].num_rows, 120]


@pytest.mark.parametrize("kind", ["csv", "parquet", "labelled"])
@pytest.mark.parametrize("layout", ["three holders", "no own columns"])
def test_tables_may_be_files_and_may_have_labels(tmp_path, kind, layout):
    """Which are not read: a label of text here."""
    tables, files = tables_of(layout), {}
    for party, table in tables.items():
        files[party] = tmp_path / f"{party}.{kind}"
        match kind:
            case "csv":
                csv.write_csv(table, files[party])
            case "parquet":
                parquet.write_table(table, files[party])
            case "labelled":
                files[party] = table.append_column("y", pa.array(["?"] * table.num_rows))
    prediction = predicted(layout, "base margins", {**files, "bank": tables["bank"]})
    assert same(prediction, *due(layout, "base margins", tables))
    terms = terms_for(layout, "base margins", tables)
    models = models_of(terms, "base margins")
    assert same(run_prediction(terms, models, files), *due(layout, "base margins", tables))


def test_rows_to_predict_have_no_labels():
    tables = tables_of("two holders")
    shard = to_shard(tables["bank"], terms_for("two holders", "base margins", tables), "bank")
    assert shard.label.size == 0
    assert shard.rows == tables["bank"].num_rows
    assert shard.base_margin.size == shard.rows


# ---- what each party contributes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, "three holders") for setting in SETTINGS),
        *(("logistic", layout) for layout in OTHERS if layout != "three holders"),
        ("base margins", "no own columns"),
        ("classes", "two holders"),
    ],
)
def test_reasons_are_shapleys_values_of_the_parties_and_add_up_to_the_margin(setting, layout):
    tables = tables_of(layout)
    prediction = predicted(layout, setting, tables, reasons=True)
    margins, known = due(layout, setting, tables)
    assert same(prediction, margins, known)
    parties, held = [*tables], OTHERS[layout].held
    several = [3] * (margins.ndim == 2)
    assert prediction.reasons.shape == (margins.shape[-1], *several, len(parties) + 1)
    assert prediction.reasons.dtype == np.float64
    assert np.allclose(prediction.reasons.sum(axis=-1), margins.T, rtol=1e-12, atol=1e-12)
    by_name = {name: party for party, names in held.items() for name in names}
    holders = [parties.index(by_name.get(name, "bank")) for name in (*NUMERIC, "colour")]
    features, base, _ = joined(layout, tables)
    for row in [0, *np.flatnonzero(~known.all(axis=0))[:2].tolist()]:
        ours = by_definition(trained(setting), features[row], holders, len(parties))
        if setting == "base margins":
            ours[-1] += base[row] - trained(setting).constant
        assert np.allclose(prediction.reasons[row], ours, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("setting", ["logistic", "classes", "forest"])
def test_reasons_of_holders_with_one_column_each_are_xgboosts_contributions(setting):
    tables, model = tables_of("one a column"), trained(setting)
    found = predicted("one a column", setting, tables, reasons=True).reasons
    features, *_ = joined("one a column", tables)
    assert not found[..., 0].any()  # the bank has no column
    assert found[..., 1:].tolist() == model.contributions(features).tolist()
    kinds = {"feature_types": [*["q"] * len(NUMERIC), "c"], "enable_categorical": True}
    rows = xgboost.DMatrix(features, feature_names=list(model.features), **kinds)
    theirs = load(model.to_xgboost()).predict(rows, pred_contribs=True)
    assert np.abs(found[..., 1:] - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("settings", [{"seed": 5}, {"nthread": 2}])
def test_reasons_depend_on_no_order_of_messages_and_on_no_threads(settings):
    one, other = (predicted("three holders", "forest", reasons=True, **more) for more in ({}, settings))
    assert one.reasons.tolist() == other.reasons.tolist()


def test_reasons_are_computed_only_when_asked_for(monkeypatch):
    asked = predicted("three holders", "logistic", reasons=True)
    monkeypatch.setattr(reach, "reasons", None)
    plain = predicted("three holders", "logistic")
    assert plain.reasons is None
    assert plain.margins.tobytes() == asked.margins.tobytes()


def test_reasons_follow_the_rows_in_batches(monkeypatch):
    whole = predicted("three holders", "forest", reasons=True).reasons
    monkeypatch.setattr(queries, "BATCH_BYTES", 100)
    assert predicted("three holders", "forest", reasons=True).reasons.tolist() == whole.tolist()


# ---- turns and bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["stump", "logistic", "lossguide"])
def test_there_are_three_turns_whatever_the_depth(setting):
    session = Predicting(setting=setting).play()
    assert session.session.phase == "done"
    assert session.terms.max_turns == 3
    for party in session.terms.parties:
        assert [type(ask.query).__name__ for ask in session.heard(Ask, party)] == [
            "IdCountQuery",
            "AlignQuery",
            "ReachQuery",
        ]
    assert session.session.booster.trees == ()


@pytest.mark.parametrize(("setting", "layout"), [("classes", "three holders"), ("stump", "one a column")])
def test_a_row_takes_a_bit_for_each_leaf_of_each_tree_in_which_a_holder_has_a_node(setting, layout):
    session = Predicting(layout, setting).play()
    trees, features = trained(setting).trees, session.terms.columns.features
    rows = session.tables["bank"].num_rows
    for party, names in OTHERS[layout].held.items():
        own = {features.index(name) for name in names}
        each = sum(
            -(-len(tree.leaves) // 8)
            for tree in trees
            if any(left >= 0 and f in own for f, left in zip(tree.feature, tree.left, strict=True))
        )
        told = {
            (one.what, one.to, one.rows, one.size) for one in session.relayed if one.what != "blinded row ids"
        }
        assert (KNOWN, ("bank",), rows, -(-rows // 8)) in told
        has_bits = (LEAF_BITS, ("bank",), rows, rows * each) in told
        assert has_bits == bool(each)
        sent = [relay for relay in session.said(Relay, party) if relay.turn == 3]
        due_sizes = [sealed_size(-(-rows // 8), ["bank"])] + [sealed_size(rows * each, ["bank"])] * bool(each)
        assert [len(relay.content) for relay in sent] == due_sizes
    assert sum(one.what == LEAF_BITS for one in session.relayed) == sum(
        bool(
            {features.index(n) for n in names}
            & {f for t in trees for f, left in zip(t.feature, t.left, strict=True) if left >= 0}
        )
        for names in OTHERS[layout].held.values()
    )
    checks = [one for one in session.relayed if one.what == CHECK]
    assert [one.to for one in checks] == [(party,) for party in OTHERS[layout].held]
    assert {one.size for one in checks} == {64}


def test_the_bytes_of_the_largest_model_that_the_terms_allow_fit_in_the_turn_and_little_more():
    layout = "one a column"
    session = Predicting(layout, "forest")
    terms = session.terms
    query = session.play().queries[-1]
    leaves, trees = 2**terms.trees.max_depth, terms.trees.rounds * len(terms.roots)
    rows = session.tables["bank"].num_rows
    of_holder = [sealed_size(rows * trees * -(-leaves // 8), ["bank"]), sealed_size(-(-rows // 8), ["bank"])]
    of_label_holder = [sealed_size(64, [party]) for party in terms.parties[1:]]
    most = max_relayed(terms, "bank", query, query.rows, session.session.run.state)
    assert max(sum(of_holder), sum(of_label_holder)) <= most < sum(of_holder) + sum(of_label_holder) + 4096


@pytest.mark.parametrize(("size", "least", "most"), [(1 << 24, 1, 1), (100, 5, 30), (1, 94, 94)])
def test_leaf_bits_of_many_rows_are_relayed_in_batches(monkeypatch, size, least, most):
    monkeypatch.setattr(queries, "BATCH_BYTES", size)
    session = Predicting(setting="forest").play()
    assert same(session.prediction, *due("three holders", "forest", session.tables))
    assert session.prediction.margins.size == 94
    query = session.queries[-1]
    for party in ("telco", "shop"):
        sent = [relay for relay in session.said(Relay, party) if relay.turn == 3]
        assert least <= len(sent) - 1 <= most  # the first says which rows it has
        allowed = max_relayed(session.terms, party, query, query.rows, session.session.run.state)
        assert sum(len(relay.content) for relay in sent) <= allowed
    rows = [one.rows for one in session.relayed if one.what == LEAF_BITS]
    assert sum(rows) == 2 * 94


def test_features_behind_all_others_stand_for_their_holders():
    tree = trained("stump").trees[0]
    (feature,) = (f for f, left in zip(tree.feature, tree.left, strict=True) if left >= 0)
    holders = np.arange(6) % 3
    told = [tree.changed(feature=6 + tree.feature % 3)]
    parties = ("bank", "telco", "shop")
    seen, whole = Structure.of(told, parties, holders), Structure.of([tree], parties, holders)
    assert seen.holder.tolist() == whole.holder.tolist() == [feature % 3, -1, -1]


def test_the_parties_sign_that_they_predicted_and_no_tree():
    session = Predicting().play()
    model = signed_model_of(session.session)
    assert set(model.attestations) == {"bank", "telco", "shop"}
    assert model.faults(session.roots, NOW) == {}
    assert {attest.structure for attest in model.attestations.values()} == {b""}


# ---- what cannot be -------------------------------------------------------------------------------------


def refusal(tables, changes=None, models=None):
    terms = terms_for("three holders", "logistic", tables, **(changes or {}))
    with pytest.raises(fb.FedboostError) as raised:
        run_prediction(terms, models_of(terms, "logistic") if models is None else models, tables)
    text = str(raised.value)
    assert text.isprintable()
    assert len(text) < 400
    return text


def test_another_number_of_rows_than_the_terms_say_is_one_line():
    tables = tables_of("three holders")
    rows = tables["bank"].num_rows
    assert refusal(tables, {"predict_rows": rows + 1}).endswith(
        f"label holder bank has {rows} rows to predict, but the terms have predict_rows = {rows + 1}"
    )


def test_rows_that_a_feature_holder_knows_too_few_of_are_one_line():
    tables = tables_of("three holders")
    tables["shop"] = tables["shop"].slice(0, FEWEST - 1)
    known = due("three holders", "logistic", tables)[1][1].sum()
    assert refusal(tables).endswith(
        f"parties bank, shop have only {known} rows in common, but the terms require min_common_rows = "
        f"{FEWEST}: compare how their row ids are written (id_form in the terms), or lower min_common_rows "
        f"by --min-common-rows if so few rows are enough"
    )


def test_a_party_without_a_model_and_one_without_a_table_are_named():
    tables = tables_of("three holders")
    assert refusal(tables, models={}) == "the model of party bank is missing; pass one for each party"
    terms = terms_for("three holders", "logistic", tables)
    without = {party: table for party, table in tables.items() if party != "shop"}
    with raised(fb.ConfigError, "predict-input-missing"):
        run_prediction(terms, models_of(terms, "logistic"), without)


def test_a_site_without_models_refuses():
    session = Predicting()
    make = Predicting.keeping(session, "telco", None)
    session.crash("telco", holder=make)
    assert session.play().error == ("party telco left: it does not have any models to predict with")


def test_a_model_of_other_columns_is_refused():
    tables = tables_of("three holders")
    models = models_of(terms_for("three holders", "logistic", tables), "logistic")
    other = replace(models["shop"], features=models["shop"].features[::-1])
    assert refusal(tables, models={**models, "shop": other}) == (
        "party shop left: the model of party shop has different columns from the terms"
    )


@pytest.mark.parametrize("fault", ["twice", "missing"])
def test_ids_of_the_label_holder_that_match_nothing_are_one_line(fault):
    tables = tables_of("three holders")
    ids = tables["bank"]["id"].to_pylist()
    ids[0] = ids[1] if fault == "twice" else None
    place = tables["bank"].column_names.index("id")
    tables["bank"] = tables["bank"].set_column(place, "id", pa.array(ids))
    assert "party bank left: its rows do not fit the terms" in Predicting(tables=tables).play().error


def test_terms_that_train_do_not_predict_and_terms_that_predict_do_not_train():
    tables = tables_of("three holders")
    terms = terms_for("three holders", "logistic", tables)
    with raised(fb.ConfigError, "terms-not-training"):
        fb.simulate(terms, tables)
    with raised(fb.ConfigError, "terms-not-predicting"):
        run_prediction(terms.changed(predict_with=None, predict_rows=None), {}, tables)


@pytest.mark.parametrize("settings", [{}, {"keyholder": "bank", "key_bits": 2048}])
def test_models_of_hidden_columns_predict_with_no_key(settings):
    tables = tables_of("two holders")
    terms = terms_for("two holders", "logistic", tables, protection="paillier", **settings)
    assert terms.keyholder is None
    prediction = run_prediction(terms, models_of(terms, "logistic"), tables)
    assert same(prediction, *due("two holders", "logistic", tables))


def test_the_terms_of_these_tests_are_those_of_a_training_but_for_two_keys():
    tables = tables_of("two holders")
    terms = terms_for("two holders", "logistic", tables)
    trains = terms.changed(predict_with=None, predict_rows=None)
    assert trains.changed(predict_with=MODEL, predict_rows=tables["bank"].num_rows) == terms != trains
    assert terms_of(columns={}).vertical.predicts is False
