"""How often each loop of a kernel runs at one launch, by its whole numbers evaluated for a sample of its programs.

Loop bounds are sums of arguments, constants and program numbers in most kernels, so a launch's sizes and grid say them.
What is read from memory is not known, and neither is a loop whose bounds it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.compiler.analysis.operation_kinds import LOOPS
from warpplan.kernels.compiler.analysis.value_flow import HANDED, PLAIN, VARIABLE, Definition, definitions
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.names import unique_names

Whole = NDArray[np.int64]
SAMPLES = 64
"""Programs whose loops are counted, spread evenly over the grid. Chosen by hand; doubled, a count takes twice as long
and moves by less than a hundredth for the triangular loops of causal attention."""


@dataclass(frozen=True)
class Trips:
    """Iterations of one loop, each time that it is entered: of the programs' mean, and of the one with most."""

    mean: float
    most: int


def _divided(a: Whole, b: Whole) -> Whole:
    """Towards zero, as ``arith.divsi``; 0 for a divisor of 0."""
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe))


_BINARY: dict[str, Callable[[Whole, Whole], Whole]] = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "maxsi": np.maximum, "minsi": np.minimum,
    "maxui": np.maximum, "minui": np.minimum, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "divsi": _divided, "divui": _divided, "remsi": lambda a, b: a - _divided(a, b) * b,
    "remui": lambda a, b: a - _divided(a, b) * b, "ceildivsi": lambda a, b: -_divided(-a, b),
    "floordivsi": lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    "shli": lambda a, b: a << np.clip(b, 0, 62), "shrsi": lambda a, b: a >> np.clip(b, 0, 62),
    "shrui": lambda a, b: a >> np.clip(b, 0, 62),
}  # fmt: skip
_COMPARED: dict[str, Callable[[Whole, Whole], NDArray[np.bool_]]] = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal, "ult": np.less, "ule": np.less_equal, "ugt": np.greater, "uge": np.greater_equal,
}  # fmt: skip
_SAME = frozenset({"extsi", "extui", "trunci", "index_cast", "index_castui"})
_AXES = ("x", "y", "z")


def trip_counts(
    function: IrOperation, values: Mapping[str, int | tuple[int, ...]], grid: tuple[int, ...]
) -> tuple[Trips | None, ...]:
    """For each loop of ``function``, outer before inner as :attr:`Captured.loops` has them, what is known of it.

    ``values`` are the launch's whole numbers by argument; of a descriptor its shape and strides.
    """
    reader = _ProgramNumbers(unique_names(function), values, (*grid, 1, 1)[:3])
    return tuple(reader.counted(op) for op in reader.function.walk() if op.name in LOOPS)


class _ProgramNumbers:
    """The scalars of ``function``: one number for each program of a sample, or ``None``."""

    def __init__(
        self, function: IrOperation, values: Mapping[str, int | tuple[int, ...]], grid: tuple[int, ...]
    ) -> None:
        self.function, self.grid = function, grid
        self.defined: dict[str, Definition] = definitions(function)
        programs = max(1, int(np.prod(grid)))
        chosen = np.unique(np.linspace(0, programs - 1, min(programs, SAMPLES)).astype(np.int64))
        self.programs = (chosen % grid[0], chosen // grid[0] % grid[1], chosen // (grid[0] * grid[1]))
        self.count = chosen.size
        self._known: dict[str, Whole | None] = {
            name: None if number is None else self._constant(number)
            for name, number in argument_numbers(function, values).items()
        }

    def _constant(self, number: int) -> Whole:
        return np.full(self.count, np.clip(number, -(2**62), 2**62), dtype=np.int64)

    def counted(self, operation: IrOperation) -> Trips | None:
        """The iterations of the loop ``operation``."""
        trips = self._trips(operation)
        return None if trips is None else Trips(float(trips.mean()), int(trips.max()))

    def _trips(self, operation: IrOperation) -> Whole | None:
        if operation.name != "scf.for":
            return None
        loop = control.read_loop(operation)
        lower, upper, step = (self.value(name) for name in (loop.lower, loop.upper, loop.step))
        if lower is None or upper is None or step is None or bool((step <= 0).any()):
            return None
        trips: Whole = np.maximum(0, -((lower - upper) // step))
        return trips

    def value(self, name: str) -> Whole | None:
        if name not in self._known:
            self._known[name] = None  # where a loop carries it round: not known
            self._known[name] = self._of(name)
        return self._known[name]

    def _of(self, name: str) -> Whole | None:
        made = self.defined.get(name)
        if made is None:
            return None
        operation = made.operation
        if made.kind == VARIABLE:
            loop, trips = control.read_loop(operation), self._trips(operation)
            lower, step = self.value(loop.lower), self.value(loop.step)
            if trips is None or lower is None or step is None:
                return None
            # The iteration in the middle stands for all of them.
            return np.asarray(lower + np.maximum(0, trips - 1) // 2 * step, dtype=np.int64)
        if made.kind == PLAIN:
            return self._computed(operation, [self.value(source) for source in made.sources])
        if made.kind == HANDED and operation.name == "scf.if":
            taken = self.value(control.read_branch(operation).condition)
            sides = [self.value(source) for source in made.sources]
            return _selected(taken, *sides) if len(sides) == 2 else None
        return None  # what a loop carries may change in every iteration

    def _computed(self, operation: IrOperation, operands: list[Whole | None]) -> Whole | None:
        dialect, _, name = operation.name.partition(".")
        if operation.name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = next((i for i, letter in enumerate(_AXES) if letter in operation.tokens), 0)
            return self.programs[axis] if name == "get_program_id" else self._constant(self.grid[axis])
        if operation.name == "arith.constant":
            number = _number(operation)
            return None if number is None else self._constant(number)
        if dialect != "arith" or "tensor<" in operation.signature:
            return None
        if name == "select" and len(operands) == 3:
            return _selected(*operands)
        numbers = [value for value in operands if value is not None]
        if len(numbers) < len(operands) or not numbers:
            return None
        if name in _SAME:
            return numbers[0]
        if name == "cmpi" and len(numbers) == 2:
            predicate = next((token for token in operation.tokens if token in _COMPARED), "eq")
            return _COMPARED[predicate](*numbers).astype(np.int64)
        return _BINARY[name](*numbers) if name in _BINARY and len(numbers) == 2 else None


def argument_numbers(function: IrOperation, values: Mapping[str, int | tuple[int, ...]]) -> dict[str, int | None]:
    """The arguments of ``function`` by the names that it has for them, with the numbers that are passed: a descriptor
    is followed by its shape and strides."""
    found: dict[str, int | None] = {}
    waiting: list[int] = []
    for name, kind in arguments(function).items():
        given = values.get(name.removeprefix("%"))
        if kind.startswith("!tt.tensordesc"):
            found[name], waiting = None, list(given) if isinstance(given, tuple) else []
        elif isinstance(given, int):
            found[name] = given
        else:
            found[name] = waiting.pop(0) if waiting and kind in ("i32", "i64") else None
    return found


def _selected(taken: Whole | None, then: Whole | None, otherwise: Whole | None) -> Whole | None:
    return None if taken is None or then is None or otherwise is None else np.where(taken != 0, then, otherwise)


def _number(operation: IrOperation) -> int | None:
    """The whole number that a constant is; some releases print the attributes before it."""
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
