"""What do more parties and distance cost, and does the cost model predict it?

    python benchmarks/network/parties.py [--page docs/scaling.md] [--runs FILE]

Trains on generated dense float32 rows: binary:logistic, depth 6, 256 bins. The seconds of a tree are the
median over rounds after the second. All models of the same rows must be equal.

- simulate: 3 to 100 parties in one process with one thread; mean CPU seconds of these rounds. The share of
  the aggregator's session (adding, opening, finding splits) is measured separately.
- processes: 3, 10, 30 parties as processes on loopback with keys and one thread each, and the aggregator's
  resident memory (Linux). Claim: at most 2 MB more per party.
- links: three parties behind a proxy (`delay.py`) with 1, 20 and 50 ms, and with 100 Mbit/s per party.
  Claim: 50 ms add one round trip per turn, plain and masked, and at most one more in all.
- model: constants of `fedboost estimate` from the runs with up to ten parties in one process, the processes
  of three parties, and the link of 1 ms; then predictions for every run and for larger consortia.

--page writes the tables into a page, --runs reads the runs of an earlier --json FILE. Exit status 1 if a
claim does not hold.
"""

# One thread in every process, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import itertools
import json
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import costs
import numpy as np
import pyarrow as pa
from anything import ANYTHING
from common import LABEL, generate
from delay import Link
from network import OneThread, cpu_seconds
from pyarrow import parquet

import fedboost as fb
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.results import estimate
from fedboost.results.estimate import CONSTANTS, MBIT, NETWORK, Case
from fedboost.runtime.local import simulation
from fedboost.runtime.telemetry import Meter

ROWS, FEATURES = 20_000, 20
SIMULATED = (3, 10, 30, 100)
PROCESSES = (3, 10, 30)
CALIBRATED = 10
"""Up to so many parties in one process are for the constants; what more cost is predicted."""
SIZES = ((200_000, 10), (200_000, 50), (20_000, 50))
"""Rows and features of further runs, of one, three and ten parties, that tell the constants apart."""
LINKS = (
    Link(0.001),
    Link(0.020),
    Link(0.050),
    Link(0.020, 100 * MBIT),
)
MEMORY_AT_MOST = 2e6
"""Bytes of the aggregator's resident memory a party."""
FIRST = 2
"""Rounds before this are left out: kernels are loaded, and gRPC finds out about the link."""
TRIPS_MORE = 1.0
"""Round trips of a tree beyond those of the protocol, at 50 ms: the claim."""


@dataclass(frozen=True)
class Run:
    """One training. seconds, sent: of a tree, bytes of the first party; party, aggregator: CPU seconds of a
    tree, of all parties and of the aggregator; memory: of the aggregator's process, bytes: with its parties
    connected, and at its peak in this training."""

    kind: str
    case: Case
    seconds: float
    sent: float
    party: float
    aggregator: float
    memory: tuple[int, int] = (0, 0)

    @property
    def known(self) -> bool:
        """Whether the constants are fitted to this run."""
        if self.kind == "simulate":
            return self.case.parties <= CALIBRATED
        return self.case.parties == 3 and self.case.round_trip <= 0.001


def main() -> int:
    """Measure, fit, predict."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    kinds = ("simulate", "processes", "links")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds), help="default: all")
    parser.add_argument("--rounds", type=int, default=8, help="of each training (default 8)")
    parser.add_argument("--page", type=Path, help="write the tables between the marks of this page")
    parser.add_argument("--runs", type=Path, help="take the runs from this file of --json, measure nothing")
    options = parser.parse_args()
    if options.rounds <= FIRST:
        common.fail(f"--rounds must be at least {FIRST + 1}")
    runs = read(options.runs) if options.runs else []
    if not options.runs:
        measures = {"simulate": simulate, "processes": processes, "links": links}
        for kind in options.kinds:
            print(f"{kind} ...", file=sys.stderr)
            runs += measures[kind](options.rounds)
    pages = [page(runs)]
    holds = claims(runs)
    results: dict[str, Any] = {"runs": [as_json(run) for run in runs]}
    if {run.kind for run in runs} == set(kinds):
        constants = calibrate(runs)
        pages += [show_constants(constants), show_model(runs, constants), show_predictions(constants)]
        results["constants"] = constants
    tables = [common.Table(title, headings, rows) for _, title, headings, rows in pages]
    common.publish(options, tables, results)
    if options.page:
        write_page(options.page, pages)
    return 0 if holds else 1


# ---- measuring ---------------------------------------------------------------------------------------


def table_of(rows: int, features: int) -> pa.Table:
    columns, label = generate(rows, features)
    return pa.table({**columns, LABEL: label})


def cut(table: pa.Table, parties: int) -> dict[str, pa.Table]:
    """Divide the rows among parties as equally as possible."""
    ends = np.linspace(0, table.num_rows, parties + 1).astype(int).tolist()
    return {
        f"party-{i + 1}": table.slice(begin, end - begin)
        for i, (begin, end) in enumerate(itertools.pairwise(ends))
    }


def terms_of(table: pa.Table, rounds: int) -> fb.Terms:
    numeric = [name for name in table.column_names if name != LABEL]
    return fb.Terms.read(
        {"columns": {"label": LABEL, "numeric": numeric}, "rounds": rounds, "protection": "plain"}
    )


def simulate(rounds: int) -> list[Run]:
    """Measure trainings with all parties in this process."""
    small = table_of(300, 5)
    for protection in ("plain", "masked"):  # compile
        fb.simulate(terms_of(small, 2).changed(protection=protection), cut(small, 3))
    runs = []
    for rows, features in ((ROWS, FEATURES), *SIZES):
        table, boosters = table_of(rows, features), []
        parties_of_size = SIMULATED if (rows, features) == (ROWS, FEATURES) else (1, 3, 10)
        for parties, protection in itertools.product(parties_of_size, ("plain", "masked")):
            if parties == 1 and protection == "masked":
                continue
            terms = terms_of(table, rounds).changed(protection=protection)
            run, booster = simulate_once(
                terms, cut(table, parties), Case(rows, features, parties, rounds=rounds)
            )
            runs.append(replace(run, case=replace(run.case, protection=PROTECTIONS[protection])))
            boosters.append(booster)
        check_equal(boosters)
    return runs


def simulate_once(terms: fb.Terms, shards: Mapping[str, pa.Table], case: Case) -> tuple[Run, Any]:
    """Train once and time the aggregator's session."""
    spent, meters = [0.0], []

    class Timed(AggregatorSession):
        def handle(self, party: str, event: Any) -> Any:
            start = time.process_time()
            outbox = super().handle(party, event)
            spent[0] += time.process_time() - start
            return outbox

    class Kept(Meter):
        def __init__(self, parties: Any) -> None:
            super().__init__(parties)
            meters.append(self)

    marks: list[tuple[float, float, int]] = []

    def mark(row: Mapping[str, float]) -> None:
        sent = meters[0].traffic["party-1"][0]
        marks.append((time.process_time(), spent[0], sent))

    with (
        mock.patch.object(simulation, "AggregatorSession", Timed),
        mock.patch.object(simulation, "Meter", Kept),
    ):
        result = fb.simulate(terms, shards, on_round=mark)
    trees = len(marks) - FIRST
    cpu, aggregator, sent = ((marks[-1][i] - marks[FIRST - 1][i]) / trees for i in range(3))
    return Run("simulate", case, cpu, sent, cpu - aggregator, aggregator), result.model.booster


def check_equal(boosters: list[Any]) -> None:
    """End the script if models differ."""
    if any(booster != boosters[0] for booster in boosters):
        common.fail("the models of two runs with the same rows differ")


def processes(rounds: int) -> list[Run]:
    """Measure parties as processes on loopback."""
    table, runs, boosters = table_of(ROWS, FEATURES), [], []
    for parties in PROCESSES:
        of_these, models = train_far(table, parties, None, rounds)
        runs += of_these
        boosters += models
    check_equal(boosters)
    return runs


def links(rounds: int) -> list[Run]:
    """Measure three parties behind a link."""
    table, runs, boosters = table_of(ROWS, FEATURES), [], []
    for link in LINKS:
        of_these, models = train_far(table, 3, link, rounds)
        runs += of_these
        boosters += models
    check_equal(boosters)
    return runs


def train_far(table: pa.Table, parties: int, link: Link | None, rounds: int) -> tuple[list[Run], list[Any]]:
    """Train plain, then masked, with the same processes."""
    shards = cut(table, parties)
    terms = terms_of(table, rounds).changed(parties=list(shards))
    runs, boosters = [], []
    with TemporaryDirectory(prefix="fedboost-") as name, ExitStack() as running:
        folder = Path(name)
        files = {party: folder / f"{party}.parquet" for party in shards}
        for party, shard in shards.items():
            parquet.write_table(shard, files[party])
        one = OneThread(folder, files, policy=ANYTHING)
        one.link = link
        running.enter_context(one)
        warm = terms.changed(rounds=1)
        at_rest = resident(one.aggregator.pid, "VmRSS")
        for protection in ("plain", "masked"):
            for _ in one.analyst.train(warm.changed(protection=protection)):
                pass  # kernels are loaded, and gRPC learns about the link
            case = Case(
                table.num_rows,
                len(terms.columns.numeric),
                parties,
                rounds=rounds,
                protection=PROTECTIONS[protection],
                cores=os.cpu_count() or 1,
                round_trip=link.round_trip if link else 0.0,
                bandwidth=link.bandwidth if link else 0.0,
            )
            run, booster = train_once(one, terms.changed(protection=protection), case, at_rest)
            runs.append(replace(run, kind="links" if link else "processes"))
            boosters.append(booster)
            print(f"  {place(case)}, {protection}: {run.seconds:.3f} s", file=sys.stderr)
    return runs, boosters


def train_once(one: OneThread, terms: fb.Terms, case: Case, at_rest: int) -> tuple[Run, Any]:
    """Train once with running processes."""
    Path(f"/proc/{one.aggregator.pid}/clear_refs").write_text("5")  # resets the peak
    ids = [process.pid for process in one.parties.values()]
    seconds, moved, marks = [], [], []
    training = one.analyst.train(terms)
    for row in training:
        seconds.append(row["seconds"])
        moved.append(row["bytes"])
        if row["round"] + 1 in (FIRST, terms.trees.rounds):
            marks.append((sum(map(cpu_seconds, ids)), cpu_seconds(one.aggregator.pid)))
    trees = terms.trees.rounds - FIRST
    party, aggregator = ((marks[1][i] - marks[0][i]) / trees for i in range(2))
    sent = statistics.mean(moved[FIRST:]) / case.parties
    memory = at_rest, resident(one.aggregator.pid, "VmHWM")
    tree = statistics.median(seconds[FIRST:])
    return Run("", case, tree, sent, party, aggregator, memory), training.model.booster


def resident(process: int, which: str) -> int:
    """Bytes of resident memory: VmRSS now, VmHWM the peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024


def read(path: Path) -> list[Run]:
    """Read the runs of an earlier --json FILE."""
    return [
        Run(**{**run, "case": read_case(**run["case"]), "memory": tuple(run["memory"])})
        for run in json.loads(path.read_text())["runs"]
    ]


def read_case(protection: str, **fields: Any) -> Case:
    return Case(protection=PROTECTIONS[protection], **fields)


def as_json(run: Run) -> dict[str, Any]:
    """A run, with the protection by name."""
    own = {key: value for key, value in vars(run.case).items() if key in Case.__dataclass_fields__}
    return {**vars(run), "case": {**own, "protection": run.case.name}}


# ---- the model ---------------------------------------------------------------------------------------


Constants = dict[str, float]
"""Those of `fedboost.results.estimate.CONSTANTS`."""


def calibrate(runs: list[Run]) -> Constants:
    """Fit the constants to the calibration runs. Those of votes and columns, which these runs lack, stay."""
    known = [run for run in runs if run.known]
    alone = [run for run in known if run.kind == "simulate"]
    given = ("gain", "relay", "relays")
    counts = [
        {name: run.case.parties * count for name, count in (load.party | load.masks).items()}
        for run, load in zip(alone, map(load_of, alone), strict=True)
    ]
    own = [{name: count for name, count in each.items() if name not in given} for each in counts]
    party = costs.fit(own, [run.party for run in alone])
    session = costs.fit([costs.session_counts(run.case) for run in alone], [run.aggregator for run in alone])
    bare = {**CONSTANTS, **party, **session}
    far = [run for run in known if run.kind != "simulate"]
    gathered = [load_of(run).aggregator(run.case.parties) for run in far]
    counts = [{name: each[name] for name in each if name in NETWORK} for each in gathered]
    rpc = costs.fit(counts, [max(run.aggregator - aggregator_seconds(run, bare), 1e-6) for run in far])
    party_rpc = costs.fit(
        counts, [max(run.party - costs.parties_seconds(run.case, estimate.ROWS, bare), 1e-6) for run in far]
    )
    named = {f"party_{name}": value for name, value in party_rpc.items()}
    constants = {**bare, **rpc, **named, "busy": 1.0, "wait": 0.0}
    near = [run for run in far if run.kind == "processes"]
    shares = [estimate.predict(run.case, constants=constants).seconds / run.seconds for run in near]
    constants["busy"] = min(statistics.median(shares), 1.0)
    waits = [
        (run.seconds - estimate.predict(run.case, constants=constants).seconds) / load_of(run).turns
        for run in far
        if run.kind == "links"
    ]
    return {**constants, "wait": max(statistics.median(waits), 0.0)}


def load_of(run: Run) -> estimate.Load:
    return estimate.load_of(run.case, estimate.ROWS)


def aggregator_seconds(run: Run, constants: Constants) -> float:
    """CPU seconds of the aggregator's session."""
    return estimate.total(costs.session_counts(run.case), constants)


def claims(runs: list[Run]) -> bool:
    """Print each claim; return whether all hold."""
    holds = True
    for masked in (False, True):
        ours = [run for run in runs if run.kind == "processes" and run.case.hides == masked]
        if len(ours) > 1:
            first, last = ours[0], ours[-1]
            more = (last.memory[1] - first.memory[1]) / (last.case.parties - first.case.parties)
            holds &= more <= MEMORY_AT_MOST
            what = f"{more / 1e6:.2f} MB more a party (claim: {MEMORY_AT_MOST / 1e6:g})"
            print(f"aggregator, {kind_of(first)}: {what}")
        by_trip = {
            run.case.round_trip: run
            for run in runs
            if run.kind == "links" and run.case.hides == masked and not run.case.bandwidth
        }
        if len(by_trip) > 1:
            near, far = min(by_trip), max(by_trip)
            run = by_trip[near]
            trips = (by_trip[far].seconds - run.seconds) / (far - near)
            holds &= trips <= run.case.max_depth + TRIPS_MORE
            print(f"round trips a tree, {kind_of(run)}: {trips:.1f} (the protocol's: {run.case.max_depth})")
    return holds


def kind_of(run: Run) -> str:
    return "masked" if run.case.hides else "plain"


# ---- what came of it ---------------------------------------------------------------------------------

Shown = tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]
"""A mark of the page, a title, headings and rows."""


def shown(mark: str, title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Shown:
    """A table and its mark on the page."""
    return mark, title, headings, rows


def place(case: Case) -> str:
    """Text of a case."""
    link = []
    if case.round_trip:
        link.append(f"{1000 * case.round_trip:g} ms")
    if case.bandwidth:
        link.append(f"{case.bandwidth / MBIT:g} Mbit/s")
    size = f"{case.rows:,.0f} x {case.features}, {case.parties} parties"
    return ", ".join([size, *link])


def page(runs: list[Run]) -> Shown:
    """Tables of the measurements."""
    rows = []
    for run in runs:
        memory = f"{run.memory[0] / 1e6:.0f}, {run.memory[1] / 1e6:.0f}" if run.memory[1] else ""
        rows.append(
            (
                f"{run.kind}: {place(run.case)}, {kind_of(run)}",
                f"{run.seconds:.3f}",
                f"{run.sent / 1e6:.3f}",
                f"{1000 * run.party / run.case.parties:.1f}",
                f"{1000 * run.aggregator:.1f}",
                memory,
            )
        )
    headings = (
        "run",
        "s a tree",
        "MB a party",
        "CPU ms a party",
        "CPU ms aggregator",
        "its MB: at rest, peak",
    )
    return shown("measured", "A tree of depth 6, 256 bins", headings, rows)


def show_constants(constants: Constants) -> Shown:
    values = {**constants}
    busy = values.pop("busy")
    rows = [
        (name, f"{1e9 * value:,.0f}" if value > 1e-6 else f"{1e9 * value:.3g}")
        for name, value in values.items()
    ]
    rows.append(("busy (a share)", f"{busy:.2f}"))
    return shown("constants", "Constants, in nanoseconds", ("constant", "ns"), rows)


def show_model(runs: list[Run], constants: Constants) -> Shown:
    """Predicted against measured."""
    rows = []
    for run in runs:
        if run.kind == "simulate":
            seconds = costs.simulated(run.case, constants=constants)
        else:
            seconds = estimate.predict(run.case, constants=constants).seconds
        rows.append(
            (
                f"{run.kind}: {place(run.case)}, {kind_of(run)}",
                "constants" if run.known else "check",
                f"{run.seconds:.3f}",
                f"{seconds:.3f}",
                f"{100 * (seconds / run.seconds - 1):+.0f} %",
                f"{100 * (load_of(run).sent / run.sent - 1):+.1f} %",
            )
        )
    headings = ("run", "is for", "measured s", "predicted s", "error", "error of bytes")
    return shown("model", "Predicted against measured, seconds a tree", headings, rows)


def consortia() -> list[tuple[str, Case]]:
    """Consortia to predict."""
    near = Case(
        *(1e6, 50, 10),
        protection=PROTECTIONS["masked"],
        nthread=8,
        round_trip=0.02,
        bandwidth=100 * MBIT,
        aggregator_bandwidth=1000 * MBIT,
    )
    plain = replace(near, protection=None)
    return [
        ("hospitals", replace(near, rows=1e5)),
        ("the same over 50 ms", replace(near, rows=1e5, round_trip=0.05)),
        ("banks", near),
        ("more rows", replace(near, rows=1e8)),
        ("wide table", replace(near, features=1000)),
        ("wide, 64 bins", replace(near, features=1000, max_bin=64)),
        ("wide, vote_top_k 20", replace(near, features=1000)),
        ("more parties", replace(near, parties=100)),
        ("without masks", replace(plain, parties=100)),
        ("1,000 sites, plain", replace(plain, parties=1000, rows=1e8)),
        ("the same, 64 bins, depth 4", replace(plain, parties=1000, rows=1e8, max_bin=64, max_depth=4)),
        ("10^10 rows, 100 sites", replace(near, parties=100, rows=1e10)),
        ("10^10 rows, 1,000 sites, plain", replace(plain, parties=1000, rows=1e10)),
    ]


def show_predictions(constants: Constants) -> Shown:
    """Predictions for consortia larger than those measured."""
    rows = []
    for name, case in consortia():
        layout = estimate.VOTES if "vote_top_k" in name else estimate.ROWS
        cost = estimate.predict(case, layout, constants)
        size = f"{case.rows:.0e} x {case.features}, {case.parties} {case.name}"
        rows.append(
            (
                f"{name}: {size}, {1000 * case.round_trip:g} ms",
                f"{cost.seconds:.2f}",
                *(f"{value:.2f}" for value in cost.parts.values()),
                f"{cost.sent / 1e6:.1f}",
                cost.most,
            )
        )
    headings = ("consortium", "s a tree", "rows", "masks", "aggregator", "round trips", "links", "MB", "most")
    return shown("predictions", "Predicted, seconds a tree", headings, rows)


def write_page(path: Path, pages: list[Shown]) -> None:
    """Write each table between its marks."""
    text = path.read_text(encoding="utf-8")
    for mark, _, headings, rows in pages:
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        if begin not in text or end not in text:
            common.fail(f"{path}: no marks {begin.strip()} and {end}")
        lines = [headings, ("---",) + ("--:",) * (len(headings) - 1), *rows]
        table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
        before, after = text.split(begin)[0], text.split(end)[1]
        text = before + begin + "\n" + table + "\n" + end + after
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
