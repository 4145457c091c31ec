"""Kernels compiled ahead, for images and service accounts."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from pyarrow import csv
from sites import fedboost, rows
from unprivileged import ROOT

from fedboost.cli import serve as warm_up
from fedboost.cli.serve import compile_usual
from fedboost.errors import ConfigError
from fedboost.kernel_cache import COMPILING, Folders, folders, unready

LACKING = """
import sys
from numba.core.dispatcher import Dispatcher
from fedboost.cli.serve import compile_all
compile_all()
modules = [module for name, module in sys.modules.items() if name.startswith("fedboost.")]
kernels = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
if vectors := sys.modules.get("fedboost.privacy.rowsums.kernels"):
    if not vectors.may_compile():
        own = [value for name, module in sys.modules.items() if "rowsums.kernels" in name
               for value in vars(module).values()]
        kernels = {kernel for kernel in kernels if kernel not in own}
within = {name for kernel in kernels for name in kernel.py_func.__code__.co_names}  # come with callers
named = {k for k in kernels if k.__name__[0] != "_"}
assert len(named) > 40
lacking = {k.__name__ for k in named if not k.signatures and "inline" not in k.targetoptions}
print(*(lacking - within))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_warm_up_nothing_is_left_to_compile(folder):
    cache = folder / "cache"
    for compiled in folders().read:  # by earlier tests: so it does not take a minute
        shutil.copytree(compiled, cache / compiled.name, dirs_exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDBOOST_CACHE": str(cache)}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], env=env, check=True, capture_output=True, text=True
        )

    assert not run("-c", LACKING).stdout.split()
    kept = sorted(cache.rglob("*.nbc"))
    assert len(kept) > 60
    run("-m", "fedboost", "simulate", "terms.toml", "--data", "rows.csv", "--out", "model.json")
    run("-m", "fedboost", "predict", "model.json", "rows.csv", "--out", "new.csv")
    assert sorted(cache.rglob("*.nbc")) == kept


def test_rows_are_encrypted_ahead_where_the_extra_is_installed(monkeypatch):
    def settings():
        return [settings["protection"] for settings in warm_up._by_columns()]

    assert settings() == ["plain", "plain", "paillier"]
    monkeypatch.setitem(sys.modules, "fedboost.privacy.paillier", None)
    assert settings() == ["plain", "plain"]


def test_the_command_says_where_kernels_are(monkeypatch):
    monkeypatch.setattr(warm_up, "_trainings", lambda: ())
    end = fedboost("warm-up")
    assert end.code == 0, end.err
    assert end.out.startswith("kernels compiled in ")
    assert end.out.endswith(f" s and cached in {folders().write}\n")


def test_a_warm_up_that_nothing_remains_of_is_an_error(monkeypatch):
    monkeypatch.setattr(warm_up, "_trainings", lambda: ())
    monkeypatch.setattr(warm_up, "folders", lambda: Folders((), None, "/cache: Read-only file system"))
    with pytest.raises(ConfigError, match="cannot be cached: /cache: Read-only file system"):
        warm_up.compile_all()


@pytest.fixture
def cold(monkeypatch, tmp_path):
    """The file that says that kernels are compiled, in a cache of this test, which has those of earlier tests
    and not this file."""
    cache = tmp_path / "cache"
    for compiled in folders().read:
        shutil.copytree(compiled, cache / compiled.name, dirs_exist_ok=True)
    for file in cache.rglob("ready-*"):
        file.unlink()
    monkeypatch.setenv("FEDBOOST_CACHE", str(cache))
    folders.cache_clear()
    yield unready()
    monkeypatch.undo()
    folders.cache_clear()


@pytest.mark.slow
def test_a_party_compiles_when_it_starts_says_so_and_does_it_once(cold):
    said = []
    compile_usual(said.append)
    assert said[0] == COMPILING
    assert re.fullmatch(r"kernels compiled in \d+ s", said[1])
    assert cold.exists()
    compile_usual(said.append)
    assert len(said) == 2


@pytest.mark.slow
def test_the_log_of_a_party_says_so_before_it_asks_the_aggregator(cold, tmp_path):
    csv.write_csv(rows(), tmp_path / "north.csv")
    (tmp_path / "party.toml").write_text('party = "north"\naggregator = "127.0.0.1:9"\ndata = "north.csv"\n')
    words = ("party", "--config", "party.toml", "--insecure-loopback", "--wait", "0.1", "--once")
    for compiled in (True, False):
        end = subprocess.run(
            [sys.executable, "-m", "fedboost", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in end.stderr
        assert (COMPILING in end.stderr) == compiled
        assert ("kernels compiled in" in end.stderr) == compiled


CALL = """
import sys
from numba.core.compiler import CompilerBase
compiled = []
own = CompilerBase.compile_extra
CompilerBase.compile_extra = lambda self, f: compiled.append(f.__name__) or own(self, f)
import numpy
from fedboost.gbdt.kernels import objectives
print("ready", flush=True)
sys.stdin.readline()
objectives.exps(numpy.zeros(1))
print(*compiled)
"""


@pytest.mark.slow
def test_of_several_processes_one_compiles_a_kernel(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDBOOST_CACHE": str(tmp_path / "cache")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    several = [subprocess.Popen([sys.executable, "-c", CALL], env=env, **pipes) for _ in range(3)]
    assert [process.stdout.readline() for process in several] == ["ready\n"] * 3
    for process in several:
        process.stdin.write("go\n")
        process.stdin.flush()
    compiled = [process.communicate()[0].split() for process in several]
    assert [process.returncode for process in several] == [0, 0, 0]
    assert [names.count("exps") for names in compiled].count(1) == 1
    assert sum(map(len, compiled)) == max(map(len, compiled))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_notebook_is_told_that_kernels_are_compiled(tmp_path, notebook):
    code = "import sys; sys.modules['ipykernel'] = sys; " * notebook
    code += "import numpy; from fedboost.gbdt.kernels import objectives as e; "
    code += "e.exps(numpy.zeros(1)); e.logs(numpy.ones(1))"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDBOOST_CACHE": str(tmp_path / "cache")}
    for said in (f"fedboost: {COMPILING}\n" * notebook, ""):
        end = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert end.stderr == said
