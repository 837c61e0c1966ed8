"""Scales of fp8 operands on their way to the kernel: which scheme their shapes are of, and where each number lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpplan.kernels.gemm.space import SCALE_BLOCK
from warpplan.planner.errors import InvalidShape

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor

UNSCALED = "none"


@dataclass(frozen=True)
class OperandScales:
    """``tensor`` of fp32 scales of one operand; ``strides`` in elements from a row (or a block of rows) of the operand
    to the next, and from a block of K to the next."""

    tensor: Tensor | None = None
    strides: tuple[int, int] = (0, 0)


def operand_scales(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, blocks: bool = False
) -> tuple[str, OperandScales, OperandScales]:
    """(scheme, scales of A, scales of B) for ``a`` [M, K] and ``b`` [N, K]; scheme "none" where the operands are not
    fp8. Scales multiply, as those of ``torch._scaled_mm``:

    ======  ==================  ==========================
    scheme  ``scale_a``         ``scale_b``
    ======  ==================  ==========================
    tensor  one element         one element
    row     [M, 1]              [1, N] or [N, 1]
    block   [M, ⌈K/128⌉]        [⌈N/128⌉, ⌈K/128⌉]
    ======  ==================  ==========================

    of dtype float32, on the operands' device, with any strides. Operands of one block have scales of one shape in
    several schemes: with ``blocks`` those are "block", else the first that fits. Raises :class:`InvalidShape` naming
    the scale, its shape and what it may be.
    """
    if a.element_size() > 1:
        if scale_a is not None or scale_b is not None:
            raise InvalidShape(f"operands of {a.dtype} have no scales: leave scale_a and scale_b out", field="scale_a")
        return UNSCALED, OperandScales(), OperandScales()
    if scale_a is None or scale_b is None:
        raise InvalidShape("fp8 operands need scale_a and scale_b in float32: one is missing", field="scale_a")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if str(scale.dtype) != "torch.float32" or scale.device != a.device:
            raise InvalidShape(
                f"{name} is {scale.dtype} on {scale.device}: expected torch.float32 on {a.device}", field=name
            )
    m, n, k_blocks = a.shape[0], b.shape[0], -(-a.shape[1] // SCALE_BLOCK)
    n_blocks = -(-n // SCALE_BLOCK)
    shapes = tuple(scale_a.shape), tuple(scale_b.shape)
    fits_blocks = shapes == ((m, k_blocks), (n_blocks, k_blocks))
    if blocks and fits_blocks:
        return _of_blocks(scale_a, scale_b)
    if scale_a.numel() == 1 and scale_b.numel() == 1:
        return "tensor", OperandScales(scale_a), OperandScales(scale_b)
    if shapes[0] == (m, 1) and shapes[1] in ((1, n), (n, 1)):
        along = scale_b.stride(1 if shapes[1] == (1, n) else 0)
        return "row", OperandScales(scale_a, (scale_a.stride(0), 0)), OperandScales(scale_b, (along, 0))
    if fits_blocks:
        return _of_blocks(scale_a, scale_b)
    raise InvalidShape(
        f"scale_a is {shapes[0]} and scale_b {shapes[1]}: expected one element each, ({m}, 1) and (1, {n}), or "
        f"({m}, {k_blocks}) and ({n_blocks}, {k_blocks})",
        field="scale_a", value=shapes[0], limit=(m, k_blocks),
    )  # fmt: skip


def _of_blocks(scale_a: Tensor, scale_b: Tensor) -> tuple[str, OperandScales, OperandScales]:
    strides = tuple(scale_a.stride()), tuple(scale_b.stride())
    return "block", OperandScales(scale_a, strides[0]), OperandScales(scale_b, strides[1])
