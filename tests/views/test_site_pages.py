"""The pages of a site from facts alone: what runs now, and that any text stays text."""

import pytest
from sites import terms

from fedboost.results.audit import Audit, AuditWarning, Ended, Run, Session
from fedboost.results.site import (
    Activity,
    ApprovalView,
    Counts,
    Decision,
    LiveSession,
    Overview,
    Request,
    Rule,
    Standing,
)
from fedboost.views import as_text, site
from fedboost.views.site import Reader

JO = Reader("jo", True, "ab" * 32)
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egnp.exe",
    "</dd></table>",
]
NOW = 1_795_000_000.0


def request(text="marie", standing=Standing.OPEN, answer="no"):
    about = {"digest": "cd" * 32, "analyst": text, "task": "train", "parties": 3, "first": NOW, "last": NOW}
    rest = {"session": text, "answer": answer, "bytes": 9, "lacks_approval": False, "standing": standing}
    return Request(**about, **rest)


def decision(standing=Standing.OPEN, text="", **view):
    known = {"party": "north", "terms": terms(["north"]), "analysts": ("marie",)}
    shown = ApprovalView(**{**known, **view})
    return Decision(request=request(text or "marie", standing), view=shown, seen="ef" * 32, file=text)


def page(document, reader=JO):
    return site.page("/", document, reader)


def seen(live, found=()):
    now = Overview(
        party="north",
        aggregator="localhost:7070",
        rows="93 of x.csv",
        live=live,
        requests=tuple(found),
        budget=None,
        fault="no file",
        nothing_yet=False,
        time=NOW,
    )
    return page(site.overview(now))


def test_the_overview_says_what_runs_now():
    assert "not connected" in seen(Activity())
    session = LiveSession("session-1", "marie", terms(["north"], rounds=40), NOW - 90, 12, 37, 123_456)
    text = seen(Activity(True, session))
    assert "not connected" not in text
    for words in ("connected", "marie", "12 of 40", "37", "123.5 kB", "90 s"):
        assert words in text
    assert "It is not known how much of the budget is left.</p><p>no file" in text


def test_a_session_without_keys_is_anybodys():
    session = LiveSession("session-1", "", terms(["north"]), NOW)
    assert "anyone: connections have no keys" in seen(Activity(True, session))


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_stays_text(text):
    words = dict.fromkeys(("value", "reason", "purpose", "instead", "loud"), text)
    rule = Rule(key="columns", names=(text,) * 30, **words)
    counts = Counts(rows=3, file=text, categories={"ward": {text: 1}}, undeclared={}, few=10)
    columns = {"label": text, "numeric": ["age"], "categorical": {"ward": [text, "b"]}}
    shown = {
        "terms": terms(["north"], columns=columns),
        "analysts": (text,),
        "rules": (rule,),
        "earlier": (text, (text,)),
        "counts": counts,
        "renamed": text,
        "notes": (text,),
    }
    warning = AuditWarning("too-many", (text,), text, text, text)
    refused = Session(name=text, parts=[Run(begin=text, end=text, ended=Ended(session=text, reason=text))])
    audited = Audit(
        last=1,
        log=text,
        entries=1,
        last_hash="00" * 32,
        parties=(text,),
        warnings=(warning,),
        sessions=(refused,),
    )
    documents = [
        site.requests([request(text, standing, text) for standing in Standing]),
        site.requests([request(text, standing, text * 100) for standing in Standing]),
        site.decision(decision(text=text, fault=text, **shown), JO),
        site.decision(decision(text=text, **shown), JO),
        site.audit(audited, ""),
        site.audit(None, text),
        site.session(refused),
    ]
    for drawn in (seen(Activity(), [request(text, answer=text)]), *map(page, documents)):
        assert text not in drawn
        assert "\u202e" not in drawn
        assert "<script" not in drawn
        assert "<img" not in drawn
    for document in documents:
        for line in as_text.text(document, full=True):
            assert "\u202e" not in str(getattr(line, "columns", line))


def test_who_may_not_decide_gets_no_form():
    def drawn(reader=JO, **known):
        return page(site.decision(decision(**known), reader), reader)

    assert 'value="approve"' in drawn()
    for reader in (Reader("jo", False, "ab" * 32), Reader("jo", True, "")):
        assert 'value="approve"' not in drawn(reader)
    assert 'value="approve"' not in drawn(standing=Standing.APPROVED)
    assert 'value="approve"' not in drawn(fault="no budget")


def test_a_long_list_of_names_is_shown_whole():
    names = [f"column-{number}" for number in range(2000)]
    wide = terms(["north"], columns={"label": "y", "numeric": names})
    text = page(site.decision(decision(terms=wide), JO))
    assert all(name in text for name in names)
    rule = Rule(key="columns.features", value="[]", purpose="x", reason="x", names=tuple(names))
    text = page(site.decision(decision(rules=(rule,)), JO))
    assert all(name in text for name in names)


def test_what_breaks_the_rules_comes_first_and_then_who_learns_what():
    rule = Rule(key="max_depth", value="8", purpose="deep trees", reason="the terms have max_depth = 9")
    text = page(site.decision(decision(rules=(rule,)), JO))
    order = ["verdict bad", "max_depth = 8", "Who learns what", "Model and settings", "Columns", "Decide"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "verdict good" in page(site.decision(decision(), JO))


def test_a_long_answer_is_folded_whole():
    answer = "it refuses; " + "a rule of its policy is broken " * 20
    text = page(site.requests([request(answer=answer)]))
    assert f"<summary>{answer[:199]}…</summary>{answer}</details>" in text
