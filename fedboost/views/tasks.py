"""Results in words: descriptions, evaluations, drift and tuning.

Promises: nothing but what the description says; lines of advice name the column and the remedy.
Refuses: nothing.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedboost.boosting.programs.tasks import rows_of_group, unit_of, within_of_rate
from fedboost.views.words import WIDTH, Block, cell, counted, delimited, listed, paragraph, table

MUCH_MISSING = 0.5
"""Share of missing values from which a column is named."""
SHOWN_LEVELS = 6
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")

Described = Mapping[str, Any]


def describe(summary: Described) -> Iterator[Block]:
    """Yield the rows, a line for each column, and what to change."""
    rows = summary["rows"]
    yield f"{rows:,} rows of all parties\n"
    numbers = [column for column in summary["columns"] if column["kind"] == "numeric"]
    label = summary["label"]
    if "quantiles" in label:
        numbers.append({**label, "missing": 0})
    if numbers:
        yield _numbers(numbers, rows)
    groups = [column for column in summary["columns"] if column["kind"] == "categorical"]
    if "levels" in label:
        groups.append({**label, "missing": 0, "undeclared": 0})
    if groups:
        yield ""
        yield from (_levels(column, rows) for column in groups)
    yield ""
    yield paragraph(
        f"quantiles are rounded as their intervals allow; missing is a share of all rows. {hidden(summary)}"
    )
    for line in advice(summary):
        yield ""
        yield paragraph(line)


def unit(summary: Described) -> int:
    """Return the rows that a count is told to the nearest of."""
    return 1 if "noise" in summary else unit_of(summary["min_count"])


def hidden(summary: Described) -> str:
    """Return what of the rows is not told, in a sentence or two."""
    if noise := summary.get("noise"):
        return f"... stands for what is lost in the noise, whose standard deviation is {noise:.3g} rows."
    told = f"Counts are told to the nearest {unit(summary)} rows. " if unit(summary) > 1 else ""
    return f"{told}... stands for quantiles beyond which lie fewer than {summary['min_count']} rows."


def _numbers(columns: list[Any], rows: int) -> Block:
    lines = table("column", "missing", *(f"{float(share):.0%}" for share in _QUANTILES))
    for column in columns:
        known = (column["quantiles"][share] for share in _QUANTILES)
        lines.add_row(cell(column["name"]), share_of(column["missing"], rows), *map(quantile, known))
    return lines


def quantile(interval: list[float] | None) -> str:
    """Return a quantile, an interval, to the digits that its interval has."""
    if interval is None:
        return "..."
    low, high = interval
    middle = (low + high) / 2
    for digits in range(1, 8):
        text = f"{middle:.{digits}g}"
        if low <= float(text) <= high:
            return f"{float(text):g}"
    return f"{low:g}"


def share_of(count: int | None, rows: int) -> str:
    """Return a count as a share of rows."""
    return "..." if count is None else "0" if not count else f"{max(count / max(rows, 1), 0.001):.1%}"


def _levels(column: Any, rows: int) -> str:
    counts = [*column["levels"].items(), ("undeclared", column["undeclared"]), ("missing", column["missing"])]
    counts = [(name, rows_of) for name, rows_of in counts if rows_of != 0 or name in column["levels"]]
    known = sorted(counts, key=lambda pair: -(pair[1] or 0))
    words = [f"{delimited(name)} {share_of(count, rows)}" for name, count in known[:SHOWN_LEVELS]]
    further = len(known) - SHOWN_LEVELS
    words += [f"{further} more"] if further > 0 else []
    return textwrap.fill(f"{delimited(column['name'])}: {', '.join(words)}", WIDTH, subsequent_indent="  ")


def advice(summary: Described) -> Iterator[str]:
    """Yield what to change in the terms or the tables, a sentence each."""
    rows, least = summary["rows"], unit(summary)
    for column in summary["columns"]:
        name, missing = delimited(column["name"]), column["missing"]
        is_empty = missing is not None and rows - missing < least
        if is_empty:
            held = "no value in any row" if least == 1 else f"a value in fewer than {least} rows"
            yield f"column {name} has {held}: take it out of the terms"
        elif missing is not None and missing > MUCH_MISSING * rows:
            share = f"{missing / max(rows, 1):.0%}"
            yield f"column {name} is missing in {share} of the rows: is it named alike at all sites?"
        if column["kind"] == "categorical":
            yield from _advice_on_levels(column, name, summary)
        elif column["constant"] and not is_empty:
            yield f"column {name} has one value in all rows that have any: take it out of the terms"
        elif (gap := column.get("gap")) is not None:
            low, high = (float(f"{end:.2g}") for end in gap)
            yield (
                f"column {name} has values up to about {low:g} and from about {high:g} on, and few between: "
                f"do all sites use the same unit?"
            )
    label = summary["label"]
    levels = label.get("levels", {})
    if empty := [level for level, count in levels.items() if count == 0]:
        listed = ", ".join(map(delimited, empty))
        yield f"label {delimited(label['name'])} {_hardly(least, listed)}: is it spelled so?"
    if label.get("constant"):
        yield f"label {delimited(label['name'])} is the same in every row: there is nothing to learn"


def _hardly(least: int, levels: str) -> str:
    return f"never has {levels}" if least == 1 else f"has {levels} in fewer than {(least + 1) // 2} rows"


def _advice_on_levels(column: Any, name: str, summary: Described) -> Iterator[str]:
    if "noise" in summary and column["undeclared"] is None:
        return
    least = unit(summary)
    undeclared, empty = column["undeclared"], [key for key, count in column["levels"].items() if count == 0]
    if undeclared != 0:
        about = "" if least == 1 else "about "
        number = "some rows" if undeclared is None else f"{about}{undeclared:,} rows"
        yield (
            f"column {name} has other levels than those declared in {number}, which count as missing: "
            f"declare them under [columns.categorical], or correct the tables (`fedboost check` at each site "
            f"names them)"
        )
    if empty:
        shown, more = empty[:SHOWN_LEVELS], len(empty) - SHOWN_LEVELS
        rest = f" and {counted(more, 'more level')}" if more > 0 else ""
        listed = ", ".join(map(delimited, shown))
        yield f"column {name} {_hardly(least, listed + rest)}: take them away, or correct them"
    present = [count for count in column["levels"].values() if count != 0]
    if len(present) == 1 and undeclared == 0:
        all_rows = "all rows" if least == 1 else "nearly all rows"
        yield f"column {name} has one level in {all_rows} that have any: take it out of the terms"


# ---- Rows held against those of a model, in words: a line for each column -------------------------------
# Promises: nothing but what the result says.


MOVED_BY_CHANCE = (
    "By chance: what draws of so many of the same rows stay below 999 times in 1,000, stable. Above that: "
    "slight below 0.1, moved to 0.25, shifted from there on."
)
"""The verdicts in words."""


def drifted(summary: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a table of the columns, the furthest first but for the score, and where most rows went."""
    yield f"{summary['rows']:,} rows of all parties, against {summary['reference_rows']:,} of the training\n"
    *columns, score = summary["columns"]
    lines = table("column", "psi", "by chance", "verdict", "most moved", numbers=(1, 2))
    for column in [*sorted(columns, key=lambda each: -(each["psi"] or 0)), score]:
        psi = "..." if column["psi"] is None else f"{column['psi']:.3f}"
        chance = f"{column['by_chance']:.3f}"
        lines.add_row(cell(column["name"]), psi, chance, column["verdict"], cell(most_moved(column)))
    yield lines
    yield ""
    yield paragraph(
        f"psi: population stability index. {MOVED_BY_CHANCE} Bins of fewer than {summary['min_count']} rows "
        "are merged."
    )


def most_moved(column: Any) -> str:
    """Return the bin whose share of rows changed most, if any changed."""
    if column["psi"] is None:
        return ""
    bins = column["bins"]
    sums = [sum(each[key] for each in bins) for key in ("reference", "rows")]
    shares = [(each["reference"] / sums[0], each["rows"] / sums[1], each) for each in bins]
    before, after, each = max(shares, key=lambda share: abs(share[1] - share[0]))
    shown = f"{before:.1%}", f"{after:.1%}"
    return "" if shown[0] == shown[1] else f"{values_of(each)}: {' to '.join(shown)}"


def values_of(each: Any) -> str:
    """Return the values that a bin has, in words."""
    if "levels" in each:
        return " or ".join(map(delimited, each["levels"][:3])) + (" ..." if len(each["levels"]) > 3 else "")
    if "low" not in each:
        return "missing"
    low, high = each["low"], each["high"]
    ends = [f"from {low:.4g}"] if low is not None else []
    ends += [f"below {high:.4g}"] if high is not None else []
    return " ".join(ends or ["any value"]) + (" or missing" if each.get("missing") else "")


# ---- The evaluation of a model, in words: metrics, curves, rates by subgroup and site -------------------
# Promises: nothing but what the evaluation says.


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

Figures = Mapping[str, Any]


def evaluated(summary: Figures) -> Iterator[Block]:
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


def rows_in_words(summary: Figures) -> str:
    """Return which rows they are, in few words: they stand with every figure."""
    kind, trained, unknown = summary["of"], summary["shares"]["trained"], summary["shares"]["unknown"]
    if kind != "all":
        return f"{kind} rows"
    parts = [f"{trained:.0%} training rows"] * (trained > 0) + [f"{unknown:.0%} of unknown use"] * (
        unknown > 0
    )
    return ", ".join(parts) or "no training rows"


def said_of_rows(summary: Figures) -> Iterator[str]:
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


def told(summary: Figures) -> Iterator[str]:
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


def _too_few(summary: Figures, groups: Sequence[Figures]) -> Iterator[str]:
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


def _of_two_classes(summary: Figures) -> Iterator[Block]:
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


def _matrix(summary: Figures) -> Iterator[Block]:
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


def _figures(of_set: Figures) -> dict[str, float | None]:
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


# ---- Trials of settings, in words: a table, best first --------------------------------------------------


SHOWN = 10
"""Trials in the table."""


def trials(metric: str, tried: Sequence[Mapping[str, Any]], best: int, grows: bool) -> Iterator[Block]:
    """Yield a table of the trials that came furthest. grows: more of the metric is better."""
    sign = -1.0 if grows else 1.0
    ranks = [
        (number != best, -each["rounds"], sign * (each[metric] or 0.0)) for number, each in enumerate(tried)
    ]
    order = sorted(range(len(tried)), key=ranks.__getitem__)
    lines = table("trial", metric, "best round", "of", "settings", numbers=range(4))
    for number in order[:SHOWN]:
        each = tried[number]
        settings = ", ".join(f"{name} {value:g}" for name, value in each["settings"].items())
        value = "" if each[metric] is None else f"{each[metric]:.5g}"
        lines.add_row(str(number), value, str(each["best_round"]), str(each["rounds"]), settings)
    yield lines
    hidden = len(tried) - SHOWN
    more = f" {counted(hidden, 'more trial')} came less far." if hidden > 0 else ""
    yield ""
    yield paragraph(
        f"trial {best} is the best, after {tried[best]['best_round']} of {tried[best]['rounds']} rounds. "
        f"{metric} is that of the validation rows, at the best round of each.{more}"
    )
