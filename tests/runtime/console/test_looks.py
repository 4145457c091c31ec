"""The console as a reader sees it: in Chromium, light, dark and narrow, with 186 sites and 200 rounds."""

import asyncio

import pytest
from browser import DARK, LIGHT, sheets
from console_facts import ODD, facts
from consoles import served
from processes import wait_until
from sites import PATIENCE, rows, terms

from fedboost.runtime.console import ConsoleQueries

LONG = [pytest.param(path, marks=pytest.mark.long) for path in ("/sessions",)]


@pytest.fixture
def console(tmp_path):
    """Of each test its own: what was drawn for one is shown to the next for half a second."""
    with served(tmp_path, {"north": rows()}, tokens=["viewer"]) as one:
        yield one


@pytest.fixture
def large(console, monkeypatch):
    """A console of a large consortium."""
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: facts())
    console.one.server.pages._archive.ended = list(facts().ended)
    return console


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/sites", "/sessions/session-0000000000000001", *LONG])
def test_every_page_is_readable_and_asks_nobody_else(large, browser, path):
    with browser.tab(large.url + path) as tab:
        assert tab.run("document.querySelectorAll('img').length") == 0
        tab.check("console-" + (path.strip("/").replace("/", "-")[:20] or "overview"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param(LIGHT, marks=pytest.mark.long), DARK])
def test_the_overview_is_readable_on_a_telephone(large, browser, scheme):
    with browser.tab(large.url, width=360, height=740, scheme=scheme) as tab:
        wait_until(lambda: tab.run("document.getElementById('state').textContent == 'live'"))
        tab.check(f"console-narrow-{scheme}")
        assert ODD in tab.run("document.body.innerText")


@pytest.mark.slow
def test_the_overview_on_paper(large, browser):
    """Without links to other pages, and with what is folded open: 186 sites take some sheets."""
    with browser.tab(large.url) as tab:
        assert 3 < sheets(tab.printed("console-printed")) < 12


@pytest.mark.slow
def test_a_page_follows_a_session_without_being_loaded_again(console, browser):
    """Also what is open, and where the focus is, stays."""
    with browser.tab(console.url) as tab:
        tab.run("window.kept = 1")
        assert "No session is running." in tab.run("document.getElementById('session').innerText")
        training = asyncio.run_coroutine_threadsafe(console.one.train(terms(["north"])), console._loop)
        tab.do(lambda page: page.wait_for_selector("#ended td >> text=model, "))
        assert len(training.result(PATIENCE).history) == 3
        assert tab.run("window.kept") == 1
        assert sum(url == f"{console.url}/" for url in tab.asked) > 1
        assert sum(url == f"{console.url}/script.js" for url in tab.asked) == 1
        assert (tab.foreign, tab.errors) == ([], [])
        tab.do(lambda page: page.keyboard.press("Tab"))
        assert tab.run("document.activeElement.textContent") == "Skip to the content"


@pytest.mark.slow
def test_what_is_open_or_focused_stays_so(console, browser, monkeypatch):
    number = [0]

    def changing(self):
        number[0] += 1
        return facts(20 + number[0])

    monkeypatch.setattr(ConsoleQueries, "state", changing)
    with browser.tab(console.url) as tab:
        opened = "#session details"
        tab.do(lambda page: page.click(f"{opened} > summary"))
        before = tab.run("document.querySelector('#session progress').value")
        wait_until(lambda: tab.run(f"document.querySelector('#session progress').value > {before + 1}"))
        assert tab.run(f"document.querySelector('{opened}').open") is True
        assert tab.run("document.activeElement.tagName") == "SUMMARY"
