"""What each terminal reads when rows are matched by ids, and when they cannot be: who, what, what to do.

The commands of docs/vertical.md run as written in tests/test_docs.py."""

import re
import time

import numpy as np
import pyarrow as pa
import pytest
from commands import done
from pyarrow import csv
from sites import PATIENCE, fedboost

from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.terms import Terms

pytestmark = pytest.mark.slow
PEOPLE, TELCO = 1400, 1200
POLICY = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["plain"],
    "parties": ["bank", "telco"],
    "min_parties": 2,
    "analysts": ["analyst"],
    "columns": "any",
}
TERMS = {
    "parties": ["bank", "telco"],
    "label_holder": "bank",
    "protection": "plain",
    "rounds": 2,
    "min_child_weight": 2.5,
    "columns": {
        "label": "default",
        "row_id": "customer",
        "numeric": ["age", "minutes"],
        "held": {"telco": ["minutes"]},
    },
}
OVER = re.compile("session done|session failed|left the session")
MISFIT = "party telco left: its rows do not fit the terms; its own log says which column and why"
FEW = (
    "parties bank, telco have only {} rows in common, but the terms require min_common_rows = 1000: compare "
    "how their row ids are written (id_form in the terms)"
)


def with_ids(table, change):
    """The table with other ids: change takes the list of them."""
    return table.set_column(0, "customer", pa.array(change(table["customer"].to_pylist())))


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """Processes of two parties with tables of 1,200 common customers, and the folder of their files."""
    folder, draw = tmp_path_factory.mktemp("consortium"), np.random.default_rng(0)
    ids, at_telco = 100_000 + draw.permutation(PEOPLE), 100_000 + draw.permutation(PEOPLE)[:TELCO]
    bank = {"customer": ids, "age": draw.normal(size=PEOPLE), "default": draw.integers(0, 2, PEOPLE)}
    csv.write_csv(pa.table(bank), folder / "bank.csv")
    telco = pa.table({"customer": at_telco, "minutes": draw.normal(size=TELCO)})
    csv.write_csv(telco, folder / "telco.csv")
    with LocalCluster(folder, {n: folder / f"{n}.csv" for n in TERMS["parties"]}, policy=POLICY) as cluster:
        yield cluster, folder, telco


def trained(consortium, table, **settings):
    """Start telco again with this table, and train: the end of the command, the new lines of telco's log, and
    of `fedboost check` there."""
    cluster, folder, _ = consortium
    cluster.parties["telco"].terminate()
    cluster.parties["telco"].wait()
    csv.write_csv(table, folder / "telco.csv")
    terms = folder / "terms.toml"
    terms.write_text(terms_to_toml(Terms.read({**TERMS, **settings})))
    known = len(cluster.log("telco"))
    cluster.start_party("telco")
    checked = fedboost("check", "--config", folder / "telco.toml", "--terms", terms)
    where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
    end = fedboost("train", terms, *where, "--out", folder / "model.json", "--force")
    deadline = time.monotonic() + PATIENCE  # the analyst may be told before the party
    while not OVER.search(log := cluster.log("telco")[known:]):
        assert time.monotonic() < deadline, log
        time.sleep(0.02)
    return end, log, " ".join(checked.out.split())


def last_line(end):
    """The exit code of a command, and what it said last, behind lines on who is waited for."""
    return end.code, end.err.splitlines()[-1]


def test_a_party_reads_how_many_rows_were_matched(consortium):
    end, log, checked = trained(consortium, consortium[2])
    assert end.code == 0, end.err
    assert "No problems were found" in checked
    assert re.search(r"rows matched .*rows=1200 ", log)
    state = consortium[0].state
    audit = " ".join(done("audit", next(state.rglob("telco/memory.sqlite"))).out.split())
    assert "relayed blinded row ids of 1,200 rows, once, 38.4 kB, to bank" in audit
    assert "own columns 2: customer, minutes; other parties have 2 more" in audit
    assert "protection plain: EVERY PARTY LEARNS ALL LABELS; the aggregator sees" in end.err


def test_a_party_reads_the_names_of_its_own_table(consortium, monkeypatch):
    cluster, folder, table = consortium
    names, spawn = folder / "telco.names.toml", cluster._spawn
    names.write_text('row_id = "client"\n[names]\nminutes = "m"\n')
    monkeypatch.setattr(cluster, "_spawn", lambda stem, site: spawn(stem, {"names": str(names), **site}))
    end, *_ = trained(consortium, table.rename_columns(["client", "m"]), rounds=2)
    assert end.code == 0, end.err
    log = next(cluster.state.rglob("telco/memory.sqlite"))
    audit = " ".join(done("audit", log, "--last", "1").out.split())
    assert (
        "own columns 2: customer (at this site: client), minutes (at this site: m); other parties have 2 more"
        in audit
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda ids: [i + 0.5 for i in ids],
            "which allows fractions (often because of a missing value); convert it to integers",
        ),
        (lambda ids: [None, *ids[1:]], "has rows without a value; fill them in or drop them: 1 of 1,200"),
        (lambda ids: [ids[1], *ids[1:]], "keep one row per id: 1 id occurs in 2 rows"),
    ],
    ids=["numbers with a fraction", "a missing id", "an id twice"],
)
def test_ids_that_cannot_be_are_told_to_their_site_alone(consortium, change, words):
    end, log, checked = trained(consortium, with_ids(consortium[2], change))
    assert last_line(end) == (2, f"fedboost: {MISFIT}")
    assert words in log
    assert words in checked
    told = log + checked + end.err
    assert not any(str(row_id) in told for row_id in consortium[2]["customer"].to_pylist()[:3])


@pytest.mark.parametrize(
    ("change", "rows", "advice"),
    [
        (lambda table: with_ids(table, lambda ids: [f"C-{i}" for i in ids]), 0, ""),
        (lambda table: table.slice(0, 700), 700, ", or lower min_common_rows if so few rows are enough"),
    ],
    ids=["another spelling", "too few"],
)
def test_too_few_rows_in_common_name_the_parties_and_the_ways_out(consortium, change, rows, advice):
    end, log, checked = trained(consortium, change(consortium[2]))
    assert last_line(end) == (2, f"fedboost: {FEW.format(rows)}{advice}")
    assert FEW.format(rows) in log
    assert ("No problems were found" in checked) == (rows == 0)
    assert rows == 0 or "has 700 ids, but the terms need min_common_rows = 1,000" in checked


def test_the_spelling_that_the_terms_name_matches(consortium):
    table = with_ids(consortium[2], lambda ids: [f"C-{i}" for i in ids])
    end, log, _ = trained(consortium, table, id_form="digits")
    assert end.code == 0, end.err
    assert "rows=1200 " in log


def test_a_column_of_ids_that_is_not_there_is_named_with_those_that_are(consortium):
    end, log, checked = trained(consortium, consortium[2].rename_columns(["customr", "minutes"]))
    assert last_line(end) == (2, "fedboost: party telco left: column 'customer' is missing")
    assert "party telco: column 'customer' is missing: did you mean customr?" in log
    assert "did you mean customr?" in checked


def test_a_person_who_approves_reads_how_rows_are_matched(consortium, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.toml").write_text(terms_to_toml(Terms.read(TERMS)))
    csv.write_csv(consortium[2], "telco.csv")
    (tmp_path / "party.toml").write_text('party = "telco"\naggregator = "localhost:1"\ndata = "telco.csv"\n')
    told = done("approve", "terms.toml", "--config", "party.toml", "--analyst", "marie", "--yes").out
    text = " ".join(told.split())
    assert (
        "rows rows whose customer all sites have, at least 1,000; a site may enter at most 10,000,000 ids"
        in text
    )
    assert "the aggregator learns how many ids each site has, and how many are common to which sites" in text
    assert "row id customer: the id by which rows are matched" in text
    assert "set protection" not in text  # these terms go with no other
