"""The rows of a site: a table that is read when its process starts, and again when its files have changed.

Promises: each reading is a line in the log; a session keeps the rows that it began with. How often the rows
did not fit what was offered is counted, whoever asked. A check of terms is told of the names and types of
columns, and nothing that depends on a value of a row.
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
from fedboost.runtime.data.database import Database, ReadOptions
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

# ---- Names that a site gives its columns and levels in terms: a TOML file that stays at the site --------
# Promises: terms reach the named columns and levels alone, and others see their names in the terms, never
# those in the table; what the site's own people read has both.


IDS = "\x1frow_id"
"""The column of row ids until terms name it: no column in terms can be called so."""
_QUOTED = re.compile(r"'[^']*'")
_HEAD = """\
# What terms call the columns of this table, and their levels. Keep this file here: nobody else needs it.
# In the site's file: names = {file}
"""

Level = Annotated[str, Field(min_length=1)]


class Names(Frozen):
    """A site's names. `row_id`: the column of row ids, whatever the terms call it; `names`: by the name in
    the terms, the column in the table; `levels`: by the name of a column in the terms, its levels in the
    table by their names in the terms."""

    row_id: Name | None = None
    names: Mapped[Name] = Field(default_factory=dict)
    levels: Mapped[Mapping[Level, Level]] = Field(default_factory=dict)

    def _faults(self) -> Iterator[str]:
        for name, levels in self.levels.items():
            if name not in self.names:
                yield f"levels has {name!r}, which is not under [names]"
            counts = Counter(levels.values())
            if twice := next((level for level, count in counts.items() if count > 1), None):
                yield f"level {twice!r} of {name!r} has two names: keep one"

    def here(self, columns: Schema) -> dict[str, str]:
        """By its name in terms, what each of these columns is called here, where that is another name."""
        names = {name: self.names.get(name, name) for name in (*columns.others, *columns.features)}
        if self.row_id is not None and columns.row_id is not None:
            names[columns.row_id] = self.row_id
        return {name: own for name, own in names.items() if own != name}

    def told(self, columns: Schema) -> str:
        """These columns of terms, in words: what each is here, with its levels."""
        words = []
        for name, own in self.here(columns).items():
            levels = self.levels.get(name, {})
            spelled = ", ".join(f"{delimited(key)} {delimited(here)}" for key, here in levels.items())
            words.append(f"{delimited(name)} is {delimited(own)}" + (f" ({spelled})" if spelled else ""))
        return "; ".join(words)

    def to_toml(self, file: str) -> str:
        """The content of a file of this name."""
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
    """The table of a site, under the names that it gives its columns."""

    table: Table
    names: Names

    def under(self, row_id: str | None) -> Table:
        """The table with the column of row ids under this name, that of the terms."""
        columns = dense_of(self.table).column_names
        if self.names.row_id is None:
            return self.table
        rest = {name: name for name in columns if name not in (IDS, row_id)}
        return renamed(self.table, rest | ({} if row_id is None else {row_id: IDS}), {})

    def both(self, name: str) -> str:
        """A name in the terms, and the one in the table where that is another."""
        own = self.names.names.get(name, name)
        return name if own == name else f"{name} ({own})"

    def explained(self, text: str) -> str:
        """A text for the site's own people: each quoted name followed by the one in the table."""

        def both(found: re.Match[str]) -> str:
            name = found[0][1:-1]
            own = self.names.names.get(name, name)
            return found[0] if own == name else f"{found[0]} (here {own!r})"

        return _QUOTED.sub(both, text)


def names_of(config: PartyConfig) -> Names:
    """The names that a site's file points to. ConfigError."""
    if config.names is None:
        return Names()
    return read_model(Names, read_toml(config.names, NAMES), str(config.names))


def site_rows(config: PartyConfig, options: ReadOptions | None = None) -> SiteTable:
    """The rows of a site's file, under the names that it gives. options: how the file is read, if not as the
    site's file says. Raises ConfigError."""
    names = names_of(config)
    assert config.data is not None
    table = site_table(config.data, config.scratch, config.read if options is None else options)
    return SiteTable(table, names) if config.names is None else named(table, names, str(config.names))


def named(table: Table, names: Names, source: str) -> SiteTable:
    """A table under the names that a site gives. ConfigError that begins with `source`."""
    columns = names.names or {name: name for name in dense_of(table).column_names}
    if names.row_id is not None:
        columns = {**columns, IDS: names.row_id}
    try:
        return SiteTable(renamed(table, columns, names.levels), names)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.public}", error.detail) from None


# ---- The rows of a site: a table that is read when its process starts -----------------------------------


KeyOf = Callable[[Terms], bytes]
ModelOf = Callable[[Terms], Booster]
MAX_MISFITS = 10
"""Offers that this party's rows did not fit, before it refuses all others: each told one bit about the rows,
and a reader of the site's log knows by then what does not fit."""
SETTLED_SECONDS = 2.0
"""Files that changed a shorter time ago may still be written."""
MAX_READINGS = 5
"""Times that changed files are read, if they change meanwhile."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, time of the last change, size and inode of each file that rows are read from."""


class SiteRows:
    """The table of a site's file; None for a key holder, which has no rows. ConfigError if it cannot be
    read."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        self._config = config
        self._party = config.party
        self._log = log
        self._misfits = 0
        self.reading = threading.Lock()
        """Held while rows are read or counted: two at a time would take the memory twice."""
        self._stamp = self._stamp_now()
        self.table: SiteTable | None = None
        """The rows as they were read last; None where there are none, and while they are read."""
        if config.data is not None:
            self.table = self._read()

    @property
    def rows(self) -> int:
        """Number of rows; 0 where there are none, and while they are read."""
        return 0 if self.table is None else int(self.table.table.num_rows)

    def close(self) -> None:
        """Nothing: rows in this process end with it."""

    def release(self) -> None:
        """Nothing: who holds rows in this process drops them."""

    def say(self, event: str = "rows read") -> None:
        """Log how many rows there are, and of which file; nothing where there are none."""
        if self.table is not None:
            self._log.info(event, file=shown_source(self._config.data), rows=self.rows)

    def refresh(self) -> SiteTable | None:
        """The table as its files are now: read again if they have changed. Refused if they cannot be read.

        Rows of a database, or from an address, are read once.
        """
        with self.reading:
            if self._config.data is None or (self.table is not None and self._stamp_now() == self._stamp):
                return self.table
            self.table = None  # both would take the memory twice
            try:
                self.table = self._read_again()
            except (ConfigError, OSError) as error:
                reason = f"party {self._party}: its table has changed and cannot be read"
                raise Refused(f"{reason}; its own log says why", str(error)) from None
            self.say("rows read again, for the file has changed")
            return self.table

    def _read_again(self) -> SiteTable:
        """The rows of files that nobody writes at the same time. ConfigError."""
        for _ in range(MAX_READINGS):
            self._stamp = self._stamp_now()
            latest = max((changed for _, changed, _, _ in self._stamp), default=0)
            time.sleep(min(max(SETTLED_SECONDS - (time.time() - latest / 1e9), 0.0), SETTLED_SECONDS))
            table = self._read()
            if self._stamp == self._stamp_now():
                return table
        raise ConfigError(f"{shown_source(self._config.data)}: changes while it is read; try again later")

    def _read(self) -> SiteTable:
        """The table as its files are now. ConfigError."""
        return site_rows(self._config)

    def _stamp_now(self) -> Stamp:
        """What tells that files have changed; empty where they are not on this machine."""
        data, names = self._config.data, self._config.names
        if data is None or isinstance(data, Database):
            return ()
        return tuple(map(_seen, (*local_files(data), *([] if names is None else [names]))))

    def check_misfits(self) -> None:
        """Raise Refused after too many offers that the rows did not fit."""
        if self._misfits >= MAX_MISFITS:
            raise Refused(
                f"party {self._party}: its rows did not fit {self._misfits} offers, and each refusal tells "
                f"something of them, so it refuses all others until it is started again"
            )

    def read(self, terms: Terms, site: SiteTable | None = None) -> Shard:
        """The rows as these terms want them. site: the table, unless it is to be the one that was read
        last."""
        if (table := site or self.table) is None:
            raise Refused(f"party {self._party}: its table is being read; ask again later")
        with self._counting_misfits():
            return self._fit(table, terms)

    def hold(
        self, terms: Terms, secret: bytes, key_of: KeyOf, model_of: ModelOf, table_of: TableOf
    ) -> Holder:
        """What holds the rows of a session: those that are there now, for it may read them again later,
        whatever becomes of their file. key_of: the secret of label noise; model_of: the model that terms
        predict with, as this party was told it; table_of: the table that the model in terms was trained
        on."""
        read = with_label_noise(partial(self.read, site=self.refresh()), self._party, key_of)
        return holder_for(read, self._party, self._config.nthread, model_of, table_of)(terms, secret)

    @contextmanager
    def _counting_misfits(self) -> Iterator[None]:
        try:
            yield
        except SchemaMismatch:
            self._misfits += 1
            raise

    @contextmanager
    def _explaining(self, site: SiteTable) -> Iterator[None]:
        """Say to the site's own people what its columns are called here."""
        try:
            yield
        except SchemaMismatch as error:
            refusal = f"{error.public}; its own log says which column and why"
            raise SchemaMismatch(refusal, site.explained(error.detail)) from None
        except Refused as error:
            raise Refused(error.public, site.explained(error.detail) + self._renaming(site)) from None

    def _fit(self, site: SiteTable, terms: Terms) -> Shard:
        table = site.under(terms.columns.row_id)
        with self._explaining(site), self.reading:
            shard = to_shard(table, terms, self._party)
        self._warn(site, undeclared(table, terms.blocks.columns_of(self._party)))
        return shard

    def _warn(self, site: SiteTable, strange: Iterable[tuple[str, str, int]]) -> None:
        """Log each column with categories that the terms do not declare, one of them, and their rows."""
        for column, category, count in strange:
            warning = "categories the terms do not declare count as missing"
            self._log.warning(warning, column=site.both(column), category=shown(category), rows=count)

    def names_under(self, terms: Terms) -> dict[str, str]:
        """By its name in these terms the name of each column in the table, where that is another."""
        columns, site = terms.blocks.columns_of(self._party), self.table
        return {} if site is None else site.names.here(columns)

    def _renaming(self, site: SiteTable) -> str:
        """What can be done about a column that is missing."""
        if isinstance(site.table, SparseTable):
            return ""
        where = f"the file that names in {self._config.file} points to, with all other columns"
        if self._config.names is not None:
            where = str(self._config.names)
        return (
            f"; if it has another name here, rename it in the table, or name it in {where}; if it is not "
            f"here at all, ask the analyst to take it out of the terms"
        )

    def faults(self, terms: Terms) -> list[str]:
        """A sentence for each column that the terms name and the table lacks, or has with a type that cannot
        be read so, whatever its values."""
        if (site := self.table) is None:
            return []
        table, schema = site.under(terms.columns.row_id), terms.blocks.columns_of(self._party)
        return [fault.public for fault in (*column_faults(table, schema), *type_faults(table, schema))]


def _seen(file: Path) -> tuple[str, int, int, int]:
    """A file as it is now, without its content; zeros if it cannot be seen, or is no file."""
    try:
        known = file.stat()
    except OSError:
        return str(file), 0, 0, 0
    if not stat.S_ISREG(known.st_mode):
        return str(file), 0, 0, 0
    return str(file), known.st_mtime_ns, known.st_size, known.st_ino
