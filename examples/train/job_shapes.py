"""The model's sizes, and the products of a training step that our kernels make: those that a job fetches configurations
for at its start. Needs neither torch nor Triton."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.declaration import Shape
from warpplan.kernels.registry import kernel


@dataclass(frozen=True)
class LlamaSizes:
    """Of a model and its batch; ``width`` is a multiple of ``heads``."""

    batch: int = 8
    length: int = 2048
    width: int = 2048
    heads: int = 16
    hidden: int = 5632
    layers: int = 4
    vocabulary: int = 8192

    @property
    def tokens(self) -> int:
        """Rows of every product."""
        return self.batch * self.length


def shapes(sizes: LlamaSizes) -> list[tuple[str, Shape]]:
    """(kernel, shape) of every layer's four products forward, two of which add the residual, and of the gradients of
    each: twelve, each once. The head is not among them, somebody else's kernel multiplies it."""
    rows, width, hidden = sizes.tokens, sizes.width, sizes.hidden
    found: list[tuple[str, Shape]] = []
    for columns, depth, adds in (
        (3 * width, width, False), (width, width, True), (2 * hidden, width, False), (width, hidden, True),
    ):  # fmt: skip
        found.append(("gemm_bias_act", residual_shape(rows, columns, depth)) if adds else _gemm(rows, columns, depth))
        found.append(_gemm(rows, depth, columns, "nn"))  # dx = dy · W
        found.append(_gemm(columns, depth, rows, "tn"))  # dW = dyᵀ · x
    return list(dict.fromkeys(found))


def residual_shape(rows: int, columns: int, depth: int) -> Shape:
    """Of ``gemm_bias_act`` with nothing but a residual."""
    sizes = {"M": rows, "N": columns, "K": depth, "residual": "yes"}
    return kernel("gemm_bias_act").declaration.parse_shape(sizes)


def _gemm(m: int, n: int, k: int, layout: str = "nt") -> tuple[str, Shape]:
    return "gemm", kernel("gemm").declaration.parse_shape({"M": m, "N": n, "K": k, "layout": layout})
