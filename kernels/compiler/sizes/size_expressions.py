"""Whole numbers of a kernel as expressions over a launch: its integer arguments, its grid, one program's number in it.

An expression is JSON, in prefix form:

    7                             a constant
    ["argument", "K"]             an integer argument, by its name
    ["program", 0]                the number of the program along an axis of the grid
    ["programs", 0]               the programs along that axis
    ["counter", l, u, s]          the counter of a loop around: halfway from l to u on average
    ["select", c, a, b]           a where c is not 0, b where it is
    ["addi", a, b]                and the other operations of ``OPERATIONS``, as ``arith`` calls them; a comparison, by
                                  its predicate, is 1 or 0
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from warpplan.kernels.triton_types import Json

Expression = Json
MOST_NODES = 200
"""Operations of one expression at most. Chosen by hand: a trip count has ten; doubled, an evaluation takes twice as
long, which a launch waits for."""


def _quotient(a: float, b: float) -> float:
    """Towards zero, as ``arith.divsi``; 0 for a divisor of 0."""
    return math.copysign(abs(a) // abs(b), a * b) if b else 0.0


def _ceiling(a: float, b: float) -> float:
    return -(-a // b) if b else 0.0


def _power(of_two: float) -> float:
    return math.ldexp(1.0, int(min(max(of_two, 0.0), 62.0)))


def _bitwise(combine: Callable[[int, int], int]) -> Callable[[float, float], float]:
    return lambda a, b: combine(int(a), int(b)) if math.isfinite(a) and math.isfinite(b) else math.nan


OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul,
    "divsi": _quotient, "divui": _quotient, "ceildivsi": _ceiling, "ceildivui": _ceiling,
    "floordivsi": lambda a, b: a // b if b else 0.0,
    "remsi": lambda a, b: a - _quotient(a, b) * b, "remui": lambda a, b: a - _quotient(a, b) * b,
    "minsi": min, "minui": min, "maxsi": max, "maxui": max,
    "andi": _bitwise(operator.and_), "ori": _bitwise(operator.or_), "xori": _bitwise(operator.xor),
    "shli": lambda a, b: a * _power(b), "shrsi": lambda a, b: a // _power(b), "shrui": lambda a, b: a // _power(b),
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class LaunchSizes:
    """A launch's integer arguments by name, and its grid."""

    integers: tuple[tuple[str, int], ...]
    grid: tuple[int, ...]

    @property
    def programs(self) -> int:
        total = 1
        for axis in self.grid:
            total *= axis
        return total

    @property
    def by_name(self) -> dict[str, int]:
        return dict(self.integers)


def evaluate(
    expression: Expression, integers: Mapping[str, int], grid: Sequence[int], program: Sequence[int]
) -> float | None:
    """The number of ``program`` in a launch, ``None`` where an argument has no value."""
    if not isinstance(expression, (list, tuple)):
        return float(expression)
    operation, *operands = expression
    if operation == "argument":
        value = integers.get(operands[0])
        return None if value is None else float(value)
    if operation == "program":
        return float(program[operands[0]]) if operands[0] < len(program) else 0.0
    if operation == "programs":
        return float(grid[operands[0]]) if operands[0] < len(grid) else 1.0
    values = [evaluate(operand, integers, grid, program) for operand in operands]
    if operation == "counter":
        lower, upper, step = values
        if lower is None or upper is None or step is None:
            return None
        last = trip_count(lower, upper, step) - 1
        return lower + step * (max(0.0, last) // 2)
    if operation == "select":
        condition, then, otherwise = values
        return None if condition is None else then if condition else otherwise
    left, right = values
    return None if left is None or right is None else float(OPERATIONS[operation](left, right))


def trip_count(lower: float, upper: float, step: float) -> float:
    """Iterations of ``scf.for``."""
    return max(0.0, _ceiling(upper - lower, step)) if step > 0 else 0.0


def mentions_program(expression: Expression) -> bool:
    """Whether the number depends on which program of the grid it is of."""
    if not isinstance(expression, (list, tuple)):
        return False
    return expression[0] == "program" or any(mentions_program(operand) for operand in expression[1:])


def is_expression(value: Json) -> bool:
    """Whether JSON that was read is an expression, of no more than ``MOST_NODES`` operations."""
    waiting, seen = [value], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        if seen > MOST_NODES:
            return False
        if isinstance(node, (list, tuple)):
            match list(node):
                case ["argument", str()]:
                    pass
                case ["program" | "programs", int() as axis] if 0 <= axis <= 2:
                    pass
                case ["counter", lower, upper, step]:
                    waiting += [lower, upper, step]
                case ["select", condition, then, otherwise]:
                    waiting += [condition, then, otherwise]
                case [str() as operation, left, right] if operation in OPERATIONS:
                    waiting += [left, right]
                case _:
                    return False
        elif isinstance(node, bool) or not isinstance(node, int):
            return False
    return True
