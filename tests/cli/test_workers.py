"""Commands of a site whose rows are on workers: what is said of them, and that no row is read here."""

import re
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from commands import objects
from dask_rows import networked, table, terms
from processes import free_port
from refusals import refusal
from sites import fedboost

from fedboost.runtime.site import rows
from fedboost.runtime.tasks import terms_to_toml
from fedboost.runtime.workers import dask_engine
from fedboost.runtime.workers.dask_engine import DaskEngine
from fedboost.runtime.workers.hold import Worker

SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "rows"\n'


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Write a site's file and the files of its rows: frames by name. No row may be read in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows, "site_table", mock.Mock(side_effect=AssertionError("rows are read here")))

    def write(files, agreed, workers=2, more=""):
        (tmp_path / "rows").mkdir()
        for name, frame in files.items():
            if name.endswith(".csv"):
                frame.to_csv(tmp_path / "rows" / name, index=False)
            else:
                frame.to_parquet(tmp_path / "rows" / name)
        address = networked(workers).scheduler.address
        (tmp_path / "party.toml").write_text(f'{SITE}{more}\n[workers]\ndask = "{address}"\n')
        (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))

    return write


def halves(frame, kind="parquet"):
    half = len(frame) // 2
    return {f"1.{kind}": frame[:half], f"2.{kind}": frame[half:]}


def checked(*options):
    return fedboost("check", "--config", "party.toml", *options)


def test_a_check_without_terms_looks_at_columns_alone(site):
    site(halves(table()), terms())
    end = checked()
    assert (end.code, end.err) == (0, "")
    assert "rows: 400 rows, 14 columns" in " ".join(end.out.split())
    assert "checked only the columns" in end.out
    (facts,) = objects(checked("--json").out)
    assert (facts["rows"], facts["rows_checked"]) == (400, 0)


def test_a_check_without_terms_wants_the_label_to_be_there(site):
    site(halves(table()), terms())
    end = checked("--label", "nope")
    assert end.code == 2
    assert end.err.startswith("fedboost: column 'nope' is missing: ")


def test_a_check_with_terms_reads_the_rows_on_the_workers(site):
    site(halves(table()), terms())
    odd, facts = objects(checked("--terms", "terms.toml", "--json").out)
    strange = int((table()["ward"] == "e").sum())
    assert (odd["kind"], odd["column"], odd["rows"], odd["of"]) == ("undeclared", "ward", strange, 400)
    assert (facts["rows"], facts["rows_checked"]) == (400, 400)
    assert checked("--terms", "terms.toml").code == 1


def test_a_check_names_the_row_and_the_column_that_do_not_fit(site):
    frame = table().drop(columns="ward").astype({"benign": float})
    frame.loc[350, "benign"] = np.nan
    site(halves(frame), terms(columns={"categorical": {}}))
    odd, _ = objects(checked("--terms", "terms.toml", "--json").out)
    assert (odd["kind"], odd["column"]) == ("unfit", "benign")
    assert "row 351" in odd["sentence"]


def test_a_check_names_columns_that_are_absent(site):
    site(halves(table().drop(columns=["dose", "age"])), terms())
    *odd, facts = objects(checked("--terms", "terms.toml", "--json").out)
    assert [(one["kind"], one["column"]) for one in odd] == [("absent", "age"), ("absent", "dose")]
    assert facts["rows_checked"] == 0


def test_a_label_of_three_words_over_two_workers(site):
    frame = table()
    frame.loc[300:, "word"] = np.where(frame["word"][300:] == "no", "maybe", "yes")
    frame.loc[:199, "word"] = np.where(np.arange(200) % 2, "yes", "no")
    frame.loc[200:299, "word"] = "yes"
    site(halves(frame), terms(columns={"label": "word", "positive": "yes"}))
    odd, *_ = objects(checked("--terms", "terms.toml", "--json").out)
    assert odd["column"] == "word"
    assert "must have two values, but has more" in odd["sentence"]
    assert "'maybe'" in odd["sentence"]


RANKED = {"objective": "rank:ndcg", "columns": {"label": "classes", "group": "query"}}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_group_is_not_cut_by_the_shares_of_workers(site, kind):
    frame = table()
    frame["query"] = np.sort(np.random.default_rng(3).integers(0, 7, len(frame)))
    frame["query"] = frame["query"].replace(3, 2)  # one that lies over the half
    assert frame["query"][199] == frame["query"][200]
    site(halves(frame, kind), terms(**RANKED))
    *odd, facts = objects(checked("--terms", "terms.toml", "--json").out)
    assert {one["kind"] for one in odd} == {"undeclared"}
    assert facts["rows_checked"] == 400


def test_a_group_that_does_not_stand_together_is_refused(site):
    frame = table()
    frame["query"] = np.arange(len(frame)) % 7
    site(halves(frame, "csv"), terms(**RANKED))
    odd, *_ = objects(checked("--terms", "terms.toml", "--json").out)
    assert "rows of one 'query' are on two workers; sort the rows by this column" in odd["sentence"]


def differing(kind):
    first, second = halves(table(), kind).values()
    return {f"1.{kind}": first, f"2.{kind}": second.rename(columns={"dose": "dosis"})}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("command", [("check",), ("approve", "terms.toml", "--analyst", "marie", "--yes")])
def test_files_with_other_columns_are_named(site, kind, command):
    site(differing(kind), terms(parties=["north"]))
    assert re.search(rf"2\.{kind}: .*'dos(e|is)'", refusal(*command, "--config", "party.toml"))


def test_a_file_that_the_workers_do_not_see_is_said_to_be_missing_there(site, tmp_path):
    site({}, terms())
    (tmp_path / "party.toml").write_text(
        (tmp_path / "party.toml").read_text().replace('"rows"', '"rows.csv"')
    )
    end = checked()
    assert end.code == 2
    assert re.fullmatch(r"fedboost: on worker tcp:\S+, /\S+/rows\.csv: no such file\n", end.err)


def test_a_folder_of_csv_files_holds_no_others(site, tmp_path):
    site(halves(table(), "csv"), terms())
    (tmp_path / "rows" / ".hidden").touch()
    assert checked().code == 0
    (tmp_path / "rows" / "README.md").touch()
    end = checked()
    assert end.code == 2
    assert "rows contains CSV files and also /" in end.err
    assert "rows/README.md; move the files with rows to a separate folder" in end.err


def test_csv_files_that_disagree_whether_a_column_is_text(site):
    first, second = halves(table(), "csv").values()
    site({"1.csv": first, "2.csv": second.assign(dose="unknown")}, terms())
    end = checked()
    assert end.code == 2
    assert "column 'dose' is" in end.err
    assert "write the rows as Parquet" in end.err


def test_a_scheduler_that_does_not_answer(site, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_engine, "ANSWERS_WITHIN", 0.3)
    site(halves(table()), terms())
    address = f"tcp://127.0.0.1:{free_port()}"
    (tmp_path / "party.toml").write_text(f'{SITE}[workers]\ndask = "{address}"\n')
    for command in (("check",), ("party", "--insecure-loopback", "--wait", "0")):
        assert refusal(*command, "--config", "party.toml").startswith(
            f"fedboost: the Dask scheduler at {address} did not answer within"
        )


def test_a_cluster_without_workers(site):
    site(halves(table()), terms(), workers=0)
    end = checked()
    assert (end.code, end.out) == (2, "")
    assert re.fullmatch(
        r"fedboost: the Dask cluster at tcp:\S+ has no workers; start at least one\n", end.err
    )


def test_workers_with_too_little_memory_are_told_before_they_read(site, monkeypatch):
    workers = DaskEngine.workers

    def poor(engine):
        return [Worker(one.address, one.host, one.threads, 200 << 20) for one in workers(engine)]

    monkeypatch.setattr(DaskEngine, "workers", poor)
    site(halves(table()), terms())
    assert checked().code == 0, "columns take no memory"
    end = checked("--terms", "terms.toml")
    assert (end.code, end.out) == (2, "")
    assert re.search(
        r"its workers have too little memory for these rows: 200 rows of 3 features need 0\.3 GiB on worker "
        r"tcp:\S+, which may use 0\.2 GiB; add workers or RAM$",
        end.err.strip(),
    )


def test_approve_looks_at_the_columns(site):
    site(halves(table()), terms(parties=["north"]))
    approve = ("approve", "terms.toml", "--config", "party.toml", "--analyst", "marie", "--yes")
    end = fedboost(*approve)
    assert (end.code, end.err) == (0, "")
    assert "north, 400 rows of rows" in end.out
    assert "only the columns were checked" in end.out
    assert "approved; `fedboost approve --withdraw`" in end.out


def test_approve_names_a_column_that_is_absent(site):
    site(halves(table().drop(columns="dose")), terms(parties=["north"]))
    assert "column 'dose' is missing" in refusal(
        "approve", "terms.toml", "--config", "party.toml", "--analyst", "marie", "--yes"
    )


def test_names_of_the_site_stand_beside_those_of_the_terms(site, tmp_path):
    own = {"age": "age", "dose": "gift", "ward": "ward", "benign": "benign"}
    lines = [f'{name} = "{column}"' for name, column in own.items()]
    (tmp_path / "names.toml").write_text("\n".join(["[names]", *lines]))
    frame = table().rename(columns={"dose": "gift"})
    frame["gift"] = np.where(frame["gift"] > 2, np.inf, frame["gift"])
    site(halves(frame), terms(), more='names = "names.toml"\n')
    *odd, _ = objects(checked("--terms", "terms.toml", "--json").out)
    assert [one["column"] for one in odd if one["kind"] == "unfit"] == ["dose (gift)"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('scratch = "s"', "scratch"),
        ("nthread = 2", "nthread"),
    ],
)
def test_keys_that_do_not_go_with_workers(site, line, words):
    site(halves(table()), terms(), more=line)
    end = checked()
    assert end.code == 2
    assert words in end.err


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "ucx://host:1", "tcp://host", "LOCAL", ""])
def test_addresses_that_are_none(site, tmp_path, address):
    (tmp_path / "party.toml").write_text(f'{SITE}[workers]\ndask = "{address}"\n')
    end = checked()
    assert end.code == 2
    assert "is not the address of a scheduler: use tcp://HOST:PORT" in end.err


def test_a_database_is_refused(site, tmp_path):
    text = SITE.replace('"rows"', '"sqlite:///rows.db"') + 'query = "SELECT 1"\n[workers]\ndask = "local"\n'
    (tmp_path / "party.toml").write_text(text)
    end = checked()
    assert end.code == 2
    assert "workers read only Parquet and CSV files: export the rows of the query to such files" in end.err


def test_other_files_are_refused(site, tmp_path):
    site({}, terms())
    pd.DataFrame({"a": [1]}).to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    (tmp_path / "party.toml").write_text(
        (tmp_path / "party.toml").read_text().replace('"rows"', '"rows.jsonl"')
    )
    end = checked()
    assert end.code == 2
    assert "workers read only Parquet and CSV files" in end.err
