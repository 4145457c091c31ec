"""What the benchmarks share: real tables, their splits, and results as a table and as JSON.

Promises: the same seed gives the same rows to train and test on and the same parties.
Refuses: data files that are absent, cannot be read or lack the label (one line on standard error, exit
status 2).
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import xgboost as xgb
from rich.console import Console
from rich.table import Table

import fedboost as fb
from fedboost.shell.data import SUFFIXES, column_of, read_table
from fedboost.shell.draft import split_by_weights

PARTIES = ("north", "south", "west")
UNEVEN = (6.0, 3.0, 1.0)
"""Shares of the rows the three parties hold."""


@dataclass(frozen=True)
class Dataset:
    """A real table: the stem of its file, the label, and the columns that may not be features."""

    name: str
    label: str
    drop: tuple[str, ...] = ()
    metric: str = "AUC"


ADULT = Dataset("adult", "income")
DEFAULT_CREDIT = Dataset("default_credit", "default.payment.next.month", ("ID",))
BANK_MARKETING = Dataset("bank_marketing", "y", ("duration",))
HIGGS = Dataset("higgs_10k", "label", ("src",))
CALIFORNIA = Dataset("california_housing", "MedHouseVal", metric="RMSE")


def arguments(description: str, needs_data: bool = True) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
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
    """Where results go; a folder that is absent is better known before the training than after it."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        fail(f"{path}: cannot write: no such folder, or not a file")
    return path


def load(folder: Path, dataset: Dataset) -> pa.Table:
    """The rows of a table, without the columns to drop."""
    found = [folder / (dataset.name + suffix) for suffix in SUFFIXES]
    path = next((path for path in found if path.exists()), None)
    if path is None:
        fail(f"{folder.absolute()}: no file {dataset.name}.parquet or {dataset.name}.csv")
    try:
        table = read_table(path)
        column_of(table, dataset.label)
    except fb.FedboostError as error:
        fail(f"{path}: {error}" if str(path) not in str(error) else str(error))
    return table.drop_columns([name for name in dataset.drop if name in table.column_names])


def train_and_test(table: pa.Table, seed: int) -> tuple[pa.Table, pa.Table]:
    """80 % and 20 % of the rows, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(table.num_rows)
    cut = table.num_rows * 4 // 5
    return table.take(order[:cut]), table.take(order[cut:])


def parties(table: pa.Table, seed: int) -> dict[str, pa.Table]:
    """The rows, shuffled, shared out unevenly among three parties."""
    return split_by_weights(table, PARTIES, UNEVEN, seed)


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table: the first column is words, the others are numbers."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table()
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console.print(title)
    console.print(table)


def save(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write the results with the versions they were measured with, if a path was given."""
    if path is not None:
        versions = {
            "python": sys.version.split()[0],
            "fedboost": fb.__version__,
            "xgboost": xgb.__version__,
            "numpy": np.__version__,
        }
        try:
            path.write_text(json.dumps({"versions": versions, **results}, indent=2) + "\n")
        except OSError as error:
            fail(f"{path}: cannot write: {error.strerror}")


def fail(message: str) -> NoReturn:
    """End with one line of what went wrong."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
