"""Level kernels: choose the leaves to split, add their children, and check and distribute the children's
sums.

Leaves and nodes are records of the types `LEAF` and `NODE` in gbdt/tree.py. A node's cells are its histogram,
followed by a last pair: the sums of the positive gradients and of the hessians of all its rows. `factors`,
`penalties` and `layout` are described in kernels/split.py."""

import numpy as np

from fedboost.gbdt.kernels import elementwise, loop
from fedboost.gbdt.kernels.split import _soft_threshold, categories_right

FEATURES_DISAGREE, NEGATIVE_BIN, OTHER_ROWS, OTHER_TOTAL, NEGATIVE_POSITIVE, OTHER_SIBLING = range(1, 7)
"""Reasons for rejecting sums."""
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@elementwise
def step_within(gradient, hessian, penalties, lower, upper):
    """Return the best leaf value before the learning rate: -T(G) / (H + lambda), where T is the soft
    threshold at reg_alpha. The value is clipped to max_delta_step in magnitude, then to `lower` and `upper`.
    """
    # Equation 5 of the paper named in split.py.
    reg_lambda, reg_alpha, _, most = penalties
    h = hessian + reg_lambda
    best = -_soft_threshold(gradient, reg_alpha) / h if h > 0.0 else 0.0
    best = best if best < most else most  # min and max do not order -0.0 and 0.0
    best = best if best > -most else -most
    best = best if best < upper else upper
    return best if best > lower else lower


@loop
def add_node(nodes, at, gradient, hessian, lower, upper, factors, penalties, rate):
    node = nodes[at]
    # The factors are powers of two, so only the conversion of sums beyond 2**53 rounds, and it does so once.
    g, h = gradient / factors[0], hessian / factors[1]
    node.left, node.feature, node.threshold, node.missing_left, node.gain = -1, 0, 0.0, 0, 0.0
    node.value = np.float32(step_within(g, h, penalties, lower, upper) * rate)
    node.cover = np.float32(h)


@loop
def _check(cells, chosen, sizes):
    """Check a node's cells. Returns (reason or 0, feature, gradient, hessian), where gradient and hessian are
    the node's sums.

    cells: int64, bins of the chosen features and a last pair; chosen: bool [F], empty if all features are
    chosen; sizes: int64 [F], number of bins."""
    #     cells    [ g h  g h  g h | g h  g h | ...      | P h ]
    #                feature 0       feature 1            last pair: positive gradients, hessians
    # The OR of integers is negative exactly if one of them is, so that bins need no branch.
    at, gradient, hessian, first = 0, np.int64(0), np.int64(0), True
    for f in range(sizes.size):
        if chosen.size == 0 or chosen[f]:
            g, h, signs = np.int64(0), np.int64(0), np.int64(0)
            for b in range(at, at + sizes[f]):
                g += cells[2 * b]
                h += cells[2 * b + 1]
                signs |= cells[2 * b + 1]
            at += sizes[f]
            if first:
                gradient, hessian, first = g, h, False
            # Each feature partitions the same rows, so all features have the same total.
            if g != gradient or h != hessian:
                return FEATURES_DISAGREE, f, gradient, hessian
            if signs < 0:
                return NEGATIVE_BIN, f, gradient, hessian
    # The last pair sums the hessians and the positive gradients of the same rows. The latter is at least the
    # sum of all gradients, and at least 0.
    if cells[2 * at + 1] != hessian or cells[2 * at] < max(gradient, 0):
        return OTHER_ROWS, 0, gradient, hessian
    return 0, 0, gradient, hessian


@loop
def write_roots(cells, sizes, leaves, histograms, nodes, factors, penalties, rate):
    """Check the sums of the roots, and write them to the roots' leaves, histograms and nodes.

    Args:
        cells: int64 [roots * (2 T + 2)], cells of each root.
        sizes: int64 [F], number of bins of each feature.
        leaves: `LEAF` [roots], receives the leaves.
        histograms: int64 [slots, 2 T], receives the histograms.
        nodes: `NODE` [roots or more], receives the nodes.
        factors, penalties: see the module docstring.
        rate: learning rate.

    Returns:
        (reason or 0, root, feature)
    """
    width = histograms.shape[1] + 2
    for root in range(leaves.size):
        own, leaf = cells[root * width : (root + 1) * width], leaves[root]
        reason, feature, gradient, hessian = _check(own, np.zeros(0, np.bool_), sizes)
        if reason:
            return reason, root, feature
        histograms[root] = own[:-2]
        leaf.node, leaf.root, leaf.depth, leaf.slot = root, root, 0, root
        leaf.lower, leaf.upper = -np.inf, np.inf
        leaf.gradient, leaf.hessian, leaf.positive = gradient, hessian, own[-2]
        add_node(nodes, root, gradient, hessian, -np.inf, np.inf, factors, penalties, rate)
    return 0, 0, 0


@loop
def _choose(waiting, counts, max_leaves, by_gain):
    """Choose which waiting leaves to split now. Returns bool [leaves]. The arguments are as in
    `split_level`."""
    gains, budgets = np.empty(waiting.size, np.float64), np.zeros(counts.size, np.int64)
    chosen = np.zeros(waiting.size, np.bool_)
    for i in range(waiting.size):
        gains[i] = -waiting[i].gain if by_gain else 0.0
        budgets[waiting[i].root] += 1
    for root in range(counts.size):
        # Strictly best-first growth would take a turn for each split. Rounding half up leaves at least one
        # leaf, so that growth does not stop. A split replaces one leaf by two: it adds one to the count.
        better = (budgets[root] + 1) // 2 if by_gain else budgets[root]
        budgets[root] = min(better, max_leaves - counts[root])
    # The sort is stable: leaves of equal gain are taken in node order, until their root's budget is spent.
    for i in np.argsort(gains, kind="mergesort"):
        root = waiting[i].root
        if budgets[root] > 0:
            chosen[i] = True
            budgets[root] -= 1
            counts[root] += 1
    return chosen


@loop
def _grow(families, tree, made, sums, features, cuts, signs, rule, max_cat_to_onehot, max_depth):
    """Split leaves: append their children to the nodes, and mark the children that may split again. made:
    number of splits made at this level so far. The other arguments are as in `split_level`."""
    nodes, size, bitmaps, splits = tree
    offsets, value_bins, _, categorical = features
    (values, starts), (factors, penalties, rate), (histograms, pooled) = cuts, rule, sums
    # Children are numbered in the order of splits, left before right, so that all parties derive the same
    # numbers: split i of this level has the children size + 2 i and size + 2 i + 1.
    for number in range(families.size):
        i, count, leaf = made + number, size + 2 * (made + number), families[number]
        f, lower, upper = leaf.feature, leaf.lower, leaf.upper
        right_gradient, right_hessian = leaf.gradient - leaf.left_gradient, leaf.hessian - leaf.left_hessian
        leaf.left = count
        add_node(nodes, count, leaf.left_gradient, leaf.left_hessian, lower, upper, factors, penalties, rate)
        add_node(nodes, count + 1, right_gradient, right_hessian, lower, upper, factors, penalties, rate)
        node = nodes[leaf.node]
        node.left, node.feature, node.missing_left = leaf.left, f, leaf.missing_left
        node.gain = np.float32(min(leaf.gain, _MAX_FLOAT32))
        # A split after the last value bin separates present from missing values: no number reaches infinity.
        node.threshold = values[starts[f] + leaf.bin] if leaf.bin < value_bins[f] - 1 else np.inf
        if categorical[f]:
            first, bins = np.int64(offsets[f]), value_bins[f]
            cells, one_hot = histograms[leaf.slot, 2 * first : 2 * (first + bins)], bins < max_cat_to_onehot
            if pooled.size:
                cells = pooled[leaf.root, : 2 * bins]
            for category in categories_right(cells, leaf.bin, one_hot, factors, penalties):
                bitmaps[leaf.node, category >> 3] |= np.uint8(1 << (category & 7))
            leaf.bin, node.threshold = 0, 0.0
        splits[0, i], splits[1, i], splits[2, i] = leaf.node, f, leaf.bin
        splits[3, i], splits[4, i] = leaf.missing_left, leaf.left
        # Both children of a split must reach min_child_weight, so a leaf below twice that can never split.
        least, deeper = 2.0 * penalties[2], leaf.depth + 1 < max_depth
        leaf.open_left = deeper and leaf.left_hessian / factors[1] >= least
        leaf.open_right = deeper and right_hessian / factors[1] >= least
        leaf.sign = signs[f] if signs.size else 0
        if leaf.sign:
            g, h = leaf.left_gradient / factors[0], leaf.left_hessian / factors[1]
            other_g, other_h = right_gradient / factors[0], right_hessian / factors[1]
            # The midpoint of the children's values separates their subtrees: one side stays below it, the
            # other above, as in XGBoost's TreeEvaluator::AddSplit.
            low = step_within(g, h, penalties, lower, upper)
            leaf.middle = (low + step_within(other_g, other_h, penalties, lower, upper)) / 2.0


@loop
def split_level(fresh, waiting, held, families, counts, tree, sums, features, cuts, signs, rule, limits):
    """Add the fresh leaves with a sufficient gain to the waiting leaves. Then split waiting leaves, within
    the limits, until a child of a split leaf may split again.

    Args:
        fresh: `LEAF`, leaves whose best split was just found (`split.level_splits`).
        waiting: `LEAF`, leaves in node order, `held` of them so far; room for all leaves.
        held: number of waiting leaves.
        families: `LEAF`, receives the split leaves with a child that may split again, in node order.
        sums, signs: as in `level_splits`.
        counts: int64 [roots], number of leaves of each root's tree; updated in place.
        tree: a tuple: the nodes, `NODE`, with room for two children of each leaf; the number of nodes;
            bitmaps of the categories that go right, uint8 [nodes, 32], or empty; and an array that receives
            the splits, int32 [5, splits], as in `tree.Splits`.
        features: the layout.
        cuts: cut points of all features, float32, and the index of each feature's first cut point, int64.
        rule: factors, penalties and learning rate.
        limits: max_cat_to_onehot, max_depth, maximum number of leaves of a root's tree, and by_gain. If
            by_gain is True, only the half of each root's waiting leaves with the highest gains is split,
            otherwise all of them.

    Returns:
        the numbers of waiting leaves, of families and of splits.
    """
    max_cat_to_onehot, max_depth, max_leaves, by_gain = limits
    for i in range(fresh.size):
        if fresh[i].feature >= 0:
            waiting[held] = fresh[i]
            held += 1
    made, grown = 0, 0
    # Invariant: `waiting[:held]` is in node order, and each of its leaves has a split that gains enough. Each
    # pass splits the chosen leaves and keeps the others in order. If no child of these may split again, no
    # sums are needed and another pass follows. A child that may split ends the level: its sums are queried.
    while held and not grown:
        chosen, taken, kept = _choose(waiting[:held], counts, max_leaves, by_gain), 0, 0
        for i in range(held):
            if chosen[i]:
                families[taken] = waiting[i]
                taken += 1
            else:
                waiting[kept] = waiting[i]
                kept += 1
        held = kept
        if not taken:
            break
        own = families[:taken]
        _grow(own, tree, made, sums, features, cuts, signs, rule, max_cat_to_onehot, max_depth)
        made += taken
        for i in range(taken):
            if families[i].open_left or families[i].open_right:
                families[grown] = families[i]
                grown += 1
    return held, grown, made


@elementwise
def _bits(value):
    # The bit length. Only an impossible sum is negative. It never becomes 0, so the loop ends at 63.
    bits = 0
    while value >> bits and bits < 63:
        bits += 1
    return bits


@loop
def list_queried_children(families, known, elected):
    """List the children whose sums must be queried.

    Of two siblings, the child with the smaller sum of hessians is queried, since the other's sums are the
    parent's minus these. If the parent's sums are unknown for a needed feature, all children that may split
    are queried.

    Args:
        families: `LEAF`, split leaves with a child that may split again.
        known: bool [slots, F], features whose sums are known for a slot; empty if all are known.
        elected: bool [families, F], features whose sums are needed for the children; empty if all are needed.

    Returns:
        (asks, widths, possible, both). asks, one for each queried child: int64 [asks, 4], the child, its
        family, 1 for a right child, and 1 if only features unknown for the parent are queried. widths: uint8
        [asks, 2], number of bits of the sums of the child's bins. possible: False if a child's sums are
        impossible. both: number of families in which both children may split.
    """
    asks = np.empty((2 * families.size, 4), np.int64)
    widths = np.empty((2 * families.size, 2), np.uint8)
    all_possible, both, count = True, 0, 0
    for i in range(families.size):
        leaf = families[i]
        both += leaf.open_left & leaf.open_right
        right_gradient, right_hessian = leaf.gradient - leaf.left_gradient, leaf.hessian - leaf.left_hessian
        side, several = np.int64(leaf.left_hessian > right_hessian), 1
        if elected.size and (elected[i] & ~known[leaf.slot]).any():
            if leaf.open_left and leaf.open_right:
                several = 2
            else:
                side = np.int64(leaf.open_right)
        # `side ^ 1` is the other child. Widths must bound the sums, which are recovered from residues modulo
        # a power of two (`histogram.pack_level`).
        for number in range(several):
            own = side ^ number
            asks[count, 0], asks[count, 1], asks[count, 2], asks[count, 3] = leaf.left + own, i, own, number
            gradient = right_gradient if own else leaf.left_gradient
            hessian = right_hessian if own else leaf.left_hessian
            other = leaf.left_gradient if own else right_gradient
            # P is the sum of positive gradients, M that of the negative ones' magnitudes: P - M = G. The
            # sibling has at least max(other, 0) of the parent's P, which bounds this child's P and M = P - G.
            # The sum of any bin lies in [-M, P].
            positive = leaf.positive - max(other, 0)
            largest = max(positive, positive - gradient)
            possible = min(positive, positive - gradient) >= 0
            all_possible &= possible
            widths[count, 0] = _bits(largest) + 1  # and the sign
            widths[count, 1] = max(_bits(hessian), 1)
            count += 1
    return asks[:count], widths[:count], all_possible, both


@loop
def _take_bins(cells, own, parent, offsets, sizes, asked, known):
    """Move the queried bins to a slot: own = cells, parent -= cells. Bins of features that are unknown for
    the parent are not subtracted. Returns a negative number if a sum of hessians of the parent has become
    negative.

    own, parent: int64 [2 T], or empty."""
    at, signs = 0, np.int64(0)
    for f in range(sizes.size):
        if asked.size == 0 or asked[f]:
            first, count = 2 * np.int64(offsets[f]), 2 * sizes[f]
            if parent.size and (known.size == 0 or known[f]):
                for i in range(count // 2):
                    parent[first + 2 * i] -= cells[at + 2 * i]
                    parent[first + 2 * i + 1] -= cells[at + 2 * i + 1]
                    signs |= parent[first + 2 * i + 1]
            if own.size:
                own[first : first + count] = cells[at : at + count]
            at += count
    return signs


@loop
def _add_children(leaf, children, count, asked, own_slot, positives):
    """Write the leaves of children that may split again. Returns the new number of children.

    asked: 1 if the right child was queried, else 0; own_slot: slot of the queried child; positives: sums of
    positive gradients of the queried child and of its sibling."""
    for child in range(2):
        if (leaf.open_right if child else leaf.open_left) == 0:
            continue
        new = children[count]
        count += 1
        new.node, new.root, new.depth = leaf.left + child, leaf.root, leaf.depth + 1
        new.slot = own_slot if child == asked else leaf.slot
        new.gradient = leaf.gradient - leaf.left_gradient if child else leaf.left_gradient
        new.hessian = leaf.hessian - leaf.left_hessian if child else leaf.left_hessian
        new.positive = positives[0] if child == asked else positives[1]
        new.lower, new.upper = leaf.lower, leaf.upper
        # Bounds after a split of a constrained feature, m being the midpoint of the children's values:
        #     sign 1      left [ lower ..... m ]    right [ m ..... upper ]     values must not fall
        #     sign -1     left [ m ..... upper ]    right [ lower ..... m ]     values must not rise
        if leaf.sign != 0 and (leaf.sign > 0) == (child == 0):
            new.upper = leaf.middle
        elif leaf.sign != 0:
            new.lower = leaf.middle
    return count


@loop
def write_children(
    cells, asks, families, children, histograms, slots, offsets, sizes, known, elected, used, begin, end
):
    """Check the sums of the queried children, and write a leaf and a histogram for each child that may split
    again.

    Args:
        cells: int64, for each queried child the bins of the queried features and a last pair.
        asks: int64 [asks, 4], from `list_queried_children`.
        families: `LEAF`, the split leaves.
        children: `LEAF`, receives the leaves; has as many entries as there are children that may split.
        histograms: int64 [slots, 2 T], updated in place. The sibling takes the parent's slot, and the queried
            child takes a new one after the `slots` in use.
        slots: number of slots in use.
        offsets: uint32 [F], first bin of each feature.
        sizes: int64 [F], number of bins of each feature.
        known, elected: as in `list_queried_children`; `known` is updated in place.
        used: bool [slots, F], features that occur in splits on the path to a leaf, or empty; updated in
            place.
        begin, end: first (inclusive) and last (exclusive) of the families to take. Others are only counted,
            so that threads can share the families unless `elected` has features.

    Returns:
        (reason or 0, node, feature)
    """
    everything, nothing = np.zeros(0, np.bool_), np.zeros(0, np.int64)
    ask, at, count = 0, 0, 0
    for i in range(end):
        leaf, slot = families[i], families[i].slot
        features = elected[i] if elected.size else everything
        before = known[slot].copy() if elected.size else everything
        side, both = asks[ask, 2], leaf.open_left != 0 and leaf.open_right != 0
        own_slot = slots if both else slot
        slots += np.int64(both)
        sibling_open = leaf.open_left if side else leaf.open_right
        own_open = leaf.open_right if side else leaf.open_left
        gradients = (leaf.left_gradient, leaf.gradient - leaf.left_gradient)
        hessians = (leaf.left_hessian, leaf.hessian - leaf.left_hessian)
        positives = (np.int64(0), np.int64(0))
        # Invariant: `ask` and `at` are the next ask and its first cell. Asks are in the order of families,
        # the sibling's after that of the child that is subtracted. A family has one ask or two.
        while ask < asks.shape[0] and asks[ask, 1] == i:
            other = asks[ask, 3]
            chosen = features & ~before if other and elected.size else features
            width = 0
            for f in range(sizes.size):
                width += sizes[f] if chosen.size == 0 or chosen[f] else 0
            own = cells[at : at + 2 * width + 2]
            at += own.size
            if i < begin:
                ask += 1
                continue
            reason, feature, gradient, hessian = _check(own, chosen, sizes)
            if reason:
                return reason, asks[ask, 0], feature
            which = asks[ask, 2]
            if gradient != gradients[which] or hessian != hessians[which]:
                return OTHER_TOTAL, asks[ask, 0], 0
            if other:
                if own[-2] != positives[1]:
                    return OTHER_SIBLING, asks[ask, 0], 0
                _take_bins(own[:-2], histograms[slot], nothing, offsets, sizes, chosen, before)
            else:
                positives = (own[-2], leaf.positive - own[-2])
                if sibling_open and positives[1] < max(gradients[1 - side], 0):
                    return NEGATIVE_POSITIVE, asks[ask, 0], 0
                #     before        histograms[slot] = parent
                #     afterwards    histograms[own_slot] = cells (the queried child)
                #                   histograms[slot] = parent - cells (its sibling, in place)
                # A child that may not split needs no histogram; if only one may, it keeps the parent's slot.
                target = histograms[own_slot] if own_open else nothing
                parent = histograms[slot] if sibling_open else nothing
                if _take_bins(own[:-2], target, parent, offsets, sizes, chosen, before) < 0:
                    return NEGATIVE_BIN, leaf.left + 1 - side, 0
            ask += 1
        if i < begin:
            count += np.int64(leaf.open_left != 0) + np.int64(leaf.open_right != 0)
            continue
        if elected.size:
            known[slot], known[own_slot] = features, features
        if used.size:
            used[slot, leaf.feature] = True
            used[own_slot] = used[slot]
        count = _add_children(leaf, children, count, side, own_slot, positives)
    return 0, 0, 0


@loop
def hide_splits(columns, categories, seen, features):
    """Replace the features of splits, and set everything else about the splits by other parties' features to
    0.

    Args:
        columns, categories: int32 [5, S] and uint8 [S, 32] (`Splits`), updated in place.
        seen: int64 [S], the new features.
        features: number of features; a new feature of at least this number stands for another party's.

    Returns:
        True if something changed.
    """
    changed = False
    for at in range(seen.size):
        changed |= columns[1, at] != seen[at]
        columns[1, at] = seen[at]
        if seen[at] >= features:
            changed |= columns[2, at] != 0 or columns[3, at] != 0 or categories[at].any()
            columns[2:4, at] = 0
            categories[at] = 0
    return changed


@loop
def check_splits(columns, bitmaps, roots, max_depth, category_counts):
    """Find the first split that cannot occur in a tree. Returns (reason or 0, index of the split). Reason 1
    means a wrong node, depth or child; reason 2 means a wrong feature or wrong categories.

    Args:
        columns: int32 [5, S], as in `tree.Splits`.
        bitmaps: uint8 [S, 32], categories that go right.
        roots: number of roots.
        max_depth: maximum depth.
        category_counts: int64 [F], number of categories, 0 for a numeric feature.
    """
    count = columns.shape[1]
    # Split i makes the nodes roots + 2 i and roots + 2 i + 1, so it can only split a node below roots + 2 i.
    # `depths` is also the set of current leaves: a split takes its node out and puts the children in. A
    # bitmap has a category that the feature lacks if bits remain after those of its categories are shifted
    # out.
    depths = np.full(roots + 2 * count, -1, np.int64)  # of leaves; -1: not a leaf now
    depths[:roots] = 0
    for i in range(count):
        node, feature, left = columns[0, i], columns[1, i], roots + 2 * i
        if columns[4, i] != left or node < 0 or node >= left or not 0 <= depths[node] < max_depth:
            return 1, i
        if feature < 0 or feature >= category_counts.size:
            return 2, i
        categories, right, beyond = category_counts[feature], 0, 0
        for byte in range(bitmaps.shape[1]):
            right |= bitmaps[i, byte]
            within = min(max(categories - 8 * byte, 0), 8)
            beyond |= bitmaps[i, byte] >> within
        if beyond or (categories and (not right or columns[2, i])):
            return 2, i
        depths[left] = depths[left + 1] = depths[node] + 1
        depths[node] = -1
    return 0, 0
