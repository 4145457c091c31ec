"""What a person at a site is shown of terms before deciding on them, on a terminal or on the site's page.

Promises: both are shown the same, of the policy, the memory and the rows as they are now.
Refuses: rows that do not fit the terms, an unreadable memory (ConfigError).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.people.facts import ApprovalFacts, OriginFacts, SiteFacts
from fedboost.people.summary import Counts
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.features import category_rows, label_counts, undeclared
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import column_faults, to_shard
from fedboost.runtime.site.approval import Approval, Review, analysts_of, approved, facts_of, review
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.model_signers import signers_at
from fedboost.runtime.site.names import SiteTable, names_of
from fedboost.runtime.site.policy_models import origin_of
from fedboost.runtime.site.refused import Refusal, refusal_of
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Counted:
    """The rows of a site under some terms: how many, and those by category and by value of the label, None
    where the columns alone were looked at."""

    rows: int
    counts: Counts | None = None


@dataclass(frozen=True)
class Look:
    """What terms would tell, and which rules they break. site: the site's rows and past; origin: of the
    model that they measure; decision: the rules, and an earlier approval; decided: the approval and the
    refusal that the terms have, as their files have them."""

    review: Review
    counted: Counted | None
    site: SiteFacts
    origin: OriginFacts | None
    decision: ApprovalFacts
    decided: str

    @property
    def digest(self) -> str:
        """A hash of all that an approval would allow, and of earlier decisions: of other analysts, rules or
        decisions it is another."""
        shown = self.review.analysts, [*self.review.breaches], self.review.fault, self.origin, self.decided
        return hashlib.sha256(repr(shown).encode()).hexdigest()


def look(
    config: PartyConfig,
    terms: Terms,
    analysts: Sequence[str],
    earlier: Approval | None,
    counted: Counted | None,
) -> Look:
    """Hold terms against a site. earlier: an approval that they have, whose analysts stay; counted: its rows
    under these terms, None where it has none, or they were not looked at."""
    before = () if earlier is None else analysts_of(config, earlier)
    reviewed = review(config, terms, tuple(dict.fromkeys((*before, *analysts))))
    file = None
    if counted is not None:
        data = config.data
        file = data.name if isinstance(data, Database) else Path(shown(data)).name
    renamed = names_of(config).told(terms.blocks.columns_of(config.party))
    policy = config.policy
    site = SiteFacts(
        config.party,
        policy.max_sessions,
        reviewed.used,
        file=file,
        rows=0 if counted is None else counted.rows,
        renamed=renamed,
        predicted=(reviewed.predicted, policy.max_predicted_rows) if terms.vertical.predicts else None,
    )
    rules = [facts_of(breach) for breach in reviewed.breaches]
    of_before = None if earlier is None else (earlier.time, before)
    decision = ApprovalFacts(rules, bool(reviewed.fault), reviewed.analysts, of_before)
    origin = origin_of(policy, terms, config.party, signers_at(config, terms))
    decided = repr((earlier, _earlier_refusal(config, terms)))
    return Look(reviewed, counted, site, origin, decision, decided)


def earlier_approval(config: PartyConfig, terms: Terms) -> tuple[Approval | None, str]:
    """The approval that terms have already, and why it counts for nothing, '' if it does."""
    try:
        return approved(config, terms), ""
    except ConfigError as error:
        return None, str(error)


def _earlier_refusal(config: PartyConfig, terms: Terms) -> Refusal | str | None:
    """The refusal that terms have already, or why it cannot be read."""
    try:
        return refusal_of(config, terms.digest)
    except ConfigError as error:
        return str(error)


def count_rows(config: PartyConfig, terms: Terms, read: SiteTable) -> Counted:
    """The rows of a table of this site. ConfigError where they do not fit the terms."""
    table, columns = read.under(terms.columns.row_id), terms.blocks.columns_of(config.party)
    try:
        label = to_shard(table, terms, config.party).label
    except SchemaMismatch as error:
        why = read.explained(error.detail)
        raise ConfigError(f"{shown(config.data)}: its rows do not fit the terms: {why}") from None
    except Refused as error:
        raise ConfigError(f"{shown(config.data)}: {read.explained(str(error))}") from None
    categories = category_rows(table, columns)
    if terms.blocks.has_labels(config.party):
        categories[columns.label] = label_counts(label, terms)
    others = {name: rows for name, _, rows in undeclared(table, columns)}
    return Counted(table.num_rows, Counts(categories, others, config.policy.min_rows_per_leaf))


def count_columns(config: PartyConfig, terms: Terms, read: SiteTable, rows: int) -> Counted:
    """The number of rows of a site that are on workers, whose columns alone are looked at. ConfigError where
    one is missing."""
    for fault in column_faults(read.under(terms.columns.row_id), terms.columns):
        raise ConfigError(f"{shown(config.data)}: {read.explained(str(fault))}")
    return Counted(rows)
