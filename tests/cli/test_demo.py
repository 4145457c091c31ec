"""`fedboost demo`, as a user types it."""

import pyarrow as pa
import pytest
from commands import done, objects
from pyarrow import csv
from refusals import refused
from sites import rows

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import read_terms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--site", "site"), ["east", "north", "south"]),
        (("--parties", "2"), ["site-1", "site-2"]),
    ],
)
def test_the_demo_of_ones_own_table(folder, options, names):
    table = rows()
    # Levels of one row each: some of those rows are held out, and nobody trains on them.
    wards = table.column("ward").to_pylist()
    rare = [f"rare {row}" if row < 20 else ward for row, ward in enumerate(wards)]
    csv.write_csv(table.set_column(2, "ward", pa.array(rare)), "rows.csv")
    end = done(
        "demo", "--data", "rows.csv", "--label", "y", *options, "--rounds", "2", "--out", "d", "--json"
    )
    *rounds, last = objects(end.out)
    assert [line["round"] for line in rounds] == [0, 1]
    assert last["event"] == "done"
    assert last["equal"] is True
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
@pytest.mark.long
def test_the_demo_of_classes(folder):
    options = ("--label", "ward", "--site", "site", "--rounds", "2", "--out", "d", "--json")
    last = objects(done("demo", "--data", "rows.csv", *options).out)[-1]
    assert last["equal"] is True
    scores = last["held_out"]
    assert scores["federated"] == scores["pooled"]
    assert set(scores["north alone"]) == {"mlogloss", "merror"}
    assert Model.load(last["model"]).classes == ("a", "b", "c")


@pytest.mark.slow
def test_the_demo_takes_site_names_and_columns_of_any_kind(folder):
    from pyarrow import parquet

    names = ["terms", "a/b", "aggregator", "Aggregator", "Ünï 😀"]
    table = rows().set_column(3, "site", pa.array(names * 36))
    table = table.append_column("list", pa.array([[1, 2]] * 180))
    table = table.append_column("kind", pa.array(["u", "v"] * 90).dictionary_encode())
    parquet.write_table(table, "rows.parquet")
    options = ("--label", "y", "--site", "site", "--rounds", "1", "--out", "d", "--json")
    end = done("demo", "--data", "rows.parquet", *options)
    last = objects(end.out)[-1]
    assert last["equal"] is True
    assert set(last["traffic"]) == set(names)
    assert "kind" in Model.load(last["model"]).booster.features


@pytest.mark.slow
@pytest.mark.long
def test_the_scores_of_the_demo_take_any_name(folder):
    csv.write_csv(rows().set_column(3, "site", pa.array(["[/x]", "[b"] * 90)), "rows.csv")
    options = ("--label", "y", "--site", "site", "--rounds", "1", "--out", "d")
    lines = done("demo", "--data", "rows.csv", *options).out.splitlines()
    assert lines[0].startswith("2 sites: [/x] (")
    for start in ("[/x] alone", "[b alone"):
        assert any(line.startswith(start) for line in lines)


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
        assert "nothing is approved here" not in (folder / "fedboost-demo" / "north.log").read_text()
    refused(folder, ("demo", "--rounds", "1"), "fedboost-demo: holds an earlier demo", "--force")
    (folder / "fedboost-demo" / "demo.state").rename("moved")
    refused(folder, ("demo", "--rounds", "1"), "fedboost-demo/north.csv: exists already", "--force")
