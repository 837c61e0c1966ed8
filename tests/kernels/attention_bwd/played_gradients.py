"""Attention backward as compiled for sm_90 and played in numpy, all of its kernels one after another, and what is
right in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from finished_code import finished_code

from warpplan.kernels.attention_bwd import tl
from warpplan.kernels.attention_bwd.compile_attention_bwd import attention_bwd_sources
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedArgument,
    PlayedInputs,
    play,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import decoded, element_type, encoded, rounded
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode

LOG2_E = 1.4426950408889634
PLAYED = {"bf16": "bf16", "fp16": "f16"}
"""The player's names of Triton's types."""
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Half a unit in the last place, relative."""
SUMS = 1e-5
"""What fp32 sums of such terms may be off: where a row sees one key, its slope is a difference of equal sums."""
MARGIN = 2
"""Rows of NaN before and behind each head of every tensor, which belong to nobody."""
TENSORS = ("q", "k", "v", "o", "do", "dq", "dk", "dv")


@dataclass(frozen=True)
class PlayedGradients:
    """dQ, dK and dV by name as the kernels left them, whether they wrote ``around`` them, and what is right."""

    found: dict[str, np.ndarray]
    around: bool
    wanted: dict[str, np.ndarray]

    def require_right(self, element: str) -> None:
        """Weights, slopes and results are rounded to 16 bits, sums are in fp32: of a tensor the root of the mean square
        of the errors is within some roundings of that of its elements, each element within many."""
        assert not self.around
        for name, wanted in self.wanted.items():
            error = np.abs(self.found[name] - wanted)
            size = np.sqrt(np.mean(wanted**2))
            assert np.isfinite(self.found[name]).all(), name
            assert np.sqrt(np.mean(error**2)) <= 2 * ROUNDING[element] * size + SUMS, name
            assert error.max() <= 8 * ROUNDING[element] * np.abs(wanted).max() + SUMS, name


def seen_keys(shape: AttentionShape) -> np.ndarray:
    """Which key each query sees, bool [q_length, k_length]; the last query stands at the last key."""
    position = np.arange(shape.k_length - shape.q_length, shape.k_length)[:, None]
    key = np.arange(shape.k_length)[None, :]
    seen = np.ones((shape.q_length, shape.k_length), bool)
    if shape.left is not None:
        seen &= key >= position - shape.left
    if shape.right is not None:
        seen &= key <= position + shape.right
    return seen


def forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, shape: AttentionShape, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(output, log-sum-exp) in float64, a head at a time."""
    seen, sharers = seen_keys(shape), shape.heads // shape.kv_heads
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h in np.ndindex(*q.shape[:2]):
        scores = np.where(seen, q[b, h] @ k[b, h // sharers].T * scale, -np.inf)
        highest = scores.max(1, initial=-1e30)
        weights = np.exp(scores - highest[:, None])
        total = weights.sum(1)
        with np.errstate(divide="ignore"):
            lse[b, h] = highest + np.log(total)
        out[b, h] = weights @ v[b, h // sharers] / np.where(total > 0, total, 1)[:, None]
    return out, lse


def gradients(inputs: dict[str, np.ndarray], shape: AttentionShape, scale: float) -> dict[str, np.ndarray]:
    """dQ, dK and dV of ``inputs`` q, k, v, o and do in float64, by the textbook's formulas, a head at a time."""
    q, k, v, o, do = (inputs[name] for name in ("q", "k", "v", "o", "do"))
    seen, sharers = seen_keys(shape), shape.heads // shape.kv_heads
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, h in np.ndindex(*q.shape[:2]):
        g = h // sharers
        scores = np.where(seen, q[b, h] @ k[b, g].T * scale, -np.inf)
        weights = np.exp(scores - np.maximum(scores.max(1), -1e30)[:, None])
        total = weights.sum(1)[:, None]
        weights = weights / np.where(total > 0, total, 1)
        delta = (do[b, h] * o[b, h]).sum(1)[:, None]
        slopes = weights * (do[b, h] @ v[b, g].T - delta) * scale
        dq[b, h] = slopes @ k[b, g]
        dk[b, g] += slopes.T @ q[b, h]
        dv[b, g] += weights.T @ do[b, h]
    return {"dq": dq, "dk": dk, "dv": dv}


@cache
def compiled(
    config: AttentionBwdConfig, element: str, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> dict[str, ReadyCode]:
    # Fields that order units do not enter the code.
    plain = replace(config, persistent=True, head_group=1)
    sources = attention_bwd_sources(plain, element, bounded_left, bounded_right, sequences=sequences)
    return {name: finished_code(*source) for name, source in sources.items()}


class _Tensors:
    """The tensors of a backward pass in buffers, rows of NaN around each head, or with ``by_token``, where a token's
    heads are adjacent, around each batch."""

    def __init__(self, shape: AttentionShape, element: str, scale: float, seed: int, by_token: bool) -> None:
        self.shape, self.element, self.by_token = shape, element, by_token
        self.kind = element_type(PLAYED[element])
        draw = np.random.default_rng(seed)
        values = {}
        for name in ("q", "k", "v", "do"):
            drawn = draw.standard_normal((shape.batch, *self.place(name), shape.head_dim))
            values[name] = decoded(encoded(rounded(drawn, self.kind), self.kind), self.kind).astype(np.float64)
        values["o"], self.lse = forward(values["q"], values["k"], values["v"], shape, scale)
        self.buffers = {name: self._framed(name, values.get(name)) for name in TENSORS}
        self.values = {name: self.inside(self.buffers, name) for name in ("q", "k", "v", "o", "do")}

    def place(self, name: str) -> tuple[int, int]:
        """(heads, rows of each) of a tensor."""
        s = self.shape
        return (s.kv_heads, s.k_length) if name in ("k", "v", "dk", "dv") else (s.heads, s.q_length)

    def _framed(self, name: str, value: np.ndarray | None) -> np.ndarray:
        heads, length = self.place(name)
        whole = np.full((self.shape.batch, heads, length + 2 * MARGIN, self.shape.head_dim), np.nan)
        if value is not None:
            whole[:, :, MARGIN:-MARGIN] = value
        stored = whole.transpose(0, 2, 1, 3) if self.by_token else whole
        return encoded(rounded(np.ascontiguousarray(stored), self.kind), self.kind).view(np.uint8).reshape(-1)

    def strides(self, name: str) -> tuple[int, int, int, int]:
        heads, length = self.place(name)
        padded, d = length + 2 * MARGIN, self.shape.head_dim
        return (padded * heads * d, d, heads * d, 1) if self.by_token else (heads * padded * d, padded * d, d, 1)

    def described(self, name: str) -> DescribedArgument:
        heads, length = self.place(name)
        strides = self.strides(name)
        sizes = (self.shape.batch, heads, length, self.shape.head_dim)
        return DescribedArgument(name, sizes, strides, PLAYED[self.element], MARGIN * strides[2] * self.kind.bytes)

    def pointer(self, name: str) -> BufferArgument:
        return BufferArgument(name, MARGIN * self.strides(name)[2] * self.kind.bytes)

    def whole(self, buffers: dict[str, np.ndarray], name: str) -> np.ndarray:
        heads, length = self.place(name)
        sizes = (self.shape.batch, heads, length + 2 * MARGIN, self.shape.head_dim)
        stored = (sizes[0], sizes[2], sizes[1], sizes[3]) if self.by_token else sizes
        values = decoded(buffers[name].view(self.kind.stored), self.kind).astype(np.float64).reshape(stored)
        return values.transpose(0, 2, 1, 3) if self.by_token else values

    def inside(self, buffers: dict[str, np.ndarray], name: str) -> np.ndarray:
        return self.whole(buffers, name)[:, :, MARGIN:-MARGIN]

    def around(self, buffers: dict[str, np.ndarray], name: str) -> bool:
        """Whether something was written around a tensor."""
        whole = self.whole(buffers, name)
        return not (np.isnan(whole[:, :, :MARGIN]).all() and np.isnan(whole[:, :, -MARGIN:]).all())


def played(
    config: AttentionBwdConfig, shape: AttentionShape, *, element: str = "bf16", seed: int = 0, programs: int = 2,
    by_token: bool = False, scale: float | None = None,
) -> PlayedGradients:  # fmt: skip
    """Play ``config`` on random tensors of ``shape``, partitions interleaved as ``seed`` draws it."""
    scale = shape.head_dim**-0.5 if scale is None else scale
    tensors = _Tensors(shape, element, scale, seed, by_token)
    lines, length, d = shape.batch_heads, shape.q_length, shape.head_dim
    pitch = -(-length // 4) * 4
    buffers = dict(tensors.buffers)
    buffers["lse"] = tensors.lse.astype(np.float32).reshape(-1).view(np.uint8)
    buffers["statistics"] = np.full(2 * lines * pitch, np.nan, np.float32).view(np.uint8)
    buffers["summed"] = np.full(lines * pitch * d, np.nan, np.float32).view(np.uint8)
    for name, code in compiled(config, element, shape.left is not None, shape.right is not None).items():
        arguments, grid = _ARGUMENTS[name](config, shape, tensors, pitch, scale, programs)
        buffers = dict(play(code, PlayedInputs(buffers, arguments), grid, seed).buffers)
    results = ("dq", "dk", "dv")
    found = {name: tensors.inside(buffers, name) for name in results}
    around = any(tensors.around(buffers, name) for name in results)
    return PlayedGradients(found, around, gradients(tensors.values, shape, scale))


Call = tuple[tuple[PlayedArgument, ...], tuple[int, ...]]


def _statistics(config, shape, tensors, pitch, scale, programs) -> Call:
    pointers = (tensors.pointer("o"), tensors.pointer("do"), BufferArgument("lse"), BufferArgument("statistics"))
    zeroed = (BufferArgument("summed"),) if config.dq == "reduce" else ()
    strides = (*tensors.strides("o")[:3], *tensors.strides("do")[:3])
    numbers = (shape.batch, shape.heads, shape.q_length, pitch, *strides, 0)
    return (*pointers, *zeroed, *numbers), (shape.batch_heads, -(-shape.q_length // tl.ROWS))


def _band(shape: AttentionShape) -> tuple[int, int]:
    shift = shape.k_length - shape.q_length
    return (shape.right or 0) + shift, (shape.left or 0) - shift


def _keys(config, shape, tensors, pitch, scale, programs) -> Call:
    tiles = -(-shape.k_length // config.keys)
    units = shape.batch * shape.kv_heads * tiles
    described = [tensors.described(name) for name in ("q", "k", "v", "do")]
    described.append(DescribedArgument("statistics", (2 * shape.batch_heads, shape.q_length), (pitch, 1), "f32"))
    described += [tensors.described(name) for name in ("dk", "dv")]
    if config.dq == "reduce":
        sizes = (shape.batch_heads, shape.q_length, shape.head_dim)
        strides = (pitch * shape.head_dim, shape.head_dim, 1)
        described.append(DescribedArgument("summed", sizes, strides, "f32"))
    key_heads = shape.batch * shape.kv_heads
    numbers = (
        shape.batch, units, tiles, key_heads, shape.kv_heads, shape.heads // shape.kv_heads, shape.q_length,
        shape.k_length, *_band(shape), min(config.head_group, key_heads), scale, scale * LOG2_E,
    )  # fmt: skip
    return (*described, *numbers), (min(programs, units) if config.persistent else units,)


def _queries(config, shape, tensors, pitch, scale, programs) -> Call:
    tiles = -(-shape.q_length // config.keys)
    units = shape.batch_heads * tiles
    described = [tensors.described(name) for name in ("q", "k", "v", "do", "dq")]
    numbers = (
        pitch, shape.batch, units, tiles, shape.batch_heads, shape.heads, shape.heads // shape.kv_heads,
        shape.q_length, shape.k_length, *_band(shape), min(config.head_group, shape.batch_heads), scale, scale * LOG2_E,
    )  # fmt: skip
    arguments = (*described, BufferArgument("statistics"), *numbers)
    return arguments, (min(programs, units) if config.persistent else units,)


def _conversion(config, shape, tensors, pitch, scale, programs) -> Call:
    numbers = (shape.batch, shape.heads, shape.q_length, pitch, *tensors.strides("dq")[:3], 0, scale)
    grid = (shape.batch_heads, -(-shape.q_length // tl.ROWS))
    return (BufferArgument("summed"), tensors.pointer("dq"), *numbers), grid


_ARGUMENTS = {
    "row_statistics": _statistics,
    "key_gradients": _keys,
    "query_gradients": _queries,
    "converted_queries": _conversion,
}
