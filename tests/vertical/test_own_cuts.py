"""Cut points that stay with their owners, and scales that stay with the label holder: what others are told,
what is refused, and the model, which is that of pooled rows."""

import dataclasses
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pytest
from apart_sessions import LOST, NOW, Apart, once
from columns_apart import LAYOUTS, NUMERIC, pooled, terms_of, train_apart, train_pooled
from consortium import installed
from raised import raised

from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import Refused
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.holders.column_rows import OwnCuts
from fedboost.protocol import party as membership
from fedboost.protocol.messages import Ask, Attest, Close, Introduce, Leave, Report
from fedboost.protocol.parts import packed
from fedboost.runtime.model import Model
from fedboost.runtime.signed_model import signed_model_of
from fedboost.wire.messages import encode_from_party, encode_to_party
from tests.vertical.test_equal import SETTINGS
from tests.vertical.test_views import MORE, digest, found_in, messages

if not installed("paillier"):
    pytest.skip("needs the extra paillier", allow_module_level=True)


pytestmark = pytest.mark.usefixtures("one_key")
HIDDEN = {"protection": "paillier", "key_bits": 2048}
ROWS = 80
FAST = [("logistic", "three holders"), ("absolute", "two holders")]
FEW = {"rounds": 1, "max_depth": 2}
PARTIES = "bank", "telco", "shop"


def play(table=None, hooks=None, layout="three holders", **settings):
    table = pooled(60) if table is None else table
    return Apart(layout, table=table, **(hooks or {}), **{**HIDDEN, **settings}).play()


@cache
def trained(protection="paillier"):
    """A session of three parties."""
    settings = HIDDEN if protection == "paillier" else {"protection": protection}
    apart = Apart("three holders", table=pooled(60), **{**settings, "max_depth": 3, "rounds": 2}).play()
    assert apart.session.phase == "done", apart.error
    return apart


# ---- the model ------------------------------------------------------------------------------------------


def check_equal(setting, layout):
    label, settings = SETTINGS[setting]
    settings = {**settings, "rounds": 2}
    table = pooled(ROWS, label=label)
    whole, apart = train_pooled(table, **settings), train_apart(LAYOUTS[layout], table, **settings, **HIDDEN)
    assert apart.model.booster == whole.model.booster
    assert len(apart.history) == len(whole.history)
    for row, due in zip(apart.history, whole.history, strict=True):
        assert {**row, "seconds": 0, "bytes": 0} == {**due, "seconds": 0, "bytes": 0}


@pytest.mark.parametrize(("setting", "layout"), FAST)
def test_the_model_is_that_of_pooled_rows(setting, layout):
    check_equal(setting, layout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["classes", "absolute", "lossguide", "symmetric", "validation", "forest", "monotone"]
)
def test_the_model_is_that_of_pooled_rows_in_more_settings(setting):
    check_equal(setting, "three holders")


def test_cuts_of_many_bins_and_of_missing_values_are_those_of_pooled_rows():
    table = pooled(400)
    nothing = pa.array(np.full(400, np.nan, np.float32))
    table = table.set_column(table.column_names.index("minutes"), "minutes", nothing)
    settings = {"max_bin": 200, "rounds": 1, "max_depth": 2, "min_child_weight": 0}
    apart = play(table, **settings)
    assert apart.session.booster == train_pooled(table, **settings).model.booster


# ---- what is told ---------------------------------------------------------------------------------------


def real_cuts():
    """Those of each feature, by name, as float32 bytes: of a session in which all are told them."""
    (start,) = (part for query in trained("plain").queries for part in query.parts if is_start(part))
    return {
        name: [cut.tobytes() for cut in start.cut_points.cuts[number]] for number, name in enumerate(NUMERIC)
    }


def is_start(query):
    return isinstance(query, StartQuery)


def own_columns(apart, party):
    return {*apart.terms.blocks.columns_of(party).numeric}


def told(apart, party):
    """All that a party is told in the clear."""
    kinds = Ask, Introduce, Close
    return [encode_to_party(message) for kind in kinds for message in apart.heard(kind, party)]


def asked(apart):
    """All that the aggregator asks."""
    return [encode_to_party(Ask(1, 1, b"", query)) for query in apart.queries]


def said(apart):
    """All that parties say in the clear before the trees."""
    grows = {ask.turn for ask in apart.heard(Ask, "bank") if any(part.of_tree for part in ask.query.parts)}
    reports = [report for report in apart.said(Report) if report.turn not in grows]
    assert len({report.turn for report in reports}) >= 3
    return [encode_from_party(report) for report in reports]


def found(cuts, encoded):
    return any(cut in message for cut in cuts for message in encoded)


def leaked(cuts, encoded, protection="paillier"):
    """Whether the same cut is in the messages of three sessions with other keys: a length before a random key
    has the bytes of a cut in one of some 25. encoded: returns the messages of a session."""
    for session in (trained, trained.__wrapped__, trained.__wrapped__):
        messages = encoded(session(protection)) if cuts else []
        cuts = [cut for cut in cuts if found([cut], messages)]
    return bool(cuts)


@pytest.mark.parametrize("column", NUMERIC)
def test_nobody_but_its_holder_is_told_a_cut_point(column):
    hidden, plain, cuts = trained(), trained("plain"), real_cuts()[column]
    holder = next(party for party in PARTIES if column in own_columns(hidden, party))
    assert len(cuts) > 3
    assert found(cuts, asked(plain))
    assert not leaked(cuts, asked)
    for party in PARTIES:
        assert leaked(cuts, partial(told, party=party), "plain") == (party == holder)
        assert not leaked(cuts, partial(told, party=party))
    assert not leaked(cuts, said)
    for attest in hidden.said(Attest):
        (party,) = (name for name, message in hidden.sent if message is attest)
        assert not found(cuts, [attest.thresholds]) or party == holder


def test_the_aggregator_asks_with_numbers_of_bins():
    starts = [part for query in trained().queries for part in query.parts if is_start(part)]
    for start in starts:
        assert all(cuts.tolist() == [*range(1, cuts.size + 1)] for cuts in start.cut_points.cuts)
    assert starts
    assert not any(isinstance(part, QuantileQuery) for q in trained().queries for part in q.parts)
    assert not any(getattr(part, "widths", b"") for query in trained().queries for part in query.parts)


def test_thresholds_are_given_by_the_holders_of_columns_at_the_end_alone():
    apart = trained()
    model, names = apart.session.booster, apart.terms.columns.features
    for party in PARTIES:
        own = own_columns(apart, party)
        due = [
            tree.threshold[node]
            for tree in model.trees
            for node, left in enumerate(tree.left)
            if left >= 0 and names[tree.feature[node]] in own and np.isfinite(tree.threshold[node])
        ]
        (attest,) = apart.said(Attest, party)
        assert np.frombuffer(attest.thresholds, "<f4").tolist() == due
        assert due or party == "shop"


def restarting(**settings):
    """A session whose attempt restarts within the second tree."""
    lost = once(
        lambda party, m: (
            party == "telco" and isinstance(m, Ask) and m.query.tree == 1 and len(m.query.splits)
        ),
        lambda message: LOST,
    )
    apart = play(hooks={"down": lost}, on_loss="wait", **settings)
    assert lost.done
    assert apart.session.phase == "done", apart.error
    return apart


@pytest.mark.parametrize("objective", ["reg:squarederror", "reg:absoluteerror"])
def test_the_label_holder_alone_is_told_exponents_of_scales(objective):
    table = pooled(60, label="number")
    table = table.set_column(table.column_names.index("y"), "y", pa.array(table["y"].to_numpy() * 1000))
    table = table.append_column("w", pa.array(np.full(60, 20.0)))
    apart = restarting(table=table, objective=objective, columns={"weight": "w"})
    scales = {party: [*found_in(messages(apart, party), Scale)] for party in PARTIES}
    scales |= {party: scales[party] + asked_scales(apart, party) for party in PARTIES}
    assert any(scale.exponent for scale in scales["bank"])
    for party in ("telco", "shop"):
        assert scales[party]
        assert not any(scale.exponent for scale in scales[party])


def asked_scales(apart, party):
    """Those of queries that share a turn."""
    return [scale for ask in apart.heard(Ask, party) for scale in found_in([*ask.query.parts], Scale)]


def test_feature_holders_are_told_the_same_for_labels_of_another_scale():
    """No check of fields: whatever there is of the size of labels, they are not told it."""
    table = pooled(60, label="number")
    place = table.column_names.index("y")
    larger = table.set_column(place, "y", pa.array(table["y"].to_numpy() * np.float32(64)))
    one, other = (play(each, objective="reg:squarederror", **FEW) for each in (table, larger))
    assert one.session.booster != other.session.booster
    for party in PARTIES:
        asked = [[ask.query.digest for ask in apart.heard(Ask, party)] for apart in (one, other)]
        assert (asked[0] == asked[1]) == (party != "bank")


def test_views_of_views_and_public_views():
    apart = restarting()
    terms, state = apart.terms, apart.session.run.state
    for whole in (*apart.queries, state):
        public = set()
        for party in terms.parties:
            view = whole.seen_by(terms, party)
            assert digest(view.seen_by(terms, party)) == digest(view)
            public |= {digest(each.seen_by(terms, party, publicly=True)) for each in (view, whole)}
        assert len(public) == 1


def test_reports_are_of_the_same_cells_in_every_view():
    apart = trained()
    for query in apart.queries:
        views = {query.seen_by(apart.terms, party).segments for party in PARTIES}
        assert views == {query.segments}


# ---- what is refused ------------------------------------------------------------------------------------


def test_counts_by_value_are_refused_where_columns_are_hidden_and_bins_elsewhere():
    layout = LAYOUTS["three holders"]
    hidden, plain = (terms_of(layout, **own).with_parties([*PARTIES]) for own in (HIDDEN, {}))
    counts, bins = QuantileQuery(60, Grids.first(len(NUMERIC))), BinsQuery(len(NUMERIC))
    counts.check(plain)
    bins.check(hidden)
    with raised(Refused, "query-grids"):
        counts.check(hidden)
    for query, terms in ((bins, plain), (BinsQuery(1), hidden)):
        with raised(Refused, "query-bins"):
            query.check(terms)


def retold(party, find, change):
    """Hooks: the first question of a kind is told to a party otherwise."""

    def told(message):
        parts = tuple(change(part) if find(part) else part for part in message.query.parts)
        query = parts[0] if len(parts) == 1 else dataclasses.replace(message.query, parts=parts)
        return [dataclasses.replace(message, query=query)]

    def asks(name, m):
        return name == party and isinstance(m, Ask) and any(map(find, m.query.parts))

    return {"down": once(asks, told)}


def with_cuts(start, cuts, missing=None):
    told = start.cut_points
    missing = told.missing if missing is None else missing
    return dataclasses.replace(start, cut_points=CutPoints.of(cuts, missing, told.categorical))


def with_a_cut_less(start):
    cuts = [*start.cut_points.cuts]
    place = NUMERIC.index("minutes")
    cuts[place] = cuts[place][:-1]
    return with_cuts(start, cuts)


def with_missing(start):
    missing = start.cut_points.missing.copy()
    missing[NUMERIC.index("minutes")] ^= True
    return with_cuts(start, start.cut_points.cuts, missing)


def with_values(start):
    cuts = [
        cuts + np.float32(0.5) if n < len(NUMERIC) else cuts for n, cuts in enumerate(start.cut_points.cuts)
    ]
    return with_cuts(start, cuts)


def scaled(part):
    return dataclasses.replace(part, gradient=Scale(3, part.gradient.bits))


def with_widths(part):
    return dataclasses.replace(part, widths=bytes([20, 20]) * len(part.nodes))


def is_histogram(query):
    return isinstance(query, HistogramQuery)


LIES = {
    "a cut less": (
        is_start,
        with_a_cut_less,
        "the query has a different number of bins from this party's columns",
    ),
    "missing values": (
        is_start,
        with_missing,
        "the query has a different number of bins from this party's columns",
    ),
    "cut points": (is_start, with_values, "cut points that only the owner of a column may know"),
    "a scale at the start": (is_start, scaled, MORE),
    "a scale of gradients": (is_histogram, scaled, MORE),
    "widths of cells": (is_histogram, with_widths, "cell widths, which would reveal something about labels"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_party_leaves_where_it_is_told_otherwise(lie):
    find, change, says = LIES[lie]
    hooks = retold("telco", find, change)
    apart = play(hooks=hooks, **FEW)
    assert hooks["down"].done
    assert says in apart.left("telco")
    assert apart.session.phase == "failed"


@pytest.mark.parametrize("value", [-100, 250, 1 << 8])
def test_numbers_of_bins_that_cannot_be_fail_the_session(monkeypatch, value):
    count = OwnCuts.count_bins
    made_up = once(lambda party, bins: bins.any(), lambda bins: bins + value * (bins > 1))

    def counted(self, query, rows):
        changed = made_up("", count(self, query, rows))
        return count(self, query, rows) if changed is None else changed

    monkeypatch.setattr(OwnCuts, "count_bins", counted)
    apart = play(**FEW)
    assert apart.session.phase == "failed"
    assert "reported an invalid number of cut points" in apart.error


def floats(change):
    return lambda packed: change(np.frombuffer(packed, "<f4").copy()).astype("<f4").tobytes()


def with_last(value):
    def change(values):
        values[-1] = value
        return values

    return floats(change)


WRONG = {
    "none": (lambda packed: b"", "0 bytes for"),
    "one less": (lambda packed: packed[:-4], "bytes for"),
    "one more": (lambda packed: packed + packed[:4], "bytes for"),
    "a byte more": (lambda packed: packed + b"\0", "bytes for"),
    "not a number": (with_last(np.nan), "it sent a threshold that is not finite"),
    "infinite": (with_last(np.inf), "it sent a threshold that is not finite"),
    "another order": (floats(lambda values: -values), "are not in order"),
    "all the same": (floats(np.ones_like), "are not in order"),
    "equal bins apart": (
        floats(lambda values: values + np.arange(values.size)[::-1] * 100),
        "are not in order",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_party_that_gives_thresholds_that_cannot_be_is_named(monkeypatch, wrong):
    change, says = WRONG[wrong]

    def given(terms, party, trees):
        own = packed(terms, party, trees)
        return change(own) if party == "bank" else own

    monkeypatch.setattr(membership, "packed", given)
    apart = play(max_depth=3, rounds=1)
    assert apart.session.phase == "failed"
    assert apart.error.startswith("party bank broke the protocol: ")
    assert says in apart.error


def test_a_model_whose_thresholds_are_kept_back_fails_with_who_kept_them():
    leaves = once(
        lambda party, m: party == "bank" and isinstance(m, Attest), lambda attest: [Leave("it is too late")]
    )
    apart = play(hooks={"up": leaves}, **FEW)
    assert apart.session.phase == "failed"
    assert apart.error == "party bank left: it is too late"


# ---- restarts and signatures ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("party", "kind"), [("bank", "tree"), ("telco", "start"), ("telco", "close")])
def test_a_party_that_dies_finds_its_cut_points_again(party, kind):
    finds = {
        "start": lambda m: isinstance(m, Ask) and any(map(is_start, m.query.parts)),
        "tree": lambda m: isinstance(m, Ask) and m.query.tree == 1 and len(m.query.splits),
        "close": lambda m: isinstance(m, Close),
    }

    def crash(message):
        apart.crash(party)
        return LOST

    down = once(lambda name, m: name == party and finds[kind](m), crash)
    settings = {**HIDDEN, "max_depth": 3, "on_loss": "wait"}
    apart = Apart("three holders", table=pooled(60), down=down, **settings)
    apart.play()
    assert down.done
    assert apart.session.phase == "done", apart.error
    assert apart.session.attempt > 1
    assert apart.session.booster == trained().session.booster
    assert signed_model_of(apart.session).verify(apart.roots, NOW) == apart.terms.parties


def test_a_model_is_signed_by_all_in_its_file_too():
    apart = trained()
    model = signed_model_of(apart.session)
    assert model.verify(apart.roots, NOW) == apart.terms.parties
    read = Model.from_bytes(model.to_bytes())
    assert read.verify(apart.roots, NOW) == apart.terms.parties
    assert read.to_bytes() == model.to_bytes()


def changed_at(model, party, column, change):
    """The model with another number at the first finite split of a party's numeric column."""
    names, own = model.booster.features, {*model.terms.blocks.columns_of(party).numeric}
    trees = [*model.booster.trees]
    number, node = next(
        (number, node)
        for number, tree in enumerate(trees)
        for node, left in enumerate(tree.left)
        if left >= 0 and names[tree.feature[node]] in own and np.isfinite(tree.threshold[node])
    )
    values = getattr(trees[number], column).copy()
    values[node] = change(values[node])
    trees[number] = trees[number].changed(**{column: values})
    return dataclasses.replace(model, booster=dataclasses.replace(model.booster, trees=tuple(trees)))


@pytest.mark.parametrize("party", ["bank", "telco"])
@pytest.mark.parametrize(
    ("column", "change", "fault"),
    [
        ("threshold", lambda old: float(np.nextafter(np.float32(old), np.float32(9))), "thresholds"),
        ("threshold", lambda old: float("inf"), "trees"),
        ("missing_left", lambda old: not old, "trees"),
    ],
)
def test_a_changed_split_is_found_by_the_holder_of_its_column(party, column, change, fault):
    apart = trained()
    model = changed_at(signed_model_of(apart.session), party, column, change)
    faults = model.faults(apart.roots, NOW)
    assert faults == {party: f"party {party} signed {fault} that differ from the model's {fault}"}


def test_thresholds_that_are_changed_in_the_signature_too_are_not_signed():
    apart = trained()
    other = changed_at(signed_model_of(apart.session), "bank", "threshold", lambda old: old + 1.0)
    attest = other.attestations["bank"]
    values = np.frombuffer(attest.thresholds, "<f4").copy()
    values[0] += 1.0
    forged = dataclasses.replace(attest, thresholds=values.tobytes())
    other = dataclasses.replace(other, attestations={**other.attestations, "bank": forged})
    faults = other.faults(apart.roots, NOW)
    assert [*faults] == ["bank"]
    assert "signed thresholds" not in faults["bank"]
