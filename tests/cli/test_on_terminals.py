"""Processes on terminals: log, progress and notices from the first line to Ctrl-C."""

import json

import pytest
from commands import done
from screens import interrupted, on_screen
from sites import rows, shared_out, terms, written

from fedboost.runtime.tasks import terms_to_toml

INSECURE = "--insecure-loopback"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_aggregator_party_and_training_on_terminals(folder):
    """From the first line to Ctrl-C, on terminals of 80 columns."""
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    (folder / "one.toml").write_text(terms_to_toml(terms(["north"], rounds=3000)))
    (file,) = written(folder, shared_out(1, rows(60))).values()
    with on_screen("aggregator", "--config", "aggregator.toml", INSECURE) as (aggregating, aggregator):
        text = aggregating.until(lambda text: "without encryption" in text)
        address = text.split("listening on ")[1].split(",")[0]
        train = ("train", "one.toml", "--aggregator", address, INSECURE, "--out", "m.json")
        with on_screen(*train) as (training, analyst):
            training.until(lambda text: "waiting for north" in text)
            config = f'party = "north"\naggregator = "{address}"\ndata = "{file.name}"\n'
            (folder / "north.toml").write_text(config)
            done("approve", "one.toml", "--config", "north.toml", "--yes")
            with on_screen("party", "--config", "north.toml", INSECURE) as (attending, party):
                attending.until(lambda text: "round=3" in text)
                training.until(lambda text: "logloss 0." in text)
                assert interrupted(analyst) == 0
                attending.until(lambda text: "session done" in text)
                assert interrupted(party) == 0
        assert interrupted(aggregator) == 0
    assert any(line.rstrip().endswith("of 3000 rounds.") for line in training.lines)
    for shown in (aggregating, attending, training):
        assert "Traceback" not in shown.written
        logged = [line for line in shown.lines if "[info]" in line]
        assert all(line[:4].isdecimal() for line in logged), "each line of the log begins one"


def test_a_log_in_json_on_a_terminal_has_lines_alone(folder):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    options = ("--config", "aggregator.toml", INSECURE, "--log-format", "json")
    with on_screen("aggregator", *options) as (shown, process):
        shown.until(lambda text: "listening on" in text)
        assert interrupted(process) == 0
    listening, *lines = shown.lines
    assert listening.startswith("aggregator listening on ")
    assert {"stopping"} <= {json.loads(line)["event"] for line in lines}
