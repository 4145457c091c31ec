"""Submitted terms that wait for their parties outlive an aggregator that is killed or stopped."""

import http.client
import json
import os
import time
from contextlib import ExitStack, closing, suppress

import pytest
from anything import ANYTHING
from commands import start
from consoles import ANYWHERE, served
from crashes import Followed
from processes import ending, free_port, wait_until
from sites import PATIENCE, bundles_of, rows, terms, written
from submitting import API, ended, signed, submit

from fedboost.runtime.aggregator.archive import NOT_BEGUN, SUBMITTED, WAIT_SECONDS
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import to_toml
from fedboost.runtime.web.logins import add_token

NORTH = terms(["north"], rounds=2)


def asked(port, path, token, body=None):
    """The JSON that a console answers with; None while nobody answers."""
    with (
        suppress(OSError),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client,
    ):
        client.request("GET" if body is None else "POST", path, body, {"Authorization": f"Bearer {token}"})
        return json.loads(client.getresponse().read())


@pytest.mark.slow
def test_a_submission_outlives_an_aggregator_that_is_killed(tmp_path):
    """And so does the wait of an analyst's program with the same terms, which gets the same session."""
    bundles = bundles_of(tmp_path / "keys", ["north"])
    port, console = free_port(), free_port()
    token, _ = add_token(tmp_path / "tokens.toml", "analyst", "analyst", 1)
    (tmp_path / "aggregator.toml").write_text(
        f'listen = "127.0.0.1:{port}"\nkeys = "{bundles["aggregator"].folder}"\nstate = "state"\n'
        f'console = {{ listen = "127.0.0.1:{console}", tokens = "tokens.toml" }}\n'
    )
    (table,) = written(tmp_path, {"north": rows()}).values()
    (tmp_path / "party.toml").write_text(
        f'party = "north"\naggregator = "127.0.0.1:{port}"\nkeys = "{bundles["north"].folder}"\n'
        f'data = "{table}"\npolicy = {to_toml(ANYTHING)}\n'
    )

    def aggregator(stack):
        process = start("aggregator", "--config", str(tmp_path / "aggregator.toml"))
        stack.enter_context(ending(process))
        wait_until(lambda: asked(console, f"{API}/health", token))
        return process

    data = signed(tmp_path, NORTH, "--keys", bundles["analyst"].folder)
    with ExitStack() as stack:
        killed = aggregator(stack)
        assert asked(console, f"{API}/sessions", token, data)["state"] == "waiting"
        analyst = Followed(connect(f"127.0.0.1:{port}", bundles["analyst"].folder), NORTH)
        wait_until(lambda: len(asked(console, f"{API}/sessions", token)) == 2)
        killed.kill()
        killed.wait()
        aggregator(stack)
        wait_until(lambda: len(asked(console, f"{API}/sessions", token)) == 2)  # both wait again
        stack.enter_context(ending(start("party", "--config", str(tmp_path / "party.toml"))))
        assert analyst.end().terms == NORTH
        (session,) = wait_until(lambda: asked(console, f"{API}/sessions", token))
        assert (session["state"], session["terms"]) == ("done", NORTH.digest)
        wait_until(lambda: not [*(tmp_path / "state" / SUBMITTED).iterdir()])


@pytest.mark.slow
def test_what_waits_is_taken_up_unless_it_no_longer_counts(tmp_path):
    bundles = bundles_of(tmp_path / "keys", ["north"])
    state = tmp_path / "state"
    folder, key = state / SUBMITTED, bundles["analyst"].folder
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["analyst"], "state": state}
    agreed = [terms(["north"], rounds=number) for number in (1, 2, 3, 4)]
    with served(tmp_path, **settings) as console:
        files = []
        for each in agreed:
            assert submit(console, signed(tmp_path, each, "--keys", key)).json["state"] == "waiting"
            files += sorted({*folder.iterdir()} - {*files})
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        wait_until(lambda: len(console.one.server.analysts.waiters) == 4)
        console.one.analyst.train(agreed[1]).stop()
        wait_until(lambda: len(console.one.server.analysts.waiters) == 3)
    assert sorted(folder.iterdir()) == sorted([files[0], files[2], files[3]])
    late = time.time() - WAIT_SECONDS - 1
    os.utime(files[2], (late, late))
    changed = json.loads(files[3].read_bytes())
    changed["terms"] = terms(["north"], rounds=5).canonical()
    files[3].write_text(json.dumps(changed))
    (folder / "odd.json").write_text("[")
    unsigned = {"terms": terms(["north"], rounds=6).canonical()}
    (folder / "unsigned.json").write_text(json.dumps(unsigned))
    (folder / "again.json").write_bytes(files[0].read_bytes())
    (tmp_path / "again").mkdir()
    with served(tmp_path / "again", {"north": rows()}, **settings) as console:
        (session,) = wait_until(lambda: ended(console, "analyst"))
        assert (session["state"], session["terms"]) == ("done", agreed[0].digest)
        wait_until(lambda: not [*folder.iterdir()])
        reasons = sorted(each["reason"] for each in console.one.log.named(NOT_BEGUN))
        parts = (
            "24 hours",
            "signature",
            "were not signed by analyst",
            "not signed terms",
            "the file name does not match the content",
        )
        assert len(reasons) == len(parts)
        for part in parts:
            assert any(part in reason for reason in reasons), (part, reasons)
        assert len(ended(console, "analyst")) == 1


@pytest.mark.slow
def test_terms_that_cannot_be_kept_are_refused(tmp_path):
    """Nobody is told that they wait, and loses them at the next start."""
    state = tmp_path / "state"
    with served(tmp_path, tokens=["analyst"], state=state) as console:
        (state / SUBMITTED).write_text("no folder")
        answer = submit(console, signed(tmp_path, terms(["away"]), "--insecure-loopback"))
        assert (answer.status, "cannot write to its state folder" in answer.json["error"]) == (422, True)
        assert not console.one.server.analysts.waiters
