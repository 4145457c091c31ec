"""Descriptions by parties with different columns: figures of pooled rows, from what each party publishes of
its own columns alone."""

import os
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from apart_sessions import Apart
from columns_apart import LAYOUTS, matched, pooled, scattered, terms_of
from consortium import installed
from memories import opened
from raised import raised

import fedboost as fb
from fedboost.boosting.programs import tasks as programs
from fedboost.boosting.queries.columns import QuantileQuery, SummaryQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, SessionFailed
from fedboost.holders.columns import holder_for
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Report
from fedboost.protocol.site import Limits
from fedboost.runtime.data.shard import to_shard, with_label_noise
from fedboost.runtime.data.table import as_table
from fedboost.runtime.site.memory import label_key
from fedboost.terms.tasks import terms_to_describe

LAYOUT = LAYOUTS["three holders"]
HIDDEN = {"protection": "paillier", "key_bits": 2048}
LABELS = {
    "binary": {},
    "number": {"objective": "reg:squarederror"},
    "classes": {"objective": "multi:softprob", "num_class": 3},
}


def odd(table):
    """Columns that are constant, nearly missing, of two units, and of a level that is not declared."""
    draw, rows = np.random.default_rng(1), table.num_rows
    minutes = np.where(draw.random(rows) < 0.5, draw.uniform(1, 2, rows), draw.uniform(100, 200, rows))
    calls = np.full(rows, np.nan, np.float32)
    calls[:5] = 1.5
    columns = {"minutes": minutes.astype(np.float32), "calls": calls, "visits": np.full(rows, 7, np.float32)}
    columns["colour"] = draw.choice(["red", "green", "violet"], rows, p=[0.5, 0.49, 0.01])
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def described(table, min_count, settings, **vertical):
    tables, common = scattered(LAYOUT, table)
    terms = matched(LAYOUT, **settings, **vertical)
    return fb.describe(terms, tables, min_count=min_count), common


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("min_count", [1, 7, 100])
@pytest.mark.parametrize("change", [lambda table: table, odd])
def test_figures_are_those_of_pooled_rows(label, min_count, change):
    table, settings = change(pooled(600, label=label)), LABELS[label]
    apart, common = described(table, min_count, settings)
    assert apart.model_dump() | {"session": None} == (
        fb.describe(terms_of(**settings), {"pooled": common}, min_count=min_count).model_dump()
        | {"session": None}
    )


@pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier")
def test_figures_are_the_same_under_terms_that_hide_gradients():
    plain, _ = described(pooled(600), 7, {})
    hidden, _ = described(pooled(600), 7, HIDDEN)
    assert hidden.columns == plain.columns


def test_all_rows_of_the_label_holder_are_described():
    table = pooled(600)
    tables, _ = scattered(LAYOUT, table)
    terms = matched(LAYOUT, rows="label_holder")
    told = fb.describe(terms, tables, min_count=1)
    bank = {*tables["bank"]["id"].to_pylist()}
    assert told.rows == len(bank)
    found = {row["id"]: row["minutes"] for row in tables["telco"].to_pylist()}
    (minutes,) = (column for column in told.columns if column.name == "minutes")
    assert minutes.missing == len(bank - found.keys())


def test_rows_of_repeated_ids_are_described_once_each():
    table = pooled(600)
    tables, common = scattered(LAYOUT, table)
    tables["bank"] = pa.concat_tables([tables["bank"], tables["bank"].slice(0, 50)])
    told = fb.describe(matched(LAYOUT, repeated_ids=True), tables, min_count=1)
    again = {*tables["bank"]["id"][:50].to_pylist()} & {*common["id"].to_pylist()}
    assert told.rows == common.num_rows + len(again)


# ---- what leaves a party --------------------------------------------------------------------------------


def session(tables, memories=None):
    terms = terms_to_describe(matched(LAYOUT), 20).with_parties([*tables])
    return Apart("three holders", tables=tables, terms=terms, program=programs.describe, memories=memories)


def test_a_party_sends_published_figures_of_its_own_columns_alone():
    tables, common = scattered(LAYOUT, odd(pooled(600)))
    apart = session(tables).play()
    assert apart.session.phase == "done", apart.error
    (query,) = (query for query in apart.queries if isinstance(query, SummaryQuery))
    assert not any(isinstance(query, QuantileQuery) for query in apart.queries)
    counts = [*common["colour"].value_counts().to_pylist()]
    exact = {each["counts"] for each in counts} | {common["colour"].null_count}
    holder = apart.made["shop"][-1]
    answer = drained(holder.answering(query)).values.tolist()
    assert {*answer[: query.counts]} <= {*range(0, 600, 20)}
    assert exact - {0} - {*range(0, 600, 20)}  # so exact counts would be seen
    names = apart.terms.columns.numeric
    figures = np.array(answer[query.counts :]).reshape(len(names), -1)
    assert [name for name, own in zip(names, figures, strict=True) if own.any()] == ["visits"]


def drained(steps):
    try:
        next(steps)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("the answer waits for other parties")


def test_figures_that_are_not_finite_are_none():
    figures = np.array([np.float32(np.inf)] * 17, "<f4").view("<u4").astype(np.int64)
    told = programs.decoded(figures)
    assert {told["gap"], *told["quantiles"].values()} == {None}


def test_intervals_that_end_before_they_start_are_none():
    figures = np.array([2, 1] * 8 + [0], "<f4").view("<u4").astype(np.int64)
    told = programs.decoded(figures)
    assert {told["gap"], *told["quantiles"].values()} == {None}


# ---- what is lost, and what a site remembers -------------------------------------------------------------


@pytest.mark.parametrize("party", ["bank", "shop"])
def test_a_party_may_be_lost_once_rows_are_matched(party):
    tables, _ = scattered(LAYOUT, pooled(600))
    apart = session(tables).dying(party, 4).play()
    assert apart.session.phase == "done", apart.error
    assert apart.session.run.outcome.summary == session(tables).play().session.run.outcome.summary


def noised(table, memory):
    return with_label_noise(
        lambda terms: to_shard(as_table(table), terms, "bank"), "bank", partial(label_key, memory)
    )


def test_labels_with_noise_are_described_by_a_site_with_a_memory(tmp_path):
    """The key of the noise is in the memory, which is also where the matched rows are kept."""
    tables, _ = scattered(LAYOUT, pooled(600))
    terms = terms_to_describe(matched(LAYOUT, label_epsilon=1.0), 20).with_parties([*tables])
    with opened(tmp_path / "memory.sqlite", party="bank") as memory:
        apart = Apart(
            "three holders", tables=tables, terms=terms, program=programs.describe, memories={"bank": memory}
        )
        apart.crash("bank", holder=holder_for(noised(tables["bank"], memory), "bank"))
        assert apart.play().session.phase == "done", apart.error


# ---- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"rows": "in_order", "columns": {}}, "blocks"])
def test_rows_must_be_matched_by_ids_for_one_label_holder(settings):
    terms = matched(LAYOUTS["blocks"]) if settings == "blocks" else terms_of(LAYOUT)
    with raised(ConfigError, "settings-invalid"):
        terms_to_describe(terms)


def test_counts_of_repeated_ids_have_no_floor():
    """All rows of a count could be one person's."""
    repeated = matched(LAYOUT, repeated_ids=True)
    with raised(ConfigError, "settings-invalid"):
        terms_to_describe(repeated, 2)
    assert terms_to_describe(repeated, 1).vertical.repeated_ids


def test_too_few_common_rows_are_not_described():
    tables, _ = scattered(LAYOUT, pooled(600))
    with pytest.raises(SessionFailed, match="min_common_rows"):
        fb.describe(matched(LAYOUT, min_common_rows=590), tables)


def test_descriptions_of_rows_that_differ_by_few_people_are_refused(tmp_path):
    """By each holder of columns, over restarts, before it publishes anything about them."""
    tables, common = scattered(LAYOUT, pooled(600))
    held = np.isin(tables["bank"]["id"].to_numpy(), common["id"].to_numpy())
    limits = Limits(max_sessions=9, min_difference=10)

    def played(name, fewer):
        kept = np.delete(np.arange(held.size), np.flatnonzero(held)[:fewer])
        with opened(tmp_path / "memory.sqlite", party="shop") as memory:
            apart = session({**tables, "bank": tables["bank"].take(kept)}, memories={"shop": memory})
            apart.crash("shop", permit=lambda offer: limits)
            apart.session = AggregatorSession(
                name,
                apart.terms,
                programs.describe,
                INITIAL_STATE,
                trust=apart.session.trust,
                draw=os.urandom,
            )
            return apart.play()

    assert not played("first", 0).session.error
    assert not played("again", 0).session.error
    one_less = played("one less", 1)
    assert "differ in fewer than 10 rows" in one_less.error
    assert not [m for m in one_less.said(Report, "shop") if m.turn > 3]
    assert not played("ten less", 10).session.error
