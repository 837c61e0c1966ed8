"""What is asked for: a kernel at a shape, dtype and device, checked; the key under which the store keeps an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ConfigRequest:
    """A checked question. ``sizes`` are in the order of ``dimensions``; ``device`` is the GPU's full name."""

    kernel: str
    dimensions: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    device: str

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.dimensions, self.sizes, strict=True))

    @property
    def shape_json(self) -> str:
        """The one text of the shape, under which it is kept: the kernel's order of dimensions, no spaces."""
        return json.dumps(self.shape, separators=(",", ":"))

    @property
    def label(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"{self.kernel} {sizes} {self.dtype}"


def canonical_json(value: object) -> bytes:
    """``value`` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
