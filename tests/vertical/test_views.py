"""A party is told its view of every question and state: nothing of others' columns, and no leaf value without
labels."""

import dataclasses
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from raised import raised

from fedboost.boosting.queries.base import view_of
from fedboost.boosting.queries.labels import ResidualQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.state import Round
from fedboost.errors import PeerError
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.gbdt.tree import Split, Splits
from fedboost.protocol.messages import Ask, Introduce
from fedboost.runtime.signed_model import signed_model_of
from tests.helpers.apart_sessions import LOST, NOW, Apart, once
from tests.helpers.columns_apart import LAYOUTS, pooled, terms_of

SETTINGS = {
    "logistic": ("binary", {}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "forest": ("binary", {"num_parallel_tree": 2, "subsample": 0.7, "columns": {"row_id": "id"}}),
    "stopped": ("binary", {"rounds": 4, "columns": {"validation": "held_out"}, "early_stopping_rounds": 1}),
}
EVERY = [(layout, setting) for setting in SETTINGS for layout in ("three holders", "ragged blocks")]


@cache
def training(layout, setting):
    """One whose attempt restarts within the second tree, so that parties are told of a whole state."""
    label, settings = SETTINGS[setting]

    lost = once(
        lambda party, m: (
            party == "telco" and isinstance(m, Ask) and m.query.tree == 1 and len(m.query.splits)
        ),
        lambda message: LOST,
    )
    apart = Apart(layout, pooled(60, label=label), down=lost, **settings).play()
    assert apart.session.phase == "done", apart.error
    assert apart.session.attempt == 2
    return apart


def found_in(value, kind):
    """All members of this kind, however deep."""
    if isinstance(value, kind):
        yield value
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, list | tuple):
        for member in value:
            yield from found_in(member, kind)


def messages(apart, party):
    told = [*apart.heard(Ask, party), *apart.heard(Introduce, party)]
    assert any(message.state.rounds for message in told if isinstance(message, Introduce))
    return told


def own_features(apart, party):
    """By the names in the layout."""
    names, held = apart.terms.columns.features, apart.layout.held
    if party in held:
        return {names.index(name) for name in held[party]}
    (others,) = (others for holder, others in apart.layout.blocks if holder == party)
    return set(range(len(names))) - {names.index(name) for of in others.values() for name in of}


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_no_party_is_told_of_a_split_by_a_foreign_column_more_than_its_holder(layout, setting):
    apart = training(layout, setting)
    parties, features, foreign = apart.terms.parties, len(apart.terms.columns.features), 0
    for party in parties:
        own = own_features(apart, party)
        block = apart.terms.blocks.of(party).parties
        for splits in found_in(messages(apart, party), Splits):
            for split in splits:
                if split.feature in own:
                    continue
                foreign += 1
                assert parties[split.feature - features] in {*block} - {party}
                assert (split.bin, split.missing_left, split.categories) == (0, False, 0)
    assert foreign


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_no_party_is_told_of_a_cut_point_of_a_foreign_column(layout, setting):
    apart = training(layout, setting)
    for party in apart.terms.parties:
        own, told = own_features(apart, party), messages(apart, party)
        cut_points, grids = [*found_in(told, CutPoints)], [*found_in(told, Grids)]
        assert len(cut_points) >= 2
        for each in cut_points:
            for feature, cuts in enumerate(each.cuts):
                numbers = list(range(1, cuts.size + 1))
                assert feature in own or cuts.tolist() == numbers
        assert len(grids) >= 2
        for each in grids:
            for feature in {*range(each.features)} - own:
                cells = slice(*each.offsets[feature : feature + 2])
                widths = each.widths[cells].tolist()
                assert widths in ([32], each.subdivisions[cells].tolist())
                begins = np.concatenate([[0], np.cumsum([1 << width for width in widths])])[:-1]
                assert each.starts[cells].tolist() == begins.tolist()


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_a_feature_holder_is_told_of_no_leaf_value(layout, setting):
    apart = training(layout, setting)
    for block in apart.terms.blocks:
        for party in block.feature_holders:
            told = messages(apart, party)
            values = [value for each in found_in(told, Round) for _, value in each.values]
            values += [value for ask in apart.heard(Ask, party) for value in values_of(ask.query)]
            assert values
            assert not any(values)
            starts = [start for each in found_in(told, ResidualQuery) for start in each.starts]
            assert bool(starts) == (setting == "absolute")
            assert not any(starts)
        told = messages(apart, block.label_holder)
        assert any(value for each in found_in(told, Round) for _, value in each.values)


def values_of(query):
    return [value for part in query.parts for _, value in getattr(part, "values", ())]


def moved(table, name, factor):
    """The same table with a column times a power of two: the same order, and a grid that is the same but for
    where it lies."""
    place = table.column_names.index(name)
    values = table.column(name).to_numpy() * np.float32(factor)
    return table.set_column(place, name, pa.array(values))


def positive(table):
    """The same table with numbers above 0 in its columns, which stay so far apart that a factor keeps their
    bins."""
    for name in ("age", "minutes"):
        place = table.column_names.index(name)
        values = np.exp2(np.round(table.column(name).to_numpy() * 4) / 4).astype(np.float32)
        table = table.set_column(place, name, pa.array(values))
    return table


@pytest.mark.parametrize(("column", "holder"), [("age", "bank"), ("minutes", "telco")])
def test_all_that_others_are_told_is_the_same_for_another_scale_of_a_column(column, holder):
    """No check of fields: whatever there is of the cut points of a column, others are not told it."""
    table = positive(pooled(60))
    trainings = [Apart(table=each).play() for each in (table, moved(table, column, 4.0))]
    models = [apart.session.booster for apart in trainings]
    assert models[0] != models[1]
    for party in trainings[0].terms.parties:
        one, other = ([ask.query.digest for ask in apart.heard(Ask, party)] for apart in trainings)
        assert len(one) == len(other)
        assert (one == other) == (party != holder)


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_the_view_of_a_view_is_the_view(layout, setting):
    apart = training(layout, setting)
    terms = apart.terms
    for party in terms.parties:
        for told in messages(apart, party):
            told = told.query if isinstance(told, Ask) else told.state
            assert digest(told.seen_by(terms, party)) == digest(told)


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_the_public_view_is_the_same_for_a_block_and_follows_from_each_view(layout, setting):
    apart = training(layout, setting)
    terms, state = apart.terms, apart.session.run.state
    for block in terms.blocks:
        for whole in (*apart.queries, state):
            views = {party: whole.seen_by(terms, party) for party in block.parties}
            public = {digest(view.seen_by(terms, party, publicly=True)) for party, view in views.items()}
            public |= {digest(whole.seen_by(terms, party, publicly=True)) for party in block.parties}
            assert len(public) == 1


def digest(told):
    return told.position.digest if hasattr(told, "position") else told.digest


def test_the_public_view_names_the_holder_of_a_split():
    """Else one relay could stand for that of another party."""
    terms = terms_of(LAYOUTS["three holders"]).with_parties(["bank", "telco", "shop"])
    public = view_of(terms, "bank").public
    names = terms.columns.features
    seen = [
        public.splits(Splits.of([Split(0, place, 0, False, 1)])).feature[0] for place in range(len(names))
    ]
    holders = {"minutes": "telco", "calls": "telco", "visits": "shop", "colour": "shop"}
    expected = [len(names) + terms.parties.index(holders.get(name, "bank")) for name in names]
    assert seen == expected


@pytest.mark.parametrize(("layout", "setting"), EVERY)
def test_the_model_is_signed_by_all_and_each_signature_is_of_what_its_party_was_told(layout, setting):
    apart = training(layout, setting)
    model = signed_model_of(apart.session)
    assert model.verify(apart.roots, NOW) == apart.terms.parties
    structures = {attest.structure for attest in model.attestations.values()}
    assert len(structures) == len(apart.terms.parties)


# ---- a party refuses what it must not be told -----------------------------------------------------------


def first_split(query):
    """A query with splits that are not the party's own."""
    return [part for part in query.parts if isinstance(part, HistogramQuery) and len(part.splits)]


def told_as(change):
    """What shop is told of the first splits, changed: `change(columns, categories)` in place."""

    def told(message):
        parts = []
        for part in message.query.parts:
            if isinstance(part, HistogramQuery) and len(part.splits):
                columns, categories = part.splits.columns.copy(), part.splits.categories.copy()
                change(columns, categories)
                part = dataclasses.replace(part, splits=Splits(columns, categories))
            parts.append(part)
        query = parts[0] if len(parts) == 1 else dataclasses.replace(message.query, parts=tuple(parts))
        return [dataclasses.replace(message, query=query)]

    return once(lambda party, m: party == "shop" and isinstance(m, Ask) and first_split(m.query), told)


def put(row, value):
    def change(columns, categories):
        columns[row] = value

    return change


def some_categories(columns, categories):
    categories[:, 0] = 1


MORE = "the aggregator sent columns or leaf values that are not for this party"
FEATURES, PARTIES = 6, ("bank", "telco", "shop")
LIES = {
    "the bin": (put(2, 1), MORE),
    "the direction": (put(3, 1), MORE),
    "a column of another party": (put(1, 0), MORE),
    "categories": (some_categories, "is not valid for feature"),
    "a holder beyond the parties": (put(1, FEATURES + 3), "is not valid for feature"),
    "the party itself": (
        put(1, FEATURES + 2),
        "a split uses a column of a party that does not hold any columns",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_party_leaves_where_it_is_told_more_than_its_view(lie):
    change, says = LIES[lie]
    apart = Apart(down=told_as(change)).play()
    assert apart.down.done
    assert says in apart.left("shop")
    assert apart.session.phase == "failed"


def test_a_party_that_is_told_leaf_values_without_labels_leaves():
    def with_values(message):
        values = tuple((node, 0.5) for node, _ in message.query.parts[0].values)
        parts = (dataclasses.replace(message.query.parts[0], values=values), *message.query.parts[1:])
        query = parts[0] if len(parts) == 1 else dataclasses.replace(message.query, parts=parts)
        return [dataclasses.replace(message, query=query)]

    ends = once(lambda party, m: party == "telco" and isinstance(m, Ask) and m.query.ends_tree, with_values)
    apart = Apart(down=ends).play()
    assert apart.left("telco") == MORE


def test_a_party_that_is_introduced_to_more_than_its_view_leaves():
    apart = training("three holders", "logistic")
    state = apart.session.run.state
    introduced = once(
        lambda party, m: party == "telco" and isinstance(m, Introduce) and m.state.rounds,
        lambda message: [dataclasses.replace(message, state=state)],
    )
    lost = once(lambda party, m: isinstance(m, Ask) and m.query.tree == 1, lambda message: LOST)
    again = Apart(down=lambda party, m: introduced(party, m) or lost(party, m)).play()
    assert introduced.done
    assert again.left("telco") == MORE


def test_the_check_of_splits_is_of_one_party():
    terms = terms_of(LAYOUTS["blocks"]).with_parties(["bank", "telco", "bank2", "telco2"])
    view, features = view_of(terms, "telco"), len(terms.columns.features)

    def split_by(feature):
        return Splits.of([Split(0, feature, 0, False, 1)])

    view.check(split_by(terms.columns.features.index("minutes")))
    view.check(split_by(features + 0))
    for elsewhere in (features + 1, features + 2, features + 3):  # itself, and the parties of another block
        with raised(PeerError, "query-splits"):
            view.check(split_by(elsewhere))
    with raised(PeerError, "query-splits"):
        view.check(split_by(0))
