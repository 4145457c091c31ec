"""`fedboost demo --columns`: parties that hold different columns, as a user runs it."""

from dataclasses import replace

import numpy as np
import pytest
from commands import done, objects
from consortium import installed
from pyarrow import csv
from refusals import refused

import fedboost as fb
from fedboost.cli import demo
from fedboost.privacy.protections import PROTECTIONS
from fedboost.runtime.signed_model import PartyModel

PARTIES = ["clinic", "laboratory"]


def test_each_knows_patients_that_the_other_does_not_and_new_ones_are_new_to_the_clinic():
    apart = demo.patients()
    ids = {party: set(table["patient"].to_pylist()) for party, table in apart.tables.items()}
    new = set(apart.new["patient"].to_pylist())
    assert not new & ids["clinic"]
    assert new < ids["laboratory"]
    common = ids["clinic"] & ids["laboratory"]
    assert set(apart.common["patient"].to_pylist()) == common
    assert len(common) > demo.MIN_COMMON_ROWS
    assert ids["clinic"] - common
    assert ids["laboratory"] - common - new
    assert "benign" not in {*apart.new.column_names, *apart.tables["laboratory"].column_names}
    orders = [[i for i in table["patient"].to_pylist() if i in common] for table in apart.tables.values()]
    assert orders[0] != orders[1]


def test_terms_that_cannot_be_are_refused_before_anything_is_written(folder):
    refused(folder, ("demo", "--columns", "--protection", "masked"), "label_holder with protection masked")


@pytest.mark.parametrize("columns", [("--columns",), ()])
def test_encryption_that_is_not_installed_is_refused_before_anything_is_written(folder, columns, monkeypatch):
    def missing():
        raise ImportError(name="gmpy2")

    row = replace(PROTECTIONS["paillier"], scheme=missing)
    monkeypatch.setitem(PROTECTIONS, "paillier", replace(row, by_columns=row))
    command = "demo", *columns, "--protection", "paillier", "--out", "d"
    refused(folder, command, 'not installed: pip install "fedboost[paillier]"')
    assert not (folder / "d").exists()


@pytest.mark.slow
def test_where_labels_are_hidden(folder):
    if not installed("paillier"):
        pytest.skip("needs the extra paillier")
    *rounds, last = objects(done("demo", "--columns", "--rounds", "1", "--out", "d", "--json").out)
    assert [line["round"] for line in rounds] == [0]
    assert (last["protection"], last["equal"], last["signed_by"]) == ("paillier", True, PARTIES)
    assert last["held_out"]["joined"] == last["held_out"]["pooled"] != last["held_out"]["clinic alone"]
    assert list(last["columns"]) == list(last["traffic"]) == list(last["parts"]) == PARTIES
    tables = {party: csv.read_csv(folder / "d" / f"{party}.csv") for party in PARTIES}
    assert last["rows"] == {party: table.num_rows for party, table in tables.items()}
    ids = [table["patient"].to_numpy() for table in tables.values()]
    assert last["rows_in_common"] == np.intersect1d(*ids).size
    assert last["rows_held_out"] == csv.read_csv(folder / "d" / "new.csv").num_rows
    parts = [PartyModel.load(file) for file in last["parts"].values()]
    model = fb.assemble([PartyModel.load(last["model"]), *parts])
    assert (model.terms.hiding.key_bits, len(model.booster.trees)) == (2048, 1)


@pytest.mark.slow
def test_where_nothing_hides_labels_it_says_what_would(folder, monkeypatch):
    monkeypatch.setattr(demo, "can_encrypt", lambda: False)
    end = done("demo", "--columns", "--rounds", "2", "--out", "d")
    assert 'pip install "fedboost[paillier]" would hide the labels from the laboratory' in end.err
    text = " ".join(end.out.split())
    apart = demo.patients()
    for part in (
        "laboratory 535 patients, 20 columns: radius_error,",
        "clinic 406 patients, 10 columns and the label benign: mean_radius,",
        f"{apart.common.num_rows} patients are common to both, matched by column patient; 142 new",
        "protection plain",
        "clinic alone",
        "The joined model equals the pooled model",
        "clinic keeps its own splits and the leaf values: d/demo.state/clinic/models/",
        "laboratory keeps its own splits: d/demo.state/laboratory/models/",
        "gain share of each party's columns: ",
    ):
        assert part in text, part
    *_, command = end.out.splitlines()
    assert command == "fedboost audit d/demo.state/laboratory/memory.sqlite"
    log = done(*command.split()[1:]).out
    assert "142 requested row ids (people), which way it goes at each of" in " ".join(log.split())
    refused(folder, ("demo", "--columns", "--out", "d"), "d contains an earlier demo", "--force")
