"""Pages of a site, for the person who decides for it, drawn from facts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from fedboost.errors import printable, quoted
from fedboost.terms.session import TASKS
from fedboost.terms.terms import Terms
from fedboost.views.audit import (
    AuditFacts,
    SessionFacts,
    WarningFacts,
    end,
    no_warnings,
    session_text,
    verdict,
)
from fedboost.views.elements import items, left_out, paragraph, section, table
from fedboost.views.facts import ApprovalFacts, PrivacyFacts, RuleFacts, SiteFacts
from fedboost.views.markup import Markup, element, joined, lines
from fedboost.views.shell import STYLE as _CONSOLE
from fedboost.views.shell import TOKEN, Served, frame, refusal
from fedboost.views.status import time_of
from fedboost.views.words import counted, duration, listed, moment, size

# ---- The style of the pages of a site: that of reports and consoles, and lists of definitions -----------
# Promises: text can be read in light, dark, on narrow screens and on paper.


STYLE = (
    _CONSOLE
    + """
dl { display: grid; grid-template-columns: minmax(6rem, 9rem) 1fr; gap: .25rem 1rem; margin: .75rem 0; }
dt { font-weight: 600; }
dd { margin: 0; grid-column: 2; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { grid-column: 1; }
  dt { margin-top: .5rem; } }
"""
)


# ---- Facts that the pages of a site are made from: plain values, which the runtime fills ----------------
# Promises: nothing here reads, draws or formats.


Lines = Sequence[tuple[str, str]]
"""Keys, each with the words about it; one without a key goes on with the one before."""


class Standing(Enum):
    """What holds for a request at this site, in words."""

    APPROVED = "approved"
    REFUSED = "refused here by a person"
    ALLOWED = "allowed by the policy"
    OPEN = "not approved"
    OUTDATED = "approved, and refused since"

    @property
    def is_open(self) -> bool:
        """Tell if a person may want to decide."""
        return self in (Standing.OPEN, Standing.OUTDATED)


@dataclass
class LiveSession:
    """The session under way. since: seconds since 1970; rounds: those that ended; answers, bytes: that left
    this site."""

    name: str
    analyst: str
    terms: Terms
    since: float
    rounds: int = 0
    answers: int = 0
    bytes: int = 0


@dataclass
class LiveFacts:
    """What this site does now. connected: the aggregator is at hand."""

    connected: bool = False
    session: LiveSession | None = None


@dataclass(frozen=True)
class RequestFacts:
    """A request of an analyst. name: in addresses; analyst: '' without keys; first, last: when it was asked,
    seconds since 1970; session: '' of a check; answer: why this site did not take part, or would not, ''
    where it did, or would; decided: when a person decided on it, '' if nobody did;
    approved_since: the answer is from before the approval."""

    name: str
    digest: str
    analyst: str
    task: str
    parties: int
    first: float
    last: float
    session: str
    answer: str
    standing: Standing
    decided: str
    approved_since: bool = False


@dataclass(frozen=True)
class DecisionFacts:
    """A request with all that a person decides on. terms: in words; fault: why no yes can allow them; seen: a
    hash of what a yes would allow; notes: what else is to be known; file: of the approval, if there is
    one."""

    request: RequestFacts
    site: SiteFacts
    terms: Lines
    rules: ApprovalFacts
    fault: str
    seen: str
    notes: Sequence[str]
    file: str = ""


@dataclass(frozen=True)
class ChargeFacts:
    """A release that was charged to the budget. at: when, UTC; epsilon: of it alone, at its delta."""

    session: str
    release: str
    at: str
    epsilon: float


@dataclass(frozen=True)
class BudgetFacts:
    """What sessions spent of the privacy of this site's rows. charges: the latest first, of so many."""

    site: SiteFacts
    spent: PrivacyFacts
    charges: Sequence[ChargeFacts]
    charged: int


@dataclass(frozen=True)
class RuleOfPolicy:
    """A key of the policy. value: as the file has it, or its default; is_set: the file has it."""

    key: str
    value: str
    is_set: bool
    purpose: str


@dataclass(frozen=True)
class OverviewFacts:
    """A site now. rows: how many it has, and of which table, '' for a key holder; aggregator: its address;
    requests: the latest first; nothing_yet: no terms are allowed yet; fault: why the budget
    cannot be told, where `budget` is None."""

    party: str
    aggregator: str
    rows: str
    live: LiveFacts
    requests: Sequence[RequestFacts]
    budget: BudgetFacts | None
    fault: str
    nothing_yet: bool
    time: float


@dataclass(frozen=True)
class Reader:
    """Who reads a page. name: of the token; may_decide: it is an officer's; form_key: what a form of a page
    for this reader carries, '' where no form is for it."""

    name: str
    may_decide: bool
    form_key: str


# ---- The shell of every page of a site: head, links between pages ---------------------------------------
# Promises: a page has no script, and asks its own origin alone, for its style and its icon; what comes from
# outside is text and never markup.


SITE = Served(
    "fedboost site",
    "this site's own process",
    {
        "/": "Overview",
        "/requests": "Requests",
        "/audit": "What has left",
        "/budget": "Budget",
        "/policy": "Policy",
    },
)
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""The content security policy of every page: no script runs, whatever it holds."""


def document(path: str, title: str, *content: str, reader: Reader | None = None) -> str:
    """Return a page. path: its own; reader: who logged in, None where nobody did."""
    header = _log_out(reader) if reader is not None and reader.form_key else Markup("")
    return frame(SITE, path, title, joined(*content), header, linked=reader is not None)


def form_key(reader: Reader) -> Markup:
    """Return the field by which a form is known to be of a page for this reader."""
    return Markup(f'<input type="hidden" name="key" value="{reader.form_key}">')


def refused(status: int, reason: str) -> str:
    """Return the page of a request that was refused; where a token is missing, with a form for it."""
    title, said = refusal(status, reason)
    back = paragraph(element("a", "To the overview", href="/"))
    return document("", title, said, _log_in() if status == 401 else back)


def _log_in() -> Markup:
    how = "Who runs this site makes a token with: fedboost keys token NAME --role officer"
    button = paragraph(element("button", "Log in"))
    return element("form", paragraph(how), TOKEN, button, method="post", action="/login")


def _log_out(reader: Reader) -> Markup:
    may = "may approve and refuse" if reader.may_decide else "may read"
    words = f"{reader.name}: {may}. "
    return element(
        "form", words, form_key(reader), element("button", "Log out"), method="post", action="/logout"
    )


# ---- The requests of analysts, one of them with its terms in words --------------------------------------
# And the form by which a person decides.
# Promises: what would be allowed is shown whole before the button, and the form names it.


DIGITS = 8
"""Of a digest, in a table."""
BEFORE = "before the approval"
WITHOUT_KEYS = "anybody: connections have no keys"


def requests_page(requests: Sequence[RequestFacts], reader: Reader) -> str:
    """Return the page of the requests."""
    note = paragraph(
        "Requests for a session, and questions whether this site would take part, the latest first. The "
        "oldest are dropped where there are many."
    )
    return document(
        "/requests",
        "Requests",
        section("undecided", "Not approved", note, requests_table(_open(requests), "Not approved")),
        section("others", "All others", requests_table(_others(requests), "All others")),
        reader=reader,
    )


def _open(requests: Iterable[RequestFacts]) -> list[RequestFacts]:
    return [request for request in requests if request.standing.is_open]


def _others(requests: Iterable[RequestFacts]) -> list[RequestFacts]:
    return [request for request in requests if not request.standing.is_open]


def moment_of(time: str) -> str:
    """Return the time of a decision, as its file has it, for people."""
    return quoted(time).replace("T", " ").replace("+00:00", " UTC")


def requests_table(requests: Sequence[RequestFacts], caption: str) -> Markup:
    """Return a table of requests."""
    if not requests:
        return left_out("There are none.")
    rows = (
        (
            element("a", request.digest[:DIGITS], href=f"/requests/{request.name}"),
            request.analyst or WITHOUT_KEYS,
            f"{time_of(int(request.last))} UTC",
            f"to {request.task}, {counted(request.parties, 'party', 'parties')}",
            request.standing.value,
            _answer(request),
        )
        for request in requests
    )
    headings = ["terms", "analyst", "asked last", "what for", "at this site", "last answer"]
    return table(caption, headings, rows, (), folded=False)


def _answer(request: RequestFacts) -> str:
    if request.answer:
        old = f"{BEFORE}: " if request.approved_since else ""
        return f"{old}{quoted(request.answer, 200)}"
    return "it took part" if request.session else "it would take part"


def decision_page(facts: DecisionFacts, reader: Reader) -> str:
    """Return the page of one request."""
    request = facts.request
    return document(
        f"/requests/{request.name}",
        "A request",
        section("request", "The request", _request(request)),
        section("terms", "The terms in words", _lines(_site(facts.site)), _lines(facts.terms)),
        section("rules", "This site's policy", *_rules(facts)),
        section("decision", "Decide", *_decision(facts, reader)),
        reader=reader,
    )


def _request(request: RequestFacts) -> Markup:
    last = f"last answer, {BEFORE}" if request.approved_since and request.answer else "last answer"
    decided = f", {moment_of(request.decided)}" if request.decided else ""
    entries = {
        "analyst": f"{request.analyst}, by signature" if request.analyst else WITHOUT_KEYS,
        "digest of the terms": element("code", request.digest),
        "at this site": f"{request.standing.value}{decided}",
        "asked first": f"{time_of(int(request.first))} UTC",
        "asked last": f"{time_of(int(request.last))} UTC",
        "asked for": f"session {request.session}"
        if request.session
        else "a check: would this site take part",
        last: request.answer or _answer(request),
    }
    return table("The request in short", ["what", "value"], entries.items(), (), folded=False)


def _site(facts: SiteFacts) -> Iterator[tuple[str, str]]:
    """Yield what `fedboost approve` says of the site."""
    if facts.file is not None:
        yield "this site", f"{facts.name}, {facts.rows} rows of {facts.file}"
    if facts.renamed:
        yield "its columns", facts.renamed
    if facts.predicted is None:
        yield "sessions", f"{facts.took_part} of {facts.max_sessions} used (max_sessions)"
    else:
        used, most = facts.predicted
        yield "predictions", f"{used:,} of {most:,} rows used (max_predicted_rows)"


def _lines(lines: Iterable[tuple[str, str]]) -> Markup:
    """Return keys and words as a list of definitions, whole."""
    drawn = list[Markup]()
    for key, words in lines:
        if key:
            drawn.append(element("dt", key))
        drawn += [element("dd", piece) for piece in _pieces(words)]
    return element("dl", *drawn)


def _pieces(words: str) -> Iterator[str]:
    """Yield words in pieces that are shown whole, however many names there are."""
    most = 3000
    while len(words) > most:
        cut = words.rfind(" ", 1, most)
        cut = most if cut < 0 else cut
        yield words[:cut]
        words = words[cut:].lstrip(" ")
    yield words


def _rules(facts: DecisionFacts) -> Iterator[Markup]:
    rules = facts.rules.rules
    if not rules and not facts.rules.impossible:
        yield paragraph("The policy has nothing against these terms. A yes pins their names.")
    if rules:
        count = counted(len(rules), "rule")
        them = "it" if len(rules) == 1 else "them"
        yes = "" if facts.fault else f" A yes allows {them} for these terms alone."
        if facts.request.standing is Standing.APPROVED:
            yes = f" The approval allows {them} for these terms alone."
        yield paragraph(f"The terms break {count} of the policy.{yes}")
    for rule in rules:
        yield element("h3", f"{rule.key} = {rule.value}")
        yield items(_rule(rule))
    if facts.rules.earlier is not None:
        time, kept = facts.rules.earlier
        names = f" for {listed(kept)}" if kept else ""
        yield paragraph(f"These terms are approved since {moment_of(time)}{names}.")


def _rule(rule: RuleFacts) -> Iterator[str]:
    yield f"{rule.reason[:1].upper()}{rule.reason[1:]}."
    if rule.names:
        yield f"All {len(rule.names)}: {listed(rule.names)}."
    yield f"Why the rule: {rule.purpose}."
    if rule.instead:
        yield f"If you say no, the analyst can: {rule.instead}."
    if rule.loud:
        yield rule.loud


def _decision(facts: DecisionFacts, reader: Reader) -> Iterator[Markup]:
    request = facts.request
    if facts.notes:
        yield element("div", items(facts.notes), class_="warnings")
    if facts.fault:
        yield paragraph(
            f"No yes can allow these terms: {facts.fault}{'' if facts.fault.endswith('.') else '.'}"
        )
    if request.standing is Standing.APPROVED:
        yield paragraph(
            "These terms are approved for this analyst, by this file: ", element("code", facts.file)
        )
    if not reader.may_decide:
        yield left_out("This token may read. A token of the role officer may approve and refuse.")
        return
    if not reader.form_key:
        yield left_out("To decide, log in with a browser.")
        return
    yield _form(facts, reader)


def _form(facts: DecisionFacts, reader: Reader) -> Markup:
    request = facts.request
    whom = ", ".join(facts.rules.analysts) or "whoever asks"
    label = "the label holder" if not (request.analyst or TASKS[request.task].by_analyst) else whom
    fields = {"digest": request.digest, "analyst": request.analyst, "seen": facts.seen}
    hidden = (_field(name, value) for name, value in fields.items())
    yes = element("button", f"Approve for {label}", name_="decision", value="approve")
    no = element("button", "Refuse", name_="decision", value="refuse")
    known, approved = request.standing is Standing.REFUSED, request.standing is Standing.APPROVED
    may_approve = not facts.fault and not approved
    buttons = joined(yes if may_approve else "", " ", "" if known else no)
    if facts.fault and known:
        return left_out("These terms were refused here.")
    approve = (
        "Approve writes what the command fedboost approve writes: these terms, of the digest above, and no "
        "others may be used from the next offer on. "
    )
    about = paragraph(
        approve if may_approve else "",
        "Refuse is remembered: this site answers this analyst that a person refused these terms"
        f"{', and the approval is withdrawn' if approved else ''}. Give the token again: the log says whose "
        "it was.",
    )
    return element(
        "form",
        about,
        *hidden,
        form_key(reader),
        TOKEN,
        paragraph(buttons),
        method="post",
        action=f"/requests/{request.name}",
    )


def _field(name: str, value: str) -> Markup:
    """Return a field of a form that is not shown. value: a digest, a hash or a name of a certificate."""
    start = element("input", type="hidden", name_=name, value=value)
    return Markup(start.removesuffix("</input>"))


# ---- The budget of a site: what sessions spent of the privacy of its rows, what is left, each release ----
# Promises: the figures of `fedboost privacy budget`.


BUDGET_DIGITS = 8
"""Of the hash of a release."""


def budget_page(facts: BudgetFacts | None, fault: str, reader: Reader) -> str:
    """Return the page of the budget. fault: why there are no facts."""
    parts = [section("left", "What is left", paragraph(left_of(facts, fault)))]
    if facts is not None:
        parts.append(section("spent", "What was spent", *_spent(facts)))
        parts.append(section("releases", "Releases with noise", *_releases(facts)))
    return document("/budget", "Budget", *parts, reader=reader)


def left_of(facts: BudgetFacts | None, fault: str) -> str:
    """Return what is left, in a sentence or two."""
    if facts is None:
        return f"It cannot be told: {fault}"
    site, spent = facts.site, facts.spent
    sessions = f"{site.took_part} of {counted(site.max_sessions, 'session')} were used (max_sessions)."
    if spent.left is None:
        return (
            f"There is no budget: no session is refused for what it would spend. Set epsilon and delta under "
            f"[policy] for one. {sessions}"
        )
    return (
        f"Epsilon {spent.left:.4g} at delta {spent.delta:g} of {spent.budget:g}: as much one more session "
        f"may have. {sessions}"
    )


def _spent(facts: BudgetFacts) -> Iterator[Markup]:
    spent = facts.spent
    entries = {
        "rows": spent.dataset,
        "sessions": str(spent.sessions),
        "sessions in which the parties never met": str(spent.never_began),
        "sessions with noise": str(spent.with_noise),
        "releases": str(spent.releases),
        "spent": f"epsilon {spent.spent:.4g} at delta {spent.delta:g}",
    }
    yield table(
        "What was spent of the privacy of these rows", ["what", "value"], entries.items(), (), folded=False
    )
    yield paragraph(
        "Epsilons do not add, their costs do: what is left is more than the difference. Sessions without "
        "noise spend nothing that is counted here, and nothing bounds what they tell of a row."
    )


def _releases(facts: BudgetFacts) -> Iterator[Markup]:
    if not facts.charges:
        yield left_out("No release was charged.")
        return
    if facts.charged > len(facts.charges):
        yield paragraph(f"The last {len(facts.charges)} of {facts.charged}.")
    rows = (
        (
            moment(charge.at),
            quoted(charge.session, 24),
            charge.release[:BUDGET_DIGITS],
            f"{charge.epsilon:.3g}",
        )
        for charge in facts.charges
    )
    headings = ["when (UTC)", "session", "release", "epsilon alone"]
    yield table("Releases that were charged", headings, rows, (3,))


# ---- The overview of a site: what runs now, what waits for a decision, what is left of the budget -------
# Promises: the facts of one moment, which the page names.


RECENT = 10


def overview_page(facts: OverviewFacts, reader: Reader) -> str:
    """Return the overview."""
    undecided = [request for request in facts.requests if request.standing.is_open]
    return document(
        "/",
        f"Site {facts.party}",
        _as_of(facts),
        *_advice(facts),
        section("now", "Now", _now(facts.live, facts.time)),
        section("undecided", "Not approved", *_undecided(facts, len(undecided))),
        section("left", "Budget", paragraph(left_of(facts.budget, facts.fault)), _more("/budget", "Budget")),
        section("site", "This site", _about_site(facts)),
        reader=reader,
    )


def _as_of(facts: OverviewFacts) -> Markup:
    refresh = element("a", "Refresh", href="/")
    return element("p", f"As of {time_of(int(facts.time))} UTC. ", refresh, class_="state")


def _advice(facts: OverviewFacts) -> Iterator[Markup]:
    if facts.nothing_yet:
        text = "Every session is refused: nothing is approved here, and the policy does not name parties, "
        text += "analysts and columns. Approve a request below, or write a policy into the site's file."
        yield element("div", items([text]), class_="warnings")


def _now(live: LiveFacts, time: float) -> Markup:
    at_hand = f"The aggregator is {'' if live.connected else 'not '}at hand."
    session = live.session
    if session is None:
        return joined(paragraph(at_hand), left_out("No session is under way."))
    terms = session.terms
    entries = {
        "session": element("code", session.name),
        "analyst": session.analyst or WITHOUT_KEYS,
        "terms": element("code", f"{terms.digest[:12]}…"),
        "what for": f"to {terms.task.name}, {counted(len(terms.parties), 'party', 'parties')}",
        "since": f"{time_of(int(session.since))} UTC, {duration(max(time - session.since, 0.0))}",
        "rounds": f"{session.rounds} of {terms.trees.rounds}",
        "answers that left": str(session.answers),
        "bytes that left": size(session.bytes),
    }
    whole = table("The session under way", ["what", "value"], entries.items(), (), folded=False)
    return joined(paragraph(at_hand), whole)


def _undecided(facts: OverviewFacts, count: int) -> Iterator[Markup]:
    if not count:
        yield left_out("No request waits for a decision.")
    else:
        shown = [request for request in facts.requests if request.standing.is_open][:RECENT]
        yield paragraph(f"{counted(count, 'request')} of analysts not approved here; open one to decide.")
        yield requests_table(shown, "Not approved")
    yield _more("/requests", "All requests")


def _more(to: str, words: str) -> Markup:
    return paragraph(element("a", words, href=to))


def _about_site(facts: OverviewFacts) -> Markup:
    entries = {
        "party": facts.party,
        "rows": facts.rows or "none: a key holder",
        "aggregator": facts.aggregator,
    }
    return table("This site in short", ["what", "value"], entries.items(), (), folded=False)


# ---- The policy of a site in words: each rule with its value, and what it is for ------------------------
# Promises: every key of the policy.


def policy_page(rules: Sequence[RuleOfPolicy], reader: Reader) -> str:
    """Return the page of the policy."""
    own = [rule for rule in rules if rule.is_set]
    others = [rule for rule in rules if not rule.is_set]
    about = paragraph(
        "This site takes part under terms that break none of these rules, and under terms that a person "
        "approved. The rules stand under [policy] in the site's file; they are read when the site starts."
    )
    return document(
        "/policy",
        "Policy",
        section("own", "Rules that the file has", about, _policy_rules(own, "Rules that the file has")),
        section("defaults", "Rules by default", _policy_rules(others, "Rules by default")),
        reader=reader,
    )


def _policy_rules(rules: Sequence[RuleOfPolicy], caption: str) -> Markup:
    if not rules:
        return paragraph("None.")
    rows = ((rule.key, rule.value, rule.purpose) for rule in rules)
    return table(caption, ["rule", "value", "what for"], rows, (), folded=False)


# ---- What has left a site, by its own audit log: warnings first, then session by session ----------------
# Promises: the words of `fedboost audit`.


MOST = 200
"""Sessions in the table."""


def audit_page(facts: AuditFacts | None, fault: str, reader: Reader) -> str:
    """Return the page of the audit log. fault: why there are no facts."""
    if facts is None:
        said = element("div", items([fault]), class_="warnings", role="alert")
        return document("/audit", "What has left", said, reader=reader)
    return document(
        "/audit",
        "What has left",
        section("log", "The log", *_log(facts)),
        section("warnings", "Warnings", *_warnings(facts)),
        section("sessions", "Sessions", *_sessions(facts)),
        reader=reader,
    )


def session_page(number: int, session: SessionFacts, reader: Reader) -> str:
    """Return the page of one session. number: in the log, from 1."""
    text = "\n".join(session_text(session, listed=True))
    body = element("pre", lines(text), tabindex="0", role="group", aria_label="The session")
    back = paragraph(element("a", "All sessions", href="/audit"))
    title = f"Session {quoted(session.name.removeprefix('session-'), 8)}"
    return document(f"/audit/{number}", title, back, body, reader=reader)


def _log(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.entries:
        yield left_out("The log is empty: nothing has left.")
        return
    yield paragraph(f"Unbroken, {counted(facts.entries, 'entry', 'entries')}: none was changed inside it.")
    yield paragraph("The last entry has the hash ", element("code", facts.last_hash), ".")
    yield paragraph(
        "Keep it elsewhere: whether the end of the log was cut off or rewritten shows with ",
        element("code", "fedboost audit LOG --expect HASH"),
        ".",
    )


def _warnings(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.warnings:
        yield left_out(no_warnings(facts))
        return
    for number, warning in enumerate(facts.warnings, 1):
        yield element(
            "div", element("h3", f"{number}. {warning.kind}"), items(_warning(warning)), class_="warnings"
        )


def _warning(warning: WarningFacts) -> Iterator[str]:
    yield printable(warning.seen)
    yield printable(warning.meaning)
    yield f"What to do: {printable(warning.action)}"
    yield f"Kind: {warning.kind_meaning}"


def _sessions(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.sessions:
        yield left_out("No session was recorded.")
        return
    shown = [*enumerate(facts.sessions, 1)][-MOST:]
    if len(shown) < len(facts.sessions):
        yield paragraph(f"The last {len(shown)} of {len(facts.sessions)}.")
    rows = (
        (
            f"{moment(session.begin)[:16]}",
            element("a", quoted(session.name, 24), href=f"/audit/{number}"),
            str(len(session.answers)),
            end(session),
            verdict(session),
        )
        for number, session in reversed(shown)
    )
    headings = ["first heard of (UTC)", "session", "answers", "ended", "verdict"]
    yield table("Sessions of the log", headings, rows, (2,), folded=False)
