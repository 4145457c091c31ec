"""`fedboost demo`, as a user types it."""

import pytest
from commands import done, objects
from refusals import refused

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import read_terms


@pytest.mark.slow
def test_the_demo_for_scripts(folder):
    end = done("demo", "--rounds", "2", "--out", "d", "--json")
    *rounds, last = objects(end.out)
    assert [line["round"] for line in rounds] == [0, 1]
    assert last["event"] == "done"
    assert last["equal"] is True
    names = ["north", "south", "east"]
    assert set(last["held_out"]) == {*(f"{name} alone" for name in names), "federated", "pooled"}
    assert last["held_out"]["federated"] == last["held_out"]["pooled"]
    assert set(last["held_out"]["pooled"]) == {"auc", "logloss", "error"}
    assert set(last["traffic"]) == set(names)
    assert len(Model.load(last["model"]).booster.trees) == 2
    for name in names:
        assert "session offered" in (folder / "d" / f"{name}.log").read_text()
        assert (folder / "d" / f"{name}.csv").exists()
    # What lies there trains the same model once more.
    tables = {name: folder / "d" / f"{name}.csv" for name in names}
    again = simulate(read_terms(folder / "d" / "terms.toml"), tables).model
    assert again == Model.load(last["model"])


@pytest.mark.slow
def test_the_demo_by_itself(folder):
    for options in ((), ("--force",)):  # the second time over what the first left
        text = done("demo", "--rounds", "1", *options).out
        for part in (
            "3 sites: north",
            "The federated model equals the pooled model",
            "north alone",
            "received",
        ):
            assert part in text
        assert (folder / "fedboost-demo" / "model.json").exists()
        *_, command = text.splitlines()
        assert command == "fedboost audit fedboost-demo/demo.state/north/memory.sqlite"
        assert "No warnings" in done(*command.split()[1:]).out
        assert "has approved nothing" not in (folder / "fedboost-demo" / "north.log").read_text()
    refused(folder, ("demo", "--rounds", "1"), "fedboost-demo contains an earlier demo", "--force")
    (folder / "fedboost-demo" / "demo.state").rename("moved")
    refused(folder, ("demo", "--rounds", "1"), "fedboost-demo/north.csv already exists", "--force")
