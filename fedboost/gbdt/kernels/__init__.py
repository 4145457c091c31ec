"""All compiled functions of gbdt (kernels). Kernels take and return arrays and numbers, not objects.

Guarantees: on every CPU, a kernel computes bit for bit what its numpy reference in tests/gbdt/reference
computes. Neither fastmath nor libm is used, and element-wise functions consist of + - * / in a fixed order.
Kernels do not validate their arrays; callers do.

Shapes: N rows, F features, T bins of all features together, S splits, L listed leaves, P pieces. `bins` is
uint8 [N, F or more]; `rows` are uint32 row numbers; `offsets` is uint32 [F], index of each feature's first
bin among the T bins."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedboost.kernel_cache import kernel


@intrinsic
def prefetch(typingctx, array, index):
    """Prefetch the cache line of array[index]. This is only a hint and changes no value."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        byte = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(view.data, [args[1]]), byte)
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(hint, [address, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, index), codegen


@intrinsic
def load_word(typingctx, array, index):
    """Load eight bytes of a uint8 array, starting at array[index], as a little-endian uint64."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(address, align=1)

    return types.uint64(array, index), codegen


elementwise = kernel(nogil=True, inline="always", error_model="numpy")
loop = kernel(nogil=True, error_model="numpy")
