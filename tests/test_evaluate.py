"""`evaluate`: the metrics of a model over all parties' rows, and nothing of few of them."""

import asyncio
import dataclasses
import itertools
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from raised import raised
from refusals import refusal
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms
from sklearn import metrics as reference

import fedboost as fb
from fedboost.boosting.programs.rounding import coarse, nearest, step_of, unit_of
from fedboost.boosting.programs.tasks import evaluate, merged
from fedboost.boosting.queries.columns import QuantileQuery, SummaryQuery
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery, RowsQuery
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.fixedpoint import UNIT
from fedboost.gbdt import metrics
from fedboost.gbdt.cut_points import Grids
from fedboost.gbdt.metrics import OUTCOMES
from fedboost.holders.other_tasks import EvaluationHolder
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.signed_model import PART_BEGINS
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import evaluation_terms, read_terms, terms_to_toml
from fedboost.terms.tasks import terms_to_describe
from fedboost.views.approval import summary as summary_of
from fedboost.views.as_text import text as blocks_of
from fedboost.views.results import evaluation as view
from fedboost.views.results import remarks

COLUMNS = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}
OPEN = {"parties": "any", "analysts": "any", "columns": "any", "evaluate": "any"}
TABLE = rows(900, seed=4)


def among(parties, table=TABLE, seed=3):
    """The rows shared out among so many parties."""
    owner = np.random.default_rng(seed).integers(0, parties, table.num_rows)
    return {f"p{number}": table.filter(pa.array(owner == number)) for number in range(parties)}


@pytest.fixture(scope="module")
def model():
    return fb.simulate(terms(min_child_weight=3), shared_out(3, rows(600))).model


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 3, 7])
def test_the_area_of_few_events_is_within_what_is_stated(parties):
    """500 rows with 50 events, as a ward of a hospital has them: two thousandths where sites allow counts of
    single rows."""
    for seed in range(5):
        table = rows(4000, seed=20 + seed)
        draw = np.random.default_rng(seed)
        label = ((table["age"].to_numpy() - 65) / 4 + draw.logistic(size=4000) > 0).astype(int)
        table = table.set_column(table.schema.get_field_index("y"), "y", pa.array(label))
        settings = {"min_child_weight": 3, "rounds": 20, "learning_rate": 0.2, "max_bin": 64}
        trained = fb.simulate(terms(**settings), shared_out(3, table.slice(2000))).model
        events, others = np.flatnonzero(label[:2000])[:50], np.flatnonzero(label[:2000] == 0)[:450]
        part = table.take(np.sort([*events, *others]))
        agreed = terms(protection="masked" if parties > 2 else "plain")
        expected = reference.roc_auc_score(part["y"].to_numpy(), trained.predict(part))
        for min_count, most in ((1, 0.002), (10, 0.11)):
            found = fb.evaluate(trained, among(parties, part), agreed, min_count=min_count).summary["auc"]
            assert abs(found["value"] - expected) <= min(found["resolution"], most)


def outcomes_of(label, positive):
    return dict(zip(OUTCOMES, reference.confusion_matrix(label, positive).ravel().tolist(), strict=True))


def close(value, expected, within=1e-9):
    """The value is the expected one, to the digits that are told."""
    digit = 10.0 ** (np.floor(np.log10(abs(expected) or 1.0)) - 3)
    assert abs(value - expected) <= within + 0.5001 * digit, (value, expected)


@pytest.mark.parametrize("parties", [1, 3, 7])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_it_is_that_of_the_pooled_rows(model, parties, protection):
    if protection == "masked" and parties < 3:
        pytest.skip("masks hide a party among three")
    names = ["logloss", "error", "error@0.3", "ece", "auc"]
    agreed = terms(protection=protection, eval_metric=names)
    label, score = TABLE["y"].to_numpy(), model.predict(TABLE)
    expected = {
        "logloss": reference.log_loss(label, score),
        "error": np.mean((score > 0.5) != label),
        "error@0.3": np.mean((score > 0.3) != label),
        "auc": reference.roc_auc_score(label, score),
    }
    outcomes = outcomes_of(label, score > 0.5)
    summary = fb.evaluate(model, among(parties), agreed, min_count=1).summary
    for name, value in expected.items():
        close(summary["metrics"][name], value, 2e-4 if name == "auc" else 1e-9)
    assert summary["confusion"] == outcomes
    close(summary["mean_prediction"], score.mean(), 1e-8)
    close(summary["rates"]["precision"], reference.precision_score(label, score > 0.5))
    close(summary["rates"]["true_positive_rate"], reference.recall_score(label, score > 0.5))
    assert summary["rows"] == len(label)
    coarse = fb.evaluate(model, among(parties), agreed).summary
    for name, value in expected.items():
        assert abs(coarse["metrics"][name] - value) <= coarse["resolution"][name] + 2e-4 * (name == "auc")
        assert coarse["resolution"][name] <= 0.0301
    assert all(count % 10 == 0 and abs(count - outcomes[o]) <= 10 for o, count in coarse["confusion"].items())
    for found in (summary, coarse):
        assert abs(found["auc"]["value"] - expected["auc"]) <= found["auc"]["resolution"] <= 0.0301
        assert found["auc"]["value"] == found["metrics"]["auc"]


@pytest.mark.parametrize("settings", [{}, {"colluding": 2}, {"on_loss": "shrink", "quorum": 3}])
def test_a_model_of_several_parties_is_measured_on_the_rows_of_fewer(settings):
    own = fb.simulate(terms(protection="masked", **settings), among(4)).model
    pooled = fb.evaluate(own, among(4))
    for parties in (1, 2, 3):
        known = fb.evaluate(own, among(parties))
        assert (known.metrics, known.rows) == (pooled.metrics, pooled.rows)
    with pytest.raises(fb.ConfigError, match="masked"):
        fb.evaluate(own, among(1), own.terms)  # who gives terms means them


@pytest.mark.parametrize("parties", [1, 3, 7])
def test_before_it_is_rounded_it_is_that_of_the_pooled_rows_to_nine_digits(model, parties, monkeypatch):
    monkeypatch.setattr(metrics, "DIGITS", 17)
    protection = "masked" if parties > 2 else "plain"
    agreed = terms(protection=protection, eval_metric=["error", "error@0.3", "logloss"])
    found = fb.evaluate(model, among(parties), agreed, min_count=1).metrics
    label, score = TABLE["y"].to_numpy(), model.predict(TABLE)
    assert found["error"] == pytest.approx(np.mean((score > 0.5) != label), abs=1e-9)
    assert found["error@0.3"] == pytest.approx(np.mean((score > 0.3) != label), abs=1e-9)
    assert found["logloss"] == pytest.approx(reference.log_loss(label, score), abs=1e-9)


@pytest.mark.parametrize("threshold", [0.03, 0.5, 0.61, 0.995])
def test_curves_are_those_of_the_rows(model, threshold):
    known = fb.evaluate(model, among(3), threshold=threshold, min_count=1).summary
    label, score = TABLE["y"].to_numpy(), model.predict(TABLE)
    assert known["confusion"] == outcomes_of(label, score > threshold)
    for each in known["bins"]:
        lies = (score > each["low"]) & (score <= each["high"])
        assert (each["rows"], each["positives"]) == (lies.sum(), label[lies].sum())
        close(each["mean_prediction"], score[lies].mean(), 1e-8)
        close(each["rate"], label[lies].mean())
    for point in known["roc"]:
        predicted = score > point["threshold"]
        close(point["true_positive_rate"], predicted[label == 1].mean())
        close(point["false_positive_rate"], predicted[label == 0].mean())
    assert (known["roc"][-1]["true_positive_rate"], known["roc"][-1]["false_positive_rate"]) == (1.0, 1.0)


def test_subgroups_and_sites_are_the_same_on_their_rows(model):
    tables = among(3)
    agreed = terms(eval_metric=["logloss", "auc"], min_count=1)
    known = fb.evaluate(model, tables, agreed, by=["ward"], by_site=True)
    parts = {ward: TABLE.filter(pa.compute.equal(TABLE["ward"], ward)) for ward in "abc"}
    assert [*known.summary["subgroups"]["ward"]["sets"]] == ["a", "b", "c"]
    assert [*known.summary["sites"]["sets"]] == [*tables]
    told = known.summary["subgroups"]["ward"]["sets"] | known.summary["sites"]["sets"]
    for name, table in (parts | tables).items():
        alone = fb.evaluate(model, {"one": table}, agreed).summary
        assert {key: alone[key] for key in told[name]} == told[name]
        label, score = table["y"].to_numpy(), model.predict(table)
        close(told[name]["metrics"]["logloss"], reference.log_loss(label, score))
        assert told[name]["confusion"] == outcomes_of(label, score > 0.5)
    selected = [known.summary["subgroups"]["ward"]["sets"][ward]["rates"]["selection_rate"] for ward in "abc"]
    assert known.summary["subgroups"]["ward"]["gaps"]["selection_rate"] == max(selected) - min(selected)


def test_rows_without_a_declared_level_are_a_subgroup(model):
    wards = ["d" if place < 200 else ward for place, ward in enumerate(TABLE["ward"].to_pylist())]
    table = TABLE.set_column(TABLE.schema.get_field_index("ward"), "ward", pa.array(wards))
    known = fb.evaluate(model, among(3, table), by=["ward"]).summary["subgroups"]["ward"]["sets"]
    assert known["missing"]["rows"] == 200
    assert sum(part["rows"] for part in known.values()) == 900


SEXES = np.array(["F", "M", "X"])[np.random.default_rng(8).choice(3, 900, p=[0.5, 0.48, 0.02])]


def test_subgroups_by_a_column_that_is_no_feature(model, tmp_path):
    table = TABLE.append_column("sex", pa.array(SEXES))
    tables, declared = among(3, table), {"columns": {**COLUMNS, "subgroups": {"sex": ["F", "M"]}}}
    known = fb.evaluate(model, tables, by=["sex=F,M", "ward"])
    assert known.summary == fb.evaluate(model, tables, terms(**declared), by=["sex", "ward"]).summary
    assert known.summary == fb.evaluate(model, tables, terms(**declared, subgroups=["sex", "ward"])).summary
    assert [*known.summary["subgroups"]] == ["sex", "ward"]
    with raised(ConfigError, "terms-by-column"):
        fb.evaluate(model, tables, by=["sex="])
    known = fb.evaluate(model, tables, by=["sex=F,M"], min_count=1)
    for sex in "FM":
        part = table.filter(pa.compute.equal(table["sex"], sex))
        told = known.summary["subgroups"]["sex"]["sets"][sex]
        close(told["metrics"]["logloss"], reference.log_loss(part["y"].to_numpy(), model.predict(part)))
        assert told["confusion"] == outcomes_of(part["y"].to_numpy(), model.predict(part) > 0.5)
    parquet = tmp_path / "p0.parquet"
    pa.parquet.write_table(table, parquet)
    (tmp_path / "p0.csv").write_text(table.to_pandas().to_csv(index=False))
    for source in (parquet, tmp_path / "p0.csv"):
        assert fb.evaluate(model, {"p0": source}, by=["sex=F,M", "ward"]).rows == 900
    unread = evaluation_terms(model, terms(**declared), by=["ward"])
    assert not unread.columns.subgroups
    without = {name: each.drop_columns(["sex"]) for name, each in tables.items()}
    trained = fb.simulate(terms(**declared), without).model
    assert trained.fingerprint == fb.simulate(terms(), without).model.fingerprint
    assert (
        fb.evaluate(trained, tables, by=["sex"]).summary["subgroups"]["sex"]
        == fb.evaluate(trained, tables, by=["sex=F,M"]).summary["subgroups"]["sex"]
    )
    with raised(Refused, "table-column-missing"):
        fb.evaluate(model, among(3), by=["sex=F,M"])
    assert evaluation_terms(model, by=["ward=c,a,b"]) == evaluation_terms(model, by=["ward"])
    with pytest.raises(ConfigError, match="column 'sex' must have at least one level, and must list each"):
        evaluation_terms(model, by=["sex=F,F"])
    named = {**OPEN, "columns": {"label": ["y"], "features": ["age", "dose", "ward"]}, "subgroups": True}
    agreed = evaluation_terms(model, terms(["a", "b", "c"], protection="masked"), by=["sex=F,M"])
    (breach,) = Policy(**named).breaches(agreed)
    assert breach.key == "columns.subgroups"
    named["columns"]["subgroups"] = ["sex"]
    assert not [*Policy(**named).breaches(agreed)]
    assert "subgroup sex, not a feature: F, M" in " ".join(summary_of(agreed).split())


AMOUNT = TABLE["age"].to_numpy() + np.random.default_rng(5).gamma(2, 10, 900) + 20
NUMBERS = TABLE.set_column(TABLE.schema.get_field_index("y"), "y", pa.array(AMOUNT))
CLASSES = {"columns": {"label": "ward", "numeric": ["age", "dose"], "classes": ["c", "a", "b"]}}


@pytest.mark.slow
def test_numbers_and_classes_and_weights():
    weighted = TABLE.append_column("w", pa.array(np.random.default_rng(2).uniform(0.1, 3, 900)))
    parts = shared_out(3, NUMBERS)
    settings = {"objective": "reg:squarederror", "eval_metric": ["rmse", "mae"]}
    trained = fb.simulate(terms(**settings), parts).model
    label, score = NUMBERS["y"].to_numpy().astype(np.float32), trained.predict(NUMBERS)
    known = fb.evaluate(trained, among(3, NUMBERS), min_count=1)
    close(known.metrics["rmse"], reference.root_mean_squared_error(label, score))
    close(known.metrics["mae"], reference.mean_absolute_error(label, score))
    assert not {"auc", "confusion", "classes"} & known.summary.keys()
    trained = fb.simulate(terms(**CLASSES, objective="multi:softprob"), shared_out(3)).model
    known = fb.evaluate(trained, among(3), terms(**CLASSES, objective="multi:softprob"), min_count=1)
    label, score = [*map("cab".index, TABLE["ward"].to_pylist())], trained.predict(TABLE)
    close(known.metrics["mlogloss"], reference.log_loss(label, score))
    assert known.summary["confusion"] == reference.confusion_matrix(label, score.argmax(axis=1)).tolist()
    assert known.summary["classes"] == ["c", "a", "b"]
    columns = {"columns": {**COLUMNS, "weight": "w"}}
    trained = fb.simulate(terms(**columns), shared_out(3, weighted)).model
    agreed = terms(**columns, eval_metric=["logloss", "error"], min_count=1)
    known = fb.evaluate(trained, among(3, weighted), agreed)
    weight, score = weighted["w"].to_numpy().astype(np.float32), trained.predict(weighted)
    label = weighted["y"].to_numpy()
    close(known.metrics["logloss"], reference.log_loss(label, score, sample_weight=weight))
    close(known.metrics["error"], np.average((score > 0.5) != label, weights=weight), 1e-8)
    assert known.summary["confusion"] == outcomes_of(label, score > 0.5)


OBJECTIVES = {
    "count:poisson": {},
    "reg:gamma": {},
    "reg:quantileerror": {"quantile_alpha": 0.3},
    "rank:ndcg": {"columns": {**COLUMNS, "label": "stars", "group": "place"}, "eval_metric": ["ndcg@3"]},
    "survival:aft": {"columns": {**COLUMNS, "label_upper_bound": "end"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_on_the_rows_of_a_training_it_is_the_metric_of_its_last_round(objective):
    place = np.arange(900) // 9
    table = NUMBERS.append_column("end", NUMBERS["y"]).append_column("place", pa.array(place))
    table = table.append_column("stars", pa.array(np.digitize(TABLE["age"].to_numpy(), [40, 50, 60])))
    tables = {name: table.filter(pa.array(place % 3 == n)) for n, name in enumerate("abc")}
    result = fb.simulate(terms(**{"objective": objective, **OBJECTIVES[objective]}), tables)
    known = dict(fb.evaluate(result.model, tables, min_count=1).metrics)
    known.pop("cindex", None)  # not computed in rounds
    last = result.model.rounds[-1]
    assert {name: float(f"{value:.4g}") for name, value in known.items()} == {n: last[n] for n in known}


def test_a_model_with_base_margins_and_one_of_xgboost(tmp_path):
    table = TABLE.append_column("offset", pa.array(np.random.default_rng(1).normal(size=900)))
    based = {"columns": {**COLUMNS, "base_margin": "offset"}}
    trained = fb.simulate(terms(**based), shared_out(3, table)).model
    close(
        fb.evaluate(trained, among(3, table), min_count=1).metrics["logloss"],
        reference.log_loss(table["y"].to_numpy(), trained.predict(table)),
    )
    numeric = {"columns": {"label": "y", "numeric": ["age", "dose"]}}
    features = TABLE.select(["age", "dose"]).to_pandas()
    matrix = xgboost.DMatrix(features, TABLE["y"].to_numpy())
    foreign = xgboost.train({"objective": "binary:logistic", "max_depth": 3}, matrix, 4)
    foreign.save_model(tmp_path / "foreign.json")
    agreed = terms(**numeric, eval_metric=["logloss", "auc"], min_count=1)
    known = fb.evaluate(tmp_path / "foreign.json", among(3), agreed)
    close(known.metrics["logloss"], reference.log_loss(TABLE["y"].to_numpy(), foreign.predict(matrix)), 1e-6)
    with raised(ConfigError, "model-without-terms"):
        fb.evaluate(tmp_path / "foreign.json", among(3))


@pytest.mark.slow
async def test_over_grpc_it_is_the_same_each_party_signs_it_and_the_audit_log_says_so(model, tmp_path):
    tables = among(3)
    agreed = terms(protection="masked").with_parties(tables)
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    model.save(tmp_path / "m.json")
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, table in tables.items():
            one.start_party(name, table)
        known = await asyncio.to_thread(one.analyst.evaluate, model, agreed, ["ward"], True)
        options = "--aggregator", one.address, "--keys", tmp_path / "keys" / "analyst", "--json"
        options += "--terms", tmp_path / "terms.toml", "--by", "ward", "--by-site"
        typed = await asyncio.to_thread(fedboost, "evaluate", tmp_path / "m.json", *options)
    assert (typed.code, json.loads(typed.out)) == (0, known.summary)
    here = fb.evaluate(model, tables, agreed, by=["ward"], by_site=True)
    assert known.about == "no training rows"  # none of these sites took part in it
    assert json.dumps(known.summary) == json.dumps(here.summary | {"shares": known.summary["shares"]})
    assert known.signed_by == agreed.parties
    told = fedboost("audit", tmp_path / "c" / "state" / "p0" / "memory.sqlite")
    assert told.code == 0
    assert "to evaluate  a binary:logistic model on the rows of all parties" in told.out
    assert "evaluation: all rows and this site's rows 1 1" in " ".join(told.out.split())
    assert "except this site's own metrics" in told.out
    assert "with an evaluation, according to the aggregator" in told.out
    assert "No warnings: everything that left this site is allowed by the agreed terms." in told.out


def test_small_groups_are_left_out_and_no_others(model):
    wards = np.array(["a", "b", "c"])[np.where(np.arange(900) < 6, 0, np.where(np.arange(900) < 60, 1, 2))]
    table = TABLE.set_column(TABLE.schema.get_field_index("ward"), "ward", pa.array(wards))
    split = fb.evaluate(model, among(3, table), by=["ward"]).summary["subgroups"]["ward"]
    assert split["left_out"] == ["a", "missing"]  # of which there is none: it is not told apart
    assert {ward: known["rows"] for ward, known in split["sets"].items()} == {"b": 50, "c": 840}
    with pytest.raises(SessionFailed, match="the parties have fewer rows in total than min_count = 901"):
        fb.evaluate(model, among(3), min_count=901)


@pytest.mark.parametrize("ones", [4, 9, 10, 40])
def test_a_label_of_few_rows(model, ones):
    """Of fewer rows than a unit nothing is told that needs them; of others all is."""
    label = pa.array((np.arange(900) < ones).astype(np.int64))
    table = TABLE.set_column(TABLE.schema.get_field_index("y"), "y", label)
    known = fb.evaluate(model, among(3, table), terms(eval_metric=["logloss", "auc", "aucpr", "ks"])).summary
    few = ones < 10
    assert [name for name, value in known["metrics"].items() if value is None] == ["auc", "aucpr", "ks"] * few
    assert ((known["auc"], known["roc"], known["bins"]) == (None, [], [])) == few
    assert {known["confusion"]["fn"], known["confusion"]["tp"]} == {None} or not few
    assert sum(each["positives"] for each in known["bins"]) == (0 if few else ones)
    if not few:
        rows_of = [each["rows"] for each in known["bins"]]
        assert min(rows_of) >= 50
        assert all(count % 10 == 0 for count in rows_of)
        assert None not in known["confusion"].values()
        assert sum(known["confusion"].values()) == 900


@pytest.mark.slow
def test_few_rows_without_a_level_take_no_group_with_them(model):
    """200 tables with 1 to 9 blanks: both sexes are told, and the blanks are not."""
    draw = np.random.default_rng(2)
    for _ in range(200):
        sexes = np.array(["F", "M"], object)[(draw.random(900) < 0.6).astype(int)]
        sexes[draw.choice(900, draw.integers(1, 10), replace=False)] = None
        split = fb.evaluate(model, {"p": TABLE.append_column("sex", pa.array(sexes))}, by=["sex=F,M"]).summary
        split = split["subgroups"]["sex"]
        assert ([*split["sets"]], split["left_out"]) == (["F", "M"], ["missing"])
        assert None not in (value for known in split["sets"].values() for value in known["rates"].values())


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.sampled_from([1, 2, 5, 10, 20, 50]))
def test_counts_are_coarse(counts, unit):
    """Parts add up to what is told of their total; each end of parts has half a unit of possible counts."""
    total = sum(counts)
    told = coarse(counts, unit)
    assert (told is None) == (total < unit)
    if told is None:
        return
    assert sum(told) == nearest(total, unit)
    assert all(count >= 0 and count % unit == 0 for count in told)
    assert all(abs(a - b) <= unit * (unit > 1) for a, b in zip(told, counts, strict=True))
    ends = [coarse([end, total - end], unit)[0] for end in range(total + 1)]
    assert all(low <= high for low, high in itertools.pairwise(ends))
    assert min(ends.count(end) for end in {*ends}) >= unit // 2
    assert np.cumsum(told).tolist() == [ends[end] for end in np.cumsum(counts)[:-1]] + [sum(told)]


@given(st.integers(1, 10**6))
def test_units_are_few(min_count):
    """So that counts in several units of an analyst's choice tell little more than in one."""
    unit = unit_of(min_count)
    assert min_count <= unit <= max(10 * (min_count - 1), 1)
    assert str(unit).strip("0") in ("1", "2", "5")
    ends = [{*range(unit // 2, 500 * unit, unit)} for unit in (10, 20, 50, 100, 200, 500)]
    every = sorted(set.union(*ends))
    assert min(high - low for low, high in itertools.pairwise(every)) >= 5


@pytest.mark.parametrize(("size", "step"), [(1, 1), (0.99, 0.5), (0.2, 0.2), (0.0044, 0.002), (3e-5, 2e-5)])
def test_the_last_digit_is_moved_by_so_much(size, step):
    assert step_of(size) == pytest.approx(step)


def test_rows_that_weigh_nothing_have_no_metrics(model):
    ward = np.array(TABLE["ward"].to_pylist())
    label = TABLE["y"].to_numpy()
    weight = np.where((ward == "a") | ((ward == "b") & (label == 1)), 0.0, 1.0)
    table = TABLE.append_column("w", pa.array(weight))
    agreed = terms(columns={**COLUMNS, "weight": "w"}, eval_metric=["logloss", "auc"])
    sets = fb.evaluate(model, among(3, table), agreed, by=["ward"]).summary["subgroups"]["ward"]["sets"]
    assert sets["a"]["metrics"] == {"logloss": None, "auc": None}
    assert sets["b"]["metrics"]["auc"] is None
    assert None not in sets["c"]["metrics"].values()


def test_the_loss_of_a_row_is_capped(model):
    """No row counts for more than a label of probability 0.001, nor for more than a unit of rows reaches."""
    odd = TABLE.slice(0, 1).set_column(TABLE.schema.get_field_index("y"), "y", pa.array([1e9]))
    numbers = pa.concat_tables([NUMBERS, odd])
    trained = fb.simulate(terms(objective="reg:squarederror"), shared_out(3, NUMBERS)).model
    one, other = (fb.evaluate(trained, among(3, table)).metrics["rmse"] for table in (NUMBERS, numbers))
    assert abs(one - other) <= 0.1 * one
    known = fb.evaluate(trained, among(3, numbers))
    assert known.summary["caps"]["rmse"] < 1e6
    assert "the loss of a row is capped at" in " ".join(remarks(known))
    crafted = dataclasses.replace(model.booster, trees=model.booster.trees[:1])
    tree = crafted.trees[0]
    low = tree.changed(value=np.where(tree.inner, tree.value, -40.0))
    crafted = dataclasses.replace(crafted, trees=(low,))
    worst = fb.evaluate(dataclasses.replace(model, booster=crafted), among(3)).metrics["logloss"]
    assert worst == pytest.approx(-np.log(1e-3) * TABLE["y"].to_numpy().mean(), abs=0.05)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=30), st.integers(1, 60), st.integers(0, 30))
def test_runs_of_bins_have_rows_enough(counts, least, kept):
    counts, kept = np.array(counts), min(kept, len(counts))
    runs = merged(counts, least, kept)
    assert [0, *(high for _, high in runs)] == [*(low for low, _ in runs), counts.size]
    assert len(runs) == 1 or all(counts[low:high].sum() >= least for low, high in runs)
    if min(counts[:kept].sum(), counts[kept:].sum()) >= least:
        assert kept in [high for _, high in runs]


@given(st.lists(st.floats(-12, 12), min_size=1, max_size=30), st.floats(0.001, 0.999))
def test_a_bin_lies_on_one_side_of_the_threshold(margins, threshold):
    margin = np.array(margins)
    label = (np.arange(margin.size) % 2).astype(np.float32)
    counts = metrics.count_bins(margin, label, threshold).reshape(3, -1)[:2]
    tn, fp, fn, tp, _ = metrics.count_outcomes(margin, label, threshold).tolist()
    edges = metrics.edges(threshold)
    at = edges.index(threshold) + 1
    assert counts[:, :at].sum(axis=1).tolist() == [tn, fn]
    assert counts[:, at:].sum(axis=1).tolist() == [fp, tp]
    assert len(edges) + 1 == metrics.bins(threshold)
    assert (np.diff(edges) > 0).all()
    cells = metrics.count_cells(margin, label).reshape(2, -1)
    assert cells.sum(axis=1).tolist() == [tn + fp, fn + tp]


def test_queries_of_other_sessions_and_about_other_rows_are_refused(model):
    agreed = evaluation_terms(model, terms(["north", "south"]), ["ward"])
    query = EvaluationQuery.of(agreed, 900, UNIT, (4.0,))
    query.check(agreed)
    MagnitudesQuery(("logloss",)).check(agreed)
    for settings, why in (
        (
            {"sets": ("all", "sex=F", "sex=M")},
            'the terms allow metrics only for these groups of rows: all, "ward" = "a"',
        ),
        ({"sites": ("north", "south")}, "the terms allow metrics only for these groups of rows:"),
        ({"metrics": ("auc",)}, "the terms allow only these metrics: logloss"),
        ({"threshold": 0.4}, "scores, classes or threshold of the query differ from"),
        ({"classes": 3}, "scores, classes or threshold of the query differ from"),
        ({"weight": dataclasses.replace(UNIT, bits=4)}, "the scale of row weights"),
        ({"caps": ()}, "one finite loss cap per metric"),
        ({"caps": (float("nan"),)}, "one finite loss cap per metric"),
    ):
        with pytest.raises(Refused, match=why):
            dataclasses.replace(query, **settings).check(agreed)
    trained = terms()
    with raised(Refused, "query-task"):
        query.check(trained)
    with raised(Refused, "query-task"):
        SummaryQuery.of(trained).check(agreed)
    with raised(Refused, "query-task"):
        MagnitudesQuery(("logloss",)).check(terms_to_describe(trained))
    with raised(Refused, "query-metrics"):
        MagnitudesQuery(("logloss", "auc")).check(agreed)
    with raised(Refused, "query-task"):
        RowsQuery().check(agreed)
    with raised(Refused, "query-task"):
        QuantileQuery(900, Grids.first(2)).check(agreed)


@pytest.mark.parametrize("asked", ["of other rows", "again"])
def test_a_session_that_asks_for_more_ends(model, asked):
    """Each question is held to the terms, and there are no more of them than the terms have."""
    agreed, tables = evaluation_terms(model, terms(["north", "south"]), ["ward"]), shared_out(2)
    own = EvaluationQuery.of(agreed, 180, UNIT, (4.0,))
    more = [dataclasses.replace(own, sites=("north",))] if asked == "of other rows" else [own, own]
    why = (
        "the terms allow metrics only for these groups of rows:",
        "the aggregator sent turn 3, but the terms allow only 2 turns",
    )

    def program(terms, grown):
        totals = []
        for query in (MagnitudesQuery(terms.metrics), *more):
            totals.append((yield query))

    session, _, _ = run_session(agreed, tables, program)
    assert session.booster is None
    assert why[asked == "again"] in str(session.error)


def test_terms_in_a_file_are_those_of_the_command(model, tmp_path):
    """So that a site can approve them before."""
    model.save(tmp_path / "model.json")
    text = terms_to_toml(terms(["north", "south"]))
    text = f'program = "evaluate"\nxgb_model = "model.json"\nsubgroups = ["ward"]\n{text}'
    (tmp_path / "evaluate.toml").write_text(text)
    agreed = read_terms(tmp_path / "evaluate.toml")
    assert evaluation_terms(tmp_path / "model.json", agreed).digest == agreed.digest
    assert "program = 'evaluate', which does not train a model; use fedboost evaluate" in refusal(
        "estimate", tmp_path / "evaluate.toml", "--rows", 100
    )


def test_sums_that_cannot_be_end_the_session(model):
    agreed = evaluation_terms(model, terms(["north"]), ["ward"])
    holder = EvaluationHolder(lambda terms: to_shard(as_table(TABLE), terms, "north"), agreed)
    query = EvaluationQuery.of(agreed, 900, UNIT, (4.0,))
    for place, change, why in (
        (0, 1, "the row counts of the sets do not sum to 900"),
        (query.cells_of_set - 1, 2**60, "probabilities of some rows sum to less than 0 or more"),
        (query.cells_of_set - 2, 5, "the outcomes of a set do not sum to its number of rows"),
        (
            -2 * metrics.FINE_CELLS - 1,
            -(2**40),
            "probabilities of some rows sum to less than 0 or more",
        ),
        (
            -2 * metrics.FINE_CELLS - 2 * metrics.bins(0.5),
            -7,
            "row counts by score do not sum to the outcomes",
        ),
        (-1, 1, "row counts by score and by bin do not have the same total"),
    ):
        program = evaluate(agreed, [])
        program.send(None)
        asked = program.send(run_out(holder.answering(MagnitudesQuery(("logloss",)))).value)
        total = run_out(holder.answering(asked)).value
        total[place] += change
        with pytest.raises(PeerError, match=why):
            program.send(total)


def run_out(answering):
    """The end of an answer that waits for nothing."""
    with pytest.raises(StopIteration) as end:
        next(answering)
    return end.value


def test_a_site_refuses_by_its_policy(model):
    three = terms(["north", "south", "east"], protection="masked")

    def broken(policy=(), **options):
        agreed = evaluation_terms(model, options.pop("terms", three), **options)
        return [breach.key for breach in Policy(**OPEN, **dict(policy)).breaches(agreed)]

    assert broken() == []
    assert broken(by=["ward"]) == ["subgroups"]
    assert broken({"subgroups": True}, by=["ward"]) == []
    assert broken(by_site=True) == ["party_metrics"]
    assert broken(threshold=0.3) == []  # an edge of bins, which are told at any threshold
    assert broken(threshold=0.31) == ["metrics_at_thresholds"]
    assert broken({"metrics_at_thresholds": True}, threshold=0.31) == []
    assert broken(terms=three.changed(eval_metric=["error@0.4"])) == ["metrics_at_thresholds"]
    assert broken(min_count=3) == ["min_count"]
    assert broken({"max_metrics": 1}, terms=three.changed(eval_metric=["auc", "logloss"])) == ["max_metrics"]
    assert broken(terms=terms(["north", "south", "east"])) == ["protections"]
    assert broken({"epsilon": 1.0, "delta": 1e-6}) == ["epsilon"]


def test_what_cannot_be_is_one_line(model, tmp_path):
    def why(*args, **options):
        with pytest.raises(ConfigError) as caught:
            evaluation_terms(*args, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert (
        "subgroups: 'wards' is not a categorical column of the terms (did you mean ward?); known: ward"
        in why(model, by=["wards"])
    )
    for by in ("age", "age=young,old"):
        said = "by 'age': it is numeric in the terms, but results can be reported only by levels"
        assert why(model, by=[by]) == said
    said = "by 'ward': it is a feature whose levels the terms already declare (a, b, c): use only its name"
    assert why(model, by=["ward=a,b"]) == said
    assert why(model, by=["y"]) == "by 'y': it is the label or another special column, not a feature"
    said = "by 'site': it is not a column of the terms: for results by site use --by-site (by_site=True)"
    assert why(model, by=["site"]) == said
    assert evaluation_terms(model, by=["site=north,south"]).columns.subgroups == {"site": ("north", "south")}
    assert "threshold" in why(model, threshold=1.5)
    assert "min_count" in why(model, min_count=0)
    other = terms(columns={**COLUMNS, "numeric": ["dose", "age"]})
    assert "xgb_model cannot be evaluated: its feature 1 is 'age'" in why(model, other)
    other = terms(objective="reg:squarederror")
    assert "xgb_model cannot be evaluated: its objective is binary:logistic" in why(model, other)
    assert "nothing.json: cannot read the model: No such file" in why(tmp_path / "nothing.json")
    (tmp_path / "part.json").write_text(f"{PART_BEGINS},...")
    assert "part.json is not a model part written by" in why(tmp_path / "part.json")
    apart = {"columns": {"label": "y", "numeric": ["age", "dose"], "held": {"south": ["dose"]}}}
    apart = terms(["north", "south"], **apart, label_holder="north", rows="in_order")
    assert "label_holder: a model can be evaluated only if rows are matched by ids" in why(model, apart)
    with pytest.raises(ConfigError, match="program evaluate needs a model: set xgb_model"):
        terms(program="evaluate")
    agreed = evaluation_terms(model)
    with pytest.raises(
        ConfigError, match="these terms are for the task evaluate, not for training; pass them to evaluate"
    ):
        fb.simulate(agreed, shared_out(2))
    with pytest.raises(ConfigError, match="program evaluate with validation rows: it does not hold rows out"):
        agreed.changed(validation_fraction=0.2)
    with pytest.raises(PeerError, match="is not an evaluation that matches"):
        fb.Evaluation.from_model(model, {})


def test_a_person_reads_what_is_asked_and_what_is_found(model, capsys):
    from fedboost.cli.output import print_text

    agreed = evaluation_terms(model, terms(["north", "south", "east"], protection="masked"), ["ward"], True)
    text = " ".join(summary_of(agreed, ["marie"]).split())
    assert "evaluates a model on the rows of all sites; nothing is trained" in text
    assert (
        "rows by label and prediction at threshold 0.5; also for each level of ward and for each site" in text
    )
    assert "counts of fewer than 10 rows are left out" in text
    print_text(blocks_of(view(fb.evaluate(model, among(3), by=["ward"], by_site=True))))
    print_text(blocks_of(view(fb.evaluate(model, among(3), min_count=400, by=["ward"]))))
    trained = fb.simulate(terms(**CLASSES, objective="multi:softprob"), shared_out(3)).model
    print_text(blocks_of(view(fb.evaluate(trained, among(3)))))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "900 rows of all parties" in out
    assert re.search(
        r"^difference .*-.*\n\nA dash means that the difference may be due to rounding", out, re.MULTILINE
    )
    print_text(blocks_of(view(fb.evaluate(model, among(3), min_count=1, by=["ward"]))))
    assert re.search(r"^difference +0\.\d", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_level_of_a_row_is_told_as_one_of_none(model, rows):
    """With `subgroups` an analyst asks for 32 levels at a time, such as dates of birth."""
    wards = np.array(["b", "a"])[(np.arange(900) < rows).astype(int)]
    table = TABLE.set_column(TABLE.schema.get_field_index("ward"), "ward", pa.array(wards))
    split = fb.evaluate(model, among(3, table), by=["ward"]).summary["subgroups"]["ward"]
    assert (split["left_out"], [*split["sets"]]) == (["a", "c", "missing"], ["b"])
    assert split["sets"]["b"]["rows"] == 900


def test_what_rounding_decides_is_not_told_of_a_group(model):
    """45 rows: of a step of 20 percent points the group with the worst loss seemed perfect."""
    wards = np.array(["b", "a"])[(np.arange(900) < 45).astype(int)]
    table = TABLE.set_column(TABLE.schema.get_field_index("ward"), "ward", pa.array(wards))
    known = fb.evaluate(model, among(3, table), by=["ward"], min_count=10)
    summary = known.summary
    small, large = (summary["subgroups"]["ward"]["sets"][name] for name in ("a", "b"))
    assert {*small["metrics"].values(), *small["rates"].values()} == {None}
    assert None not in {*large["metrics"].values(), *large["rates"].values()}
    assert summary["subgroups"]["ward"]["gaps"] == {}
    text = " ".join(remarks(known))
    assert "For groups, “…” means fewer than 100 rows, in total or with one label." in text
    assert "--min-count" in text


def test_the_command(model, tmp_path):
    tables, file = shared_out(3, TABLE), tmp_path / "model.json"
    model.save(file)
    here = fb.evaluate(model, tables, by=["ward"]).summary

    async def scenario(*commands):
        async with consortium(tmp_path / "c", tables) as one:
            address = "--aggregator", one.address, "--insecure-loopback"
            run = [asyncio.to_thread(fedboost, "evaluate", *command, *address) for command in commands]
            return [await each for each in run]

    asked, few = (file, "--by", "ward"), (file, "--min-count", 901)
    full = (*asked, "--report", "/dev/full", "--force")
    text, as_json, few, lost = in_time(scenario(asked, (*asked, "--json"), few, full))
    assert (lost.code, lost.out) == (2, text.out)  # the session was counted: its figures are not lost
    assert (text.code, as_json.code) == (0, 0)
    assert json.loads(as_json.out) == json.loads(json.dumps(here))
    assert "900 rows of all parties" in text.out
    assert "900 rows of all parties: 100% of unknown use" in text.out
    assert "It is not known whether the model was trained on 100% of these rows" in " ".join(text.out.split())
    assert (few.code, few.out) == (2, "")
    assert "the parties have fewer rows in total than min_count = 901" in few.err


def test_the_command_with_bad_input(model, tmp_path):
    file, part, foreign = (tmp_path / f"{name}.json" for name in ("model", "part", "foreign"))
    model.save(file)
    part.write_text(f"{PART_BEGINS},...")
    xgboost.train({}, xgboost.DMatrix(np.eye(3), np.arange(3)), 1).save_model(foreign)
    other = tmp_path / "other.toml"
    other.write_text(terms_to_toml(terms(columns={**COLUMNS, "numeric": ["dose", "age"]})))
    for words, why in (
        ((tmp_path / "none.json",), "none.json: cannot read the model: No such file or directory"),
        ((tmp_path,), "cannot read the model: not a regular file"),
        ((part,), "part.json is not a model part written by"),
        ((foreign,), "foreign.json: the features have no names"),
        ((other,), "other.toml is not a fedboost model: it is not JSON"),
        ((file, "--terms", other), "xgb_model cannot be evaluated: its feature 1 is 'age'"),
        ((file, "--terms", tmp_path / "none.toml"), "none.toml"),
        (
            (file, "--by", "sex"),
            "fedboost: terms: subgroups: 'sex' is not a categorical column of the terms; known: ward",
        ),
        ((file, "--by", "ward", "--by", "ward"), "subgroups names 'ward' more than once"),
        ((file, "--threshold", "1.5"), "threshold"),
        ((file, "--threshold", "0"), "threshold"),
        ((file, "--threshold", "nan"), "threshold"),
        ((file, "--min-count", "0"), "--min-count"),
        ((file, "--aggregator", "nowhere"), "--aggregator"),
    ):
        address = () if "--aggregator" in words else ("--aggregator", "127.0.0.1:1")
        assert why in refusal("evaluate", *words, *address, "--insecure-loopback")
