"""Numbers that a launch passes and a planned kernel needs to be at least 0 or 1, for TMA to stand for its pointers."""

from __future__ import annotations

from collections.abc import Mapping

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument

LEAST = "warpplan_least"
"""Field of a compiled kernel's metadata: the arguments that have to be at least 0 or 1, ``[name, least]`` each."""


def require_least(kernel: CompiledKernel, arguments: Mapping[str, KernelArgument]) -> None:
    """Raise :class:`CannotPlan` where the planned ``kernel`` is not for ``arguments``: a stride of 0, say."""
    for name, least in getattr(kernel.metadata, LEAST, ()):
        value = arguments.get(name)
        if type(value) is not int:
            raise CannotPlan(f"argument {name!r} is no whole number of Python's: no launch can be told by its sign")
        if value < least:
            raise CannotPlan(f"argument {name!r} is {value}: TMA stands for accesses through pointers from {least} on")
