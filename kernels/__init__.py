"""What can be planned: kernels of our own, and with ``planned`` anyone's. Importing needs neither torch nor Triton."""

from __future__ import annotations

from typing import Any

__all__ = ["PlanWarning", "planned", "planned_inductor", "tma_templates"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("planned_inductor", "tma_templates"):
        from warpplan.kernels.compiler.launching import inductor as module
    else:
        from warpplan.kernels.compiler.launching import planned as module  # type: ignore[no-redef]
    return getattr(module, name)
