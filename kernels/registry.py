"""The kernels that can be planned. Importing it needs neither torch nor triton nor a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from warpplan.kernels.declaration import Declaration, Shape
from warpplan.planner.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from warpplan.planner.predict.alternatives import RankedCandidates, RankedLoop
    from warpplan.planner.predict.ranking import RankedPlan
    from warpplan.planner.values.device import Device
    from warpplan.planner.values.plan import Outcome
    from warpplan.planner.values.profile import Profile
    from warpplan.planner.values.tuning import TuningConfig

_KERNELS: dict[str, str] = {
    "gemm": "warpplan.kernels.gemm.kernel:Gemm",
    "gemm_bias_act": "warpplan.kernels.gemm_bias_act.kernel:GemmBiasAct",
    "grouped_gemm": "warpplan.kernels.grouped_gemm.kernel:GroupedGemm",
    "attention_fwd": "warpplan.kernels.attention_fwd.kernel:AttentionFwd",
    "attention_decode": "warpplan.kernels.attention_decode.kernel:AttentionDecode",
    "attention_bwd": "warpplan.kernels.attention_bwd.kernel:AttentionBwd",
    "vector_add": "warpplan.kernels.vector_add.kernel:VectorAdd",
}
"""Name → ``module:class``; imported when it is first asked for. Adding a kernel adds a line."""

DEFAULT = "gemm"
"""The kernel that is meant where a batch item or a line of a file names none."""


class Kernel(Protocol):
    """What the service needs of a kernel. A shape is its sizes in the order of the declaration's fields, then its
    options that are not at their defaults: ``declaration.sizes(shape)`` and ``declaration.chosen(shape)`` read it."""

    @property
    def declaration(self) -> Declaration: ...

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        """The shape that sizes and options by their names make. Raises :class:`InvalidShape` naming the first that is
        missing, unknown or unusable, and :class:`UnknownName` for a dtype the kernel does not have."""
        ...

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        """The ``limit`` best candidates, best first. Raises :class:`Infeasible` where there is none."""
        ...

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """The solved loop behind a configuration that came from outside: partitions, schedule, channels, buffers.

        Of ``shape`` the options alone count: they may make it another loop. Sizes do not, and without it every option
        is at its default. Raises :class:`InvalidConfig` where the kernel cannot run it. (A candidate of :meth:`rank`
        has its own :attr:`~warpplan.planner.predict.ranking.RankedPlan.solve`.)
        """
        ...

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The same with its graph: what ``warpplan explain`` draws."""
        ...

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> RankedCandidates | None:
        """The best candidates of unlike structures, to be compared number by number; ``None`` for a kernel that does
        not use the time model of :mod:`warpplan.planner.predict.time_model`."""
        ...

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate; what ``kernels.solved_loops`` records to ship."""
        ...


def names() -> tuple[str, ...]:
    """The names of all kernels; imports none of them."""
    return tuple(_KERNELS)


def register(name: str, place: str) -> None:
    """Add the kernel at ``module:class`` for this process. Kernels of this package have their line in this module.

    Raises :class:`InvalidInput` for a place of another form, and for a name that stands for another kernel."""
    if not re.fullmatch(r"[\w.]+:\w+", place):
        raise InvalidInput(f"kernel {name!r} at {place!r}: expected module:class", field="kernel", value=place)
    if _KERNELS.setdefault(name, place) != place:
        raise InvalidInput(
            f"kernel {name!r} is {_KERNELS[name]} already: register {place} by another name", field="kernel", value=name
        )


def kernel(name: str) -> Kernel:
    """The kernel called ``name``; :class:`UnknownName` lists the known ones."""
    if name not in _KERNELS:
        raise UnknownName("kernel", name, _KERNELS)
    return _load(name, _KERNELS[name])


def declarations() -> tuple[Declaration, ...]:
    """What every kernel says about itself."""
    return tuple(kernel(name).declaration for name in names())


@cache
def _load(name: str, place: str) -> Kernel:
    module, _, attribute = place.partition(":")
    found = cast(Kernel, getattr(import_module(module), attribute)())
    if found.declaration.name != name:
        raise ValueError(f"the kernel at {place} is registered as {name!r} and declares {found.declaration.name!r}")
    return found
