"""All commands: help, where the output goes, logs."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pyarrow as pa
import pytest
from commands import done
from pyarrow import csv
from refusals import refusal
from sites import fedboost, rows, terms

from fedboost import __version__
from fedboost.cli import main
from fedboost.cli.train import progress
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.runtime.telemetry import logger

COMMANDS = (
    "demo",
    "simulate",
    "compare",
    "aggregator",
    "party",
    "train",
    "predict",
    "explain",
    "report",
    "terms",
    "columns",
    "preflight",
    "check",
    "approve",
    "audit",
)
HEAVY = ("numpy", "numba", "pyarrow", "grpc", "pydantic", "sklearn", "structlog", "pandas")

# ---- help -------------------------------------------------------------------------------------------


def test_help_names_every_command():
    text = done("--help").out
    assert all(command in text for command in COMMANDS)
    assert fedboost("-h").out == text


def test_help_has_one_sentence_for_each_command():
    text = " ".join(done("--help").out.replace("│", " ").split())
    assert "train Submit terms to an aggregator and receive the model. evaluate Evaluate a model" in text


def test_help_groups_commands_by_role():
    panels = re.findall(r"^╭─ (\w+) ─+╮\n(.*?)^╰", done("--help").out, re.DOTALL | re.MULTILINE)
    shown = {role: re.findall(r"^│ ([a-z-]+) ", text, re.MULTILINE) for role, text in panels}
    assert {role: shown[role] for role in main.COMMANDS} == {
        role: [*names] for role, names in main.COMMANDS.items()
    }


@pytest.mark.parametrize("words", [(), ("keys",), ("keys", "sign"), ("train",), ("terms",)])
def test_flags_have_no_type(words):
    text = done(*words, "--help").out
    assert "--help" in text
    assert "bool" not in text


@pytest.mark.parametrize("name", main.MODULES)
def test_the_list_of_commands_says_how_the_help_of_each_begins(name):
    begins = main.Lazy(name, "").help
    assert begins.endswith(".")
    text = " ".join(done(*name.split(), "--help").out.replace("`", "").split())
    assert begins.removesuffix(".").replace("`", "") in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    text = " ".join(done(command, "--help").out.split())
    assert f"Example: fedboost {command}" in text


def test_the_version():
    assert done("--version").out == f"fedboost {__version__}\n"


@pytest.mark.parametrize("arguments", [("nonsense",), ("simulate",), ("simulate", "x", "--parties", "0")])
def test_a_command_line_that_cannot_be_is_refused(arguments):
    refusal(*arguments)


@pytest.mark.parametrize("imported", ["fedboost", "fedboost.cli.main"])
def test_nothing_heavy_is_imported_before_it_is_needed(imported):
    code = f"import sys, {imported}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    end = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    loaded = end.stdout.split()
    assert "fedboost" in loaded
    assert set(loaded) & set(HEAVY) == set()


# ---- where the output goes --------------------------------------------------------------------------


def ended(*arguments, stdout=subprocess.PIPE, **environment):
    """Run the command in a process of its own: exit code, standard output and error, as bytes."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "fedboost", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


FULL_OUTPUT = {
    "predict": ("predict", "m.json", "rows.csv"),
    "simulate": ("simulate", "terms.toml", "--data", "rows.csv"),
    "help": ("--help",),
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", FULL_OUTPUT.values(), ids=FULL_OUTPUT)
def test_a_full_disk_behind_standard_output_is_one_line(folder, arguments):
    simulate(terms(rounds=1), [rows()]).model.save("m.json")
    with open("/dev/full", "wb") as full:
        end = ended(*arguments, stdout=full)
    assert end.stderr == b"fedboost: cannot write the output: No space left on device\n"
    assert end.returncode == 2


@pytest.mark.slow
def test_names_the_locale_cannot_write_are_written(folder):
    csv.write_csv(rows().rename_columns(["ä", "dose", "ward", "site", "y"]), "rows.csv")
    end = ended("terms", "rows.csv", "--label", "y", PYTHONIOENCODING="ascii")
    assert end.returncode == 0, end.stderr
    (folder / "drafted.toml").write_bytes(end.stdout)
    assert "ä" in read_terms(folder / "drafted.toml").columns.numeric
    end = ended("terms", "rows.csv", "--label", "ö", PYTHONIOENCODING="ascii:strict")
    assert end.returncode == 2
    assert end.stderr.startswith(rb"fedboost: column '\xf6' is missing: the columns are '\xe4', ")


def test_a_training_that_stops_early_says_what_it_keeps(folder):
    terms_of = terms(["north", "south"], rounds=60, validation_fraction=0.4, early_stopping_rounds=2)
    (folder / "early.toml").write_text(terms_to_toml(terms_of))
    end = fedboost("simulate", "early.toml", "--data", "rows.csv", "--out", "early.json")
    assert end.code == 0, end.err
    model = Model.load("early.json")
    assert model.kept == len(model.booster.trees) == len(model.rounds) - 2
    assert f"stopped after {len(model.rounds)} rounds: the best round, {model.kept}, is the last" in end.out
    assert f"validation-logloss {model.rounds[model.kept - 1]['validation-logloss']:.5f}" in end.out


@pytest.mark.slow
def test_predictions_and_terms_go_through_a_device(folder):
    simulate(terms(rounds=1), [rows()]).model.save("m.json")
    (folder / "out").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    for arguments in (("predict", "m.json", "rows.csv"), ("terms", "rows.csv", "--label", "y")):
        end = ended(*arguments, "--out", "out")
        assert end.returncode == 0, end.stderr
        assert end.stdout.decode() == done(*arguments).out
    assert (folder / "out").is_symlink()


def test_names_are_no_markup(folder):
    sites = pa.array(["[/x]", "[bold]y", "[z"] * 60)
    csv.write_csv(rows().set_column(3, "site", sites), "rows.csv")
    (folder / "any.toml").write_text(terms_to_toml(terms()))
    text = done("simulate", "any.toml", "--data", "rows.csv", "--site", "site").out
    assert [line.split(" ")[0] for line in text.splitlines()[-5:-2]] == ["[/x]", "[bold]y", "[z"]


def test_the_progress_bar_takes_any_name(monkeypatch):
    """A metric is called what the aggregator calls it."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with redirect_stdout(terminal), progress(terms(), json=False) as draw:
        draw({"round": 0, "[/x]\x1b": 0.5, "seconds": 0.1, "bytes": 10})
    assert "[/x]\\x1b 0.50000" in terminal.getvalue()


# ---- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_a_log_has_colours_only_where_they_can_be_seen(monkeypatch, terminal, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    error = io.StringIO()
    error.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", error)
    logger("party").info("at hand", party="north")
    assert ("\x1b[" in error.getvalue()) == coloured
    assert "at hand" in error.getvalue()
