"""Gradients of packed sequences as compiled for sm_90 and played in numpy, and what is right in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from played_gradients import LOG2_E, MARGIN, PLAYED, PlayedGradients, compiled, forward, gradients

from warpplan.kernels.attention_bwd import tl
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedInputs,
    play,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import decoded, element_type, encoded, rounded
from warpplan.kernels.device.boxes import ragged_form

EVERYTHING = 1 << 29
"""Keys behind its position that a row sees where the mask hides none."""


@dataclass(frozen=True)
class _Packed:
    """Operands [rows, heads, D] of packed sequences as they were rounded, with NaN in the rows of none, their buffers
    with rows of NaN before and behind, and the log-sum-exps [heads, rows]."""

    shape: AttentionShape
    element: str
    starts: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    lse: np.ndarray
    buffers: dict[str, np.ndarray]

    def form(self, name: str) -> tuple[int, int, int]:
        return self.values[name].shape

    def offset(self, name: str) -> int:
        _, heads, d = self.form(name)
        return MARGIN * heads * d * 2

    def described(self, name: str) -> DescribedArgument:
        rows, heads, d = self.form(name)
        form = ragged_form((rows, heads, d), (heads * d, d, 1))
        return DescribedArgument(name, *map(tuple, form), PLAYED[self.element], self.offset(name))

    def pointer(self, name: str) -> BufferArgument:
        return BufferArgument(name, self.offset(name))

    def strides(self, name: str) -> tuple[int, int, int]:
        """Of batches, heads and rows."""
        _, heads, d = self.form(name)
        return 0, d, heads * d

    def found(self, buffers: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, bool]:
        """(a result, whether something was written around it)."""
        kind = element_type(PLAYED[self.element])
        rows, heads, d = self.form(name)
        whole = decoded(buffers[name].view(kind.stored), kind).astype(np.float64).reshape(rows + 2 * MARGIN, heads, d)
        around = not (np.isnan(whole[:MARGIN]).all() and np.isnan(whole[-MARGIN:]).all())
        return whole[MARGIN:-MARGIN], around


def _sequences(shape, starts):
    """(rows, keys, what one asks for) of each sequence."""
    for s in range(len(starts["q"]) - 1):
        rows, keys = (slice(int(starts[x][s]), int(starts[x][s + 1])) for x in "qk")
        yield rows, keys, replace(shape, batch=1, q_length=rows.stop - rows.start, k_length=keys.stop - keys.start)


def _made(shape, q_sizes, k_sizes, element, seed, scale, broken) -> _Packed:
    kind, draw = element_type(PLAYED[element]), np.random.default_rng(seed)
    starts = {"q": np.cumsum((0, *q_sizes)), "k": np.cumsum((0, *k_sizes))}
    rows, keys = (int(starts[name][-1]) + MARGIN for name in "qk")
    forms = dict.fromkeys(("q", "o", "do", "dq"), (rows, shape.heads, shape.head_dim))
    forms |= dict.fromkeys(("k", "v", "dk", "dv"), (keys, shape.kv_heads, shape.head_dim))
    values = {name: np.full(form, np.nan) for name, form in forms.items()}
    for name in ("q", "k", "v", "do"):
        drawn = draw.standard_normal(forms[name])
        drawn = decoded(encoded(rounded(drawn, kind), kind), kind).astype(np.float64)
        values[name][:-MARGIN] = drawn[:-MARGIN]
    lse = np.full((shape.heads, rows), np.nan)
    for of_q, of_k, one in _sequences(shape, starts):
        if of_q.start < of_q.stop:
            o, statistics = forward(*(_alone(values[n][p]) for n, p in zip("qkv", (of_q, of_k, of_k), strict=True)),
                                    one, scale)  # fmt: skip
            values["o"][of_q], lse[:, of_q] = o[0].transpose(1, 0, 2), statistics[0]
    if broken is not None:
        values["v"][starts["k"][broken[0]] + broken[1]] = np.nan
    buffers = {}
    for name, value in values.items():
        whole = np.pad(value, ((MARGIN, MARGIN), (0, 0), (0, 0)), constant_values=np.nan)
        buffers[name] = encoded(rounded(whole, kind), kind).view(np.uint8).reshape(-1)
    values["o"] = decoded(buffers["o"].view(kind.stored), kind).astype(np.float64).reshape(
        rows + 2 * MARGIN, *forms["o"][1:]
    )[MARGIN:-MARGIN]  # fmt: skip
    for name in "qk":
        buffers[f"{name}_starts"] = starts[name].astype(np.int32).view(np.uint8)
    buffers["lse"] = lse.astype(np.float32).reshape(-1).view(np.uint8)
    return _Packed(shape, element, starts, values, lse, buffers)


def _alone(tensor: np.ndarray) -> np.ndarray:
    """[rows, heads, D] as a batch of one, [1, heads, rows, D]."""
    return tensor.transpose(1, 0, 2)[None]


def played_sequences(
    config: AttentionBwdConfig, q_sizes: tuple[int, ...], k_sizes: tuple[int, ...], shape: AttentionShape, *,
    element: str = "bf16", seed: int = 0, programs: int = 2, scale: float | None = None,
    broken: tuple[int, int] | None = None,
) -> PlayedGradients:  # fmt: skip
    """Play ``config`` on packed sequences of random numbers, as many as ``q_sizes`` of queries and ``k_sizes`` of keys,
    with the heads and the mask of ``shape``. Around and behind the sequences lie rows of NaN. ``broken`` is (a
    sequence, one of its keys) whose V is NaN; the gradients of that sequence are then not compared."""
    scale = shape.head_dim**-0.5 if scale is None else scale
    made = _made(shape, q_sizes, k_sizes, element, seed, scale, broken)
    rows = made.form("q")[0]
    spread = -(-(rows + config.gap_rows * len(q_sizes)) // 4) * 4
    buffers = dict(made.buffers)
    buffers["statistics"] = np.full(2 * shape.heads * spread, np.nan, np.float32).view(np.uint8)
    buffers["summed"] = np.full(shape.heads * spread * shape.head_dim, np.nan, np.float32).view(np.uint8)
    for name, code in compiled(config, element, shape.left is not None, shape.right is not None, len(q_sizes)).items():
        arguments, grid = _ARGUMENTS[name](config, made, spread, scale, programs)
        buffers = dict(play(code, PlayedInputs(buffers, arguments), grid, seed).buffers)
    wanted = {name: np.full(made.form(name), np.nan) for name in ("dq", "dk", "dv")}
    for s, (of_q, of_k, one) in enumerate(_sequences(shape, made.starts)):
        inputs = {
            n: _alone(made.values[n][of_q if n in ("q", "o", "do") else of_k]) for n in ("q", "k", "v", "o", "do")
        }
        right = gradients(inputs, one, scale) if one.q_length and one.k_length else {}
        for name, part in (("dq", of_q), ("dk", of_k), ("dv", of_k)):
            wanted[name][part] = right[name][0].transpose(1, 0, 2) if right else 0.0
            if broken is not None and s == broken[0]:
                wanted[name][part] = np.nan
    results = {name: made.found(buffers, name) for name in wanted}
    compared = {name: ~np.isnan(value) for name, value in wanted.items()}
    # Rows of no sequence are left as they are.
    untouched = all(np.isnan(results[n][0][-MARGIN:]).all() for n in wanted)
    found = {name: results[name][0][compared[name]] for name in wanted}
    return PlayedGradients(
        found, any(around for _, around in results.values()) or not untouched,
        {name: wanted[name][compared[name]] for name in wanted},
    )  # fmt: skip


def _numbers(config, made: _Packed, heads: int, rows: int) -> tuple[tuple[int, ...], int]:
    """(the numbers of a Gluon kernel whose tiles are of ``heads`` of ``rows`` rows, units)."""
    shape, sequences = made.shape, len(made.starts["q"]) - 1
    tiles = rows // config.keys + sequences
    right = EVERYTHING if shape.right is None else shape.right
    return (
        sequences, heads * tiles, tiles, heads, heads, shape.heads // shape.kv_heads, made.form("q")[0],
        made.form("k")[0], right, shape.left or 0, min(config.head_group, heads),
    ), heads * tiles  # fmt: skip


def _grid(config, programs, units) -> tuple[int]:
    return (min(programs, units) if config.persistent else units,)


def _statistics(config, made, spread, scale, programs):
    pointers = [made.pointer("o"), made.pointer("do"), BufferArgument("lse"), BufferArgument("statistics")]
    pointers += [BufferArgument(name) for name in (("summed",) if config.dq == "reduce" else ()) + ("q_starts",)]
    sequences, (rows, heads, _) = len(made.starts["q"]) - 1, made.form("q")
    numbers = (sequences, heads, rows, spread, *made.strides("o"), *made.strides("do"), config.gap_rows)
    return (*pointers, *numbers), (heads, -(-spread // tl.ROWS))


def _keys(config, made, spread, scale, programs):
    heads, d = made.form("q")[1:]
    described = [made.described(name) for name in ("q", "k", "v", "do")]
    described.append(DescribedArgument("statistics", (2 * heads, spread), (spread, 1), "f32"))
    described += [made.described(name) for name in ("dk", "dv")]
    if config.dq == "reduce":
        described.append(DescribedArgument("summed", (heads, spread, d), (spread * d, d, 1), "f32"))
    numbers, units = _numbers(config, made, made.form("k")[1], made.form("k")[0])
    starts = (BufferArgument("q_starts"), BufferArgument("k_starts"))
    return (*described, *starts, *numbers, scale, scale * LOG2_E), _grid(config, programs, units)


def _queries(config, made, spread, scale, programs):
    described = [made.described(name) for name in ("q", "k", "v", "do", "dq")]
    numbers, units = _numbers(config, made, made.form("q")[1], made.form("q")[0])
    pointers = (BufferArgument("statistics"), BufferArgument("q_starts"), BufferArgument("k_starts"))
    return (*described, *pointers, spread, *numbers, scale, scale * LOG2_E), _grid(config, programs, units)


def _conversion(config, made, spread, scale, programs):
    sequences, (rows, heads, _) = len(made.starts["q"]) - 1, made.form("q")
    numbers = (sequences, heads, rows, spread, *made.strides("dq"), config.gap_rows, scale)
    pointers = (BufferArgument("summed"), made.pointer("dq"), BufferArgument("q_starts"))
    return (*pointers, *numbers), (heads, -(-rows // tl.ROWS))


_ARGUMENTS = {
    "row_statistics": _statistics,
    "key_gradients": _keys,
    "query_gradients": _queries,
    "converted_queries": _conversion,
}
