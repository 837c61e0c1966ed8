"""Along which dimension each value of a kernel is split when the rows of its wgmma accumulators are shared out.

The split starts at dimension 0 of every accumulator and is followed both ways. Values that exist in one form (carried
by a loop, returned by a branch, accumulated, loaded by TMA, read by an atomic operation) are split in every use of
them, and so is what is computed from them. All else is split where it is read by rows and whole where it is read whole.
"""

from __future__ import annotations

from collections import deque

from warpplan.kernels.compiler.analysis.axes import ATOMICS, BOXED_WRITES, Rule, effect, rule, tensor_operands
from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOAD, WGMMA
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.printed_shapes import result_shapes
from warpplan.kernels.compiler.ttgir.source_locations import source_line

TIED = ("scf.for", "scf.while", "scf.if")
ENDS = ("scf.yield", "scf.condition")
_ROWS_OF_A_WARP = 16


class RowSplit:
    """``fixed`` are the values that exist in one form, with the dimension along which they are split; ``forced`` the
    operations (by identity) that exist split along one axis only; ``boxes`` every descriptor with the dimension along
    which its box is split, None where it stays whole. Raises :class:`CannotPlan` where that cannot be made to agree."""

    def __init__(self, module: Module, parts: int) -> None:
        self.module, self.parts = module, parts
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.definition: dict[str, IrOperation] = {}
        self.users: dict[str, list[IrOperation]] = {}
        self.ties: dict[str, list[list[str]]] = {}
        self.fixed: dict[str, int] = {}
        self.forced: dict[int, int] = {}
        self.asked: dict[int, set[int]] = {}
        self.boxes: dict[str, int | None] = {}
        self._fresh: deque[str] = deque()
        self._read(module.function)
        self._check_effects()
        dots = [operation for operation in module.function.walk() if operation.name == WGMMA]
        if not dots:
            raise CannotPlan(
                "no wgmma accumulator whose rows could be shared out: expected a tl.dot on tiles of 64 rows"
            )
        for dot in dots:
            rows = self.shapes[dot.result][0]
            warps = int(module.operation.attributes["ttg.num-warps"].split()[0])
            if rows % (parts * warps * _ROWS_OF_A_WARP):
                raise self.refuse(
                    dot, f"{rows} rows over {parts} consumers of {warps} warps: expected a multiple of "
                    f"{warps * _ROWS_OF_A_WARP} rows each",
                )  # fmt: skip
            self._force(dot, 0)
        self._settle()
        self._share_boxes()
        self._find_boxes()
        self._refuse_repeats()
        self.suffix = "_rows"
        while any(self.suffix in name for name in (*self.definition, *module.function.tokens)):
            self.suffix += "_"

    def refuse(self, operation: IrOperation, reason: str) -> CannotPlan:
        return CannotPlan(reason, operation.name.strip('"'), source_line(self.module, operation))

    def _read(self, operation: IrOperation) -> None:
        for name in operation.defined:
            self.definition[name] = operation
        self.shapes |= result_shapes(operation)
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            yielded = loop.yielded if loop.carried else []
            for (inside, initial, _, result), value in zip(loop.carried, yielded, strict=True):
                self.definition[inside] = operation
                self._tie([inside, initial, result, value])
        elif operation.name == "scf.while":
            repeat = control.read_while(operation)
            for (inside, initial, _), value in zip(repeat.carried, control.yielded(repeat.after), strict=False):
                self.definition[inside] = operation
                self._tie([inside, initial, value])
            for (inside, _, result), value in zip(repeat.handed, repeat.condition.operands[1:], strict=True):
                self.definition[inside] = operation
                self._tie([inside, value, result])
        elif operation.name == "scf.if":
            branch = control.read_branch(operation)
            sides = [control.yielded(side) for side in (branch.then, branch.otherwise) if side.operations]
            for i, (_, result) in enumerate(branch.results):
                self._tie([result, *(side[i] for side in sides)])
        for region in operation.regions:
            for inner in region.operations:
                self._read(inner)
        if operation.name not in (*TIED, *ENDS, "tt.func"):
            for name in tensor_operands(operation, self.shapes):
                self.users.setdefault(name, []).append(operation)

    def _tie(self, names: list[str]) -> None:
        for name in names:
            self.ties.setdefault(name, []).append(names)

    def _check_effects(self) -> None:
        for operation in self.module.function.walk():
            if operation.name in ("tt.func", "tt.return", *ENDS, *TIED):
                continue
            if operation.regions:
                raise self.refuse(operation, "control flow that is not known: its rows are not followed")
            if effect(operation) == "other":
                raise self.refuse(operation, "it may act on the whole block, whose threads would be split")

    def rule(self, operation: IrOperation) -> Rule:
        found = rule(operation, self.shapes)
        if found is None:
            raise self.refuse(operation, "its rows cannot be told apart, and it works on the rows of an accumulator")
        return found

    def once(self, value: str) -> bool:
        """Whether ``value`` exists in one form only."""
        operation = self.definition[value]
        return operation.name in (*TIED, WGMMA) or effect(operation) == "once"

    def _fix(self, value: str, dim: int) -> None:
        """``value`` is split along ``dim``, in every use of it."""
        if value not in self.fixed:
            self.fixed[value] = dim
            self._fresh.append(value)
        elif self.fixed[value] != dim:
            raise self.refuse(self.definition[value], "its rows are needed along two of its dimensions")

    def _follow(self, value: str) -> None:
        dim = self.fixed[value]
        for names in self.ties.get(value, ()):
            for name in names:
                self._ask(name, dim)
        for user in self.users.get(value, ()):
            names = tensor_operands(user, self.shapes)
            for name, axes in zip(names, self.rule(user).operands, strict=True):
                if name == value:
                    axis = axes[dim]
                    if axis is None:
                        raise self.refuse(user, f"it combines the rows of an accumulator (dimension {dim} of {value})")
                    self._force(user, axis)
        if self.definition[value].name not in TIED:
            operation = self.definition[value]
            axis = self.axis(operation, value, dim)
            assert axis is not None
            self._force(operation, axis)

    def axis(self, operation: IrOperation, value: str, dim: int | None) -> int | None:
        """The axis along which ``operation`` is split to give ``value`` by rows along ``dim``."""
        if dim is None:
            return None
        results = [name for name in operation.defined if name in self.shapes]
        axis = self.rule(operation).results[results.index(value)][dim]
        if axis is None:
            raise self.refuse(operation, f"dimension {dim} of its result is wanted by rows, which it cannot give")
        return axis

    def _force(self, operation: IrOperation, axis: int) -> None:
        """``operation`` is split along ``axis`` and exists in no other form."""
        if self.forced.setdefault(id(operation), axis) != axis or self.asked.get(id(operation), {axis}) != {axis}:
            raise self.refuse(operation, "it is wanted by rows along two of its dimensions")
        self._split_operands(operation, axis)
        names = [name for name in operation.defined if name in self.shapes]
        for name, axes in zip(names, self.rule(operation).results, strict=True):
            if axis in axes:
                self._fix(name, axes.index(axis))

    def _ask(self, value: str, dim: int) -> None:
        """Some operation reads ``value`` by rows along ``dim``."""
        if value in self.fixed or self.once(value):
            self._fix(value, dim)
            return
        operation = self.definition[value]
        axis = self.axis(operation, value, dim)
        assert axis is not None
        self._split_operands(operation, axis)

    def _split_operands(self, operation: IrOperation, axis: int) -> None:
        asked = self.asked.setdefault(id(operation), set())
        if axis in asked:
            return
        asked.add(axis)
        if id(operation) in self.forced and self.forced[id(operation)] != axis:
            raise self.refuse(operation, "it is wanted by rows along two of its dimensions")
        for name, axes in zip(tensor_operands(operation, self.shapes), self.rule(operation).operands, strict=True):
            if axis in axes:
                self._ask(name, axes.index(axis))
        for name, axes in zip(operation.defined, self.rule(operation).results, strict=False):
            self._check_size(operation, self.shapes[name][axes.index(axis)] if axis in axes else 0)

    def _check_size(self, operation: IrOperation, size: int) -> None:
        rows = size // self.parts
        if size % self.parts or rows & (rows - 1):
            raise self.refuse(operation, f"{size} rows over {self.parts} consumers: expected a power of two each")

    def _settle(self) -> None:
        while self._fresh:
            self._follow(self._fresh.popleft())

    def _share_boxes(self) -> None:
        """What does not depend on rows (a tile of zeros) is stored by rows, too, where its descriptor has to be
        split."""
        writes = [operation for operation in self.module.function.walk() if operation.name in BOXED_WRITES]
        for stored in [operation for operation in writes if id(operation) in self.forced]:
            dim = self.rule(stored).printed[0].index(self.forced[id(stored)])
            for other in writes:
                axis = self.rule(other).printed[0][dim]
                if other.operands[0] == stored.operands[0] and id(other) not in self.forced and axis is not None:
                    self._force(other, axis)
        self._settle()

    def _find_boxes(self) -> None:
        """The dimension along which each descriptor's box is split, by what is stored through it."""
        for operation in self.module.function.walk():
            if not operation.name.startswith("tt.descriptor_"):
                continue
            name, dim = operation.operands[0], None
            axis = self.forced.get(id(operation)) if operation.name != TMA_LOAD else None
            if axis is not None:
                dim = self.rule(operation).printed[0].index(axis)
                origin = self.definition.get(name)
                if origin is not None and origin.name != "tt.make_tensor_descriptor":
                    raise self.refuse(operation, f"its descriptor comes from {origin.name}, so its box stays whole")
            if self.boxes.setdefault(name, dim) != dim:
                raise self.refuse(operation, f"descriptor {name} is used both for whole tiles and for a store by rows")

    def _refuse_repeats(self) -> None:
        for operation in self.module.function.walk():
            if operation.name in ATOMICS and id(operation) not in self.forced:
                raise self.refuse(operation, "it updates memory with what all consumers hold, so each would repeat it")
