"""Terms of sessions that do not train (describe, evaluate, drift), and what terms of a training guarantee."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.errors import ConfigError, quoted
from fedboost.fixedpoint import Int64, Scale, bound_exponent
from fedboost.gbdt.drift import Bins
from fedboost.gbdt.metrics import bins
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.survival import AUC_AT, BRIER_AT, CINDEX, MAX_TIMES
from fedboost.gbdt.target_means import FOLDS, Slots
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Hiding
from fedboost.terms.session import TASKS, Task
from fedboost.terms.terms import Terms
from fedboost.terms.training import Objective
from fedboost.terms.vertical import OF_IDS

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantile levels that are reported for each numeric column."""
MISSING, UNDECLARED = "missing", "undeclared"
_KEPT_TO_DESCRIBE = frozenset(
    {
        *("columns", "parties", "max_bin", "turn_timeout", "rejoin_timeout", "min_count", "noise"),
        *("label_holder", "blocks", "rows", *OF_IDS, "label_epsilon"),
        *(key for group in (Objective, Hiding) for key in group.file_keys()),
    }
)
"""Keys that apply when rows are described; other keys concern trees."""


def class_names(terms: Terms) -> tuple[str, ...]:
    """Return the label values in class order, starting with class 0, or () if labels are not classes."""
    columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
    if loss.classes_key == "positive":
        return ("0", "1") if columns.positive is None else (f"not {columns.positive}", columns.positive)
    return columns.classes or tuple(map(str, range(terms.objective.num_class or 0)))


def columns_of_levels(
    terms: Terms, counts: Iterable[Sequence[int]], told: Callable[[int], int | None]
) -> Iterator[dict[str, Any]]:
    """Yield the summary of each categorical column, as JSON values.

    Args:
        counts: for each column, the number of rows with a missing value, with each level, and with undeclared
            levels.
        told: function that maps a count to the reported count, or to None to omit it."""
    for (name, declared), counted in zip(terms.columns.categorical.items(), counts, strict=True):
        absent, *of_levels, undeclared = map(told, counted)
        own = dict(zip(declared, of_levels, strict=True))
        head = {"name": name, "kind": "categorical", MISSING: absent, UNDECLARED: undeclared}
        yield {**head, "levels": own}


def gridded(terms: Terms) -> tuple[str, ...]:
    """Return the names of the columns whose values are counted on a grid: the numeric features, and a numeric
    label if the task describes rows, or event times if the objective has risk sets."""
    kind = terms.objective.loss.xgboost_equivalent.label_kind
    counts_label = terms.task.counts_values and kind not in (LabelKind.CLASS, LabelKind.INTERVAL)
    counts_label = counts_label or terms.sums_risk
    return (*terms.columns.numeric, *([terms.columns.label] if counts_label else []))


def terms_to_describe(
    terms: Terms, min_count: int | None = None, by_site: bool = False, levels: Iterable[str] = ()
) -> Terms:
    """Return the terms of a session that describes rows, derived from the terms of a training session. If the
    terms already describe rows, all their settings are kept. min_count: replaces the setting of that name;
    by_site: sets `party_metrics` if true; levels: replaces `level_names`. Raises ConfigError if the terms do
    not support such a description."""
    asked = {"party_metrics": by_site or None, "level_names": [*levels] or None}
    return Terms.read(settings_for(terms, TASKS["describe"], min_count=min_count, **asked))


# ---- Sessions that evaluate a model: their terms, and the sets of rows ----------------------------------

NO_LEVEL = "missing"
"""Name of the set of rows that have no declared level."""
WEIGHT_BITS = 32
_KEPT_TO_EVALUATE = frozenset(
    {
        *("columns", "parties", "num_parallel_tree", "turn_timeout", "rejoin_timeout"),
        *("eval_metric", "party_metrics", "min_count", "subgroups", "threshold", "evaluate_rows", "noise"),
        *(key for group in (Objective, Hiding) for key in group.file_keys()),
    }
) - {"base_score"}
"""Keys that apply when a model is evaluated; other keys concern the growth of trees."""
_SITES = ("site", "sites", "party", "parties")
_SHOWN = 8
"""Maximum number of a column's levels that an error message lists."""
_FIGURES_OF_TWO_CLASSES = 4
"""Number of independent figures reported for a set of rows: the number of rows with label 1, the numbers of
rows with label 0 and with label 1 that are predicted 1, and the mean prediction."""
_FIGURES_OF_A_BIN = 3
"""Number of figures reported for a bin: the number of rows with each label, and the mean prediction."""
_BITS_OF_FIGURE = 20
"""Maximum number of bits of information in a figure. Most figures have at most 10,000 possible values; a
count of ten million rows in units of 10 has a million (2**20) possible values."""
_UNUSED_COLUMNS = "validation", "row_id", "ranges"
"""Settings of columns that an evaluation drops. It needs `label_range` only under terms with noise."""
_ONLY_TO_TRAIN = frozenset({"validation_fraction", "early_stopping_rounds", "reference"})
"""Settings of a training that an evaluation by parties with different columns drops. It keeps all others, by
which each site recognises the model."""
_MAY_DIFFER = frozenset(
    {
        *_ONLY_TO_TRAIN,
        *("program", "predict_with", "predict_rows", "subgroups", "threshold", "evaluate_rows"),
        *("min_count", "min_common_rows", "eval_metric", "on_loss", "turn_timeout", "rejoin_timeout"),
    }
)
"""Settings that may differ between the training of a model and its evaluation by parties with different
columns."""

_OF_PARTS = "parties", "label_holder", "label_epsilon", "objective", "num_class"
"""Settings that give a party's part of a model its meaning, and must be the same to continue it."""


@dataclass(frozen=True)
class LevelRows:
    """Set of the rows that have one level of a categorical column. place: index of the level, or None for the
    rows without a declared level."""

    column: str
    place: int | None
    level: str

    @property
    def name(self) -> str:
        """Name of this set of rows in queries."""
        return f"{json.dumps(self.column)} = {json.dumps(self.level)}"


def level_sets(terms: Terms) -> dict[str, tuple[LevelRows, ...]]:
    """Return column in `subgroups` -> its sets of rows: one per level, and one without a declared level."""
    sets = {}
    for name in terms.evaluation.subgroups:
        levels, nothing = terms.columns.levels[name], NO_LEVEL
        while nothing in levels:
            nothing = f"({nothing})"
        own = (LevelRows(name, place, level) for place, level in enumerate(levels))
        sets[name] = (*own, LevelRows(name, None, nothing))
    return sets


def sites_of(terms: Terms) -> tuple[str, ...]:
    """Return the names of the parties whose rows are also evaluated separately."""
    return terms.holders if terms.evaluation.party_metrics else ()


def is_binary(terms: Terms) -> bool:
    """Return True if a prediction is a single probability."""
    return terms.objective.loss.xgboost_equivalent.classes_key == "positive"


def class_count(terms: Terms) -> int:
    """Return the number of classes in the confusion matrix, 0 if there is none."""
    loss = terms.objective.loss
    return loss.outputs if loss.xgboost_equivalent.classes_key == "classes" else 0


def label_width(terms: Terms) -> float:
    """Return the width of the label's declared range, or 0 if labels are classes."""
    low, high = terms.columns.label_range or (0.0, 0.0)
    return high - low if terms.objective.loss.xgboost_equivalent.classes_key is None else 0.0


def rows_readable(terms: Terms) -> int:
    """Return an upper bound on the number of yes-or-no values of individual rows that an analyst can derive
    from a session's results. The bound is the total number of bits in all independent figures. Practical
    attacks reveal less (docs/lifecycle-evaluate.md)."""
    if terms.task.uses_reference:
        assert terms.xgb_model is not None
        numeric, score = continuation.bins_of(terms.xgb_model)
        figures = sum(len(edges) + 2 for edges in (*numeric, score)) + terms.objective.loss.outputs
        return _BITS_OF_FIGURE * (figures + sum(count + 1 for count in terms.columns.category_counts))
    sets = 1 + len(sites_of(terms)) + sum(map(len, level_sets(terms).values()))
    of_set = 1 + len(terms.metrics) + (_FIGURES_OF_TWO_CLASSES if is_binary(terms) else 0)
    figures = sets * of_set + class_count(terms) ** 2
    if CINDEX in terms.metrics:  # points of four curves
        figures += 8 * (MAX_TIMES + len(terms.metrics))
    if is_binary(terms):
        figures += 1 + _FIGURES_OF_A_BIN * bins(terms.evaluation.threshold)
    return _BITS_OF_FIGURE * figures


def weight_scale(terms: Terms, counts: Int64) -> Scale:
    """Return the fixed-point scale of row weights. counts: weights of all parties by binary exponent."""
    return terms.known_weight_scale or Scale(bound_exponent(counts), WEIGHT_BITS)


def terms_to_evaluate(
    terms: Terms,
    model: str | None = None,
    by: Iterable[str] = (),
    by_site: bool | None = None,
    threshold: float | None = None,
    min_count: int | None = None,
    rows: str | None = None,
    predict_with: str | None = None,
    predict_rows: int | None = None,
    at: Iterable[float] = (),
) -> Terms:
    """Return the terms of a session that evaluates a model, derived from the terms of a training session. If
    the terms already evaluate a model, all their settings are kept. The other arguments replace settings of
    the terms.

    Args:
        model: text of the model, as in `xgb_model`.
        predict_with: id of the model, if parties that hold different columns keep its parts.
        predict_rows: maximum number of ids of the label holder, if parties hold different columns.
        by: names of columns by which to report results, e.g. "sex", or "sex=F,M" if the terms do not declare
            the column.
        by_site: sets `party_metrics` if true.
        rows: replaces `evaluate_rows`. The default is the rows held out during training, or all rows if none
            were held out.
        at: times for which the metrics `auc@t` and `brier@t` are added.

    Raises ConfigError if the terms do not support an evaluation."""
    _check_joint(terms, by_site, predict_rows)
    declared, names = {**terms.columns.subgroups}, [*terms.evaluation.subgroups]
    if by := [*by]:
        split = [_column_of(each, terms.columns) for each in by]
        declared |= {name: levels for name, levels in split if levels}
        names = [name for name, _ in split]
    used = {name: [*levels] for name, levels in declared.items() if name in names}
    for party, columns in terms.columns.held.items():
        if shared := {*columns}.intersection(names):
            raise ConfigError(
                "terms-by-column",
                f"by {min(shared)!r}: party {party} has it, but only columns of the label holder can split "
                f"results",
            )
    added = [f"{kind}{float(time):.9g}" for time in at for kind in (AUC_AT, BRIER_AT)]
    values = settings_for(
        terms,
        TASKS["evaluate"],
        xgb_model=model,
        eval_metric=[*dict.fromkeys((*terms.metrics, *added))] if added else None,
        subgroups=names if by else None,
        party_metrics=by_site or None,
        threshold=threshold,
        min_count=min_count,
        evaluate_rows=rows,
        predict_with=predict_with,
        predict_rows=predict_rows,
        on_loss="stop" if terms.vertical.is_used else None,
    )
    values["columns"] = {**values["columns"], "subgroups": used}
    agreed = Terms.read(values)
    trained = None if agreed.evaluates_jointly else agreed.trained
    if "evaluate_rows" not in values and trained is not None and trained.validates:
        return Terms.read({**values, "evaluate_rows": "held-out"})
    return agreed


def _check_joint(terms: Terms, by_site: bool | None, predict_rows: int | None) -> None:
    """Raise ConfigError if parties hold different columns and cannot evaluate a model."""
    vertical, why = terms.vertical, ""
    if not vertical.is_used:
        if predict_rows is not None:
            raise ConfigError(
                "option-alone", "predict_rows is only for a model of parties that hold different columns"
            )
        return
    if vertical.label_holder is None:
        why = "a model can be evaluated only with a single label holder"
    elif not vertical.aligns:
        why = 'a model can be evaluated only if rows are matched by ids, not with rows = "in_order"'
    elif by_site:
        why = f"only {vertical.label_holder} has labels, so results cannot be split by site"
    elif predict_rows is None and not terms.evaluates_jointly:
        why = "specify how many ids the table of the label holder has at most (--predict-rows)"
    if why:
        raise ConfigError("terms-vertical-task", f"{vertical.key}: {why}")


def are_of_training(terms: Terms, trained: Terms) -> bool:
    """Return True if parties with different columns may have trained, under the terms `trained`, the model
    that these terms evaluate or continue."""
    same = _OF_PARTS if terms.task.trains else terms.flat.keys() - {"columns", *_MAY_DIFFER}

    def kept(each: Terms) -> dict[str, Any]:
        values = {key: value for key, value in each.flat.items() if key in same}
        columns = each.columns.model_copy(update={"subgroups": {}, "validation": None})
        return {**values, "columns": columns}

    return kept(terms) == kept(trained)


def _column_of(given: str, columns: Schema) -> tuple[str, tuple[str, ...]]:
    """Parse NAME or NAME=LEVEL,...: the column by which to report results, and the listed levels."""
    name, equals, listed = (given, "", "") if given in columns.levels else given.partition("=")
    levels = tuple(listed.split(",")) if equals else ()
    own = columns.categorical.get(name, ())
    why = ""
    if own and levels and {*own} != {*levels}:
        shown = ", ".join(own[:_SHOWN]) + (", ..." if len(own) > _SHOWN else "")
        why = f"is a feature whose levels the terms already declare ({shown}): use only its name"
    elif name in columns.numeric:
        why = "is numeric in the terms, but results can be reported only by levels"
    elif name in columns.others and name not in (*columns.subgroups, columns.validation, columns.row_id):
        why = "is the label or another special column, not a feature"
    elif equals and not all(levels):
        why = f"has a level without a name: list its levels, e.g. {name}=F,M"
    elif not levels and name.lower() in _SITES and name not in columns.levels:
        why = "is not a column of the terms: for results by site use --by-site (by_site=True)"
    if why:
        raise ConfigError("terms-by-column", f"by {quoted(name)!r}: it {why}")
    return name, () if own else levels


def settings_for(terms: Terms, task: Task, **given: object) -> dict[str, Any]:
    """Return the settings of these terms that apply to a task, or all settings if the terms are already for
    this task. given: settings that replace those in the terms; None values are ignored."""
    values: dict[str, Any] = terms.model_dump(mode="json", exclude_unset=True)
    if terms.task is not task:
        kept = _KEPT_TO_DESCRIBE if task.counts_values else _KEPT_TO_EVALUATE
        unused: tuple[str, ...] = (*_UNUSED_COLUMNS, *([] if "noise" in values else ["label_range"]))
        if terms.vertical.is_used and task.measures:
            kept, unused = frozenset(values.keys() - _ONLY_TO_TRAIN), ("validation",)
        values = {key: value for key, value in values.items() if key in kept} | {"program": task.program}
        if task.measures:
            values["columns"] = {k: v for k, v in values["columns"].items() if k not in unused}
    return values | {key: value for key, value in given.items() if value is not None}


# ---- Sessions that compare rows with the reference of a model: their terms, and the bins ----------------

_NOT_FOR_FEATURES = (
    *("eval_metric", "party_metrics", "subgroups", "threshold", "scale_pos_weight", "evaluate_rows"),
)


def bins_in(terms: Terms) -> Bins:
    assert terms.xgb_model is not None
    numeric, score = continuation.bins_of(terms.xgb_model)
    if len(numeric) != len(terms.columns.ordered):
        raise ConfigError(
            "model-bins-mismatch",
            f"xgb_model has bins for {len(numeric)} columns, but the terms have {len(terms.columns.ordered)}",
        )
    outputs = terms.objective.loss.outputs
    edges = tuple(np.array(column, np.float64) for column in numeric)
    levels = tuple(terms.columns.category_counts)
    return Bins(edges, levels, np.array(score, np.float64), outputs if outputs > 1 else 0)


def terms_to_drift(terms: Terms, model: str, min_count: int | None = None) -> Terms:
    """Return the terms of a session that compares rows with a model's reference distribution.

    Args:
        terms: terms under which the model was trained, or other terms with the same columns.
        model: text of the model, as in `xgb_model`, including the bin edges of its reference distribution.

    Raises ConfigError if parties hold different columns."""
    if terms.vertical.is_used:
        raise ConfigError(
            "terms-vertical-task",
            f"{terms.vertical.key}: rows can be compared with a reference only if each party has all columns",
        )
    values = settings_for(terms, TASKS["drift"], xgb_model=model, min_count=min_count)
    return Terms.read({key: value for key, value in values.items() if key not in _NOT_FOR_FEATURES})


# ---- Target means: the slots of their columns ------------------------------------------------------------


def slots_of(terms: Terms) -> dict[str, Slots]:
    """Return a dict: target-means column -> its slots (combinations of bucket and fold). With noise, there
    are no folds: the noise already hides a row's contribution to the mean of its level, and each fold would
    need noise of its own."""
    folds = 1 if terms.noise is not None else FOLDS + 1
    return {name: Slots(buckets, folds) for name, buckets in terms.columns.target_means.items()}


def have_folds(terms: Terms) -> bool:
    """Return True if each row is assigned to a fold for target means."""
    return terms.task.trains and terms.noise is None and bool(terms.columns.target_means)


# ---- Rows that a leaf of a trained tree has at least ----------------------------------------------------
# Why `min_rows_per_leaf` holds: the hessians of each child of a split sum to at least min_child_weight w.
# With weights of 1 and without scale_pos_weight, a row's hessian is at most 1/4 (binary:logistic) or 1/2
# (multi:softprob), or exactly 1 (squared, absolute, quantile error). Rounding adds nothing: these bounds are
# multiples of the fixed-point unit, or at most half of a very coarse unit, which rounds to zero. So each side
# of a split has at least 4 w, 2 w or w rows over all parties. The rule cannot stop an aggregator that lies
# about sums or splits, nor a party that adds fake rows. It does not cover a tree without splits, *this*
# site's rows in a leaf, or the bins of a histogram. Row weights or a custom program guarantee nothing, so the
# rule refuses them.

MAX_ROWS_PER_LEAF = 1_000_000_000


def rows_per_leaf(terms: Terms) -> tuple[int, str]:
    """Return the minimum number of rows, over all parties, in a leaf of a tree with splits. Also return why
    no setting guarantees more than one row; '' if one does."""
    weight = terms.columns.weight
    if weight is not None:
        return 1, f"no minimum is guaranteed with the row weights of column {quoted(weight)!r}"
    if terms.objective.scale_pos_weight is not None:
        return 1, "no minimum is guaranteed with scale_pos_weight"
    if terms.draws.sampling_method != "uniform":
        drawn = f'rows drawn by sampling_method = "{terms.draws.sampling_method}" have weights above 1'
        return 1, f"no minimum is guaranteed: {drawn}"
    if terms.noise is not None:
        return 1, "no minimum is guaranteed with noise, unless the policy also has a budget (epsilon, delta)"
    per = rows_per_hessian(terms)
    is_own = terms.task.trains and terms.session.is_built_in
    if not is_own or per is None:
        what = "objective" if is_own else "program"
        return 1, f"no minimum is guaranteed with the {what} {quoted(terms.flat[what])!r}"
    rows = min(terms.trees.min_child_weight * per, float(MAX_ROWS_PER_LEAF))
    return max(1, math.ceil(rows)), ""


def rows_per_hessian(terms: Terms) -> int | None:
    """Return the number of rows per unit of hessian; None for untrusted objectives from other packages."""
    return terms.objective.loss.rows_per_hessian if terms.objective.name in OBJECTIVES else None
