"""What can be planned: kernels of our own, and with ``planned`` anyone's. Importing needs neither torch nor Triton."""

from __future__ import annotations

from typing import Any

__all__ = ["PlanWarning", "planned"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from warpplan.kernels.compiler import planned

        return getattr(planned, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
