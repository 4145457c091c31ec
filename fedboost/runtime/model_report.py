"""The report of a model as its file has it: no rows are read for it.

Refuses: nothing.
"""

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.people.facts import VerificationFacts
from fedboost.people.report.facts import KINDS, ReportFacts, RowsFacts, SessionFacts, TreeFacts
from fedboost.people.report.page import page
from fedboost.people.tree_drawing import tree_svg, tree_text
from fedboost.runtime.signed_model import SignedModel
from fedboost.terms.terms import Terms

MAX_TREES = 3
MAX_LEAVES = 64
"""Leaves of a tree that is drawn in a page."""


def written(
    model: SignedModel,
    rows: RowsFacts | None = None,
    verification: VerificationFacts | None = None,
    session: SessionFacts | None = None,
) -> str:
    """Return the report of a model as HTML. session: that which trained it, where it was followed."""
    by_kind = [model.booster.importance(kind) for kind in KINDS]
    importance = {name: [values[name] for values in by_kind] for name in by_kind[0]}
    trees = [_tree(model, number) for number in range(min(MAX_TREES, len(model.booster.trees)))]
    has_classes = model.terms.objective.loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    classes = tuple(map(str, classes_of(model.terms))) if has_classes else ()
    facts = ReportFacts(model.outline, model.rounds, importance, trees, classes, verification, rows, session)
    return page(facts)


def _tree(model: SignedModel, number: int) -> TreeFacts:
    tree, title, picture = model.booster.trees[number], tree_title(model, number), ""
    if len(tree.leaves) <= MAX_LEAVES:
        categories = model.terms.columns.categorical
        picture = tree_svg(tree, model.booster.features, categories, title, in_page=True)
    return TreeFacts(title, len(tree.leaves), picture, tree_text(tree, model.booster.features))


def tree_title(model: SignedModel, number: int) -> str:
    """Which tree that is, in words: its number, round, class, and place among parallel ones."""
    booster = model.booster
    in_round, parallel = number % booster.roots, booster.num_parallel_tree
    title = f"Tree {number} of {len(booster.trees)}, {booster.objective}: round {number // booster.roots}"
    title += f", class {classes_of(model.terms)[in_round // parallel]}" if booster.loss.outputs > 1 else ""
    return title + (f", tree {in_round % parallel}" if parallel > 1 else "")


def classes_of(terms: Terms) -> tuple[str, ...] | tuple[int, ...]:
    """The labels: those of columns.classes, else 0, 1, ...; ConfigError for objectives without classes."""
    if terms.objective.loss.xgboost_equivalent.label_kind is not LabelKind.CLASS:
        raise ConfigError(f"{terms.objective.name} predicts numbers, which have no classes: use predict")
    return terms.columns.classes or tuple(range(terms.objective.num_class or 2))
