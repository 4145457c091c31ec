"""A clinic and a laboratory that hold different columns of the same patients: their tables, and the terms.

Promises: each knows some patients that the other does not; those whom nobody trains on are new to the clinic,
and the laboratory knows them.
Refuses: settings that are no terms (ConfigError).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.privacy.protections import PROTECTIONS, scheme_of
from fedboost.runtime.data.table import read_table
from fedboost.runtime.local.demo_sites import HOSPITALS_TABLE, SEED, hold_out, write_tables
from fedboost.runtime.local.simulation import simulate
from fedboost.terms.terms import Terms

CLINIC, LABORATORY = "clinic", "laboratory"
"""The label holder, and the party that holds the other columns."""
LABEL, ROW_ID = "benign", "patient"
KNOWN = {CLINIC: 0.95, LABORATORY: 0.92}
"""The share of the patients to train on that each knows."""
MIN_COMMON_ROWS, MIN_NEW_ROWS = 300, 100
"""Fewest rows in common, of the training and of a prediction: the table is smaller than terms take unless
they say so."""
KEY_BITS = 2048
"""The shortest that is taken: the demo is to be quick."""
WARM_UP_ROWS = 60


@dataclass(frozen=True)
class Apart:
    """Tables of patients. tables: of each party; common: all columns of those to train on that both know;
    held_out: all columns of new ones, whom nobody trains on."""

    tables: Mapping[str, Any]
    common: Any
    held_out: Any

    @property
    def new(self) -> Any:
        """The clinic's columns of the new patients."""
        return self.held_out.select([ROW_ID, *self.columns[CLINIC]])

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The features of each party."""
        return {party: _features(table) for party, table in self.tables.items()}


def patients() -> Apart:
    """Return the Breast Cancer Wisconsin (Diagnostic) table by columns: the clinic has the mean of each
    measurement and the label, the laboratory its error and its worst value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    draw = np.random.default_rng(SEED)
    whole: Any = read_table(HOSPITALS_TABLE)
    ids = draw.choice(np.arange(10_000, 100_000), whole.num_rows, replace=False)
    whole = whole.add_column(0, ROW_ID, pa.array(ids))
    rest, held_out = hold_out(whole)
    own = [name for name in _features(whole) if name.startswith("mean_")]
    others = [name for name in _features(whole) if name not in own]

    clinic = _some(rest, KNOWN[CLINIC], draw)
    laboratory = _some(pa.concat_tables([_some(rest, KNOWN[LABORATORY], draw), held_out]), 1, draw)
    return Apart(
        {CLINIC: clinic.select([ROW_ID, *own, LABEL]), LABORATORY: laboratory.select([ROW_ID, *others])},
        clinic.filter(pc.is_in(clinic[ROW_ID], value_set=laboratory[ROW_ID])),
        held_out,
    )


def _some(table: Any, share: float, draw: np.random.Generator) -> Any:
    rows = draw.permutation(table.num_rows)
    return table.take(rows[: round(share * table.num_rows)])


def _features(table: Any) -> tuple[str, ...]:
    return tuple(name for name in table.column_names if name not in (LABEL, ROW_ID))


def columns_terms(apart: Apart, rounds: int, protection: str) -> Terms:
    """Return the terms: small trees, and few bins, since rows are encrypted one by one."""
    columns = apart.columns
    return Terms.read(
        {
            "parties": list(columns),
            "label_holder": CLINIC,
            "min_common_rows": MIN_COMMON_ROWS,
            "model": "parties",
            "protection": protection,
            **({"key_bits": KEY_BITS} if PROTECTIONS[protection].has_key_sizes else {}),
            "rounds": rounds,
            "max_depth": 3,
            "max_bin": 16,
            "learning_rate": 0.3,
            "columns": {
                "label": LABEL,
                "row_id": ROW_ID,
                "numeric": [name for names in columns.values() for name in names],
                "held": {LABORATORY: columns[LABORATORY]},
            },
        }
    )


def can_encrypt() -> bool:
    """True if what hides labels from the laboratory is installed."""
    try:
        scheme_of("paillier")
    except ConfigError:
        return False
    return True


def write_patients(folder: Path, apart: Apart, terms: Terms, force: bool) -> dict[str, Path]:
    """Write the tables, the clinic's columns of new patients as `new.csv`, and the terms; return the tables'
    files by party. ConfigError as `demo_sites.write_files`."""
    files = {party: folder / f"{party}.csv" for party in apart.tables}
    tables = {file: apart.tables[party] for party, file in files.items()}
    write_tables(folder, {**tables, folder / "new.csv": apart.new}, terms, [], force)
    return files


def warm_up(apart: Apart, terms: Terms) -> None:
    """Compile the kernels once, here, so that the processes find them compiled."""
    rows = apart.common.slice(0, WARM_UP_ROWS)
    few = terms.changed(rounds=1, min_common_rows=1)
    simulate(few, {party: rows.select(table.column_names) for party, table in apart.tables.items()})
