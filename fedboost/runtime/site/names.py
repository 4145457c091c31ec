"""Names that a site gives its columns and levels in terms: a TOML file that stays at the site.

Promises: terms reach the named columns and levels alone, and others see their names in the terms, never those
in the table; what the site's own people read has both.
Refuses: a name for a column that the table does not have, a level with two names (ConfigError with the file).
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedboost.errors import ConfigError
from fedboost.people.text import delimited
from fedboost.runtime.config import NAMES, read_toml, to_toml
from fedboost.runtime.data.read_options import ReadOptions
from fedboost.runtime.data.renamed import renamed
from fedboost.runtime.data.table import Table, dense_of, site_table
from fedboost.runtime.site.config import PartyConfig
from fedboost.terms.columns import Schema
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.reading import Table as Mapped

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

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        for name, levels in self.levels.items():
            if name not in self.names:
                raise ValueError(f"levels has {name!r}, which is not under [names]")
            counts = Counter(levels.values())
            if twice := next((level for level, count in counts.items() if count > 1), None):
                raise ValueError(f"level {twice!r} of {name!r} has two names: keep one")
        return self

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
