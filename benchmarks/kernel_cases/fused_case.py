"""A product with bias, activation or residual in its epilogue.

Peers: cuBLASLt's fused epilogue (``torch._addmm_activation``, which has ReLU and GELU with a bias), eager PyTorch, and
``torch.compile`` as it comes. ``matmul alone`` is the same product with nothing after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases.bench_case import OUTPUT_BYTES, Launch, Work, exact_fp32, norm_ratio
from kernel_cases.bench_rows import BenchRow
from kernel_cases.dense_case import dense_work, small_row, stored


@dataclass(frozen=True, eq=False)
class FusedOperands:
    """``a`` [M, K], ``b`` [N, K], ``bias`` [N] or ``None``, ``residual`` and ``out`` [M, N], of SwiGLU [M, N / 2];
    ``product`` [M, N] is where a peer that does not fuse leaves the product."""

    a: Any
    b: Any
    bias: Any
    residual: Any
    out: Any
    product: Any


class FusedCase:
    """gemm_bias_act and what computes the same."""

    def work(self, row: BenchRow) -> Work:
        m, n, _ = row.sizes
        plain = dense_work(row.sizes, row.dtype)
        halved = m * n // 2 * OUTPUT_BYTES if row.option("activation") == "swiglu" else 0
        added = m * n * OUTPUT_BYTES if row.option("residual") == "yes" else 0
        return Work(plain.flops, plain.moved_bytes - halved + added)

    def check_row(self, row: BenchRow) -> BenchRow:
        return small_row(row)

    def operands(self, row: BenchRow) -> FusedOperands:
        import torch

        m, n, k = row.sizes

        def of_option(name: str, *shape: int) -> torch.Tensor | None:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) if row.option(name) == "yes" else None

        columns = n // 2 if row.option("activation") == "swiglu" else n
        return FusedOperands(
            stored(m, k, False),
            # Products of about unit size, where activations bend.
            stored(n, k, False) / k**0.5,
            of_option("bias", n),
            of_option("residual", m, columns),
            torch.full((m, columns), float("nan"), device="cuda", dtype=torch.bfloat16),
            torch.empty((m, n), device="cuda", dtype=torch.bfloat16),
        )

    def ours(self, row: BenchRow, config: Any, operands: FusedOperands) -> Launch:
        from warpplan.kernels.gemm_bias_act.launch import prepare

        o = operands
        return prepare(
            o.a, o.b, config, o.out, bias=o.bias, activation=row.option("activation"), residual=o.residual
        )  # fmt: skip

    def relative_error(self, row: BenchRow, config: Any, operands: FusedOperands) -> float:
        exact_fp32()
        o = operands
        o.out.fill_(float("nan"))
        self.ours(row, config, o)()
        product = o.a.float() @ o.b.float().T
        bias = None if o.bias is None else o.bias.float()
        residual = None if o.residual is None else o.residual.float()
        return norm_ratio(o.out, after_product(row.option("activation"), product, bias, residual))

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[FusedOperands], Launch]]:
        activation = row.option("activation")
        found: dict[str, Callable[[FusedOperands], Launch]] = {"matmul alone": _alone}
        if activation in ("relu", "gelu", "gelu_tanh") and row.option("bias") == "yes":
            found["torch._addmm_activation"] = lambda o: _fused(o, use_gelu=activation != "relu")
        found["eager"] = lambda o: _eager(o, activation)
        found["torch.compile"] = lambda o: _compiled(o, activation)
        return found

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[FusedOperands], Launch]]:
        return {}


def after_product(activation: str, product: Any, bias: Any, residual: Any) -> Any:
    """What follows the product, in torch; SwiGLU takes the columns in pairs (gate, value)."""
    import torch.nn.functional as F

    x = product if bias is None else product + bias
    match activation:
        case "relu":
            x = F.relu(x)
        case "gelu":
            x = F.gelu(x)
        case "gelu_tanh":
            x = F.gelu(x, approximate="tanh")
        case "silu":
            x = F.silu(x)
        case "swiglu":
            x = F.silu(x[:, ::2]) * x[:, 1::2]
    return x if residual is None else x + residual


def _alone(o: FusedOperands) -> Launch:
    import torch

    return lambda: torch.mm(o.a, o.b.T, out=o.product)


def _fused(o: FusedOperands, *, use_gelu: bool) -> Launch:
    import torch

    return lambda: torch._addmm_activation(o.bias, o.a, o.b.T, use_gelu=use_gelu)


def _layer(activation: str) -> Callable[..., Any]:
    import torch.nn.functional as F

    def layer(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        if activation == "swiglu":
            # Gates and values in halves, as torch's models lay them out: adjacent columns are what it reads fastest.
            gate, up = F.linear(a, b, bias).chunk(2, dim=-1)
            return F.silu(gate) * up if residual is None else F.silu(gate) * up + residual
        return after_product(activation, F.linear(a, b, bias), None, residual)

    return layer


def _eager(o: FusedOperands, activation: str) -> Launch:
    layer = _layer(activation)
    return lambda: layer(o.a, o.b, o.bias, o.residual)


_COMPILED: dict[tuple[Any, ...], Callable[..., Any]] = {}


def _compiled(o: FusedOperands, activation: str) -> Launch:
    """``torch.compile``'s launch, compiled here and once a shape, outside of what is timed."""
    import torch

    key = (activation, *o.a.shape, o.b.shape[0], o.bias is None, o.residual is None)
    if key not in _COMPILED:
        torch._dynamo.reset()  # type: ignore[attr-defined]
        _COMPILED.clear()
        _COMPILED[key] = torch.compile(_layer(activation), dynamic=False)
        _COMPILED[key](o.a, o.b, o.bias, o.residual)
        torch.cuda.synchronize()
    layer = _COMPILED[key]
    return lambda: layer(o.a, o.b, o.bias, o.residual)


CASE = FusedCase()
