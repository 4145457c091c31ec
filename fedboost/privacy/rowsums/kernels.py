"""The compiled loops of sums over encrypted rows: Montgomery products, with AVX-512 where there is some."""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model

from fedboost.kernel_cache import kernel

# ---- Vectors of eight words, and AVX-512's multiply-adds of 52 bits, which numba lacks ------------------
# Promises: `may_compile` tells if LLVM can compile them: where it cannot, it ends the process. Refuses
# nothing.


LIMB_BITS = 52
LANES = 8
WORD_BITS = 64
MASK = (1 << LIMB_BITS) - 1
_VECTOR = ir.VectorType(ir.IntType(64), LANES)
_FEATURE = "avx512ifma"


def may_compile() -> bool:
    """True if this processor has the instructions, and numba compiles for it: LLVM ends the process if it
    lacks one."""
    target = cpu_target.target_context.codegen().magic_tuple()
    return bool(binding.get_host_cpu_features().get(_FEATURE)) and f"+{_FEATURE}" in target[2].split(",")


class Vector(types.Type):
    """Eight words."""

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
    """The intrinsic total + the low or high 52 bits of one * other, of the low 52 bits of these."""

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
        return builder.lshr(args[0], _constant(LIMB_BITS))

    return VECTOR(vector), codegen


@intrinsic
def limb_of(typingctx, vector):
    return VECTOR(vector), lambda context, builder, sig, args: builder.and_(args[0], _constant(MASK))


@intrinsic
def inverted(typingctx, vector):
    return VECTOR(vector), lambda context, builder, sig, args: builder.xor(args[0], _constant(MASK))


@intrinsic
def zero(typingctx):
    return VECTOR(), lambda context, builder, signature, args: _constant(0)


# ---- Compiled products modulo the square of a number n, eight at a time ---------------------------------
# By AVX-512's 52-bit multiply-adds.
# Promises: what Python's integers give; no lock of the interpreter is held. Refuses nothing: callers have
# validated the arrays, and compile nothing here unless `kernels.may_compile`.
# A number x modulo n**2 is kept as x0 + n x1, two numbers below 4 n of `limbs` limbs of 52 bits, in uint64
# [2 * limbs]; R = 2**(52 * limbs) is at least 256 n. Products are Montgomery's: of x and y, x y / R. With
# x0 y0 + q n = R u, q < R, that is u + n (x0 y1 + x1 y0 - q) / R, the second part modulo n alone, so that
# ten multiply-adds a pair of limbs are enough where n**2 as a modulus takes sixteen (after Montgomery,
# "Modular multiplication without trial division", 1985). -q is had as R - 1 - q, whose limbs are those of q
# inverted, plus 1 - R modulo n. Both parts are below 2 n again: (16 n**2 + R n) / R, and (32 n**2 + R + n +
# R n) / R. A vector of a sum takes six products below 2**52 a limb, so that 64 bits are enough for 682
# limbs.
# In `work`, uint64, a vector of eight words has a limb of eight numbers, one in each lane. `constants` is
# uint64 [6, limbs]: n; 1 - R modulo n; R**2 modulo n**2 as two numbers; R**3 modulo n**2 as two. `inverse`
# is -1 / n modulo 2**52. `one` is R modulo n**2 as uint64 [2 * limbs].


_loop = kernel(nogil=True)


@_loop
def _product(work, x, y, out, q, modulus, inverse):
    """out = (x y + q n) / R, and q. x, y, out, q: where numbers of `modulus.size` vectors begin in work."""
    limbs, minus = modulus.size, spread(inverse)
    for i in range(limbs):
        store(work, out + 8 * i, zero())
    for i in range(limbs):
        xi, y0, n0 = load(work, x + 8 * i), load(work, y), spread(modulus[0])
        total = low(load(work, out), xi, y0)
        qi = low(zero(), total, minus)
        store(work, q + 8 * i, qi)
        carry = carry_of(low(total, qi, n0))
        for j in range(1, limbs):
            total = high(high(plus(load(work, out + 8 * j), carry), xi, y0), qi, n0)
            carry = zero()
            y0, n0 = load(work, y + 8 * j), spread(modulus[j])
            store(work, out + 8 * j - 8, low(low(total, xi, y0), qi, n0))
        store(work, out + 8 * limbs - 8, plus(high(high(zero(), xi, y0), qi, n0), carry))
    _normalise(work, out, limbs)


@_loop
def _two_products(work, x, y, z, w, out, q, modulus, inverse):
    """out = (out + x y + z w + q n) / R, and q; as `_product`."""
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
            store(work, out + 8 * j - 8, low(low(low(total, xi, y0), zi, w0), qi, n0))
        total = high(high(high(zero(), xi, y0), zi, w0), qi, n0)
        store(work, out + 8 * limbs - 8, plus(total, carry))
    _normalise(work, out, limbs)


@_loop
def _normalise(work, out, limbs):
    carry = zero()
    for j in range(limbs):
        total = plus(load(work, out + 8 * j), carry)
        store(work, out + 8 * j, limb_of(total))
        carry = carry_of(total)


@_loop
def _minus(work, q, out, constants):
    """out = a number that is -q modulo n and not negative."""
    for j in range(constants.shape[1]):
        store(work, out + 8 * j, plus(inverted(load(work, q + 8 * j)), spread(constants[1, j])))


@_loop
def _multiply(work, x, y, out, q, constants, inverse):
    """out = x y / R modulo n**2, of numbers of two parts."""
    modulus, half = constants[0], 8 * constants.shape[1]
    _product(work, x, y, out, q, modulus, inverse)
    _minus(work, q, out + half, constants)
    _two_products(work, x, y + half, x + half, y, out + half, q, modulus, inverse)


# ---- numbers and lanes ------------------------------------------------------------------------------


@_loop
def _room(numbers, limbs):
    """Zeros for so many numbers of two parts and a q, and where the first begins: at a cache line."""
    work = np.zeros((2 * numbers + 1) * LANES * limbs + LANES, np.uint64)
    return work, (-(work.ctypes.data >> 3)) & (LANES - 1)


@_loop
def _put(work, at, lane, number):
    for j in range(number.size):
        work[at + LANES * j + lane] = number[j]


@_loop
def _get(work, at, lane, number):
    for j in range(number.size):
        number[j] = work[at + LANES * j + lane]


@_loop
def _to_limbs(words, limbs):
    """Words of 64 bits, at least one more than the limbs need, to limbs."""
    for j in range(limbs.size):
        word, bit = (LIMB_BITS * j) >> 6, np.uint64((LIMB_BITS * j) & 63)
        limb = words[word] >> bit
        if bit > np.uint64(WORD_BITS - LIMB_BITS):
            limb |= words[word + 1] << (np.uint64(WORD_BITS) - bit)
        limbs[j] = limb & np.uint64(MASK)


@_loop
def _to_words(limbs, words):
    """Limbs to words, as many as they need."""
    word, held, bits = 0, np.uint64(0), 0
    for j in range(limbs.size):
        held |= limbs[j] << np.uint64(bits)
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
    """True if 0 < number < limit, limb by limb."""
    for j in range(number.size - 1, -1, -1):
        if number[j] != limit[j]:
            return number[j] < limit[j] and number.any()
    return False


@_loop
def enter(words, square, constants, inverse, out):
    """out = the numbers of words, uint64 [N, ceil(104 * limbs / 64) + 1], times R. Returns how many
    are sound before the first that is 0 or not below `square`, the limbs of n**2, uint64 [2 * limbs]."""
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
    """out = the words of both parts of the numbers over R, uint64 [N, 2, ceil(52 * limbs / 64)]; parts are
    below 2 n."""
    limbs = constants.shape[1]
    half = 8 * limbs
    work, x = _room(3, limbs)
    one, found, q = x + 2 * half, x + 4 * half, x + 6 * half
    work[one : one + LANES] = 1
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
    """out[s] = the product of the members of segment s, members[starts[s] : starts[s + 1]], each lane with a
    segment of its own, and with the next when that ends."""
    limbs = constants.shape[1]
    half = 8 * limbs
    work, total = _room(3, limbs)
    other, found, q = total + 2 * half, total + 4 * half, total + 6 * half
    flat, width = numbers.reshape(-1), 2 * limbs
    segment = np.full(LANES, -1, np.int64)
    at, end = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    todo, last = 0, starts.size - 1
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
                    for line in range(0, width, LANES):
                        prefetch(flat, members[at[lane]] * width + line)
        if not busy:
            return
        _multiply(work, total, other, found, q, constants, inverse)
        total, found = found, total


@_loop
def pack_cells(numbers, cells, shift, constants, inverse, one, out):
    """out[i] = the product of numbers[cells * i + k] ** (2 ** (shift * k)) over k < cells, as far as there
    are numbers: Horner's rule."""
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
