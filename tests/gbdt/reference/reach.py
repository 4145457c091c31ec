"""Naive references of `fedboost.gbdt.kernels.predict`."""

from tests.gbdt.reference.predict import goes_left


def leaves_below(tree, node):
    """The leaves below a node, the leftmost first."""
    left = tree.left[node]
    return [node] if left < 0 else leaves_below(tree, left) + leaves_below(tree, left + 1)


def leaf_bits(row, trees, own):
    """The leaf bits of a row. own: a function that tells if a node of a tree has a column of the party."""
    out = b""
    for tree in trees:
        leaves = leaves_below(tree, 0)
        nodes = [node for node, left in enumerate(tree.left) if left >= 0 and own(tree, node)]
        if not nodes:
            continue
        open_ = set(leaves)
        for node in nodes:
            levels = {*tree.levels(node)}
            x, left = row[tree.feature[node]], tree.left[node]
            goes = goes_left(x, levels or tree.threshold[node], tree.missing_left[node])
            open_ -= set(leaves_below(tree, left + 1 if goes else left))
        number = sum(1 << place for place, leaf in enumerate(leaves) if leaf in open_)
        out += number.to_bytes(-(-len(leaves) // 8), "little")
    return out


def exit_leaf(row, tree):
    """The node that a row ends in."""
    node = 0
    while tree.left[node] >= 0:
        levels = {*tree.levels(node)}
        goes = goes_left(row[tree.feature[node]], levels or tree.threshold[node], tree.missing_left[node])
        node = tree.left[node] + (not goes)
    return node
