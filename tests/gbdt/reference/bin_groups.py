"""Groups of bins, of lists."""


def holds(rows, least):
    """rows: of each node."""
    return all(count == 0 or count >= least for count in rows)


def added(groups):
    """The rows of groups together, node by node."""
    return [sum(rows) for rows in zip(*groups, strict=True)]


def neighbours(apart, counts, least):
    """The marks of a numeric feature: groups of bins, each closed once it holds; those left over at the end
    join the last ones until they hold together."""
    begins = [b for b, mark in enumerate(apart) if mark or b == 0]
    groups = [added(counts[a:b]) for a, b in zip(begins, [*begins[1:], len(counts)], strict=True)]
    closed, open_ = [], []
    for begin, rows in zip(begins, groups, strict=True):
        open_.append((begin, rows))
        if holds(added([r for _, r in open_]), least):
            closed.append(open_)
            open_ = []
    while open_ and closed and not holds(added([r for _, r in open_]), least):
        open_ = closed.pop() + open_
    starts = {group[0][0] for group in [*closed, open_] if group}
    return [b in starts for b in range(len(counts))]


def levels(apart, counts, least, missing):
    """The marks of a categorical feature, missing values behind its levels if `missing`."""
    joined = {b for b, mark in enumerate(apart) if not mark or not holds(counts[b], least)}
    if joined and missing:
        joined.add(len(counts) - 1)
    while joined and not holds(added([counts[b] for b in joined]), least):
        others = [(sum(rows), b) for b, rows in enumerate(counts) if b not in joined and sum(rows)]
        if not others:
            break
        joined.add(min(others)[1])
    return [b not in joined for b in range(len(counts))]


def join_bins(apart, counts, sizes, missing, categorical, least):
    """The marks of all features; counts: of bins, then of nodes."""
    out, first = [], 0
    for size, has_missing, has_levels in zip(sizes, missing, categorical, strict=True):
        own = list(apart[first : first + size]), [list(rows) for rows in counts[first : first + size]]
        first += size
        out += levels(*own, least, has_missing) if has_levels else neighbours(*own, least)
    return out


def count_bins(codes, rows, sizes):
    """How many distinct rows each bin has."""
    return [sum(codes[f][row] == b for row in set(rows)) for f, size in enumerate(sizes) for b in range(size)]
