"""A site whose table has other names, units and levels than the terms, or lacks columns."""

import sqlite3

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from raised import raised
from sites import NAMES, Log, consortium, fedboost, in_time, rows, shared_out, terms

import fedboost as fb
from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import dense_of
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.rows import SiteRows, site_rows
from fedboost.runtime.tasks import terms_to_toml

SITE = 'party = "west"\naggregator = "localhost:1"\n'
MAP = """
[columns.age]
name = "AGE_M"
factor = 0.08333333333333333
[columns.dose]
factor = 10
offset = -3.5
[columns.ward]
name = "station"
levels = { A = "a", 2 = "b", "b*" = "b" }
"""
MAPS = {
    "age": {"name": "AGE_M", "factor": 0.08333333333333333},
    "dose": {"factor": 10, "offset": -3.5},
    "ward": {"name": "station", "levels": {"A": "a", "2": "b", "b*": "b"}},
}
WARDS = {"a": "A", "b": "b*", "c": "c"}
FIVE = NAMES[:5]


def foreign(table):
    """The same rows as another hospital would have them."""
    ward = pa.array([WARDS[each] for each in table["ward"].to_pylist()])
    age = pa.array(np.round(table["age"].to_numpy() * 12))
    return pa.table({"AGE_M": age, "dose": table["dose"], "station": ward, "y": table["y"]})


def harmonised(table):
    """What the map makes of a foreign table, by numpy."""
    wards = {"A": "a", "2": "b", "b*": "b"}
    dose = pa.array(table["dose"].to_numpy() * 10 - 3.5, from_pandas=True)
    return pa.table(
        {
            "age": table["AGE_M"].to_numpy() * 0.08333333333333333,
            "dose": dose,
            "ward": [wards.get(text, text) for text in table["station"].to_pylist()],
            "y": table["y"],
        }
    )


def site(folder, table=None, form="csv", columns=MAP):
    """A site's file over the table in this form."""
    table, data = foreign(rows()) if table is None else table, f"rows.{form}"
    head = f'{SITE}data = "{data}"\n'
    if form == "parquet":
        parquet.write_table(table, folder / data, row_group_size=50)
        head += 'scratch = "."\n'
    elif form == "sqlite":
        with sqlite3.connect(folder / data) as database:
            database.execute("create table t (AGE_M real, dose real, station text, y integer)")
            values = zip(*(column.to_pylist() for column in table.columns), strict=True)
            database.executemany("insert into t values (?, ?, ?, ?)", values)
        head = f'{SITE}data = "sqlite:///{folder / data}"\nquery = "select * from t"\n'
    else:
        csv.write_csv(table, folder / data)
    (folder / "party.toml").write_text(head + columns)
    return read_party(folder / "party.toml")


@pytest.mark.parametrize("form", ["csv", "parquet", "sqlite"])
def test_mapped_rows_are_those_of_a_table_harmonised_by_hand(tmp_path, form):
    if form == "sqlite":
        pytest.importorskip("adbc_driver_sqlite")
    agreed = terms(FIVE)
    shard = SiteRows(site(tmp_path, form=form), Log()).read(agreed)
    wanted = to_shard(harmonised(foreign(rows())), agreed, "west")
    for column, expected in zip(shard.columns, wanted.columns, strict=True):
        np.testing.assert_array_equal(column[:], expected[:])
    assert (shard.label == wanted.label).all()
    key = bytes(32)  # the hash is of what is read
    assert shard.hashed(key, shard.columns) == wanted.hashed(key, wanted.columns)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("has", [True, False])
def test_a_declared_absence_counts_as_missing_even_if_the_column_is_there(tmp_path, form, has):
    table = foreign(rows()) if has else foreign(rows()).drop_columns(["AGE_M", "station"])
    config = site(tmp_path, table, form, MAP if has else "[columns.dose]\nfactor = 10\noffset = -3.5\n")
    columns = {**terms().columns.model_dump(exclude_unset=True), "absent": {"west": ["age", "ward"]}}
    log = Log()
    known = SiteRows(config, log)
    agreed = terms(FIVE, columns=columns)
    assert known.faults(agreed) == []
    shard = known.read(agreed)
    age, dose, ward = (column[:] for column in shard.columns)
    assert np.isnan(age).all()
    assert np.isnan(ward).all()
    np.testing.assert_array_equal(dose, to_shard(harmonised(foreign(rows())), terms(FIVE), "west").columns[1])
    assert not log.named("categories that the terms do not declare count as missing")


def test_a_point_among_decimal_commas_is_refused_before_it_is_converted(tmp_path):
    site(tmp_path)
    (tmp_path / "rows.csv").write_text("AGE_M;dose;station;y\n600;1,5;A;0\n500;1.500;A;1\n")
    text = (tmp_path / "party.toml").read_text() + '\n[read]\nseparator = ";"\ndecimal = ","\n'
    (tmp_path / "party.toml").write_text(text)
    with raised(ConfigError, "table-value-invalid", naming=["party.toml", "decimal comma", "row 2"]):
        site_rows(read_party(tmp_path / "party.toml"))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("[columns.age]\nfactor = 0\n", "factor must not be 0"),
        ("[columns.age]\nfactor = nan\n", "columns.age.factor: input should be a finite number"),
        ("[columns.age]\noffset = inf\n", "columns.age.offset: input should be a finite number"),
        ('[columns.age]\nfactor = "2"\n', "columns.age.factor: input should be a valid number"),
        ("[columns.age]\nfactor = true\n", "columns.age.factor: input should be a valid number"),
        ("[columns.age]\nfaktor = 2\n", "did you mean factor?"),
        ('[columns.age]\nfactor = 2\nlevels = { a = "b" }\n', "remove one of them"),
        ('[columns.age]\nname = "x"\n[columns.dose]\nname = "x"\n', "read column 'x' of the table: keep one"),
        ('[columns.age]\nname = "dose"\n[columns.dose]\nfactor = 2\n', "read column 'dose' of the table"),
        ('names = "names.toml"\n[columns.age]\nfactor = 2\n', "keep one"),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused(tmp_path, columns, says):
    with raised(ConfigError, "settings-invalid", naming=["party.toml", says]):
        site(tmp_path, columns=columns)


def test_a_map_of_a_column_that_the_table_lacks_names_the_nearest(tmp_path):
    config = site(tmp_path, columns='[columns.age]\nname = "AGEM"\n')
    with raised(ConfigError, "table-column-missing", naming=["party.toml", "did you mean AGE_M?"]):
        site_rows(config)


def test_a_map_of_a_column_that_the_terms_do_not_name_is_found_by_the_nearest(tmp_path):
    with raised(ConfigError, "table-column-missing", naming=["'dosis'", "did you mean dose?"]):
        site_rows(site(tmp_path, columns="[columns.dosis]\nfactor = 2\n"))
    known = SiteRows(site(tmp_path, columns='[columns.agee]\nname = "AGE_M"\n'), Log())
    with raised(Refused, "table-column-missing", naming=["'age'", "columns.absent", "did you mean agee?"]):
        known.read(terms(FIVE))


def test_a_sites_file_is_not_taken_for_terms(tmp_path, monkeypatch):
    site(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (
        "party.toml is a site's file; specify terms instead"
        in fedboost("simulate", "party.toml", "--data", "rows.csv").err
    )


def test_a_column_with_another_name_has_that_name_alone(tmp_path):
    names = dense_of(site_rows(site(tmp_path)).table).column_names
    assert sorted(names) == ["age", "dose", "ward", "y"]


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ("[columns.ward]\nname = 'station'\nfactor = 2\n", "ward"),
        ('[columns.dose]\nlevels = { low = "1" }\n', "dose"),
    ],
)
def test_a_map_must_fit_the_kind_of_its_column_in_the_terms(tmp_path, columns, column):
    table = foreign(rows()) if column == "dose" else foreign(rows()).set_column(2, "station", [[1] * 180])
    known = SiteRows(site(tmp_path, table, columns=columns), Log())
    with raised(Refused, "site-columns-unfit", naming=[f"column '{column}'"]) as caught:
        known.read(terms(FIVE))
    (public,) = known.faults(terms(FIVE))
    assert column not in public
    assert public == caught.value.public


def test_infinite_after_the_conversion_is_refused_like_any_other(tmp_path):
    known = SiteRows(
        site(tmp_path, columns="[columns.dose]\nfactor = 1e300\n[columns.age]\nname='AGE_M'\n"), Log()
    )
    with raised(SchemaMismatch, "table-misfit", naming=["dose"]):
        known.read(terms(FIVE, columns={"label": "y", "numeric": ["age", "dose"]}))


# ---- Whole sessions -----------------------------------------------------------------------------------


def test_sites_with_other_names_units_and_columns_train_the_model_of_harmonised_tables(tmp_path):
    tables = shared_out(5, rows(900))
    known = foreign(tables["west"])
    harmonised_tables = {**tables, "west": harmonised(known)}
    columns = {
        **terms().columns.model_dump(exclude_unset=True),
        "absent": {"centre": ["dose"], "south": ["ward"]},
    }
    agreed = terms(FIVE, columns=columns, rounds=4)
    lacks = {
        "centre": tables["centre"].drop_columns(["dose"]),
        "south": tables["south"].drop_columns(["ward"]),
    }

    async def train():
        async with consortium(tmp_path, {}) as one:
            for name, table in {**tables, **lacks, "west": known}.items():
                one.start_party(name, table, state=name, columns=MAPS if name == "west" else {})
            return (await one.train(agreed)).model

    missing = dict(harmonised_tables)
    for name, column in (("centre", "dose"), ("south", "ward")):
        index = missing[name].column_names.index(column)
        missing[name] = missing[name].set_column(index, column, pa.nulls(len(missing[name]), pa.float64()))
    expected = fb.simulate(terms(FIVE, rounds=4), missing).model
    assert in_time(train()).booster == expected.booster
    assert fb.simulate(agreed, harmonised_tables).model.booster == expected.booster


def test_a_description_counts_absent_columns_as_missing():
    tables = shared_out(3, rows(600))
    lacks = {**tables, "east": tables["east"].drop_columns(["dose"])}
    columns = {**terms().columns.model_dump(exclude_unset=True), "absent": {"east": ["dose"]}}
    told = fb.describe(terms(columns=columns), lacks)
    index = tables["east"].column_names.index("dose")
    nulls = pa.nulls(len(tables["east"]), pa.float64())
    expected = fb.describe(terms(), {**tables, "east": tables["east"].set_column(index, "dose", nulls)})
    assert told.columns == expected.columns
    model = fb.simulate(terms(columns=columns), lacks).model
    plain = fb.evaluate(model, lacks, rows="all")
    assert (
        plain.metrics
        == fb.evaluate(
            model, {**tables, "east": tables["east"].set_column(index, "dose", nulls)}, rows="all"
        ).metrics
    )


# ---- Commands -----------------------------------------------------------------------------------------


def write(folder, monkeypatch, **absent):
    monkeypatch.chdir(folder)
    config = site(folder)
    columns = {**terms().columns.model_dump(exclude_unset=True), "absent": absent}
    agreed = terms(FIVE, columns=columns, protection="masked")
    (folder / "terms.toml").write_text(terms_to_toml(agreed))
    return config, agreed


def test_a_check_lists_levels_that_are_mapped_to_nothing(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, west=["dose"])
    table = foreign(rows()).set_column(2, "station", [["x", "y", "Ä", *["A"] * 177]])
    csv.write_csv(table, "rows.csv")
    done = fedboost("check", "--config", "party.toml", "--terms", "terms.toml")
    assert done.code == 1, done.err
    out = " ".join(done.out.split())
    assert "'x' (1), 'y' (1), 'Ä' (1)" in out
    assert "map it to a level of the terms under [columns]" in out
    assert "the terms declare the column absent at this site" in out


def test_an_approval_shows_the_map_and_who_lacks_what(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, west=["dose"])
    done = fedboost("approve", "terms.toml", "--config", "party.toml", "--yes")
    assert done.code == 0, done.err
    out = " ".join(done.out.split())
    assert "west lacks dose" in out
    assert 'age is AGE_M * 0.0833333; ward is station (a A, b 2, b "b*")' in out
    assert "columns.absent, some sums are over only 1 of 5 parties, this one included" in out


def test_a_site_predicts_from_its_own_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = foreign(rows(seed=3))
    columns = {**terms().columns.model_dump(exclude_unset=True), "absent": {"west": ["dose"]}}
    tables = {name: rows(seed=number) for number, name in enumerate(FIVE)}
    model = fb.simulate(terms(FIVE, columns=columns), tables).model
    model.save("model.json")
    site(
        tmp_path,
        known.drop_columns(["dose"]),
        columns=MAP.replace("[columns.dose]\nfactor = 10\noffset = -3.5\n", ""),
    )
    done = fedboost("predict", "model.json", "rows.csv", "--party", "party.toml", "--keep", "AGE_M")
    assert done.code == 0, done.err
    lines = [line.split(",") for line in done.out.splitlines()]
    assert lines[0] == ["AGE_M", "prediction"]
    nulls = pa.nulls(len(known), pa.float64())
    expected = model.predict(harmonised(known).set_column(1, "dose", nulls))
    assert [float(line[1]) for line in lines[1:]] == expected.tolist()
