"""A tuning configuration: exactly the fields of ``triton.Config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Scalar = int | str | bool


@dataclass(frozen=True)
class TuningConfig:
    """What a launch needs beyond its arguments.

    ``kwargs`` holds (name, value) pairs in the kernel's own constexpr names, sorted by name; partition and buffers
    ride in it. ``maxnreg`` is ``None`` where the compiler decides.
    """

    kwargs: tuple[tuple[str, Scalar], ...]
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    maxnreg: int | None = None

    @classmethod
    def of(
        cls,
        kwargs: Mapping[str, Scalar],
        *,
        num_warps: int,
        num_stages: int,
        num_ctas: int = 1,
        maxnreg: int | None = None,
    ) -> TuningConfig:
        return cls(tuple(sorted(kwargs.items())), num_warps, num_stages, num_ctas, maxnreg)

    def as_dict(self) -> dict[str, object]:
        """The fields by Triton's names, ``kwargs`` as a dict: ready for ``triton.Config(**…)`` or JSON."""
        return {
            "kwargs": dict(self.kwargs),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "num_ctas": self.num_ctas,
            "maxnreg": self.maxnreg,
        }
