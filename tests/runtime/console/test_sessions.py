"""Sessions on the console: submitted as signed terms, under way, over; and what goes wrong ends none."""

import asyncio
import itertools
import json
import re
import socket

import pytest
from console_facts import facts
from consoles import ANYWHERE, served
from processes import wait_until
from sites import PATIENCE, bundles_of, fedboost, rows, shared_out, terms
from submitting import API, ended, signed, submit

import fedboost as fb
from fedboost.runtime import console as live
from fedboost.runtime.aggregator.archive import FOLDER
from fedboost.runtime.console import ConsoleQueries
from fedboost.runtime.tasks import drift_terms, evaluation_terms, terms_to_tune
from fedboost.runtime.web import serving
from fedboost.terms.tasks import terms_to_describe

THREE = shared_out(3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("consortium") / "keys", [*THREE, "away"])


@pytest.mark.slow
def test_signed_terms_train_a_model(tmp_path, bundles):
    """From the file to the model and its report; the same again over a restart."""
    agreed, key = terms(THREE, protection="masked", rounds=4), bundles["analyst"].folder
    state = tmp_path / "state"
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["viewer", "analyst"], "state": state}
    with served(tmp_path, THREE, **settings) as console:
        data = signed(tmp_path, agreed, "--keys", key)
        answer = submit(console, data)
        assert (answer.status, answer.json["terms"]) == (202, agreed.digest)
        (session,) = wait_until(lambda: ended(console))
        assert (session["state"], session["analyst"], session["rounds_done"]) == ("done", "analyst", 4)
        assert (session["parties"], session["protection"]) == ([*THREE], "masked")
        detail = console.ask(f"{API}/sessions/{session['name']}", role="viewer").json
        assert [row["round"] for row in detail["rounds"]] == [0, 1, 2, 3]
        assert {name: min(moved) > 1000 for name, moved in detail["traffic"].items()} == dict.fromkeys(
            THREE, True
        )
        (model,) = console.ask(f"{API}/models", role="viewer").json
        file = console.ask(f"{API}/models/{model['name']}", role="viewer")
        assert f'filename="{model["name"]}.json"' in file.headers["Content-Disposition"]
        assert fb.Model.from_bytes(file.text.encode()).terms == agreed
        report = console.ask(f"{API}/models/{model['name']}/report", role="viewer")
        assert "<h1>Model of " in report.text
        assert "not checked" not in report.text
        assert report.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src")
        page = console.ask(f"/sessions/{model['name']}", role="viewer").text
        assert f'href="/api/v1/models/{model["name"]}/report">Report</a>' in page
        wait_until(lambda: not [*state.glob("*.journal")])  # nobody is waited for who would fetch it
        name = session["name"]
        used = f"these signed terms were already used for {name}; sign them again with `fedboost sign`"
        answer = submit(console, data)
        assert (answer.status, answer.json["error"]) == (422, used)
    assert (state / FOLDER).stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (state / FOLDER).iterdir())
    (tmp_path / "again").mkdir()
    (state / FOLDER / "session-0123456789abcdef.json").write_text("[")
    with served(tmp_path / "again", **settings) as console:
        assert ended(console) == [session]
        assert console.ask(f"{API}/models/{model['name']}", role="viewer").text == file.text
        assert console.one.log.named("the file is not a record of a session")
        answer = submit(console, data)
        assert (answer.status, answer.json["error"]) == (422, used)


@pytest.mark.slow
def test_every_result_that_can_be_read_has_a_report(tmp_path):
    """And is called what it is: that of drift cannot be read without the reference in the model's file."""
    tables = {"north": rows()}
    training = terms(["north"], reference=True)
    model = fb.simulate(training, tables).model
    for task, agreed, name, said in (
        ("describe", terms_to_describe(training), "description", "dose"),
        ("tune", terms_to_tune(training, trials=2), "result", "max_depth"),
        ("evaluate", evaluation_terms(model, training), "evaluation", "logloss"),
        ("drift", drift_terms(model, training)[0], "comparison of rows", None),
    ):
        (tmp_path / task).mkdir()
        with served(tmp_path / task, tables) as console:
            console.run(console.one.train(agreed))
            (session,) = wait_until(lambda console=console: ended(console, None))
            assert (session["program"], session["state"]) == (task, "done")
            (listed,) = console.ask(f"{API}/models").json
            report = console.ask(f"{API}/models/{session['name']}/report")
            page = console.ask(f"/sessions/{session['name']}").text
            assert f"{name}, " in console.ask("/sessions").text
            assert "model, " not in page
            assert not console.one.log.named("a page failed"), console.one.log.named("a page failed")
            assert (listed["report"], report.status) == ((True, 200) if said else (False, 404))
            assert (f"{session['name']}/report" in page) is listed["report"]
            assert said is None or {said, "Traffic"} <= {*re.findall(r"[\w-]+", report.text)}


@pytest.mark.slow
def test_who_did_not_sign_the_terms_submits_nothing(tmp_path, bundles):
    agreed, key = terms(["away"]), bundles["analyst"].folder
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["viewer", "analyst"]}
    with served(tmp_path, **settings) as console:
        data = signed(tmp_path, agreed, "--keys", key)
        values = json.loads(data)
        other = json.loads(signed(tmp_path, agreed.changed(rounds=5), "--keys", key))
        unsigned = json.dumps({"terms": values["terms"]}).encode()
        for wrong, said in (
            (json.dumps({**values, "terms": other["terms"]}).encode(), "signature"),
            (unsigned, "were not signed by analyst"),
            (json.dumps({**values, "terms": "{"}).encode(), "signature"),
            (json.dumps({**values, "more": 1}).encode(), "not signed terms"),
            (json.dumps({**values, "request": {}}).encode(), "not signed terms"),
            (b"[" * 100_000, "not signed terms"),
            (b"\xff", "not signed terms"),
            (b"", "not signed terms"),
        ):
            console.one.log.events.clear()
            console.one.server.refusals._peers.clear()
            answer = submit(console, wrong)
            assert answer.status == 422, answer.text
            assert said in answer.json["error"]
            assert console.refused == [("POST /api/v1/sessions", f"422: {answer.json['error']}")]
        assert submit(console, data, "viewer").status == 403
        assert console.one.server.analysts.waiters == []
        for _ in range(2):
            answer = submit(console, data)
            assert (answer.status, answer.json["state"], answer.json["missing"]) == (202, "waiting", ["away"])
        wait_until(lambda: console.one.server.analysts.waiters)
        assert len(console.one.server.analysts.waiters) == 1
        (session,) = console.ask(f"{API}/sessions", role="viewer").json
        assert (session["state"], session["analyst"], session["name"]) == ("waiting", "analyst", "")
        assert "waiting for" in console.ask("/", role="viewer").text
    assert fedboost("sign", tmp_path / "terms.toml", "--out", tmp_path / "no.json").code == 2


@pytest.mark.slow
def test_a_token_of_another_analyst_submits_nothing(tmp_path, bundles):
    """A token and a signature must be of the same analyst."""
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["viewer", "analyst"]}
    with served(tmp_path, **settings) as console:
        file = tmp_path / "tokens.toml"
        file.write_text(file.read_text().replace('name = "analyst"', 'name = "somebody"'))
        data = signed(tmp_path, terms(["away"]), "--keys", bundles["analyst"].folder)
        answer = submit(console, data)
        assert answer.status == 422
        assert "were not signed by analyst 'somebody'" in answer.json["error"]


@pytest.mark.slow
def test_a_console_that_fails_ends_no_session(tmp_path, monkeypatch):
    """Whatever cannot be drawn, or kept, the training goes on."""
    tables = {"north": rows()}
    with served(tmp_path, tables, tokens=["analyst"], state=tmp_path / "state") as console:
        monkeypatch.setattr("fedboost.runtime.console.ConsoleQueries.state", lambda self: 1 / 0)
        monkeypatch.setattr("fedboost.runtime.aggregator.archive.facts_of", lambda session: 1 / 0)
        answer = console.ask("/")
        assert (answer.status, answer.json["error"]) == (500, "this page failed; the reason is in the log")
        assert console.one.log.named("a page failed")[0]["reason"].startswith("ZeroDivisionError")
        training = console.run(console.one.train(terms(["north"])))
        assert len(training.history) == 3
        wait_until(lambda: console.one.log.named("the session cannot be stored"))
        monkeypatch.undo()
        assert console.ask("/").status == 200


@pytest.mark.slow
def test_a_page_follows_a_session(tmp_path, monkeypatch):
    monkeypatch.setattr("fedboost.runtime.console.DRAW_SECONDS", 0.05)
    with served(tmp_path, {"north": rows()}) as console:
        assert "No session is running." in console.ask("/").text
        console.run(console.one.train(terms(["north"], rounds=3)))
        wait_until(lambda: "model, " in console.ask("/").text)


@pytest.mark.slow
def test_a_session_that_was_submitted_is_the_one_that_its_analyst_waits_for(tmp_path, bundles):
    """Not a second one under the same terms."""
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["viewer", "analyst"]}
    agreed = terms(["north", "away"])
    with served(tmp_path, {"north": rows()}, state=tmp_path / "state", **settings) as console:
        assert submit(console, signed(tmp_path, agreed, "--keys", bundles["analyst"].folder)).status == 202
        following = asyncio.run_coroutine_threadsafe(console.one.train(agreed), console._loop)
        wait_until(lambda: len(console.one.server.analysts.waiters) == 2)

        async def arrive():
            console.one.start_party("away", rows(seed=1))

        console.run(arrive())
        assert following.result(PATIENCE).model.terms == agreed
        assert len(console.one.log.named("session begins")) == 1
        wait_until(lambda: console.one.server.analysts.waiters == [])


@pytest.mark.slow
def test_a_reader_that_does_not_keep_up_is_dropped(tmp_path, monkeypatch):
    """And holds up neither the others nor the aggregator."""
    numbers = itertools.count(3)
    monkeypatch.setattr(live, "DRAW_SECONDS", 0.005)
    monkeypatch.setattr(serving, "UNREAD_SECONDS", 0.2)
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: facts(next(numbers) % 100))
    with served(tmp_path) as console:
        ask = f"GET / HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode()
        with console.open() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(ask * 400)
            connections = console.one.server.pages.console._server._server.server_state.connections
            wait_until(lambda: len(connections) == 1)
            wait_until(lambda: not connections)
        assert console.ask("/").status == 200
