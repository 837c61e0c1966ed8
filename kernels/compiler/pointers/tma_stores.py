"""Which stores and additions through pointers a TMA store can stand for.

A product's tile is brought into a layout for wide stores through shared memory, and stored to addresses that each
thread holds, while the products of the next tile wait. By TMA it is put into shared memory once, and stored from there
while the next tile is worked on.

TMA stores the same elements where the tile is a box (:mod:`~.tensor_boxes`) whose ends are the mask's, and nothing
wraps: what lies outside of the box's tensor is what the mask hides. A TMA store is under way until the kernel ends, so
that

- nothing else in the kernel reads or writes what it writes, by the pointer that it is written through,
- no loop repeats it, for two stores of one element may land in any order,
- nothing after it tells another program that it is done: no atomic operation, no barrier, no call.

Its descriptor is made of arguments alone: once, before a walk.

An atomic addition of fp32 tiles whose result nothing reads is a TMA reduction on the same terms, but that loops may
repeat it: additions land in any order as they are. The order that Triton takes by default, acquire and release, is not
kept: nothing in the kernel reads what is added to, and tiles of products are no flags. Each thread's additions take
addresses, a mask and an instruction for a few elements, in layouts for wide access; a reduction takes one instruction a
box. It takes memory for its tile, too, that slots of rings could have; no plan is tried without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from warpplan.kernels.compiler.analysis.copies.addresses import PURE, PURE_DIALECTS
from warpplan.kernels.compiler.analysis.load_hazards import cache_modifier, is_volatile
from warpplan.kernels.compiler.pointers.affine_tiles import NotAffine, TileReader
from warpplan.kernels.compiler.pointers.outer_dimensions import is_fixed
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.tensor_boxes import BoxReader, TensorBox, bytes_of
from warpplan.kernels.compiler.pointers.tile_masks import BoundsMask, read_mask
from warpplan.kernels.compiler.pointers.unread_lanes import Users
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

ENABLED = True
"""Whether strategies with TMA stores are among those that are tried, and additions are TMA's; off, both stay as they
are."""
STORE, ADD, DOT = "tt.store", "tt.atomic_rmw", "tt.dot"
LOOPS = ("scf.for", "scf.while")
ORDERED = frozenset({"acquire", "release"})
"""Memory orders that are asked for; ``acq_rel`` is what Triton takes where none is."""
_POINTS = frozenset({"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"})
"""Operations that make an address of one."""
_HARMLESS = frozenset(
    {
        STORE, DOT, "scf.if", "scf.for", "scf.while", "scf.yield", "scf.condition", "tt.reduce.return", "tt.return",
    }
)  # fmt: skip
"""Operations, beside those without an effect, after which a store may be under way still."""


@dataclass(frozen=True)
class TmaStore:
    """A ``store`` of ``value`` as TMA does it; ``adds`` to what is there."""

    store: IrOperation
    value: str
    box: TensorBox

    @property
    def adds(self) -> bool:
        return self.store.name == ADD

    @property
    def bytes(self) -> int:
        """Of the tile that it stores."""
        return math.prod((self.box.rows.size, self.box.columns.size, bytes_of(self.box.element)))


@dataclass(frozen=True)
class KeptStore:
    """Why ``store`` stays as it is: ``at`` is the operation at fault."""

    store: IrOperation
    reason: str
    at: IrOperation


@dataclass
class PointerStores:
    """What became of the stores through pointers of tiles that come from a product."""

    found: list[TmaStore] = field(default_factory=list)
    kept: list[KeptStore] = field(default_factory=list)


def pointer_stores(function: IrOperation) -> PointerStores:
    """Every candidate of ``function``, whose names are unique: recognised, or why it stays."""
    result = PointerStores()
    if not ENABLED:
        return result
    reader = _StoreReader(function)
    for store in function.walk():
        if store.name in (STORE, ADD) and reader.is_candidate(store):
            try:
                result.found.append(reader.read(store))
            except NotAffine as error:
                result.kept.append(KeptStore(store, error.reason, error.operation or store))
    return result


class _StoreReader:
    def __init__(self, function: IrOperation) -> None:
        self.function = function
        self.scalars = ScalarReader(function)
        self.tiles, self.boxes, self.users = TileReader(self.scalars), BoxReader(self.scalars), Users(function)
        self.repeated = {
            id(inner) for loop in function.walk() if loop.name in LOOPS for inner in loop.walk() if inner is not loop
        }

    def is_candidate(self, store: IrOperation) -> bool:
        """Whether ``store`` is of a tile of two dimensions that is computed from a product."""
        kinds = find_types(store.signature)
        kind = parse_type(kinds[0]) if kinds else None
        if kind is None or len(kind.shape) != 2:
            return False
        seen: set[str] = set()
        waiting = [store.operands[1]]
        while waiting:
            name = waiting.pop()
            made = self.scalars.defined.get(name)
            if name in seen or made is None:
                continue
            seen.add(name)
            if made.operation.name == DOT:
                return True
            waiting += made.sources
        return False

    def read(self, store: IrOperation) -> TmaStore:
        """Raises :class:`NotAffine` with the reason."""
        kind = parse_type(find_types(store.signature)[0])
        assert kind is not None
        element = kind.element.partition("<")[2].rpartition(">")[0]
        if store.name == ADD:
            self._require_addition(store, element)
        elif id(store) in self.repeated:
            raise NotAffine("a loop repeats it, and two TMA stores may land in any order", store)
        if cache_modifier(store):
            raise NotAffine("it says what caches are to do", store)
        if element == "i1" or element.startswith("!tt.ptr"):
            raise NotAffine(f"its elements are {element}", store)
        pointer, value, *rest = store.operands
        tile = self.tiles.read(pointer)
        if tile.caveats:
            raise NotAffine("its rows or columns wrap around", store)
        free = (frozenset[Polynomial](),) * 2
        mask = read_mask(self.tiles, rest[0]) if rest else BoundsMask(free, free)
        limits = [tuple(sorted(below, key=lambda limit: limit.terms)) for below in mask.below]
        box = self.boxes.read(tile, mask, limits, element, None)
        if box.base not in self.scalars.arguments:
            raise NotAffine("its tensor's address is no argument", store)
        if box.turned:
            raise NotAffine("its columns are not one after the other: its rows are", store)
        moving = sorted(name for name in box.made_of if not is_fixed(self.scalars, name))
        if moving:
            raise NotAffine(f"its descriptor would be made anew for each program: {moving[0]} changes", store)
        self._require_alone(box.base, store)
        self._require_last(store)
        return TmaStore(store, value, box)

    def _require_addition(self, store: IrOperation, element: str) -> None:
        """Raise :class:`NotAffine` where ``store``, an atomic operation, is no addition of fp32 that nothing waits
        for."""
        if store.tokens[0] != "fadd" or element != "f32":
            raise NotAffine(f"TMA adds fp32 here, and it is {store.tokens[0]} of {element}", store)
        if "gpu" not in store.tokens:
            raise NotAffine("its additions are seen beyond the GPU, or by its block alone", store)
        if ordered := sorted(ORDERED.intersection(store.tokens)):
            raise NotAffine(f"it says {ordered[0]}: other programs may go by what it adds", store)
        if self._is_read(store):
            raise NotAffine("its result, what was there before, is read", store)

    def _is_read(self, operation: IrOperation) -> bool:
        """Whether something uses or is handed a result of ``operation``."""
        return any(self.users.readers.get(name) or self.users.handed.get(name) for name in operation.defined)

    def _require_alone(self, base: str, store: IrOperation) -> None:
        """Raise :class:`NotAffine` where anything but ``store`` may reach memory through ``base``, an argument."""
        seen: set[str] = set()
        waiting = [base]
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            waiting += self.users.handed.get(value, ())
            for operation in self.users.readers.get(value, ()):
                if operation is store and value == store.operands[0] and value not in store.operands[1:]:
                    continue
                if operation.name not in _POINTS:
                    raise NotAffine("the kernel reads or writes the same memory elsewhere", operation)
                waiting += operation.defined

    def _require_last(self, store: IrOperation) -> None:
        """Raise :class:`NotAffine` where something after ``store`` may tell another program that it is done: behind it,
        or in a loop around it."""
        operations = list(self.function.walk())
        loops = (o for o in operations if o.name in LOOPS and any(inner is store for inner in o.walk()))
        around = next(loops, store)
        start = next(i for i, operation in enumerate(operations) if operation is around)
        for operation in operations[start:]:
            if operation is store or self._is_silent(operation):
                continue
            name = operation.name.strip('"')
            if name not in _HARMLESS and name not in PURE and not name.startswith(PURE_DIALECTS):
                raise NotAffine(f"{name} after it may tell another program of it", operation)
            if operation.name == "tt.load" and (is_volatile(operation) or cache_modifier(operation) == "cv"):
                raise NotAffine("a volatile load after it may wait for another program", operation)

    def _is_silent(self, operation: IrOperation) -> bool:
        """Whether ``operation`` adds fractions of a product's tile, which is no flag, and nobody reads what was
        there."""
        if operation.name != ADD or operation.tokens[0] != "fadd" or ORDERED.intersection(operation.tokens):
            return False
        return self.is_candidate(operation) and not self._is_read(operation)
