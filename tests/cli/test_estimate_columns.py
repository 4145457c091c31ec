"""`fedboost estimate` where parties hold different columns: its bytes are those of a training."""

import json
from dataclasses import replace

import pytest
from columns_apart import LAYOUTS, pooled, terms_of
from commands import done
from pyarrow import parquet
from refusals import refusal

import fedboost as fb
from fedboost.runtime.local import estimate, row_costs
from fedboost.runtime.local.row_costs import Line, RowCosts
from fedboost.runtime.tasks import terms_to_toml

ROWS, ROUNDS = 1500, 3
IDS = {"columns": {"row_id": "id"}, "rows": "common"}
PARTIES = ["bank", "telco", "shop"]
QUICK = RowCosts(
    *(1e-4, 1e-6, 1e-6, 1e-3),
    *(Line(0.0, 1e-2), Line(0.0, 5e-3), Line(0.1, 1e-3)),
    *(1e-9, 1.0, 25, 256),
)
"""Figures such as a key of 2048 bits has."""


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """No key is made, and trees are grown for a second at most."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(row_costs, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(estimate, "row_costs", lambda *facts: QUICK)


def estimated(agreed, *options):
    """Protection -> its estimate."""
    with open("terms.toml", "w") as file:
        file.write(terms_to_toml(agreed))
    end = done("estimate", "terms.toml", *options, "--json")
    return {line["protection"]: line for line in map(json.loads, end.out.splitlines())}


def agreed_terms(layout=LAYOUTS["three holders"], parties=PARTIES, **settings):
    return terms_of(layout, parties=parties, **{"rounds": ROUNDS, "key_bits": 2048, **settings})


@pytest.mark.parametrize(
    ("protection", "settings"),
    [
        ("plain", {}),
        ("plain", {"max_depth": 5, "objective": "reg:squarederror"}),
        ("plain", {**IDS, "subsample": 0.5, "num_parallel_tree": 2}),
        pytest.param("paillier", {}, marks=pytest.mark.slow),
        pytest.param("paillier", {**IDS, "max_depth": 4, "min_common_rows": 10}, marks=pytest.mark.slow),
    ],
)
def test_each_party_sends_and_receives_the_bytes_of_a_training(protection, settings):
    table = pooled(ROWS)
    parquet.write_table(table, "rows.parquet")
    agreed = agreed_terms(protection=protection, **settings)
    tables = LAYOUTS["three holders"].tables(table)
    if "columns" in settings:
        tables = {
            party: own if "id" in own.column_names else own.append_column("id", table["id"])
            for party, own in tables.items()
        }
    traffic = fb.simulate(agreed, tables).traffic
    facts = estimated(agreed, "--data", "rows.parquet")[protection]
    assert facts["rows"] == ROWS
    for party, (sent, received) in traffic.items():
        own = facts["by_party"][party]
        assert own["sent"] * ROUNDS + own["sent_to_match"] == pytest.approx(sent / 1e6, rel=0.2)
        assert own["received"] * ROUNDS + own["received_to_match"] == pytest.approx(received / 1e6, rel=0.2)


def test_blocks_have_an_estimate_of_plain_alone():
    layout = LAYOUTS["blocks"]
    agreed = agreed_terms(layout, ["bank", "telco", "bank2", "telco2"])
    facts = estimated(agreed, "--rows", ROWS)
    traffic = fb.simulate(agreed, layout.tables(pooled(ROWS))).traffic
    assert set(facts) == {"plain"}
    for party, (sent, _) in traffic.items():
        assert facts["plain"]["by_party"][party]["sent"] * ROUNDS == pytest.approx(sent / 1e6, rel=0.35)
    assert (
        "paillier: terms: blocks with protection paillier"
        in done("estimate", "terms.toml", "--rows", ROWS).out
    )


def test_of_many_rows_a_part_is_grown_over_and_bytes_are_those_of_all(monkeypatch):
    whole = estimated(agreed_terms(), "--rows", 8 * ROWS)
    monkeypatch.setattr(estimate, "MAX_VALUES", 6 * ROWS)
    part = estimated(agreed_terms(), "--rows", 8 * ROWS)
    for protection in ("plain", "paillier"):
        of_part, of_whole = part[protection]["by_party"], whole[protection]["by_party"]
        for party, way in (("bank", "sent"), ("telco", "received"), ("shop", "received"), ("bank", "memory")):
            assert of_part[party][way] == pytest.approx(of_whole[party][way], rel=0.2)
        stages = part[protection]["stages"], whole[protection]["stages"]
        assert stages[0] == pytest.approx(stages[1], rel=0.35)


def test_a_round_is_its_steps_and_grows_with_rows():
    few, many = (estimated(agreed_terms(), "--rows", rows)["paillier"] for rows in (ROWS, 4 * ROWS))
    assert few["stages"]["encrypt"] == pytest.approx(QUICK.encrypt * ROWS)
    assert many["stages"]["encrypt"] == pytest.approx(4 * few["stages"]["encrypt"])
    assert many["stages"]["take in"] == pytest.approx(2 * 4 * ROWS * QUICK.take_in)  # two feature holders
    assert many["seconds_a_round"] > sum(many["stages"].values())
    assert many["round_trips"] == pytest.approx(
        estimated(agreed_terms(), "--rows", ROWS)["plain"]["round_trips"] + 3
    )


def test_matching_takes_two_products_an_id_and_hop():
    apart, matched = (estimated(agreed_terms(**settings), "--rows", ROWS)["plain"] for settings in ({}, IDS))
    assert apart["seconds_to_match"] == 0
    assert matched["seconds_to_match"] > 3 * 3 * ROWS * 1e-5  # of 3 lists at 3 parties; a product takes 34 us
    assert matched["by_party"]["telco"]["sent_to_match"] == pytest.approx(ROWS * (2 * 32 + 16) / 1e6)


def test_more_sums_than_are_opened_have_no_estimate(monkeypatch):
    short = replace(QUICK, cells=1, key=1 << 19)
    monkeypatch.setattr(estimate, "row_costs", lambda *facts: short)
    assert set(estimated(agreed_terms(), "--rows", ROWS)) == {"plain"}
    text = " ".join(done("estimate", "terms.toml", "--rows", ROWS).out.split())
    assert "encrypted sums, but the label holder decrypts at most 3 per turn; lower max_bin" in text


def test_in_words_it_fits_a_terminal():
    estimated(agreed_terms(**IDS), "--rows", ROWS)
    out = done("estimate", "terms.toml", "--rows", ROWS).out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert "1,500 rows in common" in text
    assert "What paillier adds to a round: encrypt 0.15 s" in text
    assert "Matching rows takes" in text


def test_trees_are_grown_for_some_seconds_and_the_training_is_as_long_as_the_terms_say(monkeypatch):
    monkeypatch.setattr(row_costs, "MAX_SECONDS", 0.0)
    grown, grow = [], row_costs._grow
    monkeypatch.setattr(row_costs, "_grow", lambda *facts: grown.append(grow(*facts)) or grown[-1])
    facts = estimated(agreed_terms(rounds=100), "--rows", ROWS)["paillier"]
    assert [len(each.seconds) for each in grown] == [row_costs.FIRST_ROUNDS]
    assert facts["stages"]["encrypt"] == pytest.approx(QUICK.encrypt * ROWS)  # a round has one tree
    assert facts["seconds"] > 100 * facts["seconds_a_round"]


def test_of_three_rounds_follow_the_bytes_of_thirty(monkeypatch):
    monkeypatch.setattr(row_costs, "MAX_SECONDS", 0.0)
    table, agreed = pooled(ROWS), agreed_terms(rounds=30)
    parquet.write_table(table, "rows.parquet")
    facts = estimated(agreed, "--data", "rows.parquet")["plain"]
    for party, moved in fb.simulate(agreed, LAYOUTS["three holders"].tables(table)).traffic.items():
        for way, size in zip(("sent", "received"), moved, strict=True):
            assert facts["by_party"][party][way] * 30 == pytest.approx(size / 1e6, rel=0.2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "specify --rows (the number of matched rows)"),
        (["--rows", "9", "--rtt", "5"], "--rtt requires parties with the same columns"),
        (["--rows", "9", "--parties", "5"], "--parties requires parties with the same columns"),
    ],
)
def test_options_of_other_terms_are_refused(options, words):
    with open("terms.toml", "w") as file:
        file.write(terms_to_toml(agreed_terms()))
    assert words in refusal("estimate", "terms.toml", *options)


@pytest.mark.slow
def test_what_a_row_costs_is_measured_with_a_key_of_the_terms():
    costs = row_costs.row_costs(2048, 1 << 15, ROWS, 16)
    assert (costs.key, costs.most_opened) == (256, 4_000_000 // 512)
    assert 1e-6 < costs.take_in < costs.encrypt < 1e-2
    assert costs.product < costs.close
    for line in (costs.blind, costs.open):
        assert line(1, 100) > line(1, 10) > 1e-3
