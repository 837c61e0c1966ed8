"""Which loads through pointers a TMA load can stand for, and with what descriptor and coordinates.

A tile's address is an affine function of the position in it (:mod:`~.affine_tiles`). TMA reads

    tile[i, j] = tensor[row + i, column + j], 0 where that is outside of [0, rows) × [0, columns)

so: steps are 1 along one dimension and a multiple of 16 bytes along the other, as is the first column; what the masks
let through is what is inside, where the sizes are chosen so that ``size − coordinate`` is the mask's limit; a dimension
without a mask has no end, for the tile is read whole either way, and one whose row may be negative, as of a table, may
begin before its tensor does. What the innermost loop changes goes into the coordinates, what else is a multiple of the
row stride as well; the rest, a batch's offset, becomes outer dimensions (:mod:`~.outer_dimensions`) or is added to the
descriptor's base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from warpplan.kernels.compiler.analysis.load_hazards import WRITES, is_volatile
from warpplan.kernels.compiler.analysis.value_flow import origins
from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile, NotAffine, TileReader
from warpplan.kernels.compiler.pointers.outer_dimensions import OuterDimension, outer_dimensions
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ONE, ScalarReader
from warpplan.kernels.compiler.pointers.tile_masks import BoundsMask, read_mask
from warpplan.kernels.compiler.pointers.unread_lanes import Users, require_unread
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

LOOPS = ("scf.for", "scf.while")
_WHOLE = ("i8", "i16", "i32", "i64")
ALIGNMENT = 16
"""Bytes that a tensor's base and its row stride are multiples of (CUDA Driver API, ``cuTensorMapEncodeTiled``), and a
box's first column: any other is an illegal instruction (seen on an H200: fp32 at columns 1, 2, 31, bfloat16 at 1, 2, 4,
31; 0, 4 and 8, and 0 and 8, are right)."""
ROWS_BEFORE = 1 << 28
"""Rows before a tensor's first one that a descriptor reaches where a row may be negative: TMA counts from there, and
checks nothing but its coordinates. A kernel whose offsets have 32 bits reaches no further with elements of 2 bytes, for
its rows are 16 bytes apart or more; seven eighths of TMA's 31 bits are left for the tensor itself."""
FEWEST_ROWS = 8
"""Rows of a box that is swizzled at least: the pattern repeats every eight."""
THROUGH = frozenset(
    {
        "tt.trans", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.fp_to_fp", "tt.bitcast", "tt.join", "tt.split",
        "tt.elementwise_inline_asm", "tt.extern_elementwise", "ttg.convert_layout", "tt.precise_divf", "tt.clampf",
    }
)  # fmt: skip
"""Operations, beside arithmetic, between a load and the product that it feeds."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of a descriptor: the tile's ``size`` in it, the ``coordinate`` of its first element, and the
    tensor's ``extents``, of which the smallest holds; none where there is no end."""

    size: int
    coordinate: Polynomial
    extents: tuple[Polynomial, ...]


@dataclass(frozen=True)
class TmaLoad:
    """A load as TMA does it: of ``base``, a scalar pointer, moved by ``offset`` elements, along ``rows`` (each
    ``stride`` elements apart) and ``columns``. ``turned`` where the tile's first dimension is the columns. ``shape`` is
    what the load gives, with dimensions of 1 beside the two. ``least`` are the arguments that have to be at least 0 or
    1 for that. ``outer`` are dimensions around the two, of boxes of 1."""

    load: IrOperation
    loop: IrOperation
    base: str
    offset: Polynomial
    stride: Polynomial
    rows: Dimension
    columns: Dimension
    turned: bool
    shape: tuple[int, ...]
    element: str
    least: tuple[tuple[str, int], ...]
    outer: tuple[OuterDimension, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why ``load`` stays as it is: ``at`` is the operation at fault, the load itself where it is none other."""

    load: IrOperation
    loop: IrOperation
    reason: str
    at: IrOperation


@dataclass
class PointerLoads:
    """What became of the loads through pointers that feed a product in their own loop."""

    found: list[TmaLoad] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def pointer_loads(function: IrOperation) -> PointerLoads:
    """Every candidate of ``function``, whose names are unique: recognised or refused."""
    scalars = ScalarReader(function)
    reader = _LoadReader(scalars, TileReader(scalars), Users(function))
    result = PointerLoads()
    for load, loop in _candidates(function, reader.users):
        try:
            result.found.append(reader.read(load, loop))
        except NotAffine as error:
            result.refused.append(Refusal(load, loop, error.reason, error.operation or load))
    return result


def _candidates(function: IrOperation, users: Users) -> Iterator[tuple[IrOperation, IrOperation]]:
    """Loads of tiles in a loop, each with its innermost loop, that feed a product in it."""

    def inside(operation: IrOperation, loop: IrOperation | None) -> Iterator[tuple[IrOperation, IrOperation]]:
        if operation.name in LOOPS:
            loop = operation
        for region in operation.regions:
            for inner in region.operations:
                if inner.name == "tt.load" and loop is not None and _is_tile(inner) and _feeds(inner, loop, users):
                    yield inner, loop
                yield from inside(inner, loop)

    yield from inside(function, None)


def _is_tile(load: IrOperation) -> bool:
    """Whether it loads two dimensions, with a batch's or a head's of 1 before, after or between them."""
    kinds = find_types(load.signature)
    kind = parse_type(kinds[0]) if kinds else None
    return kind is not None and (len(kind.shape) == 2 or len(_wide(kind.shape)) == 2)


def _wide(shape: tuple[int, ...]) -> list[int]:
    """The dimensions of more than one element."""
    return [dim for dim, size in enumerate(shape) if size > 1]


def _flat(tile: AffineTile, mask: BoundsMask) -> tuple[AffineTile, BoundsMask]:
    """``tile`` and its ``mask`` in two dimensions, without those of 1. Raises :class:`NotAffine`."""
    if len(tile.shape) == 2:
        return tile, mask
    kept = _wide(tile.shape)
    gone = [dim for dim in range(len(tile.shape)) if dim not in kept]
    if any(mask.below[dim] or mask.lowest[dim] for dim in gone) or tile.caveats:
        raise NotAffine("its mask or its wrapped index is about a dimension of one element")
    below, lowest = (tuple(limits[dim] for dim in kept) for limits in (mask.below, mask.lowest))
    shape, steps = tuple(tile.shape[dim] for dim in kept), tuple(tile.steps[dim] for dim in kept)
    return replace(tile, shape=shape, steps=steps), BoundsMask(below, lowest)


def _feeds(load: IrOperation, loop: IrOperation, users: Users) -> bool:
    """Whether ``load`` reaches an operand of a product in ``loop`` within one iteration."""
    here = {id(operation) for operation in loop.walk()}
    seen: set[str] = set()
    waiting = list(load.defined)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        for reader in users.readers.get(value, ()):
            if id(reader) not in here:
                continue
            if reader.name in ("tt.dot", "tt.dot_scaled") and value in reader.operands[:2]:
                return True
            if reader.name in THROUGH or reader.name.startswith(("arith.", "math.")):
                waiting += reader.defined
    return False


class _LoadReader:
    def __init__(self, scalars: ScalarReader, tiles: TileReader, users: Users) -> None:
        self.scalars, self.tiles, self.users = scalars, tiles, users
        writes = (op.operands[0] for op in scalars.function.walk() if op.name in WRITES)
        self.written = {memory for pointer in writes for memory in origins(pointer, scalars.defined)}

    def read(self, load: IrOperation, loop: IrOperation) -> TmaLoad:
        """Raises :class:`NotAffine` with the reason."""
        if is_volatile(load):
            raise NotAffine("it is volatile", load)
        if "cacheModifier = cv" in load.text():
            raise NotAffine("it is to be read again each time, past every cache", load)
        kind = parse_type(find_types(load.signature)[0])
        assert kind is not None
        element = kind.element.partition("<")[2].rpartition(">")[0]
        if element == "i1" or element.startswith("!tt.ptr"):
            raise NotAffine(f"its elements are {element}", load)
        size = _bytes(element)
        pointer, *rest = load.operands
        both = self.written & origins(pointer, self.scalars.defined)
        if both:
            raise NotAffine(f"the kernel also writes {', '.join(sorted(both))}", load)
        whole = self.tiles.read(pointer)
        free = (frozenset[Polynomial](),) * len(whole.shape)
        tile, mask = _flat(whole, read_mask(self.tiles, rest[0]) if rest else BoundsMask(free, free))
        if len(rest) > 1:
            self._require_zero(rest[1], load)
        inner = self._inner(tile)
        outer = 1 - inner
        if tile.shape[inner] * size < ALIGNMENT or tile.shape[outer] < FEWEST_ROWS:
            raise NotAffine(f"its tile of {tile.shape[outer]} x {tile.shape[inner]} is too small for TMA")
        stride, positive = tile.steps[outer], set[str]()
        if (stride.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its row stride is not known to be a multiple of {ALIGNMENT} bytes")
        if any(self.scalars.inside(name, loop) for name in stride.names):
            raise NotAffine("its row stride changes in the loop")
        if not self.scalars.not_negative(stride, positive):
            raise NotAffine("its row stride is not known to be positive")
        least = dict.fromkeys(positive, 1)
        base, shift = self._base(tile, loop)
        limits = self._limits(tile, mask, load)
        offset, row, column = self._split(shift, tile.start, stride, loop, mask.lowest, outer)
        before = self._may_be_before(row, mask.lowest[outer])
        if before:
            offset, row = offset - Polynomial.constant(ROWS_BEFORE) * stride, row + Polynomial.constant(ROWS_BEFORE)
        columns = self._dimension(tile, inner, column, limits, mask, loop, least)
        rows = self._dimension(tile, outer, row, limits, mask, loop, least, before)
        made_of = {base, *(n for p in (stride, *rows.extents, *columns.extents) for n in p.names)}
        outer, offset = outer_dimensions(self.scalars, offset, made_of, size, least)
        alignment = self._alignment(base)
        if alignment % ALIGNMENT or (offset.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its base is not known to be a multiple of {ALIGNMENT} bytes")
        if (column.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its first column is not known to be a multiple of {ALIGNMENT} bytes")
        numbers = [offset, stride, row, column, *rows.extents, *columns.extents]
        for name in sorted(n for p in numbers for n in p.names):
            if self.scalars.kind(name) not in _WHOLE:
                raise NotAffine(f"its address is made of a {self.scalars.kind(name)}")
        return TmaLoad(
            load, loop, base, offset, stride, rows, columns, inner == 0, whole.shape, element,
            tuple(sorted(least.items())), outer,
        )  # fmt: skip

    def _require_zero(self, other: str, load: IrOperation) -> None:
        made = self.scalars.defined.get(other)
        text = "" if made is None else "".join(made.operation.tokens)
        zero = ("dense<0.0", "dense<0>", "dense<-0.0", "0.0", "0:")
        if made is not None and made.operation.name == "tt.splat":
            return self._require_zero(made.sources[0], load)
        if made is None or made.operation.name != "arith.constant" or not text.startswith(zero):
            raise NotAffine("what it puts outside of its mask is not 0: TMA fills with zeros", load)
        if "." in text and float(text.removeprefix("dense<").partition(">")[0].partition(":")[0]) != 0:
            raise NotAffine("what it puts outside of its mask is not 0: TMA fills with zeros", load)
        return None

    def _inner(self, tile: AffineTile) -> int:
        """The dimension along which elements lie one after the other."""
        if not tile.base:
            raise NotAffine("its address is no pointer with an offset")
        contiguous = [dim for dim, step in enumerate(tile.steps) if step == ONE]
        if len(contiguous) != 1:
            raise NotAffine(
                "its elements are not one after the other along one dimension: neither stride is known to be 1"
                if not contiguous else "its rows overlap: both of its strides are 1"
            )  # fmt: skip
        (inner,) = contiguous
        if not tile.steps[1 - inner].terms:
            raise NotAffine("its rows are all the same one")
        return inner

    def _base(self, tile: AffineTile, loop: IrOperation) -> tuple[str, Polynomial]:
        if self.scalars.inside(tile.base, loop):
            raise NotAffine("its tensor's address is looked up in the loop")
        return tile.base, tile.shift

    def _alignment(self, base: str) -> int:
        made = self.scalars.defined.get(base)
        return self.scalars.divisor(base) if made is None or made.kind == "plain" else 1

    def _limits(self, tile: AffineTile, mask: BoundsMask, load: IrOperation) -> list[tuple[Polynomial, ...]]:
        """The limits of each dimension, those of what wraps and is never stored among them."""
        limits = [set(below) for below in mask.below]
        for caveat in tile.caveats:
            if caveat.limit not in limits[caveat.dim]:
                require_unread(self.tiles, self.users, load.result, caveat)
                limits[caveat.dim].add(caveat.limit)
        return [tuple(sorted(found, key=lambda p: p.terms)) for found in limits]

    def _split(
        self, shift: Polynomial, start: Polynomial, stride: Polynomial, loop: IrOperation,
        lowest: tuple[frozenset[Polynomial], ...], outer: int,
    ) -> tuple[Polynomial, Polynomial, Polynomial]:  # fmt: skip
        """``shift`` + ``start`` as an offset of the base, a row and a column."""

        def changes(monomial: tuple[str, ...], _: int = 0) -> bool:
            return any(self.scalars.inside(name, loop) for name in monomial)

        total = shift + start
        multiples = total.where(lambda monomial, c: Polynomial(((monomial, c),)).divided(stride) is not None)
        left = total - multiples
        row = multiples.divided(stride)
        assert row is not None
        # What is added to a pointer before it is a tile is a batch's or a head's: a column is an index plus a range.
        column = left.where(
            lambda monomial, c: changes(monomial) or ((monomial, c) in start.terms and not self._is_offset(monomial))
        )
        offset = left - column
        moved = []
        for dim, coordinate in ((outer, row), (1 - outer, column)):
            if lowest[dim] or self.scalars.not_negative(coordinate, set()):
                moved.append(coordinate)  # where the mask cuts off what is below 0, so does TMA
                continue
            fixed = coordinate.where(lambda monomial, c: not changes(monomial))
            unknown = fixed.where(
                lambda monomial, c: not self.scalars.not_negative(Polynomial(((monomial, c),)), set())
            )
            moved.append(coordinate - unknown)
            offset += unknown * (stride if dim == outer else ONE)
        return offset, moved[0], moved[1]

    def _may_be_before(self, row: Polynomial, lowest: frozenset[Polynomial]) -> bool:
        """Whether nothing says of ``row``, a 32-bit number, that it is not negative: one looked up in a table, say."""
        if lowest or self.scalars.not_negative(row, set()):
            return False
        return all(self.scalars.kind(name) != "i64" for name in row.names)

    def _is_offset(self, monomial: tuple[str, ...]) -> bool:
        """Whether it is a number of elements rather than an index: a product with an argument, which is a stride."""
        return len(monomial) > 1 and any(name not in self.scalars.defined for name in monomial)

    def _dimension(
        self, tile: AffineTile, dim: int, coordinate: Polynomial, limits: list[tuple[Polynomial, ...]],
        mask: BoundsMask, loop: IrOperation, least: dict[str, int], before: bool = False,
    ) -> Dimension:  # fmt: skip
        """``before``: the coordinate counts from so far before the tensor that it is not negative."""
        needed: set[str] = set()
        what = "row" if tile.steps[dim] != ONE else "column"
        for start in mask.lowest[dim]:
            if start != coordinate and not self.scalars.not_negative(start, needed):
                raise NotAffine("its mask lets through what lies before the tensor, or cuts off more than that")
        if not before and coordinate not in mask.lowest[dim] and not self.scalars.not_negative(coordinate, needed):
            raise NotAffine(f"its first {what} is not known to be in the tensor: it may be negative")
        for name in needed:
            least.setdefault(name, 0)
        extents = tuple(limit + coordinate for limit in limits[dim])
        for extent in extents:
            if any(self.scalars.inside(name, loop) for name in extent.names):
                raise NotAffine("its mask is not its tensor's bounds: its end moves within the loop")
            bare = extent.terms[0][0] if len(extent.terms) == 1 and extent.terms[0][1] == 1 else ()
            if len(bare) == 1 and bare[0] in self.scalars.arguments:
                least[bare[0]] = 1
        return Dimension(tile.shape[dim], coordinate, extents)


def _bytes(element: str) -> int:
    kind = parse_type(f"tensor<1x{element}>")
    assert kind is not None
    return kind.element_bits // 8
