"""The web page of a site, served by the party's process on a loopback address. It shows the site's state and
the analysts' requests, and lets a person decide on the requests."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.responses import RedirectResponse, Response

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.results.audit import Audit, Session
from fedboost.results.site import (
    Counts,
    Decision,
    Overview,
    Request,
    Rule,
    SiteBudget,
    Standing,
    StoredRequest,
)
from fedboost.runtime.aggregator.limits import Refusals
from fedboost.runtime.config import to_toml
from fedboost.runtime.data.locations import shown
from fedboost.runtime.site.approval import (
    TermsForDecision,
    analysts_of,
    approval_of,
    approve,
    count_columns,
    count_rows,
    look,
    nothing_approved,
    refusal_of,
    refuse,
    withdraw,
)
from fedboost.runtime.site.audit import audit_of, read_log, sessions_of
from fedboost.runtime.site.backup import memory_path, site_budget
from fedboost.runtime.site.config import PartyConfig, SitePageConfig
from fedboost.runtime.site.policy import PROTECTS
from fedboost.runtime.site.review import PageState
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.web.app import OFFICER, About, Call, Row, WebApp, officer_form
from fedboost.runtime.web.guard import Refusal, is_loopback_name
from fedboost.runtime.workers.holder import check_under_workers
from fedboost.terms.terms import Terms
from fedboost.views import site
from fedboost.views.site import Reader
from fedboost.views.words import listed

# ---- What a site's page shows, and what a person decides there ------------------------------------------
# Guarantees: viewing changes nothing. A decision applies to the terms, analysts and rules that were shown, or
# it is rejected. Approving runs the same code as `fedboost approve`.
# Raises: Refusal for requests that are not stored and for decisions about something that has changed since it
# was shown; ConfigError for terms that no approval can allow, and for rows that do not fit.


T = TypeVar("T")
MAX_CHARGES = 200
"""Maximum number of releases listed with the budget."""
READ_AGAIN_SECONDS = 5.0
"""Minimum seconds before the audit is repeated, and at least ten times as long as the audit took."""
BUSY = "The rows of this site were not counted, because a session is in progress."


class SitePageData:
    """Provides what a site's page shows, and carries out the decisions made on it."""

    def __init__(self, config: PartyConfig, rows: SiteRows, state: PageState, log: Any) -> None:
        assert state.requests is not None
        self._config = config
        self._rows = rows
        self._state = state
        self._log = log
        self._asked = state.requests
        self._deciding = threading.Lock()
        """Lock that is held while rows are counted or a decision is written."""
        self._reading = threading.Lock()
        self._audited: tuple[float, Audit] | None = None

    def overview(self) -> Overview:
        """Return the current state of the site."""
        config = self._config
        rows = f"{self._rows.rows:,} of {shown(config.data)}" if config.data is not None else ""
        budget, fault = self.budget()
        return Overview(
            party=config.party,
            aggregator=", ".join(map(str, config.servers)),
            rows=rows,
            live=self._state.live,
            requests=self.requests(),
            budget=budget,
            fault=fault,
            nothing_yet=bool(nothing_approved(config)),
            time=time.time(),
        )

    def requests(self) -> tuple[Request, ...]:
        """Return all stored requests, most recent first."""
        return tuple(map(self._request, self._asked.all()))

    def _request(self, entry: StoredRequest) -> Request:
        standing, decided, since = self._standing(entry)
        return Request(**entry.model_dump(), standing=standing, decided=decided, approved_since=since)

    def _standing(self, entry: StoredRequest) -> tuple[Standing, str, bool]:
        """Return a request's status, the time of the person's decision, and whether the site last answered
        the request before approving it."""
        try:
            approval = approval_of(self._config, entry.digest)
            if approval is not None:
                if entry.analyst and entry.analyst not in analysts_of(self._config, approval):
                    return Standing.OPEN, "", False
                before = entry.last <= approval.at
                standing = Standing.APPROVED if before or not entry.lacks_approval else Standing.OUTDATED
                return standing, quoted(approval.time), before
            refusal = refusal_of(self._config, entry.digest)
        except ConfigError as error:
            return Standing.OPEN, quoted(f"a decision cannot be read: {error}"), False
        if refusal is not None and refusal.is_of(entry.analyst):
            return Standing.REFUSED, quoted(refusal.time), False
        return (Standing.OPEN if entry.lacks_approval else Standing.ALLOWED), "", False

    def decision(self, name: str) -> Decision:
        """Return everything that is shown to the person who decides on a request. name: id of the request.
        Raises Refusal if the request is not stored, ConfigError if its terms cannot be read."""
        with self._deciding:
            entry, terms = self._find(name)
            looked = self._look(entry, terms)
        return Decision(request=self._request(entry), view=looked.view, seen=looked.digest)

    def _find(self, name: str) -> tuple[StoredRequest, Terms]:
        entry = self._asked.find(name)
        if entry is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no stored request with this name")
        return entry, self._asked.terms(entry)

    def _look(self, entry: StoredRequest, terms: Terms) -> TermsForDecision:
        """Return terms as shown to the person who decides."""
        counts, misfit = None, ""
        try:
            counts = self._count(terms)
        except (ConfigError, Refused) as error:
            misfit = str(error)
        notes = [BUSY] if counts is None and not misfit and self._config.data is not None else []
        analysts = (entry.analyst,) if entry.analyst and terms.task.by_analyst else ()
        return look(self._config, terms, analysts, counts, misfit, notes)

    def _count(self, terms: Terms) -> Counts | None:
        """Count the rows under these terms. Returns None if the party contributes no rows, or if a session is
        in progress."""
        config = self._config
        if config.data is None or config.party not in terms.holders or self._state.is_busy:
            return None
        read = self._rows.refresh()
        assert read is not None
        if config.workers is not None:
            check_under_workers(terms, config.party)
            return count_columns(config, terms, read, self._rows.rows)
        with self._rows.reading:  # a session offered meanwhile reads its rows before or after this
            return None if self._state.is_busy else count_rows(config, terms, read)

    def decide(self, name: str, approves: bool, digest: str, analyst: str, seen: str, by: str) -> None:
        """Approve or refuse a request as it was shown. Raises Refusal if anything has changed since,
        ConfigError if the rows do not fit the terms or the decision cannot be written.

        Args:
            name: id of the request.
            approves: True to approve, False to refuse.
            digest, analyst, seen: values from the page that was shown: the terms' digest, the analyst, and
                the digest of what was shown.
            by: owner of the token.
        """
        with self._deciding:
            entry, terms = self._find(name)
            if (entry.digest, entry.analyst) != (digest, analyst):
                raise Refusal(
                    HTTPStatus.CONFLICT, "this form belongs to a different request; reload the page"
                )
            about = {"terms": entry.digest, "by": by}
            about |= {"analyst": entry.analyst} if entry.analyst else {}
            looked = self._look(entry, terms)
            if approves and looked.view.fault and not looked.review.fault:
                raise ConfigError("approval-rows-misfit", looked.view.fault)  # its rows do not fit the terms
            if looked.digest != seen:
                reason = "this site's rules, decisions or sessions have changed since this page was shown"
                raise Refusal(HTTPStatus.CONFLICT, f"{reason}; reload it")
            if approves:
                approve(self._config, terms, looked.review, datetime.now(UTC))
                self._log.info("terms approved on the page", **about)
                return
            withdraw(self._config, entry.digest, entry.analyst if terms.task.by_analyst else "")
            refuse(self._config, entry.digest, entry.analyst, datetime.now(UTC))
            self._log.info("terms refused on the page", **about)

    def audit(self) -> tuple[Audit | None, str]:
        """Return the audit of the log and ''. If the log cannot be read, return None and the reason."""
        return _or_why(self._audit)

    def session(self, number: int) -> Session:
        """Return a session in the log by number, starting at 1. Raises Refusal if there is none, ConfigError
        if the log cannot be read."""
        sessions = self._audit().sessions
        if not 1 <= number <= len(sessions):
            raise Refusal(HTTPStatus.NOT_FOUND, "the log has no such session")
        return sessions[number - 1]

    def _audit(self) -> Audit:
        """Return the log's audit, which may be a few seconds old. Raises ConfigError if it cannot be read."""
        with self._reading:
            now = time.monotonic()
            if self._audited is None or now >= self._audited[0]:
                store = memory_path(self._config)
                entries = read_log(store, self._config.party)
                audited = audit_of(store, entries, sessions_of(entries))
                took = time.monotonic() - now
                self._audited = time.monotonic() + max(READ_AGAIN_SECONDS, 10 * took), audited
            return self._audited[1]

    def budget(self) -> tuple[SiteBudget | None, str]:
        """Return the privacy spent and ''. If it cannot be read, return None and the reason."""
        return _or_why(lambda: site_budget(self._config, MAX_CHARGES))

    def policy(self) -> list[Rule]:
        """Return the rules of the policy, for display."""
        policy = self._config.policy
        values = policy.model_dump(mode="json", exclude_none=True)
        return [
            Rule(
                key=key, value=_in_words(values.get(key)), is_set=key in policy.model_fields_set, purpose=why
            )
            for key, why in PROTECTS.items()
        ]


def _or_why(read: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of `read` and ''. If it raises ConfigError, return None and the reason."""
    try:
        return read(), ""
    except ConfigError as error:
        return None, str(error)


def _in_words(value: object) -> str:
    """Format a policy value as in the file, except that columns are listed by role."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "; ".join(f"{role}: {listed(names)}" for role, names in value.items() if names) or "none"
    return to_toml(value)


# ---- The page of a site: its table of routes, and its start and stop ------------------------------------
# Guarantees: it listens only on a loopback address, answers only to names of this machine, and requires a
# token for every page. A decision requires a login, a form from one of its pages, and an officer's token
# entered again. GET changes nothing. Handlers that read files or rows run outside the event loop. A failure
# here never ends a session.
# Raises: Refusal for readers without a valid token and for too many requests at a time; ConfigError for an
# address in use and an unreadable token file.


READERS = "viewer", OFFICER
MAX_AT_ONCE = 4
"""Maximum number of pages and decisions in progress or waiting, per token owner."""
DECISIONS = {"approve": True, "refuse": False}


def table(office: SitePageData) -> list[Row]:
    """Return the routes of the page. Handlers are plain functions, which run outside the event loop."""
    return [
        Row("/", lambda call: site.overview(office.overview())),
        Row("/requests", lambda call: site.requests(office.requests())),
        Row(
            "/requests/{name}",
            lambda call: site.decision(office.decision(call.request.path_params["name"]), _reader(call)),
        ),
        Row("/requests/{name}", partial(_decide, office), officer_form, "POST"),
        Row("/audit", lambda call: site.audit(*office.audit())),
        Row(
            "/audit/{number:int}",
            lambda call: site.session(office.session(call.request.path_params["number"])),
        ),
        Row("/budget", lambda call: site.budget(*office.budget())),
        Row("/policy", lambda call: site.policy(office.policy())),
    ]


def _reader(call: Call) -> Reader:
    return Reader(call.caller.name, call.caller.role == OFFICER, call.form_key)


def _decide(office: SitePageData, call: Call) -> Response:
    approves = DECISIONS.get(call.form("decision"))
    if approves is None:
        raise Refusal(HTTPStatus.BAD_REQUEST, "the decision must be to approve or to refuse")
    name, form = call.request.path_params["name"], call.form
    office.decide(name, approves, form("digest"), form("analyst"), form("seen"), call.caller.name)
    return RedirectResponse(f"/requests/{name}", HTTPStatus.SEE_OTHER)


ABOUT = About(
    "site's page",
    "the site's page is served",
    "page refused",
    site.SITE,
    lambda call, document: site.page(call.request.url.path, document, _reader(call)),
    site.POLICY,
    READERS,
    keyed=True,
    at_once=MAX_AT_ONCE,
)


def site_page(config: SitePageConfig, office: SitePageData, log: Any) -> WebApp:
    """Create the web application for a site's page, and start listening on its address. Raises ConfigError if
    it cannot listen there, or if the token file is missing."""
    if not config.tokens.exists():
        raise ConfigError(
            "page-tokens-missing",
            f"{config.tokens}: there is no such file, but readers of this site's page need a token; create "
            f"one with `fedboost keys token NAME --role {OFFICER} --file {config.tokens}`",
        )
    readers, refusals = "on this machine only; readers need a token", Refusals(log, None)
    where = config.listen, config.tokens, is_loopback_name, readers
    app = WebApp(ABOUT, table(office), *where, refusals, log)
    port = app.url.rpartition(":")[2]
    app.logins.cookie = f"fedboost-site-{port}"  # browsers share cookies between all ports of a machine
    return app
