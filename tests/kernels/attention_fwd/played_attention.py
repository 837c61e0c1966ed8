"""Attention as compiled for sm_90 and played in numpy, and what is right in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import triton
from triton.backends.compiler import GPUTarget

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.compile_attention_fwd import attention_fwd_source
from warpplan.kernels.attention_fwd.space import AttentionConfig
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedInputs,
    play,
    ready,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import decoded, element_type, encoded, rounded
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode

LOG2_E = 1.4426950408889634
PLAYED = {"bf16": "bf16", "fp16": "f16"}
"""The player's names of Triton's types."""
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Half a unit in the last place, relative."""
MARGIN = 2
"""Rows of NaN before and behind each head of every tensor, which belong to nobody."""


@dataclass(frozen=True)
class PlayedAttention:
    """``out`` [B, H, L, D] and ``lse`` [B, H, L] as the kernel left them, whether it wrote ``around`` them, and what
    is right."""

    out: np.ndarray
    lse: np.ndarray
    around: bool
    wanted_out: np.ndarray
    wanted_lse: np.ndarray
    largest: float

    def require_right(self, element: str) -> None:
        """Within the rounding of the weights and of the result, both in 16 bits; sums are in fp32."""
        assert not self.around
        np.testing.assert_allclose(self.out, self.wanted_out, rtol=0, atol=4 * ROUNDING[element] * self.largest)
        np.testing.assert_allclose(self.lse, self.wanted_lse, rtol=1e-5, atol=1e-5)


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, shape: AttentionShape, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(output, log-sum-exp) in float64, a head at a time."""
    position = np.arange(shape.k_length - shape.q_length, shape.k_length)[:, None]
    key = np.arange(shape.k_length)[None, :]
    seen = np.ones((shape.q_length, shape.k_length), bool)
    if shape.left is not None:
        seen &= key >= position - shape.left
    if shape.right is not None:
        seen &= key <= position + shape.right
    sharers = shape.heads // shape.kv_heads
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:3])
    for b, h in np.ndindex(*q.shape[:2]):
        with np.errstate(divide="ignore"):
            scores = np.where(seen, q[b, h] @ k[b, h // sharers].T * scale, -np.inf)
            highest = np.maximum(scores.max(1), -1e30)
            weights = np.exp(scores - highest[:, None])
            total = weights.sum(1)
            lse[b, h] = highest + np.log(total)
        out[b, h] = weights @ v[b, h // sharers] / np.where(total > 0, total, 1)[:, None]
    return out, lse


@cache
def compiled(config: AttentionConfig, element: str, bounded_left: bool, bounded_right: bool) -> ReadyCode:
    # Fields that order units do not enter the code.
    plain = replace(config, persistent=True, head_group=1)
    source, options = attention_fwd_source(plain, element, bounded_left, bounded_right)
    return ready(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ttgir"])


def played(
    config: AttentionConfig, shape: AttentionShape, *, element: str = "bf16", seed: int = 0, programs: int = 2,
    by_token: bool = False, scale: float | None = None,
) -> PlayedAttention:  # fmt: skip
    """Play ``config`` on random tensors of ``shape``, partitions interleaved as ``seed`` draws it. Rows of NaN lie
    between the heads, or with ``by_token``, where a token's heads are adjacent, around each batch."""
    kind, draw = element_type(PLAYED[element]), np.random.default_rng(seed)
    scale = shape.head_dim**-0.5 if scale is None else scale
    buffers: dict[str, np.ndarray] = {}
    arguments: list[DescribedArgument] = []
    places = {}
    for name, heads, length in (
        ("q", shape.heads, shape.q_length), ("k", shape.kv_heads, shape.k_length),
        ("v", shape.kv_heads, shape.k_length), ("o", shape.heads, shape.q_length),
    ):  # fmt: skip
        padded = length + 2 * MARGIN
        whole = np.full((shape.batch, heads, padded, shape.head_dim), np.nan)
        if name != "o":
            whole[:, :, MARGIN:-MARGIN] = draw.standard_normal((shape.batch, heads, length, shape.head_dim))
        stored = whole.transpose(0, 2, 1, 3) if by_token else whole
        buffers[name] = encoded(rounded(np.ascontiguousarray(stored), kind), kind).view(np.uint8).reshape(-1)
        d = shape.head_dim
        strides = (padded * heads * d, d, heads * d, 1) if by_token else (heads * padded * d, padded * d, d, 1)
        offset = MARGIN * strides[2] * kind.bytes
        arguments.append(
            DescribedArgument(name, (shape.batch, heads, length, d), strides, PLAYED[element], offset)
        )  # fmt: skip
        places[name] = (stored.shape, length)
    lse_size = shape.batch_heads * shape.q_length
    buffers["lse"] = np.full(lse_size + 2 * MARGIN, np.nan, np.float32).view(np.uint8)
    numbers = (
        shape.batch_heads, shape.heads, shape.heads // shape.kv_heads, shape.q_length, shape.k_length,
        shape.left or 0, shape.right or 0, min(config.head_group, shape.batch_heads), scale * LOG2_E,
    )  # fmt: skip
    units = shape.batch_heads * -(-shape.q_length // config.tile_rows)
    grid = min(programs, units) if config.persistent else units
    code = compiled(config, element, shape.left is not None, shape.right is not None)
    inputs = PlayedInputs(buffers, (*arguments, BufferArgument("lse", 4 * MARGIN), *numbers))
    found = play(code, inputs, (grid,), seed)

    def tensor(data: np.ndarray, name: str) -> np.ndarray:
        values = decoded(data.view(kind.stored), kind).astype(np.float64).reshape(places[name][0])
        return values.transpose(0, 2, 1, 3) if by_token else values

    inside = {name: tensor(buffers[name], name)[:, :, MARGIN:-MARGIN] for name in "qkv"}
    out = tensor(found.buffers["o"], "o")
    lse = found.buffers["lse"].view(np.float32)
    around = not np.isnan(out[:, :, :MARGIN]).all() or not np.isnan(out[:, :, -MARGIN:]).all()
    around = around or not np.isnan(lse[:MARGIN]).all() or not np.isnan(lse[-MARGIN:]).all()
    wanted = reference(inside["q"], inside["k"], inside["v"], shape, scale)
    shaped = lse[MARGIN:-MARGIN].reshape(shape.batch, shape.heads, shape.q_length)
    return PlayedAttention(out[:, :, MARGIN:-MARGIN], shaped, around, *wanted, float(np.abs(inside["v"]).max()))
