"""Global memory of a played kernel: buffers of bytes at addresses far from each other, tensors described for TMA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.tiles.element_types import Array, ElementType, decoded, encoded

_SPACE = 40
"""Each buffer begins in the middle of 2⁴⁰ addresses of its own, so that an address tells its buffer also where it is
out of bounds."""
_MIDDLE = 1 << (_SPACE - 1)
TMA_ALIGNMENT = 16
"""Bytes that a tensor's address and its strides are multiples of (CUDA driver API, ``cuTensorMapEncodeTiled``)."""


class OutOfBounds(Exception):
    """An access outside of every buffer."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor as TMA sees it: address in bytes, sizes, strides in elements, outermost first. What a box has outside of
    it is zero, or NaN where ``fills_nan``."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kind: ElementType
    fills_nan: bool = False

    @property
    def unaligned(self) -> str:
        """What TMA would refuse about it; "" where nothing."""
        if self.base % TMA_ALIGNMENT:
            return f"address {self.base:#x}"
        for stride in self.strides[:-1]:
            if stride * self.kind.bytes % TMA_ALIGNMENT:
                return f"stride of {stride * self.kind.bytes} bytes"
        return ""

    def box(self, coordinates: tuple[int, ...], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The addresses of a box of ``shape`` and which of them are inside of the tensor."""
        rank = len(shape)
        address: Any = np.full((1,) * rank, self.base, np.int64)
        inside: Any = np.ones((1,) * rank, bool)
        for axis, (first, count) in enumerate(zip(coordinates, shape, strict=True)):
            index = (first + np.arange(count, dtype=np.int64)).reshape([-1 if a == axis else 1 for a in range(rank)])
            address = address + index * (self.strides[axis] * self.kind.bytes)
            inside = inside & (index >= 0) & (index < self.sizes[axis])
        return np.broadcast_to(address, shape), np.broadcast_to(inside, shape)


class DeviceMemory:
    """``buffers`` are the bytes of each tensor by name; they are written in place."""

    def __init__(self, buffers: Mapping[str, np.ndarray]) -> None:
        self.names = list(buffers)
        self.bytes = [np.ascontiguousarray(buffers[name]).view(np.uint8) for name in self.names]

    def address(self, name: str) -> int:
        """Of the buffer's first byte."""
        return ((self.names.index(name) + 1) << _SPACE) + _MIDDLE

    def load(self, addresses: Array, mask: Array, kind: ElementType) -> np.ndarray:
        """The elements at ``addresses``; those outside of ``mask`` are 0. Raises :class:`OutOfBounds`."""
        addresses = np.asarray(addresses, np.int64)
        bits = np.zeros(addresses.shape, kind.stored)
        for view, here, places in self._parts(addresses, mask, kind):
            bits[here] = view[places]
        return np.asarray(decoded(bits, kind))

    def store(self, addresses: Array, values: Array, mask: Array, kind: ElementType) -> None:
        """Write ``values`` at ``addresses`` where ``mask`` is. Raises :class:`OutOfBounds`."""
        addresses = np.asarray(addresses, np.int64)
        bits = np.broadcast_to(encoded(values, kind).reshape(np.shape(values)), addresses.shape)
        for view, here, places in self._parts(addresses, mask, kind):
            view[places] = bits[here]

    def _parts(self, addresses: np.ndarray, mask: Array, kind: ElementType) -> list[tuple[Any, Any, Any]]:
        """By buffer: its elements, which of ``addresses`` are in it, and where."""
        mask = np.broadcast_to(np.asarray(mask, bool), addresses.shape)
        used = addresses[mask]
        if not used.size:
            return []
        found = []
        numbers = used >> _SPACE
        for number in [numbers[0]] if (numbers == numbers[0]).all() else np.unique(numbers):
            here = mask & (addresses >> _SPACE == number)
            offsets = addresses[here] - ((int(number) << _SPACE) + _MIDDLE)
            self._check(int(number) - 1, offsets, kind)
            data = self.bytes[int(number) - 1]
            view = data[: len(data) // kind.bytes * kind.bytes].view(kind.stored)
            found.append((view, here, offsets // kind.bytes))
        return found

    def _check(self, number: int, offsets: np.ndarray, kind: ElementType) -> None:
        if not 0 <= number < len(self.bytes):
            raise OutOfBounds("an address in no tensor")
        size = len(self.bytes[number])
        outside = offsets[(offsets < 0) | (offsets + kind.bytes > size)]
        if outside.size:
            raise OutOfBounds(f"byte {int(outside[0])} of {self.names[number]}, which has {size}")
        if (offsets % kind.bytes).any():
            raise OutOfBounds(f"an address in {self.names[number]} that is no multiple of {kind.bytes} bytes")
