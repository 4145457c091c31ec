"""A model on rows that were given for a report: metrics, curves, calibration, partial dependence.

Promises: counts of few rows are left out, as an evaluation leaves them out.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedboost.views.as_html import (
    DependenceFacts,
    Markup,
    ReportFacts,
    RowsFacts,
    element,
    joined,
    left_out,
    paragraph,
    table,
)
from fedboost.views.charts import MAX_BARS, MAX_SERIES, Series, lines, points
from fedboost.views.tasks import rows_in_words, told

GIVE_DATA = "give a table of rows with labels (--data TABLE)"
MAX_CLASSES = 12
"""Classes of which each pair is shown."""
MAX_GROUPS = 10
"""Bins of scores in the calibration."""
MAX_VALUES = 11
"""Values of a number in a table of partial dependence."""
_RATES = {
    "precision": "precision",
    "true_positive_rate": "recall",
    "false_positive_rate": "false positive rate",
    "selection_rate": "share predicted 1",
    "positive_rate": "share of label 1",
}


def quality(facts: ReportFacts) -> Markup:
    """Return metrics, outcomes and curves."""
    rows = facts.rows
    if rows is None:
        return left_out(f"For metrics, ROC, precision-recall and calibration {GIVE_DATA}.")
    where = f"On {rows.summary['rows']:,} rows of {rows.source}, predicted for this page."
    return measured(rows.summary, where)


def measured(summary: Mapping[str, Any], where: str) -> Markup:
    """Return the metrics, outcomes and curves of an evaluation. where: a sentence on the rows."""
    values = (
        [name, number(value), number(summary["resolution"][name])]
        for name, value in summary["metrics"].items()
    )
    return joined(
        paragraph(" ".join((where, *told(summary)))),
        table(
            f"Metrics on these rows ({rows_in_words(summary)})",
            ["metric", "value", "within"],
            values,
            folded=False,
        ),
        _of_two_classes(summary) if "threshold" in summary else _of_classes(summary),
    )


def _of_two_classes(summary: Mapping[str, Any]) -> Markup:
    outcomes, limit = summary["confusion"], f"{summary['threshold']:g}"
    counts = [
        ("label 0", _count(outcomes["tn"]), _count(outcomes["fp"])),
        ("label 1", _count(outcomes["fn"]), _count(outcomes["tp"])),
    ]
    rates = [(words, share(summary["rates"][key])) for key, words in _RATES.items()]
    headings = ["rows of", "predicted 0", "predicted 1"]
    return joined(
        table(f"Rows by label and prediction, 1 above {limit}", headings, counts, folded=False),
        table(f"Rates at {limit}", ["rate", "value"], rates, folded=False),
        _curves(summary) if summary["bins"] else left_out(_few(summary)),
    )


def _few(summary: Mapping[str, Any]) -> str:
    return f"No curves: one of the labels has fewer than {summary['unit']} rows."


def _curves(summary: Mapping[str, Any]) -> Markup:
    bins, area = summary["bins"], summary["auc"]
    groups = [*_grouped(bins)]
    words = "" if area is None else f", area {area['value']:.4g}"
    roc = [(each["false_positive_rate"], each["true_positive_rate"]) for each in summary["roc"]]
    calibrated = [(each["mean_prediction"], each["rate"]) for each in groups]
    drawn = [
        lines(
            f"ROC curve{words}",
            [Series("model", roc)],
            "false positive rate",
            "true positive rate",
            True,
            True,
        ),
        lines("Precision-recall curve", [Series("model", _precision(bins))], "recall", "precision", True),
        lines(
            "Calibration",
            [Series("rows of one bin", calibrated, dots=True)],
            "mean predicted probability",
            "share of label 1",
            True,
            True,
        ),
    ]
    headings = ["probability", "rows", "label 1", "predicted", "share of label 1"]
    counts = (
        (
            f"{each['low']:.3f} to {each['high']:.3f}",
            f"{each['rows']:,}",
            f"{each['positives']:,}",
            share(each["mean_prediction"]),
            share(each["rate"]),
        )
        for each in groups
    )
    resolution = (
        "" if area is None else f" The area of unrounded scores is within {area['resolution']:.2g} of it."
    )
    return joined(
        paragraph(
            f"The curves are drawn from counts of rows by score and label, within {summary['unit']} rows."
            f"{resolution}"
            if summary["unit"] > 1
            else f"The curves are drawn from counts of rows by score and label.{resolution}"
        ),
        element("div", *drawn, class_="charts"),
        table("Rows by predicted probability", headings, counts),
    )


def _precision(bins: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Recall and precision at the lower end of each bin, from the highest score on."""
    ones = sum(each["positives"] for each in bins)
    out: list[tuple[float, float]] = []
    found, taken = 0, 0
    for each in reversed(bins):
        found, taken = found + each["positives"], taken + each["rows"]
        out += [] if out else [(0.0, found / taken)]
        out.append((found / ones, found / taken))
    return out


def _grouped(bins: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield about MAX_GROUPS bins, of about as many rows each, made of neighbours."""
    least, part = sum(each["rows"] for each in bins) / MAX_GROUPS, list[Mapping[str, Any]]()
    for number, each in enumerate(bins, 1):
        part.append(each)
        rows = sum(one["rows"] for one in part)
        if rows >= least or number == len(bins):
            positives = sum(one["positives"] for one in part)
            predicted = sum(one["mean_prediction"] * one["rows"] for one in part) / rows
            counts = {"rows": rows, "positives": positives, "rate": positives / rows}
            yield {"low": part[0]["low"], "high": part[-1]["high"], "mean_prediction": predicted, **counts}
            part = []


def _of_classes(summary: Mapping[str, Any]) -> Markup:
    why = "ROC, precision-recall and calibration are for models of two classes."
    if "classes" not in summary:
        return left_out(why)
    classes, counts = summary["classes"], summary["confusion"]
    if len(classes) > MAX_CLASSES:
        return left_out(f"{why} {len(classes)} classes: too many for a table of predictions by label.")
    headings = ["label", *(f"predicted {name}" for name in classes)]
    rows = ([name, *map(_count, row)] for name, row in zip(classes, counts, strict=True))
    return joined(table("Rows by label and most probable class", headings, rows), left_out(why))


def dependence(facts: ReportFacts) -> Markup:
    """Return charts of partial dependence."""
    rows = facts.rows
    if rows is None:
        return left_out(f"To see how predictions depend on the features {GIVE_DATA}.")
    if not rows.dependence:
        return left_out("No feature splits, so predictions depend on none.")
    return joined(
        paragraph(
            f"The mean prediction over the rows of {rows.source} with each value in turn put into one "
            "column, for the features of the highest gains. It says what the model does, not what is so."
        ),
        element("div", *(_chart(each, facts.classes) for each in rows.dependence), class_="charts"),
        *_tables(rows, facts.classes),
    )


def _chart(each: DependenceFacts, classes: Sequence[str]) -> Markup:
    values, outputs = each.means.tolist(), each.means.shape[1]
    if not each.is_categorical:
        series = [
            Series(
                f"class {classes[output]}" if outputs > 1 else "prediction",
                [(float(value), row[output]) for value, row in zip(each.grid, values, strict=True)],
            )
            for output in range(outputs)
        ]
        title = f"Prediction by {each.feature}"
        title += f", the first {MAX_SERIES} of {outputs} classes" if outputs > MAX_SERIES else ""
        return lines(title, series, each.feature, "mean prediction")
    if outputs > 1:
        return Markup("")
    pairs = [(str(value), row[0]) for value, row in zip(each.grid, values, strict=True)]
    title = f"Prediction by {each.feature}"
    title += f", the first {MAX_BARS} of {len(pairs)} categories" if len(pairs) > MAX_BARS else ""
    return points(title, pairs, "mean prediction")


def _tables(rows: RowsFacts, classes: Sequence[str]) -> Iterator[Markup]:
    for each in rows.dependence:
        outputs = each.means.shape[1]
        headings = [each.feature, *(classes if outputs > 1 else ["mean prediction"])]
        values = [*zip(each.grid, each.means.tolist(), strict=True)]
        if not each.is_categorical and len(values) > MAX_VALUES:
            last = len(values) - 1
            values = [values[number * last // (MAX_VALUES - 1)] for number in range(MAX_VALUES)]
        lines_of = ([_at(value), *map(number, row)] for value, row in values)
        yield table(f"Mean prediction by {each.feature}", headings, lines_of, folded=True)


def _at(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def number(value: float | None) -> str:
    """Return a figure; … where there is none."""
    return "…" if value is None else f"{value:.5g}"


def _count(value: int | None) -> str:
    return "…" if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """Return a share of rows with the digits that it is told with; … where there is none."""
    return "…" if value is None else f"{100 * value:.4g}%"
