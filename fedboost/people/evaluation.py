"""The evaluation of a model, in words: metrics, curves, rates by subgroup and site.

Promises: nothing but what the evaluation says.
Refuses: nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedboost.boosting.programs.tasks import rows_of_group, within_of_rate
from fedboost.people.text import Block, cell, delimited, listed, paragraph, table

SHOWN_BINS = 10
SHOWN_CLASSES = 12
SHOWN_WITHIN = 0.0005
"""The smallest uncertainty of a figure that is shown beside it."""
_RATES = {
    "selection_rate": "selected",
    "true_positive_rate": "true pos.",
    "false_positive_rate": "false pos.",
    "positive_rate": "label 1",
}

Summary = Mapping[str, Any]


def evaluated(summary: Summary) -> Iterator[Block]:
    """Yield metrics, curves, and a table for each column of subgroups and for the sites."""
    yield f"{summary['rows']:,} rows of all parties: {rows_in_words(summary)}\n"
    mixed = "" if summary["of"] != "all" else f"  ({rows_in_words(summary)})"
    yield from (
        f"{name:<14}{_number(value)}{_within(within)}{mixed}"
        for (name, value), within in zip(
            summary["metrics"].items(), summary["resolution"].values(), strict=True
        )
    )
    if "threshold" in summary:
        yield from _of_two_classes(summary)
    if "classes" in summary:
        yield from _matrix(summary)
    for column, split in summary.get("subgroups", {}).items():
        yield ""
        yield from _split(delimited(column), split, summary["unit"])
    if "sites" in summary:
        yield ""
        yield from _split("site", summary["sites"], summary["unit"])
    yield ""
    yield paragraph(" ".join((*said_of_rows(summary), *told(summary))))


def rows_in_words(summary: Summary) -> str:
    """Return which rows they are, in few words: they stand with every figure."""
    kind, trained, unknown = summary["of"], summary["shares"]["trained"], summary["shares"]["unknown"]
    if kind != "all":
        return f"{kind} rows"
    parts = [f"{trained:.0%} training rows"] * (trained > 0) + [f"{unknown:.0%} of unknown use"] * (
        unknown > 0
    )
    return ", ".join(parts) or "no training rows"


def said_of_rows(summary: Summary) -> Iterator[str]:
    """Yield a warning where trees were grown on some of the rows, or may have been."""
    trained, unknown = summary["shares"]["trained"], summary["shares"]["unknown"]
    if summary["of"] == "all" and trained:
        yield (
            f"Trees were grown on {trained:.0%} of these rows, and fit them better than others. Measure the "
            "rows that the training held out (--rows held-out) or that were added since (--rows new)."
        )
    if summary["of"] == "all" and unknown:
        yield (
            f"It is not known whether trees were grown on {unknown:.0%} of these rows. If they were, the "
            "figures are better than those of other rows."
        )


def told(summary: Summary) -> Iterator[str]:
    """Yield sentences: how coarse the figures are, why some are missing, and the option that shows more."""
    unit = summary["unit"]
    if unit == 1:
        return
    yield f"Counts are within {unit} rows, and {unit} rows move the last digit of the other figures."
    for name, cap in summary["caps"].items():
        yield f"In {name} the loss of a row counts as {cap:g} at most: fewer than {unit} rows have more."
    lower = "A lower --min-count shows more, down to what the policies of the sites allow"
    splits = [*summary.get("subgroups", {}).values(), *filter(None, [summary.get("sites")])]
    groups = [known for split in splits for known in split["sets"].values()]
    few = [*_too_few(summary, groups)]
    yield from few
    if few or any(split["left_out"] for split in splits):
        yield f"{lower}; so do more rows."


def _too_few(summary: Summary, groups: Sequence[Summary]) -> Iterator[str]:
    """Yield why figures are missing: of all rows, then of groups."""
    unit = summary["unit"]
    missing = [key for key, value in summary.get("rates", {}).items() if value is None]
    if "threshold" in summary and (summary["auc"] is None or None in summary["confusion"].values()):
        yield f"One of the labels has fewer than {unit} rows: there is no curve, and what needs it is '...'."
    elif missing:
        yield f"'...': fewer than {unit} rows to divide by ({', '.join(missing)})."
    if any(None in _figures(known).values() for known in groups):
        few = rows_of_group(unit)
        yield f"'...' of a group: fewer than {few} rows, or rows of a label, decide it."


def _within(within: float | None) -> str:
    return "" if within is None or within < SHOWN_WITHIN else f"  (within {within:.1g})"


def _of_two_classes(summary: Summary) -> Iterator[Block]:
    area = summary["auc"]
    if area is not None:
        yield f"{'auc':<14}{_number(area['value'])}  (scores rounded: within {area['resolution']:.1g})"
    yield ""
    outcomes, rates = summary["confusion"], summary["rates"]
    lines = table(f"above {summary['threshold']:g}", "predicted 0", "predicted 1")
    lines.add_row("label 0", _count(outcomes["tn"]), _count(outcomes["fp"]))
    lines.add_row("label 1", _count(outcomes["fn"]), _count(outcomes["tp"]))
    yield lines
    yield ""
    for name, key in (("precision", "precision"), ("recall", "true_positive_rate")):
        is_rounded = rates[key] is not None and summary["unit"] > 1
        within = within_of_rate(key, outcomes, summary["unit"]) if is_rounded else None
        yield f"{name:<14}{_share(rates[key])}{_within(within)}"
    if summary["bins"]:
        yield ""
        yield from _calibration(summary["bins"])


def _calibration(bins: Sequence[Any]) -> Iterator[Block]:
    """Yield the bins as a table, neighbours together where they are many."""
    lines = table("probability", "rows", "predicted", "label 1")
    step = -(-len(bins) // SHOWN_BINS)
    for first in range(0, len(bins), step):
        part = bins[first : first + step]
        rows = sum(each["rows"] for each in part)
        predicted = sum(each["mean_prediction"] * each["rows"] for each in part) / rows
        found = sum(each["positives"] for each in part) / rows
        ends = f"{part[0]['low']:.3f} to {part[-1]['high']:.3f}"
        lines.add_row(ends, f"{rows:,}", f"{predicted:.0%}", f"{found:.0%}")
    yield lines


def _matrix(summary: Summary) -> Iterator[Block]:
    names, counts = summary["classes"], summary["confusion"]
    if len(names) > SHOWN_CLASSES:
        yield f"\n{len(names)} classes: `--json` has the rows by class and predicted class"
        return
    yield ""
    lines = table("label", *map(_heading, names), title=None)
    for name, row in zip(names, counts, strict=True):
        lines.add_row(cell(name), *map(_count, row))
    yield lines
    yield paragraph("rows are labels, columns predictions.")


def _heading(name: str) -> str:
    from rich.markup import escape

    return escape(str(cell(name)))


def _split(title: str, split: Any, unit: int) -> Iterator[Block]:
    sets = split["sets"]
    metrics = [*next(iter(sets.values()))["metrics"]] if sets else []
    with_rates = any("rates" in known for known in sets.values())
    shown = {key: words for key, words in _RATES.items() if with_rates}
    lines = table(_heading(title), "rows", *metrics[:3], *shown.values())
    for name, known in sets.items():
        rates = [_share(known["rates"][key]) for key in shown]
        values = [_number(known["metrics"][key]) for key in metrics[:3]]
        lines.add_row(cell(name), f"{known['rows']:,}", *values, *rates)
    if len(sets) > 1:
        apart = [_apart(split, key, _number) for key in metrics[:3]]
        apart += [_apart(split, key, _share) for key in shown]
        lines.add_row("apart by", "", *apart)
    yield lines
    if len(sets) > 1 and "-" in apart:
        yield paragraph("-: no further apart than rounding may make them.")
    if split["left_out"]:
        yield paragraph(f"left out, {why_left_out(unit)}: {listed(split['left_out'])}")


def _figures(of_set: Summary) -> dict[str, float | None]:
    return {**of_set["metrics"], **of_set.get("rates", {})}


def why_left_out(unit: int) -> str:
    """Why a group is left out: those of no rows are, too, where counts are coarse."""
    return f"for fewer than {unit} rows{' or none' if unit > 1 else ''}"


def _apart(split: Any, key: str, shown: Callable[[float | None], str]) -> str:
    """How far the groups are apart in a figure; '-' where rounding may make the difference."""
    known = [_figures(one)[key] for one in split["sets"].values()]
    told = len(known) - known.count(None) > 1
    return shown(split["gaps"].get(key)) if key in split["gaps"] or not told else "-"


def _number(value: float | None) -> str:
    return "..." if value is None else f"{value:.5g}"


def _count(value: int | None) -> str:
    return "..." if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    """A share with the digits that it is told with, four at most."""
    return "..." if value is None else f"{100 * value:.4g}%"
