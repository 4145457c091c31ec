"""Shared code of the benchmarks: real and generated tables, splits into parties, results as tables and JSON.

The same seed gives the same training rows, test rows and parties. The JSON of a benchmark has the printed
tables, the command, the machine and the versions. A data file that is missing, unreadable or without its
label ends the script with one line on standard error and exit status 2.
"""

import argparse
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rich.table
from rich.console import Console

import fedboost as fb
from fedboost.runtime.data.draft import split_by_weights
from fedboost.runtime.data.table import FORMS, read_table
from fedboost.runtime.data.values import column_of

HERE = Path(__file__).parent
Float32 = npt.NDArray[np.float32]
LOAD = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
"""Load average of the machine over the minute before the benchmark."""
LABEL = "label"
"""Label column of generated rows."""
PARTIES = ("north", "south", "west")
UNEVEN = (6.0, 3.0, 1.0)
"""Row shares of the three parties."""


PACKAGES = {
    "XGBoost": "xgboost",
    "LightGBM": "lightgbm",
    "scikit-learn": "scikit-learn",
    "Dask": "dask",
    "numpy": "numpy",
    "numba": "numba",
    "pyarrow": "pyarrow",
    "gRPC": "grpcio",
    "phe": "phe",
    "gmpy2": "gmpy2",
    "interpret": "interpret-core",
    "opendp": "opendp",
    "dp-accounting": "dp-accounting",
}
"""Display name to distribution name."""
PATHS = {"--data": "FOLDER", "--folder": "FOLDER", "--cgroup": "FOLDER", "--peer-python": "PYTHON"}
"""Options with paths, and their placeholders."""


@dataclass(frozen=True)
class Table:
    """A table with text in the first column, mostly numbers in the others, and notes."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Dataset:
    """A real table: file stem, label, and columns excluded from the features."""

    name: str
    label: str
    drop: tuple[str, ...] = ()
    metric: str = "AUC"


ADULT = Dataset("adult", "income")
DEFAULT_CREDIT = Dataset("default_credit", "default.payment.next.month", ("ID",))
BANK_MARKETING = Dataset("bank_marketing", "y", ("duration",))
HIGGS = Dataset("higgs_10k", "label", ("src",))
CALIFORNIA = Dataset("california_housing", "MedHouseVal", metric="RMSE")
KDDCUP = Dataset("kddcup99_10pct", "label")


def arguments(description: str | None, needs_data: bool = True) -> argparse.ArgumentParser:
    """Argument parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if needs_data:
        parser.add_argument(
            "--data",
            type=Path,
            required=True,
            metavar="FOLDER",
            help="holds a file for each table, NAME.parquet or NAME.csv (see benchmarks/README.md)",
        )
    parser.add_argument("--json", type=_output, metavar="FILE", help="also write the results there, as JSON")
    return parser


def _output(name: str) -> Path:
    """Path of the results; checked before the training."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        fail(f"{path}: cannot write: no such folder, or not a file")
    return path


def generate(rows: int, features: int) -> tuple[dict[str, Float32], Float32]:
    """Normal columns and a noisy linear label."""
    draw = np.random.default_rng(0)
    columns = {f"f{i}": draw.standard_normal(rows, dtype=np.float32) for i in range(features)}
    score = draw.standard_normal(rows, dtype=np.float32)
    for column in columns.values():
        score += np.float32(0.3 * draw.standard_normal()) * column
    return columns, (score > 0).astype(np.float32)


def equal_parts(table: pa.Table, parties: int) -> list[pa.Table]:
    """Equal row slices for the parties, without copies."""
    ends = np.linspace(0, table.num_rows, parties + 1).astype(int).tolist()
    return [table.slice(begin, end - begin) for begin, end in itertools.pairwise(ends)]


def load(folder: Path, dataset: Dataset) -> pa.Table:
    """The rows of a table, without the columns to drop."""
    suffixes = (suffix for form in FORMS for suffix in form.every_suffix())
    found = [folder / (dataset.name + suffix) for suffix in suffixes]
    path = next((path for path in found if path.exists()), None)
    if path is None:
        fail(f"{folder.absolute()}: no file {dataset.name}.parquet or {dataset.name}.csv")
    try:
        table = read_table(path)
        column_of(table, dataset.label)
    except fb.FedboostError as error:
        fail(f"{path}: {error}" if str(path) not in str(error) else str(error))
    return table.drop_columns([name for name in dataset.drop if name in table.column_names])


def train_and_test(table: pa.Table, seed: int, group: str | None = None) -> tuple[pa.Table, pa.Table]:
    """Split 80 % and 20 % of the rows by a seed, or of the groups of a column."""
    if group is not None:
        parts = split_by_weights(table, ("train", "test"), (4.0, 1.0), seed, group)
        return parts["train"], parts["test"]
    order = np.random.default_rng(seed).permutation(table.num_rows)
    cut = table.num_rows * 4 // 5
    return table.take(order[:cut]), table.take(order[cut:])


def parties(table: pa.Table, seed: int, group: str | None = None) -> dict[str, pa.Table]:
    """Split shuffled rows, or the groups of a column, unevenly among three parties."""
    return split_by_weights(table, PARTIES, UNEVEN, seed, group)


def publish(options: argparse.Namespace, tables: Sequence[Table], values: Mapping[str, Any]) -> None:
    """Print the tables; with --json also write them, with the values they were made from."""
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    for table in tables:
        shown = rich.table.Table()
        for place, heading in enumerate(table.headings):
            shown.add_column(heading, justify="right" if place else "left")
        for row in table.rows:
            shown.add_row(*row)
        console.print(table.title, shown, *table.notes, sep="\n")
    if options.json is not None:
        found = record(Path(sys.argv[0]).stem, sys.argv[1:], tables, values)
        try:
            options.json.write_text(json.dumps(found, indent=2) + "\n")
        except OSError as error:
            fail(f"{options.json}: cannot write: {error.strerror}")


def record(
    benchmark: str, words: Sequence[str], tables: Sequence[Table], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Contents of a JSON file: command, date, machine, versions, tables, and the values behind them."""
    return {
        "benchmark": benchmark,
        "command": command(benchmark, words),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "versions": versions(),
        "tables": [asdict(table) for table in tables],
        "values": values,
    }


def script(benchmark: str) -> Path:
    """Return the file of a benchmark; ValueError if there is not exactly one."""
    [path] = HERE.glob(f"*/{benchmark}.py")
    return path


def command(benchmark: str, words: Sequence[str]) -> str:
    """The command for the same results, with placeholders for paths and without --json."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    for option in PATHS:
        parser.add_argument(option, dest=option)
    paths, others = parser.parse_known_args(words)
    given = [f"{option} {name}" for option, name in PATHS.items() if getattr(paths, option)]
    path = script(benchmark).relative_to(HERE.parent).as_posix()
    return " ".join(["python", path, *given, *others])


def machine() -> dict[str, Any]:
    """Processor, usable cores, GiB of memory, system, and the load before the run."""
    facts = {}
    for file in ("/proc/cpuinfo", "/proc/meminfo"):
        if Path(file).exists():
            facts |= dict(re.findall(r"^(\S[^:\t]*)\s*: *(.*)$", Path(file).read_text(), re.MULTILINE))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": cores,
        "memory": round(int(facts["MemTotal"].split()[0]) / 2**20) if "MemTotal" in facts else None,
        "system": platform.system(),
        "load": LOAD,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries in PACKAGES."""
    found = {"Python": platform.python_version(), "fedboost": fb.__version__}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """Median (least - most)."""
    shown = [f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} - {shown[2]})"


def verdict(holds: bool) -> str:
    """How a table shows whether a claim holds."""
    return "yes" if holds else "NO"


def by_peer(python: str, script: Path, package: str, *words: str) -> Any:
    """Run a script with another interpreter and parse the JSON in its last line of output."""
    try:
        done = subprocess.run([python, str(script), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"{python}: cannot be run: {error.strerror}")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        fail(f"{python}: {package} does not run there: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def own_memory() -> int:
    """Bytes of anonymous memory of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def fail(message: str) -> NoReturn:
    """Print the error in one line and exit with status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
