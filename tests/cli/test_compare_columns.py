"""`fedboost compare` where parties hold different columns: the label holder alone, and all joined."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from columns_apart import LAYOUTS, pooled, terms_of, train_pooled
from commands import done
from pyarrow import csv
from refusals import refusal

from fedboost import evaluation
from fedboost.evaluation import HeldOut, Trial, score
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.tasks import terms_to_toml

ROWS = 900
LAYOUT = LAYOUTS["three holders"]
PARTIES = ["bank", "telco", "shop"]
TABLES = [argument for party in PARTIES for argument in ("--data", f"{party}={party}.csv")]
IDS = {"rows": "common", "columns": {"row_id": "id"}, "min_common_rows": 100}
FEW = ["--seeds", "2", "--held-out", "0.25"]


def write(common=ROWS, **settings):
    """Terms, and the tables of the parties: with ids in an order of each, and with so many rows in common."""
    table = pooled(ROWS)
    draw = np.random.default_rng(1)
    for number, (party, own) in enumerate(LAYOUT.tables(table).items()):
        own = own if "id" in own.column_names else own.append_column("id", table["id"])
        own = own.take(np.arange(common) if number else np.arange(ROWS))
        csv.write_csv(own.take(draw.permutation(own.num_rows)) if "rows" in settings else own, f"{party}.csv")
    hidden = {"protection": "paillier", "model": "parties", "eval_metric": "auc"}
    agreed = terms_of(LAYOUT, parties=PARTIES, **{**hidden, **settings})
    Path("terms.toml").write_text(terms_to_toml(agreed))
    return table


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "SAMPLES", 200)


def test_figures_are_those_of_models_that_never_saw_the_rows():
    table = write()
    lines = done("compare", "terms.toml", *TABLES, "--seeds", "1", "--held-out", "0.25", "--json").out
    site, end = map(json.loads, lines.splitlines())
    rest, held = Trial("bank", ROWS, 0.25, 0).split(0)
    settings = {"eval_metric": "auc"}
    whole = train_pooled(table.take(rest), **settings).model
    own = {"numeric": ["age", "income"], "categorical": {}}
    alone = train_pooled(table.take(rest), columns=own, **settings).model
    for name, model in (("federated", whole), ("pooled", whole), ("alone", alone)):
        rows = HeldOut.from_shard(to_shard(table.take(held), model.terms, "p"))
        assert site["models"][name]["auc"]["value"] == score(model, rows, ("auc",))["auc"]
    assert end["equal"] is True
    assert (site["site"], site["rows"], site["held_out"]) == ("bank", ROWS, 225)
    assert site["verdict"] == "worth it"


def test_rows_in_common_are_found_by_their_ids():
    write(common=600, **IDS)
    matched = done("compare", "terms.toml", *TABLES, *FEW).out
    text = " ".join(matched.split())
    assert "Joining is worth it for bank: auc" in text
    assert "600 rows in common, 150 of them held out each time" in text
    assert "rows were held out in each of 2 splits" in text
    assert "Rows of the tables: bank 900, telco 600, shop 600" in text
    assert "The federated model equals the pooled model, byte for byte." in text
    assert "Models were trained without protection; paillier would yield the same models." in text
    assert max(map(len, matched.splitlines())) <= 80


def test_one_table_of_all_columns_is_taken_apart():
    csv.write_csv(write(protection="plain"), "all.csv")
    apart = done("compare", "terms.toml", *TABLES, *FEW)
    whole = done("compare", "terms.toml", "--data", "all.csv", *FEW)
    assert apart.out == whole.out
    assert "would yield the same models" not in whole.out


@pytest.mark.parametrize("settings", [{"min_rows_per_bin": 20}, {"alone_rounds": 2}])
def test_a_model_that_only_parties_with_other_columns_make_is_compared(settings):
    csv.write_csv(write(protection="plain", **settings), "all.csv")
    text = " ".join(done("compare", "terms.toml", "--data", "all.csv", *FEW).out.split())
    assert "Joining is worth it for bank" in text
    assert "The federated model differs from the pooled model." in text


def test_a_label_holder_without_columns_has_no_model_alone():
    csv.write_csv(pooled(ROWS), "all.csv")
    agreed = terms_of(LAYOUTS["one a column"], parties=["bank", *LAYOUTS["one a column"].held])
    Path("terms.toml").write_text(terms_to_toml(agreed))
    text = " ".join(done("compare", "terms.toml", "--data", "all.csv", *FEW).out.split())
    assert text.lower().startswith(
        "bank has no site-alone model (terms: columns: there are no features: name at least"
    )
    assert "if it joins, it gets logloss" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "bank=bank.csv"], "party 'telco' has no table; add --data telco=TABLE"),
        ([*TABLES, "--site", "y"], "these parties have different columns"),
        (
            TABLES,
            "bank, telco, shop have only 90 rows in common, but the terms require min_common_rows = 100",
        ),
    ],
)
def test_tables_that_cannot_be_joined_are_refused_with_one_line(arguments, words):
    write(common=90, **IDS)
    assert words in " ".join(refusal("compare", "terms.toml", *arguments).split())


def test_other_rows_in_order_and_blocks_are_refused():
    write(common=300)
    assert "party telco holds 300 rows, but label holder bank holds 900" in refusal(
        "compare", "terms.toml", *TABLES
    )
    agreed = terms_of(LAYOUTS["blocks"], parties=["bank", "telco", "bank2", "telco2"])
    Path("terms.toml").write_text(terms_to_toml(agreed))
    csv.write_csv(pooled(ROWS), "all.csv")
    assert "these terms have several blocks" in refusal("compare", "terms.toml", "--data", "all.csv")


def test_noise_on_labels_is_left_out_with_one_line():
    write(common=600, **IDS, rounds=3)
    plain = done("compare", "terms.toml", *TABLES, *FEW, "--json")
    write(common=600, **IDS, rounds=3, label_epsilon=1.0)
    end = done("compare", "terms.toml", *TABLES, *FEW, "--json")
    assert "label_epsilon is ignored: labels do not leave this process" in " ".join(end.err.split())
    assert "label_epsilon is ignored" not in plain.err
    assert end.out == plain.out


def test_all_rows_of_the_label_holder_are_compared_where_they_take_part():
    write(common=600, **{**IDS, "rows": "label_holder"}, rounds=3)
    site, end = map(json.loads, done("compare", "terms.toml", *TABLES, *FEW, "--json").out.splitlines())
    assert end["equal"] is True
    assert (site["rows"], site["held_out"]) == (ROWS, ROWS // 4)


def test_repeated_ids_are_refused():
    write(**IDS, repeated_ids=True)
    assert "`fedboost compare` needs unique row ids, but with repeated_ids" in " ".join(
        refusal("compare", "terms.toml", *TABLES).split()
    )


def test_sites_with_different_rows_need_their_column():
    csv.write_csv(pa.table({"y": [0, 1], "age": [1, 2]}), "all.csv")
    Path("terms.toml").write_text(terms_to_toml(terms_of()))
    assert "specify --site, the column that contains the site of each row" in refusal(
        "compare", "terms.toml", "--data", "all.csv"
    )
