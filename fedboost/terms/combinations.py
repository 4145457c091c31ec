"""Checks of combinations: settings of one group of the terms that do not go with those of another.

Each check raises ValueError with the keys and what to set in their place.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.terms import continuation, target_means, tuning
from fedboost.terms.noise import check_noise
from fedboost.terms.session import MEASURING, TO_DRIFT, TO_EVALUATE, TO_TRAIN, TO_TUNE, TRAINING

if TYPE_CHECKING:
    from fedboost.terms.terms import Terms


_WITH_MODEL = (TO_TRAIN, TO_EVALUATE, TO_DRIFT)
"""What sessions with `xgb_model` may do."""


def _check_noise(terms: "Terms") -> None:
    if terms.noise is not None:
        check_noise(terms, terms.noise)
    elif terms.histograms.cut_points == "even":
        raise ValueError("cut_points even lays them evenly over declared ranges, which only noise asks for")


def _check_model(terms: "Terms") -> None:
    """The objective, its metrics, and the size of a round."""
    terms.objective.check(terms.columns)
    terms.trees.check_size(len(terms.roots), terms.max_leaves_per_round)
    terms.evaluation.check_metrics(terms.objective, terms.metrics, len(terms.sets))


def _check_draws(terms: "Terms") -> None:
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


def _check_symmetric(terms: "Terms") -> None:
    """Levels that are split by one feature and cut."""
    if terms.trees.grow_policy != "symmetric":
        return
    refused = (
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
    for is_so, setting, reason in refused:
        if is_so:
            raise ValueError(f"grow_policy symmetric with {setting}: {reason}")


def _check_vertical(terms: "Terms") -> None:
    """Parties that hold different columns of the same rows."""
    terms.vertical.check(terms.parties, terms.columns)
    if not terms.vertical.is_used:
        return
    refused = (
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
    for is_so, setting, reason in refused:
        if is_so:
            raise ValueError(f"{terms.vertical.key} with {setting}: {reason}")
    terms.vertical.check_rows(terms.columns)


def _refused_of_hiding(terms: "Terms") -> tuple[tuple[bool, str, str], ...]:
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


def _check_hiding(terms: "Terms") -> None:
    if terms.hides_columns or terms.vertical.predicts:
        return
    shared = terms.noise is not None and terms.noise.placement == "distributed"
    shrinks = terms.session.on_loss == "shrink"
    terms.hiding.check_parties(terms.parties, shared)
    terms.hiding.check_number(terms.parties, shrinks)
    terms.hiding.check_keyholder(terms.parties, shrinks)


def _check_losses(terms: "Terms") -> None:
    """Rosters that shrink."""
    if terms.session.on_loss == "shrink" and terms.objective.loss.quantile is not None:
        raise ValueError(
            f'{terms.objective.name} with on_loss = "shrink": its gradients are signs, which stay as they '
            f"are when margins move, so that two rosters would show the difference; set wait or stop"
        )
    terms.session.check_roster(terms.parties, terms.min_roster, terms.hiding.protection)


def _check_columns(terms: "Terms") -> None:
    terms.objective.check_start(terms.columns)
    terms.histograms.check_votes(terms.columns)
    terms.objective.check_positive(terms.columns)


def _check_continuation(terms: "Terms") -> None:
    if terms.xgb_model is None:
        return
    if terms.task not in _WITH_MODEL or terms.session.program not in ("boosting", *_WITH_MODEL):
        raise ValueError(f"xgb_model is continued by the program boosting, not by {terms.session.program!r}")
    try:
        continuation.check(terms.xgb_model, terms)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _check_task(terms: "Terms") -> None:
    """What is no training."""
    terms.evaluation.check_subgroups(terms.columns)
    if terms.evaluation.reference:
        _check_reference(terms)
    program = terms.task
    if program not in MEASURING:
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
        if trained is not None and trained.task not in TRAINING:
            raise ConfigError("xgb_model: the terms of its training train nothing")
        if rows != "all" and trained is None:
            raise ConfigError(f"evaluate_rows = {rows!r}: the model does not say how it was trained; set all")
        if rows == "held-out" and trained is not None and not trained.validates:
            raise ConfigError("evaluate_rows = 'held-out': the training held no rows out; set all, or new")
        if program == TO_DRIFT:
            continuation.check_bins(terms.xgb_model, continuation.read(terms.xgb_model))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _check_reference(terms: "Terms") -> None:
    refused = {
        "noise": terms.noise is not None,
        terms.vertical.key: terms.vertical.is_used,
        'on_loss = "shrink"': terms.session.on_loss == "shrink",
        f"program {terms.session.program!r}": terms.session.program not in ("boosting", TO_TUNE),
    }
    for setting, is_so in refused.items():
        if is_so:
            raise ValueError(f"reference = true with {setting}: rows are counted exactly, of all columns")


CHECKS: tuple[Callable[["Terms"], None], ...] = (
    *(target_means.check, tuning.check, _check_task, _check_noise, _check_model, _check_draws),
    *(_check_symmetric, _check_vertical, _check_hiding, _check_losses, _check_columns),
    _check_continuation,
)
