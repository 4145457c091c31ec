"""Signed terms that wait at an aggregator: how many, what withdraws them, and that a signature begins one
session alone."""

import pytest
from consoles import ANYWHERE, served
from processes import wait_until
from sites import bundles_of, rows, terms
from submitting import ended, signed, submit

from fedboost.runtime.aggregator import archive

NO_KEYS = ("--insecure-loopback",)


@pytest.mark.slow
def test_of_an_analyst_few_sessions_wait_and_stopping_a_training_withdraws_one(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_SUBMITTED", 2)
    with served(tmp_path, tokens=["analyst"]) as console:
        waiting = console.one.server.analysts.waiters
        agreed = [terms(["away"], rounds=rounds) for rounds in (1, 2, 3)]
        files = [signed(tmp_path, each, *NO_KEYS) for each in agreed]
        assert [submit(console, each).status for each in files] == [202, 202, 422]
        assert "2 sessions of this analyst" in submit(console, files[2]).json["error"]
        wait_until(lambda: len(waiting) == 2)
        console.one.analyst.train(agreed[2]).stop()  # of what was not submitted
        console.one.analyst.train(agreed[0]).stop()
        wait_until(lambda: len(waiting) == 1)
        assert len(console.one.log.named("submitted terms withdrawn")) == 1
        assert [submit(console, each).status for each in (files[2], files[1])] == [202, 202]
        wait_until(lambda: len(waiting) == 2)
        assert {each.terms for each in waiting} == {*agreed[1:]}


@pytest.mark.slow
def test_signed_terms_begin_one_session(tmp_path):
    """Also over a restart, and where it failed; another signature begins another. It is withdrawn by whoever
    has the key."""
    bundles = bundles_of(tmp_path / "keys", ["north", "away"])
    key = bundles["analyst"].folder
    odd = terms(["north"], columns={"label": "no such column", "numeric": ["dose"]})
    settings = {"bundles": bundles, "listen": ANYWHERE, "tokens": ["analyst"], "state": tmp_path / "state"}
    data = signed(tmp_path, odd, "--keys", key)
    with served(tmp_path, {"north": rows()}, **settings) as console:
        assert submit(console, data).status == 202
        (session,) = wait_until(lambda: ended(console, "analyst"))
        name = session["name"]
        said = f"these signed terms were already used for {name}; sign them again with `fedboost sign`"
        assert submit(console, data).json == {"error": said}
        assert submit(console, signed(tmp_path, odd, "--keys", key)).status == 202
        wait_until(lambda: len(ended(console, "analyst")) == 2)
        away = terms(["away"])
        assert submit(console, signed(tmp_path, away, "--keys", key)).status == 202
        wait_until(lambda: console.one.server.analysts.waiters)
        console.one.analyst.train(away).stop()
        wait_until(lambda: not console.one.server.analysts.waiters)
    (tmp_path / "again").mkdir()
    with served(tmp_path / "again", **settings) as console:
        assert submit(console, data).json == {"error": said}
