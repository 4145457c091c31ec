"""No result of evaluate, drift, describe and tune reads single rows: a solver over all that an analyst can
have asked in the sessions that a policy allows does no better than a guess without them."""

from itertools import cycle, islice, pairwise

import numpy as np
import pyarrow as pa
import pytest
from reading import Known, bits_told, described, labels_told, moved
from sites import shared_out, terms

import fedboost as fb
from fedboost.boosting.programs.tasks import measuring_query, summary_of
from fedboost.boosting.queries.labels import MagnitudesQuery
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.metrics import EDGES
from fedboost.gbdt.threads import Threads
from fedboost.holders.other_tasks import magnitudes, measured
from fedboost.protocol.site import MAX_SESSIONS
from fedboost.runtime.site.policy import Policy

ROWS = 300
FEATURES = [f"f{number}" for number in range(5)]
COLUMNS = {"label": "y", "numeric": FEATURES}
METRICS = ["logloss", "error", "auc"]


def people(seed, rows=ROWS):
    """A table of people, whose labels depend on their features a little."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(rows, len(FEATURES)))
    label = (values[:, 0] + 0.5 * values[:, 1] * values[:, 2] + 1.5 * draw.normal(size=rows) > 0).astype(int)
    return pa.table({**dict(zip(FEATURES, values.T, strict=True)), "y": label})


def own_models(seed):
    """Models that the sites grew by their rules on the rows of another year, each by other settings."""
    tables = shared_out(3, people(1000 + seed, 600))
    for number in range(MAX_SESSIONS):
        settings = {
            "rounds": 2 + number % 7,
            "max_depth": 2 + number % 4,
            "learning_rate": 0.1 + 0.04 * number,
        }
        settings |= {"seed": number, "colsample_bytree": 0.6, "min_child_weight": 2.5, "reference": True}
        yield fb.simulate(terms(columns=COLUMNS, **settings), tables).model


@pytest.fixture(scope="module")
def models():
    return {seed: [*own_models(seed)] for seed in range(3)}


def margins(model, table):
    """The margin of each row."""
    return np.ravel(model.booster.margins(np.column_stack([table[name] for name in FEATURES])))


def asked(models, table, **options):
    """The results of all sessions that a policy allows, with the margins of the rows."""
    agreed = terms(columns=COLUMNS, eval_metric=METRICS)
    for model, min_count in zip(models, islice(cycle((10, 20, 50, 11)), MAX_SESSIONS), strict=True):
        chosen = {"min_count": min_count, **options}
        yield fb.evaluate(model, shared_out(3, table), agreed, **chosen).summary, margins(model, table)


def best_guess(table):
    """The guess of who knows the features of each row and the law by which labels follow from them."""
    values = [table[name].to_numpy() for name in FEATURES]
    return values[0] + 0.5 * values[1] * values[2] > 0


@pytest.mark.slow
def test_own_models_read_no_label(models):
    """No label is certain, and a guess by all results is no better than one by features and their law."""
    gained = []
    for seed, own in models.items():
        table = people(seed)
        label = table["y"].to_numpy()
        told = [*asked(own, table)]
        known = Known.of(one for summary, margin in told for one in labels_told(summary, margin, label))
        assert known.holds(label)
        assert known.certain(range(0, ROWS, 5)) == {}
        prior = np.mean([1 / (1 + np.exp(-margin)) for _, margin in told], axis=0)
        gained += [*((known.guessed(prior) == label).astype(int) - (best_guess(table) == label))]
    assert np.mean(gained) <= 2 * np.std(gained) / np.sqrt(len(gained))


def stumps(seed):
    """Models of two leaves whose cuts differ by few rows: two counts decide all figures."""
    tables = shared_out(3, people(1000 + seed, 600))
    for max_bin in range(16, 16 + 4 * MAX_SESSIONS, 4):
        settings = {"rounds": 1, "max_depth": 1, "max_bin": max_bin, "min_child_weight": 2.5}
        yield fb.simulate(terms(columns=COLUMNS, reference=True, **settings), tables).model


@pytest.mark.slow
@pytest.mark.parametrize("min_count", [10, 1])
def test_models_of_two_leaves_read_few_labels(min_count):
    """But for those few by which a rounded count changes when a cut moves by one row. A finer area under the
    curve tells both counts, and so each row between two cuts."""
    table = people(4)
    label, told = table["y"].to_numpy(), []
    agreed = terms(columns=COLUMNS, eval_metric=METRICS, min_count=min_count)
    for model in stumps(4):
        summary = fb.evaluate(model, shared_out(3, table), agreed).summary
        told += labels_told(summary, margins(model, table), label)
    known = Known.of(told)
    assert known.holds(label)
    found = known.certain(range(ROWS))
    assert all(label[row] == bit for row, bit in found.items())
    assert len(found) <= 3 if min_count > 1 else len(found) > 3


@pytest.mark.slow
def test_the_solver_reads_labels_where_figures_are_exact(models):
    """So that the test above can fail."""
    table = people(0)
    label = table["y"].to_numpy()
    told = asked(models[0], table, min_count=1)
    known = Known.of(one for summary, margin in told for one in labels_told(summary, margin, label))
    found = known.certain(range(0, ROWS, 20))
    assert all(label[row] == bit for row, bit in found.items())
    assert len(found) == ROWS // 20


@pytest.mark.slow
@pytest.mark.parametrize("min_count", [10, 1])
def test_own_models_read_no_feature(models, min_count):
    """A bit of each row's first feature, from the rows by score of evaluations and from drift: none is
    certain, unless counts are exact."""
    table = people(0)
    bit = np.random.default_rng(5).integers(0, 2, ROWS)
    value = table["f0"].to_numpy()
    either = np.minimum(value, value - 1), np.maximum(value, value - 1) + 1
    truth = np.where(bit == 1, either[1], either[0])
    told = []
    for model in models[0]:
        tables = [table.set_column(0, "f0", pa.array(each)) for each in (truth, *either)]
        low, high = (margins(model, each) for each in tables[1:])
        agreed = terms(columns=COLUMNS, eval_metric=METRICS, min_count=min_count)
        if len(told) < MAX_SESSIONS // 2:
            summary = fb.evaluate(model, shared_out(3, tables[0]), agreed).summary
            told.append([*bits_told(summary, low, high, table["y"].to_numpy())])
        else:
            known = fb.drift(model, shared_out(3, tables[0]), agreed)
            told.append([*moved(known.summary, {"f0": either, "score": (low, high)})])
    known = Known.of(one for each in told for one in each)
    assert known.holds(bit)
    found = known.certain(range(0, ROWS, 5))
    assert all(bit[row] == one for row, one in found.items())
    assert len(found) == 0 if min_count > 1 else len(found) > ROWS // 10


@pytest.mark.slow
@pytest.mark.parametrize("min_count", [10, 1])
def test_descriptions_read_no_level(min_count):
    """A bit of each row's level, from descriptions that declare other levels each; the analyst knows which
    two levels it may be, some of which few people have."""
    draw = np.random.default_rng(3)
    pair = np.repeat(np.arange(8), (1, 2, 3, 5, 9, 40, 100, 140))
    bit = draw.integers(0, 2, ROWS)
    either = [np.array([f"{kind}{end}" for kind in pair]) for end in (0, 1)]
    table = people(0).append_column("ward", pa.array(np.where(bit == 1, either[1], either[0])))
    levels, told = np.unique(either), []
    for _ in range(MAX_SESSIONS):
        declared = [*draw.permutation(levels[draw.random(levels.size) < 0.7])]
        agreed = terms(columns={**COLUMNS, "categorical": {"ward": declared}})
        known = fb.describe(agreed, shared_out(3, table), min_count=min_count)
        told += described(known.summary, "ward", either)
    known = Known.of(told)
    assert known.holds(bit)
    few = range(20)  # those of the rare levels
    found = known.certain(few)
    assert all(bit[row] == one for row, one in found.items())
    assert len(found) == 0 if min_count > 1 else len(found) > 0


def test_settings_are_not_tried_where_a_policy_does_not_allow_validation():
    """What a tuning tells is what trainings tell of their validation rows."""
    agreed = terms(
        ["north", "south"],
        program="tune",
        candidates=[{"max_depth": 1}, {"max_depth": 2}],
        validation_fraction=0.3,
    )
    open_to_all = {"parties": "any", "analysts": "any", "columns": "any"}
    assert "validation" in [breach.key for breach in Policy(**open_to_all).breaches(agreed)]


def evaluated(agreed, margin, label):
    """The result of an evaluation of a model that gives these margins."""
    rows = label.astype(np.float32), np.ones(label.size, np.float32), None
    gradients = Gradients(agreed.objective.loss, *rows, Threads(1))
    gradients.margin[:] = margin
    first = MagnitudesQuery(agreed.metrics)
    query = measuring_query(agreed, first, label.size, magnitudes(first, gradients, (label.size, 0, 0)))
    return summary_of(agreed, query, measured(query, gradients, label.size))


MIDDLES = [np.log(a * b / ((1 - a) * (1 - b))) / 2 for a, b in pairwise(EDGES)]
"""A score in each bin."""


@pytest.mark.slow
@pytest.mark.parametrize("min_count", [10, 1])
def test_crafted_models_read_few_labels(min_count):
    """Of a site that evaluates any model: scores in blocks of rows that move on by a row from session to
    session, so that counts differ by single rows."""
    label = np.random.default_rng(1).integers(0, 2, ROWS)
    agreed, told = terms(eval_metric=METRICS, min_count=min_count), []
    for session in range(MAX_SESSIONS):
        block = (np.arange(ROWS) + session) // 50
        margin = np.array(MIDDLES)[np.linspace(0, len(MIDDLES) - 1, block.max() + 1).astype(int)[block]]
        told += labels_told(evaluated(agreed, margin, label), margin, label)
    known = Known.of(told)
    assert known.holds(label)
    found = known.certain(range(0, ROWS, 3))
    assert all(label[row] == bit for row, bit in found.items())
    assert len(found) <= MAX_SESSIONS / 2 if min_count > 1 else len(found) > MAX_SESSIONS
