"""How a session runs: its program, its deadlines, and what follows if a party is lost."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.privacy.identity import MAX_NAME_BYTES, is_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, Several, require_known

if TYPE_CHECKING:
    from fedboost.terms.terms import Terms


MAX_PARTIES = 1 << 12
TO_TRAIN, TO_PREDICT, TO_DESCRIBE, TO_TUNE = "train", "predict", "describe", "tune"
TO_EVALUATE, TO_DRIFT = "evaluate", "drift"
"""What sessions do: `Terms.task`."""
Task = Literal["train", "tune", "describe", "evaluate", "drift", "predict"]
TASKS: tuple[Task, ...] = get_args(Task)
TRAINING = frozenset({TO_TRAIN, TO_TUNE})
"""Of these what grows trees."""
MEASURING = frozenset({TO_EVALUATE, TO_DRIFT})
"""Of these what is about a model that exists."""


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("a party is named more than once")
    for name in names:
        if not is_name(name):
            raise ValueError(
                f"{name[:MAX_CHARS]!r} cannot be a party's name: it takes 1 to {MAX_NAME_BYTES} bytes "
                f"of printable characters"
            )
    return names


MAX_TIMEOUT = 86_400.0
"""Seconds that a session may wait for one party. A session holds the aggregator, which has one at a time."""

Parties = Annotated[Several[str], AfterValidator(_distinct)]
"""Names of parties, each once."""


class Session(Group):
    """The program, its deadlines, and losses."""

    on_loss: Literal["wait", "shrink", "stop"] = Field(
        default="wait",
        description="What follows if a party is lost and does not come back in `rejoin_timeout`: `wait` on, "
        "`stop` the session, or `shrink` the roster and go on with the other parties.",
    )
    turn_timeout: float = Field(
        default=600.0,
        gt=0,
        le=MAX_TIMEOUT,
        description="Seconds a party may take for one answer. Raise it for large tables or slow machines.",
    )
    rejoin_timeout: float = Field(
        default=600.0,
        ge=0,
        le=MAX_TIMEOUT,
        description="Seconds a lost party may take to come back before `on_loss` holds.",
    )
    quorum: int | None = Field(
        default=None,
        ge=1,
        description='Fewest parties that may be left with `on_loss = "shrink"`. The default is more than '
        "half, and never fewer than the protection needs.",
    )
    program: Name = Field(
        default="boosting",
        description="What the session does: `boosting` trains, `describe` counts the rows of all parties "
        "([describe](lifecycle.md#describe)), `tune` trains `candidates` side by side "
        "([tune](lifecycle.md#tune)), `evaluate` measures a model "
        "([evaluate](lifecycle-evaluate.md)), `drift` holds rows against its "
        "[reference](lifecycle-evaluate.md#drift); or the name of a program that the aggregator offers.",
    )

    @property
    def task(self) -> str:
        """What the session does by its program; a program of one's own trains."""
        known = TO_DESCRIBE, TO_TUNE, TO_EVALUATE, TO_DRIFT
        return self.program if self.program in known else TO_TRAIN

    def read(self, columns: Schema) -> Schema:
        """The columns that a session takes: no label where rows are held against a reference, and columns
        of subgroups where a model is evaluated."""
        if self.task == TO_DRIFT:
            return columns.unlabelled()
        used = self.task == TO_EVALUATE or not columns.subgroups
        return columns if used else columns.model_copy(update={"subgroups": {}})

    def check_roster(self, parties: tuple[str, ...], fewest: int, protection: str) -> None:
        """ValueError unless a roster of these parties can shrink as it may. fewest: the fewest parties whose
        sums are opened."""
        if self.quorum is not None and parties and not fewest == self.quorum <= len(parties):
            raise ValueError(
                f"quorum {self.quorum} of {len(parties)} parties: protection {protection} opens no "
                f"sum of fewer than {fewest}"
                if self.quorum < fewest
                else f"quorum {self.quorum} is more than the {len(parties)} parties"
            )
        if self.on_loss == "shrink" and parties and fewest == len(parties):
            raise ValueError(
                f'on_loss = "shrink": protection {protection} with this quorum opens no sum of fewer '
                f"than {fewest} parties, so the roster cannot shrink; add parties, or lower quorum"
            )

    @model_validator(mode="after")
    def _quorum_is_of_use(self) -> Self:
        if self.quorum is not None and self.on_loss != "shrink":
            raise ValueError('quorum needs on_loss = "shrink": else the roster is always that of all parties')
        return self


# ---- Candidates: settings of trees that one session tries side by side ----------------------------------
# Refuses: candidates of other settings, and beyond the bounds that the terms have themselves (ConfigError).


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


def terms_of(terms: "Terms", number: int) -> "Terms":
    """The terms of a training with the settings of a candidate."""
    return terms.altered(terms.objective.candidates[number], without=("program", "candidates"))


def stages(terms: "Terms") -> dict[int, int]:
    """The number of rounds after which candidates are dropped, to the number of those that go on."""
    left, ends = len(terms.objective.candidates), {}
    for share in SHARES:
        if rounds := int(share * terms.trees.rounds):
            ends[rounds] = left = -(-left * KEPT[0] // KEPT[1])
    return ends


def check(terms: "Terms") -> None:
    """ValueError unless the candidates can be tried side by side."""
    candidates, tunes = terms.objective.candidates, terms.session.program == TO_TUNE
    if tunes != bool(candidates):
        raise ValueError('program tune needs candidates, and candidates need program = "tune"')
    if not tunes:
        return
    for is_so, setting, reason in _refused(terms):
        if is_so:
            raise ValueError(f"program tune with {setting}: {reason}")
    for number, candidate in enumerate(candidates):
        _check_candidate(terms, number, candidate)


def _refused(terms: "Terms") -> tuple[tuple[bool, str, str], ...]:
    name, features = terms.objective.name, len(terms.columns.features)
    plain = name in OBJECTIVES and terms.objective.loss.quantile is None and terms.columns.group is None
    return (
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


def _check_candidate(terms: "Terms", number: int, candidate: Mapping[str, Any]) -> None:
    """ValueError unless a training may have these settings, and needs no more than the terms allow."""
    for key in candidate:
        require_known(key, TUNED, f"candidates[{number}]")
    try:
        own = terms_of(terms, number)
    except ConfigError as error:
        raise ValueError(f"candidates[{number}]: {str(error).removeprefix('terms: ')}") from None
    if own.trees.max_depth > terms.trees.max_depth or own.max_leaves_per_round > _leaves(terms):
        raise ValueError(f"candidates[{number}]: larger trees than max_depth and max_leaves of the terms")
    if own.trees.min_child_weight < terms.trees.min_child_weight:
        raise ValueError(
            f"candidates[{number}]: min_child_weight is below that of the terms, which sites go by"
        )


def _leaves(terms: "Terms") -> int:
    return terms.max_leaves_per_round // len(terms.roots)
