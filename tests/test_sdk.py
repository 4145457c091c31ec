"""What `import fedboost` offers."""

import asyncio
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv
from raised import raised
from sites import consortium, rows, shared_out, terms

import fedboost as fb


def test_every_name_it_promises_is_there():
    assert set(fb.__all__) <= set(dir(fb))
    for name in fb.__all__:
        assert getattr(fb, name).__module__.startswith("fedboost.")
    with pytest.raises(AttributeError, match="'fedboost' has no attribute 'Trainer'"):
        _ = fb.Trainer


@pytest.mark.parametrize("name", fb.__all__)
def test_each_name_can_be_the_first_one_used(name):
    """Alone in a fresh module, as after `import fedboost`."""
    fresh = types.ModuleType("fresh")
    fresh.__dict__.update({key: getattr(fb, key) for key in ("__getattr__", "_HOMES", "__all__")})
    assert fresh.__getattr__(name) is getattr(fb, name)


def test_errors_are_of_one_family():
    kinds = (fb.ConfigError, fb.PeerError, fb.Refused, fb.SessionFailed)
    assert all(issubclass(kind, fb.FedboostError) for kind in kinds)


def test_terms_are_drafted_from_a_table(tmp_path):
    csv.write_csv(rows().drop_columns(["site"]), tmp_path / "rows.csv")
    drafted = fb.Terms.draft(tmp_path / "rows.csv", label="y", rounds=3, max_depth=3, max_bin=16)
    assert drafted.digest == terms(protection="masked").digest
    weighted = rows().append_column("w", rows().column("age")).drop_columns(["site"])
    assert fb.Terms.draft(weighted, label="y", weight="w").columns.weight == "w"
    numbers = {"x": np.arange(30.0) % 11, "y": np.arange(30.0) ** 2}
    assert fb.Terms.draft(numbers, label="y").objective.name == "reg:squarederror"


def test_a_draft_of_classes():
    words = fb.Terms.draft(rows().drop_columns(["site"]), label="ward")
    assert (words.objective.name, words.columns.classes) == ("multi:softprob", ("a", "b", "c"))
    numbers = {"x": np.arange(30.0) % 11, "y": np.arange(30) % 3}
    with pytest.warns(
        fb.TableWarning, match="y: there are 3 distinct integers, which are treated as numeric"
    ):
        assert fb.Terms.draft(numbers, label="y").objective.name == "reg:squarederror"
    assert fb.Terms.draft(numbers, label="y", objective="multi:softprob").objective.num_class == 3


def test_a_draft_takes_the_settings_of_the_terms_and_no_others():
    with pytest.raises(fb.ConfigError, match=r"'eta'.*did you mean learning_rate"):
        fb.Terms.draft(rows(), label="y", eta=0.1)
    with raised(fb.ConfigError, "table-column-missing"):
        fb.Terms.draft(rows(), label="z")


def test_a_draft_equals_the_terms_it_drafts():
    small = {"rounds": 3, "max_depth": 3, "max_bin": 16, "protection": "plain"}
    drafted = fb.Terms.draft(rows().drop_columns(["site"]), label="y", **small)
    assert drafted.with_parties(()) == drafted == terms()
    assert isinstance(drafted.with_parties(()), fb.Terms)
    assert fb.simulate(drafted, [rows()]).model.terms == drafted.with_parties(["party-1"])


def test_terms_that_cannot_be_raise_one_line():
    with pytest.raises(fb.ConfigError, match="did you mean rounds") as caught:
        fb.Terms(columns={"label": "y", "numeric": ["x"]}, n_rounds=3)
    assert "\n" not in str(caught.value)


async def test_simulate_and_a_network_make_the_same_model(tmp_path):
    tables = shared_out(2)
    heard = []
    async with consortium(tmp_path, tables) as one:
        training = await one.train(terms(tables), heard.append)
    assert isinstance(training, fb.Training)
    result = fb.simulate(terms(), tables)
    assert isinstance(result, fb.Result)
    assert isinstance(result.model, fb.Model)
    assert training.model == result.model


@pytest.mark.parametrize("wait", [float("inf"), 1e300])
async def test_an_analyst_may_wait_for_ever(tmp_path, wait):
    tables = shared_out(1)
    async with consortium(tmp_path, tables) as one:
        training = fb.connect(one.address, insecure_loopback=True).train(terms(tables), wait)
        found = await asyncio.to_thread(lambda: training.model)
    assert found.parties == ("north",)


async def test_a_training_that_is_not_iterated_still_ends_with_its_history(tmp_path):
    tables = shared_out(1)
    async with consortium(tmp_path, tables) as one:
        training = await one.train(terms(tables))
    assert [row["round"] for row in training.history] == [0, 1, 2]
    assert list(training) == []  # it was iterated to its end
    assert set(training.traffic) == {"north"}


@pytest.mark.parametrize(
    "address", ["", "localhost", ":7070", "localhost:", "localhost:70000", "localhost:x"]
)
def test_an_address_is_checked_before_anything_is_sent(address):
    with raised(fb.ConfigError, "address-invalid"):
        fb.connect(address, insecure_loopback=True)


@pytest.mark.slow
def test_the_example_in_the_docstring_runs(tmp_path):
    """The lines a reader copies first."""
    lines = [line[4:] for line in fb.__doc__.splitlines() if line.startswith("    ")]
    assert any("simulate" in line for line in lines)
    table = rows().rename_columns(["age", "dose", "ward", "site", "diagnosis"])
    csv.write_csv(table, tmp_path / "hospital.csv")
    for name, part in shared_out(3, table).items():
        csv.write_csv(part, tmp_path / f"{name}.csv")
    root = str(Path(fb.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={"PYTHONPATH": root},
        check=True,
        timeout=60,
    )
    assert fb.Model.load(tmp_path / "model.json").parties == ("north", "south", "east")
