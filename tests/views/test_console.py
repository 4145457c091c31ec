"""Pages of a console by themselves: what they say, and that nothing from outside is markup."""

import json
import re
from dataclasses import replace

import pytest
from console_facts import AWAY, NAMES, ODD, ROUNDS, ended, facts, history, session

from fedboost.runtime.aggregator.sessions import STRAGGLER_SECONDS, Pace
from fedboost.views import aggregator as pages
from fedboost.views import as_text
from fedboost.views.aggregator import openapi
from fedboost.views.as_html import body, refused, served_page
from fedboost.views.document import Section


def page(path, document, **more):
    """A page with all its parts."""
    return served_page(pages.CONSOLE, path, document, **more)


def parts(document):
    """The live parts of a page."""
    return {block.name: body(block.blocks) for block in document.blocks if isinstance(block, Section)}


ALL = {
    "overview": lambda: page("/", pages.overview(facts()), live=True, caller="marie "),
    "sites": lambda: page("/sites", pages.sites(facts()), live=True),
    "sessions": lambda: page("/sessions", pages.sessions(facts())),
    "session": lambda: page("/sessions/x", pages.ended_session(ended()), caller=ODD),
    "refused": lambda: refused(pages.CONSOLE, 401, ODD),
}


@pytest.mark.parametrize("page", ALL)
def test_what_comes_from_outside_is_text(page):
    text = ALL[page]()
    assert "<img" not in text
    assert re.search(r"onerror=\\?&quot;", text)
    assert "style=" not in text
    assert "javascript:" not in text
    assert not re.search(r"\son\w+=\"", text)
    assert len(re.findall(r"<h1[ >]", text)) == 1


def test_the_same_facts_are_the_same_bytes():
    """And a round more changes two parts."""
    before, after = parts(pages.overview(facts())), parts(pages.overview(facts(101)))
    assert parts(pages.overview(facts())) == before
    assert {name for name, part in before.items() if part != after[name]} == {"session", "curves"}


def test_sites_that_are_missed_come_first():
    names = re.findall(r'<th scope="row">([^<]*)</th>', parts(pages.sites(facts()))["members"])
    assert len(names) == len(NAMES)
    assert names[: len(AWAY)] == sorted(AWAY)


def test_the_time_left_is_that_of_the_last_rounds():
    def live(rounds):
        return facts().live.model_copy(update={"rounds": rounds})

    assert live(history(1)).seconds_left is None
    slow_first = [{"seconds": 99.0}, *({"seconds": 2.0} for _ in range(9))]
    assert live(slow_first).seconds_left == 2.0 * (ROUNDS - 10)
    assert live(history(ROUNDS + 5)).seconds_left == 0


@pytest.mark.parametrize(
    ("awaited", "time"), [(NAMES[3], "unknown while a site is away"), (NAMES[8], "about")]
)
def test_nobody_knows_the_time_left_while_a_site_is_away(awaited, time):
    """One that is connected may answer at any moment."""
    state = facts()
    live = state.live.model_copy(update={"status": session(awaited=(awaited,))})
    shown = re.sub(r"<[^>]+>", " ", parts(pages.overview(replace(state, live=live)))["session"])
    assert f"remaining time {time}" in " ".join(shown.split())


def test_the_status_begins_with_what_runs():
    first = next(as_text.text(pages.status(facts().status)))
    done = f"Training is running: {ROUNDS // 2} of {ROUNDS} rounds done. It is waiting for 1 site."
    assert str(first) == done


def test_a_party_that_answers_last_is_the_slowest():
    pace, now = Pace(), 100.0
    for turn in range(4):
        for wait, party in ((0.1, "a"), (0.2, "b"), (0.3, "b"), (1.3, "c" if turn else "a")):
            pace.heard(party, now + turn + wait, ends_turn=wait == 1.3)
    assert pace.slowest == "c"
    assert (pace.waits["c"].turns, pace.waits["a"].turns) == (3, 1)
    assert pace.waits["c"].seconds == pytest.approx(3.0)
    assert not pace.look(1, lambda: ("c",), now)
    assert pace.look(1, lambda: ("c",), now + STRAGGLER_SECONDS)
    assert pace.slow == ("c",)
    assert pace.look(2, lambda: ("c",), now + STRAGGLER_SECONDS)


def test_the_document_is_whole():
    """Every reference leads somewhere, and every schema is used."""
    document = openapi()
    text = json.dumps(document)
    for place in set(re.findall(r'"#/components/(\w+/\w+)"', text)):
        kind, name = place.split("/")
        assert name in document["components"][kind]
    assert all(f'"#/components/schemas/{name}"' in text for name in document["components"]["schemas"])
    assert document["openapi"].startswith("3.1.")
