"""The kernels that can be planned. Importing it needs neither torch nor triton nor a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Protocol

from warpplan.planner.errors import UnknownName
from warpplan.planner.predict.ranking import RankedPlan
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

Shape = tuple[int, ...]


class Kernel(Protocol):
    """What the service needs of a kernel. ``dimensions`` names the sizes of a shape, in order."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def dimensions(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        """The sizes in order. Raises :class:`InvalidShape` naming the first that is missing, unknown or unusable, and
        :class:`UnknownName` for a dtype the kernel does not have."""
        ...

    def rank(
        self,
        shape: Shape,
        dtype: str,
        device: Device,
        profile: Profile,
        *,
        limit: int = 8,
        schemes: tuple[str, ...] | None = None,
    ) -> tuple[RankedPlan, ...]:
        """The ``limit`` best candidates, best first. Raises :class:`Infeasible` where none is left."""
        ...

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile) -> Outcome:
        """The solved loop behind ``config``: partitions, schedule, channels, buffers."""
        ...

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate; what ``kernels.solved_loops`` records to ship."""
        ...


@cache
def _kernels() -> dict[str, Kernel]:
    from warpplan.kernels.gemm.kernel import Gemm

    return {k.name: k for k in (Gemm(),)}


def names() -> tuple[str, ...]:
    return tuple(_kernels())


def kernel(name: str) -> Kernel:
    """The kernel called ``name``; :class:`UnknownName` lists the known ones."""
    try:
        return _kernels()[name]
    except KeyError:
        raise UnknownName("kernel", name, _kernels()) from None
