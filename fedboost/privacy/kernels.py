"""Compiled loops of the protections: cells of any number of bits, packed, added and subtracted.

Promises: what the references in tests/privacy/reference/kernels.py compute, without temporary arrays, at the
pace of memory, and without the lock of the interpreter.
Refuses nothing: callers have validated the lengths.

`pieces` is int64 [P, 2]: the cells and the bits of each piece, one piece after the other in `total` (uint64,
a word a cell) and in `packed` (uint64, ceil(cells * bits / 64) words a piece). In a piece of 64 L + r cells
the first 64 L are 64 rows of L cells: lane l is the cells l, L + l, 2 L + l, ..., a stream of bits, lowest
first, of which word k is word k L + l of the piece; so the same shift holds for a whole row, and processors
do several lanes at once. The r others are one more stream, behind the lanes."""

import numpy as np

from fedboost.kernel_cache import kernel

_loop = kernel(nogil=True)

MANY_LANES = 16
"""Lanes from which on processors are faster with a row of them at a time."""


@_loop
def _add_lanes(total, packed, rows, lanes, bits):
    """total += the first `rows` rows of `lanes` cells, lane after lane; what stands above a cell's bits is
    not cleared."""
    width, full = np.uint64(bits), np.uint64(64)
    for lane in range(lanes):
        word, used, held = lane - lanes, full, np.uint64(0)
        for row in range(rows):
            if used == full:
                word, used = word + lanes, np.uint64(0)
                held = packed[word]
            cell = held >> used
            used += width
            if used > full:
                word, used = word + lanes, used - full
                held = packed[word]
                cell |= held << (width - used)
            total[row * lanes + lane] += cell


@_loop
def _add_rows(total, packed, rows, lanes, bits):
    """As `_add_lanes`, but row after row: several lanes at once where there are many."""
    if lanes < MANY_LANES:
        _add_lanes(total, packed, rows, lanes, bits)
        return
    for row in range(rows):
        word, shift = (row * bits) >> 6, np.uint64((row * bits) & 63)
        cells = total[row * lanes : (row + 1) * lanes]
        low = packed[word * lanes : (word + 1) * lanes]
        if np.int64(shift) + bits <= 64:
            for lane in range(lanes):
                cells[lane] += low[lane] >> shift
        else:
            high = packed[(word + 1) * lanes : (word + 2) * lanes]
            rest = np.uint64(64) - shift
            for lane in range(lanes):
                cells[lane] += (low[lane] >> shift) | (high[lane] << rest)


@_loop
def _subtract_rows(total, packed, rows, lanes, bits):
    """As `_add_rows`, but subtracted."""
    for row in range(rows):
        word, shift = (row * bits) >> 6, np.uint64((row * bits) & 63)
        cells = total[row * lanes : (row + 1) * lanes]
        low = packed[word * lanes : (word + 1) * lanes]
        if np.int64(shift) + bits <= 64:
            for lane in range(lanes):
                cells[lane] -= low[lane] >> shift
        else:
            high = packed[(word + 1) * lanes : (word + 2) * lanes]
            rest = np.uint64(64) - shift
            for lane in range(lanes):
                cells[lane] -= (low[lane] >> shift) | (high[lane] << rest)


@_loop
def _pack_lanes(total, packed, rows, lanes, bits):
    """The rows as streams of bits, lane after lane."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    width, full = np.uint64(bits), np.uint64(64)
    for lane in range(lanes):
        word, used, held = lane, np.uint64(0), np.uint64(0)
        for row in range(rows):
            cell = total[row * lanes + lane] & mask
            held |= cell << used
            used += width
            if used >= full:
                packed[word] = held
                word, used = word + lanes, used - full
                held = cell >> (width - used) if used else np.uint64(0)
        if used:
            packed[word] = held


@_loop
def _pack_rows(total, packed, rows, lanes, bits):
    """As `_pack_lanes`, but row after row: several lanes at once where there are many."""
    if lanes < MANY_LANES:
        _pack_lanes(total, packed, rows, lanes, bits)
        return
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    for row in range(rows):
        word, shift = (row * bits) >> 6, np.uint64((row * bits) & 63)
        cells = total[row * lanes : (row + 1) * lanes]
        low = packed[word * lanes : (word + 1) * lanes]
        if shift == 0:
            for lane in range(lanes):
                low[lane] = cells[lane] & mask
        else:
            for lane in range(lanes):
                low[lane] |= (cells[lane] & mask) << shift
        if np.int64(shift) + bits > 64:
            high = packed[(word + 1) * lanes : (word + 2) * lanes]
            rest = np.uint64(64) - shift
            for lane in range(lanes):
                high[lane] = (cells[lane] & mask) >> rest


@_loop
def add(total, packed, pieces):
    """total += packed, cell by cell modulo 2**64: the low bits of each cell are right."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        _add_rows(total[cell:], packed[word:], 64, lanes, bits)
        _add_rows(total[cell + 64 * lanes :], packed[word + bits * lanes :], rest, 1, bits)
        cell, word = cell + cells, word + bits * lanes + ((rest * bits + 63) >> 6)


@_loop
def subtract(total, packed, pieces):
    """total -= packed; as `add`."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        _subtract_rows(total[cell:], packed[word:], 64, lanes, bits)
        _subtract_rows(total[cell + 64 * lanes :], packed[word + bits * lanes :], rest, 1, bits)
        cell, word = cell + cells, word + bits * lanes + ((rest * bits + 63) >> 6)


@_loop
def pack(total, packed, pieces):
    """packed = the low bits of each cell of total."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        _pack_rows(total[cell:], packed[word:], 64, lanes, bits)
        _pack_rows(total[cell + 64 * lanes :], packed[word + bits * lanes :], rest, 1, bits)
        cell, word = cell + cells, word + bits * lanes + ((rest * bits + 63) >> 6)


@_loop
def _choose(total, pieces, bitmap, chosen, counts):
    """Select the nonzero cells: bit i of `bitmap` (uint64, all 0 before) is cell i, `chosen` has them in
    order and one element more, `counts` (int64 [P, 2]) has the number in each piece, and their bits."""
    cell, count = 0, 0
    for piece in range(pieces.shape[0]):
        before = count
        for i in range(cell, cell + pieces[piece, 0]):
            nonzero = np.int64(total[i] != 0)
            bitmap[i >> 6] |= np.uint64(nonzero) << np.uint64(i & 63)
            chosen[count] = total[i]  # without a branch, which no processor would predict
            count += nonzero
        cell += pieces[piece, 0]
        counts[piece, 0], counts[piece, 1] = count - before, pieces[piece, 1]


@_loop
def _count_chosen(bitmap, pieces, counts):
    """Fill `counts` as `_choose` does, from its bitmap. Returns the number of chosen cells."""
    cell, count = 0, 0
    for piece in range(pieces.shape[0]):
        before = count
        for i in range(cell, cell + pieces[piece, 0]):
            count += np.int64((bitmap[i >> 6] >> np.uint64(i & 63)) & np.uint64(1))
        cell += pieces[piece, 0]
        counts[piece, 0], counts[piece, 1] = count - before, pieces[piece, 1]
    return count


@_loop
def _add_chosen(total, bitmap, chosen):
    """Add the chosen cells at their positions; `chosen` has one more behind them, of any value."""
    count = 0
    for i in range(total.size):
        nonzero = (bitmap[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
        total[i] += chosen[count] * nonzero
        count += np.int64(nonzero)


LONG_BITMAP = -(1 << 62)
"""Returned by `add_sparsely` for a bitmap with more bits than there are cells."""


@_loop
def _count_words(pieces):
    """The words that pieces take."""
    words = 0
    for piece in range(pieces.shape[0]):
        words += (pieces[piece, 0] * pieces[piece, 1] + 63) >> 6
    return words


@_loop
def pack_sparsely(total, packed, pieces, most):
    """packed = a bitmap of the nonzero cells, and those cells; or all cells, where more than `most` are not
    zero or that is no shorter. Returns the number of words."""
    nonzero = 0
    for cell in range(total.size):
        nonzero += np.int64(total[cell] != 0)
    start = (total.size + 63) >> 6
    if nonzero <= most:
        chosen, counts = np.empty(total.size + 1, np.uint64), np.empty_like(pieces)
        packed[:start] = 0
        _choose(total, pieces, packed, chosen, counts)
        words = start + _count_words(counts)
        if words < packed.size:
            pack(chosen, packed[start:], counts)
            return words
    pack(total, packed, pieces)
    return packed.size


@_loop
def add_sparsely(total, packed, pieces):
    """Add what `pack_sparsely` wrote behind a bitmap. Returns the number n of cells; LONG_BITMAP, or ~n where
    the words behind the bitmap are not those of n cells, and then adds nothing."""
    start, spare = (total.size + 63) >> 6, total.size & 63
    if spare and packed[start - 1] >> np.uint64(spare):
        return np.int64(LONG_BITMAP)
    counts = np.empty_like(pieces)
    count = _count_chosen(packed, pieces, counts)
    if packed.size != start + _count_words(counts):
        return ~count
    chosen = np.zeros(count + 1, np.uint64)
    add(chosen, packed[start:], counts)
    _add_chosen(total, packed, chosen)
    return count


@_loop
def sign(cells, pieces):
    """Take the sign of each cell, int64 in place, from the highest of its bits."""
    cell = 0
    for piece in range(pieces.shape[0]):
        spare = 64 - pieces[piece, 1]
        for i in range(cell, cell + pieces[piece, 0]):
            cells[i] = (cells[i] << spare) >> spare
        cell += pieces[piece, 0]


# ---- discrete Gaussians -----------------------------------------------------------------------------
#
# Every choice is one of a whole number below another, so the distribution is exact (Canonne, Kamath and
# Steinke 2020, with t = sigma; their fractions are split so that no number is beyond 64 bits). `at` is int64
# [1], the position of the next of `words`; beyond their end they have run out, and the result is discarded.


@_loop
def _below(words, at, bound):
    """A uniform whole number below `bound`."""
    mask = np.uint64(bound - 1)
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    while at[0] < words.size:
        value = np.int64(words[at[0]] & mask)
        at[0] += 1
        if value < bound:
            return value
    at[0] = words.size + 1
    return np.int64(0)


@_loop
def _falls(words, at, part, whole):
    """True with probability exp(-part / whole), 0 <= part <= whole."""
    k = 1
    while at[0] <= words.size and _below(words, at, whole) < part and _below(words, at, k) == 0:
        k += 1
    return k % 2 == 1


@_loop
def _falls_squared(words, at, part, whole):
    """True with probability exp(-(part / whole)**2 / 2), 0 <= part <= whole."""
    k = 1
    while (
        at[0] <= words.size
        and _below(words, at, whole) < part
        and _below(words, at, whole) < part
        and _below(words, at, 2 * k) == 0
    ):
        k += 1
    return k % 2 == 1


@_loop
def _stays(words, at, off, sigma):
    """True with probability exp(-(off / sigma)**2 / 2): of off = q sigma + r, factor by factor."""
    times, rest = off // sigma, off % sigma
    for _ in range(times * times):
        if not _falls(words, at, 1, 2):
            return False
    for _ in range(times):
        if not _falls(words, at, rest, sigma):
            return False
    return _falls_squared(words, at, rest, sigma)


@_loop
def _gaussian(words, at, sigma):
    while at[0] <= words.size:
        near = _below(words, at, sigma)
        if not _falls(words, at, near, sigma):
            continue
        far = 0
        while at[0] <= words.size and _falls(words, at, 1, 1):
            far += 1
        size = near + sigma * far
        negative = _below(words, at, 2) == 1
        if not (negative and size == 0) and _stays(words, at, abs(size - sigma), sigma):
            return -size if negative else size
    return 0


@_loop
def gaussians(words, sigma, out):
    """Fill `out`, int64 [N], with discrete Gaussians from uint64 words, as far as they suffice. Returns the
    numbers filled and the words used. sigma: a whole number, at most 2**61."""
    at = np.zeros(1, np.int64)
    for i in range(out.size):
        begin = at[0]
        value = _gaussian(words, at, sigma)
        if at[0] > words.size:
            return i, begin
        out[i] = value
    return out.size, at[0]
