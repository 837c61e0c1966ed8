"""Attention as compiled for sm_90 and played in numpy, and what is right in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from finished_code import finished_code

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.compile_attention_fwd import attention_fwd_source
from warpplan.kernels.attention_fwd.fp8.tl import KEYS, transpose_source
from warpplan.kernels.attention_fwd.space import AttentionConfig
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedInputs,
    play,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import decoded, element_type, encoded, rounded
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.device.boxes import ragged_form

LOG2_E = 1.4426950408889634
PLAYED = {"bf16": "bf16", "fp16": "f16", "fp8e4nv": "f8E4M3FN"}
"""The player's names of Triton's types."""
RESULTS = {"bf16": "bf16", "fp16": "f16", "fp8e4nv": "bf16"}
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
    weighted: np.ndarray
    keys: int

    def require_right(self, element: str) -> None:
        """Within the rounding of the weights and of the result, both in 16 bits; sums are in fp32."""
        if element == "fp8e4nv":
            self.require_right_in_8_bits()
            return
        assert not self.around
        np.testing.assert_allclose(self.out, self.wanted_out, rtol=0, atol=4 * ROUNDING[element] * self.largest)
        np.testing.assert_allclose(self.lse, self.wanted_lse, rtol=1e-5, atol=1e-5)

    def require_right_in_8_bits(self) -> None:
        """Each weight is within 2^-4 of itself or 2^-18 of the row's largest; ``weighted`` is what the weights make of
        V's magnitudes. Their errors have nothing to do with each other: the root of their mean square is 2^-4 / √3 · √½
        of a weight, 2.6 %, for an error that is uniform over a mantissa that is, and of random V the norm of the
        result's error is as much of its own."""
        assert not self.around
        error = np.abs(self.out - self.wanted_out)
        lost = 2.0**-18 * self.largest * self.keys
        assert (error <= 2.0**-4 * self.weighted + ROUNDING["bf16"] * np.abs(self.wanted_out) + lost).all()
        assert np.linalg.norm(error) <= 2.0**-5 * np.linalg.norm(self.wanted_out)
        np.testing.assert_allclose(self.lse, self.wanted_lse, rtol=1e-5, atol=1e-5)

    def require_exact(self) -> None:
        """But for the rounding of the result, as where all weights are alike."""
        np.testing.assert_allclose(self.out, self.wanted_out, rtol=2 * ROUNDING["bf16"], atol=1e-6)


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


def _numbers(
    config: AttentionConfig, shape: AttentionShape, rows: int, keys: int, scale: float, strides: tuple = (0,) * 6
) -> tuple:
    """The kernel's numbers from ``HEADS`` on; ``strides`` are those of scales."""
    together = shape.heads if config.packed else shape.batch_heads
    return (
        shape.heads, shape.heads // shape.kv_heads, rows, keys, shape.left or 0, shape.right or 0,
        min(config.head_group, together), *strides, scale * LOG2_E,
    )  # fmt: skip


@cache
def compiled(
    config: AttentionConfig, element: str, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> ReadyCode:
    # Fields that order units do not enter the code.
    plain = replace(config, persistent=True, head_group=1)
    source, options = attention_fwd_source(plain, element, bounded_left, bounded_right, sequences=sequences)
    return finished_code(source, options)


def played(
    config: AttentionConfig, shape: AttentionShape, *, element: str = "bf16", seed: int = 0, programs: int = 2,
    by_token: bool = False, scale: float | None = None, alike: bool = False,
) -> PlayedAttention:  # fmt: skip
    """Play ``config`` on random tensors of ``shape``, partitions interleaved as ``seed`` draws it. Rows of NaN lie
    between the heads, or with ``by_token``, where a token's heads are adjacent, around each batch. ``alike``: queries
    of zeros, which give each key that they see the same weight. fp8 has a scale for each head of each batch."""
    kind, draw = element_type(PLAYED[element]), np.random.default_rng(seed)
    scale = shape.head_dim**-0.5 if scale is None else scale
    buffers: dict[str, np.ndarray] = {}
    arguments: list[DescribedArgument | BufferArgument] = []
    places = {}
    eight_bit = element == "fp8e4nv"
    for name, heads, length in (
        ("q", shape.heads, shape.q_length), ("k", shape.kv_heads, shape.k_length),
        ("v", shape.kv_heads, shape.k_length), ("o", shape.heads, shape.q_length),
    ):  # fmt: skip
        padded = length + 2 * MARGIN
        whole = np.full((shape.batch, heads, padded, shape.head_dim), np.nan)
        if name != "o":
            drawn = draw.standard_normal((shape.batch, heads, length, shape.head_dim))
            whole[:, :, MARGIN:-MARGIN] = 0.0 if alike and name == "q" else drawn
        stored = whole.transpose(0, 2, 1, 3) if by_token else whole
        its = element_type(RESULTS[element]) if name == "o" else kind
        buffers[name] = encoded(rounded(np.ascontiguousarray(stored), its), its).view(np.uint8).reshape(-1)
        d = shape.head_dim
        strides = (padded * heads * d, d, heads * d, 1) if by_token else (heads * padded * d, padded * d, d, 1)
        offset = MARGIN * strides[2] * its.bytes
        if eight_bit and name == "v":
            arguments.append(_laid_out(buffers, shape, strides, offset))
        else:
            arguments.append(DescribedArgument(name, (shape.batch, heads, length, d), strides, its.name, offset))
        places[name] = (stored.shape, its)
    lse_size = shape.batch_heads * shape.q_length
    buffers["lse"] = np.full(lse_size + 2 * MARGIN, np.nan, np.float32).view(np.uint8)
    arguments.append(BufferArgument("lse", 4 * MARGIN))
    factors, strides = _scales(shape, draw) if eight_bit else ({}, (0,) * 6)
    for name, factor in factors.items():
        buffers[f"{name}_scale"] = factor.astype(np.float32).view(np.uint8).reshape(-1)
    arguments += [BufferArgument(f"{name}_scale") for name in factors]
    numbers = _numbers(config, shape, shape.q_length, shape.k_length, scale, strides)
    units = shape.batch_heads * -(-shape.q_length // config.tile_rows)
    grid = min(programs, units) if config.persistent else units
    code = compiled(config, element, shape.left is not None, shape.right is not None)
    inputs = PlayedInputs(buffers, (*arguments, shape.batch, shape.batch_heads, *numbers))
    found = play(code, inputs, (grid,), seed)

    def tensor(data: np.ndarray, name: str) -> np.ndarray:
        form, its = places[name]
        values = decoded(data.view(its.stored), its).astype(np.float64).reshape(form)
        return values.transpose(0, 2, 1, 3) if by_token else values

    inside = {name: tensor(buffers[name], name)[:, :, MARGIN:-MARGIN] for name in "qkv"}
    out = tensor(found.buffers["o"], "o")
    lse = found.buffers["lse"].view(np.float32)
    around = not np.isnan(out[:, :, :MARGIN]).all() or not np.isnan(out[:, :, -MARGIN:]).all()
    around = around or not np.isnan(lse[:MARGIN]).all() or not np.isnan(lse[-MARGIN:]).all()
    for name, factor in factors.items():
        inside[name] *= np.float32(factor)[:, :, None, None]
    wanted = reference(inside["q"], inside["k"], inside["v"], shape, scale)
    weighted, _ = reference(inside["q"], inside["k"], np.abs(inside["v"]), shape, scale)
    shaped = lse[MARGIN:-MARGIN].reshape(shape.batch, shape.heads, shape.q_length)
    largest = float(np.abs(inside["v"]).max())
    return PlayedAttention(out[:, :, MARGIN:-MARGIN], shaped, around, *wanted, largest, weighted, shape.k_length)


def _scales(shape: AttentionShape, draw: np.random.Generator) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """(scales of Q, K and V, [batch, heads], their strides)."""
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    factors = {name: draw.uniform(0.5, 2.0, (shape.batch, count)) for name, count in heads.items()}
    return factors, tuple(stride for count in heads.values() for stride in (count, 1))


def _laid_out(
    buffers: dict[str, np.ndarray], shape: AttentionShape, strides: tuple[int, ...], offset: int
) -> DescribedArgument:
    """What the pass before the kernel makes of the buffer "v", in a buffer "vt" that was full of NaN."""
    places = -(-shape.k_length // 16) * 16
    form = (shape.batch, shape.kv_heads, shape.head_dim, places)
    buffers["vt"] = np.full(np.prod(form), 0x7F, np.uint8)
    numbers = (*strides[:3], shape.kv_heads, shape.k_length, places)
    inputs = PlayedInputs(
        {name: buffers[name] for name in ("v", "vt")}, (BufferArgument("v", offset), BufferArgument("vt"), *numbers)
    )
    grid = (shape.batch * shape.kv_heads * -(-places // KEYS),)
    buffers["vt"] = play(compiled_pass(shape.head_dim), inputs, grid).buffers["vt"]
    return DescribedArgument("vt", form, (np.prod(form[1:]), np.prod(form[2:]), places, 1), "f8E4M3FN")


@cache
def compiled_pass(head_dim: int) -> ReadyCode:
    source, options = transpose_source(head_dim, aligned=False)
    return finished_code(source, options)


@dataclass(frozen=True)
class PlayedSequences:
    """``out`` [rows, H, D] and ``lse`` [H, rows] of packed sequences as the kernel left them, from which row to which
    each goes, and what is right: NaN in the rows of no sequence."""

    out: np.ndarray
    lse: np.ndarray
    wanted_out: np.ndarray
    wanted_lse: np.ndarray
    starts: tuple[int, ...]
    largest: float

    def require_right(self, element: str = "bf16") -> None:
        np.testing.assert_allclose(self.out, self.wanted_out, rtol=0, atol=4 * ROUNDING[element] * self.largest)
        np.testing.assert_allclose(self.lse, self.wanted_lse, rtol=1e-5, atol=1e-5)


def played_sequences(
    config: AttentionConfig, q_sizes: tuple[int, ...], k_sizes: tuple[int, ...], shape: AttentionShape, *,
    element: str = "bf16", seed: int = 0, programs: int = 2, scale: float | None = None,
    broken: tuple[int, int] | None = None,
) -> PlayedSequences:  # fmt: skip
    """Play ``config`` on packed sequences of random numbers, as many as ``q_sizes`` of queries and ``k_sizes`` of keys,
    with the heads and the mask of ``shape``. Around and behind the sequences lie rows of NaN. ``broken`` is (a
    sequence, one of its keys) whose K and V are NaN."""
    kind, draw = element_type(PLAYED[element]), np.random.default_rng(seed)
    d, scale = shape.head_dim, shape.head_dim**-0.5 if scale is None else scale
    starts = {"q": np.cumsum((0, *q_sizes)), "k": np.cumsum((0, *k_sizes))}
    rows, keys = (int(starts[name][-1]) + MARGIN for name in "qk")
    buffers: dict[str, np.ndarray] = {}
    arguments: list[DescribedArgument | BufferArgument] = []
    values = {}
    for name, heads, length in (("q", shape.heads, rows), ("k", shape.kv_heads, keys), ("v", shape.kv_heads, keys),
                                ("o", shape.heads, rows)):  # fmt: skip
        whole = np.full((length + MARGIN, heads, d), np.nan)
        if name != "o":
            whole[MARGIN:-MARGIN] = draw.standard_normal((length - MARGIN, heads, d))
        if broken is not None and name in "kv":
            whole[MARGIN + starts["k"][broken[0]] + broken[1]] = np.nan
        buffers[name] = encoded(rounded(whole, kind), kind).view(np.uint8).reshape(-1)
        values[name] = decoded(buffers[name].view(kind.stored), kind).astype(np.float64).reshape(whole.shape)[MARGIN:]
        form = ragged_form((length, heads, d), (heads * d, d, 1))
        arguments.append(DescribedArgument(name, *map(tuple, form), PLAYED[element], MARGIN * heads * d * kind.bytes))
    buffers["lse"] = np.full(shape.heads * rows, np.nan, np.float32).view(np.uint8)
    for name in "qk":
        buffers[f"{name}_starts"] = starts[name].astype(np.int32).view(np.uint8)
    arguments += [BufferArgument(name) for name in ("lse", "q_starts", "k_starts")]
    numbers = (len(q_sizes), 0, *_numbers(config, shape, rows, keys, scale))
    units = shape.heads * sum(-(-size // config.tile_rows) for size in q_sizes)
    # One more than there are units: some have nothing to do.
    grid = min(programs, units) if config.persistent else units + 1
    code = compiled(config, element, shape.left is not None, shape.right is not None, len(q_sizes))
    found = play(code, PlayedInputs(buffers, (*arguments, *numbers)), (grid,), seed)
    out = decoded(found.buffers["o"].view(kind.stored), kind).astype(np.float64).reshape(rows + MARGIN, shape.heads, d)
    assert np.isnan(out[:MARGIN]).all()
    wanted_out, wanted_lse = np.full((rows, shape.heads, d), np.nan), np.full((shape.heads, rows), np.nan)
    for i, (q_size, k_size) in enumerate(zip(q_sizes, k_sizes, strict=True)):
        of_q = slice(starts["q"][i], starts["q"][i + 1])
        of_k = slice(starts["k"][i], starts["k"][i + 1])
        one = replace(shape, batch=1, q_length=q_size, k_length=k_size)
        q, k, v = (
            values[name][place].transpose(1, 0, 2)[None] for name, place in zip("qkv", (of_q, of_k, of_k), strict=True)
        )
        right, statistics = reference(q, k, v, one, scale) if q_size and k_size else _of_no_key(one)
        wanted_out[of_q], wanted_lse[:, of_q] = right[0].transpose(1, 0, 2), statistics[0]
    largest = float(np.nanmax(np.abs(values["v"]), initial=0.0))
    lse = found.buffers["lse"].view(np.float32).reshape(shape.heads, rows)
    return PlayedSequences(out[MARGIN:], lse, wanted_out, wanted_lse, tuple(starts["q"].tolist()), largest)


def _of_no_key(shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
    statistics = np.full((1, shape.heads, shape.q_length), -np.inf)
    return np.zeros((*statistics.shape, shape.head_dim)), statistics
