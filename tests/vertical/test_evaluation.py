"""A model is evaluated by parties that hold different columns: the figures are those of one table with all
columns, and they are told under the rules of the label holder."""

import os
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pytest
from columns_apart import FEWEST, LAYOUTS, left_joined, matched, pooled, scattered, terms_of
from memories import opened
from raised import raised
from sklearn import metrics as reference

import fedboost as fb
from fedboost.boosting.programs import tasks
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.privacy.noise import randomise_labels
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Ask, Relay, Report
from fedboost.protocol.site import Limits
from fedboost.runtime.data.shard import ids_of, with_label_noise
from fedboost.runtime.local import simulation
from fedboost.runtime.signed_model import signed_model_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.models import PartFolder, signers_at
from fedboost.runtime.tasks import Evaluation, evaluation_terms, terms_to_toml
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import MOST_IDS
from fedboost.views.approval import summary
from tests.helpers.apart_sessions import Apart, refused

ROWS = 500
KINDS = {
    "logistic": ("binary", {"eval_metric": ["logloss", "auc", "error"]}),
    "squared": ("number", {"objective": "reg:squarederror", "eval_metric": ["rmse", "mae"]}),
    "softmax": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "poisson": ("count", {"objective": "count:poisson"}),
    "base margins": ("binary", {"columns": {"base_margin": "margin"}}),
    "weights": ("binary", {"columns": {"weight": "weight"}}),
}


def table_of(kind, rows=ROWS):
    table = pooled(rows, label=KINDS[kind][0])
    weights = np.random.default_rng(5).integers(1, 4, rows).astype(np.float32)
    return table.append_column("weight", pa.array(weights))


@cache
def trained(kind="logistic", layout="three holders", model="parties", **more):
    """The result of a training, the table of each party, the joined rows that all have, and all rows."""
    table = table_of(kind)
    tables, common = scattered(LAYOUTS[layout], table)
    agreed = matched(LAYOUTS[layout], model=model, **KINDS[kind][1], **more)
    return fb.simulate(agreed, tables), tables, common, table


def whole(result):
    return fb.assemble([*result.party_models.values()]) if result.party_models else result.model


def of_one_table(result, table, kind="logistic", **options):
    """The figures of the whole model on one table that has all columns."""
    return fb.evaluate(whole(result), {"pooled": table}, terms_of(**KINDS[kind][1]), **options).summary


def own(result):
    return result.party_models or result.model


@pytest.mark.parametrize("min_count", [1, 10])
@pytest.mark.parametrize(
    ("kind", "layout", "model"),
    [
        *((kind, "three holders", "parties") for kind in KINDS),
        ("logistic", "two holders", "parties"),
        ("softmax", "one a column", "parties"),
        ("logistic", "two holders", "whole"),
        ("squared", "three holders", "whole"),
    ],
)
def test_the_figures_are_those_of_one_table_with_the_common_rows(kind, layout, model, min_count):
    result, tables, common, _ = trained(kind, layout, model)
    found = fb.evaluate(own(result), tables, min_count=min_count).summary
    assert found == of_one_table(result, common, kind, min_count=min_count)
    assert found["rows"] == pytest.approx(common.num_rows, abs=min_count / 2)


def test_the_figures_are_those_of_scikit_learn_within_what_is_stated():
    result, tables, common, _ = trained()
    found = fb.evaluate(result.party_models, tables)
    scores, labels = whole(result).predict(common), common["y"].to_numpy()
    within = found.summary["resolution"]
    due = {"logloss": reference.log_loss(labels, scores), "error": ((scores > 0.5) != labels).mean()}
    for name, value in due.items():
        assert abs(found.summary["metrics"][name] - value) <= within[name]
    area = found.summary["auc"]
    assert abs(area["value"] - reference.roc_auc_score(labels, scores)) <= area["resolution"]


def test_all_rows_of_the_label_holder_with_missing_values_for_unknown_ids():
    result, tables, common, table = trained(rows="label_holder")
    joined = left_joined(LAYOUTS["three holders"], table, tables)
    assert joined.num_rows > common.num_rows
    found = fb.evaluate(result.party_models, tables, min_count=1).summary
    assert found == of_one_table(result, joined, min_count=1)
    assert found["rows"] == joined.num_rows


def test_each_row_of_a_repeated_id_counts():
    result, tables, _, table = trained(repeated_ids=True)
    draw = np.random.default_rng(9)
    bank = tables["bank"].take(draw.integers(0, tables["bank"].num_rows, 700))
    labels = draw.integers(0, 2, bank.num_rows)
    bank = bank.set_column(bank.column_names.index("y"), "y", pa.array(labels))
    # all columns beside each of its rows, where all have the id
    ids = [{*held["id"].to_pylist()} for held in tables.values()]
    kept = [number for number, i in enumerate(bank["id"].to_pylist()) if all(i in has for has in ids)]
    rows = table.take(bank["id"].take(kept))
    rows = rows.set_column(rows.column_names.index("y"), "y", pa.array(labels[kept]))
    found = fb.evaluate(result.party_models, {**tables, "bank": bank}, min_count=1).summary
    assert found == of_one_table(result, rows, min_count=1)
    assert found["rows"] == len(kept) > len({*rows["id"].to_pylist()})


def by_group(table):
    return table.append_column("region", pa.array(np.array(["n", "s", "w"])[np.arange(table.num_rows) % 3]))


def test_results_may_be_split_by_columns_of_the_label_holder_alone():
    layout, table = LAYOUTS["two holders"], by_group(table_of("logistic"))
    tables, common = scattered(layout, table)
    result = fb.simulate(matched(layout, model="parties"), tables)
    found = fb.evaluate(result.party_models, tables, by=["region=n,s,w"], min_count=2).summary
    due = fb.evaluate(whole(result), {"pooled": common}, terms_of(), by=["region=n,s,w"], min_count=2).summary
    assert found == due
    assert [*found["subgroups"]["region"]["sets"]] == ["n", "s", "w"]
    with raised(ConfigError, "terms-by-column"):
        fb.evaluate(result.party_models, tables, by=["colour"])
    with raised(ConfigError, "terms-vertical-task"):
        fb.evaluate(result.party_models, tables, by_site=True)


def test_a_categorical_feature_of_the_label_holder_splits_too():
    held = {"telco": ("minutes", "calls")}
    layout = type(LAYOUTS["two holders"])((("bank", held),))
    tables, common = scattered(layout, table_of("logistic"))
    result = fb.simulate(matched(layout, model="parties"), tables)
    found = fb.evaluate(result.party_models, tables, by=["colour"], min_count=2).summary
    due = fb.evaluate(whole(result), {"pooled": common}, terms_of(), by=["colour"], min_count=2).summary
    assert found == due


def test_a_model_of_whole_rows_is_evaluated_by_columns_too():
    """One that was trained on other rows, which each party had with all columns."""
    other = fb.simulate(terms_of(validation_fraction=0.2), {"pooled": pooled(seed=3)}).model
    layout, table = LAYOUTS["three holders"], table_of("logistic")
    tables, common = scattered(layout, table)
    found = fb.evaluate(other, tables, matched(layout), rows="all").summary
    assert found == fb.evaluate(other, {"new": common}, terms_of(), rows="all").summary
    assert found == fb.evaluate(other, tables, matched(layout)).summary
    with raised(ConfigError, "settings-invalid"):
        fb.evaluate(other, tables, matched(layout), rows="held-out")


def test_the_model_of_a_simulation_is_whole():
    result, tables, _, _ = trained()
    assert fb.evaluate(result.model, tables).summary == fb.evaluate(result.party_models, tables).summary


# ---- labels with noise ----------------------------------------------------------------------------------


def test_labels_have_the_noise_of_the_training(monkeypatch):
    key = bytes(range(32))
    keyed = lambda read, party, key_of: with_label_noise(read, party, lambda terms: key)  # noqa: E731
    monkeypatch.setattr(simulation, "with_label_noise", keyed)
    layout, table = LAYOUTS["two holders"], table_of("logistic")
    tables, common = scattered(layout, table)
    result = fb.simulate(matched(layout, model="parties", label_epsilon=1.0), tables)
    true = common["y"].to_numpy()
    labels = randomise_labels(true.astype(np.float32), ids_of(common, ["id"], None), 2, 1.0, key)
    assert (labels != true).any()
    changed = common.set_column(common.column_names.index("y"), "y", [labels.astype(int)])
    found = fb.evaluate(result.party_models, tables, min_count=1).summary
    assert found == fb.evaluate(whole(result), {"pooled": changed}, terms_of(), min_count=1).summary
    for less in ({"label_epsilon": None}, {"label_epsilon": 2.0}):
        own = evaluation_terms(result.party_models["bank"], predict_rows=ROWS).changed(**less)
        assert not fb.runtime.site.models.are_of_training(own, result.party_models["bank"].terms)


# ---- terms ----------------------------------------------------------------------------------------------


def asked(kind="logistic", model="parties", layout="three holders", **options):
    result, _, _, _ = trained(kind, layout, model)
    given = result.party_models["bank"] if result.party_models else result.model
    return evaluation_terms(given, **{"predict_rows": ROWS, **options})


@pytest.mark.parametrize("model", ["parties", "whole"])
def test_terms_of_an_evaluation_are_read_as_they_are_written(model):
    agreed = asked(model=model)
    assert Terms.from_canonical(agreed.canonical()) == agreed
    assert agreed.task.name == "evaluate"
    assert not agreed.protection.hides
    text = terms_to_toml(agreed, model=None if model == "parties" else "m.json")
    assert f"predict_rows = {ROWS}" in text
    assert agreed.trained.task.trains


@pytest.mark.parametrize(
    "changes",
    [
        {"predict_rows": None},
        {"predict_with": None},
        {"rows": "in_order", "min_common_rows": None},
        {"party_metrics": True},
        {"subgroups": ["colour"]},
        {"evaluate_rows": "held-out"},
        {"evaluate_rows": "new"},
        {"validation_fraction": 0.2},
        {"program": "drift"},
        {"program": "describe", "min_count": 5},
        {"noise": {"epsilon": 1.0, "delta": 1e-6}},
        {"repeated_ids": True, "label_epsilon": 1.0},
        {"label_holder": None},
    ],
)
def test_terms_that_cannot_be(changes):
    values = {**asked().model_dump(mode="json", exclude_unset=True), **changes}
    with pytest.raises(ConfigError):
        Terms.read({key: value for key, value in values.items() if value is not None})


def test_a_model_is_told_once():
    both = asked(model="whole").model_dump(mode="json", exclude_unset=True) | {"predict_with": "5" * 64}
    with raised(ConfigError, "settings-invalid", naming=["xgb_model"]):
        Terms.read(both)


def test_what_the_analyst_has_to_say():
    result, tables, _, _ = trained()
    with raised(ConfigError, "terms-vertical-task"):
        evaluation_terms(result.party_models["bank"])
    with raised(ConfigError, "model-is-part"):
        evaluation_terms(result.party_models["bank"], terms_of())
    with raised(ConfigError, "option-alone"):
        evaluation_terms(whole(result), terms_of(), predict_rows=5)
    with raised(ConfigError, "predict-input-missing"):
        fb.evaluate({"bank": result.party_models["bank"]}, tables)
    with raised(ConfigError, "predict-input-missing"):
        fb.evaluate(result.party_models, {"bank": tables["bank"]})
    with raised(ConfigError, "model-parts-missing"):
        fb.evaluate({}, tables)
    layout, table = LAYOUTS["two holders"], table_of("logistic")
    in_order = fb.simulate(terms_of(layout, model="parties"), layout.tables(table))
    with raised(ConfigError, "terms-vertical-task"):
        fb.evaluate(in_order.party_models, layout.tables(table))


def test_the_summary_says_what_is_told_to_whom():
    said = " ".join(summary(asked(), ("marie",)).split())
    assert "rows of bank that all sites have, of at most 500 ids" in said
    assert "which leaves of each tree the splits of each other site rule out" in said
    assert "aggregator sees the exact counts and sums over the label holder's rows" in said
    assert "marie: may request this session" in said
    assert "GRADIENT" not in said


# ---- what is told, message by message -------------------------------------------------------------------


def session(models=None, tables=None, changes=None, memories=None, **apart):
    result, held, _, _ = trained()
    tables = held if tables is None else tables
    parts = {name: part.booster for name, part in result.party_models.items()} | (models or {})
    agreed = asked().changed(**(changes or {}))
    return Apart(
        terms=agreed, models=parts, tables=tables, program=tasks.evaluate, memories=memories, **apart
    )


def test_only_the_label_holder_answers_and_no_feature_holder_learns_a_label():
    apart = session().play()
    assert not apart.session.error
    kinds = [type(query).__name__ for query in apart.queries]
    assert kinds == ["IdCountQuery", "AlignQuery", "ReachQuery", "MagnitudesQuery", "EvaluationQuery"]
    found = Evaluation.from_model(signed_model_of(apart.session), {}).summary
    assert found == fb.evaluate(trained()[0].party_models, trained()[1]).summary
    relays = [(name, m) for name, m in apart.sent if isinstance(m, Relay)]
    assert {name for name, m in relays if m.turn > 3} == set()
    for party in ("telco", "shop"):
        (holder,) = apart.made[party]
        assert holder.rows == 0
        for query in apart.queries[3:]:
            answering = holder.answering(query)
            with pytest.raises(StopIteration) as end:
                next(answering)
            assert not end.value.value.any()


@pytest.mark.parametrize(("turn", "to"), [(3, 4), (3, 5)])
def test_metrics_are_not_told_before_rows_are_predicted(turn, to):
    """An aggregator that asks for them in the place of the prediction."""
    apart = session().play()
    later = next(q for q in apart.queries if type(q) in (MagnitudesQuery, EvaluationQuery))
    again = session()
    again.asking("bank", turn, lambda query: later)
    assert "must be the only query of turn 4" in refused(again)
    (holder,) = again.made["bank"]
    with raised(PeerError, "query-order"):
        next(holder.answering(later))


def test_a_label_holder_that_forgot_the_predictions_tells_nothing():
    """They are not told to it again: the session ends."""
    assert "evaluate again" in refused(session().dying("bank", 4))


def test_a_feature_holder_that_is_restarted_goes_on():
    apart = session().dying("telco", 4).play()
    assert not apart.session.error
    found = Evaluation.from_model(signed_model_of(apart.session), {}).summary
    assert found == fb.evaluate(trained()[0].party_models, trained()[1]).summary


def test_too_few_common_rows_are_refused():
    """Each feature holder has enough ids of the label holder, but all together do not."""
    _, tables, _, _ = trained()
    ids = tables["bank"]["id"].to_pylist()
    half = len(ids) // 2
    parts = {"telco": {*ids[: half + 20]}, "shop": {*ids[half - 20 :]}}
    few = {
        name: held.filter(pa.array([name == "bank" or i in parts[name] for i in held["id"].to_pylist()]))
        for name, held in tables.items()
    }
    apart = session(tables=few)
    assert "rows in common, but the terms require min_common_rows = 100" in refused(apart)
    leaf_bits = [m for m in apart.said(Relay, "telco") if m.turn == 3]
    assert not [m for m in apart.heard(Ask, "bank") if m.turn > 3]
    assert leaf_bits  # the mask of its rows: nothing about values was opened
    with raised(SessionFailed, "session-failed"):
        fb.evaluate(trained()[0].party_models, {**tables, "telco": tables["telco"].slice(0, 30)})


def counts_in(found):
    """All counts of rows in the figures."""
    bins = [count for each in found["bins"] for count in (each["rows"], each["positives"])]
    return [found["rows"], *found["confusion"].values(), *bins]


def test_one_person_less_changes_no_count_by_less_than_a_unit():
    """A feature holder that leaves one person out: what the analyst gets is as coarse as ever."""
    result, tables, common, _ = trained()
    (person,) = np.flatnonzero(np.array(tables["telco"]["id"]) == common["id"][0].as_py())
    kept = np.delete(np.arange(tables["telco"].num_rows), person)
    less = {**tables, "telco": tables["telco"].take(kept)}
    for each in (tables, less):
        found = fb.evaluate(result.party_models, each).summary
        assert not any(count % 10 for count in counts_in(found) if count != found["rows"])
    exact = [fb.evaluate(result.party_models, each, min_count=1).summary for each in (tables, less)]
    assert exact[0]["rows"] - exact[1]["rows"] == 1


def test_evaluations_of_rows_that_differ_by_few_people_are_refused(tmp_path):
    """By the label holder, over restarts, before it tells anything about its labels."""
    _, tables, common, _ = trained()
    ids = set(common["id"].to_pylist())
    held = np.array([i in ids for i in tables["telco"]["id"].to_pylist()])
    limits = Limits(max_sessions=9, max_predicted_rows=10**6, min_difference=10)

    def evaluated(name, fewer):
        kept = np.delete(np.arange(held.size), np.flatnonzero(held)[:fewer])
        with opened(tmp_path / "memory.sqlite", party="bank") as memory:
            apart = session(tables={**tables, "telco": tables["telco"].take(kept)}, memories={"bank": memory})
            apart.crash("bank", permit=lambda offer: limits)
            apart.session = AggregatorSession(
                name, apart.terms, tasks.evaluate, INITIAL_STATE, trust=apart.session.trust, draw=os.urandom
            )
            return apart.play()

    assert not evaluated("first", 0).session.error
    assert not evaluated("again", 0).session.error
    one_less = evaluated("one less", 1)
    assert "differ in fewer than 10 rows" in one_less.error
    assert not [m for m in one_less.said(Report, "bank") if m.turn > 3]
    assert "differ in fewer than 10 rows" in evaluated("nine less", 9).error
    assert not evaluated("ten less", 10).session.error
    assert "differ in fewer than 10 rows" in evaluated("eleven less", 11).error


def test_more_ids_than_the_terms_name_are_refused():
    ids = trained()[1]["bank"].num_rows
    assert f"has {ids} rows to predict" in refused(session(changes={"predict_rows": ids - 1}))
    assert not session(changes={"predict_rows": ids}).play().session.error
    assert not session(changes={"predict_rows": MOST_IDS}).play().session.error


# ---- the part that a site keeps -------------------------------------------------------------------------


def folder_of(tmp_path, party="telco", part=None):
    config = PartyConfig(
        party=party, aggregator="localhost:1", data=tmp_path / "t.csv", models=tmp_path / "m"
    )
    kept = PartFolder(config)
    if part is not None:
        kept.folder.mkdir(parents=True, exist_ok=True)
        kept.file(part.id).write_bytes(part.to_bytes())
    return config, kept


def test_a_site_answers_for_its_own_part_under_the_terms_of_its_training(tmp_path):
    part = trained()[0].party_models["telco"]
    config, kept = folder_of(tmp_path, part=part)
    assert kept.model_of(asked()) == part.booster
    assert kept.model_of(asked(min_count=20, threshold=0.25)) == part.booster
    assert signers_at(config, asked()).names == {"telco"}
    for changes in ({"rounds": 3}, {"alone_rounds": 1}, {"rows": "label_holder"}, {"id_form": "lower"}):
        with raised(Refused, "part-other-terms"):
            kept.model_of(asked().changed(**changes))
    nothing, _ = folder_of(tmp_path / "other")
    assert signers_at(nothing, asked()).names == frozenset()


NAMES = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["plain"],
    "parties": "any",
    "analysts": "any",
    "columns": "any",
    "min_common_rows": FEWEST,
    "min_rows_per_leaf": 1,
}


@pytest.mark.parametrize(
    ("party", "changes", "rules"),
    [
        ("telco", {}, ["max_predicted_rows"]),
        ("telco", {"max_predicted_rows": ROWS - 1}, ["max_predicted_rows"]),
        ("telco", {"max_predicted_rows": ROWS}, []),
        ("telco", {"max_predicted_rows": ROWS, "tasks": ["train", "evaluate"]}, ["tasks"]),
        ("telco", {"max_predicted_rows": ROWS, "tasks": ["train", "predict"]}, ["tasks"]),
        ("telco", {"max_predicted_rows": ROWS, "label_holders": ["shop"]}, ["label_holders"]),
        ("telco", {"max_predicted_rows": ROWS, "min_common_rows": FEWEST + 1}, ["min_common_rows"]),
        ("telco", {"max_predicted_rows": ROWS, "by_columns": False}, ["by_columns"]),
        ("telco", {"max_predicted_rows": ROWS, "min_count": 11}, ["min_count"]),
        ("telco", {"max_predicted_rows": ROWS, "min_rows_per_leaf": 10}, ["min_rows_per_leaf"]),
        ("bank", {}, []),
        ("bank", {"tasks": ["train", "evaluate"]}, []),
        ("bank", {"min_count": 11}, ["min_count"]),
        ("bank", {"max_label_epsilon": 1.0}, ["max_label_epsilon"]),
        ("bank", {"min_alone_rounds": 1}, ["min_alone_rounds"]),
        ("bank", {"epsilon": 1.0, "delta": 1e-6}, ["epsilon"]),
    ],
)
def test_the_policy_of_each_party_holds(tmp_path, party, changes, rules):
    from policies import policy

    config, _ = folder_of(tmp_path, party, trained()[0].party_models[party])
    broken = policy(**{**NAMES, **changes}).breaches(asked(), "marie", party, signers_at(config, asked()))
    assert [breach.key for breach in broken] == rules


def test_a_site_without_its_part_accepts_no_model(tmp_path):
    from policies import policy

    config, _ = folder_of(tmp_path)
    own = policy(**NAMES, max_predicted_rows=ROWS)
    broken = own.breaches(asked(), "marie", "telco", signers_at(config, asked()))
    assert [breach.key for breach in broken] == ["evaluate"]
    of_whole = partial(own.breaches, asked(model="whole"), "marie", "telco")
    assert [breach.key for breach in of_whole()] == ["evaluate"]
