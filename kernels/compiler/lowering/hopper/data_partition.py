"""The data partition: a kernel's tile shared out by rows among consumers of one warp group each.

Along which dimension a value is split is :mod:`~...analysis.row_split`'s to say; here the function is written out for
one consumer. What may be computed again (ranges, splats, addresses, masks, what is read through pointers) is written in
each form that is asked for, twice where it is asked for both as rows and as columns. Rows enter in three places only: a
range starts at the consumer's first row, a TMA load's slot is read from that row on, and a TMA store writes there,
through a descriptor whose box has that many rows. Scalars are left alone, so that a row offset which a load and a store
share cannot be shifted twice.

The slot of a load may be several swizzle atoms wide (rows of more than 128 bytes): Triton 3.6.0 and 3.9.0 address the
rows of a ``memdesc_subslice`` with the whole slot's distance between atoms, as read in the LLVM IR of both.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.axes import BOXED_WRITES, effect
from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, RING_LOADS
from warpplan.kernels.compiler.analysis.row_split import ENDS, TIED, RowSplit
from warpplan.kernels.compiler.analysis.value_flow import definitions, origins
from warpplan.kernels.compiler.lowering.hopper.load_rings import NUMBER, ROWS, number_loads
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.axis_hints import shorten_hints
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, is_value, split_list, tokenize
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.printed_shapes import Printed, operand_list, shapes_in, sliced


def split(module: Module, parts: int) -> tuple[Module, ...]:
    """One module for each of ``parts`` consumers, whose kernel computes rows [c·M/parts, (c+1)·M/parts) of every tile.

    ``module`` is a kernel at the cut. TMA loads are numbered in the order of the program (``warpplan.load``); a load
    whose rows are split has the smaller result and ``warpplan.rows = array<i64: dimension, first, rows>``, while its
    descriptor and coordinates remain those of the whole tile, which is loaded once for all. The descriptor of a store
    that is split has the smaller box, in the function's signature too. What is stored whole is stored by consumer 0.
    Names are unique in each kernel and mean the same in all of them.

    Raises :class:`CannotPlan` with the operation and its source line where rows cannot be told apart.
    """
    module = Module(list(module.aliases), copy.deepcopy(module.operation), module.locations)
    functions = module.operation.regions[0].operations
    at = functions.index(module.function)
    functions[at] = unique_names(functions[at])
    if not any(NUMBER in operation.attributes for operation in functions[at].walk() if operation.name in RING_LOADS):
        number_loads(module)
    if parts == 1:
        return (module,)
    row_split = RowSplit(module, parts)
    clones = [_Clone(row_split, consumer) for consumer in range(parts)]
    _refuse_races(row_split, clones)
    modules = []
    for clone in clones:
        body = Region(list(functions), module.operation.regions[0].label)
        body.operations[at] = clone.function(functions[at])
        outer = copy.copy(module.operation)
        outer.parts = [body if isinstance(part, Region) else part for part in outer.parts]
        modules.append(Module(list(module.aliases), outer, module.locations))
    return tuple(modules)


def _refuse_races(row_split: RowSplit, clones: list[_Clone]) -> None:
    """Consumers do not wait for one another: none may read whole what another writes, and all give back every slot."""
    operations = list(row_split.module.function.walk())
    defined = definitions(row_split.module.function)
    stores = [operation for operation in operations if effect(operation) == "store" and operation.operands]
    written = {base for store in stores for base in origins(store.operands[0], defined)}
    for operation in operations:
        forms = [clone.wanted.get(id(operation), set()) for clone in clones]
        if operation.name == "tt.load" and any(None in f for f in forms):
            both = written & origins(operation.operands[0], defined)
            if both:
                what = ", ".join(sorted(both))
                raise row_split.refuse(
                    operation, f"it reads whole what is also written ({what}), by another consumer perhaps"
                )
        if operation.name in RING_LOADS and len({operation.result in clone.read for clone in clones}) > 1:
            raise row_split.refuse(
                operation, "only what consumer 0 stores depends on it; the others would not free its slot"
            )


class _Clone:
    """The kernel of one ``consumer``: whatever acts, and from there backwards what it needs, in the form it needs."""

    def __init__(self, row_split: RowSplit, consumer: int) -> None:
        self.row_split, self.consumer = row_split, consumer
        self.wanted: dict[int, set[int | None]] = {}
        self.read: set[str] = set()
        self.shifts = 0
        self._want(row_split.module.function, _Dims())

    def function(self, function: IrOperation) -> IrOperation:
        new = IrOperation(function.name, function.results, list(function.parts), function.location)
        for value, dim in self.row_split.boxes.items():
            if dim is not None and value not in self.row_split.definition:
                at = new.parts.index(value)
                self._slice(new, [p for p in shapes_in(new.parts) if p.at > at][:1], [dim])
        new.parts = [self._region(p, _Dims()) if isinstance(p, Region) else p for p in new.parts]
        return new

    def _want(self, outer: IrOperation, returned: _Dims) -> None:
        for region in outer.regions:
            for operation in region.operations:
                if operation.name in TIED:
                    dims = self._dims(operation)
                    for name, dim in self._header(operation, dims):
                        self._want_value(name, dim)
                    self._want(operation, dims)
                elif operation.name in ENDS:
                    for name, dim in returned.of_ending(operation):
                        self._want_value(name, dim)
                elif (not operation.results or effect(operation)) and not self._left_out(operation):
                    self._want_form(operation, self.row_split.forced.get(id(operation)))

    def _left_out(self, operation: IrOperation) -> bool:
        """What is stored whole is stored once."""
        return self.consumer > 0 and effect(operation) == "store" and id(operation) not in self.row_split.forced

    def _want_value(self, value: str, dim: int | None) -> None:
        self.read.add(value)
        operation = self.row_split.definition.get(value)
        if operation is not None and operation.name not in TIED:
            self._want_form(operation, self.row_split.axis(operation, value, dim))

    def _want_form(self, operation: IrOperation, axis: int | None) -> None:
        forms = self.wanted.setdefault(id(operation), set())
        if axis not in forms:
            forms.add(axis)
            for value, dim in self._uses(operation, axis):
                self._want_value(value, dim)

    def _uses(self, operation: IrOperation, axis: int | None) -> list[tuple[str, int | None]]:
        """Its operands, each with the dimension along which it is read by rows."""
        shapes = self.row_split.shapes
        operand_axes = iter(() if axis is None else self.row_split.rule(operation).operands)
        uses = []
        for value in operand_list(operation):
            axes = next(operand_axes, ()) if value in shapes else ()
            uses.append((value, axes.index(axis) if axis is not None and axis in axes else None))
        return uses

    def _dims(self, operation: IrOperation) -> _Dims:
        """The dimensions along which what a loop carries, or a branch returns, is split."""
        returned = tuple(self.row_split.fixed.get(name) for name in operation.defined)
        if operation.name != "scf.while":
            return _Dims(returned)
        carried = tuple(self.row_split.fixed.get(inside) for inside, *_ in control.read_while(operation).carried)
        return _Dims(carried, returned)

    def _header(self, operation: IrOperation, dims: _Dims) -> list[tuple[str, int | None]]:
        """The values that the head of a loop or branch names, in order; a loop's pairs are (inside, initial)."""
        if operation.name == "scf.if":
            return [(name, None) for name in operation.operands]
        first = len(operation.operands) - 2 * len(dims.yielded)
        read = [None] * first + [d for dim in dims.yielded for d in (None, dim)]
        return list(zip(operation.operands, read, strict=True))

    def _region(self, region: Region, returned: _Dims) -> Region:
        label: list[str | Region] = list(tokenize(region.label))
        if label:
            self._slice_shaped(label, _labelled_types(region), returned.handed)
        new = Region(label="".join(map(str, label)))
        for operation in region.operations:
            if operation.name in TIED:
                dims = self._dims(operation)
                copied = self._renamed(operation, self._header(operation, dims))
                self._slice_shaped(copied.parts, _carried_types(operation), dims.yielded + dims.handed)
                copied.parts = [self._region(p, dims) if isinstance(p, Region) else p for p in copied.parts]
                new.operations.append(copied)
            elif operation.name in ENDS:
                uses = returned.of_ending(operation)
                copied = self._renamed(operation, uses)
                kinds = [kind for _, kind in control.handed(operation)]
                self._slice_shaped(copied.parts, kinds, tuple(dim for _, dim in uses[len(uses) - len(kinds) :]))
                new.operations.append(copied)
            else:
                forms = self.wanted.get(id(operation), set())
                for axis in sorted(forms, key=lambda form: -1 if form is None else form):
                    new.operations += self._form(operation, axis)
        return new

    def _form(self, operation: IrOperation, axis: int | None) -> list[IrOperation]:
        new = self._renamed(operation, self._uses(operation, axis))
        new.results = tuple(self._name(result, operation, axis) for result in operation.results)
        if operation.name == "tt.make_tensor_descriptor":
            self._slice(new, shapes_in(new.parts), [self.row_split.boxes.get(operation.result)])
        if axis is None:
            return [new]
        printed = self.row_split.rule(operation).printed
        if operation.name == "tt.make_range":
            self._shift_range(new)
        elif operation.name in RING_LOADS:
            dim = printed[operation.name != COPY_LOAD].index(axis)
            first, rows = self._rows(self.row_split.shapes[operation.result][dim])
            new.set_attribute(ROWS, f"array<i64: {dim}, {first}, {rows}>")
        before = []
        if operation.name in BOXED_WRITES:
            before = self._shift_box(new, printed[0].index(axis), shapes_in(new.parts)[0].shape)
        self._slice(new, shapes_in(new.parts), [axes.index(axis) if axis in axes else None for axes in printed])
        for result, axes in zip(operation.defined, self.row_split.rule(operation).results, strict=False):
            if axis in axes:
                dim = axes.index(axis)
                shorten_hints(new, dim, self._rows(self.row_split.shapes[result][dim])[1])
        return [*before, new]

    def _name(self, result: str, operation: IrOperation, axis: int | None) -> str:
        """The name of the whole form is the value's own, and so is that of an only form."""
        if axis is None or len(self.wanted[id(operation)]) == 1:
            return result
        name, mark, count = result.partition(":")
        stem = f"%v{name[1:]}" if name[1].isdigit() else name  # MLIR takes a name that starts with a digit for a number
        return f"{stem}{self.row_split.suffix}{axis}{mark}{count}"

    def _named(self, value: str, dim: int | None) -> str:
        operation = self.row_split.definition.get(value)
        if operation is None or operation.name in TIED:
            return value
        name, mark, number = value.partition("#")
        return self._name(name, operation, self.row_split.axis(operation, value, dim)) + mark + number

    def _renamed(self, operation: IrOperation, uses: list[tuple[str, int | None]]) -> IrOperation:
        """A copy that reads the forms of its operands; regions are left as they are."""
        names = iter([self._named(value, dim) for value, dim in uses])
        parts = [next(names, p) if isinstance(p, str) and is_value(p) else p for p in operation.parts]
        return IrOperation(operation.name, operation.results, parts, operation.location)

    def _rows(self, size: int) -> tuple[int, int]:
        """First row of the consumer and how many it has, of ``size``."""
        rows = size // self.row_split.parts
        return self.consumer * rows, rows

    def _slice(self, operation: IrOperation, printed: list[Printed], dims: list[int | None]) -> None:
        self._slice_at(operation.parts, printed, dims)

    def _slice_at(self, parts: list[str | Region], printed: list[Printed], dims: list[int | None]) -> None:
        for shape, dim in zip(printed, dims, strict=True):
            if dim is not None:
                parts[shape.at] = sliced(str(parts[shape.at]), dim, self._rows(shape.shape[dim])[1])

    def _slice_shaped(self, parts: list[str | Region], kinds: list[str], dims: tuple[int | None, ...]) -> None:
        """The types ``kinds`` that ``parts`` prints; only some have a shape, and what is split always has."""
        shaped = [dim for kind, dim in zip(kinds, dims, strict=True) if shapes_in(list(tokenize(kind)))]
        self._slice_at(parts, shapes_in(parts), shaped)

    def _shift_range(self, operation: IrOperation) -> None:
        start = int(operation.attributes["start"].split()[0])
        first, rows = self._rows(int(operation.attributes["end"].split()[0]) - start)
        operation.set_attribute("start", f"{start + first} : i32")
        operation.set_attribute("end", f"{start + first + rows} : i32")

    def _shift_box(self, operation: IrOperation, dim: int, box: tuple[int, ...]) -> list[IrOperation]:
        """The consumer's first row added to the coordinate of ``dim``; what computes it."""
        first, _ = self._rows(box[dim])
        if not first:
            return []
        opening = operation.parts.index("[")
        at = [i for i, p in enumerate(operation.parts) if i > opening and isinstance(p, str) and is_value(p)][dim]
        self.shifts += 1
        stem = f"%from{self.row_split.suffix}{self.shifts}"
        texts = (
            f"{stem}c = arith.constant {first} : i32",
            f"{stem} = arith.addi {operation.parts[at]}, {stem}c : i32",
        )
        operation.parts[at] = stem
        return [replace(parse_operation(text), location=operation.location) for text in texts]


@dataclass(frozen=True)
class _Dims:
    """The dimension along which each value is split that a region yields, and each that a condition hands on."""

    yielded: tuple[int | None, ...] = ()
    handed: tuple[int | None, ...] = ()

    def of_ending(self, last: IrOperation) -> list[tuple[str, int | None]]:
        """What the terminator ``last`` reads."""
        dims = (None, *self.handed) if last.name == "scf.condition" else self.yielded
        return list(zip(last.operands, dims, strict=True))


def _carried_types(operation: IrOperation) -> list[str]:
    """The types that the head of a loop or branch prints."""
    if operation.name == "scf.for":
        return [kind for _, _, kind, _ in control.read_loop(operation).carried]
    if operation.name == "scf.while":
        loop = control.read_while(operation)
        return [kind for *_, kind in loop.carried] + [kind for _, kind, _ in loop.handed]
    return [kind for kind, _ in control.read_branch(operation).results]


def _labelled_types(region: Region) -> list[str]:
    """The types of the arguments of the region's block."""
    inside = region.label.partition("(")[2].rpartition(")")[0]
    return [entry.partition(":")[2].partition(" loc(")[0].strip() for entry in split_list(inside)]
