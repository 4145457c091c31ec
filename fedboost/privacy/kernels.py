"""Compiled loops of the protections: they pack, add and subtract cells of 1 to 64 bits, and draw Gaussian
noise.

Guarantees: the results equal the results of the reference implementations in
tests/privacy/reference/kernels.py. The loops need no temporary arrays, run at memory speed, and do not hold
the interpreter lock. Callers must validate the lengths first.

`pieces`, int64 [P, 2], contains the number of cells and the bits per cell of each piece. Pieces are
consecutive in `total` (uint64, one word per cell) and in `packed` (uint64, ceil(cells * bits / 64) words per
piece). In a piece of 64 L + r cells, the first 64 L cells are 64 rows of L cells. Lane l consists of cells l,
L + l, 2 L + l, ... It is a stream of bits, lowest first, whose word k is word k L + l of the piece. So one
shift applies to a whole row, and processors handle several lanes at once. The remaining r cells form one more
stream after the lanes."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from fedboost.kernel_cache import kernel

_loop = kernel(nogil=True)

MANY_LANES = 16
"""Minimum number of lanes for which loops over rows are faster than loops over lanes."""
ADDED, SUBTRACTED = np.uint64(0), np.uint64(2**64 - 1)
"""Values of `flip`: (cell ^ flip) - flip is the cell, or its negative modulo 2**64."""


@_loop
def _add_lanes(total, packed, rows, lanes, bits, flip):
    """Add the first `rows` rows of `lanes` packed cells to `total`, lane by lane. Bits above a cell's width
    are not cleared: they only affect higher bits, which `sign` discards."""
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
            total[row * lanes + lane] += (cell ^ flip) - flip


@_loop
def _add_rows(total, packed, first, last, lanes, bits, flip):
    """Like `_add_lanes`, but row by row, so that processors handle several lanes at once. Adds the rows
    `first` to `last` - 1; `total` and `packed` begin with the cells and words of row `first`."""
    before = (first * bits) >> 6
    for row in range(first, last):
        word, shift = ((row * bits) >> 6) - before, np.uint64((row * bits) & 63)
        cells = total[(row - first) * lanes : (row - first + 1) * lanes]
        low = packed[word * lanes : (word + 1) * lanes]
        if np.int64(shift) + bits <= 64:
            for lane in range(lanes):
                cells[lane] += ((low[lane] >> shift) ^ flip) - flip
        else:
            high = packed[(word + 1) * lanes : (word + 2) * lanes]
            rest = np.uint64(64) - shift
            for lane in range(lanes):
                cells[lane] += (((low[lane] >> shift) | (high[lane] << rest)) ^ flip) - flip


@_loop
def _pack_lanes(total, packed, rows, lanes, bits):
    """Pack the first `rows` rows of `lanes` cells as streams of bits, lane by lane."""
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
    """Like `_pack_lanes`, but row by row if there are many lanes, so that processors handle several lanes at
    once."""
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
def add(total, packed, pieces, flip):
    """Add packed cells to `total` in place, cell by cell, modulo 2**64, or subtract them (`flip`). Only the low `bits`
    bits of each result are meaningful. total: uint64 [cells]; packed: uint64 [words]; pieces: int64 [P, 2],
    the number of cells and the bits per cell of each piece;"""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        if lanes < MANY_LANES:
            _add_lanes(total[cell:], packed[word:], 64, lanes, bits, flip)
        else:
            _add_rows(total[cell:], packed[word:], 0, 64, lanes, bits, flip)
        _add_lanes(total[cell + 64 * lanes :], packed[word + bits * lanes :], rest, 1, bits, flip)
        cell, word = cell + cells, word + bits * lanes + ((rest * bits + 63) >> 6)


@_loop
def pack(total, packed, pieces):
    """Write the low `bits` bits of each cell of `total` to `packed`, which is overwritten. The arrays are as
    in `add`."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        _pack_rows(total[cell:], packed[word:], 64, lanes, bits)
        _pack_rows(total[cell + 64 * lanes :], packed[word + bits * lanes :], rest, 1, bits)
        cell, word = cell + cells, word + bits * lanes + ((rest * bits + 63) >> 6)


# ---- Masks: keystreams of AES-256 in counter mode, added to cells while they are in the cache ------------
# Only the CPU's own instructions encrypt, so the time does not depend on keys. Block i of a stream is the
# encryption of i + 2 as 16 bytes, big-endian, as in GCM with an all-zero nonce (docs/decisions/0066).


_FEATURES = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
LANES = (
    8
    if {"+vaes", "+avx512f"} <= _FEATURES
    else 4
    if "+vaes" in _FEATURES
    else 2 * ({"+aes", "+sse2"} <= _FEATURES)
)
"""Number of words that one instruction encrypts. 0 if numba does not compile for AES instructions: LLVM would
abort the process, so `mask` must not be called."""
ROUNDS, REGISTERS, WINDOW = 14, 8, 1 << 13
"""Rounds of AES-256; vectors encrypted at once, to hide the instruction's latency; words of keystream that
are made before they are added, which fit into the cache."""
BATCH = LANES * REGISTERS
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_PAIR, _VECTOR = ir.VectorType(_I64, 2), ir.VectorType(_I64, max(LANES, 2))


def _aes(builder, last, state, key):
    """One round of AES on each pair of words."""
    kind = state.type
    name = f"llvm.x86.aesni.aesenc{'last' * last}" + {2: "", 4: ".256", 8: ".512"}[kind.count]
    aes = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind, kind]))
    return builder.call(aes, [state, key])


def _spread(builder, pair, kind):
    """Repeat a pair of words in a vector."""
    return builder.shuffle_vector(
        pair, pair, ir.Constant(ir.VectorType(_I32, kind.count), [0, 1] * (kind.count // 2))
    )


@intrinsic
def _encrypt(typingctx, keys, block, out, at):
    """Write BATCH words of keystream to out[at:], from this block on. keys: uint64 [30], round keys."""

    def codegen(context, builder, signature, args):
        kinds = signature.args
        keys, out = (context.make_array(kinds[n])(context, builder, args[n]).data for n in (0, 2))
        name = f"llvm.bswap.v{_VECTOR.count}i64"
        swap = builder.module.declare_intrinsic(name, (), ir.FunctionType(_VECTOR, [_VECTOR]))
        zero = ir.Constant(_PAIR, [0, 0])
        block = _spread(builder, builder.insert_element(zero, args[1], _I32(1)), _VECTOR)
        states = []
        for first in range(0, BATCH // 2, LANES // 2):
            ahead = [number for place in range(LANES // 2) for number in (0, first + place)]
            states.append(builder.call(swap, [builder.add(block, ir.Constant(_VECTOR, ahead))]))
        for turn in range(ROUNDS + 1):
            pair = builder.bitcast(builder.gep(keys, [_I64(2 * turn)]), _PAIR.as_pointer())
            key = _spread(builder, builder.load(pair, align=8), _VECTOR)
            states = [
                _aes(builder, turn == ROUNDS, state, key) if turn else builder.xor(state, key)
                for state in states
            ]
        for number, state in enumerate(states):
            to = builder.gep(out, [builder.add(args[3], _I64(number * LANES))])
            builder.store(state, builder.bitcast(to, _VECTOR.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(keys, types.int64, out, types.int64), codegen


@intrinsic
def _substituted(typingctx, word):
    """AES's SubWord, of a 32-bit word that is in both halves of `word`."""

    def codegen(context, builder, signature, args):
        # The last round shifts rows, which changes nothing if all four columns of the state are equal.
        zero = ir.Constant(_PAIR, [0, 0])
        state = _spread(builder, builder.insert_element(zero, args[0], _I32(0)), _PAIR)
        state = builder.shuffle_vector(state, state, ir.Constant(ir.VectorType(_I32, 2), [0, 0]))
        return builder.extract_element(_aes(builder, True, state, zero), _I32(0))

    return types.uint64(types.uint64), codegen


@_loop
def _expand(key, out):
    """Write the round keys of a key, uint32 [8], to `out`, uint32 [60] (FIPS 197, section 5.2)."""
    out[:8] = key
    constant = np.uint32(1)
    for i in range(8, out.size):
        word = out[i - 1]
        if i % 8 == 0:
            word = np.uint32((word >> np.uint32(8)) | (word << np.uint32(24)))
        if i % 4 == 0:
            word = np.uint32(_substituted(np.uint64(word) * np.uint64(0x100000001)) & np.uint64(0xFFFFFFFF))
        if i % 8 == 0:
            word ^= constant
            constant = np.uint32(constant << np.uint32(1))
        out[i] = out[i - 8] ^ word


@_loop
def _mask_rows(total, window, schedule, start, first, last, lanes, bits, flip):
    """Add rows of a keystream's cells, as `_add_rows` does. start: index of the first row's first word."""
    odd, rows = start & 1, ((last * bits + 63) >> 6) - ((first * bits) >> 6)
    out = window[8 - odd :]
    for at in range(0, odd + rows * lanes, BATCH):
        _encrypt(schedule, 2 + ((start + at) >> 1), out, at)
    if lanes < MANY_LANES:
        _add_lanes(total, window[8:], last, lanes, bits, flip)
    else:
        _add_rows(total, window[8:], first, last, lanes, bits, flip)


@_loop
def mask(total, keys, added, pieces, start):
    """Add keystreams to `total`, or subtract them, as `add` does with packed cells.

    keys: uint32 [S, 8]; added: bool [S], False to subtract a stream; start: index of the streams' first word
    for these cells; the other arrays are as in `add`."""
    flips = np.where(added, ADDED, SUBTRACTED)
    schedules = np.empty((keys.shape[0], 60), np.uint32)
    for stream in range(keys.shape[0]):
        _expand(keys[stream], schedules[stream])
    rounds = schedules.view(np.uint64)
    window = np.empty(16 + max(WINDOW, pieces[:, 0].max() >> 5) + BATCH, np.uint64)
    window = window[(-window.ctypes.data >> 3) & 7 :]  # vectors that cross no cache line are added faster
    cell, word = 0, start
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        lanes, rest = cells >> 6, cells & 63
        first = 0 if lanes else 64
        while first < 64:
            # Rows whose words fit into the window: at least one, as a row has words of at most two rows. A
            # word that the next rows need, too, is made again. A few lanes always fit.
            begin = (first * bits) >> 6
            last = min(64, 64 * (begin + max(WINDOW // lanes, 2)) // bits)
            part, at = total[cell + first * lanes :], word + begin * lanes
            for stream in range(keys.shape[0]):
                _mask_rows(part, window, rounds[stream], at, first, last, lanes, bits, flips[stream])
            first = last
        cell, word = cell + 64 * lanes, word + bits * lanes
        if rest:
            for stream in range(keys.shape[0]):
                _mask_rows(total[cell:], window, rounds[stream], word, 0, rest, 1, bits, flips[stream])
        cell, word = cell + rest, word + ((rest * bits + 63) >> 6)
    schedules[:] = 0  # an intruder finds no keys of earlier turns in freed memory


@_loop
def _choose(total, pieces, bitmap, chosen, counts):
    """Select the nonzero cells. Sets bit i of `bitmap` (uint64, initially zero) if cell i is nonzero. Writes
    the nonzero cells in order to `chosen`, which has one spare element. Writes the number of nonzero cells
    and the bits per cell of each piece to `counts`, int64 [P, 2]."""
    cell, count = 0, 0
    for piece in range(pieces.shape[0]):
        before = count
        for i in range(cell, cell + pieces[piece, 0]):
            nonzero = np.int64(total[i] != 0)
            bitmap[i >> 6] |= np.uint64(nonzero) << np.uint64(i & 63)
            chosen[count] = total[i]  # no branch, which processors could not predict
            count += nonzero
        cell += pieces[piece, 0]
        counts[piece, 0], counts[piece, 1] = count - before, pieces[piece, 1]


@_loop
def _count_chosen(bitmap, pieces, counts):
    """Fill `counts` as `_choose` does, but from a bitmap that `_choose` wrote. Returns the number of selected
    cells."""
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
    """Add the selected cells at their positions in `total`. `chosen` has a spare element of any value at its
    end."""
    count = 0
    for i in range(total.size):
        nonzero = (bitmap[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
        total[i] += chosen[count] * nonzero
        count += np.int64(nonzero)


LONG_BITMAP = -(1 << 62)
"""Returned by `add_sparsely` if bits beyond the last cell are set in the bitmap."""


@_loop
def _count_words(pieces):
    words = 0
    for piece in range(pieces.shape[0]):
        words += (pieces[piece, 0] * pieces[piece, 1] + 63) >> 6
    return words


@_loop
def pack_sparsely(total, packed, pieces, most):
    """Pack a bitmap that marks the nonzero cells, followed by the nonzero cells. Packs all cells instead if
    more than `most` are nonzero, or if the bitmap saves nothing. Returns the number of words written. packed:
    uint64 [words of all cells]; the other arrays are as in `add`."""
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
    """Add cells that `pack_sparsely` packed with a bitmap. Returns the number n of nonzero cells. If the
    input is malformed, nothing is added: returns LONG_BITMAP if bits beyond the last cell are set in the
    bitmap, or ~n if the number of words after the bitmap does not match n. The arrays are as in `add`."""
    start, spare = (total.size + 63) >> 6, total.size & 63
    if spare and packed[start - 1] >> np.uint64(spare):
        return np.int64(LONG_BITMAP)
    counts = np.empty_like(pieces)
    count = _count_chosen(packed, pieces, counts)
    if packed.size != start + _count_words(counts):
        return ~count
    chosen = np.zeros(count + 1, np.uint64)
    add(chosen, packed[start:], counts, ADDED)
    _add_chosen(total, packed, chosen)
    return count


@_loop
def sign(cells, pieces):
    """Sign-extend each cell in place from the highest of its bits. cells: int64 [cells]; pieces: int64 [P,
    2], as in `add`."""
    cell = 0
    for piece in range(pieces.shape[0]):
        spare = 64 - pieces[piece, 1]
        for i in range(cell, cell + pieces[piece, 0]):
            cells[i] = (cells[i] << spare) >> spare
        cell += pieces[piece, 0]


# ---- discrete Gaussians -----------------------------------------------------------------------------
#
# Every random choice draws a uniform integer below another. No float is involved, so the distribution is
# exact (Canonne, Kamath and Steinke 2020, with t = sigma; their fractions are split so that no number needs
# more than 64 bits). `at`, int64 [1], is the position of the next word. Once it is beyond the end, the words
# have run out and the result is discarded.


@_loop
def _below(words, at, bound):
    """Draw a uniform integer below `bound` by rejection. A modulo would be biased."""
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
    """Return True with probability exp(-part / whole), where 0 <= part <= whole.

    The loop passes step k with probability x / k, where x = part / whole, so the loop stops at an odd k with
    probability 1 - x + x**2 / 2! - ... = exp(-x) (von Neumann)."""
    k = 1
    while at[0] <= words.size and _below(words, at, whole) < part and _below(words, at, k) == 0:
        k += 1
    return k % 2 == 1


@_loop
def _falls_squared(words, at, part, whole):
    """Return True with probability exp(-(part / whole)**2 / 2), where 0 <= part <= whole."""
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
    """Return True with probability exp(-(off / sigma)**2 / 2).

    With off = q sigma + r, (off / sigma)**2 / 2 = q * q / 2 + q * (r / sigma) + (r / sigma)**2 / 2. Each term
    contributes a factor to the probability, and each factor is drawn separately."""
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
    # Proposes from a discrete Laplace distribution of scale sigma, and accepts in proportion to the ratio of
    # the two densities. A negative zero is rejected, or 0 would come up twice as often.
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
    """Fill `out`, int64 [N], with discrete Gaussian numbers drawn from random uint64 words, until `out` is
    full or the words run out. Returns how many numbers were drawn and how many words were used. sigma:
    standard deviation, an integer of at most 2**61."""
    at = np.zeros(1, np.int64)
    for i in range(out.size):
        begin = at[0]
        value = _gaussian(words, at, sigma)
        if at[0] > words.size:
            return i, begin
        out[i] = value
    return out.size, at[0]
