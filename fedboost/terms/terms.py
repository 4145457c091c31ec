"""Terms: the settings that all parties agree on for one session (model, columns, protection). They are
immutable and identified by a hash.

Files, the digest and the wire format use one flat table of keys. In code, the keys are split into groups;
this module contains everything that involves more than one group.

Guarantees: `Terms.digest` is the same on every machine for the same terms. The terms contain everything that
determines the model.
Rejects: unknown keys and values (suggesting the nearest known one), and combinations that are not
supported."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedboost.errors import ConfigError
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_REFINEMENTS
from fedboost.gbdt.metrics import (
    COUNTED,
    OF_PARTY,
    OF_TRIAL,
    PARTIAL_LIKELIHOOD,
    TRAIN,
    VALIDATION,
    is_counted,
    is_metric,
)
from fedboost.gbdt.objectives import objective as sensitivity
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.survival import CINDEX
from fedboost.gbdt.tree import SplitRule
from fedboost.privacy.protections import PROTECTIONS, Protection
from fedboost.terms import continuation, hiding
from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Hiding, Noise, Plan
from fedboost.terms.reading import MAX_FEATURES, Flat, OrNone, read_model, refused, require_known
from fedboost.terms.session import ALIGNMENT_TURNS, MAX_PARTIES, TASKS, Parties, Session, Task, task_of
from fedboost.terms.training import Draws, Evaluation, Histograms, Objective, Trees
from fedboost.terms.vertical import Blocks, Vertical

MAX_RENEWAL_QUERIES = 3
"""Maximum number of queries about the residuals in the leaves of one tree."""


class Terms(Flat):
    """Settings that all parties agree on for one session. Keys have XGBoost's names and defaults, except
    `rounds`."""

    OMITTED: ClassVar[tuple[str, ...]] = (
        *("label_holder", "blocks", "rows", "min_common_rows", "max_ids", "repeated_ids", "id_form"),
        *("model", "alone_rounds", "min_rows_per_bin", "label_epsilon", "predict_with", "predict_rows"),
        *("min_count", "candidates", "subgroups", "threshold", "evaluate_rows", "level_names"),
    )
    ORDER: ClassVar[tuple[str, ...]] = (
        *("columns", "parties", "objective", "objective_params", "objective_package", "rounds", "max_depth"),
        *("learning_rate", "max_bin", "max_cat_to_onehot", "max_cat_threshold", "reg_lambda", "reg_alpha"),
        *("gamma", "min_child_weight", "grow_policy", "max_leaves", "num_parallel_tree", "subsample"),
        *("sampling_method", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
        *("monotone_constraints", "interaction_constraints", "seed", "max_delta_step", "base_score"),
        *("num_class", "scale_pos_weight", "tweedie_variance_power", "huber_slope", "quantile_alpha"),
        *("lambdarank_pair_method", "lambdarank_num_pair_per_sample", "lambdarank_normalization"),
        *("lambdarank_score_normalization", "ndcg_exp_gain", "aft_loss_distribution"),
        *("aft_loss_distribution_scale", "eval_metric", "party_metrics", "validation_fraction"),
        *("early_stopping_rounds", "xgb_model", "gradient_bits", "protection", "keyholder"),
        *("keyholder_rows", "key_bits", "colluding", "allow_two_parties", "on_loss", "turn_timeout"),
        *("rejoin_timeout", "quorum", "vote_top_k", "noise", "program"),
    )

    columns: Schema = Field(description="Columns that every party's table must have.")
    parties: Parties = Field(
        default=(),
        max_length=MAX_PARTIES,
        description="Names of the parties, as in their certificates. Optional in simulations.",
    )
    noise: OrNone[Noise] = Field(
        description="Differential privacy for each row, e.g. `{ epsilon = 1.0, delta = 1e-6 }`. It changes "
        "how trees are grown and some defaults, and it requires `columns.ranges`. See "
        "[privacy](privacy.md).",
    )
    xgb_model: OrNone[str] = Field(
        repr=False,
        description="Path of a model to continue, from fedboost or XGBoost, with the same features and "
        "objective. `rounds` more rounds are [added to it](models.md#continue-a-model). With `program = "
        '"evaluate"`, the model to evaluate.',
    )
    objective: Objective
    trees: Trees
    histograms: Histograms
    draws: Draws
    evaluation: Evaluation
    hiding: Hiding
    session: Session
    vertical: Vertical

    if TYPE_CHECKING:  # arguments are the flat keys, not the fields

        def __init__(self, **settings: Any) -> None: ...

    # ---- Values that depend on several groups -------------------------------------------------------

    @cached_property
    def task(self) -> Task:
        named = task_of(self.session.program)
        return named if named.measures or not self.vertical.predicts else TASKS["predict"]

    @property
    def evaluates_jointly(self) -> bool:
        """True if parties with different columns predict the label holder's rows to evaluate a model."""
        return self.vertical.is_used and self.task.measures and not self.task.uses_reference

    @property
    def counts_jointly(self) -> bool:
        """True if parties with different columns describe their common rows, or evaluate a model on them."""
        return self.vertical.is_used and not self.task.trains and self.task.by_analyst

    @property
    def holders(self) -> tuple[str, ...]:
        """Parties with rows, i.e. all except a key holder without rows."""
        return self.hiding.holders(self.parties)

    def relays_to(self, party: str) -> tuple[str, ...]:
        """Return the parties to which this party may relay bytes: of its block or, to name levels, all."""
        block = self.blocks.of(party)
        parties = block.parties if block else self.parties if self.evaluation.level_names else ()
        return tuple(other for other in parties if other != party)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of parties that hold different columns; empty (false) if each party has all columns."""
        vertical = self.vertical
        return Blocks(vertical.blocks_of(self.parties), self.task.read(self.columns), vertical.aligns)

    @property
    def protection(self) -> Protection:
        hides = self.task.is_protected and not self.counts_jointly
        row = self.hiding.row if hides else PROTECTIONS["plain"]
        return row.by_columns or row if self.vertical.is_used else row

    @cached_property
    def keyholder(self) -> str | None:
        """Name of the party that decrypts sums, or None if they are not encrypted."""
        of_columns = self.vertical.label_holder if self.hides_columns else None
        return of_columns if self.vertical.is_used else self.hiding.keyholder

    @cached_property
    def hides_columns(self) -> bool:
        """True if parties hold different columns, and other parties learn neither labels nor cut points."""
        return self.vertical.is_used and self.protection.uses_key_holder

    @cached_property
    def keeps_parts(self) -> bool:
        return self.task.makes_model and self.vertical.keeps_parts(self.hides_columns)

    @property
    def honest(self) -> int:
        """Minimum number of parties with rows whose noise shares stay secret. Even a single curious party can
        subtract its own share."""
        return len(self.holders) - max(1, self.hiding.group(self.parties).colluding)

    @property
    def min_roster(self) -> int:
        """Minimum number of parties in a sum that is opened."""
        if self.session.on_loss != "shrink":
            return len(self.parties)
        smallest = self.protection.min_roster(self.hiding.group(self.parties))
        return max(smallest, self.session.quorum or len(self.parties) // 2 + 1)

    @property
    def signers(self) -> int:
        """Minimum number of signatures on a valid model. It is the number of parties if each signs its own
        view."""
        return len(self.parties) if self.blocks else self.hiding.signers(self.parties)

    @property
    def bound(self) -> sensitivity.Bound:
        """The bound on a row's contribution to noisy sums."""
        return sensitivity.bound_of(self.objective.loss, self.columns.label_range)

    @cached_property
    def plan(self) -> Plan:
        assert self.noise is not None
        columns, noise = self.columns, self.noise
        enough = max(self.honest, 1) if noise.placement == "distributed" else 1
        shares = enough, max(len(self.holders), 1)
        if not self.task.trains:
            return hiding.plan_of_counts(noise, self.task, columns, self.objective.loss, shares)
        summed, sensitivity = len(columns.target_means), self.bound.sensitivity
        return hiding.plan_of(noise, len(columns.numeric), self.trees.rounds, sensitivity, shares, summed)

    def groups_of_bins(self, rows: float) -> int:
        """Return into how many groups the bins of a numeric feature are joined with noise, if there are this
        many rows and predictions are undecided."""
        hessian = rows * self.objective.loss.typical_row(self.bound)[1]
        groups = hiding.groups_of(hessian, self.bound.hessian(self.plan.releases[hiding.TREES].sigma))
        return min(groups, hiding.MAX_NOISY_BINS)

    @property
    def deepest(self) -> int:
        """Maximum number of splits above a leaf. With noise, a tree of one feature may be lopsided, as its
        groups have equally many rows rather than bins."""
        return self.trees.max_depth + hiding.LOPSIDED * (self.noise is not None)

    @property
    def pairs(self) -> int:
        """Number of pairs of features whose joint effects are fitted with noise. Rounds for features come
        first, so there may be fewer pairs than the noise settings allow."""
        features = len(self.columns.features)
        left = self.trees.rounds - hiding.ROUNDS_A_FEATURE * features
        wanted = 0 if self.noise is None else self.noise.pairs_among(features)
        return min(wanted, max(left, 0) // hiding.ROUNDS_A_PAIR)

    @cached_property
    def max_turns_per_tree(self) -> int:
        """Maximum number of queries about one tree before its end: levels, votes and residuals."""
        deepest = self.max_leaves_per_round if self.trees.grow_policy == "lossguide" else self.trees.max_depth
        renewal = 0 if self.objective.loss.quantile is None else MAX_RENEWAL_QUERIES
        if self.noise is not None:
            return 1
        return (2 * deepest - 1 if self.histograms.vote_top_k else deepest) + renewal

    @cached_property
    def max_turns(self) -> int:
        if self.task.max_turns is not None:
            names = 2 * bool(self.evaluation.level_names)
            return self.task.max_turns + ALIGNMENT_TURNS * self.counts_jointly + names
        before = ALIGNMENT_TURNS * self.vertical.aligns + MAX_REFINEMENTS + MAX_RENEWAL_QUERIES
        before += 4  # rows, start, sums by level or events by time, and rows by bin
        return before + (self.trees.rounds + 1) * (self.max_turns_per_tree + 1)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Numbers of the trees that grow in a round, ordered by output: num_parallel_tree trees per
        output."""
        return tuple(range(self.objective.loss.outputs * self.trees.num_parallel_tree))

    @cached_property
    def max_leaves_per_round(self) -> int:
        """Maximum total number of leaves of all trees in a round."""
        deepest: int = 1 << self.trees.max_depth
        return len(self.roots) * min(deepest, self.trees.max_leaves or deepest)

    @cached_property
    def earlier(self) -> Booster | None:
        """The model in `xgb_model` (a model that the session continues, evaluates or compares with rows), or
        None."""
        text, parties = self.xgb_model, len(self.parties) or MAX_PARTIES
        return None if text is None else continuation.read(text, parties)

    @cached_property
    def trained(self) -> Self | None:
        """Terms under which the model in `xgb_model` was trained, or None if its file does not contain them.
        They prove nothing unless the model is signed. If the parties keep the model's parts, these are terms
        with the same settings, which each site compares with its part. Raises ConfigError if invalid."""
        if self.evaluates_jointly and self.vertical.predict_with is not None:
            own = "program", "predict_with", "predict_rows", "subgroups", "threshold", "evaluate_rows"
            return self.altered({}, without=own)
        facts = {} if self.xgb_model is None else continuation.facts_of(self.xgb_model)
        text = facts.get(continuation.TRAINED_UNDER)
        return None if text is None else type(self).from_canonical(text)

    @property
    def constant_rounds(self) -> int:
        """Number of rounds of the model before this session's first tree: the rounds of the model that is
        continued, or 1 if the initial constant is stored as a tree."""
        constant = int(self.columns.base_margin is not None)
        return constant if self.earlier is None else len(self.earlier.trees) // len(self.roots)

    @property
    def first_tree(self) -> int:
        """Number, within the whole model, of the first round of this session. Random sampling continues as if
        all rounds belonged to one session."""
        return self.constant_rounds - int(self.columns.base_margin is not None)

    def rule(self, gradient: Scale, hessian: Scale) -> SplitRule:
        """Return the rule for splits and leaf values. gradient, hessian: scales of the gradient and hessian
        sums."""
        trees = self.trees
        scales, categories = (gradient, hessian), (trees.max_cat_to_onehot, trees.max_cat_threshold)
        step = self.objective.step, trees.leaf_rate
        return SplitRule(*trees.penalties, *step, *scales, *categories, trees.monotone(self.columns))

    @property
    def bits(self) -> int:
        """Number of bits of a row's gradient and hessian, including the sign: gradient_bits, or the
        objective's default."""
        if self.noise is not None:
            return sensitivity.NOISE_BITS
        return self.histograms.gradient_bits or self.objective.loss.gradient_bits

    @property
    def needs_exponent_counts(self) -> bool:
        """True if gradients have no public bound, so that parties must count their binary exponents."""
        return self.noise is None and (self.objective.loss.bounds is None or self.columns.weight is not None)

    @cached_property
    def sums_risk(self) -> bool:
        """True if each round sums risks by time bin, because parties with whole rows share risk sets."""
        return self.objective.loss.has_risk_sets and self.task.trains and not self.blocks

    @property
    def shares_turns(self) -> bool:
        """True if queries may share a turn, i.e. if the roster cannot shrink and answers get no noise."""
        return self.session.on_loss != "shrink" and self.noise is None

    @property
    def known_weight_scale(self) -> Scale | None:
        """Scale of the row weights if all weights are 1, otherwise None."""
        return None if self.columns.weight else UNIT

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of each round: eval_metric, or the objective's default. If there are
        candidates, these are metrics of each candidate."""
        default = self.objective.loss.default_metric
        if self.noise is not None:
            if not self.task.measures or self.task.uses_reference:
                return ()
            default = default if default in COUNTED else "rmse"
        own = self.evaluation.eval_metric or (default,)
        if self.task.measures and self.objective.loss.risk_sign and self.noise is None:
            # Risk sets are known only while a model trains, and a row's part in their loss has no bound.
            own = tuple(name for name in dict.fromkeys((CINDEX, *own)) if name != PARTIAL_LIKELIHOOD)
        trials = range(len(self.objective.candidates))
        return tuple(f"{trial}{OF_TRIAL}{name}" for trial in trials for name in own) or own

    @cached_property
    def sets(self) -> tuple[str, ...]:
        """Names of the sets of rows on which metrics are computed. Sets that include all parties come
        first."""
        if self.noise is not None:
            return ()
        sets = (TRAIN, VALIDATION) if self.validates else (TRAIN,)
        owners = self.parties if self.evaluation.party_metrics else ()
        return (*sets, *(f"{party}{OF_PARTY}{rows}" for party in owners for rows in sets))

    @property
    def validates(self) -> bool:
        return self.evaluation.validates(self.columns)

    @property
    def draws_rows(self) -> bool:
        """True if rows are sampled, for trees or for validation."""
        return self.draws.draws_for_trees or self.evaluation.validation_fraction > 0.0

    @property
    def relays_samples(self) -> bool:
        return self.vertical.relays_samples(self.columns, self.draws_rows)

    def candidate(self, number: int) -> Self:
        return self.altered(self.objective.candidates[number], without=("program", "candidates"))

    # ---- Faults that involve several groups --------------------------------------------------------

    def _faults(self) -> Iterator[str]:
        columns, objective, shrinks = self.columns, self.objective, self.session.on_loss == "shrink"
        yield from _faults_of_target_means(self)
        yield from _faults_of_candidates(self)
        yield from _faults_of_task(self)
        yield from _faults_of_noise(self)
        yield from objective.faults(columns)
        yield from self.trees.faults_of_size(len(self.roots), self.max_leaves_per_round)
        yield from self.evaluation.faults_of_metrics(
            objective, self.metrics, len(self.sets), self.task.measures
        )
        yield from _faults_of_draws(self)
        yield from self.trees.faults_of_symmetric(self.draws, self.histograms, self.vertical.min_rows_per_bin)
        yield from _faults_of_risk_sets(self)
        yield from _faults_of_vertical(self)
        if columns.absent and not self.vertical.is_used:
            yield from self.hiding.faults_of_absent(columns, self.parties, shrinks)
        if self.task.is_protected and not (self.counts_jointly or self.hides_columns):
            shared = self.noise is not None and self.noise.placement == "distributed"
            yield from self.hiding.faults(self.parties, shared, shrinks)
        if shrinks and objective.loss.quantile is not None:
            yield (
                f'{objective.name} with on_loss = "shrink": its gradients are signs and often do not change '
                f"with the margins, so two rosters' sums would reveal a party's sum; set wait or stop"
            )
        yield from self.session.faults_of_roster(self.parties, self.min_roster, self.hiding.protection)
        yield from objective.faults_of_start(columns)
        yield from self.histograms.faults_of_votes(columns)
        if columns.positive is not None and objective.loss.xgboost_equivalent.classes_key != "positive":
            yield f"columns.positive needs objective binary:logistic, not {objective.name}"
        yield from _faults_of_continuation(self)

    # ---- Reading and writing ------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_parties(self, parties: Iterable[str]) -> Self:
        """Return a copy of the terms for these parties."""
        return self.changed(parties=tuple(parties))

    def among(self, names: Iterable[str], **settings: Any) -> Self:
        """Return a copy without parties, in which `columns.absent` has only these. settings: as `changed`."""
        columns, names = self.columns.model_dump(mode="json", exclude_unset=True), {*names}
        absent = {name: lacks for name, lacks in self.columns.absent.items() if name in names}
        return self.changed(**{"parties": (), **settings, "columns": {**columns, "absent": absent}})

    def changed(self, **settings: object) -> Self:
        """Return a copy with other settings, given by flat keys. Everything is checked again, and defaults
        are recomputed."""
        return type(self).read({**self.model_dump(mode="json", exclude_unset=True), **settings})

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str = "terms") -> Self:
        """Read terms from plain values (TOML or JSON). Raises a one-line ConfigError, starting with `source`,
        if they are not valid."""
        return read_model(cls, values, source)

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """Read terms from a text that `canonical` returned. Raises ConfigError if they are not valid."""
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
        features = len(columns.features)
        rounds = hiding.ROUNDS_A_FEATURE * features + hiding.ROUNDS_A_PAIR * noise.pairs_among(features)
        defaults = {"rounds": rounds, "max_depth": hiding.NOISY_DEPTH}
        return value.replaced(**{key: defaults[key] for key in defaults.keys() - value.model_fields_set})


def _parsed(text: str) -> dict[str, Any]:
    """Parse the JSON object in a text. Raises ConfigError if it is not one."""
    try:
        values = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ConfigError("terms-not-json", f"terms: invalid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("terms-not-json", "terms: expected a JSON object")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object with a limited number of keys, because each unknown key causes an error that takes
    memory."""
    if len(pairs) > MAX_FEATURES:
        raise ConfigError(
            "terms-too-many-keys",
            f"terms: a table has {len(pairs)} keys, but at most {MAX_FEATURES} are allowed",
        )
    return dict(pairs)


# ---- Target means: the slots of their columns, and the terms that cannot have them -----------------------

KEY = "columns.target_means"
MAX_ENCRYPTED = 1 << 14
"""Maximum total number of buckets for target means if sums are encrypted. A key holder decrypts about twenty
numbers per bucket."""


def _faults_of_target_means(terms: Terms) -> Iterator[str]:
    if not terms.columns.target_means:
        return
    known = [name for name, kind in OBJECTIVES.items() if kind.has_label_means]
    name, buckets = terms.objective.name, sum(terms.columns.target_means.values())
    task, trains, vertical = terms.task, terms.task.trains, terms.vertical
    apart = "different parties have labels and levels; remove it, or declare levels in categorical"
    other_rows = "the model's target means are from other rows; train a new model"
    hides, too_many = terms.protection.uses_key_holder, f"at most {MAX_ENCRYPTED} can be encrypted"
    encrypted = f"{buckets} buckets under protection {terms.hiding.protection}"
    is_other = terms.session.program != "boosting" and terms.noise is None
    yield from refused(
        KEY,
        (name not in known, f"objective {name}", f"its labels have no mean; use {', '.join(known)}"),
        (vertical.is_used, vertical.key, apart),
        (task.counts_values, f"program {task.program}", "thousands of levels cannot be counted; remove it"),
        (task.takes_candidates, f"program {task.program}", "they need fixed settings; remove it"),
        (trains and terms.xgb_model is not None, "xgb_model", other_rows),
        (trains and is_other, f"program {terms.session.program!r}", "only boosting supports it"),
        (trains and hides and buckets > MAX_ENCRYPTED, encrypted, f"{too_many}; lower them, or set masked"),
    )


# ---- Candidates: tree settings that one session tries side by side --------------------------------------

TUNED = (
    *("learning_rate", "max_depth", "max_leaves", "min_child_weight", "gamma", "reg_lambda", "reg_alpha"),
    *("max_delta_step", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
)
"""Settings in which candidates may differ. Only the aggregator uses these settings, so all candidates share
the same bins and rows."""
MAX_COLUMNS_TRIED = 1 << 20
"""Maximum product of the numbers of candidates and features. With 256 bins, the histograms of one node per
candidate then take 4 GiB, the default limit of an aggregator."""


def _faults_of_candidates(terms: Terms) -> Iterator[str]:
    candidates, tunes = terms.objective.candidates, task_of(terms.session.program).takes_candidates
    if tunes != bool(candidates):
        yield 'candidates and program = "tune" must be set together: set both or neither'
    if not tunes:
        return
    name, tried = terms.objective.name, len(candidates) * len(terms.columns.features)
    plain = name in OBJECTIVES and terms.objective.loss.quantile is None and terms.columns.group is None
    one_tree, evaluation = plain and terms.objective.num_class is None, terms.evaluation
    too_many = f"at most {MAX_COLUMNS_TRIED} are allowed; use fewer candidates or features"
    yield from refused(
        "program tune",
        (len(candidates) < 2, "one candidate", "list at least two candidates"),
        (tried > MAX_COLUMNS_TRIED, f"{tried} columns of all candidates", too_many),
        (not one_tree, name, "use an objective with one tree per round"),
        (not terms.validates, "no validation rows", "set validation_fraction or columns.validation"),
        (terms.noise is not None, "noise", "choosing a candidate would also need noise; remove it"),
        (terms.xgb_model is not None, "xgb_model", "candidates cannot continue a model; remove it"),
        (terms.trees.num_parallel_tree > 1, "num_parallel_tree", "tuning needs one tree per round; set 1"),
        (terms.histograms.vote_top_k > 0, "vote_top_k", "candidates would need separate votes; set 0"),
        (terms.draws.by_gradient_norm, "sampling_method gradient_based", "candidates must share their rows"),
        (terms.session.on_loss == "shrink", 'on_loss = "shrink"', "set wait or stop"),
        (evaluation.party_metrics, "party_metrics", "remove it"),
        (evaluation.early_stopping_rounds is not None, "early_stopping_rounds", "remove it"),
    )
    for number, candidate in enumerate(candidates):
        yield from _faults_of_candidate(terms, number, candidate)


def _faults_of_candidate(terms: Terms, number: int, candidate: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error message unless the candidate's settings are valid and its trees are within the terms'
    limits."""
    for key in candidate:
        require_known(key, TUNED, f"candidates[{number}]")
    try:
        own = terms.candidate(number)
    except ConfigError as error:
        yield f"candidates[{number}]: {str(error).removeprefix('terms: ')}"
        return
    most_leaves = terms.max_leaves_per_round // len(terms.roots)
    if own.trees.max_depth > terms.trees.max_depth or own.max_leaves_per_round > most_leaves:
        yield f"candidates[{number}] exceeds max_depth or max_leaves of the terms"
    if own.trees.min_child_weight < terms.trees.min_child_weight:
        yield (
            f"candidates[{number}] has a lower min_child_weight than the terms, which sites rely on; raise it"
        )


# ---- Noise: the settings that it excludes -----------------------------------------------------------------

_WITH_NOISE = {
    *("columns", "parties", "objective", "num_class", "rounds", "max_depth", "max_bin"),
    *("seed", "base_score", "protection", "colluding", "allow_two_parties", "on_loss"),
    *("keyholder", "keyholder_rows", "key_bits"),
    *("turn_timeout", "rejoin_timeout", "quorum", "noise", "program", "min_count"),
}
"""Keys that may be set with noise."""
_TO_MEASURE = {"eval_metric", "threshold", "evaluate_rows", "xgb_model", "num_parallel_tree"}
"""Further keys that may be set with noise if a model is measured."""
_WHY_NOT = {
    "eval_metric": "metrics would need an additional noisy release per round",
    "early_stopping_rounds": "metrics would need an additional noisy release per round",
    "validation_fraction": "metrics would need an additional noisy release per round",
    "subsample": "noisy trees that use all rows are never worse than those that use a sample",
    "vote_top_k": "votes have no noise",
    **dict.fromkeys(("subgroups", "party_metrics"), "each group of rows would need another noisy release"),
}


def _faults_of_noise(terms: Terms) -> Iterator[str]:
    """Yield an error message for each setting that cannot be combined with noise, and for each missing
    setting that noise requires."""
    noise = terms.noise
    if noise is None:
        return
    fields, measures = type(terms).file_keys(), terms.task.measures
    allowed = _WITH_NOISE | (_TO_MEASURE if measures else set())
    for name, value in terms.flat.items():
        if name not in allowed and value != fields[name].get_default(call_default_factory=True):
            why = "it is not supported" if measures else "it would have no effect"
            yield f"{name} with noise: {_WHY_NOT.get(name, why)}; remove it"
    for name in ("weight", "base_margin", "validation"):
        if getattr(terms.columns, name) is not None:
            yield f"columns.{name} with noise: a row's influence would be unlimited; remove it"
    if not terms.task.uses_reference:
        yield from hiding.faults_of_ranges(terms.objective.name, terms.columns, measures)
    uncounted = [n for n in terms.metrics if is_metric(n) and not is_counted(n, terms.evaluation.threshold)]
    known = f"it does not follow from counts of rows; use {', '.join(COUNTED)} or error@ a bin edge"
    yield from refused("noise", *((True, f"eval_metric {name}", known) for name in uncounted))
    shared = noise.placement == "distributed"
    if shared and not terms.protection.hides:
        yield (
            'placement = "distributed" with protection plain: the aggregator would see each party\'s sums '
            'with only a share of the noise; set protection = "masked" or placement = "local"'
        )
    if terms.session.on_loss == "shrink":
        yield (
            'on_loss = "shrink" with noise: a query repeated for fewer parties would be an additional '
            "release; set wait or stop"
        )
    if shared and terms.parties and terms.honest < 1:
        yield (
            'placement = "distributed" needs at least one party with rows whose share of the noise others do '
            "not know; add parties, or lower colluding"
        )


# ---- The model that a training continues, or that is measured -------------------------------------------


def _model_difference(booster: Booster, terms: Terms) -> str:
    """Compare the settings that XGBoost stores in the model with the terms. Returns a description of the
    first difference, or '' if there is none."""
    if booster.objective != terms.objective.loss.xgboost_equivalent.name:
        return f"its objective is {booster.objective}, but the terms have {terms.objective.name}"
    if booster.loss.outputs != terms.objective.loss.outputs:
        return f"it has {booster.loss.outputs} classes, but the terms have {terms.objective.loss.outputs}"
    if booster.num_parallel_tree != terms.trees.num_parallel_tree:
        own, other = booster.num_parallel_tree, terms.trees.num_parallel_tree
        return f"its num_parallel_tree is {own}, but the terms have {other}"
    features, others = booster.features, terms.columns.features
    for number, (name, wanted) in enumerate(zip(features, others, strict=False), 1):
        if name != wanted:
            return f"its feature {number} is {name[:100]!r}, but the terms have {wanted!r} there"
    if len(features) != len(others):
        return f"it has {len(features)} features, but the terms have {len(others)}"
    odd = {*booster.categorical} ^ {*terms.columns.categorical}
    if odd:
        name = next(name for name in features if name in odd)
        has, has_not = ("it", "the terms") if name in booster.categorical else ("the terms", "it")
        return f"feature {name!r} has levels in {has}, but is numeric in {has_not}"
    if booster.buckets != terms.columns.target_means:
        shown, due = str(booster.buckets)[:100], str(dict(terms.columns.target_means))[:100]
        return f"its columns.target_means is {shown}, but the terms have {due}"
    return ""


def _column_difference(booster: Booster, trained: Mapping[str, Any] | None, terms: Terms) -> str:
    """Compare the meaning of labels, levels and margins in the model and in the terms. Returns a description
    of the first difference, or '' if there is none."""
    columns = terms.columns.model_dump(mode="json", include={*continuation.MEANINGS})
    based = columns["base_margin"] is not None
    if (based and not booster.begins_with_a_leaf) or (
        trained and (trained["base_margin"] is not None) != based
    ):
        with_margins, without = ("the terms", "it") if based else ("it", "the terms")
        return f"columns.base_margin is set in {with_margins}, but not in {without}"
    if terms.objective.base_score is not None:
        constant = booster.trees[0].value[0] if based else booster.constant
        if terms.objective.loss.margin(float(np.float32(terms.objective.base_score))) != constant:
            return f"it does not start from base_score {terms.objective.base_score:g}: remove base_score"
    if trained is None:
        return ""
    for name, levels in columns["categorical"].items():
        if trained["categorical"].get(name) != levels:
            return f"its levels of {name!r}, or their order, differ from the terms"
    for name in ("positive", "classes"):
        if trained[name] != columns[name]:
            return f"its columns.{name} is {json.dumps(trained[name])[:100]}, which differs from the terms"
    return ""


# ---- Combinations of settings of several groups that are not allowed -------------------------------------
# Each fault names the keys, and what to set instead.


def _faults_of_draws(terms: Terms) -> Iterator[str]:
    yield from terms.evaluation.faults_of_rows(terms.columns)
    if terms.draws.by_gradient_norm and terms.objective.loss.quantile is not None:
        yield (
            f"sampling_method gradient_based samples rows by the size of their gradients, but gradients of "
            f"{terms.objective.name} are only signs: set uniform"
        )
    if terms.draws.by_gradient_norm and terms.histograms.vote_top_k:
        yield (
            "vote_top_k elects features by each party's own rows, but sampling_method gradient_based may "
            "sample hardly any of them: set only one"
        )
    yield from terms.trees.faults_of_names(terms.columns)
    monotone = terms.trees.monotone(terms.columns)
    if monotone and terms.histograms.vote_top_k:
        yield "vote_top_k elects features regardless of monotone_constraints: set only one"
    if monotone and terms.objective.loss.quantile is not None:
        yield (
            f"{terms.objective.name} computes leaf values only after a tree is grown: remove "
            f"monotone_constraints"
        )
    draws = terms.draws
    if (
        terms.histograms.vote_top_k
        and min(draws.colsample_bytree, draws.colsample_bylevel, draws.colsample_bynode) < 1.0
    ):
        yield "vote_top_k elects features, but colsample_* samples them: set only one"


def _faults_of_risk_sets(terms: Terms) -> Iterator[str]:
    if not terms.objective.loss.has_risk_sets:
        return
    by_norm, several = terms.draws.by_gradient_norm, len(terms.blocks) > 1
    hides = terms.sums_risk and terms.protection.hides
    alone = "risk sets belong to one model; train each set of settings"
    yield from refused(
        terms.objective.name,
        (several, "blocks", "only one party can hold the labels; set label_holder"),
        (terms.task.takes_candidates, f"program {terms.session.program}", alone),
        (by_norm, "sampling_method gradient_based", "rows are drawn before the risk sets are known"),
        (terms.sums_risk and terms.session.on_loss == "shrink", 'on_loss = "shrink"', "set wait or stop"),
        (terms.sums_risk and terms.evaluation.party_metrics, "party_metrics", "risk sets are of all parties"),
        (hides and 0 < len(terms.holders) < 3, "two parties", "each would know the other's sums; use three"),
    )


def _faults_of_vertical(terms: Terms) -> Iterator[str]:
    vertical, hiding, trees = terms.vertical, terms.hiding, terms.trees
    yield from vertical.faults(terms.parties, terms.columns)
    if not vertical.is_used:
        return
    jointly, program = terms.evaluates_jointly, terms.session.program
    named, has_rows = task_of(program), bool(vertical.predict_rows) and not jointly
    if jointly and not (vertical.predict_rows and (vertical.predict_with or terms.xgb_model)):
        yield "to evaluate, set predict_rows, and predict_with or xgb_model"
    if not jointly and has_rows != (vertical.predict_with is not None):
        yield "predict_with and predict_rows must be set together: set both or neither"
    protection, noisy = f"protection {hiding.protection}", vertical.label_epsilon is not None
    has_classes = terms.objective.loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    alone, parallel = vertical.alone_rounds, trees.num_parallel_tree * len(terms.objective.candidates or "1")
    yield from refused(
        vertical.key,
        (
            not (hiding.row.may_be_vertical or hiding.row.by_columns),
            protection,
            "it hides a party only among others with the same columns, but these parties have different "
            'ones; set protection = "paillier", or "plain" if all parties may see labels',
        ),
        (
            terms.hides_columns and vertical.label_holder is None,
            protection,
            'a single label holder must have the key: set label_holder or protection = "plain"',
        ),
        (
            terms.hides_columns and hiding.keyholder not in (None, vertical.label_holder),
            "keyholder",
            "the label holder has the key; remove keyholder",
        ),
        (
            terms.hides_columns and not hiding.keyholder_rows,
            "keyholder_rows = false",
            "the label holder is the key holder and has rows; remove keyholder_rows",
        ),
        (
            noisy and not vertical.aligns,
            "label_epsilon",
            'noise is drawn per row id: set columns.row_id and remove rows = "in_order"',
        ),
        (
            noisy and not has_classes,
            "label_epsilon",
            "its noise is only for class labels: use binary:logistic or multi:softprob",
        ),
        (alone > trees.rounds, f"alone_rounds = {alone}", f"the terms have only rounds = {trees.rounds}"),
        (
            vertical.min_rows_per_bin > 1 and parallel > 1,
            f"min_rows_per_bin and {parallel} trees a round",
            "their sums are over nearly the same rows and differ by sums over few rows; set only one",
        ),
        (terms.noise is not None, "noise", "noise needs whole rows, but each party has only some columns"),
        (bool(terms.columns.absent), "columns.absent", "list the columns of each party in columns.held"),
        (terms.histograms.vote_top_k > 0, "vote_top_k", "no party has all features to vote on; remove it"),
        (
            terms.draws.by_gradient_norm,
            "sampling_method gradient_based",
            "only the label holder has gradients; set uniform",
        ),
        (
            terms.session.on_loss == "shrink",
            'on_loss = "shrink"',
            "no other party has the columns of a lost party; set wait or stop",
        ),
        (terms.evaluation.party_metrics, "party_metrics", "only the label holder has labels; remove it"),
        (
            not terms.session.is_built_in or named.uses_reference or (has_rows and not named.makes_model),
            f"program {program!r}",
            "set boosting",
        ),
        (
            vertical.repeated_ids and terms.task.counts_values and terms.evaluation.min_count > 1,
            "repeated_ids and min_count above 1",
            "all rows of a count could belong to a single id; keep one row per id, or set min_count = 1",
        ),
        (
            terms.counts_jointly and (vertical.label_holder is None or not vertical.aligns),
            f"program {program}",
            "it needs label_holder, and rows that are matched by their ids",
        ),
    )
    yield from vertical.faults_of_rows(terms.columns)


def _faults_of_continuation(terms: Terms) -> Iterator[str]:
    text = terms.xgb_model
    if text is None:
        return
    if not (terms.task.model_is and terms.session.is_built_in):
        yield f"xgb_model can be continued only by program boosting, not by {terms.session.program!r}"
    try:
        booster = continuation.read(text, len(terms.parties) or MAX_PARTIES)
        if terms.task.trains and continuation.facts_of(text):
            yield "xgb_model is continued, so it must not contain facts about its training"
        due = terms.keeps_parts if terms.task.trains else terms.vertical.predict_with is not None
        if bool(continuation.id_of(text)) != due:
            yield "xgb_model is " + ("kept in parts: assemble it", 'whole: set model = "whole"')[due]
        differs = _model_difference(booster, terms) or _column_difference(
            booster, continuation.trained_columns(text), terms
        )
    except ConfigError as error:
        yield str(error)
        return
    if differs:
        yield f"xgb_model cannot be {terms.task.model_is}: {differs}"


def _faults_of_task(terms: Terms) -> Iterator[str]:
    yield from terms.evaluation.faults_of_subgroups(terms.columns)
    program, shrinks = terms.session.program, terms.session.on_loss == "shrink"
    inexact = {
        "noise": terms.noise is not None,
        terms.vertical.key: terms.vertical.is_used,
        'on_loss = "shrink"': shrinks,
        f"program {program!r}": not (terms.task.trains and terms.session.is_built_in),
    }
    yield from terms.evaluation.faults_of_counts(setting for setting, is_so in inexact.items() if is_so)
    if terms.evaluation.level_names:
        colluding = terms.hiding.group(terms.parties).colluding if terms.protection.hides else 0
        yield from terms.evaluation.faults_of_levels(terms.columns, len(terms.parties), colluding)
        may = terms.task.counts_values and not terms.vertical.is_used and not shrinks
        if not may or terms.protection.uses_key_holder:
            yield "level_names is only for describe with whole rows, masked or plain, and no shrink"
    if not terms.task.measures:
        return
    if terms.xgb_model is None and not terms.evaluates_jointly:
        yield f"program {program} needs a model: set xgb_model"
        return
    yield from refused(
        f"program {program}",
        (shrinks, 'on_loss = "shrink"', "set wait or stop"),
        (
            terms.validates,
            "validation rows",
            "it does not hold rows out: remove validation_fraction or columns.validation, and choose the "
            "rows with evaluate_rows",
        ),
    )
    try:
        trained, rows = terms.trained, terms.evaluation.evaluate_rows
        if trained is not None and not trained.task.trains:
            raise ConfigError("model-altered", "xgb_model contains terms that do not train a model")
        if rows != "all" and trained is None:
            raise ConfigError(
                "terms-evaluate-rows",
                f"evaluate_rows = {rows!r}: the model does not contain the terms under which it was "
                f"trained; set 'all'",
            )
        apart = terms.vertical.is_used or (trained is not None and trained.vertical.is_used)
        if rows != "all" and apart:
            raise ConfigError(
                "terms-evaluate-rows",
                f"evaluate_rows = {rows!r}: parties have or had different columns; set 'all'",
            )
        if rows == "held-out" and trained is not None and not trained.validates:
            raise ConfigError(
                "terms-evaluate-rows",
                "evaluate_rows = 'held-out': no rows were held out when the model was trained; set 'all' "
                "or 'new'",
            )
        columns = None if terms.noise is None or rows != "held-out" or trained is None else trained.columns
        if columns and (columns.validation, columns.row_id, columns.group) == (None, None, None):
            raise ConfigError(
                "terms-evaluate-rows",
                "evaluate_rows = 'held-out' with noise: these rows were drawn by position, so one row more "
                "would change many of them; set 'all', or train with row_id",
            )
        if terms.xgb_model is not None:
            continuation.check_attached(terms.xgb_model, terms.task)
    except ConfigError as error:
        yield str(error)
        return
