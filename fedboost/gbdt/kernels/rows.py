"""Row kernels: move the rows of split nodes to their children, divide rows among threads, and add leaf values
to margins.

Terms in this module:
- `rows` is uint32 [room], the row numbers of all leaves, one leaf after the other.
- A place is where a leaf's rows begin and end in `rows`, and the leaf's root: int64 [3].
- `leaves` is int64 [nodes, 3], the place of each node, or NO_LEAF and two more numbers if it is not a leaf.
- A piece is a range of one leaf's rows: the leaf's index in a list, begin and end, int64 [3].
- Splits are `columns`, int32 [5, S], and `categories`, uint8 [S, 32] (`tree.Splits`).
- `value_bins` is int64 [F], `missing` and `categorical` are bool [F] (`histogram.Layout`).
- `by_feature` is uint8 [F, N], the bins of all rows."""

import numpy as np

from fedboost.gbdt.kernels import loop
from fedboost.gbdt.kernels.bins import MAX_CODES

NO_LEAF = -1
PARENT, BY, LAST, MISSING, LEFT = range(5)
"""Rows of `columns`: node, feature, last bin that goes left, 1 if missing values go left, left child."""
SOUND, NODE, CHILDREN, FEATURE, BIN, CATEGORIES = range(6)
"""Faults of a split. SOUND means that there is none. Every other number stands for the part of the split that
is invalid in the growing tree."""


@loop
def count_up(rows):
    for i in range(rows.size):
        rows[i] = i


@loop
def mark_rows(rows, places, flags):
    """Write 1 for each row of these leaves. rows: see the module docstring; places: int64 [L, 3]; flags:
    uint8 [roots, rows of a root], updated in place."""
    for leaf in range(places.shape[0]):
        own = flags[places[leaf, 2]]
        for i in range(places[leaf, 0], places[leaf, 1]):
            own[rows[i]] = 1


@loop
def clear_bits(bits, out):
    """Write 1 for each bit that is not set, else 0. bits: uint8, eight rows per byte, highest bit first; out:
    uint8 [roots, rows], written."""
    flat, whole = out.reshape(-1), out.size // 8
    for at in range(whole):
        for bit in range(8):
            flat[8 * at + bit] = (bits[at] >> (7 - bit) & 1) ^ 1
    for place in range(8 * whole, out.size):
        flat[place] = (bits[place >> 3] >> (7 - (place & 7)) & 1) ^ 1


@loop
def cut_pieces(places, whole, pieces, edges):
    """Divide the rows of leaves into equal shares. If there are fewer than `whole` rows, all rows are in one
    share. Every leaf has at least one piece, even if it has no rows.

    Args:
        places: int64 [L, 3], places of the leaves.
        whole: minimum number of rows for several shares.
        pieces: int64 [L + shares or more, 3], receives the pieces.
        edges: int64 [shares + 1], receives the index of each share's first piece, followed by the number of
            pieces.
    """
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
    """Write the place of each listed node. Returns the index of the first node that is not a leaf, or L.

    nodes: int64 [L]; leaves: int64 [nodes, 3]; places: int64 [L, 3], receives the result."""
    for number in range(nodes.size):
        if not 0 <= nodes[number] < leaves.shape[0] or leaves[nodes[number], 0] == NO_LEAF:
            return number
        places[number] = leaves[nodes[number]]
    return nodes.size


@loop
def _fits(at, columns, categories, value_bins, categorical):
    """Return the fault of split number `at`, or SOUND. The split's nodes are not checked."""
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
    """Check splits, starting with number `first`, and stop before one that depends on a split already
    checked, such as the split of a child. All arrays are described in the module docstring; `leaves` has room
    for all children.

    Returns (end, fault): the end of the valid splits, and the fault of the next split, or SOUND."""
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
    """Set goes_left, uint8 [256], to 1 for bin codes that split number `at` sends left, else to 0."""
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
    """Replace a split node by its two children in `leaves`. left: number of the left child; count: number of
    rows that go left."""
    begin, end, root = leaves[node, 0], leaves[node, 1], leaves[node, 2]
    #     rows:   ... [begin    node           end) ...
    #             ... [begin  left  ) [right   end) ...
    #                               begin + count
    leaves[node, 0] = NO_LEAF
    leaves[left, 0], leaves[left, 1], leaves[left, 2] = begin, begin + count, root
    leaves[left + 1, 0], leaves[left + 1, 1], leaves[left + 1, 2] = begin + count, end, root


@loop
def _partition(codes, goes_left, rows, scratch):
    """Reorder `rows` stably and in place: rows that go left come first. Returns their number.

    codes: uint8 [N], bins of the split's feature; goes_left: uint8 [256]; rows, scratch: uint32 [n]."""
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
    """Write the rows that go left to the start of `scratch`, and the others to its end, in reverse order.
    Returns the number of rows that go left. The arguments are as in `_partition`."""
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
    columns, categories, first, leaves, value_bins, missing, categorical, by_feature, rows, scratch
):
    """Move the rows of split nodes to their children. Starts with split number `first` and stops at the first
    faulty split.

    Args:
        columns, categories, leaves, value_bins, missing, categorical, by_feature, rows: see the module
            docstring; `leaves` and `rows` are updated in place.
        first: number of the first split.
        scratch: uint32, as long as `rows`.

    Returns:
        (end, fault), the end of the splits that were applied, and the fault of the next split, or SOUND.
    """
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
    columns, categories, value_bins, missing, categorical, by_feature, rows, scratch, pieces, counts
):
    """Partition the rows of pieces into `scratch`, as `_partition_into_scratch` does. `rows` is only read.

    Args:
        columns, categories, value_bins, missing, categorical, by_feature, rows: see the module docstring.
        scratch: uint32, as long as `rows`, receives the rows of each piece in the piece's own range.
        pieces: int64 [P, 3], with the number of the split as leaf index.
        counts: int64 [P], receives the number of rows of each piece that go left.
    """
    goes_left = np.empty(MAX_CODES, np.uint8)
    for piece in range(pieces.shape[0]):
        at, begin, end = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2]
        _fill_table(goes_left, at, columns, categories, value_bins, missing, categorical)
        codes = by_feature[columns[BY, at]]
        counts[piece] = _partition_into_scratch(codes, goes_left, rows[begin:end], scratch[begin:end])


@loop
def grow_level(columns, leaves, pieces, counts, targets):
    """Replace all split nodes by their children in `leaves`, and find where in `rows` the rows of each piece
    belong.

    Args:
        columns: int32 [5, S].
        leaves: int64 [nodes, 3], updated in place.
        pieces, counts: int64 [P, 3] and [P], from `partition_level`.
        targets: int64 [P, 2], receives, for each piece, the index in `rows` of the first row that goes left
            and of the first row that goes right.
    """
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
    """Return the highest number of a right child of these splits, or 1 if there are none. columns: int32 [5,
    S]."""
    last = np.int64(1)
    for at in range(columns.shape[1]):
        last = max(last, np.int64(columns[LEFT, at]) + 1)
    return last


@loop
def list_leaves(columns, leaves, output_roots, tree):
    """List the leaves of one tree of every output.

    Args:
        columns: int32 [5, S].
        leaves: int64 [nodes, 3].
        output_roots: number of trees per output.
        tree: index of the tree, below `output_roots`.

    Returns:
        four int64 arrays with an entry for each leaf: the index in `columns` of the split that splits the
        leaf, or NO_LEAF; the leaf's node; its output; and its place, [L, 3].
    """
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
    """Write each leaf's value to by_node. Returns False unless every leaf of the tree after these splits has
    exactly one value, and no other node has one.

    Args:
        columns: int32 [5, S].
        leaves: int64 [nodes, 3].
        value_nodes, values: int64 [values] and float64 [values], nodes and their values.
        by_node: float64 [nodes], receives the values.
    """
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
    """Add to margin[output, row] the value of the row's leaf, for the rows of these pieces.

    Args:
        columns, categories, value_bins, missing, categorical, by_feature, rows: see the module docstring.
        split_of, leaf_of, outputs: int64 [L] each, the first three results of `list_leaves`.
        by_node: float64 [nodes], leaf values.
        pieces: int64 [P, 3], with indices into the list of leaves.
        margin: float64 [outputs, N], updated in place.
    """
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
