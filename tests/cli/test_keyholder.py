"""Encrypted sums over the network, with a key holder that has no rows; how long they would take."""

import json

import numpy as np
import pyarrow as pa
import pytest
from anything import ANYTHING
from pyarrow import csv
from typer.testing import CliRunner

import fedboost as fb
from fedboost.cli.main import app
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.views.approval import summary

COLUMNS = {"label": "y", "numeric": ["a", "b"]}
SMALL = {"rounds": 2, "max_depth": 2, "max_bin": 8, "key_bits": 2048}


def tables():
    draw = np.random.default_rng(5)
    a, b = draw.normal(size=(2, 90))
    whole = pa.table({"a": a, "b": b, "y": (a + b**2 > 0.8).astype(int)})
    return {name: whole.slice(30 * place, 30) for place, name in enumerate(("north", "south", "east"))}


def terms_of(**settings):
    return fb.Terms.read({"columns": COLUMNS, **SMALL, **settings})


@pytest.mark.slow
def test_simulated_with_a_key_holder_of_its_own():
    pytest.importorskip("phe")
    plain = fb.simulate(terms_of(protection="plain"), tables()).model
    model = fb.simulate(terms_of(protection="paillier", keyholder="keys"), tables()).model
    assert model.booster.to_xgboost() == plain.booster.to_xgboost()
    assert model.terms.parties == ("north", "south", "east", "keys")
    assert set(model.attestations) == {"north", "south", "east", "keys"}


def test_what_a_person_reads_of_terms_with_a_key_holder():
    terms = terms_of(
        protection="paillier",
        keyholder="keys",
        keyholder_rows=False,
        parties=[*tables(), "keys"],
        colluding=1,
    )
    read = " ".join(summary(terms).split())
    assert (
        "sees sums over the parties, never the numbers of a single one, even with the key holder's help"
        in read
    )
    assert (
        "1 other site may collude with the aggregator without learning this site's numbers; the key "
        "holder counts as the first of them" in read
    )


@pytest.mark.slow
def test_over_the_network(tmp_path):
    pytest.importorskip("phe")
    files = {"keys": None}
    for name, table in tables().items():
        files[name] = tmp_path / f"{name}.csv"
        csv.write_csv(table, files[name])
    terms = terms_of(protection="paillier", keyholder="keys", keyholder_rows=False, parties=list(files))
    with LocalCluster(tmp_path, files, policy=ANYTHING) as one:
        model = one.analyst.train(terms).model
        assert "session done" in one.log("keys")
    plain = fb.simulate(terms_of(protection="plain"), tables()).model
    assert model.booster.to_xgboost() == plain.booster.to_xgboost()


def write(path, **values):
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return str(path)


@pytest.mark.parametrize(
    ("command", "data", "said"),
    [("keyholder", "rows.csv", "a key holder has no rows"), ("party", None, "key 'data' is missing")],
)
def test_rows_are_for_parties_alone(command, data, said, tmp_path):
    given = {"party": "keys", "aggregator": "localhost:7070"} | ({"data": data} if data else {})
    config = write(tmp_path / "site.toml", **given)
    result = CliRunner().invoke(app, [command, "--config", config, "--insecure-loopback"])
    assert result.exit_code != 0
    assert said in str(result.exception or result.output)
