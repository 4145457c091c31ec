"""`rows = "label_holder"`: the model is that of the left-joined table, bit for bit; who lies is refused, and
the aggregator reads nowhere which rows a feature holder has."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedboost as fb
from fedboost.boosting.programs.initialisation import places_of
from fedboost.boosting.queries.ids import UNKNOWN, AlignQuery, IdCountQuery, PlacesQuery, hash_of
from fedboost.holders.alignment import CHECK as CHECK_OF_IDS
from fedboost.holders.alignment import KNOWN
from fedboost.protocol import relaying
from fedboost.protocol.messages import Ask, Introduce, Relay, Report
from fedboost.views.approval import summary
from fedboost.wire.messages import encode_from_party
from tests.helpers import faults_apart
from tests.helpers.alignments import ALIGN, CHECK, COMMON, FEWEST, PLACES, refused, tables_of
from tests.helpers.apart_sessions import LOST, SMALL, Apart
from tests.helpers.columns_apart import (
    LAYOUTS,
    left_joined,
    matched,
    pooled,
    scattered,
    terms_of,
    train_pooled,
)
from tests.helpers.policies import policy

ROWS = 300
LEFT = {"rows": "label_holder"}
SETTINGS = {
    "logistic": ("binary", {}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "forest": ("binary", {"subsample": 0.6, "num_parallel_tree": 2}),
    "validation": ("binary", {"validation_fraction": 0.3, "early_stopping_rounds": 2}),
    "base margins": ("binary", {"columns": {"base_margin": "margin"}}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, "three holders") for setting in SETTINGS),
        *(("logistic", layout) for layout in ("two holders", "one a column")),
    ],
)
def test_the_model_is_that_of_the_left_joined_table(setting, layout):
    label, settings = SETTINGS[setting]
    table = pooled(ROWS, label=label)
    tables, common = scattered(LAYOUTS[layout], table)
    joined = left_joined(LAYOUTS[layout], table, tables)
    assert joined.num_rows > common.num_rows
    columns = {"row_id": "id"} | settings.get("columns", {})
    apart = fb.simulate(matched(LAYOUTS[layout], **{**LEFT, **settings}), tables)
    assert apart.model.booster == train_pooled(joined, **settings | {"columns": columns}).model.booster


def test_the_model_is_that_of_the_left_joined_table_where_gradients_are_encrypted():
    layout, table = LAYOUTS["three holders"], pooled(120)
    tables, _ = scattered(layout, table)
    encrypted = {"protection": "paillier", "key_bits": 2048, "model": "whole", **SMALL, "min_common_rows": 50}
    apart = fb.simulate(matched(layout, **LEFT, **encrypted), tables)
    assert apart.model.booster == train_pooled(left_joined(layout, table, tables), **SMALL).model.booster


def test_columns_may_stand_in_a_file(tmp_path):
    layout, table = LAYOUTS["two holders"], pooled(ROWS)
    tables, _ = scattered(layout, table)
    parquet.write_table(tables["telco"], tmp_path / "telco.parquet", row_group_size=70)
    apart = fb.simulate(matched(layout, **LEFT), tables | {"telco": tmp_path / "telco.parquet"})
    assert apart.model.booster == train_pooled(left_joined(layout, table, tables)).model.booster


def test_a_feature_holder_that_has_all_rows_changes_nothing():
    layout, table = LAYOUTS["two holders"], pooled(ROWS)
    tables, _ = scattered(layout, table, share=1.0)
    models = [fb.simulate(matched(layout, **rows), tables).model.booster for rows in ({}, LEFT)]
    assert models[0] == models[1]


def test_each_feature_holder_must_know_enough_rows():
    """All of them: one that knows more does not make up for another."""
    layout, table = LAYOUTS["three holders"], pooled(ROWS)
    tables, _ = scattered(layout, table)
    own = tables["bank"]["id"].to_pylist()
    shared = [row for row, i in enumerate(tables["shop"]["id"].to_pylist()) if i in set(own)]
    tables["shop"] = tables["shop"].take(shared[:99])
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(layout, **LEFT), tables)
    assert str(raised.value).startswith(
        "parties bank, shop have 99 rows in common, and the terms say min_common_rows = 100: compare how "
    )
    assert fb.simulate(matched(layout, **LEFT, min_common_rows=99), tables).model


def test_blocks_are_refused():
    with pytest.raises(fb.ConfigError) as raised:
        matched(LAYOUTS["blocks"], **LEFT)
    assert str(raised.value).endswith(
        'rows = "label_holder" with blocks: it takes the rows of one label holder; set label_holder'
    )


def test_a_person_who_approves_is_told_whose_rows_take_part():
    text = " ".join(summary(matched(LAYOUTS["two holders"], **LEFT).with_parties(["bank", "telco"])).split())
    assert "rows all of label holder bank, matched by id: where another site does not have one, its" in text
    assert "each other site has 100 at least" in text


@pytest.mark.parametrize(
    ("rows", "party", "key"),
    [
        ("label_holder", "telco", "rows"),
        ("label_holder", "bank", None),
        ("common", "telco", None),
        ("in_order", "telco", None),
    ],
)
def test_a_feature_holders_policy_must_allow_it(rows, party, key):
    """It tells the label holder of each of its rows whether this site has it."""
    by_id = {"min_common_rows": 1000} if rows != "in_order" else {"min_common_rows": None}
    terms = matched(LAYOUTS["two holders"], rows=rows, **by_id).with_parties(["bank", "telco"])
    keys = {"by_columns": True, "label_holders": "any", "protections": ["plain"], "min_parties": 2}
    breaches = [breach.key for breach in policy(**keys).breaches(terms, party=party)]
    assert breaches == ([key] if key else [])
    breaches = policy(**keys, rows="label_holder").breaches(terms, party=party)
    assert [breach.key for breach in breaches] == ([] if "label_holder" in (rows, key) else ["rows"])


# ---- an aggregator that lies ----------------------------------------------------------------------------


def matching(**settings):
    return Apart("three holders", tables=tables_of("three holders"), **{**COMMON, **LEFT, **settings})


def other_places(change, party="telco"):
    """A program that changes the places of this party."""

    def program(terms, grown):
        counts = yield IdCountQuery(len(terms.parties))
        query = AlignQuery(tuple(counts.tolist()))
        places = places_of(terms, query, (yield query))
        told = [places.of(number).copy() for number in range(len(terms.parties))]
        number = terms.parties.index(party)
        told[number] = change(told[number])
        if number:
            told[0] = np.concatenate([hash_of(own != UNKNOWN) for own in told[1:]])
        yield PlacesQuery(places.total, tuple(own.size for own in told), np.concatenate(told))

    return program


def known_of(places):
    return np.flatnonzero(places != UNKNOWN)


def doubled(places):
    one, other = known_of(places)[:2]
    places[one] = places[other]
    return places


def swapped(places):
    one, other = known_of(places)[:2]
    places[[one, other]] = places[[other, one]]
    return places


def moved(places):
    known, unknown = known_of(places)[0], np.flatnonzero(places == UNKNOWN)[0]
    places[[known, unknown]] = places[[unknown, known]]
    return places


def only(rows):
    def change(places):
        places[known_of(places)[rows:]] = UNKNOWN
        return places

    return change


def with_first(value):
    def change(places):
        places[known_of(places)[0]] = value
        return places

    return change


BAD_PLACES = {
    "doubled": (doubled, "telco", "a row that is said to be common twice"),
    "below -1": (with_first(-2), "telco", "a row that is said to be common twice"),
    "out of range": (with_first(10**6), "telco", "common rows, or one of another list"),
    "swapped": (swapped, "shop", CHECK),
    "a row that it does not have": (moved, "telco", CHECK),
    "too few": (only(FEWEST - 1), "shop", f"parties bank, shop have {FEWEST - 1} rows in common"),
    "one row": (only(1), "telco", "parties bank, telco have 1 rows in common, and the terms say min_"),
    "none known": (only(0), "telco", "have 0 rows in common"),
    "none told": (lambda own: own[:0], "telco", "0 common rows, or one of another list"),
    "another number": (lambda own: own[:-1], "telco", "places of party telco, where "),
    "places of the label holder": (lambda own: np.arange(30), "bank", "30 places of party bank, where "),
}


@pytest.mark.parametrize("lie", BAD_PLACES)
def test_places_that_cannot_be_are_refused_before_anything_is_computed(lie):
    change, party, says = BAD_PLACES[lie]
    apart = matching(program=other_places(change, party))
    assert says in refused(apart)
    assert apart.error.startswith(f"party {party} left: ")
    assert apart.session.turn == PLACES


def test_a_feature_holder_that_says_it_has_a_row_more_is_shown_no_hash_of_its_id(monkeypatch):
    """It would find the id among all that can be."""
    opened, seal, opens = [], relaying.Ends.seal, relaying.Ends.open

    def lying(ends, send, ask, number):
        if (ends.me, send.kind) == ("telco", KNOWN):
            known = np.unpackbits(np.frombuffer(send.content, np.uint8), count=ask.query.total)
            known[np.flatnonzero(known == 0)[0]] = 1
            send = replace(send, content=np.packbits(known).tobytes())
        return seal(ends, send, ask, number)

    def kept(ends, sealed, receive, ask, number):
        opened.append((ends.me, receive.kind))
        return opens(ends, sealed, receive, ask, number)

    monkeypatch.setattr(relaying.Ends, "seal", lying)
    monkeypatch.setattr(relaying.Ends, "open", kept)
    assert refused(matching()) == (
        "party bank left: party telco says it has other rows than those that the aggregator matched: ask both"
    )
    assert ("bank", KNOWN) in opened
    assert ("telco", CHECK_OF_IDS) not in opened


@pytest.mark.parametrize("by", [-1, 1])
def test_another_number_of_rows_than_the_label_holder_has_is_refused(by):
    def program(terms, grown):
        counts = yield IdCountQuery(len(terms.parties))
        query = AlignQuery(tuple(counts.tolist()))
        places = places_of(terms, query, (yield query))
        total = places.total + by
        own = [np.resize(places.of(number), total) for number in (1, 2)]
        yield PlacesQuery(total, (0, total, total), np.concatenate(own))

    rows = tables_of("three holders")["bank"].num_rows
    assert f"party bank left: {rows + by} rows are said to be all there are, {rows} are here" == refused(
        matching(program=program)
    )


@pytest.mark.parametrize("party", ["shop", None])
def test_places_in_another_view_are_refused(party):
    def down(name, message):
        if name != "telco" or not isinstance(message, Ask) or message.turn != PLACES:
            return None
        query = apart.session.run.pending
        return [replace(message, query=query.seen_by(apart.terms, party) if party else query)]

    apart = matching()
    apart.down = down
    assert refused(apart) == (
        "party telco left: told of columns of other parties, or of leaf values without labels"
    )


def test_another_list_after_a_restart_is_refused():
    """The aggregator tells a party whose process died the same rows at other places."""

    def up(party, message):
        if (party, type(message)) == ("shop", Report) and (message.turn, message.attempt) == (PLACES, 1):
            apart.crash("shop")
            return LOST
        return None

    def down(party, message):
        if (party, type(message)) != ("shop", Ask) or (message.turn, message.attempt) != (PLACES, 2):
            return None
        other = replace(message.query, places=message.query.places[::-1].copy())
        return [replace(message, query=other)]

    apart = matching(up=up)
    apart.down = down
    assert refused(apart) == (
        f"party shop left: another question in turn {PLACES}, or elsewhere in the tree, than before"
    )


@pytest.mark.parametrize("party", ["bank", "shop"])
def test_an_introduction_with_other_places_is_refused(party):
    """Of a process that is another one by now; of the label holder, that has none, another number."""

    def down(name, message):
        if name != party:
            return None
        if isinstance(message, Ask) and message.turn == 6 and message.attempt == 1:
            apart.crash(party)
            return LOST
        if isinstance(message, Introduce) and apart.session.attempt == 2:
            known = message.state.places
            other = {"places": known.places[::-1].copy()} if known.places.size else {"total": known.total + 1}
            return [replace(message, state=replace(message.state, places=replace(known, **other)))]
        return None

    apart = matching()
    apart.down = down
    assert refused(apart) == (
        f"party {party} left: the session is said to stand where it cannot, after what was asked here"
    )


# ---- restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [ALIGN, PLACES, 5, 7])
@pytest.mark.parametrize("party", ["bank", "shop"])
def test_after_a_restart_the_model_is_the_same(party, turn):
    def up(name, message):
        if (name, type(message)) == (party, Report) and (message.turn, message.attempt) == (turn, 1):
            apart.crash(party)
            return LOST
        return None

    apart = matching()
    apart.up = up
    assert apart.play().session.attempt == 2
    joined = left_joined(LAYOUTS["three holders"], pooled(60), apart.tables)
    assert apart.session.booster == train_pooled(joined, **SMALL).model.booster


class World(faults_apart.World):
    """A session in which all rows of the label holder take part, and anything goes wrong."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(["two holders", "three holders"]), "logistic"
        self.aim, self.by_id = self.draw.choice([0.0, 0.1]), faults_apart.LEFT
        return faults_apart.apart(self.layout, self.setting, "wait", self.by_id)


@pytest.mark.parametrize("seed", range(12))
def test_a_seed(seed):
    faults_apart.play(seed, World)


# ---- what is in sight -----------------------------------------------------------------------------------


def bits_of(apart, party):
    """Which of the label holder's rows a party has, as it relays it."""
    holder = apart.made["bank"][0]._common._alignment
    ids, own = holder._ids, set(apart.tables[party]["id"].to_pylist())
    return np.packbits([int(ids[row]) in own for row in holder._order]).tobytes()


def test_the_aggregator_gets_no_bit_mask_and_the_label_holder_one_of_each(monkeypatch):
    opened = []
    opens = fb.protocol.relaying.Ends.open

    def kept(ends, sealed, receive, ask, number):
        content = opens(ends, sealed, receive, ask, number)
        opened.append((ends.me, receive.kind, receive.sender, content))
        return content

    monkeypatch.setattr(fb.protocol.relaying.Ends, "open", kept)
    apart = matching().play()
    assert apart.session.phase == "done"
    masks = {party: bits_of(apart, party) for party in ("telco", "shop")}
    assert [one for one in opened if one[1] == KNOWN] == [
        ("bank", KNOWN, party, mask) for party, mask in masks.items()
    ]
    said = b"\0".join(encode_from_party(message) for _, message in apart.sent if hasattr(message, "attempt"))
    assert not [party for party, mask in masks.items() if mask in said]
    assert {len(relay.to) for relay in apart.said(Relay, "telco") if relay.turn == PLACES} == {1}


def test_terms_with_ids_of_a_table_in_order_name_the_key():
    with pytest.raises(fb.ConfigError, match="min_common_rows is for rows that are matched by their ids"):
        terms_of(LAYOUTS["two holders"], rows="in_order", min_common_rows=5)


def test_rows_that_a_feature_holder_lacks_have_missing_values_in_all_its_columns():
    """The helper of these tests does what a left join does."""
    layout, table = LAYOUTS["two holders"], pooled(50)
    tables, _ = scattered(layout, table)
    joined = left_joined(layout, table, tables)
    lacking = ~np.isin(joined["id"].to_numpy(), tables["telco"]["id"].to_numpy())
    assert lacking.any()
    assert pa.compute.is_null(joined["colour"]).to_numpy().tolist() == lacking.tolist()
