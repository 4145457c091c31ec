"""A site's policy, the `[policy]` table of party.toml: its keys, and the rules that terms must satisfy.

Guarantees: `Policy.permit` runs before any row is read, whatever the aggregator claims. Every rule depends
only on the terms and on verified signatures of the model in them. A person is asked only about terms that
satisfy all other rules. By default, everything is refused until a site names parties, analysts and columns,
or approves terms (`fedboost approve`).
Raises: Refused if terms break a rule. The message is one sentence that names the site, the key, the key's
value and the remedy. The names that a site allows never leave it: they are only in the error's `detail`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.gbdt.metrics import EDGES, is_at_threshold, own_name
from fedboost.privacy.pairwise import MIN_GROUP_PARTIES, Group
from fedboost.protocol.site import MAX_SESSIONS, MAX_SPLITS, Budget, Limits, predicted_by, splits_by
from fedboost.results.site import ModelOrigin
from fedboost.runtime.config import to_toml
from fedboost.terms.hiding import MAX_DELTA, ProtectionName
from fedboost.terms.reading import Frozen, Name, one_or_several, read_model
from fedboost.terms.session import TaskName
from fedboost.terms.tasks import MAX_ROWS_PER_LEAF, have_folds, rows_per_hessian, rows_per_leaf, rows_readable
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import MAX_IDS, MAX_ROWS_PER_BIN, Rows
from fedboost.views.approval import APPROVE, columns_by_role, summary
from fedboost.views.words import counted, delimited, shown

COMMAND = f"{APPROVE} --config party.toml"
"""Command with which a site approves terms that its policy refuses."""
MAX_BUDGET_EPSILON = 100.0
"""Largest allowed budget; a larger epsilon gives no meaningful protection."""
MIN_ROWS_PER_BIN = 10
"""Minimum number of rows per bin where labels are hidden, unless the policy sets another. It equals the
default of `min_rows_per_leaf`. The loss of model quality is within random variation (docs/vertical.md)."""
PINNED = ("parties", "analysts", "columns")
"""Keys whose values are names. Every approval lists them in full."""


# ---- The keys, each with what it sets and why -----------------------------------------------------------


class ColumnRules(Frozen):
    """Columns of a site's table that terms may use, by role."""

    label: tuple[Name, ...] = ()
    features: tuple[Name, ...] = ()
    weight: tuple[Name, ...] = ()
    base_margin: tuple[Name, ...] = ()
    group: tuple[Name, ...] = ()
    validation: tuple[Name, ...] = ()
    row_id: tuple[Name, ...] = ()
    label_upper_bound: tuple[Name, ...] = ()
    subgroups: tuple[Name, ...] = ()

    _one_or_several = field_validator("*", mode="before")(one_or_several)


class Policy(Frozen):
    """Limits on the terms that a site accepts: the keys of its `[policy]` table (see docs/policy.md).

    "min_" keys are compared with totals over all parties. Keys that are None have these defaults: parties,
    analysts, columns and label_holders allow no names; min_rows_per_bin is MIN_ROWS_PER_BIN if columns are
    hidden, else 1; max_label_epsilon does not require noise; colluding follows from the number of parties;
    epsilon and delta set no budget (with a budget, terms without noise are refused).
    """

    model_config = ConfigDict(use_attribute_docstrings=True)  # first what the key sets, then why

    parties: Literal["any"] | tuple[Name, ...] | None = None
    """Parties that may take part. A party with no rows or fake rows adds no protection to the sums."""
    analysts: Literal["any"] | tuple[Name, ...] | None = None
    """Analysts whose requests this site accepts. The analyst decides what is asked about the rows."""
    columns: Literal["any"] | ColumnRules | None = None
    """Columns that terms may use. Sessions reveal something about each column, most of all about a label."""
    tasks: tuple[TaskName, ...] = Field(default=get_args(TaskName), min_length=1)
    """Session types that are allowed. Each type reveals different things about the rows."""
    protections: tuple[ProtectionName, ...] = Field(default=("masked",), min_length=1)
    """Protections that terms may use. Under "plain", the aggregator sees this site's own values."""
    by_columns: bool = False
    """Allow sessions where parties hold different columns. The other parties then learn which rows go left at
    each split and, under "plain", all gradients of the label holder."""
    label_holders: Literal["any"] | tuple[Name, ...] | None = None
    """Parties that may hold the labels. A dishonest label holder can craft gradients to isolate rows."""
    rows: tuple[Rows, ...] = Field(default=("common", "in_order"), min_length=1)
    """Ways to match rows. With "label_holder", the label holder learns which of its rows this site has."""
    min_common_rows: int = Field(default=1000, ge=1)
    """Minimum number of matched rows. If there are few, a row that a split separates can be identified."""
    repeated_ids: bool = False
    """Allow ids that occur in several rows. Feature holders learn the number of rows per id, and all rows of
    a leaf may belong to one person."""
    max_foreign_ids: int = Field(default=MAX_IDS, ge=1)
    """Maximum number of ids per party. A party with all possible ids learns which ids this site has."""
    max_predicted_rows: int = Field(default=0, ge=0)
    """Maximum number of rows that this site helps to predict, over all sessions. For each row, the label
    holder learns on which side of this site's splits it falls."""
    max_splits: int = Field(default=MAX_SPLITS, ge=1)
    """Maximum number of splits on this site's columns. Each split reveals to others which rows go left."""
    model: Literal["parties", "whole"] = "parties"
    """Models that may result: only "parties" (each party keeps its part), or also "whole". A whole model
    contains the thresholds of this site's columns and predicts without this site."""
    min_alone_rounds: int = Field(default=0, ge=0)
    """Minimum `alone_rounds` of terms. The gradients of the first trees are nearly the labels themselves."""
    min_rows_per_bin: int | None = Field(default=None, ge=1, le=MAX_ROWS_PER_BIN)
    """Minimum number of rows per bin. The sums of a smaller bin reveal the labels of its rows."""
    max_label_epsilon: float | None = Field(default=None, gt=0)
    """Maximum epsilon of noise on labels. Noise limits how much gradients reveal about each label."""
    on_loss: tuple[Literal["wait", "shrink", "stop"], ...] = Field(default=("wait", "stop"), min_length=1)
    """Allowed reactions to a disconnected party. With "shrink", the difference between two sums can reveal
    the values of a single site that left or returned."""
    min_parties: int = Field(default=MIN_GROUP_PARTIES, ge=1)
    """Minimum number of parties with rows. A sum over few parties reveals much about each of them."""
    min_rows_per_leaf: int = Field(default=10, ge=1, le=MAX_ROWS_PER_LEAF)
    """Minimum number of rows in a leaf, over all parties. A leaf with few rows reveals their labels."""
    quantile_leaves: bool = False
    """Allow leaf values that are quantiles. Such a value is close to a row's label, even in a large leaf."""
    max_rounds: int = Field(default=1000, ge=1)
    """Maximum number of rounds. Each round reveals sums over additional sets of rows."""
    max_depth: int = Field(default=8, ge=1)
    """Maximum depth of trees. Deep trees may have leaves with a single row."""
    max_trees_per_round: int = Field(default=100, ge=1)
    """Maximum number of trees per round. Each tree reveals sums over additional sets of rows."""
    max_trials: int = Field(default=32, ge=0)
    """Maximum number of candidates in tuning. Each candidate is one more training run on the same rows."""
    max_metrics: int = Field(default=8, ge=1)
    """Maximum number of metrics. Each metric is another sum over the rows in every round."""
    max_category_levels: int = Field(default=32, ge=1)
    """Maximum number of levels per column. A level that only one person has reveals that person's label."""
    target_means: bool = False
    """Allow target means. The aggregator sees labels summed by level, and a level may have a single row."""
    risk_sums: bool = False
    """Allow `survival:cox` over several sites. Each round's sums of risks by time reveal who is at risk."""
    metrics_at_thresholds: bool = False
    """Allow metrics at a threshold. Results at two close thresholds differ by the few rows between them."""
    party_metrics: bool = False
    """Allow metrics per party. Metrics of this site's rows are then readable even if its sums are hidden."""
    validation: bool = False
    """Allow validation rows. Metrics of each round, or of sets that differ by a row, reveal labels."""
    base_margin: bool = False
    """Allow a base margin column. Metrics reveal how its values are distributed, down to individual rows."""
    continue_models: bool = False
    """Allow continuing an existing model. Trees made by others may isolate individual rows in a leaf."""
    evaluate: Literal["own", "any"] = "own"
    """Models that may be evaluated: "own" (signed by this site or evaluate_signers) or "any". A model made by
    others may have leaves with a single row, and its scores reveal something about such rows."""
    evaluate_signers: tuple[Name, ...] = ()
    """Parties whose signature on a model is accepted. The signer vouches for the leaves of the model."""
    min_count: int = Field(default=10, ge=1)
    """Minimum `min_count` of terms. Counts of few rows, by level or label, describe those few people."""
    subgroups: bool = False
    """Allow results by subgroup. Errors and rates by sex or ward are about one group, which may be small."""
    level_names: tuple[Name, ...] = ()
    """Columns whose levels may be named. A level may be free text, and two sites could have it named."""
    vote_top_k: int = Field(default=0, ge=0)
    """Maximum `vote_top_k` of terms. If all parties vote alike, the vote of each is known."""
    subsample: float = Field(default=1.0, gt=0, le=1)
    """Minimum share of rows drawn per round. Sums over many known samples together reveal individual rows."""
    min_key_bits: int = Field(default=3072, ge=1)
    """Minimum size of encryption keys. Shorter keys may be broken while the data is still sensitive."""
    colluding: int | None = Field(default=None, ge=0)
    """Minimum number of colluding parties that terms must tolerate. That many parties and the aggregator
    together must not learn this site's own values."""
    epsilon: float | None = Field(default=None, gt=0, le=MAX_BUDGET_EPSILON)
    """Privacy budget of the rows. It limits how much all sessions together reveal about one row."""
    delta: float | None = Field(default=None, gt=0, le=MAX_DELTA)
    """Delta of the privacy budget. It is the probability that the limit set by epsilon fails."""
    max_sessions: int = Field(default=MAX_SESSIONS, ge=1)
    """Maximum number of sessions with these rows. Each session reveals another set of sums over them."""
    similar_groups: bool = False
    """Allow sessions with similar groups. If two groups differ by one party, that party's sum is revealed."""
    approval: Literal["auto", "ask"] = "auto"
    """Whether a person is asked: "auto" (no) or "ask". With "ask", a person at this site decides on every
    session."""

    _one_or_several = field_validator(
        "tasks", "protections", "rows", "on_loss", "evaluate_signers", "level_names", mode="before"
    )(one_or_several)

    @field_validator("parties", "analysts", "label_holders", mode="before")
    @classmethod
    def _any_or_names(cls, value: object) -> object:
        if value is None or value == "any":
            return value
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
            raise ValueError('specify a list of names, such as ["north", "south"], or "any"')
        return tuple(value)

    @field_validator("columns", mode="before")
    @classmethod
    def _any_or_by_role(cls, value: object) -> object:
        if value is None or value == "any" or isinstance(value, ColumnRules):
            return value
        if isinstance(value, dict):
            if "any" in value.values():
                raise ValueError('"any" applies to all roles at once: use columns = "any"')
            try:
                return read_model(ColumnRules, value, "")
            except ConfigError as error:
                raise ValueError(str(error).removeprefix(": ")) from None
        raise ValueError(
            'specify columns by role, e.g. { label = ["y"], features = ["age", "dose"] }, or "any"'
        )

    @field_validator("approval", mode="before")
    @classmethod
    def _no_digests(cls, value: object) -> object:
        if value in ("auto", "ask"):
            return value
        raise ValueError(f'specify "auto" or "ask"; to approve particular terms, run `{COMMAND}`')

    def _faults(self) -> Iterator[str]:
        if (self.epsilon is None) != (self.delta is None):
            half, other = ("epsilon", "delta = 1e-5") if self.delta is None else ("delta", "epsilon = 3.0")
            yield f"{half} alone does not set a budget: add {other}"

    @property
    def budget(self) -> Budget | None:
        """Privacy that all sessions together may spend; None if it is unlimited."""
        return None if self.epsilon is None or self.delta is None else Budget(self.epsilon, self.delta)

    def permit(
        self,
        terms: Terms,
        party: str,
        ask: Callable[[str], bool] | None = None,
        analyst: str = "",
        signers: "ModelSigners | None" = None,
    ) -> Limits:
        """Check terms against this policy, and return its limits on all sessions of the dataset. Raises
        Refused if the terms break a rule or a person declines them.

        Args:
            party: this site's name in the terms.
            ask: called with a summary of the terms if approval is "ask"; returns whether the person agrees,
                or raises Refused. None if no person can be asked.
            analyst: who signed the request; '' if unsigned.
            signers: verified signers of the model in the terms; None if not checked.
        """
        # All rules come first: a person is asked only about terms that satisfy them, and cannot waive any.
        if broken := [*self.breaches(terms, analyst, party, signers)]:
            raise broken[0].refusal(party, () if terms.task.by_analyst else broken)
        if self.approval == "ask":
            refused = f'site {party} refuses: its policy has approval = "ask", but '
            if ask is None:
                raise Refused(
                    "approval-nobody-there", f"{refused}no one can be asked; run `{COMMAND}` at that site"
                )
            who = f"\nAnalyst {delimited(analyst)} requests this session." if analyst else ""
            origin = origin_of(self, terms, party, signers or UNCHECKED)
            try:
                agreed = ask(summary(terms, (analyst,) if analyst else (), origin=origin) + who)
            except Refused as error:
                raise Refused(error.code, f"{refused}{error.public}; run `{COMMAND}` at that site") from None
            if not agreed:
                raise Refused(
                    "approval-declined",
                    f"{refused}the person who was asked declined the terms with digest {terms.digest}",
                )
        return Limits(
            self.max_sessions, self.similar_groups, self.max_predicted_rows, self.max_splits, self.min_count
        )

    def breaches(
        self, terms: Terms, analyst: str = "", party: str = "", signers: "ModelSigners | None" = None
    ) -> Iterator["Breach"]:
        """Yield a breach for each rule that the terms break, except the one that requires approval by a
        person. The arguments are those of `permit`."""
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
    if (why := " ".join((field.description or "").split()).partition(". ")[2])
}
"""Purpose of each key: the risk that it limits, as a clause without the final period."""


# ---- Breaches of a site's policy as data, and the sentences with which a site refuses -------------------


SHOWN_NAMES = 8
"""Maximum number of names listed in a refusal."""


@dataclass(frozen=True)
class Breach:
    """A policy rule that some terms break.

    key, value: the rule as written in the file. why: a clause about the terms. instead: a change that would
    make the terms comply. allow: the value of the key that would allow the terms, or a tuple of names to add;
    None if no approval can allow them. detail: text for the site's own log only.
    """

    key: str
    value: str
    why: str
    instead: str = ""
    allow: object = None
    detail: str = ""

    @property
    def rule(self) -> str:
        """Key under [policy]: `columns` for a rule about the columns of any role."""
        return self.key.partition(".")[0]

    @property
    def setting(self) -> str:
        """Change to the policy file that would allow the terms; '' if there is none."""
        if self.allow is None:
            return ""
        if not isinstance(self.allow, tuple):
            return f"set {self.key} = {to_toml(self.allow)}"
        named = ", ".join(f'"{shown(name)}"' for name in self.allow[:SHOWN_NAMES])
        more = len(self.allow) - SHOWN_NAMES
        return f"add {named}{f' and {more} more' if more > 0 else ''} to {self.key}"

    def refusal(self, party: str, predicting: "Sequence[Breach]" = ()) -> Refused:
        """Return the error that explains to the analyst why the site refuses. predicting: all rules that a
        prediction session breaks. The session cannot be approved, so the policy has to be changed."""
        own = f"{self.setting} under [policy] in that site's file, or " if self.allow is True else ""
        change = f"{own}run `{COMMAND}` at that site" if self.allow is not None else ""
        if predicting:
            settings = ", ".join(filter(None, (breach.setting for breach in predicting)))
            change = f"{settings} in its [policy] and restart `fedboost party`" if settings else ""
        remedy = ", or ".join(filter(None, (self.instead, change)))
        rule = f"its policy has {self.key} = {self.value}, but {self.why}; {remedy}"
        if (self.key, self.value) == ("parties", "[]") and not predicting:
            rule = f"no one there has approved these terms, and {rule}"
        return Refused("policy-rule-broken", f"site {party} refuses: {rule}", self.detail)


def _brackets(names: tuple[str, ...] | None) -> str:
    """Return a placeholder for names that must not leave the site."""
    return "[...]" if names else "[]"


def _allowing(names: tuple[str, ...] | None) -> str:
    """Return the allowed names as a sentence for the site's own log; '' if there are none."""
    return f"the policy allows {', '.join(names)}" if names else ""


def _not_chosen(key: str, allowed: tuple[str, ...], setting: str, value: str) -> Breach | None:
    """Return the breach if the policy does not list this value, else None."""
    if value in allowed:
        return None
    instead = f'set {setting} = "{allowed[0]}"'
    return Breach(key, to_toml(allowed), f'the terms have {setting} = "{value}"', instead, (value,))


def _not_among(key: str, allowed: tuple[str, ...] | None, names: Sequence[str]) -> Breach | None:
    """Return the breach if the policy does not list all of these names, else None."""
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


# ---- The rules: one function each, which returns the breach if terms break the rule, else None ----------
# A rule depends only on the terms, this site's name in them, and the verified signers of a model in them.
# Rules about what a label holder demands of others do not apply to its own site, and vice versa.


Rule = Callable[[Policy, Terms, str], Breach | None]
"""Checks terms against one rule of a policy. Takes the policy, the terms, and the site's name in them."""


def _forbids(key: str, found: Callable[[Terms], str], instead: str = "remove it") -> Rule:
    """Return a rule for a boolean key. found: returns a clause about terms that need it; '' for others."""

    def rule(policy: Policy, terms: Terms, party: str) -> Breach | None:
        why = "" if getattr(policy, key) else found(terms)
        return Breach(key, "false", why, instead, True) if why else None

    return rule


def _limit(key: str, number_of: Callable[[Terms], int | None], found: str, instead: str = "") -> Rule:
    """Return a rule for a numeric key: a lower limit for a min_ key, else an upper limit. number_of: returns
    the number in the terms, or None. found: clause about the terms, with {} for the number. instead: remedy,
    with {} for the limit; if it is '', `found` is the name of a setting."""
    has, change = (found, instead) if instead else (f"have {found} = {{}}", f"set {found} = {{}}")

    def rule(policy: Policy, terms: Terms, party: str) -> Breach | None:
        number, limit = number_of(terms), getattr(policy, key)
        if number is None or (number >= limit if key.startswith("min_") else number <= limit):
            return None
        return Breach(key, str(limit), f"the terms {has.format(number)}", change.format(limit), number)

    return rule


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
    return Breach("tasks", to_toml(policy.tasks), f"the session's task is {name}", allow=(name,))


def _columns(policy: Policy, terms: Terms, party: str) -> Iterator[Breach]:
    if policy.columns == "any":
        return
    allowed = policy.columns or ColumnRules()
    for role, names in columns_by_role(terms, party).items():
        if breach := _not_among(f"columns.{role}", getattr(allowed, role), names):
            yield breach


# ---- protection, parties and noise -------------------------------------------------------------------


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
    # results by level are also about the rows without a level: those of the parties that lack the column
    lacked = {name for names in terms.columns.absent.values() for name in names}
    apart = terms.task.trains or bool(lacked.intersection(terms.evaluation.subgroups))
    alike = terms.columns.group_of(party, terms.holders, apart)
    if alike < limit and terms.protection.hides:
        names = ", ".join(map(delimited, sorted(terms.columns.absent.get(party) or lacked)[:SHOWN_NAMES]))
        sums = f"some sums are over only {alike} of {holders} parties, this one included"
        why = f"with {names} in columns.absent, {sums}"
        return Breach("min_parties", str(limit), why, "remove these columns from the features", alike)
    return None


def _colluding(policy: Policy, terms: Terms, party: str) -> Breach | None:
    floor = Group.of(terms.parties).colluding if policy.colluding is None else policy.colluding
    tolerated = Group.of(terms.parties, terms.hiding.colluding).colluding if terms.protection.hides else floor
    if tolerated >= floor:
        return None
    why = f"the terms tolerate {tolerated} colluding parties"
    return Breach("colluding", str(floor), why, f"set colluding = {floor}", tolerated)


def _budget(policy: Policy, terms: Terms, party: str) -> Breach | None:
    budget, asked = policy.budget, terms.noise
    if budget is None:
        return None
    epsilon, delta = f"{budget.epsilon:g}", f"{budget.delta:g}"
    if asked is None:
        why = "the terms have no noise, so they would exceed any budget"
        return Breach("epsilon", epsilon, why, f"add noise with delta = {delta}")
    if asked.delta > budget.delta:
        why = f"the noise of the terms has delta = {asked.delta:g}"
        return Breach("delta", delta, why, f"set noise.delta = {delta}")
    return None


def _unless_noise_hides(rule: Rule) -> Rule:
    """Return a rule about the rows of a leaf or level, waived if noise within a budget hides these rows."""

    def own(policy: Policy, terms: Terms, party: str) -> Breach | None:
        hidden = terms.noise is not None and policy.budget is not None
        return None if hidden else rule(policy, terms, party)

    return own


# ---- trees, leaves and levels ------------------------------------------------------------------------


def _min_rows_per_leaf(policy: Policy, terms: Terms, party: str = "") -> Breach | None:
    limit, (rows, why) = policy.min_rows_per_leaf, rows_per_leaf(terms)
    if rows >= limit:
        return None
    instead = ""
    if not why:
        instead = f"set min_child_weight = {limit / (rows_per_hessian(terms) or 1):.12g}"
        why = (
            f"the terms have min_child_weight = {terms.trees.min_child_weight:g}, which with "
            f"{terms.objective.name} guarantees {counted(rows, 'row')} in a leaf"
        )
    return Breach("min_rows_per_leaf", str(limit), why, instead, rows)


def _subsample(policy: Policy, terms: Terms, party: str) -> Breach | None:
    share = terms.draws.share_drawn
    if not (terms.protection.hides or terms.hides_columns) or share >= policy.subsample:
        return None
    why = f"the terms have subsample = {terms.draws.subsample:g}"
    if terms.draws.sampling_method == "bootstrap":
        why += f" with bootstrap sampling, which draws {share:.2g} of the rows"
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
        why = "noisy counts are not rounded: without a budget, repeated sessions average the noise away"
        return Breach("min_count", str(limit), why, f"{terms.task.name} without noise", 1)
    return _limit("min_count", lambda terms: terms.evaluation.min_count, "min_count")(policy, terms, party)


def _few_rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    """Return the breach of `min_count` by training results other than trees; None if there is none."""
    tells = terms.evaluation.reference or have_folds(terms) or terms.sums_risk
    return _min_count(policy, terms, party) if tells else None


# ---- what terms have that keys forbid ----------------------------------------------------------------


def _quantile(terms: Terms) -> str:
    name = quoted(terms.objective.name)
    has = terms.objective.loss.quantile is not None
    return f"with {name} a leaf's value is close to the label of one row" if has else ""


def _levels_summed(terms: Terms) -> str:
    names = [quoted(name) for name in terms.columns.target_means]
    return f"the terms sum labels by level of {names[0]!r} (columns.target_means)" if names else ""


def _margin(terms: Terms) -> str:
    name = terms.columns.base_margin
    return "" if name is None else f"the terms have the base margin column {quoted(name)!r}"


def _at_threshold(terms: Terms) -> str:
    names, default = map(own_name, terms.metrics), terms.objective.loss.default_metric
    chosen = [name for name in names if is_at_threshold(name) and name != default]
    return f"the terms have the metric {quoted(chosen[0])}" if chosen else ""


def _level_names(policy: Policy, terms: Terms, party: str) -> Breach | None:
    return _not_among("level_names", policy.level_names, terms.evaluation.level_names)


def _by_subgroups(terms: Terms) -> str:
    names = ", ".join(map(quoted, terms.evaluation.subgroups))
    return f"the terms have subgroups by {names}" if names else ""


def _validates(terms: Terms) -> str:
    if not terms.validates:
        return ""
    if terms.columns.validation is not None:
        return f"the terms have the validation column {quoted(terms.columns.validation)!r}"
    return f"the terms have validation_fraction = {terms.evaluation.validation_fraction:g}"


def _some_rows(terms: Terms) -> str:
    rows = terms.evaluation.evaluate_rows
    return "" if rows == "all" else f"the terms evaluate a model on {rows} rows"


_metrics_at_thresholds = _forbids("metrics_at_thresholds", _at_threshold)


def _threshold(policy: Policy, terms: Terms, party: str) -> Breach | None:
    """Return the breach caused by the threshold of an evaluation or of metrics; None if there is none."""
    threshold = terms.evaluation.threshold
    if threshold in EDGES:
        return _metrics_at_thresholds(policy, terms, party)
    near = min(EDGES, key=lambda edge: abs(edge - threshold))
    rule = _forbids(
        "metrics_at_thresholds",
        lambda terms: f"the terms have threshold = {threshold:g}",
        f"set threshold = {near:g}, an edge of its bins",
    )
    return rule(policy, terms, party)


# ---- parties that hold different columns, and joint predictions --------------------------------------


def _helps(terms: Terms, party: str) -> bool:
    """Return whether this party is a feature holder: another party has the labels of its rows."""
    return not terms.blocks.has_labels(party)


def _label_holders(policy: Policy, terms: Terms, party: str) -> Breach | None:
    block = terms.blocks.of(party)
    if block is None or policy.label_holders == "any" or not _helps(terms, party):
        return None
    return _not_among("label_holders", policy.label_holders, (block.label_holder,))


def _rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rows = terms.vertical.rows or "common"
    return _not_chosen("rows", policy.rows, "rows", rows) if _helps(terms, party) else None


def _helping(policy: Policy, terms: Terms, party: str) -> Breach | None:
    """Return the breach if the policy forbids the task by which this site would help the label holder."""
    does, named = "predict" if predicted_by(terms, party) else "", to_toml(policy.tasks)
    if does in ("", *policy.tasks):
        return None
    why = f"to {terms.task.name}, this site would {does} rows of the label holder"
    return Breach("tasks", named, why, allow=(does,))


def _max_predicted_rows(policy: Policy, terms: Terms, party: str) -> Breach | None:
    rows, limit = predicted_by(terms, party) or 0, policy.max_predicted_rows
    if rows <= limit:
        return None
    none = "" if limit else " (0 disables predictions)"
    why = f"the terms predict {rows} rows with this site's columns{none}"
    instead = f"set max_ids = {limit}" if terms.task.trains else f"predict at most {limit}"
    return Breach("max_predicted_rows", str(limit), why, instead if limit else "", rows)


def _max_splits(policy: Policy, terms: Terms, party: str) -> Breach | None:
    splits, limit = splits_by(terms, party), policy.max_splits
    if splits <= limit:
        return None
    alone = terms.vertical.alone_rounds
    rounds = alone + limit * (terms.trees.rounds - alone) // splits
    why = f"the terms allow {splits:,} splits on its columns"
    instead = f"set rounds = {rounds}" if rounds > alone else "set a lower max_depth"
    return Breach("max_splits", str(limit), why, instead, splits)


def _model(policy: Policy, terms: Terms, party: str) -> Breach | None:
    if not (terms.hides_columns and terms.task.makes_model) or terms.keeps_parts or policy.model == "whole":
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
    why = "the labels get no noise" if epsilon is None else f"the terms have label_epsilon = {epsilon:g}"
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
    *("have {} metrics", "remove some"),
)
_base_margin = _forbids("base_margin", _margin, "remove columns.base_margin")
_party_metrics = _forbids(
    "party_metrics",
    lambda t: "the terms have party_metrics = true" * (t.protection.hides and t.evaluation.party_metrics),
)
_continues = "the terms continue a model (xgb_model), whose trees may isolate individual rows"
_continue_models = _forbids(
    "continue_models", lambda t: "" if t.xgb_model is None else _continues, "remove xgb_model"
)
_risk_sums = _forbids(
    "risk_sums",
    lambda t: f"{quoted(t.objective.name)} sums risks by time in each round" if t.sums_risk else "",
    "use survival:aft",
)
_of_levels = _unless_noise_hides(_max_category_levels)
_bits = _limit(
    "min_key_bits", lambda t: t.hiding.key_bits if t.protection.uses_key_holder else None, "key_bits"
)


_OF_EVERY_TASK: tuple[Rule, ...] = (_protections, _on_loss, _min_parties, _colluding, _bits)
_OF_TRAINING: tuple[Rule, ...] = (
    *(*_OF_EVERY_TASK, _budget),
    _limit("max_rounds", lambda terms: terms.trees.rounds, "rounds"),
    _limit("max_depth", lambda terms: terms.trees.max_depth, "max_depth"),
    _limit(
        *("max_trees_per_round", lambda terms: len(terms.roots)),
        *("have {} trees per round", "lower num_parallel_tree or num_class"),
    ),
    _limit("max_trials", lambda t: len(t.objective.candidates), "have {} candidates", "remove some"),
    _limit("vote_top_k", lambda terms: terms.histograms.vote_top_k, "vote_top_k"),
    *(_subsample, _continue_models, _base_margin),
    *(_forbids("quantile_leaves", _quantile, "use a different objective"), _risk_sums),
    *(_unless_noise_hides(_min_rows_per_leaf), _of_levels),
    _unless_noise_hides(_forbids("target_means", _levels_summed)),
    *(_max_metrics, _metrics_at_thresholds, _party_metrics),
    *(_forbids("validation", _validates, "remove the validation rows"), _few_rows),
)
_OF_COUNTS: tuple[Rule, ...] = (*_OF_EVERY_TASK, _budget, _of_levels, _min_count)
_OF_EVALUATIONS: tuple[Rule, ...] = (
    *(*_OF_COUNTS, _base_margin, _max_metrics, _threshold, _party_metrics),
    _forbids("subgroups", _by_subgroups, "remove subgroups"),
    _forbids("validation", _some_rows, 'set evaluate_rows = "all" (--rows all)'),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "train": _OF_TRAINING,
    "tune": _OF_TRAINING,
    "describe": (*_OF_COUNTS, _party_metrics, _level_names),
    "evaluate": _OF_EVALUATIONS,
    "drift": (*_OF_COUNTS, _base_margin),
    "predict": _OF_EVERY_TASK,
}
"""Rules of each task, in the order in which they are checked: a refusal names the first broken rule. Rules
about models to evaluate are in `_breaches_of_model`. Predictions have no noise and are not charged to a
budget; `max_predicted_rows` limits them instead."""
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

_OF_MATCHED: tuple[Rule, ...] = (
    *(_label_holders, _by_columns, _rows, _limit(*_COMMON_ROWS, "set min_common_rows = {}")),
    *(_repeated_ids, _max_foreign_ids, _max_label_epsilon),
)
_OF_SPLITS: tuple[Rule, ...] = (*_OF_MATCHED, _max_splits, _model, _min_alone_rounds, _min_rows_per_bin)

BY_COLUMNS: dict[str, tuple[Rule, ...]] = {
    "train": (*_OF_SPLITS, _helping, _max_predicted_rows),
    "tune": _OF_SPLITS,
    "describe": _OF_MATCHED,
    "evaluate": (*_OF_MATCHED, _helping, _max_predicted_rows, _min_alone_rounds),
    "predict": (
        *(_label_holders, _by_columns, _limit(*_COMMON_ROWS, "--min-common-rows {}")),
        *(_max_foreign_ids, _max_predicted_rows),
    ),
}
"""Additional rules if parties hold different columns. They are checked before those in RULES."""


# ---- Rules about a model that is measured ---------------------------------------------------------------
# Guarantees: with evaluate = "own", a model is measured only if this site or a party that it names signed all
# trees, and the signed terms guarantee min_rows_per_leaf. Scores would reveal the row of a one-row leaf.


@dataclass(frozen=True)
class ModelSigners:
    """Parties whose signature on the model in some terms is valid. unknown: why that is unknown, or ''."""

    names: frozenset[str] = frozenset()
    unknown: str = ""


UNCHECKED = ModelSigners(unknown="this site has no keys, so it cannot check the model's signatures")


def _breaches_of_model(policy: Policy, terms: Terms, party: str, signers: ModelSigners) -> Iterator[Breach]:
    if not terms.task.measures or policy.evaluate == "any":
        return
    trained = terms.trained
    if not _accepted(policy, party, signers) or trained is None:
        others = " or of a party in evaluate_signers" if policy.evaluate_signers else ""
        why = f"the model has no signature of this site{others} that covers all of its trees"
        instead = "use a model that this site helped to train"
        if signers.unknown:
            why, instead = signers.unknown, 'run that site with keys, or set evaluate = "any" in its policy'
        yield Breach("evaluate", '"own"', why, instead, "any", _allowing(policy.evaluate_signers))
        return
    if policy.budget and terms.noise:
        return  # a row is in few cells, whatever the leaves are
    if trained.earlier is not None and not policy.continue_models:
        why = "the model continued another one, whose trees may isolate individual rows"
        yield Breach("continue_models", "false", why, "use a model trained from scratch", True)
    if few := _min_rows_per_leaf(policy, trained):
        instead = few.instead and f"in its training {few.instead}"
        yield replace(few, why=f"in the training of the model {few.why}", instead=instead)
    if contradiction := _contradiction(terms, trained):
        yield Breach("evaluate", '"own"', contradiction, allow="any")


def origin_of(policy: Policy, terms: Terms, party: str, signers: ModelSigners) -> ModelOrigin | None:
    """Return who made the model in the terms, for display; None if the session does not measure a model."""
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
    """Return how the model's covers contradict the terms of its training session; '' if they do not."""
    trees = terms.earlier.trees if terms.earlier else ()  # none if each site keeps its part of the model
    least = np.float32(trained.trees.min_child_weight)
    first = len(trained.roots) * trained.constant_rounds
    for number, tree in enumerate(trees[first:], first + 1):
        if len(tree) > 1 and (low := tree.cover[tree.leaves].min()) < least:
            promised = f"min_child_weight = {trained.trees.min_child_weight:g} of its training"
            return f"tree {number} of the model has a leaf of cover {low:g}, below the {promised}"
    return ""
