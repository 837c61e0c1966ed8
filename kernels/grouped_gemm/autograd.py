"""The grouped GEMM as training uses it: differentiable, planned for all three products, whole under ``torch.compile``.

    c = grouped_gemm(a, b, ends)      # a [M, K], b [G, N, K], ends [G] int32 -> c [M, N]
    c.sum().backward()                # a.grad [M, K], b.grad [G, N, K]

The products are custom operators of torch's, ``warpplan::grouped_gemm``, ``warpplan::grouped_dgrad`` and
``warpplan::grouped_wgrad``, each run with the configuration that
:func:`~warpplan.kernels.plan_source.configuration` finds for its shape. On a CPU they are the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from warpplan.kernels.grouped_gemm.kernel import GROUPED_GEMM
from warpplan.kernels.grouped_gemm.launch import addressable, prepare, require_alike, result_shape
from warpplan.kernels.grouped_gemm.reference import reference
from warpplan.kernels.grouped_gemm.space import Product
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import Tensor, TorchResult
from warpplan.planner.errors import InvalidShape
from warpplan.planner.values.tuning import TuningConfig

PLANNED_BITS = 4
"""Leading binary digits, after the first, of the number of rows that a plan is made for; the rest are rounded up. Under
expert parallelism every step has another number of rows: there are 16 plans from one power of two to the next, and the
rounding adds at most 6 % to the rows that a plan expects. Each further bit doubles the plans."""


def grouped_gemm(a: Tensor, b: Tensor, ends: Tensor, *, sizes: str | Sequence[int] = "balanced") -> Tensor:
    """A [M, K] · B [G, N, K]ᵀ, a product for each group of rows, [M, N]; differentiable by ``a`` and ``b``.

    ``ends`` [G], int32 on the operands' device, is where each group of rows ends; the host never reads it. Rows of no
    group, from ``ends[-1]`` on, are undefined in C and in A's gradient (on a CPU zero). ``sizes`` is how rows are
    expected to be spread over the groups, for planning alone: "balanced", "skewed", "few" or the G sizes. Operands that
    TMA cannot address are copied. Raises :class:`InvalidShape` for sizes and dtypes that the kernel does not have.
    """
    groups = ends.shape[0]
    if not isinstance(sizes, str) and len(sizes) != groups:
        raise InvalidShape(
            f"sizes has {len(sizes)} numbers for {groups} groups: give one a group",
            field="sizes", value=len(sizes), limit=groups,
        )  # fmt: skip
    text = sizes if isinstance(sizes, str) else ",".join(map(str, sizes))
    return OPERATORS["forward"](a, b, ends, text)


def planned(product: Product, left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> TuningConfig:
    """The configuration of a product of CUDA operands, their number of rows rounded up."""
    n, k = left.shape[1], right.shape[-1]
    if product == "forward":
        n = right.shape[1]
    named = {"M": rounded_rows(left.shape[0]), "N": n, "K": k, "G": ends.shape[0], "product": product, "sizes": sizes}
    dtype = str(left.dtype).removeprefix("torch.")
    return configuration("grouped_gemm", GROUPED_GEMM.parse_shape(named), dtype, _device_name(left.device.index))


def rounded_rows(rows: int) -> int:
    """``rows`` rounded up to :data:`PLANNED_BITS` binary digits after the first."""
    step = 1 << max(rows.bit_length() - 1 - PLANNED_BITS, 0)
    return -(-rows // step) * step


@lru_cache(maxsize=64)
def _device_name(index: int) -> str:
    return str(torch.cuda.get_device_name(index))


def addressed(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy that TMA can address: ``contiguous()`` would leave one that starts off 16 bytes."""
    return tensor if addressable(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def _operator(product: Product, name: str) -> Callable[..., Tensor]:
    """The custom operator of ``product``."""

    def compute(left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> Tensor:
        if not left.is_cuda:
            require_alike(product, left, right, ends)
            return reference(product, left, right, ends).to(left.dtype)
        left, right = addressed(left), addressed(right)
        out = empty(left, right, ends, sizes)
        if left.shape[0]:
            prepare(product, left, right, ends, planned(product, left, right, ends, sizes), out)()
            return out
        return out.zero_()

    def empty(left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> Tensor:
        return left.new_empty(result_shape(product, left, right, ends))

    operator = torch.library.custom_op(
        f"warpplan::{name}", compute, mutates_args=(),
        schema="(Tensor left, Tensor right, Tensor ends, str sizes) -> Tensor",
    )  # fmt: skip
    operator.register_fake(empty)
    return operator  # type: ignore[no-any-return]


OPERATORS: dict[Product, Callable[..., Tensor]] = {
    "forward": _operator("forward", "grouped_gemm"),
    "dgrad": _operator("dgrad", "grouped_dgrad"),
    "wgrad": _operator("wgrad", "grouped_wgrad"),
}


def _save(ctx: TorchResult, inputs: tuple[Tensor, Tensor, Tensor, str], output: Tensor) -> None:
    a, b, ends, ctx.sizes = inputs
    ctx.save_for_backward(a, b, ends)


def _gradients(ctx: TorchResult, dc: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    a, b, ends = ctx.saved_tensors
    of_a, of_b = ctx.needs_input_grad[:2]
    da = OPERATORS["dgrad"](dc, b, ends, ctx.sizes) if of_a else None
    db = OPERATORS["wgrad"](dc, a, ends, ctx.sizes) if of_b else None
    return da, db, None, None


OPERATORS["forward"].register_autograd(_gradients, setup_context=_save)  # type: ignore[attr-defined]
