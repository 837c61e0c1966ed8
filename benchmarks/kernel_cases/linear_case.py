"""A linear layer, forward and backward: ``warpplan.kernels.linear`` against ``torch.nn.functional.linear``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, exact_fp32, norm_ratio
from kernel_cases.bench_rows import BenchRow


@dataclass(frozen=True, eq=False)
class LinearOperands:
    """``x`` [tokens, in], ``weight`` [out, in] and ``bias`` [out] or ``None`` want gradients; ``dy`` [tokens, out]."""

    x: Any
    weight: Any
    bias: Any
    dy: Any

    @property
    def inputs(self) -> tuple[Any, ...]:
        return tuple(tensor for tensor in (self.x, self.weight, self.bias) if tensor is not None)


class LinearCase:
    """Forward, dgrad and wgrad in turn, each with the configuration that its own plan gives."""

    def work(self, row: BenchRow) -> Work:
        tokens, out, into = row.sizes
        element = ELEMENT_BYTES[row.dtype]
        return Work(6.0 * tokens * out * into, 3.0 * (tokens * into + out * into + tokens * out) * element)

    def check_row(self, row: BenchRow) -> BenchRow:
        """The row itself: the layer looks its configurations up by its own sizes."""
        return row

    def operands(self, row: BenchRow) -> LinearOperands:
        import torch

        tokens, out, into = row.sizes

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        bias = random(out).requires_grad_() if row.option("bias") == "yes" else None
        return LinearOperands(
            random(tokens, into).requires_grad_(), random(out, into).requires_grad_(), bias, random(tokens, out)
        )

    def ours(self, row: BenchRow, config: Any, operands: LinearOperands) -> Launch:
        """``config`` is ignored: the layer takes three from where kernels of training find them."""
        from warpplan.kernels import linear

        return _step(linear, operands)

    def relative_error(self, row: BenchRow, config: Any, operands: LinearOperands) -> float:
        """The largest of the output's and the gradients'."""
        import torch

        exact_fp32()
        o = operands
        with torch.no_grad():
            x, weight, dy = o.x.float(), o.weight.float(), o.dy.float()
            bias = () if o.bias is None else (dy.sum(0),)
            references = (torch.nn.functional.linear(x, weight, None if o.bias is None else o.bias.float()),)
            references += (dy @ weight, dy.T @ x, *bias)
        found = self.ours(row, config, o)()
        return max(norm_ratio(ours, reference) for ours, reference in zip(found, references, strict=True))  # type: ignore[call-overload]

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[LinearOperands], Launch]]:
        return {"torch": _torch}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[LinearOperands], Launch]]:
        return {}


def _torch(o: LinearOperands) -> Launch:
    import torch.nn.functional as F

    return _step(F.linear, o)


def _step(layer: Callable[..., Any], o: LinearOperands) -> Launch:
    """(output, gradient of each input) of one step."""
    import torch

    def run() -> tuple[Any, ...]:
        y = layer(o.x, o.weight, o.bias)
        return (y, *torch.autograd.grad(y, o.inputs, o.dy))

    return run


CASE = LinearCase()
