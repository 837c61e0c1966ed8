"""Operations on whole tiles: shapes, products, reductions and scans."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.tiles.element_types import ElementType, poison, rounded
from warpplan.kernels.compiler.inspection.player.tiles.elementwise import ARITHMETIC, Compute
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation


def multiply(a: Any, b: Any, accumulator: Any, kind: ElementType) -> Any:
    """``a · b + accumulator``, the sum rounded once: in float64 the products are exact and their sum nearly so, hence
    the result does not depend on how a tile's rows are shared out."""
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return rounded(product + accumulator, kind)


def _range(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.arange(operation.number("start"), operation.number("end"), dtype=np.int32)


def _splat(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.full(operation.result.shape, operands[0])


def _unsplat(operation: ReadyOperation, operands: list[Any]) -> Any:
    return operands[0].reshape(-1)[0]


def _expand(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.expand_dims(operands[0], operation.number("axis"))


def _broadcast(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.broadcast_to(operands[0], operation.result.shape)


def _reshape(operation: ReadyOperation, operands: list[Any]) -> Any:
    return operands[0].reshape(operation.result.shape)


def _transpose(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.transpose(operands[0], operation.numbers("order"))


def _split(operation: ReadyOperation, operands: list[Any]) -> Any:
    return [operands[0][..., 0], operands[0][..., 1]]


def _join(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.stack(operands, -1)


def _cat(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.concatenate(operands)


def _gather(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.take_along_axis(operands[0], operands[1].astype(np.int64), operation.number("axis"))


def _address(operation: ReadyOperation, operands: list[Any]) -> Any:
    size = operation.types[0].pointee.bytes
    return operands[0] + operands[1].astype(np.int64) * size


def _dot(operation: ReadyOperation, operands: list[Any]) -> Any:
    return multiply(operands[0], operands[1], operands[2], operation.result.held)


def _poison(operation: ReadyOperation, operands: list[Any]) -> Any:
    made = poison(operation.result.shape, operation.result.held)
    return made if operation.result.kind == "tensor" else made[()]


TILES: dict[str, Compute] = {
    "tt.make_range": _range, "tt.splat": _splat, "tt.unsplat": _unsplat, "tt.expand_dims": _expand,
    "tt.broadcast": _broadcast, "tt.reshape": _reshape, "tt.trans": _transpose, "tt.split": _split, "tt.join": _join,
    "tt.cat": _cat, "tt.gather": _gather, "tt.addptr": _address, "tt.dot": _dot, "ub.poison": _poison,
}  # fmt: skip


class Folding:
    """Reductions and scans: the region that combines two elements, on whole arrays at once."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute

    def _combine(self, operation: ReadyOperation, left: list[Any], right: list[Any]) -> list[Any]:
        inside, body = operation.body
        values: dict[str, Any] = dict(zip(inside, [*left, *right], strict=True))
        for inner in body:
            if inner.name.endswith(".return"):
                return [np.asarray(values[name]) for name in inner.operands]
            result = self.compute(inner, [values[name] for name in inner.operands])
            values |= zip(inner.defined, result if isinstance(result, list) else [result], strict=True)
        raise AssertionError(operation.text)

    def reduce(self, operation: ReadyOperation, operands: list[Any]) -> list[Any]:
        """Halves are combined with each other until one element is left."""
        values = [np.moveaxis(a, operation.number("axis"), 0) for a in operands]
        while (size := len(values[0])) > 1:
            half = size // 2
            pairs = self._combine(operation, [v[:half] for v in values], [v[half : 2 * half] for v in values])
            values = [np.concatenate([p, v[2 * half :]]) for p, v in zip(pairs, values, strict=True)]
        return [v[0] for v in values]

    def scan(self, operation: ReadyOperation, operands: list[Any]) -> list[Any]:
        """Each element with all before it, in steps of 1, 2, 4, … (Hillis and Steele 1986)."""
        axis, backwards = operation.number("axis"), operation.attributes.get("reverse") == "true"
        values = [np.moveaxis(a, axis, 0) for a in operands]
        values = [v[::-1] if backwards else v for v in values]
        step = 1
        while step < len(values[0]):
            ahead = self._combine(operation, [v[:-step] for v in values], [v[step:] for v in values])
            values = [np.concatenate([v[:step], a]) for v, a in zip(values, ahead, strict=True)]
            step *= 2
        return [np.moveaxis(v[::-1] if backwards else v, 0, axis) for v in values]


def constant_index(text: str) -> list[int]:
    """The numbers in the first square brackets of ``text``."""
    match = re.search(r"\[([-\d, ]*)\]", text)
    assert match is not None, text
    return [int(n) for n in match.group(1).split(",")]


PURE = {**ARITHMETIC, **TILES}
