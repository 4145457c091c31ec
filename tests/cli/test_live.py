"""The display of a process on its terminal: the log above it, questions, ends, and where there is none."""

import json
import os
import sys
from contextlib import contextmanager, redirect_stderr

import pytest
from commands import done
from screens import interrupted, on_screen, screen
from sites import rows, shared_out, terms, written

from fedboost.cli.serve import LiveDisplay, live_display
from fedboost.people.live import LiveFacts
from fedboost.runtime.telemetry import logger
from fedboost.runtime.terms_file import terms_to_toml

INSECURE = "--insecure-loopback"


class Source:
    """Facts that a test changes."""

    def __init__(self):
        self.now, self.asked = "first", 0

    def __call__(self):
        self.asked += 1
        return LiveFacts("party north", "connected", now=self.now)


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@contextmanager
def terminal():
    """This process with its standard error on a terminal of 60 columns: the screen."""
    with (
        screen(60, 20) as shown,
        os.fdopen(os.dup(shown.file), "w", encoding="utf-8") as file,
        redirect_stderr(file),
    ):
        yield shown


def test_the_log_stands_above_the_display_and_a_line_stays():
    with terminal() as shown:
        display, source = live_display(), Source()
        log = logger("party", stream=display)
        log.info("before")
        with display.showing(source):
            display.refresh()
            shown.until(lambda text: text.endswith("first"))
            log.info("at hand", why="x" * 200)
            print("a notice", file=sys.stderr)
            source.now = "second"
            display.refresh()
            text = shown.until(lambda text: text.endswith("second"))
            *_, notice, title, now = text.splitlines()
            assert notice == "a notice"
            assert title == "── party north ── connected"
            assert now == "second"
        lines = [line for line in shown.until(lambda text: "north: second" in text).splitlines() if line]
        assert [line.split("[info] ")[-1] for line in lines] == [
            "before role=party",
            f"at hand role=party why={'x' * 200}",
            "a notice",
            "party north: second",
        ]
        assert "\x1b[?25l" not in shown.written, "a cursor that is hidden stays so if the process is killed"


def test_an_unchanged_display_is_not_drawn_again_and_another_size_is():
    with terminal() as shown:
        display, source = live_display(), Source()
        with display.showing(source):
            display.refresh()
            shown.until(lambda text: text.endswith("first"))
            before = len(shown.written)
            for _ in range(5):
                display.refresh()
            shown.resize(20, 20)
            display.refresh()
            shown.until(lambda text: "── party north ── c…" in text)
            assert shown.written[before:].count("first") == 1
            assert source.asked == 7


def test_a_question_is_asked_without_the_display():
    with terminal() as shown:
        display, seen = live_display(), []

        def ask(question):
            print(question, end="", file=sys.stderr, flush=True)
            display.refresh()
            logger("party", stream=display).info("said meanwhile")
            seen.append(shown.until(lambda text: "meanwhile" in text))
            return True

        with display.showing(Source()):
            display.refresh()
            assert display.asking(ask)("take part? ")
            display.refresh()
            shown.until(lambda text: text.endswith("first"))
        assert seen[0].startswith("take part? ")
        assert "party north" not in seen[0]


def test_an_error_leaves_the_terminal_as_it_was():
    with terminal() as shown:
        before = sys.stdout, sys.stderr
        display = live_display()

        def fail():
            with display.showing(Source()):
                display.refresh()
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert shown.until(lambda text: "north: first" in text) == "party north: first"
        assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("term", ["dumb", "unknown", None])
def test_there_is_no_display_on_a_terminal_that_cannot_move_the_cursor(monkeypatch, term):
    with terminal():
        assert isinstance(live_display(), LiveDisplay)
        assert live_display(plain=True) is None
        monkeypatch.delenv("TERM")
        if term is not None:
            monkeypatch.setenv("TERM", term)
        assert live_display() is None


def test_there_is_no_display_on_a_terminal_without_unicode():
    with (
        screen() as shown,
        os.fdopen(os.dup(shown.file), "w", encoding="ascii") as file,
        redirect_stderr(file),
    ):
        assert live_display() is None


def test_there_is_no_display_where_standard_error_is_no_terminal():
    assert live_display() is None


def test_no_color_takes_the_colours_away_and_leaves_the_display(monkeypatch):
    with terminal() as shown:
        monkeypatch.setenv("NO_COLOR", "1")
        display = live_display()
        with display.showing(lambda: LiveFacts("party north", waiting="the aggregator")):
            display.refresh()
            shown.until(lambda text: "waiting for the aggregator" in text)
        assert "\x1b[33m" not in shown.written


@pytest.mark.slow
def test_aggregator_party_and_training_on_terminals(folder):
    """From the first line to Ctrl-C, on terminals of 80 columns."""
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    (folder / "one.toml").write_text(terms_to_toml(terms(["north"], rounds=3000)))
    (file,) = written(folder, shared_out(1, rows(60))).values()
    with on_screen("aggregator", "--config", "aggregator.toml", INSECURE) as (aggregating, aggregator):
        text = aggregating.until(lambda text: "no session runs or waits" in text)
        address = text.split("listening on ")[1].split(",")[0]
        train = ("train", "one.toml", "--aggregator", address, INSECURE, "--out", "m.json")
        with on_screen(*train) as (training, analyst):
            training.until(lambda text: "north  away, never connected there" in text)
            aggregating.until(lambda text: "waiting for north" in text)
            config = f'party = "north"\naggregator = "{address}"\ndata = "{file.name}"\n'
            (folder / "north.toml").write_text(config)
            done("approve", "one.toml", "--config", "north.toml", "--yes")
            with on_screen("party", "--config", "north.toml", INSECURE) as (attending, party):
                attending.until(lambda text: "seconds a round" in text)
                aggregating.until(lambda text: "\nlogloss 0." in text)
                training.until(lambda text: "\nlogloss 0." in text)
                assert interrupted(analyst) == 0
                attending.until(lambda text: text.endswith("1 session so far; the last: session done"))
                assert interrupted(party) == 0
                lines = attending.lines
        assert interrupted(aggregator) == 0
    assert lines[-1] == "party north: 1 session so far; the last: session done"
    assert not any(line.startswith("──") for line in lines), "the display is gone"
    stopped = [line for line in training.lines if line.startswith("training at ")]
    assert len(stopped) == 1
    assert "/3000, logloss 0." in stopped[0]
    assert any(line.endswith("of 3000 rounds") for line in training.lines)
    for shown in (aggregating, attending, training):
        assert "Traceback" not in shown.written
        logged = [line for line in shown.lines if "[info]" in line]
        assert all(line[:4].isdecimal() for line in logged), "each line of the log begins one"


@pytest.mark.slow
def test_a_log_in_json_on_a_terminal_has_lines_alone(folder):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    options = ("--config", "aggregator.toml", INSECURE, "--log-format", "json")
    with on_screen("aggregator", *options) as (shown, process):
        shown.until(lambda text: "listening on" in text)
        assert interrupted(process) == 0
    listening, *lines = shown.lines
    assert listening.startswith("aggregator listening on ")
    assert {"stopping"} <= {json.loads(line)["event"] for line in lines}
