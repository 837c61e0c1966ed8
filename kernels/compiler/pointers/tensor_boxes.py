"""Which box of which tensor a tile of addresses is, as TMA has them: a base, strides, extents and coordinates.

A tile's address is an affine function of the position in it (:mod:`~.affine_tiles`). TMA takes

    tile[i, j] = tensor[row + i, column + j], where that is inside of [0, rows) × [0, columns)

so: steps are 1 along one dimension and a multiple of 16 bytes along the other, as is the first column; what the masks
let through is what is inside, where the sizes are chosen so that ``size − coordinate`` is the mask's limit; a dimension
without a mask has no end, for all of the tile is inside, and one whose row may be negative, as of a table, may
begin before its tensor does. What the innermost loop changes goes into the coordinates, what else is a multiple of the
row stride as well; the rest, a batch's offset, becomes outer dimensions (:mod:`~.outer_dimensions`) or is added to the
descriptor's base.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile, NotAffine
from warpplan.kernels.compiler.pointers.outer_dimensions import ALIGNMENT, OuterDimension, is_fixed, outer_dimensions
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ONE, ScalarReader
from warpplan.kernels.compiler.pointers.tile_masks import BoundsMask
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.types import parse_type

_WHOLE = ("i8", "i16", "i32", "i64")
ROWS_BEFORE = 1 << 28
"""Rows before a tensor's first one that a descriptor reaches where a row may be negative: TMA counts from there, and
checks nothing but its coordinates. A kernel whose offsets have 32 bits reaches no further with elements of 2 bytes, for
its rows are 16 bytes apart or more; seven eighths of TMA's 31 bits are left for the tensor itself."""
FEWEST_ROWS = 8
"""Rows of a box that is swizzled at least: the pattern repeats every eight."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of a descriptor: the tile's ``size`` in it, the ``coordinate`` of its first element, and the
    tensor's ``extents``, of which the smallest holds; none where there is no end."""

    size: int
    coordinate: Polynomial
    extents: tuple[Polynomial, ...]


@dataclass(frozen=True)
class TensorBox:
    """A tile of ``base``, a scalar pointer, moved by ``offset`` elements, along ``rows`` (each ``stride`` elements
    apart) and ``columns``. ``turned`` where the tile's first dimension is the columns. ``least`` are the arguments that
    have to be at least 0 or 1 for that. ``outer`` are dimensions around the two, of boxes of 1."""

    base: str
    offset: Polynomial
    stride: Polynomial
    rows: Dimension
    columns: Dimension
    turned: bool
    element: str
    least: tuple[tuple[str, int], ...]
    outer: tuple[OuterDimension, ...] = ()

    @property
    def made_of(self) -> frozenset[str]:
        """The values that its descriptor is made of."""
        extents = (extent for each in (self.rows, self.columns) for extent in each.extents)
        numbers = (self.offset, self.stride, *(each.stride for each in self.outer), *extents)
        return frozenset((self.base, *(name for number in numbers for name in number.names)))


class BoxReader:
    """Reads boxes of a kernel whose scalars ``scalars`` reads."""

    def __init__(self, scalars: ScalarReader) -> None:
        self.scalars = scalars

    def read(
        self, tile: AffineTile, mask: BoundsMask, limits: list[tuple[Polynomial, ...]], element: str,
        loop: IrOperation | None,
    ) -> TensorBox:  # fmt: skip
        """The box of ``tile``, of two dimensions, in each of which it ends at the least of ``limits``. What changes in
        ``loop`` may be in its coordinates alone. Raises :class:`NotAffine`."""
        size, inner = bytes_of(element), self._inner(tile)
        outer = 1 - inner
        if tile.shape[inner] * size < ALIGNMENT or tile.shape[outer] < FEWEST_ROWS:
            raise NotAffine(f"its tile of {tile.shape[outer]} x {tile.shape[inner]} is too small for TMA")
        stride, positive = tile.steps[outer], set[str]()
        if (stride.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its row stride is not known to be a multiple of {ALIGNMENT} bytes")
        if any(self._inside(name, loop) for name in stride.names):
            raise NotAffine("its row stride changes in the loop")
        if not self.scalars.not_negative(stride, positive):
            raise NotAffine("its row stride is not known to be positive")
        least = dict.fromkeys(positive, 1)
        if self._inside(tile.base, loop):
            raise NotAffine("its tensor's address is looked up in the loop")
        offset, row, column = self._split(tile.shift, tile.start, stride, loop, mask.lowest, outer)
        columns = self._dimension(tile, inner, column, limits, mask, loop, least)
        batch = self._batch_of(row, limits[outer], loop)
        around: tuple[OuterDimension, ...] = ()
        if batch.terms:  # rows are counted within their batch, where its descriptor then serves all batches
            needed = dict(least)
            try:
                rows = self._dimension(tile, outer, row - batch, limits, mask, loop, needed)
                made_of = self._made_of(tile.base, stride, rows, columns)
                around, left = outer_dimensions(self.scalars, offset + batch * stride, made_of, size, needed)
            except NotAffine:
                around = ()
            if around:
                offset, row, least = left, row - batch, needed
        if not around:
            before = self._may_be_before(row, mask.lowest[outer])
            if before:
                offset, row = offset - Polynomial.constant(ROWS_BEFORE) * stride, row + Polynomial.constant(ROWS_BEFORE)
            rows = self._dimension(tile, outer, row, limits, mask, loop, least, before)
            made_of = self._made_of(tile.base, stride, rows, columns)
            around, offset = outer_dimensions(self.scalars, offset, made_of, size, least)
        alignment = self._alignment(tile.base)
        if alignment % ALIGNMENT or (offset.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its base is not known to be a multiple of {ALIGNMENT} bytes")
        if (column.divisor(self.scalars.divisor) * size) % ALIGNMENT:
            raise NotAffine(f"its first column is not known to be a multiple of {ALIGNMENT} bytes")
        numbers = (offset, stride, row, column, *rows.extents, *columns.extents)
        for name in sorted(n for p in numbers for n in p.names):
            if self.scalars.kind(name) not in _WHOLE:
                raise NotAffine(f"its address is made of a {self.scalars.kind(name)}")
        return TensorBox(
            tile.base, offset, stride, rows, columns, inner == 0, element, tuple(sorted(least.items())), around
        )

    def _batch_of(self, row: Polynomial, limits: tuple[Polynomial, ...], loop: IrOperation | None) -> Polynomial:
        """The part of ``row`` by which the tensor's end moves from program to program: the rows of the batches before,
        where a batch's offset is a multiple of the row stride."""
        found = {
            (limit + row).where(lambda monomial, _: not all(is_fixed(self.scalars, name) for name in monomial))
            for limit in limits
        }
        if len(found) != 1:
            return Polynomial()
        (batch,) = found
        inside = any(self._inside(name, loop) for name in batch.names)
        return Polynomial() if inside or not set(batch.terms) <= set(row.terms) else batch

    @staticmethod
    def _made_of(base: str, stride: Polynomial, rows: Dimension, columns: Dimension) -> set[str]:
        return {base, *(n for p in (stride, *rows.extents, *columns.extents) for n in p.names)}

    def _inside(self, name: str, loop: IrOperation | None) -> bool:
        return loop is not None and self.scalars.inside(name, loop)

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

    def _alignment(self, base: str) -> int:
        made = self.scalars.defined.get(base)
        return self.scalars.divisor(base) if made is None or made.kind == "plain" else 1

    def _split(
        self, shift: Polynomial, start: Polynomial, stride: Polynomial, loop: IrOperation | None,
        lowest: tuple[frozenset[Polynomial], ...], outer: int,
    ) -> tuple[Polynomial, Polynomial, Polynomial]:  # fmt: skip
        """``shift`` + ``start`` as an offset of the base, a row and a column."""

        def changes(monomial: tuple[str, ...], _: int = 0) -> bool:
            return any(self._inside(name, loop) for name in monomial)

        total = shift + start
        row, left = total.divided_with_remainder(stride)
        # What is added to a pointer before it is a tile is a batch's or a head's: a column is an index plus a range.
        indices = dict(start.terms).keys() - dict(shift.terms).keys()
        column = left.where(
            lambda monomial, _: changes(monomial) or (monomial in indices and not self._is_offset(monomial))
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
        mask: BoundsMask, loop: IrOperation | None, least: dict[str, int], before: bool = False,
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
            if any(self._inside(name, loop) for name in extent.names):
                raise NotAffine("its mask is not its tensor's bounds: its end moves within the loop")
            bare = extent.terms[0][0] if len(extent.terms) == 1 and extent.terms[0][1] == 1 else ()
            if len(bare) == 1 and bare[0] in self.scalars.arguments:
                least[bare[0]] = 1
        return Dimension(tile.shape[dim], coordinate, extents)


def bytes_of(element: str) -> int:
    """Of one element of that type."""
    kind = parse_type(f"tensor<1x{element}>")
    assert kind is not None
    return kind.element_bits // 8
