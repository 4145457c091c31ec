"""Contributions, partial dependence, trees as text and as pictures: by definition, and as XGBoost's."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import xgboost
from inprocess import randomly, run

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.explain.dependence import MAX_GRID_VALUES, mean_predictions, usual_grid
from fedboost.gbdt.objectives.classification import Logistic
from fedboost.gbdt.objectives.regression import SquaredError
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.people.tree_drawing import tree_svg, tree_text
from tests.gbdt.kernels.test_elementwise import random_tree
from tests.gbdt.reference import split as reference
from tests.gbdt.test_booster import FOREST, OBJECTIVES, data, load, presence_model

VALUES = np.array([-2, -1, -0.0, 0, 0.1, 0.25, 1, 3, 63, 200, 256, np.nan], np.float32)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(
    scope="module", params=[*((name, {}) for name in OBJECTIVES), ("multi:softprob", FOREST)], ids=str
)
def trained(request):
    objective, more = request.param
    X, y = data(objective)
    settings = {"objective": objective, **OBJECTIVES[objective], **more}
    session = run(X, y, randomly(len(y), 2), rounds=6, max_depth=5, **settings)
    assert session.error is None
    return X, session.booster


def matrix(X, booster, base_margin=None):
    return xgboost.DMatrix(X, feature_names=list(booster.features), base_margin=base_margin)


def tree_of(nodes, covers):
    left, _, feature, threshold, missing_left, value = map(list, zip(*nodes, strict=True))
    gain = [0.0 if child == NO_CHILD else 1.5 for child in left]
    sets = [sum(1 << level for level in one) if isinstance(one, set) else 0 for one in threshold]
    threshold = [0.0 if isinstance(one, set) else one for one in threshold]
    return Tree(left, feature, threshold, missing_left, value, gain, list(covers), sets)


def booster_of(trees, features=4):
    return Booster(SquaredError(), 0.0, tuple(f"f{i}" for i in range(features)), tuple(trees))


def drawn(rng, features, depth):
    """A tree whose covers fit nothing, some of them 0, and whose splits return to features; its twin."""
    nodes = random_tree(rng, features, depth, by_level=0.3)
    covers = np.where(rng.random(len(nodes)) < 0.2, 0.0, rng.exponential(size=len(nodes)))
    covers = covers.astype(np.float32).tolist()
    return tree_of(nodes, covers), [(*node, cover) for node, cover in zip(nodes, covers, strict=True)]


# ---- contributions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_contributions_are_shapleys_values(features, depth):
    rng = np.random.default_rng(8 * depth + features)
    trees, naive = zip(*[drawn(rng, features, depth) for _ in range(5)], strict=True)
    rows = rng.choice(VALUES, (12, features))
    found = booster_of(trees, features).contributions(rows)
    assert found.shape == (12, features + 1)
    for row, one in zip(rows, found, strict=True):
        due = [
            float(sum(parts))
            for parts in zip(*[reference.shapley_values(row, t) for t in naive], strict=True)
        ]
        assert one == pytest.approx(due, rel=1e-12, abs=1e-12)


def test_contributions_are_xgboosts(trained):
    X, booster = trained
    rows = np.concatenate([X, np.full((1, 5), np.nan, np.float32), np.full((1, 5), 3e38, np.float32)])
    theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
    ours = booster.contributions(rows)
    assert ours.shape == theirs.shape == (len(rows), *[3] * (booster.loss.outputs == 3), 6)
    assert ours.dtype == np.float64
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    moved = np.abs(ours).reshape(-1, 6).max(axis=0)[:-1] > 0
    assert {name for name, found in zip(booster.features, moved, strict=True) if found} == {
        *booster.importance()
    }


def test_base_margins_are_part_of_the_bias(trained):
    X, booster = trained
    if booster.loss.outputs > 1:
        return
    base = np.linspace(-2, 2, len(X)).astype(np.float32)
    ours = booster.contributions(X, base)
    theirs = load(booster.to_xgboost()).predict(matrix(X, booster, base), pred_contribs=True)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert np.abs(ours.sum(axis=1) - booster.margins(X, base)).max() <= 1e-12 * np.abs(theirs).max()


def test_contributions_add_up_to_the_margin(trained):
    X, booster = trained
    margins = booster.margins(X)
    sums = booster.contributions(X).sum(axis=-1).T
    assert np.abs(sums - margins).max() <= 1e-13 * max(1.0, np.abs(margins).max())


def test_rows_of_very_many_features_are_explained():
    booster = booster_of([drawn(np.random.default_rng(1), 4, 4)[0]], 60_000)
    X = np.random.default_rng(2).choice(VALUES, (200, 4))
    wide = np.zeros((200, 60_000), np.float32)
    wide[:, :4] = X
    found = booster.contributions(wide)
    assert found[:, [0, 1, 2, 3, -1]].tolist() == booster_of(booster.trees).contributions(X).tolist()
    assert not found[:, 4:-1].any()


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 4096, 4097])
def test_a_row_is_explained_the_same_among_others(rows):
    rng = np.random.default_rng(rows)
    booster = booster_of([drawn(rng, 4, 4)[0] for _ in range(3)])
    X = rng.choice(VALUES, (rows, 4))
    whole = booster.contributions(X)
    assert whole.shape == (rows, 5)
    for row in {0, rows // 2, rows - 1} if rows else ():
        assert booster.contributions(X[row : row + 1]).tolist() == [whole[row].tolist()]
    assert booster.contributions(X[::-1]).tolist() == whole[::-1].tolist()


def test_a_split_into_present_and_missing_contributes():
    booster = presence_model()
    rows = np.array([[0, 1], [0, np.nan], [np.nan, 3e38]], np.float32)
    assert booster.contributions(rows).tolist() == [[0, 0.25, 10.25], [0, -0.75, 10.25], [0, 0.25, 10.25]]
    theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
    assert theirs.tolist() == booster.contributions(rows).tolist()


def test_a_model_of_no_trees_contributes_its_constant():
    booster = Booster(Logistic(), 0.25, ("a", "b"), ())
    assert booster.contributions(np.zeros((2, 2), np.float32)).tolist() == [[0, 0, booster.constant]] * 2


def test_a_deep_tree():
    """A chain of splits as deep as terms allow, and a good deal deeper."""
    for depth, features in ((16, 16), (16, 3), (400, 2)):
        tree = chain(depth, features)
        booster = booster_of([tree], features)
        rows = np.random.default_rng(depth).choice(VALUES, (70, features))
        found = booster.contributions(rows)
        assert np.abs(found.sum(axis=1) - booster.margins(rows)).max() <= 1e-12 * depth
        if depth == 16:
            theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
            assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()


def chain(depth, features):
    """A tree whose left children split on and on."""
    tree = Tree()
    tree.add_leaf(0.0, 2.0 * depth)
    at = 0
    for level in range(depth):
        left = tree.add_leaf(float(np.float32(1 / (level + 1))), 2.0 * depth - level - 1)
        tree.add_leaf(float(np.float32(-0.1 * level)), 1.0)
        tree.left[at], tree.feature[at], tree.threshold[at] = left, level % features, 1.0 - level / 512
        tree.missing_left[at] = level % 2 == 0
        at = left
    return tree


# ---- partial dependence -----------------------------------------------------------------------------


def test_partial_dependence_is_the_mean_of_predictions():
    rng = np.random.default_rng(3)
    booster = booster_of([drawn(rng, 4, 4)[0] for _ in range(3)])
    X = rng.choice(VALUES, (50, 4))
    kept = X.copy()
    grid = np.array([-1.5, 0.25, np.nan], np.float32)
    found = mean_predictions(booster.predict, [(X[:20], None), (X[20:], None)], 2, grid)
    for value, mean in zip(grid, found, strict=True):
        rows = [[*row[:2], value, row[3]] for row in X.tolist()]
        assert mean == pytest.approx(np.mean(booster.predict(np.array(rows, np.float32))), rel=1e-14)
    assert len({*found.tolist()}) > 1
    assert np.array_equal(X, kept, equal_nan=True)
    for none in ([], [(X[:0], None)]):
        with pytest.raises(ConfigError, match="no rows"):
            mean_predictions(booster.predict, none, 2, grid)


def test_the_usual_grid():
    few = np.array([3, 1, np.nan, 1, 2, np.nan], np.float32)
    assert usual_grid(few) == [1, 2, 3]
    assert usual_grid(np.full(3, np.nan, np.float32)) == []
    many = np.append(np.arange(1001), np.nan).astype(np.float32)
    assert usual_grid(many) == np.linspace(50, 950, MAX_GRID_VALUES).astype(np.float32).tolist()


# ---- trees as text ----------------------------------------------------------------------------------


def test_the_text_is_xgboosts(trained):
    _, booster = trained
    theirs = load(booster.to_xgboost()).get_dump(with_stats=True)
    assert [tree_text(tree, booster.features) for tree in booster.trees] == theirs
    assert any("<inf] " in text for text in theirs)


def test_the_text_of_a_lone_leaf_and_of_odd_names():
    tree = Tree()
    tree.add_leaf(0.1, 3.0)
    assert tree_text(tree, ["a"]) == "0:leaf=0.100000001,cover=3\n"
    (split, *_) = tree_text(presence_model().trees[0], ["a", "größe\n\x1b[2J"]).splitlines()
    assert split == "0:[größe\\n\\x1b[2J<inf] yes=1,no=2,missing=2,gain=2,cover=4"


# ---- trees as pictures ------------------------------------------------------------------------------


def shown(tree, names, levels=None):
    """The words in a picture: of the nodes, line by line, and beside the edges."""
    text = tree_svg(tree, names, levels or {}, "a & b")
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}title").text == "a & b"
    boxes = [[line.text for line in box.iter(f"{SVG}text")] for box in root.iter(f"{SVG}g")]
    return boxes, [word.text for word in root.findall(f"{SVG}text")][1:-1], root


def test_a_picture_shows_every_node_and_every_edge(trained):
    _, booster = trained
    for tree in booster.trees:
        boxes, ways, root = shown(tree, booster.features)
        inner = [node for node, left in enumerate(tree.left) if left != NO_CHILD]
        assert len(boxes) == len(tree.left)
        assert len(ways) == len(root.findall(f"{SVG}path")) == 2 * len(inner)
        assert sorted(line for line, _ in boxes if line[0] in "+-") == sorted(
            f"{tree.value[leaf]:+.4g}" for leaf in tree.leaves
        )
        for node in inner:
            name, threshold = booster.features[tree.feature[node]], tree.threshold[node]
            says = f"{name} is present" if math.isinf(threshold) else f"{name} < {threshold:.6g}"
            assert [says, f"gain {tree.gain[node]:.4g}, cover {tree.cover[node]:.4g}"] in boxes
        assert ways.count("yes, missing") + ways.count("no, missing") == len(inner)
        assert ways.count("yes, missing") == sum(tree.missing_left[node] for node in inner)
        assert tree_svg(tree, booster.features, {}, "t") == tree_svg(tree, booster.features, {}, "t")


def test_nothing_in_a_picture_lies_upon_another(trained):
    _, booster = trained
    for tree in booster.trees:
        _, _, root = shown(tree, booster.features)
        frames = [one for box in root.iter(f"{SVG}g") for one in box.iter(f"{SVG}rect")]
        places = [[float(frame.get(key)) for key in ("x", "y", "width", "height")] for frame in frames]
        for number, (x, y, width, height) in enumerate(places):
            assert 0 <= x <= float(root.get("width")) - width
            assert 0 <= y <= float(root.get("height")) - height
            for other_x, other_y, other_width, other_height in places[:number]:
                apart = x >= other_x + other_width or other_x >= x + width
                assert apart or y >= other_y + other_height or other_y >= y + height


def test_a_picture_names_levels_and_shortens_names():
    tree = chain(3, 3)
    tree.threshold[0], tree.categories[0] = 0.0, 0b100
    names = ["ward", "a name that is longer than any picture has room for", '<&"\x1b']
    boxes, _, root = shown(tree, names, {"ward": ["a", "b", "c"]})
    assert [line for line, _ in boxes if line[0] not in "+-"] == [
        "ward: a, b",
        "a name that is longer t… < 0.998047",
        '<&"\\x1b < 0.996094',
    ]
    titles = [box.find(f"{SVG}title").text for box in root.iter(f"{SVG}g")]
    assert titles[1].startswith(f"{names[1]} < 0.998047\n1:[{names[1]}<")


def test_a_picture_of_a_lone_leaf_and_of_a_long_chain():
    tree = Tree()
    tree.add_leaf(0.0, 0.0)
    boxes, ways, _ = shown(tree, ["a"])
    assert (boxes, ways) == ([["+0", "cover 0"]], [])
    assert len(shown(chain(1500, 1), ["a"])[0]) == 3001
    assert len(tree_text(chain(1500, 1), ["a"]).splitlines()) == 3001


# ---- what is no tree --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [[1, 3, 3, -1, -1], [1, -1, -1, -1, -1], [3, -1, -1, -1, -1]])
def test_nodes_with_two_parents_or_none_are_refused(left):
    columns = {name: [0] * 5 for name in ("feature", "threshold", "value", "gain", "cover")}
    booster = replace(presence_model(), trees=(Tree(left=left, missing_left=[False] * 5, **columns),))
    with pytest.raises(ConfigError, match=re.escape("m.json: tree 0 is not a tree over 2 features")):
        Booster.from_xgboost(booster.to_xgboost(), "m.json")


# ---- categorical splits -----------------------------------------------------------------------------


def test_splits_by_levels_are_explained_and_written_as_xgboosts():
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=600), rng.integers(0, 3, 600), rng.integers(0, 12, 600)])
    y = np.isin(X[:, 2], [1, 4, 7]) + 0.5 * (X[:, 1] == 2) + 0.2 * X[:, 0] > 0.6
    X[rng.random(X.shape) < 0.1] = np.nan
    X = X.astype(np.float32)
    settings = {"rounds": 5, "max_depth": 4, "levels": (3, 12)}
    booster = run(X, y.astype(np.float32), randomly(600, 2), **settings).booster
    assert any(any(tree.categories) for tree in booster.trees)
    kinds = {"feature_types": ["q", "c", "c"], "enable_categorical": True}
    theirs = load(booster.to_xgboost())
    found = theirs.predict(
        xgboost.DMatrix(X, feature_names=list(booster.features), **kinds), pred_contribs=True
    )
    ours = booster.contributions(X)
    assert np.abs(ours - found).max() <= 1e-5 * np.abs(found).max()
    assert np.abs(ours.sum(axis=1) - booster.margins(X)).max() <= 1e-12
    dump = theirs.get_dump(with_stats=True)
    assert [tree_text(tree, booster.features) for tree in booster.trees] == dump
    levels = {"f1": ["a", "b", "c"], "f2": [f"level {code}" for code in range(12)]}
    pictures = [tree_svg(tree, booster.features, levels, "tree") for tree in booster.trees]
    assert any("level " in picture for picture in pictures)
