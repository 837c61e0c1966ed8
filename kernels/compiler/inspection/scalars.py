"""Arithmetic of TTGIR on whole numbers; ``None`` is a value that is not known."""

from __future__ import annotations

from collections.abc import Callable

from warpplan.kernels.compiler.ttgir.ir import IrOperation


def _divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_BINARY: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b, "subi": lambda a, b: a - b, "muli": lambda a, b: a * b, "divsi": _divided,
    "divui": _divided, "remsi": lambda a, b: a - _divided(a, b) * b, "remui": lambda a, b: a - _divided(a, b) * b,
    "ceildivsi": lambda a, b: -(-a // b) if b else 0, "floordivsi": lambda a, b: a // b if b else 0,
    "andi": lambda a, b: a & b, "ori": lambda a, b: a | b, "xori": lambda a, b: a ^ b, "maxsi": max, "minsi": min,
    "maxui": max, "minui": min, "shli": lambda a, b: a << min(b, 63), "shrsi": lambda a, b: a >> min(b, 63),
    "shrui": lambda a, b: a >> min(b, 63),
}  # fmt: skip
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "slt": lambda a, b: a < b, "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b, "sge": lambda a, b: a >= b, "ult": lambda a, b: a < b, "ule": lambda a, b: a <= b,
    "ugt": lambda a, b: a > b, "uge": lambda a, b: a >= b,
}  # fmt: skip
_SAME = frozenset({"extsi", "extui", "trunci", "index_cast", "index_castui"})
PROGRAMS = 132
"""Programs of the simulated grid along each axis: one for each SM of an H200."""


def compute(operation: IrOperation, operands: list[object], loaded: int = 1) -> object:
    """The result of ``operation`` on scalar ``operands``; ``None`` where that is not known. Numbers in memory are
    ``loaded``, the program is the second of ``PROGRAMS``."""
    name = operation.name.partition(".")[2]
    if operation.name == "arith.constant":
        return _constant(operation)
    if operation.name == "tt.get_program_id":
        return 1
    if operation.name == "tt.get_num_programs":
        return PROGRAMS
    if operation.name == "tt.load":
        return None if "tensor<" in operation.signature else loaded
    if not operation.name.startswith("arith."):
        return None
    if name == "select" and len(operands) == 3:
        return operands[1] if is_true(operands[0]) else operands[2]
    numbers = [value for value in operands if isinstance(value, int)]
    if len(numbers) < len(operands):
        return None
    if name == "cmpi" and len(operands) == 2:
        predicate = next((t for t in operation.tokens if t in _COMPARED), "eq")
        return int(_COMPARED[predicate](*numbers))
    if name in _BINARY and len(operands) == 2:
        result = _BINARY[name](*numbers)
        return result & 1 if operation.signature == "i1" else result
    if name in _SAME and operands:
        return numbers[0] & 1 if operation.signature.endswith(" i1") else numbers[0]
    return None


def is_true(value: object) -> bool:
    """Whether a condition holds; one that is not known does not."""
    return bool(value)


def _constant(operation: IrOperation) -> int | None:
    """The number that it is; some releases print the attributes before it."""
    depth = 0
    for token in operation.tokens:
        depth += (token == "{") - (token == "}")
        if depth == 0 and token in ("true", "false"):
            return int(token == "true")
        if depth == 0 and token.lstrip("-").isdigit():
            return int(token)
        if depth == 0 and token in (":", "dense"):
            return None
    return None
