"""Compiled loops of the protections: they pack, add and mask cells of 1 to 64 bits, and draw Gaussian noise.

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

ADDED, SUBTRACTED = np.uint64(0), np.uint64(2**64 - 1)
"""Values of `flip`: (cell ^ flip) - flip is the cell, or its negative modulo 2**64."""


@_loop
def _add_rows(total, packed, first, last, lanes, bits, flip):
    """Add the rows `first` to `last` - 1, whose cells and words are at the start of `total` and `packed`.
    Bits above a cell's width are not cleared: they only affect higher bits, which `sign` discards."""
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
def _pack_rows(total, packed, rows, lanes, bits):
    """Pack the first `rows` rows of `lanes` cells."""
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
    """Add packed cells to `total` in place, cell by cell, modulo 2**64. Only the low `bits` bits of each
    result are meaningful. total: uint64 [cells]; packed: uint64 [words]; pieces: int64 [P, 2], the number of
    cells and the bits per cell of each piece; flip: ADDED, or SUBTRACTED to subtract the cells."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        for rows, lanes in ((64 * (cells > 63), cells >> 6), (cells & 63, 1)):
            _add_rows(total[cell:], packed[word:], 0, rows, lanes, bits, flip)
            cell, word = cell + rows * lanes, word + ((rows * bits + 63) >> 6) * lanes


@_loop
def pack(total, packed, pieces):
    """Write the low `bits` bits of each cell of `total` to `packed`, which is overwritten. The arrays are as
    in `add`."""
    cell, word = 0, 0
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        for rows, lanes in ((64 * (cells > 63), cells >> 6), (cells & 63, 1)):
            _pack_rows(total[cell:], packed[word:], rows, lanes, bits)
            cell, word = cell + rows * lanes, word + ((rows * bits + 63) >> 6) * lanes


# ---- Masks: keystreams of AES-256 in counter mode, added to cells while they are in the cache ------------
# Only the CPU's AES instructions encrypt, so times do not depend on keys. Block i of a stream is the
# encryption of i + 2 as 16 bytes, big-endian, as in GCM with an all-zero nonce. So no block repeats under a
# key (docs/decisions/0066-masks-in-one-loop.md).


_FEATURES = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
_SETS = ({"+vaes", "+avx512f"}, 8), ({"+vaes"}, 4), ({"+aes", "+sse2"}, 2), (set[str](), 0)
LANES = next(lanes for features, lanes in _SETS if features <= _FEATURES)
"""Number of words that one instruction encrypts. If it is 0, numba does not compile for such instructions.
LLVM would abort the process, so `mask` must not be called then."""
ROUNDS, VECTORS, WINDOW = 14, 8, 1 << 13
"""Rounds of AES-256; vectors encrypted at once, to hide latency; words made before they are added."""
BATCH = LANES * VECTORS
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _aes(builder, last, state, key):
    """Compute one round of AES on each two words of `state`."""
    kind, width = state.type, "" if state.type.count == 2 else f".{64 * state.type.count}"
    name, of = f"llvm.x86.aesni.aesenc{'last' * last}{width}", ir.FunctionType(kind, [kind, kind])
    return builder.call(builder.module.declare_intrinsic(name, (), of), [state, key])


@intrinsic
def _encrypt(typingctx, keys, block, out, at):
    """Write BATCH words of a keystream to out[at:], from a block on. keys: uint64 [30], the round keys."""

    def codegen(context, builder, signature, args):
        pair, vector = ir.VectorType(_I64, 2), ir.VectorType(_I64, LANES)
        kinds, even = signature.args, ir.Constant(ir.VectorType(_I32, LANES), [0, 1] * (LANES // 2))
        keys, out = (context.make_array(kinds[n])(context, builder, args[n]).data for n in (0, 2))
        numbers = builder.insert_element(ir.Constant(pair, [0, 0]), args[1], _I32(1))
        numbers = builder.shuffle_vector(numbers, numbers, even)
        name, of = f"llvm.bswap.v{LANES}i64", ir.FunctionType(vector, [vector])
        swap = builder.module.declare_intrinsic(name, (), of)
        states = []
        for first in range(0, BATCH // 2, LANES // 2):
            ahead = [number for place in range(LANES // 2) for number in (0, first + place)]
            states.append(builder.call(swap, [builder.add(numbers, ir.Constant(vector, ahead))]))
        for turn in range(ROUNDS + 1):
            at = builder.bitcast(builder.gep(keys, [_I64(2 * turn)]), pair.as_pointer())
            key = builder.load(at, align=8)
            key, last = builder.shuffle_vector(key, key, even), turn == ROUNDS
            states = [_aes(builder, last, one, key) if turn else builder.xor(one, key) for one in states]
        for number, state in enumerate(states):
            to = builder.gep(out, [builder.add(args[3], _I64(number * LANES))])
            builder.store(state, builder.bitcast(to, vector.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(keys, types.int64, out, types.int64), codegen


@intrinsic
def _substituted(typingctx, words):
    """Compute AES's SubWord of a 32-bit word, which is twice in `words`. Returns uint32."""

    def codegen(context, builder, signature, args):
        # The last round also shifts rows, which changes nothing if all columns are equal.
        zero = ir.Constant(ir.VectorType(_I64, 2), [0, 0])
        state = builder.insert_element(builder.insert_element(zero, args[0], _I32(0)), args[0], _I32(1))
        return builder.trunc(builder.extract_element(_aes(builder, True, state, zero), _I32(0)), _I32)

    return types.uint32(types.uint64), codegen


@_loop
def _expand(key, out):
    """Write the round keys of a key, uint32 [8], to `out`, uint32 [60] (FIPS 197, section 5.2)."""
    out[:8] = key
    for i in range(8, out.size):
        word = np.uint64(out[i - 1])
        if i % 4 == 0:
            word = np.uint64(_substituted(word * np.uint64(0x100000001)))
        if i % 8 == 0:
            word = ((word >> np.uint64(8)) ^ np.uint64(1 << (i // 8 - 1))) | (word << np.uint64(24))
        out[i] = out[i - 8] ^ np.uint32(word & np.uint64(0xFFFFFFFF))


@_loop
def mask(total, keys, added, pieces, start):
    """Add keystreams to `total`, or subtract them, as `add` does with packed cells.

    keys: uint32 [S, 8]; added: bool [S], False to subtract a stream; start: index of the streams' first word
    for these cells; the other arrays are as in `add`."""
    schedules = np.empty((keys.shape[0], 60), np.uint32)
    for stream in range(keys.shape[0]):
        _expand(keys[stream], schedules[stream])
    flips, rounds = np.where(added, ADDED, SUBTRACTED), schedules.view(np.uint64)
    window = np.empty(16 + max(WINDOW, pieces[:, 0].max() >> 5) + BATCH, np.uint64)
    window = window[(-window.ctypes.data >> 3) & 7 :]  # vectors that cross no cache line are added faster
    cell, word = 0, start
    for piece in range(pieces.shape[0]):
        cells, bits = pieces[piece, 0], pieces[piece, 1]
        for rows, lanes in ((64 * (cells > 63), cells >> 6), (cells & 63, 1)):
            first = 0
            while first < rows:
                # Rows whose words fit into the window: at least one, as a row has words of at most two rows
                # of words. If the next rows need the last row of words, too, it is made again.
                begin = (first * bits) >> 6
                last = min(rows, 64 * (begin + max(WINDOW // lanes, 2)) // bits)
                at, end = word + begin * lanes, word + ((last * bits + 63) >> 6) * lanes
                out = window[8 - (at & 1) :]
                for stream in range(keys.shape[0]):
                    for done in range(0, end - at + (at & 1), BATCH):
                        _encrypt(rounds[stream], 2 + ((at + done) >> 1), out, done)
                    part = total[cell + first * lanes :]
                    _add_rows(part, window[8:], first, last, lanes, bits, flips[stream])
                first = last
            cell, word = cell + rows * lanes, word + ((rows * bits + 63) >> 6) * lanes
    schedules[:] = 0  # so that freed memory has no keys of earlier turns


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
