"""A kernel's loads, stores and additions through pointers written as TMA's, in Triton's own IR before layouts are
chosen.

    %a = tt.load %pointers, %mask      ──>   %d = tt.make_tensor_descriptor %a_ptr, [%M, %K], [%stride, 1]   once
                                             %a = tt.descriptor_load %d[%row, %column]

From there on the kernel is one that was written with device-made descriptors, to Triton's passes and to ours. The
descriptor is made as far out as what it is made of is known: a program that walks over tiles makes most of them once.
Descriptors cannot come from the host: another argument would be another kernel to whoever launches it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.capture import Obstacle
from warpplan.kernels.compiler.analysis.value_flow import Definition
from warpplan.kernels.compiler.pointers.outer_dimensions import ALIGNMENT, OuterDimension
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.scalars.scalar_writer import MOST_I32, ScalarWriter
from warpplan.kernels.compiler.pointers.tensor_boxes import Dimension, TensorBox
from warpplan.kernels.compiler.pointers.tma_loads import TmaLoad, pointer_loads
from warpplan.kernels.compiler.pointers.tma_stores import ADD, STORE, KeptStore, TmaStore, pointer_stores
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse, parse_operation
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
        return f"no TMA load can stand for it: {self.reason}{_elsewhere(self.operation, self.line, self.load)}"


@dataclass(frozen=True)
class Described:
    """``text`` is the kernel with the loads of ``lines`` as TMA loads; ``least`` what integer arguments have to be at
    least for that, by name without ``%``; ``unchanged`` the candidates that stay as they are; ``stores`` the bytes of
    the tiles of products that TMA can store, one of each type, whether it does in ``text`` or not; ``kept`` the stores
    and additions of others, with why TMA cannot do them."""

    text: str
    lines: tuple[str, ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    unchanged: tuple[Unchanged, ...] = ()
    stores: tuple[int, ...] = ()
    kept: tuple[Obstacle, ...] = ()


def describe(text: str, *, nested: bool, stores: bool = False) -> Described:
    """The TTIR ``text`` of a kernel with its pointer loads as TMA loads, each where that is proven: what stays is
    loaded by the consumers. So are additions of products to memory. With ``stores``, what it stores of a product
    through pointers is stored by TMA, too, where that is proven. ``nested``: this Triton prints a descriptor's block as
    a tensor (up to 3.7). Raises :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR` for text that Triton did not
    print."""
    module = parse(text)
    if not any(operation.name in ("tt.load", ADD) for operation in module.function.walk()):
        return Described(text)
    function = unique_names(module.function)
    replace_function(module, function)
    loads, locations = pointer_loads(function), SourceLocations(module)
    unchanged = tuple(
        Unchanged(str(locations.of(r.load)), str(locations.of(r.loop)), r.reason, r.at.name, str(locations.of(r.at)))
        for r in loads.refused
    )
    writes = pointer_stores(function)
    stored = writes.found
    kept = tuple(dict.fromkeys(_obstacle(each, locations) for each in writes.kept))
    there = tuple({_tile(each.box): each.bytes for each in stored if not each.adds}.values())
    written = [each for each in stored if stores or each.adds]
    if not loads.found and not written:
        return Described(text, (), (), unchanged, there, kept)
    lines = tuple(str(locations.of(load.load)) for load in loads.found)
    writer = _BoxWriter(function, nested)
    for number, load in enumerate(loads.found):
        writer.write_load(load, f"%wp_tma{number}")
    for number, store in enumerate(written):
        writer.write_store(store, f"%wp_tma_store{number}")
    least: dict[str, int] = {}
    for box in (*(load.box for load in loads.found), *(store.box for store in written)):
        for name, value in box.least:
            least[name[1:]] = max(value, least.get(name[1:], 0))
    return Described(str(module), lines, tuple(sorted(least.items())), unchanged, there, kept)


def _obstacle(kept: KeptStore, locations: SourceLocations) -> Obstacle:
    """Why TMA cannot do a store or an addition, with what is at fault where that is elsewhere."""
    line, verb = str(locations.of(kept.store)), "store" if kept.store.name == STORE else "add"
    where = _elsewhere(kept.at.name, str(locations.of(kept.at)), line)
    return Obstacle(f"TMA cannot {verb} it: {kept.reason}{where}", kept.store.name, line)


def _elsewhere(operation: str, at: str, line: str) -> str:
    return f" ({operation}, {at})" if at and at != line else ""


class _BoxWriter:
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

    def write_load(self, load: TmaLoad, stem: str) -> None:
        """Replace ``load`` in place. Its result keeps its name."""
        box, at, kind = load.box, ScalarWriter(self.scalars, f"{stem}_at", load.load.location), _tile(load.box)
        place = self._place(box, load.load, stem, at)
        # A box with dimensions of 1 around the two is loaded as the two alone.
        tile = at.op(f"$ = tt.descriptor_load {place} : !tt.tensordesc<{self._block(box)}> -> {kind}")
        forms = [kind]
        if box.turned:
            forms.append(f"tensor<{box.columns.size}x{box.rows.size}x{box.element}>")
            tile = at.op(f"$ = tt.trans {tile} {{order = array<i32: 1, 0>}} : {forms[0]} -> {forms[1]}")
        if len(load.shape) != 2:
            forms.append(f"tensor<{'x'.join(map(str, load.shape))}x{box.element}>")
            at.op(f"$ = tt.reshape {tile} : {forms[-2]} -> {forms[-1]}")
        at.out[-1].results = (load.load.result,)
        self._replace(load.load, at.out)

    def write_store(self, store: TmaStore, stem: str) -> None:
        """Replace ``store`` in place."""
        box, at = store.box, ScalarWriter(self.scalars, f"{stem}_at", store.store.location)
        place = self._place(box, store.store, stem, at)
        write = "tt.descriptor_reduce add," if store.adds else "tt.descriptor_store"
        text = f"{write} {place}, {store.value} : !tt.tensordesc<{self._block(box)}>, {_tile(box)}"
        stored = parse_operation(text)
        stored.location = store.store.location
        self._replace(store.store, [*at.out, stored])

    def _replace(self, former: IrOperation, new: list[IrOperation]) -> None:
        home, _ = self.chains[id(former)][-1]
        _insert(home, former, new)
        home.operations[:] = [operation for operation in home.operations if operation is not former]

    def _place(self, box: TensorBox, user: IrOperation, stem: str, at: ScalarWriter) -> str:
        """The descriptor of ``box``, made as far out as what it is made of is known, and its coordinates, which are
        written to ``at``, in front of its ``user``."""
        made, chain = ScalarWriter(self.scalars, f"{stem}_made", user.location), self.chains[id(user)]
        descriptor = self._descriptor(box, made)
        around = [self._index(each, at, made) for each in box.outer]
        place = [*around, *(self._coordinate(size, at) for size in (box.rows, box.columns))]
        region, before = chain[self._depth(chain, box.made_of)]
        _insert(region, before, made.out)
        return f"{descriptor}[{', '.join(place)}]"

    def _descriptor(self, box: TensorBox, out: ScalarWriter) -> str:
        base = box.base
        if box.offset.terms:
            pointer = f"!tt.ptr<{box.element}>"
            base = out.op(f"$ = tt.addptr {base}, {out.wide(box.offset)} : {pointer}, i64")
        endless = [out.constant(MOST_I32, "i32") for _ in box.outer]
        shape = ", ".join(endless + [self._size(size, out) for size in (box.rows, box.columns)])
        around = [self._outer_stride(each, out) for each in box.outer]
        strides = ", ".join([*around, out.wide(box.stride), out.constant(1, "i64")])
        block = f"<{self._block(box)}>"
        return out.op(f"$ = tt.make_tensor_descriptor {base}, [{shape}], [{strides}] : <{box.element}>, {block}")

    def _block(self, box: TensorBox) -> str:
        """The descriptor's box as this Triton prints it."""
        kind = "x".join([*("1" for _ in box.outer), str(box.rows.size), str(box.columns.size), box.element])
        return f"tensor<{kind}>" if self.nested else kind

    def _outer_stride(self, outer: OuterDimension, out: ScalarWriter) -> str:
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

    def _coordinate(self, size: Dimension, out: ScalarWriter) -> str:
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

    def _depth(self, chain: list[tuple[Region, IrOperation]], names: Collection[str]) -> int:
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


def _tile(box: TensorBox) -> str:
    """The type of the tile that is loaded or stored."""
    return f"tensor<{box.rows.size}x{box.columns.size}x{box.element}>"


def _insert(region: Region, before: IrOperation, new: list[IrOperation]) -> None:
    at = next(i for i, operation in enumerate(region.operations) if operation is before)
    region.operations[at:at] = new
