"""Terms of sessions that train nothing: describe, evaluate, drift."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.errors import ConfigError, quoted
from fedboost.fixedpoint import Int64, Scale, bound_exponent
from fedboost.gbdt.drift import Bins
from fedboost.gbdt.metrics import bins
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Hiding
from fedboost.terms.session import TASKS, Task
from fedboost.terms.terms import Terms
from fedboost.terms.training import Objective

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles of a number."""
MISSING, UNDECLARED = "missing", "undeclared"
_KEPT_TO_DESCRIBE = frozenset(
    {
        *("columns", "parties", "max_bin", "turn_timeout", "rejoin_timeout", "min_count", "noise"),
        *(key for group in (Objective, Hiding) for key in group.file_keys()),
    }
)
"""Keys that a description goes by; the others are about trees."""


def class_names(terms: Terms) -> tuple[str, ...]:
    """The values of a label of classes, from class 0 on; none for other labels."""
    columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
    if loss.classes_key == "positive":
        return ("0", "1") if columns.positive is None else (f"not {columns.positive}", columns.positive)
    return columns.classes or tuple(map(str, range(terms.objective.num_class or 0)))


def columns_of_levels(
    terms: Terms, counts: Iterable[Sequence[int]], told: Callable[[int], int | None]
) -> Iterator[dict[str, Any]]:
    """Yield what is said of each categorical column, as JSON. counts: of each column the rows without a
    value, of each level, and of undeclared ones; told: what is told of a count."""
    for (name, declared), counted in zip(terms.columns.categorical.items(), counts, strict=True):
        absent, *of_levels, undeclared = map(told, counted)
        own = dict(zip(declared, of_levels, strict=True))
        head = {"name": name, "kind": "categorical", MISSING: absent, UNDECLARED: undeclared}
        yield {**head, "levels": own}


def gridded(terms: Terms) -> tuple[str, ...]:
    """The columns whose rows are counted by value: the numeric features, and a label that is described and is
    a number."""
    kind = terms.objective.loss.xgboost_equivalent.label_kind
    counts_label = terms.task.counts_values and kind not in (LabelKind.CLASS, LabelKind.INTERVAL)
    return (*terms.columns.numeric, *([terms.columns.label] if counts_label else []))


def terms_to_describe(terms: Terms, min_count: int | None = None) -> Terms:
    """The terms by which the rows of a training under `terms` are described, or those themselves if they
    describe. min_count: in place of theirs."""
    if terms.vertical.is_used:
        raise ConfigError(
            f"{terms.vertical.key}: rows are described where each party has all columns; `fedboost check` "
            f"tells each party about its own table"
        )
    return Terms.read(settings_for(terms, TASKS["describe"], min_count=min_count))


# ---- Sessions that evaluate a model: their terms, and the sets of rows ----------------------------------


NO_LEVEL = "missing"
"""The rows without a level that the terms declare."""
WEIGHT_BITS = 32
_KEPT_TO_EVALUATE = frozenset(
    {
        *("columns", "parties", "num_parallel_tree", "turn_timeout", "rejoin_timeout"),
        *("eval_metric", "party_metrics", "min_count", "subgroups", "threshold", "evaluate_rows"),
        *(key for group in (Objective, Hiding) for key in group.file_keys()),
    }
) - {"base_score"}
"""Keys that an evaluation goes by; the others are about the growth of trees."""
_SITES = ("site", "sites", "party", "parties")
_SHOWN = 8
"""Levels of a column that an error names."""
_FIGURES_OF_TWO_CLASSES = 4
"""Of a set of rows that do not follow from each other: rows of label 1, those predicted 1 of either label,
and the mean prediction."""
_FIGURES_OF_A_BIN = 3
"""Rows of either label, and the mean prediction."""
_BITS_OF_FIGURE = 20
"""A figure has at most 10,000 values, a count of ten million rows in units of 10 a million."""
_UNUSED_COLUMNS = ("validation", "row_id", "ranges", "label_range")


@dataclass(frozen=True)
class LevelRows:
    """The rows of a level of a categorical column; None: those of no declared level."""

    column: str
    place: int | None
    level: str

    @property
    def name(self) -> str:
        """The name in queries."""
        return f"{json.dumps(self.column)} = {json.dumps(self.level)}"


def level_sets(terms: Terms) -> dict[str, tuple[LevelRows, ...]]:
    """The rows of each level, by column of subgroups."""
    sets = {}
    for name in terms.evaluation.subgroups:
        levels, nothing = terms.columns.levels[name], NO_LEVEL
        while nothing in levels:
            nothing = f"({nothing})"
        own = (LevelRows(name, place, level) for place, level in enumerate(levels))
        sets[name] = (*own, LevelRows(name, None, nothing))
    return sets


def sites_of(terms: Terms) -> tuple[str, ...]:
    """The parties whose rows are measured alone."""
    return terms.holders if terms.evaluation.party_metrics else ()


def is_binary(terms: Terms) -> bool:
    """True if rows have one probability."""
    return terms.objective.loss.xgboost_equivalent.classes_key == "positive"


def class_count(terms: Terms) -> int:
    """Classes of a confusion matrix of several; 0 without."""
    loss = terms.objective.loss
    return loss.outputs if loss.xgboost_equivalent.classes_key == "classes" else 0


def rows_readable(terms: Terms) -> int:
    """An upper bound of the yes-or-no values of single rows that an analyst can read in the results of a
    session that measures a model: the bits of all figures that do not follow from each other. What an attack
    reads is less (docs/lifecycle-evaluate.md)."""
    if terms.task.uses_reference:
        assert terms.xgb_model is not None
        numeric, score = continuation.bins_of(terms.xgb_model)
        figures = sum(len(edges) + 2 for edges in (*numeric, score)) + terms.objective.loss.outputs
        return _BITS_OF_FIGURE * (figures + sum(count + 1 for count in terms.columns.category_counts))
    sets = 1 + len(sites_of(terms)) + sum(map(len, level_sets(terms).values()))
    of_set = 1 + len(terms.metrics) + (_FIGURES_OF_TWO_CLASSES if is_binary(terms) else 0)
    figures = sets * of_set + class_count(terms) ** 2
    if is_binary(terms):
        figures += 1 + _FIGURES_OF_A_BIN * bins(terms.evaluation.threshold)
    return _BITS_OF_FIGURE * figures


def weight_scale(terms: Terms, counts: Int64) -> Scale:
    """The scale of row weights, from the counts of their exponents."""
    return terms.known_weight_scale or Scale(bound_exponent(counts), WEIGHT_BITS)


def terms_to_evaluate(
    terms: Terms,
    model: str | None = None,
    by: Iterable[str] = (),
    by_site: bool | None = None,
    threshold: float | None = None,
    min_count: int | None = None,
    rows: str | None = None,
) -> Terms:
    """The terms by which a model is evaluated on the rows of a training under `terms`, or those themselves if
    they evaluate. model: as in `xgb_model`; by: names of columns, "sex=F,M" for one that the terms do not
    declare; rows: as `evaluate_rows`, by default those that its training held out, all where it held none
    out; the others in place of those of the terms, where they are given."""
    if terms.vertical.is_used:
        raise ConfigError(f"{terms.vertical.key}: a model is evaluated where each party has all columns")
    if terms.noise is not None:
        raise ConfigError(
            "noise: a model is evaluated by exact sums; give terms without noise if the sites allow that"
        )
    declared, names = {**terms.columns.subgroups}, [*terms.evaluation.subgroups]
    if by := [*by]:
        split = [_column_of(each, terms.columns) for each in by]
        declared |= {name: levels for name, levels in split if levels}
        names = [name for name, _ in split]
    used = {name: [*levels] for name, levels in declared.items() if name in names}
    values = settings_for(
        terms,
        TASKS["evaluate"],
        xgb_model=model,
        subgroups=names if by else None,
        party_metrics=by_site or None,
        threshold=threshold,
        min_count=min_count,
        evaluate_rows=rows,
    )
    values["columns"] = {**values["columns"], "subgroups": used}
    agreed = Terms.read(values)
    if "evaluate_rows" not in values and agreed.trained is not None and agreed.trained.validates:
        return Terms.read({**values, "evaluate_rows": "held-out"})
    return agreed


def _column_of(given: str, columns: Schema) -> tuple[str, tuple[str, ...]]:
    """The column that results are to be split by, and the levels that are given for it. ConfigError."""
    name, equals, listed = (given, "", "") if given in columns.levels else given.partition("=")
    levels = tuple(listed.split(",")) if equals else ()
    own = columns.categorical.get(name, ())
    why = ""
    if own and levels and {*own} != {*levels}:
        shown = ", ".join(own[:_SHOWN]) + (", ..." if len(own) > _SHOWN else "")
        why = f"is a feature with levels of its own ({shown}): give its name alone"
    elif name in columns.numeric:
        why = "is a number in the terms, and results are split by levels"
    elif name in columns.others and name not in (*columns.subgroups, columns.validation, columns.row_id):
        why = "is no feature: it is the label, or stands beside it"
    elif equals and not all(levels):
        why = f"has a level without a name: give its levels, such as {name}=F,M"
    elif not levels and name.lower() in _SITES and name not in columns.levels:
        why = "is no column of the terms: for results by site give --by-site (by_site=True)"
    if why:
        raise ConfigError(f"by {quoted(name)!r}: it {why}")
    return name, () if own else levels


def settings_for(terms: Terms, task: Task, **given: object) -> dict[str, Any]:
    """The settings of these terms that a session of a task goes by: all, where it is that of the terms.
    given: in place of theirs, but for those that are None."""
    values: dict[str, Any] = terms.model_dump(mode="json", exclude_unset=True)
    if terms.task is not task:
        kept = _KEPT_TO_DESCRIBE if task.counts_values else _KEPT_TO_EVALUATE
        values = {key: value for key, value in values.items() if key in kept} | {"program": task.program}
        if task.measures:
            values["columns"] = {k: v for k, v in values["columns"].items() if k not in _UNUSED_COLUMNS}
    return values | {key: value for key, value in given.items() if value is not None}


# ---- Sessions that hold rows against the reference of a model: their terms, and the bins ----------------


_NOT_FOR_FEATURES = (
    *("eval_metric", "party_metrics", "subgroups", "threshold", "scale_pos_weight", "evaluate_rows"),
)


def bins_in(terms: Terms) -> Bins:
    """The bins of the model in the terms."""
    assert terms.xgb_model is not None
    numeric, score = continuation.bins_of(terms.xgb_model)
    if len(numeric) != len(terms.columns.ordered):
        raise ConfigError(f"xgb_model: bins of {len(numeric)} columns, not of {len(terms.columns.ordered)}")
    outputs = terms.objective.loss.outputs
    edges = tuple(np.array(column, np.float64) for column in numeric)
    levels = tuple(terms.columns.category_counts)
    return Bins(edges, levels, np.array(score, np.float64), outputs if outputs > 1 else 0)


def terms_to_drift(terms: Terms, model: str, min_count: int | None = None) -> Terms:
    """The terms by which rows are held against the reference of a model; terms: of its training, or others
    that say the columns. model: as in `xgb_model`, with its bins."""
    if terms.vertical.is_used:
        raise ConfigError(f"{terms.vertical.key}: rows are counted where each party has all columns")
    values = settings_for(terms, TASKS["drift"], xgb_model=model, min_count=min_count)
    return Terms.read({key: value for key, value in values.items() if key not in _NOT_FOR_FEATURES})
