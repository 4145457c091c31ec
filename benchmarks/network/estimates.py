"""Is `fedboost estimate` close to the cost of a training?

    python benchmarks/network/estimates.py [--runs FILE]

Makes 15 trainings, of 20 rounds unless they have noise, and compares each with the formulas for its terms and
rows: bytes that a party sends in the whole training (mean of the parties), and seconds of a tree. `simulate`:
all parties in one process with one thread; mean CPU seconds of the trees after the second. `processes`:
parties and an aggregator over gRPC on loopback with keys; median wall seconds of the trees after the second,
the least of three trainings, because other users of the machine delay processes. Rows are dense float32, and
labels follow a linear function, or products of few features. Also times the command itself: the least wall
seconds of three calls, for each training's terms and for 50,000 features.

--runs takes the trainings that an earlier --json FILE has, and measures the others.

The claim: bytes are within 1.3 times of the estimate and seconds within 2 times, in either direction, and
each estimate takes less than a second.
"""

# One thread in every process, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import costs
import numpy as np
import pyarrow as pa
from anything import ANYTHING
from common import LABEL, equal_parts, generate, verdict
from network import OneThread
from pyarrow import parquet

import fedboost as fb
from fedboost.results import estimate
from fedboost.results.estimate import Case
from fedboost.runtime.tasks import terms_to_toml

ROUNDS, FIRST, CALLS = 20, 2, 3
BYTES_AT_MOST, SECONDS_AT_MOST, ANSWER_AT_MOST = 1.3, 2.0, 1.0


@dataclass(frozen=True)
class Training:
    """One training. kind: `simulate` or `processes`; label: `linear` or `products`."""

    kind: str
    layout: str
    rows: int
    features: int
    parties: int
    protection: str
    label: str = "linear"
    max_depth: int = 6
    max_bin: int = 256
    vote_top_k: int = 0
    epsilon: float = 0.0

    @property
    def text(self) -> str:
        size = f"{self.rows:,} x {self.features}, depth {self.max_depth}, {self.max_bin} bins"
        return f"{self.kind}, {self.layout}: {size}, {self.parties} {self.protection}, {self.label}" + (
            f", epsilon {self.epsilon:g}" if self.epsilon else ""
        )

    @property
    def names(self) -> list[str]:
        return [f"party-{number + 1}" for number in range(self.parties)]


TRAININGS = (
    Training("simulate", "rows", 20_000, 50, 3, "plain", "products"),
    Training("simulate", "rows", 20_000, 20, 30, "masked"),
    Training("simulate", "rows", 100_000, 30, 100, "plain", max_depth=5),
    Training("simulate", "rows", 60_000, 10, 300, "masked", max_depth=4, max_bin=64),
    Training("simulate", "votes", 20_000, 200, 10, "plain", vote_top_k=10),
    Training("simulate", "votes", 20_000, 200, 10, "masked", "products", vote_top_k=20),
    Training("simulate", "columns", 100_000, 30, 3, "plain"),
    Training("simulate", "columns", 20_000, 100, 10, "plain", "products", max_bin=128),
    Training("processes", "rows", 30_000, 14, 3, "plain", max_depth=8),
    Training("processes", "rows", 30_000, 14, 3, "masked", "products", max_depth=8),
    Training("processes", "rows", 20_000, 20, 10, "masked"),
    Training("processes", "votes", 20_000, 100, 5, "masked", vote_top_k=10),
    Training("simulate", "rows", 30_000, 14, 3, "masked", "products", epsilon=1.0),
    Training("processes", "rows", 30_000, 14, 3, "masked", "products", epsilon=1.0),
    Training("processes", "rows", 30_000, 14, 3, "masked", "products", epsilon=8.0),
)


def products(rows: int, features: int) -> tuple[dict[str, Any], Any]:
    """Normal columns, and a label that depends on products of three of them."""
    draw = np.random.default_rng(1)
    columns = {f"f{number}": draw.standard_normal(rows, dtype=np.float32) for number in range(features)}
    first, second, third = [*columns.values()][:3]
    score = first + second * third + np.sin(2 * third) + draw.logistic(size=rows)
    return columns, (score > 0).astype(np.float32)


LABELS: Mapping[str, Callable[[int, int], tuple[dict[str, Any], Any]]] = {
    "linear": generate,
    "products": products,
}


def prepared(one: Training) -> tuple[fb.Terms, dict[str, pa.Table]]:
    """The terms, and each party's table."""
    columns, label = LABELS[one.label](one.rows, one.features)
    table, schema = pa.table({**columns, LABEL: label}), {"label": LABEL, "numeric": [*columns]}
    settings: dict[str, Any] = {"rounds": ROUNDS, "max_depth": one.max_depth, "max_bin": one.max_bin}
    settings |= {"parties": one.names, "protection": one.protection, "vote_top_k": one.vote_top_k}
    if one.epsilon:
        noise = {"epsilon": one.epsilon, "delta": 1e-6}
        settings = {"parties": one.names, "protection": one.protection, "noise": noise}
        schema["ranges"] = dict.fromkeys(columns, (-4, 4))
    if one.layout != estimate.COLUMNS:
        terms = fb.Terms.read({"columns": schema, **settings})
        return terms, dict(zip(one.names, equal_parts(table, one.parties), strict=True))
    own = [part.tolist() for part in np.array_split([*columns], one.parties)]
    held = dict(zip(one.names[1:], own[1:], strict=True))
    apart = {"label_holder": one.names[0], "rows": "in_order", "columns": {**schema, "held": held}}
    tables = [table.select([*names, *([] if number else [LABEL])]) for number, names in enumerate(own)]
    return fb.Terms.read({**settings, **apart}), dict(zip(one.names, tables, strict=True))


def measured(one: Training, terms: fb.Terms, tables: Mapping[str, pa.Table]) -> tuple[float, float]:
    """Bytes of a party in the training, and seconds of a tree."""
    if one.kind == "processes":
        return min((over_grpc(terms, tables) for _ in range(CALLS)), key=lambda run: run[1])
    simulated(terms.changed(rounds=3), tables)  # loads kernels
    return simulated(terms, tables)


def simulated(terms: fb.Terms, tables: Mapping[str, pa.Table]) -> tuple[float, float]:
    """Bytes of a party, and CPU seconds of a tree, in one process."""
    marks: list[float] = []
    result = fb.simulate(terms, tables, nthread=1, on_round=lambda row: marks.append(time.process_time()))
    seconds = (marks[-1] - marks[FIRST - 1]) / (len(marks) - FIRST)
    return statistics.mean(sent for sent, _ in result.traffic.values()), seconds


def over_grpc(terms: fb.Terms, tables: Mapping[str, pa.Table]) -> tuple[float, float]:
    """Bytes of a party, and wall seconds of a tree, between processes."""
    with TemporaryDirectory(prefix="fedboost-") as name:
        files = {party: Path(name) / f"{party}.parquet" for party in tables}
        for party, table in tables.items():
            parquet.write_table(table, files[party])
        with OneThread(Path(name), files, policy=ANYTHING) as consortium:
            training = consortium.analyst.train(terms)
            seconds = [row["seconds"] for row in training]
            sent = statistics.mean(sent for sent, _ in training.traffic.values())
    return sent, statistics.median(seconds[FIRST:])


def estimated(one: Training, terms: fb.Terms) -> tuple[float, float]:
    """The same figures by formulas."""
    cores = (os.cpu_count() or 1) if one.kind == "processes" else 0
    case = Case.of(terms, one.rows, one.parties, cores=cores)
    cost = estimate.predict(case, one.layout)
    seconds = cost.seconds if cores else costs.simulated(case, one.layout)
    return cost.total_sent, seconds


def answer_seconds(*options: str) -> float:
    """Wall seconds of the command: the least of some calls."""
    command, seconds = [sys.executable, "-m", "fedboost", "estimate", *options, "--json"], []
    for _ in range(CALLS):
        begin = time.monotonic()
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0])
        seconds.append(time.monotonic() - begin)
    return min(seconds)


def apart(found: float, guess: float) -> float:
    """How many times one is the other."""
    return max(found / guess, guess / found)


def main() -> None:
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--runs", type=Path, help="take the trainings that this file of --json has")
    options = parser.parse_args()
    known = json.loads(options.runs.read_text())["values"] if options.runs else {}
    lines, values, worst = [], {}, [1.0, 1.0, 0.0]
    with TemporaryDirectory(prefix="fedboost-") as name:
        file = Path(name) / "terms.toml"
        for one in TRAININGS:
            terms, tables = prepared(one)
            file.write_text(terms_to_toml(terms))
            found = known[one.text]["measured"] if one.text in known else measured(one, terms, tables)
            guess, answer = estimated(one, terms), answer_seconds(str(file), "--rows", str(one.rows))
            ratios = [*map(apart, found, guess)]
            worst = [*map(max, worst, (*ratios, answer))]
            sent, seconds = (
                f"{found[0] / 1e6:.2f} / {guess[0] / 1e6:.2f}",
                f"{found[1]:.3f} / {guess[1]:.3f}",
            )
            lines.append((one.text, sent, f"{ratios[0]:.2f}", seconds, f"{ratios[1]:.2f}", f"{answer:.2f}"))
            values[one.text] = {"measured": found, "estimated": guess, "answer": answer}
            print(*lines[-1], sep="   ", flush=True)
    answer = answer_seconds("--rows", "500000", "--features", "50000", "--max-bin", "64", "--parties", "16")
    worst[2] = max(worst[2], answer)
    headings = ("training", "MB of a party", "apart", "s a tree", "apart", "s to answer")
    title = f"{len(TRAININGS)} trainings: measured / estimated"
    notes = (
        f"Bytes within {BYTES_AT_MOST} times ({worst[0]:.2f}): {verdict(worst[0] <= BYTES_AT_MOST)}.",
        f"Seconds within {SECONDS_AT_MOST:g} times ({worst[1]:.2f}): {verdict(worst[1] <= SECONDS_AT_MOST)}.",
        f"500,000 x 50,000, 64 bins, 16 parties: answered in {answer:.2f} s.",
        f"Each answered within a second ({worst[2]:.2f} s): {verdict(worst[2] <= ANSWER_AT_MOST)}.",
    )
    common.publish(options, [common.Table(title, headings, tuple(lines), notes)], values)


if __name__ == "__main__":
    main()
