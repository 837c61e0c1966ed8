"""Shared memory of a played kernel: tiles in slots, views of them, and mbarriers.

A tile that nobody wrote is poison, and so is a slot from the time that a copy into it is issued until it lands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from warpplan.kernels.compiler.inspection.player.tiles.element_types import poison
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import PrintedType
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import AccessLog, Box, Clock, merge


@dataclass(eq=False)
class PlayedBarrier:
    """An mbarrier (PTX ISA, "mbarrier"): its phase ends when ``pending`` arrivals and ``bytes`` are both down to none.
    ``gathering`` is what comes before the arrivals so far, ``released`` before the phases that are over."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    gathering: Clock = field(default_factory=dict)
    released: Clock = field(default_factory=dict)

    def arrive(self, arrivals: int, more_bytes: int, clock: Clock) -> bool:
        """Whether that many arrivals were still to come."""
        self.pending -= arrivals
        self.bytes += more_bytes
        merge(self.gathering, clock)
        if self.pending == 0 and self.bytes == 0:
            merge(self.released, self.gathering)
            self.gathering = {}
            self.phase, self.pending = self.phase + 1, self.count
        return self.pending >= 0

    def is_over(self, parity: int) -> bool:
        """Whether the phase of ``parity`` is over, as ``mbarrier.try_wait.parity`` tests."""
        return self.phase & 1 != parity & 1


@dataclass(eq=False)
class SharedAllocation:
    """What one ``ttg.local_alloc`` made: elements, who accessed them, barriers by place."""

    name: str
    kind: PrintedType
    data: np.ndarray
    log: AccessLog = field(default_factory=AccessLog)
    barriers: dict[Box, PlayedBarrier] = field(default_factory=dict)

    @classmethod
    def made(cls, name: str, kind: PrintedType) -> SharedAllocation:
        return cls(name, kind, poison(kind.shape, kind.held))

    def view(self) -> SharedView:
        """All of it."""
        axes = tuple(range(len(self.kind.shape)))
        return SharedView(self, self.data, tuple((0, n) for n in self.kind.shape), axes)


@dataclass(frozen=True, eq=False)
class SharedView:
    """``array`` is a numpy view of the elements, ``box`` what part of ``allocation`` they are, ``axes`` the
    allocation's dimension of each of the view's; None after a reshape, which may mix them."""

    allocation: SharedAllocation
    array: np.ndarray
    box: Box
    axes: tuple[int, ...] | None

    @property
    def told(self) -> str:
        return f"{self.allocation.name}[{', '.join(f'{a}:{b}' if b - a > 1 else str(a) for a, b in self.box)}]"

    def at(self, index: int) -> SharedView:
        """One of its leading dimension. Raises ``IndexError``."""
        if not 0 <= index < self.array.shape[0]:
            raise IndexError(f"slot {index} of {self.array.shape[0]}")
        axes = None if self.axes is None else self.axes[1:]
        return SharedView(self.allocation, self.array[index], self._narrowed({0: (index, index + 1)}), axes)

    def part(self, starts: list[int], shape: tuple[int, ...]) -> SharedView:
        """A box of it."""
        spans = {i: (start, start + size) for i, (start, size) in enumerate(zip(starts, shape, strict=True))}
        array = self.array[tuple(slice(a, b) for a, b in spans.values())]
        return SharedView(self.allocation, array, self._narrowed(spans), self.axes)

    def transposed(self, order: list[int]) -> SharedView:
        axes = None if self.axes is None else tuple(self.axes[i] for i in order)
        return SharedView(self.allocation, self.array.transpose(order), self.box, axes)

    def reshaped(self, shape: tuple[int, ...]) -> SharedView:
        """Raises ``ValueError`` where the elements do not lie as that takes."""
        array = self.array.reshape(shape)
        if not np.shares_memory(array, self.allocation.data):
            raise ValueError("a view of other strides")
        axes = self.axes if shape == self.array.shape else None
        return SharedView(self.allocation, array, self.box, axes)

    @property
    def barrier(self) -> PlayedBarrier:
        """Raises ``KeyError`` where none was initialised."""
        return self.allocation.barriers[self.box]

    def _narrowed(self, spans: dict[int, tuple[int, int]]) -> Box:
        if self.axes is None:
            return self.box
        box = list(self.box)
        for axis, (first, last) in spans.items():
            start = box[self.axes[axis]][0]
            box[self.axes[axis]] = (start + first, start + last)
        return tuple(box)
