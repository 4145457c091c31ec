"""Rows that stay in files: the same numbers as in memory, faults in the usual words, nothing left behind."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from raised import raised
from sites import rows, terms

from fedboost.boosting.programs.boosting import train
from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.gbdt import cut_points, histogram
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.runtime.data import parquet as stored
from fedboost.runtime.data.shard import to_shard, undeclared
from fedboost.runtime.data.table import read_table
from fedboost.runtime.site.config import read_party


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(stored, "STRETCH", 7)
    monkeypatch.setattr(histogram, "STRETCH", 16)
    monkeypatch.setattr(cut_points, "STRETCH", 16)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path


def kept(folder, table):
    """The table in a file, with a scratch folder."""
    parquet.write_table(table, folder / "north.parquet", row_group_size=11)
    return read_table(folder / "north.parquet", folder / "scratch")


def trained(shard, wanted):
    party, program = HorizontalHolder(lambda: shard, wanted), train(wanted, [])
    query = next(program)
    while True:
        try:
            query = program.send(party.answer(query))
        except StopIteration as end:
            return end.value.to_xgboost()


def test_the_rows_and_the_model_are_those_of_a_table_in_memory(folder):
    wanted = terms().with_parties(["north"])
    table, one = kept(folder, rows()), to_shard(rows(), wanted, "north")
    other = to_shard(table, wanted, "north")
    for mine, its in zip(
        (*one.columns, one.label, one.weight), (*other.columns, other.label, other.weight), strict=True
    ):
        assert mine.dtype == its[:].dtype
        assert np.array_equal(mine, its[:], equal_nan=True)
        assert np.array_equal(mine[9:24], its[9:24], equal_nan=True)
        assert np.array_equal(mine[24:26], its[24:26], equal_nan=True)
    assert one.rows > 3 * histogram.STRETCH
    assert trained(one, wanted) == trained(other, wanted)
    assert not list((folder / "scratch").iterdir())


def test_base_margins_of_a_stored_table(folder):
    table = rows()
    table = table.append_column("m", [np.linspace(-1, 1, table.num_rows)])
    columns = {**terms().columns.model_dump(mode="json"), "base_margin": "m"}
    wanted = terms().changed(columns=columns).with_parties(["north"])
    one, other = (to_shard(of, wanted, "north") for of in (table, kept(folder, table)))
    assert one.base_margin.dtype == other.base_margin.dtype == np.float32
    assert np.array_equal(one.base_margin, other.base_margin)


def test_a_ranking_of_a_stored_table(folder):
    table = rows()
    table = table.append_column("q", [[f"case {i % 13}" for i in range(table.num_rows)]])
    columns = {**terms().columns.model_dump(mode="json"), "group": "q"}
    wanted = terms(objective="rank:ndcg", columns=columns).with_parties(["north"])
    one, other = (to_shard(of, wanted, "north") for of in (table, kept(folder, table)))
    assert one.group.tolist() == other.group.tolist()
    assert trained(one, wanted) == trained(other, wanted)


def test_intervals_of_a_stored_table(folder):
    table = rows()
    lower = np.arange(1.0, table.num_rows + 1)
    upper = np.where(lower % 3 == 0, np.inf, 2 * lower)
    table = table.drop_columns(["y"]).append_column("y", [lower]).append_column("z", [upper])
    columns = {**terms().columns.model_dump(mode="json"), "label": "y", "label_upper_bound": "z"}
    columns |= {"positive": None}
    wanted = terms().changed(columns=columns, objective="survival:aft").with_parties(["north"])
    one, other = (to_shard(of, wanted, "north") for of in (table, kept(folder, table)))
    assert one.label.shape == (2, table.num_rows)
    assert np.array_equal(one.label, other.label)
    assert trained(one, wanted) == trained(other, wanted)


def test_faults_are_told_in_the_usual_words(folder):
    wanted = terms().with_parties(["north"])
    good = rows()
    name = wanted.columns.numeric[0]
    place = good.schema.get_field_index(name)
    with raised(Refused, "table-column-missing", naming=[repr(name)]):
        to_shard(kept(folder, good.drop_columns([name])), wanted, "north")
    values = good.column(name).to_pylist()
    values[16] = float("inf")
    bad = good.set_column(place, name, pa.array(values, pa.float64()))
    with pytest.raises(SchemaMismatch) as caught:
        to_shard(kept(folder, bad), wanted, "north")
    assert "its rows do not fit the terms" in caught.value.public
    assert "inf" not in caught.value.public
    assert f"column {name!r}" in str(caught.value)
    assert str(caught.value).endswith("it is inf in row 17")
    with raised(SchemaMismatch, "table-misfit"):
        to_shard(kept(folder, good.slice(0, 0)), wanted, "north")


def test_classes_are_those_of_a_table_in_memory(folder):
    schema = {"label": "ward", "numeric": ["age", "dose"], "classes": ["c", "a", "b"]}
    wanted = terms(["north"], objective="multi:softprob", columns=schema)
    one, other = to_shard(rows(), wanted, "north"), to_shard(kept(folder, rows()), wanted, "north")
    assert set(one.label.tolist()) == {0, 1, 2}
    assert one.label.tolist() == other.label[:].tolist()
    less = terms(["north"], objective="multi:softprob", columns={**schema, "classes": ["a", "b"]})
    row = rows().column("ward").to_pylist().index("c") + 1
    assert row < 11
    with raised(SchemaMismatch, "table-misfit", naming=[row]):
        to_shard(kept(folder, rows()), less, "north")


def test_levels_nobody_declared_are_counted_over_all_parts(folder):
    wanted = terms()
    ((name, levels),) = list(wanted.columns.categorical.items())[:1]
    table = rows()
    strange = ["strange" if row % 5 == 0 else levels[0] for row in range(table.num_rows)]
    table = table.set_column(table.schema.get_field_index(name), name, pa.array(strange))
    due = list(undeclared(table, wanted.columns))
    assert due[0][:2] == (name, "strange")
    assert list(undeclared(kept(folder, table), wanted.columns)) == due


def test_what_cannot_be_is_said_when_the_party_starts(folder):
    (folder / "north.csv").write_text("x,y\n1,0\n")
    with raised(ConfigError, "scratch-needs-parquet"):
        read_table(folder / "north.csv", folder / "scratch")
    parquet.write_table(rows(), folder / "north.parquet")
    with raised(ConfigError, "scratch-missing", naming=[f"scratch folder {folder / 'none'} does not exist"]):
        read_table(folder / "north.parquet", folder / "none")
    (folder / "broken.parquet").write_bytes(b"PAR1 nonsense")
    with raised(ConfigError, "source-unreadable"):
        read_table(folder / "broken.parquet", folder / "scratch")


def test_the_scratch_folder_counts_from_the_file_that_names_it(folder):
    path = folder / "north.toml"
    path.write_text(
        'party = "north"\naggregator = "localhost:7070"\ndata = "north.parquet"\nscratch = "scratch"\n'
    )
    assert read_party(path).scratch == folder / "scratch"


def test_a_label_of_words_is_one_or_zero_whatever_part_it_is_in(folder):
    table = rows()
    words = ["yes" if value else "no" for value in sorted(table.column("y").to_pylist())]
    table = table.set_column(table.schema.get_field_index("y"), "y", pa.array(words))
    wanted = terms().changed(columns={**terms().columns.model_dump(exclude_none=True), "positive": "yes"})
    due = [float(word == "yes") for word in words]
    assert to_shard(kept(folder, table), wanted, "north").label.tolist() == due
    words[-1] = "perhaps"
    table = table.set_column(table.schema.get_field_index("y"), "y", pa.array(words))
    with pytest.raises(SchemaMismatch) as caught:
        to_shard(kept(folder, table), wanted, "north")
    assert "label 'y' must have two values, but has more: 'no', 'yes', 'perhaps'" in str(caught.value)


def test_a_file_that_is_gone_in_the_middle_of_a_session_is_said_to_the_site_alone(folder):
    wanted = terms().with_parties(["north"])
    shard = to_shard(kept(folder, rows()), wanted, "north")
    (folder / "north.parquet").unlink()
    with raised(ConfigError, "table-file-changed") as caught:
        shard.columns[0][0:5]
    assert caught.value.public == "the table can no longer be read"
