"""What sessions do, one row for each task; and how a session runs: its program, its deadlines, and what
follows if a party is lost.

Promises: nothing else in fedboost branches on the name of a task; every fact about one is looked up here, and
what other floors do for it stands in a table of theirs, by its name.
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
"""Queries that match rows by their ids, or have them predicted."""


@dataclass(frozen=True)
class Task:
    """What a session does.

    program: the value of the key `program` that starts it, None where another key does; function: of the
    Python package, which takes its terms; trains: trees grow; makes_model: the result is a model;
    takes_candidates: the terms name settings of trees that are tried side by side; model_is: in words what
    becomes of the model in `xgb_model`, '' where the terms take none; measures: it needs that model, with the
    facts of its training; uses_reference: it needs the bins of that model's reference; stands_alone: its
    result is read without another file; counts_values: rows are counted by the values of each column, label
    and undeclared levels included, each row once; reads_labels, reads_subgroups: it takes the columns of
    labels, and those of subgroups; by_analyst: an analyst requests it, and sites approve it for named
    analysts, else the label holder requests it for its own rows; is_protected: answers go under the
    protection of the terms; max_turns: most queries of a session, None where trees decide.
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
        """The columns that a session takes, of those that its terms name."""
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
        model_is="held against these rows",
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
"""What sessions do: `Terms.task`."""
TaskName = Literal["train", "tune", "describe", "evaluate", "drift", "predict"]
TRAINING = frozenset(row.name for row in _ROWS if row.trains)
"""Names of the tasks that grow trees."""


def task_of(program: object) -> Task:
    """The task that a program starts; one that is not of fedboost trains."""
    return next((row for row in _ROWS if row.program == program), TASKS["train"])


# ---- how a session runs -----------------------------------------------------------------------------


MAX_PARTIES = 1 << 12


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
    def is_built_in(self) -> bool:
        """True if the program is fedboost's own."""
        return self.program == task_of(self.program).program

    def faults_of_roster(self, parties: tuple[str, ...], fewest: int, protection: str) -> Iterator[str]:
        """Yield a fault unless a roster of these parties can shrink as it may. fewest: parties whose sums are
        opened, at least."""
        if self.quorum is not None and parties and not fewest == self.quorum <= len(parties):
            yield (
                f"quorum {self.quorum} of {len(parties)} parties: protection {protection} opens no "
                f"sum of fewer than {fewest}"
                if self.quorum < fewest
                else f"quorum {self.quorum} is more than the {len(parties)} parties"
            )
        if self.on_loss == "shrink" and parties and fewest == len(parties):
            yield (
                f'on_loss = "shrink": protection {protection} with this quorum opens no sum of fewer '
                f"than {fewest} parties, so the roster cannot shrink; add parties, or lower quorum"
            )

    def _faults(self) -> Iterator[str]:
        if self.quorum is not None and self.on_loss != "shrink":
            yield 'quorum needs on_loss = "shrink": else the roster is always that of all parties'
