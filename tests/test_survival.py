"""Survival times in `evaluate`: curves, C-index, AUC and Brier scores, and nothing of few rows."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from raised import raised

import fedboost as fb
from fedboost.boosting.programs.survival import GROUPS
from fedboost.boosting.programs.tasks import measuring_query, summary_of
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.fixedpoint import UNIT
from fedboost.gbdt import survival
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.metrics import is_at_threshold
from fedboost.gbdt.objectives.built_in import AcceleratedFailureTime
from fedboost.gbdt.threads import Threads
from fedboost.holders.other_tasks import magnitudes, measured
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import evaluation_terms, read_terms, terms_to_toml
from fedboost.views.approval import summary as approval
from fedboost.views.document import Lines, Paragraph, Table
from fedboost.views.results import description as view
from fedboost.views.results import evaluation
from tests.gbdt.reference import survival_figures as reference

COLUMNS = {"label": "time", "label_upper_bound": "until", "numeric": ["a", "b", "c"]}
OPEN = {"parties": "any", "analysts": "any", "columns": "any", "evaluate": "any"}
AT = (200, 365)


def people(rows=900, seed=0, scale=300.0):
    """A table of whole days to an event or to the end of follow-up."""
    draw = np.random.default_rng(seed)
    a, b, c = draw.normal(size=(3, rows))
    own = np.ceil(scale * np.exp(-0.8 * a + 0.4 * b * c) * draw.exponential(size=rows) ** 0.6)
    end = np.ceil(draw.uniform(0, 3 * scale, size=rows))
    until = np.where(own <= end, own, np.inf)
    return pa.table({"a": a, "b": b, "c": c, "time": np.minimum(own, end), "until": until})


def columns_of(table):
    """Times, events and the rows of which both are known."""
    lower, upper = (table[name].to_numpy().astype(np.float32) for name in ("time", "until"))
    known = (lower == upper) | ((lower > 0) & (upper == np.inf))
    return lower[known].astype(float), (lower == upper)[known], known


def among(parties, table):
    owner = np.random.default_rng(3).integers(0, parties, table.num_rows)
    return {f"p{number}": table.filter(pa.array(owner == number)) for number in range(parties)}


def terms(**settings):
    small = {"rounds": 15, "max_depth": 3, "max_bin": 32, "protection": "plain", "objective": "survival:aft"}
    return fb.Terms.read({"columns": COLUMNS, **small, **settings})


@pytest.fixture(scope="module")
def model():
    return fb.simulate(terms(), among(3, people(seed=99))).model


def expected(model, table, at=AT):
    """The figures of the pooled rows, computed from single rows."""
    time, event, known = columns_of(table)
    values = np.column_stack([table[name].to_numpy() for name in "abc"]).astype(np.float32)
    risk = -np.ravel(model.booster.margins(values))[known]
    found = {"cindex": reference.concordance(time, event, risk)}
    for t in at:
        found[f"auc@{t}"] = reference.area(time, event, risk, t)
        chance = AcceleratedFailureTime().survival(t, -risk)
        found[f"brier@{t}"] = reference.brier(time, event, chance, t)
    return found


def check(points, time, event):
    ends = [point["time"] for point in points]
    assert len(ends) >= 20
    exact = reference.of_bins(time, event, ends), reference.kaplan_meier(time, event, ends)
    for point, of_bins, of_times in zip(points, *exact, strict=True):
        assert point["survival"] == float(f"{of_bins:.4g}")
        assert abs(point["survival"] - of_times) < 0.01 or point["at_risk"] < 50
        assert point["at_risk"] == (time > point["time"]).sum()


def curve(summary, name):
    (found,) = (each for each in summary["survival"] if each["name"] == name)
    return found


@pytest.mark.parametrize(("min_count", "most"), [(1, 0.03), (10, 0.07)])
def test_figures_are_within_their_resolution_of_those_of_the_pooled_rows(model, min_count, most):
    for seed in range(4):
        table = people(seed=seed)
        summary = fb.evaluate(model, among(3, table), at=AT, min_count=min_count).summary
        assert {*summary["metrics"]} == {"aft-nloglik", *expected(model, table)}
        for name, value in expected(model, table).items():
            assert abs(summary["metrics"][name] - value) <= summary["resolution"][name] <= most, name


@pytest.mark.slow
def test_they_are_the_same_for_every_partition(model):
    table = people()
    whole = fb.evaluate(model, among(1, table), terms(), at=AT).summary
    for parties in (3, 7):
        for protection in ("plain", "masked"):
            found = fb.evaluate(model, among(parties, table), terms(protection=protection), at=AT).summary
            assert found == whole


def test_curves_are_those_of_the_pooled_rows_at_the_ends_of_bins(model):
    """With exact counts they equal the estimate for times in bins, and are near to that of single times."""
    table = people()
    time, event, _ = columns_of(table)
    summary = fb.evaluate(model, among(3, table), min_count=1).summary
    every = curve(summary, "all")
    check(every["points"], time, event)
    assert (every["rows"], every["events"]) == (time.size, event.sum())
    thirds = [curve(summary, name) for name in GROUPS[1:]]
    assert sum(each["rows"] for each in thirds) == time.size
    at = [each["points"][15]["survival"] for each in thirds]
    assert at[0] > at[1] > at[2]


def test_counts_are_coarse_and_few_rows_have_no_figures(model):
    table = people()
    time, event, _ = columns_of(table)
    summary = fb.evaluate(model, among(3, table), at=AT).summary
    for each in summary["survival"]:
        points = each["points"]
        assert each["events"] % 10 == 0
        assert all(one["at_risk"] % 10 == 0 for one in points)
        assert all(one["at_risk"] >= 50 for one in points[:-1])
        assert [one["time"] for one in points] == sorted({one["time"] for one in points})
    for one in curve(summary, "all")["points"]:
        assert abs(one["at_risk"] - (time > one["time"]).sum()) <= 10
        exact = reference.kaplan_meier(time, event, [one["time"]])[0]
        assert abs(one["survival"] - exact) <= 0.05
    few = table.slice(0, 60)
    found = fb.evaluate(model, among(3, few), at=[1, 200]).summary
    assert found["metrics"]["auc@1"] is None
    assert found["metrics"]["brier@1"] is None
    assert [each["name"] for each in found["survival"]] == ["all"]
    censored = few.set_column(4, "until", pa.array(np.full(60, np.inf)))
    found = fb.evaluate(model, among(3, censored)).summary
    assert found["metrics"]["cindex"] is None
    assert {point["survival"] for point in curve(found, "all")["points"]} == {1.0}


def test_the_report_draws_the_curves_with_numbers_at_risk(model, tmp_path):
    result = fb.evaluate(model, among(3, people()), at=AT)
    page = result.report(tmp_path / "page.html")
    for text in ("Kaplan-Meier curves by third of predicted risk", "Number at risk", "AUC at 365", "C-index"):
        assert text in page
    low = result.survival[1]
    assert f">{low.rows:,}</text>" in page
    blocks = evaluation(result).blocks
    (section,) = (block for block in blocks if getattr(block, "name", "") == "quality")
    chart, table, *_ = section.blocks
    assert [line.at_risk[0] for line in chart.series] == [each.rows for each in result.survival[1:]]
    assert [row[0] for row in table.rows] == ["Low risk", "Middle risk", "High risk", "All rows"]
    assert table.headings[-2:] == ["at 200", "at 365"]


def test_times_between_bounds_are_not_counted(model):
    table = people()
    lower, upper = table["time"].to_numpy().copy(), table["until"].to_numpy().copy()
    upper[:100] = lower[:100] + 50  # an event between two dates
    lower[100:150], upper[100:150] = 0, 90  # or before one
    mixed = table.set_column(3, "time", pa.array(lower)).set_column(4, "until", pa.array(upper))
    some = fb.evaluate(model, among(3, mixed), at=AT, min_count=1).summary
    others = fb.evaluate(model, among(3, table.slice(150)), at=AT, min_count=1).summary
    assert some["survival"] == others["survival"]
    assert {**some["metrics"], "aft-nloglik": 0} == {**others["metrics"], "aft-nloglik": 0}
    assert (some["rows"], others["rows"]) == (900, 750)
    none = fb.evaluate(model, among(3, mixed.slice(0, 150)), at=AT).summary
    assert [*none["metrics"].values()][:-1] == [None] * 5
    assert [(each["rows"], len(each["points"])) for each in none["survival"]] == [(0, 1)]
    few = fb.evaluate(model, among(3, mixed.slice(0, 156)), at=AT).summary  # six times, rounded to ten
    assert [(each["rows"], len(each["points"])) for each in few["survival"]] == [(10, 1)]


def test_counts_that_wrap_around_are_refused(model):
    agreed = evaluation_terms(model, at=AT)
    query = EvaluationQuery.of(agreed, 900, UNIT, (0.0,) * len(agreed.metrics))
    query = dataclasses.replace(query, survival=(-8.0, 0.0625, 200.0, 365.0))
    total = np.zeros(query.cells, np.int64)
    total[0], total[-4:] = 900, 1 << 62  # their sum is 0 in int64
    with raised(PeerError, "sums-inconsistent"):
        summary_of(agreed, query, total)


def test_first_counts_that_wrap_around_are_refused(model):
    agreed = evaluation_terms(model)
    query = MagnitudesQuery(agreed.metrics)
    for first in (query.exponents, -survival.FIRST_GRID.cells):
        counts = np.zeros(query.cells, np.int64)
        counts[first:][:4] = 1 << 62  # their sum is 0 in int64
        with raised(PeerError, "sums-inconsistent"):
            measuring_query(agreed, query, 900, counts)


@dataclass(frozen=True)
class Hazards(AcceleratedFailureTime):
    """An objective whose model has no baseline hazard, like Cox's."""

    risk_sign = 1

    def survival(self, time, margin):
        return None


def test_brier_scores_without_a_distribution_use_breslows_baseline():
    for seed in range(3):
        draw = np.random.default_rng(seed)
        risk = draw.normal(size=600)
        time = np.ceil(100 * np.exp(-risk) * draw.exponential(size=600)).astype(np.float32)
        event = draw.random(600) < 0.7
        label, loss = np.array([time, np.where(event, time, np.inf)]), Hazards()
        first = survival.first_counts(risk, label, survival.time_grid())
        grid = survival.risk_grid(first[-survival.FIRST_GRID.cells :], 1)
        edges = np.unique(np.append(np.quantile(time, np.linspace(0, 1, 40)[1:-1]), 100)).astype(np.float32)
        counts = survival.survival_counts(risk, label, edges, grid)
        table = survival.SurvivalTable(counts, edges, grid)
        chance = np.exp(-reference.breslow(time, event, risk, 100) * np.exp(risk))
        value, within = table.brier(loss, 100)
        assert abs(value - reference.brier(time, event, chance, 100)) <= within <= 0.05
        value, within = table.concordance()
        assert abs(value - reference.concordance(time, event, risk)) <= within <= 0.03
        assert grid.edges[0] <= risk.min() <= risk.max() <= grid.edges[-1]


def test_times_that_isolate_events_need_the_policy():
    assert [is_at_threshold(f"auc@{t}") for t in (365, 1095, 12, 0.5, 180)] == [False] * 5
    assert [is_at_threshold(f"brier@{t}") for t in (364, 366, 0.123)] == [True] * 3
    assert not is_at_threshold("cindex")


def test_what_a_site_agrees_to(model):
    masked = {"parties": ["p0", "p1", "p2"], "protection": "masked"}
    agreed = evaluation_terms(model, at=[365]).changed(**masked)
    assert not [*Policy(**OPEN).breaches(agreed)]
    odd = evaluation_terms(model, at=[366]).changed(**masked)
    assert [breach.key for breach in Policy(**OPEN).breaches(odd)] == ["metrics_at_thresholds"]
    assert "survival curves by predicted risk" in " ".join(approval(agreed).split())


def test_only_an_evaluation_computes_them(model, tmp_path):
    for name in ("cindex", "auc@365", "brier@365"):
        with raised(ConfigError, "settings-invalid"):
            terms(eval_metric=[name])
    binary = {"objective": "binary:logistic", "columns": {"label": "y", "numeric": ["a"]}}
    with raised(ConfigError, "settings-invalid"):
        fb.Terms.read({**binary, "eval_metric": ["cindex"]})
    path = tmp_path / "evaluate.toml"
    path.write_text(terms_to_toml(evaluation_terms(model, at=AT)))
    times = ("auc@200", "brier@200", "auc@365", "brier@365")
    assert read_terms(path).metrics == ("cindex", "aft-nloglik", *times)


def test_a_query_with_other_times_is_refused(model):
    agreed = evaluation_terms(model, at=[366])

    def check(*numbers):
        query = EvaluationQuery.of(agreed, 900, UNIT, (0.0,) * 4)
        dataclasses.replace(query, survival=numbers).check(agreed)

    check(-8.0, 0.0625, 100.0, 365.0, 366.0)
    for wrong in (
        (-8.0, 0.0625, 100.0, 101.0),  # the events of one day
        (-8.0, 0.0625, 365.0, 100.0),
        (-8.01, 0.0625, 100.0),
        (-8.0, 0.06, 100.0),
        (-8.0,),
        (),
    ):
        with raised(Refused, "query-times"):
            check(*wrong)
    with raised(Refused, "query-metrics"):
        MagnitudesQuery(("aft-nloglik",)).check_terms(agreed)


def test_a_description_has_the_curve_of_all_rows(model):
    table = people()
    time, event, _ = columns_of(table)
    exact = fb.describe(terms(), among(3, table), min_count=1)
    check(exact.label.survival.model_dump()["points"], time, event)
    coarse = fb.describe(terms(), among(3, table))
    assert coarse.label.survival.points == fb.describe(terms(), among(1, table)).label.survival.points
    for point in coarse.label.survival.points:
        assert point.at_risk % 10 == 0
        assert abs(point.at_risk - (time > point.time).sum()) <= 10
        assert abs(point.survival - reference.kaplan_meier(time, event, [point.time])[0]) <= 0.05
    assert coarse.label.survival.points[-2].at_risk >= 50
    (label,) = (block for block in view(coarse).blocks if getattr(block, "name", "") == "label")
    assert [type(block) for block in label.blocks] == [Lines, Table, Paragraph]


@pytest.mark.slow
def test_by_columns_the_figures_are_those_of_one_table():
    """The label holder computes them alone; of a description only rounded counts leave it."""
    table = people(600).append_column("id", pa.array(np.arange(600)))
    tables = {"ward": table.select(["id", "a", "time", "until"]), "lab": table.select(["id", "b", "c"])}
    columns = {**COLUMNS, "row_id": "id", "held": {"lab": ["b", "c"]}}
    apart = {"parties": ["ward", "lab"], "label_holder": "ward", "rows": "common", "min_common_rows": 50}
    agreed = terms(columns=columns, model="whole", **apart)
    trained = fb.simulate(agreed, tables).model
    pooled = terms(columns={**COLUMNS, "row_id": "id"})
    found = fb.evaluate(trained, tables, agreed, at=AT).summary
    whole = fb.evaluate(trained, {"all": table}, pooled, at=AT).summary
    assert {**found, "shares": None} == {**whole, "shares": None}
    description = fb.describe(agreed, tables)
    assert description.label.survival == fb.describe(pooled, {"all": table}).label.survival


def published(agreed, table, risk):
    """What an analyst receives of a model that gives the rows these risks."""
    label = np.array([table["time"], table["until"]], np.float32)
    gradients = Gradients(agreed.objective.loss, label, np.ones(risk.size, np.float32), None, Threads(1))
    gradients.margin[:] = -risk
    first = MagnitudesQuery(agreed.metrics)
    query = measuring_query(agreed, first, risk.size, magnitudes(first, gradients, (risk.size, 0, 0)))
    return summary_of(agreed, query, measured(query, gradients, risk.size))


@pytest.mark.slow
def test_crafted_models_read_few_rows(model):
    """Each session moves one more row into the group with a low risk. A change in the group's curve is due to
    this row alone."""
    agreed, read = evaluation_terms(model, at=AT), []
    for seed in range(5):
        table = people(400, seed=seed)
        before, changed = {}, 0
        for moved in range(21):
            risk = np.repeat([0.0, 5.0, 10.0], [140 + moved, 130, 130 - moved])
            low = curve(published(agreed, table, risk), "low")
            told = {point["time"]: (point["at_risk"], point["survival"]) for point in low["points"]}
            of_old = [(before[time], told[time]) for time in told if time > 0 and time in before]
            changed += any(old != new for old, new in of_old)
            before = told
        read.append(changed)
    assert max(read) <= 8, read
