"""Commands with terms that hold columns apart, as a user types them."""

from pathlib import Path

import pytest
from columns_apart import LAYOUTS, pooled, terms_of
from commands import done
from pyarrow import csv
from refusals import refusal
from sites import fedboost

from fedboost.runtime.model import Model
from fedboost.runtime.tasks import terms_to_toml

LAYOUT = LAYOUTS["three holders"]
PARTIES = ["bank", "telco", "shop"]
TABLES = [argument for party in PARTIES for argument in ("--data", f"{party}={party}.csv")]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Terms, a table of each party and one of all."""
    monkeypatch.chdir(tmp_path)
    table = pooled()
    csv.write_csv(table, "all.csv")
    for party, own in LAYOUT.tables(table).items():
        csv.write_csv(own, f"{party}.csv")
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms_of(LAYOUT, parties=PARTIES)))
    (tmp_path / "whole.toml").write_text(terms_to_toml(terms_of(parties=PARTIES)))


def test_the_table_of_each_party_or_one_of_all_makes_the_pooled_model():
    end = done("simulate", "terms.toml", *TABLES, "--out", "apart.json")
    assert "signed by bank, telco, shop" in end.out
    done("simulate", "terms.toml", "--data", "all.csv", "--out", "split.json")
    done("simulate", "whole.toml", "--data", "all.csv", "--out", "pooled.json")
    apart, split, whole = (Model.load(f"{name}.json").booster for name in ("apart", "split", "pooled"))
    assert apart == split == whole


def test_rows_of_each_party_may_be_given_by_name_too():
    shares = [argument for party in PARTIES for argument in ("--data", f"{party}=all.csv")]
    done("simulate", "whole.toml", *shares, "--out", "thrice.json")
    assert len(Model.load("thrice.json").booster.trees) == 4


@pytest.mark.parametrize(
    ("party", "words", "not_said"),
    [
        ("bank", ["label, rows y: 0 132, 1 168", "categories colour: red, green, blue"], "colour: red "),
        ("shop", ["categories colour: red 104, green 102, blue 94"], "label, rows"),
        ("telco", ["categories colour: red, green, blue"], "label, rows"),
    ],
)
def test_a_site_approves_terms_by_its_own_columns(party, words, not_said):
    Path("party.toml").write_text(f'party = "{party}"\naggregator = "localhost:1"\ndata = "{party}.csv"\n')
    text = " ".join(done("approve", "terms.toml", "--config", "party.toml", "--yes").out.split())
    assert "approved; `fedboost approve --withdraw` withdraws the approval" in text
    assert all(word in text for word in words), text
    assert not_said not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "bank=bank.csv"], "party 'telco' has no table; add --data telco=TABLE"),
        (
            ["--data", "bank.csv", "--data", "telco.csv"],
            "--data bank.csv does not say whose table it is; use --data PARTY=bank.csv",
        ),
        (["--data", "all.csv", "--parties", "3"], "under these terms parties have different columns"),
        ([*TABLES, "--site", "y"], "each party has its own table"),
        ([*TABLES, "--data", "east=all.csv"], "'east' is not one of the parties"),
        ([*TABLES, "--data", "bank=all.csv"], "party 'bank' already has the table bank.csv"),
        (
            [*TABLES[:4], "--data", "shop=telco.csv"],
            "party shop: column 'visits' is missing: the columns are 'minutes', 'calls'",
        ),
        (["--data", "bank=telco.csv", *TABLES[2:]], "party bank: column 'y' is missing"),
    ],
)
def test_tables_that_are_not_those_of_the_parties_are_refused_with_one_line(arguments, words):
    assert words in refusal("simulate", "terms.toml", *arguments)


def test_check_looks_at_the_columns_of_the_party_alone():
    assert (
        "No problems were found"
        in done("check", "telco.csv", "--terms", "terms.toml", "--party", "telco").out
    )
    end = fedboost("check", "telco.csv", "--terms", "terms.toml")
    assert "add --party NAME with one of bank, telco, shop" in end.err
    end = fedboost("check", "telco.csv", "--terms", "whole.toml", "--party", "telco")
    assert "--party telco only applies to terms with label_holder or blocks" in end.err


def test_a_person_who_decides_reads_who_gets_what():
    text = " ".join(done("terms", "terms.toml", "--digest").out.split())
    assert (
        "label holder bank has the labels; for the same rows, telco has minutes, calls; shop has visits"
        in text
    )
