"""Pages of results that are no model: what an evaluation, a drift, a description and a comparison say."""

import re

import numpy as np
import pyarrow as pa
import pytest
from html_pages import HOSTILE, altered, check, section
from sites import rows, shared_out, terms

import fedboost as fb
from fedboost.results.base import Ended
from fedboost.results.model import Comparison, Figure, SiteComparison
from fedboost.views.as_html import body, report
from fedboost.views.charts import draw
from fedboost.views.comparison import comparison
from fedboost.views.document import Bars
from fedboost.views.session import traffic
from fedboost.views.words import size

TABLE = rows(900, seed=4)


@pytest.fixture(scope="module")
def trained():
    return fb.simulate(terms(max_bin=64, reference=True, rounds=4), shared_out(3, TABLE))


@pytest.fixture(scope="module")
def evaluation(trained):
    return fb.evaluate(trained.model, shared_out(3, TABLE), by=["ward"], by_site=True)


@pytest.fixture(scope="module")
def drift(trained):
    place = TABLE.schema.get_field_index("age")
    moved = TABLE.set_column(place, "age", pa.array(TABLE["age"].to_numpy() + 12))
    return fb.drift(trained.model, shared_out(3, moved))


@pytest.fixture(scope="module")
def description():
    return fb.describe(terms(), shared_out(3, TABLE))


def test_an_evaluation_is_drawn_as_it_is(evaluation, trained, tmp_path):
    page = evaluation.report(tmp_path / "e.html")
    assert (tmp_path / "e.html").read_text(encoding="utf-8") == page
    check(page)
    summary = evaluation.summary
    said = section(page, "quality")
    head = " ".join(re.findall(r"<d[td][^>]*>([^<]*)", page.partition('id="quality"')[0]))
    assert f"logloss {summary['metrics']['logloss']:.5g}" in head
    assert f"area under the ROC curve {summary['auc']['value']:.5g} ±" in head
    outcomes = summary["confusion"]
    assert f"label 0 {outcomes['tn']} {outcomes['fp']} label 1 {outcomes['fn']} {outcomes['tp']}" in said
    for name, split in (("split-0", summary["subgroups"]["ward"]), ("split-1", summary["sites"])):
        for group, known in split["sets"].items():
            rate = known["rates"]["selection_rate"]
            said = section(page, name)
            assert f"{group} {known['rows']} {known['metrics']['logloss']:.5g}" in said
            assert rate is None or f" {100 * rate:.4g}%" in said


def test_a_group_without_a_figure_is_named_and_not_a_row_of_dots(evaluation):
    sites = evaluation.summary["sites"]
    (first, *_) = sites["sets"].values()
    nothing = {**first, "metrics": {"logloss": None}, "rates": dict.fromkeys(first["rates"])}
    few = altered(evaluation, sites={**sites, "sets": {**sites["sets"], "north": nothing}})
    said = section(few.report(), "split-1")
    assert "Too few rows for any figure (fewer than 100, in total or with one of the labels): north." in said
    assert "--min-count" in said
    assert "north 160" not in said


def test_a_page_of_a_session_says_who_agreed_what_was_told_and_what_travelled(evaluation, drift, description):
    for known in (evaluation, drift, description):
        page = known.report()
        check(page)
        assert known.terms.digest in section(page, "agreed")
        assert "north rows nothing" in section(page, "agreed")
        assert "No party signed its answers" in section(page, "warnings")
        assert "the aggregator sees each party's own counts" in section(page, "warnings")
        sent, received = map(size, known.traffic["north"])
        assert f"north {sent} {received}" in section(page, "session")
    assert "including the model, and the total number of rows" in section(evaluation.report(), "privacy")
    assert "in which ranges their values lie" in section(description.report(), "privacy")


def test_drift_names_the_columns_that_moved_and_where_to(drift):
    page = drift.report()
    head = check(page).text.partition("What moved")[2]
    assert "1 column moved since the training: age." in page
    assert "The score of the model shifted" in page
    age = next(each for each in drift.columns if each.name == "age")
    assert f"age {age.psi:.3f} {age.by_chance:.3f} shifted" in section(page, "columns")
    assert "Percentage of rows by age" in section(page, "columns")
    assert "Percentage of rows by dose" not in head  # it did not move
    bins = section(page, "bins")
    first = age.bins[0]
    assert f"age below {first.high:.4g} {first.reference}" in bins


def test_where_nothing_moved_that_is_the_verdict(trained):
    page = fb.drift(trained.model, shared_out(3, TABLE)).report()
    assert '<div class="verdict good"><p>No column moved by more than chance.</p>' in page
    assert 'id="columns"' not in page
    assert "<figure>" not in page.partition('id="session"')[0]


def test_a_description_says_what_to_change(description):
    levels = {"a": 0, "b": 500, "c": None}
    column = {"name": "ward", "kind": "categorical", "missing": 0, "undeclared": 0, "levels": levels}
    label = {"name": "y", "levels": {"0": 400, "1": 500}}
    page = altered(description, columns=[column], label=label).report()
    assert "1 thing to look at before training" in page
    said = section(page, "advice")
    assert "ward Has a in fewer than 5 rows Remove or correct these levels" in said
    columns = section(page, "columns")
    assert "ward c … …" in columns
    assert "ward b 500 55.6%" in columns
    assert "The terms have no numeric features." in columns
    assert "1 500 55.6%" in section(page, "label")


def figures(value, low, high):
    return {"logloss": Figure(value=value, low=low, high=high)}


def compared(names, gains):
    """The page of a comparison with these gains."""
    sites = []
    for name, gain in zip([*names, "all sites"], [*gains, 0.1], strict=True):
        models = {
            model: figures(0.5 - gain * (model != "alone"), 0.4, 0.6)
            for model in ("alone", "federated", "pooled")
        }
        better_by = figures(gain, gain - 0.05, gain + 0.05)
        counts = {"rows": 100, "held_out": 20, "different_held_out": 60}
        sites.append(SiteComparison(site=name, **counts, models=models, better_by=better_by))
    *sites, together = sites
    known = {"sites": tuple(sites), "together": together, "metrics": ("logloss",), "share": 0.2}
    return report(comparison(Comparison(**known, splits=3, equal=True)))


def test_a_comparison_says_for_whom_it_is_worth_it():
    page = compared(["north", "south", "east"], [0.2, -0.2, 0.01])
    check(page)
    said = check(page).text
    assert "Joining is worth it for all sites: logloss 0.4000 instead of 0.5000, better by 0.1000" in said
    assert "it is worth it for 1 (north); it is NOT worth it for 1 (south)" in said
    assert "north 100 0.5000 0.3000 0.2000 0.1500 0.2500 yes" in section(page, "sites")
    assert "20% of each site's rows were held out in each of 3 splits" in section(page, "how")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_in_a_result_becomes_markup(text, evaluation, drift, description):
    shown = text.replace("\u202e", "\\u202e")
    of_sites = {**evaluation.summary["sites"], "left_out": [text]}
    of_sites["sets"] = {text: next(iter(of_sites["sets"].values()))}
    subgroups = {text: of_sites}
    (moved, *columns) = drift.summary["columns"]
    bins = [{"levels": [text], "reference": 5, "rows": 6}]
    levels = {text: 500}
    numbers = {
        "quantiles": dict.fromkeys(("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")),
        "constant": False,
    }
    described = [
        {"name": text, "kind": "categorical", "missing": 0, "undeclared": 0, "levels": levels},
        {"name": text, "kind": "numeric", "missing": 7, **numbers},
    ]
    named = {"metrics": {text: 0.5}, "resolution": {text: 0.05}}
    for page in (
        altered(evaluation, subgroups=subgroups, sites=of_sites, **named).report(),
        altered(drift, columns=[{**moved, "name": text, "bins": bins}, *columns]).report(),
        altered(description, columns=described, label={"name": text, "levels": levels}).report(),
        compared([text, "b"], [0.2, 0.3]),
    ):
        read = check(page)
        assert any(shown in one for one in read.texts)
        assert not any("\u202e" in one for one in read.texts)


def test_186_sites_and_200_columns_stay_readable(evaluation, drift, description):
    (known, *_) = evaluation.summary["sites"]["sets"].values()
    sites = {**evaluation.summary["sites"], "sets": {f"site {n}": known for n in range(186)}}
    evaluated = altered(evaluation, sites=sites).report()
    moved, *_, score = drift.summary["columns"]
    columns = [{**moved, "name": f"column {n}"} for n in range(200)]
    drifted = altered(drift, columns=[*columns, score]).report()
    own = description.summary["columns"]
    columns = [{**each, "name": f"{each['name']} {n}"} for n in range(70) for each in own]
    described = altered(description, columns=columns).report()
    draw = np.random.default_rng(0)
    many = compared([f"site {n}" for n in range(186)], draw.normal(size=186))
    for page, folded in (
        (evaluated, "Figures by site (187)"),
        (drifted, "How far each column moved (201)"),
        (described, "Quantiles of each numeric feature (140)"),
        (many, "Each site, by logloss, highest gain first (186)"),
    ):
        assert folded in check(page).texts
        assert len(page) < 700_000
        assert page.count("<circle") < 40 * 8
        assert page.count("<rect") < 500
    assert "200 columns moved since the training" in drifted
    assert "and 195 more" in drifted


def test_a_training_that_was_followed_has_traffic_and_time(trained):
    page = trained.report()
    check(page)
    said = section(page, "session")
    sent, received = trained.traffic["south"]
    assert f"south {sent / 1000:.1f} kB {received / 1000:.1f} kB" in said
    last = trained.history[-1]
    assert f"4 {last['seconds']:.3g} {last['bytes'] / 1000:.1f} kB" in said
    assert "4 rounds in" in said
    assert "Generated by fedboost" in page
    for name in ("agreed", "curves", "trees", "privacy"):
        assert section(page, name) == section(trained.model.report(), name)
    with_rows = trained.report(data=TABLE)
    assert section(with_rows, "quality") == section(trained.model.report(data=TABLE), "quality")


def test_traffic_of_186_parties_and_200_rounds_stays_readable(trained):
    parties = [f"site {n}" for n in range(186)]
    history = [{"round": n, "seconds": 1 + n % 7, "bytes": 1e6 * (n + 1)} for n in range(200)]
    traffic = {party: (2_000_000 + n, 3_000_000) for n, party in enumerate(parties)}
    many = fb.Result(trained.model, history, traffic)
    page = many.report()
    read = check(page)
    assert "Traffic of each party (186)" in read.texts
    assert "Time and traffic of each round (200)" in read.texts
    assert len(page) < 120_000


def test_bars_of_a_pair_are_as_long_as_their_values():
    drawn = draw(Bars("t", [("a", 8.0, 4.0), ("b", 2.0, 0.0)], "rows", ("then", "now")))
    widths = [float(width) for width in re.findall(r'class="bar[^"]*" x="156[^>]* width="([^"]*)"', drawn)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[0] == pytest.approx(4 * widths[2], abs=0.4)
    assert widths[3] == 1.0
    assert "a then 8, now 4" in drawn


def test_nothing_that_was_counted_is_no_traffic(trained):
    def said(session):
        return body(traffic(session))

    agreed = trained.model.terms
    assert "No bytes were counted." in said(Ended(agreed))
    counted = Ended(agreed, (), {"north": (5, 6)}, since_restart=True)
    assert "since the aggregator was restarted" in said(counted)
