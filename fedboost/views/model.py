"""The report of a model: how good it is, what it goes by, then who agreed to it and who saw what.

Promises: what comes from a file is text and never markup; what a model file does not have is named, and not
made up.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fedboost.gbdt.booster import IMPORTANCES
from fedboost.gbdt.metrics import OF_PARTY, TRAIN, VALIDATION, grows, is_metric
from fedboost.results.base import Row
from fedboost.results.model import Dependence, DrawnTree, GivenRows, ModelReport
from fedboost.results.training import ACCOUNTED
from fedboost.views.approval import not_hidden
from fedboost.views.charts import MAX_BARS, MAX_SERIES
from fedboost.views.document import (
    Bars,
    Beside,
    Block,
    Code,
    Document,
    Entries,
    Figure,
    Figures,
    Fold,
    Items,
    Line,
    Lines,
    Paragraph,
    Points,
    Pre,
    Section,
    Series,
    Table,
    note,
    unless_empty,
    warnings,
)
from fedboost.views.evaluation import key_figures, labels_of, number, quality, rows_warnings
from fedboost.views.markup import Markup, element
from fedboost.views.privacy import strength
from fedboost.views.session import NO_NOISE, agreed, part_of, privacy, traffic
from fedboost.views.training import OF_ROWS, absences
from fedboost.views.words import capital, counted, listed

_MORE = "Metrics on other rows, calibration and partial dependence need a table with labels (--data TABLE)."
MAX_CHARTS = 12
"""Metrics that are drawn."""
MAX_NAMED = 5
"""Parties that the line below the title names."""
MAX_VALUES = 11
"""Values of a number in a table of partial dependence."""
LATE = 0.8
"""Share of the rounds before which the best one is said to be early."""
MODERATE_EPSILON = 3.0


def report(result: ModelReport) -> Document:
    """Return the report as people read it."""
    terms, rows = result.model.terms, result.rows
    blocks = (
        _key_figures(result),
        *warnings([*_warnings(result)]),
        Section("curves", "Learning curves and importance", [*_first_charts(result)]),
        *(
            [note(_MORE)]
            if rows is None
            else [_of_rows(rows, labels_of(terms)), _dependence(rows, result.classes)]
        ),
        *_by_site(result),
        _trees(result),
        agreed(terms, [*_parties(result)]),
        privacy(terms),
        Section("session", "Attendance, traffic and time", [*_session(result)], folded=True),
        _fingerprints(result),
    )
    source = "the model file" if result.session is None else "the model and its session"
    label = terms.columns.label or terms.objective.name
    return Document(f"Model of {label}", _lead(result), blocks, source)


def _lead(result: ModelReport) -> str:
    terms = result.model.terms
    parties = listed(terms.parties) if len(terms.parties) <= MAX_NAMED else f"{len(terms.parties)} parties"
    when = f", requested on {result.made}" if result.made else ""
    trees = f"{counted(result.model.trees, 'tree')} in {counted(result.model.kept, 'round')}"
    return f"{terms.objective.name}, {trees}, by {parties}{when}"


def _key_figures(result: ModelReport) -> Figures:
    model, terms = result.model, result.model.terms
    signed = len(set(model.signed_by) & set(terms.parties))
    whole = [curve for curve in curves_of(result.rounds[: model.kept]) if not curve.party]
    held_out = [curve for curve in whole if curve.rows == VALIDATION] or whole
    figures = [
        Figure(curve.metric, number(curve.values[model.kept]), OF_ROWS[curve.rows == VALIDATION])
        for curve in held_out[:3]
        if model.kept in curve.values
    ]
    if result.training_rows is not None:
        figures.append(Figure("rows", f"{result.training_rows:,}", "of all parties"))
    of_parties = "all signed" if signed == len(terms.parties) else f"{signed} signed"
    known = result.verification
    of_parties += ", not checked" if known is None else ", checked" if known.holds else ", WRONG"
    figures.append(Figure("parties", str(len(terms.parties)), of_parties))
    hides = "hides each party's sums" if terms.protection.hides else "hides nothing from the aggregator"
    figures.append(Figure("protection", terms.hiding.protection, hides))
    noise = terms.noise
    epsilon = "none" if noise is None else f"{noise.epsilon:g}"
    figures.append(Figure("epsilon", epsilon, "no noise" if noise is None else f"at delta {noise.delta:g}"))
    return Figures(figures)


# ---- Warnings: what a reader of a model should know before its figures ----------------------------------


def _warnings(result: ModelReport) -> Iterator[str]:
    model, known, terms = result.model, result.verification, result.model.terms
    if not model.signed_by:
        yield "Nobody signed this model: anybody may have made it."
    elif known is None:
        yield "Signatures were not checked for this page: fedboost report with --keys checks them."
    elif not known.holds:
        yield f"The signatures do NOT hold: {known.conclusion}."
    absent = len(set(terms.parties) - set(model.signed_by))
    if model.signed_by and absent:
        yield f"{counted(absent, 'party', 'parties')} of the terms did not sign."
    if model.rosters:
        yield "Parties were lost on the way: some rounds are of the rows of the others alone."
    if terms.metrics and not terms.validates and model.last_row:
        yield "No rows were held out: the learning curves are of the rows that trees grew on."
    if 0 < model.kept < model.trained:
        yield f"The training stopped early: round {model.kept} was the best of {model.trained}."
    elif model.trained < terms.trees.rounds:
        yield f"The training ended after {model.trained} of {terms.trees.rounds} rounds."
    yield from _best_rounds(result)
    if not result.importance:
        yield "No tree splits: every row gets the same prediction."
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."
    if terms.noise is None:
        yield f"{capital(NO_NOISE)}."
    elif terms.noise.epsilon > MODERATE_EPSILON:
        epsilon, delta = f"{terms.noise.epsilon:g}", f"{terms.noise.delta:g}"
        yield f"Epsilon {epsilon} at delta {delta}: {strength(terms.noise.epsilon)}."
    if result.rows is not None:
        yield (
            f"This page has figures of the rows of {result.rows.source}. Its readers learn them: they are "
            "not hidden, and no site agreed to them."
        )


def _best_rounds(result: ModelReport) -> Iterator[str]:
    """Yield the metrics of the rows held out that were best long before the last round."""
    kept = result.model.kept
    for curve in curves_of(result.rounds[:kept]):
        if curve.rows == VALIDATION and not curve.party and is_metric(curve.metric):
            best = best_round(curve, grows(curve.metric))
            if best is not None and best < LATE * kept:
                yield (
                    f"{curve.metric} on the rows held out was best in round {best} of {kept}: the rounds "
                    "after it fit the rows that trees grow on, and others no better."
                )


# ---- Curves and importance ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Values of one metric, by the number of the round from 1. party: '' for all rows; rows: the set."""

    party: str
    rows: str
    metric: str
    values: Mapping[int, float]


def curves_of(rounds: Sequence[Row]) -> list[Curve]:
    """Return the curves in a history."""
    names = dict.fromkeys(name for row in rounds for name in row if name not in ACCOUNTED)
    out = []
    for name in names:
        party, _, own = name.rpartition(OF_PARTY)
        held_out = own.startswith(f"{VALIDATION}-")
        metric = own.removeprefix(f"{VALIDATION}-")
        values = {number: row[name] for number, row in enumerate(rounds, 1) if name in row}
        out.append(Curve(party, VALIDATION if held_out else TRAIN, metric, values))
    return out


def best_round(curve: Curve, grows: bool) -> int | None:
    """Return the round in which a metric was best, the first of equal ones; None where it has no number."""
    known = {number: value for number, value in curve.values.items() if math.isfinite(value)}
    return (max if grows else min)(known, key=known.__getitem__) if known else None


def metrics_by_round(rounds: Sequence[Row], mark: tuple[float, str] | None = None) -> list[Block]:
    """Return a chart of each metric over the rows of all parties, of the first ones. mark: a round."""
    curves = [curve for curve in curves_of(rounds) if not curve.party]
    charts = list[Block]()
    for kind in [*dict.fromkeys(curve.metric for curve in curves)][:MAX_CHARTS]:
        series = [Series(c.rows, [*c.values.items()]) for c in curves if c.metric == kind]
        charts.append(Lines(f"{kind} by round", series, "round", kind, mark=mark, whole=True))
    return charts


def _first_charts(result: ModelReport) -> Iterator[Block]:
    model, noise = result.model, result.model.terms.noise
    mark = (model.kept, f"kept up to round {model.kept}") if model.kept < model.trained else None
    charts = metrics_by_round(result.rounds, mark)
    curves = [curve for curve in curves_of(result.rounds) if not curve.party]
    kinds = {curve.metric for curve in curves}
    by_gain = [(name, values[0]) for name, values in result.importance.items()]
    few = f", the first {MAX_BARS} of {len(by_gain)}" if len(by_gain) > MAX_BARS else ""
    if by_gain:
        charts.append(Bars(f"Mean gain of the splits by a feature{few}", by_gain, "mean gain"))
    yield Beside(charts)
    if curves:
        yield note(
            "Curves are over the rows of all parties, after each round, to four significant digits. No party "
            "signs these numbers."
        )
        if len(kinds) > MAX_CHARTS:
            yield note(f"{len(kinds) - MAX_CHARTS} more metrics stand only in the table.")
        rows = [
            (str(n), *(_value(c.values.get(n)) for c in curves)) for n in range(1, len(result.rounds) + 1)
        ]
        headings = ["round", *(f"{c.rows} {c.metric}" for c in curves)]
        yield Table("Metrics of each round", headings, rows, folded=True)
    else:
        yield note("The model file has no metrics of rounds: its terms have none, or no set of rows had ten.")
    if not by_gain:
        yield note("No feature splits.")
        return
    drawn = noise is not None and noise.method != "hist"
    yield note(
        "Trained with noise: splits are drawn, not chosen by gain, so gain does not show what counts."
        if drawn
        else "Gain and cover are means over the splits by a feature, weight is their number. They show "
        "what the trees are made of, not what a feature does for a prediction."
    )
    rows = [(name, *(f"{value:.6g}" for value in values)) for name, values in result.importance.items()]
    yield Table("Importance of each feature that splits", ["feature", *IMPORTANCES], rows, folded=True)


def _by_site(result: ModelReport) -> Iterator[Section]:
    """Yield the section on metrics of single sites; nothing where there are none."""
    curves = [curve for curve in curves_of(result.rounds) if curve.party]
    if not curves:
        return
    kinds = [*dict.fromkeys((curve.rows, curve.metric) for curve in curves)]
    charts = list[Block]()
    for rows, metric in kinds[:MAX_CHARTS]:
        own = [curve for curve in curves if (curve.rows, curve.metric) == (rows, metric)]
        title = f"{metric} by round, {rows} rows of each site"
        if len(own) > MAX_SERIES:
            title = f"{metric} by round, {rows} rows of {len(own)} sites: lowest, median, highest"
        charts.append(Lines(title, _of_sites(own), "round", metric, whole=True))
    last: dict[str, dict[tuple[str, str], float]] = {curve.party: {} for curve in curves}
    for curve in curves:
        if result.model.kept in curve.values:
            last[curve.party][curve.rows, curve.metric] = curve.values[result.model.kept]
    headings = ["site", *(f"{rows} {metric}" for rows, metric in kinds)]
    lines = [(party, *(_value(own.get(kind)) for kind in kinds)) for party, own in last.items()]
    blocks: list[Block] = [
        Paragraph("Over the rows of one site alone, which its policy allowed. The aggregator saw them, too."),
        Table("Metrics of each site after the last round of the model", headings, lines),
        Beside(charts),
    ]
    yield Section("sites", "By site", blocks)


def _of_sites(curves: Sequence[Curve]) -> list[Series]:
    """A line for each site; where they are many, of all of them the lowest, the median and the highest."""
    if len(curves) <= MAX_SERIES:
        return [Series(curve.party, [*curve.values.items()]) for curve in curves]
    rounds = sorted({number for curve in curves for number in curve.values})
    values = {n: [c.values[n] for c in curves if n in c.values] for n in rounds}
    return [
        Series("highest", [(n, max(values[n])) for n in rounds]),
        Series("median", [(n, median(values[n])) for n in rounds]),
        Series("lowest", [(n, min(values[n])) for n in rounds]),
    ]


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# ---- Rows that were given for the report ----------------------------------------------------------------


def _of_rows(rows: GivenRows, labels: Sequence[str]) -> Section:
    result = rows.evaluation
    where = f"On {result.rows:,} rows of {rows.source}, predicted for this page ({result.about})."
    measured = quality(result, labels)
    unsure = [Items(found, warnings=True)] if (found := [*rows_warnings(result)]) else []
    blocks = [Paragraph(where), *unsure, key_figures(result), *(measured.blocks if measured else [])]
    return Section("quality", "Quality on given rows", blocks)


def _dependence(rows: GivenRows, classes: Sequence[str]) -> Section:
    if not rows.dependence:
        return Section("dependence", "Partial dependence", [note("No feature splits.")])
    about = (
        f"The mean prediction over the rows of {rows.source} with each value in turn put into one column, "
        "for the features of the highest gains. It shows what the model does, not what is so."
    )
    charts = unless_empty(*(_dependence_chart(each, classes) for each in rows.dependence))
    tables = [_dependence_table(each, classes) for each in rows.dependence]
    return Section("dependence", "Partial dependence", [Beside(charts), note(about), *tables])


def _dependence_chart(each: Dependence, classes: Sequence[str]) -> Block | None:
    values, outputs, title = each.means.tolist(), each.means.shape[1], f"Prediction by {each.feature}"
    if not each.is_categorical:
        series = [
            Series(
                f"class {classes[output]}" if outputs > 1 else "prediction",
                [(float(value), row[output]) for value, row in zip(each.grid, values, strict=True)],
            )
            for output in range(outputs)
        ]
        title += f", the first {MAX_SERIES} of {outputs} classes" if outputs > MAX_SERIES else ""
        return Lines(title, series, each.feature, "mean prediction")
    if outputs > 1:
        return None
    pairs = [(str(value), row[0]) for value, row in zip(each.grid, values, strict=True)]
    title += f", the first {MAX_BARS} of {len(pairs)} categories" if len(pairs) > MAX_BARS else ""
    return Points(title, pairs, "mean prediction")


def _dependence_table(each: Dependence, classes: Sequence[str]) -> Table:
    outputs = each.means.shape[1]
    values = [*zip(each.grid, each.means.tolist(), strict=True)]
    if not each.is_categorical and len(values) > MAX_VALUES:
        last = len(values) - 1
        values = [values[number * last // (MAX_VALUES - 1)] for number in range(MAX_VALUES)]
    headings = [each.feature, *(classes if outputs > 1 else ["mean prediction"])]
    lines = [(_at(value), *map(number, row)) for value, row in values]
    return Table(f"Mean prediction by {each.feature}", headings, lines, folded=True)


def _at(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


# ---- Trees, signatures, the session ---------------------------------------------------------------------


def _trees(result: ModelReport) -> Section:
    if not result.trees:
        return Section("trees", "The first trees", [note("The model has no trees.")], folded=True)
    about = (
        "A row goes from left to right, by “yes” or “no”, and ends in a leaf, whose value is added to its "
        f"margin. fedboost explain --tree draws the others: there are {result.model.trees}."
    )
    first, *others = result.trees
    folds = [Fold(tree.title, [*_tree(tree)]) for tree in others]
    return Section("trees", "The first trees", [Paragraph(about), *_tree(first), *folds], folded=True)


def _tree(tree: DrawnTree) -> Iterator[Block]:
    if tree.picture:
        scrolled = {"class_": "scroll", "tabindex": "0", "role": "group", "aria_label": tree.title}
        picture = element("div", Markup(tree.picture), **scrolled)
        yield element("figure", element("figcaption", tree.title), picture, class_="tree")
    else:
        yield note(f"{tree.title}: {tree.leaves} leaves are too many for a picture in this page.")
    yield Fold("The same as text", [Pre(tree.title, tree.text)])


def _parties(result: ModelReport) -> Iterator[Block]:
    model, known = result.model, result.verification
    if known is not None:
        outcome = "The signatures hold" if known.holds else "The signatures do NOT hold"
        asked = f" Analyst {known.analyst} requested the session on {known.asked}." if known.analyst else ""
        yield Paragraph(f"{outcome}: {known.conclusion}.{asked}")
    elif model.signed_by:
        yield Paragraph("Signatures were not checked for this page: fedboost report with --keys checks them.")
    parties = dict.fromkeys((*model.terms.parties, *model.signed_by))
    rows = [(party, part_of(model.terms, party), _signature(result, party)) for party in parties]
    yield Table("Parties", ["party", "takes part with", "signature"], rows, ())


def _signature(result: ModelReport, party: str) -> str:
    if party not in result.model.signed_by:
        return "none"
    if result.verification is None:
        return "there, not checked"
    fault = result.verification.faults.get(party, "")
    return f"WRONG: {fault}" if fault else "holds"


def _session(result: ModelReport) -> Iterator[Block]:
    absent = [f"{capital(line)}." for line in absences(result.model)]
    yield Items(absent) if absent else Paragraph("The sums of every round were over all parties.")
    if result.session is None:
        yield note(
            "Traffic and the time of a round are not in a model file: fedboost train prints them at its end, "
            "and writes a page with them (--report)."
        )
    else:
        yield from traffic(result.session)


def _fingerprints(result: ModelReport) -> Section:
    model, terms = result.model, result.model.terms
    features = f"{len(terms.columns.numeric)} numeric, {len(terms.columns.categorical)} categorical"
    entries: list[tuple[str, Line]] = [
        ("features", f"{features}; {len(result.importance)} of them split"),
        ("fingerprint of the model", Code(model.fingerprint)),
        ("digest of the terms", Code(terms.digest)),
    ]
    return Section("model", "Fingerprints", [Entries(entries)], folded=True)
