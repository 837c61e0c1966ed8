"""A kernel's loads through pointers written as TMA loads, in Triton's own IR before layouts are chosen.

    %a = tt.load %pointers, %mask      ──>   %d = tt.make_tensor_descriptor %a_ptr, [%M, %K], [%stride, 1]   once
                                             %a = tt.descriptor_load %d[%row, %column]

From there on the kernel is one that was written with device-made descriptors, to Triton's passes and to ours. The
descriptor is made as far out as what it is made of is known: a program that walks over tiles makes most of them once.
Descriptors cannot come from the host: another argument would be another kernel to whoever launches it.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.value_flow import Definition
from warpplan.kernels.compiler.pointers.outer_dimensions import ALIGNMENT, OuterDimension
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.scalars.scalar_writer import MOST_I32, ScalarWriter
from warpplan.kernels.compiler.pointers.tma_loads import Dimension, TmaLoad, pointer_loads
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations

OUTSIDE = 1 << 30
"""A coordinate outside of every tensor: for one without any element, which no descriptor can have."""


@dataclass(frozen=True)
class Unchanged:
    """A load that stays as it is: ``load`` and ``loop`` are the source lines of the load and of the loop around it,
    ``operation`` and ``line`` what is at fault."""

    load: str
    loop: str
    reason: str
    operation: str
    line: str

    @property
    def told(self) -> str:
        """The reason, with what is at fault where that is elsewhere."""
        elsewhere = f" ({self.operation}, {self.line})" if self.line and self.line != self.load else ""
        return f"no TMA load can stand for it: {self.reason}{elsewhere}"


@dataclass(frozen=True)
class Described:
    """``text`` is the kernel with the loads of ``lines`` as TMA loads; ``least`` what integer arguments have to be at
    least for that, by name without ``%``; ``unchanged`` the candidates that stay as they are."""

    text: str
    lines: tuple[str, ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    unchanged: tuple[Unchanged, ...] = ()


def describe_loads(text: str, *, nested: bool) -> Described:
    """The TTIR ``text`` of a kernel with its pointer loads as TMA loads, each where that is proven: what stays is
    loaded by the consumers. ``nested``: this Triton prints a descriptor's block as a tensor (up to 3.7). Raises
    :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR` for text that Triton did not print."""
    module = parse(text)
    if not any(operation.name == "tt.load" for operation in module.function.walk()):
        return Described(text)
    function = unique_names(module.function)
    replace_function(module, function)
    loads, locations = pointer_loads(function), SourceLocations(module)
    unchanged = tuple(
        Unchanged(str(locations.of(r.load)), str(locations.of(r.loop)), r.reason, r.at.name, str(locations.of(r.at)))
        for r in loads.refused
    )
    if not loads.found:
        return Described(text, (), (), unchanged)
    writer = _LoadWriter(function, nested)
    for number, load in enumerate(loads.found):
        writer.write(load, f"%wp_tma{number}")
    least: dict[str, int] = {}
    for load in loads.found:
        for name, value in load.least:
            least[name[1:]] = max(value, least.get(name[1:], 0))
    lines = tuple(str(locations.of(load.load)) for load in loads.found)
    return Described(str(module), lines, tuple(sorted(least.items())), unchanged)


class _LoadWriter:
    def __init__(self, function: IrOperation, nested: bool) -> None:
        self.scalars, self.nested = ScalarReader(function), nested
        self.chains: dict[int, list[tuple[Region, IrOperation]]] = {}
        self.homes: dict[int, Region] = {}
        self._nest(function.regions[0], [])

    def _nest(self, region: Region, around: list[tuple[Region, IrOperation]]) -> None:
        for operation in region.operations:
            chain = [*around, (region, operation)]
            self.chains[id(operation)] = chain
            self.homes[id(operation)] = region
            for inner in operation.regions:
                self._nest(inner, chain)

    def write(self, load: TmaLoad, stem: str) -> None:
        """Replace ``load`` in place. Its result keeps its name."""
        chain = self.chains[id(load.load)]
        sizes = (load.rows, load.columns)
        made_of = (load.offset, load.stride, *(each.stride for each in load.outer), *(e for s in sizes for e in s.extents))
        made = ScalarWriter(self.scalars, f"{stem}_made", load.load.location)
        descriptor = self._descriptor(load, made)
        at = ScalarWriter(self.scalars, f"{stem}_at", load.load.location)
        place = ", ".join(
            [self._index(each, at, made) for each in load.outer] + [self._coordinate(size, at, made) for size in sizes]
        )
        shape, kind = (load.rows.size, load.columns.size), f"{load.rows.size}x{load.columns.size}x{load.element}"
        forms = [f"tensor<{kind}>"]
        region, before = chain[self._depth(chain, {load.base, *(name for each in made_of for name in each.names)})]
        _insert(region, before, made.out)
        # A box with dimensions of 1 around the two is loaded as the two alone.
        text = f"$ = tt.descriptor_load {descriptor}[{place}] : !tt.tensordesc<{self._block(load)}> -> tensor<{kind}>"
        tile = at.op(text)
        if load.turned:
            forms.append(f"tensor<{shape[1]}x{shape[0]}x{load.element}>")
            tile = at.op(f"$ = tt.trans {tile} {{order = array<i32: 1, 0>}} : {forms[0]} -> {forms[1]}")
        if len(load.shape) != len(shape):
            forms.append(f"tensor<{'x'.join(map(str, load.shape))}x{load.element}>")
            at.op(f"$ = tt.reshape {tile} : {forms[-2]} -> {forms[-1]}")
        at.out[-1].results = (load.load.result,)
        home, _ = chain[-1]
        _insert(home, load.load, at.out)
        home.operations[:] = [operation for operation in home.operations if operation is not load.load]

    def _descriptor(self, load: TmaLoad, out: ScalarWriter) -> str:
        base = load.base
        if load.offset.terms:
            pointer = f"!tt.ptr<{load.element}>"
            base = out.op(f"$ = tt.addptr {base}, {out.wide(load.offset)} : {pointer}, i64")
        endless = [out.constant(MOST_I32, "i32") for _ in load.outer]
        shape = ", ".join(endless + [self._size(size, out) for size in (load.rows, load.columns)])
        around = [self._outer_stride(each, load, out) for each in load.outer]
        strides = ", ".join([*around, out.wide(load.stride), out.constant(1, "i64")])
        block = f"<{self._block(load)}>"
        return out.op(f"$ = tt.make_tensor_descriptor {base}, [{shape}], [{strides}] : <{load.element}>, {block}")

    def _block(self, load: TmaLoad) -> str:
        """The descriptor's box as this Triton prints it."""
        kind = "x".join([*("1" for _ in load.outer), str(load.rows.size), str(load.columns.size), load.element])
        return f"tensor<{kind}>" if self.nested else kind

    def _outer_stride(self, outer: OuterDimension, load: TmaLoad, out: ScalarWriter) -> str:
        """The stride of a tensor map, which is above 0: of one that is 0 the index is 0, too."""
        stride = out.wide(outer.stride)
        if outer.positive:
            return stride
        least = out.constant(ALIGNMENT, "i64")
        return out.op(f"$ = arith.maxsi {stride}, {least} : i64")

    def _index(self, outer: OuterDimension, out: ScalarWriter, made: ScalarWriter) -> str:
        place = out.narrow(outer.index)
        if outer.positive:
            return place
        zero = made.constant(0, "i64")
        some = made.op(f"$ = arith.cmpi sgt, {made.wide(outer.stride)}, {zero} : i64")
        return out.op(f"$ = arith.select {some}, {place}, {out.constant(0, 'i32')} : i32")

    def _size(self, size: Dimension, out: ScalarWriter) -> str:
        if not size.extents:
            at = size.coordinate.value
            return out.constant(MOST_I32 if at is None else at + size.size, "i32")
        first, *more = (out.narrow(e) if self._positive(e) else out.extent(e) for e in size.extents)
        for extent in more:
            first = out.op(f"$ = arith.minsi {first}, {extent} : i32")
        return first

    def _coordinate(self, size: Dimension, out: ScalarWriter, made: ScalarWriter) -> str:
        place = out.narrow(size.coordinate)
        for extent in size.extents:
            if not self._positive(extent):
                wide, zero = out.wide(extent), out.constant(0, "i64")
                some = out.op(f"$ = arith.cmpi sgt, {wide}, {zero} : i64")
                place = out.op(f"$ = arith.select {some}, {place}, {out.constant(OUTSIDE, 'i32')} : i32")
        return place

    def _positive(self, extent: Polynomial) -> bool:
        """Whether ``extent`` is a number, or an argument that the launch checks."""
        if extent.value is not None:
            return extent.value > 0
        ((monomial, c), *more) = extent.terms
        return not more and c == 1 and len(monomial) == 1 and self.scalars.arguments.get(monomial[0]) == "i32"

    def _depth(self, chain: list[tuple[Region, IrOperation]], names: set[str]) -> int:
        """How far in ``names`` are all known: the place in ``chain`` before whose operation they are."""
        depth = 0
        for name in names:
            made = self.scalars.defined.get(name)
            if made is not None:
                depth = max(depth, self._known_at(chain, made))
        return depth

    def _known_at(self, chain: list[tuple[Region, IrOperation]], made: Definition) -> int:
        for i, (_, operation) in enumerate(chain):
            if operation is made.operation:
                return i + 1  # what a loop defines for its body
        home = self.homes[id(made.operation)]
        return next(i for i, (region, _) in enumerate(chain) if region is home)


def _insert(region: Region, before: IrOperation, new: list[IrOperation]) -> None:
    at = next(i for i, operation in enumerate(region.operations) if operation is before)
    region.operations[at:at] = new
