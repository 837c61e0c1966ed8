"""What the parts of attention forward's device code hand to one another: the compile-time facts of a block, and named
tuples of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.triton_compat import gl, gluon


@dataclass(frozen=True)
class AttentionBlock:
    """Compile-time facts: the plan, the head size ``width``, which sides of the mask's band are bounded, whether the
    log-sum-exp is stored, and at the ends of how many packed sequences a warp looks together: 0 where none are.
    ``heads_in_rows``: a tile has all heads that share a key head, those of a query one after the other. ``bits`` are
    those of an element of Q, K and V."""

    consumers: int
    rows: int
    columns: int
    width: int
    depth: int
    lookahead: bool
    pingpong: bool
    q_in_registers: bool
    staging_in_q: bool
    bounded_left: bool
    bounded_right: bool
    stores_lse: bool
    window: int
    heads_in_rows: bool = False
    bits: int = 16


@gluon.constexpr_function
def attention_block(*fields):
    return AttentionBlock(*fields)


class Queries(NamedTuple):
    """Q of a unit: a tile a consumer, in a ring of one slot. ``order[c]`` says that consumer c may issue products."""

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    order: gl.shared_memory_descriptor


class KeyRings(NamedTuple):
    """Blocks of K and of V, in rings of their own: K is let go an iteration before V."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor


class Extents(NamedTuple):
    """``batch_heads`` heads of all batches, ``heads`` of one, ``sharers`` of which share a key head; lengths in rows;
    ``head_group`` heads that run together; ``scale`` times log2 e. Of packed sequences ``q_starts`` and ``k_starts``
    point to ``batch`` + 1 32-bit row numbers, the first row of each sequence and the end of the last; the lengths are
    those of all, and ``batch_heads`` is not used."""

    q_starts: gl.tensor
    k_starts: gl.tensor
    batch: gl.tensor
    batch_heads: gl.tensor
    heads: gl.tensor
    sharers: gl.tensor
    q_length: gl.tensor
    k_length: gl.tensor
    left: gl.tensor
    right: gl.tensor
    head_group: gl.tensor
    scale: gl.tensor


class HeadScales(NamedTuple):
    """fp32 pointers to what 8-bit Q, K and V are multiplied by, with their strides in elements from one batch and from
    one head to the next; None of 16 bits."""

    q: gl.tensor
    q_batch: gl.tensor
    q_head: gl.tensor
    k: gl.tensor
    k_batch: gl.tensor
    k_head: gl.tensor
    v: gl.tensor
    v_batch: gl.tensor
    v_head: gl.tensor


class QueryTile(NamedTuple):
    """Where a unit lies: its first query row, its first key and how many blocks of keys follow from there, counted
    within its sequence, which has ``q_length`` rows from ``q_first`` on and ``k_length`` keys from ``k_first`` on."""

    batch: gl.tensor
    head: gl.tensor
    row: gl.tensor
    key: gl.tensor
    blocks: gl.tensor
    q_first: gl.tensor
    q_length: gl.tensor
    k_first: gl.tensor
    k_length: gl.tensor


class AttentionOutput(NamedTuple):
    """``o`` is a TMA descriptor, ``lse`` a pointer to [batch_heads, q_length], or None; of packed sequences to [heads,
    q_length]."""

    o: gl.tensor
    staging: gl.shared_memory_descriptor
    lse: gl.tensor
