"""The tasks of sessions (train, evaluate and so on), and the settings of how a session runs: program,
deadlines, and what happens if a party is lost.

Guarantees: no other module branches on the name of a task. Facts about tasks are looked up in `TASKS`; other
layers have their own tables, keyed by task name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedboost.gbdt.cut_points import MAX_REFINEMENTS
from fedboost.privacy.identity import MAX_NAME_BYTES, is_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, OrNone, Several

ALIGNMENT_TURNS = 3
"""Maximum number of queries in a session that match rows by their ids or predict rows."""


@dataclass(frozen=True)
class Task:
    """What a session does, e.g. train or evaluate, with the facts that other modules need about it.

    Args:
        name: name of the task.
        program: value of the key `program` that starts the task; None if another key starts it.
        function: name of the function in the Python package that takes the terms of the task.
        trains: the session grows trees.
        makes_model: the result is a model.
        takes_candidates: the terms list tree settings that are tried in parallel.
        model_is: participle that says in messages what is done with `xgb_model`; '' if the terms take no
            model.
        measures: the model must contain facts about how it was trained.
        uses_reference: the model must contain its reference distribution.
        stands_alone: the result can be interpreted without another file.
        counts_values: the session counts rows by the value of each column, including labels and undeclared
            levels.
        reads_labels: the session reads the label columns.
        reads_subgroups: the session reads the subgroup columns.
        by_analyst: analysts request such sessions, and sites approve them for named analysts. If false, the
            label holder requests them for its own rows.
        is_protected: answers use the protection of the terms, unless parties with different columns evaluate
            a model.
        max_turns: maximum number of queries in a session; None if it depends on the trees."""

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
        """Return the columns that a session with this task reads. columns: all columns of the terms."""
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
        model_is="predicted with",
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
    """Return the task that a program starts. Programs that are not part of fedboost train models."""
    return next((row for row in _ROWS if row.program == program), TASKS["train"])


# ---- How a session runs -----------------------------------------------------------------------------

MAX_PARTIES = 1 << 12


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("a party is named more than once")
    for name in names:
        if not is_name(name):
            raise ValueError(
                f"{name[:MAX_CHARS]!r} is not a valid party name: use 1 to {MAX_NAME_BYTES} bytes "
                f"of printable characters"
            )
    return names


MAX_TIMEOUT = 86_400.0
"""Maximum seconds that a session may wait for a party: the aggregator runs one session at a time."""

Parties = Annotated[Several[str], AfterValidator(_distinct)]
"""Party names, each only once."""


class Session(Group):
    """How a session runs: its program, its deadlines, and what happens if a party is lost."""

    on_loss: Literal["wait", "shrink", "stop"] = Field(
        default="wait",
        description="What happens if a party is lost and does not return within `rejoin_timeout`. `wait`: "
        "keep waiting. `stop`: stop the session. `shrink`: continue with the other parties.",
    )
    turn_timeout: float = Field(
        default=600.0,
        gt=0,
        le=MAX_TIMEOUT,
        description="Maximum time in seconds that a party may take for one answer. Raise it for large "
        "tables or slow machines.",
    )
    rejoin_timeout: float = Field(
        default=600.0,
        ge=0,
        le=MAX_TIMEOUT,
        description="Time in seconds that a lost party has to return before `on_loss` applies.",
    )
    quorum: OrNone[int] = Field(
        ge=1,
        description='Minimum number of parties that must remain with `on_loss = "shrink"`. The default is '
        "more than half of them, and never fewer than the protection needs.",
    )
    program: Name = Field(
        default="boosting",
        description="What the session does. `boosting`: train a model. `describe`: count the rows of all "
        "parties ([describe](lifecycle.md#describe)). `tune`: train `candidates` in parallel "
        "([tune](lifecycle.md#tune)). `evaluate`: evaluate a model ([evaluate](lifecycle-evaluate.md)). "
        "`drift`: compare rows with a model's [reference distribution](lifecycle-evaluate.md#drift). Any "
        "other value is the name of a custom program of the aggregator.",
    )

    @property
    def is_built_in(self) -> bool:
        return self.program == task_of(self.program).program

    def faults_of_roster(self, parties: tuple[str, ...], fewest: int, protection: str) -> Iterator[str]:
        """Yield an error message if the quorum does not suit these parties, or if the roster (the parties
        included in the sums) should be able to shrink but cannot. fewest: minimum number of parties in a sum
        that is opened."""
        if self.quorum is not None and parties and not fewest == self.quorum <= len(parties):
            yield (
                f"quorum {self.quorum} of {len(parties)} parties is too small: protection {protection} needs "
                f"at least {fewest} parties in a sum"
                if self.quorum < fewest
                else f"quorum {self.quorum} is larger than the number of parties, {len(parties)}"
            )
        if self.on_loss == "shrink" and parties and fewest == len(parties):
            yield (
                f'on_loss = "shrink": protection {protection} with this quorum needs all {fewest} parties '
                f"in a sum, so no party may be lost; add parties, or lower the quorum"
            )

    def _faults(self) -> Iterator[str]:
        if self.quorum is not None and self.on_loss != "shrink":
            yield 'quorum needs on_loss = "shrink", because otherwise all parties must remain; remove quorum'
