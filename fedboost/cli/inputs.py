"""Tables that commands read: the rows of each site, and notices about rows.

Promises: a notice names a column, never a row.
Refuses: a table of other sites than the terms name (ConfigError).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedboost.cli.output import notice
from fedboost.errors import ConfigError, SchemaMismatch
from fedboost.runtime.data.check import alike_sites
from fedboost.runtime.data.draft import split_by_site, split_by_weights
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import to_shard, undeclared
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.values import listing
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def rows_as_in_file(table: Any, terms: Terms, data: object) -> Iterator[None]:
    """Count the rows of a misfit as the file does, and not as a site does that got some of them."""
    try:
        yield
    except SchemaMismatch:
        try:
            to_shard(table, terms, shown(data))
        except SchemaMismatch as error:
            raise ConfigError(f"{shown(data)}: its rows do not fit the terms", error.detail) from None
        raise


def rows_of_sites(terms: Terms, terms_file: Path, table: Any, data: object, column: str) -> dict[str, Any]:
    """Return each site's rows by the column that names it, which stays where the terms name it, too.
    ConfigError if the terms name other parties."""
    if isinstance(table, SparseTable):
        raise ConfigError(
            f"{shown(data)}: a sparse table has no column of names; give a .csv, .tsv or .parquet"
        )
    sites = split_by_site(table, column, column in (*terms.columns.features, *terms.columns.others))
    if terms.parties and set(terms.parties) != set(sites):
        raise ConfigError(
            f"{terms_file} names the parties {listing(sorted(terms.parties))}, column {column!r} of "
            f"{shown(data)} names {listing(list(sites))}"
        )
    for oddity in alike_sites(sites):
        notice(oddity.line)
    return sites


def own_tables(terms: Terms, given: Sequence[str]) -> dict[str, str]:
    """Return the table of each party, given as PARTY=TABLE; empty for one table of all. ConfigError where a
    party has none, or more than one."""
    pairs = [text.partition("=") for text in given]
    if len(given) == 1 and pairs[0][0] not in terms.parties:
        return {}
    tables: dict[str, str] = {}
    for name, sign, table in pairs:
        if not sign or not table:
            raise ConfigError(f"--data {name}: with a table for each party write --data PARTY={name}")
        if terms.parties and name not in terms.parties:
            known = listing(list(terms.parties))
            raise ConfigError(f"--data {name}={table}: {name!r} is not one of the parties, {known}")
        if name in tables:
            raise ConfigError(f"--data {name}={table}: party {name!r} has a table already, {tables[name]}")
        tables[name] = table
    absent = [name for name in terms.parties if name not in tables]
    if absent:
        raise ConfigError(f"party {absent[0]!r} has no table: add --data {absent[0]}=TABLE")
    return tables


def by_columns(terms: Terms, table: "pa.Table", seed: int) -> "dict[str, pa.Table]":
    """Return the rows of each party where parties have different columns of them: those of its block. Of a
    party's rows only its own columns are read."""
    names = [str(number) for number in range(len(terms.blocks))]
    rows = {"0": table}
    if len(names) > 1:
        rows = split_by_weights(table, names, [1.0] * len(names), seed, terms.columns.group)
    return {
        party: rows[name] for name, block in zip(names, terms.blocks, strict=True) for party in block.parties
    }


def notice_undeclared(table: "pa.Table", schema: Schema) -> None:
    """Print a line for each categorical column that has categories nobody declared."""
    notice_categories(undeclared(table, schema))


def notice_categories(strange: Iterable[tuple[str, str, int]]) -> None:
    """Print a line for each column with categories nobody declared: its name, one of them, how many rows."""
    for column, category, count in strange:
        notice(
            f"{column} has {count} rows with a category nobody declared ({category!r}, ...): they "
            f"count as missing"
        )


def notice_shared_groups(table: "pa.Table", group: str, site: str) -> None:
    """Print a line if groups have rows at several sites: they are ranked as a group of each."""
    pairs = table.select([group, site]).group_by([group, site]).aggregate([])
    counts = Counter(pairs.column(group).to_pylist())
    shared = [name for name, sites in counts.items() if sites > 1]
    if shared:
        notice(
            f"groups of {group} with rows at several sites: {len(shared)} ({shared[0]!r}, ...); groups do "
            f"not cross sites, so each site's rows of them are a group of their own"
        )
