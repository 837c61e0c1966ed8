"""Bank conflicts of a tile in shared memory: how often a warp's accesses go through its 32 banks.

A layout of registers is linear over GF(2) (Triton's linear layouts): the element that a register of a lane holds is the
exclusive or of basis vectors, one for each bit of the two numbers. A swizzled layout of shared memory is one as well,
so that all accesses of a tile have the conflicts of the first. Lanes that want different words of a bank are served one
after the other, lanes that want the same word at once (CUDA C++ Programming Guide, "Shared Memory").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BANKS, WORD = 32, 4
"""Of shared memory, and bytes of a bank's word (CUDA C++ Programming Guide)."""
PASS_BYTES = BANKS * WORD
"""Bytes that one pass brings where no two lanes conflict."""
READ_CYCLES = 2.0
"""Cycles of each pass of a read after the first; a copy's take one. Found from the 4-bit weights of
partitions_h200.json (2026-11-24), whose blocks of K took 21,800 cycles at boost clock with 8,192 passes of one read
(2.4 each beside the 2,000 that the rest is predicted to take), and 12,400 with 8,192 passes of one copy (1.0 each
beside 3,800). Rounded down, for the clock under load is lower. Doubled, slots are laid out for their reads alone."""
LANES = 32
WIDEST = 16
"""Bytes that an instruction moves for a lane at most."""
Basis = tuple[int, ...]
_NUMBERS = re.compile(r"\[([\d, ]*)\]")


@dataclass(frozen=True)
class SwizzledLayout:
    """``#ttg.swizzled_shared``: rows along ``order[0]``, in which runs of ``vec`` elements trade places, by exclusive
    or with the row's number over ``per_phase``, modulo ``max_phase``."""

    order: tuple[int, ...]
    vec: int = 1
    per_phase: int = 1
    max_phase: int = 1

    def __str__(self) -> str:
        return (
            f"#ttg.swizzled_shared<{{vec = {self.vec}, perPhase = {self.per_phase}, maxPhase = {self.max_phase}, "
            f"order = {list(self.order)}}}>"
        )

    def offset(self, at: Sequence[int], shape: Sequence[int]) -> int:
        """Elements before the one at ``at`` of a tile of ``shape``."""
        inner = self.order[0]
        column = at[inner]
        if len(self.order) > 1:
            phase = at[self.order[1]] // self.per_phase % self.max_phase
            column = ((column // self.vec) ^ phase) * self.vec + column % self.vec
        found, size = column, shape[inner]
        for dim in self.order[1:]:
            found += at[dim] * size
            size *= shape[dim]
        return found


@dataclass(frozen=True)
class RegisterLayout:
    """Of a tile among a warp's lanes: where the first element of each register and of each lane whose number is a power
    of two lies."""

    registers: tuple[Basis, ...]
    lanes: tuple[Basis, ...]

    def at(self, register: int, lane: int, shape: Sequence[int]) -> tuple[int, ...]:
        """The element that ``register`` of ``lane`` holds."""
        found = [0] * len(shape)
        for number, bases in ((register, self.registers), (lane, self.lanes)):
            for bit, basis in enumerate(bases):
                if number >> bit & 1:
                    found = [a ^ b for a, b in zip(found, basis, strict=True)]
        return tuple(a % size for a, size in zip(found, shape, strict=True))


def register_layout(encoding: str, aliases: Iterable[str], rank: int) -> RegisterLayout | None:
    """The layout that ``encoding`` names among the module's ``aliases``; ``None`` where it is neither ``#ttg.blocked``
    nor ``#ttg.linear`` of tiles of ``rank`` dimensions."""
    named = dict(line.partition(" = ")[::2] for line in aliases)
    text = named.get(encoding, encoding)
    if text.startswith("#ttg.linear<"):
        found = RegisterLayout(_bases(text, "register"), _bases(text, "lane"))
        return found if all(len(basis) == rank for basis in found.lanes) else None
    if not text.startswith("#ttg.blocked<"):
        return None
    each, lanes, order = (_list(text, name) for name in ("sizePerThread", "threadsPerWarp", "order"))
    if len(order) != rank:
        return None
    return RegisterLayout(_steps(each, [1] * rank, order), _steps(lanes, each, order))


def passes(
    tile: RegisterLayout, shared: SwizzledLayout, shape: Sequence[int], bytes_each: int, most: int = WIDEST
) -> float:
    """Passes through the banks for every 128 bytes that a warp moves between ``tile``, in registers or on its way by
    ``cp.async``, and ``shared``, at most ``most`` elements a lane and instruction: 1 without conflicts, up to 32."""
    first = shared.offset(tile.at(0, 0, shape), shape)
    if shared.max_phase > 1:
        most = min(most, shared.vec)
    vector = 1
    while (
        vector * 2 * bytes_each <= WIDEST
        and vector * 2 <= most
        and vector * 2 <= 2 ** len(tile.registers)
        and all(shared.offset(tile.at(n, 0, shape), shape) == first + n for n in range(vector * 2))
    ):
        vector *= 2
    width = vector * bytes_each
    # Lanes of 8 or 16 bytes go by halves or quarters of a warp, 128 bytes at once.
    together = min(LANES, PASS_BYTES // max(WORD, width))
    count = 0
    for begin in range(0, LANES, together):
        words: dict[int, set[int]] = {}
        for lane in range(begin, begin + together):
            start = shared.offset(tile.at(0, lane, shape), shape) * bytes_each // WORD
            for word in range(start, start + max(1, width // WORD)):
                words.setdefault(word % BANKS, set()).add(word)
        count += max(map(len, words.values()))
    return count / max(1, LANES * width // PASS_BYTES)


def slot_layouts(fastest: int, shape: Sequence[int], bytes_each: int, vector: int) -> list[SwizzledLayout]:
    """Layouts of a slot that copies of ``vector`` elements along dimension ``fastest`` can fill: the plain one, then,
    of tiles of two dimensions, swizzled ones. A phase repeats within 32 rows, so that consumers of 64 rows each can
    share a slot out."""
    rank = len(shape)
    first = (fastest, *(dim for dim in reversed(range(rank)) if dim != fastest))
    found = [SwizzledLayout(first)]
    if rank != 2:
        return found
    for order in (first,) if vector > 1 else (first, first[::-1]):
        row = shape[order[0]] * bytes_each
        per_phase = max(1, PASS_BYTES // row)
        vec = vector
        while vec * bytes_each <= WIDEST:
            phases = min(PASS_BYTES, row) // max(WORD, vec * bytes_each)
            phases = min(phases, max(1, shape[order[1]] // per_phase))
            if phases > 1 and vec * bytes_each >= WORD:
                found.append(SwizzledLayout(order, vec, per_phase, phases))
            vec *= 2
    return found


def _steps(counts: Sequence[int], unit: Sequence[int], order: Sequence[int]) -> tuple[Basis, ...]:
    found = []
    for dim in order:
        for bit in range(int(math.log2(counts[dim]))):
            found.append(tuple((unit[dim] << bit) * (other == dim) for other in range(len(counts))))
    return tuple(found)


def _bases(text: str, name: str) -> tuple[Basis, ...]:
    found = re.search(rf"{name} = (\[\]|\[\[.*?\]\])", text)
    return tuple(tuple(basis) for basis in json.loads(found[1])) if found is not None else ()


def _list(text: str, name: str) -> list[int]:
    found = _NUMBERS.match(text.partition(f"{name} = ")[2])
    assert found is not None, text
    return [int(n) for n in found[1].split(",")]
