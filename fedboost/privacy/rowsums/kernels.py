"""Compiled loops for sums over encrypted rows: Montgomery products with AVX-512, if the CPU supports it."""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model

from fedboost.kernel_cache import kernel

# ---- Vectors of eight words, and AVX-512's 52-bit multiply-adds, which numba lacks ----------------------
# A vector has eight 64-bit lanes; each holds a limb of another number. The instructions vpmadd52luq and
# vpmadd52huq multiply the low 52 bits of two lanes and add the low or the high 52 bits of the 104-bit product
# to a 64-bit accumulator. They ignore bits 52 to 63 of a factor, so factors must be normalised limbs. In an
# accumulator these 12 bits are headroom: it holds 2**12 numbers below 2**52 before a carry is due.


LIMB_BITS = 52
LANES = 8
WORD_BITS = 64
MASK = (1 << LIMB_BITS) - 1
_VECTOR = ir.VectorType(ir.IntType(64), LANES)
_FEATURE = "avx512ifma"


def may_compile() -> bool:
    """Return True if this CPU has the AVX-512 instructions that the loops need, and numba compiles for it.
    Otherwise, LLVM would abort the process when the loops are compiled."""
    target = cpu_target.target_context.codegen().magic_tuple()
    return bool(binding.get_host_cpu_features().get(_FEATURE)) and f"+{_FEATURE}" in target[2].split(",")


class Vector(types.Type):
    """The numba type of a vector of eight 64-bit words."""

    def __init__(self):
        super().__init__("Vector")


VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


def _address(context, builder, kind, array, index):
    view = context.make_array(kind)(context, builder, array)
    return builder.gep(view.data, [index])


def _splat(builder, word):
    index = ir.Constant(ir.IntType(32), 0)
    vector = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, index)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(vector, vector, lanes)


def _constant(word):
    return ir.Constant(_VECTOR, [word] * LANES)


@intrinsic
def load(typingctx, array, index):
    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(address, _VECTOR.as_pointer()), align=8)

    return VECTOR(array, index), codegen


@intrinsic
def store(typingctx, array, index, vector):
    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], builder.bitcast(address, _VECTOR.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(array, index, vector), codegen


@intrinsic
def prefetch(typingctx, array, index):
    def codegen(context, builder, signature, args):
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(_address(context, builder, signature.args[0], *args), byte)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        )
        builder.call(hint, [address, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, index), codegen


@intrinsic
def spread(typingctx, word):
    def codegen(context, builder, signature, args):
        return _splat(builder, args[0])

    return VECTOR(types.uint64), codegen


def _multiply_add(name):
    """Return the intrinsic for total + the low (or high) 52 bits of (one mod 2**52) * (other mod 2**52)."""

    @intrinsic
    def multiply_add(typingctx, total, one, other):
        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

        return VECTOR(total, one, other), codegen

    return multiply_add


low = _multiply_add("llvm.x86.avx512.vpmadd52l.uq.512")
high = _multiply_add("llvm.x86.avx512.vpmadd52h.uq.512")


@intrinsic
def plus(typingctx, one, other):
    return VECTOR(one, other), lambda context, builder, signature, args: builder.add(*args)


@intrinsic
def carry_of(typingctx, vector):
    def codegen(context, builder, signature, args):
        return builder.lshr(args[0], _constant(LIMB_BITS))  # unsigned, so below 2**(64 - 52)

    return VECTOR(vector), codegen


@intrinsic
def limb_of(typingctx, vector):
    return VECTOR(vector), lambda context, builder, sig, args: builder.and_(args[0], _constant(MASK))


@intrinsic
def inverted(typingctx, vector):  # of a normalised limb v: 2**52 - 1 - v
    return VECTOR(vector), lambda context, builder, sig, args: builder.xor(args[0], _constant(MASK))


@intrinsic
def zero(typingctx):
    return VECTOR(), lambda context, builder, signature, args: _constant(0)


# ---- Compiled products modulo the square of a number n, eight at a time ---------------------------------
# Guarantees: the results equal those of Python's integers; the interpreter lock is not held. Callers have
# validated the arrays, and compile nothing here unless `may_compile` returns True. n is odd.
#
# Representation. A number x modulo n**2 is kept as two parts, x = x0 + n x1 modulo n**2, each with L =
# `limbs` limbs of 52 bits, lowest first: uint64 [2 * limbs]. Parts are not fully reduced: they are below 4 n,
# not n.
#
# Why R = 2**(52 L). Montgomery ("Modular multiplication without trial division", 1985) makes a number z
# divisible by R instead of reducing it modulo n. For q = z * (-1 / n) modulo R, z + q n is a multiple of R,
# and dividing it by R drops L limbs: no division by n, and no comparison, which would be a branch per lane.
# -1 / n modulo R exists as n is odd. So that factors of R do not pile up, x is kept as x R:
# (x R) (y R) / R = (x y) R. `enter` brings numbers into this form, `leave` takes them out of it.
#
# Why two parts. Modulo n**2, x y = x0 y0 + n (x0 y1 + x1 y0); the term n**2 x1 y1 vanishes. With q < R chosen
# so that x0 y0 + q n = R u,
#     x y / R = u + n ((x0 y1 + x1 y0 - q) / R)
# where the bracket is only needed modulo n: it is a second Montgomery product by n. For each pair of limbs
# the first takes four multiply-adds (low and high halves of x y and q n) and the second six: ten, where
# numbers of 2 L limbs and the modulus n**2 would take sixteen. -q without a borrow is R - 1 - q, whose limbs
# are those of q inverted, plus (1 - R) modulo n.
#
# Bounds of the parts. R is at least 256 n (`_SPARE_BITS` in sums.py). For parts of x and y below 4 n
#     u       = (x0 y0 + q n) / R                                    < (16 n**2 + R n) / R < 2 n
#     bracket = (R - 1 - q + (1 - R) % n + x0 y1 + x1 y0 + q' n) / R < (R + n + 32 n**2 + R n) / R < 2 n
# so results may be factors again, any number of times, without a final subtraction.
#
# Bounds of the limbs. Columns are summed up without carries and normalised once at the end. In the course of
# a product a column gets at most 4 L numbers below 2**52 in `_product`, 6 L in `_two_products`, the limb it
# starts with (below 2**53, from `_minus`) and one carry below 2**12. (6 L + 2) * 2**52 + 2**12 is below 2**64
# for L <= 682. The largest key, 8192 bits, has L = 158.
#
# In `work`, uint64, each vector of eight words holds a limb of eight numbers, one per lane. `constants` is
# uint64 [6, limbs]: n; (1 - R) modulo n; the two parts of R**2 modulo n**2; the two of R**3 modulo n**2.
# `inverse` is -1 / n modulo 2**52. `one` is R modulo n**2, the form of 1, as uint64 [2 * limbs].


_loop = kernel(nogil=True)


@_loop
def _product(work, x, y, out, q, modulus, inverse):
    """Compute out = (x y + q n) / R, and q. x, y, out and q are the positions in `work` of numbers with
    `modulus.size` vectors each."""
    limbs, minus = modulus.size, spread(inverse)
    for i in range(limbs):
        store(work, out + 8 * i, zero())
    # Step i with L = 3, where lo and hi are the halves of a product of two limbs:
    #     column    3           2                       1                       0
    #     out                   out[2]                  out[1]                  out[0]
    #     + xi y    hi(xi y2)   lo(xi y2) + hi(xi y1)   lo(xi y1) + hi(xi y0)   lo(xi y0)
    #     + qi n    hi(qi n2)   lo(qi n2) + hi(qi n1)   lo(qi n1) + hi(qi n0)   lo(qi n0)
    #     becomes   out[2]      out[1]                  out[0]                  a carry into column 1
    #
    # Before step i: out * 2**(52 i) = (the i lowest limbs of x) * y + (the i lowest limbs of q) * n, where
    # the columns of out may exceed 52 bits. So after the last step out * R = x y + q n.
    for i in range(limbs):
        xi, y0, n0 = load(work, x + 8 * i), load(work, y), spread(modulus[0])
        total = low(load(work, out), xi, y0)
        # `low` reads 52 bits of total, which is all that decides q's limb: total + qi n0 = 0 modulo 2**52.
        qi = low(zero(), total, minus)
        store(work, q + 8 * i, qi)
        carry = carry_of(low(total, qi, n0))  # all that is left of the lowest column
        for j in range(1, limbs):
            # Column j, stored at j - 1: the shift divides by 2**52. The high halves are of the limbs before.
            total = high(high(plus(load(work, out + 8 * j), carry), xi, y0), qi, n0)
            carry = zero()  # added once, to column 1
            y0, n0 = load(work, y + 8 * j), spread(modulus[j])
            store(work, out + 8 * j - 8, low(low(total, xi, y0), qi, n0))  # 4 more below 2**52: at most 4 L
        store(work, out + 8 * limbs - 8, plus(high(high(zero(), xi, y0), qi, n0), carry))  # 0 unless L = 1
    _normalise(work, out, limbs)


@_loop
def _two_products(work, x, y, z, w, out, q, modulus, inverse):
    """Compute out = (out + x y + z w + q n) / R, and q. Arguments are as in `_product`. Before the call,
    columns of `out` may have up to 53 bits."""
    limbs, minus = modulus.size, spread(inverse)
    for i in range(limbs):
        xi, zi = load(work, x + 8 * i), load(work, z + 8 * i)
        y0, w0, n0 = load(work, y), load(work, w), spread(modulus[0])
        total = low(low(load(work, out), xi, y0), zi, w0)
        qi = low(zero(), total, minus)
        store(work, q + 8 * i, qi)
        carry = carry_of(low(total, qi, n0))
        for j in range(1, limbs):
            total = plus(load(work, out + 8 * j), carry)
            carry = zero()
            total = high(high(high(total, xi, y0), zi, w0), qi, n0)
            y0, w0, n0 = load(work, y + 8 * j), load(work, w + 8 * j), spread(modulus[j])
            # 6 more below 2**52: at most 6 L, and what out held before.
            store(work, out + 8 * j - 8, low(low(low(total, xi, y0), zi, w0), qi, n0))
        total = high(high(high(zero(), xi, y0), zi, w0), qi, n0)
        store(work, out + 8 * limbs - 8, plus(total, carry))
    _normalise(work, out, limbs)


@_loop
def _normalise(work, out, limbs):
    # The number is below 4 n < R, so nothing is carried out of the highest limb.
    # A carry is below 2**12, and a column at most (6 L + 2) * 2**52: with L = 158 far below 2**64 - 2**12.
    carry = zero()
    for j in range(limbs):
        total = plus(load(work, out + 8 * j), carry)
        store(work, out + 8 * j, limb_of(total))
        carry = carry_of(total)


@_loop
def _minus(work, q, out, constants):
    """Compute out = R - 1 - q + (1 - R) modulo n. The result is not negative, and equals -q modulo n. Its
    columns have up to 53 bits, so it may be a summand but not a factor."""
    for j in range(constants.shape[1]):
        store(work, out + 8 * j, plus(inverted(load(work, q + 8 * j)), spread(constants[1, j])))


@_loop
def _multiply(work, x, y, out, q, constants, inverse):
    """Compute out = x y / R modulo n**2, for numbers that consist of two parts. `out` must not overlap x or
    y."""
    modulus, half = constants[0], 8 * constants.shape[1]
    # The order matters: the first product leaves its q in the room that the second uses as well, so `_minus`
    # reads it in between. The second product starts from these columns in the upper half of `out`.
    _product(work, x, y, out, q, modulus, inverse)
    _minus(work, q, out + half, constants)
    _two_products(work, x, y + half, x + half, y, out + half, q, modulus, inverse)


# ---- Numbers and lanes ------------------------------------------------------------------------------


@_loop
def _room(numbers, limbs):
    """Allocate zeroed memory for `numbers` numbers of two parts each, and for a q. Also returns the position
    of the first number, which is aligned to a cache line of 64 bytes."""
    # An address is a multiple of 8, as words are. -(address / 8) modulo 8 is the number of words up to the
    # next multiple of 64 bytes, at most 7, for which there is room. A vector is one cache line; none
    # straddles two.
    work = np.zeros((2 * numbers + 1) * LANES * limbs + LANES, np.uint64)
    return work, (-(work.ctypes.data >> 3)) & (LANES - 1)


@_loop
def _put(work, at, lane, number):
    #     work    [ limb 0 of lanes 0 - 7 ][ limb 1 of lanes 0 - 7 ][ ...
    # One instruction thus works on the same limb of eight numbers, and no carry crosses lanes.
    for j in range(number.size):
        work[at + LANES * j + lane] = number[j]


@_loop
def _get(work, at, lane, number):
    for j in range(number.size):
        number[j] = work[at + LANES * j + lane]


@_loop
def _to_limbs(words, limbs):
    """Split 64-bit words into limbs of 52 bits. There must be at least one word more than the limbs need."""
    #     words    [ 64 bits        ][ 64 bits        ][ 64 bits ...
    #     limbs    [ 52 bits    ][ 52 bits     ][ 52 bits     ][ ...     limb j begins at bit 52 j
    for j in range(limbs.size):
        word, bit = (LIMB_BITS * j) >> 6, np.uint64((LIMB_BITS * j) & 63)
        limb = words[word] >> bit
        if bit > np.uint64(WORD_BITS - LIMB_BITS):  # the limb continues in the next word
            limb |= words[word + 1] << (np.uint64(WORD_BITS) - bit)
        limbs[j] = limb & np.uint64(MASK)


@_loop
def _to_words(limbs, words):
    """Join normalised limbs into as many 64-bit words as they need."""
    # Invariant: `held` has the lowest `bits` bits, fewer than 64, of the word that is next.
    word, held, bits = 0, np.uint64(0), 0
    for j in range(limbs.size):
        held |= limbs[j] << np.uint64(bits)  # what exceeds 64 bits is lost here, and taken below
        bits += LIMB_BITS
        if bits >= WORD_BITS:
            words[word] = held
            word += 1
            bits -= WORD_BITS
            held = limbs[j] >> np.uint64(LIMB_BITS - bits)
    if bits:
        words[word] = held


@_loop
def _is_below(number, limit):
    """Return True if 0 < number < limit. Both are normalised limbs."""
    # From the highest limb down, the first difference decides.
    for j in range(number.size - 1, -1, -1):
        if number[j] != limit[j]:
            return number[j] < limit[j] and number.any()
    return False


@_loop
def enter(words, square, constants, inverse, out):
    """Convert numbers to Montgomery form: out = number * R. Stops at the first number that is 0 or not below
    n**2, and returns how many precede it.

    words: uint64 [N, ceil(104 * limbs / 64) + 1]; square: the limbs of n**2, uint64 [2 * limbs]; constants,
    inverse: see the comment above `_product`; out: uint64 [N, 2 * limbs]."""
    # A number x < n**2 is cut at R, not divided by n: x = a + R b with a < R and b < n**2 / R <= n / 256.
    # Then x R = (a R**2 + b R**3) / R, with R**2 and R**3 modulo n**2 from `constants`, whose parts are below
    # n. The parts of the result are below (R n + n**2 / 256 + R n) / R and (R + n + R n + n**2 / 256 + R n) /
    # R: just above 2 n, which is why factors are allowed to be up to 4 n.
    limbs = constants.shape[1]
    half = 8 * limbs
    work, x = _room(5, limbs)
    second, third, found = x + 2 * half, x + 4 * half, x + 6 * half
    q = x + 10 * half
    for lane in range(LANES):
        for part in range(2):
            _put(work, second + part * half, lane, constants[2 + part])
            _put(work, third + part * half, lane, constants[4 + part])
    number = np.empty(2 * limbs, np.uint64)
    for first in range(0, len(words), LANES):
        count = min(LANES, len(words) - first)
        for lane in range(count):
            _to_limbs(words[first + lane], number)
            if not _is_below(number, square):
                return first + lane
            _put(work, x, lane, number)
        for j in range(limbs):
            store(work, found + 8 * j, zero())
        parts = constants[0], inverse
        _two_products(work, x, second, x + half, third, found, q, *parts)
        _minus(work, q, found + half, constants)
        _two_products(work, x, second + half, x + half, third + half, found + half, q, *parts)
        for lane in range(count):
            _get(work, found, lane, out[first + lane])
    return len(words)


@_loop
def leave(numbers, constants, inverse, out):
    """Convert numbers back from Montgomery form: out = number / R. Writes the words of each number's two
    parts, which are below 2 n. numbers: uint64 [N, 2 * limbs]; constants, inverse: as in `enter`; out: uint64
    [N, 2, ceil(52 * limbs / 64)]."""
    limbs = constants.shape[1]
    half = 8 * limbs
    work, x = _room(3, limbs)
    one, found, q = x + 2 * half, x + 4 * half, x + 6 * half
    work[one : one + LANES] = 1  # the lowest limb of x0 in each lane: the number 1, so x * 1 / R
    number = np.empty(2 * limbs, np.uint64)
    for first in range(0, len(numbers), LANES):
        count = min(LANES, len(numbers) - first)
        for lane in range(count):
            _put(work, x, lane, numbers[first + lane])
        _multiply(work, x, one, found, q, constants, inverse)
        for lane in range(count):
            _get(work, found, lane, number)
            _to_words(number[:limbs], out[first + lane, 0])
            _to_words(number[limbs:], out[first + lane, 1])


@_loop
def multiply_segments(numbers, members, starts, constants, inverse, one, out):
    """Multiply the members of each segment: out[s] is the product of members[starts[s] : starts[s + 1]]. Each
    lane works on one segment, and takes the next segment when it has finished. numbers: uint64 [N, 2 *
    limbs]; members: int64 [M], indices of numbers; starts: int64 [S + 1]; constants, inverse, one: see the
    comment above `_product`; out: uint64 [S, 2 * limbs]."""
    limbs = constants.shape[1]
    half = 8 * limbs
    work, total = _room(3, limbs)
    other, found, q = total + 2 * half, total + 4 * half, total + 6 * half
    flat, width = numbers.reshape(-1), 2 * limbs
    segment = np.full(LANES, -1, np.int64)
    at, end = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    todo, last = 0, starts.size - 1
    #     lane 0    [ segment 0         ][ segment 3 ][ segment 5 ...
    #     lane 1    [ segment 1 ][ segment 2                ][ ...
    # Lanes differ only in what they multiply, so segments of different lengths keep all of them at work. The
    # last one may run alone for as long as it is, which is why `sums.products` cuts segments at PIECE
    # members.
    #
    # In lane l, `total` is the product of the members of segment[l] (-1: none) before position at[l]; those
    # from there to end[l] are to be multiplied. A lane without work multiplies what is left in it, which is
    # not read.
    while True:
        busy = False
        for lane in range(LANES):
            while at[lane] == end[lane]:
                if segment[lane] >= 0:
                    _get(work, total, lane, out[segment[lane]])
                    segment[lane] = -1
                while todo < last and starts[todo] == starts[todo + 1]:
                    out[todo] = one
                    todo += 1
                if todo == last:
                    break
                segment[lane], at[lane], end[lane] = todo, starts[todo] + 1, starts[todo + 1]
                _put(work, total, lane, numbers[members[starts[todo]]])
                todo += 1
            if at[lane] < end[lane]:
                busy = True
                _put(work, other, lane, numbers[members[at[lane]]])
                at[lane] += 1
                if at[lane] < members.size:
                    for line in range(0, width, LANES):  # eight words are a cache line
                        prefetch(flat, members[at[lane]] * width + line)
        if not busy:
            return
        _multiply(work, total, other, found, q, constants, inverse)
        total, found = found, total


@_loop
def pack_cells(numbers, cells, shift, constants, inverse, one, out):
    """Compute out[i] = the product of numbers[cells * i + k] ** (2 ** (shift * k)) over all k < cells for
    which there is a number. Exponents of ciphertexts shift plaintexts: cell k moves up by shift * k bits.
    numbers: uint64 [N, 2 * limbs]; constants, inverse, one: as in `multiply_segments`; out: uint64 [ceil(N /
    cells), 2 * limbs]."""
    # With cells c0, c1, c2 and s = 2**shift: c0 c1**s c2**(s * s) = (c2**s c1)**s c0. This takes shift + 1
    # products per cell after the first, for eight results at once.
    #
    # Horner's rule, from the highest cell down: total = total ** (2 ** shift) * next. Numbers beyond the end
    # are 1, the ciphertext of empty slots.
    limbs = constants.shape[1]
    half = 8 * limbs
    work, total = _room(3, limbs)
    other, found, q = total + 2 * half, total + 4 * half, total + 6 * half
    for first in range(0, len(out), LANES):
        for cell in range(cells - 1, -1, -1):
            for lane in range(LANES):
                index = (first + lane) * cells + cell
                _put(work, other, lane, numbers[index] if index < len(numbers) else one)
            if cell == cells - 1:
                total, other = other, total
                continue
            for _ in range(shift):
                _multiply(work, total, total, found, q, constants, inverse)
                total, found = found, total
            _multiply(work, total, other, found, q, constants, inverse)
            total, found = found, total
        for lane in range(min(LANES, len(out) - first)):
            _get(work, total, lane, out[first + lane])
