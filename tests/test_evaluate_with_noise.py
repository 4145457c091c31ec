"""`evaluate` and `drift` with noise: near the exact figures, charged, and sums of bounded rows."""

import asyncio
import dataclasses
import io
import json
import math
from contextlib import redirect_stdout

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from raised import raised
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms
from sklearn import metrics as reference

import fedboost as fb
from fedboost.boosting.programs.tasks import noisy_summary
from fedboost.boosting.queries.columns import BinCountsQuery
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.cli.output import print_text
from fedboost.errors import ConfigError, Refused, SessionFailed
from fedboost.fixedpoint import UNIT
from fedboost.holders.other_tasks import DriftHolder, EvaluationHolder
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.site.backup import init_memory
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import read_spent
from fedboost.runtime.site.policy import ModelSigners, Policy
from fedboost.runtime.tasks import drift_terms, evaluation_terms, terms_to_toml
from fedboost.terms.hiding import BINS, ROWS, SCORES
from fedboost.views.approval import summary as summary_of
from fedboost.views.as_text import text as blocks_of
from fedboost.views.results import document

COLUMNS = {
    "label": "y",
    "numeric": ["age", "dose"],
    "categorical": {"ward": ["a", "b", "c"]},
    "ranges": {"age": [0, 100], "dose": [-5, 5]},
}
TWO = {"numeric": ["age", "dose"], "ranges": COLUMNS["ranges"]}
CLASSES = {"label": "ward", "classes": ["c", "a", "b"], **TWO}
NUMBERS = {"label": "y", "label_range": [0, 12], **TWO}
TABLE = rows(9000, seed=4)
LOUD = {"noise": {"epsilon": 16.0, "delta": 1e-6}, "protection": "masked"}
LOCAL = {"noise": {"epsilon": 1.0, "delta": 1e-6, "placement": "local"}}


def noisy(epsilon=1.0, columns=COLUMNS, **settings):
    noise = {"epsilon": epsilon, "delta": 1e-6}
    return terms(columns=columns, protection="masked", noise=noise, **settings)


def measured(model, table, agreed, **settings):
    """The evaluation of the model on the rows of three parties, under these terms with other settings."""
    return fb.evaluate(model, shared_out(3, table), evaluation_terms(model, agreed).changed(**settings))


def with_column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def numbers(count=9000, seed=4):
    """A table whose label is a number from 0 to 12."""
    table = rows(count, seed)
    mean = np.clip(table["age"].to_numpy() / 10, 0.5, 9)
    return with_column(table, "y", np.minimum(np.random.default_rng(seed).poisson(mean), 12).astype(float))


@pytest.fixture(scope="module")
def model():
    return fb.simulate(terms(min_child_weight=3, rounds=10), shared_out(3, rows(3000))).model


@pytest.fixture(scope="module")
def referred():
    """A model with a reference."""
    settings = {"min_child_weight": 3, "max_bin": 64, "reference": True}
    return fb.simulate(terms(**settings), shared_out(3, rows(9000, seed=9))).model


# ---- What it finds --------------------------------------------------------------------------------------


def test_little_noise_finds_the_exact_figures(model):
    label, score = TABLE["y"].to_numpy(), model.predict(TABLE)
    wanted = {
        "logloss": reference.log_loss(label, score),
        "auc": reference.roc_auc_score(label, score),
        "error": np.mean((score > 0.5) != label),
        "error@0.3": np.mean((score > 0.3) != label),
    }
    for _ in range(3):
        known = measured(model, TABLE, noisy(16.0), eval_metric=[*wanted])
        for name, exact in wanted.items():
            assert abs(known.metrics[name] - exact) < 5 * known.resolution[name] + 0.003, name
            assert 0 < known.resolution[name] < 0.005
        assert known.auc.value == known.metrics["auc"]
        assert abs(known.rates.true_positive_rate - reference.recall_score(label, score > 0.5)) < 0.01
        assert abs(known.mean_prediction - score.mean()) < 0.01
        assert abs(known.outcomes.tp - np.sum((score > 0.5) & (label == 1))) < 40
        for each in known.bins:
            assert abs(each.rate - label[(score > each.low) & (score <= each.high)].mean()) < 0.1
            assert each.low <= each.mean_prediction <= each.high
        assert abs(sum(each.rows for each in known.bins) - 9000) < 100


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_standard_error_is_that_of_the_noise(model, epsilon):
    exact = reference.log_loss(TABLE["y"].to_numpy(), model.predict(TABLE))
    found = [fb.evaluate(model, shared_out(3, TABLE), noisy(epsilon)) for _ in range(16)]
    for values, stated, wanted in (
        ([each.metrics["logloss"] for each in found], found[0].resolution["logloss"], exact),
        ([each.auc.value for each in found], found[0].auc.resolution, None),
    ):
        assert 0.25 * stated < np.std(values) < 2.2 * stated  # else by chance once in 100,000 times
        if wanted is not None:
            assert abs(np.mean(values) - wanted) < 0.003 + 1.3 * stated
    assert len({each.rows for each in found}) > 8  # not even the number of rows is told


def test_figures_from_negative_counts_stay_within_their_ranges(model):
    agreed = evaluation_terms(model, noisy()).changed(eval_metric=["logloss", "error", "auc"])
    agreed = agreed.with_parties(["north", "south", "east"])
    counts = np.zeros((2, 34), np.int64)
    counts[0], counts[1, -1], counts[1, 0] = 300, 900, -860  # few rows with label 1, most of them in one part
    found = noisy_summary(agreed, counts.reshape(-1))
    assert found["metrics"]["auc"] == found["auc"]["value"] == 1.0
    assert found["rates"]["true_positive_rate"] == 1.0
    counts[0, 17:] = -50  # and fewer than none with label 0 beyond the threshold
    assert noisy_summary(agreed, counts.reshape(-1))["rates"]["precision"] == 1.0


def test_several_classes():
    blurred = TABLE["age"].to_numpy() + np.random.default_rng(1).normal(0, 6, 9000)
    table = with_column(TABLE, "ward", np.array(["a", "b", "c"])[np.digitize(blurred, [45, 55])])
    kind, names = {"objective": "multi:softprob"}, ["mlogloss", "merror"]
    trained = fb.simulate(terms(columns=CLASSES, **kind), shared_out(3, table)).model
    exact = measured(trained, table, terms(columns=CLASSES, **kind), eval_metric=names, min_count=1)
    known = measured(trained, table, noisy(16.0, CLASSES, **kind), eval_metric=names)
    for name, value in exact.metrics.items():
        assert abs(known.metrics[name] - value) < 5 * known.resolution[name] + 0.02 * value
    assert known.terms.plan.releases[SCORES].sensitivity == math.sqrt(2)
    assert np.abs(np.subtract(known.confusion, exact.confusion)).max() < 8 * known.noise
    assert known.classes == exact.classes


@pytest.mark.parametrize("objective", ["reg:squarederror", "count:poisson"])
def test_numbers(objective):
    table, names, kind = numbers(), ["rmse", "mae"], {"objective": objective}
    plain = terms(columns={"label": "y", "numeric": ["age", "dose"]}, learning_rate=0.8, **kind)
    trained = fb.simulate(plain, shared_out(3, table)).model
    exact = measured(trained, table, plain, eval_metric=names, min_count=1)
    known = measured(trained, table, noisy(16.0, NUMBERS, **kind), eval_metric=names)
    for name, value in exact.metrics.items():
        assert abs(known.metrics[name] - value) < 5 * known.resolution[name] + 0.03 * value
    assert {*measured(trained, table, noisy(16.0, NUMBERS, **kind)).metrics} == {"rmse"}


def test_too_few_rows_are_lost_in_the_noise(model):
    with pytest.raises(SessionFailed, match="too few for this noise"):
        fb.evaluate(model, shared_out(3, rows(30)), noisy(0.02))


def test_drift_is_found_and_noise_is_not_taken_for_it(referred):
    for epsilon in (0.5, 2.0, 16.0):
        for _ in range(3):
            known = fb.drift(referred, shared_out(3, TABLE), noisy(epsilon))
            assert known.moved == ()
            assert known.noise == known.terms.plan.releases[BINS].sigma
            assert abs(known.rows - 9000) < 12 * known.noise
    older = with_column(TABLE, "age", TABLE["age"].to_numpy() + 9)
    for epsilon in (0.5, 16.0):
        known = fb.drift(referred, shared_out(3, older), noisy(epsilon))
        assert "age" in known.moved
        assert "ward" not in known.moved
    exact = fb.drift(referred, shared_out(3, older)).columns[0]
    assert abs(known.columns[0].psi - exact.psi) < 0.1 * exact.psi


def test_levels_below_the_noise_do_not_look_like_drift():
    wards = [f"w{number}" for number in range(200)]
    columns = {**COLUMNS, "categorical": {"ward": wards}}

    def table(seed):
        draw = np.random.default_rng(seed)
        return with_column(rows(9000, seed), "ward", np.array(wards)[draw.integers(0, 200, 9000)])

    settings = {"columns": columns, "min_child_weight": 3, "reference": True}
    trained = fb.simulate(terms(**settings), shared_out(3, table(1))).model
    assert fb.drift(trained, shared_out(3, table(2)), noisy(1.0, columns)).moved == ()


# ---- What a row adds ------------------------------------------------------------------------------------


def chosen(folder, agreed, table, leaf):
    """A file of XGBoost's whose leaves have the values that `leaf` draws."""
    label = table[agreed.columns.label].to_pylist()
    if agreed.columns.classes:
        label = [agreed.columns.classes.index(one) for one in label]
    columns = [table[name].to_numpy() for name in agreed.columns.features if name != "ward"]
    columns += [np.array([ord(one) - 97 for one in table["ward"].to_pylist()])] * (
        "ward" in agreed.columns.features
    )
    kinds = ["c" if name == "ward" else "float" for name in agreed.columns.features]
    known = {"feature_names": [*agreed.columns.features], "feature_types": kinds, "enable_categorical": True}
    matrix = xgboost.DMatrix(np.array(columns).T, label, **known)
    settings = {"objective": agreed.objective.name, "max_depth": 6, "base_score": 0.5}
    settings |= {"num_class": agreed.objective.num_class} if agreed.objective.num_class else {}
    grown = xgboost.train(settings, matrix, 3)
    whole = json.loads(bytes(grown.save_raw("json")))
    for tree in whole["learner"]["gradient_booster"]["model"]["trees"]:
        for place, left in enumerate(tree["left_children"]):
            if left == -1:
                tree["split_conditions"][place] = tree["base_weights"][place] = leaf()
    (folder / "chosen.json").write_text(json.dumps(whole))
    return folder / "chosen.json"


KINDS = {
    "binary:logistic": COLUMNS,
    "multi:softprob": CLASSES,
    "reg:squarederror": NUMBERS,
    "count:poisson": NUMBERS,
}


@pytest.mark.parametrize("objective", [*KINDS])
@pytest.mark.parametrize("size", [1.0, 3e38])
def test_a_row_adds_no_more_than_the_sensitivity_whatever_the_model(objective, size, tmp_path):
    draw = np.random.default_rng(3)
    agreed = terms(columns=KINDS[objective], objective=objective, **LOCAL)
    table = (numbers if agreed.columns.label_range else rows)(60, seed=1)
    file = chosen(tmp_path, agreed, table, lambda: float(draw.choice([-size, size, 0.0, 1e-30])))
    agreed = evaluation_terms(file, agreed, threshold=0.37).with_parties(["north"])
    query = EvaluationQuery.of(agreed, ROWS, UNIT, ())
    query.check(agreed)

    def answer(these):
        holder = EvaluationHolder(lambda own: to_shard(these, own, "north"), agreed)
        return holder.compute(query)

    release, every = query.release(agreed), answer(table)
    assert every.size == query.cells
    assert (every >= 0).all()
    for place in range(table.num_rows):
        rest = table.filter(pa.array(np.arange(table.num_rows) != place))
        assert math.dist(every, answer(rest)) <= release.sensitivity * (1 + 1e-12)
    odd = [pa.table({**table.slice(0, 1).to_pydict(), "age": [age]}) for age in (math.nan, 3e38, -1e38)]
    for row in odd:
        more = answer(pa.concat_tables([table, row.cast(table.schema)]))
        assert 1.0 <= math.dist(every, more) <= release.sensitivity * (1 + 1e-12)


def test_a_row_adds_one_to_each_column_of_a_drift(referred):
    agreed = drift_terms(referred, terms(columns=COLUMNS, **LOCAL))[0].with_parties(["north"])
    whole = DriftHolder(lambda: to_shard(TABLE, agreed, "north"), agreed)
    fewer = DriftHolder(lambda: to_shard(TABLE.slice(1), agreed, "north"), agreed)
    exact, _ = drift_terms(referred)
    asked = []
    run_session(exact, shared_out(1, TABLE), lambda terms, grown: asked.append((yield from ask(terms))))
    query = asked[0]
    query.check(agreed)
    release = query.release(agreed)
    assert release.sensitivity == math.sqrt(4)
    assert math.dist(whole.compute(query), fewer.compute(query)) == release.sensitivity


def ask(terms):
    from fedboost.terms.tasks import bins_in

    bins = bins_in(terms)
    query = BinCountsQuery(bins.sizes, bins.of_score, 0)
    yield query
    return query


# ---- What is refused ------------------------------------------------------------------------------------


def test_other_queries_are_refused(model):
    agreed = evaluation_terms(model, terms(columns=COLUMNS, **LOCAL)).with_parties(["north"])
    due = EvaluationQuery.of(agreed, ROWS, UNIT, ())
    exact = EvaluationQuery.of(evaluation_terms(model), 100, UNIT, (4.0,))
    assert agreed.plan.releases[SCORES].times == EvaluationQuery.max_count(agreed) == 1
    assert MagnitudesQuery.max_count(agreed) == 0
    for query, code in (
        (MagnitudesQuery(agreed.metrics), "query-noise"),
        (dataclasses.replace(due, rows=9000), "query-noise"),
        (dataclasses.replace(exact, rows=ROWS), "query-metrics"),
        (dataclasses.replace(due, threshold=0.3), "query-metrics"),
        (dataclasses.replace(due, scores=False), "query-metrics"),
    ):
        with raised(Refused, code):
            query.check(agreed)
    with raised(Refused, "query-metrics"):
        due.check(evaluation_terms(model))


def test_a_query_is_answered_once(model):
    agreed = evaluation_terms(model, noisy()).with_parties(["north", "south", "east"])

    def program(terms, grown):
        query, answers = EvaluationQuery.of(terms, ROWS, UNIT, ()), []
        for _ in range(2):
            answers.append((yield query))

    session, _, _ = run_session(agreed, shared_out(3), program)
    assert session.booster is None
    assert "must be the only query of turn 1" in str(session.error)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"subgroups": ["ward"]}, "subgroups with noise"),
        ({"party_metrics": True}, "party_metrics with noise"),
        ({"eval_metric": ["ks"]}, "eval_metric ks"),
        ({"eval_metric": ["aucpr", "auc"]}, "eval_metric aucpr"),
        ({"eval_metric": ["ece"]}, "eval_metric ece"),
        ({"eval_metric": ["error@0.31"]}, "eval_metric error@0.31"),
        ({"columns": {**COLUMNS, "weight": "w"}}, "columns.weight with noise"),
        ({"on_loss": "shrink"}, "on_loss"),
    ],
)
def test_what_noise_cannot_go_with_is_named(model, settings, said):
    agreed = evaluation_terms(model, noisy())
    with pytest.raises(ConfigError, match=said):
        agreed.changed(**settings)
    assert agreed.changed(eval_metric=["error@0.31"], threshold=0.31).metrics == ("error@0.31",)


def test_objectives_without_bounds_are_refused_but_not_for_drift():
    columns = {"label": "y", "numeric": ["age", "dose"]}
    table, settings = numbers(900), {"columns": columns, "objective": "reg:absoluteerror"}
    trained = fb.simulate(terms(**settings, reference=True), shared_out(3, table)).model
    with pytest.raises(ConfigError, match="does not limit a row's influence"):
        evaluation_terms(trained).changed(**LOUD)
    agreed = drift_terms(trained)[0].changed(**LOUD)
    assert agreed.plan.releases[BINS].sensitivity == math.sqrt(3)
    own = fb.simulate(terms(columns=columns, objective="reg:squarederror"), shared_out(3, table)).model
    with pytest.raises(ConfigError, match="label_range"):
        evaluation_terms(own).changed(**LOUD)


def test_rows_held_out_by_position_are_refused(model):
    table = rows(900).append_column("id", pa.array([*map(str, range(900))]))
    for row_id, code in ((None, "terms-invalid"), ("id", "")):
        columns = {**COLUMNS, **({"row_id": row_id} if row_id else {})}
        agreed = terms(columns=columns, validation_fraction=0.3, min_child_weight=3)
        trained = fb.simulate(agreed, shared_out(3, table)).model
        loud = noisy(8.0)
        if code:
            with pytest.raises(ConfigError, match="drawn by position"):
                evaluation_terms(trained, loud)
        else:
            known = fb.evaluate(trained, shared_out(3, table), loud)
            assert known.of == "held-out"
            assert abs(known.rows - 270) < 80
            assert known.shares.unknown == 0


# ---- What it costs, and who agrees ----------------------------------------------------------------------


OPEN = {"parties": "any", "analysts": "any", "columns": "any", "evaluate": "any", "colluding": 0}


@pytest.mark.parametrize("task", ["evaluate", "drift"])
async def test_a_session_is_charged_to_a_budget(model, referred, task, tmp_path):
    tables = shared_out(3, rows(3000))
    agreed = noisy().with_parties(tables)
    measured = model if task == "evaluate" else referred
    own = evaluation_terms(model, agreed) if task == "evaluate" else drift_terms(referred, agreed)[0]
    policy = {**OPEN, "epsilon": 1.2, "delta": 1e-5}
    async with consortium(tmp_path / "c", {}, bundles=bundles_of(tmp_path / "keys", agreed.parties)) as one:
        for name, table in tables.items():
            config = {"party": name, "aggregator": one.address, "state": one.folder / name}
            init_memory(PartyConfig(**config, policy=policy))
            one.start_party(name, table, policy=policy, state=name)
        run = getattr(one.analyst, task)
        first = await asyncio.to_thread(run, measured, agreed)
        with pytest.raises(SessionFailed, match="budget"):
            await asyncio.to_thread(run, measured, agreed)
        spent = [read_spent(one.store(name, name)) for name in tables]
    assert first.noise == next(iter(own.plan.releases.values())).sigma
    assert abs(first.rows - 3000) < 40 * first.noise
    for each in spent:
        assert each.cost == pytest.approx(own.plan.cost)
        assert each.releases == 1


def test_a_policy_asks_for_a_budget_and_a_signature_but_not_for_leaves(model):
    agreed = evaluation_terms(model, noisy()).with_parties(["north", "south", "east"])
    assert [breach.key for breach in Policy(**OPEN).breaches(agreed)] == ["min_count"]
    budget = {**OPEN, "epsilon": 1.2, "delta": 1e-5}
    assert not [*Policy(**budget).breaches(agreed)]
    own = Policy(**{**budget, "evaluate": "own"})
    signed = ModelSigners(frozenset(["north"]))
    assert [breach.key for breach in own.breaches(agreed, party="north")] == ["evaluate"]
    small = fb.simulate(terms(), shared_out(3)).model
    agreed, exact = (evaluation_terms(small, own) for own in (noisy(), terms(protection="masked")))
    three = ["north", "south", "east"]
    without = Policy(**{**OPEN, "evaluate": "own"})
    broken = [each.key for each in without.breaches(exact.with_parties(three), "", "north", signed)]
    assert "min_rows_per_leaf" in broken
    assert not [*own.breaches(agreed.with_parties(three), "", "north", signed)]


def test_people_read_what_is_released(model, tmp_path):
    agreed = evaluation_terms(model, noisy()).with_parties(["north", "south", "east"])
    text = " ".join(summary_of(agreed, ["marie"]).split())
    sigma = agreed.plan.releases[SCORES].sigma
    assert f"counts of rows by prediction and label (noise {sigma:.3g}, of a row at most 1)" in text
    assert "epsilon 1 at delta 1e-06 for every single row" in text
    assert "the total number of rows" not in text
    known = fb.evaluate(model, shared_out(3, TABLE), noisy())
    out = io.StringIO()
    with redirect_stdout(out):
        print_text(blocks_of(document(known)))
    assert f"noise of standard deviation {known.noise:.3g} rows" in " ".join(out.getvalue().split())
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "Privacy card" in known.report()
    (tmp_path / "evaluate.toml").write_text(terms_to_toml(agreed))
    end = fedboost("privacy", "plan", tmp_path / "evaluate.toml", "--json")
    assert end.code == 0, end.err
    assert [json.loads(line)["event"] for line in end.out.splitlines()] == ["release", "total"]


def test_the_terms_of_a_noisy_training_are_inherited():
    trained = fb.simulate(noisy(4.0, rounds=12), shared_out(3, TABLE)).model
    agreed = evaluation_terms(trained)
    assert agreed.noise == trained.terms.noise
    assert agreed.metrics == ("logloss",)
    lower = evaluation_terms(trained, trained.terms.changed(noise={"epsilon": 0.5, "delta": 1e-6}))
    assert lower.plan.cost < agreed.plan.cost / 20
    known = fb.evaluate(trained, shared_out(3, TABLE))
    assert known.auc.value > 0.7
