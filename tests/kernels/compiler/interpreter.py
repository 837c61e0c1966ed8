"""Blocks of kernels at the cut, lowered or finished, run by the player: what they store, element by element.

Here a pointer is a number, ``buffer · 2³² + element``, and buffers hold float64: the kernel's own types decide which
bytes they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedArgument,
    PlayedInputs,
    play,
)
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import DeviceMemory
from warpplan.kernels.compiler.inspection.player.tiles.element_types import (
    ElementType,
    decoded,
    element_type,
    encoded,
    rounded,
)
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.ttgir.ir import Module

Values = dict[str, Any]
BUFFER = 1 << 32
MOST_STORED = 1 << 17
"""Elements of a buffer that a test gives no values of."""
LISTED = element_type("bf16")
"""Of the buffers whose addresses are in a table."""
UNWRITTEN = 96.0
"""What is there before: every type holds it, and it can be added to. No test stores it."""


@dataclass(frozen=True)
class Descriptor:
    """A tensor in global memory: its first element's address, its sizes and strides in elements."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Block:
    """:meth:`run` gives what was stored: the addresses, ascending, and the values. ``seed`` draws how the partitions
    are interleaved."""

    FENCES = False
    """Whether Triton's own proxy fences are in already."""

    def __init__(
        self, module: Module, arguments: Values, buffers: list[np.ndarray], program: tuple[int, ...],
        programs: tuple[int, ...] = (1, 1, 1), seed: int = 0,
    ) -> None:  # fmt: skip
        self.code, self.arguments, self.buffers = ReadyCode(module), arguments, buffers
        self.program, self.programs, self.seed = program, programs, seed

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        return run_together(
            self.code, self.arguments, self.buffers, [self.program], self.programs, self.seed, self.FENCES
        )


def run_together(
    code: ReadyCode, values: Values, buffers: list[np.ndarray], programs: Sequence[tuple[int, ...]],
    grid: tuple[int, ...], seed: int = 0, fences: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What ``programs`` of one grid store, one after the other."""
    kinds: dict[int, ElementType] = {}
    arguments: list[PlayedArgument] = []
    left = 0
    for name, kind in code.parameters:
        if left:
            left -= 1  # a descriptor's sizes and strides, which follow it
            continue
        value = values[name[1:]]
        if isinstance(value, Descriptor):
            number, place = divmod(value.base, BUFFER)
            kinds[number] = kind.held
            offset = place * kind.held.bytes
            arguments.append(DescribedArgument(str(number), value.sizes, value.strides, kind.element, offset))
            left = _numbers_after(code, name, len(value.sizes))
        elif kind.kind == "!tt.ptr":
            number, place = divmod(value, BUFFER)
            kinds[number] = kind.pointee
            arguments.append(BufferArgument(str(number), place * kind.pointee.bytes))
        else:
            arguments.append(value)
    before = _bytes(kinds, buffers)
    inputs = PlayedInputs(before, tuple(arguments))
    after = play(code, inputs, grid, seed, places=list(programs), fences=fences).buffers
    addresses, stored = [np.empty(0, np.int64)], [np.empty(0)]
    for number, kind in sorted(kinds.items()):
        old, new = (np.asarray(data[str(number)]).view(kind.stored) for data in (before, after))
        changed = np.flatnonzero(old != new)
        addresses.append(number * BUFFER + changed)
        stored.append(np.asarray(decoded(new[changed], kind), float))
    return np.concatenate(addresses), np.concatenate(stored)


def _numbers_after(code: ReadyCode, name: str, rank: int) -> int:
    """How many of a descriptor's sizes and strides are parameters of their own."""
    names = [parameter for parameter, _ in code.parameters]
    at = names.index(name) + 1
    return sum(other.startswith((f"{name}_", f"{name}.")) for other in names[at : at + 2 * rank])


def _bytes(kinds: dict[int, ElementType], buffers: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The buffers in the kernel's types; those that hold addresses as the player's memory has them."""
    tables = {n: np.asarray(buffers[n]) for n, kind in kinds.items() if kind.name == "i64" and n < len(buffers)}
    for place in (int(place) for data in tables.values() for place in data if place >= BUFFER):
        kinds.setdefault(place // BUFFER, LISTED)
    made = {}
    for number, kind in kinds.items():
        data = buffers[number] if number < len(buffers) else np.full(MOST_STORED, UNWRITTEN)
        made[str(number)] = encoded(rounded(np.asarray(data, float), kind), kind).view(np.uint8)
    memory = DeviceMemory(made)
    for number, data in tables.items():
        places = [memory.address(str(int(p) // BUFFER)) if p >= BUFFER else int(p) for p in data]
        made[str(number)] = np.array(places, np.int64).view(np.uint8)
    return made
