"""`fedboost evaluate` of a model whose parts the sites keep, with the processes of all."""

import json

import numpy as np
import pyarrow as pa
import pytest
from commands import done
from pyarrow import csv
from sites import fedboost

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.terms.terms import Terms

pytestmark = pytest.mark.slow
PEOPLE, COMMON = 1400, 1200
PARTIES = "bank", "telco"
POLICY = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["paillier"],
    "min_key_bits": 2048,
    "parties": [*PARTIES],
    "min_parties": 2,
    "analysts": ["analyst"],
    "columns": "any",
    "min_common_rows": 100,
    "min_rows_per_bin": 1,
    "max_predicted_rows": 4199,
    "subgroups": True,
}
TERMS = {
    "parties": [*PARTIES],
    "label_holder": "bank",
    "protection": "paillier",
    "key_bits": 2048,
    "rounds": 2,
    "max_depth": 3,
    "max_bin": 8,
    "min_child_weight": 2.5,
    "min_common_rows": 100,
    "columns": {
        "label": "default",
        "row_id": "customer",
        "numeric": ["age", "minutes"],
        "categorical": {"plan": ["basic", "max"], "home": ["own", "rent"]},
        "held": {"telco": ["minutes", "plan"]},
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A trained consortium in the folder of its files, and a table with all columns of the common rows."""
    folder, draw = tmp_path_factory.mktemp("consortium"), np.random.default_rng(0)
    ids = 100_000 + draw.permutation(PEOPLE)
    home = np.array(["own", "rent"])[draw.integers(0, 2, PEOPLE)]
    bank = {"customer": ids, "age": draw.normal(size=PEOPLE), "home": home}
    places = draw.permutation(PEOPLE)[:COMMON]
    plans = np.array(["basic", "max"])[draw.integers(0, 2, COMMON)]
    telco = {"customer": ids[places], "minutes": draw.normal(size=COMMON), "plan": plans}
    score = bank["age"].copy()
    score[places] += telco["minutes"] + (plans == "max")
    bank["default"] = (score + draw.normal(size=PEOPLE) > 0).astype(int)
    csv.write_csv(pa.table(bank), folder / "bank.csv")
    csv.write_csv(pa.table(telco), folder / "telco.csv")
    joined = pa.table({**{name: values[places] for name, values in bank.items()}, **telco})
    (folder / "terms.toml").write_text(terms_to_toml(Terms.read(TERMS)))
    with LocalCluster(
        folder, {n: folder / f"{n}.csv" for n in PARTIES}, policy=POLICY, state=folder / "state"
    ) as cluster:
        where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
        done("train", folder / "terms.toml", *where, "--out", folder / "model.json")
        parts = [next((folder / "state" / name / "models").glob("*.json")) for name in PARTIES]
        done("assemble", *parts, "--out", folder / "whole.json")
        yield cluster, folder, joined


def evaluate(site, *more, model="model.json"):
    cluster, folder, _ = site
    where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
    return fedboost("evaluate", folder / model, *where, *more)


def due(folder, joined, **options):
    columns = {**TERMS["columns"], "held": {}}
    terms = fb.Terms(columns=columns, protection="plain")
    return fb.evaluate(folder / "whole.json", {"all": joined}, terms, **options).summary


def test_the_figures_are_those_of_the_whole_model_on_the_joined_rows(site):
    _, folder, joined = site
    end = evaluate(site, "--predict-rows", 1400, "--by", "home", "--json", "--report", folder / "page.html")
    assert end.code == 0, end.err
    assert json.loads(end.out) == due(folder, joined, by=["home"])
    assert "Rows by label and prediction" in (folder / "page.html").read_text()
    said = evaluate(site, "--predict-rows", 1400)
    assert said.code == 0, said.err
    assert "1,200 rows" in " ".join(said.out.split())
    assert "gradient" not in said.out + said.err
    assert "the aggregator sees the exact counts and sums over the label holder's rows" in said.err


def test_the_audits_say_what_left(site):
    _, folder, _ = site
    said = {
        name: " ".join(done("audit", next((folder / "state").rglob(f"{name}/memory.sqlite"))).out.split())
        for name in PARTIES
    }
    for audit in said.values():
        assert "to evaluate" in audit
        assert "0 warnings" in audit or "no warning" in audit.lower(), audit
    asked = "for each of 1,400 requested row ids (people)"
    assert f"relayed {asked}, which way it goes at each of this site's splits, once" in said["telco"]
    assert said["telco"].count("(zeros: this site has no labels)") >= 4
    assert "(zeros" not in said["bank"]
    assert "the aggregator could see the numbers of each party" in said["bank"]


def test_terms_may_be_saved_and_are_approved_as_they_are(site):
    _, folder, _ = site
    end = fedboost(
        "evaluate", folder / "model.json", "--predict-rows", 1401, "--save-terms", folder / "e.toml"
    )
    assert end.code == 0, end.err
    assert read_terms(folder / "e.toml").task.name == "evaluate"
    shown = fedboost("approve", folder / "e.toml", "--config", folder / "telco.toml", "--yes")
    said = " ".join(shown.out.split())
    assert "rows of bank that all sites have, of at most 1,401 ids" in said, (shown.out, shown.err)
    assert "rows used (max_predicted_rows)" in said
    assert "signed by this site, which took part in its training" in said


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        ("model.json", [], "specify how many ids the table of the label holder has at most"),
        ("model.json", ["--predict-rows", "0"], "--predict-rows"),
        ("model.json", ["--predict-rows", "1399"], "has 1400 rows to predict, but the terms have"),
        ("model.json", ["--predict-rows", "5000"], "max_predicted_rows = 4199"),
        ("model.json", ["--predict-rows", "50"], "50 rows are to be predicted, but the terms require"),
        ("model.json", ["--predict-rows", "1400", "--by", "plan"], "party telco has it"),
        ("model.json", ["--predict-rows", "1400", "--by-site"], "only bank has labels"),
        ("model.json", ["--predict-rows", "1400", "--min-count", "5"], "min_count"),
        (
            "model.json",
            ["--predict-rows", "1400", "--rows", "held-out"],
            "parties have or had different columns",
        ),
        ("whole.json", ["--predict-rows", "1400"], 'its policy has evaluate = "own"'),
    ],
)
def test_what_cannot_be_is_one_line(site, model, more, words):
    end = evaluate(site, *more, model=model)
    assert end.code == 2, end.err
    assert words in " ".join(end.err.split()), end.err


def test_predicted_rows_are_charged_over_restarts(site):
    """At most two evaluations use 2,800 of 4,199 rows; those that were refused above used nothing."""
    cluster, _, _ = site
    for _ in range(2):
        evaluate(site, "--predict-rows", 1400)
    cluster.parties["telco"].terminate()
    cluster.parties["telco"].wait()
    cluster.start_party("telco")
    end = evaluate(site, "--predict-rows", 1400)
    assert end.code == 2
    assert "has already helped to predict 2800 rows, and this session has 1400 more" in end.err, end.err
