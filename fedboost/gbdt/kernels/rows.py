"""Row kernels: distributing the rows of nodes to their children, sharing them among threads, adding leaf
values to margins.

`rows` is uint32, the row numbers of all leaves one after the other. The place of a leaf is where its rows
begin and end in `rows`, and its root: int64 [3]. `leaves` has the place of each node, NO_LEAF first for other
nodes. A piece is a range of the rows of one leaf in a list: the leaf's index in the list, begin and end.
Splits are columns and bitmaps of categories (`tree.Splits`).
"""

import numpy as np

from fedboost.gbdt.kernels import loop
from fedboost.gbdt.kernels.bins import MAX_CODES

NO_LEAF = -1
PARENT, BY, LAST, MISSING, LEFT = range(5)
"""Rows of the columns of splits: node, feature, last bin that goes left, 1 if missing values go left, left
child."""
SOUND, NODE, CHILDREN, FEATURE, BIN, CATEGORIES = range(6)
"""Faults of a split: none, or the part that does not fit the growing tree."""


@loop
def count_up(rows):
    for i in range(rows.size):
        rows[i] = i


@loop
def set_bits(rows, first, bits):
    """Set the bit of each row, counted from `first`, in bytes whose highest bit comes first."""
    for i in range(rows.size):
        place = first + rows[i]
        bits[place >> 3] |= np.uint8(128 >> (place & 7))


@loop
def cut_pieces(places, whole, pieces, edges):
    """Cut the rows of places into equal shares, or into one share if there are fewer than `whole` rows. A
    place without rows is a piece, too.

    pieces: room for places + shares; edges: int64 [shares + 1], where in `pieces` each share ends and the
    next begins."""
    # For example, places with 5, 0 and 7 rows in three shares:
    #     places    [ A  A  A  A  A ][ B ][ C  C  C  C  C  C  C ]
    #     shares    [ A  A  A  A | A   B    C  C  C | C  C  C  C ]
    #     pieces    [ 0          ][1][ 2 ][ 3       ][ 4         ]      edges 0, 1, 4, 5
    # A share cuts at most one place, so there are fewer than places + shares pieces.
    total, count, taken, share = 0, 0, 0, 0
    for number in range(places.shape[0]):
        total += places[number, 1] - places[number, 0]
    shares = edges.size - 1 if total >= whole else 1
    edges[0] = 0
    for number in range(places.shape[0]):
        begin, end = places[number, 0], places[number, 1]
        while True:
            # `taken` rows are in pieces; share k ends at row total * (k + 1) // shares, within a place if
            # need be.
            left = total * (share + 1) // shares - taken
            if left == 0 and share + 1 < shares and begin < end:
                share += 1
                edges[share] = count
                continue
            size = min(end - begin, left)
            pieces[count, 0], pieces[count, 1], pieces[count, 2] = number, begin, begin + size
            count, taken, begin = count + 1, taken + size, begin + size
            if begin == end:
                break
    edges[share + 1 :] = count


@loop
def find_leaves(nodes, leaves, places):
    """Write the places of these leaves. Returns the number of nodes before the first that is not a leaf."""
    for number in range(nodes.size):
        if not 0 <= nodes[number] < leaves.shape[0] or leaves[nodes[number], 0] == NO_LEAF:
            return number
        places[number] = leaves[nodes[number]]
    return nodes.size


@loop
def _fits(at, columns, categories, value_bins, categorical):
    """The fault of a split, except for its nodes."""
    if not 0 <= columns[BY, at] < value_bins.size:
        return FEATURE
    count = value_bins[columns[BY, at]]
    if not 0 <= columns[LAST, at] < count:
        return BIN
    is_categorical, right, beyond = categorical[columns[BY, at]], False, False
    for byte in range(MAX_CODES // 8):
        for bit in range(8 if categories[at, byte] else 0):
            chosen = bool(categories[at, byte] >> bit & 1)
            right |= chosen
            beyond |= chosen and 8 * byte + bit >= count
    if right != is_categorical or beyond or (is_categorical and columns[LAST, at] != 0):
        return CATEGORIES
    return SOUND


@loop
def check_splits(columns, categories, first, leaves, value_bins, categorical):
    """Check splits from `first` until one that touches the nodes of those already checked, such as a child's
    split. `leaves` has room for all children. Returns the end of the sound splits, and the fault of the next,
    or SOUND."""
    # Splits that touch different nodes move different rows, so threads may apply them in any order. The
    # splits of a level usually take one call. In a chain of children each call checks a single one.
    touched = np.zeros(leaves.shape[0], np.bool_)
    for at in range(first, columns.shape[1]):
        parent, child = columns[PARENT, at], columns[LEFT, at]
        if child < 0:
            return at, CHILDREN
        if 0 <= parent < leaves.shape[0] and (touched[parent] or touched[child] or touched[child + 1]):
            return at, SOUND
        if not 0 <= parent < leaves.shape[0] or leaves[parent, 0] == NO_LEAF:
            return at, NODE
        if leaves[child, 0] != NO_LEAF or leaves[child + 1, 0] != NO_LEAF:
            return at, CHILDREN
        fault = _fits(at, columns, categories, value_bins, categorical)
        if fault != SOUND:
            return at, fault
        touched[parent] = touched[child] = touched[child + 1] = True
    return columns.shape[1], SOUND


@loop
def _fill_table(goes_left, at, columns, categories, value_bins, missing, categorical):
    """goes_left[code] = 1 for the codes that a split sends left, else 0."""
    # One lookup per row then serves numeric and categorical features alike. The entry of missing values is
    # the code after the value bins, which both branches fill as well: it is written last.
    if categorical[columns[BY, at]]:
        for code in range(MAX_CODES):
            goes_left[code] = 1 - (categories[at, code >> 3] >> (code & 7) & 1)
    else:
        goes_left[: columns[LAST, at] + 1] = 1
        goes_left[columns[LAST, at] + 1 :] = 0
    if missing[columns[BY, at]]:
        goes_left[value_bins[columns[BY, at]]] = columns[MISSING, at]


@loop
def _grow(node, left, count, leaves):
    """Replace a node by its children among the leaves. count: the rows that go left."""
    begin, end, root = leaves[node, 0], leaves[node, 1], leaves[node, 2]
    #     rows:   ... [begin    node           end) ...
    #             ... [begin  left  ) [right   end) ...
    #                               begin + count
    leaves[node, 0] = NO_LEAF
    leaves[left, 0], leaves[left, 1], leaves[left, 2] = begin, begin + count, root
    leaves[left + 1, 0], leaves[left + 1, 1], leaves[left + 1, 2] = begin + count, end, root


@loop
def _partition(codes, goes_left, rows, scratch):
    """Reorder `rows` in place, stably: those that go left first. Returns how many go left."""
    left = np.uint64(0)
    # During the loop, with the rows read so far split into L that go left and R that go right:
    #
    #                0         left          i
    #     rows       [ L ...... | free ..... | unread ........ ]
    #     scratch    [ R ...... | free ....................... ]
    #                0       i - left
    #
    # Each row is written to both, and one end moves on: no branch. `left <= i`, so no unread row is lost.
    # Then R is copied to the end of L.
    # Indices are uint64: numba then leaves out the test for negative ones.
    for i in range(rows.size):
        row = rows[i]
        rows[left] = row
        scratch[np.uint64(i) - left] = row
        left += np.uint64(goes_left[codes[row]])
    rows[left:] = scratch[: np.uint64(rows.size) - left]
    return left


@loop
def _partition_into_scratch(codes, goes_left, rows, scratch):
    """Write rows that go left to the start of `scratch`, the others to its end in reverse. Returns how many
    go left."""
    # Unlike `_partition`, this only reads `rows`, as a thread does not know yet where its rows belong: that
    # depends on how many rows of earlier pieces go left. R grows downwards, because its size is not known
    # either. `join_level` restores its order.
    left, right = np.uint64(0), np.uint64(rows.size)
    #     scratch    [ L in order ....... | free | ....... R in reverse ]
    #                0                  left   right                  size
    for i in range(rows.size):
        row, is_left = rows[i], np.uint64(goes_left[codes[rows[i]]])
        scratch[left] = row
        scratch[right - np.uint64(1)] = row  # one of the two is overwritten, except in the last step
        left += is_left
        right -= np.uint64(1) - is_left
    return left


@loop
def split_level(
    columns,
    categories,
    first,
    leaves,
    value_bins,
    missing,
    categorical,
    by_feature,
    rows,
    scratch,
):
    """Send the rows of nodes to their children, from split `first` until one with a fault. Returns the end,
    and the fault or SOUND."""
    goes_left = np.empty(MAX_CODES, np.uint8)
    while True:
        end, fault = check_splits(columns, categories, first, leaves, value_bins, categorical)
        for at in range(first, end):
            _fill_table(goes_left, at, columns, categories, value_bins, missing, categorical)
            begin, end_of_rows = leaves[columns[PARENT, at], 0], leaves[columns[PARENT, at], 1]
            codes = by_feature[columns[BY, at]]
            count = _partition(codes, goes_left, rows[begin:end_of_rows], scratch[begin:end_of_rows])
            # Last, because it replaces the parent's place by those of the children.
            _grow(columns[PARENT, at], columns[LEFT, at], np.int64(count), leaves)
        if fault != SOUND or end == columns.shape[1]:
            return end, fault
        first = end


@loop
def partition_level(
    columns,
    categories,
    value_bins,
    missing,
    categorical,
    by_feature,
    rows,
    scratch,
    pieces,
    counts,
):
    """Partition the rows of pieces into `scratch`. counts: int64, how many rows of each go left. The index of
    a piece is that of its split."""
    goes_left = np.empty(MAX_CODES, np.uint8)
    for piece in range(pieces.shape[0]):
        at, begin, end = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2]
        _fill_table(goes_left, at, columns, categories, value_bins, missing, categorical)
        codes = by_feature[columns[BY, at]]
        counts[piece] = _partition_into_scratch(codes, goes_left, rows[begin:end], scratch[begin:end])


@loop
def grow_level(columns, leaves, pieces, counts, targets):
    """Replace the split nodes by their children among the leaves. targets: int64 [pieces, 2], where the rows
    of each piece that go left, and those that go right, belong."""
    first = 0
    for at in range(columns.shape[1]):
        last, count = first, 0
        while last < pieces.shape[0] and pieces[last, 0] == at:
            count += counts[last]
            last += 1
        to_left = leaves[columns[PARENT, at], 0]
        to_right = to_left + count
        # A node of pieces A and B:    scratch   [ A left, A right | B left, B right ]
        #                              rows      [ A left, B left  | A right, B right ]
        for piece in range(first, last):
            targets[piece, 0], targets[piece, 1] = to_left, to_right
            to_left += counts[piece]
            to_right += pieces[piece, 2] - pieces[piece, 1] - counts[piece]
        _grow(columns[PARENT, at], columns[LEFT, at], count, leaves)
        first = last


@loop
def join_level(rows, scratch, pieces, counts, targets):
    for piece in range(pieces.shape[0]):
        begin, end, count = pieces[piece, 1], pieces[piece, 2], counts[piece]
        to_left, to_right = targets[piece, 0], targets[piece, 1]
        rows[to_left : to_left + count] = scratch[begin : begin + count]
        for i in range(end - begin - count):  # they are in reverse
            rows[to_right + i] = scratch[end - 1 - i]


@loop
def last_child(columns):
    """The highest right child of splits, or 1."""
    last = np.int64(1)
    for at in range(columns.shape[1]):
        last = max(last, np.int64(columns[LEFT, at]) + 1)
    return last


@loop
def list_leaves(columns, leaves, output_roots, tree):
    """The leaves of one of the `output_roots` trees of each output: the last split that splits it or NO_LEAF,
    the node, the output and the place, all int64."""
    # Roots are numbered by output, then by tree: root = output * output_roots + tree.
    split_of, count = np.full(leaves.shape[0], NO_LEAF), 0
    for at in range(columns.shape[1]):
        split_of[columns[PARENT, at]] = at
    splits, nodes, outputs = np.empty_like(split_of), np.empty_like(split_of), np.empty_like(split_of)
    places = np.empty(leaves.shape, np.int64)
    for node in range(leaves.shape[0]):
        if leaves[node, 0] != NO_LEAF and leaves[node, 2] % output_roots == tree:
            splits[count], nodes[count] = split_of[node], node
            outputs[count], places[count] = leaves[node, 2] // output_roots, leaves[node]
            count += 1
    return splits[:count], nodes[:count], outputs[:count], places[:count]


@loop
def match_values(columns, leaves, value_nodes, values, by_node):
    """Write the leaf values after these splits to by_node, float64 of each node. Returns False unless every
    such leaf has exactly one value, and no other node has one."""
    # Invariant: due[node] is True for a leaf after these splits that has no value so far.
    due = leaves[:, 0] != NO_LEAF
    for at in range(columns.shape[1]):
        due[columns[PARENT, at]], due[columns[LEFT, at]], due[columns[LEFT, at] + 1] = False, True, True
    for number in range(value_nodes.size):
        leaf = value_nodes[number]
        if not 0 <= leaf < due.size or not due[leaf]:
            return False
        due[leaf] = False
        by_node[leaf] = values[number]
    return not due.any()


@loop
def move_margins(
    columns,
    categories,
    value_bins,
    missing,
    categorical,
    by_feature,
    rows,
    split_of,
    leaf_of,
    outputs,
    by_node,
    pieces,
    margin,
):
    """margin[output, row] += the value of the row's leaf, for the rows of these pieces. For each leaf of the
    list: its node, its output, and its last split or NO_LEAF. by_node: float64 of each node."""
    goes_left, value_of_code = np.empty(MAX_CODES, np.uint8), np.empty(MAX_CODES, np.float64)
    for piece in range(pieces.shape[0]):
        number, begin, end = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2]
        at, own = split_of[number], margin[outputs[number]]
        if at == NO_LEAF:
            value = by_node[leaf_of[number]]
            for i in range(begin, end):
                own[rows[i]] += value
            continue
        _fill_table(goes_left, at, columns, categories, value_bins, missing, categorical)
        for code in range(MAX_CODES):
            # The last splits of a tree move no rows: the code decides which child's value a row gets.
            value_of_code[code] = by_node[columns[LEFT, at] if goes_left[code] else columns[LEFT, at] + 1]
        codes = by_feature[columns[BY, at]]
        for i in range(begin, end):
            own[rows[i]] += value_of_code[codes[rows[i]]]
