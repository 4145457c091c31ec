"""Columns that the terms declare absent at some parties: values count as missing there."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from raised import raised

import fedboost as fb
from fedboost.errors import ConfigError, Refused
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.views.approval import summary
from fedboost.views.session import part_of

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")
PARTIES = ("north", "south", "east", "west", "centre")
FEATURES = {"numeric": ["age", "albumin"], "target_means": {"clinic": 64}, "categorical": {"sex": ["F", "M"]}}
ABSENT = {"west": ["albumin", "sex"], "south": ["clinic"]}
SMALL = {"rounds": 4, "max_depth": 4, "max_bin": 32, "parties": [*PARTIES], "min_count": 1}
NOISE = {"epsilon": 4.0, "delta": 1e-5}


def terms(absent=None, **settings):
    columns = {"label": "y", **FEATURES, **({} if absent is None else {"absent": absent})}
    return fb.Terms.read({"columns": columns, **SMALL, **settings})


def tables(rows=240):
    """Each party's rows, with all columns."""
    draw, out = np.random.default_rng(5), {}
    for party in PARTIES:
        age, albumin = draw.normal(60, 10, rows), draw.normal(40, 5, rows)
        sex = draw.choice(["F", "M", "?"], rows)
        clinic = draw.choice([f"c{number}" for number in range(20)], rows)
        y = (age / 10 - albumin / 8 + (sex == "F") + draw.normal(size=rows) > 1.5).astype(int)
        own = {"age": age, "albumin": albumin, "sex": sex, "clinic": clinic, "y": y}
        out[party] = pd.DataFrame(own)
    return out


def cleared(given):
    """The same tables, in which absent columns have no values."""
    out = {party: table.copy() for party, table in given.items()}
    for party, names in ABSENT.items():
        for name in names:
            out[party][name] = np.nan if name == "albumin" else None
    return out


def lacking(given):
    return {party: table.drop(columns=ABSENT.get(party, [])) for party, table in given.items()}


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("settings", [{}, {"vote_top_k": 2}, {"monotone_constraints": {"albumin": -1}}])
def test_the_model_is_that_of_tables_with_missing_values(protection, settings):
    settings = {"protection": protection, **settings}
    expected = fb.simulate(terms(**settings), cleared(tables())).model
    for given in (tables(), lacking(tables())):
        assert fb.simulate(terms(ABSENT, **settings), given).model.booster == expected.booster
    used = {name for name, gain in expected.importance().items() if gain}
    assert "albumin" in used


def test_the_model_with_noise_is_trained():
    """The bound on a row is unchanged, since a missing value has a bin like others."""
    absent = {"west": ["albumin"]}
    own = {
        "columns": {
            "label": "y",
            "numeric": ["age", "albumin"],
            "ranges": {"age": [0, 120], "albumin": [0, 90]},
        }
    }
    noisy = {**own, "parties": [*PARTIES], "noise": NOISE}
    agreed = fb.Terms.read({**noisy, "columns": {**own["columns"], "absent": absent}})
    assert agreed.plan == fb.Terms.read(noisy).plan
    given = {
        party: table.drop(columns=["albumin"]) if party == "west" else table
        for party, table in tables().items()
    }
    assert len(fb.simulate(agreed, given).model.booster.trees) > 1


def test_rows_in_a_file_are_read_in_place(tmp_path):
    given = lacking(tables())["west"]
    parquet.write_table(pa.Table.from_pandas(given), tmp_path / "west.parquet", row_group_size=50)
    for scratch in (None, tmp_path):
        table = read_table(tmp_path / "west.parquet", scratch)
        shard = to_shard(table, terms(ABSENT), "west")
        missing = [bool(np.isnan(column[:]).all()) for column in shard.columns]
        assert missing == [False, True, False, True]


def test_a_party_that_lacks_another_column_is_refused_with_the_way_out():
    given = lacking(tables())
    with raised(Refused, "table-column-missing", naming=["north", "'albumin'", "columns.absent"]):
        fb.simulate(terms(ABSENT), {**given, "north": given["north"].drop(columns=["albumin"])})


@pytest.mark.parametrize(
    ("absent", "settings", "says"),
    [
        ({"wets": ["age"]}, {}, "'wets' is not one of the parties (did you mean west?)"),
        ({"west": ["agee"]}, {}, "'agee' of party 'west', which is not a feature (did you mean age?)"),
        ({"west": ["y"]}, {}, "which is the label: every party must have it"),
        ({"west": ["age", "age"]}, {}, "a column of party 'west' more than once"),
        ({name: ["age"] for name in PARTIES}, {"protection": "plain"}, "leaves 0 of 5 parties"),
        (
            {name: ["age"] for name in PARTIES[:3]},
            {},
            "leaves 2 of 5 parties with a column, but protection masked needs 3",
        ),
        ({"west": ["age"]}, {"on_loss": "shrink"}, 'columns.absent with on_loss = "shrink"'),
        (
            {"west": ["age"]},
            {"keyholder": "west", "keyholder_rows": False, "protection": "paillier"},
            "has no rows",
        ),
        (
            {"west": ["age"]},
            {"label_holder": "west", "protection": "plain", "rows": "in_order"},
            "columns.held",
        ),
    ],
)
def test_absences_that_are_refused(absent, settings, says):
    own = {"columns": {"label": "y", "numeric": ["age", "albumin"], "absent": absent}}
    with raised(ConfigError, "settings-invalid", naming=[says]):
        fb.Terms.read({**SMALL, **own, **settings})


def test_what_few_have_may_be_used_where_nothing_is_hidden():
    few = {name: ["age"] for name in PARTIES[:4]}
    assert terms(few, protection="plain").columns.absent["north"] == ("age",)
    assert terms({name: ["age"] for name in PARTIES[:2]}).columns.absent


def test_terms_without_it_have_the_digest_that_they_had():
    assert terms({}).digest == terms().digest
    assert "absent" not in terms({}).canonical()


def test_an_approval_and_a_report_show_who_lacks_what():
    told = " ".join(summary(terms(ABSENT)).split())
    assert "absent west lacks albumin, sex; south lacks clinic; these values count as missing" in told
    assert part_of(terms(ABSENT), "west") == "rows without albumin, sex"
    assert part_of(terms(ABSENT), "north") == "rows"


def test_models_are_measured_on_tables_of_any_names():
    model = fb.simulate(terms(ABSENT), lacking(tables())).model
    whole = fb.evaluate(model, {"elsewhere": tables()["north"]}, rows="all")
    assert whole.rows == 240
    assert fb.evaluate(model, lacking(tables()), rows="all").rows == 1200


def test_why_sites_count_who_lacks_the_same_columns():
    """With masks and an honest aggregator, a split on missing values is one on the only party that lacks a
    column: the sums of a node are its own."""
    given, columns = tables(), {"label": "y", "numeric": ["age", "albumin"], "absent": {"east": ["albumin"]}}
    for party, table in given.items():
        table["y"] = int(party == "east")
    settings = {**SMALL, "rounds": 1, "max_depth": 1, "objective": "reg:squarederror"}
    agreed = fb.Terms.read({"columns": columns, **settings, "protection": "masked"})
    (tree,) = fb.simulate(agreed, given).model.booster.trees
    assert len(given["east"]) in tree.cover
    assert agreed.columns.group_of("east", agreed.holders, True) == 1
