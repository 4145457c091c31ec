"""Rows are matched by their ids: the model is that of the rows that all parties have, bit for bit."""

import hashlib
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from alignments import JOINED
from columns_apart import FEWEST, LAYOUTS, matched, pooled, scattered, terms_of, train_pooled
from databases import write_sqlite
from pyarrow import csv, parquet
from raised import raised

import fedboost as fb
from fedboost.boosting.queries.ids import AlignQuery, PlacesQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import PeerError
from fedboost.holders.alignment import Alignment
from fedboost.protocol.contracts import NOWHERE, Receive
from fedboost.protocol.messages import Ask
from fedboost.protocol.relaying import PendingAnswer
from fedboost.protocol.site import Question
from fedboost.runtime.data.check import check
from fedboost.views.approval import summary

ROWS = 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, layout) for setting in JOINED for layout in ("three holders", "ragged blocks")),
        *(("logistic", layout) for layout in ("two holders", "one a column", "blocks")),
    ],
)
def test_the_model_is_that_of_the_rows_in_common(setting, layout):
    label, settings = JOINED[setting]
    columns = {"row_id": "id"} | settings.get("columns", {})
    tables, common = scattered(LAYOUTS[layout], pooled(ROWS, label=label))
    fewest = {"min_common_rows": 20}
    apart = fb.simulate(matched(LAYOUTS[layout], **settings | fewest), tables)
    whole = train_pooled(common, **settings | {"columns": columns})
    assert apart.model.booster == whole.model.booster


def test_the_model_depends_on_no_order_of_rows():
    layout, table = LAYOUTS["three holders"], pooled(ROWS)
    tables, _ = scattered(layout, table)
    shuffled = {
        party: own.take(np.random.default_rng(7).permutation(own.num_rows)) for party, own in tables.items()
    }
    models = [fb.simulate(matched(layout), each, seed=7).model.booster for each in (tables, shuffled)]
    assert models[0] == models[1]


def test_ids_may_be_written_in_different_ways():
    layout = LAYOUTS["three holders"]
    written = [lambda i: i, lambda i: f" {i} ", str]
    tables, common = scattered(layout, pooled(ROWS), ids=written)
    apart = fb.simulate(matched(layout), tables)
    assert apart.model.booster == train_pooled(common).model.booster


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("digits", [str, lambda i: f"NO-{i:06d}"]),
        ("lower", [lambda i: f"Müller {i}", lambda i: f"MÜLLER {i}"]),
    ],
)
def test_the_terms_say_what_is_compared_of_ids(form, written):
    layout = LAYOUTS["two holders"]
    tables, common = scattered(layout, pooled(ROWS), ids=written)
    apart = fb.simulate(matched(layout, id_form=form), tables)
    assert apart.model.booster == train_pooled(common).model.booster
    with pytest.raises(fb.FedboostError, match="0 rows in common"):
        fb.simulate(matched(layout), tables)


def test_too_few_rows_in_common_are_one_line():
    layout = LAYOUTS["two holders"]
    tables, common = scattered(layout, pooled(ROWS))
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(layout, min_common_rows=ROWS), tables)
    assert str(raised.value) == (
        f"parties bank, telco have only {common.num_rows} rows in common, but the terms require "
        f"min_common_rows = 400: compare how their row ids are written (id_form in the terms), or lower "
        f"min_common_rows if so few rows are enough"
    )


def test_more_ids_than_the_terms_allow_are_one_line():
    layout = LAYOUTS["two holders"]
    tables, _ = scattered(layout, pooled(ROWS))
    with pytest.raises(
        fb.FedboostError, match=r"party bank submits 3.. row ids, but the terms allow only 1 to 300"
    ):
        fb.simulate(matched(layout, max_ids=300), tables)


def with_ids(table, ids):
    return table.set_column(table.column_names.index("id"), "id", ids)


BAD_IDS = {
    "numbers with a fraction": lambda ids: ids.cast(pa.float64()),
    "a missing id": lambda ids: pa.array([None, *ids.to_pylist()[1:]]),
    "an empty id": lambda ids: pa.array(["  ", *map(str, ids.to_pylist()[1:])]),
    "an id in two rows": lambda ids: pa.array([*ids.to_pylist()[:-1], ids[0].as_py()]),
}


@pytest.mark.parametrize("fault", BAD_IDS)
@pytest.mark.parametrize("party", ["bank", "telco"])
def test_ids_that_match_nothing_are_one_line(fault, party):
    layout = LAYOUTS["two holders"]
    tables, _ = scattered(layout, pooled(ROWS))
    tables[party] = with_ids(tables[party], BAD_IDS[fault](tables[party]["id"]))
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(layout), tables)
    text = str(raised.value)
    assert "\n" not in text
    assert party in text
    assert raised.value.public == f"party {party}: its rows do not fit the terms"


def test_without_ids_the_terms_say_how_rows_belong_together():
    with pytest.raises(fb.ConfigError) as raised:
        terms_of(LAYOUTS["two holders"], rows=None)
    assert str(raised.value) == (
        "terms: label_holder needs columns.row_id, the column that the parties' rows are matched by; set it, "
        'or set rows = "in_order" if all tables have the same rows in the same order'
    )


@pytest.mark.parametrize("same", [True, False])
def test_places_at_which_the_parties_have_other_ids_are_found_out(same):
    """The same places name the same ids only where both lists are in the same order."""
    terms = matched(LAYOUTS["two holders"], parties=["bank", "telco"])
    ids, secrets = [b"%d" % i for i in range(FEWEST)], (bytes(32), bytes(32) if same else bytes([1] * 32))
    bank, telco = map(partial(Alignment, terms), ("bank", "telco"), (ids, ids), secrets)
    query = PlacesQuery(FEWEST, (FEWEST, FEWEST), np.tile(np.arange(FEWEST), 2))
    told = next(bank.check(query)).content
    check = telco.check(query)
    next(check)
    with pytest.raises(StopIteration if same else PeerError) as raised:
        check.send(told)
    assert same or "have different ids at this party and at label holder bank" in str(raised.value)


@pytest.mark.parametrize("again", [b"a list", b"another"])
def test_a_list_that_is_relayed_again_is_the_one_before(again):
    first, second = (hashlib.sha256(content).digest() for content in (b"a list", again))
    underway = PendingAnswer(Ask(2, 2, b"", AlignQuery((1, 1))), INITIAL_STATE, iter(()), None, 0)
    underway.question = Question(2, bytes(32), False, NOWHERE, NOWHERE, (first,))
    receive = Receive("blinded row ids", "telco", 32, once=True)
    if again == b"a list":
        assert underway.new(receive, second) == ()
        return
    with raised(PeerError, "relay-changed"):
        underway.new(receive, second)


@pytest.mark.parametrize("kind", ["csv", "parquet", "sqlite"])
def test_ids_may_be_in_files_and_databases(tmp_path, kind):
    layout = LAYOUTS["two holders"]
    tables, common = scattered(layout, pooled(ROWS))
    path = tmp_path / f"telco.{kind}"
    match kind:
        case "csv":
            csv.write_csv(tables["telco"], path)
        case "parquet":
            parquet.write_table(tables["telco"], path)
        case "sqlite":
            write_sqlite(path, tables["telco"])
    source = fb.Database(f"sqlite:///{path}", "SELECT * FROM rows") if kind == "sqlite" else path
    apart = fb.simulate(matched(layout), tables | {"telco": source})
    assert apart.model.booster == train_pooled(common).model.booster


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, None),
        ({"max_ids": 300}, "the table has 345 ids, but the terms allow max_ids = 300"),
        ({"min_common_rows": 346}, "the table has 345 ids, but the terms need min_common_rows = 346"),
    ],
)
def test_a_check_says_whether_a_table_has_too_many_ids_or_too_few(settings, says):
    layout = LAYOUTS["two holders"]
    tables, _ = scattered(layout, pooled(ROWS))
    terms = matched(layout, **settings).with_parties(list(tables))
    telco = tables["telco"].slice(0, 345)
    assert telco.num_rows == 345
    odd = check("telco.csv", telco, None, terms, party="telco").oddities
    assert [oddity.sentence for oddity in odd if oddity.severity == "error"] == ([says] if says else [])


def test_a_person_who_approves_is_told_what_ids_are_for():
    layout = LAYOUTS["two holders"]
    text = " ".join(summary(matched(layout).with_parties(["bank", "telco"])).split())
    assert "row id id: the id by which rows are matched" in text
    assert (
        f"rows rows whose id all sites have, at least {FEWEST}; a site may enter at most 10,000,000 ids"
        in text
    )
