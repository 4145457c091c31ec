"""Checks of terms at a site: would it take part? Each is answered without a session, and nothing of it is
remembered as one; it is in the audit log.

Promises: an analyst whom the site's policy or its approval of these terms names is told all that stands
against the terms: rules, budget, columns that lack or have another type. Any other caller is told no more
than the first sentence of a refusal. Nobody is told what depends on a value of a row: whether the rows fit is
told in a session, where it is counted. No person is asked.
Refuses: nothing; what cannot be read is a reason.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from fedboost.errors import ConfigError, DurabilityError, FedboostError, Refused, quoted
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import CHECK, Credentials
from fedboost.protocol.messages import Request
from fedboost.protocol.party import check_rows
from fedboost.protocol.site import NO_LIMIT, Limits, SessionOffer, judge
from fedboost.runtime.net import channel
from fedboost.runtime.site.approval import policy_for, read_past, with_past
from fedboost.runtime.site.audit import AuditLog
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.policy_keys import with_the_command
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.site.signers import check_unread, signers_at
from fedboost.runtime.telemetry import has_terminal
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.wire.codec import terms_of
from fedboost.wire.messages import Objections, Review, decode_review, encode_objections

# ---- The checks of terms that a site answered: counted, in its audit log, and on its page ---------------
# Promises: a check is in the audit log before its answer leaves: the analyst, the terms and whether this
# site would take part, once a day for the same answer.
# Refuses: checks of more different terms in a day than `MAX_CHECKS_A_DAY`, of one analyst (Refused); a log
# that cannot be written (DurabilityError, Refused).


MAX_CHECKS_A_DAY = 100
"""Different terms that are checked for one analyst in a day (UTC): each is a line in the audit log, of half a
kilobyte, and tells a little of the site's policy and of its columns' names."""

Told = Callable[[Terms, str, Sequence[str]], None]
"""Takes terms that were checked, the analyst who signed them, and what this site has against them."""


def today() -> str:
    """The day, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


class CheckBook:
    """The checks of one process, by analyst; '' where analysts have no keys. told: is told of each."""

    def __init__(self, audit: AuditLog | None, told: Told) -> None:
        self._audit = audit
        self._told = told
        self._day = ""
        self._answers: dict[str, dict[str, set[bool]]] = {}
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
            if self._audit is not None:
                self._audit.checked(terms.digest, analyst, would)
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


class Reviewer:
    """The answers of a site to checks. credentials: what it trusts now, None without keys; busy: tells if
    a session is under way; book: where they are counted and noted."""

    def __init__(
        self,
        config: PartyConfig,
        rows: SiteRows,
        credentials: Callable[[], Credentials | None],
        busy: Callable[[], bool],
        book: CheckBook,
        log: Any,
    ) -> None:
        self._config = config
        self._rows = rows
        self._credentials = credentials
        self._busy = busy
        self._book = book
        self._log = log
        self._answering = threading.Lock()
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
            terms = _read(review)
            if party not in terms.parties:
                raise Refused(f"the terms do not name party {party!r}")
            analyst = _analyst(credentials, terms, review.request)
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


def _analyst(credentials: Credentials | None, terms: Terms, request: Request | None) -> str:
    """The analyst who signed a check; '' without keys."""
    if credentials is None or request is None:
        return ""
    analyst = key_exchange.check_request(credentials, terms, request, CHECK)
    key_exchange.check_age(request, credentials.clock())
    return analyst


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


def _read(review: Review) -> Terms:
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
