"""The requests of analysts, one of them with its terms in words, and the form by which a person decides.

Promises: what would be allowed is shown whole before the button, and the form names it.
Refuses: nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from fedboost.errors import quoted
from fedboost.people.console.frame import TOKEN
from fedboost.people.console.site.facts import DecisionFacts, Reader, RequestFacts, Standing
from fedboost.people.console.site.shell import document, form_key
from fedboost.people.facts import RuleFacts, SiteFacts
from fedboost.people.report.markup import Markup, element, items, joined, left_out, paragraph, table
from fedboost.people.report.skeleton import section
from fedboost.people.status import time_of
from fedboost.people.text import counted, listed

DIGITS = 8
"""Of a digest, in a table."""
BEFORE = "before the approval"
WITHOUT_KEYS = "anybody: connections have no keys"


def page(requests: Sequence[RequestFacts], reader: Reader) -> str:
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
    label = "the label holder" if not request.analyst and request.task == "predict" else whom
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
