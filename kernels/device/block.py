"""Compile-time facts of one block of a matrix product: its plan, and what follows from it (sizes in elements)."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.triton_compat import gluon


@dataclass(frozen=True)
class Block:
    """Compile-time facts of one block: the plan, and what :func:`block` derives from it (sizes in elements).

    ``a_major`` is the dimension of A that lies contiguously: "k", or "m" where A is stored [K, M]; ``b_major`` is "k"
    or "n". ``split`` says how K is split: "none", "equal" ranges of each tile's, or "stream", a range a CTA of all
    tiles'. ``scales`` is "none", "tensor", "row" or "block" (:mod:`warpplan.kernels.device.scaling`). ``cluster`` CTAs
    share a block: its rows, each with all of its columns. ``launch_dependents``: the producer lets the next launch
    begin (:mod:`warpplan.kernels.device.early_launch`). ``k_steps`` are the steps of K in a slot, 1 where
    every slot is copied and multiplied whole. ``tile`` is one chunk of the result as it is stored: transposed where the
    operands are swapped.

    A tensor's sides are powers of two. Where ``block_n`` is none, the block has two accumulators, whose columns are
    ``widths``, the wider first, and a ring of B's tiles for each.
    """

    scheme: str
    consumers: int
    block_m: int
    block_n: int
    block_k: int
    depth: int
    chunks: int
    staging_in_ring: bool
    swap: bool
    tma_store: bool
    split: str
    a_major: str
    b_major: str
    scales: str
    cluster: int
    launch_dependents: bool
    k_steps: int
    sharers: int
    rows: int
    chunk_columns: int
    tile: tuple[int, int]
    widths: tuple[int, ...]


@gluon.constexpr_function
def block(
    scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, swap, tma_store, split, a_major,
    b_major, scales="none", cluster=1, launch_dependents=False, k_steps=1,
):  # fmt: skip
    sharers = consumers if scheme == "cooperative" else 1
    rows = block_m // sharers
    columns = block_n // chunks
    return Block(
        scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, swap, tma_store, split, a_major,
        b_major, scales, cluster, launch_dependents, k_steps,
        sharers=sharers,
        rows=rows,
        chunk_columns=columns,
        tile=(columns, rows) if swap else (rows, columns),
        widths=accumulator_widths(block_n),
    )  # fmt: skip


@gluon.constexpr_function
def accumulator_widths(columns):
    """``columns`` as powers of two, the widest first."""
    widest = 1 << (columns.bit_length() - 1)
    return (columns,) if widest == columns else (widest, *accumulator_widths(columns - widest))
