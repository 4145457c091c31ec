"""How much memory does a party need to read its rows from PostgreSQL?

    python benchmarks/speed/sources.py

Starts a PostgreSQL server (Debian's packages) with a table of generated float64 values. A party in its own
process reads them with ORDER BY, then trains 2 rounds: one thread, `plain`, depth 6, 256 bins. The figure
is the peak memory (VmHWM, Linux, including files and libraries) minus the memory before the query, when all
code is loaded. Bins in a scratch folder count while the process has them in memory.

The claim: at most 200 MB above the bins, which take one byte per value.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import numpy as np
import postgres
import pyarrow as pa
from common import verdict

import fedboost as fb
from fedboost.boosting.programs.boosting import train
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import site_table
from fedboost.runtime.data.values import keep_freed_memory

BYTES, BATCH = 200e6, 1 << 16
"""Claimed bytes above the bins; rows per written batch."""
QUERY = "SELECT * FROM rows ORDER BY id"


def batches(rows: int, features: int) -> Iterator[pa.RecordBatch]:
    """Generated rows: an id, normal values and a noisy linear label."""
    draw = np.random.default_rng(0)
    factors = 0.3 * draw.standard_normal(features)
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        values = draw.standard_normal((features, count))
        label = (factors @ values + draw.standard_normal(count) > 0).astype(np.int32)
        columns = {f"f{i}": column for i, column in enumerate(values)}
        yield pa.record_batch({"id": np.arange(start, start + count), **columns, "label": label})


def write(uri: str, rows: int, features: int) -> None:
    """The rows in a table of the server."""
    from adbc_driver_postgresql import dbapi

    parts = batches(rows, features)
    first = next(parts)
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("rows", first, mode="replace")
        for part in parts:
            cursor.adbc_ingest("rows", part, mode="append")
        connection.commit()


def status(key: str) -> int:
    """Bytes of a memory figure of this process."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def train_here(uri: str, query: str, features: int, scratch: Path | None) -> None:
    """One party in this process; its figures as JSON on standard output."""
    columns = {"label": "label", "numeric": [f"f{i}" for i in range(features)]}
    terms = fb.Terms.read({"columns": columns, "rounds": 2, "protection": "plain", "parties": ["north"]})
    keep_freed_memory()
    fb.simulate(terms, {"north": pa.Table.from_batches([next(batches(1000, features))])})
    site_table(Database(uri, "SELECT 1 AS one"), scratch)  # now all code is loaded
    before, began = status("VmRSS"), time.monotonic()
    table = site_table(Database(uri, query), scratch)
    read, seconds = status("VmHWM"), time.monotonic() - began
    party, program = HorizontalHolder(lambda: to_shard(table, terms, "north"), terms), train(terms, [])
    question = next(program)
    while True:
        try:
            question = program.send(party.answer(question))
        except StopIteration:
            break
    figures = {"before": before, "read": read - before, "most": status("VmHWM") - before, "seconds": seconds}
    print(json.dumps(figures))


def child(uri: str, features: int, scratch: Path | None) -> dict[str, float]:
    """The figures of a party in a process of its own."""
    command = [sys.executable, __file__, "--train", uri, "--features", str(features)]
    command += ["--scratch", str(scratch)] if scratch else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        common.fail(f"the party ended with status {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Read the rows with and without a scratch folder."""
    parser = common.arguments(__doc__.split("\n\n")[0], needs_data=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--features", type=int, default=30, help="default 30")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--query", default=QUERY, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train_here(options.train, options.query, options.features, options.scratch)
        return
    if options.rows < 1000 or options.features < 1:
        common.fail("--rows must be at least 1000, --features at least 1")
    if reason := postgres.missing():
        common.fail(reason)
    with TemporaryDirectory(prefix="fedboost-") as folder, postgres.server() as uri:
        write(uri, options.rows, options.features)
        figures = {
            "bins in memory": child(uri, options.features, None),
            "scratch folder": child(uri, options.features, Path(folder)),
        }
    report(figures, options)


def report(figures: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    """The table and the JSON file."""
    bins = options.rows * options.features
    rows = [
        (
            side,
            f"{values['read'] / 1e6:.0f}",
            f"{values['most'] / 1e6:.0f}",
            f"{(values['most'] - bins) / 1e6:.0f}",
            f"{BYTES / 1e6:.0f}",
            verdict(values["most"] - bins <= BYTES),
            f"{values['seconds']:.1f}",
        )
        for side, values in figures.items()
    ]
    headings = ("party", "to read", "to train", "above the bins", "claim", "holds", "seconds to read")
    title = f"MB of memory above that of the party before: {options.rows:,} x {options.features} float64"
    note = f"As float64 the rows are {8 * bins / 1e6:.0f} MB, their bins {bins / 1e6:.0f} MB."
    common.publish(options, [common.Table(title, headings, rows, [note])], {"figures": figures})


if __name__ == "__main__":
    main()
