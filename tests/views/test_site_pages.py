"""The pages of a site from facts alone: what runs now, and that any text stays text."""

import dataclasses

import pytest
from sites import terms

from fedboost.views import site as audit
from fedboost.views import site as overview
from fedboost.views import site as requests
from fedboost.views.audit import AuditFacts, WarningFacts
from fedboost.views.facts import ApprovalFacts, RuleFacts, SiteFacts
from fedboost.views.site import (
    DecisionFacts,
    LiveFacts,
    LiveSession,
    OverviewFacts,
    Reader,
    RequestFacts,
    Standing,
)

JO = Reader("jo", True, "ab" * 32)
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egnp.exe",
    "</dd></table>",
]
NOW = 1_795_000_000.0


def request(text="marie", standing=Standing.OPEN, answer="no"):
    return RequestFacts("ab" * 16, "cd" * 32, text, "train", 3, NOW, NOW, text, answer, standing, "")


def seen(live, found=()):
    return overview.overview_page(
        OverviewFacts("north", "localhost:7070", "93 of x.csv", live, found, None, "no file", False, NOW), JO
    )


def test_the_overview_says_what_runs_now():
    assert "The aggregator is not at hand." in seen(LiveFacts())
    session = LiveSession("session-1", "marie", terms(["north"], rounds=40), NOW - 90, 12, 37, 123_456)
    page = seen(LiveFacts(True, session))
    for words in ("The aggregator is at hand.", "marie", "12 of 40", "37", "123.5 kB", "90 s"):
        assert words in page
    assert "It cannot be told: no file" in page


def test_a_session_without_keys_is_anybodys():
    session = LiveSession("session-1", "", terms(["north"]), NOW)
    assert "anybody: connections have no keys" in seen(LiveFacts(True, session))


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_stays_text(text):
    rule = RuleFacts("columns", text, text, text, text, text, (text,) * 30)
    site = SiteFacts("north", 20, 1, file=text, rows=3, renamed=text)
    rules = ApprovalFacts([rule], False, (text,), (text, (text,)))
    facts = DecisionFacts(
        request(text), site, [("terms", text), ("", text)], rules, text, "ef" * 32, [text], text
    )
    warning = WarningFacts(text, text, text, text, (text,), text, text, text)
    audited = AuditFacts(text, 1, "00" * 32, None, [text], [warning], [], False)
    pages = [
        seen(LiveFacts(), [request(text, answer=text)]),
        requests.requests_page([request(text, standing, text) for standing in Standing], JO),
        requests.decision_page(facts, JO),
        requests.decision_page(dataclasses.replace(facts, fault=""), JO),
        audit.audit_page(audited, "", JO),
        audit.audit_page(None, text, JO),
    ]
    for page in pages:
        assert text not in page
        assert "\u202e" not in page
        assert "<script" not in page
        assert "<img" not in page


def test_who_may_not_decide_gets_no_form():
    site, rules = SiteFacts("north", 20, 1), ApprovalFacts([], False, ("marie",), None)
    facts = DecisionFacts(request(), site, [("terms", "x")], rules, "", "ef" * 32, [])
    assert 'value="approve"' in requests.decision_page(facts, JO)
    for reader in (dataclasses.replace(JO, may_decide=False), dataclasses.replace(JO, form_key="")):
        assert 'value="approve"' not in requests.decision_page(facts, reader)
    approved = dataclasses.replace(facts, request=request(standing=Standing.APPROVED))
    assert 'value="approve"' not in requests.decision_page(approved, JO)


def test_a_long_list_of_names_is_shown_whole():
    names = ", ".join(f"column-{number}" for number in range(2000))
    site, rules = SiteFacts("north", 20, 1), ApprovalFacts([], False, ("marie",), None)
    page = requests.decision_page(
        DecisionFacts(request(), site, [("features", names)], rules, "", "ef" * 32, []), JO
    )
    assert all(f"column-{number}" in page for number in range(2000))
