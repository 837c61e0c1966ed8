"""The GEMM with a fused epilogue: C = activation(A·Bᵀ + bias) + residual, from the fp32 accumulators, rounded once.

Main loop, units of work and the reduction of split tiles are those of :mod:`warpplan.kernels.gemm.gluon`; a chunk of
columns takes bias, activation and residual in registers on its way to shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.device.activations import activate
from warpplan.kernels.device.block import Block, block
from warpplan.kernels.device.epilogue import store_staged
from warpplan.kernels.device.matmul import allocate_ring, allocate_staging, by_width, specialize
from warpplan.kernels.gemm.gluon import RUNTIME_INTEGERS, Boxes, described, finish_unit
from warpplan.kernels.gemm.gluon import constants as product_constants
from warpplan.kernels.gemm.gluon import descriptor_blocks as product_blocks
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm.units import Sizes, locate, unit_count
from warpplan.kernels.gemm_bias_act.space import FusedEpilogue
from warpplan.kernels.triton_compat import gl, gluon

VECTOR = 8
"""16-bit elements of 16 bytes: what "aligned" addresses are multiples of."""
_VECTOR = gl.constexpr(VECTOR)


@dataclass(frozen=True)
class FusedBlock(Block):
    """A block and its epilogue. ``bias`` and ``residual`` are "none", "aligned" (base and rows on 16 bytes, in whole
    units of 16 bytes, so that two elements are one load) or "any"."""

    activation: str
    bias: str
    residual: str


class FusedOutput(NamedTuple):
    """``c`` is a TMA descriptor, or a pointer to rows of ``row_stride`` elements; ``workspace`` takes partial sums."""

    c: gl.tensor
    row_stride: gl.tensor
    staging: gl.shared_memory_descriptor
    workspace: gl.tensor
    counters: gl.tensor
    bias: gl.tensor
    residual: gl.tensor
    residual_stride: gl.tensor


@gluon.constexpr_function
def fused_block(plan, activation, bias, residual):
    """``plan`` with its epilogue; a chunk of C is as wide as what the activation leaves of its columns."""
    values = dict(vars(plan))
    if activation == "swiglu":
        values["tile"] = (plan.tile[0], plan.tile[1] // 2)
    return FusedBlock(**values, activation=activation, bias=bias, residual=residual)


@gluon.jit
def finish(acc, unit, tile, staging, out, sizes, BLOCK: gl.constexpr, PART: gl.constexpr):
    finish_unit(acc, unit, tile, staging, out, sizes, BLOCK, PART, store_fused)


@gluon.jit
def store_fused(chunk, row, column, staging, out, sizes, BLOCK: gl.constexpr):
    """Finish ``chunk`` and send it to C; where the operands are swapped, it is a chunk of the product's transpose."""
    if BLOCK.swap:
        r, c = column, row
        rows, columns = sizes.columns, sizes.rows
    else:
        r, c = row, column
        rows, columns = sizes.rows, sizes.columns
    ACTIVATION: gl.constexpr = BLOCK.activation
    value = chunk
    if BLOCK.bias != "none":
        value += load_bias(chunk, c, columns, out, BLOCK)
    if ACTIVATION == "swiglu":
        c //= 2
        columns //= 2
        value = activate(value, ACTIVATION)
        if BLOCK.residual != "none":
            value += load_residual(value, r, c, rows, columns, out, BLOCK)
    elif BLOCK.residual == "aligned":
        # Read before the activation is computed, so that its arithmetic hides the loads' latency.
        residual = load_residual(value, r, c, rows, columns, out, BLOCK)
        value = activate(value, ACTIVATION) + residual
    else:
        value = activate(value, ACTIVATION)
        if BLOCK.residual != "none":
            # An element a register: wide tiles spill here, and would spill more beside the activation's own values.
            value += load_residual(value, r, c, rows, columns, out, BLOCK)
    store_staged(
        value, r, c, staging, out.c, out.row_stride, rows, columns, BLOCK.tile[0], BLOCK.tile[1], BLOCK.swap,
        BLOCK.tma_store,
    )  # fmt: skip


@gluon.jit
def load_bias(like, column, columns, out, BLOCK: gl.constexpr):
    """fp32 [1, columns] or, transposed, [columns, 1], laid out as ``like``; zero beyond the last column."""
    DIM: gl.constexpr = 0 if BLOCK.swap else 1
    c = column + gl.arange(0, like.shape[DIM], layout=gl.SliceLayout(1 - DIM, like.type.layout))
    pointers = out.bias + c
    if BLOCK.bias == "aligned":
        pointers = gl.multiple_of(pointers, [16])
        columns = columns // _VECTOR * _VECTOR
    bias = gl.load(pointers, mask=c < columns, other=0.0).to(gl.float32)
    return bias[:, None] if BLOCK.swap else bias[None, :]


@gluon.jit
def load_residual(like, row, column, rows, columns, out, BLOCK: gl.constexpr):
    """fp32, laid out as ``like``, which is transposed where the operands are swapped; zero beyond the matrix."""
    DIM: gl.constexpr = 1 if BLOCK.swap else 0
    r = row + gl.arange(0, like.shape[DIM], layout=gl.SliceLayout(1 - DIM, like.type.layout))
    c = gl.arange(0, like.shape[1 - DIM], layout=gl.SliceLayout(DIM, like.type.layout))
    # The first column is in the rows' own addresses: the compiler then knows a thread's columns apart by constants,
    # which the loads have room for, and holds two addresses a row, not one an element.
    r_start = out.residual + column + gl.cast(r, gl.int64) * out.residual_stride
    if BLOCK.swap:
        pointers = r_start[None, :] + c[:, None]
        inside = (r < rows)[None, :] & (c < columns - column)[:, None]
    elif BLOCK.residual == "aligned":
        pointers = gl.multiple_of(r_start[:, None] + c[None, :], [16, 16])
        inside = (r < rows)[:, None] & (c < (columns - column) // _VECTOR * _VECTOR)[None, :]
    else:
        pointers = r_start[:, None] + c[None, :]
        inside = (r < rows)[:, None] & (c < columns - column)[None, :]
    return gl.load(pointers, mask=inside, other=0.0).to(gl.float32)


@gluon.jit(do_not_specialize=["c", "bias", "residual", *RUNTIME_INTEGERS, "RESIDUAL_ROW_STRIDE"])
def gemm_bias_act_kernel(
    a_desc,
    b_desc,
    b_rest_desc,
    c,
    workspace,
    counters,
    bias,
    residual,
    M,
    N,
    K,
    GROUP_M,
    SPLIT_K,
    WHOLE_TILES,
    C_ROW_STRIDE,
    RESIDUAL_ROW_STRIDE,
    SCHEME: gl.constexpr,
    CONSUMERS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    DEPTH: gl.constexpr,
    EPILOGUE_SPLIT: gl.constexpr,
    STAGING_IN_RING: gl.constexpr,
    SWAP: gl.constexpr,
    TMA_STORE: gl.constexpr,
    SPLIT: gl.constexpr,
    A_MAJOR: gl.constexpr,
    B_MAJOR: gl.constexpr,
    LAUNCH_DEPENDENTS: gl.constexpr,
    ACTIVATION: gl.constexpr,
    BIAS: gl.constexpr,
    RESIDUAL: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """As :func:`warpplan.kernels.gemm.gluon.gemm_kernel`; N counts the product's columns, of which SwiGLU leaves half.
    ``bias`` [columns of the product] and ``residual`` [M, columns of C] are None where ``BIAS`` and ``RESIDUAL`` are
    "none"."""
    PLAN: gl.constexpr = block(
        SCHEME, CONSUMERS, BLOCK_M, BLOCK_N, BLOCK_K, DEPTH, EPILOGUE_SPLIT, STAGING_IN_RING, SWAP, TMA_STORE, SPLIT,
        A_MAJOR, B_MAJOR, "none", gl.num_ctas(), LAUNCH_DEPENDENTS,
    )  # fmt: skip
    BLOCK: gl.constexpr = fused_block(PLAN, ACTIVATION, BIAS, RESIDUAL)
    b_descs = by_width(b_desc, b_rest_desc, BLOCK)
    ring = allocate_ring(a_desc, b_descs, BLOCK)
    staging = ring.a
    if not STAGING_IN_RING:
        staging = allocate_staging(a_desc.dtype, BLOCK)
    sizes = Sizes(M, N, K, GROUP_M, SPLIT_K, WHOLE_TILES)
    out = FusedOutput(c, C_ROW_STRIDE, staging, workspace, counters, bias, residual, RESIDUAL_ROW_STRIDE)
    specialize(
        a_desc, b_descs, out, ring, sizes, BLOCK, unit_count, locate, finish, PRODUCER_REGISTERS, CONSUMER_REGISTERS
    )


def descriptor_blocks(config: GemmConfig, epilogue: FusedEpilogue, layout: str = "nt") -> Boxes:
    """The product's TMA boxes, of which SwiGLU leaves half of C's columns."""
    boxes = product_blocks(config, layout)
    rows, columns = boxes["c"]
    return {**boxes, "c": (rows, columns // 2)} if epilogue.halves else boxes


def constants(
    config: GemmConfig, activation: str, bias: str, residual: str, tma_store: bool, layout: str = "nt"
) -> dict[str, object]:
    """The kernel's constexprs; ``bias`` and ``residual`` as :class:`FusedBlock` has them."""
    plan = product_constants(config, tma_store, layout)
    del plan["SCALES"]
    return {**plan, "ACTIVATION": activation, "BIAS": bias, "RESIDUAL": residual}


def signature(
    config: GemmConfig, epilogue: FusedEpilogue, element: str, tma_store: bool, layout: str = "nt"
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them, with a
    bias of the operands' type; bias and residual are aligned where rows of C are."""
    boxes = descriptor_blocks(config, epilogue, layout)
    types, absent = described(config, boxes, element, element, tma_store, layout)
    types |= dict.fromkeys((*RUNTIME_INTEGERS, "RESIDUAL_ROW_STRIDE"), "i32")
    aligned = "aligned" if tma_store else "any"
    bias, residual = aligned if epilogue.bias else "none", aligned if epilogue.residual else "none"
    values = constants(config, epilogue.activation, bias, residual, tma_store, layout) | absent
    for name, present in (("bias", epilogue.bias), ("residual", epilogue.residual)):
        types |= {name: f"*{element}"} if present else {}
        values |= {} if present else {name: None}
    if config.split != "none":
        return types | {"workspace": "*fp32", "counters": "*i32"}, values, ["workspace", "counters"]
    return types, values | {"workspace": None, "counters": None}, []
