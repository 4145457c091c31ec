"""A site's own policy, the `[policy]` table of party.toml: its keys, its rules, and which terms break them.

Promises: `permit` runs before any row is read, whatever the aggregator claims about the terms. Every rule is
checked against the terms and the verified signers of the model in them only. A person is asked last, about
terms that all other rules allow. Until a site names parties, analysts and columns, or approves terms
(`fedboost approve`), nothing is allowed.
Refuses: terms that break a rule, with one sentence that names the site, the key, its value and the remedy
(Refused). The names that a site allows never leave it: they are in the error's `detail`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.gbdt.metrics import EDGES, is_at_threshold, own_name
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.tree import NO_CHILD
from fedboost.privacy.pairwise import MIN_GROUP_PARTIES, Group
from fedboost.protocol.site import MAX_SESSIONS, MAX_SPLITS, Budget, Limits, splits_by
from fedboost.results.site import ModelOrigin
from fedboost.runtime.config import to_toml
from fedboost.terms.hiding import MAX_DELTA, Placement, ProtectionName
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.session import TaskName
from fedboost.terms.tasks import rows_readable
from fedboost.terms.terms import Terms, have_folds
from fedboost.terms.vertical import MAX_IDS, MAX_ROWS_PER_BIN, Rows
from fedboost.views.approval import APPROVE, columns_by_role, summary
from fedboost.views.words import delimited, shown

COMMAND = f"{APPROVE} --config party.toml"
"""The command by which a site approves terms that its policy refuses."""
MAX_ROWS_PER_LEAF = 1_000_000_000
MAX_BUDGET_EPSILON = 100.0
"""A larger epsilon promises nothing."""
MIN_ROWS_PER_BIN = 10
"""Fewest rows of a bin where labels are hidden, unless the policy sets another: the same as the default of
`min_rows_per_leaf`. The loss in model quality is within the random variation (docs/vertical.md)."""
PINNED = ("parties", "analysts", "columns")
"""Keys with names, which every approval lists in full."""


# ---- The keys, each with what it protects against -------------------------------------------------------


class ColumnRules(Frozen):
    """The columns of its table that a site allows terms to name, by role."""

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


class Policy(Frozen):
    """The terms that a site accepts, as keys of its file. docs/policy.md explains each key.

    A "min_" key is the least that terms may have, over all parties; a "max_" key is the most, where
    docs/policy.md states it over all sessions of a dataset. A boolean key allows what it names. Keys of names
    allow "any" or those listed; None, the default, allows none. None in other keys: min_rows_per_bin is
    MIN_ROWS_PER_BIN where columns are hidden, else 1; max_label_epsilon also allows labels without noise;
    colluding is the default for the number of parties; epsilon and delta set no budget (a budget refuses
    terms without noise). evaluate = "own" requires that this site, or a party in evaluate_signers, signed the
    measured model.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)  # each states what its key protects against

    parties: Literal["any"] | tuple[Name, ...] | None = None
    """Sums are over the rows of these parties: a party without rows, or with invented ones, hides nothing."""
    analysts: Literal["any"] | tuple[Name, ...] | None = None
    """An analyst who may start sessions chooses the questions about the rows."""
    columns: Literal["any"] | ColumnRules | None = None
    """Sessions reveal something about every column that they name, most of all about a label."""
    tasks: tuple[TaskName, ...] = Field(default=get_args(TaskName), min_length=1)
    """Each kind of session reveals something else about the rows."""
    protections: tuple[ProtectionName, ...] = Field(default=("masked",), min_length=1)
    """Under "plain" the aggregator sees this site's own numbers."""
    by_columns: bool = False
    """Other parties learn which rows go left at each split, and every gradient of a label holder."""
    label_holders: Literal["any"] | tuple[Name, ...] | None = None
    """By its gradients a label holder chooses which rows splits separate, and it learns the result."""
    rows: tuple[Rows, ...] = Field(default=("common", "in_order"), min_length=1)
    """With "label_holder" the label holder learns for each of its rows whether this site has it."""
    min_common_rows: int = Field(default=1000, ge=1)
    """Among few matched rows, a single row that a split sends left can be identified."""
    repeated_ids: bool = False
    """Feature holders learn how many rows each matched id has; a leaf of many rows may be one person."""
    max_foreign_ids: int = Field(default=MAX_IDS, ge=1)
    """A party that enters every possible id learns which of them this site has."""
    max_predicted_rows: int = Field(default=0, ge=0)
    """The label holder learns for each predicted row on which side of this site's splits it falls."""
    max_splits: int = Field(default=MAX_SPLITS, ge=1)
    """Each split by this site's columns shows other parties which of a node's rows go left."""
    model: Literal["parties", "whole"] = "parties"
    """A whole model contains the thresholds of this site's columns, and predicts without this site."""
    min_alone_rounds: int = Field(default=0, ge=0)
    """The gradients of the first trees are nearly the labels themselves."""
    min_rows_per_bin: int | None = Field(default=None, ge=1, le=MAX_ROWS_PER_BIN)
    """The sums of a bin with few rows are about those rows; with one row, they reveal its label."""
    max_label_epsilon: float | None = Field(default=None, gt=0)
    """Gradients reveal labels; noise on the labels limits how much is revealed about each."""
    on_loss: tuple[Literal["wait", "shrink", "stop"], ...] = Field(default=("wait", "stop"), min_length=1)
    """With "shrink", the difference of two sums may be that of one site, which left or came back."""
    placements: tuple[Placement, ...] = Field(default=("distributed", "local"), min_length=1)
    """With "central", values leave this site without noise: the aggregator sees exact sums."""
    min_parties: int = Field(default=MIN_GROUP_PARTIES, ge=1)
    """A sum over few parties shows each of them something about the others."""
    min_rows_per_leaf: int = Field(default=10, ge=1, le=MAX_ROWS_PER_LEAF)
    """A leaf with few rows reveals their labels."""
    quantile_leaves: bool = False
    """The value of a leaf is about the label of one of its rows, however many rows it has."""
    max_rounds: int = Field(default=1000, ge=1)
    """Each round opens sums over further sets of rows."""
    max_depth: int = Field(default=8, ge=1)
    """Deep trees have leaves with single rows."""
    max_trees_per_round: int = Field(default=100, ge=1)
    """Each tree opens sums over further sets of rows."""
    max_trials: int = Field(default=32, ge=0)
    """Each candidate is one more training on the same rows."""
    max_metrics: int = Field(default=8, ge=1)
    """Each metric is a sum over the rows, in every round."""
    max_category_levels: int = Field(default=32, ge=1)
    """A level that only one person has reveals that person's label."""
    target_means: bool = False
    """The aggregator sees labels summed by level; the sum of a level with one row is that row's label."""
    metrics_at_thresholds: bool = False
    """Metrics at two close thresholds differ by the few rows between them."""
    party_metrics: bool = False
    """Metrics of this site's rows only are readable, even where its other sums are hidden."""
    validation: bool = False
    """Metrics of each round, or of two sets that differ by one row, reveal labels of these rows."""
    base_margin: bool = False
    """Metrics show how the values of this column are distributed, down to the last row."""
    continue_models: bool = False
    """Trees made by others may put single rows into a leaf."""
    evaluate: Literal["own", "any"] = "own"
    """A model made by others may have leaves with single rows, about which its scores reveal something."""
    evaluate_signers: tuple[Name, ...] = ()
    """A named party vouches for the leaves of the models that it signed."""
    min_count: int = Field(default=10, ge=1)
    """Counts of few rows, by level or label, are about those few people."""
    subgroups: bool = False
    """Errors and rates by sex or ward are about one group of people, which may be small."""
    vote_top_k: int = Field(default=0, ge=0)
    """If all parties vote alike, the vote of each is known."""
    subsample: float = Field(default=1.0, gt=0, le=1)
    """Sums over many known draws of the rows together reveal each single row."""
    min_key_bits: int = Field(default=3072, ge=1)
    """Shorter keys may be broken while the data that they hide still matter."""
    colluding: int | None = Field(default=None, ge=0)
    """This many parties may collude with the aggregator and learn nothing about this site by itself."""
    epsilon: float | None = Field(default=None, gt=0, le=MAX_BUDGET_EPSILON)
    """Limits how much all sessions together reveal about one row."""
    delta: float | None = Field(default=None, gt=0, le=MAX_DELTA)
    """The probability that the limit set by epsilon fails."""
    max_sessions: int = Field(default=MAX_SESSIONS, ge=1)
    """Each session is one more set of sums over the same rows."""
    similar_groups: bool = False
    """Two sums over groups that differ by one party reveal that party's own sum."""
    approval: Literal["auto", "ask"] = "auto"
    """With "ask" a person decides on every session."""

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

    def _faults(self) -> Iterator[str]:
        if (self.epsilon is None) != (self.delta is None):
            half, other = ("epsilon", "delta = 1e-5") if self.delta is None else ("delta", "epsilon = 3.0")
            yield f"{half} is only half of a budget: add {other}"

    @property
    def budget(self) -> Budget | None:
        """The privacy that all sessions together may spend; None if it is unlimited."""
        return None if self.epsilon is None or self.delta is None else Budget(self.epsilon, self.delta)

    def permit(
        self,
        terms: Terms,
        party: str,
        ask: Callable[[str], bool] | None = None,
        analyst: str = "",
        signers: "ModelSigners | None" = None,
    ) -> Limits:
        """Check terms against this policy, and return its limits on all sessions of the dataset. Refused.

        party: this site's name in the terms; ask: called with a summary of the terms if approval is "ask",
        returns whether the person agrees or raises Refused, None if no one can be asked; analyst: the signer
        of the request, '' if unsigned; signers: of the model that the terms measure, None if not checked.
        """
        # All rules first: a person is asked only about terms that they allow, and cannot waive one here.
        if broken := [*self.breaches(terms, analyst, party, signers)]:
            raise broken[0].refusal(party, () if terms.task.by_analyst else broken)
        if self.approval == "ask":
            refused = f'site {party} refuses: its policy has approval = "ask", and '
            if ask is None:
                raise Refused("approval-nobody-there", f"{refused}no one can be asked; run `{COMMAND}` there")
            who = f"\nAnalyst {delimited(analyst)} asks for this session." if analyst else ""
            origin = origin_of(self, terms, party, signers or UNCHECKED)
            try:
                agreed = ask(summary(terms, (analyst,) if analyst else (), origin=origin) + who)
            except Refused as error:
                raise Refused(error.code, f"{refused}{error.public}; run `{COMMAND}` there") from None
            if not agreed:
                raise Refused(
                    "approval-declined",
                    f"{refused}the person asked said no to the terms with digest {terms.digest}",
                )
        return Limits(
            self.max_sessions, self.similar_groups, self.max_predicted_rows, self.max_splits, self.min_count
        )

    def breaches(
        self, terms: Terms, analyst: str = "", party: str = "", signers: "ModelSigners | None" = None
    ) -> Iterator["Breach"]:
        """Yield every rule that the terms break, except approval by a person. party: this site's name in the
        terms; signers: of the model in them."""
        # In the order of refusals, for the first breach. Who takes part comes first: an analyst whom the site
        # does not know is refused before any limit is named. Then the columns, and last the settings.
        yield from filter(None, (_parties(self, terms), _analysts(self, terms, analyst), _tasks(self, terms)))
        yield from _columns(self, terms, party)
        task = terms.task.name
        if terms.blocks:
            yield from filter(None, (rule(self, terms, party) for rule in BY_COLUMNS[task]))
        yield from _breaches_of_model(self, terms, party, signers or UNCHECKED)
        yield from filter(None, (rule(self, terms, party) for rule in RULES[task]))


PROTECTS = {
    key: f"{why[0].lower()}{why[1:-1]}"
    for key, field in Policy.model_fields.items()
    if (why := field.description)
}
"""What each key protects against."""


# ---- Breaches of a site's policy as data, and the sentences with which a site refuses -------------------


SHOWN_NAMES = 8
"""Names in a refusal."""


@dataclass(frozen=True)
class Breach:
    """A rule of a policy that terms break.

    key, value: the rule as written in the file; why: a clause about the terms; instead: a change of the terms
    that would comply; allow: the value of the key that would allow the terms, or the names to add; None if no
    approval can.
    """

    key: str
    value: str
    why: str
    instead: str = ""
    allow: object = None
    detail: str = ""

    @property
    def rule(self) -> str:
        """The key as it appears under [policy]: `columns` for the columns of each role."""
        return self.key.partition(".")[0]

    @property
    def setting(self) -> str:
        """The change of the policy's file that would allow the terms; '' if there is none."""
        if self.allow is None:
            return ""
        if not isinstance(self.allow, tuple):
            return f"set {self.key} = {to_toml(self.allow)}"
        named = ", ".join(f'"{shown(name)}"' for name in self.allow[:SHOWN_NAMES])
        more = len(self.allow) - SHOWN_NAMES
        return f"add {named}{f' and {more} more' if more > 0 else ''} to {self.key}"

    def refusal(self, party: str, predicting: "Sequence[Breach]" = ()) -> Refused:
        """The error with the sentence that the analyst reads. predicting: all breaches of terms that predict.
        No file exists that a person could approve for those, so the policy itself must allow them."""
        change = f"run `{COMMAND}` there" if self.allow is not None else ""
        if predicting:
            settings = ", ".join(filter(None, (breach.setting for breach in predicting)))
            change = f"{settings} in [policy] there and restart `fedboost party`" if settings else ""
        remedy = ", or ".join(filter(None, (self.instead, change)))
        rule = f"site {party} refuses: its policy has {self.key} = {self.value}, and {self.why}; {remedy}"
        return Refused("policy-rule-broken", rule, self.detail)


def _brackets(names: tuple[str, ...] | None) -> str:
    """A placeholder for names that are for the site's eyes only."""
    return "[...]" if names else "[]"


def _allowing(names: tuple[str, ...] | None) -> str:
    """The names that the policy allows, for the site's eyes only; '' if there are none."""
    return f"the policy allows {', '.join(names)}" if names else ""


def _not_chosen(key: str, allowed: tuple[str, ...], setting: str, value: str) -> Breach | None:
    """The breach by a setting of the terms that the policy does not list; None for '' or a listed one."""
    if not value or value in allowed:
        return None
    instead = f'set {setting} = "{allowed[0]}"'
    return Breach(key, to_toml(allowed), f'the terms have {setting} = "{value}"', instead, (value,))


def _not_among(key: str, allowed: tuple[str, ...] | None, names: Sequence[str]) -> Breach | None:
    """The breach by names in the terms that the policy does not list; None if it lists all."""
    strange = [name for name in names if name not in set(allowed or ())]
    if not strange:
        return None
    named = ", ".join(f"'{shown(name)}'" for name in strange[:SHOWN_NAMES])
    if len(strange) > SHOWN_NAMES:
        named += f" and {len(strange) - SHOWN_NAMES} more"
    why = f"the terms name {named}"
    if allowed:
        why += f", which {'is' if len(strange) == 1 else 'are'} not among them"
    return Breach(key, _brackets(allowed), why, allow=tuple(strange), detail=_allowing(allowed))


# ---- The rules: one function each, which returns the breach of it by some terms, or None ----------------
# Each is checked against the terms and this site's name in them only; for a model in the terms, also against
# the parties whose signatures of it are valid. Rules about a label holder's demands on others do not apply to
# the label holder's own site, and vice versa.


Rule = Callable[[Policy, Terms, str], Breach | None]
"""Takes a policy, terms, and the site's name in them."""


def _forbids(key: str, found: Callable[[Terms], str], instead: str = "leave it out") -> Rule:
    """A rule for a boolean key. found: the clause about terms that need the key; '' if they do not."""

    def rule(policy: Policy, terms: Terms, party: str) -> Breach | None:
        why = "" if getattr(policy, key) else found(terms)
        return Breach(key, "false", why, instead, True) if why else None

    return rule


def _limit(key: str, number_of: Callable[[Terms], int | None], found: str, instead: str = "") -> Rule:
    """A rule for a numeric key: an upper limit, or a lower one for a min_ key. number_of: the number in the
    terms, or None. found: the clause about the terms, with {} for it; instead: the remedy, with {} for the
    limit; found alone: the name of a setting."""
    has, change = (found, instead) if instead else (f"have {found} = {{}}", f"set {found} = {{}}")

    def rule(policy: Policy, terms: Terms, party: str) -> Breach | None:
        number, limit = number_of(terms), getattr(policy, key)
        if number is None or (number >= limit if key.startswith("min_") else number <= limit):
            return None
        return Breach(key, str(limit), f"the terms {has.format(number)}", change.format(limit), number)

    return rule


# ---- names -------------------------------------------------------------------------------------------


def _parties(policy: Policy, terms: Terms) -> Breach | None:
    return None if policy.parties == "any" else _not_among("parties", policy.parties, terms.parties)


def _analysts(policy: Policy, terms: Terms, analyst: str) -> Breach | None:
    allowed = policy.analysts
    if not terms.task.by_analyst or not analyst or allowed == "any" or analyst in (allowed or ()):
        return None  # a prediction is requested by its label holder, whom `label_holders` names
    why = f"the analyst is {quoted(analyst)}"
    return Breach("analysts", _brackets(allowed), why, allow=(analyst,), detail=_allowing(allowed))


def _tasks(policy: Policy, terms: Terms) -> Breach | None:
    name = terms.task.name
    if name in policy.tasks:
        return None
    return Breach("tasks", to_toml(policy.tasks), f"the task of the session is {name}", allow=(name,))


def _columns(policy: Policy, terms: Terms, party: str) -> Iterator[Breach]:
    if policy.columns == "any":
        return
    allowed = policy.columns or ColumnRules()
    for role, names in columns_by_role(terms, party).items():
        if breach := _not_among(f"columns.{role}", getattr(allowed, role), names):
            yield breach


# ---- protection and parties --------------------------------------------------------------------------


def _protections(policy: Policy, terms: Terms, party: str) -> Breach | None:
    breach = _not_chosen("protections", policy.protections, "protection", terms.hiding.protection)
    return replace(breach, instead="") if breach and terms.blocks else breach  # blocks allow no other


def _on_loss(policy: Policy, terms: Terms, party: str) -> Breach | None:
    loses = terms.protection.hides
    return _not_chosen("on_loss", policy.on_loss, "on_loss", terms.session.on_loss) if loses else None


def _min_parties(policy: Policy, terms: Terms, party: str) -> Breach | None:
    limit, holders = policy.min_parties, len(terms.holders)
    if holders < limit:
        rows = " with rows" if holders < len(terms.parties) else ""
        return Breach("min_parties", str(limit), f"the terms name {holders}{rows}", "name more", holders)
    if terms.min_roster < limit:
        why = f'the terms let a session shrink to {terms.min_roster} parties (on_loss = "shrink")'
        return Breach("min_parties", str(limit), why, f"set quorum = {limit}", terms.min_roster)
    return None


def _colluding(policy: Policy, terms: Terms, party: str) -> Breach | None:
    floor = Group.of(terms.parties).colluding if policy.colluding is None else policy.colluding
    tolerated = Group.of(terms.parties, terms.hiding.colluding).colluding if terms.protection.hides else floor
    if tolerated >= floor:
        return None
    why = f"the terms tolerate {tolerated} colluding parties"
    return Breach("colluding", str(floor), why, f"set colluding = {floor}", tolerated)


# ---- noise -------------------------------------------------------------------------------------------


def _placements(policy: Policy, terms: Terms, party: str) -> Breach | None:
    placement = "" if terms.noise is None else terms.noise.placement
    breach = _not_chosen("placements", policy.placements, "noise.placement", placement)
    effect = ", which gives the aggregator exact sums" if placement == "central" else ""
    return breach and replace(breach, why=f'the noise of the terms is "{placement}"{effect}')


def _budget(policy: Policy, terms: Terms, party: str) -> Breach | None:
    budget, asked = policy.budget, terms.noise
    if budget is None:
        return None
    epsilon, delta = f"{budget.epsilon:g}", f"{budget.delta:g}"
    if asked is None:
        why = "the terms have no noise, which would cost more than any budget"
        return Breach("epsilon", epsilon, why, f"add noise with delta = {delta}")
    if asked.placement == "central":
        why = "the aggregator draws the noise: values leave without it, which costs more than any budget"
        return Breach("epsilon", epsilon, why, 'set noise.placement = "distributed"')
    if asked.delta > budget.delta:
        why = f"the noise of the terms has delta = {asked.delta:g}"
        return Breach("delta", delta, why, f"set noise.delta = {delta}")
    return None


def _unless_noise_hides(rule: Rule) -> Rule:
    """A rule about the rows of a leaf or level. It does not apply where noise hides them and a budget limits
    how much is revealed."""

    def own(policy: Policy, terms: Terms, party: str) -> Breach | None:
        hides = terms.noise is not None and terms.noise.placement != "central"
        return None if hides and policy.budget is not None else rule(policy, terms, party)

    return own


# ---- trees, leaves and levels ------------------------------------------------------------------------
# What `min_rows_per_leaf` can and cannot do. The sum of hessians in both children of a split must reach
# min_child_weight. If every row has weight 1 and scale_pos_weight is not set, no row has a hessian above 1/4
# (binary:logistic) or 1/2 (multi:softprob), or other than 1 (reg:squarederror, reg:absoluteerror,
# reg:quantileerror). The sums are of rounded hessians, but rounding adds nothing to these bounds: they are
# multiples of the fixed-point unit, or at most half of a very coarse unit, which rounds to zero. So a split
# under min_child_weight w leaves at least 4 w, 2 w or w rows on each side, over all parties. The rule cannot
# stop an aggregator that lies about the sums or the splits, nor a party that adds rows of its own. It does
# not cover a tree without splits, the rows of *this* site in a leaf, or the bins of a histogram, each of
# which may have a single row. Row weights or a custom program leave nothing to rely on: with them the rule
# refuses.


def _min_rows_per_leaf(policy: Policy, terms: Terms, party: str = "") -> Breach | None:
    limit, (rows, why) = policy.min_rows_per_leaf, rows_per_leaf(terms)
    if rows >= limit:
        return None
    instead = ""
    if not why:
        instead = f"set min_child_weight = {limit / (_rows_per_hessian(terms) or 1):.12g}"
        why = (
            f"the terms have min_child_weight = {terms.trees.min_child_weight:g}, which with "
            f"{terms.objective.name} guarantees {rows} row{'s' * (rows > 1)} in a leaf"
        )
    return Breach("min_rows_per_leaf", str(limit), why, instead, rows)


def rows_per_leaf(terms: Terms) -> tuple[int, str]:
    """The fewest rows of all parties in a leaf of a tree that splits; and why it is one, if no setting
    guarantees more."""
    weight = terms.columns.weight
    if weight is not None:
        return 1, f"with the row weights of column {quoted(weight)!r} it is not guaranteed"
    if terms.objective.scale_pos_weight is not None:
        return 1, "with a scale_pos_weight it is not guaranteed"
    if terms.draws.sampling_method != "uniform":
        drawn = f'the rows that sampling_method = "{terms.draws.sampling_method}" draws weigh more than 1'
        return 1, f"{drawn}: it is not guaranteed"
    if terms.noise is not None:
        return 1, "with noise it is not guaranteed, and only a budget (epsilon, delta) replaces it"
    per = _rows_per_hessian(terms)
    is_own = terms.task.trains and terms.session.is_built_in
    if not is_own or per is None:
        what = "objective" if is_own else "program"
        return 1, f"{what} {quoted(terms.flat[what])!r} does not guarantee it"
    rows = min(terms.trees.min_child_weight * per, float(MAX_ROWS_PER_LEAF))
    return max(1, math.ceil(rows)), ""


def _rows_per_hessian(terms: Terms) -> int | None:
    """Rows per unit of hessian for a registered objective; that of another package is not trusted."""
    return terms.objective.loss.rows_per_hessian if terms.objective.name in OBJECTIVES else None


def _subsample(policy: Policy, terms: Terms, party: str) -> Breach | None:
    share = terms.draws.share_drawn
    if not (terms.protection.hides or terms.hides_columns) or share >= policy.subsample:
        return None
    why = f"the terms have subsample = {terms.draws.subsample:g}"
    if terms.draws.sampling_method == "bootstrap":
        why += f" with a bootstrap, which draws {share:.2g} of the rows"
    return Breach("subsample", f"{policy.subsample:g}", why, "draw more rows", share)


def _max_category_levels(policy: Policy, terms: Terms, party: str) -> Breach | None:
    counts = {name: len(levels) for name, levels in terms.blocks.columns.levels.items()}
    count, limit = max(counts.values(), default=0), policy.max_category_levels
    if count <= limit:
        return None
    column = next(name for name, levels in counts.items() if levels == count)
    why = f"the terms declare {count} categories of {quoted(column)!r}"
    return Breach("max_category_levels", str(limit), why, "group rare levels in the tables", count)


def _min_count(policy: Policy, terms: Terms, party: str) -> Breach | None:
    limit = policy.min_count
    if terms.noise is not None and policy.budget is None and limit > 1:
        why = "counts with noise are not rounded: without a budget, repeated sessions average the noise away"
        return Breach("min_count", str(limit), why, "describe without noise", 1)
    return _limit("min_count", lambda terms: terms.evaluation.min_count, "min_count")(policy, terms, party)


def _few_rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    """The breach by results of a training besides its trees: a reference, and means of levels."""
    tells = terms.evaluation.reference or have_folds(terms)
    return _min_count(policy, terms, party) if tells else None


# ---- what terms have that keys forbid ----------------------------------------------------------------


def _quantile(terms: Terms) -> str:
    name = quoted(terms.objective.name)
    has = terms.objective.loss.quantile is not None
    return f"with {name} a leaf's value is about the label of one row" if has else ""


def _levels_summed(terms: Terms) -> str:
    """Labels that are summed by level. Other tasks read the means in an existing model."""
    names = [quoted(name) for name in terms.columns.target_means]
    return f"the terms sum labels by level of {names[0]!r} (columns.target_means)" if names else ""


def _continues(terms: Terms) -> str:
    why = "the terms continue a model (xgb_model), whose trees may isolate single rows"
    return "" if terms.xgb_model is None else why


def _margin(terms: Terms) -> str:
    name = terms.columns.base_margin
    return "" if name is None else f"the terms name the base margin {quoted(name)!r}"


def _at_threshold(terms: Terms) -> str:
    names, default = map(own_name, terms.metrics), terms.objective.loss.default_metric
    chosen = [name for name in names if is_at_threshold(name) and name != default]
    return f"the terms ask for the metric {quoted(chosen[0])}" if chosen else ""


def _own_metrics(terms: Terms) -> str:
    has = terms.protection.hides and terms.evaluation.party_metrics
    return "the terms have party_metrics = true" if has else ""


def _by_subgroups(terms: Terms) -> str:
    names = ", ".join(map(quoted, terms.evaluation.subgroups))
    return f"the terms have subgroups by {names}" if names else ""


def _validates(terms: Terms) -> str:
    if not terms.validates:
        return ""
    if terms.columns.validation is not None:
        return f"the terms have the validation column {quoted(terms.columns.validation)!r}"
    return f"the terms have validation_fraction = {terms.evaluation.validation_fraction:g}"


def _measures_some(terms: Terms) -> str:
    rows = terms.evaluation.evaluate_rows
    return "" if rows == "all" else f"the terms measure a model on {rows} rows"


_metrics_at_thresholds = _forbids("metrics_at_thresholds", _at_threshold)


def _threshold(policy: Policy, terms: Terms, party: str) -> Breach | None:
    """The breach by what an evaluation reads at a threshold: rows on either side of it, or metrics."""
    threshold = terms.evaluation.threshold
    if threshold in EDGES:
        return _metrics_at_thresholds(policy, terms, party)
    near = min(EDGES, key=lambda edge: abs(edge - threshold))
    rule = _forbids(
        "metrics_at_thresholds",
        lambda terms: f"the terms have threshold = {threshold:g}",
        f"set {near:g}, an edge of its bins",
    )
    return rule(policy, terms, party)


# ---- parties that hold different columns, and joint predictions --------------------------------------


def _helps(terms: Terms, party: str) -> bool:
    """True for a feature holder: another party has the labels of its rows."""
    return not terms.blocks.has_labels(party)


def _label_holders(policy: Policy, terms: Terms, party: str) -> Breach | None:
    block = terms.blocks.of(party)
    if block is None or policy.label_holders == "any" or not _helps(terms, party):
        return None
    return _not_among("label_holders", policy.label_holders, (block.label_holder,))


def _rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rows = terms.vertical.rows or "common"
    return _not_chosen("rows", policy.rows, "rows", rows) if _helps(terms, party) else None


def _max_predicted_rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.predict_rows or 0, policy.max_predicted_rows
    if rows <= limit or not _helps(terms, party):
        return None
    if limit:
        why, instead = f"the terms have predict_rows = {rows}", f"predict at most {limit}"
        return Breach("max_predicted_rows", str(limit), why, instead, rows)
    why = f"the terms predict {rows} rows with this site's columns: predictions are disabled here"
    return Breach("max_predicted_rows", "0", why, "", rows)


def _max_splits(policy: Policy, terms: Terms, party: str) -> Breach | None:
    splits, limit = splits_by(terms, party), policy.max_splits
    if splits <= limit:
        return None
    alone = terms.vertical.alone_rounds
    rounds = alone + limit * (terms.trees.rounds - alone) // splits
    why = f"the terms allow {splits:,} splits by its columns"
    instead = f"set rounds = {rounds}" if rounds > alone else "set a lower max_depth"
    return Breach("max_splits", str(limit), why, instead, splits)


def _model(policy: Policy, terms: Terms, party: str) -> Breach | None:
    if not terms.hides_columns or terms.keeps_parts or policy.model == "whole":
        return None
    why = 'the terms have model = "whole", which gives the analyst the thresholds of all columns'
    return Breach("model", '"parties"', why, 'set model = "parties"', "whole")


def _min_alone_rounds(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rule = _limit("min_alone_rounds", lambda terms: terms.vertical.alone_rounds, "alone_rounds")
    return None if _helps(terms, party) else rule(policy, terms, party)


def _max_label_epsilon(policy: Policy, terms: Terms, party: str) -> Breach | None:
    epsilon, limit = terms.vertical.label_epsilon, policy.max_label_epsilon
    if limit is None or _helps(terms, party) or (epsilon is not None and epsilon <= limit):
        return None
    why = "labels get no noise" if epsilon is None else f"the terms have label_epsilon = {epsilon:g}"
    return Breach("max_label_epsilon", f"{limit:g}", why, f"set label_epsilon = {limit:g}", epsilon)


def _min_rows_per_bin(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rows, limit = terms.vertical.min_rows_per_bin, policy.min_rows_per_bin
    if limit is None:
        limit = MIN_ROWS_PER_BIN if terms.hides_columns else 1
    if rows >= limit:
        return None
    why = f"the terms have min_rows_per_bin = {rows}" if rows > 1 else "the terms allow bins with one row"
    return Breach("min_rows_per_bin", str(limit), why, f"set min_rows_per_bin = {limit}", rows)


# ---- the tables --------------------------------------------------------------------------------------


_max_metrics = _limit(
    "max_metrics",
    lambda terms: len(terms.metrics) // max(1, len(terms.objective.candidates)),
    *("ask for {} metrics", "remove some"),
)
_base_margin = _forbids("base_margin", _margin, "leave columns.base_margin out")
_party_metrics = _forbids("party_metrics", _own_metrics)
_of_levels = _unless_noise_hides(_max_category_levels)
_bits = _limit(
    "min_key_bits", lambda t: t.hiding.key_bits if t.protection.uses_key_holder else None, "key_bits"
)

_OF_EVERY_TASK: tuple[Rule, ...] = (_protections, _on_loss, _min_parties, _colluding, _bits)
_OF_TRAINING: tuple[Rule, ...] = (
    *(*_OF_EVERY_TASK, _placements, _budget),
    _limit("max_rounds", lambda terms: terms.trees.rounds, "rounds"),
    _limit("max_depth", lambda terms: terms.trees.max_depth, "max_depth"),
    _limit(
        *("max_trees_per_round", lambda terms: len(terms.roots)),
        *("have {} trees per round", "lower num_parallel_tree or num_class"),
    ),
    _limit("max_trials", lambda t: len(t.objective.candidates), "have {} candidates", "remove some"),
    _limit("vote_top_k", lambda terms: terms.histograms.vote_top_k, "vote_top_k"),
    *(_subsample, _forbids("continue_models", _continues, "leave xgb_model out"), _base_margin),
    _forbids("quantile_leaves", _quantile, "choose another objective"),
    *(_unless_noise_hides(_min_rows_per_leaf), _of_levels),
    _unless_noise_hides(_forbids("target_means", _levels_summed)),
    *(_max_metrics, _metrics_at_thresholds, _party_metrics),
    *(_forbids("validation", _validates, "have no validation rows"), _few_rows),
)
_OF_COUNTS: tuple[Rule, ...] = (*_OF_EVERY_TASK, _placements, _budget, _of_levels, _min_count)
_OF_EVALUATIONS: tuple[Rule, ...] = (
    *(*_OF_COUNTS, _base_margin, _max_metrics, _threshold, _party_metrics),
    _forbids("subgroups", _by_subgroups, "leave subgroups out"),
    _forbids("validation", _measures_some, 'set evaluate_rows = "all" (--rows all)'),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "train": _OF_TRAINING,
    "tune": _OF_TRAINING,
    "describe": _OF_COUNTS,
    "evaluate": _OF_EVALUATIONS,
    "drift": (*_OF_COUNTS, _base_margin),
    "predict": _OF_EVERY_TASK,
}
"""The rules for each task, in the order of refusals: a site refuses for the first. Whether a model may be
measured is decided by `_breaches_of_model`. Predictions are limited by max_predicted_rows only: they get no
noise, and no budget of epsilon is charged."""
_by_columns = _forbids(
    "by_columns", lambda terms: f"the terms have {terms.vertical.key}", "give every party all columns"
)
_repeated_ids = _forbids(
    "repeated_ids",
    lambda terms: "the terms have repeated_ids = true" if terms.vertical.repeated_ids else "",
    "keep one row per id",
)
_COMMON_ROWS = (
    *("min_common_rows", lambda t: t.vertical.fewest_common_rows if t.vertical.aligns else None),
    "accept {:,} matched rows",
)
_max_foreign_ids = _limit(
    "max_foreign_ids", lambda t: t.vertical.most_ids if t.vertical.aligns else None, "max_ids"
)

BY_COLUMNS: dict[str, tuple[Rule, ...]] = {
    "train": (
        *(_label_holders, _by_columns, _rows, _limit(*_COMMON_ROWS, "set min_common_rows = {}")),
        *(_repeated_ids, _max_foreign_ids, _max_splits, _model, _min_alone_rounds, _min_rows_per_bin),
        _max_label_epsilon,
    ),
    "predict": (
        *(_label_holders, _by_columns, _limit(*_COMMON_ROWS, "--min-common-rows {}")),
        *(_max_foreign_ids, _max_predicted_rows),
    ),
}
"""Further rules for each task possible where parties hold different columns; they come before the others."""


# ---- Rules about a model that is measured ---------------------------------------------------------------
# Promises: with evaluate = "own", a model is measured only if this site, or a party that it names, signed all
# of its trees, and the signed terms guarantee min_rows_per_leaf. The scores would reveal something about the
# row in a leaf of one row, however many rows a count is of.


@dataclass(frozen=True)
class ModelSigners:
    """The parties with a valid signature on the model in some terms. unknown: why signatures could not be
    checked, '' if they were."""

    names: frozenset[str] = frozenset()
    unknown: str = ""


UNCHECKED = ModelSigners(unknown="this site has no keys, so it cannot check the signatures of the model")


def _breaches_of_model(policy: Policy, terms: Terms, party: str, signers: ModelSigners) -> Iterator[Breach]:
    if not terms.task.measures or policy.evaluate == "any":
        return
    trained = terms.trained
    if not _accepted(policy, party, signers) or trained is None:
        others = " or of a party in evaluate_signers" if policy.evaluate_signers else ""
        why = f"the model has no signature of this site{others} that covers all of its trees"
        instead = "choose a model that this site helped to train"
        if signers.unknown:
            why, instead = signers.unknown, 'run it with keys, or set evaluate = "any" in its policy'
        yield Breach("evaluate", '"own"', why, instead, "any", _allowing(policy.evaluate_signers))
        return
    if trained.earlier is not None and not policy.continue_models:
        why = "the training of the model continued another, whose trees may isolate single rows"
        yield Breach("continue_models", "false", why, "choose a model that continues no other", True)
    if few := _min_rows_per_leaf(policy, trained):
        instead = few.instead and f"in its training {few.instead}"
        yield replace(few, why=f"in the training of the model {few.why}", instead=instead)
    if contradiction := _contradiction(terms, trained):
        yield Breach("evaluate", '"own"', contradiction, allow="any")


def origin_of(policy: Policy, terms: Terms, party: str, signers: ModelSigners) -> ModelOrigin | None:
    """Who made the model that terms measure, as shown to a person; None if they measure none."""
    if not terms.task.measures:
        return None
    accepted, rows = _accepted(policy, party, signers), 1
    if accepted and terms.trained is not None and terms.trained.earlier is None:
        rows = 1 if _contradiction(terms, terms.trained) else rows_per_leaf(terms.trained)[0]
    return ModelOrigin(
        own=party in accepted,
        others=tuple(sorted(accepted - {party})),
        unknown=signers.unknown,
        rows=rows,
        readable=rows_readable(terms),
    )


def _accepted(policy: Policy, party: str, signers: ModelSigners) -> frozenset[str]:
    return signers.names & {party, *policy.evaluate_signers}


def _contradiction(terms: Terms, trained: Terms) -> str:
    """How the covers in the model file contradict its training's terms; '' if they do not."""
    assert terms.earlier is not None
    least = np.float32(trained.trees.min_child_weight)
    first = len(trained.roots) * trained.constant_rounds
    for number, tree in enumerate(terms.earlier.trees[first:], first + 1):
        leaves = (c for c, left in zip(tree.cover, tree.left, strict=True) if left == NO_CHILD)
        if len(tree.left) > 1 and (low := min(leaves)) < least:
            promised = f"min_child_weight = {trained.trees.min_child_weight:g} of its training"
            return f"tree {number} of the model has a leaf of cover {low:g}, below the {promised}"
    return ""
