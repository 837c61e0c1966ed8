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
from torch.utils.flop_counter import register_flop_formula

from warpplan.kernels.declaration import Shape
from warpplan.kernels.grouped_gemm.kernel import GROUPED_GEMM
from warpplan.kernels.grouped_gemm.launch import addressable, prepare, require_alike, result_shape
from warpplan.kernels.grouped_gemm.reference import reference
from warpplan.kernels.grouped_gemm.space import SIXTEEN_BIT, Product
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import Tensor, TorchResult, TorchShape
from warpplan.planner.errors import InvalidShape, UnknownName
from warpplan.planner.values.tuning import TuningConfig

CPU_DTYPES = (*SIXTEEN_BIT, "float32", "float64")
PLANNED_BITS = 4
"""Leading binary digits, after the first, of the number of rows that a plan is made for; the rest are rounded up. Under
expert parallelism every step has another number of rows: there are 16 plans from one power of two to the next, and the
rounding adds at most 6 % to the rows that a plan expects. Each further bit doubles the plans."""


def grouped_gemm(a: Tensor, b: Tensor, ends: Tensor, *, sizes: str | Sequence[int] = "balanced") -> Tensor:
    """A [M, K] · B [G, N, K]ᵀ, a product for each group of rows, [M, N]; differentiable by ``a`` and ``b``, twice, too.

    ``ends`` [G], int32 on the operands' device, is where each group of rows ends; the host never reads it. Rows of no
    group, from ``ends[-1]`` on, are undefined in C and in A's gradient (on a CPU zero). ``sizes`` is how rows are
    expected to be spread over the groups, for planning alone: "balanced", "skewed", "few" or the G sizes. Operands that
    TMA cannot address are copied. On a GPU operands are bfloat16 or float16, on a CPU also of 32 and 64 bits. Raises
    :class:`InvalidShape` for operands and sizes, :class:`UnknownName` for dtypes that the kernel does not have.
    """
    # A graph of torch.compile could not say what is wrong: there the operator's fake does.
    if not torch.compiler.is_compiling():
        _require_usable("forward", a, b, ends)
    text = sizes if isinstance(sizes, str) else _listed(sizes, ends.shape[0])
    return OPERATORS["forward"](a, b, ends, text)


def _require_usable(product: Product, left: Tensor, right: Tensor, ends: Tensor) -> None:
    """Raise :class:`InvalidShape` or :class:`UnknownName` for operands that no ``product`` is made of."""
    dtypes = SIXTEEN_BIT if left.is_cuda else CPU_DTYPES
    if (dtype := str(left.dtype).removeprefix("torch.")) not in dtypes:
        raise UnknownName("dtype", dtype, dtypes)
    require_alike(product, left, right, ends)


def _listed(sizes: Sequence[int], groups: int) -> str:
    """A list of the groups' sizes as the option ``sizes`` of a shape has it."""
    if isinstance(sizes, torch.Tensor) or not hasattr(sizes, "__len__"):
        raise InvalidShape(
            f"sizes is a {type(sizes).__name__}: give a name, or a list of a number a group that the host knows",
            field="sizes",
        )
    if len(sizes) != groups:
        raise InvalidShape(
            f"sizes has {len(sizes)} numbers for {groups} groups: give one a group",
            field="sizes", value=len(sizes), limit=groups,
        )  # fmt: skip
    if not any(sizes):
        raise InvalidShape("sizes has zeros alone: expected one row or more", field="sizes", value=0, limit=1)
    return ",".join(map(str, sizes))


def planned(product: Product, left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> TuningConfig:
    """The configuration of a product of CUDA operands, their number of rows rounded up."""
    dtype = str(left.dtype).removeprefix("torch.")
    shape = _planned_shape(product, left, right, ends, sizes)
    return configuration("grouped_gemm", shape, dtype, _device_name(left.device.index))


def _planned_shape(product: Product, left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> Shape:
    """The shape that a configuration is looked up by. Raises :class:`InvalidShape` for one that there is not."""
    n, k = left.shape[1], right.shape[-1]
    if product == "forward":
        n = right.shape[1]
    named = {"M": rounded_rows(left.shape[0]), "N": n, "K": k, "G": ends.shape[0], "product": product, "sizes": sizes}
    return GROUPED_GEMM.parse_shape(named)


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
            _require_usable(product, left, right, ends)
            if left.shape[0]:
                _planned_shape(product, left, right, ends, sizes)
            return reference(product, left, right, ends).to(left.dtype)
        left, right = addressed(left), addressed(right)
        out = empty(left, right, ends, sizes)
        if left.shape[0]:
            prepare(product, left, right, ends, planned(product, left, right, ends, sizes), out)()
            return out
        return out.zero_()

    def empty(left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> Tensor:
        return left.new_empty(result_shape(product, left, right, ends))

    def fake(left: Tensor, right: Tensor, ends: Tensor, sizes: str) -> Tensor:
        _require_usable(product, left, right, ends)
        return empty(left, right, ends, sizes)

    operator = torch.library.custom_op(
        f"warpplan::{name}", compute, mutates_args=(),
        schema="(Tensor left, Tensor right, Tensor ends, str sizes) -> Tensor",
    )  # fmt: skip
    operator.register_fake(fake)

    @register_flop_formula(getattr(torch.ops.warpplan, name))  # type: ignore[untyped-decorator]
    def flops(left: TorchShape, right: TorchShape, *others: object, out_shape: TorchShape) -> int:
        """Multiplications and additions, as if every row were of a group: only the device knows."""
        flops: int = 2 * left[0] * left[1] * (right[1] if product == "forward" else right[-1])
        return flops

    return operator  # type: ignore[no-any-return]


OPERATORS: dict[Product, Callable[..., Tensor]] = {
    "forward": _operator("forward", "grouped_gemm"),
    "dgrad": _operator("dgrad", "grouped_dgrad"),
    "wgrad": _operator("wgrad", "grouped_wgrad"),
}


GRADIENTS: dict[Product, Callable[[Tensor, Tensor, Tensor], tuple[tuple[Product, Tensor, Tensor], ...]]] = {
    "forward": lambda dc, a, b: (("dgrad", dc, b), ("wgrad", dc, a)),
    "dgrad": lambda da, dc, b: (("forward", da, b), ("wgrad", dc, da)),
    "wgrad": lambda db, dc, a: (("forward", a, db), ("dgrad", dc, db)),
}
"""The products, of a result's gradient and both operands, that are the gradients of the left operand and of the right:
the three are one another's."""


def _save(ctx: TorchResult, inputs: tuple[Tensor, Tensor, Tensor, str], output: Tensor) -> None:
    left, right, ends, ctx.sizes = inputs
    ctx.save_for_backward(left, right, ends)


def _differentiate(product: Product) -> None:
    """Register the gradients of the operator of ``product``."""

    def gradients(ctx: TorchResult, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, ends = ctx.saved_tensors
        products = GRADIENTS[product](grad, left, right)
        of_left, of_right = (
            OPERATORS[name](*operands, ends, ctx.sizes) if needed else None
            for (name, *operands), needed in zip(products, ctx.needs_input_grad, strict=False)
        )
        return of_left, of_right, None, None

    OPERATORS[product].register_autograd(gradients, setup_context=_save)  # type: ignore[attr-defined]


for _product in OPERATORS:
    _differentiate(_product)
