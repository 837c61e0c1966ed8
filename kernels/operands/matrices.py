"""Matrices as products take them: how each lies in memory, whether TMA can address it, and what is wrong with it."""

from __future__ import annotations

import torch

from warpplan.kernels.gemm.space import ELEMENT_BYTES
from warpplan.kernels.torch_types import Tensor
from warpplan.planner.errors import InvalidShape, UnknownName

TMA_ALIGNMENT_BYTES = 16
"""Of a tensor's base and of its row stride (CUDA driver API, cuTensorMapEncodeTiled)."""


def result_dtype(operand: Tensor) -> torch.dtype:
    """Of the product of operands like ``operand``."""
    return torch.bfloat16 if operand.element_size() == 1 else operand.dtype


def rows_aligned(tensor: Tensor) -> bool:
    """Whether TMA can address the rows of ``tensor`` [rows, columns]: base and stride on 16 bytes, columns adjacent."""
    element = tensor.element_size()
    stride = tensor.stride(0) * element if tensor.shape[0] > 1 else 0
    return _adjacent(tensor) and tensor.data_ptr() % TMA_ALIGNMENT_BYTES == 0 and stride % TMA_ALIGNMENT_BYTES == 0


def lies_by_k(operand: Tensor) -> bool:
    """Whether ``operand`` [rows, K] lies with K contiguous; it is otherwise read as the matrix [K, rows] that its
    transpose is. Where a single row or column makes it both, the order is one that TMA can address."""
    other = operand.t()
    if not (_adjacent(operand) and _adjacent(other)):
        return not _adjacent(other)
    fits = rows_aligned(operand) and operand.shape[1] * operand.element_size() % TMA_ALIGNMENT_BYTES == 0
    return fits or not rows_aligned(other)


def layout_of(a: Tensor, b: Tensor) -> str:
    """How A and B are stored, as the option ``layout`` of a shape names it: "n" as the product reads, A [M, K] and
    B [K, N], "t" transposed."""
    return ("n" if lies_by_k(a) else "t") + ("t" if lies_by_k(b) else "n")


def tma_stores(out: Tensor) -> bool:
    """Whether TMA can store the rows of ``out`` without a trace beside them.

    It writes whole 16-byte units: of a row that ends inside one, it would overwrite what follows.
    """
    return rows_aligned(out) and out.shape[1] * out.element_size() % TMA_ALIGNMENT_BYTES == 0


def row_strides(tensor: Tensor) -> list[int]:
    """Strides in elements, with those that no address depends on made regular: of a single row or a single column."""
    rows, columns = tensor.shape
    stride = tensor.stride(0)
    if rows == 1:
        step = TMA_ALIGNMENT_BYTES // tensor.element_size()
        stride = -(-columns // step) * step
    return [stride, 1]


def require_operands(a: Tensor, b: Tensor) -> None:
    """Raise :class:`InvalidShape` or :class:`UnknownName` unless A [M, K] and B [N, K] are operands of one product that
    TMA can address."""
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dim() != 2:
            raise InvalidShape(f"{name} has {tensor.dim()} dimensions, expected 2: [rows, K]", field=name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ELEMENT_BYTES:
            raise UnknownName("dtype", dtype, ELEMENT_BYTES)
        if not tensor.is_cuda:
            raise InvalidShape(f"{name} is on {tensor.device}: move it to a GPU, {name}.cuda()", field=name)
    if a.dtype != b.dtype or a.device != b.device:
        raise InvalidShape(f"A is {a.dtype} on {a.device} and B {b.dtype} on {b.device}: expected the same", field="B")
    if a.shape[1] != b.shape[1]:
        raise InvalidShape(
            f"A is {tuple(a.shape)} and B {tuple(b.shape)}: their last dimension, K, must agree (B is [N, K])",
            field="K", value=b.shape[1], limit=a.shape[1],
        )  # fmt: skip
    for name, size in (("M", a.shape[0]), ("N", b.shape[0]), ("K", a.shape[1])):
        if size < 1:
            raise InvalidShape(f"{name}={size}: expected 1 or more", field=name, value=size, limit=1)
    for name, rows, tensor in (("A", "M", a), ("B", "N", b)):
        _require_addressable(name, rows, tensor)
    step = TMA_ALIGNMENT_BYTES // a.element_size()
    by_k = [name for name, tensor in (("A", a), ("B", b)) if lies_by_k(tensor)]
    if a.element_size() == 1 and len(by_k) < 2:
        raise InvalidShape(
            f"the layout of A and B is {layout_of(a, b)}: the tensor cores read fp8 operands with K contiguous alone",
            field="A" if "A" not in by_k else "B", value=layout_of(a, b), limit="nt",
        )  # fmt: skip
    if by_k and a.shape[1] % step:
        raise InvalidShape(
            f"K={a.shape[1]}, contiguous in {' and '.join(by_k)}: TMA needs rows of a multiple of "
            f"{TMA_ALIGNMENT_BYTES} bytes, so pad K to a multiple of {step}",
            field="K", value=a.shape[1], limit=step,
        )  # fmt: skip


def require_output(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Raise :class:`InvalidShape` unless ``out`` can take the product of A [M, K] and B [N, K]."""
    expected, dtype = (a.shape[0], b.shape[0]), result_dtype(a)
    if tuple(out.shape) != expected or out.dtype != dtype or out.device != a.device:
        raise InvalidShape(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}: expected {dtype} {expected} on {a.device}",
            field="out",
        )
    if out.stride(1) != 1 and out.shape[1] > 1:
        raise InvalidShape(
            f"out has column stride {out.stride(1)}: expected 1", field="out", value=out.stride(1), limit=1
        )
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        raise InvalidShape(
            f"out has row stride {out.stride(0)}, less than its {out.shape[1]} columns: its rows overlap", field="out"
        )


def _require_addressable(name: str, rows: str, operand: Tensor) -> None:
    """Raise :class:`InvalidShape` where TMA cannot address the matrix that ``operand``, called ``name``, is stored
    as; ``rows`` is the name of its first dimension."""
    by_k, strides = lies_by_k(operand), tuple(operand.stride())
    stored = operand if by_k else operand.t()
    order = f"[{rows}, K]" if by_k else f"[K, {rows}]"
    step = TMA_ALIGNMENT_BYTES // operand.element_size()
    if not _adjacent(stored):
        raise InvalidShape(
            f"{name} has strides {strides}: TMA needs one dimension contiguous; copy it first, {name}.contiguous()",
            field=name, value=strides, limit=1,
        )  # fmt: skip
    if not rows_aligned(stored):
        raise InvalidShape(
            f"{name} has strides {strides} and starts {stored.data_ptr() % TMA_ALIGNMENT_BYTES} bytes off: it is "
            f"stored {order}, and TMA needs rows that start on {TMA_ALIGNMENT_BYTES} bytes; pad the row stride to a "
            f"multiple of {step} elements",
            field=name, value=strides, limit=step,
        )  # fmt: skip
    if stored.shape[0] > 1 and stored.stride(0) < stored.shape[1]:
        raise InvalidShape(
            f"{name} is stored {order} with row stride {stored.stride(0)}, less than its {stored.shape[1]} columns: "
            f"copy it first, {name}.contiguous()",
            field=name, value=stored.stride(0), limit=stored.shape[1],
        )  # fmt: skip


def _adjacent(matrix: Tensor) -> bool:
    return bool(matrix.stride(1) == 1 or matrix.shape[1] == 1)


def stored(operand: Tensor) -> Tensor:
    """The matrix of adjacent columns that ``operand`` [rows, K] is, or is the transpose of."""
    return operand if lies_by_k(operand) else operand.t()
