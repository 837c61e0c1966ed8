"""Tiles of addresses and indices as affine functions of the position in the tile.

    value[i, j] = base + shift + start + i · steps[0] + j · steps[1]        as long as i < limit of each caveat on i

``tl.arange`` is i, a splat has no steps, ``ptr + rows[:, None] * stride + columns[None, :]`` has two. What wraps
(``% M``) or is clamped (``tl.where(rows < M, rows, 0)``) is what it wraps up to its caveat. Block pointers are written
so by Triton's own front end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.value_flow import CARRIED, PLAIN, Definition
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ONE, ScalarReader, combined
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.printed_shapes import result_shapes

ZERO = Polynomial()
Steps = tuple[Polynomial, ...]


class NotAffine(Exception):
    """Why a tile is no affine function: ``reason``, and the operation that is at fault, if it is one."""

    def __init__(self, reason: str, operation: IrOperation | None = None) -> None:
        super().__init__(reason)
        self.reason, self.operation = reason, operation


@dataclass(frozen=True)
class Caveat:
    """What holds for positions below ``limit`` along ``dim`` only."""

    dim: int
    limit: Polynomial


@dataclass(frozen=True)
class AffineTile:
    """``base`` is a scalar pointer, or "" for whole numbers; ``shift`` what was added to a scalar pointer before it was
    a tile; offsets in elements."""

    shape: tuple[int, ...]
    start: Polynomial
    steps: Steps
    base: str = ""
    shift: Polynomial = ZERO
    caveats: frozenset[Caveat] = frozenset()

    @property
    def uniform(self) -> bool:
        """Whether it is one whole number, everywhere the same and without a caveat."""
        return not any(step.terms for step in self.steps) and not self.base and not self.caveats

    def moved(self, amount: Polynomial) -> AffineTile:
        return replace(self, start=self.start + amount)


class TileReader:
    """Reads tiles of a kernel whose scalars ``scalars`` reads."""

    def __init__(self, scalars: ScalarReader) -> None:
        self.scalars = scalars
        self._read: dict[str, AffineTile] = {}
        self._shapes = {
            name: shape
            for operation in scalars.function.walk() if operation is not scalars.function
            for name, shape in result_shapes(operation).items()
        }  # fmt: skip

    def shape(self, name: str) -> tuple[int, ...]:
        """That of the tile ``name``; ``()`` for a scalar."""
        return self._shapes.get(name, ())

    def read(self, name: str) -> AffineTile:
        """The tile ``name``; what counted loops advance, by their counters. Raises :class:`NotAffine`."""
        if name not in self._read:
            self._read[name] = self._of(name)
        return self._read[name]

    def _carried(self, name: str, made: Definition, shape: tuple[int, ...]) -> AffineTile:
        """A tile that a loop carries, or what a branch or a loop leaves."""
        if made.kind != CARRIED or made.operation.name != "scf.for":
            raise NotAffine("its address comes out of a branch or of a loop without a count", made.operation)
        loop = control.read_loop(made.operation)
        inside, initial, _, _ = loop.carried[made.position]
        if name != inside:
            raise NotAffine("its address is what an earlier loop left", made.operation)
        first = self.read(initial)
        # Its own base while the loop's body is read, so that what is added to it shows; nothing of that is remembered.
        before = dict(self._read)
        self._read[name] = AffineTile(shape, ZERO, tuple(ZERO for _ in shape), name)
        try:
            following = self.read(loop.yielded[made.position])
        finally:
            self._read = before
        if following.base != name or any(step.terms for step in following.steps) or following.caveats:
            raise NotAffine("its address does not advance by the same amount everywhere", made.operation)
        added = self.scalars.after_steps(following.shift + following.start, made.operation)
        if added is None:
            raise NotAffine("its address advances by an amount that changes", made.operation)
        return first.moved(added)

    def _of(self, name: str) -> AffineTile:
        shape, made = self.shape(name), self.scalars.defined.get(name)
        none = tuple(ZERO for _ in shape)
        if not shape and not self._is_pointer(name):
            return AffineTile((), self.scalars.read(name), ())
        if made is None:
            return AffineTile(shape, ZERO, none, name)
        if made.kind != PLAIN:
            return self._carried(name, made, shape)
        operation = made.operation
        short = operation.name.partition(".")[2]
        if operation.name == "tt.addptr":
            pointer, offset = map(self.read, made.sources)
            if not shape:  # of scalars: what moves a batch's or a head's tensor
                return replace(pointer, shift=pointer.shift + offset.start)
            return _sum(pointer, offset)
        if not shape:
            return AffineTile((), ZERO, (), name)
        reading = getattr(self, f"_{short}", None)
        if reading is None or short not in _READ:
            raise NotAffine(_UNREADABLE.get(operation.name, "its index is no sum of rows and columns"), operation)
        tile: AffineTile = reading(operation, shape, made.sources)
        return tile

    def _is_pointer(self, name: str) -> bool:
        made = self.scalars.defined.get(name)
        if made is not None and made.kind == PLAIN and made.operation.name == "tt.load":
            return "!tt.ptr<!tt.ptr<" in made.operation.signature
        return self.scalars.kind(name).startswith("!tt.ptr")

    def _constant(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        number = re.match(r"dense<(-?\d+)>", "".join(operation.tokens))
        if number is None:
            raise NotAffine("its index is a table of constants", operation)
        return AffineTile(shape, Polynomial.constant(int(number[1])), tuple(ZERO for _ in shape))

    def _make_range(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        start = int(operation.attributes["start"].split()[0])
        return AffineTile(shape, Polynomial.constant(start), (ONE if shape[0] > 1 else ZERO,))

    def _splat(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        return replace(self.read(sources[0]), shape=shape, steps=tuple(ZERO for _ in shape))

    def _expand_dims(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        tile, axis = self.read(sources[0]), int(operation.attributes["axis"].split()[0])
        caveats = frozenset(Caveat(c.dim + (c.dim >= axis), c.limit) for c in tile.caveats)
        steps = (*tile.steps[:axis], ZERO, *tile.steps[axis:])
        return replace(tile, shape=shape, steps=steps, caveats=caveats)

    def _broadcast(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        return replace(self.read(sources[0]), shape=shape)

    def _trans(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        found = re.search(r"order = array<i32: ([\d, ]+)>", operation.text())
        assert found is not None, operation.text()
        order = [int(n) for n in found[1].split(",")]
        tile = self.read(sources[0])
        caveats = frozenset(Caveat(order.index(c.dim), c.limit) for c in tile.caveats)
        return replace(tile, shape=shape, steps=tuple(tile.steps[i] for i in order), caveats=caveats)

    def _extsi(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        return self.read(sources[0])

    def _addi(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        left, right = map(self.read, sources)
        if operation.name == "arith.subi":
            if right.base:
                raise NotAffine("its index is subtracted", operation)
            right = replace(right, start=-right.start, steps=tuple(-step for step in right.steps))
        return _sum(left, right)

    _subi = _addi

    def _muli(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        left, right = map(self.read, sources)
        if left.uniform:
            left, right = right, left
        if not right.uniform or left.base:
            raise NotAffine("its index is a product of positions", operation)
        steps = tuple(combined("arith.muli", step, right.start) for step in left.steps)
        return replace(left, start=left.start * right.start, steps=steps)

    def _remsi(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        index, bound = map(self.read, sources)
        return self._up_to(index, bound, ZERO, operation)

    def _minsi(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        index, bound = map(self.read, sources)
        if index.uniform:
            index, bound = bound, index
        return self._up_to(index, bound, ONE, operation)

    def _select(self, operation: IrOperation, shape: tuple[int, ...], sources: tuple[str, ...]) -> AffineTile:
        condition, index = self.scalars.defined.get(sources[0]), self.read(sources[1])
        if condition is None or condition.operation.name != "arith.cmpi" or condition.operation.tokens[0] != "slt":
            raise NotAffine("its index is chosen by a condition that is no upper bound", operation)
        compared, bound = map(self.read, condition.sources)
        caveats = self._up_to(compared, bound, ZERO, operation).caveats
        return replace(index, shape=shape, caveats=index.caveats | caveats)

    def _up_to(self, index: AffineTile, bound: AffineTile, more: Polynomial, operation: IrOperation) -> AffineTile:
        """``index`` where it is below ``bound`` + ``more``."""
        along = [dim for dim, step in enumerate(index.steps) if step.terms]
        if not bound.uniform or index.base or len(along) != 1 or index.steps[along[0]] != ONE:
            raise NotAffine("its index wraps or is clamped in another way than at a bound", operation)
        caveat = Caveat(along[0], bound.start + more - index.start)
        return replace(index, caveats=index.caveats | {caveat})


_READ = frozenset(
    {
        "constant", "make_range", "splat", "expand_dims", "broadcast", "trans", "extsi", "addi", "subi", "muli",
        "remsi", "minsi", "select",
    }
)  # fmt: skip
_UNREADABLE = {
    "tt.load": "its rows are looked up in memory (gathered)",
    "tt.reshape": "its index is reshaped",
    "arith.divsi": "its index is divided: several positions share one element",
}


def _sum(left: AffineTile, right: AffineTile) -> AffineTile:
    if left.base and right.base:
        raise NotAffine("its index is a sum of two pointers")
    steps = tuple(a + b for a, b in zip(left.steps, right.steps, strict=True))
    return AffineTile(
        left.shape, left.start + right.start, steps, left.base or right.base, left.shift + right.shift,
        left.caveats | right.caveats,
    )  # fmt: skip
