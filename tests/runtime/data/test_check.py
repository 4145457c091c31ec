"""What a check of a table costs by columns and rows, and what a simulation says after a look at few rows."""

import numpy as np
import pyarrow as pa
import pytest
from sites import terms

import fedboost as fb
from fedboost.results.check import KINDS
from fedboost.runtime.data import check

ROWS = 60_000


class Asked:
    """A table that counts how often it was asked for all its names."""

    def __init__(self, table):
        self.table, self.times = table, 0

    @property
    def column_names(self):
        self.times += 1
        return self.table.column_names

    def __getattr__(self, name):
        return getattr(self.table, name)


def test_the_names_of_a_table_are_listed_as_often_whatever_their_number():
    def listed(columns):
        names = [f"f{number}" for number in range(columns)]
        data = Asked(pa.table({name: [0.5, 1.5] for name in names} | {"y": [0, 1]}))
        odd = check.of_terms(data, terms(columns={"label": "y", "numeric": [*names, "gone"]}))
        assert ("absent", "gone") in {(oddity.kind, oddity.column) for oddity in odd}
        return data.times

    assert listed(100) == listed(10)


def test_a_check_has_a_sentence_and_names_kinds_that_were_looked_for_before():
    before = set()
    for row in check.CHECKS:
        assert row.kind in KINDS
        assert {*row.unless} <= before
        before.add(row.kind)


def simulated(tables, **columns):
    """What a simulation warns of: by column, the lines."""
    names = [name for name in next(iter(tables.values())).column_names if name not in ("y", *columns)]
    schema = {"label": "y", "numeric": names, "categorical": columns}
    with pytest.warns(fb.TableWarning) as seen:
        fb.simulate(terms(columns=schema, rounds=1), tables)
    said = {}
    for warning in seen:
        where, column, line = str(warning.message).split(": ", 2)
        said.setdefault(column, []).append((where, line))
    return said


def shared(table, parties):
    """Equal shares of a table."""
    size = table.num_rows // parties
    return {f"p{number}": table.slice(number * size, size) for number in range(parties)}


def test_a_simulation_looks_at_a_sample_and_says_so():
    draw = np.random.default_rng(0)
    label = (draw.random(ROWS) < 0.005).astype(int)
    noise = draw.normal(size=ROWS)
    table = pa.table(
        {
            "amount": draw.integers(0, 10**7, ROWS),
            "sorted": np.sort(draw.integers(0, 5_000, ROWS)),
            "number": draw.permutation(ROWS),
            "told": label + noise / 100,
            "helps": label + noise / 2,
            "word": np.where(label, "ill", "well"),
            "ward": draw.choice(["a", "b", "c"], ROWS),
            "y": label,
        }
    )
    said = simulated(shared(table, 4), word=["ill", "well"], ward=["a", "b", "c"])
    assert set(said) == {"number", "told", "word"}
    assert {where for lines in said.values() for where, _ in lines} == {
        "party p0, in a sample of its 15,000 rows"
    }
    assert "5,000 distinct values in 5,000 rows" in said["number"][0][1]
    assert said["told"][0][1].startswith(
        "the column reveals the label: a single split on it has an AUC of 1.000"
    )


def test_the_rows_that_a_simulation_looks_at_are_few_however_many_there_are(monkeypatch):
    seen, ranked = [], []
    look, rank = check.checked, check.one_split_auc
    monkeypatch.setattr(
        check, "checked", lambda column, *rest: seen.append(column.rows) or look(column, *rest)
    )
    monkeypatch.setattr(
        check, "one_split_auc", lambda column, label: ranked.append(column.size) or rank(column, label)
    )
    draw = np.random.default_rng(0)
    table = pa.table(
        {"a": draw.normal(size=ROWS), "b": draw.normal(size=ROWS), "y": draw.integers(0, 2, ROWS)}
    )
    tables = shared(table, 4)
    tables["P0"] = tables.pop("p3")  # a warning
    with pytest.warns(fb.TableWarning, match="differ only in whitespace or case"):
        fb.simulate(terms(columns={"label": "y", "numeric": ["a", "b"]}, rounds=1), tables)
    assert sum(seen) == 2 * check.MAX_WATCHED_ROWS
    assert set(ranked) == {check.FEW_ROWS}
    assert len(ranked) == 2 * 4


def test_a_column_of_categories_that_tells_little_is_known_by_few_rows(monkeypatch):
    rows = []
    told = check._told
    monkeypatch.setattr(check, "_told", lambda codes, *rest: rows.append(codes.size) or told(codes, *rest))
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, ROWS)
    table = pa.table(
        {
            "x": draw.normal(size=ROWS),
            "little": draw.choice(["a", "b"], ROWS),
            "much": np.where(label, draw.choice(["a", "b"], ROWS), "c"),
            "y": label,
        }
    )
    said = simulated({"all": table}, little=["a", "b"], much=["a", "b", "c"])
    assert set(said) == {"much"}
    assert sorted(rows) == [check.FEW_ROWS, check.FEW_ROWS, 50_000]


@pytest.mark.parametrize("kind", ["amount", "classes"])
def test_amounts_and_classes_are_told_in_a_sample_too(kind):
    draw = np.random.default_rng(0)
    label = draw.normal(size=ROWS) if kind == "amount" else draw.integers(0, 4, ROWS)
    settings = {"objective": "reg:squarederror"}
    if kind == "classes":
        settings = {"objective": "multi:softprob", "num_class": 4}
    noise = draw.normal(size=ROWS)
    table = pa.table({"told": label + noise / 1000, "helps": label + noise / 2, "y": label})
    agreed = terms(columns={"label": "y", "numeric": ["told", "helps"]}, **settings)
    with pytest.warns(fb.TableWarning) as seen:
        fb.simulate(agreed, shared(table, 2))
    (line,) = [str(warning.message) for warning in seen]
    assert line.startswith("party p0, in a sample of its 30,000 rows: told: the column reveals the label")
