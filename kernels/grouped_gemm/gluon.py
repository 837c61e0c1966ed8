"""The grouped GEMM for Hopper: one Gluon source for three products, its plan in constexprs.

The main loop is that of :mod:`warpplan.kernels.device.matmul`; a unit of work is one tile of one group's product, found
by :mod:`warpplan.kernels.device.groups`. Units count through the groups in order and through a group's tiles in bands.

    forward    C[rows, N]  = A[rows, K] · B[g]ᵀ        dgrad    dA[rows, K] = dC[rows, N] · B[g]
    wgrad      dB[g][N, K] = dC[rows, N]ᵀ · A[rows, K]

TMA cuts off what is not a group's, with descriptors that the host makes once. B and dB have three dimensions, so that a
tile that overhangs N reads zeros and writes nothing. Rows of a group end where only the device knows: where that
matters (the rows that forward and dgrad store, the last rows that wgrad reduces over) the matrix has a *ragged*
descriptor of four dimensions (:mod:`warpplan.kernels.device.boxes`). Of the last K block of wgrad only the steps that
have rows of the group are copied, in boxes of one step and one panel. An empty group's wgrad is one step of rows that
are all cut off, that is, of zeros.

fp8 operands (forward) are scaled by :mod:`warpplan.kernels.device.scaling`; the scales of all groups' B make one list,
and a unit's begin at its group's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.device.block import Block, accumulator_widths, block
from warpplan.kernels.device.boxes import RAGGED_ROWS, as_box, as_boxes
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS
from warpplan.kernels.device.epilogue import column_chunks, shared_layout
from warpplan.kernels.device.groups import Groups, Search, count_units, find_group, first_window
from warpplan.kernels.device.matmul import allocate_ring, allocate_staging, by_width, specialize
from warpplan.kernels.device.scaling import SCALE_BLOCK, Scales, scale_chunk
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.gemm.gluon import RESULTS, TYPES
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.space import K_STEP, PRODUCER_REGISTERS, consumer_registers
from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    thread_barrier,
    tma_load,
    tma_store,
    tma_store_wait,
)

STEP = gl.constexpr(K_STEP)
"""Rows of K in a step of wgrad's last K block."""
PANEL = 64
"""Columns that lie together in a tile [K, columns] of 16-bit elements: a swizzle's 128 bytes."""


@dataclass(frozen=True)
class GroupedBlock(Block):
    """``product`` is "forward", "dgrad" or "wgrad"; ``window`` how many groups a warp looks at together."""

    product: str
    window: int


class Launch(NamedTuple):
    """``columns`` of the result, ``depth`` of the product; of wgrad ``rows`` is N, else the groups say. ``a_step`` and
    ``b_step``, the latter one for each of the block's widths, are ragged descriptors of wgrad's operands, of one step
    of K and one panel; the other products do not use them."""

    a_step: gl.tensor
    b_step: tuple[gl.tensor, ...]
    groups: Groups
    rows: gl.tensor
    columns: gl.tensor
    depth: gl.tensor
    group_m: gl.tensor


class Work(NamedTuple):
    """A partition's own: ``search`` is where it looks for the group of its next unit."""

    launch: Launch
    search: Search


class GroupTile(NamedTuple):
    """A :class:`~warpplan.kernels.device.matmul.Tile`, the ``group`` it belongs to, and where that group's rows end.

    ``b_row`` counts the columns of all groups' results, as the scales of B do; ``column`` those of one.
    """

    a_row: gl.tensor
    a_k: gl.tensor
    b_row: gl.tensor
    b_k: gl.tensor
    blocks: gl.tensor
    row: gl.tensor
    column: gl.tensor
    group: gl.tensor
    end: gl.tensor
    whole: gl.tensor
    last_steps: gl.tensor


class GroupedOutput(NamedTuple):
    """``c`` is the TMA descriptor of the result: ragged, or of wgrad [G, N, K]; ``scales`` are of fp8 operands."""

    c: gl.tensor
    staging: gl.shared_memory_descriptor
    scales: gl.tensor


@gluon.constexpr_function
def grouped_block(
    product, window, scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, scales
):
    a_major = "m" if product == "wgrad" else "k"
    b_major = "k" if product == "forward" else "n"
    made = block(
        scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, False, True, "none", a_major,
        b_major, scales, k_steps=block_k // int(STEP) if product == "wgrad" else 1,
    )  # fmt: skip
    return GroupedBlock(**vars(made), product=product, window=window)


@gluon.jit
def group_units(launch, BLOCK: gl.constexpr):
    """Units of a group, for each ``block_m`` of its rows; of wgrad in all."""
    columns = gl.cdiv(launch.columns, BLOCK.block_n)
    if BLOCK.product == "wgrad":
        columns *= gl.cdiv(launch.rows, BLOCK.block_m)
    return columns


@gluon.jit
def begin(launch, BLOCK: gl.constexpr):
    WGRAD: gl.constexpr = BLOCK.product == "wgrad"
    return Work(launch, first_window(launch.groups, group_units(launch, BLOCK), BLOCK.block_m, WGRAD, BLOCK.window))


@gluon.jit
def unit_count(work, BLOCK: gl.constexpr):
    WGRAD: gl.constexpr = BLOCK.product == "wgrad"
    each = group_units(work.launch, BLOCK)
    return count_units(work.search, work.launch.groups, each, BLOCK.block_m, WGRAD, BLOCK.window)


@gluon.jit
def locate(unit, work, BLOCK: gl.constexpr):
    """Where a unit lies, as a :class:`GroupTile`; of wgrad K counts the rows of all groups."""
    WGRAD: gl.constexpr = BLOCK.product == "wgrad"
    launch = work.launch
    units = group_units(launch, BLOCK)
    group, search = find_group(unit, work.search, launch.groups, units, BLOCK.block_m, WGRAD, BLOCK.window)
    height = group.end - group.first
    # A unit beyond the last has no rows, and nothing may be divided by none.
    rows = launch.rows if WGRAD else gl.maximum(height, 1)
    row, column = banded_tile(group.unit, rows, launch.columns, launch.group_m, BLOCK.block_m, BLOCK.block_n)
    if WGRAD:
        blocks = gl.maximum(gl.cdiv(height, BLOCK.block_k), 1)
        whole = height // BLOCK.block_k
        steps = gl.maximum(gl.cdiv(height - whole * BLOCK.block_k, STEP), 1)
        tile = GroupTile(
            row, group.first, column, group.first, blocks, row, column, group.index, group.end, whole, steps
        )  # fmt: skip
    else:
        row += group.first
        blocks = gl.cdiv(launch.depth, BLOCK.block_k)
        each = launch.columns
        if BLOCK.scales == "block":
            each = gl.cdiv(launch.columns, SCALE_BLOCK) * SCALE_BLOCK
        # Every K block is whole here: nothing reads the last two fields.
        tile = GroupTile(
            row, 0, group.index * each + column, 0, blocks, row, column, group.index, group.end, blocks, blocks
        )
    return tile, Work(launch, search)


@gluon.jit
def load(a_desc, b_desc, tile, k, slot, ring, BLOCK: gl.constexpr):
    """Copy a K block of both operands, of wgrad one of the group's rows alone."""
    SHARERS: gl.constexpr = BLOCK.sharers
    full = ring.full.index(slot)
    for part in gl.static_range(SHARERS):
        a = ring.a.index(slot * SHARERS + part)
        a_row = tile.a_row + part * BLOCK.rows
        a_k = tile.a_k + k * BLOCK.block_k
        if BLOCK.product == "wgrad":
            tma_load(a_desc, [a_k, a_row], full, a)
        else:
            tma_load(a_desc, [a_row, a_k], full, a)
    b_k = tile.b_k + k * BLOCK.block_k
    WIDTHS: gl.constexpr = len(BLOCK.widths)
    for i in gl.static_range(WIDTHS):
        b = ring.b[i].index(slot)
        column = tile.column + i * BLOCK.widths[0]
        if BLOCK.product == "wgrad":
            tma_load(b_desc[i], [b_k, column], full, b)
        elif BLOCK.product == "dgrad":
            tma_load(b_desc[i], [tile.group, b_k, column], full, as_box(b, b_desc[i]))
        else:
            tma_load(b_desc[i], [tile.group, column, b_k], full, as_box(b, b_desc[i]))


@gluon.jit
def load_steps(tile, k, slot, ring, work, BLOCK: gl.constexpr):
    """Copy the steps of wgrad's last K block; rows beyond the group's end become zeros."""
    SHARERS: gl.constexpr = BLOCK.sharers
    WIDTHS: gl.constexpr = len(BLOCK.widths)
    STEPS: gl.constexpr = BLOCK.k_steps
    full = ring.full.index(slot)
    for i in gl.static_range(STEPS):
        if i < tile.last_steps:
            row = tile.a_k + k * BLOCK.block_k + i * STEP
            for part in gl.static_range(SHARERS):
                a = ring.a.index(slot * SHARERS + part)
                load_step(work.launch.a_step, a, row, tile.a_row + part * BLOCK.rows, tile.end, full, i)
            for width in gl.static_range(WIDTHS):
                b = ring.b[width].index(slot)
                column = tile.column + width * BLOCK.widths[0]
                load_step(work.launch.b_step[width], b, row, column, tile.end, full, i)


@gluon.jit
def load_step(desc, tile, row, column, end, full, INDEX: gl.constexpr):
    """Copy step ``INDEX`` of K of a tile [K, columns], panel by panel."""
    COLUMNS: gl.constexpr = desc.block_type.shape[-1]
    PANELS: gl.constexpr = tile.shape[1] // COLUMNS
    step = as_boxes(tile, desc).slice(INDEX * STEP, STEP, dim=2)
    for i in gl.static_range(PANELS):
        panel = step.slice(i * COLUMNS, COLUMNS, dim=3)
        tma_load(desc, ragged(row, column + i * COLUMNS, end), full, panel)


@gluon.jit
def ragged(row, column, end):
    """Coordinates of a ragged descriptor: a box from (``row``, ``column``) on, cut off at row ``end``."""
    return [RAGGED_ROWS, end, RAGGED_ROWS - end + row, column]


@gluon.jit
def finish(acc, unit, tile, staging, out, work, BLOCK: gl.constexpr, PART: gl.constexpr):
    """Store a consumer's rows of a unit, chunk by chunk, but none beyond its group."""
    CHUNKS: gl.constexpr = BLOCK.chunks
    row = tile.row + PART * BLOCK.rows
    parts = column_chunks(acc, BLOCK.chunk_columns)
    for i in gl.static_range(CHUNKS):
        column = tile.column + i * BLOCK.chunk_columns
        chunk = scale_chunk(parts[i], out.scales, row, tile.b_row + i * BLOCK.chunk_columns, BLOCK)
        tma_store_wait(0)
        thread_barrier()
        staging.store(chunk.to(staging.dtype))
        fence_async_shared()
        if BLOCK.product == "wgrad":
            tma_store(out.c, [tile.group, row, column], as_box(staging, out.c))
        else:
            tma_store(out.c, ragged(row, column, tile.end), as_box(staging, out.c))


DESCRIPTORS = ("a_desc", "b_desc", "b_rest_desc", "c_desc", "a_step_desc", "b_step_desc", "b_rest_step_desc")
"""The kernel's, None where a product or a block has none."""
RUNTIME_INTEGERS = ["G", "M", "ROWS", "COLUMNS", "K", "GROUP_M", "ROW_SCALE_STRIDE", "ROW_SCALE_K_STRIDE"]


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def grouped_gemm_kernel(
    a_desc,
    b_desc,
    b_rest_desc,
    c_desc,
    a_step_desc,
    b_step_desc,
    b_rest_step_desc,
    ends,
    row_scales,
    column_scales,
    G,
    M,
    ROWS,
    COLUMNS,
    K,
    GROUP_M,
    ROW_SCALE_STRIDE,
    ROW_SCALE_K_STRIDE,
    PRODUCT: gl.constexpr,
    WINDOW: gl.constexpr,
    SCHEME: gl.constexpr,
    CONSUMERS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    DEPTH: gl.constexpr,
    EPILOGUE_SPLIT: gl.constexpr,
    STAGING_IN_RING: gl.constexpr,
    SCALES: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """``M`` rows in ``G`` groups; ``COLUMNS`` of the result; ``K`` the reduction's length, and ``ROWS`` those of a
    group's result, where the groups do not say. The scales, fp32, are None where ``SCALES`` is "none": of rows, [M] and
    [G, N], or of blocks, [M, K / 128] and [G, N / 128, K / 128], those of B contiguous. The launch's ``num_warps`` are
    one consumer's."""
    BLOCK: gl.constexpr = grouped_block(
        PRODUCT, WINDOW, SCHEME, CONSUMERS, BLOCK_M, BLOCK_N, BLOCK_K, DEPTH, EPILOGUE_SPLIT, STAGING_IN_RING, SCALES
    )
    b_descs = by_width(b_desc, b_rest_desc, BLOCK)
    ring = allocate_ring(a_desc, b_descs, BLOCK)
    staging = ring.a
    if not STAGING_IN_RING:
        staging = allocate_staging(c_desc.dtype, BLOCK)
    a_step, b_step = a_desc, b_descs
    if PRODUCT == "wgrad":
        a_step, b_step = a_step_desc, by_width(b_step_desc, b_rest_step_desc, BLOCK)
    launch = Launch(a_step, b_step, Groups(ends, G, M), ROWS, COLUMNS, K, GROUP_M)
    column_stride = gl.cdiv(K, SCALE_BLOCK) if SCALES == "block" else 1
    scales = Scales(row_scales, ROW_SCALE_STRIDE, ROW_SCALE_K_STRIDE, M, column_scales, column_stride, 1, G * COLUMNS)
    out = GroupedOutput(c_desc, staging, scales)
    specialize(
        a_desc, b_descs, out, ring, launch, BLOCK, unit_count, locate, finish, PRODUCER_REGISTERS, CONSUMER_REGISTERS,
        begin, load, load_steps,
    )  # fmt: skip


def descriptor_blocks(config: GemmConfig, product: str) -> dict[str, tuple[int, ...]]:
    """The TMA boxes of the left operand, of the right one (for each of the block's widths), of the result and of
    wgrad's steps, in elements as they lie in memory, by the kernel's argument (:data:`DESCRIPTORS`)."""
    rows, depth = config.consumer_rows, config.block_k
    chunk = (rows, config.block_n // config.epilogue_split)
    boxes: dict[str, tuple[int, ...]] = {"a_desc": (depth, rows) if product == "wgrad" else (rows, depth)}
    if product == "wgrad":
        boxes["a_step_desc"] = step_box(rows)
    for name, columns in zip(("b", "b_rest"), accumulator_widths(config.block_n), strict=False):
        forms = {"forward": (1, columns, depth), "dgrad": (1, depth, columns), "wgrad": (depth, columns)}
        boxes[f"{name}_desc"] = forms[product]
        if product == "wgrad":
            boxes[f"{name}_step_desc"] = step_box(columns)
    boxes["c_desc"] = (1, *chunk) if product == "wgrad" else (1, 1, *chunk)
    return boxes


def step_box(columns: int) -> tuple[int, ...]:
    """Of a step of K and a panel of a tile's ``columns``."""
    return 1, 1, int(STEP), min(PANEL, columns)


def constants(config: GemmConfig, product: str, window: int, scales: str = "none") -> dict[str, object]:
    """The kernel's constexprs."""
    return {
        "PRODUCT": product,
        "WINDOW": window,
        "SCHEME": config.scheme,
        "CONSUMERS": config.consumers,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "DEPTH": config.depth,
        "EPILOGUE_SPLIT": config.epilogue_split,
        "STAGING_IN_RING": config.staging == "ring",
        "SCALES": scales,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        "CONSUMER_REGISTERS": consumer_registers(config),
    }


def launch_options(config: GemmConfig) -> dict[str, int]:
    return {"num_warps": config.consumer_warps, "num_stages": 1, "maxnreg": config.max_registers, **LAUNCH_OPTIONS}


def signature(
    config: GemmConfig, element: str, product: str, window: int, scales: str = "none"
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    types = {}
    for name, box in descriptor_blocks(config, product).items():
        kind = RESULTS[element] if name == "c_desc" else element
        types[name] = f"tensordesc<{kind}{list(box)},{shared_layout(box, TYPES[kind])!r}>"
    types |= {"ends": "*i32"} | dict.fromkeys(RUNTIME_INTEGERS, "i32")
    values = constants(config, product, window, scales)
    values |= {name: None for name in DESCRIPTORS if name not in types}
    if scales == "none":
        return types, values | {"row_scales": None, "column_scales": None}, ["ends"]
    types |= {"row_scales": "*fp32", "column_scales": "*fp32"}
    return types, values, ["ends", "row_scales", "column_scales"]
