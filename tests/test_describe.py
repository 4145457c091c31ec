"""`describe`: what an analyst is told of the rows of all parties, and nothing of few of them."""

import asyncio
import itertools
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised
from sites import bundles_of, consortium, rows, shared_out, terms

import fedboost as fb
from fedboost.boosting.programs.rounding import part, possible
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.boosting.queries.columns import QuantileQuery, SummaryQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.gbdt.cut_points import Grids
from fedboost.runtime.site.backup import init_memory
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.policy import Policy
from fedboost.terms.hiding import SUMMARY
from fedboost.terms.tasks import MISSING, SHARES, UNDECLARED, terms_to_describe
from fedboost.views.as_text import text as blocks_of
from fedboost.views.results import description as view

COLUMNS = {"label": "y", "numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c"]}}


def with_undeclared(table):
    """The table with a ward that terms do not declare, and one without a ward, in some rows."""
    wards = table["ward"].to_pylist()
    wards = ["d" if place % 9 == 0 else None if place % 11 == 0 else ward for place, ward in enumerate(wards)]
    return table.set_column(table.schema.get_field_index("ward"), "ward", pa.array(wards))


@pytest.mark.parametrize("parties", [1, 3, 7])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_it_is_that_of_the_pooled_table(parties, protection):
    if protection == "masked" and parties < 3:
        pytest.skip("masks hide a party among three")
    table = with_undeclared(rows(900))
    shards = [table.filter(pa.array(np.arange(900) % 7 % parties == number)) for number in range(parties)]
    known = fb.describe(terms(protection=protection, max_bin=256), shards, min_count=1)
    pooled = table.to_pandas()
    age, dose, ward = known.summary["columns"]
    assert known.rows == len(pooled)
    assert dose["missing"] == pooled.dose.isna().sum()
    assert ward["missing"] == pooled.ward.isna().sum()
    counts = pooled.ward.value_counts()
    assert ward["levels"] == {level: counts[level] for level in "abc"}
    assert ward["undeclared"] == counts["d"]
    assert known.summary["label"]["levels"] == {
        str(value): count for value, count in pooled.y.value_counts().items()
    }
    for column, values in ((age, pooled.age), (dose, pooled.dose)):
        values = values.astype(np.float32)
        for share in SHARES:
            low, high = column["quantiles"][f"{share:g}"]
            assert low <= values.quantile(share, interpolation="lower") <= high
            assert ((values >= low) & (values <= high)).mean() < 1 / 256


def test_a_label_that_is_a_number_has_quantiles_and_classes_have_counts():
    table = rows(600)
    numbers = table.set_column(table.schema.get_field_index("y"), "y", table["age"])
    known = fb.describe(terms(objective="reg:squarederror"), shared_out(2, numbers))
    low, high = known.summary["label"]["quantiles"]["0.5"]
    assert low <= np.quantile(table["age"].to_numpy().astype(np.float32), 0.5, method="lower") <= high
    named = {"objective": "multi:softprob", "columns": {**COLUMNS, "label": "ward", "classes": list("cab")}}
    named["columns"].pop("categorical")
    known = fb.describe(terms(**named), shared_out(2, table), min_count=1)
    assert known.summary["label"]["levels"] == table.to_pandas().ward.value_counts()[list("cab")].to_dict()


async def test_over_grpc_it_is_the_same_and_each_party_signs_it(tmp_path):
    tables, agreed = shared_out(3, with_undeclared(rows(900))), terms(protection="masked")
    agreed = agreed.with_parties(tables)
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
        known = await asyncio.to_thread(one.analyst.describe, agreed)
    assert known.summary == fb.describe(agreed, tables).summary
    assert known.signed_by == agreed.parties
    assert all(sent > 0 for sent, _ in known.traffic.values())


def test_counts_are_to_the_nearest_unit():
    table = rows(900)
    wards = ["a"] * 5 + ["b"] * 300 + ["c"] * 593 + [None] * 2
    table = table.set_column(table.schema.get_field_index("ward"), "ward", pa.array(wards))
    dose = [None] * 4 + [1.0] * 896
    table = table.set_column(table.schema.get_field_index("dose"), "dose", pa.array(dose))
    age, dose, ward = fb.describe(terms(), shared_out(3, table)).summary["columns"]
    assert ward["levels"] == {"a": 10, "b": 300, "c": 590}
    assert (ward["missing"], dose["missing"]) == (0, 0)
    assert age["quantiles"]["0.01"] is None
    assert age["quantiles"]["0.05"] is not None
    with pytest.raises(SessionFailed, match="the parties have fewer rows in total than min_count = 901"):
        fb.describe(terms(), shared_out(3, table), min_count=901)


@pytest.mark.parametrize("few", [0, 4, 5, 9])
def test_levels_are_told_alike_whatever_else_is_declared(few):
    """So that no count of few rows follows from sessions that declare other levels."""
    wards = ["a"] * few + ["b"] * 300 + ["c"] * (600 - few)
    table = rows(900).drop_columns(["ward"]).append_column("ward", pa.array(wards))
    told = {"a": 0 if few < 5 else 10, "b": 300, "c": 600 if few < 6 else 590}
    for levels in ("abc", "ac", "ab", "cb", "a", "b", "c"):
        agreed = terms(columns={**COLUMNS, "categorical": {"ward": [*levels]}})
        (*_, ward) = fb.describe(agreed, shared_out(3, table)).summary["columns"]
        assert ward["levels"] == {level: told[level] for level in levels}
        assert ward["undeclared"] % 10 == 0


@given(st.integers(1, 60), st.sampled_from([1, 2, 5, 10, 20, 50, 100]), st.data())
def test_of_a_part_at_least_half_a_unit_of_counts_is_possible(units, unit, data):
    total = unit * units + data.draw(st.integers(0, unit - 1))
    count = data.draw(st.integers(0, total))
    told = part(count, total, unit)
    fewest, most = possible(told, total, unit)
    alike = [each for each in range(total + 1) if part(each, total, unit) == told]
    assert alike == [*range(fewest, most + 1)]
    assert len(alike) >= unit / 2


@pytest.mark.parametrize("count", [200, 201, 208, 209])
def test_quantiles_do_not_tell_how_many_rows_have_no_value(count):
    """The quantile at 5 % needs 200 values."""
    told = []
    for missing in (0, 1, 4):
        table = rows(count)
        dose = pa.array([None] * missing + [*map(float, range(count - missing))], pa.float64())
        table = table.set_column(table.schema.get_field_index("dose"), "dose", dose)
        known = fb.describe(terms(columns={"label": "y", "numeric": ["dose"]}), shared_out(2, table))
        told.append([share for share, value in known.summary["columns"][0]["quantiles"].items() if value])
    assert told[0] == told[1] == told[2]


def many_numbers(seed):
    """Columns whose quantiles are hard to tell: heavy tails, ties, outliers, two units, missing values."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(60, 700))
    bell = draw.normal(size=count)
    columns = {
        "bell": bell,
        "tails": np.exp(3 * bell),
        "years": np.round(40 + 12 * bell),
        "zeros": np.where(draw.random(count) < 0.6, 0.0, np.exp(bell)),
        "near_zeros": np.where(np.arange(count) < draw.integers(1, 25), bell, 0.0),
        "flag": (draw.random(count) < draw.random()).astype(float),
        "units": np.where(draw.random(count) < 0.3, 365.25, 1.0) * draw.uniform(20, 80, count),
        "dense": 1e6 + draw.random(count),
    }
    for number, values in enumerate(columns.values()):
        values[draw.random(count) < (0.0, 0.01, 0.3)[(number + seed) % 3]] = np.nan
    columns["y"] = (bell > 0).astype(float)
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})


def ends_of(column):
    """The ends that are told of a column, in order, as the numbers from which on values lie beyond them."""
    told = [*column["quantiles"].values(), column["gap"]]
    lows = {np.float32(interval[0]) for interval in told if interval}
    highs = {np.nextafter(np.float32(interval[1]), np.float32(np.inf)) for interval in told if interval}
    return sorted(lows | highs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_two_ends_of_several_descriptions_have_few_rows_between_them(seed):
    """The sessions differ in max_bin and min_count; the least min_count is that of a policy."""
    table, least = many_numbers(seed), 7
    names = [name for name in table.column_names if name != "y"]
    agreed = {"columns": {"label": "y", "numeric": names}}
    sessions = [
        fb.describe(terms(**agreed, max_bin=max_bin), shared_out(2, table), min_count=min_count)
        for max_bin, min_count in (
            (256, least),
            (256, 8),
            (200, 12),
            (64, least),
            (16, 10),
            (3, least),
            (2, 9),
        )
    ]
    for place, name in enumerate(names):
        values = table[name].to_pandas().dropna().astype(np.float32)
        ends = sorted({end for known in sessions for end in ends_of(known.summary["columns"][place])})
        for low, high in itertools.combinations(ends, 2):
            between = ((values >= low) & (values < high)).sum()
            assert between == 0 or between >= least, (name, low, high)
        for known in sessions:
            for share, interval in known.summary["columns"][place]["quantiles"].items():
                if interval is not None:
                    low, high = interval
                    assert low <= values.quantile(float(share), interpolation="lower") <= high
                    assert ((values >= low) & (values <= high)).sum() >= known.min_count


def test_it_says_what_to_change():
    table = with_undeclared(rows(900))
    age = table["age"].to_numpy().copy()
    age[::3] *= 365.25
    dose = pa.array([None] * 600 + [2.0] * 300, pa.float64())
    for name, values in (("age", pa.array(age)), ("dose", dose)):
        table = table.set_column(table.schema.get_field_index(name), name, values)
    agreed = terms(columns={**COLUMNS, "categorical": {"ward": ["a", "b", "c", "ICU"]}})
    known = fb.describe(agreed, shared_out(3, table))
    advice = "\n".join(known.advice)
    assert "column dose is missing in 67% of the rows" in advice
    assert "column dose has the same value in all rows that have a value" in advice
    assert "column ward has undeclared levels in about 100 rows" in advice
    assert "column ward has ICU in fewer than 5 rows" in advice
    assert "column age has values up to about" in advice
    assert "check that all sites use the same unit" in advice
    assert fb.describe(terms(), shared_out(3, rows(900))).advice == ()


@pytest.mark.parametrize("objective", ["binary:logistic", "survival:aft"])
def test_columns_without_values_and_labels_that_are_intervals(objective):
    columns = {"label": "y", "numeric": ["age", "dose"]}
    if objective == "survival:aft":
        columns["label_upper_bound"] = "end"
    table = rows(300)
    table = table.set_column(table.schema.get_field_index("dose"), "dose", pa.nulls(300, pa.float64()))
    table = table.append_column("end", table["age"])
    known = fb.describe(terms(columns=columns, objective=objective), shared_out(2, table))
    assert known.summary["columns"][1]["missing"] == 300
    assert known.summary["columns"][1]["quantiles"] == dict.fromkeys(f"{share:g}" for share in SHARES)
    assert known.advice == ("column dose has values in fewer than 10 rows: remove it from the terms",)
    assert ("levels" in known.summary["label"]) is (objective == "binary:logistic")


def test_terms_of_a_training_are_described_by_what_they_say_of_columns():
    agreed = terms(["north", "south"], rounds=7, seed=3, min_count=25, scale_pos_weight=2.0)
    own = terms_to_describe(agreed)
    assert (own.task.name, own.session.program, own.evaluation.min_count) == ("describe", "describe", 25)
    assert own == terms_to_describe(agreed.changed(rounds=9, max_depth=2))
    assert terms_to_describe(own) == own
    assert terms_to_describe(own, 30).evaluation.min_count == 30


def test_bad_input():
    agreed = terms(program="describe")
    with raised(ConfigError, "terms-not-training"):
        fb.simulate(agreed, shared_out(2))
    with pytest.raises(ConfigError, match="min_count"):
        fb.describe(terms(), shared_out(2), min_count=0)
    columns = {"label": "y", "numeric": ["age", "dose"], "held": {"south": ["dose"]}}
    apart = terms(["north", "south"], columns=columns, label_holder="north", rows="in_order")
    with raised(ConfigError, "settings-invalid"):
        fb.describe(apart, shared_out(2))


def test_a_site_is_asked_by_its_policy():
    open_to_all = {"parties": "any", "analysts": "any", "columns": "any"}
    agreed = terms_to_describe(terms(["north", "south", "east"], protection="masked"), 5)
    (breach,) = Policy(**open_to_all).breaches(agreed)
    assert breach.key == "min_count"
    assert "set min_count = 10" in str(breach.refusal("north"))
    assert not [*Policy(**open_to_all, min_count=5).breaches(agreed)]
    noisy = terms_to_describe(terms(["north", "south", "east"], **NOISY), min_count=20)
    (breach,) = Policy(**open_to_all).breaches(noisy)  # sessions could average the noise away
    assert (breach.key, breach.allow) == ("min_count", 1)
    assert not [*Policy(**open_to_all, min_count=1).breaches(noisy)]
    assert not [*Policy(**open_to_all, epsilon=2.0, delta=1e-6).breaches(noisy)]
    levels = {"columns": {**COLUMNS, "categorical": {"ward": [*map(str, range(40))]}}}
    (breach,) = Policy(**open_to_all).breaches(agreed.changed(**levels, min_count=10))
    assert breach.key == "max_category_levels"


def test_queries_of_other_sessions_are_refused():
    agreed, trained = terms_to_describe(terms()), terms()
    with raised(Refused, "query-task"):
        RowsQuery().check(agreed)
    with raised(Refused, "query-task"):
        SummaryQuery.of(agreed).check(trained)
    with raised(Refused, "query-columns"):
        SummaryQuery(2, (4,), 2).check(agreed)
    with raised(Refused, "query-grids"):
        QuantileQuery(MAX_ROWS - 1, Grids.first(3)).check(agreed)
    counted = INITIAL_STATE.after(QuantileQuery(MAX_ROWS - 1, Grids.first(2)))
    with raised(PeerError, "query-order"):
        SummaryQuery.of(agreed).check_order(agreed, counted)
    counted.check(agreed)


def test_the_text_fits_a_terminal_and_names_cannot_move_the_cursor(capsys):
    from fedboost.cli.output import print_text

    nasty = "do\u202ese"
    table = rows(900).rename_columns(["age", nasty, "ward", "site", "y"])
    agreed = terms(columns={**COLUMNS, "numeric": ["age", nasty]})
    known = fb.describe(agreed, shared_out(3, with_undeclared(table)))
    print_text(blocks_of(view(known)))
    out = capsys.readouterr().out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"^900 rows of all parties, ", out, re.MULTILINE)
    assert {MISSING, UNDECLARED} <= {*known.summary["columns"][2]}


NOISY = {
    "columns": {**COLUMNS, "ranges": {"age": [0, 100], "dose": [-5, 5]}},
    "protection": "masked",
    "noise": {"epsilon": 1.0, "delta": 1e-6},
}


def test_with_noise_it_is_near_the_pooled_table():
    table = with_undeclared(rows(20_000))
    pooled, errors = table.to_pandas(), []
    for _ in range(5):
        known = fb.describe(terms(**NOISY), shared_out(3, table))
        age, dose, ward = known.summary["columns"]
        errors.append(known.rows - len(pooled))
        errors.append(dose["missing"] - pooled.dose.isna().sum())
        errors += [
            ward["levels"][level] - count for level, count in pooled.ward.value_counts()[list("abc")].items()
        ]
        assert (age["missing"] or 0) < 6 * known.noise  # there are none, but for noise
        low, high = age["quantiles"]["0.5"]
        assert low - 1 <= pooled.age.median() <= high + 1
    assert 0.5 * known.noise < np.std(errors) < 2 * known.noise
    assert any(errors)


def test_little_noise_tells_no_smaller_counts_than_min_count():
    loud = NOISY | {"noise": {"epsilon": 16.0, "delta": 1e-6}, "min_count": 50}
    table = rows(900)
    table = table.set_column(2, "ward", pa.array(["a"] * 45 + ["b"] * 855))
    known = fb.describe(terms(**loud), shared_out(3, table))
    assert 3 * known.noise < 45 < known.min_count == 50
    assert (known.summary["columns"][2]["levels"]["a"], known.summary["columns"][2]["levels"]["c"]) == (
        None,
        None,
    )


async def test_the_noise_is_charged_to_a_budget(tmp_path):
    tables = shared_out(3, rows(3000))
    agreed = terms(**NOISY, min_child_weight=1.0).with_parties(tables)
    assert terms_to_describe(agreed).plan.cost <= 1.0
    bundles = bundles_of(tmp_path / "keys", agreed.parties)
    policy = {
        "parties": "any",
        "analysts": "any",
        "columns": "any",
        "epsilon": 1.2,
        "delta": 1e-5,
        "colluding": 0,
    }
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, table in tables.items():
            config = {"party": name, "aggregator": one.address, "state": one.folder / name}
            init_memory(PartyConfig(**config, policy=policy))
            one.start_party(name, table, policy=policy, state=name)
        first = await asyncio.to_thread(one.analyst.describe, agreed)
        with pytest.raises(SessionFailed, match="budget"):
            await asyncio.to_thread(one.analyst.describe, agreed)
    assert first.noise == terms_to_describe(agreed).plan.releases[SUMMARY].sigma
    assert abs(first.rows - 3000) < 10 * first.noise
