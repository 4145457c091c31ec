"""What every party agreed to for one session: the model, the data schema, the protection. Frozen, hashed.

Promises: `Terms.digest` is the same on every machine for the same terms; everything that decides the model
is in here, and nothing else is.
Refuses: unknown keys and values (naming the nearest known one), and combinations that cannot be trained.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.objective import MAX_LABEL, LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.target_means import FOLDS, Slots
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, require_known
from fedboost.terms.session import task_of
from fedboost.terms.settings import Settings

# ---- Columns whose levels become means of the label: their slots, and the terms that cannot have them ----


KEY = "columns.target_means"
MAX_ENCRYPTED = 1 << 14
"""Most buckets in all where sums are encrypted: each takes a key holder some twenty numbers."""


def _refuse(what: str, *refused: tuple[bool, str, str]) -> None:
    """ValueError for the first of these that is so: the setting beside `what`, and why not."""
    for is_so, setting, reason in refused:
        if is_so:
            raise ValueError(f"{what} with {setting}: {reason}")


def slots_of(terms: Settings) -> dict[str, Slots]:
    """The slots of each column. With noise there are no folds: it hides what a row adds to the mean of its
    level, and each fold would have noise of its own."""
    folds = 1 if terms.noise is not None else FOLDS + 1
    return {name: Slots(buckets, folds) for name, buckets in terms.columns.target_means.items()}


def have_folds(terms: Settings) -> bool:
    """True if each row is in a fold."""
    return terms.task.trains and terms.noise is None and bool(terms.columns.target_means)


def _check_target_means(terms: Settings) -> None:
    """ValueError unless the levels of these columns may become means."""
    if not terms.columns.target_means:
        return
    known = ", ".join(name for name, kind in OBJECTIVES.items() if kind.has_label_means)
    name, buckets = terms.objective.name, sum(terms.columns.target_means.values())
    task, trains = terms.task, terms.task.trains
    _refuse(
        KEY,
        (
            name not in OBJECTIVES or not OBJECTIVES[name].has_label_means,
            f"objective {name}",
            f"a level has no mean label; it is for {known}",
        ),
        (
            terms.vertical.is_used,
            terms.vertical.key,
            "labels and levels are at different parties; take it away, or declare levels in categorical",
        ),
        (task.counts_values, f"program {task.program}", "levels by the thousand are not counted"),
        (
            task.takes_candidates,
            f"program {task.program}",
            "it is for training with fixed settings; take it away",
        ),
        (
            trains and terms.xgb_model is not None,
            "xgb_model",
            "the means of the model are of other rows; train from the beginning",
        ),
        (
            trains and terms.session.program != "boosting" and terms.noise is None,
            f"program {terms.session.program!r}",
            "only boosting is known",
        ),
        (
            trains and terms.protection.uses_key_holder and buckets > MAX_ENCRYPTED,
            f"{buckets} buckets under protection {terms.hiding.protection}",
            f"at most {MAX_ENCRYPTED} are encrypted; lower them, or set masked",
        ),
    )


# ---- Candidates: settings of trees that one session tries side by side ----------------------------------


TUNED = (
    *("learning_rate", "max_depth", "max_leaves", "min_child_weight", "gamma", "reg_lambda", "reg_alpha"),
    *("max_delta_step", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
)
"""The settings that candidates differ in: what the aggregator alone goes by, so that all share one set of
bins, and one set of rows that trees grow on."""
MAX_COLUMNS_TRIED = 1 << 20
"""Candidates times features. At 256 bins the sums of one node of each are 4 GiB then, all that an aggregator
gives to a session by default."""
SHARES = (0.1, 0.2, 0.4, 0.6)
"""The shares of all rounds after which candidates are dropped."""
KEPT = (2, 3)
"""Two of three candidates go on each time: fewer would be those that learn fast, and not those that learn
well (decision 0028)."""


def stages(terms: Settings) -> dict[int, int]:
    """The number of rounds after which candidates are dropped, to the number of those that go on."""
    left, ends = len(terms.objective.candidates), {}
    for share in SHARES:
        if rounds := int(share * terms.trees.rounds):
            ends[rounds] = left = -(-left * KEPT[0] // KEPT[1])
    return ends


def _check_candidates(terms: Settings) -> None:
    """ValueError unless the candidates can be tried side by side."""
    candidates, tunes = terms.objective.candidates, task_of(terms.session.program).takes_candidates
    if tunes != bool(candidates):
        raise ValueError('program tune needs candidates, and candidates need program = "tune"')
    if not tunes:
        return
    name, features = terms.objective.name, len(terms.columns.features)
    plain = name in OBJECTIVES and terms.objective.loss.quantile is None and terms.columns.group is None
    _refuse(
        "program tune",
        (len(terms.objective.candidates) < 2, "one candidate", "name two or more"),
        (
            len(terms.objective.candidates) * features > MAX_COLUMNS_TRIED,
            f"{len(terms.objective.candidates)} candidates of {features} columns",
            f"they are looked at one by one, and {MAX_COLUMNS_TRIED} can be; name fewer of either",
        ),
        (
            not plain or terms.objective.num_class is not None,
            name,
            "it is for objectives of one tree a round",
        ),
        (not terms.validates, "no validation rows", "set validation_fraction, or columns.validation"),
        (terms.noise is not None, "noise", "the choice among candidates would need noise, too; take it away"),
        (terms.vertical.is_used, terms.vertical.key, "it is for parties that have all columns"),
        (terms.xgb_model is not None, "xgb_model", "candidates start from nothing"),
        (terms.trees.num_parallel_tree > 1, "num_parallel_tree", "it is for one tree a round"),
        (terms.histograms.vote_top_k > 0, "vote_top_k", "candidates would vote apart; set 0"),
        (terms.draws.by_gradient_norm, "sampling_method gradient_based", "rows differ by candidate"),
        (terms.session.on_loss == "shrink", 'on_loss = "shrink"', "set wait or stop"),
        (terms.evaluation.party_metrics, "party_metrics", "leave it out"),
        (terms.evaluation.early_stopping_rounds is not None, "early_stopping_rounds", "leave it out"),
    )
    for number, candidate in enumerate(candidates):
        _check_candidate(terms, number, candidate)


def _check_candidate(terms: Settings, number: int, candidate: Mapping[str, Any]) -> None:
    """ValueError unless a training may have these settings, and needs no more than the terms allow."""
    for key in candidate:
        require_known(key, TUNED, f"candidates[{number}]")
    try:
        own = terms.candidate(number)
    except ConfigError as error:
        raise ValueError(f"candidates[{number}]: {str(error).removeprefix('terms: ')}") from None
    most_leaves = terms.max_leaves_per_round // len(terms.roots)
    if own.trees.max_depth > terms.trees.max_depth or own.max_leaves_per_round > most_leaves:
        raise ValueError(f"candidates[{number}]: larger trees than max_depth and max_leaves of the terms")
    if own.trees.min_child_weight < terms.trees.min_child_weight:
        raise ValueError(
            f"candidates[{number}]: min_child_weight is below that of the terms, which sites go by"
        )


# ---- Noise: what the terms say of it that it does not go with, and its releases -------------------------


_WITH_NOISE = {
    *("columns", "parties", "objective", "num_class", "rounds", "max_depth", "learning_rate", "reg_lambda"),
    *("max_bin", "seed", "base_score", "protection", "colluding", "allow_two_parties", "on_loss"),
    *("keyholder", "keyholder_rows", "key_bits"),
    *("turn_timeout", "rejoin_timeout", "quorum", "noise", "program", "cut_points", "min_count"),
}
"""Settings that apply with noise."""
_WHY_NOT = {
    "eval_metric": "metrics of private rows would be one more release each round",
    "early_stopping_rounds": "metrics of private rows would be one more release each round",
    "validation_fraction": "metrics of private rows would be one more release each round",
    "subsample": "noise that hides a row in all rows is never worse than noise that hides it in some",
    "vote_top_k": "votes have no noise",
}


def _check_noise(terms: Settings) -> None:
    """The settings that noise needs, and none that it excludes."""
    noise = terms.noise
    if noise is None:
        if terms.histograms.cut_points == "even":
            raise ValueError(
                "cut_points even lays them evenly over declared ranges, which only noise asks for"
            )
        return
    fields = type(terms).file_keys()
    for name, value in terms.flat.items():
        if name not in _WITH_NOISE and value != fields[name].get_default(call_default_factory=True):
            reason = "it is not built for" if noise.method == "hist" else "there is no use for it in"
            why = _WHY_NOT.get(name, f"{reason} trees of noise.method {noise.method}")
            raise ValueError(f"{name} with noise: {why}; leave it out")
    for name in ("weight", "base_margin", "validation"):
        if getattr(terms.columns, name) is not None:
            raise ValueError(f"columns.{name} with noise: what a row can do has no bound then; leave it out")
    _check_ranges(terms.objective.name, terms.columns)
    shared = noise.placement == "distributed"
    if shared and not terms.protection.hides:
        raise ValueError(
            "distributed noise under protection plain: the aggregator would see every party's sums with "
            'a share of the noise; set protection = "masked", or placement = "local"'
        )
    if terms.session.on_loss == "shrink":
        raise ValueError(
            'on_loss = "shrink" with noise: a question that is asked again of fewer parties would be one '
            "more release; set wait or stop"
        )
    if shared and terms.parties and terms.honest < 1:
        raise ValueError(
            "distributed noise needs two parties, one of which draws some that others do not know"
        )


def _check_ranges(objective: str, columns: Schema) -> None:
    """Gradients are clipped to the range of labels, boosting starts from its middle, and cut points lie in
    the ranges of the columns."""
    kind = OBJECTIVES.get(objective)
    if kind is None or kind.sensitivity is None:
        bounds = ((name, kind.sensitivity) for name, kind in OBJECTIVES.items())
        ranges = {name: bound.needs_label_range for name, bound in bounds if bound is not None}
        known = ", ".join(sorted(ranges, key=ranges.__getitem__))
        raise ValueError(f"{objective} has no bound for what a row can do; with noise use {known}")
    if kind.sensitivity.needs_label_range:
        if columns.label_range is None:
            raise ValueError(
                f"{objective} with noise needs the range of the labels, by what is known and not by the "
                f"rows: columns.label_range = [0, 100]"
            )
        low, high = columns.label_range
        if high - low < 1.0 / MAX_LABEL:
            raise ValueError("label_range is so narrow that no gradient can be measured by it; widen it")
        if kind.label_kind is LabelKind.COUNT and low < 0.0:
            raise ValueError(f"label_range begins at {low:g}, and no label of {objective} is below 0")
    missing = [name for name in columns.numeric if name not in columns.ranges]
    if missing:
        raise ValueError(
            f"noise needs the range of every numeric column, by what is known and not by the rows; "
            f"{missing[0]!r} has none: columns.ranges = {{ {missing[0][:MAX_CHARS]!r} = [0, 100] }}"
        )


# ---- The model that a training continues, or that is measured -------------------------------------------


def _check_model_continued(text: str, terms: Settings) -> None:
    """Raise ConfigError unless these terms can continue the model."""
    booster = continuation.read(text)
    if terms.task.trains and continuation.facts_of(text):
        raise ConfigError("xgb_model: a model that is continued has no facts of its training in the terms")
    differs = _model_difference(booster, terms) or _column_difference(
        booster, continuation.trained_columns(text), terms
    )
    if differs:
        raise ConfigError(f"xgb_model cannot be {terms.task.model_is}: {differs}")


def _model_difference(booster: Booster, terms: Settings) -> str:
    """The first difference between model and terms in what XGBoost stores; '' if there is none."""
    if booster.objective != terms.objective.loss.xgboost_equivalent.name:
        return f"its objective is {booster.objective}, that of the terms {terms.objective.name}"
    if booster.loss.outputs != terms.objective.loss.outputs:
        return f"it has {booster.loss.outputs} classes, the terms have {terms.objective.loss.outputs}"
    if booster.num_parallel_tree != terms.trees.num_parallel_tree:
        own, other = booster.num_parallel_tree, terms.trees.num_parallel_tree
        return f"its num_parallel_tree is {own}, in the terms {other}"
    features, others = booster.features, terms.columns.features
    for number, (name, wanted) in enumerate(zip(features, others, strict=False), 1):
        if name != wanted:
            return f"its feature {number} is {name[:100]!r}, that of the terms {wanted!r}"
    if len(features) != len(others):
        return f"it has {len(features)} features, the terms have {len(others)}"
    odd = {*booster.categorical} ^ {*terms.columns.categorical}
    if odd:
        name = next(name for name in features if name in odd)
        has, has_not = ("it", "the terms") if name in booster.categorical else ("the terms", "it")
        return f"feature {name!r} has levels in {has}, and is numeric in {has_not}"
    if booster.buckets != terms.columns.target_means:
        shown, due = str(booster.buckets)[:100], str(dict(terms.columns.target_means))[:100]
        return f"its columns.target_means are {shown}, in the terms {due}"
    return ""


def _column_difference(booster: Booster, trained: Mapping[str, Any] | None, terms: Settings) -> str:
    """The first difference in the meaning of the model's numbers; '' if there is none."""
    columns = terms.columns.model_dump(mode="json", include={*continuation.MEANINGS})
    based = columns["base_margin"] is not None
    if (based and not booster.begins_with_a_leaf) or (
        trained and (trained["base_margin"] is not None) != based
    ):
        with_margins, without = ("the terms", "it") if based else ("it", "the terms")
        return f"columns.base_margin is in {with_margins}, and not in {without}"
    if terms.objective.base_score is not None:
        constant = booster.trees[0].value[0] if based else booster.constant
        if terms.objective.loss.margin(float(np.float32(terms.objective.base_score))) != constant:
            return f"it does not start from base_score {terms.objective.base_score:g}: leave that out"
    if trained is None:
        return ""
    for name, levels in columns["categorical"].items():
        if trained["categorical"].get(name) != levels:
            return f"the levels of {name!r} are not those of the terms, in their order"
    for name in ("positive", "classes"):
        if trained[name] != columns[name]:
            return f"its columns.{name} is {json.dumps(trained[name])[:100]}, in the terms another"
    return ""


# ---- Checks of combinations: settings of one group of the terms that do not go with those of another ----
# Each check raises ValueError with the keys and what to set in their place.


def _check_model(terms: Settings) -> None:
    """The objective, its metrics, and the size of a round."""
    terms.objective.check(terms.columns)
    terms.trees.check_size(len(terms.roots), terms.max_leaves_per_round)
    terms.evaluation.check_metrics(terms.objective, terms.metrics, len(terms.sets))


def _check_draws(terms: Settings) -> None:
    """Sampling of rows and features, together with other selections of them."""
    terms.evaluation.check_rows(terms.columns)
    if terms.draws.by_gradient_norm and terms.objective.loss.quantile is not None:
        raise ValueError(
            f"sampling_method gradient_based draws rows by the sizes of their gradients; those of "
            f"{terms.objective.name} are signs and say nothing: set uniform"
        )
    if terms.draws.by_gradient_norm and terms.histograms.vote_top_k:
        raise ValueError(
            "vote_top_k elects features by each party's own rows, and sampling_method gradient_based may "
            "draw hardly any of those: give one of both"
        )
    terms.trees.check_names(terms.columns)
    monotone = terms.trees.monotone(terms.columns)
    if monotone and terms.histograms.vote_top_k:
        raise ValueError("vote_top_k elects features without a look at monotone_constraints: give one")
    if monotone and terms.objective.loss.quantile is not None:
        raise ValueError(f"{terms.objective.name} gives leaves their values after they grew: no constraints")
    if terms.histograms.vote_top_k and terms.draws.draws_columns:
        raise ValueError("vote_top_k elects features, and colsample_* draws them: give one of both")


def _check_symmetric(terms: Settings) -> None:
    """Levels that are split by one feature and cut."""
    if terms.trees.grow_policy != "symmetric":
        return
    _refuse(
        "grow_policy symmetric",
        (
            terms.trees.max_leaves > 0,
            f"max_leaves = {terms.trees.max_leaves}",
            "levels are split as a whole; set max_depth, and take max_leaves away",
        ),
        (
            terms.draws.colsample_bynode < 1.0,
            f"colsample_bynode = {terms.draws.colsample_bynode:g}",
            "the nodes of a level have one split; set colsample_bylevel",
        ),
        (
            terms.histograms.vote_top_k > 0,
            "vote_top_k",
            "features are elected for each node, and a level has one split; take vote_top_k away",
        ),
        (
            terms.vertical.min_rows_per_bin > 1,
            "min_rows_per_bin",
            "each node has groups of bins of its own, and a level has one cut; set depthwise",
        ),
    )


def _check_vertical(terms: Settings) -> None:
    """Parties that hold different columns of the same rows."""
    terms.vertical.check(terms.parties, terms.columns)
    if not terms.vertical.is_used:
        return
    _refuse(
        terms.vertical.key,
        *_refused_of_hiding(terms),
        (
            terms.vertical.label_epsilon is not None and not terms.vertical.aligns,
            "label_epsilon",
            'noise belongs to a row id: name columns.row_id, and take rows = "in_order" away',
        ),
        (
            terms.vertical.label_epsilon is not None
            and terms.objective.loss.xgboost_equivalent.label_kind is not LabelKind.CLASS,
            "label_epsilon",
            "the noise is for labels of classes: binary:logistic or multi:softprob",
        ),
        (
            terms.vertical.alone_rounds > terms.trees.rounds,
            f"alone_rounds = {terms.vertical.alone_rounds}",
            f"the terms have rounds = {terms.trees.rounds} in all",
        ),
        (
            terms.vertical.min_rows_per_bin > 1 and terms.trees.num_parallel_tree > 1,
            f"min_rows_per_bin and num_parallel_tree = {terms.trees.num_parallel_tree}",
            "trees of one round have sums over nearly the same rows, whose difference is over few; give one "
            "of both",
        ),
        (terms.noise is not None, "noise", "a party's sums are not of whole rows, which noise is for"),
        (terms.histograms.vote_top_k > 0, "vote_top_k", "no party has all features to vote on"),
        (
            terms.draws.by_gradient_norm,
            "sampling_method gradient_based",
            "only the label holder knows gradients; set uniform",
        ),
        (
            terms.session.on_loss == "shrink",
            'on_loss = "shrink"',
            "no other party has the columns of one that is lost; set wait or stop",
        ),
        (terms.evaluation.party_metrics, "party_metrics", "only the label holder has labels"),
        (terms.xgb_model is not None, "xgb_model", "no party has all columns to go down its trees with"),
        (terms.session.program != "boosting", f"program {terms.session.program!r}", "only boosting is known"),
    )
    terms.vertical.check_rows(terms.columns)


def _refused_of_hiding(terms: Settings) -> tuple[tuple[bool, str, str], ...]:
    """What hides parties of rows, or has its key elsewhere: if it is so, the setting, and why not."""
    return (
        (
            not (terms.hiding.row.may_be_vertical or terms.hiding.row.by_columns),
            f"protection {terms.hiding.protection}",
            "it hides a party among others that hold the same columns, and here nobody does; set "
            'protection = "paillier", or "plain" where all parties may see labels',
        ),
        (
            terms.hides_columns and terms.vertical.label_holder is None,
            f"protection {terms.hiding.protection}",
            'one label holder has the key: set label_holder, or protection = "plain"',
        ),
        (
            terms.hides_columns and terms.hiding.keyholder not in (None, terms.vertical.label_holder),
            "keyholder",
            "the label holder has the key; take keyholder away",
        ),
        (terms.hides_columns and not terms.hiding.keyholder_rows, "keyholder_rows = false", "it has rows"),
    )


def _check_hiding(terms: Settings) -> None:
    if terms.hides_columns or not terms.task.is_protected:
        return
    shared = terms.noise is not None and terms.noise.placement == "distributed"
    shrinks = terms.session.on_loss == "shrink"
    terms.hiding.check_parties(terms.parties, shared)
    terms.hiding.check_number(terms.parties, shrinks)
    terms.hiding.check_keyholder(terms.parties, shrinks)


def _check_losses(terms: Settings) -> None:
    """Rosters that shrink."""
    if terms.session.on_loss == "shrink" and terms.objective.loss.quantile is not None:
        raise ValueError(
            f'{terms.objective.name} with on_loss = "shrink": its gradients are signs, which stay as they '
            f"are when margins move, so that two rosters would show the difference; set wait or stop"
        )
    terms.session.check_roster(terms.parties, terms.min_roster, terms.hiding.protection)


def _check_columns(terms: Settings) -> None:
    terms.objective.check_start(terms.columns)
    terms.histograms.check_votes(terms.columns)
    terms.objective.check_positive(terms.columns)


def _check_continuation(terms: Settings) -> None:
    if terms.xgb_model is None:
        return
    if not (terms.task.model_is and terms.session.is_built_in):
        raise ValueError(f"xgb_model is continued by the program boosting, not by {terms.session.program!r}")
    try:
        _check_model_continued(terms.xgb_model, terms)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _check_task(terms: Settings) -> None:
    """What is no training."""
    terms.evaluation.check_subgroups(terms.columns)
    inexact = {
        "noise": terms.noise is not None,
        terms.vertical.key: terms.vertical.is_used,
        'on_loss = "shrink"': terms.session.on_loss == "shrink",
        f"program {terms.session.program!r}": not (terms.task.trains and terms.session.is_built_in),
    }
    terms.evaluation.check_counted(setting for setting, is_so in inexact.items() if is_so)
    program = terms.session.program
    if not terms.task.measures:
        return
    if terms.noise is not None:
        raise ValueError(f"program {program} gives exact sums: take noise away")
    if terms.xgb_model is None:
        raise ValueError(f"program {program} needs xgb_model, the model that it is about")
    if terms.session.on_loss == "shrink":
        raise ValueError(f'program {program} with on_loss = "shrink": set wait or stop')
    if terms.validates:
        raise ValueError(
            f"program {program} holds no rows out: take validation_fraction or columns.validation away; "
            f"evaluate_rows says which rows are measured"
        )
    try:
        trained, rows = terms.trained, terms.evaluation.evaluate_rows
        if trained is not None and not trained.task.trains:
            raise ConfigError("xgb_model: the terms of its training train nothing")
        if rows != "all" and trained is None:
            raise ConfigError(f"evaluate_rows = {rows!r}: the model does not say how it was trained; set all")
        if rows == "held-out" and trained is not None and not trained.validates:
            raise ConfigError("evaluate_rows = 'held-out': the training held no rows out; set all, or new")
        continuation.check_attached(terms.xgb_model, terms.task)
    except ConfigError as error:
        raise ValueError(str(error)) from None


CHECKS: tuple[Callable[[Settings], None], ...] = (
    *(_check_target_means, _check_candidates, _check_task, _check_noise, _check_model, _check_draws),
    *(_check_symmetric, _check_vertical, _check_hiding, _check_losses, _check_columns),
    _check_continuation,
)


# ---- What every party agreed to for one session: the model, the data schema, the protection -------------


class Terms(Settings):
    """The agreement of one session: settings that go together. Each group was checked by itself."""

    def check(self) -> None:
        """Raise ValueError unless the groups go together."""
        for check in CHECKS:
            check(self)
