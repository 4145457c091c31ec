"""The page of a site, which its own process serves on a loopback address: state, requests, decisions."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.privacy import noise
from fedboost.protocol.messages import Offer
from fedboost.runtime.config import to_toml
from fedboost.runtime.data.locations import shown
from fedboost.runtime.site.approval import (
    ANSWERING,
    Asked,
    AskedFolder,
    Counted,
    Look,
    analysts_of,
    approval_file,
    approval_of,
    approve,
    count_columns,
    count_rows,
    earlier_approval,
    look,
    nothing_approved,
    refusal_of,
    refuse,
    withdraw,
)
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.audit_rules import audit_facts
from fedboost.runtime.site.audit_sessions import sessions_of
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.budget import Spent, facts_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import charges_of, read_spent
from fedboost.runtime.site.policy_keys import PROTECTS
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.web.guard import (
    Refusal,
)
from fedboost.runtime.workers.holder import check_under_workers
from fedboost.terms.terms import Terms
from fedboost.views.approval import summary_lines
from fedboost.views.audit import AuditFacts
from fedboost.views.facts import SiteFacts
from fedboost.views.site import (
    BudgetFacts,
    ChargeFacts,
    DecisionFacts,
    LiveFacts,
    LiveSession,
    OverviewFacts,
    RequestFacts,
    RuleOfPolicy,
    Standing,
)
from fedboost.views.words import listed

# ---- What a site does now, and what was asked of it, for the page of the site ---------------------------
# Promises: nothing is kept on the disk unless the site has a page; whatever cannot be kept ends no session.


class PageState:
    """Told by a party's watch and its answers to checks, asked by its page. requests: None without a page."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        self.live = LiveFacts()
        self.requests = AskedFolder(config, log) if config.console else None
        self._party = config.party
        self._signs = config.keys is not None

    @property
    def is_busy(self) -> bool:
        """True while a session is under way."""
        return self.live.session is not None

    def connected(self, here: bool) -> None:
        """The aggregator was reached, or lost."""
        self.live.connected = here

    def checked(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Terms were checked without a session, from any thread."""
        if self.requests is not None:
            self.requests.note(terms, analyst, "", "; ".join(reasons))

    def offered(self, offer: Offer, analyst: str) -> None:
        """A session was offered. analyst: who signed it, '' where nobody did, or without keys."""
        self.live.session = LiveSession(offer.session, analyst, offer.terms, time.time())
        self._note(ANSWERING)

    def sent(self, size: int) -> None:
        """So many bytes left for the aggregator."""
        if self.live.session is not None:
            self.live.session.bytes += size

    def answered(self) -> None:
        """A question was answered."""
        if self.live.session is not None:
            self.live.session.answers += 1

    def round(self, done: int) -> None:
        """A round ended."""
        if self.live.session is not None:
            self.live.session.rounds = done

    def ended(self, answer: str) -> None:
        """The session is over. answer: why this site left it, '' if it did not."""
        self._note(answer)
        self.live.session = None

    def closed(self, paused: bool) -> None:
        """The session is over, or only paused: then it may be offered again."""
        if paused:
            self.live.session = None

    def _note(self, answer: str) -> None:
        """Keep with the request for the session under way how this site answered it; nothing of a request
        that nobody signed, where analysts sign."""
        session = self.live.session
        if session is None or self.requests is None or self._party not in session.terms.parties:
            return
        if session.analyst or not self._signs:
            self.requests.note(session.terms, session.analyst, session.name, answer)


# ---- What the page of a site shows, and what a person decides there -------------------------------------
# Promises: nothing is changed by looking; a decision is about the terms, analysts and rules that were
# shown, or it is refused; what approves is what `fedboost approve` runs, and writes the same file.
# Refuses: requests that are not kept, decisions about what is no longer as it was shown (Refusal); terms
# that no approval can allow, rows that do not fit (ConfigError).


MAX_CHARGES = 200
READ_AGAIN_SECONDS = 5.0
"""An audit that was read is shown for so long at least, and for ten times as long as it took."""
COLUMNS_ALONE = "the rows are on workers: the columns alone were looked at"
BUSY = "the rows of this site were not counted: a session is under way"


@dataclass(frozen=True)
class Decision:
    """What a person decided. approves: or refuses; digest, analyst, seen: of the page that was shown; by:
    whose token it was."""

    approves: bool
    digest: str
    analyst: str
    seen: str
    by: str


class SiteOffice:
    """A site as its page sees it."""

    def __init__(self, config: PartyConfig, rows: SiteRows, state: PageState, log: Any) -> None:
        assert state.requests is not None
        self._config = config
        self._rows = rows
        self._state = state
        self._log = log
        self._asked = state.requests
        self._deciding = threading.Lock()
        """Held while rows are counted, and while a decision is written."""
        self._reading = threading.Lock()
        self._audited: tuple[float, AuditFacts] | None = None

    def overview(self) -> OverviewFacts:
        """The facts now."""
        config, live = self._config, self._state.live
        rows = f"{self._rows.rows:,} of {shown(config.data)}" if config.data is not None else ""
        budget, fault = self.budget()
        nothing = bool(nothing_approved(config))
        return OverviewFacts(
            config.party, config.aggregator, rows, live, self.requests(), budget, fault, nothing, time.time()
        )

    def requests(self) -> list[RequestFacts]:
        """All requests, those asked last first."""
        return [self._facts(entry) for entry in self._asked.all()]

    def _facts(self, entry: Asked) -> RequestFacts:
        standing, decided = self._standing(entry)
        return RequestFacts(
            name=entry.name,
            digest=entry.digest,
            analyst=entry.analyst,
            task=entry.task,
            parties=entry.parties,
            first=entry.first,
            last=entry.last,
            session=entry.session,
            answer=entry.answer,
            standing=standing,
            decided=decided,
            approved_since=standing is Standing.APPROVED and self._is_before_approval(entry),
        )

    def _standing(self, entry: Asked) -> tuple[Standing, str]:
        """What holds for a request, and when a person decided so."""
        try:
            approval = approval_of(self._config, entry.digest)
            if approval is not None:
                if entry.analyst and entry.analyst not in analysts_of(self._config, approval):
                    return Standing.OPEN, ""
                since = entry.lacks_approval and not self._is_before_approval(entry)
                return Standing.OUTDATED if since else Standing.APPROVED, quoted(approval.time)
            refusal = refusal_of(self._config, entry.digest)
        except (ConfigError, OSError) as error:
            return Standing.OPEN, quoted(f"a decision cannot be read: {error}")
        if refusal is not None and refusal.is_of(entry.analyst):
            return Standing.REFUSED, quoted(refusal.time)
        return (Standing.OPEN if entry.lacks_approval else Standing.ALLOWED), ""

    def _is_before_approval(self, entry: Asked) -> bool:
        """Tell if the last answer is from before the approval, which may be removed meanwhile."""
        try:
            return entry.last <= approval_file(self._config, entry.digest).stat().st_mtime
        except FileNotFoundError:
            return False

    def decision(self, name: str) -> DecisionFacts:
        """All that a person decides on. Refusal if the request is not kept; ConfigError."""
        with self._deciding:
            entry, terms = self._find(name)
            looked, notes, misfit = self._look(entry, terms)
        counts = None if looked.counted is None else looked.counted.counts
        return DecisionFacts(
            request=self._facts(entry),
            site=looked.site,
            terms=summary_lines(terms, looked.review.analysts, counts, looked.origin),
            rules=looked.decision,
            fault=looked.review.fault or misfit,
            seen=looked.digest,
            notes=notes,
            file=str(approval_file(self._config, entry.digest)),
        )

    def _find(self, name: str) -> tuple[Asked, Terms]:
        entry = self._asked.find(name)
        if entry is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no request of this name is kept")
        return entry, self._asked.terms(entry)

    def _look(self, entry: Asked, terms: Terms) -> tuple[Look, list[str], str]:
        """What a person is shown of a request, what else is to be known, and why the rows do not fit it."""
        earlier, fault = earlier_approval(self._config, terms)
        notes = [f"an earlier approval counts for nothing, and yes replaces it: {fault}"] if fault else []
        counted, misfit = None, ""
        try:
            counted = self._count(terms)
        except (ConfigError, Refused) as error:
            misfit = str(error)
        if counted is None and not misfit and self._config.data is not None:
            notes.append(BUSY)
        if counted is not None and counted.counts is None:
            notes.append(COLUMNS_ALONE)
        analysts = (entry.analyst,) if entry.analyst and terms.task.by_analyst else ()
        return look(self._config, terms, analysts, earlier, counted), notes, misfit

    def _count(self, terms: Terms) -> Counted | None:
        """The rows under these terms; None where there are none, or a session is under way."""
        config = self._config
        if config.data is None or config.party not in terms.holders or self._state.is_busy:
            return None
        read = self._rows.refresh()
        assert read is not None
        if config.workers is not None:
            check_under_workers(terms, config.party)
            return count_columns(config, terms, read, self._rows.rows)
        with self._rows.reading:  # a session that was offered meanwhile reads its rows before or after
            return None if self._state.is_busy else count_rows(config, terms, read)

    def decide(self, name: str, decision: Decision) -> None:
        """Approve or refuse a request, as it was shown. Refusal if it is not as it was; ConfigError."""
        with self._deciding:
            entry, terms = self._find(name)
            if (entry.digest, entry.analyst) != (decision.digest, decision.analyst):
                raise Refusal(HTTPStatus.CONFLICT, "this form is of another request: read it again")
            about = {"terms": entry.digest, "by": decision.by}
            about |= {"analyst": entry.analyst} if entry.analyst else {}
            looked, _, misfit = self._look(entry, terms)
            if decision.approves and misfit:
                raise ConfigError(misfit)
            if looked.digest != decision.seen:
                reason = "the rules, the decisions or the past of this site have changed since this was shown"
                raise Refusal(HTTPStatus.CONFLICT, f"{reason}: read it again")
            if decision.approves:
                path = approve(self._config, terms, looked.review, datetime.now(UTC))
                self._log.info("terms approved on the page", **about, file=str(path))
                return
            withdraw(self._config, terms, entry.analyst)
            path = refuse(self._config, entry.digest, entry.analyst, datetime.now(UTC))
            self._log.info("terms refused on the page", **about, file=str(path))

    def audit(self) -> AuditFacts:
        """What the audit log says, as it was read some seconds ago. ConfigError."""
        with self._reading:
            now = time.monotonic()
            if self._audited is None or now >= self._audited[0]:
                log = self._config.audit
                assert log is not None
                entries = read_log(log) if log.exists() else []
                facts = audit_facts(log, entries, sessions_of(entries), None, None)
                took = time.monotonic() - now
                self._audited = time.monotonic() + max(READ_AGAIN_SECONDS, 10 * took), facts
            return self._audited[1]

    def budget(self) -> tuple[BudgetFacts | None, str]:
        """What was spent; None, and why, if that cannot be told."""
        config, limit = self._config, self._config.policy.budget
        path = memory_path(config)
        try:
            spent = read_spent(path) or Spent(config.rows_name)
            charges = charges_of(path, MAX_CHARGES)
        except ConfigError as error:
            return None, str(error)
        facts = facts_of(spent, limit, own=True)
        allowed = (None, None) if limit is None else (limit.epsilon, limit.delta)
        site = SiteFacts(config.rows_name, config.policy.max_sessions, facts.took_part, *allowed)
        drawn = [
            ChargeFacts(session, release, at, noise.epsilon_of(math.sqrt(cost), facts.delta))
            for session, release, at, cost in charges
        ]
        return BudgetFacts(site, facts, drawn, facts.releases), ""

    def policy(self) -> list[RuleOfPolicy]:
        """The rules of the policy."""
        policy = self._config.policy
        values = policy.model_dump(mode="json", exclude_none=True)
        return [
            RuleOfPolicy(
                key,
                _in_words(values.get(key)),
                key in policy.model_fields_set,
                purpose,
            )
            for key, purpose in PROTECTS.items()
        ]


def _in_words(value: object) -> str:
    """A value of the policy: as its file has it, columns by role."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "; ".join(f"{role}: {listed(names)}" for role, names in value.items() if names) or "none"
    return to_toml(value)
