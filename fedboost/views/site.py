"""Web pages of a site, for the person who decides on its behalf: overview, requests, audit log, budget and
policy.

Guarantees: a page has no script, and loads only its style sheet and icon, from its own origin. Content from
outside is text, never markup. What an approval would allow is shown in full above the button.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedboost.errors import printable, quoted
from fedboost.results.audit import Audit, Session
from fedboost.results.site import Decision, Overview, Request, Rule, SiteBudget, Spent, Standing
from fedboost.terms.session import TASKS
from fedboost.views import audit as log
from fedboost.views.approval import approval
from fedboost.views.as_html import TOKEN, Served, served_page
from fedboost.views.document import (
    Badge,
    Block,
    Code,
    Document,
    Entries,
    Items,
    Line,
    Link,
    Markup,
    Paragraph,
    Section,
    Shortened,
    State,
    Table,
    Verdict,
    element,
    note,
    unless_empty,
)
from fedboost.views.words import counted, duration, moment, shorten, size, time_of

# ---- The frame of every page ----------------------------------------------------------------------------


SITE = Served(
    "fedboost site",
    "this site's own process",
    "The operator of this site creates a token with: fedboost keys token NAME --role officer",
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
"""Content security policy of every page. It prevents scripts from running, whatever the page contains."""


@dataclass(frozen=True)
class Reader:
    """The person who reads a page. name: name of the token's owner; may_decide: True if the token has the
    role officer; form_key: CSRF token in this reader's forms, "" for a reader without forms."""

    name: str
    may_decide: bool
    form_key: str


def page(path: str, document: Document, reader: Reader) -> str:
    """Return a document as an HTML page. path: path of the page; reader: the person who reads the page."""
    may = "may approve and refuse" if reader.may_decide else "may read"
    caller = f"{reader.name}: {may}. " if reader.form_key else ""
    return served_page(SITE, path, document, caller, form_key(reader))


def form_key(reader: Reader) -> Markup:
    """Return the hidden form field with the CSRF token: proof that a form is from this reader's page."""
    return Markup(f'<input type="hidden" name="key" value="{reader.form_key}">')


# ---- Requests, and the page of one request with the form for a decision ----------------------------------


DIGITS = 8
"""Number of digits of a digest that a table shows."""
MAX_ANSWER = 200
"""Maximum length of an answer that is shown without folding."""
BEFORE = "before the approval"
WITHOUT_KEYS = "anyone: connections have no keys"
STATES: dict[Standing, State] = {
    Standing.APPROVED: "good",
    Standing.ALLOWED: "good",
    Standing.REFUSED: "bad",
    Standing.OPEN: "unclear",
    Standing.OUTDATED: "unclear",
}


def requests(known: Sequence[Request]) -> Document:
    """Return the page that lists analysts' requests, undecided ones first."""
    waiting = [request for request in known if request.standing.is_open]
    others = [request for request in known if not request.standing.is_open]
    about = "Requests for sessions, and checks of whether this site would take part, most recent first. "
    blocks: list[Block] = [
        _waiting(len(waiting)),
        Section("undecided", "Not approved", [requests_table(waiting, "Requests to decide on")]),
        Section("others", "All others", [requests_table(others, "Requests that are decided or allowed")]),
        note(about, "If there are many, the oldest ones are dropped."),
    ]
    return Document("Requests", "", blocks)


def _waiting(count: int) -> Verdict:
    if not count:
        return Verdict("No request is waiting for a decision.", "good")
    wait = "is waiting" if count == 1 else "are waiting"
    return Verdict(
        f"{counted(count, 'request')} {wait} for a decision.", "unclear", ["Open a request to decide on it."]
    )


def requests_table(known: Sequence[Request], caption: str) -> Block:
    if not known:
        return note("No requests.")
    rows = [
        (
            Link(request.digest[:DIGITS], f"/requests/{request.name}"),
            request.analyst or WITHOUT_KEYS,
            f"{time_of(int(request.last))} UTC",
            f"to {request.task}, {counted(request.parties, 'party', 'parties')}",
            standing(request),
            _answer(request),
        )
        for request in known
    ]
    headings = ["terms", "analyst", "last request", "purpose", "at this site", "last answer"]
    return Table(caption, headings, rows, (), folded=False)


def standing(request: Request) -> Badge:
    """Return the status of a request at this site as a badge."""
    return Badge(request.standing.value, STATES[request.standing])


def _answer(request: Request) -> Line:
    if not request.answer:
        return "this site took part" if request.session else "this site would take part"
    answer = f"{BEFORE}: {request.answer}" if request.approved_since else request.answer
    return answer if len(answer) <= MAX_ANSWER else Shortened(shorten(answer, MAX_ANSWER), answer)


def decision(decided: Decision, reader: Reader) -> Document:
    """Return the page of one request: the facts on which to decide, and the form for the decision."""
    request, terms = decided.request, approval(decided.view)
    decided_at = f", {moment(request.decided)}" if request.decided else ""
    blocks = [
        Paragraph((standing(request), f"{decided_at} Analyst: {request.analyst or WITHOUT_KEYS}.")),
        *terms.blocks,
        Section("request", "The request", [Entries([*_request(request)])]),
        Section("decision", "Decide", [*_decide(decided, reader)]),
    ]
    return Document("A request", f"to {request.task}", blocks)


def _request(request: Request) -> Iterator[tuple[str, Line]]:
    yield "analyst", f"{request.analyst}, by signature" if request.analyst else WITHOUT_KEYS
    yield "first request", f"{time_of(int(request.first))} UTC"
    yield "last request", f"{time_of(int(request.last))} UTC"
    yield "for", f"session {request.session}" if request.session else "a check: would this site take part?"
    last = f"last answer, {BEFORE}" if request.approved_since and request.answer else "last answer"
    yield last, request.answer or _answer(request)


def _decide(decided: Decision, reader: Reader) -> Iterator[Block]:
    if decided.view.fault:
        yield Paragraph("No approval can allow these terms; see above.")
    if decided.request.standing is Standing.APPROVED:
        back = f"fedboost approve {decided.request.digest[:12]} --withdraw"
        yield Paragraph(
            ("These terms are approved for this analyst. To withdraw the approval, run ", Code(back), ".")
        )
    if not reader.may_decide:
        yield note("This token is read-only. A token with the role officer can approve and refuse.")
    elif not reader.form_key:
        yield note("To decide, log in with a browser.")
    elif decided.view.fault and decided.request.standing is Standing.REFUSED:
        yield note("These terms were refused at this site.")
    else:
        yield _form(decided, reader)


def _form(decided: Decision, reader: Reader) -> Markup:
    request, view = decided.request, decided.view
    whom = ", ".join(view.analysts) or "any analyst"
    label = "the label holder" if not (request.analyst or TASKS[request.task].by_analyst) else whom
    fields = {"digest": request.digest, "analyst": request.analyst, "seen": decided.seen}
    hidden = (_field(name, value) for name, value in fields.items())
    yes = element("button", f"Approve for {label}", name_="decision", value="approve")
    no = element("button", "Refuse", name_="decision", value="refuse")
    known, approved = request.standing is Standing.REFUSED, request.standing is Standing.APPROVED
    may_approve = not view.fault and not approved
    approve = (
        "Approve has the same effect as the command fedboost approve: from the next request on, exactly the "
        "terms with the digest above are allowed. "
    )
    withdrawn = ", and the approval is withdrawn" if approved else ""
    about = element(
        "p",
        approve if may_approve else "",
        "Refuse is recorded: this site replies to this analyst that a person refused these terms"
        f"{withdrawn}. Enter the token again, because the log records who decided.",
    )
    buttons = element("p", yes if may_approve else "", " ", "" if known else no)
    parts = about, *hidden, form_key(reader), TOKEN, buttons
    return element("form", *parts, method="post", action=f"/requests/{request.name}")


def _field(name: str, value: str) -> Markup:
    """Return a hidden form field. value: a digest, a hash, or a name from a certificate."""
    start = element("input", type="hidden", name_=name, value=value)
    return Markup(start.removesuffix("</input>"))


# ---- Budget ---------------------------------------------------------------------------------------------


def budget(result: SiteBudget | None, fault: str = "") -> Document:
    """Return the page of the privacy budget. fault: why the budget is unknown, if `result` is None."""
    if result is None:
        return Document("Budget", "", [left(None, fault)])
    blocks = unless_empty(
        left(result),
        _datasets(result.datasets),
        note(
            "Epsilons are not additive, but their costs are, so more is left than the difference of the "
            "epsilons. Sessions without noise are not charged to the budget, and nothing limits what they "
            "reveal about a row."
        ),
        None if result.charges is None else _charges(result),
    )
    return Document("Budget", f"rows {result.name}", blocks)


def left(result: SiteBudget | None, fault: str = "") -> Verdict:
    """Return a sentence about what is left of the budget. fault: why it is unknown, if `result` is None."""
    if result is None:
        return Verdict("It is not known how much of the budget is left.", "bad", [fault])
    spent = result.own
    used = f"{spent.took_part} of at most {result.max_sessions} (max_sessions)"
    took_part = f"Sessions with dataset {result.name}: {used}."
    if spent.left is None:
        more = "No session is refused for its cost. To create a budget, set epsilon and delta under [policy]."
        return Verdict("This site has no privacy budget.", "unclear", [more, took_part])
    words = f"Epsilon {spent.left:.4g} of {spent.budget:g} at delta {spent.delta:g} is left."
    state: State = "good" if spent.left else "bad"
    return Verdict(words, state, ["The next session may spend up to this much.", took_part])


def _datasets(datasets: Sequence[Spent]) -> Table:
    rows = [
        (
            each.dataset,
            str(each.sessions),
            str(each.never_began),
            str(each.with_noise),
            str(each.releases),
            f"{each.spent:.4g}",
            f"{each.delta:g}",
            "-" if each.left is None else f"{each.left:.4g}",
        )
        for each in datasets
    ]
    counts = "sessions", "never started", "with noise", "releases"
    headings = ["dataset", *counts, "spent", "at delta", "left"]
    return Table("Spending by dataset", headings, rows, folded=False)


def _charges(result: SiteBudget) -> Section:
    charges, charged = result.charges or (), result.own.releases
    if not charges:
        return Section("releases", "Releases with noise", [note("No releases were charged.")])
    rows = [
        (moment(each.at), quoted(each.session, 24), each.release[:DIGITS], f"{each.epsilon:.3g}")
        for each in charges
    ]
    headings = ["when (UTC)", "session", "release", "epsilon"]
    table = Table("Releases charged to the budget", headings, rows, (3,))
    last = note(f"The last {len(charges)} of {charged} releases.") if charged > len(charges) else None
    return Section("releases", "Releases with noise", unless_empty(last, table))


# ---- Overview -------------------------------------------------------------------------------------------


RECENT = 10
"""Maximum number of requests on the overview."""


def overview(now: Overview) -> Document:
    """Return the overview page: undecided requests, the current session, and the remaining budget."""
    waiting = [request for request in now.requests if request.standing.is_open]
    nothing = (
        "Every session is refused: no terms are approved at this site, and the policy does not name parties, "
        "analysts and columns. Approve a request below, or add a policy to the site's file."
    )
    table = requests_table(waiting[:RECENT], "Requests to decide on") if waiting else None
    about = [("party", now.party), ("rows", now.rows or "none: a key holder"), ("aggregator", now.aggregator)]
    blocks = unless_empty(
        Paragraph((f"As of {time_of(int(now.time))} UTC. ", Link("Refresh", "/"))),
        Items([nothing], warnings=True) if now.nothing_yet else None,
        _waiting(len(waiting)),
        table,
        Paragraph(Link("All requests", "/requests")),
        Section("now", "Now", [*_now(now)]),
        Section("left", "Budget", [left(now.budget, now.fault), Paragraph(Link("Budget", "/budget"))]),
        Section("site", "This site", [Entries(about)]),
    )
    return Document(f"Site {now.party}", "", blocks)


def _now(now: Overview) -> Iterator[Block]:
    session = now.live.session
    connected = Badge("connected", "good") if now.live.connected else Badge("not connected", "bad")
    yield Paragraph(("Aggregator: ", connected))
    if session is None:
        yield note("No session is running.")
        return
    terms = session.terms
    yield Entries(
        [
            ("session", Code(session.name)),
            ("analyst", session.analyst or WITHOUT_KEYS),
            ("terms", Code(f"{terms.digest[:12]}…")),
            ("purpose", f"to {terms.task.name}, {counted(len(terms.parties), 'party', 'parties')}"),
            ("since", f"{time_of(int(session.since))} UTC, {duration(max(now.time - session.since, 0.0))}"),
            ("rounds", f"{session.rounds} of {terms.trees.rounds}"),
            ("answers sent", str(session.answers)),
            ("bytes sent", size(session.bytes)),
        ]
    )


# ---- Policy ---------------------------------------------------------------------------------------------


def policy(rules: Sequence[Rule]) -> Document:
    """Return the page of the policy: every rule with its value and its purpose."""
    own = [rule for rule in rules if rule.is_set]
    others = [rule for rule in rules if not rule.is_set]
    about = (
        "This site takes part under terms that break none of these rules, and under terms that a person "
        "approved. Rules are set under [policy] in the site's file, which is read when the site starts."
    )
    blocks = [note(about), _rules(own, "Rules set in the file"), _rules(others, "Default rules")]
    return Document("Policy", "", blocks)


def _rules(rules: Sequence[Rule], caption: str) -> Block:
    if not rules:
        return note(f"{caption}: none.")
    rows = [(rule.key, rule.value, rule.purpose) for rule in rules]
    return Table(caption, ["rule", "value", "purpose"], rows, ())


# ---- What has left the site: the documents of `fedboost audit` ------------------------------------------


def audit(result: Audit | None, fault: str) -> Document:
    """Return the page with the audit of the log. fault: why the log cannot be read, if `result` is None."""
    if result is None:
        unread = Verdict("The log cannot be read.", "bad", [printable(fault)])
        return Document("What has left", "", [unread])
    entries = counted(result.entries, "entry", "entries")
    return replace(log.audit(result), lead=f"an unbroken log of {entries}")


def session(each: Session) -> Document:
    """Return the page of one session in the audit log."""
    document = log.session(each)
    return Document(
        document.title, document.lead, [Paragraph(Link("All sessions", "/audit")), *document.blocks]
    )
