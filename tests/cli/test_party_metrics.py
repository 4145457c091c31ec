"""Metrics of each party by itself, as people get to see them."""

import json

import pytest
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms, written

import fedboost as fb
from fedboost.gbdt.metrics import by_party
from fedboost.runtime.tasks import terms_to_toml

TABLES = shared_out(3)


def simulated(folder, *arguments, **settings):
    (folder / "terms.toml").write_text(terms_to_toml(terms(**settings)))
    data = written(folder, {"all": rows()})["all"]
    told = fedboost("simulate", folder / "terms.toml", "--data", data, "--site", "site", *arguments)
    assert told.code == 0, told.err
    return told.out


def test_a_table_at_the_end_and_short_lines_before(tmp_path):
    out = simulated(tmp_path, party_metrics=True, eval_metric=["logloss", "error"])
    without = simulated(tmp_path, eval_metric=["logloss", "error"])
    lines = [line for line in out.splitlines() if line.startswith("round ")]
    assert [line.rsplit(" ", 2)[0] for line in lines] == [
        line.rsplit(" ", 2)[0] for line in without.splitlines() if line.startswith("round ")
    ]
    table = [line.split() for line in out.splitlines()]
    head = table.index(["party", "logloss", "error"])
    assert sorted(name for name, *_ in table[head + 1 : head + 4]) == ["east", "north", "south"]
    assert ["party", "logloss", "error"] not in [line.split() for line in without.splitlines()]


def test_json_has_them(tmp_path):
    told = [json.loads(line) for line in simulated(tmp_path, "--json", party_metrics=True).splitlines()]
    *rounds, done = told
    assert set(done["metrics"]) == {"logloss"}
    assert done["party_metrics"] == by_party(rounds[-1])
    assert set(done["party_metrics"]) == {"north", "south", "east"}


@pytest.mark.parametrize("protection", ["plain", "masked"])
async def test_the_analyst_and_the_model_file_have_them(tmp_path, protection):
    agreement = terms(TABLES, party_metrics=True, protection=protection, eval_metric=["auc", "error"])
    bundles = bundles_of(tmp_path / "keys", TABLES) if protection == "masked" else None
    async with consortium(tmp_path / "c", {}, (), bundles) as one:
        for name, table in TABLES.items():
            one.start_party(name, table)
        training = await one.train(agreement)
    due = fb.simulate(agreement, TABLES)
    for row, other in zip(training.history, due.history, strict=True):
        assert by_party(row) == by_party(other)
    model = fb.Model.from_bytes(training.model.to_bytes())
    assert by_party(model.rounds[-1]) == by_party(due.history[-1])
    audit = fedboost("audit", tmp_path / "c" / "state" / "north" / "memory.sqlite")
    assert "model error: all rows and this site's rows" in audit.out
    assert ("single one, except this" in " ".join(audit.out.split())) == (protection == "masked")
