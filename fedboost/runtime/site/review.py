"""Requests of analysts at a site, and checks of terms: would it take part?

A check is answered without a session, and nothing of it is remembered as one; it is in the audit log.

Promises: an analyst whom the site's policy or its approval of these terms names is told all that stands
against the terms: rules, budget, columns that lack or have another type. Any other caller is told no more
than the first sentence of a refusal. Nobody is told what depends on a value of a row: whether the rows fit is
told in a session, where it is counted. No person is asked.
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
from fedboost.results.site import Asked, Live, LiveSession
from fedboost.runtime.net import channel
from fedboost.runtime.site.approval import (
    lacks_approval,
    policy_for,
    read_past,
    with_past,
    with_the_command,
)
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

# ---- Signatures of what an aggregator hands on to a site ------------------------------------------------
# Refuses: terms that nobody signed as they were sent, before they are read (PeerError, Refused): to read them
# may take long, and an aggregator may send what it likes.


def check_unread(
    party: str, credentials: Credentials | None, text: str, request: Request | None, wish: bytes = SESSION
) -> None:
    """Raise PeerError or Refused unless terms of this text are signed for this wish. Without keys nothing
    is."""
    if credentials is None:
        return
    if request is None:
        raise Refused(f"party {party}: the terms are signed by no analyst")
    key_exchange.check_unread(credentials, text, request, wish)


def analyst_of(offer: Offer, credentials: Credentials | None) -> str:
    """The analyst who signed an offer; '' where nobody did, for which the session leaves it."""
    if credentials is None or offer.request is None:
        return ""
    try:
        return key_exchange.check_request(credentials, offer.terms, offer.request)
    except PeerError:
        return ""


# ---- The checks of terms that a site answered: counted, in its audit log, and on its page ---------------
# Promises: a check is in the audit log before its answer leaves: the analyst, the terms and whether this site
# would take part, once a day for the same answer.


MAX_CHECKS_A_DAY = 100
"""Different terms that are checked for one analyst in a day (UTC): each is a line in the audit log, of half a
kilobyte, and tells a little of the site's policy and of its columns' names."""

Told = Callable[[Terms, str, Sequence[str]], None]
"""Takes terms that were checked, the analyst who signed them, and what this site has against them."""


def today() -> str:
    """The day, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


@dataclass(eq=False)
class CheckBook:
    """The checks of one process, by analyst; '' where analysts have no keys. told: is told of each."""

    _memory: FileMemory
    _told: Told
    _day: str = ""
    _answers: dict[str, dict[str, set[bool]]] = field(default_factory=dict)
    """By analyst and digest of terms what was answered on this day."""

    def check(self, party: str, terms: Terms, analyst: str) -> None:
        """Raise Refused for more different terms of this analyst than a day has."""
        if (day := today()) != self._day:
            self._day, self._answers = day, {}
        answers = self._answers.setdefault(analyst, {})
        if terms.digest not in answers and len(answers) >= MAX_CHECKS_A_DAY:
            raise Refused(
                f"party {party}: it answers checks of {MAX_CHECKS_A_DAY} different terms of an analyst in a "
                f"day; ask again tomorrow, or begin a session"
            )

    def note(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Note a check that is about to be answered. DurabilityError, Refused."""
        answers = self._answers.setdefault(analyst, {}).setdefault(terms.digest, set())
        if (would := not reasons) not in answers:
            self._memory.checked(terms.digest, analyst, would)
            answers.add(would)
        self._told(terms, analyst, reasons)


# ---- Checks of terms at a site: would it take part? Each is answered without a session ------------------


MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 10.0
"""Seconds between two checks. In between it is as long as the check took: an aggregator could ask without an
end."""
MAX_LOGGED = 8
"""Reasons of a check in the log; the analyst is told all."""
NO_LIMITS = Limits(NO_LIMIT, similar_groups=True, max_predicted_rows=NO_LIMIT, max_splits=NO_LIMIT)
"""Limits under which only what no policy changes is refused."""
ASKED = "a person there is asked about each session"
LATER = "it still works on the check before this one; ask again later"
UNWRITTEN = "it cannot write its audit log; its own log says why"


@dataclass(eq=False)
class Reviewer:
    """The answers of a site to checks. credentials: what it trusts now, None without keys; busy: tells if
    a session is under way; book: where they are counted and noted."""

    _config: PartyConfig
    _rows: SiteRows
    _credentials: Callable[[], Credentials | None]
    _busy: Callable[[], bool]
    _book: CheckBook
    _log: Any
    _answering: threading.Lock = field(default_factory=threading.Lock)
    """Held while a check is answered: one of a connection that was lost may still be under way."""

    async def serve(self, opened: Any) -> None:
        """Answer checks over a connection until it is lost, or until cancelled."""
        metadata = ((channel.PARTY_KEY, self._config.party.encode()), *channel.VERSIONS)
        call = opened.stream_stream(channel.ADVISE)(metadata=metadata)
        try:
            async for data in call:
                begin = time.monotonic()
                await call.write(await asyncio.to_thread(self._answer, data))
                await asyncio.sleep(pause_after(time.monotonic() - begin))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # an aggregator of an older version; or its loss, which the stream of sessions tells
        except FedboostError as error:
            self._log.warning("checks of terms are answered no more", reason=str(error))
            call.cancel()

    def _answer(self, data: bytes) -> bytes:
        """The answer to one check. Runs in a thread."""
        review = decode_review(data)
        if not self._answering.acquire(blocking=False):
            return encode_objections(Objections(review.number, (LATER,)))
        try:
            return encode_objections(self.objections(review))
        except (DurabilityError, Refused) as error:
            self._log.warning("terms were checked and not answered", reason=str(error))
            return encode_objections(Objections(review.number, (UNWRITTEN,)))
        finally:
            self._answering.release()

    def objections(self, review: Review) -> Objections:
        """All that this site has against terms, as far as the analyst may know it."""
        party, notes = self._config.party, list[str]()
        analyst, detail, known = "", "", None
        try:
            credentials = self._credentials()
            check_unread(party, credentials, review.terms, review.request, CHECK)
            terms = _terms_of(review)
            if party not in terms.parties:
                raise Refused(f"the terms do not name party {party!r}")
            if credentials is not None and review.request is not None:
                analyst = key_exchange.check_request(credentials, terms, review.request, CHECK)
                key_exchange.check_age(review.request, credentials.clock())
            self._book.check(party, terms, analyst)
            known = terms
            self._rows.check_misfits()
            policy = policy_for(self._config, terms, analyst)
            reasons = [*self._reasons(terms, policy, analyst, notes)]
        except FedboostError as error:
            reasons, detail = [error.public], error.detail
        short = tuple(_without_name(reason, party) for reason in reasons)
        own = short
        if known is not None:
            short = tuple(with_the_command(reason, known, analyst) for reason in short)
            own = (f"{short[0]}: {detail}",) if detail else short
            self._book.note(known, analyst, own)
        about = {"analyst": analyst} if analyst else {}
        logged = [quoted(reason) for reason in own[:MAX_LOGGED]]
        self._log.info("terms checked", **about, would=not short, **({"reasons": logged} if short else {}))
        return Objections(review.number, short, () if short else tuple(notes))

    def _reasons(self, terms: Terms, policy: Policy, analyst: str, notes: list[str]) -> Iterator[str]:
        """The reasons, one after the other; puts what else is to be known into the notes."""
        party, rows = self._config.party, self._rows
        signers = signers_at(self._config, terms, self._credentials())
        breaches = [*policy.breaches(terms, analyst, party, signers)]
        if any(breach.rule == "analysts" for breach in breaches):
            yield breaches[0].refusal(party).public  # all that a refusal tells whom nobody here knows
            return
        try:
            past = read_past(self._config)
        except ConfigError as error:
            self._log.warning("terms cannot be checked", reason=str(error))
            yield "it cannot read its memory; its own log says why"
            return
        breaches = with_past(breaches, policy, party, terms, past)
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
                reasons.append('its policy has approval = "ask", and nobody there can be asked')
        if not self._busy() and (unread := _refusal(rows.refresh)):
            reasons.append(unread)
        if not any(breach.rule == "columns" for breach in breaches):
            reasons += rows.faults(terms)
        yield from reasons


def pause_after(seconds: float) -> float:
    """The seconds of pause after a check that took so long."""
    return min(max(seconds, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)


def _refusal(check: Callable[[], object]) -> str:
    """The sentence of a check that refuses; '' if it does not."""
    try:
        check()
    except Refused as error:
        return error.public
    return ""


def _terms_of(review: Review) -> Terms:
    """The terms of a check. ConfigError for those of another version."""
    try:
        return terms_of(review.terms)
    except FedboostError as error:
        raise ConfigError(
            f"its version of fedboost, {VERSION}, cannot follow these terms: {error.public}"
        ) from None


def _without_name(reason: str, party: str) -> str:
    """A reason where the name of the site stands beside it."""
    for prefix in (f"site {party} refuses: ", f"party {party} refuses: ", f"party {party}: "):
        reason = reason.removeprefix(prefix)
    return f"it {rest}" if (rest := reason.removeprefix(f"party {party} ")) != reason else reason


# ---- What was asked of a site ---------------------------------------------------------------------------
# Requests of analysts for a session, or for a check, in its store.
# Promises: a row for each terms and analyst, with what the site answered last; they are bounded in
# number and bytes, whatever is asked: beyond that the oldest of who asked most goes. Nothing here ends a
# session: what cannot be kept is a warning in the log.


MAX_REQUESTS = 64
MAX_TERMS_BYTES = 4 << 20
"""Of one request: as many as an analyst can send."""
MAX_BYTES = 64 << 20
"""Of all requests together."""
MAX_ANSWER = 2000
"""Characters of an answer that are kept."""
SAME_SECONDS = 60.0
"""The same request with the same answer is written again after this."""
ANSWERING = "it has not been answered yet"


class RequestLog:
    """The requests of a site."""

    def __init__(self, config: PartyConfig, store: Store, log: Any) -> None:
        self._config = config
        self._store = store
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[str, Asked] = {}
        with store.transaction(durable=False) as file:
            query = "SELECT name, content FROM requests WHERE party = ?"
            rows = file.execute(query, (store.party,)).fetchall()
        for name, content in rows:
            try:
                self._known[name] = Asked.model_validate_json(content)
            except ValueError as error:
                log.warning("a request that was kept cannot be read", name=name, reason=quoted(str(error)))

    def all(self) -> list[Asked]:
        """The requests, those asked last first."""
        with self._lock:
            return sorted(self._known.values(), key=lambda entry: -entry.last)

    def find(self, name: str) -> Asked | None:
        """A request by its name."""
        with self._lock:
            return self._known.get(name)

    def terms(self, entry: Asked) -> Terms:
        """The terms of a request. ConfigError if they are not there as they were written."""
        with self._store.transaction(durable=False) as file:
            query = "SELECT terms FROM requests WHERE (party, name) = (?, ?)"
            row = file.execute(query, (self._store.party, entry.name)).fetchone()
        terms = Terms.from_canonical("" if row is None else str(row[0]))
        if terms.digest != entry.digest:
            raise ConfigError(f"{self._store.path}: request {entry.name} is not of the digest {entry.digest}")
        return terms

    def note(self, terms: Terms, analyst: str, session: str, answer: str) -> None:
        """Keep a request, or what was answered to one that is kept."""
        lacking = answer not in ("", ANSWERING)
        try:
            lacking = lacking and lacks_approval(self._config, terms, analyst)
        except ConfigError as error:
            self._log.warning("not known if an approval is lacking", reason=str(error))
        now = time.time()
        text = terms.canonical()
        entry = Asked(
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
            self._log.warning("a request is not kept: its terms are too long", terms=entry.digest)
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
                self._log.warning("a request is not kept", terms=entry.digest, reason=str(error))
                return
            self._known = {name: each for name, each in known.items() if name not in too_many}


def _beyond_room(known: Mapping[str, Asked]) -> list[str]:
    """The oldest requests of who asked most, while there are too many."""
    left, drop = dict(known), list[str]()
    while len(left) > MAX_REQUESTS or sum(entry.bytes for entry in left.values()) > MAX_BYTES:
        sizes = Counter[str]()
        for entry in left.values():
            sizes[entry.analyst] += entry.bytes + MAX_BYTES // MAX_REQUESTS
        most = sizes.most_common(1)[0][0]
        drop.append(min((e for e in left.values() if e.analyst == most), key=lambda e: e.last).name)
        del left[drop[-1]]
    return drop


# ---- What a site does now, and what was asked of it, for the page of the site ---------------------------
# Promises: nothing is kept on the disk unless the site has a page; whatever cannot be kept ends no session.


class PageState:
    """What the page of a party shows of its events and of its answers to checks. requests: None without a
    page."""

    def __init__(self, config: PartyConfig, store: Store, log: Any) -> None:
        self.live = Live()
        self.requests = RequestLog(config, store, log) if config.console else None
        self._party = config.party
        self._signs = config.keys is not None

    @property
    def is_busy(self) -> bool:
        """True while a session is under way."""
        return self.live.session is not None

    def checked(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Terms were checked without a session, from any thread."""
        if self.requests is not None:
            self.requests.note(terms, analyst, "", "; ".join(reasons))

    def observe(self, event: Event) -> None:
        """Show what an event says, and keep how this site answers."""
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
        """A session was offered. analyst: who signed it, '' where nobody did, or without keys."""
        self.live.session = LiveSession(offer.session, analyst, offer.terms, time.time())
        self._note(ANSWERING)

    def ended(self, answer: str) -> None:
        """The session is over. answer: why this site left it, '' if it did not."""
        self._note(answer)
        self.live.session = None

    def _note(self, answer: str) -> None:
        """Keep with the request for the session under way how this site answered it; nothing of a request
        that nobody signed, where analysts sign."""
        session = self.live.session
        if session is None or self.requests is None or self._party not in session.terms.parties:
            return
        if session.analyst or not self._signs:
            self.requests.note(session.terms, session.analyst, session.name, answer)
