"""Tables as users have them, through the commands: other forms, options, columns that are kept, any size."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import done
from orderly import write_all
from pyarrow import csv, feather, parquet
from refusals import refusal
from sites import fedboost, rows, terms
from stores import own_certificate, serving

from fedboost.runtime.data.table import read_table
from fedboost.runtime.model import Model
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import terms_to_toml

GERMAN = ("--separator", ";", "--decimal", ",", "--encoding", "latin-1", "--na", "-")
MB = 1 << 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_all(tmp_path)


def german(table):
    """The table as a German office saves it."""
    lines = [";".join(table.column_names)]
    for row in table.to_pylist():
        cells = ("-" if cell is None else str(cell).replace(".", ",") for cell in row.values())
        lines.append(";".join(cells))
    return "\n".join(["größe;" + lines[0], *("1,5;" + line for line in lines[1:]), ""]).encode("latin-1")


def fingerprint(*arguments):
    done("simulate", "alone.toml", "--force", "--out", "m.json", "--data", *arguments)
    return Model.load("m.json").fingerprint


@pytest.mark.slow
def test_one_model_whatever_the_table_is_kept_in(folder):
    table = rows()
    (folder / "german.csv").write_bytes(german(table))
    csv.write_csv(table, "rows.csv")
    parquet.write_table(table, "rows.parquet")
    feather.write_feather(table, "rows.feather")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, table.to_pylist())))
    (folder / "parts").mkdir()
    for number in range(3):
        parquet.write_table(table.slice(60 * number, 60), f"parts/{number}.parquet")
    expected = fingerprint("rows.csv")
    for data in ("rows.parquet", "rows.feather", "rows.jsonl", "parts", "parts/*.parquet"):
        assert fingerprint(data) == expected, data
    assert fingerprint("german.csv", *GERMAN) == expected
    predicted = done("predict", "m.json", "rows.csv").out
    assert done("predict", "m.json", "german.csv", *GERMAN).out == predicted
    assert done("explain", "m.json", "--shap", "german.csv", *GERMAN).out
    assert done("terms", "german.csv", "--label", "y", "--site", "site", *GERMAN).out


def test_the_options_of_a_site_are_in_its_file(folder):
    (folder / "german.csv").write_bytes(german(rows()))
    text = (folder / "party.toml").read_text().replace("rows.csv", "german.csv")
    options = 'read = { separator = ";", decimal = ",", encoding = "latin-1", na = ["-"] }\n'
    (folder / "party.toml").write_text(text + options)
    site = read_party(folder / "party.toml")
    assert read_table(site.data, site.scratch, site.read).column("dose").equals(rows().column("dose"))
    assert "180 rows of german.csv" in done("approve", "terms.toml", "--config", "party.toml", "--yes").out


def test_the_address_of_a_sites_table_stays_an_address(folder, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(own_certificate(folder / "own.pem")))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    content = (folder / "rows.csv").read_bytes()
    with serving({"x/rows.csv": content}, folder / "own.pem") as server:
        address = f"https://marie:secret@{server.address}/x/rows.csv"
        text = (folder / "party.toml").read_text().replace('"rows.csv"', f'"{address}"')
        (folder / "party.toml").write_text(text)
        end = done("approve", "terms.toml", "--config", "party.toml", "--yes")
        server.files.clear()
        gone = fedboost("approve", "terms.toml", "--config", "party.toml", "--yes")
    assert "180 rows of rows.csv" in end.out
    assert "the server returned 404" in gone.err
    assert "secret" not in end.out + end.err + gone.out + gone.err


# ---- predict ----------------------------------------------------------------------------------------


def test_columns_that_are_kept_stay_as_they_are_written(folder):
    ids = pa.array([f"{number:05}" for number in range(rows().num_rows)])
    table = rows().append_column("id", ids).append_column("prediction", [ids])
    csv.write_csv(table, "new.csv", csv.WriteOptions(quoting_style="none"))
    expected = Model.load("model.json").predict("rows.csv").tolist()
    arguments = ("predict", "model.json", "new.csv", "--keep", "id", "--keep", "prediction", "--keep", "ward")
    header, first, *rest = done(*arguments).out.splitlines()
    assert header == "id,prediction,ward,prediction_"
    assert first == f"00000,00000,{table.column('ward')[0]},{expected[0]!r}"
    assert len(rest) == len(expected) - 1
    done(*arguments, "--out", "p.parquet")
    out = parquet.read_table("p.parquet")
    assert out.column_names == ["id", "prediction", "ward", "prediction_"]
    assert out.column("id").equals(pa.chunked_array([ids]))
    assert out.column("prediction_").to_pylist() == expected
    parquet.write_table(table, "new.parquet")
    (folder / "new.jsonl").write_text("\n".join(map(json.dumps, table.to_pylist())))
    for data in ("new.parquet", "new.jsonl"):
        assert (
            done("predict", "model.json", data, "--keep", "id").out.splitlines()[1]
            == f"00000,{expected[0]!r}"
        )


def test_classes_and_kept_columns_in_parquet(folder):
    schema = {"label": "ward", "numeric": ["age", "dose"], "classes": ["a", "b", "c"]}
    (folder / "classes.toml").write_text(terms_to_toml(terms(objective="multi:softprob", columns=schema)))
    done("simulate", "classes.toml", "--data", "rows.csv", "--out", "m.json")
    done("predict", "m.json", "rows.csv", "--keep", "site", "--out", "p.parquet")
    out, model = parquet.read_table("p.parquet"), Model.load("m.json")
    assert out.column_names == ["site", "prediction", "a", "b", "c"]
    assert out.column("prediction").to_pylist() == model.predict_class("rows.csv").tolist()
    assert out.column("b").to_pylist() == model.predict("rows.csv")[:, 1].tolist()


def test_a_table_without_rows_gives_a_header(folder):
    csv.write_csv(rows().slice(0, 0), "none.csv")
    assert done("predict", "model.json", "none.csv", "--keep", "site").out == "site,prediction\n"


def test_what_is_wrong_in_a_late_part_leaves_no_file(folder):
    age = [*map(str, range(rows().num_rows * 99)), "1e300"]
    late = pa.concat_tables([rows()] * 99 + [rows().slice(0, 1)]).set_column(0, "age", pa.array(age))
    csv.write_csv(late, "late.csv", csv.WriteOptions(quoting_style="none"))
    (folder / "p.csv").write_text("as it was")
    end = fedboost("predict", "model.json", "late.csv", "--out", "p.csv", "--force")
    count = late.num_rows
    assert end.code == 2
    assert end.err.endswith(f"it is 1e+300 in row {count} (line {count + 1} of the file)\n")
    assert (folder / "p.csv").read_text() == "as it was"
    assert not [path for path in folder.iterdir() if path.name.startswith(".p.csv")]


def peak(*arguments):
    """The memory that a command takes at most, in a process of its own."""
    code = "import sys; from fedboost.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss << 10


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", pytest.param("parquet", marks=pytest.mark.long)])
def test_memory_does_not_grow_with_the_table(folder, form):
    assert resource.RLIMIT_AS  # the figures are Linux's
    table, count = rows().append_column("note", pa.array([["x" * 120] * rows().num_rows])[0].values), 1500
    with (csv.CSVWriter if form == "csv" else parquet.ParquetWriter)(f"large.{form}", table.schema) as writer:
        many = pa.concat_tables([table] * 300)
        for _ in range(count // 300):
            writer.write_table(many)
    small = peak("predict", "model.json", "rows.csv", "--out", "p.csv")
    large = peak("predict", "model.json", f"large.{form}", "--keep", "site", "--out", f"large-p.{form}")
    assert large - small < 110 * MB
    assert read_table(f"large-p.{form}").num_rows == count * rows().num_rows


# ---- rows and sites ---------------------------------------------------------------------------------


def with_line(number, line):
    """rows.csv with a blank line behind the header, and another line in that place of the file."""
    lines = Path("rows.csv").read_text().splitlines()
    lines.insert(1, "")
    lines[number - 1] = line
    Path("rows.csv").write_text("\n".join(lines))


@pytest.mark.parametrize("shares", [("--site", "site"), ("--parties", "3")])
def test_a_row_is_counted_as_in_the_file_whichever_site_has_it(folder, shares):
    with_line(90, 'inf,1,"a","south",1')
    assert refusal("simulate", "alone.toml", "--data", "rows.csv", *shares) == (
        "fedboost: the rows of rows.csv do not fit the terms: column 'age' has a value that is infinite or "
        "too large for a 32-bit float: it is inf in row 88 (line 90 of the file)\n"
    )


def test_the_row_that_names_no_site(folder):
    with_line(40, '1,1,"a",,1')
    for command in ("simulate", "compare"):
        end = fedboost(command, "alone.toml", "--data", "rows.csv", "--site", "site")
        assert "column 'site' has no site in row 38 (line 40 of the file); fill it in" in end.err


@pytest.mark.slow
def test_the_column_of_the_site_is_a_feature_where_the_terms_say_so(folder):
    done("terms", "rows.csv", "--label", "y", "--site", "site", "--site-feature", "--out", "sited.toml")
    text = (folder / "sited.toml").read_text().replace("rounds = 100", "rounds = 2")
    assert '"site" = ["east", "north", "south"]' in text
    (folder / "sited.toml").write_text(text)
    simulate = ("simulate", "sited.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json")
    done(*simulate)
    assert "site" in Model.load("m.json").terms.columns.features
    assert (
        "3 sites" in done("compare", "sited.toml", "--data", "rows.csv", "--site", "site", "--seeds", "1").out
    )
    refusal = fedboost("terms", "rows.csv", "--label", "y", "--site-feature").err
    assert "--site-feature uses the column of --site as a feature; add --site" in refusal


def test_the_options_are_in_the_help_of_each_command_that_reads_a_table():
    for command in ("simulate", "compare", "terms", "predict", "explain", "report", "check"):
        shown = done(command, "--help").out
        assert all(
            option in shown for option in ("--separator", "--decimal", "--encoding", "--na", "--sheet")
        )


def test_numbers_of_a_kept_feature_are_written_whole(folder):
    done("predict", "model.json", "rows.csv", "--keep", "dose", "--out", "p.csv")
    kept = csv.read_csv("p.csv").column("dose").to_numpy(zero_copy_only=False)
    assert np.array_equal(kept, rows().column("dose").to_numpy(), equal_nan=True)
