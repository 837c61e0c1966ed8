"""Dense products: fp8 with a scale a tensor or a row, and bfloat16 with the operands as a linear layer's gradients lie.

Peers: ``torch._scaled_mm`` with fast accumulation, and cuBLAS through ``torch.mm`` on the same views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from kernel_cases.bench_rows import BenchRow, Sizes, make_row


@dataclass(frozen=True, eq=False)
class DenseOperands:
    """``a`` is logical [M, K] and ``b`` logical [N, K], each a view of how it is stored; ``out`` [M, N].

    fp8 has float32 scales: one number each, or ``scale_a`` [M, 1] and ``scale_b`` [1, N].
    """

    a: Any
    b: Any
    out: Any
    scale_a: Any = None
    scale_b: Any = None


def dense_work(sizes: Sizes, dtype: str) -> Work:
    m, n, k = sizes
    return Work(2.0 * m * n * k, (m * k + n * k) * ELEMENT_BYTES[dtype] + m * n * OUTPUT_BYTES)


def small_row(row: BenchRow) -> BenchRow:
    """The row's check: :data:`~kernel_cases.bench_case.CHECK_SIZES` with the row's sizes modulo 8."""
    sizes = tuple(like(size, small) for size, small in zip(row.sizes, CHECK_SIZES, strict=True))
    return make_row(row.table, row.kernel, sizes, row.dtype, row.split, **dict(row.options))


def stored(rows: int, depth: int, transposed: bool) -> Any:
    """A random bfloat16 matrix, logical [rows, depth]; ``transposed`` is stored [depth, rows]."""
    import torch

    shape = (depth, rows) if transposed else (rows, depth)
    matrix = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    return matrix.T if transposed else matrix


class DenseCase:
    """fp8 products and bfloat16 products in the layouts nn and tn."""

    def work(self, row: BenchRow) -> Work:
        return dense_work(row.sizes, row.dtype)

    def check_row(self, row: BenchRow) -> BenchRow:
        return small_row(row)

    def operands(self, row: BenchRow) -> DenseOperands:
        import torch

        m, n, k = row.sizes
        of_a, of_b = row.option("layout")
        a, b = stored(m, k, of_a == "t"), stored(n, k, of_b == "n")
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        if row.dtype != "float8_e4m3fn":
            return DenseOperands(a, b, out)
        by_row = row.option("scales") == "row"
        scale_a = torch.rand((m, 1) if by_row else (), device="cuda") + 0.5
        scale_b = torch.rand((1, n) if by_row else (), device="cuda") + 0.5
        return DenseOperands(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), out, scale_a, scale_b)

    def ours(self, row: BenchRow, config: Any, operands: DenseOperands) -> Launch:
        from warpplan.kernels.gemm.launch import prepare

        o = operands
        scales = {} if o.scale_a is None else {"scale_a": o.scale_a, "scale_b": o.scale_b}
        return prepare(o.a, o.b, config, o.out, **scales)

    def relative_error(self, row: BenchRow, config: Any, operands: DenseOperands) -> float:
        exact_fp32()
        o = operands
        o.out.fill_(float("nan"))
        self.ours(row, config, o)()
        reference = o.a.float() @ o.b.float().T
        if o.scale_a is not None:
            reference *= o.scale_a * o.scale_b
        return norm_ratio(o.out, reference)

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[DenseOperands], Launch]]:
        return {"torch._scaled_mm": _scaled_mm} if row.dtype == "float8_e4m3fn" else {"cublas": _mm}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[DenseOperands], Launch]]:
        return {}


def _mm(o: DenseOperands) -> Launch:
    import torch

    return lambda: torch.mm(o.a, o.b.T, out=o.out)


def _scaled_mm(o: DenseOperands) -> Launch:
    import torch

    return lambda: torch._scaled_mm(
        o.a, o.b.T, scale_a=o.scale_a, scale_b=o.scale_b, out_dtype=torch.bfloat16, use_fast_accum=True, out=o.out
    )


CASE = DenseCase()
