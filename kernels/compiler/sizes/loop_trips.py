"""The trip counts of a kernel's loops, read from its code at the cut as expressions over a launch."""

from __future__ import annotations

import re

from warpplan.kernels.compiler.analysis.operation_kinds import LOOPS
from warpplan.kernels.compiler.analysis.value_flow import PLAIN, VARIABLE, Definition, definitions
from warpplan.kernels.compiler.sizes.gain_model import LoopTrips
from warpplan.kernels.compiler.sizes.size_expressions import MOST_NODES, OPERATIONS, Expression, is_expression
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse

AXES = {"x": 0, "y": 1, "z": 2}
_SAME = frozenset({"arith.extsi", "arith.extui", "arith.index_cast", "arith.trunci"})


def loop_trips(text: str) -> tuple[LoopTrips, ...]:
    """Each loop of the kernel ``text``, outer before inner, in the order of
    :attr:`~warpplan.kernels.compiler.analysis.capture.Captured.loops`."""
    reader = _TripReader(unique_names(parse(text).function))
    return tuple(reader.loops(reader.function.regions[0], ()))


class _TripReader:
    def __init__(self, function: IrOperation) -> None:
        self.function = function
        self.defined: dict[str, Definition] = definitions(function)
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
        bounds = [self._of(value, 0) for value in (loop.lower, loop.upper, loop.step)]
        if any(value is None for value in bounds):
            return None
        expression = ("counter", *bounds)
        return expression if is_expression(expression) else None

    def _of(self, name: str, depth: int) -> Expression | None:
        if depth > MOST_NODES:
            return None
        made = self.defined.get(name)
        if made is None:
            return ("argument", name.removeprefix("%")) if name in self.integers else None
        operation = made.operation
        if made.kind == VARIABLE:
            return self._bounds(operation)
        if made.kind != PLAIN:
            return None
        if operation.name == "arith.constant":
            number = operation.tokens[0]
            return int(number) if re.fullmatch(r"-?\d+", number) else None
        if operation.name in _SAME:
            return self._of(made.sources[0], depth + 1)
        if operation.name in ("tt.get_program_id", "tt.get_num_programs"):
            kind = "program" if operation.name == "tt.get_program_id" else "programs"
            return (kind, AXES[operation.tokens[0]]) if operation.tokens[0] in AXES else None
        short = operation.name.removeprefix("arith.")
        if short not in OPERATIONS or len(made.sources) != 2:
            return None
        values = [self._of(source, depth + 1) for source in made.sources]
        return None if any(value is None for value in values) else (short, *values)
