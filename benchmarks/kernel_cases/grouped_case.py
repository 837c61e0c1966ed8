"""Grouped products of a mixture of experts: forward, dgrad and wgrad in bfloat16, forward in fp8 with row scales.

Peers: ``torch._grouped_mm`` (in fp8 ``torch._scaled_grouped_mm``), one ``torch.mm`` a group with the ends known to the
host, and the published baseline, a product for each block of 128 rows whose expert is read with ``.item()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from kernel_cases.bench_case import (
    CHECK_SIZES,
    ELEMENT_BYTES,
    OUTPUT_BYTES,
    Launch,
    Work,
    exact_fp32,
    like,
    norm_ratio,
)
from kernel_cases.bench_rows import BenchRow, make_row

CHECK_GROUPS = (1, 127, 64, 200, 8)
"""Rows of a check's groups that are not empty: a single row, one below a tile, a tile, more than a tile."""
LEAST_GROUPS = 32
"""Of a check: the kernel looks at a warp's groups or at a power of two of them together."""
BLOCK_ROWS = 128
"""Of the published baseline."""


@dataclass(frozen=True, eq=False)
class GroupedOperands:
    """``left`` is A [M, K], or dC [M, N] of the gradients; ``right`` is B [G, N, K], or A [M, K] of wgrad.

    ``ends``, int32 [G], lie on the device; ``host_ends`` start with 0. fp8 has float32 scales ``scale_a`` [M] and
    ``scale_b`` [G, N].
    """

    left: Any
    right: Any
    ends: Any
    host_ends: tuple[int, ...]
    out: Any
    scale_a: Any = None
    scale_b: Any = None


def group_sizes(row: BenchRow) -> tuple[int, ...]:
    """Rows of each group: those listed, or equal parts."""
    m, _, _, groups = row.sizes
    listed = row.option("sizes")
    return tuple(map(int, listed.split(","))) if listed != "balanced" else (m // groups,) * groups


class GroupedCase:
    """Each product's operands, launches and peers."""

    def work(self, row: BenchRow) -> Work:
        m, n, k, groups = row.sizes
        element = ELEMENT_BYTES[row.dtype]
        used = sum(size > 0 for size in group_sizes(row))
        a_bytes, c_bytes, b_bytes = m * k * element, m * n * OUTPUT_BYTES, used * n * k * element
        if row.option("product") == "wgrad":
            b_bytes = groups * n * k * OUTPUT_BYTES  # the gradient of an empty group is written too
        return Work(2.0 * m * n * k, a_bytes + b_bytes + c_bytes)

    def check_row(self, row: BenchRow) -> BenchRow:
        _, n, k, groups = row.sizes
        counts = [0] * max(LEAST_GROUPS, 1 << (groups - 1).bit_length())
        for index, size in enumerate(CHECK_GROUPS):
            counts[(index + 1) * len(counts) // (len(CHECK_GROUPS) + 1)] = size
        sizes = (sum(counts), like(n, CHECK_SIZES[1]), like(k, CHECK_SIZES[2]), len(counts))
        options = {"product": row.option("product"), "scales": row.option("scales")}
        return make_row(row.table, row.kernel, sizes, row.dtype, row.split, sizes=",".join(map(str, counts)), **options)

    def operands(self, row: BenchRow) -> GroupedOperands:
        import torch

        m, n, k, groups = row.sizes
        host_ends = (0, *accumulate(group_sizes(row)))
        ends = torch.tensor(host_ends[1:], dtype=torch.int32, device="cuda")

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        def poisoned(*shape: int) -> torch.Tensor:
            return torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)

        product = row.option("product")
        if product == "dgrad":
            return GroupedOperands(random(m, n), random(groups, n, k), ends, host_ends, poisoned(m, k))
        if product == "wgrad":
            return GroupedOperands(random(m, n), random(m, k), ends, host_ends, poisoned(groups, n, k))
        a, b, out = random(m, k), random(groups, n, k), poisoned(m, n)
        if row.dtype != "float8_e4m3fn":
            return GroupedOperands(a, b, ends, host_ends, out)
        scale_a = torch.rand(m, device="cuda") + 0.5
        scale_b = torch.rand(groups, n, device="cuda") + 0.5
        fp8 = torch.float8_e4m3fn
        return GroupedOperands(a.to(fp8), b.to(fp8), ends, host_ends, out, scale_a, scale_b)

    def ours(self, row: BenchRow, config: Any, operands: GroupedOperands) -> Launch:
        from warpplan.kernels.grouped_gemm.launch import prepare
        from warpplan.kernels.grouped_gemm.space import config_of

        o = operands
        scales = {} if o.scale_a is None else {"scale_a": o.scale_a, "scale_b": o.scale_b}
        return prepare(row.option("product"), o.left, o.right, o.ends, config_of(config), o.out, **scales)

    def relative_error(self, row: BenchRow, config: Any, operands: GroupedOperands) -> float:
        exact_fp32()
        operands.out.fill_(float("nan"))
        self.ours(row, config, operands)()
        return norm_ratio(operands.out, _reference(row, operands))

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[GroupedOperands], Launch]]:
        if row.dtype == "float8_e4m3fn":
            return {"torch._scaled_grouped_mm": _scaled_grouped_mm, "loop over groups": _scaled_loop}
        product = row.option("product")
        return {"torch._grouped_mm": _GROUPED_MM[product], "loop over groups": _LOOPS[product]}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[GroupedOperands], Launch]]:
        forward = row.option("product") == "forward" and row.dtype != "float8_e4m3fn"
        return {"128-row block loop": block_loop} if forward else {}


def _reference(row: BenchRow, o: GroupedOperands) -> Any:
    """The result in fp32, group by group; rows after the last group's end stay 0."""
    import torch

    out = torch.zeros(o.out.shape, device="cuda", dtype=torch.float32)
    product = row.option("product")
    for group, (first, last) in enumerate(pairwise(o.host_ends)):
        if product == "wgrad":
            out[group] = o.left[first:last].float().T @ o.right[first:last].float()
        elif product == "dgrad":
            out[first:last] = o.left[first:last].float() @ o.right[group].float()
        else:
            out[first:last] = o.left[first:last].float() @ o.right[group].float().T
            if o.scale_a is not None:
                out[first:last] *= o.scale_a[first:last, None] * o.scale_b[group]
    return out


def _grouped_forward(o: GroupedOperands) -> Launch:
    import torch

    return lambda: torch._grouped_mm(o.left, o.right.transpose(-2, -1), offs=o.ends)


def _grouped_dgrad(o: GroupedOperands) -> Launch:
    import torch

    return lambda: torch._grouped_mm(o.left, o.right, offs=o.ends)


def _grouped_wgrad(o: GroupedOperands) -> Launch:
    import torch

    return lambda: torch._grouped_mm(o.left.T, o.right, offs=o.ends)


def _scaled_grouped_mm(o: GroupedOperands) -> Launch:
    import torch

    return lambda: torch._scaled_grouped_mm(
        o.left, o.right.transpose(-2, -1), o.scale_a, o.scale_b, offs=o.ends, out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip


def _groups(o: GroupedOperands) -> list[tuple[int, int, int]]:
    """(group, first row, last row) of the groups that have rows."""
    return [(group, first, last) for group, (first, last) in enumerate(pairwise(o.host_ends)) if last > first]


def _loop_forward(o: GroupedOperands) -> Launch:
    import torch

    parts = [(o.left[i:j], o.right[g].T, o.out[i:j]) for g, i, j in _groups(o)]
    return lambda: [torch.mm(a, b, out=c) for a, b, c in parts]


def _loop_dgrad(o: GroupedOperands) -> Launch:
    import torch

    parts = [(o.left[i:j], o.right[g], o.out[i:j]) for g, i, j in _groups(o)]
    return lambda: [torch.mm(a, b, out=c) for a, b, c in parts]


def _loop_wgrad(o: GroupedOperands) -> Launch:
    import torch

    parts = [(o.left[i:j].T, o.right[i:j], o.out[g]) for g, i, j in _groups(o)]
    empty = [o.out[g] for g, (i, j) in enumerate(pairwise(o.host_ends)) if i == j]
    return lambda: [torch.mm(a, b, out=c) for a, b, c in parts] + [c.zero_() for c in empty]


def _scaled_loop(o: GroupedOperands) -> Launch:
    import torch

    parts = [
        (o.left[i:j], o.right[g].T, o.scale_a[i:j, None], o.scale_b[g][None, :], o.out[i:j]) for g, i, j in _groups(o)
    ]
    return lambda: [
        torch._scaled_mm(a, b, scale_a=s, scale_b=t, out_dtype=torch.bfloat16, use_fast_accum=True, out=c)
        for a, b, s, t, c in parts
    ]


def block_loop(o: GroupedOperands) -> Launch:
    """The published baseline: the expert of each block of 128 rows is read from the device with ``.item()``.

    As there, a block has one expert; a group whose size is no multiple of 128 ends with a shorter block.
    """
    import torch

    blocks = [(g, start, min(start + BLOCK_ROWS, j)) for g, i, j in _groups(o) for start in range(i, j, BLOCK_ROWS)]
    experts = torch.tensor([g for g, _, _ in blocks], dtype=torch.int32, device="cuda")

    def run() -> None:
        for index, (_, start, stop) in enumerate(blocks):
            expert = experts[index].item()
            torch.mm(o.left[start:stop], o.right[expert].T, out=o.out[start:stop])

    return run


_GROUPED_MM = {"forward": _grouped_forward, "dgrad": _grouped_dgrad, "wgrad": _grouped_wgrad}
_LOOPS = {"forward": _loop_forward, "dgrad": _loop_dgrad, "wgrad": _loop_wgrad}
CASE = GroupedCase()
