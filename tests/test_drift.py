"""`drift`: rows held against those that a model was trained on."""

import asyncio
import dataclasses
import io
import json
from contextlib import redirect_stdout

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised
from refusals import refusal
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms

import fedboost as fb
from fedboost.boosting.queries.columns import BinCountsQuery
from fedboost.boosting.queries.labels import EvaluationQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.cli.output import print_text
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.fixedpoint import UNIT
from fedboost.gbdt.drift import by_chance, joined, runs, stability_index
from fedboost.holders.other_tasks import DriftHolder
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import drift_terms, read_terms, terms_to_toml
from fedboost.views.approval import summary as summary_of
from fedboost.views.as_text import text as blocks_of
from fedboost.views.results import drift as view

COLUMNS = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}
TABLE = rows(3000, seed=4)


def among(parties, table=TABLE, seed=3):
    """The rows shared out among so many parties."""
    owner = np.random.default_rng(seed).integers(0, parties, table.num_rows)
    return {f"p{number}": table.filter(pa.array(owner == number)) for number in range(parties)}


def with_column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def trained(tables=None, **settings):
    return fb.simulate(terms(max_bin=64, reference=True, **settings), tables or among(3)).model


@pytest.fixture(scope="module")
def model():
    return trained()


@pytest.fixture(scope="module")
def exact():
    """A model with a reference of exact counts."""
    return trained(min_count=1)


@pytest.mark.parametrize("parties", [1, 3, 7])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_the_reference_counts_the_pooled_rows_and_the_trees_are_the_same(exact, model, parties, protection):
    if protection == "masked" and parties < 3:
        pytest.skip("masks hide a party among three")
    own = trained(among(parties), protection=protection, min_count=1)
    assert own.summary == exact.summary
    assert trained(among(parties), protection=protection).summary == model.summary
    without = fb.simulate(terms(max_bin=64), among(parties)).model
    assert own.fingerprint == without.fingerprint
    assert not without.summary
    reference, pooled = own.summary["reference"], TABLE.to_pandas()
    for column, values in zip(reference["columns"], (pooled.age, pooled.dose), strict=False):
        bins = np.searchsorted(column["edges"], values.astype(np.float32), side="right")
        bins = np.where(values.isna(), len(column["edges"]) + 1, bins)
        counts = np.bincount(bins, minlength=len(column["edges"]) + 2)
        assert [counts[group].sum() for group in column["groups"]] == column["counts"]
        assert len(column["edges"]) == 9
        assert counts[:-1].max() < 2 * counts[:-1].min()
    levels = pooled.ward.value_counts()
    assert reference["columns"][2]["counts"] == [*levels[["a", "b", "c"]], 0]
    check_score(own, TABLE)
    coarse = zip(model.summary["reference"]["columns"], reference["columns"], strict=True)
    for told, known in coarse:
        assert told["groups"] == known["groups"]
        assert all(abs(a - b) <= 10 for a, b in zip(told["counts"], known["counts"], strict=True))
        assert sum(count % 10 != 0 for count in told["counts"][:-1]) == 0


def check_score(model, table):
    """The counts by score are those of the model's margins."""
    score = model.summary["reference"]["score"]
    probability = model.predict(table)
    margin = np.log(probability / (1 - probability))
    edges = np.array(score["edges"])
    assert np.bincount(np.searchsorted(edges, margin, side="right")).tolist() == score["counts"]
    assert sum(score["counts"]) == table.num_rows
    assert 3 < len(score["counts"]) <= 10


SETTINGS = {
    "early stopping": {"validation_fraction": 0.3, "early_stopping_rounds": 1, "rounds": 60, "max_depth": 6},
    "base margins": {"columns": {**COLUMNS, "base_margin": "offset"}},
    "forest": {"num_parallel_tree": 3, "subsample": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_score_is_that_of_the_model_that_is_kept(name):
    offset = np.random.default_rng(1).normal(size=TABLE.num_rows)
    table = TABLE.append_column("offset", pa.array(offset))
    own = trained(among(3, table), min_count=1, **SETTINGS[name])
    check_score(own, table)
    assert name != "early stopping" or own.kept < len(own.rounds)
    known = fb.drift(own, among(4, table))
    assert {each["psi"] for each in known.summary["columns"]} == {0.0}


def test_the_rows_of_one_are_held_against_a_model_of_three_parties():
    own = fb.simulate(terms(max_bin=64, reference=True, protection="masked"), among(3)).model
    assert {each["psi"] for each in fb.drift(own, among(1)).summary["columns"]} == {0.0}


@pytest.mark.parametrize("rounds", [9, 2])
def test_a_training_that_a_callback_stops_has_its_reference(rounds):
    stop = {"callbacks": [lambda number, _: number == 1]}
    agreed = terms(max_bin=64, reference=True, rounds=rounds, min_count=1)
    own = fb.simulate(agreed, among(3), **stop).model
    assert len(own.booster.trees) == 2
    check_score(own, TABLE)


@pytest.mark.slow
def test_a_continued_model_classes_and_numbers():
    more = trained(xgb_model=fb_text(trained()), min_count=1)
    check_score(more, TABLE)
    classes = {"columns": {"label": "ward", "numeric": ["age", "dose"], "classes": ["c", "a", "b"]}}
    own = trained(objective="multi:softprob", **classes)
    predicted = own.predict(TABLE).argmax(axis=1)
    assert own.summary["reference"]["score"]["levels"] == ["c", "a", "b"]
    assert sum(own.summary["reference"]["score"]["counts"]) == predicted.size
    assert {each["psi"] for each in fb.drift(own, among(4)).summary["columns"]} == {0.0}
    amount = TABLE["age"].to_numpy() + np.random.default_rng(5).gamma(2, 10, TABLE.num_rows) + 20
    own = trained(among(3, with_column(TABLE, "y", amount)), objective="reg:squarederror")
    assert len(own.summary["reference"]["score"]["counts"]) > 4
    assert fb.drift(own, among(4)).moved == ()


def fb_text(model):
    from fedboost.terms import continuation

    return continuation.written(model.booster, model.terms.columns)


@pytest.mark.slow
def test_no_alarm_on_a_hundred_random_halves(model):
    draw = np.random.default_rng(0)
    for _ in range(100):
        half = TABLE.filter(pa.array(draw.random(TABLE.num_rows) < 0.5))
        known = fb.drift(model, {"north": half.slice(0, 700), "south": half.slice(700)})
        assert known.moved == ()
        assert {each["verdict"] for each in known.summary["columns"]} == {"stable"}
    fresh = [fb.drift(model, shared_out(2, rows(300, seed=seed))).moved for seed in range(30, 50)]
    assert fresh == [()] * 20


def test_an_alarm_where_a_column_is_shifted(model):
    new = rows(1500, seed=11).drop_columns(["y"])
    assert fb.drift(model, shared_out(3, new)).moved == ()  # without labels
    known = fb.drift(model, shared_out(3, with_column(new, "age", new["age"].to_numpy() + 8)))
    assert known.moved == ("age", "score")
    assert known.summary["columns"][0]["verdict"] == "shifted"
    wards = np.where(np.arange(1500) % 5 < 4, "a", "b")
    assert "ward" in fb.drift(model, shared_out(3, with_column(new, "ward", wards))).moved
    dose = [None if place % 2 else value for place, value in enumerate(new["dose"].to_pylist())]
    assert "dose" in fb.drift(model, shared_out(3, with_column(new, "dose", dose))).moved
    dose = pa.nulls(1500, pa.float64())
    (column,) = (
        each
        for each in fb.drift(model, shared_out(3, with_column(new, "dose", dose))).summary["columns"][1:2]
    )
    assert column["verdict"] == "shifted"
    assert column["bins"][-1] == {"missing": True, "reference": column["bins"][-1]["reference"], "rows": 1500}


def test_a_column_beyond_chance_and_below_the_first_limit_is_not_stable(model, exact):
    new = rows(20_000, seed=11).drop_columns(["y"])
    known = fb.drift(model, shared_out(3, with_column(new, "age", new["age"].to_numpy() + 1.5)))
    age, dose, *_ = known.summary["columns"]
    assert (age["verdict"], dose["verdict"]) == ("slight", "stable")
    assert age["by_chance"] < age["psi"] < 0.1
    assert dose["psi"] < dose["by_chance"]
    assert known.moved == ()
    text = [line.split() for line in captured(blocks_of(view(known)))]
    (row,) = (number for number, words in enumerate(text) if words[:1] == ["age"])
    said = text[row] + text[row + 1]  # the last cell takes two lines
    assert said[3] == "slight"
    assert said[-2] == "to"  # the bin that moved most
    assert said[-1].endswith("%")
    few = rows(60, seed=3).drop_columns(["y"])
    far = fb.drift(exact, shared_out(2, with_column(few, "age", few["age"].to_numpy() + 4))).summary[
        "columns"
    ][0]
    assert 0.1 < far["psi"] < far["by_chance"]
    assert far["verdict"] == "stable"


def captured(blocks):
    """The lines of blocks of text."""
    with redirect_stdout(io.StringIO()) as out:
        print_text(blocks)
    return out.getvalue().splitlines()


def test_psi_is_the_sum_over_bins():
    before, after = np.array([100, 300, 600]), np.array([300, 300, 400])
    shares = [(counts + 0.5) / (counts.sum() + 1.5) for counts in (before, after)]
    expected = sum((q - p) * np.log(q / p) for p, q in zip(*shares, strict=True))
    assert stability_index(before, after) == pytest.approx(expected, rel=1e-12)
    assert stability_index(before, before) == 0.0
    draw, found = np.random.default_rng(3), []
    for _ in range(2000):
        counts = [draw.multinomial(size, np.full(10, 0.1)) for size in (400, 900)]
        found.append(stability_index(*counts))
    assert 0.99 < np.mean(np.array(found) < by_chance(400, 900, 10)) <= 1.0


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 20), st.booleans())
def test_groups_tell_of_no_few_rows_and_have_all(counts, floor, empty):
    counts = np.array(counts)
    groups = runs(counts, floor, empty)
    assert [place for group in groups for place in group] == [*range(counts.size)]
    for group in groups:
        total = counts[group].sum()
        assert total >= floor or (empty and total == 0) or len(groups) == 1


@given(st.integers(0, 10**6), st.integers(1, 15))
def test_joined_groups_are_coarser_than_both(seed, size):
    draw = np.random.default_rng(seed)

    def grouping():
        labels = draw.integers(0, 5, size)
        return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]

    first, second = grouping(), grouping()
    both = joined(first, second)
    assert sorted(place for group in both for place in group) == [*range(size)]
    for group in (*first, *second):
        assert any({*group} <= {*wide} for wide in both)
    assert joined(first, [[place] for place in range(size)]) == sorted(first)


def test_small_counts_are_merged(model):
    wards = np.where(np.arange(3000) < 4, "a", np.where(np.arange(3000) < 60, "b", "c"))
    dose = [None] * 3 + [1.0] * 2997
    table = with_column(with_column(TABLE, "ward", wards), "dose", dose)
    own = trained(among(3, table))
    reference = own.summary["reference"]
    assert (reference["columns"][2]["groups"], reference["columns"][2]["counts"]) == (
        [[0], [1], [2], [3]],
        [0, 60, 2940, 0],
    )
    for column in (*reference["columns"], reference["score"]):
        assert all(count == 0 or count >= 50 for count in column["counts"])
        assert sum(column["counts"]) == 3000
    few = fb.drift(model, shared_out(2, rows(12, seed=1)))
    for column in few.summary["columns"]:
        assert all(each["rows"] in (0, 12) for each in column["bins"])
    assert few.moved == ()
    with pytest.raises(SessionFailed, match="the parties have fewer rows in total than min_count = 10"):
        fb.drift(model, shared_out(2, rows(9)))


@pytest.mark.slow
def test_over_grpc_by_command_and_in_the_audit_log(tmp_path):
    new = rows(900, seed=12)
    tables = among(3, with_column(new, "age", new["age"].to_numpy() + 8).drop_columns(["y"]))
    old = among(3)
    agreed = terms(protection="masked", max_bin=64, reference=True).with_parties(tables)
    bundles = bundles_of(tmp_path / "keys", agreed.parties)

    async def train():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in old.items():
                one.start_party(name, table)
            return (await one.train(agreed)).model

    async def hold(file):
        async with consortium(tmp_path / "d", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table)
            known = await asyncio.to_thread(one.analyst.drift, file)
            options = "--aggregator", one.address, "--keys", tmp_path / "keys" / "analyst"
            typed = await asyncio.to_thread(fedboost, "drift", file, *options)
            as_json = await asyncio.to_thread(fedboost, "drift", file, *options, "--json")
            return known, typed, as_json

    model = in_time(train())
    assert model.summary == trained(old, protection="masked").summary
    model.save(tmp_path / "m.json")
    known, typed, as_json = in_time(hold(tmp_path / "m.json"))
    assert json.dumps(known.summary) == json.dumps(fb.drift(model, tables).summary)
    assert known.signed_by == agreed.parties
    assert (typed.code, as_json.code) == (0, 0)
    assert json.loads(as_json.out) == known.summary
    assert "900 rows of all parties, compared with 3,000 training rows." in " ".join(typed.out.split())
    assert "shifted" in typed.out
    assert max(map(len, typed.out.splitlines())) <= 80
    told = fedboost("audit", tmp_path / "c" / "state" / "p0" / "memory.sqlite")
    assert "row counts by bin of columns and score 1 1" in " ".join(told.out.split())
    assert "No warnings" in told.out
    told = fedboost("audit", tmp_path / "d" / "state" / "p0" / "memory.sqlite")
    compared = "to compare rows of all parties with the training rows of a binary:logistic model"
    assert compared in " ".join(told.out.split())
    assert "from columns 3: age, dose, ward" in told.out
    assert "row counts by bin of columns and score 1 1" in " ".join(told.out.split())
    assert "with a comparison of rows, according to the aggregator" in told.out
    assert "No warnings" in told.out


def test_queries_out_of_place_are_refused(model):
    agreed, reference = drift_terms(model)
    sizes = (11, 11, 4)
    query = BinCountsQuery(sizes, len(reference.score.counts), 0)
    query.check(agreed)
    with raised(Refused, "query-bins"):
        query.check(terms())
    with raised(Refused, "query-bins"):
        dataclasses.replace(query, sizes=(11, 11)).check(agreed)
    with raised(PeerError, "query-order"):
        query.check_order(terms(reference=True), INITIAL_STATE)
    with raised(Refused, "query-task"):
        EvaluationQuery.of(terms(), 10, UNIT, (4.0,)).check(agreed)
    holder = DriftHolder(lambda: to_shard(TABLE, agreed, "north"), agreed)
    with raised(PeerError, "query-bins"):
        [*holder.answering(dataclasses.replace(query, sizes=(11, 12, 4)))]


def test_a_site_refuses_by_its_policy(model):
    open_to_all = {"parties": "any", "analysts": "any", "columns": "any", "evaluate": "any"}
    three = terms(["north", "south", "east"], protection="masked")

    def broken(agreed):
        return [breach.key for breach in Policy(**open_to_all).breaches(agreed)]

    assert broken(drift_terms(model, three)[0]) == []
    assert broken(drift_terms(model, three, 3)[0]) == ["min_count"]
    assert broken(drift_terms(model, three.changed(protection="plain"))[0]) == ["protections"]
    training = three.changed(min_child_weight=40, reference=True)
    assert broken(training) == []
    assert broken(training.changed(min_count=2)) == ["min_count"]
    features = {**open_to_all, "columns": {"features": ["age", "dose", "ward"]}}
    agreed = drift_terms(model, three)[0]
    assert not [*Policy(**features).breaches(agreed)]
    text = " ".join(summary_of(agreed).split())
    assert "taken together, to the training rows of a model; labels are not read" in text
    assert "label y" not in text
    assert "reference after the last round, number of rows in each bin of each column" in " ".join(
        summary_of(training).split()
    )


def test_what_comes_from_an_aggregator_fits_the_model(model):
    agreed, counted = drift_terms(model)
    reference = model.summary["reference"]
    own = fb.simulate(terms(), shared_out(2)).model
    held = dataclasses.replace(own, terms=agreed, summary={"present": reference})
    assert {each["psi"] for each in fb.Drift.held_against(counted, held, {}).summary["columns"]} == {0.0}
    columns, score = reference["columns"], reference["score"]
    none = {
        "columns": [{**each, "counts": [0] * len(each["counts"])} for each in columns],
        "score": {**score, "counts": [0] * len(score["counts"])},
    }
    for present in (
        None,
        {**reference, **none, "rows": 0},
        {**reference, "rows": 2999},
        {**reference, "rows": "3000"},
        {**reference, "columns": columns[:2]},
        {**reference, "columns": [*columns[:2], {**columns[2], "levels": ["a", "b"]}]},
        {**reference, "columns": [{**columns[0], "groups": [[0]] * 11}, *columns[1:]]},
        {**reference, "columns": [{**columns[0], "counts": [-1] * 11}, *columns[1:]]},
        {**reference, "columns": [{**columns[0], "counts": columns[0]["counts"][:-1]}, *columns[1:]]},
        {**reference, "score": {**score, "edges": [1.0]}},
    ):
        odd = dataclasses.replace(held, summary={"present": present})
        with raised(PeerError, "result-invalid"):
            fb.Drift.held_against(counted, odd, {})
    changed = dataclasses.replace(model, summary={"reference": {**reference, "rows": 2999}})
    with raised(ConfigError, "model-reference-unfit"):
        drift_terms(changed)


def test_terms_in_a_file_are_those_of_the_command(model, tmp_path):
    model.save(tmp_path / "model.json")
    text = f'program = "drift"\nxgb_model = "model.json"\n{terms_to_toml(terms(["north", "south"]))}'
    (tmp_path / "drift.toml").write_text(text)
    agreed = read_terms(tmp_path / "drift.toml")
    assert drift_terms(tmp_path / "model.json", agreed)[0].digest == agreed.digest


def test_what_cannot_be_is_one_line(model, tmp_path):
    file, bare = tmp_path / "model.json", tmp_path / "bare.json"
    model.save(file)
    fb.simulate(terms(), shared_out(2)).model.save(bare)
    other = tmp_path / "other.toml"
    other.write_text(terms_to_toml(terms(columns={**COLUMNS, "numeric": ["dose", "age"]})))
    for words, why in (
        ((tmp_path / "none.json",), "none.json: cannot read the model: No such file or directory"),
        ((bare,), "bare.json has no reference distribution: train it with reference = true in the terms"),
        (
            (file, "--terms", other),
            "fedboost: terms: xgb_model cannot be compared with these rows: its feature 1 is 'age'",
        ),
        ((file, "--min-count", "0"), "--min-count"),
    ):
        said = refusal("drift", *words, "--aggregator", "127.0.0.1:1", "--insecure-loopback")
        assert why in said
        assert said.count(".json: ") <= 1
    for settings, why in (
        ({"on_loss": "shrink", "protection": "masked"}, 'reference = true with on_loss = "shrink"'),
        ({"program": "describe"}, "reference = true with program 'describe'"),
    ):
        with pytest.raises(ConfigError, match=why):
            terms(["a", "b", "c", "d"], reference=True, **settings)
    with pytest.raises(ConfigError, match="xgb_model has no reference"):
        terms(program="drift", xgb_model=fb_text(model))
    with raised(PeerError, "result-invalid"):
        fb.Drift.held_against(drift_terms(model)[1], fb.simulate(terms(), shared_out(2)).model, {})
