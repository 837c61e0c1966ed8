"""Which loads through pointers a TMA load can stand for: those of tiles that are boxes (:mod:`~.tensor_boxes`), outside
of which TMA puts zeros, as the load does or where nothing reads what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from warpplan.kernels.compiler.analysis.load_hazards import WRITES, cache_modifier, is_volatile
from warpplan.kernels.compiler.analysis.value_flow import origins
from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile, NotAffine, TileReader
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.tensor_boxes import BoxReader, TensorBox
from warpplan.kernels.compiler.pointers.tile_masks import BoundsMask, read_mask
from warpplan.kernels.compiler.pointers.unread_lanes import Users, require_unread
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

LOOPS = ("scf.for", "scf.while")
THROUGH = frozenset(
    {
        "tt.trans", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.fp_to_fp", "tt.bitcast", "tt.join", "tt.split",
        "tt.elementwise_inline_asm", "tt.extern_elementwise", "ttg.convert_layout", "tt.precise_divf", "tt.clampf",
    }
)  # fmt: skip
"""Operations, beside arithmetic, between a load and the product that it feeds."""


@dataclass(frozen=True)
class TmaLoad:
    """A load as TMA does it. ``shape`` is what the load gives, with dimensions of 1 beside the box's two."""

    load: IrOperation
    loop: IrOperation
    box: TensorBox
    shape: tuple[int, ...]


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
        except (AssertionError, IndexError, KeyError, StopIteration, ValueError) as error:
            # Which operands and types an operation needs is known only where it is read: of the other loads this says
            # nothing.
            result.refused.append(
                Refusal(load, loop, f"its address has a form that is not read here ({error!r})", load)
            )
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
        self.boxes = BoxReader(scalars)
        writes = (op.operands[0] for op in scalars.function.walk() if op.name in WRITES)
        self.written = {memory for pointer in writes for memory in origins(pointer, scalars.defined)}

    def read(self, load: IrOperation, loop: IrOperation) -> TmaLoad:
        """Raises :class:`NotAffine` with the reason."""
        if is_volatile(load):
            raise NotAffine("it is volatile", load)
        if cache_modifier(load) == "cv":
            raise NotAffine("it is to be read again each time, past every cache", load)
        kind = parse_type(find_types(load.signature)[0])
        assert kind is not None
        element = kind.element.partition("<")[2].rpartition(">")[0]
        if element == "i1" or element.startswith("!tt.ptr"):
            raise NotAffine(f"its elements are {element}", load)
        pointer, *rest = load.operands
        both = self.written & origins(pointer, self.scalars.defined)
        if both:
            raise NotAffine(f"the kernel also writes {', '.join(sorted(both))}", load)
        whole = self.tiles.read(pointer)
        free = (frozenset[Polynomial](),) * len(whole.shape)
        tile, mask = _flat(whole, read_mask(self.tiles, rest[0]) if rest else BoundsMask(free, free))
        if len(rest) > 1:
            self._require_zero(rest[1], load)
        box = self.boxes.read(tile, mask, self._limits(tile, mask, load), element, loop)
        return TmaLoad(load, loop, box, whole.shape)

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

    def _limits(self, tile: AffineTile, mask: BoundsMask, load: IrOperation) -> list[tuple[Polynomial, ...]]:
        """The limits of each dimension, those of what wraps and is never stored among them."""
        limits = [set(below) for below in mask.below]
        for caveat in tile.caveats:
            if caveat.limit not in limits[caveat.dim]:
                require_unread(self.tiles, self.users, load.result, caveat)
                limits[caveat.dim].add(caveat.limit)
        return [tuple(sorted(found, key=lambda p: p.terms)) for found in limits]
