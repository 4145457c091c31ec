"""A site's own policy, the `[policy]` table of party.toml: which terms this site takes part under.

Promises: `permit` is asked before any row is read, whatever the aggregator says of the terms; every rule is
checked against the terms alone, and a person is asked last, about terms that every other rule allows. Until
a site names parties, analysts and columns, or approves terms (`fedboost approve`), nothing is allowed.
Refuses: terms that break a rule, with one sentence that names the site, the key, its value and what to do
(Refused). The names a site allows stay at the site: they are in the error's `detail`.

What `min_rows_per_leaf` can and cannot do. The sum of hessians in both children of a split must reach
min_child_weight, and no row has a hessian of more than 1/4 (binary:logistic), 1/2 (multi:softprob) or other
than 1 (reg:squarederror, reg:absoluteerror, reg:quantileerror) if every row has weight 1 and scale_pos_weight
is not given. The sums are of rounded hessians, and rounding adds nothing to these bounds: they are multiples
of the fixed-point unit (or, for a unit so coarse that they are not, at most half of it, which rounds to
zero). So a split under min_child_weight w leaves at least 4 w, 2 w or w rows on each side, counted over all
parties. It cannot stop an aggregator that lies about the sums or the splits, nor a party that adds rows of
its own; it says nothing of a tree that does not split, of how many rows *this* site has in a leaf, nor of the
bins of a histogram, in each of which a single row may lie. Row weights or a custom program leave nothing to
rely on: with them the rule refuses.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.gbdt.metrics.registry import is_at_threshold
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.people.summary import columns_by_role, summary
from fedboost.people.text import shown
from fedboost.privacy.masked.pairwise import MIN_GROUP_PARTIES, Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site_memory import MAX_SESSIONS, Limits
from fedboost.runtime.site.budget import Budget
from fedboost.terms.hiding import ProtectionName
from fedboost.terms.noise import MAX_DELTA, Placement
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.terms import Terms

OnLoss = Literal["wait", "shrink", "stop"]

COMMAND = "fedboost approve terms.toml --config party.toml"
"""By which a site allows terms that its policy refuses."""

MAX_ROWS_PER_LEAF = 1_000_000_000
MAX_BUDGET_EPSILON = 100.0
"""Beyond this epsilon promises nothing."""

SHOWN_NAMES = 8
"""Names in a refusal."""

PINNED = ("parties", "analysts", "columns")
"""Keys of names, all of which an approval has."""


PROTECTS = {
    "parties": "sums are over the rows of these parties: one that adds none, or invents them, hides nothing",
    "analysts": "whoever may begin sessions chooses what is asked of the rows",
    "columns": "each column that is named can be learned about, a label most of all",
    "protections": 'under "plain" the aggregator sees this site\'s own numbers',
    "on_loss": 'with "shrink" the difference of two sums is that of a site that left or came back',
    "placements": 'with "central" no noise is on what leaves: the aggregator sees exact sums',
    "min_parties": "a sum over few parties tells each of them about the others",
    "min_rows_per_leaf": "a leaf of few rows tells their labels",
    "quantile_leaves": "the value of a leaf is about the label of one row in it, however many it has",
    "max_rounds": "each round opens sums over other sets of rows",
    "max_depth": "deep trees have leaves of single rows",
    "max_trees_per_round": "each tree opens sums over other sets of rows",
    "max_metrics": "each metric is a sum over the rows, in every round",
    "max_category_levels": "a level that one person has tells that person's label",
    "metrics_at_thresholds": "metrics at two near thresholds differ by the few rows between them",
    "party_metrics": "metrics of this site's rows alone are open, whatever hides its other sums",
    "validation": "metrics over few validation rows, or over two sets that differ by one, tell labels",
    "base_margin": "a metric shows how the values of this column are distributed, to the last row",
    "continue_models": "trees that somebody else made may put single rows into a leaf",
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
"""What each key of the policy is for."""


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

    @field_validator("*", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


@dataclass(frozen=True)
class Breach:
    """A rule of a policy that terms break.

    key, value: the rule as the file has it; why: a sentence about the terms; instead: a change of the terms
    that would do; allow: the value of the key under which the terms pass, or the names that it has not; None
    where no approval changes it.
    """

    key: str
    value: str
    why: str
    instead: str = ""
    allow: object = None
    detail: str = ""

    @property
    def rule(self) -> str:
        """The key as it stands under [policy]: columns, for the columns of each role."""
        return self.key.partition(".")[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        approve = f"run there `{COMMAND}`" if self.allow is not None else ""
        return ", or ".join(filter(None, (self.instead, approve)))

    def refusal(self, party: str) -> Refused:
        """The one sentence that the analyst reads."""
        return Refused(
            f"site {party} refuses: its policy has {self.key} = {self.value}, and {self.why}; {self.remedy}",
            self.detail,
        )


class Policy(Frozen):
    """Which terms this site takes part under; docs/policy.md says what each key protects against.

    parties, analysts, columns: names, "any" for all; None, the default, for none. min_parties: the fewest
    parties with rows; min_rows_per_leaf: the fewest rows, of all parties together, on each side of a split;
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
    protections: tuple[ProtectionName, ...] = Field(default=("masked",), min_length=1)
    on_loss: tuple[OnLoss, ...] = Field(default=("wait", "stop"), min_length=1)
    placements: tuple[Placement, ...] = Field(default=("distributed", "local"), min_length=1)
    min_parties: int = Field(default=MIN_GROUP_PARTIES, ge=1)
    min_rows_per_leaf: int = Field(default=10, ge=1, le=MAX_ROWS_PER_LEAF)
    quantile_leaves: bool = False
    max_rounds: int = Field(default=1000, ge=1)
    max_depth: int = Field(default=8, ge=1)
    max_trees_per_round: int = Field(default=100, ge=1)
    max_metrics: int = Field(default=8, ge=1)
    max_category_levels: int = Field(default=32, ge=1)
    metrics_at_thresholds: bool = False
    party_metrics: bool = False
    validation: bool = False
    base_margin: bool = False
    continue_models: bool = False
    vote_top_k: int = Field(default=0, ge=0)
    subsample: float = Field(default=1.0, gt=0, le=1)
    min_key_bits: int = Field(default=3072, ge=1)
    colluding: int | None = Field(default=None, ge=0)
    epsilon: float | None = Field(default=None, gt=0, le=MAX_BUDGET_EPSILON)
    delta: float | None = Field(default=None, gt=0, le=MAX_DELTA)
    max_sessions: int = Field(default=MAX_SESSIONS, ge=1)
    similar_groups: bool = False
    approval: Literal["auto", "ask"] = "auto"

    @field_validator("protections", "on_loss", "placements", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("parties", "analysts", mode="before")
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
    def _whole_budget(self) -> "Policy":
        if (self.epsilon is None) != (self.delta is None):
            given, other = ("epsilon", "delta = 1e-5") if self.delta is None else ("delta", "epsilon = 3.0")
            raise ValueError(f"{given} is half a budget: add {other}")
        return self

    @property
    def budget(self) -> Budget | None:
        """What its rows' privacy may be spent over all sessions; None where nothing limits it."""
        return None if self.epsilon is None or self.delta is None else Budget(self.epsilon, self.delta)

    def permit(
        self, terms: Terms, party: str, ask: Callable[[str], bool] | None = None, analyst: str = ""
    ) -> Limits:
        """What holds for all sessions of these rows. Refused unless this policy, of the site called `party`,
        allows the terms.

        analyst: who signed the request, '' where nothing is signed. ask: called with a summary of the terms
        if approval is "ask"; whether the person agrees. None where there is nobody to ask. It may raise
        Refused itself.
        """
        for breach in self.breaches(terms, analyst):
            raise breach.refusal(party)
        if self.approval == "ask":
            self._ask(terms, party, ask, analyst)
        return Limits(self.max_sessions, self.similar_groups)

    def breaches(self, terms: Terms, analyst: str = "") -> Iterator[Breach]:
        """Every rule that the terms break, but for approval by a person."""
        yield from self._of_names(terms, analyst)
        yield from self._of_protection(terms)
        yield from self._of_noise(terms)
        yield from self._of_trees(terms)
        yield from self._of_leaves(terms)
        yield from self._of_metrics(terms)

    def _of_names(self, terms: Terms, analyst: str) -> Iterator[Breach]:
        if self.parties != "any":
            known = set(self.parties or ())
            strange = [name for name in terms.parties if name not in known]
            if strange:
                yield _not_among("parties", self.parties, strange)
        if analyst and self.analysts != "any" and analyst not in (self.analysts or ()):
            names = ", ".join(self.analysts or ()) or "none"
            asks = f"the analyst is {quoted(analyst)}"
            allows = f"it allows {names}"
            yield Breach("analysts", _brackets(self.analysts), asks, allow=(analyst,), detail=allows)
        if self.columns == "any":
            return
        allowed = self.columns or ColumnRules()
        for role, names_of_role in columns_by_role(terms).items():
            known = set(getattr(allowed, role))
            strange = [name for name in names_of_role if name not in known]
            if strange:
                yield _not_among(f"columns.{role}", getattr(allowed, role), strange)

    def _of_protection(self, terms: Terms) -> Iterator[Breach]:
        if terms.hiding.protection not in self.protections:
            yield Breach(
                "protections",
                _choices(self.protections),
                f'the terms have protection = "{terms.hiding.protection}"',
                f'set protection = "{self.protections[0]}"',
                (terms.hiding.protection,),
            )
        if terms.hiding.hides_vectors and terms.session.on_loss not in self.on_loss:
            yield Breach(
                "on_loss",
                _choices(self.on_loss),
                f'the terms have on_loss = "{terms.session.on_loss}"',
                f'set on_loss = "{self.on_loss[0]}"',
                (terms.session.on_loss,),
            )
        holders = len(terms.holders)
        if holders < self.min_parties:
            rows = " with rows" if holders < len(terms.parties) else ""
            why = f"the terms name {holders}{rows}"
            yield Breach("min_parties", str(self.min_parties), why, "name more", holders)
        elif terms.min_roster < self.min_parties:
            yield Breach(
                "min_parties",
                str(self.min_parties),
                f'the terms have on_loss = "shrink" to {terms.min_roster}',
                f"set quorum = {self.min_parties}",
                terms.min_roster,
            )
        usual = Group.of(terms.parties).colluding
        floor = usual if self.colluding is None else self.colluding
        if (
            terms.hiding.hides_vectors
            and (tolerated := Group.of(terms.parties, terms.hiding.colluding).colluding) < floor
        ):
            why = f"under the terms {tolerated} may collude and learn nothing"
            yield Breach("colluding", str(floor), why, f"set colluding = {floor}", tolerated)
        if PROTECTIONS[terms.hiding.protection].has_key_sizes and terms.hiding.key_bits < self.min_key_bits:
            yield self._beyond("key_bits", "min_key_bits", terms.hiding.key_bits)

    def _of_noise(self, terms: Terms) -> Iterator[Breach]:
        noise = terms.noise
        if noise is not None and noise.placement not in self.placements:
            yield Breach(
                "placements",
                _choices(self.placements),
                f'the noise of the terms is "{noise.placement}"'
                + (", which gives the aggregator exact sums" if noise.placement == "central" else ""),
                f'set noise.placement = "{self.placements[0]}"',
                (noise.placement,),
            )
        if self.epsilon is None or self.delta is None:
            return
        if noise is None:
            why = "the terms have no noise, which costs more than any budget"
            yield Breach("epsilon", f"{self.epsilon:g}", why, f"add noise with delta = {self.delta:g}")
        elif noise.placement == "central":
            why = (
                "what leaves the site has no noise if the aggregator draws it, and costs more than any budget"
            )
            yield Breach("epsilon", f"{self.epsilon:g}", why, 'set noise.placement = "distributed"')
        elif noise.delta > self.delta:
            why = f"the noise of the terms has delta = {noise.delta:g}"
            yield Breach("delta", f"{self.delta:g}", why, f"set noise.delta = {self.delta:g}")

    def _of_trees(self, terms: Terms) -> Iterator[Breach]:
        if terms.trees.rounds > self.max_rounds:
            yield self._beyond("rounds", "max_rounds", terms.trees.rounds)
        if terms.trees.max_depth > self.max_depth:
            yield self._beyond("max_depth", "max_depth", terms.trees.max_depth)
        trees = len(terms.roots)
        if trees > self.max_trees_per_round:
            yield Breach(
                "max_trees_per_round",
                str(self.max_trees_per_round),
                f"the terms have {trees} trees a round",
                "lower num_parallel_tree or num_class",
                trees,
            )
        if terms.histograms.vote_top_k > self.vote_top_k:
            yield self._beyond("vote_top_k", "vote_top_k", terms.histograms.vote_top_k)
        if terms.hiding.hides_vectors and terms.draws.share_drawn < self.subsample:
            drawn = f"the terms have subsample = {terms.draws.subsample:g}"
            if terms.draws.sampling_method == "bootstrap":
                drawn += f" with a bootstrap, which draws {terms.draws.share_drawn:.2g} of the rows"
            yield Breach("subsample", f"{self.subsample:g}", drawn, "draw more rows", terms.draws.share_drawn)
        if terms.xgb_model is not None and not self.continue_models:
            why = "the terms continue a model (xgb_model), whose trees may part single rows"
            yield Breach("continue_models", "false", why, "leave xgb_model out", True)
        if terms.columns.base_margin is not None and not self.base_margin:
            why = f"the terms have the base margin {quoted(terms.columns.base_margin)!r}"
            yield Breach("base_margin", "false", why, "leave columns.base_margin out", True)

    def _of_leaves(self, terms: Terms) -> Iterator[Breach]:
        if terms.objective.loss.quantile is not None and not self.quantile_leaves:
            why = f"with {quoted(terms.objective.name)} a leaf's value is about the label of one row"
            yield Breach("quantile_leaves", "false", why, "choose another objective", True)
        if terms.noise is not None and terms.noise.placement != "central" and self.budget is not None:
            return  # the noise hides rows, and the budget says how well
        rows, why = rows_per_leaf(terms)
        if rows < self.min_rows_per_leaf:
            per = _rows_per_hessian(terms) or 1
            enough = f"set min_child_weight = {self.min_rows_per_leaf / per:.12g}" if not why else ""
            told = why or (
                f"the terms have min_child_weight = {terms.trees.min_child_weight:g}, which with "
                f"{terms.objective.name} leaves {rows} row{'s' * (rows > 1)} in a leaf"
            )
            yield Breach("min_rows_per_leaf", str(self.min_rows_per_leaf), told, enough, rows)
        most = max(terms.columns.category_counts, default=0)
        if most > self.max_category_levels:
            (column, *_) = [name for name, levels in terms.columns.categorical.items() if len(levels) == most]
            yield Breach(
                "max_category_levels",
                str(self.max_category_levels),
                f"the terms declare {most} levels of {quoted(column)!r}",
                "group rare levels in the tables",
                most,
            )

    def _of_metrics(self, terms: Terms) -> Iterator[Breach]:
        if len(terms.metrics) > self.max_metrics:
            number = len(terms.metrics)
            why = f"the terms ask for {number} metrics"
            yield Breach("max_metrics", str(self.max_metrics), why, "take some away", number)
        chosen = [
            name
            for name in terms.metrics
            if is_at_threshold(name) and name != terms.objective.loss.default_metric
        ]
        if chosen and not self.metrics_at_thresholds:
            why = f"the terms ask for the metric {quoted(chosen[0])}"
            yield Breach("metrics_at_thresholds", "false", why, "leave it out", True)
        if terms.hiding.hides_vectors and terms.evaluation.party_metrics and not self.party_metrics:
            why = "the terms have party_metrics = true"
            yield Breach("party_metrics", "false", why, "leave it out", True)
        if terms.validates and not self.validation:
            why = f"the terms have validation_fraction = {terms.evaluation.validation_fraction:g}"
            if terms.columns.validation is not None:
                why = f"the terms have the validation column {quoted(terms.columns.validation)!r}"
            yield Breach("validation", "false", why, "have no validation rows", True)

    def _beyond(self, setting: str, key: str, value: int) -> Breach:
        """A number in the terms that is beyond the one in the policy."""
        limit = getattr(self, key)
        return Breach(
            key, str(limit), f"the terms have {setting} = {value}", f"set {setting} = {limit}", value
        )

    def _ask(self, terms: Terms, party: str, ask: Callable[[str], bool] | None, analyst: str) -> None:
        refused = f'site {party} refuses: its policy has approval = "ask", and '
        if ask is None:
            raise Refused(f"{refused}nobody can be asked; run there `{COMMAND}`")
        try:
            agreed = ask(summary(terms, (analyst,) if analyst else ()))
        except Refused as error:
            raise Refused(f"{refused}{error.public}; run there `{COMMAND}`") from None
        if not agreed:
            raise Refused(f"{refused}the person asked said no to the terms with digest {terms.digest}")


def rows_per_leaf(terms: Terms) -> tuple[int, str]:
    """How many rows of all parties a leaf of a tree that splits has at least; and why it is one, where
    min_child_weight promises nothing."""
    weight = terms.columns.weight
    if weight is not None:
        return 1, f"with the row weights of column {quoted(weight)!r} no leaf is sure of it"
    if terms.objective.scale_pos_weight is not None:
        return 1, "with a scale_pos_weight no leaf is sure of it"
    if terms.draws.sampling_method != "uniform":
        drawn = f'the rows that sampling_method = "{terms.draws.sampling_method}" draws weigh more than 1'
        return 1, f"{drawn}: no leaf is sure of it"
    if terms.noise is not None:
        return 1, "no leaf is sure of it with noise, which only counts under a budget (epsilon, delta)"
    per = _rows_per_hessian(terms)
    if terms.session.program != "boosting" or per is None:
        what = "program" if terms.session.program != "boosting" else "objective"
        return 1, f"{what} {quoted(terms.flat[what])!r} does not promise it"
    rows = min(terms.trees.min_child_weight * per, float(MAX_ROWS_PER_LEAF))
    return max(1, math.ceil(rows)), ""


def _rows_per_hessian(terms: Terms) -> int | None:
    """The fact of a registered objective; nothing is taken on trust from that of a package."""
    return terms.objective.loss.rows_per_hessian if terms.objective.name in OBJECTIVES else None


def _choices(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def _brackets(names: tuple[str, ...] | None) -> str:
    """Stands for names that are the site's own affair."""
    return "[...]" if names else "[]"


def _not_among(key: str, allowed: tuple[str, ...] | None, strange: Sequence[str]) -> Breach:
    """A rule by which terms name what is not allowed."""
    named = ", ".join(f"'{shown(name)}'" for name in strange[:SHOWN_NAMES])
    if len(strange) > SHOWN_NAMES:
        named += f" and {len(strange) - SHOWN_NAMES} more"
    why = f"the terms name {named}"
    if allowed:
        why += f", which {'is' if len(strange) == 1 else 'are'} not among them"
    allows = f"it allows {', '.join(allowed or ()) or 'none'}"
    return Breach(key, _brackets(allowed), why, allow=tuple(strange), detail=allows)
