"""Elementwise operations of ``arith`` and ``math`` on numpy arrays: ``compute(operation, operands)``.

Floats are rounded to the type of the result after each operation. Integer division by zero, which is undefined, gives
0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf

from warpplan.kernels.compiler.inspection.player.tiles.element_types import (
    Array,
    decoded,
    element_type,
    encoded,
    rounded,
)
from warpplan.kernels.compiler.inspection.player.tiles.inline_assembly import assembled
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import PrintedType, ReadyOperation

Compute = Callable[[ReadyOperation, list[Any]], Any]


def _unsigned(a: Array) -> Array:
    return a if a.dtype == bool else a.astype(f"uint{a.dtype.itemsize * 8}")


def _divided(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    return np.where((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient).astype(a.dtype)


def _wraps(function: Callable[..., Array]) -> Callable[..., Array]:
    """On whole numbers; of one bit, modulo 2."""

    def computed(a: Array, b: Array) -> Array:
        if a.dtype == bool:
            return function(a.astype(np.int8), b.astype(np.int8)) & 1
        return function(a, b)

    return computed


_LOG2E = np.float32(1.4426950408889634)
_LEAST_NORMAL = np.finfo(np.float32).tiny


def _exponential(a: Array) -> Array:
    """``math.exp`` of 32-bit floats, as Triton lowers it: 2 to the power of a rounded product."""
    return np.exp2(a * _LOG2E) if a.dtype == np.float32 else np.exp(a)


def _flushed(a: Array) -> Array:
    """``math.exp2``, whose subnormal results of 32-bit floats Triton flushes to zero."""
    result = np.exp2(a)
    return np.where(result < _LEAST_NORMAL, np.float32(0), result) if a.dtype == np.float32 else result


_WHOLE: dict[str, Callable[..., Array]] = {
    "addi": _wraps(np.add), "subi": _wraps(np.subtract), "muli": _wraps(np.multiply), "divsi": _divided,
    "remsi": lambda a, b: np.fmod(a, b),
    "divui": lambda a, b: np.floor_divide(_unsigned(a), _unsigned(b)),
    "remui": lambda a, b: np.remainder(_unsigned(a), _unsigned(b)),
    "ceildivsi": lambda a, b: -np.floor_divide(-a, b), "floordivsi": np.floor_divide,
    "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "shli": np.left_shift, "shrsi": np.right_shift, "shrui": lambda a, b: np.right_shift(_unsigned(a), _unsigned(b)),
    "maxsi": np.maximum, "minsi": np.minimum, "maxui": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)),
    "minui": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)),
}  # fmt: skip
_FLOAT: dict[str, Callable[..., Array]] = {
    "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "remf": np.fmod,
    "maxnumf": np.fmax, "minnumf": np.fmin, "maximumf": np.maximum, "minimumf": np.minimum, "negf": np.negative,
    "exp": _exponential, "exp2": _flushed, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "absf": np.abs,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil, "erf": erf,
    "rsqrt": lambda a: 1 / np.sqrt(a), "precise_sqrt": np.sqrt, "precise_divf": np.divide,
    "fma": lambda a, b, c: np.asarray(a, np.float64) * b + c,
    "clampf": lambda a, low, high: np.fmin(np.fmax(a, low), high), "powf": np.power,
}  # fmt: skip
_ORDER: dict[str, Callable[..., Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _whole(operation: ReadyOperation, operands: list[Any]) -> Any:
    result = _WHOLE[operation.name.partition(".")[2]](*operands)
    return result.astype(operation.result.held.held)


def _float(operation: ReadyOperation, operands: list[Any]) -> Any:
    result = _FLOAT[operation.name.partition(".")[2]](*operands)
    return rounded(result, operation.result.held)


def _of_library(operation: ReadyOperation, operands: list[Any]) -> Any:
    """A function of CUDA's libdevice on 32-bit floats. Raises :class:`KeyError` for one that is not known."""
    found = re.search(r'symbol = "__nv_(\w+)f"', operation.text)
    function = _FLOAT.get("" if found is None else found[1])
    if function is None or operation.result.held.bits != 32:
        raise KeyError(operation.text)
    return rounded(function(*operands), operation.result.held)


def _compare_whole(operation: ReadyOperation, operands: list[Any]) -> Any:
    predicate = operation.operation.tokens[0]
    a, b = operands
    if predicate[0] == "u":
        a, b = _unsigned(a), _unsigned(b)
    return _ORDER[predicate if predicate in ("eq", "ne") else predicate[1:]](a, b)


def _compare_float(operation: ReadyOperation, operands: list[Any]) -> Any:
    predicate = operation.operation.tokens[0]
    a, b = operands
    unordered = np.isnan(a) | np.isnan(b)
    if predicate == "ord":
        return ~unordered
    if predicate == "uno":
        return unordered
    ordered = _ORDER[predicate[1:]](a, b)
    return ordered & ~unordered if predicate[0] == "o" else ordered | unordered


def _select(operation: ReadyOperation, operands: list[Any]) -> Any:
    condition, yes, no = operands
    if isinstance(yes, np.ndarray) or isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def _extended(operation: ReadyOperation, operands: list[Any]) -> Any:
    a = operands[0]
    if operation.name == "arith.extsi" and a.dtype == bool:
        return -(a.astype(operation.result.held.held))
    return (_unsigned(a) if operation.name != "arith.extsi" else a).astype(operation.result.held.held)


def _truncated(operation: ReadyOperation, operands: list[Any]) -> Any:
    held = operation.result.held.held
    return (operands[0] & 1).astype(bool) if held.kind == "b" else operands[0].astype(held)


def _converted(operation: ReadyOperation, operands: list[Any]) -> Any:
    a = operands[0]
    if operation.name in ("arith.uitofp", "arith.fptoui"):
        a = _unsigned(a) if a.dtype.kind == "i" else a
    if operation.name == "arith.sitofp" and a.dtype == bool:
        a = -(a.astype(np.int8))
    kind = operation.result.held
    return rounded(a.astype(np.float64) if kind.is_float else np.nan_to_num(np.trunc(a)), kind)


def _bitcast(operation: ReadyOperation, operands: list[Any]) -> Any:
    source, target = operation.types[0], operation.result
    if source.held.bits != target.held.bits:
        raise KeyError(operation.name)
    bits = decoded(encoded(operands[0], source.held), target.held)
    return bits if np.ndim(operands[0]) else bits.reshape(())[()]


def _constant(operation: ReadyOperation, operands: list[Any]) -> Any:
    made = operation.memory.get("value")
    if made is None:
        made = operation.memory["value"] = _literal(operation)
    return made


def _literal(operation: ReadyOperation) -> Any:
    text = re.sub(r"^\s*\{[^}]*\}", "", operation.text).strip()
    kind = operation.result if operation.types else PrintedType("scalar", (), "i1")
    match = re.match(r"(?:dense<)?\[?([^>:\]]+)\]?>?", text)
    assert match is not None, text
    values = np.array([_number(word.strip(), kind) for word in match.group(1).split(",")], kind.held.held)
    if kind.kind != "tensor":
        return values[0]
    made = np.broadcast_to(values[0], kind.shape) if values.size == 1 else values.reshape(kind.shape)
    return np.array(made)


def _number(word: str, kind: PrintedType) -> Any:
    if word in ("true", "false"):
        return word == "true"
    if word.startswith("0x") and kind.held.is_float:  # one that no decimal stands for
        return decoded(np.array([int(word, 16)], kind.held.stored), kind.held)[0]
    if kind.held.is_float:
        return rounded(np.float64(word), kind.held)
    number = int(word, 0)
    return number - (1 << kind.held.bits) if number >= 1 << (kind.held.bits - 1) and number > 1 else number


def _same(operation: ReadyOperation, operands: list[Any]) -> Any:
    return operands[0]


def _rounding(operation: ReadyOperation, operands: list[Any]) -> Any:
    return rounded(operands[0], operation.result.held)


def _product_high(operation: ReadyOperation, operands: list[Any]) -> Any:
    a, b = (_unsigned(x).astype(object) for x in operands)
    high = np.asarray(a * b) >> operation.result.held.bits
    return np.asarray(high.astype(np.uint64)).astype(operation.result.held.held)


def _absolute(operation: ReadyOperation, operands: list[Any]) -> Any:
    return np.abs(operands[0])


ARITHMETIC: dict[str, Compute] = {
    **{f"arith.{name}": _whole for name in _WHOLE},
    **{f"{dialect}.{name}": _float for name in _FLOAT for dialect in ("arith", "math", "tt")},
    "arith.cmpi": _compare_whole, "arith.cmpf": _compare_float, "arith.select": _select,
    "arith.constant": _constant, "arith.extsi": _extended, "arith.extui": _extended, "arith.trunci": _truncated,
    "arith.index_cast": _extended, "arith.index_castui": _extended, "arith.extf": _rounding, "arith.truncf": _rounding,
    "tt.fp_to_fp": _rounding, "arith.sitofp": _converted, "arith.uitofp": _converted, "arith.fptosi": _converted,
    "arith.fptoui": _converted, "arith.bitcast": _bitcast, "tt.bitcast": _bitcast, "tt.int_to_ptr": _same,
    "tt.ptr_to_int": _same, "ttg.convert_layout": _same, "tt.mulhiui": _product_high, "math.absi": _absolute,
    "tt.elementwise_inline_asm": assembled, "tt.extern_elementwise": _of_library,
}  # fmt: skip
ARITHMETIC["arith.index_cast"] = lambda operation, operands: operands[0].astype(operation.result.held.held)
WHOLE_TYPES = frozenset(map(element_type, ("i8", "i16", "i32", "i64")))
