"""`fedboost report` as a user types it, and its page in a browser."""

import pytest
from browser import sheets
from pyarrow import csv
from refusals import refusal
from sites import fedboost, rows, shared_out, terms

from fedboost.runtime.local.simulation import simulate


@pytest.fixture(scope="module")
def model():
    return simulate(terms(rounds=4, validation_fraction=0.3), shared_out(3)).model


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A folder with m.json, rows.csv, few.csv and old.html."""
    monkeypatch.chdir(tmp_path)
    model.save("m.json")
    csv.write_csv(rows(), "rows.csv")
    csv.write_csv(rows().drop_columns(["dose"]), "few.csv")
    (tmp_path / "old.html").write_text("old")
    return tmp_path


def test_a_report_is_a_page(folder, model):
    end = fedboost("report", "m.json", "--data", "rows.csv", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    assert (folder / "r.html").read_text(encoding="utf-8") == model.report(data="rows.csv")
    assert "180 rows of rows.csv" in (folder / "r.html").read_text(encoding="utf-8")


def test_a_report_names_no_folder_of_this_machine(folder):
    end = fedboost("report", folder / "m.json", "--data", folder / "rows.csv", "--out", folder / "r.html")
    assert end.code == 0
    assert str(folder) not in (folder / "r.html").read_text(encoding="utf-8")


def test_a_floor_under_counts_is_the_analysts(folder, model):
    end = fedboost("report", "m.json", "--data", "rows.csv", "--min-count", "1", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    text = (folder / "r.html").read_text(encoding="utf-8")
    assert text == model.report(data="rows.csv", min_count=1)
    assert text != model.report(data="rows.csv")


def test_a_report_without_rows(folder, model):
    end = fedboost("report", "m.json", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    assert (folder / "r.html").read_text(encoding="utf-8") == model.report()


def test_undeclared_categories_are_noticed(folder):
    ward = ["z" if level == "a" else level for level in rows()["ward"].to_pylist()]
    csv.write_csv(rows().set_column(2, "ward", [ward]), "odd.csv")
    end = fedboost("report", "m.json", "--data", "odd.csv", "--out", "r.html")
    assert end.code == 0
    assert end.err.startswith("ward has ")
    assert "rows with undeclared categories ('z', ...), which are treated as missing" in end.err


REFUSED = {
    "no model": (("nowhere.json", "--out", "r.html"), "nowhere.json: cannot read the model: No such file"),
    "a table for a model": (("rows.csv", "--out", "r.html"), "rows.csv is not a fedboost model"),
    "no such table": (("m.json", "--data", "no.csv", "--out", "r.html"), "no.csv: no such file"),
    "no such column": (
        ("m.json", "--data", "few.csv", "--out", "r.html"),
        "few.csv: column 'dose' is missing",
    ),
    "an older page": (
        ("m.json", "--out", "old.html"),
        "old.html already exists; use another name, or --force",
    ),
    "over the model": (("m.json", "--out", "m.json", "--force"), "m.json is an input of this command"),
    "over the rows": (
        ("m.json", "--data", "rows.csv", "--out", "rows.csv", "--force"),
        "is an input of this",
    ),
    "no such folder": (("m.json", "--out", "no/r.html"), "no/r.html: cannot write: the directory"),
    "no page": (("m.json",), "--out"),
    "a query of nothing": (
        ("m.json", "--query", "SELECT 1", "--out", "r.html"),
        "--query reads the table of --data",
    ),
    "a floor under nothing": (
        ("m.json", "--min-count", "1", "--out", "r.html"),
        "--min-count only applies to the rows",
    ),
    "no such keys": (("m.json", "--keys", "keys", "--out", "r.html"), "keys"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_reported_is_one_line(folder, arguments, said):
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert said in refusal("report", *arguments)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_force_replaces_a_page(folder, model):
    assert fedboost("report", "m.json", "--out", "old.html", "--force").code == 0
    assert (folder / "old.html").read_text(encoding="utf-8") == model.report()


# ---- in a browser -----------------------------------------------------------------------------------


@pytest.fixture
def page(folder):
    """The report, with rows."""
    assert fedboost("report", "m.json", "--data", "rows.csv", "--out", "r.html").code == 0
    return folder / "r.html"


@pytest.mark.slow
def test_a_browser_refuses_and_tells_what_a_page_asks_for(tmp_path, browser):
    text = '<html lang="en"><img src="http://127.0.0.1:9/x.png"><p style="width: 3000px">a</p></html>'
    (tmp_path / "odd.html").write_text(text)
    with browser.tab(tmp_path / "odd.html") as tab:
        assert tab.foreign == ["http://127.0.0.1:9/x.png"]
        wide, window = tab.widths()
        assert wide > window
        assert any(fault.startswith("image-alt (critical)") for fault in tab.faults())


@pytest.mark.slow
def test_what_is_folded_is_printed(page, browser):
    text = page.read_text(encoding="utf-8")
    closed = page.with_name("closed.html")
    closed.write_text(text.replace("::details-content", "::nothing"), encoding="utf-8")
    assert closed.read_text(encoding="utf-8") != text
    with browser.tab(page) as tab, browser.tab(closed) as other:
        assert sheets(tab.printed("model")) > sheets(other.printed("model-closed")) > 0
