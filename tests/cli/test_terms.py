"""`fedboost terms`, also with --digest, as a user types it."""

import pyarrow as pa
import pytest
from commands import done
from pyarrow import csv
from refusals import refusal
from sites import rows, terms

from fedboost.runtime.model import Model
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import read_terms, terms_to_toml


def test_terms_drafts_a_short_file_that_simulate_accepts(folder):
    parties = ("--party", "north", "--party", "south", "--party", "east")
    end = done("terms", "rows.csv", "--label", "y", "--exclude", "site", *parties, "--out", "drafted.toml")
    assert end.out == ""
    text = (folder / "drafted.toml").read_text()
    assert len(text.splitlines()) <= 15
    drafted = read_terms(folder / "drafted.toml")
    assert drafted.columns == terms().columns
    assert drafted.parties == ("north", "south", "east")
    assert "# at least 10 rows in a leaf: by default, sites refuse fewer\nmin_child_weight = 2.5\n" in text
    (folder / "drafted.toml").write_text(text.replace("rounds = 100", "rounds = 2"))
    done("simulate", "drafted.toml", "--data", "rows.csv", "--out", "model.json")
    assert len(Model.load("model.json").booster.trees) == 2


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        (("--label", "y"), 2.5),
        (("--label", "ward"), 5.0),
        (("--label", "age"), 10.0),
        (("--label", "y", "--objective", "count:poisson"), None),
        (("--label", "y", "--weight", "age"), None),
    ],
)
def test_drafted_terms_keep_the_rows_of_a_leaf_that_sites_want(folder, options, leaves):
    done("terms", "rows.csv", *options, "--exclude", "site", "--out", "drafted.toml")
    drafted = read_terms(folder / "drafted.toml")
    assert drafted.trees.min_child_weight == (1.0 if leaves is None else leaves)
    broken = [breach.key for breach in Policy().breaches(drafted)]
    assert ("min_rows_per_leaf" in broken) == (leaves is None)


def test_levels_of_few_rows_are_drafted_where_the_analyst_wants_it(folder):
    ward = ["x", "y", "y", *["z"] * 10, *["a"] * 167]
    diagnosis = [f"d{number // 3}" for number in range(180)]
    table = rows().set_column(2, "ward", [ward]).append_column("diagnosis", [diagnosis])
    csv.write_csv(table.drop_columns(["site"]), "rows.csv")
    draft = ("terms", "rows.csv", "--label", "y", "--force", "--out", "drafted.toml")
    end = done(*draft)
    text = (folder / "drafted.toml").read_text()
    assert read_terms(folder / "drafted.toml").columns.categorical == {"ward": ("a", "z")}
    assert "d1" not in text
    assert (
        "levels with fewer than 10 rows are left out and treated as missing: ward (2 levels in 3 rows); "
        "use --min-rows-per-level to change this limit\n"
    ) in end.err
    assert "diagnosis: the column is omitted, because it has no category with at least 10 rows" in end.err
    end = done(*draft, "--min-rows-per-level", "2")
    drafted = read_terms(folder / "drafted.toml").columns.categorical
    assert (drafted["ward"], len(drafted["diagnosis"])) == (("a", "y", "z"), 60)
    assert "ward (1 level in 1 row);" in end.err
    end = done(*draft, "--min-rows-per-level", "1")
    assert read_terms(folder / "drafted.toml").columns.categorical["ward"] == ("a", "x", "y", "z")
    assert "levels with" not in end.err


def test_a_digest_of_terms_that_nobody_is_offered(folder):
    (folder / "alone.toml").write_text(terms_to_toml(terms()))
    for name, said in (("alone.toml", "names no parties"), ("nowhere.toml", "No such file")):
        end = refusal("terms", name, "--digest")
        assert end.startswith(f"fedboost: {name}")
        assert said in end


def test_terms_go_to_standard_output_and_hints_to_standard_error(folder):
    table = rows().append_column("note", pa.array([None] * rows().num_rows, pa.string()))
    csv.write_csv(table, "rows.csv")
    end = done("terms", "rows.csv", "--label", "y")
    (folder / "drafted.toml").write_text(end.out)
    assert set(read_terms(folder / "drafted.toml").columns.features) == {"age", "dose", "ward", "site"}
    assert "note: the column has no values; the column is omitted" in end.err
    assert "parties = " in end.err
