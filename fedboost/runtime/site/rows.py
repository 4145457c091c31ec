"""The rows of a site: a table that is read when the site's process starts, and again when its files have
changed.

Guarantees: the log has a line for each time that the table was read. A session keeps the rows that it started
with. Offers whose terms the rows did not fit are counted across all analysts. A check of terms uses only the
names and types of columns, nothing that depends on the value of a row.
"""

import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.gbdt.booster import Booster
from fedboost.holders.columns import holder_for
from fedboost.holders.other_tasks import TableOf
from fedboost.holders.shard import Shard
from fedboost.protocol.contracts import Holder
from fedboost.runtime.config import NAMES, read_toml, to_toml
from fedboost.runtime.data.database import ColumnMap, Database, ReadOptions
from fedboost.runtime.data.locations import local_files
from fedboost.runtime.data.locations import shown as shown_source
from fedboost.runtime.data.shard import column_faults, to_shard, type_faults, undeclared, with_label_noise
from fedboost.runtime.data.table import Table, dense_of, renamed, site_table
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.site.config import PartyConfig
from fedboost.terms.columns import Schema
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.reading import Table as Mapped
from fedboost.terms.terms import Terms
from fedboost.views.words import delimited, shown

# ---- Names that a site gives its columns and levels in terms: a TOML file that is kept at the site ------
# Guarantees: terms can use only the columns and levels in the file, and others see only the names used in
# terms. What the site's own people read has both names.


IDS = "\x1frow_id"
"""Name of the column of row ids until terms give it a name. No column in terms can have this name."""
_QUOTED = re.compile(r"'[^']*'")
_HEAD = """\
# Names used in terms for this table's columns and levels. Keep this file at the site: no one else needs it.
# In the site's file: names = {file}
"""

Level = Annotated[str, Field(min_length=1)]


class Names(Frozen):
    """Names that a site uses in terms for its columns and levels. row_id: column of row ids in the table,
    whatever its name in the terms. names: name in the terms -> column in the table. levels: column's name in
    the terms -> level's name in the terms -> level in the table. columns: as in the site's file; the table's
    other columns are then read under their own names."""

    row_id: Name | None = None
    names: Mapped[Name] = Field(default_factory=dict)
    levels: Mapped[Mapping[Level, Level]] = Field(default_factory=dict)
    columns: Mapped[ColumnMap] = Field(default_factory=dict, exclude=True)

    def _faults(self) -> Iterator[str]:
        for name, levels in self.levels.items():
            if name not in self.names:
                yield f"levels has column {name!r}, which is not under [names]"
            counts = Counter(levels.values())
            if twice := next((level for level, count in counts.items() if count > 1), None):
                yield f"level {twice!r} of {name!r} has two names: keep one"

    def here(self, columns: Schema) -> dict[str, str]:
        """Return these columns' names in the table, by name in the terms, where the two names differ."""
        names = {name: self.names.get(name, name) for name in (*columns.others, *columns.features)}
        if self.row_id is not None and columns.row_id is not None:
            names[columns.row_id] = self.row_id
        return {name: own for name, own in names.items() if own != name}

    def told(self, columns: Schema) -> str:
        """Describe the columns that have different names at this site, with their levels."""
        words, here = [], self.here(columns)
        for name in (*columns.others, *columns.features):
            how, levels = self.columns.get(name, ColumnMap()), self.levels.get(name, {})
            pairs = [*levels.items(), *((word, level) for level, word in how.levels.items())]
            spelled = ", ".join(f"{delimited(key)} {delimited(own)}" for key, own in pairs)
            unit = f" * {how.factor:g}" * (how.factor != 1.0) + f" {how.offset:+g}" * (how.offset != 0.0)
            own = f" is {delimited(here.get(name, name))}{unit}" if name in here or unit else ""
            if own or spelled:
                words.append(f"{delimited(name)}{own}" + (f" ({spelled})" if spelled else ""))
        return "; ".join(words)

    def check_fit(self, columns: Schema) -> None:
        """Raise Refused if the map of a column does not fit its kind in the terms."""
        words = {*columns.levels, *columns.target_means, columns.group, columns.row_id, columns.validation}
        numbers = {*columns.numeric, columns.weight, columns.base_margin, columns.label_upper_bound}
        for name, how in self.columns.items():
            if (how.converts and name in words) or (how.levels and name in numbers):
                raise Refused(
                    "site-columns-unfit",
                    "a site maps a column in a way that does not fit the terms; its own log says which",
                    f"column {name!r} must not have {'levels' if how.levels else 'factor or offset'}",
                )

    def to_toml(self, file: str) -> str:
        lines = [_HEAD.format(file=to_toml(file))]
        if self.row_id is not None:
            lines += [f"row_id = {to_toml(self.row_id)}", ""]
        for key, values in (("names", self.names), ("levels", self.levels)):
            if values:
                lines += [f"[{key}]"]
                lines += [f"{to_toml(name)} = {to_toml(own)}" for name, own in values.items()] + [""]
        return "\n".join(lines)


@dataclass(frozen=True)
class SiteTable:
    """The table of a site, with its columns named as in terms."""

    table: Table
    names: Names

    def under(self, agreed: Schema | None) -> Table:
        """Return the table with its column of row ids renamed as in the terms. agreed: the columns of the
        terms, if there are any. Raises Refused if the map of a column does not fit."""
        columns, row_id = dense_of(self.table).column_names, None if agreed is None else agreed.row_id
        if agreed is not None:
            self.names.check_fit(agreed)
        if self.names.row_id is None:
            return self.table
        rest = {name: name for name in columns if name not in (IDS, row_id)}
        return renamed(self.table, rest | ({} if row_id is None else {row_id: IDS}), {})

    def both(self, name: str) -> str:
        """Return a column's name in the terms, followed by its name in the table if that differs."""
        own = self.names.names.get(name, name)
        return name if own == name else f"{name} ({own})"

    def explained(self, text: str) -> str:
        """Return a text for the site's staff: quoted names get their name in the table, if it differs."""

        def both(found: re.Match[str]) -> str:
            name = found[0][1:-1]
            own = self.names.names.get(name, name)
            return found[0] if own == name else f"{found[0]} (in the table {own!r})"

        return _QUOTED.sub(both, text)


def names_of(config: PartyConfig) -> Names:
    """Read the file of names that the configuration refers to. Raises ConfigError if it is invalid."""
    if config.names is None:
        names = {name: how.name or name for name, how in config.columns.items()}
        return Names(names=names, columns=config.columns)
    return read_model(Names, read_toml(config.names, NAMES), str(config.names))


def site_rows(config: PartyConfig, options: ReadOptions | None = None) -> SiteTable:
    """Read the rows of a site, with columns named as in terms. options: how to read the file; None to use the
    configuration. Raises ConfigError if they cannot be read."""
    names = names_of(config)
    assert config.data is not None
    table = site_table(config.data, config.scratch, config.read if options is None else options)
    return SiteTable(table, names) if config.map_file is None else named(table, names, str(config.map_file))


def named(table: Table, names: Names, source: str) -> SiteTable:
    """Return a table with its columns named as in terms. Raises ConfigError if that fails; its message starts
    with `source`, the path of the file of names."""
    columns, every = names.names, {name: name for name in dense_of(table).column_names}
    if not columns or names.columns:
        columns = {name: name for name in every if name not in columns.values()} | {**columns}
    if names.row_id is not None:
        columns = {**columns, IDS: names.row_id}
    try:
        return SiteTable(renamed(table, columns, names.levels, names.columns), names)
    except ConfigError as error:
        raise ConfigError(error.code, f"{source}: {error.public}", error.detail) from None


# ---- The rows of a site: a table that is read when its process starts -----------------------------------


KeyOf = Callable[[Terms], bytes]
ModelOf = Callable[[Terms], Booster]
MAX_MISFITS = 10
"""Number of offers that the rows may fail to fit before all further offers are refused. Each failure reveals
one bit about the rows. When the limit is reached, the site's log already shows what does not fit."""
SETTLED_SECONDS = 2.0
"""Seconds after its last change during which a file is assumed to be incomplete."""
MAX_READINGS = 5
"""Maximum number of attempts to read files that change while they are being read."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, modification time (ns), size and inode of each file from which rows are read."""


class SiteRows:
    """A site's table, which is read when this object is created. A key holder has no table. Raises
    ConfigError if the table cannot be read."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        self._config = config
        self._party = config.party
        self._log = log
        self._misfits = 0
        self.reading = threading.Lock()
        """Held while rows are read or counted, because reading twice at once needs twice the memory."""
        self._stamp = self._stamp_now()
        self.table: SiteTable | None = None
        """The table as last read; None if there is no table, or while it is being read."""
        if config.data is not None:
            self.table = self._read()

    @property
    def rows(self) -> int:
        """Number of rows; 0 if there are none, or while they are being read."""
        return 0 if self.table is None else int(self.table.table.num_rows)

    def close(self) -> None:
        """Do nothing, because rows in this process are freed when it ends. `WorkerRows` overrides this."""

    def release(self) -> None:
        """Do nothing: holders in this process drop their rows themselves. `WorkerRows` overrides this."""

    def say(self, event: str = "rows read") -> None:
        """Log the table's file and number of rows, if the site has a table."""
        if self.table is not None:
            self._log.info(event, file=shown_source(self._config.data), rows=self.rows)

    def refresh(self) -> SiteTable | None:
        """Return the current table, which is read again if its files have changed. Rows from a database or a
        URL are read only once. Raises Refused if the rows cannot be read."""
        with self.reading:
            if self._config.data is None or (self.table is not None and self._stamp_now() == self._stamp):
                return self.table
            self.table = None  # dropped first: both would need twice the memory
            try:
                self.table = self._read_again()
            except (ConfigError, OSError) as error:
                reason = f"party {self._party}: its table has changed and cannot be read"
                raise Refused("table-unreadable", f"{reason}; its own log says why", str(error)) from None
            self.say("rows read again, because the file has changed")
            return self.table

    def _read_again(self) -> SiteTable:
        """Read the files, again if they change meanwhile. Raises ConfigError if they keep changing."""
        for _ in range(MAX_READINGS):
            self._stamp = self._stamp_now()
            latest = max((changed for _, changed, _, _ in self._stamp), default=0)
            time.sleep(min(max(SETTLED_SECONDS - (time.time() - latest / 1e9), 0.0), SETTLED_SECONDS))
            table = self._read()
            if self._stamp == self._stamp_now():
                return table
        raise ConfigError(
            "table-changing",
            f"{shown_source(self._config.data)} changes while it is being read; try again later",
        )

    def _read(self) -> SiteTable:
        return site_rows(self._config)

    def _stamp_now(self) -> Stamp:
        """Return a value that changes with the files; empty if they are not on this machine."""
        data, names = self._config.data, self._config.names
        if data is None or isinstance(data, Database):
            return ()
        return tuple(map(_seen, (*local_files(data), *([] if names is None else [names]))))

    def check_misfits(self) -> None:
        """Raise Refused after too many offers that the rows did not fit."""
        if self._misfits >= MAX_MISFITS:
            raise Refused(
                "rows-misfit-often",
                f"party {self._party}: its rows did not fit {self._misfits} offers, and each refusal reveals "
                f"something about them, so it refuses all others until it is restarted",
            )

    def read(self, terms: Terms, site: SiteTable | None = None) -> Shard:
        """Return the rows in the form that these terms need. site: the table; by default, the table read
        last. Raises Refused if the rows do not fit the terms, or are being read."""
        if (table := site or self.table) is None:
            raise Refused("table-reading", f"party {self._party}: its table is being read; try again later")
        with self._explaining(table), self.reading:
            mapped = table.under(terms.columns)
            shard = to_shard(mapped, terms, self._party)
        self._warn(table, undeclared(mapped, terms.blocks.columns_of(self._party)))
        return shard

    def hold(
        self, terms: Terms, secret: bytes, key_of: KeyOf, model_of: ModelOf, table_of: TableOf
    ) -> Holder:
        """Create the holder of a session's rows. It works on a snapshot of the rows, so later changes to
        their file have no effect, even if the rows are converted again. Raises Refused if the rows cannot be
        read or do not fit the terms.

        Args:
            terms: the session's terms.
            secret: the session's secret.
            key_of: returns the secret for noise on labels.
            model_of: returns this party's part of the model that the session predicts with.
            table_of: returns facts about the table on which the model in the terms was trained.
        """
        read = with_label_noise(partial(self.read, site=self.refresh()), self._party, key_of)
        return holder_for(read, self._party, self._config.nthread, model_of, table_of)(terms, secret)

    @contextmanager
    def _explaining(self, site: SiteTable) -> Iterator[None]:
        """Context manager that adds the columns' names in the table to the private details of refusals, and
        counts misfits."""
        try:
            yield
        except SchemaMismatch as error:
            self._misfits += 1
            refusal = f"{error.public}; its own log says which column and why"
            raise SchemaMismatch("table-misfit", refusal, site.explained(error.detail)) from None
        except Refused as error:
            raise Refused(
                error.code, error.public, site.explained(error.detail) + self._renaming(site)
            ) from None

    def _warn(self, site: SiteTable, strange: Iterable[tuple[str, str, int]]) -> None:
        """Log each column that has undeclared categories, with one such category and the number of rows."""
        for column, category, count in strange:
            warning = "categories that the terms do not declare count as missing"
            self._log.warning(warning, column=site.both(column), category=shown(category), rows=count)

    def names_under(self, terms: Terms) -> dict[str, str]:
        """Return the columns' names in the table, by name in these terms, where the two names differ."""
        columns, site = terms.blocks.columns_of(self._party), self.table
        return {} if site is None else site.names.here(columns)

    def _renaming(self, site: SiteTable) -> str:
        if isinstance(site.table, SparseTable):
            return ""
        where = f"[columns] of {self._config.file}"
        if self._config.names is not None:
            where = str(self._config.names)
        return (
            f"; if the column has a different name at this site, rename it in the table, or map it in "
            f"{where}; if the site does not have it, ask the analyst to declare that (columns.absent)"
        )

    def faults(self, terms: Terms) -> list[str]:
        """Return a sentence for each column in the terms that the table lacks, or whose type cannot be read.
        Values are not examined."""
        if (site := self.table) is None:
            return []
        try:
            table, schema = site.under(terms.columns), terms.blocks.columns_of(self._party)
        except Refused as error:
            return [error.public]
        lacking = column_faults(table, schema, "" if terms.blocks else self._party)
        return [fault.public for fault in (*lacking, *type_faults(table, schema))]


def _seen(file: Path) -> tuple[str, int, int, int]:
    """Return the stamp of a file; zeros if it does not exist or is not a regular file."""
    try:
        known = file.stat()
    except OSError:
        return str(file), 0, 0, 0
    if not stat.S_ISREG(known.st_mode):
        return str(file), 0, 0, 0
    return str(file), known.st_mtime_ns, known.st_size, known.st_ino
