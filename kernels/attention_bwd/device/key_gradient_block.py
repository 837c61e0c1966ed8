"""What the parts of dK and dV's device code hand to one another: the compile-time facts of a block, and named tuples
of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.triton_compat import gl, gluon


@dataclass(frozen=True)
class KeyGradientBlock:
    """Compile-time facts: the plan, the head size ``width``, which sides of the mask's band are bounded, the left one
    never alone, and at how many packed sequences a warp looks together: 0 where none are."""

    keys: int
    rows: int
    width: int
    depth: int
    ds_in_registers: bool
    reduces: bool
    bounded_left: bool
    bounded_right: bool
    window: int
    gap: int


class HeldKeys(NamedTuple):
    """K and V of a unit, a ring of one slot. dK and dV leave through them."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class RowRings(NamedTuple):
    """Blocks of Q with log-sum-exps, and of dO with deltas, in rings of their own: dO is let go before Q."""

    q: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    do_empty: gl.shared_memory_descriptor


class GradientExtents(NamedTuple):
    """``units`` of work, ``tiles`` of them for each of ``key_heads`` of all batches; ``kv_heads`` of one, each shared
    by ``sharers`` query heads; lengths in rows; the rows that see key k are those from k - ``low`` to k + ``high``
    where the mask is bounded; ``head_group`` key heads that run together; ``scale`` as it is and times log2 e. What the
    host can compute it does: a kernel's argument takes no register, a number made of two of them does.

    Of ``sequences`` that are packed, ``q_starts`` and ``k_starts`` point to one 32-bit row number more than there are
    of them; the lengths are those of all, and ``low`` and ``high`` those of a sequence with as many keys as queries."""

    q_starts: gl.tensor
    k_starts: gl.tensor
    sequences: gl.tensor
    units: gl.tensor
    tiles: gl.tensor
    key_heads: gl.tensor
    kv_heads: gl.tensor
    sharers: gl.tensor
    q_length: gl.tensor
    k_length: gl.tensor
    low: gl.tensor
    high: gl.tensor
    head_group: gl.tensor
    scale: gl.tensor
    log_scale: gl.tensor


class KeyTile(NamedTuple):
    """Where a unit lies: its first key, the first query row that sees one of its keys, how many blocks of rows
    follow from there, and the end of the rows that do.

    Of packed sequences ``key`` counts through all of them up to its own's ``k_end``, the rows as they lie spread:
    ``shift`` further on in Q and dO, up to ``q_end``. There are ``left`` keys from ``key`` on, whose first one rows
    from ``seen_from`` on see."""

    batch: gl.tensor
    head: gl.tensor
    key: gl.tensor
    row: gl.tensor
    blocks: gl.tensor
    end: gl.tensor
    k_end: gl.tensor
    q_end: gl.tensor
    shift: gl.tensor
    left: gl.tensor
    seen_from: gl.tensor


class GradientOutput(NamedTuple):
    """TMA descriptors of dK, dV and the fp32 dQ, and the shared memory that dSᵀ and dQ pass through."""

    dk: gl.tensor
    dv: gl.tensor
    dq: gl.tensor
    ds: gl.shared_memory_descriptor
    staging: gl.shared_memory_descriptor


@gluon.constexpr_function
def key_gradient_block(*fields):
    return KeyGradientBlock(*fields)


@gluon.constexpr_function
def query_layout(rows, width, warps):
    """Where a wgmma leaves a block of dQ: warp groups that rows do not occupy share out the columns."""
    down = min(rows // 16, warps)
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[down, warps // down], instr_shape=[16, width * down // warps, 16]
    )


@gluon.constexpr_function
def vector_layout():
    return gl.SwizzledSharedLayout(1, 1, 1, [0])
