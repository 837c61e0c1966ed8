"""The configurations considered for a shape: few enough to time all of them on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from warpplan.kernels.attention_bwd.space import DEPTHS, MMA_ROWS, QUERY_GRADIENTS, AttentionBwdConfig, violations
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.planner.values.device import Device

GROUPS = (1, 8, 32)
"""Key heads that run together (``HEAD_GROUP``) where the tiles of a head are of unlike length."""
_TILES = ((128, 64), (64, 64))
"""(keys, query rows a step). Of 128 rows a step the weights alone exceed a thread's registers."""


@lru_cache(maxsize=32)
def structures(head_dim: int, dtype: str, device: Device, packed: bool = False) -> tuple[AttentionBwdConfig, ...]:
    """Every valid block structure at its deepest rings, the fields that order units at their defaults."""
    found: list[AttentionBwdConfig] = []
    for keys, rows in _TILES:
        for dq in QUERY_GRADIENTS:
            for in_registers in (True, False) if dq == "reduce" else (True,):
                for ctas in (1, 2):
                    base = AttentionBwdConfig(head_dim, keys, rows, 2, in_registers, dq, ctas, packed=packed)
                    fitting = (replace(base, depth=depth) for depth in reversed(DEPTHS))
                    chosen = next((c for c in fitting if not violations(c, dtype, device)), None)
                    if chosen is not None:
                        found.append(chosen)
    return tuple(found)


def candidates(
    shape: AttentionShape, dtype: str, device: Device, *, deterministic: bool = False
) -> tuple[AttentionBwdConfig, ...]:
    """The configurations considered for ``shape``, in a fixed order; with ``deterministic`` those alone that give the
    same bits in every run.

    Left out: tiles far larger than the keys of a head, and orders of units that coincide.
    """
    unlike = shape.right is not None or shape.packed
    key_heads = shape.kv_heads if shape.packed else shape.batch * shape.kv_heads
    groups = [group for below, group in zip((0, *GROUPS), GROUPS, strict=False) if below < key_heads]
    found: list[AttentionBwdConfig] = []
    for base in structures(shape.head_dim, dtype, device, shape.packed):
        if (deterministic and base.dq == "reduce") or (base.keys > MMA_ROWS >= shape.k_length):
            continue
        tiles = sum(count * -(-one.k_length // base.keys) for count, one in shape.sequences)
        several = shape.kv_heads * tiles > base.ctas_per_sm * device.sm_count
        for group in groups if unlike and several else groups[:1]:
            found.append(replace(base, head_group=min(group, key_heads)))
            if several:
                found.append(replace(found[-1], persistent=False))
    return tuple(found)
