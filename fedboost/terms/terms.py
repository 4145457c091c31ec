"""What every party agreed to for one session: the model, the data schema, the protection. Frozen, hashed.

Promises: `Terms.digest` is the same on every machine for the same terms; everything that decides the model
is in here, and nothing else is.
Refuses: unknown keys and values (naming the nearest known one), and combinations that cannot be trained.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator

from fedboost.errors import ConfigError
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_REFINEMENTS
from fedboost.gbdt.metrics.registry import OF_PARTY, TRAIN, VALIDATION
from fedboost.gbdt.objectives import objective as sensitivity
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.split import SplitRule
from fedboost.gbdt.target_means import FOLDS, Slots
from fedboost.privacy.protections import PROTECTIONS, Protection
from fedboost.terms import continuation, session
from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Hiding
from fedboost.terms.noise import Noise, Plan, check_noise, plan_for
from fedboost.terms.objective import Evaluation, Objective
from fedboost.terms.reading import MAX_FEATURES, Flat, read_model
from fedboost.terms.session import (
    MAX_PARTIES,
    MEASURING,
    TO_DESCRIBE,
    TO_DRIFT,
    TO_EVALUATE,
    TO_PREDICT,
    TO_TRAIN,
    TO_TUNE,
    TRAINING,
    Parties,
    Session,
)
from fedboost.terms.trees import Draws, Histograms, Trees
from fedboost.terms.vertical import Blocks, Vertical

# ---- Columns whose levels become means of the label: their slots, and the terms that cannot have them ----
# Refuses: terms with such columns under which labels have no mean, or no party sees a row's level and label
# together (ValueError).


KEY = "columns.target_means"
MAX_ENCRYPTED = 1 << 14
"""Most buckets in all where sums are encrypted: each takes a key holder some twenty numbers."""


def slots_of(terms: "Terms") -> dict[str, Slots]:
    """The slots of each column. With noise there are no folds: it hides what a row adds to the mean of its
    level, and each fold would have noise of its own."""
    folds = 1 if terms.noise is not None else FOLDS + 1
    return {name: Slots(buckets, folds) for name, buckets in terms.columns.target_means.items()}


def have_folds(terms: "Terms") -> bool:
    """True if each row is in a fold."""
    return terms.task == TO_TRAIN and terms.noise is None and bool(terms.columns.target_means)


def check(terms: "Terms") -> None:
    """ValueError unless the levels of these columns may become means."""
    if not terms.columns.target_means:
        return
    for is_so, setting, reason in _refused(terms):
        if is_so:
            raise ValueError(f"{KEY} with {setting}: {reason}")


def _refused(terms: "Terms") -> tuple[tuple[bool, str, str], ...]:
    """If it is so, the setting, and why not."""
    known = ", ".join(name for name, kind in OBJECTIVES.items() if kind.has_label_means)
    name, buckets = terms.objective.name, sum(terms.columns.target_means.values())
    trains = terms.task in (TO_TRAIN, TO_TUNE)
    return (
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
        (
            terms.task == TO_DESCRIBE,
            "program describe",
            "levels by the thousand are not counted",
        ),
        (terms.task == TO_TUNE, "program tune", "it is for training with fixed settings; take it away"),
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


# ---- Checks of combinations: settings of one group of the terms that do not go with those of another ----
# Each check raises ValueError with the keys and what to set in their place.


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
    *(check, session.check, _check_task, _check_noise, _check_model, _check_draws),
    *(_check_symmetric, _check_vertical, _check_hiding, _check_losses, _check_columns),
    _check_continuation,
)


# ---- What every party agreed to for one session: the model, the data schema, the protection -------------


ALIGNMENT_TURNS = 3
"""Queries that match rows by their ids, or have them predicted."""
_TURNS = {TO_PREDICT: ALIGNMENT_TURNS, TO_DESCRIBE: 1 + MAX_REFINEMENTS, TO_EVALUATE: 2, TO_DRIFT: 1}
"""Most queries of a session that trains nothing."""
MAX_RENEWAL_QUERIES = 3
"""Most queries about the residuals in the leaves of a tree."""

_ORDER = (
    *("columns", "parties", "objective", "objective_params", "objective_package", "rounds", "max_depth"),
    *("learning_rate", "max_bin", "max_cat_to_onehot", "max_cat_threshold", "reg_lambda", "reg_alpha"),
    *("gamma", "min_child_weight", "grow_policy", "max_leaves", "num_parallel_tree", "subsample"),
    *("sampling_method", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
    *("monotone_constraints", "interaction_constraints", "seed", "max_delta_step", "base_score"),
    *("num_class", "scale_pos_weight", "tweedie_variance_power", "huber_slope", "quantile_alpha"),
    *("lambdarank_pair_method", "lambdarank_num_pair_per_sample", "lambdarank_normalization"),
    *("lambdarank_score_normalization", "ndcg_exp_gain", "aft_loss_distribution"),
    *("aft_loss_distribution_scale", "eval_metric", "party_metrics", "validation_fraction"),
    *("early_stopping_rounds", "xgb_model", "cut_points", "gradient_bits", "protection", "keyholder"),
    *("keyholder_rows", "key_bits", "colluding", "allow_two_parties", "on_loss", "turn_timeout"),
    *("rejoin_timeout", "quorum", "vote_top_k", "noise", "program", "label_holder", "blocks"),
    *(
        "rows",
        "min_common_rows",
        "max_ids",
        "repeated_ids",
        "id_form",
        "model",
        "alone_rounds",
        "min_rows_per_bin",
        "label_epsilon",
        "predict_with",
        "predict_rows",
        *("min_count", "candidates", "subgroups", "threshold", "reference", "evaluate_rows"),
    ),
)
"""The keys as they stand in the JSON that is hashed."""


_OMITTED = (
    *("label_holder", "blocks", "rows", "min_common_rows", "max_ids", "repeated_ids", "id_form"),
    *("model", "alone_rounds", "min_rows_per_bin", "label_epsilon", "predict_with", "predict_rows"),
    *("min_count", "candidates", "subgroups", "threshold", "reference", "evaluate_rows"),
)


class Terms(Flat):
    """The agreement of one session: one flat table of keys, which have XGBoost's names and defaults but for
    `rounds`, read into groups. A group is checked by itself, then against the others (`combinations`)."""

    ORDER: ClassVar[tuple[str, ...]] = _ORDER
    OMITTED: ClassVar[tuple[str, ...]] = _OMITTED

    columns: Schema = Field(description="The columns that every party must have.")
    parties: Parties = Field(
        default=(),
        max_length=MAX_PARTIES,
        description="Names of the parties, as in their certificates. Simulations may leave them out.",
    )
    noise: Noise | None = Field(
        default=None,
        description="Differential privacy of each row, such as `{ epsilon = 1.0, delta = 1e-6 }`: other "
        "trees, other defaults, and `columns.ranges` must be set. See [privacy](privacy.md).",
    )
    xgb_model: str | None = Field(
        default=None,
        repr=False,
        description="File of a model to continue, of fedboost or XGBoost with the same features and "
        "objective: `rounds` more are [added to it](models.md#continue-a-model). With "
        '`program = "evaluate"`, the model that is evaluated.',
    )
    objective: Objective
    trees: Trees
    histograms: Histograms
    draws: Draws
    evaluation: Evaluation
    hiding: Hiding
    session: Session
    vertical: Vertical

    if TYPE_CHECKING:  # the keys are flat, and not those of the fields

        def __init__(self, **settings: Any) -> None: ...

    # ---- what follows from several groups -----------------------------------------------------------

    @property
    def task(self) -> str:
        """What a session under these terms does, such as TO_TRAIN (`session`)."""
        return TO_PREDICT if self.vertical.predicts else self.session.task

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that hold rows: all but a key holder without any."""
        return self.hiding.holders(self.parties)

    @cached_property
    def blocks(self) -> Blocks:
        """Parties that hold different columns of the same rows; none where each party has all columns."""
        return self.vertical.blocks_and_columns(self.parties, self.session.read(self.columns))

    @property
    def protection(self) -> Protection:
        """The protection of the parties' vectors."""
        row = PROTECTIONS["plain"] if self.vertical.predicts else self.hiding.row
        return row.by_columns or row if self.vertical.is_used else row

    @property
    def keyholder(self) -> str | None:
        """The party that decrypts."""
        of_columns = self.vertical.label_holder if self.hides_columns else None
        return of_columns if self.vertical.is_used else self.hiding.keyholder

    @property
    def hides_columns(self) -> bool:
        """True if parties hold different columns, and the others learn neither labels nor cut points."""
        return self.vertical.is_used and self.protection.uses_key_holder

    @property
    def keeps_parts(self) -> bool:
        """True if each party keeps its part of the model."""
        return self.vertical.keeps_parts(self.hides_columns)

    @property
    def honest(self) -> int:
        """Fewest parties with rows whose shares of the noise are secret: a party can subtract its own."""
        return len(self.holders) - max(1, self.hiding.group(self.parties).colluding)

    @property
    def min_roster(self) -> int:
        """Fewest parties of a sum that is opened."""
        if self.session.on_loss != "shrink":
            return len(self.parties)
        smallest = self.protection.min_roster(self.hiding.group(self.parties))
        return max(smallest, self.session.quorum or len(self.parties) // 2 + 1)

    @property
    def signers(self) -> int:
        """Fewest signatures on a valid model: all where each party signs what nobody else was told."""
        return len(self.parties) if self.blocks else self.hiding.signers(self.parties)

    @property
    def bound(self) -> sensitivity.Bound:
        """Bound of a row's part in sums that get noise."""
        return sensitivity.bound_of(self.objective.loss, self.columns.label_range)

    @cached_property
    def plan(self) -> Plan:
        """Releases of a session with noise."""
        assert self.noise is not None
        return plan_for(self, self.noise)

    @cached_property
    def max_turns_per_tree(self) -> int:
        """Most queries about one tree before its end: levels, votes, residuals."""
        deepest = self.max_leaves_per_round if self.trees.grow_policy == "lossguide" else self.trees.max_depth
        renewal = 0 if self.objective.loss.quantile is None else MAX_RENEWAL_QUERIES
        if self.noise is not None:
            return self.trees.max_depth if self.noise.method == "hist" else 1
        return (2 * deepest - 1 if self.histograms.vote_top_k else deepest) + renewal

    @cached_property
    def max_turns(self) -> int:
        """Most queries of a session."""
        before = ALIGNMENT_TURNS * self.vertical.aligns + MAX_REFINEMENTS + MAX_RENEWAL_QUERIES
        before += 2 + self.evaluation.reference + bool(self.columns.target_means)
        return _TURNS.get(self.task, before + (self.trees.rounds + 1) * (self.max_turns_per_tree + 1))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The roots that grow in a round: num_parallel_tree for the first output, then for the second."""
        return tuple(range(self.objective.loss.outputs * self.trees.num_parallel_tree))

    @cached_property
    def max_leaves_per_round(self) -> int:
        """Most leaves of a round's trees together."""
        deepest: int = 1 << self.trees.max_depth
        return len(self.roots) * min(deepest, self.trees.max_leaves or deepest)

    @cached_property
    def earlier(self) -> Booster | None:
        """The model that is continued."""
        return None if self.xgb_model is None else continuation.read(self.xgb_model)

    @cached_property
    def trained(self) -> "Terms | None":
        """The terms of the training of a model that is measured, as its file has them; None where it has
        none. ConfigError for others. They prove nothing without a signature of the model."""
        facts = {} if self.xgb_model is None else continuation.facts_of(self.xgb_model)
        text = facts.get(continuation.TRAINED_UNDER)
        return None if text is None else Terms.from_canonical(text)

    @property
    def reference_features(self) -> int:
        """Numeric features whose bins are in the reference of the model; 0 without one."""
        return len(self.columns.ordered) if self.evaluation.reference else 0

    @property
    def constant_rounds(self) -> int:
        """Rounds before this session's first tree: of a continued model, or of a constant that is a leaf."""
        constant = int(self.columns.base_margin is not None)
        return constant if self.earlier is None else len(self.earlier.trees) // len(self.roots)

    @property
    def first_tree(self) -> int:
        """The number of this session's first tree among all of the model: rows and columns are sampled
        by it, as if all were trained at once."""
        return self.constant_rounds - int(self.columns.base_margin is not None)

    def rule(self, gradient: Scale, hessian: Scale) -> SplitRule:
        """The rule of splits and leaf values, for sums of these scales."""
        trees = self.trees
        scales, categories = (gradient, hessian), (trees.max_cat_to_onehot, trees.max_cat_threshold)
        step = self.objective.step, trees.leaf_rate
        return SplitRule(*trees.penalties, *step, *scales, *categories, trees.monotone(self.columns))

    @property
    def bits(self) -> int:
        """Bits of a row's gradient and hessian, sign included: gradient_bits, or the objective's own."""
        if self.noise is not None:
            return sensitivity.NOISE_BITS
        return self.histograms.gradient_bits or self.objective.loss.gradient_bits

    @property
    def needs_exponent_counts(self) -> bool:
        """True if gradients have no public bound, so that the parties must count their exponents."""
        return self.noise is None and (self.objective.loss.bounds is None or self.columns.weight is not None)

    @property
    def shares_turns(self) -> bool:
        """True if several queries may share a turn: not where rosters may change, or answers get noise."""
        return self.session.on_loss != "shrink" and self.noise is None

    @property
    def known_weight_scale(self) -> Scale | None:
        """The scale of row weights if all are 1."""
        return None if self.columns.weight else UNIT

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of each round: eval_metric, or the objective's own."""
        own = self.evaluation.eval_metric or (self.objective.loss.default_metric,)
        return () if self.noise is not None else self.objective.of_trials(own)

    @cached_property
    def sets(self) -> tuple[str, ...]:
        """Sets of rows for metrics: first those of all parties."""
        if self.noise is not None:
            return ()
        sets = (TRAIN, VALIDATION) if self.validates else (TRAIN,)
        owners = self.parties if self.evaluation.party_metrics else ()
        return (*sets, *(f"{party}{OF_PARTY}{rows}" for party in owners for rows in sets))

    @property
    def validates(self) -> bool:
        """True if there are validation rows."""
        return self.evaluation.validates(self.columns)

    @property
    def draws_rows(self) -> bool:
        """True if rows are sampled."""
        return self.draws.draws_for_trees or self.evaluation.validation_fraction > 0.0

    # ---- in writing ---------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_parties(self, parties: Iterable[str]) -> Self:
        """The same terms for these parties."""
        return self.changed(parties=tuple(parties))

    def changed(self, **settings: object) -> Self:
        """The same terms with other settings by their flat keys, checked again; unset ones get their new
        defaults."""
        return type(self).read({**self.model_dump(mode="json", exclude_unset=True), **settings})

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str = "terms") -> Self:
        """Terms from plain values (TOML, JSON). Raises ConfigError with one line that names the key."""
        return read_model(cls, values, source)

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """Terms from the text of `canonical`."""
        return cls.read(_parsed(text))

    @field_validator("objective")
    @classmethod
    def _complete_objective(cls, value: Objective, info: ValidationInfo) -> Objective:
        return value.completed(info.data.get("columns"))

    @field_validator("trees")
    @classmethod
    def _defaults_with_noise(cls, value: Trees, info: ValidationInfo) -> Trees:
        noise, columns = info.data.get("noise"), info.data.get("columns")
        if noise is None or columns is None:
            return value
        defaults = noise.tree_defaults(columns)
        return value.replaced(**{key: defaults[key] for key in defaults.keys() - value.model_fields_set})

    def check(self) -> None:
        """Raise ValueError unless the groups go together."""
        for check in CHECKS:
            check(self)


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object in a text. ConfigError if there is none."""
    try:
        values = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"terms: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("terms: not a JSON object")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object with a limited number of keys: each unknown one is a fault, and takes memory."""
    if len(pairs) > MAX_FEATURES:
        raise ConfigError(f"terms: {len(pairs)} keys in one table; {MAX_FEATURES} are allowed")
    return dict(pairs)
