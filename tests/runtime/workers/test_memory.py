"""The party's own process holds no row."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedboost as fb
from fedboost.runtime.tasks import terms_to_toml

HELPER = Path(__file__).parents[2] / "helpers" / "party_memory.py"
ROOT = Path(__file__).parents[3]
FEATURES, FEW, MANY = 20, 4_000, 1_250_000


def write_rows(folder, rows):
    """Write a table of so many rows, and its terms."""
    draw = np.random.default_rng(0)
    columns = {f"f{number}": draw.normal(size=rows) for number in range(FEATURES)}
    table = pa.table({**columns, "y": draw.integers(0, 2, rows)})
    (folder / "rows").mkdir(parents=True)
    for part in range(4):
        share, path = table.slice(part * rows // 4, rows // 4), folder / "rows" / f"{part}.parquet"
        # No value comes twice, and random digits cannot be compressed.
        parquet.write_table(share, path, row_group_size=50_000, use_dictionary=False, compression="none")
    agreed = fb.Terms.read(
        {"parties": ["north"], "columns": {"label": "y", "numeric": [*columns]}, "protection": "plain"}
    )
    (folder / "terms.toml").write_text(terms_to_toml(agreed))


def memory(folder, rows, workers):
    """The most memory that the process of a site had, in MB, with the table of so many rows in a folder."""
    section = '[workers]\ndask = "local"\ncount = 2\n' if workers else ""
    (folder / "party.toml").write_text(
        f'party = "north"\naggregator = "localhost:7070"\ndata = "rows"\n{section}'
    )
    end = subprocess.run(
        [sys.executable, HELPER, folder / "party.toml", folder / "terms.toml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (end.returncode, end.stderr) == (0, "")
    read, answer, most = map(int, end.stdout.split())
    assert (read, answer) == (rows, rows)
    return most


@pytest.mark.slow
def test_the_process_of_a_party_has_no_more_memory_with_200_mb_of_rows(tmp_path):
    for rows in (FEW, MANY):
        write_rows(tmp_path / str(rows), rows)
    few, many = (memory(tmp_path / str(rows), rows, workers=True) for rows in (FEW, MANY))
    assert many - few < 30
    assert memory(tmp_path / str(MANY), MANY, workers=False) - few > 100
