"""The evaluation of a model: how good it is, for whom, and how sure the figures are."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedboost.boosting.programs.tasks import rows_of_group, within_of_rate
from fedboost.results.evaluation import Evaluation, ScoreBin, SetFigures, Split
from fedboost.terms.tasks import class_names, is_binary
from fedboost.terms.terms import Terms
from fedboost.views.charts import MAX_BARS, ends
from fedboost.views.document import (
    Beside,
    Block,
    Document,
    Figure,
    Figures,
    Lines,
    Names,
    Points,
    Section,
    Series,
    Table,
    note,
    unless_empty,
    warnings,
)
from fedboost.views.session import result_document, session_warnings

SHOWN_WITHIN = 0.0005
"""The smallest uncertainty of a figure that is shown beside it."""
MAX_BINS = 10
"""Bins of predicted probability, of about as many rows each."""
MAX_CLASSES = 12
"""Classes of which each pair is shown."""
RATES = {
    "precision": "precision",
    "true_positive_rate": "recall",
    "false_positive_rate": "false positive rate",
    "selection_rate": "share predicted 1",
    "positive_rate": "share of label 1",
}
_BY_GROUP = [key for key in RATES if key != "precision"]


def evaluation(result: Evaluation) -> Document:
    """Return the evaluation as people read it."""
    lead = f"{result.rows:,} rows of all parties: {result.about}"
    blocks = unless_empty(
        key_figures(result),
        *warnings([*rows_warnings(result), *session_warnings(result.session)]),
        quality(result, labels_of(result.terms)),
        *(
            Section(f"split-{number}", f"By {column}", [*_split(column, split, result)])
            for number, (column, split) in enumerate(result.splits.items())
        ),
    )
    return result_document(result, "Evaluation of a model", lead, blocks)


def labels_of(terms: Terms) -> Sequence[str]:
    """Return the names of both labels, of two classes."""
    return class_names(terms) if is_binary(terms) else ("0", "1")


def key_figures(result: Evaluation) -> Figures:
    """Return the metrics, and the area under the ROC curve."""
    shown = [
        Figure(name, number(value), _within(result.resolution[name]))
        for name, value in result.metrics.items()
    ]
    if result.auc is not None and "auc" not in result.metrics:
        shown.insert(
            0, Figure("area under the ROC curve", number(result.auc.value), _within(result.auc.resolution))
        )
    return Figures([*shown, Figure("rows", f"{result.rows:,}", result.about)])


def quality(result: Evaluation, labels: Sequence[str]) -> Section | None:
    """Return the section on predictions and labels, and on how coarse the figures are; None where nothing is
    to be said of either. labels: names of the two classes."""
    title, blocks = "Predictions and labels", list[Block]()
    if result.outcomes is not None:
        blocks += _of_two_classes(result, labels)
    elif result.classes:
        blocks.append(_matrix(result))
    else:
        title = "How sure the figures are"
    if result.unit > 1:
        blocks.append(note(" ".join(remarks(result))))
    return Section("quality", title, blocks) if blocks else None


def rows_warnings(result: Evaluation) -> Iterator[str]:
    """Yield a warning where trees were grown on some of the rows, or may have been."""
    trained, unknown = result.shares.trained, result.shares.unknown
    if result.of == "all" and trained:
        yield (
            f"Trees were grown on {trained:.0%} of these rows, and fit them better than others. Measure the "
            "rows that the training held out (--rows held-out) or that were added since (--rows new)."
        )
    if result.of == "all" and unknown:
        yield (
            f"It is not known whether trees were grown on {unknown:.0%} of these rows. If they were, the "
            "figures are better than those of other rows."
        )


def remarks(result: Evaluation) -> Iterator[str]:
    """Yield sentences: how coarse the figures are, why some are missing, and the option that shows more."""
    unit = result.unit
    yield f"Counts are within {unit} rows, and {unit} rows move the last digit of the other figures."
    for name, cap in result.caps.items():
        yield f"In {name} the loss of a row counts as {cap:g} at most: fewer than {unit} rows have more."
    few = [*_too_few(result)]
    yield from few
    if few or any(split.left_out for split in result.splits.values()):
        yield "A lower --min-count shows more, down to what the policies of the sites allow; so do more rows."


def _too_few(result: Evaluation) -> Iterator[str]:
    """Yield why figures are missing: of all rows, then of groups."""
    unit = result.unit
    rates = result.rates.model_dump() if result.rates else {}
    missing = [RATES[key] for key, value in rates.items() if value is None]
    outcomes = result.outcomes
    if outcomes is not None and (result.auc is None or None in outcomes.model_dump().values()):
        yield f"One of the labels has fewer than {unit} rows: there are no curves, and what needs it is “…”."
    elif missing:
        yield f"“…”: fewer than {unit} rows to divide by ({', '.join(missing)})."
    if any(
        None in known.figures.values() for split in result.splits.values() for known in split.sets.values()
    ):
        yield f"“…” of a group: fewer than {rows_of_group(unit)} rows, or rows of a label, decide it."


# ---- Two classes ----------------------------------------------------------------------------------------


def _of_two_classes(result: Evaluation, labels: Sequence[str]) -> Iterator[Block]:
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
        exact = result.unit == 1 or value is None
        within = "" if exact else f"{within_of_rate(key, counted, result.unit):.1g}"
        known.append((words, share(value), within))
    limit = f"{result.threshold:g}"
    yield Beside(
        [
            Table(f"Rows by label and prediction, 1 above {limit}", headings, counts, folded=False),
            Table(f"Rates at {limit}", ["rate", "value", "±"], known, folded=False),
        ]
    )
    if not result.bins:
        yield note(f"No curves: one of the labels has fewer than {result.unit} rows.")
        return
    groups = grouped(result.bins)
    yield Beside([*_curves(result, groups)])
    yield Table(
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


def _curves(result: Evaluation, groups: Sequence[ScoreBin]) -> Iterator[Block]:
    roc = [(each.false_positive_rate, each.true_positive_rate) for each in result.roc]
    precision = Series("model", _precision(result.bins))
    calibration = Series("rows of one bin", [(g.mean_prediction, g.rate) for g in groups], dots=True)
    axes = "false positive rate", "true positive rate"
    yield Lines("ROC curve", [Series("model", roc)], *axes, square=True, diagonal=True)
    yield Lines("Precision-recall curve", [precision], "recall", "precision", square=True)
    axes = "mean predicted probability", "share of label 1"
    yield Lines("Calibration", [calibration], *axes, diagonal=True)


def _precision(bins: Sequence[ScoreBin]) -> list[tuple[float, float]]:
    """Recall and precision at the lower end of each bin, from the highest score on."""
    ones = sum(each.positives for each in bins)
    out: list[tuple[float, float]] = []
    found, taken = 0, 0
    for each in reversed(bins):
        found, taken = found + each.positives, taken + each.rows
        out += [] if out else [(0.0, found / taken)]
        out.append((found / max(ones, 1), found / taken))
    return out


def grouped(bins: Sequence[ScoreBin]) -> list[ScoreBin]:
    """Return about MAX_BINS bins, of about as many rows each, made of neighbours."""
    least, part, out = sum(each.rows for each in bins) / MAX_BINS, list[ScoreBin](), list[ScoreBin]()
    for number, each in enumerate(bins, 1):
        part.append(each)
        rows = sum(one.rows for one in part)
        if rows >= least or number == len(bins):
            positives = sum(one.positives for one in part)
            predicted = sum(one.mean_prediction * one.rows for one in part) / rows
            ends = {"low": part[0].low, "high": part[-1].high}
            out.append(  # numbers within bounds may have a mean that is not
                ScoreBin.model_construct(
                    None,
                    **ends,
                    rows=rows,
                    positives=positives,
                    mean_prediction=predicted,
                    rate=positives / rows,
                )
            )
            part = []
    return out


# ---- Several classes, groups and sites ------------------------------------------------------------------


def _matrix(result: Evaluation) -> Block:
    classes = result.classes
    if len(classes) > MAX_CLASSES:
        return note(f"{len(classes)} classes: --json has the rows by class and predicted class.")
    assert isinstance(result.confusion, list)
    rows = [(name, *map(count, row)) for name, row in zip(classes, result.confusion, strict=True)]
    headings = ["label", *(f"predicted {name}" for name in classes)]
    return Table("Rows by label and most probable class", headings, rows, folded=False)


def _split(title: str, split: Split, result: Evaluation) -> Iterator[Block]:
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
        yield Table(f"Figures by {title}", [title, "rows", *(RATES.get(key, key) for key in told)], rows)
    yield Beside(
        [
            *_charts(
                title, split, [k for k in told if k in split.gaps and k in (*metrics[:1], "selection_rate")]
            )
        ]
    )
    missing = [RATES.get(key, key) for key in shown if key not in told]
    few = f"under {rows_of_group(result.unit)} rows, or rows of a label"
    if missing and told:
        yield note(
            f"Too few rows in each group ({few}) for {', '.join(missing)}. A lower --min-count shows more."
        )
    if small:
        yield note(f"Too few rows for a figure ({few}): ", Names(small), ". A lower --min-count shows more.")
    if len(rows) > 1:
        yield note("A dash: rounding alone may make the difference. A difference of few rows may be chance.")
    if split.left_out:
        few = f"fewer than {result.unit} rows{', or none' if result.unit > 1 else ''}"
        yield note(f"Groups of {few} are left out: ", Names(split.left_out))


def _of_group(each: SetFigures, key: str, shown: Callable[[float | None], str]) -> str:
    """A figure of a group, and how far rounding may have moved it where that is much of it."""
    within = each.resolution.get(key)
    unsure = _within(within) if within is not None and each.figures[key] is not None else ""
    return f"{shown(each.figures[key])} {unsure}".rstrip()


def _charts(title: str, split: Split, keys: Sequence[str]) -> Iterator[Block]:
    """Yield the first metric, and the share that is predicted 1."""
    for key in keys:
        known = [
            (name, value) for name, each in split.sets.items() if (value := each.figures[key]) is not None
        ]
        words = RATES.get(key, key)
        few = f", the {MAX_BARS} highest and lowest of {len(known)}" if len(known) > MAX_BARS else ""
        if len(known) > 1:
            yield Points(f"{words} by {title}{few}", ends(known), words)


# ---- Figures --------------------------------------------------------------------------------------------


def _within(within: float | None) -> str:
    return "" if within is None or within < SHOWN_WITHIN else f"± {within:.1g}"


def number(value: float | None) -> str:
    """Return a figure; … where there is none."""
    return "…" if value is None else f"{value:.5g}"


def count(value: int | None) -> str:
    """Return a number of rows; … where it is too small."""
    return "…" if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """Return a share of rows with the digits that it is rounded to; … where there is none."""
    return "…" if value is None else f"{100 * value:.4g}%"
