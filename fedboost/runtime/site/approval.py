"""Approvals and refusals at a site: which terms a person decided on, and what the person is shown before
deciding.

Guarantees: an approval is valid only for the terms whose digest it contains, from the next offer until it is
withdrawn. It lists the parties, analysts and columns that the person saw, and the broken rules that the
person accepted, including rules between sessions, as they were at that time. Names that are later removed
from the policy are no longer valid under the approval. Each decision is a row of the site's store, written in
one transaction with its entry in the audit log.
Raises: ConfigError for terms that exceed the privacy budget of the rows. Refused if the policy names no
parties, analysts or columns and the site has approved other terms but not these, if the approval does not
name the analyst, or if the approval cannot be read or relaxes a rule that has changed since.
"""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedboost.errors import ConfigError, DurabilityError, Refused, SchemaMismatch, quoted
from fedboost.protocol import site
from fedboost.results.site import ApprovalView, Counts, Rule
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import category_rows, column_faults, label_counts, to_shard, undeclared
from fedboost.runtime.site.backup import begin_store, memory_path
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import check_dataset, costs, known_sessions
from fedboost.runtime.site.models import signers_at
from fedboost.runtime.site.policy import (
    COMMAND,
    PINNED,
    PROTECTS,
    SHOWN_NAMES,
    Breach,
    ColumnRules,
    Policy,
    origin_of,
)
from fedboost.runtime.site.rows import SiteTable, names_of
from fedboost.runtime.site.store import Decided, Store, reading
from fedboost.terms.reading import Frozen, Name, read_model
from fedboost.terms.terms import Terms
from fedboost.views.approval import APPROVE, RELAXED, columns_by_role
from fedboost.views.words import counted

# ---- Decisions of a person at a site, in its store ------------------------------------------------------
# A refusal is valid for the terms whose digest it contains and for its analysts, from the next offer on. It
# overrides the policy, but not an approval of the terms.


Decision = TypeVar("Decision", "Refusal", "Approval")
DECISIONS = frozenset({"decisions"})
"""Tables of the store that are read to find a decision."""


class Refusal(Frozen):
    """A person's refusal of terms. analysts: analysts who were refused; empty if every analyst was refused,
    as at a site without keys."""

    digest: str
    time: str
    analysts: tuple[Name, ...]

    def is_of(self, analyst: str) -> bool:
        """Return whether the refusal covers an analyst."""
        return not self.analysts or analyst in self.analysts


def refusal_of(config: PartyConfig, digest: str) -> Refusal | None:
    """Return the refusal of the terms with this digest, or None. Raises ConfigError if it cannot be read."""
    return _kept(Refusal, config, digest)


def refuse(config: PartyConfig, digest: str, analyst: str, now: datetime) -> None:
    """Record that a person refused these terms when submitted by this analyst. Earlier refusals of the terms
    from other analysts remain valid. Raises ConfigError if the refusal cannot be written."""
    with _deciding(config) as (store, file):
        before, analysts = _read(Refusal, file, config, digest), tuple(filter(None, [analyst]))
        if analyst and before is not None:
            analysts = tuple(dict.fromkeys((*before.analysts, analyst))) if before.analysts else ()
        refusal = Refusal(digest=digest, time=now.isoformat(timespec="seconds"), analysts=analysts)
        _write(store, file, "refused", refusal)


def check_not_refused(config: PartyConfig, digest: str, analyst: str) -> None:
    """Raise Refused if a person refused these terms of this analyst, or if the refusal is unreadable."""
    try:
        refusal = refusal_of(config, digest)
    except ConfigError as error:
        unread = f"site {config.party} refuses: it cannot read a refusal of these terms; its own log says why"
        raise Refused("refusal-unreadable", unread, str(error)) from None
    if refusal is not None and refusal.is_of(analyst):
        raise Refused(
            "refused-by-person",
            f"site {config.party} refuses: a person at that site refused these terms on {refusal.time[:10]}; "
            f"ask that person, or change the terms",
        )


def _kept(kind: type[Decision], config: PartyConfig, digest: str) -> Decision | None:
    with reading(memory_path(config), DECISIONS) as file:
        return None if file is None else _read(kind, file, config, digest)


def _read(
    kind: type[Decision], file: sqlite3.Connection, config: PartyConfig, digest: str
) -> Decision | None:
    query = "SELECT content FROM decisions WHERE (party, digest, kind) = (?, ?, ?)"
    row = file.execute(query, (config.party, digest, _KINDS[kind])).fetchone()
    if row is None or not row[0]:
        return None
    where = f"{memory_path(config)}, {_KINDS[kind]} terms {digest[:SHOWN_DIGITS]}..."
    try:
        decision = read_model(kind, json.loads(row[0]), where)
    except (TypeError, ValueError):
        raise ConfigError("decision-unreadable", f"{where}: this is not a valid decision") from None
    if decision.digest != digest:
        raise ConfigError(
            "decision-other-terms",
            f"{where}: the stored decision belongs to different terms, with digest {decision.digest}",
        )
    return decision


@contextmanager
def _deciding(config: PartyConfig) -> Iterator[tuple[Store, sqlite3.Connection]]:
    """Context manager that opens the site's store, creating it if it is missing, and runs its body in one
    transaction. Raises ConfigError if the store cannot be used."""
    begin_store(config)
    try:
        with closing(Store(memory_path(config), config.party)) as store, store.transaction() as file:
            check_dataset(store.path, file, config.rows_name)
            yield store, file
    except DurabilityError as error:
        raise ConfigError("decision-not-written", str(error).partition("; ")[0]) from None


def _write(
    store: Store,
    file: sqlite3.Connection,
    kind: Literal["approved", "refused", "withdrawn"],
    decision: "Refusal | Approval",
) -> None:
    content = decision.model_dump_json()
    store.promise(file, "decisions", store.party, decision.digest, _KINDS[type(decision)], content)
    digest, hashed = decision.digest, hashlib.sha256(content.encode()).hexdigest()
    store.append(file, Decided(kind=kind, terms=digest, analysts=decision.analysts, content=hashed))


# ---- What a site approved: terms by their digest --------------------------------------------------------


NEVER_RELAXED = (*PINNED, "epsilon", "delta", "approval")
"""Policy keys that an approval of terms cannot relax."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
"""Pattern of names that every shell reads as a single word."""
SHOWN_DIGESTS, SHOWN_DIGITS = 3, 8
"""Maximum number of digests listed in a refusal, and number of digits shown for each digest."""


class Approval(Frozen):
    """A person's approval of terms. at: time of the approval, in seconds since 1970. relaxed: maps the keys
    of relaxed rules to the values that apply to these terms. relaxed_from: maps these keys, and the keys of
    relaxed lists of names, to the policy's own values at the time of the approval."""

    digest: str
    time: str
    at: float
    parties: tuple[Name, ...]
    analysts: tuple[Name, ...]
    columns: ColumnRules
    relaxed: Mapping[str, Any] = {}
    relaxed_from: Mapping[str, Any] = {}


_KINDS: Mapping[type, str] = {Refusal: "refused", Approval: "approved"}


@dataclass(frozen=True)
class SessionHistory:
    """The part of a site's memory that a review needs. sessions: earlier sessions on the site's rows; cost:
    the sessions' total privacy cost (mu squared)."""

    sessions: Sequence[site.KnownSession] = ()
    cost: float = 0.0

    @property
    def used(self) -> int:
        """Number of sessions that count towards max_sessions."""
        return sum(known.trained for known in self.sessions)


def read_past(config: PartyConfig) -> SessionHistory:
    """Read earlier sessions and their privacy cost from a site's memory, which the party may be using.
    Returns an empty history if there is no memory yet. Raises ConfigError if it cannot be read."""
    with reading(memory_path(config)) as file:
        return (
            SessionHistory()
            if file is None
            else SessionHistory(known_sessions(file, config.party), costs(file))
        )


@dataclass(frozen=True)
class Review:
    """The result of comparing terms and their analysts with a site's policy and memory.

    breaches: rules that one more session under these terms would break. fault: why no approval can allow
    these terms; '' if an approval can.
    """

    analysts: tuple[str, ...]
    past: SessionHistory
    breaches: Sequence[Breach]
    fault: str


def review(config: PartyConfig, terms: Terms, analysts: tuple[str, ...]) -> Review:
    """Compare terms with a site's policy and memory. Raises ConfigError if the memory cannot be read."""
    past = read_past(config)
    breaches = _broken_rules(config, terms, analysts, past)
    return Review(analysts, past, breaches, _fault(config, terms, breaches, past))


def _fault(config: PartyConfig, terms: Terms, breaches: Sequence[Breach], past: SessionHistory) -> str:
    for breach in breaches:
        if breach.allow is None:
            return (
                f"party {config.party} cannot approve these terms: its policy has {breach.key} = "
                f"{breach.value}, but {breach.why}; {breach.instead}, or change the policy"
            )
    budget = config.policy.budget
    if budget is not None and terms.noise is not None:
        try:
            budget.check_session(config.party, terms, past.cost, 0.0)
        except Refused as error:
            return f"not approved: {error}"
    return ""


def rule_of(breach: Breach) -> Rule:
    """Convert a breach to the form in which it is shown to the person who decides on the terms."""
    allowed = breach.allow if isinstance(breach.allow, tuple) else (breach.allow,)
    loud = (text for (key, value), text in RELAXED.items() if key == breach.key and value in allowed)
    return Rule(
        key=breach.key,
        value=breach.value,
        reason="; ".join(filter(None, (breach.why, breach.detail))),
        names=allowed if len(allowed) > SHOWN_NAMES else (),
        purpose=PROTECTS[breach.rule],
        instead=breach.instead if breach.allow is not None else "",
        loud=" ".join(loud),
    )


def approve(config: PartyConfig, terms: Terms, reviewed: Review, now: datetime) -> None:
    """Write an approval of these terms that relaxes the rules found broken in the review. Raises ConfigError
    if no approval can allow the terms, or if the approval cannot be written."""
    if reviewed.fault:
        raise ConfigError("approval-impossible", reviewed.fault)
    breaches = reviewed.breaches
    relaxed = {breach.key: breach.allow for breach in breaches if breach.rule not in PINNED}
    values = config.policy.model_dump(mode="json")
    relaxed_from = {breach.rule: values[breach.rule] for breach in breaches}
    approval = Approval(
        digest=terms.digest,
        time=now.isoformat(timespec="seconds"),
        at=now.timestamp(),
        parties=terms.parties,
        analysts=reviewed.analysts,
        columns=ColumnRules(**columns_by_role(terms, config.party)),
        relaxed=relaxed,
        relaxed_from={key: value for key, value in relaxed_from.items() if value is not None},
    )
    with _deciding(config) as (store, file):
        _write(store, file, "approved", approval)


def withdraw(config: PartyConfig, digest: str, analyst: str) -> None:
    """Remove an analyst from the approval of these terms. The approval is withdrawn if no analyst remains.
    analyst: '' to remove all analysts. Raises ConfigError if the approval cannot be read or changed."""
    with _deciding(config) as (store, file):
        approval = _read(Approval, file, config, digest)
        if approval is None:
            return
        others = tuple(name for name in approval.analysts if analyst and name != analyst)
        if others:
            _write(store, file, "withdrawn", approval.model_copy(update={"analysts": others}))
        else:
            store.promise(file, "decisions", config.party, digest, "approved", "")
            store.append(file, Decided(kind="withdrawn", terms=digest, analysts=(), content=""))


def withdraw_by_digest(config: PartyConfig, begins: str) -> str:
    """Withdraw the approval whose digest starts with these digits, and return its digest. Raises ConfigError
    unless exactly one approval matches."""
    meant = [digest for digest in approved_in(config) if digest.startswith(begins)]
    if len(meant) != 1:
        raise ConfigError(
            "approval-ambiguous",
            f"{len(meant)} approvals of this site have a digest that starts with {begins}, but exactly one "
            f"must match; specify the terms file, or correct the digits",
        )
    withdraw(config, meant[0], "")
    return meant[0]


def _broken_rules(
    config: PartyConfig, terms: Terms, analysts: tuple[str, ...], past: SessionHistory
) -> list[Breach]:
    """Return the rules that one more session under these terms, for these analysts, would break. A rule about
    names is skipped if the policy leaves it unset, because the approval itself lists the names."""
    policy = config.policy
    broken = [*policy.breaches(terms, party=config.party, signers=signers_at(config, terms))]
    broken += [
        breach for name in analysts for breach in policy.breaches(terms, name) if breach.rule == "analysts"
    ]
    named = [
        breach for breach in broken if breach.rule not in PINNED or getattr(policy, breach.rule) is not None
    ]
    return with_history(named, policy, config.party, terms, past)


def with_history(
    broken: Sequence[Breach], policy: Policy, party: str, terms: Terms, past: SessionHistory
) -> list[Breach]:
    """Return the given breaches, and those of the rules between sessions that one more session under these
    terms would cause. Of two breaches with the same key, only the latter is returned."""
    later, rows, used = list[Breach](), site.predicted_by(terms, party), site.rows_predicted(past.sessions)
    if rows and used and used + rows > policy.max_predicted_rows:
        why = f"this site has helped to predict {used} rows so far, and the terms predict {rows} more"
        later.append(Breach("max_predicted_rows", str(policy.max_predicted_rows), why, allow=used + rows))
    splits, told = site.splits_by(terms, party), site.splits_told(past.sessions)
    if splits and told and told + splits > policy.max_splits:
        why = (
            f"earlier sessions may have {told:,} splits on this site's columns, and this one {splits:,} more"
        )
        later.append(Breach("max_splits", str(policy.max_splits), why, allow=told + splits))
    if past.used >= policy.max_sessions and rows is None:
        why = f"{counted(past.used, 'session')} with these rows started before"
        later.append(Breach("max_sessions", str(policy.max_sessions), why, allow=past.used + 1))
    limits = site.Limits(similar_groups=policy.similar_groups)
    try:
        site.check_group(site.KnownSession.begun("", terms), past.sessions, limits, party)
    except Refused as error:
        why, _, instead = error.public.removeprefix(f"party {party}: ").partition("; ")
        later.append(Breach("similar_groups", "false", why, instead, True, quoted(error.detail)))
    keys = {breach.key for breach in later}
    return [breach for breach in broken if breach.key not in keys] + later


def approval_of(config: PartyConfig, digest: str) -> Approval | None:
    """Return the approval of the terms with this digest, or None. Raises ConfigError if it cannot be read."""
    approval = _kept(Approval, config, digest)
    for key in NEVER_RELAXED:
        if approval is not None and key in approval.relaxed:
            raise ConfigError("approval-invalid", f"{memory_path(config)}: an approval cannot relax {key}")
    return approval


def approved_in(config: PartyConfig) -> list[str]:
    """Return the digests of all approved terms. Raises ConfigError if the memory cannot be read."""
    query = (
        "SELECT digest FROM decisions WHERE party = ? AND kind = 'approved' AND content != '' ORDER BY digest"
    )
    with reading(memory_path(config), DECISIONS) as file:
        return [] if file is None else [digest for (digest,) in file.execute(query, (config.party,))]


def analysts_of(config: PartyConfig, approval: Approval) -> tuple[str, ...]:
    """Return the analysts of an approval whom the policy still allows."""
    return tuple(_names(config.policy, approval)["analysts"])


def policy_for(config: PartyConfig, terms: Terms, analyst: str = "") -> Policy:
    """Return the policy that applies to these terms: the policy in the site's file, relaxed by the terms'
    approval if there is one. analyst: who signed the request; '' if unsigned. Raises Refused if a person
    refused the terms when submitted by this analyst, or if the terms need an approval that does not exist or
    is not valid (see the module docstring)."""
    try:
        approval = approval_of(config, terms.digest)
        if approval is None:
            check_not_refused(config, terms.digest, analyst)
            if terms.task.by_analyst:  # there is no file of a prediction that a person could approve
                _check_named(config, terms)
            return config.policy
        if analyst and terms.task.by_analyst and analyst not in approval.analysts:
            raise Refused(
                "approval-other-analysts",
                f"site {config.party} refuses: its approval of these terms does not name analyst "
                f"{quoted(analyst)}; run `{COMMAND}` at that site",
                f"it names {', '.join(approval.analysts) or 'none'}",
            )
        _check_unchanged(config, approval)
        values = {
            **config.policy.model_dump(exclude_unset=True),
            **approval.relaxed,
            **_names(config.policy, approval),
            "approval": "auto",
        }
        return read_model(Policy, values, str(memory_path(config)))
    except ConfigError as error:
        refusal = (
            f"site {config.party} refuses: its approval of these terms cannot be read; run `{COMMAND}` at "
            f"that site"
        )
        raise Refused("approval-unreadable", refusal, str(error)) from None


@contextmanager
def naming_the_command(terms: Terms, analyst: str) -> Iterator[None]:
    """Context manager that adds options to the `fedboost approve` command in refusals of these terms."""
    try:
        yield
    except Refused as error:
        public = with_the_command(error.public, terms, analyst)
        if public == error.public:
            raise
        raise type(error)(error.code, public, error.detail) from None


def with_the_command(refusal: str, terms: Terms, analyst: str) -> str:
    """Return a refusal in which the `fedboost approve` command has all the options that these terms need.
    analyst: who signed the terms. A name that a shell could split into several words is omitted; the command
    then prompts for it."""
    if _PLAIN.fullmatch(analyst) and terms.task.by_analyst:
        refusal = refusal.replace(COMMAND, f"{COMMAND} --analyst {analyst}")
    if terms.task.counts_values:
        refusal = refusal.replace(APPROVE, f"{APPROVE} --describe")
    return refusal


def lacks_approval(config: PartyConfig, terms: Terms, analyst: str) -> bool:
    """Return whether the site would refuse these terms now, but an approval could change that. Raises
    ConfigError if the memory cannot be read."""
    try:
        policy = policy_for(config, terms, analyst)
    except Refused:
        return True
    broken = [*policy.breaches(terms, analyst, config.party, signers_at(config, terms))]
    broken = with_history(broken, policy, config.party, terms, read_past(config))
    return policy.approval == "ask" or any(breach.allow is not None for breach in broken)


def _check_named(config: PartyConfig, terms: Terms) -> None:
    """Raise Refused if the policy names no one and no columns, and only other terms were approved."""
    policy = config.policy
    if policy.parties or policy.analysts or policy.columns not in (None, ColumnRules()):
        return
    others = [f"{digest[:SHOWN_DIGITS]}..." for digest in approved_in(config)]
    if others:
        more = f" and {len(others) - SHOWN_DIGESTS} more" if len(others) > SHOWN_DIGESTS else ""
        raise Refused(
            "terms-not-approved",
            f"site {config.party} refuses: it has not approved these terms (their digest is "
            f"{terms.digest[:SHOWN_DIGITS]}..., but it approved {', '.join(others[:SHOWN_DIGESTS])}{more}); "
            f"run `{COMMAND}` at that site",
        )


def _check_unchanged(config: PartyConfig, approval: Approval) -> None:
    values = config.policy.model_dump(mode="json")
    for key in {**approval.relaxed, **approval.relaxed_from}:
        if values.get(key) != approval.relaxed_from.get(key):
            raise Refused(
                "approval-outdated",
                f"site {config.party} refuses: {key} in its policy has changed since it approved these "
                f"terms; run `{COMMAND}` at that site to approve them again",
            )


def _names(policy: Policy, approval: Approval) -> dict[str, Any]:
    """Return those names in an approval that are still valid. If the policy also lists names under a key that
    the approval does not relax, only names in both lists are valid."""
    names: dict[str, Any] = {key: getattr(approval, key) for key in PINNED}
    for key in PINNED:
        own = getattr(policy, key)
        if own in (None, "any") or key in approval.relaxed_from:
            continue
        if isinstance(own, ColumnRules):
            columns = approval.columns
            by_role = {role: [n for n in among if n in getattr(own, role)] for role, among in columns}
            names[key] = ColumnRules.model_validate(by_role)
        else:
            names[key] = tuple(name for name in names[key] if name in own)
    return names


def nothing_approved(config: PartyConfig) -> str:
    """Return advice for a site without approvals whose policy cannot allow any terms; '' for others."""
    policy = config.policy
    if policy.parties and policy.columns and (policy.analysts or config.keys is None):
        return ""
    if approved_in(config):
        return ""
    return f"this site has approved nothing, so it will refuse every session; run `{COMMAND}`"


# ---- What a person at a site is shown before deciding on terms ------------------------------------------
# The terminal and the site's page show the same: the policy, the memory and the rows as they are now.


@dataclass(frozen=True)
class TermsForDecision:
    """Terms as shown to the person who decides. decided: `repr` of the existing approval and refusal."""

    review: Review
    view: ApprovalView
    decided: str

    @property
    def digest(self) -> str:
        """Hash of everything that an approval would allow, and of earlier decisions. It changes with the
        analysts, the broken rules and the decisions."""
        review = self.review
        shown = review.analysts, [*review.breaches], review.fault, self.view.origin, self.decided
        return hashlib.sha256(repr(shown).encode()).hexdigest()


def look(
    config: PartyConfig,
    terms: Terms,
    analysts: Sequence[str],
    counts: Counts | None,
    misfit: str = "",
    notes: Sequence[str] = (),
) -> TermsForDecision:
    """Compare terms with a site's policy, memory and rows, and return the result for display. Analysts of an
    earlier approval remain approved.

    Args:
        config: the site's configuration.
        analysts: analysts for whom to approve the terms.
        counts: counts of the rows under these terms; None if the site has no rows, or if they were not
            counted.
        misfit: why the rows do not fit the terms; '' if they fit.
        notes: further sentences to show.
    """
    earlier: Approval | None = None
    try:
        earlier = approval_of(config, terms.digest)
    except ConfigError as error:
        notes = [f"An earlier approval is not valid, and a new one will replace it: {error}", *notes]
    refusal: Refusal | str | None
    try:
        refusal = refusal_of(config, terms.digest)
    except ConfigError as error:
        refusal = str(error)
    before = () if earlier is None else analysts_of(config, earlier)
    reviewed, policy = review(config, terms, tuple(dict.fromkeys((*before, *analysts)))), config.policy
    past, limit = reviewed.past, None if terms.noise is None else policy.budget
    view = ApprovalView(
        party=config.party,
        terms=terms,
        analysts=reviewed.analysts,
        rules=tuple(map(rule_of, reviewed.breaches)),
        fault=reviewed.fault or misfit,
        earlier=None if earlier is None else (earlier.time, before),
        origin=origin_of(policy, terms, config.party, signers_at(config, terms)),
        counts=counts,
        renamed=names_of(config).told(terms.blocks.columns_of(config.party)),
        adders=config.adders,
        sessions=(past.used, policy.max_sessions),
        predicted=(site.rows_predicted(past.sessions), policy.max_predicted_rows)
        if site.predicted_by(terms, config.party) is not None
        else None,
        budget=None if limit is None else (limit.left(past.cost), limit.epsilon, limit.delta),
        notes=tuple(notes),
    )
    return TermsForDecision(reviewed, view, repr((earlier, refusal)))


def count_rows(config: PartyConfig, terms: Terms, read: SiteTable) -> Counts:
    """Count a site's rows under these terms. Raises ConfigError if the rows do not fit the terms."""
    table, columns = read.under(terms.columns), terms.blocks.columns_of(config.party)
    try:
        label = to_shard(table, terms, config.party).label
    except SchemaMismatch as error:
        why = read.explained(error.detail)
        raise ConfigError(
            "table-misfit", f"{shown(config.data)}: the rows do not fit the terms: {why}"
        ) from None
    except Refused as error:
        raise ConfigError("table-misfit", f"{shown(config.data)}: {read.explained(str(error))}") from None
    categories = category_rows(table, columns)
    if terms.blocks.has_labels(config.party):
        categories[columns.label] = label_counts(label, terms)
    others = {name: rows for name, _, rows in undeclared(table, columns)}
    return Counts(
        rows=table.num_rows,
        file=_table_name(config),
        categories=categories,
        undeclared=others,
        few=config.policy.min_rows_per_leaf,
    )


def count_columns(config: PartyConfig, terms: Terms, read: SiteTable, rows: int) -> Counts:
    """Like `count_rows`, but for rows on workers: checks only that no column is missing (ConfigError)."""
    columns = terms.blocks.columns_of(config.party)
    for fault in column_faults(read.under(terms.columns), columns, config.party):
        raise ConfigError("table-misfit", f"{shown(config.data)}: {read.explained(str(fault))}")
    return Counts(rows=rows, file=_table_name(config))


def _table_name(config: PartyConfig) -> str:
    data = config.data
    return data.name if isinstance(data, Database) else Path(shown(data)).name
