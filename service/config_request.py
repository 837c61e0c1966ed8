"""What is asked for: a kernel at a shape, dtype and device, checked; the key under which the store keeps an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from warpplan.kernels.declaration import Shape, options_of


@dataclass(frozen=True)
class ConfigRequest:
    """A checked question. ``canonical`` has the sizes in the order of ``dimensions``, then the options that are not at
    their defaults, as kernels take it; ``device`` is the GPU's full name."""

    kernel: str
    dimensions: tuple[str, ...]
    canonical: Shape
    dtype: str
    device: str

    @classmethod
    def read(cls, kernel: str, shape_json: str, dtype: str, device: str) -> ConfigRequest:
        """The question whose :attr:`shape_json` is kept."""
        shape: dict[str, int | str] = json.loads(shape_json)
        sizes = {name: value for name, value in shape.items() if not isinstance(value, str)}
        options = (f"{name}={value}" for name, value in shape.items() if isinstance(value, str))
        return cls(kernel, tuple(sizes), (*sizes.values(), *options), dtype, device)

    @property
    def shape(self) -> dict[str, int | str]:
        """The sizes by name, then the options that are not at their defaults."""
        sizes = (value for value in self.canonical if not isinstance(value, str))
        return {**dict(zip(self.dimensions, sizes, strict=True)), **options_of(self.canonical)}

    @property
    def shape_json(self) -> str:
        """The one text of the shape, under which it is kept: the order of :attr:`shape`, no spaces."""
        return json.dumps(self.shape, separators=(",", ":"))

    @property
    def shape_text(self) -> str:
        """``M=4096 N=4096 K=4096 layout=nn``, as people type it."""
        return " ".join(f"{name}={value}" for name, value in self.shape.items())

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.shape_text} {self.dtype}"


def canonical_json(value: object) -> bytes:
    """``value`` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
