"""The demo and trials on one machine: rows, terms, files and state of its sites.

Promises: each row is at one site, or held out from all.
Refuses: a table or label that cannot be used, a folder that cannot be written (ConfigError).
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import concat_tables, csv

from fedboost.errors import ConfigError
from fedboost.privacy.pairwise import MIN_GROUP_PARTIES
from fedboost.privacy.protections import PROTECTIONS, scheme_of
from fedboost.runtime.data.database import Reading
from fedboost.runtime.data.draft import draft_schema, split_by_site, split_by_weights
from fedboost.runtime.data.locations import local_files
from fedboost.runtime.data.table import read_table
from fedboost.runtime.files import check_writable, folder_name, party_stems
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.terms_file import terms_to_toml
from fedboost.terms.terms import Terms

HOSPITALS_TABLE = Path(__file__).with_name("hospitals.csv")
"""569 tumours, 30 measurements of each, and whether it is benign: W. H. Wolberg, W. N. Street and O. L.
Mangasarian, 1993, https://doi.org/10.24432/C5DW2B, CC BY 4.0."""
HOSPITALS = {"north": 6.0, "south": 3.0, "east": 1.0}
HELD_OUT = 0.25
KEYHOLDER = "keyholder"
"""A party without rows, where sums are encrypted."""
MAX_PARTIES = 50
SEED = 0
SITE = "hospital"
"""The column of `all.csv` that names the site of each row."""
TERMS = "terms.toml"
STATE = "demo.state"
"""The folder of the sites' memories and audit logs, in that of the demo, which makes a new one each time."""


@dataclass(frozen=True)
class Sites:
    """The rows each site trains on, and rows nobody trains on."""

    tables: Mapping[str, Any]
    held_out: Any
    label: str


def check_number(parties: int) -> None:
    """Raise ConfigError for more sites than this machine is asked to run processes for."""
    if parties > MAX_PARTIES:
        raise ConfigError(
            f"the demo starts a process for each site: {parties} sites, {MAX_PARTIES} at most; for more, "
            f"fedboost simulate --site COLUMN (or --parties {parties}) trains in one process"
        )


def demo_terms(sites: Sites, rounds: int, protection: str | None) -> Terms:
    """Return the terms of a demo: a short training, masked where there are parties enough."""
    draft = draft_schema(concat_tables([*sites.tables.values(), sites.held_out]), sites.label)
    return Terms.read(
        {
            **draft.settings(),
            "rounds": rounds,
            "max_depth": 4,
            "learning_rate": 0.2,
            "parties": list(sites.tables),
            "protection": protection or ("masked" if len(sites.tables) >= MIN_GROUP_PARTIES else "plain"),
            **_key_settings(protection, list(sites.tables)),
        }
    )


def _key_settings(protection: str | None, parties: list[str]) -> dict[str, object]:
    """Return settings where sums are encrypted: a key holder beside the sites, and few bins."""
    row = PROTECTIONS.get(protection or "")
    if row is None or not row.uses_key_holder:
        return {}
    return {
        "parties": [*parties, KEYHOLDER],
        "keyholder": KEYHOLDER,
        "keyholder_rows": False,
        "max_bin": 32,
        "key_bits": 2048,
    }


def hospitals() -> Sites:
    """Return the Breast Cancer Wisconsin (Diagnostic) table, split unevenly."""
    train, held_out = hold_out(read_table(HOSPITALS_TABLE))
    return Sites(split_by_weights(train, list(HOSPITALS), list(HOSPITALS.values()), SEED), held_out, "benign")


def own_sites(data: str, read: Reading, label: str | None, site: str | None, parties: int) -> Sites:
    """Return the user's own table, by its site column or split unevenly."""
    if label is None:
        raise ConfigError("--data needs --label, the column to predict")
    table = read_table(read.source(data), None, read.options)
    train, held_out = hold_out(table)
    if site is None:
        names = [f"site-{i + 1}" for i in range(parties)]
        return Sites(split_by_weights(train, names, list(range(parties, 0, -1)), SEED), held_out, label)
    return Sites(split_by_site(train, site), held_out.drop_columns([site]), label)


def hold_out(table: Any) -> tuple[Any, Any]:
    """Return the rows to train on, and those that nobody trains on. ConfigError for too few."""
    if table.num_rows < 20:
        raise ConfigError(f"a table of {table.num_rows} rows is too small for the demo; it needs 20")
    order = np.random.default_rng(SEED).permutation(table.num_rows)
    held = int(table.num_rows * HELD_OUT)
    return table.take(order[held:]), table.take(order[:held])


def write_files(
    folder: Path, sites: Sites, terms: Terms, data: str | None, force: bool = False
) -> dict[str, Path]:
    """Write the table of each site, `all.csv` with a column that names the site, the held-out rows as
    `new.csv`, and the terms; return the tables' files by site. ConfigError, before anything is written, if a
    file exists and is not to be replaced."""
    names = [terms.columns.label, *terms.columns.features]
    files = {name: folder / f"{stem}.csv" for name, stem in party_stems(sites.tables).items()}
    tables = {files[name]: table.select(names) for name, table in sites.tables.items()}
    if data is None:
        labelled = [
            table.select(names).append_column(SITE, pa.array([name] * table.num_rows))
            for name, table in sites.tables.items()
        ]
        tables[folder / "all.csv"] = pa.concat_tables(labelled)
        tables[folder / "new.csv"] = sites.held_out.select(names)
    write_tables(folder, tables, terms, local_files(data) if data else [], force)
    return files


def write_tables(
    folder: Path, tables: Mapping[Path, Any], terms: Terms, inputs: Sequence[Path], force: bool
) -> None:
    """Write tables to their files, and the terms; as `write_files`. inputs: files that are read."""
    if terms.protection.uses_key_holder:
        scheme_of(terms.protection.name)  # ConfigError before anything is written
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; --out needs a folder")
    if (folder / STATE).exists() and not force:
        raise ConfigError(
            f"{folder}: holds an earlier demo; give --out another folder, or --force to replace it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (*tables, folder / TERMS, folder / "model.json"):
            check_writable(file, *inputs, force=force)
        (folder / TERMS).write_text(terms_to_toml(terms), "utf-8")
        for file, table in tables.items():
            csv.write_csv(table, file)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write: {error.strerror}") from None


def empty_state(folder: Path) -> Path:
    """Return the folder of the sites' state, without what an earlier demo left in it."""
    state = folder / STATE
    try:
        if state.exists():
            shutil.rmtree(state)
    except OSError as error:
        raise ConfigError(f"{state}: cannot remove what an earlier demo left: {error.strerror}") from None
    return state


def audit_log(folder: Path, party: str) -> Path:
    """Return the audit log of a site."""
    name = folder_name(party)
    return folder / STATE / name / f"{name}.audit.jsonl"


# ---- A clinic and a laboratory that hold different columns of the same patients -------------------------
# Their tables and the terms.
# Promises: each knows some patients that the other does not; those whom nobody trains on are new to the
# clinic, and the laboratory knows them.
# Refuses: settings that are no terms (ConfigError).


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
            **({"key_bits": KEY_BITS} if PROTECTIONS[protection].uses_key_holder else {}),
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
    files by party. ConfigError as `demo.write_files`."""
    files = {party: folder / f"{party}.csv" for party in apart.tables}
    tables = {file: apart.tables[party] for party, file in files.items()}
    write_tables(folder, {**tables, folder / "new.csv": apart.new}, terms, [], force)
    return files


def warm_up(apart: Apart, terms: Terms) -> None:
    """Compile the kernels once, here, so that the processes find them compiled."""
    rows = apart.common.slice(0, WARM_UP_ROWS)
    few = terms.changed(rounds=1, min_common_rows=1)
    simulate(few, {party: rows.select(table.column_names) for party, table in apart.tables.items()})
