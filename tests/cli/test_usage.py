"""Command lines that cannot be: one line, the nearest name, where to look; and completion by the shell."""

import os
import subprocess
import sys

import pytest
from refusals import check_one_line
from sites import fedboost

WRONG = {
    "option": (
        "demo --rouns 3",
        "No such option: --rouns (Possible options: --columns, --out, --rounds); see fedboost demo --help",
    ),
    "option of one letter": ("-v", "No such option: -v; see fedboost --help"),
    "option of the root": (
        "--versoin",
        "No such option: --versoin (Possible options: --version); see fedboost --help",
    ),
    "option of a sub-command": (
        "keys party north --folde x",
        "No such option: --folde (Possible options: --folder); see fedboost keys party --help",
    ),
    "longer option": ("predict m x --output y", "No such option: --output (Possible options: --out); see"),
    "setting of the terms": (
        "simulate t --data x --max-depth 3",
        "No such option: --max-depth (max_depth is a setting of the terms file); see",
    ),
    "another library's setting": (
        "simulate t --data x --n-estimators 3",
        "No such option: --n-estimators (did you mean rounds in the terms file?); see",
    ),
    "setting that there is none of": (
        "train t --booster dart",
        "No such option: --booster: the booster is always gbtree (gbdt); remove it; see",
    ),
    "nothing near": ("train t --xyzzy", "No such option: --xyzzy; see fedboost train --help"),
    "command": ("traim", "No such command 'traim'. Did you mean 'train', "),
    "command that is nothing": ("xyzzy", "No such command 'xyzzy'; see fedboost --help"),
    "sub-command": (
        "privacy plna",
        "No such command 'plna'. Did you mean 'plan'?; see fedboost privacy --help",
    ),
    "missing argument": ("train", "Missing argument 'terms'; see fedboost train --help"),
    "missing option": ("train t", "Missing option '--aggregator'; see fedboost train --help"),
    "option without its value": (
        "simulate t --data",
        "Option '--data' requires an argument; see fedboost simulate",
    ),
    "flag with a value": ("demo --json=3", "'--json' does not take a value; see fedboost demo --help"),
    "sub-command without a value": (
        "keys party --folder",
        "requires an argument; see fedboost keys party --help",
    ),
    "number that is none": ("demo --rounds abc", "Invalid value for '--rounds': "),
    "number too low": ("demo --rounds=0", "Invalid value for '--rounds': "),
    "number too high": ("simulate t --parties 0", "Invalid value for '--parties': "),
    "argument too many": ("simulate a b --data x", "(b); see fedboost simulate --help"),
}


@pytest.mark.parametrize(("command", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_command_line_is_one_line(command, says):
    end = fedboost(*command.split())
    assert end.code == 2
    assert end.out == ""
    check_one_line(end.err, (says, "; see fedboost"))


@pytest.mark.parametrize("command", [(), ("keys",), ("privacy",)])
def test_no_command_is_the_help(command):
    end = fedboost(*command)
    assert end.err == ""
    assert "Usage: fedboost" in end.out


def test_a_name_from_outside_does_not_move_the_cursor():
    check_one_line(fedboost("train", "t", "--a\x1b[2J\nb").err, ("No such option: --a\\x1b[2J",))


# ---- completion -------------------------------------------------------------------------------------


def completed(words):
    """What bash is told to complete the last word with, and the modules that this took."""
    code = (
        "import sys\nfrom fedboost.cli.main import main\ntry:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    variables = {
        "_FEDBOOST_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", code]
    end = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    return end.stdout.split(), {name.split(".")[0] for name in end.stderr.split()}


@pytest.mark.slow
def test_the_shell_completes_commands_and_options_and_files():
    words, modules = completed("fedboost t")
    assert {"train", "terms"} <= {*words} <= {name for name in words if name.startswith("t")}
    assert modules & {"numpy", "numba", "pyarrow", "grpc", "sklearn", "structlog"} == set()
    assert completed("fedboost train terms.toml --ag")[0] == ["--aggregator"]
    assert {"party", "analyst"} <= {*completed("fedboost keys ")[0]}
    assert completed("fedboost predict mod")[0] in ([], ["mod"])  # nothing of ours: files are the shell's


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    end = fedboost("--show-completion", shell)
    assert end.code == 0
    assert "_FEDBOOST_COMPLETE" in end.out
    if shell == "bash":
        assert "complete -o default -F" in end.out  # files, where there is nothing of ours


def test_completion_is_installed_or_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bash_completions").write_text("a file where a folder is wanted")
    check_one_line(fedboost("--install-completion", "bash").err, ("cannot write", "--show-completion"))
    (tmp_path / ".bash_completions").unlink()
    assert fedboost("--install-completion", "bash").code == 0
    assert "fedboost" in (tmp_path / ".bashrc").read_text()
    assert "_FEDBOOST_COMPLETE" in (tmp_path / ".bash_completions" / "fedboost.sh").read_text()
