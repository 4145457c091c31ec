"""Preflight checks at a site, i.e. whether it would take part under an analyst's terms, and the analysts'
requests that the site's page lists.

A check is answered outside a session. It is recorded in the audit log, but does not count as a session.

Guarantees: an analyst named by the site's policy, or by its approval of these terms, learns everything that
conflicts with the terms: rules, budget, missing columns, wrong types. Any other caller learns no more than
the first sentence of a refusal. No answer depends on the value of a row; whether the rows fit the terms is
revealed only in a session, where misfits are counted. No person at the site is asked.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from fedboost.errors import ConfigError, DurabilityError, FedboostError, PeerError, Refused, quoted
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import CHECK, SESSION, Credentials
from fedboost.protocol.messages import Offer, Request
from fedboost.protocol.party import check_rows
from fedboost.protocol.site import NO_LIMIT, Limits, SessionOffer, judge
from fedboost.results.site import Activity, LiveSession, StoredRequest
from fedboost.runtime.net import channel
from fedboost.runtime.site import approval
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.models import signers_at
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.site.store import Store, put
from fedboost.runtime.telemetry import Event, has_terminal
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.wire.codec import terms_of
from fedboost.wire.messages import Objections, Review, decode_review, encode_objections

# ---- Signatures of messages that an aggregator passes on to a site --------------------------------------
# Rejects unsigned or altered terms before they are parsed (PeerError, Refused): parsing may take long, and an
# aggregator may send anything.


def check_unread(
    party: str, credentials: Credentials | None, text: str, request: Request | None, wish: bytes = SESSION
) -> None:
    """Raise PeerError or Refused unless these terms are signed for this purpose. Without credentials, nothing
    is checked.

    Args:
        party: this site's name.
        credentials: certificates that the site trusts; None if it has no keys.
        text: canonical terms, not parsed yet.
        request: the analyst's signed request, if any.
        wish: purpose of the signature, SESSION or CHECK.
    """
    if credentials is None:
        return
    if request is None:
        raise Refused("terms-unsigned", f"party {party}: the terms are not signed by an analyst")
    key_exchange.check_unread(credentials, text, request, wish)


def analyst_of(offer: Offer, credentials: Credentials | None) -> str:
    """Return the analyst who signed an offer; '' without a valid signature: the party then leaves."""
    if credentials is None or offer.request is None:
        return ""
    try:
        return key_exchange.check_request(credentials, offer.terms, offer.request)
    except PeerError:
        return ""


# ---- The checks that a site answered: how they are counted, and recorded in its log and on its page -----
# A check is in the audit log before its answer leaves: the analyst, the terms and whether this site would
# take part, once a day for the same answer.


MAX_CHECKS_A_DAY = 100
"""Maximum number of distinct terms checked for one analyst per day (UTC). Each check adds half a kilobyte to
the audit log, and reveals a little about the site's policy and column names."""

Told = Callable[[Terms, str, Sequence[str]], None]
"""Takes the checked terms, the analyst who signed them, and this site's reasons against them."""


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


@dataclass(eq=False)
class CheckBook:
    """Counts and records this process's checks, by analyst ('' without keys). told: called with each."""

    _memory: FileMemory
    _told: Told
    _day: str = ""
    _answers: dict[str, dict[str, set[bool]]] = field(default_factory=dict)
    """Today's answers, by analyst and digest of the terms."""

    def check(self, party: str, terms: Terms, analyst: str) -> None:
        """Raise Refused if too many distinct terms were checked for this analyst today."""
        if (day := today()) != self._day:
            self._day, self._answers = day, {}
        answers = self._answers.setdefault(analyst, {})
        if terms.digest not in answers and len(answers) >= MAX_CHECKS_A_DAY:
            raise Refused(
                "checks-spent",
                f"party {party} checks at most {MAX_CHECKS_A_DAY} different terms per analyst and day, and "
                f"this limit is reached; try again tomorrow, or start a session",
            )

    def note(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Record an analyst's check in the audit log before it is answered. The same answer to the same check
        is recorded only once a day. Raises DurabilityError or Refused if the log cannot be written."""
        answers = self._answers.setdefault(analyst, {}).setdefault(terms.digest, set())
        if (would := not reasons) not in answers:
            self._memory.checked(terms.digest, analyst, would)
            answers.add(would)
        self._told(terms, analyst, reasons)


# ---- Checks of terms at a site: would it take part? Each is answered without a session ------------------


MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 10.0
"""Minimum and maximum number of seconds between two checks. Within these limits, the pause is as long as the
previous check took, because an aggregator could request checks indefinitely."""
MAX_LOGGED = 8
"""Maximum number of reasons that the log lists for a check; the analyst receives all of them."""
NO_LIMITS = Limits(NO_LIMIT, similar_groups=True, max_predicted_rows=NO_LIMIT, max_splits=NO_LIMIT)
"""Limits under which only rules that no policy can change lead to a refusal."""
ASKED = "a person at that site is asked about each session"
LATER = "it is still working on the previous check; try again later"
UNWRITTEN = "it cannot write its audit log; its own log says why"


@dataclass(eq=False)
class CheckStream:
    """Answers preflight checks at a site. credentials: returns the site's current credentials, or None if
    there are no keys; busy: returns True if a session is in progress; book: counts and records the checks."""

    _config: PartyConfig
    _rows: SiteRows
    _credentials: Callable[[], Credentials | None]
    _busy: Callable[[], bool]
    _book: CheckBook
    _log: Any
    _answering: threading.Lock = field(default_factory=threading.Lock)
    """Held while a check is answered; a check from a lost connection may still be in progress."""

    async def serve(self, opened: Any) -> None:
        """Answer preflight checks until the connection is lost or the task cancelled. opened: the channel."""
        metadata = ((channel.PARTY_KEY, self._config.party.encode()), *channel.VERSIONS)
        call = opened.stream_stream(channel.ADVISE)(metadata=metadata)
        try:
            async for data in call:
                begin = time.monotonic()
                await call.write(await asyncio.to_thread(self._answer, data))
                await asyncio.sleep(pause_after(time.monotonic() - begin))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # an older aggregator; or its loss, which the stream of sessions reports
        except FedboostError as error:
            self._log.warning("preflight checks are no longer answered", reason=str(error))
            call.cancel()

    def _answer(self, data: bytes) -> bytes:
        """Return the encoded answer to an encoded check. Runs in a thread."""
        review = decode_review(data)
        if not self._answering.acquire(blocking=False):
            return encode_objections(Objections(review.number, (LATER,)))
        try:
            return encode_objections(self.objections(review))
        except (DurabilityError, Refused) as error:
            self._log.warning("a preflight check was not answered", reason=str(error))
            return encode_objections(Objections(review.number, (UNWRITTEN,)))
        finally:
            self._answering.release()

    def objections(self, review: Review) -> Objections:
        """Return all of this site's reasons against the terms, as far as the analyst may know them."""
        party, notes = self._config.party, list[str]()
        analyst, detail, known = "", "", None
        try:
            credentials = self._credentials()
            check_unread(party, credentials, review.terms, review.request, CHECK)
            terms = _terms_of(review)
            if party not in terms.parties:
                raise Refused("terms-without-party", f"the terms do not name party {party!r}")
            if credentials is not None and review.request is not None:
                analyst = key_exchange.check_request(credentials, terms, review.request, CHECK)
                key_exchange.check_age(review.request, credentials.clock())
            self._book.check(party, terms, analyst)
            known = terms
            self._rows.check_misfits()
            policy = approval.policy_for(self._config, terms, analyst)
            reasons = [*self._reasons(terms, policy, analyst, notes)]
        except FedboostError as error:
            reasons, detail = [error.public], error.detail
        short = tuple(_without_name(reason, party) for reason in reasons)
        own = short
        if known is not None:
            short = tuple(approval.with_the_command(reason, known, analyst) for reason in short)
            own = (f"{short[0]}: {detail}",) if detail else short
            self._book.note(known, analyst, own)
        about = {"analyst": analyst} if analyst else {}
        logged = [quoted(reason) for reason in own[:MAX_LOGGED]]
        self._log.info("terms checked", **about, would=not short, **({"reasons": logged} if short else {}))
        return Objections(review.number, short, () if short else tuple(notes))

    def _reasons(self, terms: Terms, policy: Policy, analyst: str, notes: list[str]) -> Iterator[str]:
        """Yield this site's reasons against the terms. Adds other information for the analyst to `notes`."""
        party, rows = self._config.party, self._rows
        signers = signers_at(self._config, terms, self._credentials())
        breaches = [*policy.breaches(terms, analyst, party, signers)]
        if any(breach.rule == "analysts" for breach in breaches):
            yield breaches[0].refusal(party).public  # all that an analyst unknown here may learn
            return
        try:
            past = approval.read_past(self._config)
        except ConfigError as error:
            self._log.warning("terms cannot be checked", reason=str(error))
            yield "it cannot read its memory; its own log says why"
            return
        breaches = approval.with_history(breaches, policy, party, terms, past)
        for breach in breaches:
            yield breach.refusal(party, () if terms.task.by_analyst else [breach]).public
        checks: list[Callable[[], object]] = [
            lambda: check_rows(party, terms, self._config.data is not None),
            lambda: judge(SessionOffer("", terms), None, past.sessions, NO_LIMITS, party),
        ]
        if policy.budget is not None and terms.noise is not None:
            budget = policy.budget
            checks.append(lambda: budget.check_session(party, terms, past.cost, 0.0))
        reasons = [*filter(None, map(_refusal, checks))]
        if policy.approval == "ask":
            notes.append(ASKED)
            if not has_terminal():
                reasons.append('its policy has approval = "ask", but no one can be asked')
        if not self._busy() and (unread := _refusal(rows.refresh)):
            reasons.append(unread)
        if not any(breach.rule == "columns" for breach in breaches):
            reasons += rows.faults(terms)
        yield from reasons


def pause_after(seconds: float) -> float:
    return min(max(seconds, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)


def _refusal(check: Callable[[], object]) -> str:
    """Return the public text of the Refused error that a check raises; '' if it raises none."""
    try:
        check()
    except Refused as error:
        return error.public
    return ""


def _terms_of(review: Review) -> Terms:
    try:
        return terms_of(review.terms)
    except FedboostError as error:
        raise ConfigError(
            error.code, f"its fedboost version, {VERSION}, does not support these terms: {error.public}"
        ) from None


def _without_name(reason: str, party: str) -> str:
    """Return a reason without the site's name, which is shown next to it."""
    for prefix in (f"site {party} refuses: ", f"party {party} refuses: ", f"party {party}: "):
        reason = reason.removeprefix(prefix)
    return f"it {rest}" if (rest := reason.removeprefix(f"party {party} ")) != reason else reason


# ---- Requests of analysts for sessions and checks, in the site's store ----------------------------------
# There is one row per terms and analyst, with the site's last answer. The number and size of the rows are
# limited: beyond the limits, the oldest request of the analyst with the most data is dropped. A failure here
# does not end a session; it is a warning in the log.


MAX_REQUESTS = 64
MAX_TERMS_BYTES = 4 << 20
"""Maximum size in bytes of the terms in a stored request: the largest size that an analyst can send."""
MAX_BYTES = 64 << 20
"""Maximum total size in bytes of all stored requests."""
MAX_ANSWER = 2000
"""Maximum number of characters of an answer that are stored."""
SAME_SECONDS = 60.0
"""Minimum seconds before the same request with the same answer is written again."""
ANSWERING = "it has not been answered yet"


class RequestLog:
    """Stored requests of analysts at a site, each with the site's last answer."""

    def __init__(self, config: PartyConfig, store: Store, log: Any) -> None:
        self._config = config
        self._store = store
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[str, StoredRequest] = {}
        with store.transaction(durable=False) as file:
            query = "SELECT name, content FROM requests WHERE party = ?"
            rows = file.execute(query, (store.party,)).fetchall()
        for name, content in rows:
            try:
                self._known[name] = StoredRequest.model_validate_json(content)
            except ValueError as error:
                log.warning("a stored request cannot be read", name=name, reason=quoted(str(error)))

    def all(self) -> list[StoredRequest]:
        """Return the requests, most recent first."""
        with self._lock:
            return sorted(self._known.values(), key=lambda entry: -entry.last)

    def find(self, name: str) -> StoredRequest | None:
        with self._lock:
            return self._known.get(name)

    def terms(self, entry: StoredRequest) -> Terms:
        """Return the terms of a request. Raises ConfigError if they were changed in the store."""
        with self._store.transaction(durable=False) as file:
            query = "SELECT terms FROM requests WHERE (party, name) = (?, ?)"
            row = file.execute(query, (self._store.party, entry.name)).fetchone()
        terms = Terms.from_canonical("" if row is None else str(row[0]))
        if terms.digest != entry.digest:
            raise ConfigError(
                "request-altered",
                f"{self._store.path}: request {entry.name} does not match its digest {entry.digest}",
            )
        return terms

    def note(self, terms: Terms, analyst: str, session: str, answer: str) -> None:
        """Store a request, or update the answer to a stored one. session: name of the session, or '' for a
        check; answer: why the site refuses, or '' if it does not."""
        lacking = answer not in ("", ANSWERING)
        try:
            lacking = lacking and approval.lacks_approval(self._config, terms, analyst)
        except ConfigError as error:
            self._log.warning("cannot determine whether an approval is missing", reason=str(error))
        now = time.time()
        text = terms.canonical()
        entry = StoredRequest(
            digest=terms.digest,
            analyst=analyst,
            task=terms.task.name,
            parties=len(terms.parties),
            first=now,
            last=now,
            session=session,
            answer=quoted(answer, MAX_ANSWER),
            bytes=len(text.encode()),
            lacks_approval=lacking,
        )
        if entry.bytes > MAX_TERMS_BYTES:
            self._log.warning("a request was not stored: its terms are too long", terms=entry.digest)
            return
        with self._lock:
            before = self._known.get(entry.name)
            if before is not None:
                same = (before.answer, before.session) == (entry.answer, session)
                same = same and before.lacks_approval == lacking
                if same and now - before.last < SAME_SECONDS:
                    return
                entry = entry.model_copy(update={"first": before.first})
            known = {**self._known, entry.name: entry}
            too_many = _beyond_room(known)
            try:
                with self._store.transaction(durable=False) as file:
                    put(file, "requests", self._store.party, entry.name, entry.model_dump_json(), text)
                    for name in too_many:
                        query = "DELETE FROM requests WHERE (party, name) = (?, ?)"
                        file.execute(query, (self._store.party, name))
            except DurabilityError as error:
                self._log.warning("a request was not stored", terms=entry.digest, reason=str(error))
                return
            self._known = {name: each for name, each in known.items() if name not in too_many}


def _beyond_room(known: Mapping[str, StoredRequest]) -> list[str]:
    """Return the names of the requests to drop so that the limits are met. The next request to drop is always
    the oldest one of the analyst with the most data."""
    left, drop = dict(known), list[str]()
    while len(left) > MAX_REQUESTS or sum(entry.bytes for entry in left.values()) > MAX_BYTES:
        sizes = Counter[str]()
        for entry in left.values():
            sizes[entry.analyst] += entry.bytes + MAX_BYTES // MAX_REQUESTS
        most = sizes.most_common(1)[0][0]
        drop.append(min((e for e in left.values() if e.analyst == most), key=lambda e: e.last).name)
        del left[drop[-1]]
    return drop


# ---- The current state of a site, and its requests, for the site's page ---------------------------------
# Nothing is kept on the disk unless the site has a page. A failure to keep something ends no session.


class PageState:
    """Current state of a party, as on its page. requests: the analysts' requests; None without a page."""

    def __init__(self, config: PartyConfig, store: Store, log: Any) -> None:
        self.live = Activity()
        self.requests = RequestLog(config, store, log) if config.console else None
        self._party = config.party
        self._signs = config.keys is not None

    @property
    def is_busy(self) -> bool:
        return self.live.session is not None

    def checked(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Store a preflight check. May be called from any thread."""
        if self.requests is not None:
            self.requests.note(terms, analyst, "", "; ".join(reasons))

    def observe(self, event: Event) -> None:
        """Update the state after an event, and store how this site answered."""
        session = self.live.session
        match event.kind:
            case "at hand" | "aggregator gone":
                self.live.connected = event.kind == "at hand"
            case "session offered" if event.terms is not None:
                self.offered(Offer(event.session, event.terms), event.analyst)
            case "session done" | "session failed":
                self.ended("")
            case "left the session":
                self.ended(event.reason)
            case "session paused":  # it may be offered again
                self.live.session = None
            case "bytes" if session is not None:
                session.bytes += event.sent
            case "answer" if session is not None:
                session.answers += 1
            case "round" if session is not None:
                session.rounds = event.round

    def offered(self, offer: Offer, analyst: str) -> None:
        """Make an offered session the current one. analyst: who signed the offer; '' if unsigned."""
        self.live.session = LiveSession(offer.session, analyst, offer.terms, time.time())
        self._note(ANSWERING)

    def ended(self, answer: str) -> None:
        """Clear the current session. answer: why this site left the session, or '' if it did not leave."""
        self._note(answer)
        self.live.session = None

    def _note(self, answer: str) -> None:
        """Store this site's answer with the request for the current session. If analysts must sign requests,
        unsigned ones are not stored."""
        session = self.live.session
        if session is None or self.requests is None or self._party not in session.terms.parties:
            return
        if session.analyst or not self._signs:
            self.requests.note(session.terms, session.analyst, session.name, answer)
