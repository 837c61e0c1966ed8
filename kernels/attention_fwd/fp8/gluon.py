"""P of 8 bits in a consumer's registers, from the accumulator of Q · Kᵀ to the left operand of P · V.

A product of 8 bits reads four adjacent elements from each register, and a thread has its scores in pairs that lie 8
columns apart. So the columns are taken in another order, which is also that of V's keys: place 4c + 2h + b of each 16
has column 8h + 2c + b. No element leaves its thread.

The four are packed by hand: what a loop carries of an 8-bit tensor LLVM unpacks, an element a register (Triton 3.6.0:
three consumers spilled 1,800 bytes, and others had as many instructions for packing again as for their exponentials).
"""

from __future__ import annotations

from warpplan.kernels.attention_fwd.fp8.value_pass import KEY_STEP
from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.triton_compat import gl, gluon

KEY_GROUP = gl.constexpr(KEY_STEP)


@gluon.constexpr_function
def left_layout(width, warps, bits):
    """Where the product with a result of ``width`` columns reads its left operand from registers."""
    return gl.DotOperandLayout(0, accumulator_layout(width, warps, bits), 32 // bits)


@gluon.jit
def pack_columns(x):
    """fp32 ``x`` [rows, columns] in an accumulator's layout as e4m3, four to a 32-bit number, [rows, columns / 16, 4]:
    those of columns 2c, 2c + 1, 2c + 8 and 2c + 9 of each 16, all of which a thread has."""
    groups = x.reshape([x.shape[0], x.shape[1] // KEY_GROUP, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = groups.split()
    first, third = even.split()
    second, fourth = odd.split()
    return gl.inline_asm_elementwise(
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;"
        " cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }",
        "=r,r,r,r,r",
        [first, second, third, fourth],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def unpack_columns(packed, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """What :func:`pack_columns` packed, as e4m3 [rows, COLUMNS] in the layout of a left operand, without an
    instruction."""
    pairs = gl.join(packed, packed)
    repeated = gl.join(pairs, pairs).reshape([packed.shape[0], COLUMNS])
    # Four copies of a register stand for the four elements in it: the first is the operand's.
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;",
        "=r,r,r,r,r",
        [gl.convert_layout(repeated, LAYOUT)],
        dtype=gl.float8e4nv,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def move_packed(packed):
    """``packed`` in other registers. Weights that are made while a product reads those before must not be made where
    the next product reads them: ptxas then serialises the products (C7513, Triton 3.6.0)."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [packed], dtype=gl.int32, is_pure=False, pack=1)
