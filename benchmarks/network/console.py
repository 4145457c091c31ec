"""Does a console with many open pages slow a training?

    python benchmarks/network/console.py

Three parties with keys share generated dense float32 rows: binary:logistic, `masked`. All processes run on
this machine, including the pages: clients in a process of their own that poll every two seconds as a
browser does. Trainings without and with pages alternate in one run. The console is served in both.

The time per turn is the median round of a training divided by the turns of a round. The mean round would
also show rendering that delays a round. The first rounds are left out. CPU seconds are those of the
aggregator over a whole training.

The claim: with 50 open pages, the median turn takes at most 1.05 times as long.
"""

# One thread in every process, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import http.client
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import pyarrow as pa
from anything import ANYTHING
from common import LABEL, generate, spread
from pyarrow import parquet

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster

PARTIES, ROUNDS, EARLY = 3, 300, 10
AT_MOST = 1.05
READY = "ready"
PAUSE = 2.0
"""Seconds between two requests of an open page."""


class WithConsole(LocalCluster):
    """A consortium with keys whose aggregator serves a console, and whose parties have one thread each."""

    def _spawn(self, stem: str, config: Mapping[str, object], *options: str) -> Any:
        own = {"nthread": 1} if "party" in config else {"console": {"listen": "127.0.0.1:0"}}
        return super()._spawn(stem, {**config, **own}, *options)

    @property
    def console(self) -> str:
        """Address of the console, from the aggregator's log."""
        log = (self._folder / "aggregator.log").read_text()
        return re.findall(r"console is served.*?(http://[\w.:]+)", log)[-1]


def main() -> None:
    """Measure, or run as the process of the pages."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--repeats", type=int, default=7, help="trainings of each kind (default 7)")
    parser.add_argument("--pages", type=int, default=50, help="open pages (default 50)")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of all parties (default 60,000)")
    parser.add_argument("--look", help="read so many pages at this address, until killed")
    options = parser.parse_args()
    if options.look:
        look(options.look, options.pages)
        return
    if options.repeats < 1 or options.pages < 1:
        common.fail("--repeats and --pages must be at least 1")
    report(measure(options), options)


def measure(options: Any) -> dict[str, list[dict[str, float]]]:
    """Trainings without and with pages, in turns."""
    columns, label = generate(options.rows, 20)
    table = pa.table({**columns, LABEL: label})
    names = [f"party-{number + 1}" for number in range(PARTIES)]
    settings = {"columns": {"label": LABEL, "numeric": list(columns)}, "rounds": ROUNDS, "parties": names}
    terms = fb.Terms.read({**settings, "protection": "masked"})
    found: dict[str, list[dict[str, float]]] = {"none": [], "open": []}
    with TemporaryDirectory(prefix="fedboost-") as folder:
        files = {name: Path(folder) / f"{name}.parquet" for name in names}
        for path, part in zip(files.values(), common.equal_parts(table, PARTIES), strict=True):
            parquet.write_table(part, path)
        with WithConsole(Path(folder), files, policy=ANYTHING) as one:
            train(one, terms)  # kernels are loaded, rows are read
            for number in range(options.repeats):
                print(f"repeat {number + 1} of {options.repeats} ...", file=sys.stderr)
                kinds = ("none", "open") if number % 2 else ("open", "none")
                for kind in kinds:
                    with pages(one.console, options.pages if kind == "open" else 0):
                        found[kind].append(train(one, terms))
    return found


def train(one: WithConsole, terms: fb.Terms) -> dict[str, float]:
    """One training: milliseconds of a turn, and the aggregator's CPU seconds."""
    before, turns = cpu_seconds(one.aggregator.pid), turns_of(one.console)
    training = one.analyst.train(terms)
    seconds = [row["seconds"] for row in training]
    taken = turns_of(one.console) - turns
    late = seconds[EARLY:]
    turn, mean = (1000 * value * ROUNDS / taken for value in (statistics.median(late), statistics.mean(late)))
    return {
        "turn_ms": turn,
        "mean_ms": mean,
        "cpu_s": cpu_seconds(one.aggregator.pid) - before,
        "turns": taken,
    }


def turns_of(console: str) -> float:
    """The turns that the aggregator has counted."""
    with urllib.request.urlopen(f"{console}/api/v1/metrics", timeout=30) as answer:
        return float(re.findall(rb"fedboost_turns_total ([0-9.e+]+)", answer.read())[0])


def cpu_seconds(process: int) -> float:
    """CPU seconds of all threads of a process so far (Linux)."""
    return time.clock_gettime(~process << 3 | 2)


@contextmanager
def pages(console: str, count: int) -> Iterator[None]:
    """Keep this many pages open at an address."""
    if not count:
        yield
        return
    command = [sys.executable, __file__, "--look", console, "--pages", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != READY:
                common.fail("the pages cannot be opened")
            yield
        finally:
            process.kill()


def look(console: str, count: int) -> None:
    """Request this many pages every two seconds, two of three the overview, until killed."""
    place = urlsplit(console)
    paths = ["/sites" if number % 3 == 2 else "/" for number in range(count)]
    clients = [http.client.HTTPConnection(str(place.hostname), place.port, timeout=30) for _ in paths]
    ready = False
    while True:
        for client, path in zip(clients, paths, strict=True):
            try:
                client.request("GET", path)
                answer = client.getresponse()
                answer.read()
            except ConnectionError:  # closed after a while without a request, as for a browser
                client.close()
                continue
            if answer.status != 200:
                common.fail("a page is refused")
            time.sleep(PAUSE / count if ready else 0.0)
        if not ready:
            print(READY, flush=True)
            ready = True


def report(found: dict[str, list[dict[str, float]]], options: Any) -> None:
    """The table, with the claim, and the JSON file."""
    pairs = zip(found["open"], found["none"], strict=True)
    ratios = [with_pages["turn_ms"] / without["turn_ms"] for with_pages, without in pairs]
    medians = {kind: statistics.median(one["turn_ms"] for one in runs) for kind, runs in found.items()}
    ratio = medians["open"] / medians["none"]
    rows = []
    for kind, name in (("none", "no page"), ("open", f"{options.pages} pages")):
        row = [
            name,
            *(spread([one[key] for one in found[kind]], 2) for key in ("turn_ms", "mean_ms", "cpu_s")),
        ]
        if kind == "open":
            row += [f"{ratio:.3f}", f"{AT_MOST:g}", "yes" if ratio <= AT_MOST else "NO"]
        rows.append(row)
    table = common.Table(
        f"{options.rows:,} x 20, {PARTIES} parties, masked, {os.cpu_count()} cores: "
        f"median (least - most) of {options.repeats} trainings of {ROUNDS} rounds",
        (
            "open",
            "ms of the median turn",
            "of the mean turn",
            "CPU seconds of the aggregator",
            "ratio of the medians",
            "claim",
            "holds",
        ),
        rows,
    )
    values = {"runs": found, "ratio": ratio, "ratios": ratios, "at_most": AT_MOST, "pages": options.pages}
    common.publish(options, [table], json.loads(json.dumps(values)))


if __name__ == "__main__":
    main()
