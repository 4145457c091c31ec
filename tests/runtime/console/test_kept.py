"""What a console draws: once for all who ask, so that requests without end do not hold a session up."""

import json

import pytest
from console_facts import ended, facts
from consoles import served
from processes import wait_until

from fedboost.runtime import console as api
from fedboost.runtime.console import ConsoleQueries
from fedboost.views import aggregator as pages


@pytest.fixture
def console(tmp_path, monkeypatch):
    """A console of a large consortium, on which nothing that is live is drawn twice."""
    monkeypatch.setattr(api, "DRAW_SECONDS", 1000.0)
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: facts())
    with served(tmp_path) as one:
        one.one.server.pages._archive.ended = [ended(1), ended(2, "left")]
        yield one


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of a function of a module or mapping."""
    calls = []

    def count(where, name):
        known = where[name] if isinstance(where, dict) else getattr(where, name)

        def called(*arguments):
            calls.append(name)
            return known(*arguments)

        change = monkeypatch.setitem if isinstance(where, dict) else monkeypatch.setattr
        change(where, name, called)
        return calls

    return count


def test_the_page_of_a_session_is_drawn_once(console, counted):
    calls = counted(pages, "ended_session")
    path = f"/sessions/{ended(1).name}"
    texts = {console.ask(path).text for _ in range(5)}
    assert (len(texts), len(calls)) == (1, 1)
    assert "logloss by round" in texts.pop()
    other = ended(2, "left").name
    assert f"<code>{other}</code>" in console.ask(f"/sessions/{other}").text
    assert len(calls) == 2


@pytest.mark.parametrize("path", ["/", "/sites"])
def test_a_live_page_is_drawn_for_all(console, counted, path):
    calls = counted(api.LIVE, path)
    texts = {console.ask(path).text for _ in range(5)}
    assert (len(texts), len(calls)) == (1, 1)


def test_a_page_that_nobody_has_open_is_not_old(console, monkeypatch):
    monkeypatch.setattr(api, "DRAW_SECONDS", 0.05)
    rounds = [20]
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: facts(rounds[-1]))
    assert "running: 20 of" in console.ask("/").text
    rounds.append(21)
    wait_until(lambda: "running: 21 of" in console.ask("/").text)


def test_the_interface_writes_a_session_once(console, counted):
    over, under_way = f"/api/v1/sessions/{ended(1).name}", f"/api/v1/sessions/{facts().live.status.name}"
    calls = counted(api, "_json")
    for path, rounds in ((over, 200), (under_way, 100)):
        calls.clear()
        answers = [console.ask(path) for _ in range(3)]
        assert {len(json.loads(answer.text)["rounds"]) for answer in answers} == {rounds}
        assert answers[0].headers["Content-Type"] == "application/json"
        assert len(calls) == 1
