"""The keys of a site's `[policy]` table in party.toml, their defaults and the reason for each; the budget."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from fedboost.errors import ConfigError, Refused
from fedboost.privacy import noise
from fedboost.privacy.pairwise import MIN_GROUP_PARTIES
from fedboost.protocol.site import MAX_SESSIONS, MAX_SPLITS
from fedboost.results.site import Spent
from fedboost.runtime.config import to_toml
from fedboost.terms.hiding import MAX_DELTA, MIN_EPSILON, Placement, ProtectionName
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.session import TaskName
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import MAX_IDS, MAX_ROWS_PER_BIN, Rows
from fedboost.views.approval import APPROVE
from fedboost.views.words import shown

OnLoss = Literal["wait", "shrink", "stop"]

COMMAND = f"{APPROVE} --config party.toml"
"""The command by which a site allows terms that its policy refuses."""

MAX_ROWS_PER_LEAF = 1_000_000_000
MAX_BUDGET_EPSILON = 100.0
"""Beyond this epsilon promises nothing."""

MIN_ROWS_PER_BIN = 10
"""Rows of a bin where labels are hidden, unless a policy says otherwise: as many as `min_rows_per_leaf` of a
leaf. Models lose nothing by it that is more than their spread (docs/vertical.md)."""

MIN_COUNT = 10
"""Fewest rows of a count that an analyst gets: as many as `min_rows_per_leaf` of a leaf."""

PINNED = ("parties", "analysts", "columns")
"""Keys of names, all of which an approval has."""


PROTECTS = {
    "parties": "sums are over the rows of these parties: one that adds none, or invents them, hides nothing",
    "analysts": "an analyst who may begin sessions chooses what is asked of the rows",
    "columns": "each column that is named can be learned about, a label most of all",
    "by_columns": "other parties learn which rows go left at each split, and of a label holder each gradient",
    "label_holders": "a label holder chooses by its gradients which rows splits part, and is told them",
    "rows": 'with "label_holder" the label holder learns for each of its rows whether this site has it',
    "min_common_rows": "among few rows in common the one that a split sends left is known by name",
    "repeated_ids": "it is told how many rows each common id has, and a leaf of many rows may be one person",
    "max_foreign_ids": "a party that enters all ids there are learns which of them this site has",
    "max_predicted_rows": "of each predicted row the label holder learns how it falls at this site's splits",
    "max_splits": "each split by this site's columns tells other parties which of a node's rows go left",
    "model": "a whole model has the thresholds of this site's columns, and predicts without asking it",
    "min_alone_rounds": "the gradients of the first trees are nearly the labels themselves",
    "min_rows_per_bin": "the sums of a bin of few rows are about these rows, and of one row its label",
    "max_label_epsilon": "gradients tell labels; with noise on these they tell each at most so much",
    "protections": 'under "plain" the aggregator sees this site\'s own numbers',
    "on_loss": 'with "shrink" the difference of two sums is that of a site that left or came back',
    "placements": 'with "central" no noise is on what leaves: the aggregator sees exact sums',
    "min_parties": "a sum over few parties tells each of them about the others",
    "min_rows_per_leaf": "a leaf of few rows tells their labels",
    "quantile_leaves": "the value of a leaf is about the label of one row in it, however many it has",
    "max_rounds": "each round opens sums over other sets of rows",
    "max_depth": "deep trees have leaves of single rows",
    "max_trees_per_round": "each tree opens sums over other sets of rows",
    "max_trials": "each candidate is one more training on the same rows",
    "max_metrics": "each metric is a sum over the rows, in every round",
    "max_category_levels": "a level that one person has tells that person's label",
    "target_means": "the aggregator sees labels summed by level, and a level of one row is that row's label",
    "metrics_at_thresholds": "metrics at two near thresholds differ by the few rows between them",
    "party_metrics": "metrics of this site's rows alone are open, whatever hides its other sums",
    "validation": "metrics of each round, or of two sets that differ by a row, tell labels of these rows",
    "base_margin": "a metric shows how the values of this column are distributed, to the last row",
    "continue_models": "trees that somebody else made may put single rows into a leaf",
    "tasks": "each kind of session tells something else of the rows",
    "evaluate": "a model that others made may have leaves of single rows, and scores tell of these",
    "evaluate_signers": "a party that is named answers for the leaves of the models that it signed",
    "min_count": "counts of few rows, by level or label, are about these people",
    "subgroups": "errors and rates by sex or ward speak of one group, which may be a small one",
    "vote_top_k": "where all parties vote alike, each one's vote is known",
    "subsample": "sums over many known draws of the rows give each row by itself",
    "min_key_bits": "shorter keys may be broken while what they hide still matters",
    "colluding": "this many parties may work with the aggregator and learn nothing of this site alone",
    "epsilon": "bounds what all sessions together tell of one row",
    "delta": "the chance that the bound of epsilon does not hold",
    "max_sessions": "each session is one more set of sums over the same rows",
    "similar_groups": "two sums over groups that differ by one party give that party's own",
    "approval": 'with "ask" a person decides on every session',
}
"""The reason for each key of the policy."""


# ---- The privacy of its rows that a site lets be spent over all sessions --------------------------------
# Promises: costs (mu squared) add, epsilons do not; a refusal names the epsilon that would fit.


ROUNDING = 1e-12
"""Of sums of costs, relative to the budget."""


@dataclass(frozen=True)
class Budget:
    """The privacy of its rows that a site lets be spent: (epsilon, delta) over all sessions."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The same as a cost, mu squared."""
        return noise.mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """The epsilon that a session at this delta may have, once that was spent. Epsilons do not add:
        it is more than the difference of two."""
        return noise.epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)

    def check_session(self, party: str, terms: Terms, spent: float, charged: float) -> None:
        """Raise Refused unless what a session still plans to release fits. spent: by all sessions; charged:
        by this one."""
        assert terms.noise is not None
        if terms.noise.placement == "central":
            raise Refused(
                f'party {party}: with placement = "central" nothing hides its sums from the aggregator, so '
                f"no such session fits the budget of these rows, epsilon {self.epsilon:g} at delta "
                f'{self.delta:g}; use placement = "distributed" or "local"'
            )
        wanted = f"the terms ask for epsilon {terms.noise.epsilon:g} at delta {terms.noise.delta:g}"
        self._check(party, wanted, terms.noise.delta, spent, max(terms.plan.cost - charged, 0.0), charged)

    def check_release(self, party: str, session: str, spent: float, cost: float) -> None:
        """Raise Refused unless one more release fits."""
        self._check(party, f"session {session} asks for one more release", self.delta, spent, cost, 0.0)

    def _check(
        self, party: str, wanted: str, delta: float, spent: float, cost: float, charged: float
    ) -> None:
        if spent + cost <= self.cost * (1.0 + ROUNDING):
            return
        room = math.sqrt(max(self.cost - spent + charged, 0.0))
        fits = _rounded_down(noise.epsilon_of(room, delta))
        remedy = (
            f"lower the epsilon of the noise to {fits:g} at most at delta {delta:g}"
            if fits >= MIN_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            f"party {party}: {wanted}, and its budget for these rows, epsilon {self.epsilon:g} "
            f"at delta {self.delta:g}, has {_rounded_down(self.left(spent)):g} left; {remedy}, unless the "
            f"site raises `epsilon` in its policy"
        )


def spent_under(spent: Spent, budget: Budget | None, own: bool) -> Spent:
    """What was spent of a dataset, as an epsilon, and what is left of it. budget: that of the site's present
    rows, which are this dataset if it is its own."""
    limit = budget if own else None
    delta = spent.delta if limit is None else limit.delta
    allowed = {} if limit is None else {"budget": limit.epsilon, "left": limit.left(spent.cost)}
    return spent.model_copy(update={"own": own, "delta": delta, "spent": spent.epsilon(delta), **allowed})


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4


class ColumnRules(Frozen):
    """The columns of its table that a site lets terms name, by role."""

    label: tuple[Name, ...] = ()
    features: tuple[Name, ...] = ()
    weight: tuple[Name, ...] = ()
    base_margin: tuple[Name, ...] = ()
    group: tuple[Name, ...] = ()
    validation: tuple[Name, ...] = ()
    row_id: tuple[Name, ...] = ()
    label_upper_bound: tuple[Name, ...] = ()
    subgroups: tuple[Name, ...] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class PolicyKeys(Frozen):
    """The policy of a site; docs/policy.md says what each key protects against.

    parties, analysts, columns, label_holders: names, "any" for all; None, the default, for none.
    tasks: the kinds of sessions it takes part in; evaluate: "own" where a model that is measured needs the
    signature of this site, or of a party in evaluate_signers, "any" where it needs none.
    min_parties: the fewest parties with rows; min_rows_per_leaf: the fewest rows, of all parties together, on
    each side of a split; min_common_rows: the fewest that parties with different columns have in common;
    max_predicted_rows: that this site helps another to predict, over all sessions, 0 for none; max_splits:
    the most by columns of this site that they are told of, over all sessions; model: "whole"
    for terms that give the analyst all cut points where columns are hidden; min_alone_rounds: the fewest
    rounds that grow on the columns of this site alone, where it has the labels; min_rows_per_bin: the
    fewest rows whose sums by bin are told, None for MIN_ROWS_PER_BIN where columns are hidden, else 1;
    min_count: the fewest rows of a count that an analyst gets where rows are described or a model is
    evaluated; subgroups: if that may be by the levels of columns, too;
    max_label_epsilon: the largest epsilon of the noise on its labels there, None for labels without noise;
    subsample: the smallest share of the rows that a tree may grow on where masks hide its sums; colluding:
    the fewest parties that must be able to collude and learn nothing, None for what fits the number of
    parties; epsilon, delta: the budget of its rows' privacy over all sessions, with which terms without noise
    are refused, None for no limit; max_sessions: of one dataset, ever; similar_groups: whether two sessions'
    parties may differ by one; approval: "auto" (these rules are enough) or "ask" (a person at the terminal
    decides too). The others are the largest numbers that terms may ask for, and what they may do at all.
    """

    parties: Literal["any"] | tuple[Name, ...] | None = None
    analysts: Literal["any"] | tuple[Name, ...] | None = None
    columns: Literal["any"] | ColumnRules | None = None
    tasks: tuple[TaskName, ...] = Field(default=get_args(TaskName), min_length=1)
    protections: tuple[ProtectionName, ...] = Field(default=("masked",), min_length=1)
    by_columns: bool = False
    label_holders: Literal["any"] | tuple[Name, ...] | None = None
    rows: tuple[Rows, ...] = Field(default=("common", "in_order"), min_length=1)
    min_common_rows: int = Field(default=1000, ge=1)
    repeated_ids: bool = False
    max_foreign_ids: int = Field(default=MAX_IDS, ge=1)
    max_predicted_rows: int = Field(default=0, ge=0)
    max_splits: int = Field(default=MAX_SPLITS, ge=1)
    model: Literal["parties", "whole"] = "parties"
    min_alone_rounds: int = Field(default=0, ge=0)
    min_rows_per_bin: int | None = Field(default=None, ge=1, le=MAX_ROWS_PER_BIN)
    max_label_epsilon: float | None = Field(default=None, gt=0)
    on_loss: tuple[OnLoss, ...] = Field(default=("wait", "stop"), min_length=1)
    placements: tuple[Placement, ...] = Field(default=("distributed", "local"), min_length=1)
    min_parties: int = Field(default=MIN_GROUP_PARTIES, ge=1)
    min_rows_per_leaf: int = Field(default=10, ge=1, le=MAX_ROWS_PER_LEAF)
    quantile_leaves: bool = False
    max_rounds: int = Field(default=1000, ge=1)
    max_depth: int = Field(default=8, ge=1)
    max_trees_per_round: int = Field(default=100, ge=1)
    max_trials: int = Field(default=32, ge=0)
    max_metrics: int = Field(default=8, ge=1)
    max_category_levels: int = Field(default=32, ge=1)
    target_means: bool = False
    metrics_at_thresholds: bool = False
    party_metrics: bool = False
    validation: bool = False
    base_margin: bool = False
    continue_models: bool = False
    evaluate: Literal["own", "any"] = "own"
    evaluate_signers: tuple[Name, ...] = ()
    min_count: int = Field(default=MIN_COUNT, ge=1)
    subgroups: bool = False
    vote_top_k: int = Field(default=0, ge=0)
    subsample: float = Field(default=1.0, gt=0, le=1)
    min_key_bits: int = Field(default=3072, ge=1)
    colluding: int | None = Field(default=None, ge=0)
    epsilon: float | None = Field(default=None, gt=0, le=MAX_BUDGET_EPSILON)
    delta: float | None = Field(default=None, gt=0, le=MAX_DELTA)
    max_sessions: int = Field(default=MAX_SESSIONS, ge=1)
    similar_groups: bool = False
    approval: Literal["auto", "ask"] = "auto"

    @field_validator(
        "tasks", "protections", "rows", "on_loss", "placements", "evaluate_signers", mode="before"
    )
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("parties", "analysts", "label_holders", mode="before")
    @classmethod
    def _any_or_names(cls, value: object) -> object:
        if value is None or value == "any":
            return value
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
            raise ValueError('write a list of names, such as ["north", "south"], or "any"')
        return tuple(value)

    @field_validator("columns", mode="before")
    @classmethod
    def _any_or_by_role(cls, value: object) -> object:
        if value is None or value == "any" or isinstance(value, ColumnRules):
            return value
        if isinstance(value, dict):
            if "any" in value.values():
                raise ValueError('"any" is for all columns of every role: write columns = "any"')
            try:
                return read_model(ColumnRules, value, "")
            except ConfigError as error:
                raise ValueError(str(error).removeprefix(": ")) from None
        raise ValueError(
            'name columns by role, columns = { label = ["y"], features = ["age", "dose"] }, or write "any"'
        )

    @field_validator("approval", mode="before")
    @classmethod
    def _no_digests(cls, value: object) -> object:
        if value in ("auto", "ask"):
            return value
        raise ValueError(f'write "auto" or "ask"; single terms are approved by `{COMMAND}`')

    @model_validator(mode="after")
    def _whole_budget(self) -> "PolicyKeys":
        if (self.epsilon is None) != (self.delta is None):
            half, other = ("epsilon", "delta = 1e-5") if self.delta is None else ("delta", "epsilon = 3.0")
            raise ValueError(f"{half} is half a budget: add {other}")
        return self

    @property
    def budget(self) -> Budget | None:
        """The privacy that all sessions together may spend; None where nothing limits it."""
        return None if self.epsilon is None or self.delta is None else Budget(self.epsilon, self.delta)


# ---- Breaches of a site's policy as data, and the sentences in which a site refuses ---------------------


SHOWN_NAMES = 8
"""Names in a refusal."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
"""Names that every shell reads as one word."""


@dataclass(frozen=True)
class Breach:
    """A rule of a policy that terms break.

    key, value: the rule as the file has it; why: a sentence about the terms; instead: a change of the terms
    that would do; allow: the value of the key under which the terms pass, or the names that it has not; None
    where no approval changes it; names: those names, for a person who wants them all.
    """

    key: str
    value: str
    why: str
    instead: str = ""
    allow: object = None
    detail: str = ""
    names: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The key as it stands under [policy]: columns, for the columns of each role."""
        return self.key.partition(".")[0]

    @property
    def remedy(self) -> str:
        """The ways out: a change of the terms, or an approval."""
        approve = f"run there `{COMMAND}`" if self.allow is not None else ""
        return ", or ".join(filter(None, (self.instead, approve)))

    @property
    def setting(self) -> str:
        """What to change in the policy's file, so that the terms pass; '' where no change is enough."""
        if self.allow is None:
            return ""
        if not isinstance(self.allow, tuple):
            return f"set {self.key} = {to_toml(self.allow)}"
        named = ", ".join(f'"{shown(name)}"' for name in self.allow[:SHOWN_NAMES])
        more = len(self.allow) - SHOWN_NAMES
        return f"add {named}{f' and {more} more' if more > 0 else ''} to {self.key}"

    def refusal(self, party: str, predicting: "Sequence[Breach]" = ()) -> Refused:
        """The error with the sentence that the analyst reads. predicting: all breaches by terms that predict:
        they are in no file that a person could approve, so that the policy itself has to allow them."""
        remedy = self.remedy
        if predicting:
            settings = ", ".join(filter(None, (breach.setting for breach in predicting)))
            change = f"{settings} in [policy] there and restart `fedboost party`" if settings else ""
            remedy = ", or ".join(filter(None, (self.instead, change)))
        return Refused(
            f"site {party} refuses: its policy has {self.key} = {self.value}, and {self.why}; {remedy}",
            self.detail,
        )


@contextmanager
def naming_the_command(terms: Terms, analyst: str) -> Iterator[None]:
    """Have refusals of these terms name the command by which they are approved, as `with_the_command`."""
    try:
        yield
    except Refused as error:
        public = with_the_command(error.public, terms, analyst)
        if public == error.public:
            raise
        raise type(error)(public, error.detail) from None


def with_the_command(refusal: str, terms: Terms, analyst: str) -> str:
    """A refusal of these terms, with all options of the command that it names. analyst: who signed them; a
    name that a shell could read as more than a word is left out, and the command asks for it."""
    if _PLAIN.fullmatch(analyst) and terms.task.by_analyst:
        refusal = refusal.replace(COMMAND, f"{COMMAND} --analyst {analyst}")
    if terms.task.counts_values:
        refusal = refusal.replace(APPROVE, f"{APPROVE} --describe")
    return refusal


def choices(values: tuple[str, ...]) -> str:
    """A list of values, as the policy's file has it."""
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def brackets(names: tuple[str, ...] | None) -> str:
    """A stand-in for names that are the site's own affair."""
    return "[...]" if names else "[]"


def allowing(names: tuple[str, ...] | None) -> str:
    """Words about such names that the site alone may read; empty where there are none."""
    return f"the policy allows {', '.join(names)}" if names else ""


def not_chosen(key: str, allowed: tuple[str, ...], setting: str, value: str) -> Breach:
    """The breach by a setting of the terms that is not one of the policy's choices."""
    instead = f'set {setting} = "{allowed[0]}"'
    return Breach(key, choices(allowed), f'the terms have {setting} = "{value}"', instead, (value,))


def beyond(setting: str, value: int, key: str, limit: int) -> Breach:
    """The breach by a number in the terms that is beyond the policy's."""
    return Breach(key, str(limit), f"the terms have {setting} = {value}", f"set {setting} = {limit}", value)


def not_among(key: str, allowed: tuple[str, ...] | None, names: Sequence[str]) -> Breach | None:
    """The breach by names in the terms that are not among the policy's; None if all are."""
    strange = [name for name in names if name not in set(allowed or ())]
    if not strange:
        return None
    named = ", ".join(f"'{shown(name)}'" for name in strange[:SHOWN_NAMES])
    if len(strange) > SHOWN_NAMES:
        named += f" and {len(strange) - SHOWN_NAMES} more"
    why = f"the terms name {named}"
    if allowed:
        why += f", which {'is' if len(strange) == 1 else 'are'} not among them"
    return Breach(
        key, brackets(allowed), why, allow=tuple(strange), detail=allowing(allowed), names=tuple(strange)
    )
