"""The page of a site as an officer sees it: in Chromium, light, dark and narrow."""

import re

import pytest
from browser import DARK, LIGHT
from consoles import served
from site_page import SiteWithPage, Visitor
from sites import bundles_of, fedboost, rows, shared_out, terms

THREE = ("north", "south", "east")
ODD = "hospital-of-the-holy-spirit"
LABEL = '<img src=x onerror="alert(1)">'
BUDGET = """
[policy]
parties = ["north", "south", "east"]
analysts = ["analyst"]
columns = { label = ["y"], features = ["age", "dose"] }
epsilon = 3.0
delta = 1e-5
"""
RANGES = {"ranges": {"age": [0, 100], "dose": [-4, 4]}}
NOISE = {"epsilon": 1.0, "delta": 1e-5}


def asked_terms(**settings):
    columns = {"label": "y", "numeric": ["age", "dose"], **RANGES}
    return terms(THREE, **{"protection": "masked", "columns": columns, "noise": NOISE, **settings})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with a budget, after a session with noise, and requests of several analysts."""
    folder = tmp_path_factory.mktemp("site")
    bundles, tables = bundles_of(folder / "keys", THREE), shared_out(3, rows(600))
    others = {name: tables[name] for name in ("south", "east")}

    def init(file):
        assert fedboost("privacy", "init", "--config", file).code == 0

    with served(folder, others, bundles=bundles) as console:
        one = SiteWithPage(
            folder / "north",
            console.one.server.address,
            tables["north"],
            BUDGET,
            bundles["north"],
            before=init,
        )
        with one.in_thread():
            console.run(console.one.train(asked_terms()))
            many = {"ward": [f"ward-{number}" for number in range(40)]}
            columns = {"label": "y", "numeric": ["age", "dose"], "categorical": many}
            one.request = one.asked_for(terms(THREE, columns=columns), ODD, ["it refuses: " + "a rule " * 60])
            one.asked_for(asked_terms(columns={"label": LABEL, "numeric": ["age"]}, noise=None), "mallory")
            one.open = one.asked_for(asked_terms(rounds=40, max_depth=9), "marie")
            yield one


@pytest.fixture
def tabs(site, browser):
    """Opens pages in the name of the officer."""
    cookie = {"Cookie": Visitor(site.address).log_in(site.token).cookie}
    return lambda path, **more: browser.tab(f"http://{site.address}{path}", headers=cookie, **more)


CHECKED = "requests", "audit", "session", "budget"
"""The pages that axe-core looks at in a wide window; at the others it looks in a narrow one."""


def pages(site):
    return {
        "overview": "/",
        "requests": "/requests",
        "request": site.open,
        "wide-request": site.request,
        "audit": "/audit",
        "session": "/audit/1",
        "budget": "/budget",
        "policy": "/policy",
    }


@pytest.mark.slow
def test_every_page_is_readable_and_asks_nobody_else(site, tabs):
    for name, path in pages(site).items():
        with tabs(path) as tab:
            assert tab.run("document.querySelectorAll('img, script').length") == 0
            tab.check(f"site-{name}", axe=name in CHECKED)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param(LIGHT, marks=pytest.mark.long), DARK])
def test_a_request_is_readable_on_a_telephone(site, tabs, scheme):
    for name in ("overview", "request"):
        with tabs(pages(site)[name], width=360, height=740, scheme=scheme) as tab:
            tab.check(f"site-{name}-narrow-{scheme}")


@pytest.mark.slow
def test_an_officer_logs_in_and_refuses_with_a_browser_alone(site, browser):
    """The pages have no script: what is done here works without one."""
    with browser.tab(f"http://{site.address}/") as tab:
        tab.screenshot("site-log-in")
        send(tab, site.token, "main button")
        assert "jo: may approve and refuse" in tab.run("document.body.innerText")
        tab.do(lambda page: page.goto(f"http://{site.address}{site.open}"))
        send(tab, site.token, "button[value=refuse]")
        said = tab.run("document.body.innerText")
        assert re.search(r"refused here by a person, \d{4}-", said)
        assert "Approve for marie" in said
        assert tab.foreign == []


def send(tab, token, button):
    """Fill in the token, press a button, and wait for the page that follows."""

    def step(page):
        page.fill("#token", token)
        with page.expect_navigation():
            page.click(button)

    tab.do(step)
