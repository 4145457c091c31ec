"""`fedboost check`: each oddity is said where it is, and a table in order is quiet."""

import re
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import done, objects
from orderly import write_all
from pyarrow import csv, parquet
from sites import fedboost, rows, terms

from fedboost.runtime.tasks import terms_to_toml

ROWS = 300
DRAW = np.random.default_rng(5)
LABEL = DRAW.integers(0, 2, ROWS)
NUMBER = DRAW.normal(50, 10, ROWS).round(2)
TENS = DRAW.integers(20, 80, ROWS)


def spelled(values, **others):
    """Values as text, with other words in the rows that are named by `word=[rows]`."""
    out = [str(value) for value in values]
    for word, places in others.items():
        for place in places:
            out[place] = word
    return out


def table(odd=None, label=LABEL, name="odd"):
    columns = {"number": NUMBER, "label": label}
    return pa.table(columns if odd is None else {**columns, name: odd})


def oddities(table, *options, name="t.csv"):
    """What `fedboost check --json` says of a table: by kind and column."""
    csv.write_csv(table, name) if name.endswith("csv") else parquet.write_table(table, name)
    end = fedboost("check", name, *options, "--json")
    *odd, last = objects(end.out)
    assert end.err == ""
    assert end.code == (1 if last["errors"] + last["warnings"] else 0)
    assert last["errors"] + last["warnings"] + last["notes"] == len(odd)
    return {(one["kind"], one["column"]): one for one in odd}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


ODD = {
    "a word for missing numbers": (spelled(TENS, **{"-": [3, 8], "unknown": [9]}), "words", 3, "'-' (2)"),
    "a word among many numbers": (spelled(TENS, **{"n.a. (late)": [3]}), "words", 1, "'n.a. (late)' (1)"),
    "decimal commas": (spelled(f"{n:.1f}".replace(".", ",") for n in NUMBER), "decimal commas", ROWS, ","),
    "thousands": (spelled(f"{1000 * n:,.2f}" for n in NUMBER), "thousands", ROWS, ","),
    "thousands with points": (["1.234,56", *["2.500", "1.5"] * 149, "7"], "thousands", 150, "'2.500' (149)"),
    "commas and points": (["1.5", *["2,25"] * 299], "mixed decimals", ROWS, "'1.5' (1)"),
    "signs": (spelled(TENS, **{"<20": [3, 4]}), "signs", 2, "'<20' (2)"),
    "per cent": (spelled(f"{n} %" for n in TENS), "signs", ROWS, "%"),
    "signs in the only value": (pa.array(["<20", None] * (ROWS // 2)), "signs", ROWS // 2, "'<20' (150)"),
    "blanks and case": (
        ["North", "north ", "NORTH", *["South"] * (ROWS - 5), "North", "North"],
        "spelling",
        2,
        "'North' (3)",
    ),
    "blanks inside": (["a  b", *["a b", "c"] * 149, "c"], "spelling", 1, "'a  b' (1)"),
    "a row number": (range(7, ROWS + 7), "identifier", ROWS, "7, 8, 9"),
    "a row number in disorder": (DRAW.permutation(ROWS), "identifier", ROWS, ""),
    "names": ([f"Mr {n}" for n in range(ROWS)], "identifier", ROWS, "'Mr 0'"),
    "nearly all names": ([f"Mr {max(n, 20)}" for n in range(ROWS)], "identifier", ROWS - 20, "Mr"),
    "whole numbers that never repeat": (
        DRAW.permutation(ROWS) * 8_123 + DRAW.integers(0, 99, ROWS), "distinct", 0, "different",
    ),
    "codes beyond float32": (np.tile([20_000_001, 20_000_000, 7], 100), "rounded", 2, "20000000, 20000001"),
    "constant": ([4] * ROWS, "constant", ROWS, "4 in every row"),
    "constant text": (["x"] * ROWS, "constant", ROWS, "'x' in every row"),
    "the label itself": (LABEL * 3, "gives away", 0, "AUC of 1.000"),
    "the label in words": (np.where(LABEL, "died", "lives"), "gives away", 0, "AUC of 1.000"),
    "missing where the label is 0": (pa.array(NUMBER, mask=LABEL == 0), "gives away", 0, "AUC of 1.000"),
    "dates": ([date(2020, 1, 1 + n % 28) for n in range(ROWS)], "date", 0, "2020-01-01"),
    "dates as written": ([f"{1 + n % 28}.3.2020" for n in range(ROWS)], "date", 0, "'1.3.2020'"),
    "times": ([f"{n % 24}:{n % 60:02}" for n in range(ROWS)], "date", 0, "0:00"),
    "infinite": ([float("inf"), *NUMBER[1:]], "infinite", 1, "32-bit"),
    "too large": ([1e300, *NUMBER[1:]], "infinite", 1, "32-bit"),
    "nothing": ([None] * ROWS, "empty", 0, "no values"),
    "many categories": ([f"c{n % 260}" for n in range(ROWS)], "categories", 260, "255"),
}  # fmt: skip


@pytest.mark.parametrize(("odd", "kind", "count", "says"), ODD.values(), ids=ODD)
def test_an_oddity_is_said(odd, kind, count, says):
    found = oddities(table(odd), "--label", "label")
    assert [*found] == [(kind, "odd")]
    assert says in found[kind, "odd"]["sentence"]
    assert not count or found[kind, "odd"]["rows"] == count
    end = fedboost("check", "t.csv", "--label", "label")
    assert end.code == (0 if kind in ("constant", "empty", "distinct") else 1)
    assert " odd: " in end.out


def test_points_in_a_table_of_decimal_commas_may_be_those_of_thousands():
    read = ("--separator", ";", "--decimal", ",", "--json")
    Path("t.csv").write_text("sure;odd;code\n1,5;1.500;2.25\n2,5;2.250;3.5\n")
    odd, _ = objects(fedboost("check", "t.csv", *read).out)
    assert (odd["kind"], odd["column"], odd["severity"]) == ("decimal points", "odd", "note")
    assert "'1.500' (1), '2.250' (1)" in odd["sentence"]


QUIET = {
    "categories": DRAW.choice(["a", "b", "c"], ROWS),
    "codes": DRAW.choice(["A01", "B02", "250.01", "250.02", "V57", "E909"], ROWS),
    "few numbers and a word": DRAW.choice(["0", "1", "2", "3+"], ROWS),
    "question marks are missing numbers": spelled(TENS, **{"?": [3], "NA": [4]}),
    "blanks around numbers": spelled(f" {n} " for n in TENS),
    "a category called unknown": DRAW.choice(["unknown", "mild", "severe"], ROWS),
    "amounts": (DRAW.integers(20, 200, ROWS) * 500),
    "amounts beyond float32": (DRAW.integers(1, 50, ROWS) * 1_000_000),
    "distinct measurements": DRAW.normal(size=ROWS),
    "flags": DRAW.random(ROWS) < 0.5,
    "a rare flag": (np.arange(ROWS) < 3).astype(int),
    "missing now and then": pa.array(NUMBER, mask=DRAW.random(ROWS) < 0.4),
    "a strong feature": LABEL + DRAW.normal(size=ROWS) / 3,
    "a rare category": ["rare", "also rare", *DRAW.choice(["u", "v"], ROWS - 2)],
    "postcodes": DRAW.choice([10115, 10117, 20095, 80331], ROWS),
    "versions": DRAW.choice(["1.2.3", "1.2.4", "2.0.0"], ROWS),
    "ranges": DRAW.choice(["0-9", "10-19", "20-29"], ROWS),
    "a site's name": DRAW.choice(["North", "Northern"], ROWS),
}


@pytest.mark.parametrize("usual", QUIET.values(), ids=QUIET)
def test_a_table_in_order_is_quiet(usual):
    assert oddities(table(usual), "--label", "label") == {}
    assert done("check", "t.csv", "--label", "label").out.startswith("No problems were found\n\n")


@pytest.mark.parametrize(
    "values",
    [NUMBER, np.full(ROWS, 3.0), DRAW.choice(["a", "b"], ROWS), [f"{n} " for n in NUMBER], ["x"] * ROWS],
)
@pytest.mark.parametrize(("filled", "said"), [(ROWS // 10 - 1, True), (ROWS // 10, False)])
def test_a_column_that_is_filled_in_few_rows_is_noted(values, filled, said):
    mask = np.arange(ROWS) >= filled
    found = oddities(table(pa.array(values, mask=mask)))
    assert (("nearly empty", "odd") in found) == said
    if said:
        oddity = found["nearly empty", "odd"]
        assert (oddity["severity"], oddity["sentence"]) == (
            "note",
            f"{ROWS - filled} of {ROWS} values are missing",
        )


def test_nearly_constant_columns_are_those_with_one_row_in_a_thousand():
    few, more = np.zeros(3000), np.zeros(3000)
    few[:2], more[:4] = [5, 6], 7
    some = pa.table({"few": few, "more": more, "word": np.where(few > 0, "seldom", "often")})
    found = oddities(some)
    assert [*found] == [("nearly constant", "few"), ("nearly constant", "word")]
    assert found["nearly constant", "few"]["sentence"] == "the value is 0 in all but 2 of 3,000 rows"
    assert "'often' in all but 2" in found["nearly constant", "word"]["sentence"]


@pytest.mark.parametrize(("name", "said"), [("patient_id", True), ("visits", False)])
def test_an_identifier_that_repeats_now_and_then_is_told_by_its_name(name, said):
    values = np.sort(DRAW.choice(10**7, ROWS, replace=False))[DRAW.permutation(ROWS)]
    values[:4] = values[4:8]
    found = oddities(table(values, name=name), "--label", "label")
    assert [*found] == ([("identifier", name)] if said else [])


WORDS = np.where(LABEL, "ill", "well")
LABELS = {
    "missing": ([None, None, *LABEL[2:]], "unlabelled", "missing in 2 of 300 rows"),
    "missing words": (["", *WORDS[1:]], "unlabelled", "missing in 1 of 300 rows"),
    "spelled twice": (["Ill", *WORDS[1:]], "spelling", "'Ill' (1)"),
    "constant": ([1] * ROWS, "undraftable", "is constant"),
    "a name": ([f"c{n}" for n in range(ROWS)], "undraftable", "too many values"),
    "few numbers": (TENS % 4, "few numbers", "4 distinct integers, which are treated as numeric"),
}


@pytest.mark.parametrize(("label", "kind", "says"), LABELS.values(), ids=LABELS)
def test_an_oddity_of_a_label_is_said(label, kind, says):
    found = oddities(table(label=label), "--label", "label")
    assert (kind, "label") in found
    assert says in found[kind, "label"]["sentence"]
    assert {column for _, column in found} == {"label"}


def test_which_value_is_the_positive_one_and_how_many_rows_have_it():
    ill = int(LABEL.sum())
    label = np.where(LABEL, "ill", "well")
    rarer = "ill" if ill < ROWS / 2 else "well"
    found = oddities(table(label=label), "--label", "label")
    assert (
        f"{rarer!r} ({min(ill, ROWS - ill)} of 300 rows) is label 1" in found["positive", "label"]["sentence"]
    )
    said = " ".join(done("check", "t.csv", "--label", "label").out.split())
    assert f"label label: binary:logistic, 'ill' in {ill} rows" in said
    assert f"{rarer!r} in {min(ill, ROWS - ill)} rows (counts as 1)" in said
    csv.write_csv(table(), "t.csv")
    said = " ".join(done("check", "t.csv", "--label", "label").out.split())
    assert f"'1' in {ill} rows (counts as 1)" in said


def test_amounts_and_classes_are_given_away_too():
    amount = NUMBER**3 + DRAW.normal(size=ROWS)
    assert [*oddities(table(label=amount), "--label", "label")] == [("predicts", "number")]
    assert oddities(table(label=amount + 1e5 * DRAW.normal(size=ROWS)), "--label", "label") == {}
    grade = DRAW.choice(["low", "middle", "high"], ROWS)
    codes = np.array([{"low": 2, "middle": 7, "high": 3}[name] for name in grade])
    found = oddities(table(codes, label=grade), "--label", "label")
    assert [*found] == [("tells classes", "odd")]
    codes[:30] = 2
    assert oddities(table(codes, label=grade), "--label", "label") == {}


def test_excluded_columns_are_no_features_and_still_spelled():
    site = ["North", "north", *["south"] * (ROWS - 2)]
    both = table(range(ROWS), name="id").append_column("site", [site])
    found = oddities(both, "--label", "label", "--exclude", "id", "--exclude", "site")
    assert [*found] == [("spelling", "site")]


def test_a_table_without_a_label_is_checked_as_it_is():
    assert [*oddities(table(range(ROWS)))] == [("identifier", "odd")]


def test_what_is_left_out_of_a_draft_is_said_with_the_reason():
    odd = table([[1, 2]] * ROWS).append_column("a[0]", [TENS])
    found = oddities(odd, "--label", "label", name="t.parquet")
    assert "neither numeric nor text" in found["left out", "odd"]["sentence"]
    assert "'['" in found["left out", "a[0]"]["sentence"]
    assert found["left out", "odd"]["left_out"]


def test_many_columns_with_the_same_oddity_take_a_few_lines():
    wide = pa.table({**{f"c{n}": [1] * ROWS for n in range(30)}, "label": LABEL, "number": NUMBER})
    csv.write_csv(wide, "t.csv")
    said = done("check", "t.csv", "--label", "label").out
    assert said.count("in every row") == 5
    assert "The same applies to 25 more columns: c5, c6, c7, c8, c9, …" in " ".join(said.split())
    assert "30 notes" in said


def test_names_and_values_of_a_table_move_no_cursor():
    odd = table(["a\x1b[2J", "A\x1b[2j", *["c"] * (ROWS - 2)], name="odd\n\x1b[1mname").rename_columns(
        ["number", "la\nbel", "odd\n\x1b[1mname"]
    )
    parquet.write_table(odd, "t.parquet")
    said = fedboost("check", "t.parquet", "--label", "la\nbel").out
    assert "\x1b" not in said
    assert 'warning      "odd\\n' in said


# ---- a site's table and an analyst's terms ----------------------------------------------------------


def test_a_site_checks_its_table_against_terms(tmp_path):
    write_all(tmp_path)
    own = tmp_path / "party.toml"
    own.write_text(re.sub("policy = .*", "", own.read_text()))  # a person approves terms here
    end = done("check", "--config", "party.toml", "--terms", "terms.toml")
    said = "".join(end.out.split())
    assert f"table{tmp_path / 'rows.csv'}:180rows,5columnslabely:" in said
    assert "counts as 1" in end.out
    assert end.out.startswith("No problems were found\n")


def test_rules_of_a_policy_that_refuse_the_terms_are_findings(tmp_path):
    """Where a policy decides. Where it names no parties or columns, a person does."""
    write_all(tmp_path)
    rules = "min_rows_per_leaf = 1, min_parties = 2, protections = ['plain'], max_rounds = 2 }"
    (tmp_path / "west.toml").write_text((tmp_path / "party.toml").read_text().replace(" }", f", {rules}"))
    asked = "check", "--config", "west.toml", "--terms", "terms.toml"
    (tmp_path / "terms.toml").write_text(
        terms_to_toml(terms(["north", "south"], rounds=3, validation_fraction=0.2))
    )
    end = fedboost(*asked)
    assert (end.code, end.err) == (1, "")
    said = " ".join(end.out.split())
    assert said.startswith("2 warnings")
    assert "its policy has max_rounds = 2, but the terms have rounds = 3; set rounds = 2, or run" in said
    assert "or set validation = true under [policy] in that site's file, or run" in said
    assert "fedboost approve terms.toml --config west.toml" in said
    done("approve", "terms.toml", "--config", "west.toml", "--yes")
    assert done(*asked).out.startswith("No problems were found\n")


def test_all_that_does_not_fit_terms_is_said_at_once(tmp_path):
    write_all(tmp_path)
    odd = rows().drop_columns(["dose"])
    odd = odd.set_column(0, "age", [["old", *map(str, range(179))]])
    odd = odd.set_column(1, "ward", [["d", "e", "e", *["a"] * 177]])
    odd = odd.set_column(3, "y", [[7, *odd.column("y").to_pylist()[1:]]])
    found = oddities(odd.rename_columns(["age", "ward", "site", "y"]), "--terms", "terms.toml")
    assert {("absent", "dose"), ("unfit", "age"), ("undeclared", "ward"), ("unfit", "y")} <= set(found)
    advice = found["absent", "dose"]["advice"]
    assert advice.startswith("rename it in the table, or map its name under [columns] of the site's file")
    assert advice.endswith("ask the analyst to add it to columns.absent in the terms")
    assert "'old' in row 1" in found["unfit", "age"]["sentence"]
    assert "'e' (2), 'd' (1)" in found["undeclared", "ward"]["sentence"]
    assert "takes 0 or 1" in found["unfit", "y"]["sentence"]
    assert "it is 7 in row 1" in found["unfit", "y"]["sentence"]
    assert "site" not in {column for _, column in found}  # the terms do not name it


def test_labels_that_are_missing_do_not_fit_terms(tmp_path):
    write_all(tmp_path)
    odd = rows().set_column(4, "y", [[None, *rows().column("y").to_pylist()[1:]]])
    assert [*oddities(odd, "--terms", "terms.toml")] == [("unlabelled", "y")]


def test_numbers_that_terms_take_for_categories_are_no_oddity(tmp_path):
    codes = table(np.tile([20_000_001, 20_000_000, 7], 100))
    columns = {"label": "label", "numeric": ["number"], "categorical": {"odd": ["20000001", "20000000", "7"]}}
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(columns=columns)))
    assert oddities(codes, "--terms", "terms.toml") == {}


def test_a_table_that_stays_in_its_file_is_checked_by_its_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("fedboost.runtime.data.check.MAX_STORED_ROWS", 100)
    write_all(tmp_path)
    parquet.write_table(rows(), "rows.parquet", row_group_size=50)
    (tmp_path / "party.toml").write_text(
        'party = "north"\naggregator = "localhost:1"\ndata = "rows.parquet"\nscratch = "."\n'
    )
    end = done("check", "--config", "party.toml", "--terms", "terms.toml")
    assert "180 rows, of which the first 100 were checked, 5 columns" in " ".join(end.out.split())


def test_a_sparse_table_is_checked_against_terms(tmp_path):
    (tmp_path / "t.libsvm").write_text("".join(f"{n % 2} 0:{n % 7} 3:1.5\n" for n in range(40)))
    done("terms", "t.libsvm", "--label", "label", "--out", "terms.toml")
    assert done("check", "t.libsvm", "--terms", "terms.toml").out.startswith("No problems were found\n")
    assert fedboost("check", "t.libsvm", "--label", "label").code == 0
