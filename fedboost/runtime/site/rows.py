"""The rows of a site: a table that is read once, when its process starts.

Promises: how often the rows did not fit what was offered is counted, whoever asked; what a check of terms is
told of the rows is one bit, the same each time; checks are counted apart, so that none keeps a session away.
Refuses: tables that cannot be read (ConfigError); further questions after MAX_MISFITS that did not fit.
"""

import threading
from typing import Any

from fedboost.errors import Refused, SchemaMismatch
from fedboost.horizontal.shard import Shard
from fedboost.people.text import shown
from fedboost.runtime.data.features import undeclared
from fedboost.runtime.data.shard import column_faults, to_shard
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import Table
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.names import site_rows
from fedboost.terms.terms import Terms

MAX_MISFITS = 10
"""Offers that this party's rows did not fit, before it refuses all others: each told one bit about the rows,
and a reader of the site's log knows by then what does not fit."""
MAX_CHECKED = 100
"""Different terms that the rows are checked for without a session, until the site is started again."""


class SiteRows:
    """The table of a site's file; None for a key holder, which has no rows. ConfigError if it cannot be
    read."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        self.table = None if config.data is None else site_rows(config)
        self._party = config.party
        self._unnamed = config.file if config.names is None else None
        self._log = log
        self._misfits = 0
        self._reading = threading.Lock()
        """Held while rows are read: a session and a check at a time would take the memory twice."""
        self._checked: dict[str, str] = {}
        """The reason against terms, by their digest; '' where the rows fit."""

    def check_misfits(self) -> None:
        """Raise Refused after too many offers that the rows did not fit."""
        if self._misfits >= MAX_MISFITS:
            raise Refused(
                f"party {self._party}: its rows did not fit {self._misfits} offers, and each refusal tells "
                f"something of them, so it refuses all others until it is started again"
            )

    def read(self, terms: Terms) -> Shard:
        """The rows as these terms want them."""
        try:
            return self._shard(terms)
        except SchemaMismatch:
            self._misfits += 1
            raise

    def _shard(self, terms: Terms) -> Shard:
        table, site = self._under(terms), self.table
        assert site is not None
        try:
            with self._reading:
                shard = to_shard(table, terms, self._party)
        except SchemaMismatch as error:
            refusal = f"{error.public}; its own log says which column and why"
            raise SchemaMismatch(refusal, site.explained(error.detail)) from None
        except Refused as error:
            raise Refused(error.public, site.explained(error.detail) + self._renaming) from None
        for column, category, count in undeclared(table, terms.blocks.columns_of(self._party)):
            warning = "categories the terms do not declare count as missing"
            self._log.warning(warning, column=site.both(column), category=shown(category), rows=count)
        return shard

    def names_under(self, terms: Terms) -> dict[str, str]:
        """By its name in these terms the name of each column in the table, where that is another."""
        columns = terms.blocks.columns_of(self._party)
        return {} if self.table is None else self.table.names.here(columns)

    @property
    def _renaming(self) -> str:
        """What this site can do about a column that is missing."""
        if self._unnamed is None or isinstance(self.table and self.table.table, SparseTable):
            return ""
        return f"; if it has another name here, say so under names in {self._unnamed}"

    def _under(self, terms: Terms) -> Table:
        """The table under the names of these terms."""
        assert self.table is not None
        return self.table.under(terms.columns.row_id)

    def missing_columns(self, terms: Terms) -> list[str]:
        """A sentence for each column that the terms name and the table lacks."""
        if self.table is None:
            return []
        faults = column_faults(self._under(terms), terms.blocks.columns_of(self._party))
        return [str(fault.public) for fault in faults]

    def check(self, terms: Terms) -> str:
        """The reason why the rows do not fit these terms; '' if they do."""
        if self.table is None:
            return ""
        if terms.digest not in self._checked:
            for done, most, what in (
                (len(self._checked), MAX_CHECKED, "different terms"),
                (sum(map(bool, self._checked.values())), MAX_MISFITS, "terms that they did not fit"),
            ):
                if done >= most:
                    return (
                        f"it looked at its rows for {most} {what} without a session, and does so for no "
                        f"others until it is started again"
                    )
            try:
                self._shard(terms)
                self._checked[terms.digest] = ""
            except Refused as error:
                self._log.warning("rows do not fit the terms that were checked", reason=str(error))
                self._checked[terms.digest] = error.public
        return self._checked[terms.digest]
