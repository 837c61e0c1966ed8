"""The trip counts of a kernel's loops: read from its code at the cut as expressions over a launch, and counted for one.

Loop bounds are sums of arguments, constants and program numbers in most kernels, so a launch's sizes and grid say them.
What is read from memory is not known, and neither is a loop whose bounds it is in; but where a loop ends at the least
of that and of what is known, as one over a window of keys does, a launch is counted by what is known: no program has
more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from warpplan.kernels.compiler.analysis.operation_kinds import LOOPS
from warpplan.kernels.compiler.analysis.value_flow import HANDED, PLAIN, VARIABLE, Definition, definitions
from warpplan.kernels.compiler.sizes.gain_model import LoopTrips
from warpplan.kernels.compiler.sizes.size_expressions import (
    OPERATIONS,
    Expression,
    evaluate,
    is_expression,
    mentions_program,
    trip_count,
)
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names

AXES = {"x": 0, "y": 1, "z": 2}
SAMPLES = 64
"""Programs whose loops are counted, spread evenly over the grid. Chosen by hand; doubled, a count takes twice as long
and moves by less than a hundredth for the triangular loops of causal attention."""
_SAME = frozenset({"arith.extsi", "arith.extui", "arith.index_cast", "arith.index_castui", "arith.trunci"})
_LEAST = frozenset({"arith.minsi", "arith.minui"})


@dataclass(frozen=True)
class Trips:
    """Iterations of one loop, each time that it is entered: of the programs' mean, and of the one with most."""

    mean: float
    most: int


def loop_trips(function: IrOperation) -> tuple[LoopTrips, ...]:
    """Each loop of the kernel ``function``, outer before inner, in the order of
    :attr:`~warpplan.kernels.compiler.analysis.capture.Captured.loops`."""
    return _read_loops(function, limited=False)


def _read_loops(function: IrOperation, *, limited: bool) -> tuple[LoopTrips, ...]:
    """``limited``: of an end that is the least of two numbers, of which one is not known, the other stands for both."""
    reader = _TripReader(unique_names(function), limited)
    return tuple(reader.loops(reader.function.regions[0], ()))


def trip_counts(
    function: IrOperation, values: Mapping[str, int | tuple[int, ...]], grid: tuple[int, ...]
) -> tuple[Trips | None, ...]:
    """For each loop of ``function``, in the order of :func:`loop_trips`, what is known of it in one launch.

    ``values`` are the launch's whole numbers by argument; of a descriptor its shape and strides. The iteration in the
    middle of a loop stands for all of them. A loop that ends at the least of a number that is known and of one that is
    not is taken to end at the former.
    """
    whole = (*grid, 1, 1)[:3]
    numbers = {name.removeprefix("%"): n for name, n in argument_numbers(function, values).items() if n is not None}
    count = int(np.prod(whole))
    programs = [
        (int(i) % whole[0], int(i) // whole[0] % whole[1], int(i) // (whole[0] * whole[1]))
        for i in np.unique(np.linspace(0, max(0, count - 1), min(max(1, count), SAMPLES)).astype(np.int64))
    ]
    return tuple(_counted(loop.bounds, numbers, whole, programs) for loop in _read_loops(function, limited=True))


def _counted(
    bounds: Expression | None, numbers: Mapping[str, int], grid: tuple[int, ...], programs: list[tuple[int, int, int]]
) -> Trips | None:
    if bounds is None:
        return None
    counts = []
    for program in programs if mentions_program(bounds) else programs[:1]:
        lower, upper, step = (evaluate(bound, numbers, grid, program) for bound in bounds[1:])
        if lower is None or upper is None or step is None or step <= 0:
            return None
        counts.append(trip_count(lower, upper, step))
    return Trips(float(np.mean(counts)), int(max(counts)))


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


class _TripReader:
    def __init__(self, function: IrOperation, limited: bool) -> None:
        self.function, self.limited = function, limited
        self.defined: dict[str, Definition] = definitions(function)
        self.known: dict[str, Expression | None] = {}
        self.integers = {name for name, kind in arguments(function).items() if re.fullmatch(r"i\d+", kind)}

    def loops(self, region: Region, around: tuple[Expression | None, ...]) -> list[LoopTrips]:
        found: list[LoopTrips] = []
        for operation in region.operations:
            inside = around
            if operation.name in LOOPS:
                found.append(LoopTrips(self._bounds(operation), around))
                inside = (*around, found[-1].bounds)
            if not operation.name.startswith(("tt.", '"tt.')):
                for inner in operation.regions:
                    found += self.loops(inner, inside)
        return found

    def _bounds(self, operation: IrOperation) -> Expression | None:
        """``("counter", lower, upper, step)``, ``None`` for a loop without a count or with one that is not known."""
        if operation.name != "scf.for":
            return None
        loop = control.read_loop(operation)
        bounds = [self._of(loop.lower), self._end(loop.upper), self._of(loop.step)]
        if any(value is None for value in bounds):
            return None
        expression = ("counter", *bounds)
        return expression if is_expression(expression) else None

    def _end(self, name: str) -> Expression | None:
        """A loop's upper bound."""
        known, made = self._of(name), self.defined.get(name)
        if known is not None or made is None or not self.limited:
            return known
        if made.operation.name in _SAME:
            return self._end(made.sources[0])
        if made.operation.name not in _LEAST:
            return None
        return next((end for end in map(self._end, made.sources) if end is not None), None)

    def _of(self, name: str) -> Expression | None:
        """Values are shared, so that each is read once, however often an expression has it."""
        if name not in self.known:
            self.known[name] = self._read(name)
        return self.known[name]

    def _read(self, name: str) -> Expression | None:
        made = self.defined.get(name)
        if made is None:
            return ("argument", name.removeprefix("%")) if name in self.integers else None
        operation = made.operation
        if made.kind == VARIABLE:
            return self._bounds(operation)
        if made.kind == HANDED and operation.name == "scf.if" and len(made.sources) == 2:
            return self._selected(control.read_branch(operation).condition, *made.sources)
        if made.kind != PLAIN or "tensor<" in operation.signature:
            return None
        if operation.name == "arith.constant":
            return _number(operation)
        if operation.name in _SAME:
            return self._of(made.sources[0])
        if operation.name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = next((AXES[token] for token in operation.tokens if token in AXES), 0)
            return "program" if operation.name == "tt.get_program_id" else "programs", axis
        if operation.name == "arith.select":
            return self._selected(*made.sources)
        short = operation.name.removeprefix("arith.")
        if short == "cmpi":
            short = next((token for token in operation.tokens if token in OPERATIONS), "")
        if short not in OPERATIONS or len(made.sources) != 2:
            return None
        values = [self._of(source) for source in made.sources]
        return None if any(value is None for value in values) else (short, *values)

    def _selected(self, condition: str, then: str, otherwise: str) -> Expression | None:
        values = [self._of(name) for name in (condition, then, otherwise)]
        return None if any(value is None for value in values) else ("select", *values)


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
