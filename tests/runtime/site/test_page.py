"""The page of a site over HTTP: who is refused, what is shown, what a decision writes."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from approvals import decisions, rewrite
from raised import raised
from site_page import SiteWithPage, Visitor, request_paths
from sites import Log, fedboost, rows, terms

from fedboost.errors import ConfigError, Refused
from fedboost.protocol.messages import Offer
from fedboost.results.site import LiveSession
from fedboost.runtime.aggregator import limits
from fedboost.runtime.site import review as asked
from fedboost.runtime.site.approval import policy_for, refusal_of, refuse
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.page import SitePageData
from fedboost.runtime.site.review import PageState
from fedboost.runtime.site.store import Store, open_database, put, reading
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.web import logins, serving
from fedboost.runtime.web.logins import add_token

NOBODY = "127.0.0.1:9"
THREE = ("north", "south", "east")
ODD = '<script>alert("1")</script>'
PAGES = "/", "/requests", "/audit", "/budget", "/policy"


def offered(**settings):
    return terms(THREE, **{"protection": "masked", **settings})


@pytest.fixture
def site(tmp_path):
    """A site whose aggregator does not answer, with a page."""
    with SiteWithPage(tmp_path, NOBODY, rows()).in_thread() as one:
        yield one


@pytest.fixture
def patient(monkeypatch):
    """Each refusal has its line in the log, and nobody has to wait after wrong tokens."""
    monkeypatch.setattr(limits, "LINES_SAVED", 1000.0)
    monkeypatch.setattr(logins, "TRIES_SAVED", 1000.0)


@pytest.fixture
def officer(site):
    return Visitor(site.address).log_in(site.token)


@pytest.fixture
def viewer(site):
    return Visitor(site.address).log_in(site.reading)


def test_without_a_token_nothing_is_read(patient, site):
    visitor = Visitor(site.address)
    for path in (*PAGES, site.asked_for(offered()), "/requests/abc", "/audit/1"):
        status, headers, body = visitor.ask("GET", path)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert offered().digest[:12] not in body
        assert "north" not in body
        assert site.refusals()[-1].startswith("401: a token is required")


def test_a_wrong_token_is_refused(patient, site):
    for count, given in enumerate(["wrong", "", "é", "x" * 999], 1):
        status, headers, body = Visitor(site.address).ask("POST", "/login", {"token": given})
        assert (status, headers["Set-Cookie"]) == (401, None)
        assert "is not valid for this process" in body
        assert site.refusals() == ["401: this token is not valid for this process"] * count


def test_an_analysts_token_is_of_no_use(site):
    token, _ = add_token(site.folder / "tokens.toml", "marie", "analyst", 1)
    status, _, body = Visitor(site.address).ask("POST", "/login", {"token": token})
    assert (status, "this token has role analyst" in body.lower()) == (403, True)
    status, _, body = Visitor(site.address).ask("GET", "/", Authorization=f"Bearer {token}")
    assert (status, "this token has role analyst" in body.lower()) == (403, True)


def test_a_viewer_reads_all_and_is_offered_no_button(site, viewer):
    request = site.asked_for(offered())
    for path in (*PAGES, request):
        assert "kim: may read" in viewer.get(path)
    page = viewer.get(request)
    assert "A token with the role officer can approve and refuse." in page
    assert 'value="approve"' not in page


def test_every_page_runs_no_script_and_is_framed_nowhere(site, officer):
    for path in (*PAGES, site.asked_for(offered())):
        status, headers, body = officer.ask("GET", path)
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';")
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")
        assert "<script" not in body
        assert site.token not in body


def approvals(site):
    return [*decisions(site.config)]


ELSEWHERE = [
    ({"Host": "evil.example"}, 421, "does not belong to this process"),
    ({"Origin": "http://evil.example"}, 403, "another website"),
    ({"Origin": "http://127.0.0.1:1"}, 403, "another website"),
    ({"Origin": None}, 401, "a browser must use a page of this process"),
    ({"Origin": "null"}, 403, "a browser must use a page of this process"),
    ({"Origin": "null", "Sec_Fetch_Site": "cross-site"}, 403, "another website"),
    ({"Origin": "null", "Sec_Fetch_Site": "same-site"}, 403, "another website"),
    ({"Cookie": None}, 401, "token is required"),
    ({"Cookie": "fedboost-site-1=x"}, 401, "token is required"),
]


def test_a_decision_from_elsewhere_is_refused(patient, site, officer):
    path = site.asked_for(offered())
    fields = {**officer.fields(path), "decision": "approve", "token": site.token}
    for headers, status, reason in ELSEWHERE:
        answer = officer.ask("POST", path, fields, **headers)
        assert (answer[0], reason in answer[2]) == (status, True), (headers, answer)
        assert reason in site.refusals()[-1]
        assert approvals(site) == []


def test_no_token_of_a_program_decides(site, officer):
    path = site.asked_for(offered())
    fields = {**officer.fields(path), "decision": "approve", "token": site.token}
    programme = Visitor(site.address)
    bearer = {"Authorization": f"Bearer {site.token}", "Origin": None}
    status, _, body = programme.ask("POST", path, fields, **bearer)
    assert (status, "log in with a browser" in body) == (403, True)
    assert programme.ask("GET", path, Authorization=bearer["Authorization"])[0] == 200
    assert approvals(site) == []


CHANGED = [
    ({"key": ""}, 403, "does not belong to this login"),
    ({"key": "0" * 64}, 403, "does not belong to this login"),
    ({"token": ""}, 401, "is not valid for this process"),
    ({"token": "wrong"}, 401, "is not valid for this process"),
    ({"digest": "0" * 64}, 409, "a different request"),
    ({"analyst": "mallory"}, 409, "a different request"),
    ({"seen": "0" * 64}, 409, "have changed since"),
    ({"decision": "maybe"}, 400, "the decision must be to approve or to refuse"),
    ({"padding": "x" * 5000}, 413, "body has more than 4096 bytes"),
]


def test_a_form_that_is_not_as_it_was_shown_is_refused(patient, site, officer):
    path = site.asked_for(offered())
    for changed, status, reason in CHANGED:
        answer = officer.decide(path, "approve", site.token, **changed)
        assert (answer[0], reason in answer[2].lower()) == (status, True), (changed, answer)
        assert reason in site.refusals()[-1]
        assert approvals(site) == []


def test_the_form_and_the_token_are_of_the_same_login(site, officer, viewer):
    """Neither a viewer who has the officer's form nor an officer's form with a viewer's token decides."""
    path = site.asked_for(offered())
    fields = {**officer.fields(path), "decision": "approve", "token": site.token}
    assert viewer.ask("POST", path, fields)[0] == 403
    own = {**fields, **viewer.fields(path)}
    for token in (site.token, site.reading):
        assert viewer.ask("POST", path, {**own, "token": token})[0] == 403
    assert officer.decide(path, "approve", site.reading)[0] == 403
    other, _ = add_token(site.folder / "tokens.toml", "pat", "officer", 1)
    assert officer.decide(path, "approve", other)[0] == 403
    assert approvals(site) == []


def test_nothing_changes_by_a_get(site, officer):
    path = site.asked_for(offered())
    before = sorted(file for file in site.state.rglob("*") if file.suffix != ".sqlite-wal")
    fields = {**officer.fields(path), "decision": "approve", "token": site.token}
    assert officer.ask("GET", f"{path}?decision=approve", fields)[0] == 200
    for method, other in (("GET", "/login"), ("GET", "/logout"), ("PUT", path), ("DELETE", path)):
        assert officer.ask(method, other)[0] in (404, 405)
    officer.get("/")  # still logged in
    assert sorted(file for file in site.state.rglob("*") if file.suffix != ".sqlite-wal") == before


def test_there_is_no_other_page(patient, site, officer):
    for path in (
        "/../party.toml",
        "/%2e%2e/tokens.toml",
        "/tokens.toml",
        "/requests/..",
        "/audit/0",
        "/audit/x",
    ):
        assert officer.ask("GET", path)[0] == 404
        assert site.refusals()[-1].startswith("404: ")


def test_a_token_that_is_taken_away_ends_its_login(site, officer):
    officer.get("/")
    (site.folder / "tokens.toml").write_text("")
    assert officer.ask("GET", "/")[0] == 401


def test_who_logs_out_is_out(site, officer):
    key = officer.fields("/")
    assert officer.ask("POST", "/logout", {})[0] == 403
    assert officer.ask("POST", "/logout", key)[0] == 303
    assert officer.ask("GET", "/")[0] == 401


def by_hand(folder, agreement, site):
    """What `fedboost approve` writes at another site like this one."""
    folder.mkdir()
    (folder / "terms.toml").write_text(terms_to_toml(agreement))
    (folder / "north.parquet").write_bytes((site.folder / "north.parquet").read_bytes())
    (folder / "party.toml").write_text(site.file.read_text())
    asked_for = "--config", folder / "party.toml", "--analyst", "marie", "--yes"
    end = fedboost("approve", folder / "terms.toml", *asked_for)
    assert end.code == 0, end.err
    (written,) = decisions(read_party(folder / "party.toml")).items()
    return written, end.out


def test_approve_writes_what_the_command_writes_and_shows_what_it_shows(site, officer, tmp_path):
    path = site.asked_for(offered())
    page = officer.get(path)
    assert officer.decide(path, "approve", site.token)[0] == 303
    ((place, ours),) = decisions(site.config).items()
    (expected, theirs), said = by_hand(tmp_path / "other", offered(), site)
    assert place == expected == ("approved", offered().digest)
    for key in ("time", "at"):
        assert ours.pop(key)
        assert theirs.pop(key)
    assert ours == theirs
    assert ours["analysts"] == ["marie"]
    for word in ("min_rows_per_leaf = 10", "leaves 4 rows in a leaf", "(!) fewer than 10 rows at this site"):
        assert (word in page) == (word in " ".join(said.split())), word
    (event,) = site.log.named("terms approved on the page")
    assert (event["by"], event["analyst"], event["terms"]) == ("jo", "marie", offered().digest)
    assert ">approved</span>, 20" in officer.get(path)
    assert 'value="approve"' not in officer.get(path)


def refusal_by_rules(site):
    """Why this site's rules refuse the terms now."""
    with pytest.raises(Refused) as error:
        policy_for(site.config, offered(), "marie")
    return str(error.value)


def test_an_approval_that_no_longer_holds_can_be_given_again(site, officer):
    path = site.asked_for(offered())
    assert officer.decide(path, "approve", site.token)[0] == 303
    (approval,) = decisions(site.config).values()
    text = json.dumps(approval)
    assert '"min_rows_per_leaf": 10' in text
    changed = text.replace('"min_rows_per_leaf": 10', '"min_rows_per_leaf": 9')
    rewrite(site.config, "approved", offered().digest, changed)
    site.asked_for(offered(), answer=(refusal_by_rules(site),))
    page = officer.get(path)
    assert "approved, and refused since" in page
    assert path in request_paths(officer.get("/"))
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert ">approved</span>, 20" in officer.get(path)


def test_a_refusal_that_no_approval_mends_leaves_terms_approved(site, officer):
    """A request that was used again moved approved terms to those that nobody had approved."""
    path = site.asked_for(offered())
    assert "before the approval" not in officer.get(path)
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert "last answer, before the approval<" in officer.get(path)
    assert "before the approval: its policy says no" in officer.get("/requests")
    used = "the analyst's request was already used for another session; train again"
    site.asked_for(offered(), answer=(used,))
    page, listed = officer.get(path), officer.get("/requests")
    assert ">approved</span>, 20" in page
    assert 'value="approve"' not in page
    for shown in (page, listed):
        assert used.replace("'", "&#x27;") in shown
        assert "refused since" not in shown
        assert "before the approval" not in shown
    assert path not in request_paths(listed.partition("All others")[0])


def test_a_refusal_that_no_approval_mends_leaves_terms_allowed_by_the_policy(tmp_path):
    named = 'parties = ["north", "south", "east"]\nanalysts = "any"\nmin_rows_per_leaf = 4\n'
    policy = f'[policy]\n{named}columns = {{ label = ["y"], features = ["age", "dose", "ward"] }}\n'
    used = "the analyst's request was already used for another session; train again"
    for approval, said in (("auto", "allowed by the policy"), ("ask", "not approved")):
        more = f'{policy}approval = "{approval}"\n'
        with SiteWithPage(tmp_path / approval, NOBODY, rows(), more=more).in_thread() as site:
            path = site.asked_for(offered(), answer=(used,))
            officer = Visitor(site.address).log_in(site.token)
            assert f">{said}</span>" in officer.get(path)


def test_refuse_is_remembered_and_an_approval_outweighs_it(site, officer):
    path = site.asked_for(offered())
    assert officer.decide(path, "refuse", site.token)[0] == 303
    ((place, refusal),) = decisions(site.config).items()
    assert place == ("refused", offered().digest)
    assert refusal["analysts"] == ["marie"]
    (event,) = site.log.named("terms refused on the page")
    assert (event["by"], event["analyst"]) == ("jo", "marie")
    page = officer.get(path)
    assert "refused here by a person" in page
    assert ('value="refuse"' in page, 'value="approve"' in page) == (False, True)
    other = site.asked_for(offered(), analyst="pierre")
    assert "refused here by a person" not in officer.get(other)
    assert officer.decide(path, "approve", site.token)[0] == 303
    assert ">approved</span>, 20" in officer.get(path)


def test_terms_that_no_approval_allows_have_no_button(tmp_path):
    def init(file):
        assert fedboost("privacy", "init", "--config", file).code == 0

    budget = "[policy]\nepsilon = 1.0\ndelta = 1e-5\n"
    site = SiteWithPage(tmp_path, NOBODY, rows(), more=budget, before=init)
    with site.in_thread():
        officer = Visitor(site.address).log_in(site.token)
        path = site.asked_for(offered())
        page = officer.get(path)
        assert "No approval can allow these terms" in page
        assert ('value="refuse"' in page, 'value="approve"' in page) == (True, False)
        assert officer.decide(path, "approve", site.token)[0] == 422
        assert approvals(site) == []
        assert "Epsilon 1 of 1 at delta 1e-05 is left" in officer.get("/budget")


def test_what_comes_from_outside_is_text(site, officer):
    columns = {"label": ODD, "numeric": ["age", "dose"]}
    path = site.asked_for(offered(columns=columns), answer=(ODD, "\u202egnp.exe"))
    assert "alert(&quot;1&quot;)" in officer.get("/requests")
    assert request_paths(officer.get("/requests")) == [path]
    for page in ("/", "/requests"):
        assert ("<script" in officer.get(page), "\u202e" in officer.get(page)) == (False, False)
    page = officer.get(path)
    assert "No approval can allow these terms" in page  # the table has no such column
    assert ("<script" in page, 'value="approve"' in page, 'value="refuse"' in page) == (False, False, True)
    assert officer.decide(path, "approve", site.token)[0] == 422
    assert approvals(site) == []
    assert officer.decide(path, "refuse", site.token)[0] == 303


def test_a_flood_of_requests_has_bounds_and_drops_its_own(site, officer, monkeypatch):
    monkeypatch.setattr(asked, "MAX_REQUESTS", 6)
    first = site.asked_for(offered(), analyst="marie")
    for number in range(12):
        site.asked_for(offered(rounds=number + 1), analyst="mallory")
    site.node.watch.page_state.checked(offered(rounds=99, reg_lambda=1.5), "marie", ("no",))
    paths = request_paths(officer.get("/requests"))
    assert len(paths) == 6
    assert first in paths
    with reading(memory_path(site.config)) as file:
        assert file.execute("SELECT count(*) FROM requests").fetchone() == (6,)
    monkeypatch.setattr(asked, "MAX_TERMS_BYTES", 10)
    site.node.watch.page_state.checked(offered(rounds=50), "marie", ("no",))
    assert len(request_paths(officer.get("/requests"))) == 6
    assert site.log.named("a request was not stored: its terms are too long")


def config_of(folder):
    """A site's file, of a party that does not run."""
    site = SiteWithPage(folder, NOBODY, rows())
    site.node.close()
    return site.config


def test_what_no_analyst_signed_is_kept_only_where_none_signs(tmp_path):
    config, log = config_of(tmp_path), Log()
    with closing(Store(memory_path(config), "north")) as store:
        signing = PageState(config.model_copy(update={"keys": tmp_path}), store, log)
        for state, analyst, kept in (
            (signing, "", 0),
            (signing, "marie", 1),
            (PageState(config, store, log), "", 1),
        ):
            state.offered(Offer("session-1", offered()), analyst)
            state.ended("no")
            assert len(state.requests.all()) == kept
            assert not state.is_busy
        others = PageState(config, store, log)
        others.offered(Offer("session-2", terms(["south"])), "")
        assert len(others.requests.all()) == 2  # terms that do not name this site


def test_requests_outlive_the_process_and_a_damaged_one_harms_no_other(tmp_path):
    with SiteWithPage(tmp_path, NOBODY, rows()).in_thread() as site:
        path = site.asked_for(offered())
        other = site.asked_for(offered(rounds=9))
    with closing(open_database(memory_path(site.config))) as file:
        put(file, "requests", "north", other.rpartition("/")[2], "{", "")
    (site.folder / "tokens.toml").unlink()
    with SiteWithPage(tmp_path, NOBODY, rows()).in_thread() as again:
        officer = Visitor(again.address).log_in(again.token)
        assert request_paths(officer.get("/requests")) == [path]
        assert again.log.named("a stored request cannot be read")


def test_a_damaged_audit_log_is_said_on_its_page(site, officer):
    with closing(open_database(memory_path(site.config))) as file:
        put(file, "entries", "north", 1, "0" * 64, b"{}\n")
    assert "line 1" in officer.get("/audit")


def test_an_empty_audit_log_is_said_on_its_page(site, officer):
    assert "The log is empty: nothing has left this site." in officer.get("/audit")


@pytest.mark.parametrize(
    ("console", "said"),
    [
        (
            '{ listen = "0.0.0.0:8081", tokens = "t" }',
            "console.listen: '0.0.0.0:8081' is not a loopback address",
        ),
        ('{ listen = "north.example:8081", tokens = "t" }', "ssh -L 8081:127.0.0.1:8081"),
        ('{ listen = "127.0.0.1", tokens = "t" }', "is not an address"),
        ('{ listen = "127.0.0.1:8081" }', "tokens"),
        ('{ listen = "127.0.0.1:8081", tokens = "t", open = true }', "unknown key 'console.open'"),
    ],
)
def test_a_page_is_for_its_own_machine_and_has_tokens(tmp_path, console, said):
    file = tmp_path / "party.toml"
    file.write_text(f'party = "north"\naggregator = "localhost:7070"\ndata = "x.csv"\nconsole = {console}\n')
    with pytest.raises(ConfigError) as error:
        read_party(file)
    assert said in str(error.value)


def test_a_party_without_its_file_of_tokens_does_not_start(tmp_path):
    site = SiteWithPage(tmp_path, NOBODY, rows())
    site.node.close()
    (tmp_path / "tokens.toml").unlink()
    end = fedboost("party", "--config", site.file, "--insecure-loopback", "--wait", "1")
    assert end.code == 2
    assert "--role officer" in end.err
    assert end.err.splitlines()[-1].startswith("fedboost: ")


def test_a_page_without_its_extra_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    site = SiteWithPage(tmp_path, NOBODY, rows())
    with raised(ConfigError, "extra-missing"):
        asyncio.run(site.node.run(wait=1, once=False))


def test_tokens_are_throttled_by_address(site, officer):
    for _ in range(int(logins.TRIES_SAVED)):
        assert Visitor(site.address).ask("POST", "/login", {"token": "wrong"})[0] == 401
    assert Visitor(site.address).ask("POST", "/login", {"token": "wrong"})[0] == 429
    officer.get("/")  # who is logged in goes on


def test_rows_are_not_counted_while_a_session_is_under_way(site, officer):
    path = site.asked_for(offered())
    page = officer.get(path)
    assert ("label, rows</dt>" in page, " rows of north.parquet" in page) == (True, True)
    site.node.watch.page_state.live.session = LiveSession("session-1", "marie", offered(), 0.0)
    page = officer.get(path)
    assert "The rows of this site were not counted, because a session is in progress." in page
    assert ("label, rows</dt>" in page, " rows of north.parquet" in page) == (False, False)
    assert officer.decide(path, "approve", site.token)[0] == 303


def test_a_page_that_fails_harms_no_other(site, officer, monkeypatch):
    def fails(self):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(SitePageData, "overview", fails)
    status, _, body = officer.ask("GET", "/")
    assert (status, "a defect" in body) == (500, False)
    assert site.log.named("a page failed")[0]["reason"] == "ZeroDivisionError: a defect"
    officer.get("/requests")


def full(*_):
    raise sqlite3.OperationalError("database or disk is full")


def test_what_cannot_be_kept_is_a_line_in_the_log(tmp_path, monkeypatch):
    with SiteWithPage(tmp_path, NOBODY, rows()).in_thread() as site:
        monkeypatch.setattr("fedboost.runtime.site.review.put", full)
        site.node.watch.page_state.checked(offered(), "marie", ("no",))
        assert "No requests." in Visitor(site.address).log_in(site.token).get("/requests")
    assert "disk is full" in site.log.named("a request was not stored")[0]["reason"]


def test_decisions_that_cannot_be_read_are_said(site, officer):
    path = site.asked_for(offered())
    assert officer.decide(path, "refuse", site.token)[0] == 303
    rewrite(site.config, "refused", offered().digest, '{"digest": 3}')
    assert "a decision cannot be read" in officer.get(path)
    with raised(Refused, "refusal-unreadable"):
        policy_for(site.config, offered(), "marie")


def test_a_refusal_holds_for_its_analyst_whatever_the_policy_allows(tmp_path):
    config = config_of(tmp_path)
    refuse(config, offered().digest, "marie", datetime.now(UTC))
    with raised(Refused, "refused-by-person"):
        policy_for(config, offered(), "marie")
    refuse(config, offered(rounds=2).digest, "", datetime.now(UTC))
    with raised(Refused, "refused-by-person"):
        policy_for(config, offered(rounds=2), "anybody")
    refuse(config, offered().digest, "pierre", datetime.now(UTC))
    assert refusal_of(config, offered().digest).analysts == ("marie", "pierre")
    policy_for(config, offered(rounds=9), "marie")
