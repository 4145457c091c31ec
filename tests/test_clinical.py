"""The example with five hospitals: its commands run as written and print what the page shows, and recipes and
maps give what the generator drew."""

import re
import shlex
import shutil
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
from pages import ROOT, assert_says, blocks, run_as_written
from sites import Log

import fedboost as fb
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.rows import SiteRows

PAGE = ROOT / "docs" / "clinical.md"
EXAMPLE = ROOT / "examples" / "omop"
SITES = ("north", "south", "east", "west", "central")
SETUP = re.compile(r"^(python3 -m venv|\.|pip install|cp -r|cd) .*\n", re.MULTILINE)
LISTENS = re.compile(r"aggregator listening on .*\n")
PORT = 'at=localhost:7070; sed -i "s/707[0]/${at#*:}/" *.toml\n'
"""Gives the files of the example the port of this test."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pytest.importorskip("adbc_driver_sqlite")
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generated(folder):
    names: dict = {"__name__": "make_hospitals"}
    exec(compile((EXAMPLE / "make_hospitals.py").read_text(), "make_hospitals.py", "exec"), names)
    for seed, (name, hospital) in enumerate(names["HOSPITALS"].items()):
        names["write"](folder / f"{name}.db", hospital, seed)
    return names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_as_written(folder):
    pages = [(SETUP.sub("", script), shown) for script, shown in blocks(PAGE)]
    python = shlex.quote(sys.executable)
    scripts = [re.sub(r"^python ", f"{python} ", script, flags=re.MULTILINE) for script, _ in pages]
    scripts = [
        re.sub(
            r"^(fedboost preflight .*)",
            r"until \1 > once 2> meanwhile; do sleep 0.3; done; cat once",
            script,
            flags=re.MULTILINE,
        )
        for script in scripts
    ]
    said = run_as_written([PORT + scripts[0], *scripts[1:]], folder)
    for part, (_, shown) in zip(said, pages, strict=True):
        if shown:
            assert_says(LISTENS.sub("", part), shown)
    model, alone = (fb.Model.load(f"{name}.json") for name in ("model", "simulated"))
    assert model.parties == SITES
    assert model.booster.trees == alone.booster.trees
    assert "No problem was found in these rows" in "".join(said)  # a declared absence is not a finding
    for name, says in {
        "describe": "for the label time, Kaplan-Meier curve with numbers at risk",
        "model": "A prediction is a hazard ratio",
        "evaluation": "it says nothing about chance",
    }.items():
        assert says in (folder / f"{name}.html").read_text(), name


def test_recipes_and_maps_give_one_row_per_patient_in_the_units_of_the_terms(folder):
    generated(folder)
    terms = fb.Terms.load("terms.toml")
    usual = {"age": (60, 80), "ef": (30, 45), "creatinine": (80, 130), "albumin": (35, 42)}
    for name in SITES:
        shard = SiteRows(read_party(folder / f"{name}.toml"), Log()).read(terms)
        columns = {key: column[:] for key, column in zip(terms.columns.features, shard.columns, strict=True)}
        with closing(sqlite3.connect(folder / f"{name}.db")) as database:
            (admitted,) = database.execute(
                "select count(distinct person_id) from condition_occurrence where condition_source_value = ?",
                ("HI" if name == "east" else "I50.9",),
            ).fetchone()
        time, until = shard.label
        assert time.size == admitted
        assert ((until == time) | (until == np.inf)).all()
        assert time.min() > 0
        assert 0.3 < (until == time).mean() < 0.8
        for key, values in columns.items():
            if key in terms.columns.absent.get(name, ()):
                assert np.isnan(values).all()
                continue
            assert np.isnan(values).mean() < 0.2, (name, key)
            low, high = usual.get(key, (0, np.inf))
            assert low <= np.nanmedian(values) <= high, (name, key)
            assert np.unique(values[~np.isnan(values)]).size >= len(terms.columns.levels.get(key, "01"))


def test_the_generator_is_deterministic(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        generated(tmp_path / name)
    for name in SITES:
        first, second = (
            list(sqlite3.connect(tmp_path / half / f"{name}.db").iterdump()) for half in ("first", "second")
        )
        assert first == second
