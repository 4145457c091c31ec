"""The rows of a site: read when its process starts, and before a session if their files have changed."""

import asyncio
import os

import numpy as np
import pyarrow as pa
import pytest
from consortia import TWO, expected
from pyarrow import csv, parquet
from raised import raised
from sites import Log, consortium, in_time, rows, shared_out, terms, until, written

from fedboost.errors import Refused, SessionFailed
from fedboost.runtime.site import rows as site_rows
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.rows import SiteRows

READ, AGAIN = "rows read", "rows read again, because the file has changed"


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(site_rows, "SETTLED_SECONDS", 0.0)


def site(file, log, **values):
    return SiteRows(PartyConfig(party="north", aggregator="localhost:1", data=file, **values), log)


def ages(shard):
    return np.asarray(shard.columns[0][0 : shard.label.size])


@pytest.mark.parametrize("form", ["csv", "parquet", "parquet in place"])
def test_a_changed_file_is_read_again_and_no_other(tmp_path, form):
    file, log, write = tmp_path / f"rows.{form.split()[0]}", Log(), csv.write_csv
    scratch = tmp_path if form == "parquet in place" else None
    if form != "csv":
        write = parquet.write_table
    write(rows(100), file)
    known = site(file, log, scratch=scratch)
    known.say()
    assert log.named(READ) == [{"file": str(file), "rows": 100}]
    before = known.refresh()
    assert known.refresh() is before
    write(rows(120, seed=1), file)
    after = known.refresh()
    assert known.refresh() is after
    assert log.named(AGAIN) == [{"file": str(file), "rows": 120}]
    np.testing.assert_array_equal(
        ages(known.read(terms(TWO))), rows(120, seed=1)["age"].to_numpy().astype(np.float32)
    )
    if form != "parquet in place":  # the session that has the first rows keeps them
        np.testing.assert_array_equal(
            ages(known.read(terms(TWO), before)), rows(100)["age"].to_numpy().astype(np.float32)
        )


def test_a_file_of_as_many_bytes_and_the_same_time_is_another_if_it_was_replaced(tmp_path):
    (file,), log = written(tmp_path, {"north": rows()}).values(), Log()
    known, before = site(file, log), file.stat()
    (other,) = written(tmp_path, {"other": rows()}).values()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert other.stat().st_size == before.st_size
    other.replace(file)
    known.refresh()
    assert len(log.named(AGAIN)) == 1


def test_a_changed_file_of_names_is_read_again_too(tmp_path):
    (file,), log, names = written(tmp_path, {"north": rows()}).values(), Log(), tmp_path / "names.toml"
    text = '[names]\nage = "age"\ndose = "dose"\nward = "ward"\ny = "y"\n'
    names.write_text(text)
    known = site(file, log, names=names)
    assert known.names_under(terms(TWO)) == {}
    names.write_text(text.replace('ward = "ward"', 'ward = "site"'))
    known.refresh()
    assert known.names_under(terms(TWO)) == {"ward": "site"}


@pytest.mark.parametrize("how", ["gone", "no table"])
def test_a_file_that_can_no_longer_be_read_is_refused_until_it_can(tmp_path, how):
    (file,), log = written(tmp_path, {"north": rows()}).values(), Log()
    known, content = site(file, log), file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:100])
    for act in (known.refresh, lambda: known.hold(terms(TWO), b"", None, None, None)):
        with pytest.raises(Refused) as refusal:
            act()
        said = "party north: its table has changed and cannot be read; its own log says why"
        assert refusal.value.public == said
        assert str(file) in refusal.value.detail
    file.write_bytes(content)
    assert known.refresh().table.num_rows == 180
    assert known.faults(terms(TWO)) == []


def test_a_file_that_nobody_may_read_any_more_is_refused_too(tmp_path, monkeypatch):
    (file,), log = written(tmp_path, {"north": rows()}).values(), Log()
    known = site(file, log)

    def read(config):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(site_rows, "site_rows", read)
    file.touch()
    with raised(Refused, "table-unreadable"):
        known.refresh()


def test_a_file_that_changes_all_the_time_is_refused(tmp_path, monkeypatch):
    (file,), log = written(tmp_path, {"north": rows()}).values(), Log()
    known, read = site(file, log), site_rows.site_rows
    other = written(tmp_path / "..", {"other": rows()})["other"]

    def read_and_write(config):
        table = read(config)
        file.write_bytes(other.read_bytes())
        return table

    monkeypatch.setattr(site_rows, "site_rows", read_and_write)
    file.touch()
    with raised(Refused, "table-unreadable"):
        known.refresh()
    monkeypatch.setattr(site_rows, "site_rows", read)
    assert known.refresh().table.num_rows == 180


def test_a_check_is_about_the_names_and_types_of_columns(tmp_path):
    """And about no value: words among numbers, labels beyond the classes and weights below 0 are not told."""
    good, log = rows(), Log()
    words = good.set_column(0, "age", pa.array(["sixty"] * good.num_rows))
    dates = good.set_column(0, "age", pa.array([0] * good.num_rows, pa.date32()))
    (file,) = written(tmp_path, {"north": good}).values()
    known = site(file, log)
    classes = {"objective": "multi:softprob", "eval_metric": "mlogloss"}
    columns = {"label": "age", "weight": "dose", "categorical": {"ward": ["a"]}}
    for agreed in (terms(TWO), *(terms(TWO, columns=columns, num_class=n, **classes) for n in (2, 97, 98))):
        assert known.faults(agreed) == []
    parquet.write_table(words, file)
    known.refresh()
    assert known.faults(terms(TWO)) == []
    with raised(Refused, "table-misfit"):
        known.read(terms(TWO))
    parquet.write_table(dates, file)
    known.refresh()
    assert known.faults(terms(TWO)) == [
        "column 'age' has type date32[day], but the terms declare it numeric; convert it to numbers"
    ]
    lacks = terms(TWO, columns={"label": "y", "numeric": ["height"], "categorical": {"age": ["old"]}})
    missing, kind = known.faults(lacks)
    assert missing.startswith(
        "column 'height' is missing; if north does not have it, add it to columns.absent"
    )
    assert kind.startswith("column 'age' has type date32[day], but a categorical column must be")


async def test_the_next_session_has_the_rows_as_they_are_now(tmp_path):
    tables = shared_out(2)
    mended = {**tables, "south": shared_out(2, rows(seed=5))["south"]}
    async with consortium(tmp_path / "c", tables) as one:
        first = await one.train(terms(TWO))
        again = await one.train(terms(TWO, rounds=2))
        written(one.folder, {"south": mended["south"]})
        second = await one.train(terms(TWO))
        (one.folder / "south.parquet").unlink()
        with pytest.raises(SessionFailed) as failed:
            await one.train(terms(TWO))
        written(one.folder, {"south": mended["south"]})
        await one.train(terms(TWO))
        first, again, second, failed, log = first.model, again.model, second.model, str(failed.value), one.log
    assert first.to_bytes() == expected(tables)
    assert again.to_bytes() == expected(tables, rounds=2)
    assert second.to_bytes() == expected(mended) != first.to_bytes()
    said = "its table has changed and cannot be read; its own log says why"
    assert failed == f"party south left: {said}"
    assert [line["party"] for line in log.named(AGAIN)] == ["south"] * 2
    (left,) = log.named("left the session")
    assert left["reason"].endswith("no such file")


def test_a_session_under_way_keeps_its_rows_and_one_that_is_resumed_refuses_others(tmp_path):
    tables = shared_out(2)
    other = shared_out(2, rows(seed=5))["south"]
    long = terms(TWO, rounds=60)

    async def scenario(restarts):
        async with consortium(tmp_path / str(restarts), tables) as one:
            training = asyncio.create_task(one.train(long))
            await until(lambda: len(one.log.named("round")) > 6)
            written(one.folder, {"south": other})
            if restarts:
                await one.stop_party("south")
                one.start_party("south", other)
                with pytest.raises(SessionFailed, match="south left: it does not continue session"):
                    await training
                return one.log.named("left the session")
            return (await training).model

    assert in_time(scenario(False)).to_bytes() == expected(tables, rounds=60)
    (left,) = in_time(scenario(True))
    assert (
        "its rows differ from those that the session started with; restore them, or train again"
        in left["reason"]
    )
