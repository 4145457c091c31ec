"""A query added as an outsider would, in a copy of the sources: only in files that docs/architecture.md has.

The toy is the sum of all labels, in units of a scale; a program of its own asks for it before it boosts.
`ADDED` and `EDITS` are the whole change, file by file.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedboost.fixedpoint import Scale

ROOT = Path(__file__).parents[2]
SCALE = Scale(exponent=8, bits=30)

# ---- the change: at most five files -------------------------------------------------------------------

ADDED = {
    "fedboost/boosting/queries/label_sum.py": '''"""The sum of all labels."""

from dataclasses import dataclass
from typing import Any

from fedboost.boosting.queries.base import BaseQuery, BeforeTrees, Rows, check_bits
from fedboost.errors import PeerError
from fedboost.fixedpoint import Scale, cell_bits
from fedboost.terms.terms import Terms

LABEL_BITS = 30


@dataclass(frozen=True)
class LabelSumQuery(BeforeTrees, BaseQuery):
    """What is the sum of all labels? Answer: one integer, in units of this scale."""

    description = "sum of all labels"

    rows: Rows
    scale: Scale

    @property
    def cells(self) -> int:
        return 1

    @property
    def cell_bits(self) -> int:
        return cell_bits(self.scale.limit, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """None: program `boosting` does not ask it."""
        return 0

    def check_terms(self, terms: Terms) -> None:
        """Refuse scales of other widths."""
        check_bits(LABEL_BITS, self.scale)

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if state.start is not None:
            raise PeerError("the sum of labels comes before the cut points")

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state
''',
    "fedboost/boosting/programs/label_sum.py": '''"""Boosting that asks for the sum of all labels first."""

from collections.abc import Generator

from fedboost.boosting.programs import boosting
from fedboost.boosting.programs.initialisation import count_rows
from fedboost.boosting.queries.label_sum import LABEL_BITS, LabelSumQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries import Query
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.booster import Booster
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.terms import Terms

SCALE = Scale(exponent=8, bits=LABEL_BITS)


def train(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, Booster]:
    """Print the sum of all labels, then boost."""
    counts = yield RowsQuery()
    total = yield LabelSumQuery(count_rows(counts), SCALE)
    print("units", int(total[0]))
    return (yield from boosting.train(terms, grown))
''',
}
EDITS = {
    "fedboost/boosting/queries/__init__.py": [
        (
            "from fedboost.boosting.queries.ids import OfRows\n",
            "from fedboost.boosting.queries.label_sum import LabelSumQuery\n",
        ),
        ("Query = OfRows | ", "Query = LabelSumQuery | OfRows | "),
    ],
    "fedboost/holders/whole_rows.py": [
        (
            "from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery\n",
            "from fedboost.boosting.queries.label_sum import LabelSumQuery\n",
        ),
        (
            "        match query:  # the most frequent first\n",
            "            case LabelSumQuery(_, scale):\n"
            "                return np.array([scale.encode(self._shard.label).sum()])\n",
        ),
    ],
    "protos/fedboost/wire/v1/fedboost.proto": [
        ("    SumsQuery sums = 13;\n", "    LabelSumQuery label_sum = 99;\n"),
        ("message RowsQuery {}\n", "message LabelSumQuery {\n  uint64 rows = 1;\n  Scale scale = 2;\n}\n"),
    ],
}
"""Texts that a file has once, and what replaces each; after a line break, what is inserted behind it."""

# ---- how it is applied and run ------------------------------------------------------------------------

PROTOC = "-m grpc_tools.protoc -Iprotos --python_out=. protos/fedboost/wire/v1/fedboost.proto"
"""`make protos`."""
SESSION = """
import sys
import numpy as np
import fedboost
from fedboost.boosting.programs.label_sum import train

tables = dict(np.load(sys.argv[1]))
columns = {"label": "y", "numeric": ["a"]}
terms = fedboost.Terms.read(
    {"columns": columns, "objective": "reg:squarederror", "rounds": 1, "max_depth": 2, "protection": "masked"}
)
shards = {name: {"a": table[0], "y": table[1]} for name, table in tables.items()}
result = fedboost.simulate(terms, shards, program=train)
print("trees", len(result.model.booster.trees), result.model.protection, fedboost.__file__)
"""


def patched(root):
    """Copy the sources to `root` and apply the change; the files that differ then, but for generated ones."""
    for folder in ("fedboost", "protos"):  # with what numba compiled: it goes by the times of files
        shutil.copytree(ROOT / folder, root / folder)
    for path, text in ADDED.items():
        assert not (root / path).exists(), path
        (root / path).write_text(text)
    for path, edits in EDITS.items():
        text = (root / path).read_text()
        for anchor, addition in edits:
            assert text.count(anchor) == 1, (path, anchor)
            text = text.replace(anchor, anchor + addition if anchor.endswith("\n") else addition)
        (root / path).write_text(text)
    changed = {path.relative_to(root) for path in sources(root) if is_new(path, root)}
    subprocess.run([sys.executable, *PROTOC.split()], cwd=root, check=True)
    return {str(path) for path in changed}


def sources(root):
    return [*root.glob("fedboost/**/*.py"), *root.glob("protos/**/*.proto")]


def is_new(path, root):
    original = ROOT / path.relative_to(root)
    return not original.exists() or original.read_bytes() != path.read_bytes()


@pytest.mark.slow
def test_the_sum_of_labels_is_the_pooled_one(tmp_path):
    root = tmp_path / "copy"
    assert patched(root) == {*ADDED, *EDITS} == named_in_the_docs()
    draw = np.random.default_rng(0)
    tables = {name: draw.normal(size=(2, 50 + 10 * i)) for i, name in enumerate(("north", "south", "east"))}
    np.savez(tmp_path / "tables.npz", **tables)
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "tables.npz")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    labels = np.concatenate([table[1] for table in tables.values()]).astype(np.float32)
    units, trees = done.stdout.splitlines()
    assert units == f"units {SCALE.encode(labels).sum()}"
    assert trees == f"trees 1 masked {root / 'fedboost' / '__init__.py'}"


def named_in_the_docs():
    """The numbered list under the heading, with the names of this toy."""
    section = (ROOT / "docs/architecture.md").read_text().split("## Add a query")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    toy = {"queries/NAME.py": "queries/label_sum.py", "programs/NAME.py": "programs/label_sum.py"}
    return {re.sub("|".join(toy), lambda found: toy[found[0]], file) for file in files}
