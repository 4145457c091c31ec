"""The tasks of sessions, one row each; and how a session runs: program, deadlines and the loss of a party.

Promises: no other module branches on the name of a task. Facts about tasks are looked up here; other layers
have tables of their own, keyed by task name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedboost.gbdt.cut_points import MAX_REFINEMENTS
from fedboost.privacy.identity import MAX_NAME_BYTES, is_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, Several

ALIGNMENT_TURNS = 3
"""Most queries that match rows by their ids, or predict them."""


@dataclass(frozen=True)
class Task:
    """What a session does.

    Args:
        program: value of the key `program` that starts it; None if another key does.
        function: function of the Python package that takes its terms.
        trains, makes_model: trees grow; the result is a model.
        takes_candidates: the terms list tree settings that are tried side by side.
        model_is: what happens to `xgb_model`, in words for messages; '' if the terms take no model.
        measures, uses_reference: it needs that model with facts of its training; with its reference's bins.
        stands_alone: its result can be read without another file.
        counts_values: rows are counted once by each column's value, label and undeclared levels included.
        reads_labels, reads_subgroups: it reads the label columns; the subgroup columns.
        by_analyst: analysts request it, and sites approve it for named analysts; else the label holder
            requests it for its own rows.
        is_protected: answers use the protection of the terms.
        max_turns: most queries of a session; None if it depends on trees.
    """

    name: str
    program: str | None
    function: str
    trains: bool = False
    makes_model: bool = False
    takes_candidates: bool = False
    model_is: str = ""
    measures: bool = False
    uses_reference: bool = False
    stands_alone: bool = True
    counts_values: bool = False
    reads_labels: bool = True
    reads_subgroups: bool = False
    by_analyst: bool = True
    is_protected: bool = True
    max_turns: int | None = None

    def read(self, columns: Schema) -> Schema:
        """The columns that a session with this task reads, of those in its terms."""
        if not self.reads_labels:
            return columns.unlabelled()
        used = self.reads_subgroups or not columns.subgroups
        return columns if used else columns.model_copy(update={"subgroups": {}})


_ROWS = (
    Task("train", "boosting", "simulate", trains=True, makes_model=True, model_is="continued"),
    Task("tune", "tune", "tune", trains=True, takes_candidates=True),
    Task("describe", "describe", "describe", counts_values=True, max_turns=1 + MAX_REFINEMENTS),
    Task(
        "evaluate",
        "evaluate",
        "evaluate",
        model_is="evaluated",
        measures=True,
        reads_subgroups=True,
        max_turns=2,
    ),
    Task(
        "drift",
        "drift",
        "drift",
        model_is="compared with these rows",
        measures=True,
        uses_reference=True,
        stands_alone=False,
        reads_labels=False,
        max_turns=1,
    ),
    Task(
        "predict",
        None,
        "predict_jointly",
        reads_labels=False,
        by_analyst=False,
        is_protected=False,
        max_turns=ALIGNMENT_TURNS,
    ),
)

TASKS: dict[str, Task] = {row.name: row for row in _ROWS}
"""All tasks by name. `Terms.task` is one of them."""
TaskName = Literal["train", "tune", "describe", "evaluate", "drift", "predict"]
TRAINING = frozenset(row.name for row in _ROWS if row.trains)
"""Names of the tasks that grow trees."""


def task_of(program: object) -> Task:
    """The task that a program starts. Programs that are not part of fedboost train."""
    return next((row for row in _ROWS if row.program == program), TASKS["train"])


# ---- How a session runs -----------------------------------------------------------------------------

MAX_PARTIES = 1 << 12


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("a party is named more than once")
    for name in names:
        if not is_name(name):
            raise ValueError(
                f"{name[:MAX_CHARS]!r} cannot be a party's name: use 1 to {MAX_NAME_BYTES} bytes "
                f"of printable characters"
            )
    return names


MAX_TIMEOUT = 86_400.0
"""Most seconds that a session may wait for one party; the aggregator runs one session at a time."""

Parties = Annotated[Several[str], AfterValidator(_distinct)]
"""Party names, each only once."""


class Session(Group):
    """Program, deadlines, and loss of parties."""

    on_loss: Literal["wait", "shrink", "stop"] = Field(
        default="wait",
        description="What happens if a party is lost and does not come back within `rejoin_timeout`. `wait`: "
        "keep waiting. `stop`: stop the session. `shrink`: continue with the other parties.",
    )
    turn_timeout: float = Field(
        default=600.0,
        gt=0,
        le=MAX_TIMEOUT,
        description="Most seconds that a party may take for one answer. Raise it for large tables or slow "
        "machines.",
    )
    rejoin_timeout: float = Field(
        default=600.0,
        ge=0,
        le=MAX_TIMEOUT,
        description="Seconds that a lost party has to come back before `on_loss` applies.",
    )
    quorum: int | None = Field(
        default=None,
        ge=1,
        description='Fewest parties that may remain with `on_loss = "shrink"`. The default is more than '
        "half, and never fewer than the protection needs.",
    )
    program: Name = Field(
        default="boosting",
        description="What the session does. `boosting`: train a model. `describe`: count the rows of all "
        "parties ([describe](lifecycle.md#describe)). `tune`: train `candidates` side by side "
        "([tune](lifecycle.md#tune)). `evaluate`: measure a model "
        "([evaluate](lifecycle-evaluate.md)). `drift`: compare rows with a model's "
        "[reference](lifecycle-evaluate.md#drift). Or the name of a custom program of the aggregator.",
    )

    @property
    def is_built_in(self) -> bool:
        return self.program == task_of(self.program).program

    def faults_of_roster(self, parties: tuple[str, ...], fewest: int, protection: str) -> Iterator[str]:
        """Yield a fault unless a roster of these parties can shrink. fewest: parties of an opened sum."""
        if self.quorum is not None and parties and not fewest == self.quorum <= len(parties):
            yield (
                f"quorum {self.quorum} of {len(parties)} parties: protection {protection} opens no sum of "
                f"fewer than {fewest}"
                if self.quorum < fewest
                else f"quorum {self.quorum} is more than the {len(parties)} parties"
            )
        if self.on_loss == "shrink" and parties and fewest == len(parties):
            yield (
                f'on_loss = "shrink": protection {protection} with this quorum opens no sum of fewer '
                f"than {fewest} parties, so the roster cannot shrink; add parties, or lower the quorum"
            )

    def _faults(self) -> Iterator[str]:
        if self.quorum is not None and self.on_loss != "shrink":
            yield 'quorum needs on_loss = "shrink": otherwise the roster always has all parties'
