"""Trees as text and as pictures."""

import math
from xml.etree import ElementTree

import numpy as np
from boosters import PLAIN_AND_ONE_FOREST, load, presence_model, trained_with
from explained import chain
from list_trees import changed_tree

from fedboost.gbdt.tree import Tree
from fedboost.views.charts import tree_svg, tree_text

SVG = "{http://www.w3.org/2000/svg}"


trained = trained_with(PLAIN_AND_ONE_FOREST, rounds=6, max_depth=5)


# ---- trees as text ----------------------------------------------------------------------------------


def test_the_text_is_xgboosts(trained):
    _, booster = trained
    theirs = load(booster.to_xgboost()).get_dump(with_stats=True)
    assert [tree_text(tree, booster.features) for tree in booster.trees] == theirs
    assert any("<inf] " in text for text in theirs)


def test_the_text_of_a_lone_leaf_and_of_odd_names():
    tree = Tree.leaf(0.1).changed(cover=3.0)
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
        inner = np.flatnonzero(tree.inner).tolist()
        assert len(boxes) == len(tree)
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
    def by_level(tree):
        tree.threshold[0], tree.categories[0] = 0.0, 0b100

    tree = changed_tree(chain(3, 3), by_level)
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
    boxes, ways, _ = shown(Tree.leaf(), ["a"])
    assert (boxes, ways) == ([["+0", "cover 0"]], [])
    assert len(shown(chain(1500, 1), ["a"])[0]) == 3001
    assert len(tree_text(chain(1500, 1), ["a"]).splitlines()) == 3001
