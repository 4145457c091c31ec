"""Which rows a model is measured on: those that its training held out, all with their share of training rows,
or those that were added since."""

import asyncio
import re

import numpy as np
import pyarrow as pa
import pytest
from html_pages import altered
from policies import policy
from raised import raised
from refusals import refusal
from sites import bundles_of, consortium, in_time, rows, shared_out, terms
from sklearn import metrics as reference

import fedboost as fb
from fedboost.cli.output import print_text
from fedboost.errors import ConfigError, Refused, SessionFailed
from fedboost.gbdt.booster import Booster
from fedboost.holders.other_tasks import EvaluationHolder
from fedboost.protocol.site import Limits, check_chosen
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.tasks import evaluation_terms
from fedboost.terms.continuation import TRAINED_UNDER
from fedboost.views.as_text import text as blocks_of
from fedboost.views.results import evaluation as view

COLUMNS = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}
GROWING = {"rounds": 20, "learning_rate": 0.5, "max_depth": 6, "min_child_weight": 0.1, "max_bin": 64}
TABLE = rows(900, seed=4)
TABLE = TABLE.append_column("id", pa.array([f"row {place}" for place in range(900)]))
TABLE = TABLE.append_column("held", pa.array(np.random.default_rng(2).random(900) < 0.3))
WAYS = {
    "place": {"validation_fraction": 0.3},
    "id": {"validation_fraction": 0.3, "columns": {**COLUMNS, "row_id": "id"}},
    "column": {"columns": {**COLUMNS, "validation": "held"}},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("parties", "protection"), [(1, "plain"), (3, "masked"), (7, "masked")])
def test_held_out_rows_are_those_of_the_training(way, parties, protection):
    owner = np.random.default_rng(3).integers(0, parties, 900)
    tables = {f"p{number}": TABLE.filter(pa.array(owner == number)) for number in range(parties)}
    trained = fb.simulate(terms(**GROWING, **WAYS[way], protection=protection), tables).model
    known = fb.evaluate(trained, tables, min_count=1)
    assert (known.about, known.summary["of"]) == ("held-out rows", "held-out")
    last = trained.rounds[-1]
    assert known.metrics["logloss"] == last["validation-logloss"] != last["logloss"]
    with_ids = trained.terms.columns.row_id is not None
    held = [table.filter(pa.array(mask_of(trained.terms, name, table))) for name, table in tables.items()]
    pooled = pa.concat_tables(held)
    label, score = pooled["y"].to_numpy(), trained.predict(pooled)
    assert known.rows == pooled.num_rows
    assert abs(known.metrics["logloss"] - reference.log_loss(label, score)) < 1e-4
    area = reference.roc_auc_score(label, score)
    assert abs(known.summary["auc"]["value"] - area) < 0.002
    coarse = fb.evaluate(trained, tables)
    assert (
        abs(coarse.metrics["logloss"] - known.metrics["logloss"]) <= coarse.summary["resolution"]["logloss"]
    )
    assert abs(coarse.summary["auc"]["value"] - area) <= coarse.summary["auc"]["resolution"] <= 0.0301
    if with_ids:  # wherever they are, and in any order
        mixed = TABLE.take(np.random.default_rng(5).permutation(900))
        assert fb.evaluate(trained, shared_out(2, mixed), min_count=1).metrics == known.metrics


def mask_of(agreed, name, table):
    """The rows that a training holds out."""
    from fedboost.holders.shard import row_sets

    return row_sets(to_shard(as_table(table), agreed, name), agreed)["validation"]


def test_which_rows_is_said_with_each_figure(capsys):
    tables = shared_out(3, TABLE)
    trained = fb.simulate(terms(**GROWING, **WAYS["place"]), tables).model
    known = fb.evaluate(trained, tables, rows="all")
    assert known.about == "100% of unknown use"
    assert "100% of unknown use" in repr(known)
    mixed = altered(known, shares={"trained": 0.7, "unknown": 0.0})
    for result, about in ((known, "100% of unknown use"), (mixed, "70% training rows")):
        print_text(blocks_of(view(result)))
        out = capsys.readouterr().out
        assert f"900 rows of all parties: {about}" in out
        assert re.search(rf"^rows +900 +\({about}\)$", out, re.MULTILINE)
    for said in (" ".join(out.split()), mixed.report()):
        assert "The model was trained on 70% of these rows, and fits them better than other rows." in said


def test_what_cannot_be_told_apart_is_refused():
    tables = shared_out(3, TABLE)
    trained = fb.simulate(terms(**GROWING, **WAYS["place"]), tables).model
    with pytest.raises(SessionFailed, match=r"is not one of the training's parties .north, south, east."):
        fb.evaluate(trained, [*tables.values()])
    with pytest.raises(SessionFailed, match="has no record of the training table"):
        fb.evaluate(trained, tables, rows="new")
    without = fb.simulate(terms(), tables).model
    assert fb.evaluate(without, tables).summary["of"] == "all"
    with pytest.raises(
        ConfigError, match="'held-out': no rows were held out when the model was trained; set 'all' or 'new'"
    ):
        fb.evaluate(without, tables, rows="held-out")
    agreed = evaluation_terms(trained, terms(["north", "south", "east"], protection="masked"))
    assert agreed.evaluation.evaluate_rows == "held-out"
    broken = [breach.key for breach in policy(parties="any", analysts="any", columns="any").breaches(agreed)]
    assert "validation" in broken
    allowed = policy(parties="any", analysts="any", columns="any", validation=True)
    assert "validation" not in [breach.key for breach in allowed.breaches(agreed)]


def test_sets_of_rows_that_differ_by_few_are_refused():
    """Draws are nested: those of shares .2000 and .2001 differ by few rows."""
    draw = np.random.default_rng(3).random(5000)
    limits = Limits(min_difference=10)
    check_chosen(draw < 0.2, [draw < 0.2, draw < 0.3, draw >= 0.2], limits, "north")
    for other in (draw < 0.2001, draw >= 0.2001, np.append(draw < 0.2, [True])):
        with raised(Refused, "policy-min-difference"):
            check_chosen(draw < 0.2, [other], limits, "north")
    check_chosen(draw < 0.2, [draw < 0.2001], Limits(), "north")


@pytest.mark.slow
def test_a_site_knows_its_table_again(tmp_path):
    """Over the network: held-out rows, the share of training rows, new rows, a changed table, a near draw."""
    tables = shared_out(3, TABLE)
    bundles = bundles_of(tmp_path / "keys", tables)
    agreed = terms(**GROWING, **WAYS["place"], protection="masked").with_parties(tables)
    more = {name: pa.concat_tables([table, table.slice(0, 40)]) for name, table in tables.items()}
    changed = tables | {"south": tables["south"].slice(1)}

    async def with_tables(held, ask):
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in held.items():
                one.start_party(name, table, state=tmp_path / name)
            return await ask(one)

    async def trained(one):
        return (await one.train(agreed)).model

    def asking(**options):
        return lambda one: asyncio.to_thread(one.analyst.evaluate, model, **options)

    model = in_time(with_tables(tables, trained))
    known = in_time(with_tables(tables, asking()))
    within = known.summary["resolution"]["logloss"]
    assert abs(known.metrics["logloss"] - model.rounds[-1]["validation-logloss"]) <= within
    assert known.about == "held-out rows"
    known = in_time(with_tables(tables, asking(rows="all")))
    held_out = sum(mask_of(agreed, name, table).sum() for name, table in tables.items())
    assert known.summary["shares"] == {
        "trained": pytest.approx(1 - held_out / 900, abs=0.006),
        "unknown": 0.0,
    }
    known = in_time(with_tables(more, asking(rows="new")))
    assert (known.rows, known.about) == (120, "new rows")
    assert in_time(with_tables(more, asking(rows="all"))).summary["shares"]["trained"] < 0.65
    with pytest.raises(SessionFailed, match="party south left: it has a different table from the training"):
        in_time(with_tables(changed, asking()))
    assert in_time(with_tables(changed, asking(rows="all"))).summary["shares"]["unknown"] > 0.2
    near = agreed.changed(validation_fraction=0.31)

    async def nearly(one):
        return await one.train(near)

    with pytest.raises(
        SessionFailed, match="differ in fewer than 10 rows from the rows of an earlier session"
    ):
        in_time(with_tables(tables, nearly))


def test_the_command_has_the_option():
    assert "--rows" in refusal("evaluate", "model.json", "--rows", "some", "--aggregator", "127.0.0.1:1")


# ---- Terms of a training that a chosen model claims -----------------------------------------------------


def claiming(trained, **settings):
    """Terms that evaluate a model whose file says that it was trained under these terms."""
    agreed = evaluation_terms(fb.simulate(terms(), shared_out(3, TABLE)).model, rows="all")
    booster, facts = Booster.from_any_xgboost(agreed.xgb_model, "model")
    text = booster.to_xgboost({**facts, TRAINED_UNDER: trained.canonical()})
    return agreed.changed(xgb_model=text, parties=["north", "south", "east"], **settings)


def test_columns_that_tell_which_rows_are_held_out_need_to_be_allowed():
    own = policy(
        columns={"label": ["y"], "features": ["age", "dose", "ward"]}, evaluate="any", validation=True
    )
    for way, broken in (("id", ["columns.row_id"]), ("column", ["columns.validation"])):
        agreed = claiming(terms(**WAYS[way]), evaluate_rows="held-out")
        found = [breach.key for breach in own.breaches(agreed)]
        assert [key for key in found if key.startswith("columns")] == broken
        found = [breach.key for breach in own.breaches(agreed.changed(evaluate_rows="all"))]
        assert not [key for key in found if key.startswith("columns")]


def test_rows_held_out_by_parties_with_different_columns_are_refused():
    columns = {"label": "y", "row_id": "id", "numeric": ["age", "dose"]}
    columns["held"] = {"north": ["age"], "east": ["dose"]}
    trained = terms(
        ["north", "south", "east"], columns=columns, label_holder="south", validation_fraction=0.3
    )
    with pytest.raises(ConfigError, match="parties have or had different columns"):
        claiming(trained, evaluate_rows="held-out")
    agreed = claiming(trained, evaluate_rows="all")
    assert EvaluationHolder(lambda own: to_shard(TABLE, own, "north"), agreed, 1, "north").rows == 900
