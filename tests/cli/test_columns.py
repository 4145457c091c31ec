"""`fedboost columns`, the terms drafted with its offers, and a site that names its columns."""

import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import done
from pyarrow import csv, parquet
from refusals import refusal
from sites import fedboost

from fedboost.protocol.site import MAX_SPLITS, splits_by
from fedboost.runtime.tasks import read_terms

ROWS = 120
OFFER = ("columns", "customers.csv", "--row-id", "customer_no", "--alias", "telco")
OWN_WORDS = ("minutes_abroad", "plan", "prepaid", "contract", "gold", "customer_no")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Tables of a bank and of a telephone company, with the same 120 customers; three have a rare plan."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    plans = ["gold"] * 3 + draw.choice(["prepaid", "contract", "1"], ROWS - 3).tolist()
    ids, minutes = np.arange(ROWS) + 7000, draw.gamma(2, 90, ROWS).round()
    customers = {"customer_no": ids, "minutes_abroad": minutes, "plan": plans}
    csv.write_csv(pa.table({**customers, "opened": ["2020-01-31"] * ROWS}), "customers.csv")
    parquet.write_table(pa.table(customers), "customers.parquet", row_group_size=50)
    income = draw.normal(40, 10, ROWS).round(1)
    default = (income < 40) | (np.array(plans) == "prepaid")
    csv.write_csv(pa.table({"customer": ids, "income": income, "default": default.astype(int)}), "bank.csv")


def site(data="customers.csv", more=""):
    """The site's file of the telephone company."""
    policy = '[policy]\nby_columns = true\nprotections = ["plain"]\nparties = "any"\nmin_parties = 2\n'
    Path("telco.toml").write_text(
        f'party = "telco"\naggregator = "localhost:1"\ndata = "{data}"\nnames = "telco.names.toml"\n{more}'
        f'{policy}columns = "any"\n'
    )


def drafted(*options):
    """Terms drafted with the offer of the telephone company."""
    arguments = ("terms", "bank.csv", "--label", "default", "--row-id", "customer", "--with")
    return done(*arguments, "telco.offer.toml", "--out", "terms.toml", *options)


# ---- the offer ----------------------------------------------------------------------------------------


def test_an_offer_under_an_alias_says_nothing_of_the_tables_own_words():
    end = done(*OFFER)
    text = Path("telco.offer.toml").read_text()
    assert tomllib.loads(text) == {
        "holder": "telco",
        "numeric": ["telco.1"],
        "categorical": {"telco.2": ["1", "2", "3"]},
    }
    assert not any(word in text for word in OWN_WORDS)
    assert "telco.2 plan categorical 3 (1 with fewer than 10 rows not offered)" in " ".join(end.out.split())
    assert "opened: " in end.err
    assert "omitted" in end.err


def test_the_names_stay_with_their_owner():
    done(*OFFER)
    assert Path("telco.names.toml").stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(Path("telco.names.toml").read_text()) == {
        "row_id": "customer_no",
        "names": {"telco.1": "minutes_abroad", "telco.2": "plan"},
        "levels": {"telco.2": {"1": "1", "2": "contract", "3": "prepaid"}},
    }


def test_columns_are_offered_by_their_own_names_without_an_alias():
    done("columns", "customers.parquet", "--party", "telco", "--exclude", "customer_no")
    offer = tomllib.loads(Path("telco.offer.toml").read_text())
    assert offer["numeric"] == ["minutes_abroad"]
    assert offer["categorical"] == {"plan": ["1", "contract", "prepaid"]}
    assert "row_id" not in tomllib.loads(Path("telco.names.toml").read_text())


@pytest.mark.parametrize(("least", "levels"), [("1", 4), ("3", 4), ("4", 3), ("10", 3)])
def test_levels_of_few_rows_are_offered_where_the_site_wants_it(least, levels):
    done(*OFFER, "--min-rows-per-level", least)
    offer = tomllib.loads(Path("telco.offer.toml").read_text())
    assert offer["categorical"] == {"telco.2": [str(number + 1) for number in range(levels)]}


@pytest.mark.parametrize("spelled", [str, int])
def test_what_may_be_the_row_id_is_offered_to_nobody_by_oversight(spelled):
    table = csv.read_csv("customers.csv")
    ids = [spelled(number) for number in table["customer_no"].to_pylist()]
    parquet.write_table(table.set_column(0, "customer_no", pa.array(ids)), "ids.parquet")
    end = fedboost("columns", "ids.parquet", "--alias", "telco")
    assert end.code == 2
    due = (
        "fedboost: ids.parquet: column 'customer_no' has a distinct value in each row and may be the row "
        "id; add --row-id customer_no if it is, else --exclude customer_no"
    )
    assert due in " ".join(end.err.split())
    assert not Path("telco.offer.toml").exists()
    done("columns", "ids.parquet", "--alias", "telco", "--exclude", "customer_no")


def test_a_column_without_a_level_of_enough_rows_is_not_offered():
    end = done(*OFFER, "--min-rows-per-level", "110")
    assert "categorical" not in tomllib.loads(Path("telco.offer.toml").read_text())
    assert "because it has no category with at least 110 rows" in end.err


def test_ids_that_match_no_single_row_are_counted():
    table = csv.read_csv("customers.csv")
    ids = [None, 1, 1, 2, 2, *range(5, ROWS)]
    csv.write_csv(table.set_column(0, "customer_no", pa.array(ids)), "customers.csv")
    assert "customer_no: 1 row has no id and 2 ids are in more than one row" in done(*OFFER).err


# ---- terms with offers --------------------------------------------------------------------------------


def test_terms_are_drafted_with_the_columns_of_offers():
    done(*OFFER)
    end = drafted()
    terms = read_terms(Path("terms.toml"))
    assert (terms.parties, terms.vertical.label_holder) == (("bank", "telco"), "bank")
    assert 'protection = "plain"' in Path("terms.toml").read_text()
    assert terms.columns.row_id == "customer"
    assert terms.columns.features == ("income", "telco.1", "telco.2")
    assert terms.columns.held == {"telco": ("telco.1", "telco.2")}
    assert MAX_SPLITS - 63 < splits_by(terms, "telco") <= MAX_SPLITS
    assert (terms.trees.rounds, terms.trees.max_depth) == (31, 6)
    assert "label_holder = 'bank' is taken from the file's name" in end.err
    assert "every party learns the labels" in end.err


def test_the_party_with_the_labels_is_the_one_that_is_named():
    done(*OFFER)
    done("columns", "customers.csv", "--row-id", "customer_no", "--alias", "shop")
    end = drafted("--with", "shop.offer.toml", "--party", "lender", "--party", "shop")
    terms = read_terms(Path("terms.toml"))
    assert (terms.parties, terms.vertical.label_holder) == (("lender", "telco", "shop"), "lender")
    assert "label_holder" not in end.err


def test_no_key_holder_is_drafted_beside_a_label_holder():
    done(*OFFER)
    end = drafted("--protection", "paillier")
    assert 'protection = "paillier"' in Path("terms.toml").read_text()
    assert "keyholder" not in Path("terms.toml").read_text() + end.err
    floor = "# at least 10 rows in a bin: by default, sites refuse fewer\nmin_rows_per_bin = 10\n"
    assert floor in Path("terms.toml").read_text()
    assert read_terms(Path("terms.toml")).keyholder == "bank"


# ---- a site that names its columns --------------------------------------------------------------------


@pytest.mark.parametrize(("data", "more"), [("customers.csv", ""), ("customers.parquet", 'scratch = "."\n')])
def test_a_site_reads_its_table_by_the_names_of_the_terms(data, more):
    done(*OFFER)
    drafted()
    site(data, more)
    text = " ".join(done("approve", "terms.toml", "--config", "telco.toml", "--yes").out.split())
    counts = [csv.read_csv("customers.csv").column("plan").to_pylist().count(w) for w in ("1", "contract")]
    assert "telco.1 is minutes_abroad; telco.2 is plan (1 1, 2 contract, 3 prepaid)" in text
    assert "customer is customer_no; telco.1" in text
    assert f"telco.2: 1 {counts[0]}, 2 {counts[1]}, 3 " in text
    assert "3 rows with other categories" in text


def test_check_names_a_column_as_the_terms_and_the_table_do():
    done(*OFFER)
    drafted()
    site()
    end = fedboost("check", "--config", "telco.toml", "--terms", "terms.toml")
    assert '"telco.2 (plan)": 3 of 120 rows' in " ".join(end.out.split())
    assert "gold (not named)" in end.out


def test_terms_reach_no_column_without_a_name():
    done(*OFFER)
    drafted()
    site()
    text = Path("terms.toml").read_text()
    Path("terms.toml").write_text(text.replace("telco.1", "opened"))
    assert "column 'opened' is missing" in refusal("approve", "terms.toml", "--config", "telco.toml", "--yes")


def test_a_level_without_a_name_is_a_missing_value_though_it_looks_like_a_name():
    """The table's own level 1 is rare and not offered; the terms' level 1 is another."""
    table = csv.read_csv("customers.csv")
    plans = pa.array(["1", "1", *["basic"] * 60, *["max"] * (ROWS - 62)])
    csv.write_csv(table.set_column(2, "plan", plans), "customers.csv")
    done(*OFFER)
    drafted()
    site()
    text = " ".join(done("approve", "terms.toml", "--config", "telco.toml", "--yes").out.split())
    assert "telco.2: 1 60, 2 58; 2 rows with other categories" in text


# ---- what cannot be -----------------------------------------------------------------------------------

BANK = ("terms", "bank.csv", "--label", "default")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("columns", "customers.csv"), "the owner of the columns is not known; add --party NAME"),
        ((*OFFER[:-1], "a[b"), "--alias contains '[', which column names must not contain"),
        ((*OFFER[:2], "--alias", "telco", "--row-id", "customer"), "column 'customer' is missing"),
        ((*OFFER, "--exclude", "nothing"), "column 'nothing' is missing"),
        (
            (*OFFER, "--out", "both.toml", "--names-out", "both.toml"),
            "must be different files, not both both.toml",
        ),
        ((*OFFER, "--exclude", "minutes_abroad", "--exclude", "plan"), "no column can be a feature"),
        ((*OFFER, "--out", "customers.csv", "--force"), "is an input of this command"),
        ((*BANK, "--with", "nowhere.toml"), "nowhere.toml: cannot read: No such file"),
        ((*BANK, "--with", "names.toml"), "names.toml is a site's names; specify an offer of columns"),
        (
            (*BANK, "--with", "bare.toml"),
            "fedboost: bare.toml: there are no features: name at least one column in numeric",
        ),
        ((*BANK, "--with", "twice.toml"), "twice.toml: column 'a' is named more than once"),
        ((*BANK, "--with", "odd.toml"), "odd.toml: unknown key 'rows'"),
        ((*BANK, "--with", "a.toml", "--with", "a.toml"), "'a' already has the columns of a.toml; use one "),
        ((*BANK, "--with", "a.toml", "--with", "b.toml"), "column 'x' is in both a.toml and b.toml"),
        ((*BANK, "--with", "income.toml"), "column 'income' is in both bank.csv and income.toml"),
        ((*BANK, "--with", "a.toml", "--party", "a"), "'a' already has the columns of bank.csv; use one "),
        (
            (*BANK, "--with", "a.toml", "--party", "bank", "--party", "z"),
            "--party z has no offer; add it with --with OFFER",
        ),
        ((*BANK, "--with", "a.toml", "--site", "customer"), "--site and --with cannot be combined"),
        ((*BANK, "--with", "a.toml", "--protection", "masked"), "label_holder with protection masked"),
        ((*BANK, "--row-id", "nothing"), "column 'nothing' is missing"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(arguments, words):
    contents = {
        "names": '[names]\nx = "y"\n',
        "bare": 'holder = "a"\n',
        "twice": 'holder = "a"\nnumeric = ["a", "a"]\n',
        "odd": 'holder = "a"\nnumeric = ["a"]\nrows = 5\n',
        "a": 'holder = "a"\nnumeric = ["x"]\n',
        "b": 'holder = "b"\nnumeric = ["x"]\n',
        "income": 'holder = "c"\nnumeric = ["income"]\n',
    }
    for name, content in contents.items():
        Path(f"{name}.toml").write_text(content)
    before = {path: path.read_bytes() for path in Path().iterdir()}
    end = fedboost(*arguments)
    lines = end.err.strip().splitlines()
    assert (end.code, end.out) == (2, "")
    assert words in lines[-1]
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_files_that_exist_are_kept():
    done(*OFFER)
    before = Path("telco.names.toml").read_bytes()
    assert "telco.offer.toml already exists" in refusal(*OFFER, "--min-rows-per-level", "1")
    assert Path("telco.names.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ('[names]\n"telco.1" = "nothing"\n', "telco.names.toml: column 'nothing' is missing"),
        ('row_id = "nothing"\n', "telco.names.toml: column 'nothing' is missing"),
        (
            '[levels]\n"telco.1" = { "1" = "a" }\n',
            "telco.names.toml: levels has column 'telco.1', which is not under [names]",
        ),
        (
            '[names]\np = "plan"\n[levels]\np = { "1" = "a", "2" = "a" }\n',
            "level 'a' of 'p' has two names",
        ),
        ('[naems]\nx = "y"\n', "unknown key 'naems'"),
        ("[names]\nx = 5\n", "telco.names.toml: names.x: "),
    ],
)
def test_names_that_cannot_be_are_refused_with_one_line(names, words):
    Path("telco.names.toml").write_text(names)
    site()
    assert words in refusal("check", "--config", "telco.toml")
