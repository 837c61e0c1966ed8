"""The configurations considered for a shape: few enough to time all of them on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.space import MMA_ROWS, AttentionConfig, AttentionStaging, violations
from warpplan.planner.values.device import Device

GROUPS = (1, 8, 32)
"""Heads that run together (``HEAD_GROUP``) where the tiles of a head are of unlike length."""
DEEPEST = 4
"""Ring slots: beyond, memory that nothing waits for."""
TILES_PER_SM = 4
"""Tiles of one consumer, which leave the tensor cores idle while it weighs its scores, are left out where they would
make more than so many units an SM."""
_TILES = ((1, 64), (1, 128), (2, 64), (2, 128), (3, 64))
"""(consumers, rows of each)."""
_SCHEMES = ((True, False, False), (True, True, False), (True, False, True), (False, False, False))
"""(lookahead, pingpong, Q in registers)."""
_STAGINGS: tuple[AttentionStaging, ...] = ("own", "q")
"""Best first: bytes of its own let the store overlap the next unit."""


@lru_cache(maxsize=32)
def structures(head_dim: int, dtype: str, device: Device, packed: bool = False) -> tuple[AttentionConfig, ...]:
    """Every valid block structure at its deepest rings, the fields that order units at their defaults. A result that
    leaves through Q is there only where that buys depth."""
    found: list[AttentionConfig] = []
    for consumers, rows in _TILES:
        for columns in (64, 128):
            for lookahead, pingpong, in_registers in _SCHEMES:
                base = AttentionConfig(
                    head_dim, consumers, rows, columns, 2, lookahead, pingpong, in_registers, packed=packed
                )
                deepest = 1
                for staging in _STAGINGS:
                    fitting = (replace(base, depth=depth, staging=staging) for depth in range(DEEPEST, deepest, -1))
                    chosen = next((c for c in fitting if not violations(c, dtype, device)), None)
                    if chosen is not None:
                        found.append(chosen)
                        deepest = chosen.depth
    return tuple(found)


def candidates(shape: AttentionShape, dtype: str, device: Device) -> tuple[AttentionConfig, ...]:
    """The configurations considered for ``shape``, in a fixed order.

    Left out: tiles far larger than the queries of a head, tiles of one consumer where larger ones fill the device, and
    orders of units that coincide.
    """
    unlike = shape.right is not None
    # Packed sequences run one after the other, each with its heads in bands.
    heads = shape.heads if shape.packed else shape.batch_heads
    groups = [group for below, group in zip((0, *GROUPS), GROUPS, strict=False) if below < heads]
    largest = max(MMA_ROWS, _cover(shape.q_length))
    found: list[AttentionConfig] = []
    for base in structures(shape.head_dim, dtype, device, shape.packed):
        units = shape.heads * sum(count * -(-one.q_length // base.tile_rows) for count, one in shape.sequences)
        if base.tile_rows > largest:
            continue
        # Of the shortest queries no other tile is left.
        if base.consumers == 1 and largest > MMA_ROWS and units > TILES_PER_SM * device.sm_count:
            continue
        several = units > device.sm_count
        for group in groups if unlike and several else groups[:1]:
            found.append(replace(base, head_group=min(group, heads)))
        if several:
            found.append(replace(base, persistent=False))
    return tuple(found)


def _cover(size: int) -> int:
    """The smallest power of two that is not below ``size``."""
    return 1 << max(0, size - 1).bit_length()
