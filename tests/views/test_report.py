"""The report of a model: a page that needs nothing else, whatever names the model file holds."""

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pytest
from html_pages import HOSTILE, check, section
from raised import raised
from sites import rows, shared_out, terms

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.gbdt.metrics import EDGES
from fedboost.runtime.model import Model
from fedboost.views.as_html import STYLE, body
from fedboost.views.charts import MAX_POINTS, draw, thinned
from fedboost.views.document import Bars, Lines, Markup, Series, element
from fedboost.views.session import agreed as sections


@pytest.fixture(scope="module")
def model():
    return fb.simulate(
        fb.Terms.read(terms(rounds=4, validation_fraction=0.3).model_dump()), shared_out(3)
    ).model


def test_a_page_needs_nothing_else_and_is_the_same_each_time(model, tmp_path):
    page = model.report(tmp_path / "r.html", rows())
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page
    assert model.report(data=rows()) == page
    assert Model.from_bytes(model.to_bytes()).report(data=rows()) == page
    read = check(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "default-src 'none'" in page
    assert not re.search("https?:|//|src=", page)
    assert {"desc", "figcaption", "details"} <= read.tags


def test_a_page_says_what_was_agreed_and_by_whom(model):
    page = model.report()
    check(page)
    said = section(page, "agreed")
    assert model.terms.digest in said
    for party in model.parties:
        assert f"{party} rows none" in said
    assert "label y " in said
    assert "features 3: age, dose, ward" in said
    assert "categories ward: a, b, c" in said
    assert "binary:logistic, 4 rounds of depth 3" in said
    assert "subsample" not in said
    assert model.fingerprint in section(page, "agreed")
    assert "No party signed this model" in section(page, "warnings")
    assert "the aggregator sees each party's own counts" in section(page, "warnings")


def test_rows_with_exact_figures_of_a_number_have_no_remarks():
    """Neither rates, nor classes, nor rounding: there is nothing below the key figures."""
    given = rows()
    agreed = terms(
        objective="reg:squarederror", rounds=1, min_count=1, columns={"label": "age", "numeric": ["dose"]}
    )
    page = fb.simulate(agreed, shared_out(3)).model.report(data=given)
    check(page)
    assert f"On {given.num_rows} rows" in section(page, "quality")


def test_learning_curves_are_the_history(model):
    said = section(model.report(), "curves")
    assert "logloss by round" in said
    for number, row in enumerate(model.rounds, 1):
        names = ("logloss", "validation-logloss")
        assert f"{number} {' '.join(f'{row[name]:.4g}' for name in names)}" in said
    first, last = model.rounds[0]["logloss"], model.rounds[-1]["logloss"]
    assert f"train: {first:.4g} at 1, {last:.4g} at 4" in said
    assert 'id="sites"' not in model.report()  # the terms have no metrics of single sites


def test_importance_and_trees_are_the_models(model):
    page = model.report()
    said = section(page, "curves")
    for name, gain in model.importance("gain").items():
        assert f"{name} {gain:.6g} {model.importance('cover')[name]:.6g}" in said
    trees = section(page, "trees")
    assert "Tree 0 of 4, binary:logistic: round 0" in trees
    assert trees.count("Tree ") >= 3


def test_without_rows_a_page_says_what_would_show_more(model):
    page = model.report()
    assert "partial dependence require a table with labels (--data TABLE)." in check(page).text
    assert not re.search('id="(dependence|quality)"', page)  # no section without content
    assert "Model files do not contain traffic and time" in section(page, "session")


def test_figures_of_rows_are_those_of_an_evaluation(model):
    page = model.report(data=rows())
    known = fb.evaluate(model, [rows()], rows="all").summary
    said = section(page, "quality")
    for name, value in known["metrics"].items():
        assert f"{name} {value:.5g}" in said
    assert f"area under the ROC curve {known['auc']['value']:.5g}" in said
    outcomes = known["confusion"]
    assert f"label 0 {outcomes['tn']} {outcomes['fp']} label 1 {outcomes['fn']} {outcomes['tp']}" in said
    for one in known["bins"]:
        assert f"{one['low']:.3f} to {one['high']:.3f} {one['rows']} {one['positives']}" in said
    grid, means = model.partial_dependence(rows(), "ward")
    for value, mean in zip(grid, means, strict=True):
        assert f"{value} {mean:.5g}" in section(page, "dependence")
    assert "This page contains figures about the rows of the table" in section(page, "warnings")


def hostile_model(text):
    """A model in whose file every name that may be anything is this text."""
    plain = "f" + text.replace("<", "(")  # which no name of a feature has
    party = text.replace("\u202e", "")  # which no name of a party has
    columns = {
        "label": text,
        "numeric": ["age", plain],
        "categorical": {f"ward {plain}": [text, "b", "c"]},
        "classes": [f"0{text}", "other", "third"],
    }
    table = rows()
    label = [columns["classes"][int(age) // 10 % 3] for age in table["age"].to_pylist()]
    ward = [text if level == "a" else level for level in table["ward"].to_pylist()]
    dose = table["dose"]
    table = pa.table({"age": table["age"], plain: dose, f"ward {plain}": ward, text: label})
    settings = {"columns": columns, "objective": "multi:softprob", "num_class": 3, "rounds": 2}
    agreed = terms([party, "south"], party_metrics=True, **settings)
    model = fb.simulate(agreed, {party: table, "south": table}).model
    rounds = tuple({**row, f"{party}:mlogloss": 0.5, text: 0.25} for row in model.rounds)
    rosters = {1: (party,)}
    return dataclasses.replace(model, rounds=rounds, rosters=rosters, summary={text: text}), table


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_in_a_file_becomes_markup(text):
    model, table = hostile_model(text)
    model = Model.from_bytes(model.to_bytes())
    read = check(model.report(data=table))
    assert "script" not in read.tags
    shown = text.replace("\u202e", "\\u202e")
    assert any(shown in one for one in read.texts)
    assert not any("\u202e" in one for one in read.texts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e308, 1e308, 5e-324, 0, 10**300])
def test_metrics_that_cannot_be_drawn_are_left_out(model, value):
    for rounds in ([value], [value] * 3, [0.5, value, 0.25, 1e17, 1e17 + 16]):
        history = tuple({"round": n, "logloss": one, "odd": one} for n, one in enumerate(rounds))
        page = dataclasses.replace(model, rounds=history).report()
        check(page)
        for drawn in re.findall(r' (?:d|x1|y1|cx|cy|x|y)="([^"]*)"', page):
            assert not re.search("nan|inf", drawn)


def test_a_number_no_float_holds_is_refused_with_the_file(model):
    history = f'[{{"round":0,"logloss":1{"0" * 400}}}]'
    text = model.to_bytes().decode()
    own = re.search(r'"fedboost.history": ?"((?:[^"\\]|\\.)*)"', text)
    changed = text.replace(own[1], history.replace('"', '\\"'))
    with raised(ConfigError, "model-not-fedboost"):
        Model.from_bytes(changed.encode())


def numbers(pattern, drawn):
    """The numbers of an attribute in a chart."""
    return [float(found) for found in re.findall(pattern, drawn)]


def test_lines_lie_where_their_values_are():
    drawn = draw(Lines("t", [Series("a", [(0, 0), (1, 10), (2, 5)])], "x", "y"))
    path = re.search(r' d="M([^"]*)"', drawn)[1]
    (x0, y0), (x1, y1), (x2, y2) = [map(float, place.split()) for place in path.split("L")]
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 < y2 < y0  # pixels grow downwards
    assert y0 - y2 == pytest.approx(y2 - y1, abs=0.11)
    assert "a: 0 at 0, 5 at 2, from 0 to 10 in all" in drawn


def test_bars_are_as_long_as_their_values():
    drawn = draw(Bars("t", [("a", 8.0), ("b", 2.0)], "gain"))
    (first, second) = numbers(r'<rect[^>]* width="([^"]*)"', drawn)
    assert first == pytest.approx(4 * second, abs=0.4)


def test_lines_differ_by_more_than_colour():
    drawn = draw(Lines("t", [Series(f"s{n}", [(0, n), (1, n)]) for n in range(12)], "x", "y"))
    dashes = re.findall(r'class="line s(\d)"(?: stroke-dasharray="([^"]*)")?', drawn)
    assert len({dash for _, dash in dashes}) == 8
    assert all(f">s{n}</text>" in drawn for n in range(8))


def test_markup_that_passes_through_other_hands_is_text():
    assert element("p", Markup("<b>") + "<i>") == "<p>&lt;b&gt;&lt;i&gt;</p>"
    assert element("p", Markup("<b/>"), "<i>", class_='a"b') == '<p class="a&quot;b"><b/>&lt;i&gt;</p>'


def test_rows_that_do_not_fit_are_refused_in_one_line(model):
    for table, said in (
        (rows().drop_columns(["dose"]), "the table: column 'dose' is missing"),
        (rows().drop_columns(["y"]), "the table: column 'y' is missing"),
        (rows().slice(0, 5), "the table has 5 rows, but a report needs at least 10; use more rows"),
        (
            rows().set_column(4, "y", pa.array([7] * 180)),
            "the table: column 'y' .*label: binary:logistic takes 0 or 1; .* it is 7 in row 1$",
        ),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            model.report(data=table)
        assert "\n" not in str(caught.value)


def test_a_page_has_nothing_that_gives_access_to_its_rows(model, monkeypatch):
    monkeypatch.setattr("fedboost.runtime.model.as_table", lambda data: rows())
    page = model.report(data="https://marie:secret@example.org/folder/rows.csv?token=secret")
    assert "secret" not in page
    assert "180 rows of rows.csv" in page


def test_few_rows_of_a_label_have_no_curves(model):
    labels = [1] * 5 + [0] * 175
    page = model.report(data=rows().set_column(4, "y", pa.array(labels)))
    assert "One label has fewer than 10 rows: there are no curves" in section(page, "quality")
    assert "label 1 … …" in section(page, "quality")


def test_numbers_are_measured_and_not_drawn_as_classes():
    settings = {"objective": "reg:squarederror", "rounds": 3}
    model = fb.simulate(terms(**settings), [rows()]).model
    said = section(model.report(data=rows()), "quality")
    assert f"rmse {fb.evaluate(model, [rows()]).metrics['rmse']:.5g}" in said
    assert not re.search("ROC|Calibration", said)


def test_the_card_is_the_privacy_report():
    columns = {
        "label": "y",
        "numeric": ["age"],
        "categorical": {"ward": ["a", "b", "c"]},
        "ranges": {"age": [0, 120]},
    }
    noise = {"epsilon": 5.0, "delta": 1e-5, "placement": "local"}
    agreed = terms(columns=columns, noise=noise, rounds=2, eval_metric=[])
    page = fb.simulate(agreed, [rows()]).model.report(data=rows())
    check(page)
    said = section(page, "privacy")
    assert "epsilon 5 (weak)" in said
    assert "Not covered:" in said
    assert "divided among many splits" in section(page, "curves")
    assert "Epsilon 5 at delta 1e-05: weak." in section(page, "warnings")
    assert "rows of the table" in section(page, "quality")


def test_186_sites_and_200_rounds_stay_readable(model):
    parties = [f"site {number}" for number in range(186)]
    agreed = terms(parties, party_metrics=True, rounds=200)
    draw = np.random.default_rng(0)
    history = tuple(
        {
            "round": number,
            "logloss": 1 / (number + 2),
            **{f"{party}:logloss": float(v) for party, v in zip(parties, draw.random(186), strict=True)},
        }
        for number in range(200)
    )
    trees = model.booster.trees * 50
    large = dataclasses.replace(
        model, terms=agreed, rounds=history, booster=dataclasses.replace(model.booster, trees=trees)
    )
    page = large.report()
    read = check(page)
    assert len(page) < 400_000
    assert "Metrics of each site after the last round of the model (186)" in read.texts
    assert "Metrics of each round (200)" in read.texts
    assert "Parties (186)" in read.texts
    assert f"site 7 {history[-1]['site 7:logloss']:.4g}" in section(page, "sites")


@pytest.mark.parametrize("rounds", [1, 345, 1000, 10_000])
def test_a_curve_of_many_rounds_is_whole(model, rounds):
    """Its first and last round, its lowest and its highest point are drawn, however many there are."""
    values = np.random.default_rng(1).normal(size=rounds).cumsum()
    history = tuple({"round": n, "logloss": float(value)} for n, value in enumerate(values))
    page = dataclasses.replace(model, rounds=history).report()
    path = re.search(r' d="M([^"]*)" class="line s0"', page)[1]
    xs, ys = zip(*(map(float, place.split()) for place in path.split("L")), strict=True)
    assert "…" not in path
    assert (xs[0], xs[-1]) == (60.0, 418.0) or rounds == 1
    assert len(xs) <= MAX_POINTS + 4
    if rounds > 1:
        assert (min(ys), max(ys)) == pytest.approx((12 + 222 / 1.1 * 0.05, 234 - 222 / 1.1 * 0.05), abs=0.1)


def test_a_thinned_line_keeps_every_peak():
    points = [(float(n), 0.0) for n in range(10_000)]
    for n in range(0, 10_000, 97):
        points[n] = (float(n), 1.0 if n % 2 else -1.0)
    kept = thinned(points)
    assert [*dict.fromkeys(kept)] == kept == sorted(kept)
    assert {points[0], points[-1]} <= {*kept}
    assert len(kept) <= MAX_POINTS
    for low in range(0, 10_000, 200):  # the extremes of every stretch that is wider than a pixel
        own = [y for x, y in points if low <= x < low + 200]
        seen = [y for x, y in kept if low <= x < low + 200]
        assert (min(own), max(own)) == (min(seen), max(seen))


def drawn(page, title):
    """The values at the places of a curve from 0 to 1."""
    chart = re.search(rf"<figcaption>{title}[^<]*</figcaption>(.*?)</figure>", page, re.DOTALL)[1]
    path = re.search(r'<path d="M([^"]*)"', chart)[1]
    places = [tuple(map(float, place.split())) for place in path.split("L")]
    return [((x - 60) / 358, (234 - y) / 222) for x, y in places]


def test_curves_are_scikit_learns_at_the_edges_of_bins(model):
    metrics = pytest.importorskip("sklearn.metrics")
    cell = np.searchsorted(EDGES, model.predict(rows()))
    label = rows()["y"].to_numpy()
    page = model.report(data=rows(), min_count=1)
    false, true, _ = metrics.roc_curve(label, cell, drop_intermediate=False)
    assert np.allclose(drawn(page, "ROC curve"), np.column_stack([false, true]), atol=1e-3)
    precision, recall, _ = metrics.precision_recall_curve(label, cell)
    ours = drawn(page, "Precision-recall curve")[1:]
    assert np.allclose(ours, np.column_stack([recall, precision])[:-1][::-1], atol=1e-3)


def test_a_calibration_has_about_ten_bins_whose_rows_are_all(model):
    page = model.report(data=rows(), min_count=1)
    said = section(page, "quality").partition("predicted share of label 1 0.000 to")[2]
    bins = re.findall(r"[\d.]+ (\d+) (\d+) [\d.]+% [\d.]+%", said)
    assert 5 <= len(bins) <= 10
    assert sum(int(count) for count, _ in bins) == rows().num_rows
    assert sum(int(ones) for _, ones in bins) == int(rows()["y"].to_numpy().sum())


def luminance(colour):
    """The relative luminance of a colour, as WCAG 2.2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_contrast_in_every_scheme():
    schemes = [dict(re.findall(r"--(\w+(?:-\w+)?): (#\w{6})", part)) for part in STYLE.split(":root {")[1:]]
    assert len(schemes) == 3
    for colours in schemes:
        values = {name: luminance(colour) for name, colour in (schemes[0] | colours).items()}

        def contrast(one, other, values=values):
            low, high = sorted((values[one], values[other]))
            return (high + 0.05) / (low + 0.05)

        for text in ("ink", "soft", "link"):
            assert min(contrast(text, paper) for paper in ("paper", "panel")) >= 4.5
        for state in ("good", "bad", "unclear"):
            assert contrast("ink", f"{state}-panel") >= 4.5
            assert contrast(state, f"{state}-panel") >= 3
        for shape in ("bar", *(f"s{number}" for number in range(8))):
            assert contrast(shape, "paper") >= 3


def test_parties_with_different_columns_are_named_with_them():
    columns = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}
    columns["held"] = {"shop": ["dose", "ward"]}
    agreed = terms(["bank", "shop"], columns=columns, label_holder="bank", rows="in_order")
    model = fb.simulate(agreed, {"bank": rows(), "shop": rows()}).model
    page = model.report(data=rows())
    check(page)
    said = section(page, "agreed")
    assert "bank the labels, and columns: age present, not checked" in said
    assert "shop columns: dose, ward present, not checked" in said
    assert "EVERY PARTY LEARNS ALL LABELS" in section(page, "warnings")
    assert "label holder SENDS EVERY ROW" in section(page, "privacy")
    assert "On 180 rows of the table" in section(page, "quality")


def test_who_saw_what_follows_from_the_terms():
    def said(agreed):
        return body(sections(agreed, [])[1:])

    trio = ["a", "b", "c"]
    masked = said(terms(trio, protection="masked", colluding=1))
    assert "sees sums over the parties, never the numbers of a single one" in masked
    assert "1 other site may collude with the aggregator without learning this site" in masked
    own = said(terms(trio, protection="masked", party_metrics=True))
    assert ", except the metrics of any one site</dd>" in own
    columns = {**terms().columns.model_dump(mode="json"), "held": {"b": ["dose", "ward"]}, "row_id": "id"}
    apart = {"columns": columns, "label_holder": "a", "min_rows_per_bin": 10, "protection": "paillier"}
    hidden = said(terms(["a", "b"], **apart))
    assert "label holder a" in hidden
    assert "<dt>label holder</dt>" in hidden
    assert "encrypted, to the other parties that hold its rows" in hidden
    assert "aggregator and another site together learn the labels" in hidden
