"""Vectors of eight words, and AVX-512's multiply-adds of 52 bits, which numba lacks.

Promises: `may_compile` tells if LLVM can compile them: where it cannot, it ends the process.
Refuses nothing.
"""

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model

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
