"""The page of a site beside other decisions, sessions and readers."""

from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from threading import Event

import pytest
from approvals import decisions, rewrite
from site_page import SiteWithPage, Visitor
from sites import PATIENCE, fedboost, rows, terms

from fedboost.errors import Refused
from fedboost.results.site import LiveSession
from fedboost.runtime.site import approval, page
from fedboost.runtime.site.approval import policy_for
from fedboost.runtime.site.page import MAX_AT_ONCE, SitePageData
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.web import logins

THREE = ("north", "south", "east")
REFUSED = ("max_sessions in its policy has changed since",)


def offered(**settings):
    return terms(THREE, **{"protection": "masked", **settings})


@pytest.fixture
def site(tmp_path):
    """A site whose aggregator does not answer, with a page."""
    with SiteWithPage(tmp_path, "127.0.0.1:9", rows()).in_thread() as one:
        yield one


@pytest.fixture
def officer(site):
    return Visitor(site.address).log_in(site.token)


def admits(site, analyst="marie"):
    """Tell if a session under these terms would be admitted."""
    try:
        policy_for(site.config, offered(), analyst).permit(offered(), "north", lambda *_: True, analyst)
    except Refused:
        return False
    return True


def tables(site):
    """The tables of the decisions on these terms."""
    return [table for table, digest in decisions(site.config) if digest == offered().digest]


def test_refuse_withdraws_an_approval(site, officer):
    path = site.asked_for(offered())
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert admits(site)
    site.asked_for(offered(), answer=REFUSED)
    assert officer.decide(path, "refuse", site.token)[0] == 303
    assert not admits(site)
    assert tables(site) == ["refused"]
    assert "refused here by a person" in officer.get(path)
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert admits(site)


def test_refuse_takes_no_approval_from_another_analyst(site, officer):
    marie, pierre = site.asked_for(offered()), site.asked_for(offered(), "pierre")
    for path in (marie, pierre):
        assert officer.decide(path, "approve", site.token)[0] == 303
    (before,) = decisions(site.config).values()
    assert before["relaxed"]
    site.asked_for(offered(), answer=REFUSED)
    assert officer.decide(marie, "refuse", site.token)[0] == 303
    assert (admits(site, "marie"), admits(site, "pierre")) == (False, True)
    (after,) = decisions(site.config, "approved").values()
    assert after == {**before, "analysts": ["pierre"]}


def test_refuse_withdraws_what_was_approved_without_keys(site, officer):
    path = site.asked_for(offered(), "")
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert admits(site, "")
    site.asked_for(offered(), "", answer=REFUSED)
    assert officer.decide(path, "refuse", site.token)[0] == 303
    assert not admits(site, "")


@pytest.mark.parametrize(("first", "then"), [("approve", "refuse"), ("refuse", "approve")])
def test_a_form_from_before_anothers_decision_is_refused(site, officer, first, then):
    path = site.asked_for(offered())
    stale = officer.fields(path)
    assert officer.decide(path, first, site.token)[0] == 303
    before = decisions(site.config)
    status, _, body = officer.ask("POST", path, {**stale, "decision": then, "token": site.token})
    assert (status, "have changed since this page was shown; reload it" in body) == (409, True)
    assert admits(site) == (first == "approve")
    assert decisions(site.config) == before


def test_a_form_from_before_the_command_is_refused(site, officer, tmp_path):
    path = site.asked_for(offered())
    stale = officer.fields(path)
    (tmp_path / "terms.toml").write_text(terms_to_toml(offered()))
    about = "--config", site.file, "--analyst", "marie", "--yes"
    assert fedboost("approve", tmp_path / "terms.toml", *about).code == 0
    assert officer.ask("POST", path, {**stale, "decision": "refuse", "token": site.token})[0] == 409
    assert admits(site)


def test_an_approval_that_cannot_be_read_is_named(site, officer):
    path = site.asked_for(offered())
    assert officer.decide(path, "approve", site.token)[0] == 303
    rewrite(site.config, "approved", offered().digest, '{"digest": 3}')
    status, _, body = officer.decide(path, "refuse", site.token)
    assert (status, f"approved terms {offered().digest[:8]}" in body) == (422, True)
    assert tables(site) == ["approved"]
    assert not admits(site)


def test_rows_are_counted_while_no_session_reads_them(site, officer, monkeypatch):
    path, held, meanwhile = site.asked_for(offered()), [], [None]
    refresh, state = SiteRows.refresh, site.node.watch.page_state
    site_rows = []

    def refreshed(self):
        site_rows.append(self)
        state.live.session = meanwhile[0]
        return refresh(self)

    def counted(*given):
        held.append(site_rows[0].reading.locked())
        return approval.count_rows(*given)

    monkeypatch.setattr(SiteRows, "refresh", refreshed)
    monkeypatch.setattr(page, "count_rows", counted)
    assert page.BUSY not in officer.get(path)
    assert held == [True]
    meanwhile[0] = LiveSession("session-1", "marie", offered(), 0.0)
    assert page.BUSY in officer.get(path)
    assert held == [True]


def test_one_reader_does_not_fill_the_queue_of_pages(site, officer, monkeypatch):
    viewer, go_on, overview = Visitor(site.address).log_in(site.reading), Event(), SitePageData.overview

    def slow(self):
        assert go_on.wait(PATIENCE)
        return overview(self)

    monkeypatch.setattr(SitePageData, "overview", slow)
    with ThreadPoolExecutor(MAX_AT_ONCE + 4) as threads:
        asked = [threads.submit(viewer.ask, "GET", "/") for _ in range(MAX_AT_ONCE + 3)]
        try:
            over = list(islice(as_completed(asked, PATIENCE), 3))
            officers = threads.submit(officer.ask, "GET", "/policy")
        finally:
            go_on.set()
        for each in over:
            status, headers, body = each.result()
            assert (status, headers["Retry-After"]) == (429, "1")
            assert "4 requests of kim are already in progress" in body
        assert officers.result()[0] == 200
        assert [each.result()[0] for each in asked if each not in over] == [200] * MAX_AT_ONCE
    viewer.get("/")


def test_who_logs_in_often_ends_logins_of_their_own(site, officer, monkeypatch):
    monkeypatch.setattr(logins, "MAX_LOGINS", 4)
    viewers = [Visitor(site.address).log_in(site.reading) for _ in range(6)]
    assert officer.ask("GET", "/policy")[0] == 200
    again = Visitor(site.address).log_in(site.token)
    asked = [visitor.ask("GET", "/policy")[0] for visitor in (officer, again, *viewers)]
    assert asked == [200, 200, 401, 401, 401, 401, 200, 200]
