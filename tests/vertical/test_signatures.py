"""The signatures on a model of parties that hold different columns: each is of what its party was told."""

from dataclasses import replace
from functools import cache
from unittest import mock

import pytest
from list_trees import ListTree

import fedboost as fb
from fedboost.errors import PeerError
from fedboost.privacy import identity
from fedboost.protocol.messages import Close
from fedboost.runtime.local import simulation
from fedboost.runtime.model import Model
from fedboost.runtime.signed_model import signed_model_of, verified
from tests.helpers.apart_sessions import LOST, NOW, SMALL, Apart, once
from tests.helpers.columns_apart import LAYOUTS, pooled, terms_of

OTHER_TREES = "party {} signed trees that differ from the model's trees"


@cache
def trained(layout="three holders"):
    """A model, and the roots of its consortium."""
    apart = Apart(layout, table=pooled(120), max_depth=3, rounds=4).play()
    assert apart.session.phase == "done"
    return signed_model_of(apart.session), apart.roots


def with_trees(model, change):
    """The model with trees that `change(tree)` may change in place, once: it returns True where it did."""
    trees, done = [], False
    for tree in model.booster.trees:
        lists = ListTree(**tree.to_columns())
        done = done or change(lists)
        trees.append(lists.tree)
    assert done
    return replace(model, booster=replace(model.booster, trees=tuple(trees)))


def node_of(model, tree, party):
    """A node of the tree that is split by a numeric column of this party."""
    held, names = model.terms.columns.held, model.booster.features
    elsewhere = {name for columns in held.values() for name in columns}
    own = held.get(party) or [name for name in names if name not in elsewhere]
    numeric = {*own} & {*model.terms.columns.numeric}
    nodes = [n for n, left in enumerate(tree.left) if left >= 0 and names[tree.feature[n]] in numeric]
    return nodes[0] if nodes else None


def faults(model, roots):
    return model.faults(roots, NOW)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_parties_sign_and_their_signatures_hold(layout):
    model, roots = trained(layout)
    assert model.verify(roots, NOW) == model.parties
    facts = verified(Model(**vars(model)), "model.json", roots, NOW)
    assert facts.needed == len(model.parties)
    assert not any(facts.faults.values())


def test_they_hold_in_the_file_too():
    model, roots = trained()
    read = Model.from_bytes(model.to_bytes())
    assert read.verify(roots, NOW) == model.parties


def at_node_of(party, change):
    """The model, changed at a node that is split by a column of this party."""

    def of(model):
        def at_node(tree):
            node = node_of(model, tree, party)
            if node is not None:
                change(tree, node)
            return node is not None

        return with_trees(model, at_node)

    return of


def higher(tree, node):
    tree.threshold[node] += 1.0


def other_way(tree, node):
    tree.missing_left[node] = not tree.missing_left[node]


def by_visits(tree, node):
    tree.feature[node] = [*trained()[0].booster.features].index("visits")


def other_leaf(tree):
    tree.value[tree.leaves[0]] += 0.25
    return True


def with_booster(**changes):
    return lambda model: replace(
        model,
        booster=replace(model.booster, **{name: of(model.booster) for name, of in changes.items()}),
    )


ALL = ["bank", "telco", "shop"]
CHANGES = {
    **{f"a threshold of {party}": (at_node_of(party, higher), [party]) for party in ALL},
    **{f"missing values at {party}": (at_node_of(party, other_way), [party]) for party in ALL},
    "a leaf value": (lambda model: with_trees(model, other_leaf), ["bank"]),
    "the base score": (with_booster(base_score=lambda booster: booster.base_score / 2), ["bank"]),
    "a split by a column of another party": (at_node_of("telco", by_visits), ALL),
    "a tree less": (with_booster(trees=lambda booster: booster.trees[:-1]), ALL),
    "other terms": (lambda model: replace(model, terms=model.terms.changed(learning_rate=0.29)), ALL),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_model_is_found_by_who_was_told_otherwise(what):
    """The holder of the column, the label holder, or all."""
    change, by = CHANGES[what]
    model, roots = trained()
    other = change(model)
    found = faults(other, roots)
    assert {*found} == {*by}
    if what != "other terms":
        assert found == {party: OTHER_TREES.format(party) for party in by}
    with pytest.raises(PeerError) as refused:
        other.verify(roots, NOW)
    assert str(refused.value) in found.values()


def test_the_signature_of_another_party_does_not_stand_for_one():
    model, roots = trained()
    swapped = model.attestations | {"telco": model.attestations["shop"]}
    assert [*faults(replace(model, attestations=swapped), roots)] == ["telco"]


def test_a_model_that_lacks_a_signature_is_not_valid():
    """Nobody else was told what that party was: its cut points may be any."""
    model, roots = trained()
    attestations = {name: attest for name, attest in model.attestations.items() if name != "telco"}
    lacking = replace(model, attestations=attestations)
    facts = verified(Model(**vars(lacking)), "model.json", roots, NOW)
    assert not any(facts.faults.values())
    assert len(facts.signed) == facts.needed - 1


def test_a_party_that_comes_back_signs():
    lost = once(lambda party, message: party == "telco" and isinstance(message, Close), lambda m: LOST)
    apart = Apart(down=lost).play()
    assert apart.session.phase == "done"
    assert apart.session.attempt == 2
    assert signed_model_of(apart.session).verify(apart.roots, NOW) == apart.terms.parties


def test_a_simulated_model_is_signed_in_a_consortium_of_its_own():
    roots = []

    def kept(names, now):
        signers, root = identity.in_memory(names, now)
        roots.append((root, now))
        return signers, root

    layout = LAYOUTS["three holders"]
    with mock.patch.object(simulation, "in_memory", kept):
        model = fb.simulate(terms_of(layout, **SMALL), layout.tables(pooled(60))).model
    ((root, now),) = roots
    assert model.verify(root, now) == ("bank", "telco", "shop")
    with pytest.raises(PeerError):
        model.verify(trained()[1], now)
