"""The warp-specialised GEMM for Hopper: one Gluon source, its plan in constexprs.

C[M, N] = A[M, K] · B[N, K]ᵀ with fp32 accumulation, by the main loop of :mod:`warpplan.kernels.device.matmul`. A *unit*
of work is one tile of C, or a part of its K; the first ``WHOLE_TILES`` units are tiles that are not split
(:mod:`warpplan.kernels.gemm.units`).
"""

from __future__ import annotations

from typing import NamedTuple

import triton

from warpplan.kernels.device.block import accumulator_widths, block
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS
from warpplan.kernels.device.epilogue import column_chunks, shared_layout, store_staged
from warpplan.kernels.device.matmul import allocate_ring, allocate_staging, by_width, specialize
from warpplan.kernels.device.scaling import Scales, scale_chunk
from warpplan.kernels.device.stream_k import add_partial_sums, arrive, store_partial_sums, wait_for_arrivals
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm.units import Sizes, locate, shared_tile, unit_count
from warpplan.kernels.triton_compat import gl, gluon, has_clusters
from warpplan.planner.errors import InvalidConfig


class Output(NamedTuple):
    """``c`` is a TMA descriptor, or a pointer to rows of ``row_stride`` elements; ``workspace`` takes partial sums;
    ``scales`` are those of fp8 operands."""

    c: gl.tensor
    row_stride: gl.tensor
    staging: gl.shared_memory_descriptor
    workspace: gl.tensor
    counters: gl.tensor
    scales: gl.tensor


@gluon.jit
def finish(acc, unit, tile, staging, out, sizes, BLOCK: gl.constexpr, PART: gl.constexpr):
    finish_unit(acc, unit, tile, staging, out, sizes, BLOCK, PART, store_scaled)


@gluon.jit
def finish_unit(
    acc, unit, tile, staging, out, sizes, BLOCK: gl.constexpr, PART: gl.constexpr, STORE: gl.constexpr
):  # fmt: skip
    """Store a unit's accumulator by column chunks. Of a split tile one unit stores
    (:func:`~warpplan.kernels.gemm.units.shared_tile`): it waits for the other units' partial sums and adds them in the
    order of their slots, so that every run rounds alike. ``STORE(chunk, row, column, staging, out, sizes, BLOCK)``
    sends a finished chunk to C."""
    row = tile.row + PART * BLOCK.rows
    CHUNKS: gl.constexpr = BLOCK.chunks
    SHARERS: gl.constexpr = BLOCK.sharers
    parts = column_chunks(acc, BLOCK.chunk_columns)
    if BLOCK.split == "none":
        for i in gl.static_range(CHUNKS):
            STORE(parts[i], row, tile.column + i * BLOCK.chunk_columns, staging, out, sizes, BLOCK)
    else:
        owns, number, first, step, end = shared_tile(unit, sizes, BLOCK)
        if owns:
            if end > first:
                wait_for_arrivals(out.counters + number * SHARERS + PART, (end - first) // step)
            for i in gl.static_range(CHUNKS):
                total = add_partial_sums(parts[i], first, end, step, out.workspace, SHARERS, PART, CHUNKS, i)
                STORE(total, row, tile.column + i * BLOCK.chunk_columns, staging, out, sizes, BLOCK)
        else:
            for i in gl.static_range(CHUNKS):
                store_partial_sums(parts[i], first, out.workspace, SHARERS, PART, CHUNKS, i)
            arrive(out.counters + number * SHARERS + PART)


@gluon.jit
def store_scaled(chunk, row, column, staging, out, sizes, BLOCK: gl.constexpr):
    store_chunk(scale_chunk(chunk, out.scales, row, column, BLOCK), row, column, staging, out, sizes, BLOCK)


@gluon.jit
def store_chunk(chunk, row, column, staging, out, sizes, BLOCK: gl.constexpr):
    """Send ``chunk`` to C through ``staging``; where the operands are swapped, it is a chunk of C's transpose."""
    if BLOCK.swap:
        store_staged(
            chunk, column, row, staging, out.c, out.row_stride, sizes.columns, sizes.rows,
            BLOCK.tile[0], BLOCK.tile[1], True, BLOCK.tma_store,
        )  # fmt: skip
    else:
        store_staged(
            chunk, row, column, staging, out.c, out.row_stride, sizes.rows, sizes.columns,
            BLOCK.tile[0], BLOCK.tile[1], False, BLOCK.tma_store,
        )  # fmt: skip


RUNTIME_INTEGERS = ["M", "N", "K", "GROUP_M", "SPLIT_K", "WHOLE_TILES", "C_ROW_STRIDE"]
SCALE_STRIDES = ["ROW_SCALE_STRIDE", "ROW_SCALE_K_STRIDE", "COLUMN_SCALE_STRIDE", "COLUMN_SCALE_K_STRIDE"]


@gluon.jit(do_not_specialize=["c", *RUNTIME_INTEGERS, *SCALE_STRIDES])
def gemm_kernel(
    a_desc,
    b_desc,
    b_rest_desc,
    c,
    workspace,
    counters,
    row_scales,
    column_scales,
    M,
    N,
    K,
    GROUP_M,
    SPLIT_K,
    WHOLE_TILES,
    C_ROW_STRIDE,
    ROW_SCALE_STRIDE,
    ROW_SCALE_K_STRIDE,
    COLUMN_SCALE_STRIDE,
    COLUMN_SCALE_K_STRIDE,
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
    SCALES: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """M, N, K of the computed matrix. ``b_rest_desc`` is None where one accumulator has all columns, ``workspace`` and
    ``counters`` where ``SPLIT`` is "none". ``A_MAJOR`` "k" or "m" and ``B_MAJOR`` "k" or "n" are the dimensions that
    lie contiguously. The scales, fp32, are None and their strides 0 where ``SCALES`` is "none"; they are those of the
    computed matrix's rows and columns.

    Counters are zero between launches. The launch's ``num_warps`` are one consumer's: 4 or 8, of several consumers 4.
    """
    BLOCK: gl.constexpr = block(
        SCHEME, CONSUMERS, BLOCK_M, BLOCK_N, BLOCK_K, DEPTH, EPILOGUE_SPLIT, STAGING_IN_RING, SWAP, TMA_STORE, SPLIT,
        A_MAJOR, B_MAJOR, SCALES, gl.num_ctas(), LAUNCH_DEPENDENTS,
    )  # fmt: skip
    b_descs = by_width(b_desc, b_rest_desc, BLOCK)
    ring = allocate_ring(a_desc, b_descs, BLOCK)
    staging = ring.a
    if not STAGING_IN_RING:
        staging = allocate_staging(c.dtype if TMA_STORE else c.dtype.element_ty, BLOCK)
    sizes = Sizes(M, N, K, GROUP_M, SPLIT_K, WHOLE_TILES)
    scales = Scales(
        row_scales, ROW_SCALE_STRIDE, ROW_SCALE_K_STRIDE, M, column_scales, COLUMN_SCALE_STRIDE, COLUMN_SCALE_K_STRIDE,
        N,
    )  # fmt: skip
    out = Output(c, C_ROW_STRIDE, staging, workspace, counters, scales)
    specialize(
        a_desc, b_descs, out, ring, sizes, BLOCK, unit_count, locate, finish, PRODUCER_REGISTERS, CONSUMER_REGISTERS
    )


TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp8e4nv": gl.float8e4nv}
"""Triton's short names of element types."""
RESULTS = {"bf16": "bf16", "fp16": "fp16", "fp8e4nv": "bf16"}
"""Of the operands' type, the result's."""


def majors(config: GemmConfig, layout: str) -> tuple[str, str]:
    """The contiguous dimensions of A' and B', which are swapped operands where the plan swaps; ``layout`` says how A
    and B are stored: "n" as the product reads (A [M, K], B [K, N]), "t" transposed."""
    a_by_k, b_by_k = layout[0] == "n", layout[1] == "t"
    left, right = (b_by_k, a_by_k) if config.swap else (a_by_k, b_by_k)
    return "k" if left else "m", "k" if right else "n"


Boxes = dict[str, tuple[int, int]]
"""TMA boxes in elements, as they lie in memory, by the kernel's argument."""


def descriptor_blocks(config: GemmConfig, layout: str = "nt") -> Boxes:
    """Those of A', of B' (for each of the block's widths) and of C; a cluster's CTAs share them
    (:func:`cluster_splits`)."""
    a_major, b_major = majors(config, layout)
    rows, columns = config.consumer_rows * config.cluster, config.block_n // config.epilogue_split
    a = (rows, config.block_k)
    boxes = {"a_desc": a if a_major == "k" else a[::-1]}
    for name, width in zip(("b_desc", "b_rest_desc"), accumulator_widths(config.block_n), strict=False):
        boxes[name] = (width, config.block_k) if b_major == "k" else (config.block_k, width)
    return {**boxes, "c": (columns, rows) if config.swap else (rows, columns)}


def cluster_splits(config: GemmConfig, layout: str = "nt") -> dict[str, int]:
    """The dimension along which the CTAs of a cluster share each box of :func:`descriptor_blocks`, but for those of B',
    which all of them hold whole."""
    return {"a_desc": 0 if majors(config, layout)[0] == "k" else 1, "c": 1 if config.swap else 0}


def described(
    config: GemmConfig, boxes: Boxes, element: str, result: str, tma_store: bool, layout: str
) -> tuple[dict[str, str], dict[str, object]]:
    """(types of the matrices' arguments, constants) as a launch would specialise them."""
    splits = cluster_splits(config, layout)
    types = {}
    for name, box in boxes.items():
        kind = result if name == "c" else element
        shared = shared_layout(box, TYPES[kind], config.cluster, splits.get(name))
        types[name] = f"tensordesc<{kind}{list(box)},{shared!r}>"
    if not tma_store:
        types["c"] = f"*{result}"
    return types, {} if "b_rest_desc" in boxes else {"b_rest_desc": None}


def constants(config: GemmConfig, tma_store: bool, layout: str = "nt", scales: str = "none") -> dict[str, object]:
    """The kernel's constexprs."""
    a_major, b_major = majors(config, layout)
    return {
        "SCHEME": config.scheme,
        "CONSUMERS": config.consumers,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "DEPTH": config.depth,
        "EPILOGUE_SPLIT": config.epilogue_split,
        "STAGING_IN_RING": config.staging == "ring",
        "SWAP": config.swap,
        "TMA_STORE": tma_store,
        "SPLIT": config.split,
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "LAUNCH_DEPENDENTS": config.launch_dependents,
        "SCALES": scales,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }


def launch_options(config: GemmConfig) -> dict[str, int]:
    """What Triton's launcher takes. Raises :class:`InvalidConfig` for a cluster where this Triton has none."""
    if config.cluster > 1 and not has_clusters:
        raise InvalidConfig(
            f"num_ctas {config.cluster}: Triton {triton.__version__} has no TMA multicast, 3.9 has: plan with "
            "a profile that was recorded with this Triton",
            field="num_ctas", value=config.cluster, limit=1,
        )  # fmt: skip
    options = {"num_warps": config.consumer_warps, "num_stages": 1, "maxnreg": config.max_registers, **LAUNCH_OPTIONS}
    return options if config.cluster == 1 else {**options, "num_ctas": config.cluster}


def signature(
    config: GemmConfig, element: str, tma_store: bool, layout: str = "nt", scales: str = "none"
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    result = RESULTS[element]
    types, absent = described(config, descriptor_blocks(config, layout), element, result, tma_store, layout)
    types |= dict.fromkeys([*RUNTIME_INTEGERS, *SCALE_STRIDES], "i32")
    values = constants(config, tma_store, layout, scales) | absent
    aligned: list[str] = []
    for names, kinds, present in (
        (("workspace", "counters"), ("*fp32", "*i32"), config.split != "none"),
        (("row_scales", "column_scales"), ("*fp32", "*fp32"), scales != "none"),
    ):
        if present:
            types |= zip(names, kinds, strict=True)
            aligned += names
        else:
            values |= dict.fromkeys(names)
    return types, values, aligned
