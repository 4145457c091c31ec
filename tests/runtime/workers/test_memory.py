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
FEATURES = 20


def memory(folder, rows, workers):
    """The most memory that the process of a site had, in MB, with a table of so many rows."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    columns = {f"f{number}": draw.normal(size=rows) for number in range(FEATURES)}
    table = pa.table({**columns, "y": draw.integers(0, 2, rows)})
    (folder / "rows").mkdir()
    for part in range(4):
        share = table.slice(part * rows // 4, rows // 4)
        parquet.write_table(share, folder / "rows" / f"{part}.parquet", row_group_size=50_000)
    agreed = fb.Terms.read(
        {"parties": ["north"], "columns": {"label": "y", "numeric": [*columns]}, "protection": "plain"}
    )
    (folder / "terms.toml").write_text(terms_to_toml(agreed))
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
    few, many = (memory(tmp_path / str(rows), rows, workers=True) for rows in (4_000, 1_250_000))
    assert many - few < 30
    assert memory(tmp_path / "alone", 1_250_000, workers=False) - few > 100
