"""`fedboost predict --party`, as the label holder types it, with the processes of the others."""

import os
import re
import signal
from csv import reader

import numpy as np
import pyarrow as pa
import pytest
from commands import done, start
from processes import wait_until
from pyarrow import csv, parquet
from sites import fedboost

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.telemetry import TABLE_AVAILABLE
from fedboost.terms.terms import Terms

pytestmark = pytest.mark.slow
PEOPLE, COMMON, UNKNOWN = 1400, 1200, 20
PARTIES = "bank", "telco"
POLICY = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["plain"],
    "parties": [*PARTIES],
    "min_parties": 2,
    "analysts": ["analyst"],
    "columns": "any",
    "min_common_rows": 100,
    "max_predicted_rows": 2000,
    "min_rows_per_leaf": 1,
}
TERMS = {
    "parties": [*PARTIES],
    "label_holder": "bank",
    "protection": "plain",
    "model": "parties",
    "rounds": 3,
    "min_common_rows": 100,
    "columns": {
        "label": "default",
        "row_id": "customer",
        "numeric": ["age", "minutes"],
        "categorical": {"plan": ["basic", "max"]},
        "held": {"telco": ["minutes", "plan"]},
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A trained consortium whose bank is not running, in the folder of its files."""
    folder, draw = tmp_path_factory.mktemp("consortium"), np.random.default_rng(0)
    ids, at_telco = 100_000 + draw.permutation(PEOPLE), 100_000 + draw.permutation(PEOPLE)[:COMMON]
    bank = {"customer": ids, "age": draw.normal(size=PEOPLE), "default": draw.integers(0, 2, PEOPLE)}
    plans = np.array(["basic", "max"])[draw.integers(0, 2, COMMON)]
    telco = {"customer": at_telco, "minutes": draw.normal(size=COMMON), "plan": plans}
    csv.write_csv(pa.table(bank), folder / "bank.csv")
    csv.write_csv(pa.table(telco), folder / "telco.csv")
    (folder / "terms.toml").write_text(terms_to_toml(Terms.read(TERMS)))
    with LocalCluster(
        folder, {n: folder / f"{n}.csv" for n in PARTIES}, policy=POLICY, state=folder / "state"
    ) as cluster:
        where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
        end = done("train", folder / "terms.toml", *where, "--out", folder / "model.json")
        said = end.out
        assert "only its structure: each party keeps its own part" in " ".join(said.split())
        for party in PARTIES:
            name = part(folder, party).stem
            assert f"model id {name}: each" in " ".join(end.err.split())
            assert f"models/{name}.json" in end.err
        assert re.search(r"gain +share of each party's columns: (bank|telco) \d+%", said)
        stop(cluster)
        known = draw.permutation(at_telco)[:300]
        unknown = 900_000 + np.arange(UNKNOWN)
        new = draw.permutation(np.concatenate([known, unknown]))
        rows = {
            "customer": new,
            "age": draw.normal(size=new.size),
            "name": [f"p{i}" for i in range(new.size)],
        }
        csv.write_csv(pa.table(rows), folder / "new.csv")
        yield cluster, folder, telco, rows


def stop(cluster):
    cluster.parties["bank"].terminate()
    cluster.parties["bank"].wait()


def part(folder, party):
    (file,) = (folder / "state" / party / "models").glob("*.json")
    return file


def predict(folder, *more, model=None, table="new.csv", party="bank"):
    model = part(folder, "bank") if model is None else model
    return fedboost("predict", model, folder / table, "--party", folder / f"{party}.toml", *more)


def test_predictions_are_those_of_the_whole_model_on_all_columns(site):
    _, folder, telco, rows = site
    done("assemble", part(folder, "bank"), part(folder, "telco"), "--out", folder / "whole.json", "--force")
    place = {customer: number for number, customer in enumerate(telco["customer"].tolist())}
    at = [place.get(customer) for customer in rows["customer"].tolist()]
    joined = {
        "age": rows["age"],
        "minutes": pa.array([None if i is None else float(telco["minutes"][i]) for i in at]),
        "plan": pa.array([None if i is None else str(telco["plan"][i]) for i in at]),
    }
    due = fb.Model.load(folder / "whole.json").predict(pa.table(joined))
    end = predict(folder, "--keep", "name", "--out", folder / "p.csv", "--force")
    assert end.code == 0, end.err
    assert (
        f"telco has 300 of {300 + UNKNOWN} rows; in the other rows, its columns are treated as missing"
        in end.err
    )
    header, *lines = reader((folder / "p.csv").read_text().splitlines())
    assert header == ["name", "prediction"]
    assert [name for name, _ in lines] == rows["name"]
    assert [float(value) for _, value in lines] == due.tolist()
    audit = " ".join(done("audit", next((folder / "state").rglob("telco/memory.sqlite"))).out.split())
    assert "signed by bank, the label holder" in audit
    assert "to predict rows of the label holder, with a binary:logistic model" in audit
    asked = f"for each of {300 + UNKNOWN} requested row ids (people)"
    assert f"relayed {asked}, whether this site has it, once" in audit
    assert f"relayed {asked}, which way it goes at each of this site's splits, once" in audit
    assert "aggregator relays messages that it cannot read, and learns the number of rows" in audit
    assert "own columns 3: customer, minutes, plan; other parties have 1 more" in audit


def test_reasons_are_columns_beside_the_prediction(site):
    _, folder, _, rows = site
    end = predict(folder, "--keep", "name", "--reasons", "--out", folder / "r.csv", "--force")
    assert end.code == 0, end.err
    header, *lines = reader((folder / "r.csv").read_text().splitlines())
    assert header == ["name", "prediction", "reason_bank", "reason_telco", "reason_bias"]
    assert [line[0] for line in lines] == rows["name"]
    values = np.array([line[1:] for line in lines], np.float64)
    assert np.allclose(values[:, 0], 1 / (1 + np.exp(-values[:, 1:].sum(axis=1))), rtol=1e-9)
    assert (np.abs(values[:, 1:]).max(axis=0) > 0).all()
    assert np.unique(values[:, 3]).size == 1


def test_reasons_of_classes_have_their_names(tmp_path):
    draw, ids = np.random.default_rng(1), 100_000 + np.arange(300)
    bank = {"customer": ids, "age": draw.normal(size=300), "default": draw.choice(["no", "late", "yes"], 300)}
    telco = {"customer": ids, "minutes": draw.normal(size=300)}
    columns = {"label": "default", "row_id": "customer", "numeric": ["age", "minutes"]}
    columns |= {"classes": ["late", "no", "yes"], "held": {"telco": ["minutes"]}}
    settings = {"objective": "multi:softprob", "num_class": 3, "columns": columns}
    (tmp_path / "terms.toml").write_text(terms_to_toml(Terms.read({**TERMS, **settings})))
    csv.write_csv(pa.table(bank), tmp_path / "bank.csv")
    csv.write_csv(pa.table(telco), tmp_path / "telco.csv")
    new = {"customer": ids[:200], "age": bank["age"][:200], "reason_bank_no": ids[:200]}
    csv.write_csv(pa.table(new), tmp_path / "new.csv")
    tables = {name: tmp_path / f"{name}.csv" for name in PARTIES}
    with LocalCluster(tmp_path, tables, policy=POLICY, state=tmp_path / "state") as cluster:
        where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
        done("train", tmp_path / "terms.toml", *where, "--out", tmp_path / "model.json")
        stop(cluster)
        end = predict(tmp_path, "--keep", "reason_bank_no", "--reasons", "--out", tmp_path / "r.parquet")
    assert end.code == 0, end.err
    made = parquet.read_table(tmp_path / "r.parquet")
    reasons = [f"reason_{name}_{kind}" for kind in columns["classes"] for name in (*PARTIES, "bias")]
    reasons[reasons.index("reason_bank_no")] += "_"  # that name is taken
    assert made.column_names == ["reason_bank_no", "prediction", *columns["classes"], *reasons]
    values = np.array([column.to_numpy() for column in made.columns[2:]]).T
    odds = np.exp(values[:, 3:].reshape(-1, 3, 3).sum(axis=2))
    assert np.allclose(values[:, :3], odds / odds.sum(axis=1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize(
    ("model", "table", "more", "words"),
    [
        (
            "telco",
            "new.csv",
            [],
            "only label holder bank can predict, with its own part of the model, but this is the part",
        ),
        (
            "analyst",
            "new.csv",
            [],
            "label holder bank can predict, with its own part of the model, but this is the str",
        ),
        ("bank", "telco.csv", [], "/telco.csv: column 'age' is missing: the columns are"),
        ("bank", "new.csv", ["--keep", "nobody"], "column 'nobody' is missing"),
        (
            "bank",
            "few.csv",
            [],
            "predict more rows together, or lower it with --min-common-rows if the other parties allow that",
        ),
        (
            "bank",
            "few.csv",
            ["--min-common-rows", "50"],
            "; --min-common-rows 100, or set min_common_rows = 50 in its [policy] and restart",
        ),
        (
            "bank",
            "unknown.csv",
            [],
            "parties bank, telco have only 60 rows in common, but the terms require min_common_rows = 100",
        ),
        ("bank", "many.csv", [], "site telco refuses: its policy has max_predicted_rows = 2000, but"),
    ],
)
def test_what_cannot_be_is_one_line(site, model, table, more, words):
    _, folder, _, rows = site
    done("assemble", part(folder, "bank"), part(folder, "telco"), "--out", folder / "whole.json", "--force")
    files = {"whole": folder / "whole.json", "analyst": folder / "model.json"}
    file = files.get(model) or part(folder, model)
    known = [i for i, customer in enumerate(rows["customer"].tolist()) if customer < 900_000]
    few = {name: np.array(values)[known[:60]] for name, values in rows.items()}
    csv.write_csv(pa.table(few), folder / "few.csv")
    others = {"customer": 950_000 + np.arange(60), "age": np.zeros(60), "name": few["name"]}
    both = {name: np.concatenate([few[name], values]) for name, values in others.items()}
    csv.write_csv(pa.table(both), folder / "unknown.csv")
    many = {"customer": np.arange(2001), "age": np.zeros(2001)}
    csv.write_csv(pa.table(many), folder / "many.csv")
    end = predict(folder, "--out", folder / "none.csv", *more, model=file, table=table)
    last = end.err.splitlines()[-1]
    assert end.code == 2, end.err
    assert words in " ".join(end.err.split()), end.err
    assert last.startswith("fedboost: ")
    assert not (folder / "none.csv").exists()


def test_options_for_other_parties_are_for_them_alone(site):
    _, folder, _, _ = site
    end = fedboost("predict", part(folder, "bank"), folder / "new.csv")
    assert (end.code, "only a part of a model, which cannot predict" in end.err) == (2, True)
    end = fedboost("predict", folder / "whole.json", folder / "new.csv", "--min-common-rows", 5)
    assert (end.code, "--min-common-rows only applies to joint predictions" in end.err) == (2, True)
    end = fedboost("predict", folder / "whole.json", folder / "new.csv", "--reasons")
    assert (end.code, "--reasons only applies to joint predictions; specify --party" in end.err) == (2, True)


def test_a_site_whose_part_is_gone_says_so(site):
    _, folder, _, _ = site
    file = part(folder, "telco")
    moved = file.rename(folder / "moved.json")
    try:
        end = predict(folder)
    finally:
        moved.rename(file)
    assert end.code == 2
    assert "party telco left: it has no part of model" in end.err


def test_the_party_itself_must_not_run_meanwhile(site):
    cluster, folder, _, _ = site
    known = cluster.log("bank").count(TABLE_AVAILABLE)
    cluster.start_party("bank")
    wait_until(lambda: cluster.log("bank").count(TABLE_AVAILABLE) > known)
    end = predict(folder)
    stop(cluster)
    assert end.code == 2, end.err
    assert "another process of party 'bank' is using this memory; stop `fedboost party` first" in end.err


def test_a_label_holder_that_is_killed_asks_again(site):
    cluster, folder, _, _ = site
    config, out = folder / "bank.toml", folder / "again.csv"
    line = "predict", str(part(folder, "bank")), str(folder / "new.csv"), "--party", str(config)
    known = cluster.log("telco").count("session offered")
    process = start(*line, "--out", str(out), alone=True)
    wait_until(lambda: cluster.log("telco").count("session offered") > known)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    end = predict(folder, "--out", out, "--force")
    assert end.code == 0, end.err
    assert predict(folder, "--out", folder / "p.csv", "--force").code == 0
    assert out.read_text() == (folder / "p.csv").read_text()
