"""Does a table that is many times as large as memory train, and how much slower per row?

    python benchmarks/speed/larger.py [--cgroup FOLDER]

Generates rows in a Parquet file. One party trains with `plain`, depth 6, 256 bins, one thread. One process
trains a twentieth of the rows in memory, another one all rows with a scratch folder. The cost of a tree is
the wall time between the ends of the first and the last round, per row.

--cgroup names a Linux control group with a memory limit, which you create. Its limit includes the cached
files of the process. Without one, the script reports how much memory of its own the process took.

The claims: with a limit of a tenth of the table's size as float32, the training ends, and a tree costs at
most three times as much per row.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
from common import own_memory, verdict
from pyarrow import parquet

import fedboost as fb
from fedboost.boosting.programs.boosting import train
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.runtime.data.values import keep_freed_memory

FEATURES, GROUP, SMALLER = 50, 1 << 17, 20
SLOWER_AT_MOST, LARGER_AT_LEAST = 3.0, 10.0


def write(path: Path, rows: int) -> None:
    """Write normal columns and a noisy linear label, one row group at a time."""
    draw = np.random.default_rng(0)
    factors = 0.3 * draw.standard_normal(FEATURES)
    writer = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        columns = {f"f{i}": draw.standard_normal(count, dtype=np.float32) for i in range(FEATURES)}
        score = draw.standard_normal(count, dtype=np.float32)
        for factor, column in zip(factors, columns.values(), strict=True):
            score += np.float32(factor) * column
        part = pa.table({**columns, "label": (score > 0).astype(np.float32)})
        writer = writer or parquet.ParquetWriter(path, part.schema, compression="none")
        writer.write_table(part)
    if writer:
        writer.close()


def train_here(path: Path, scratch: Path | None, rounds: int) -> None:
    """One training in this process; its figures as JSON on standard output."""
    keep_freed_memory()
    columns = {"label": "label", "numeric": [f"f{i}" for i in range(FEATURES)]}
    terms = fb.Terms.read({"columns": columns, "rounds": rounds, "protection": "plain", "parties": ["north"]})
    began = time.monotonic()
    table = read_table(path, scratch)
    party, program = HorizontalHolder(lambda: to_shard(table, terms, "north"), terms), train(terms, [])
    query, ends, most = next(program), [], 0
    while True:
        answer = party.answer(query)
        most = max(most, own_memory())
        if query.ends_tree:
            ends.append(time.monotonic())
        try:
            query = program.send(answer)
        except StopIteration:
            break
    tree = (ends[-1] - ends[1]) / (rounds - 1)
    print(json.dumps({"bins": ends[0] - began, "tree": tree, "memory": most}))


def main() -> None:
    parser = common.arguments(__doc__.split("\n\n")[0], needs_data=False)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are written (default: a temporary one)")
    parser.add_argument("--cgroup", type=Path, help="a control group with a limit of memory")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train_here(options.train, options.scratch, options.rounds)
        return
    if options.rows < 1000 or options.rounds < 2:
        common.fail("--rows must be at least 1000, --rounds at least 2")
    with TemporaryDirectory(dir=options.folder) as folder:
        report(measure(Path(folder), options), options)


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure the smaller table in memory and the whole table in files."""
    figures = []
    for rows, stored in ((options.rows // SMALLER, False), (options.rows, True)):
        path = folder / f"{rows}.parquet"
        write(path, rows)
        command = [sys.executable, __file__, "--train", str(path), "--rounds", str(options.rounds)]
        command += ["--scratch", str(folder)] if stored else []
        join = options.cgroup / "cgroup.procs" if stored and options.cgroup else None
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if join:
            join.write_text(str(process.pid))
        out, _ = process.communicate()
        if process.returncode:
            common.fail(f"the training of {rows:,} rows ended with status {process.returncode}")
        figures.append({"rows": rows, **json.loads(out)})
    return figures


def limit(cgroup: Path) -> int:
    """Memory limit of the control group in bytes."""
    files = (cgroup / "memory.max", cgroup / "memory.limit_in_bytes")
    return int(next(file for file in files if file.exists()).read_text())


def report(figures: list[dict[str, float]], options: argparse.Namespace) -> None:
    """The table and the JSON file."""
    size = 4 * FEATURES * options.rows
    allowed = limit(options.cgroup) if options.cgroup else figures[1]["memory"]
    costs = [figure["tree"] / figure["rows"] for figure in figures]
    rows = [
        (
            f"{int(figure['rows']):,} rows, {where}",
            f"{figure['memory'] / 2**20:.0f}",
            f"{figure['bins'] / figure['rows'] * 1e6:.2f}",
            f"{cost * 1e9:.0f}",
        )
        for figure, cost, where in zip(figures, costs, ("in memory", "in files"), strict=True)
    ]
    slower, larger = costs[1] / costs[0], size / allowed
    what = "the limit" if options.cgroup else "its own memory"
    notes = [
        f"The table is {larger:.1f} times as large as {what}, {allowed / 2**20:.0f} MiB; claimed at least "
        f"{LARGER_AT_LEAST:g}: {verdict(larger >= LARGER_AT_LEAST)}.",
        f"A tree costs {slower:.2f} times as much per row; claimed at most {SLOWER_AT_MOST:g}: "
        f"{verdict(slower <= SLOWER_AT_MOST)}.",
    ]
    shown = common.Table(
        f"{options.rows:,} x {FEATURES}: {size / 2**20:.0f} MiB as float32; {options.rounds} rounds",
        ("", "own memory, MiB", "cut points and bins, us a row", "tree, ns a row"),
        rows,
        notes,
    )
    common.publish(options, [shown], {"figures": figures, "allowed": allowed})


if __name__ == "__main__":
    main()
