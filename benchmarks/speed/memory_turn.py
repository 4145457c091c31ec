"""What does a site's question log cost per turn?

    python benchmarks/speed/memory_turn.py

Before a party sends an answer, it records the question in a file that survives the process. The script
measures wall milliseconds per record, in a session of trees with eight questions each. It also measures
writes that must survive a power failure: the start and end of a session, and the charge for a release with
noise.

The claim: a record takes less than 0.2 ms, in the median and in the mean, including records that wait for
the disk because the file's log is full.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
from common import verdict

import fedboost as fb
from fedboost.protocol.contracts import Position
from fedboost.protocol.site import Limits, Question, SessionOffer
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.store import NAME, make_file

CLAIM = 0.2
TURNS_A_TREE = 8
NAMES = ("note of a question", "start of a session", "charge of a release", "end of a session")
COLUMNS = {"label": "y", "numeric": ["x"], "ranges": {"x": [0, 1]}}


def main() -> None:
    """Record many turns, then run many short sessions."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--turns", type=int, default=20_000, help="turns of one session (default 20000)")
    parser.add_argument("--sessions", type=int, default=100, help="other sessions (default 100)")
    options = parser.parse_args()
    if options.turns < 1 or options.sessions < 1:
        common.fail("--turns and --sessions must be at least 1")
    noise = {"epsilon": 1.0, "delta": 1e-5}
    terms = fb.Terms.read({"columns": COLUMNS, "parties": ["north", "south", "east"], "noise": noise})
    spent: dict[str, list[float]] = {name: [] for name in NAMES}
    with TemporaryDirectory(prefix="fedboost-") as folder:
        path = Path(folder) / NAME
        make_file(path, "rows")
        memory = FileMemory(path, "north", "rows")
        limits = Limits(max_sessions=options.sessions + 1)
        session = memory.begin(SessionOffer("long", terms), limits)
        for turn in range(options.turns):
            trees, levels = divmod(turn, TURNS_A_TREE)
            base = Position(1, True, trees, 0, 0, trees.to_bytes(32, "big"), bytes(32))
            before, after = (position(trees, level) for level in (levels, levels + 1))
            question = Question(turn + 1, os.urandom(32), True, before, after)
            spent[NAMES[0]].append(milliseconds(lambda: session.ask(question, base, after)))  # noqa: B023
        for number in range(options.sessions):
            offer = SessionOffer(f"{number}", terms)
            spent[NAMES[1]].append(milliseconds(lambda: memory.begin(offer, limits)))  # noqa: B023
            session = memory.begin(offer, limits)
            session.meet(1)
            spent[NAMES[2]].append(milliseconds(lambda: session.charge("a release", 1e-9)))  # noqa: B023
            spent[NAMES[3]].append(milliseconds(lambda: session.end("")))  # noqa: B023
        memory.close()
    rows = []
    for name, times in spent.items():
        mean, worst = statistics.mean(times), sorted(times)[int(0.99 * len(times))]
        row = [name, f"{len(times):,}", f"{mean:.3f}", f"{statistics.median(times):.3f}", f"{worst:.3f}"]
        rows.append(
            [*row, f"{CLAIM:g}", verdict(max(mean, statistics.median(times)) < CLAIM)]
            if name == NAMES[0]
            else [*row, "", ""]
        )
    headings = ("what is written", "times", "mean", "median", "99 of 100 below", "claim", "holds")
    shown = common.Table("Wall milliseconds, in a file of the temporary folder", headings, rows)
    common.publish(options, [shown], {"milliseconds": {name: statistics.mean(spent[name]) for name in NAMES}})


def position(rounds: int, levels: int) -> Position:
    """Position in a session."""
    return Position(1, True, rounds, levels, levels, os.urandom(32), os.urandom(32))


def milliseconds(work: Callable[[], object]) -> float:
    """Run the work once and return its milliseconds."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
