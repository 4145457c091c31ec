"""A site's own policy, the `[policy]` table of party.toml: which terms this site takes part under.

Promises: `permit` is asked before any row is read, whatever the aggregator says of the terms; every rule is
checked against the terms alone, and a person is asked last, about terms that every other rule allows.
Refuses: terms that break a rule, with one sentence that names the site, the key and its value (Refused).
The columns a site allows and the digests it approved stay at the site: they are in the error's `detail`.

What `min_rows_per_leaf` can and cannot do. The sum of hessians in both children of a split must reach
min_child_weight, and no row has a hessian of more than 1/4 (binary:logistic) or other than 1
(reg:squarederror, reg:absoluteerror, reg:quantileerror) if every row has weight 1 and scale_pos_weight is not
given. The sums are of rounded hessians, and rounding adds nothing to these bounds: they are multiples of the
fixed-point unit (or, for a unit so coarse that they are not, at most half of it, which rounds to zero). So a
split under min_child_weight w leaves at least 4 w or w rows on each side, counted over all parties. It cannot
stop an aggregator that lies about the sums or the splits; it says nothing of a tree that does not split, of
how many rows *this* site has in a leaf, nor of the bins of a histogram, in each of which a single row may
lie. Row weights, a custom program or a model that is continued, whose trees may part single rows, leave
nothing to rely on: with them the rule refuses.
"""

import select
import sys
import termios
from collections.abc import Callable, Iterable
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fedboost.errors import Refused, quoted
from fedboost.privacy.pairwise import SMALLEST_GROUP, Group
from fedboost.protocol.noise import LARGEST_DELTA
from fedboost.protocol.terms import Frozen, Name, Terms
from fedboost.shell.ledger import Budget

Protection = Literal["masked", "plain", "paillier", "bfv"]
OnLoss = Literal["wait", "shrink", "stop"]

AGGREGATOR_SEES = {
    "masked": "sums over the parties, never this site's own numbers",
    "paillier": "sums over the parties, never this site's own numbers, even with the key holder's help",
    "bfv": "sums over the parties, never this site's own numbers, even with the key holder's help",
    "plain": "this site's own numbers, before they are added to the others'",
}
"""What each protection lets the aggregator see, for people."""

ROWS_PER_HESSIAN = {
    "binary:logistic": 4,
    "reg:squarederror": 1,
    "reg:absoluteerror": 1,
    "reg:quantileerror": 1,
}
"""The fewest rows of weight 1 whose hessians, as they are rounded, sum to 1."""

DIGEST_DIGITS = 64
"""A terms digest is given whole: whoever writes the terms could find others with the same short prefix."""

ANSWER_POLL = 0.2
"""Seconds after which somebody who is asked is asked no longer, once nobody waits for the answer."""

LARGEST_BUDGET = 100.0
"""Beyond this epsilon promises nothing."""

SHOWN_NAMES, SHOWN_LETTERS = 8, 40
"""How many names a person is shown, and how much of each."""


class Policy(Frozen):
    """Which terms this site takes part under.

    protections: those it accepts; on_loss: what may be done about a lost party where masks hide it ("shrink"
    gives sums over several rosters, whose differences speak of those who left or came back); min_parties: the
    fewest parties; min_rows_per_leaf: the fewest rows, of all parties together, on each side of a split;
    max_rounds: the most rounds; approval: "auto" (these rules are enough), "ask" (a person at the terminal
    decides too) or the digests of the terms that were approved;
    subsample: the smallest share of the rows it lets a tree grow on where masks hide its sums: whoever knows
    which rows are drawn learns single rows from sums over many draws;
    epsilon, delta: the budget of its rows' privacy over all sessions, kept by its ledger; with one, terms
    without noise are refused; None for no limit;
    party_metrics: whether metrics of this site's rows alone may be seen where masks hide its other sums;
    columns: all columns it lets terms name as feature, label, weight, base margin or group, None for any.
    """

    protections: tuple[Protection, ...] = Field(default=("masked",), min_length=1)
    on_loss: tuple[OnLoss, ...] = Field(default=("wait", "stop"), min_length=1)
    min_parties: int = Field(default=SMALLEST_GROUP, ge=1)
    min_rows_per_leaf: int = Field(default=1, ge=1, le=1_000_000_000)
    max_rounds: int = Field(default=100_000, ge=1)
    approval: Literal["auto", "ask"] | tuple[str, ...] = "auto"
    subsample: float = Field(default=1.0, gt=0, le=1)
    epsilon: float | None = Field(default=None, gt=0, le=LARGEST_BUDGET)
    delta: float | None = Field(default=None, gt=0, le=LARGEST_DELTA)
    party_metrics: bool = False
    columns: tuple[Name, ...] | None = None

    @field_validator("protections", "on_loss", "columns", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

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

    @field_validator("approval", mode="before")
    @classmethod
    def _auto_ask_or_digests(cls, value: object) -> object:
        if value in ("auto", "ask"):
            return value
        digests = [value] if isinstance(value, str) else value
        if not isinstance(digests, list | tuple) or not digests:
            raise ValueError('write "auto", "ask", or a list of terms digests')
        for digest in digests:
            if not isinstance(digest, str) or not _is_digest(digest):
                wrong = shown(digest) if isinstance(digest, str) else type(digest).__name__
                raise ValueError(
                    f'{wrong!r} is neither "auto" nor "ask" nor a terms digest of {DIGEST_DIGITS} hex digits'
                )
        return tuple(digest.lower() for digest in digests)

    def permit(self, terms: Terms, party: str, ask: Callable[[str], bool] | None = None) -> None:
        """Raise Refused unless this policy, of the site called `party`, allows the terms.

        ask: called with a summary of the terms if approval is "ask"; whether the person agrees. None where
        there is nobody to ask. It may raise Refused itself.
        """
        if terms.protection not in self.protections:
            accepted = ", ".join(f'"{name}"' for name in self.protections)
            raise _refusal(
                party, f"protections = [{accepted}]", f'the terms have protection = "{terms.protection}"'
            )
        if terms.hides and terms.on_loss not in self.on_loss:
            accepted = ", ".join(f'"{name}"' for name in self.on_loss)
            raise _refusal(party, f"on_loss = [{accepted}]", f'the terms have on_loss = "{terms.on_loss}"')
        if len(terms.parties) < self.min_parties:
            raise _refusal(party, f"min_parties = {self.min_parties}", f"the terms name {len(terms.parties)}")
        if terms.fewest < self.min_parties:
            raise _refusal(
                party,
                f"min_parties = {self.min_parties}",
                f'the terms have on_loss = "shrink" to {terms.fewest}; quorum = {self.min_parties} would do',
            )
        if terms.rounds > self.max_rounds:
            raise _refusal(
                party, f"max_rounds = {self.max_rounds}", f"the terms ask for {terms.rounds} rounds"
            )
        if terms.hides and terms.share_drawn < self.subsample:
            drawn = f"the terms have subsample = {terms.subsample:g}"
            if terms.sampling_method == "bootstrap":
                drawn += f" with a bootstrap, which draws {terms.share_drawn:.2g} of the rows"
            raise _refusal(party, f"subsample = {self.subsample:g}", drawn)
        self._check_noise(terms, party)
        if terms.hides and terms.party_metrics and not self.party_metrics:
            raise _refusal(party, "party_metrics = false", "the terms have party_metrics = true")
        self._check_columns(terms, party)
        self._check_rows_per_leaf(terms, party)
        self._check_approval(terms, party, ask)

    def _check_noise(self, terms: Terms, party: str) -> None:
        if self.epsilon is None or self.delta is None:
            return
        rule = f"epsilon = {self.epsilon:g}"
        if terms.noise is None:
            raise _refusal(party, rule, "the terms have no noise, which costs more than any budget")
        if terms.noise.delta > self.delta:
            raise _refusal(
                party, f"delta = {self.delta:g}", f"the noise of the terms has delta = {terms.noise.delta:g}"
            )

    def _check_columns(self, terms: Terms, party: str) -> None:
        if self.columns is None:
            return
        forbidden = [name for name in columns_of(terms) if name not in self.columns]
        if forbidden:
            raise _refusal(
                party,
                "columns = [...]",
                f"the terms name {_listed(map(repr, forbidden))}, which is not among them"
                if len(forbidden) == 1
                else f"the terms name {_listed(map(repr, forbidden))}, which are not among them",
                f"it allows {', '.join(self.columns) or 'none'}",
            )

    def _check_rows_per_leaf(self, terms: Terms, party: str) -> None:
        least = self.min_rows_per_leaf
        if least == 1:  # a side without rows is never split off
            return
        rule = f"min_rows_per_leaf = {least}"
        if terms.columns.weight is not None:
            raise _refusal(
                party, rule, f"with the row weights of column {terms.columns.weight!r} no leaf is sure of it"
            )
        if terms.scale_pos_weight is not None:
            raise _refusal(party, rule, "with a scale_pos_weight no leaf is sure of it")
        if terms.sampling_method != "uniform":
            what = f'the rows that sampling_method = "{terms.sampling_method}" draws weigh more than 1'
            raise _refusal(party, rule, f"{what}: no leaf is sure of it")
        if terms.xgb_model is not None:
            raise _refusal(party, rule, "xgb_model may begin with trees that part single rows")
        if terms.program != "boosting" or terms.objective not in ROWS_PER_HESSIAN:
            what = "program" if terms.program != "boosting" else "objective"
            raise _refusal(party, rule, f"{what} {getattr(terms, what)!r} does not promise it")
        rows = ROWS_PER_HESSIAN[terms.objective]
        if terms.min_child_weight * rows <= least - 1:
            raise _refusal(
                party,
                rule,
                f"the terms have min_child_weight = {terms.min_child_weight:g}, where {least / rows:.12g} "
                f"would be enough for {terms.objective}",
            )

    def _check_approval(self, terms: Terms, party: str, ask: Callable[[str], bool] | None) -> None:
        if self.approval == "auto":
            return
        if self.approval != "ask":
            if terms.digest not in self.approval:
                raise _refusal(
                    party,
                    "approval = [...]",
                    f"the terms with digest {terms.digest} are not among them",
                )
            return
        rule = 'approval = "ask"'
        if ask is None:
            raise _refusal(party, rule, "nobody can be asked")
        try:
            agreed = ask(summary(terms))
        except Refused as error:
            raise _refusal(party, rule, error.public) from None
        if not agreed:
            raise _refusal(party, rule, f"the person asked said no to the terms with digest {terms.digest}")


def columns_of(terms: Terms) -> tuple[str, ...]:
    """Every column the terms name."""
    return (*terms.columns.others, *terms.columns.features)


def summary(terms: Terms) -> str:
    """What a person needs to know of terms to decide on them, within 80 columns but for long names."""
    features = terms.columns.features
    weight, margin, group = terms.columns.weight, terms.columns.base_margin, terms.columns.group
    upper = terms.columns.label_upper_bound
    lines = {
        "terms": terms.digest,
        "protection": terms.protection,
        "aggregator": f"sees {AGGREGATOR_SEES[terms.protection]}"
        + (", but for its metrics" if terms.party_metrics and terms.hides else ""),
        "parties": f"{len(terms.parties)}: {_listed(map(shown, terms.parties))}"
        + (f"; if some are lost, {terms.fewest} may go on" if terms.on_loss == "shrink" else ""),
        "model": shown(terms.objective)
        + (f" of {shown(terms.objective_package)}" if terms.objective_package else "")
        + f", {terms.rounds} rounds of depth {terms.max_depth}"
        + (f" after {len(terms.earlier.trees)} trees of another model" if terms.earlier else "")
        + ("" if terms.program == "boosting" else f", by the program {shown(terms.program)}"),
        "settings": f"min_child_weight {terms.min_child_weight:g}, max_bin {terms.max_bin}, "
        f"cut_points {terms.cut_points}"
        + (f", vote_top_k {terms.vote_top_k}" if terms.vote_top_k else "")
        + (", raw values of rows leave" if terms.cut_points == "kll" else ""),
        "colluders": (
            f"{Group.of(terms.parties, terms.colluding).colluding} tolerated"
            + (", the key holder counted first" if terms.encrypts else "")
            if terms.hides
            else "the aggregator needs none"
        )
        + (", two parties allowed" if terms.allow_two_parties else ""),
        **_noise_of(terms),
        "label": shown(terms.columns.label)
        + (f" to {shown(upper)}" if upper else "")
        + (f", {terms.num_class} classes" if terms.num_class else "")
        + (f", weighted by {shown(weight)}" if weight else "")
        + (f", from base margin {shown(margin)}" if margin else "")
        + (f", ranked by group {shown(group)}" if group else ""),
        "features": f"{len(features)}: {_listed(map(shown, features))}",
    }
    return "\n".join(f"{key:<12}{value}" for key, value in lines.items())


def _noise_of(terms: Terms) -> dict[str, str]:
    """What a summary says of noise."""
    if terms.noise is None:
        return {}
    noise, releases = terms.noise, sum(release.times for release in terms.plan.releases.values())
    of = f"epsilon {noise.epsilon:g} at delta {noise.delta:g} for any one row"
    return {"noise": f"{of}, {releases} sums, {noise.placement}"}


def terminal_ask(text: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Show a text on the terminal; whether the person there says yes. What was typed before is not an answer.

    Refused if there is no terminal, or once `stopped` says that nobody waits for the answer any more.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("its standard input is no terminal, so nobody can be asked")
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    question = "Take part under these terms with the rows of this site? [y/N] "
    print(f"\n{text}\n{question}", end="", file=sys.stderr, flush=True)
    while not select.select([sys.stdin], [], [], ANSWER_POLL)[0]:
        if stopped():
            print("\nno longer asked for: the session or its connection ended", file=sys.stderr)
            raise Refused("nobody answered before the session or its connection ended")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def shown(text: str) -> str:
    """A name from outside, for a terminal: shortened, and without characters that move the cursor."""
    return quoted(text, SHOWN_LETTERS)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - SHOWN_NAMES
    return ", ".join(known) if more <= 0 else f"{', '.join(known[:SHOWN_NAMES])} and {more} more"


def _is_digest(text: str) -> bool:
    return len(text) == DIGEST_DIGITS and set(text.lower()) <= set("0123456789abcdef")


def _refusal(party: str, rule: str, why: str, detail: str = "") -> Refused:
    return Refused(f"site {party} refuses: its policy has {rule}, and {why}", detail)
