"""Kernels compiled ahead, for images and service accounts."""

import os
import shutil
import subprocess
import sys

import pytest
from sites import fedboost
from unprivileged import ROOT

from fedboost.errors import ConfigError
from fedboost.kernel_cache import Folders, folders
from fedboost.runtime.local import warm_up

LACKING = """
import sys
from numba.core.dispatcher import Dispatcher
from fedboost.runtime.local.warm_up import compile_all
compile_all()
modules = [module for name, module in sys.modules.items() if name.startswith("fedboost.")]
kernels = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
if vectors := sys.modules.get("fedboost.privacy.rowsums.kernels.vectors"):
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
ONLY_IN_TESTS = "normal_tails"


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

    assert run("-c", LACKING).stdout.split() == [ONLY_IN_TESTS]
    kept = sorted(cache.rglob("*.nbc"))
    assert len(kept) > 60
    run("-m", "fedboost", "simulate", "terms.toml", "--data", "rows.csv", "--out", "model.json")
    run("-m", "fedboost", "predict", "model.json", "rows.csv", "--out", "new.csv")
    assert sorted(cache.rglob("*.nbc")) == kept


def test_rows_are_encrypted_ahead_where_the_extra_is_installed(monkeypatch):
    def settings():
        return [settings["protection"] for settings in warm_up._by_columns()]

    assert settings() == ["plain", "plain", "paillier"]
    monkeypatch.setitem(sys.modules, "fedboost.privacy.encrypted.paillier", None)
    assert settings() == ["plain", "plain"]


def test_the_command_says_where_kernels_are(monkeypatch):
    monkeypatch.setattr(warm_up, "_trainings", lambda: ())
    end = fedboost("warm-up")
    assert end.code == 0, end.err
    assert end.out.startswith("kernels are compiled, in ")
    assert end.out.endswith(f" s, and kept in {folders().write}\n")


def test_a_warm_up_that_nothing_remains_of_is_an_error(monkeypatch):
    monkeypatch.setattr(warm_up, "_trainings", lambda: ())
    monkeypatch.setattr(warm_up, "folders", lambda: Folders((), None, "/cache: Read-only file system"))
    with pytest.raises(ConfigError, match="cannot be kept: /cache: Read-only file system"):
        warm_up.compile_all()
