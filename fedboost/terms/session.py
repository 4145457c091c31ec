"""How a session runs: its program, its deadlines, and what follows if a party is lost."""

from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from fedboost.privacy.identity import MAX_NAME_BYTES, is_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, Several

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
