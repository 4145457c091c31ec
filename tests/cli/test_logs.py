"""The logs of a process: date, offset and level, text or JSON, from a level on."""

import io
import json
import re
from contextlib import redirect_stderr
from datetime import datetime, timedelta

import pytest
from sites import fedboost

from fedboost.runtime.telemetry import logger

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


def logged(act, *options):
    """The lines that a logger with these options writes."""
    with redirect_stderr(io.StringIO()) as error:
        act(logger(*options))
    return error.getvalue().splitlines()


def test_a_line_for_people():
    (line,) = logged(lambda log: log.bind(party="north").info("at hand", aggregator="fed:7070"), "party")
    assert re.fullmatch(rf"{TIME} \[info\] at hand aggregator=fed:7070 party=north role=party", line)


def test_several_values_are_one_text():
    reasons = ("no rows", "no column 'a, b'")
    (line,) = logged(lambda log: log.info("terms checked", parties=["a", "b"], reasons=reasons), "party")
    assert line.endswith("""terms checked parties='a, b' reasons="no rows; no column 'a, b'" role=party""")


def test_an_object_a_line():
    def act(log):
        log.warning("party refused", reason="no\nreally", seconds=1.5)
        log.info("session begins", parties=["a", "b"])

    first, second = map(json.loads, logged(act, "aggregator", "json"))
    assert (first["level"], first["role"], first["event"]) == ("warning", "aggregator", "party refused")
    assert (first["reason"], first["seconds"], second["parties"]) == ("no\nreally", 1.5, ["a", "b"])
    time = datetime.fromisoformat(first["timestamp"])
    assert time.utcoffset() is not None
    assert abs(datetime.now(time.tzinfo) - time) < timedelta(minutes=1)


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_from_a_level_on(level, count):
    def act(log):
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)("an event")

    assert len(logged(act, "party", "json", level)) == count


@pytest.mark.parametrize("role", ["party", "keyholder"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_options_of_a_site(tmp_path, role, form):
    file = tmp_path / "site.toml"
    rows = 'data = "rows.csv"\n' if role == "party" else ""
    file.write_text(f'party = "north"\naggregator = "localhost:1"\n{rows}')
    (tmp_path / "rows.csv").write_text("x,y\n1,0\n")
    options = "--insecure-loopback", "--wait", "0.1", "--log-format", form
    end = fedboost(role, "--config", file, *options)
    line, *_, last = end.err.splitlines()
    assert last.startswith("fedboost: no aggregator answers at localhost:1")
    if form == "json":
        assert json.loads(line)["role"] == role
    else:
        assert re.match(rf"{TIME} \[info\] ", line)
        assert line.endswith(f"role={role} sessions=0")
    end = fedboost(role, "--config", file, *options, "--log-level", "error")
    assert end.err.count("\n") == 1
