"""Sizes as people write them: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)``, whole numbers and names only."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from warpplan.planner.errors import InvalidInput

MOST_LETTERS = 500
MOST_VALUE = 1 << 62
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def cdiv(a: int, b: int) -> int:
    """``a`` over ``b``, rounded up."""
    return -(-a // b)


_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": cdiv, "min": min, "max": max}


def whole_number(text: str) -> int | None:
    """``text`` as a whole number of at most :data:`MOST_VALUE`, a minus before it or not; ``None`` for anything else.
    For ``isdigit`` alone "²" is a digit, and ``int`` takes no more than 4,300 of them."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST_VALUE))):
        return None
    return int(text) if int(digits) <= MOST_VALUE else None


def number_of(word: str, shape: Mapping[str, int]) -> int | None:
    """``word`` as a whole number, or an expression of ``shape``; ``None`` where it is a type or another value."""
    if (number := whole_number(word)) is not None:
        return number
    if any(name in shape for name in _words(word)):
        return evaluate(word, shape, "signature")
    return None


def evaluate(text: str, names: Mapping[str, int], field: str) -> int:
    """The whole number that ``text`` is with ``names``. Operators are + - * // %, functions ``cdiv``, ``min``, ``max``.

    Raises :class:`InvalidInput` naming ``field`` for anything else, a name that is not known, or a division by 0.
    """
    if len(text) > MOST_LETTERS:
        raise InvalidInput(f"{field}: longer than {MOST_LETTERS} letters", field=field, limit=MOST_LETTERS)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _value(tree, names)
    except (SyntaxError, ValueError, RecursionError, TypeError) as error:
        told = "no expression" if isinstance(error, SyntaxError | RecursionError) else str(error)
        raise InvalidInput(f"{field} {text!r}: {told}", field=field, value=text) from error
    except ZeroDivisionError:
        raise InvalidInput(f"{field} {text!r}: divides by 0", field=field, value=text) from None
    if abs(value) > MOST_VALUE:
        raise InvalidInput(f"{field} {text!r}: {value} is beyond 64 bits", field=field, value=text, limit=MOST_VALUE)
    return value


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ValueError(f"no value for {node.id}: known are {', '.join(sorted(names))}")
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_value(argument, names) for argument in node.args))
    raise ValueError("expected whole numbers, names, + - * // %, cdiv(), min() and max()")


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
