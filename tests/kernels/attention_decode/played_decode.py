"""Decoding attention as compiled for sm_90 and played in numpy, both kernels, and what is right in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from finished_code import finished_code

from warpplan.kernels.attention_decode.compile_attention_decode import attention_decode_source, combine_source
from warpplan.kernels.attention_decode.space import DecodeConfig
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
PLAYED = {"bf16": "bf16", "fp16": "f16"}
"""The player's names of Triton's types."""
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Half a unit in the last place, relative."""


@dataclass(frozen=True)
class PlayedDecode:
    """``out`` [B, H, L, D] and ``lse`` [B, H, L] as the kernels left them, and what is right."""

    out: np.ndarray
    lse: np.ndarray
    wanted_out: np.ndarray
    wanted_lse: np.ndarray
    largest: float

    def require_right(self, element: str = "bf16") -> None:
        np.testing.assert_allclose(self.out, self.wanted_out, rtol=0, atol=4 * ROUNDING[element] * self.largest)
        np.testing.assert_allclose(self.lse, self.wanted_lse, rtol=1e-5, atol=1e-5)


def reference(q, k, v, lengths, scale):
    """(output, log-sum-exp) in float64: the last query stands at its sequence's last key."""
    batch, heads, queries, _ = q.shape
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, row in np.ndindex(batch, heads, queries):
        seen = lengths[b] - (queries - 1 - row)
        if seen <= 0:
            continue
        g = h // (heads // k.shape[1])
        scores = k[b, g, :seen] @ q[b, h, row] * scale
        highest = scores.max()
        weights = np.exp(scores - highest)
        out[b, h, row] = weights @ v[b, g, :seen] / weights.sum()
        lse[b, h, row] = highest + np.log(weights.sum())
    return out, lse


@cache
def compiled(config: DecodeConfig, element: str, causal: bool, has_lengths: bool) -> ReadyCode:
    source, options = attention_decode_source(config, element, causal, has_lengths=has_lengths)
    return finished_code(source, options)


@cache
def compiled_combine(element: str, head_dim: int, most_splits: int) -> ReadyCode:
    source, options = combine_source(element, head_dim, most_splits, True)
    return finished_code(source, options)


def played(
    config: DecodeConfig, lengths: tuple[int, ...], *, heads: int = 4, kv_heads: int = 2, queries: int = 1,
    keys: int | None = None, element: str = "bf16", seed: int = 0, by_token: bool = False, told: bool = True,
) -> PlayedDecode:  # fmt: skip
    """Play ``config`` on caches of ``keys`` rows a sequence, of which the first of ``lengths`` are random numbers and
    the rest NaN. ``by_token``: a token's heads are adjacent. ``told``: the kernel reads the lengths."""
    kind, draw = element_type(PLAYED[element]), np.random.default_rng(seed)
    d, batch, scale = config.head_dim, len(lengths), config.head_dim**-0.5
    keys = max(lengths) + 3 if keys is None else keys
    buffers: dict[str, np.ndarray] = {}
    values = {}

    def stored(name, array, token_major):
        lying = array.transpose(0, 2, 1, 3) if token_major else array
        buffers[name] = encoded(rounded(np.ascontiguousarray(lying), kind), kind).view(np.uint8).reshape(-1)
        back = decoded(buffers[name].view(kind.stored), kind).astype(np.float64).reshape(lying.shape)
        values[name] = back.transpose(0, 2, 1, 3) if token_major else back

    stored("q", draw.standard_normal((batch, heads, queries, d)), by_token)
    for name in "kv":
        cache_ = np.full((batch, kv_heads, keys, d), np.nan)
        for b, length in enumerate(lengths):
            cache_[b, :, :length] = draw.standard_normal((kv_heads, length, d))
        stored(name, cache_, by_token)
    sizes = (batch * keys, kv_heads, d) if by_token else (batch * kv_heads * keys, kv_heads, d)
    strides = (kv_heads * d, d, 1) if by_token else (d, keys * d, 1)
    form = tuple(map(tuple, ragged_form(sizes, strides)))
    key_rows = keys if by_token else kv_heads * keys
    sharers, splits = heads // kv_heads, config.splits
    buffers["lengths"] = np.array(lengths, np.int32).view(np.uint8)
    buffers["out"] = np.full(batch * heads * queries * d * kind.bytes, 0xFF, np.uint8)
    buffers["lse"] = np.full(batch * heads * queries, np.nan, np.float32).view(np.uint8)
    several = splits > 1
    if several:
        part = batch * kv_heads * splits * sharers * queries
        buffers["parts"] = np.full(part * d, np.nan, np.float32).view(np.uint8)
        buffers["part_lse"] = np.full(part, np.nan, np.float32).view(np.uint8)
    apart = (queries * heads * d, d, heads * d) if by_token else (heads * queries * d, queries * d, d)
    code = compiled(replace(config, splits=min(splits, 2)), element, queries > 1, told)
    arguments = (
        *(DescribedArgument(name, *form, PLAYED[element]) for name in "kv"), BufferArgument("q"),
        BufferArgument("parts" if several else "out"), BufferArgument("part_lse" if several else "lse"),
        *([BufferArgument("lengths")] if told else []), *apart, *apart, sharers, queries, keys, key_rows, kv_heads,
        splits, scale * LOG2_E,
    )  # fmt: skip
    found = play(code, PlayedInputs(buffers, arguments), (batch * kv_heads * splits,), seed).buffers
    if several:
        combine = compiled_combine(element, d, 1 << (splits - 1).bit_length())
        pointers = [BufferArgument(name) for name in ("parts", "part_lse", "out", "lse")]
        inputs = PlayedInputs(found, (*pointers, *apart, sharers, queries, kv_heads, splits))
        found = play(combine, inputs, (batch * heads * queries,), seed).buffers
    out = decoded(found["out"].view(kind.stored), kind).astype(np.float64)
    form_out = (batch, queries, heads, d) if by_token else (batch, heads, queries, d)
    out = out.reshape(form_out)
    out = out.transpose(0, 2, 1, 3) if by_token else out
    lse = found["lse"].view(np.float32).reshape(batch, heads, queries)
    wanted = reference(values["q"], values["k"], values["v"], lengths if told else (keys,) * batch, scale)
    return PlayedDecode(out, lse, *wanted, float(np.nanmax(np.abs(values["v"]), initial=0.0)))
