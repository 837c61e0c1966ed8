"""The data partition: a kernel's tile shared out by rows among consumers of one warp group each.

Every wgmma accumulator is cut along its rows (dimension 0), and the cut followed through the function. A value that is
carried by a loop, returned by a branch, accumulated or loaded by TMA exists once, so it is cut one way or not at all,
and what is computed from it is cut too. All else (ranges, splats, addresses, masks, what is read through pointers) is
computed in the form that is asked for, twice where it is asked for both as rows and as columns. Rows enter in four
places only: a range starts at the consumer's first row, a TMA load's slot is read from that row on, a TMA store writes
there, through a descriptor whose box has that many rows; scalars are left alone.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace

from warpplan.kernels.compiler import control
from warpplan.kernels.compiler.axes import ATOMICS, BOXED_WRITES, Rule, effect, rule, tensor_operands
from warpplan.kernels.compiler.errors import CannotPlan
from warpplan.kernels.compiler.ir import (
    Module,
    Operation,
    Region,
    is_value,
    parse_operation,
    split_list,
    tokenize,
)
from warpplan.kernels.compiler.locations import source_line
from warpplan.kernels.compiler.names import unique_names
from warpplan.kernels.compiler.rings import LOAD, NUMBER, ROWS, number_loads
from warpplan.kernels.compiler.shapes import Printed, operand_list, result_shapes, shapes_in, sliced

DOT = "ttng.warp_group_dot"
_ROWS_OF_A_WARP = 16
_TIED = ("scf.for", "scf.if")


def split(module: Module, parts: int) -> tuple[Module, ...]:
    """One module for each of ``parts`` consumers, whose kernel computes rows [c·M/parts, (c+1)·M/parts) of every tile.

    ``module`` is a kernel at the cut. TMA loads are numbered in the order of the program (``warpplan.load``); a load
    whose rows are cut has the smaller result and ``warpplan.rows = array<i64: dimension, first, rows>``, while its
    descriptor and coordinates remain those of the whole tile, which is loaded once for all. The descriptor of a store
    that is cut has the smaller box, in the function's signature too. What is stored whole is stored by consumer 0.
    Names are unique in each kernel and mean the same in all of them.

    Raises :class:`CannotPlan` with the operation and its source line where rows cannot be told apart.
    """
    module = Module(module.aliases, copy.deepcopy(module.operation), module.locations)
    functions = module.operation.regions[0].operations
    at = functions.index(module.function)
    functions[at] = unique_names(functions[at])
    if not any(NUMBER in operation.attributes for operation in functions[at].walk() if operation.name == LOAD):
        number_loads(functions[at])
    if parts == 1:
        return (module,)
    cuts = _Cuts(module, parts)
    clones = []
    for consumer in range(parts):
        clone = Module(list(module.aliases), copy.copy(module.operation), module.locations)
        body = Region(list(functions), module.operation.regions[0].label)
        body.operations[at] = _Clone(cuts, consumer).function(functions[at])
        clone.operation.parts = [body if isinstance(p, Region) else p for p in module.operation.parts]
        clones.append(clone)
    return tuple(clones)


class _Cuts:
    """Along which dimension each value is cut: ``fixed`` for those that exist in one form, and for the rest the set of
    axes, None among them, in which an operation is wanted."""

    def __init__(self, module: Module, parts: int) -> None:
        self.module, self.parts = module, parts
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.definition: dict[str, Operation] = {}
        self.users: dict[str, list[Operation]] = {}
        self.ties: dict[str, list[list[str]]] = {}
        self.fixed: dict[str, int] = {}
        self.forced: dict[int, int] = {}
        self.asked: dict[int, set[int]] = {}
        self.boxes: dict[str, int | None] = {}
        self._fresh: deque[str] = deque()
        self._read(module.function)
        self._check_effects()
        dots = [operation for operation in module.function.walk() if operation.name == DOT]
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
        while self._fresh:
            self._follow(self._fresh.popleft())
        self._find_boxes()
        self._refuse_repeats()
        taken = {name for operation in module.walk() for name in (*operation.defined, *operation.operands)}
        self.suffix = next(s for n in range(len(taken) + 1) if not any((s := f"_rows{n or ''}_") in t for t in taken))
        self.shifts = 0

    def refuse(self, operation: Operation, reason: str) -> CannotPlan:
        return CannotPlan(reason, operation.name.strip('"'), source_line(self.module, operation))

    def _read(self, operation: Operation) -> None:
        for name in operation.defined:
            self.definition[name] = operation
        self.shapes |= result_shapes(operation)
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            for (inside, initial, _, result), value in zip(
                loop.carried, loop.yielded if loop.carried else [], strict=True
            ):
                self.definition[inside] = operation
                self._tie([inside, initial, result, value])
        elif operation.name == "scf.if":
            branch = control.read_branch(operation)
            sides = [control.yielded(side) for side in (branch.then, branch.otherwise) if side.operations]
            for i, (_, result) in enumerate(branch.results):
                self._tie([result, *(side[i] for side in sides)])
        for region in operation.regions:
            for inner in region.operations:
                self._read(inner)
        if operation.name not in (*_TIED, "scf.yield", "tt.func"):
            for name in tensor_operands(operation, self.shapes):
                self.users.setdefault(name, []).append(operation)

    def _tie(self, names: list[str]) -> None:
        for name in names:
            self.ties.setdefault(name, []).append(names)

    def _check_effects(self) -> None:
        for operation in self.module.function.walk():
            if operation.name not in ("tt.func", "tt.return", "scf.yield", *_TIED) and effect(operation) == "other":
                raise self.refuse(operation, "it may act on the whole block, whose threads would be split")

    def rule(self, operation: Operation) -> Rule:
        found = rule(operation, self.shapes)
        if found is None:
            raise self.refuse(operation, "its rows cannot be told apart, and it works on the rows of an accumulator")
        return found

    def once(self, value: str) -> bool:
        """Whether ``value`` exists in one form only."""
        operation = self.definition[value]
        return operation.name in (*_TIED, DOT) or effect(operation) == "once"

    def _fix(self, value: str, dim: int) -> None:
        """``value`` is cut along ``dim``, in every use of it."""
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
        if self.definition[value].name not in _TIED:
            operation = self.definition[value]
            axis = self.axis(operation, value, dim)
            assert axis is not None
            self._force(operation, axis)

    def axis(self, operation: Operation, value: str, dim: int | None) -> int | None:
        """The axis along which ``operation`` is cut to give ``value`` by rows along ``dim``."""
        if dim is None:
            return None
        results = [name for name in operation.defined if name in self.shapes]
        axis = self.rule(operation).results[results.index(value)][dim]
        if axis is None:
            raise self.refuse(operation, f"dimension {dim} of its result is wanted by rows, which it cannot give")
        return axis

    def _force(self, operation: Operation, axis: int) -> None:
        """``operation`` is cut along ``axis`` and exists in no other form."""
        if self.forced.setdefault(id(operation), axis) != axis or self.asked.get(id(operation), {axis}) != {axis}:
            raise self.refuse(operation, "it is wanted by rows along two of its dimensions")
        self._cut_operands(operation, axis)
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
        self._cut_operands(operation, axis)

    def _cut_operands(self, operation: Operation, axis: int) -> None:
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

    def _check_size(self, operation: Operation, size: int) -> None:
        rows = size // self.parts
        if size % self.parts or rows & (rows - 1):
            raise self.refuse(operation, f"{size} rows over {self.parts} consumers: expected a power of two each")

    def _find_boxes(self) -> None:
        """The dimension along which each descriptor's box is cut, by what is stored through it."""
        for operation in self.module.function.walk():
            if not operation.name.startswith("tt.descriptor_"):
                continue
            name, dim = operation.operands[0], None
            axis = self.forced.get(id(operation)) if operation.name != LOAD else None
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


class _Clone:
    """The kernel of one ``consumer``: whatever acts, and from there backwards what it needs, in the form it needs."""

    def __init__(self, cuts: _Cuts, consumer: int) -> None:
        self.cuts, self.consumer = cuts, consumer
        self.wanted: dict[int, set[int | None]] = {}
        self._want(cuts.module.function, [])

    def function(self, function: Operation) -> Operation:
        new = Operation(function.name, function.results, list(function.parts), function.location)
        for value, dim in self.cuts.boxes.items():
            if dim is not None and value not in self.cuts.definition:
                at = new.parts.index(value)
                self._slice(new, [p for p in shapes_in(new.parts) if p.at > at][:1], [dim])
        new.parts = [self._region(p, []) if isinstance(p, Region) else p for p in new.parts]
        return new

    def _want(self, outer: Operation, returned: list[int | None]) -> None:
        for region in outer.regions:
            for operation in region.operations:
                if operation.name in _TIED:
                    dims = self._carried(operation)
                    for name, dim in self._header(operation, dims):
                        self._want_value(name, dim)
                    self._want(operation, dims)
                elif operation.name == "scf.yield":
                    for name, dim in zip(operation.operands, returned, strict=True):
                        self._want_value(name, dim)
                elif (not operation.results or effect(operation)) and not self._left_out(operation):
                    self._want_form(operation, self.cuts.forced.get(id(operation)))

    def _left_out(self, operation: Operation) -> bool:
        """What is stored whole is stored once."""
        return self.consumer > 0 and effect(operation) == "store" and id(operation) not in self.cuts.forced

    def _want_value(self, value: str, dim: int | None) -> None:
        operation = self.cuts.definition.get(value)
        if operation is not None and operation.name not in _TIED:
            self._want_form(operation, self.cuts.axis(operation, value, dim))

    def _want_form(self, operation: Operation, axis: int | None) -> None:
        forms = self.wanted.setdefault(id(operation), set())
        if axis not in forms:
            forms.add(axis)
            for value, dim in self._uses(operation, axis):
                self._want_value(value, dim)

    def _uses(self, operation: Operation, axis: int | None) -> list[tuple[str, int | None]]:
        """Its operands, each with the dimension along which it is read by rows."""
        shapes = self.cuts.shapes
        cut = iter(() if axis is None else self.cuts.rule(operation).operands)
        uses = []
        for value in operand_list(operation):
            axes = next(cut, ()) if value in shapes else ()
            uses.append((value, axes.index(axis) if axis is not None and axis in axes else None))
        return uses

    def _carried(self, operation: Operation) -> list[int | None]:
        """The dimension along which each value that a loop carries, or a branch returns, is cut."""
        return [self.cuts.fixed.get(name) for name in operation.defined]

    def _header(self, operation: Operation, dims: list[int | None]) -> list[tuple[str, int | None]]:
        """The values that the head of a loop or branch names, in order; a loop's pairs are (inside, initial)."""
        if operation.name == "scf.if":
            return [(name, None) for name in operation.operands]
        first = len(operation.operands) - 2 * len(dims)
        return list(zip(operation.operands, [None] * first + [d for dim in dims for d in (None, dim)], strict=True))

    def _region(self, region: Region, returned: list[int | None]) -> Region:
        new = Region(label=region.label)
        for operation in region.operations:
            if operation.name in _TIED:
                dims = self._carried(operation)
                copied = self._renamed(operation, self._header(operation, dims))
                self._slice_carried(copied, dims)
                copied.parts = [self._region(p, dims) if isinstance(p, Region) else p for p in copied.parts]
                new.operations.append(copied)
            elif operation.name == "scf.yield":
                copied = self._renamed(operation, list(zip(operation.operands, returned, strict=True)))
                self._slice_carried(copied, returned)
                new.operations.append(copied)
            else:
                forms = self.wanted.get(id(operation), set())
                for axis in sorted(forms, key=lambda form: -1 if form is None else form):
                    new.operations += self._form(operation, axis)
        return new

    def _form(self, operation: Operation, axis: int | None) -> list[Operation]:
        new = self._renamed(operation, self._uses(operation, axis))
        new.results = tuple(self._name(result, operation, axis) for result in operation.results)
        if operation.name == "tt.make_tensor_descriptor":
            self._slice(new, shapes_in(new.parts), [self.cuts.boxes.get(operation.result)])
        if axis is None:
            return [new]
        printed = self.cuts.rule(operation).printed
        if operation.name == "tt.make_range":
            self._shift_range(new)
        elif operation.name == LOAD:
            dim = printed[1].index(axis)
            first, rows = self._rows(self.cuts.shapes[operation.result][dim])
            new.set_attribute(ROWS, f"array<i64: {dim}, {first}, {rows}>")
        before = []
        if operation.name in BOXED_WRITES:
            before = self._shift_box(new, printed[0].index(axis), shapes_in(new.parts)[0].shape)
        self._slice(new, shapes_in(new.parts), [axes.index(axis) if axis in axes else None for axes in printed])
        return [*before, new]

    def _name(self, result: str, operation: Operation, axis: int | None) -> str:
        """The name of the whole form is the value's own, and so is that of an only form."""
        if axis is None or len(self.wanted[id(operation)]) == 1:
            return result
        name, mark, count = result.partition(":")
        return f"{name}{self.cuts.suffix}{axis}{mark}{count}"

    def _named(self, value: str, dim: int | None) -> str:
        operation = self.cuts.definition.get(value)
        if operation is None or operation.name in _TIED:
            return value
        name, mark, number = value.partition("#")
        return self._name(name, operation, self.cuts.axis(operation, value, dim)) + mark + number

    def _renamed(self, operation: Operation, uses: list[tuple[str, int | None]]) -> Operation:
        """A copy that reads the forms of its operands; regions are left as they are."""
        names = iter([self._named(value, dim) for value, dim in uses])
        parts = [next(names, p) if isinstance(p, str) and is_value(p) else p for p in operation.parts]
        return Operation(operation.name, operation.results, parts, operation.location)

    def _rows(self, size: int) -> tuple[int, int]:
        """First row of the consumer and how many it has, of ``size``."""
        rows = size // self.cuts.parts
        return self.consumer * rows, rows

    def _slice(self, operation: Operation, printed: list[Printed], dims: list[int | None]) -> None:
        for shape, dim in zip(printed, dims, strict=True):
            if dim is not None:
                token = operation.parts[shape.at]
                operation.parts[shape.at] = sliced(str(token), dim, self._rows(shape.shape[dim])[1])

    def _slice_carried(self, operation: Operation, dims: list[int | None]) -> None:
        """Types of a head or a terminator; only some of what is carried has a shape, and what is cut always has."""
        text = operation.signature if operation.name == "scf.yield" else "(" + _results_text(operation) + ")"
        kinds = split_list(text.removeprefix("(").removesuffix(")"))
        shaped = [dim for kind, dim in zip(kinds, dims, strict=True) if shapes_in(list(tokenize(kind)))]
        self._slice(operation, shapes_in(operation.parts), shaped)

    def _shift_range(self, operation: Operation) -> None:
        start = int(operation.attributes["start"].split()[0])
        first, rows = self._rows(int(operation.attributes["end"].split()[0]) - start)
        operation.set_attribute("start", f"{start + first} : i32")
        operation.set_attribute("end", f"{start + first + rows} : i32")

    def _shift_box(self, operation: Operation, dim: int, box: tuple[int, ...]) -> list[Operation]:
        """The consumer's first row added to the coordinate of ``dim``; what computes it."""
        first, _ = self._rows(box[dim])
        if not first:
            return []
        opening = operation.parts.index("[")
        at = [i for i, p in enumerate(operation.parts) if i > opening and isinstance(p, str) and is_value(p)][dim]
        self.cuts.shifts += 1
        stem = f"%rows{self.cuts.suffix}{self.cuts.shifts}"
        texts = (
            f"{stem}c = arith.constant {first} : i32",
            f"{stem} = arith.addi {operation.parts[at]}, {stem}c : i32",
        )
        operation.parts[at] = stem
        return [replace(parse_operation(text), location=operation.location) for text in texts]


def _results_text(operation: Operation) -> str:
    loop = operation.name == "scf.for"
    kinds = [kind for _, _, kind, _ in control.read_loop(operation).carried] if loop else []
    return ", ".join(kinds or [kind for kind, _ in ([] if loop else control.read_branch(operation).results)])
