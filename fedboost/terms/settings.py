"""The settings of one session, as they stand in a file, are hashed and sent; and what follows from them."""

import json
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator

from fedboost.errors import ConfigError
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_REFINEMENTS
from fedboost.gbdt.metrics import OF_PARTY, TRAIN, VALIDATION
from fedboost.gbdt.objectives import objective as sensitivity
from fedboost.gbdt.tree import SplitRule
from fedboost.privacy.protections import PROTECTIONS, Protection
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Hiding, Noise, Plan, plan_of, plan_of_counts
from fedboost.terms.objective import Evaluation, Objective
from fedboost.terms.reading import MAX_FEATURES, Flat, read_model
from fedboost.terms.session import ALIGNMENT_TURNS, MAX_PARTIES, TASKS, Parties, Session, Task, task_of
from fedboost.terms.trees import Draws, Histograms, Trees
from fedboost.terms.vertical import Blocks, Vertical

MAX_RENEWAL_QUERIES = 3
"""Most queries about the residuals in the leaves of a tree."""

_OMITTED = (
    *("label_holder", "blocks", "rows", "min_common_rows", "max_ids", "repeated_ids", "id_form"),
    *("model", "alone_rounds", "min_rows_per_bin", "label_epsilon", "predict_with", "predict_rows"),
    *("min_count", "candidates", "subgroups", "threshold", "evaluate_rows"),
)
"""Keys that are left out of it where they are not set."""
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
    *("rejoin_timeout", "quorum", "vote_top_k", "noise", "program"),
)
"""Keys as they stand in the JSON that is hashed."""


class Settings(Flat):
    """One flat table of keys, which have XGBoost's names and defaults but for `rounds`, read into groups, and
    what follows from several of them. `Terms` are settings that go together."""

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

    @cached_property
    def task(self) -> Task:
        """What a session under these terms does."""
        return TASKS["predict"] if self.vertical.predicts else task_of(self.session.program)

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that hold rows: all but a key holder without any."""
        return self.hiding.holders(self.parties)

    @cached_property
    def blocks(self) -> Blocks:
        """Parties that hold different columns of the same rows; none where each party has all columns."""
        vertical = self.vertical
        return Blocks(vertical.blocks_of(self.parties), self.task.read(self.columns), vertical.aligns)

    @property
    def protection(self) -> Protection:
        """The protection of the parties' vectors."""
        row = self.hiding.row if self.task.is_protected else PROTECTIONS["plain"]
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
        return self.task.trains and self.vertical.keeps_parts(self.hides_columns)

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
        columns, noise = self.columns, self.noise
        honest, parties = max(self.honest, 1), max(len(self.holders), 1)
        if self.task.counts_values:
            return plan_of_counts(noise, columns, self.objective.loss, honest, parties)
        counted = len(columns.numeric) if self.histograms.cut_points == "grid" else 0
        times, norm = self.trees.rounds * self.max_turns_per_tree, 1.0
        if noise.method == "hist":  # a row is in one pair for each feature, and in the last pair
            norm = math.sqrt(len(columns.features) + 1)
        summed = len(columns.target_means)
        return plan_of(noise, counted, (times, norm), self.bound.sensitivity, honest, parties, summed)

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
        if self.task.max_turns is not None:
            return self.task.max_turns
        before = ALIGNMENT_TURNS * self.vertical.aligns + MAX_REFINEMENTS + MAX_RENEWAL_QUERIES
        before += 4  # rows and start, sums by level, and rows by bin
        return before + (self.trees.rounds + 1) * (self.max_turns_per_tree + 1)

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
    def trained(self) -> Self | None:
        """The terms of the training of a model that is measured, as its file has them; None where it has
        none. ConfigError for others. They prove nothing without a signature of the model."""
        facts = {} if self.xgb_model is None else continuation.facts_of(self.xgb_model)
        text = facts.get(continuation.TRAINED_UNDER)
        return None if text is None else type(self).from_canonical(text)

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

    def candidate(self, number: int) -> Self:
        """The terms of a training with the settings of a candidate."""
        return self.altered(self.objective.candidates[number], without=("program", "candidates"))

    # ---- in writing ---------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.digest == other.digest

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
