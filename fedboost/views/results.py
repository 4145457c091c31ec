"""The results of sessions that train no model, as people read them: descriptions, drift, trials of settings.

An evaluation has a module of its own, which reports of models share.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedboost.results.base import Result
from fedboost.results.description import Column, Description, Interval
from fedboost.results.drift import Drift, DriftBin, DriftColumn
from fedboost.results.evaluation import Evaluation
from fedboost.results.tuning import Trial, Tuning
from fedboost.views.charts import MAX_BARS
from fedboost.views.document import (
    Bars,
    Beside,
    Block,
    Document,
    Figure,
    Figures,
    Line,
    Pairs,
    Section,
    State,
    Table,
    Verdict,
    note,
    warnings,
)
from fedboost.views.evaluation import count, evaluation, number
from fedboost.views.session import result_document, session_warnings
from fedboost.views.words import amount, capital, counted, delimited, listed

# ---- A description of the rows: what to change, then the columns, levels and label ----------------------


MUCH_MISSING = 0.5
"""Share of missing values from which a column is named."""
SHOWN_LEVELS = 6
"""Levels that a hint names."""
MAX_DRAWN_LEVELS = 6
"""Columns whose levels are drawn."""
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")


def description(result: Description) -> Document:
    """Return the description as people read it."""
    rows, found = result.rows, [*hints(result)]
    numbers = [column for column in result.columns if column.is_numeric]
    groups = [column for column in result.columns if not column.is_numeric]
    missing = [column for column in result.columns if column.missing]
    figures = [
        Figure("rows", f"{rows:,}", "of all parties"),
        Figure("columns", f"{len(result.columns)}", f"{len(numbers)} numeric, {len(groups)} categorical"),
        Figure("columns with missing values", f"{len(missing)}"),
    ]
    blocks = (
        _verdict(result, len(found)),
        Figures(figures),
        *warnings([*session_warnings(result.session)]),
        *([_hints(found)] if found else []),
        Section("columns", "Columns", [*_columns(numbers, groups, missing, result)]),
        Section("label", "The label", [*_label(result.label, rows)]),
        note(hidden(result)),
    )
    lead = f"{rows:,} rows of all parties, {counted(len(result.columns), 'column')}"
    return result_document(result, "Description of the rows", lead, blocks)


def _verdict(result: Description, hints: int) -> Verdict:
    if not hints:
        return Verdict("Nothing in these rows needs a change of the terms or the tables.", "good")
    them = "1 thing to look at" if hints == 1 else f"{hints} things to look at"
    return Verdict(f"{them} before a training on these rows.", "unclear")


def hidden(result: Description) -> str:
    """Return what of the rows is left out, in a sentence or two."""
    if result.noise:
        return (
            f"“…” stands for what is lost in the noise, whose standard deviation is {result.noise:.3g} rows."
        )
    unit = result.unit
    rounded = f"Counts are rounded to {unit} rows. " if unit > 1 else ""
    return f"{rounded}“…” stands for quantiles beyond which lie fewer than {result.min_count} rows."


# ---- What to change in the terms or the tables ----------------------------------------------------------


@dataclass(frozen=True)
class Hint:
    """Something to look at. what: `column` or `label`; name: of it; remedy: what to do, or to ask."""

    what: str
    name: str
    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {delimited(self.name)} {self.finding}: {self.remedy}"


def _hints(found: Sequence[Hint]) -> Section:
    rows = [
        (
            each.name if each.what == "column" else f"{each.name} (label)",
            capital(each.finding),
            capital(each.remedy),
        )
        for each in found
    ]
    return Section(
        "advice",
        "What to change",
        [Table("Hints", ["column", "finding", "what to do"], rows, (), folded=False)],
    )


def hints(result: Description) -> Iterator[Hint]:
    """Yield what to change in the terms or the tables."""
    rows, least = result.rows, result.unit
    for column in result.columns:
        missing = column.missing
        is_empty = missing is not None and rows - missing < least
        if is_empty:
            held = "no value in any row" if least == 1 else f"a value in fewer than {least} rows"
            yield Hint("column", column.name, f"has {held}", "take it out of the terms")
        elif missing is not None and missing > MUCH_MISSING * rows:
            part = f"is missing in {missing / max(rows, 1):.0%} of the rows"
            yield Hint("column", column.name, part, "is it named alike at all sites?")
        if not column.is_numeric:
            yield from _hints_on_levels(column, result)
        elif column.constant and not is_empty:
            one = "has one value in all rows that have any"
            yield Hint("column", column.name, one, "take it out of the terms")
        elif column.gap is not None:
            low, high = (float(f"{end:.2g}") for end in column.gap)
            far = f"has values up to about {low:g} and from about {high:g} on, and few between"
            yield Hint("column", column.name, far, "do all sites use the same unit?")
    label = result.label
    if empty := [level for level, rows_of in label.levels.items() if rows_of == 0]:
        yield Hint("label", label.name, _hardly(least, ", ".join(map(delimited, empty))), "is it spelled so?")
    if label.constant:
        yield Hint("label", label.name, "is the same in every row", "there is nothing to learn")


def _hardly(least: int, levels: str) -> str:
    return f"never has {levels}" if least == 1 else f"has {levels} in fewer than {(least + 1) // 2} rows"


def _hints_on_levels(column: Column, result: Description) -> Iterator[Hint]:
    undeclared, least = column.undeclared, result.unit
    if result.noise is not None and undeclared is None:
        return
    if undeclared != 0:
        about = "" if least == 1 else "about "
        number = "some rows" if undeclared is None else f"{about}{undeclared:,} rows"
        yield Hint(
            "column",
            column.name,
            f"has other levels than those declared in {number}, which count as missing",
            "declare them under [columns.categorical], or correct the tables (`fedboost check` at each site "
            "names them)",
        )
    if empty := [level for level, rows in column.levels.items() if rows == 0]:
        shown, more = empty[:SHOWN_LEVELS], len(empty) - SHOWN_LEVELS
        rest = f" and {counted(more, 'more level')}" if more > 0 else ""
        levels = ", ".join(map(delimited, shown)) + rest
        yield Hint("column", column.name, _hardly(least, levels), "take them away, or correct them")
    present = [rows for rows in column.levels.values() if rows != 0]
    if len(present) == 1 and undeclared == 0:
        all_rows = "all rows" if least == 1 else "nearly all rows"
        one = f"has one level in {all_rows} that have any"
        yield Hint("column", column.name, one, "take it out of the terms")


# ---- Columns and the label ------------------------------------------------------------------------------


def _columns(
    numbers: Sequence[Column], groups: Sequence[Column], missing: Sequence[Column], result: Description
) -> Iterator[Block]:
    rows = result.rows
    if numbers:
        yield _quantiles("Quantiles of each numeric feature", numbers, rows)
        yield note("Quantiles are rounded as their intervals allow; missing is a share of all rows.")
    else:
        yield note("The terms have no numeric features.")
    charts: list[Block] = []
    if known := sorted(
        ((c.name, 100 * (c.missing or 0) / max(rows, 1)) for c in missing), key=lambda p: -p[1]
    ):
        title = "Percent of the rows without a value" + _first(len(known), "columns")
        charts.append(Bars(title, known, "percent of the rows"))
    charts += [_levels(column) for column in groups[:MAX_DRAWN_LEVELS]]
    yield Beside(charts)
    if len(groups) > MAX_DRAWN_LEVELS:
        yield note(f"Drawn are the first {MAX_DRAWN_LEVELS} of {len(groups)} columns; the table has all.")
    if groups:
        lines = [line for column in groups for line in _rows_of_levels(column, rows)]
        yield Table("Rows of each level", ["column", "level", "rows", "share"], lines, (2, 3))
    else:
        yield note("The terms have no categorical features.")


def _first(number: int, what: str) -> str:
    return f", the first {MAX_BARS} of {number} {what}" if number > MAX_BARS else ""


def _quantiles(caption: str, columns: Sequence[Column], rows: int) -> Table:
    lines = [
        (column.name, share_of(column.missing, rows), *(quantile(column.quantiles[q]) for q in _QUANTILES))
        for column in columns
    ]
    return Table(caption, ["column", "missing", *(f"{float(q):.0%}" for q in _QUANTILES)], lines)


def _levels(column: Column) -> Bars:
    known = [(level, float(rows)) for level, rows in column.levels.items() if rows is not None]
    ranked = sorted(known, key=lambda pair: -pair[1])
    return Bars(f"Rows by {column.name}{_first(len(ranked), 'levels')}", ranked, "rows")


def _rows_of_levels(column: Column, rows: int) -> Iterator[Sequence[Line]]:
    others = {"(other levels)": column.undeclared, "(missing)": column.missing}
    for level, known in (*column.levels.items(), *((n, c) for n, c in others.items() if c != 0)):
        yield column.name, level, count(known), share_of(known, rows)


def _label(label: Column, rows: int) -> Iterator[Block]:
    if label.levels:
        lines = [(name, count(known), share_of(known, rows)) for name, known in label.levels.items()]
        yield Table(f"Rows by {label.name}", ["label", "rows", "share"], lines)
    elif label.is_numeric:
        yield _quantiles(f"Quantiles of {label.name}", [label], rows)
    else:
        yield note(f"The values of {label.name} are left out.")


def quantile(interval: Interval | None) -> str:
    """Return a quantile, an interval, to the digits that its interval has."""
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
    """Return a count as a share of rows."""
    return "…" if known is None else "0" if not known else f"{max(known / max(rows, 1), 0.001):.1%}"


# ---- Drift: whether anything moved since the training, what did, and where its rows went ----------------


MAX_DRAWN_BINS = 8
"""Columns whose bins are drawn."""
MAX_NAMED = 5
"""Columns that the verdict names."""
GRADES = (
    "Limit by chance: draws of so many of the same rows stay below it 999 times in 1,000. A column is stable "
    "below that, slight below 0.1, moved below 0.25, and shifted from there on."
)
"""The verdicts in words."""


def drift(result: Drift) -> Document:
    """Return the result as people read it."""
    *columns, score = result.columns
    ranked = [*sorted(columns, key=lambda each: -(each.psi or 0)), score]
    far = [each for each in ranked if each.verdict != "stable" and each.psi is not None]
    others = [each for each in ranked if each not in far]
    stable = len([each for each in others if each is not score])
    blocks = (
        verdict(result),
        Figures(
            [
                Figure("rows", f"{result.rows:,}", "of all parties, now"),
                Figure("rows of the training", f"{result.reference_rows:,}"),
                Figure(
                    "columns that moved", f"{len([c for c in columns if c.has_moved])}", f"of {len(columns)}"
                ),
                Figure("score of the model", "…" if score.psi is None else f"{score.psi:.3f}", score.verdict),
            ]
        ),
        *warnings([*session_warnings(result.session)]),
        *([Section("columns", "What moved", [*_moved(far)])] if far else []),
        note(
            f"PSI is the population stability index. {GRADES} Bins of fewer than "
            f"{result.min_count} rows are merged."
        ),
        Section("others", f"Stable columns ({stable})", [_indices(others)], folded=True),
        Section("bins", "Rows by bin of each column", [_bins(ranked)], folded=True),
    )
    lead = f"{result.rows:,} rows of all parties, against {result.reference_rows:,} of the training"
    return result_document(result, "Drift since the training", lead, blocks)


def verdict(result: Drift) -> Verdict:
    """Return whether anything moved, in a sentence."""
    *columns, score = result.columns
    moved = [each.name for each in columns if each.has_moved]
    slight = [each.name for each in columns if each.verdict == "slight"]
    if moved:
        more = f" and {len(moved) - MAX_NAMED} more" if len(moved) > MAX_NAMED else ""
        text = f"{counted(len(moved), 'column')} moved since the training: {listed(moved[:MAX_NAMED])}{more}."
    elif slight:
        text = f"{counted(len(slight), 'column')} moved slightly, and none far: {listed(slight[:MAX_NAMED])}."
    elif all(each.psi is None for each in columns):
        text = "Whether a column moved cannot be decided: too few rows lie outside one bin."
    else:
        text = "No column moved by more than chance."
    of_score = {
        "moved": "The score of the model moved.",
        "shifted": "The score of the model moved far.",
        "slight": "The score of the model moved slightly.",
        "stable": "The score of the model did not move.",
    }
    is_slight = bool(slight) or score.verdict == "slight"
    state: State = "bad" if moved or score.has_moved else "unclear" if is_slight else "good"
    about = [of_score[score.verdict]] if score.verdict in of_score else []
    if state != "good":
        about.append(
            "That alone does not make the model worse: measure it on rows whose outcome is known (fedboost "
            "evaluate)."
        )
    return Verdict(text, state, about)


def _moved(columns: Sequence[DriftColumn]) -> Iterator[Block]:
    yield _indices(columns)
    yield Beside([_chart(each) for each in columns[:MAX_DRAWN_BINS]])
    if len(columns) > MAX_DRAWN_BINS:
        yield note(f"Drawn are the {MAX_DRAWN_BINS} that moved furthest.")


def _indices(columns: Sequence[DriftColumn]) -> Table:
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
    headings = ["column", "psi", "limit by chance", "verdict", "most moved"]
    return Table("How far each column moved", headings, rows, (1, 2))


def _chart(column: DriftColumn) -> Pairs:
    values = [(values_of(one), 100 * before, 100 * after) for one, before, after in _shares(column)]
    few = f", the first {MAX_BARS} of {len(values)} bins" if len(values) > MAX_BARS else ""
    title = f"Percent of the rows by {column.name}{few}"
    return Pairs(title, values, ("training", "today"), "percent of the rows")


def _bins(columns: Sequence[DriftColumn]) -> Table:
    rows = [
        (each.name, values_of(one), f"{one.reference:,}", f"{before:.1%}", f"{one.rows:,}", f"{after:.1%}")
        for each in columns
        for one, before, after in _shares(each)
    ]
    headings = ["column", "values", "rows of the training", "share", "rows today", "share today"]
    return Table("Rows by bin of each column", headings, rows, range(2, 6), folded=False)


def _shares(column: DriftColumn) -> Iterator[tuple[DriftBin, float, float]]:
    """Yield each bin with its share of the rows then and now."""
    before, after = (
        max(sum(each), 1) for each in zip(*((b.reference, b.rows) for b in column.bins), strict=True)
    )
    for one in column.bins:
        yield one, one.reference / before, one.rows / after


def most_moved(column: DriftColumn) -> str:
    """Return the bin whose share of rows changed most, if any changed."""
    if column.psi is None:
        return ""
    one, before, after = max(_shares(column), key=lambda share: abs(share[2] - share[1]))
    shown = f"{before:.1%}", f"{after:.1%}"
    return "" if shown[0] == shown[1] else f"{values_of(one)}: {' to '.join(shown)}"


def values_of(one: DriftBin) -> str:
    """Return the values that a bin has, in words."""
    if one.levels:
        return " or ".join(map(delimited, one.levels[:3])) + (" ..." if len(one.levels) > 3 else "")
    if "low" not in one.model_fields_set:
        return "missing"
    low, high = ("" if end is None else amount(end) for end in (one.low, one.high))
    text = f"{low} to below {high}" if low and high else f"from {low}" if low else f"below {high}"
    return (text if low or high else "any value") + (" or missing" if one.missing else "")


# ---- Trials of settings side by side: the best settings, and the table of trials ------------------------


MAX_TRIALS = 10
"""Trials in the table."""


def tuning(result: Tuning) -> Document:
    """Return the trials as people read them."""
    metric, trials = result.metric, result.trials
    best = trials[result.best]
    rows = [
        (str(rank), number(each.value(metric)), str(each.best_round), str(each.rounds), _settings(each))
        for rank, each in ((rank, trials[rank]) for rank in result.ranked[:MAX_TRIALS])
    ]
    hidden = len(trials) - MAX_TRIALS
    more = f" {counted(hidden, 'more trial')} came less far." if hidden > 0 else ""
    figures = [
        Figure(f"{metric} of the best", number(best.value(metric)), "on validation rows"),
        Figure("with the settings of the terms", number(trials[0].value(metric)), "trial 0"),
        Figure("best round", str(best.best_round), f"of {best.rounds}"),
        Figure("trials", str(len(trials))),
    ]
    blocks = (
        Verdict(
            f"Trial {result.best} is the best: {_settings(best)}.",
            more=[] if result.best else ["No trial beats the settings of the terms."],
        ),
        Figures(figures),
        *warnings([*session_warnings(result.session)]),
        Section(
            "trials",
            "Trials",
            [
                Table(
                    "Trials, the best first",
                    ["trial", metric, "best round", "of", "settings"],
                    rows,
                    range(4),
                    folded=False,
                ),
                note(f"The {metric} is that of the validation rows, at the best round of each trial.{more}"),
            ],
        ),
    )
    lead = f"{counted(len(trials), 'trial')} side by side; the best by {metric} on validation rows"
    return result_document(result, "Trials of settings", lead, blocks)


def _settings(trial: Trial) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in trial.settings.items())


# ---- Every result, by what its session does -------------------------------------------------------------


RESULTS: dict[str, type[Result]] = {kind.task: kind for kind in (Description, Evaluation, Drift, Tuning)}
VIEWS: dict[str, Callable[[Any], Document]] = {
    Description.task: description,
    Evaluation.task: evaluation,
    Drift.task: drift,
    Tuning.task: tuning,
}


def document(result: Result) -> Document:
    """Return a result as people read it."""
    return VIEWS[result.task](result)
