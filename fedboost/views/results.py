"""What people see of results: evaluations, descriptions, drift, tuning, and checks of tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedboost.boosting.programs.rounding import rows_of_bin, rows_of_group
from fedboost.boosting.programs.survival import GROUPS
from fedboost.boosting.programs.tasks import within_of_rate
from fedboost.boosting.queries.columns import groups_of
from fedboost.gbdt.metrics import time_of
from fedboost.gbdt.survival import AUC_AT, BRIER_AT, CINDEX
from fedboost.results.base import Result
from fedboost.results.check import ERROR, SEVERITIES, WARNING, Checked, Oddity, by_severity
from fedboost.results.tasks import (
    Column,
    Description,
    Drift,
    DriftBin,
    DriftColumn,
    Evaluation,
    Interval,
    ScoreBin,
    SetFigures,
    Split,
    SurvivalCurve,
    Trial,
    Tuning,
)
from fedboost.terms.tasks import class_names, is_binary
from fedboost.terms.terms import Terms
from fedboost.views import document as page
from fedboost.views.session import result_document, session_warnings
from fedboost.views.words import amount, capital, counted, delimited, listed

# ---- The evaluation of a model: its quality, its subgroups, and the precision of the figures -----------


SHOWN_WITHIN = 0.0005
"""The uncertainty of a figure is shown if it is at least this large."""
MAX_BINS = 10
"""Approximate number of bins of predicted probability. Each has about the same number of rows."""
MAX_CLASSES = 12
"""Maximum number of classes for which the confusion matrix is shown."""
RATES = {
    "precision": "precision",
    "true_positive_rate": "recall",
    "false_positive_rate": "false positive rate",
    "selection_rate": "share predicted 1",
    "positive_rate": "share of label 1",
}
_BY_GROUP = [key for key in RATES if key != "precision"]


def evaluation(result: Evaluation) -> page.Document:
    lead = f"{result.rows:,} rows of all parties: {result.about}"
    blocks = page.unless_empty(
        key_figures(result),
        *page.warnings([*rows_warnings(result), *session_warnings(result.session)]),
        quality(result, labels_of(result.terms)),
        *(
            page.Section(f"split-{number}", f"By {column}", [*_split(column, split, result)])
            for number, (column, split) in enumerate(result.splits.items())
        ),
    )
    return result_document(result, "Evaluation of a model", lead, blocks)


def labels_of(terms: Terms) -> Sequence[str]:
    """Return the names of the two classes, or "0" and "1" if the classes have no names."""
    return class_names(terms) if is_binary(terms) else ("0", "1")


def key_figures(result: Evaluation) -> page.Figures:
    """Return the key figures: metrics, area under the ROC curve, and number of rows."""
    shown = [
        page.Figure(
            metric_name(name), number(value, result.resolution[name]), _within(result.resolution[name])
        )
        for name, value in result.metrics.items()
    ]
    if result.auc is not None and "auc" not in result.metrics:
        shown.insert(
            0,
            page.Figure("area under the ROC curve", number(result.auc.value), _within(result.auc.resolution)),
        )
    return page.Figures([*shown, page.Figure("rows", f"{result.rows:,}", result.about)])


def quality(result: Evaluation, labels: Sequence[str]) -> page.Section | None:
    """Return the section about predictions, labels and the precision of the figures. Returns None if it would
    be empty. labels: names of the two classes."""
    title, blocks = "Predictions and labels", list[page.Block]()
    if result.outcomes is not None:
        blocks += _of_two_classes(result, labels)
    elif result.classes:
        blocks.append(_matrix(result))
    elif result.survival:
        title = "Survival by predicted risk"
        blocks += _of_survival(result, result.terms.columns.label)
    else:
        title = "Precision of the figures"
    if result.noise is not None:
        noise = f"Each count has noise of standard deviation {result.noise:.3g} rows. "
        blocks.append(page.note(f"{noise}“±” is the standard error of a figure that comes from it."))
    elif result.unit > 1:
        blocks.append(page.note(" ".join(remarks(result))))
    return page.Section("quality", title, blocks) if blocks else None


def rows_warnings(result: Evaluation) -> Iterator[str]:
    """Yield a warning if the model was trained on some rows, and if this is unknown for some."""
    trained, unknown = result.shares.trained, result.shares.unknown
    if result.of == "all" and trained:
        yield (
            f"The model was trained on {trained:.0%} of these rows, and fits them better than other rows. "
            "Use rows that were held out in training (--rows held-out) or added since (--rows new)."
        )
    if result.of == "all" and unknown:
        yield (
            f"It is not known whether the model was trained on {unknown:.0%} of these rows. If it was, the "
            "figures are better than they would be on other rows."
        )


def remarks(result: Evaluation) -> Iterator[str]:
    """Yield sentences about the precision of the figures, missing figures, and the option that shows more."""
    unit = result.unit
    if not result.survival:
        yield f"Counts are accurate to {unit} rows. In other figures, {unit} rows change only the last digit."
    for name, cap in result.caps.items():
        yield f"In {name}, the loss of a row is capped at {cap:g}: fewer than {unit} rows have a larger loss."
    few = [*_too_few(result)]
    yield from few
    if few or any(split.left_out for split in result.splits.values()):
        yield "A lower --min-count shows more figures, if the sites' policies allow it. More rows do so, too."


def _too_few(result: Evaluation) -> Iterator[str]:
    """Yield sentences that say why figures are missing, first for all rows, then for groups."""
    unit = result.unit
    rates = result.rates.model_dump() if result.rates else {}
    missing = [RATES[key] for key, value in rates.items() if value is None]
    outcomes = result.outcomes
    if outcomes is not None and (result.auc is None or None in outcomes.model_dump().values()):
        yield f"One label has fewer than {unit} rows: there are no curves, and figures that need it are “…”."
    elif missing:
        yield f"“…” means that the denominator has fewer than {unit} rows ({', '.join(missing)})."
    if any(
        None in known.figures.values() for split in result.splits.values() for known in split.sets.values()
    ):
        yield f"For groups, “…” means fewer than {rows_of_group(unit)} rows, in total or with one label."


# ---- Two classes ----------------------------------------------------------------------------------------


def _of_two_classes(result: Evaluation, labels: Sequence[str]) -> Iterator[page.Block]:
    outcomes, rates = result.outcomes, result.rates
    assert outcomes is not None
    assert rates is not None
    counts = [
        (f"label {labels[0]}", count(outcomes.tn), count(outcomes.fp)),
        (f"label {labels[1]}", count(outcomes.fn), count(outcomes.tp)),
    ]
    headings = ["rows of", *(f"predicted {label}" for label in labels)]
    known, counted = [], outcomes.model_dump()
    for key, words in RATES.items():
        value: float | None = getattr(rates, key)
        error = result.resolution.get(key)  # of the noise, if there is any
        if error is None and result.unit > 1 and value is not None:
            error = within_of_rate(key, counted, result.unit)
        known.append((words, share(value), "" if error is None else f"{error:.1g}"))
    limit = f"{result.threshold:g}"
    yield page.SideBySide(
        [
            page.Table(f"Rows by label and prediction (1 above {limit})", headings, counts, folded=False),
            page.Table(f"Rates at threshold {limit}", ["rate", "value", "±"], known, folded=False),
        ]
    )
    if not result.bins:
        return
    groups = grouped(result.bins)
    yield page.SideBySide([*_curves(result, groups)])
    yield page.Table(
        "Rows by predicted probability",
        ["probability", "rows", "label 1", "predicted", "share of label 1"],
        [
            (
                f"{each.low:.3f} to {each.high:.3f}",
                f"{each.rows:,}",
                f"{each.positives:,}",
                f"{each.mean_prediction:.1%}",
                f"{each.rate:.1%}",
            )
            for each in groups
        ],
        folded=False,
    )


def _curves(result: Evaluation, groups: Sequence[ScoreBin]) -> Iterator[page.Block]:
    roc = [(each.false_positive_rate, each.true_positive_rate) for each in result.roc]
    precision = page.Series("model", _precision(result.bins))
    calibration = page.Series("rows of a bin", [(g.mean_prediction, g.rate) for g in groups], dots=True)
    axes = "false positive rate", "true positive rate"
    yield page.Lines("ROC curve", [page.Series("model", roc)], *axes, square=True, diagonal=True)
    yield page.Lines("Precision-recall curve", [precision], "recall", "precision", square=True)
    axes = "mean predicted probability", "share of label 1"
    yield page.Lines("Calibration", [calibration], *axes, diagonal=True)


def _precision(bins: Sequence[ScoreBin]) -> list[tuple[float, float]]:
    """Return (recall, precision) at the lower end of each bin, starting at the highest score."""
    ones = sum(each.positives for each in bins)
    out: list[tuple[float, float]] = []
    found, taken = 0, 0
    for each in reversed(bins):
        found, taken = found + each.positives, taken + each.rows
        out += [] if out else [(0.0, found / taken)]
        out.append((found / max(ones, 1), found / taken))
    return out


def grouped(bins: Sequence[ScoreBin]) -> list[ScoreBin]:
    """Merge neighbouring bins into about MAX_BINS bins with about the same number of rows each."""
    least, part, out = sum(each.rows for each in bins) / MAX_BINS, list[ScoreBin](), list[ScoreBin]()
    for number, each in enumerate(bins, 1):
        part.append(each)
        rows = sum(one.rows for one in part)
        if rows >= least or number == len(bins):
            ones = sum(one.positives for one in part)
            mean = sum(one.mean_prediction * one.rows for one in part) / rows
            known = {"rows": rows, "positives": ones, "mean_prediction": mean, "rate": ones / rows}
            # Skip validation: the computed mean of numbers within bounds may lie outside them.
            out.append(ScoreBin.model_construct(None, low=part[0].low, high=part[-1].high, **known))
            part = []
    return out


# ---- Survival times -------------------------------------------------------------------------------------


_CURVES = "Curves join Kaplan-Meier estimates at some times by straight lines, on which medians are read."
_NAMES = {CINDEX: "C-index", AUC_AT: "AUC at ", BRIER_AT: "Brier score at "}


def metric_name(name: str) -> str:
    """Return a metric's name for people, e.g. "AUC at 365" for auc@365."""
    kind, at, time = name.partition("@")
    return _NAMES.get(kind + at, kind + at) + time


def _of_survival(result: Evaluation, label: str) -> Iterator[page.Block]:
    every, *thirds = result.survival
    shown, least = thirds or [every], rows_of_bin(result.unit)
    title = f"Kaplan-Meier curve{'s by third of predicted risk' if thirds else ''}"
    times = sorted({time for name in result.metrics if (time := time_of(name))})
    yield page.Lines(title, [*map(survival_line, shown)], label, "share without an event", ticks=times)
    yield survival_table([*thirds, every], times)
    same = ", ".join(f"{share * (1 - share):.2f}" for share in (_survival(every, time) for time in times))
    base = ", with the baseline hazard of these rows" * result.terms.objective.loss.has_risk_sets
    yield page.note(
        "C-index: of two rows, one of which is known to have its event first, how often that one has the "
        "higher predicted risk (0.5: by chance). AUC: of a row with an event until this time and a row "
        "without, how often the first has the higher predicted risk. Brier score: mean squared error of the "
        f"predicted probability of no event{base} (with one probability for all rows: {same or '0.25'}). “±” "
        "is the largest difference from the exact figure of these rows; it says nothing about chance. "
        f"{_CURVES} They end at the first time with fewer than {least} rows at risk. Counts are accurate to "
        f"{result.unit} rows, numbers at risk to {2 * result.unit}; times have the unit of the label."
    )


def survival_line(curve: SurvivalCurve) -> page.Series:
    name = "all rows" if curve.name == GROUPS[0] else f"{curve.name} risk"
    points = [(point.time, point.survival) for point in curve.points]
    return page.Series(capital(name), points, at_risk=[point.at_risk for point in curve.points])


def survival_table(curves: Sequence[SurvivalCurve], times: Sequence[float]) -> page.Table:
    """Return the survival of groups of rows at some times. times: by default, some points of the curves."""
    known = max(([point.time for point in each.points[1:]] for each in curves), key=len)
    times = times or known[len(known) // 4 :: -(-len(known) // 4) or 1]
    rows = []
    for each in curves:
        ends = each.points[-1].time
        at = [f"{_survival(each, time):.0%}" if time <= ends else "…" for time in times]
        rows.append((survival_line(each).name, f"{each.rows:,}", f"{each.events:,}", _median(each), *at))
    headings = ["", "rows", "events", "median", *(f"at {amount(time)}" for time in times)]
    return page.Table("Survival by group", headings, rows, folded=False)


def _survival(curve: SurvivalCurve, time: float) -> float:
    """Return the survival at the last point until a time."""
    return [point.survival for point in curve.points if point.time <= time][-1]


def _median(curve: SurvivalCurve) -> str:
    """Return the time until which half of the rows have an event, on the line between two points."""
    for before, after in pairwise(curve.points):
        if after.survival <= 0.5:
            share = (before.survival - 0.5) / (before.survival - after.survival)
            return f"about {float(f'{before.time + share * (after.time - before.time):.2g}'):g}"
    return "not reached"


# ---- Several classes, groups and sites ------------------------------------------------------------------


def _matrix(result: Evaluation) -> page.Block:
    classes = result.classes
    if len(classes) > MAX_CLASSES:
        return page.note(
            f"{len(classes)} classes are too many to show; use --json for rows by class and predicted class."
        )
    assert isinstance(result.confusion, list)
    rows = [(name, *map(count, row)) for name, row in zip(classes, result.confusion, strict=True)]
    headings = ["label", *(f"predicted {name}" for name in classes)]
    return page.Table("Rows by label and most probable class", headings, rows, folded=False)


def _split(title: str, split: Split, result: Evaluation) -> Iterator[page.Block]:
    sets = split.sets
    metrics = [*next(iter(sets.values())).metrics] if sets else []
    rates = _BY_GROUP if result.rates else []
    shown: Mapping[str, Callable[[float | None], str]] = {
        **dict.fromkeys(metrics, number),
        **dict.fromkeys(rates, share),
    }
    known = {key: [each.figures[key] for each in sets.values()] for key in shown}
    told = [key for key, values in known.items() if any(value is not None for value in values)]
    rows = [
        (name, f"{each.rows:,}", *(_of_group(each, key, shown[key]) for key in told))
        for name, each in sets.items()
        if any(value is not None for value in each.figures.values())
    ]
    small = [name for name in sets if name not in {row[0] for row in rows}]
    if len(rows) > 1:
        apart = (shown[key](split.gaps[key]) if key in split.gaps else "-" for key in told)
        rows.append(("difference", "", *apart))
    if rows:
        yield page.Table(f"Figures by {title}", [title, "rows", *(RATES.get(key, key) for key in told)], rows)
    if result.survival and not told:
        yield page.note("Survival figures are available only for all rows together.")
        return
    missing = [RATES.get(key, key) for key in shown if key not in told]
    few = f"fewer than {rows_of_group(result.unit)}, in total or with one of the labels"
    if missing and told:
        yield page.note(f"Each group has too few rows ({few}) for {', '.join(missing)}.")
    if small:
        yield page.note(
            f"Too few rows for any figure ({few}): ", page.Names(small), ". A lower --min-count shows more."
        )
    if len(rows) > 1:
        yield page.note(
            "A dash means that the difference may be due to rounding. Between small groups, it may be chance."
        )
    if split.left_out:
        few = f"with fewer than {result.unit} rows" if result.unit > 1 else "without rows"
        yield page.note(f"Groups {few} are left out: ", page.Names(split.left_out))


def _of_group(each: SetFigures, key: str, shown: Callable[[float | None], str]) -> str:
    """Return a figure of a group, with its uncertainty from rounding if that is large enough to show."""
    within = each.resolution.get(key)
    unsure = _within(within) if within is not None and each.figures[key] is not None else ""
    return f"{shown(each.figures[key])} {unsure}".rstrip()


# ---- Figures --------------------------------------------------------------------------------------------


def _within(within: float | None) -> str:
    return "" if within is None or within < SHOWN_WITHIN else f"± {within:.2g}"


def number(value: float | None, within: float | None = None) -> str:
    """Format a figure, with at least as many decimals as its uncertainty. None becomes “…”."""
    if value is None:
        return "…"
    text, digits = f"{value:.5g}", len(_within(within).partition(".")[2])
    return text if len(text.partition(".")[2]) >= digits else f"{value:.{digits}f}"


def count(value: int | None) -> str:
    """Format a number of rows. None (too small to be shown) becomes “…”."""
    return "…" if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """Format a rounded fraction of rows as a percentage with all its digits. None becomes “…”."""
    return "…" if value is None else f"{100 * value:.4g}%"


# ---- A description of the rows: what to change, then the columns, levels and label ----------------------


MUCH_MISSING = 0.5
"""If a larger fraction of a column's values is missing, a hint is shown."""
SHOWN_LEVELS = 6
"""Maximum number of levels that a hint lists."""
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")


def description(result: Description) -> page.Document:
    rows, found = result.rows, [*hints(result)]
    numbers = [column for column in result.columns if column.is_numeric]
    groups = [column for column in result.columns if not column.is_numeric]
    what = f"{rows:,} rows of all parties, {counted(len(result.columns), 'column')}"
    absent = result.terms.columns.absent.items()
    more = [f"{what}.", *(f"By the terms, {site} lacks {listed(names)}." for site, names in absent)]
    more += ["Compare quantiles and units with what you know: only large differences are found."] * (
        not found
    )
    answer = page.Verdict("No problem was found in these rows.", "good", more)
    if found:
        things = counted(len(found), "thing")
        answer = page.Verdict(f"{things} to look at before training on these rows.", "unclear", more)
    blocks = (
        answer,
        *page.warnings([*session_warnings(result.session)]),
        *([_hints(found)] if found else []),
        page.Section("columns", "Columns", [*_columns(numbers, groups, rows)]),
        page.Section("label", "The label", [*_label(result.label, rows)]),
        *([page.Section("levels", "Levels of all sites", [*_union(result)])] if result.level_names else []),
        *([page.Section("sites", "By site", [*_by_site(result)])] if result.sites else []),
        page.note(hidden(result)),
    )
    return result_document(result, "Description of the rows", what, blocks)


def hidden(result: Description) -> str:
    """Return one or two sentences about what the description omits."""
    if result.noise:
        return (
            f"“…” stands for values lost in the noise, whose standard deviation is {result.noise:.3g} rows."
        )
    unit = result.unit
    rounded = f"Counts are rounded to {unit} rows. " if unit > 1 else ""
    few = f"values of fewer than {result.min_count} rows"
    return f"{rounded}“…” stands for a quantile that could show the smallest or largest value, or {few}."


# ---- What to change in the terms or the tables ----------------------------------------------------------


@dataclass(frozen=True)
class Hint:
    """A finding in the description of the rows. what: "column" or "label"; name: name of the column; finding:
    clause that follows the name; remedy: what to do."""

    what: str
    name: str
    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {delimited(self.name)} {self.finding}: {self.remedy}"


def _hints(found: Sequence[Hint]) -> page.Section:
    names = (each.name if each.what == "column" else f"{each.name} (label)" for each in found)
    rows = [
        (name, capital(each.finding), capital(each.remedy)) for name, each in zip(names, found, strict=True)
    ]
    table = page.Table("Hints", ["column", "finding", "what to do"], rows, (), folded=False)
    return page.Section("advice", "What to change", [table])


def hints(result: Description) -> Iterator[Hint]:
    """Yield hints on what to change in the terms or the tables."""
    rows, least = result.rows, result.unit
    for column in result.columns:
        missing = column.missing
        is_empty = missing is not None and rows - missing < least
        if is_empty:
            held = "no values" if least == 1 else f"values in fewer than {least} rows"
            yield Hint("column", column.name, f"has {held}", "remove it from the terms")
        elif missing is not None and missing > MUCH_MISSING * rows:
            part = f"is missing in {missing / max(rows, 1):.0%} of the rows"
            yield Hint("column", column.name, part, "check that it has the same name at all sites")
        lacking = [
            name
            for name, site in result.sites.items()
            if 0 < site.rows == site.missing[column.name]
            and column.name not in result.terms.columns.absent.get(name, ())
        ]
        if lacking and not is_empty:
            part = f"has {'no' if least == 1 else 'hardly any'} declared values at {listed(lacking)}"
            yield Hint("column", column.name, part, "check there how the column is named and filled")
        if not column.is_numeric:
            yield from _hints_on_levels(column, result)
            named = result.level_names.get(column.name)
            if lacks := [level for level in (named.levels if named else ()) if level not in column.levels]:
                shown = listed(map(delimited, lacks[:SHOWN_LEVELS]))
                part = f"has {counted(len(lacks), 'frequent level')} that the terms lack, e.g. {shown}"
                yield Hint("column", column.name, part, "declare them under [columns.categorical]")
        elif column.constant and not is_empty:
            one = "has the same value in all rows that have a value"
            yield Hint("column", column.name, one, "remove it from the terms")
        elif column.gap is not None:
            low, high = (float(f"{end:.2g}") for end in column.gap)
            far = f"has values up to about {low:g} and above about {high:g}, but few in between"
            yield Hint("column", column.name, far, "check that all sites use the same unit")
    label = result.label
    if empty := [level for level, rows_of in label.levels.items() if rows_of == 0]:
        yield Hint(
            "label", label.name, _hardly(least, ", ".join(map(delimited, empty))), "check the spelling"
        )
    if label.constant:
        yield Hint("label", label.name, "is the same in every row", "there is nothing to learn")


def _hardly(least: int, levels: str) -> str:
    return (
        f"has no rows with {levels}" if least == 1 else f"has {levels} in fewer than {(least + 1) // 2} rows"
    )


def _hints_on_levels(column: Column, result: Description) -> Iterator[Hint]:
    undeclared, least = column.undeclared, result.unit
    if result.noise is not None and undeclared is None:
        return
    if undeclared != 0:
        about = "" if least == 1 else "about "
        number = "some rows" if undeclared is None else f"{about}{undeclared:,} row{'s' * (undeclared != 1)}"
        yield Hint(
            "column",
            column.name,
            f"has undeclared levels in {number}, which are treated as missing",
            "declare them under [columns.categorical], or correct the tables (run `fedboost check` at each "
            "site to list them)",
        )
    if empty := [level for level, rows in column.levels.items() if rows == 0]:
        shown, more = empty[:SHOWN_LEVELS], len(empty) - SHOWN_LEVELS
        rest = f" and {counted(more, 'more level')}" if more > 0 else ""
        levels = ", ".join(map(delimited, shown)) + rest
        yield Hint("column", column.name, _hardly(least, levels), "remove or correct these levels")
    present = [rows for rows in column.levels.values() if rows != 0]
    if len(present) == 1 and undeclared == 0:
        all_rows = "all rows" if least == 1 else "nearly all rows"
        one = f"has the same level in {all_rows} that have a level"
        yield Hint("column", column.name, one, "remove it from the terms")


# ---- Columns and the label ------------------------------------------------------------------------------


def _columns(numbers: Sequence[Column], groups: Sequence[Column], rows: int) -> Iterator[page.Block]:
    if numbers:
        yield _quantiles("Quantiles of each numeric feature", numbers, rows)
        yield page.note(
            "Quantiles are rounded within their intervals; “missing” is a percentage of all rows."
        )
    else:
        yield page.note("The terms have no numeric features.")
    if groups:
        lines = [line for column in groups for line in _rows_of_levels(column, rows)]
        yield page.Table("Rows of each level", ["column", "level", "rows", "share"], lines, (2, 3))
    else:
        yield page.note("The terms have no categorical features.")


def _quantiles(caption: str, columns: Sequence[Column], rows: int) -> page.Table:
    lines = [
        (column.name, share_of(column.missing, rows), *(quantile(column.quantiles[q]) for q in _QUANTILES))
        for column in columns
    ]
    return page.Table(caption, ["column", "missing", *(f"{float(q):.0%}" for q in _QUANTILES)], lines)


def _rows_of_levels(column: Column, rows: int) -> Iterator[Sequence[page.Line]]:
    others = {"(other levels)": column.undeclared, "(missing)": column.missing}
    for level, known in (*column.levels.items(), *((n, c) for n, c in others.items() if c != 0)):
        yield column.name, level, count(known), share_of(known, rows)


def _union(result: Description) -> Iterator[page.Block]:
    """Yield a table of the levels that sites named, and which of them the terms lack."""
    declared, lines = result.terms.columns.categorical, list[Sequence[page.Line]]()
    for name, known in result.level_names.items():
        rows = {**known.levels, "(other levels)": known.others}
        lines += [(name, level, count(rows[level]), "yes" * (level in declared[name])) for level in rows]
    yield page.Table("Levels of all sites", ["column", "level", "rows", "in terms"], lines)
    halves = " and ".join(f"({listed(group)})" for group in groups_of(result.terms.parties))
    yield page.note(
        f"A level is named if each of two groups of sites has {result.min_count} rows of it: {halves}."
    )


def _by_site(result: Description) -> Iterator[page.Block]:
    sites = result.sites
    lines = [("(rows)", *(f"{site.rows:,}" for site in sites.values()))]
    for name in (column.name for column in result.columns):
        shares = (share_of(site.missing[name] if site.rows else None, site.rows) for site in sites.values())
        lines.append((name, *shares))
    yield page.Table("Rows without a declared value", ["column", *sites], lines, range(1, len(sites) + 1))


def _label(label: Column, rows: int) -> Iterator[page.Block]:
    if label.levels:
        lines = [(name, count(known), share_of(known, rows)) for name, known in label.levels.items()]
        yield page.Table(f"Rows by {label.name}", ["label", "rows", "share"], lines)
    elif label.is_numeric:
        yield _quantiles(f"Quantiles of {label.name}", [label], rows)
    elif label.survival is not None:
        curve = label.survival
        yield page.Lines("Kaplan-Meier curve", [survival_line(curve)], label.name, "share without an event")
        yield survival_table([curve], [])
        yield page.note(_CURVES)
    else:
        yield page.note(f"The values of {label.name} are left out.")


def quantile(interval: Interval | None) -> str:
    """Return the middle of a quantile's interval with the fewest digits that are within the interval."""
    if interval is None:
        return "…"
    low, high = interval
    middle = (low + high) / 2
    for digits in range(1, 8):
        text = f"{middle:.{digits}g}"
        if low <= float(text) <= high:
            return f"{float(text):g}"
    return f"{low:g}"


def share_of(known: int | None, rows: int) -> str:
    """Format a count as a percentage of all rows. None becomes “…”."""
    return "…" if known is None else "0" if not known else f"{max(known / max(rows, 1), 0.001):.1%}"


# ---- Drift: which columns moved since the training, and how their rows are distributed now --------------


MAX_DRAWN_BINS = 8
"""Maximum number of columns whose bins are shown in charts."""
MAX_NAMED = 5
"""Maximum number of columns that the verdict names."""
GRADES = (
    "Limit by chance: if nothing has changed, the PSI is below it 999 times in 1,000. A column is “stable” "
    "below this limit, “slight” below 0.1, “moved” below 0.25, and “shifted” otherwise."
)
"""Explanation of the verdicts on a column."""


def drift(result: Drift) -> page.Document:
    *columns, score = result.columns
    ranked = [*sorted(columns, key=lambda each: -(each.psi or 0)), score]
    far = [each for each in ranked if each.verdict != "stable" and each.psi is not None]
    others = [each for each in ranked if each not in far]
    stable = len([each for each in others if each is not score])
    moved: list[page.Block] = [
        _indices(far),
        page.SideBySide([_chart(each) for each in far[:MAX_DRAWN_BINS]]),
    ]
    if len(far) > MAX_DRAWN_BINS:
        moved.append(page.note(f"The charts show the {MAX_DRAWN_BINS} columns that moved most."))
    blocks = (
        verdict(result),
        *page.warnings([*session_warnings(result.session)]),
        *([page.Section("columns", "What moved", moved)] if far else []),
        page.note(
            f"PSI is the population stability index. {GRADES} Bins with fewer than "
            f"{result.min_count} rows are merged."
            + (
                ""
                if result.noise is None
                else f" Counts have noise of standard deviation {result.noise:.3g}."
            )
        ),
        page.Section("others", f"Stable columns ({stable})", [_indices(others)], folded=True),
        page.Section("bins", "Rows by bin of each column", [_bins(ranked)], folded=True),
    )
    return result_document(result, "Drift since the training", _what(result), blocks)


def _what(result: Drift) -> str:
    return f"{result.rows:,} rows of all parties, compared with {result.reference_rows:,} training rows"


def verdict(result: Drift) -> page.Verdict:
    """Return a sentence that says whether the distribution of any column, or of the score, has changed."""
    *columns, score = result.columns
    moved = [each.name for each in columns if each.has_moved]
    slight = [each.name for each in columns if each.verdict == "slight"]
    if moved:
        more = f" and {len(moved) - MAX_NAMED} more" if len(moved) > MAX_NAMED else ""
        text = f"{counted(len(moved), 'column')} moved since the training: {listed(moved[:MAX_NAMED])}{more}."
    elif slight:
        text = f"{counted(len(slight), 'column')} moved, but only slightly: {listed(slight[:MAX_NAMED])}."
    elif all(each.psi is None for each in columns):
        text = "It cannot be decided whether columns moved: too few rows lie outside a single bin."
    else:
        text = "No column moved by more than chance."
    of_score = {
        "moved": "The score of the model moved.",
        "shifted": "The score of the model shifted.",
        "slight": "The score of the model moved slightly.",
        "stable": "The score of the model did not move.",
    }
    is_slight = bool(slight) or score.verdict == "slight"
    state: page.State = "bad" if moved or score.has_moved else "unclear" if is_slight else "good"
    about = [f"{_what(result)}.", *([of_score[score.verdict]] if score.verdict in of_score else [])]
    if state != "good":
        about.append(
            "Drift alone does not make the model worse: evaluate it on rows with a known outcome "
            "(fedboost evaluate)."
        )
    return page.Verdict(text, state, about)


def _indices(columns: Sequence[DriftColumn]) -> page.Table:
    rows = [
        (
            each.name,
            "…" if each.psi is None else f"{each.psi:.3f}",
            f"{each.by_chance:.3f}",
            each.verdict,
            most_moved(each),
        )
        for each in columns
    ]
    headings = ["column", "psi", "limit by chance", "verdict", "largest change"]
    return page.Table("How far each column moved", headings, rows, (1, 2))


def _chart(column: DriftColumn) -> page.Bars:
    values = [(values_of(one), 100 * before, 100 * after) for one, before, after in _shares(column)]
    return page.Bars(
        f"Percentage of rows by {column.name}", values, "percentage of rows", ("training", "today")
    )


def _bins(columns: Sequence[DriftColumn]) -> page.Table:
    rows = [
        (each.name, values_of(one), f"{one.reference:,}", f"{before:.1%}", f"{one.rows:,}", f"{after:.1%}")
        for each in columns
        for one, before, after in _shares(each)
    ]
    headings = ["column", "values", "training rows", "share", "rows today", "share today"]
    return page.Table("Rows by bin of each column", headings, rows, range(2, 6), folded=False)


def _shares(column: DriftColumn) -> Iterator[tuple[DriftBin, float, float]]:
    """Yield each bin with its fraction of the training rows and of the current rows."""
    before, after = (
        max(sum(each), 1) for each in zip(*((b.reference, b.rows) for b in column.bins), strict=True)
    )
    for one in column.bins:
        yield one, one.reference / before, one.rows / after


def most_moved(column: DriftColumn) -> str:
    """Return a clause about the bin whose share changed most, or "" if rounding hides the change."""
    if column.psi is None:
        return ""
    one, before, after = max(_shares(column), key=lambda share: abs(share[2] - share[1]))
    shown = f"{before:.1%}", f"{after:.1%}"
    return "" if shown[0] == shown[1] else f"{values_of(one)}: {' to '.join(shown)}"


def values_of(one: DriftBin) -> str:
    """Return the values of a bin as text, e.g. "1 to below 3"."""
    if one.levels:
        return " or ".join(map(delimited, one.levels[:3])) + (" ..." if len(one.levels) > 3 else "")
    if "low" not in one.model_fields_set:
        return "missing"
    low, high = ("" if end is None else amount(end) for end in (one.low, one.high))
    text = f"{low} to below {high}" if low and high else f"at least {low}" if low else f"below {high}"
    return (text if low or high else "any value") + (" or missing" if one.missing else "")


# ---- Tuning: the best settings, and the table of trials -------------------------------------------------


MAX_TRIALS = 10
"""Maximum number of trials in the table."""


def tuning(result: Tuning) -> page.Document:
    metric, trials = result.metric, result.trials
    best = trials[result.best]
    rows = [
        (str(rank), number(each.value(metric)), str(each.best_round), str(each.rounds), _settings(each))
        for rank, each in ((rank, trials[rank]) for rank in result.ranked[:MAX_TRIALS])
    ]
    hidden = len(trials) - MAX_TRIALS
    more = f" {counted(hidden, 'more trial')} ranked lower." if hidden > 0 else ""
    gain = f"Its {metric} is {number(best.value(metric))} instead of {number(trials[0].value(metric))}."
    if not result.best:
        gain = "No trial beats the settings in the terms."
    headings = ["trial", metric, "best round", "of", "settings"]
    table = page.Table("Trials, best first", headings, rows, range(4), folded=False)
    at_best = page.note(
        f"The {metric} is measured on the validation rows after the best round of each trial.{more}"
    )
    blocks = (
        page.Verdict(f"Trial {result.best} is the best: {_settings(best)}.", more=[gain]),
        *page.warnings([*session_warnings(result.session)]),
        page.Section("trials", "Trials", [table, at_best]),
    )
    lead = f"{counted(len(trials), 'trial')} in parallel, compared by {metric} on validation rows"
    return result_document(result, "Trials of settings", lead, blocks)


def _settings(trial: Trial) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in trial.settings.items())


# ---- The types and views of results, by task ------------------------------------------------------------


RESULTS: dict[str, type[Result]] = {kind.task: kind for kind in (Description, Evaluation, Drift, Tuning)}
VIEWS: dict[str, Callable[[Any], page.Document]] = {
    Description.task: description,
    Evaluation.task: evaluation,
    Drift.task: drift,
    Tuning.task: tuning,
}


def document(result: Result) -> page.Document:
    """Return a result of any task as a document."""
    return VIEWS[result.task](result)


# ---- The check of a table: a finding that many columns share takes a few lines, not one per column -----


MAX_ALIKE = 5
"""Maximum number of columns with the same kind of finding that are described one by one."""


def by_kind(oddities: Iterable[Oddity]) -> Iterator[tuple[Oddity, str]]:
    """Yield up to MAX_ALIKE findings of each kind, the most severe kinds first, each with a text. For the
    last finding shown of a kind, the text is a sentence about the remaining columns with such a finding;
    otherwise it is ""."""
    alike: dict[str, list[Oddity]] = {}
    for oddity in by_severity(oddities):
        alike.setdefault(oddity.kind, []).append(oddity)
    for each in alike.values():
        shown, rest = each[:MAX_ALIKE], each[MAX_ALIKE:]
        yield from ((oddity, "") for oddity in shown[:-1])
        names = listed(oddity.column for oddity in rest[:MAX_ALIKE]) + ", …" * (len(rest) > MAX_ALIKE)
        yield shown[-1], f"the same applies to {counted(len(rest), 'more column')}: {names}" if rest else ""


def notices(oddities: Iterable[Oddity]) -> Iterator[str]:
    """Yield a line for each finding worth reporting, and one for further columns with the same kind."""
    for oddity, others in by_kind(each for each in oddities if each.is_worth_a_line):
        advice = f"; {oddity.advice}" if oddity.advice else ""
        yield f"{delimited(oddity.column)}: {oddity.sentence}{advice}"
        if others:
            yield others


def check(table: Checked) -> page.Document:
    part = (
        f", of which the first {table.rows_checked:,} were checked"
        if 0 < table.rows_checked < table.rows
        else ""
    )
    rows = f"{table.table}: {table.rows:,} rows{part}, {counted(table.columns, 'column')}"
    numbers = [counted(table.number(severity), severity) for severity in SEVERITIES if table.number(severity)]
    state: page.State = "bad" if table.number(ERROR) else "unclear" if table.number(WARNING) else "good"
    about = {"table": rows, "label": table.label, "workers": table.workers}
    blocks: list[page.Block] = [page.Verdict(capital(", ".join(numbers)) or "No problems were found", state)]
    blocks.append(page.Entries([(key, text) for key, text in about.items() if text]))
    if table.oddities:
        blocks.append(page.Entries([*_entries(table.oddities)]))
    return page.Document("Check of a table", rows, blocks, "the table")


def way(server: str, steps: Sequence[Mapping[str, Any]]) -> page.Document:
    """The steps of the way to a server, e.g. "the aggregator at HOST:PORT"."""
    worst = {step["severity"] for step in steps}
    said = f"The way to {server} is {'closed' if ERROR in worst else 'open'}"
    state: page.State = "bad" if ERROR in worst else "unclear" if WARNING in worst else "good"
    names = {"tcp": "TCP", "tls": "TLS", "http2": "HTTP/2", "idle": "idle time"}
    entries = []
    for step in steps:
        name = step["role"] if step["step"] == "server" else names.get(step["step"], step["step"])
        entries.append((name, f"{step['severity']}: {step['sentence']}"))
        entries += [("", f"-> {step['advice']}")] * bool(step["advice"])
    return page.Document("Check of the network", said, [page.Verdict(said, state), page.Entries(entries)])


def _entries(oddities: Iterable[Oddity]) -> Iterator[tuple[str, str]]:
    for oddity, others in by_kind(oddities):
        yield oddity.severity, f"{delimited(oddity.column)}: {oddity.sentence}"
        if oddity.advice:
            yield "", f"-> {oddity.advice}"
        if others:
            yield "", capital(others)
