"""The protocol of strategies: what a plan for one kernel comes down to, whatever the GPU's generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Protocol, TypeVar, runtime_checkable

from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import InvalidInput, MalformedFile

MOST_DEPTH = 8
"""Slots of a ring at most: with more, tiles of any useful size no longer fit into shared memory."""


@runtime_checkable
class Strategy(Protocol):
    """How one kernel is warp-specialised. Implementations are frozen dataclasses: equal where all fields are."""

    @property
    def architecture(self) -> int:
        """Major compute capability of the GPUs that it is for: 9 is Hopper, 10 Blackwell."""

    @property
    def options(self) -> Mapping[str, int]:
        """The options of Triton's compile that it changes."""

    @property
    def key(self) -> str:
        """What tells its compiles from another strategy's: part of a folder's name."""

    @property
    def partitioning(self) -> str:
        """Which partitions there are. A plan of one strategy shows others of the same partitioning, too."""

    @property
    def family(self) -> tuple[int | str, ...]:
        """Equal for strategies that differ so little that they are measured alike: in the depth of their rings."""

    @property
    def complexity(self) -> tuple[int, ...]:
        """Partitions, warps, slots: of equal predictions the simpler strategy is preferred."""

    @property
    def walking_programs(self) -> int:
        """Programs that are launched on each SM and walk over the grid; 0 where all programs of the grid are."""

    @property
    def stores_by_tma(self) -> bool:
        """Whether TMA stores what the kernel stores of its products through pointers, where that is proven."""

    @property
    def pipelined(self) -> bool:
        """Whether loops are pipelined by the lowering, and Triton's own pipeliner leaves them as they are."""

    @property
    def scheduled(self) -> bool:
        """Whether operations have their pipeline stages already, and Triton's pipeliner keeps to them."""

    def ring_depths(self, loops: int) -> tuple[int, ...]:
        """Slots of the rings of each of ``loops`` loops that load through TMA, in the order of the program."""

    def partitions_outside(self, kind: str) -> tuple[str, ...]:
        """The partitions of work of ``kind`` that no loop's plan places; none where Triton places it."""

    def require(self, capability: int) -> None:
        """Raise :class:`CannotPlan` for a GPU of compute ``capability`` (major · 10 + minor) that it is not for."""

    def lower(self, text: str) -> str:
        """The module ``text`` at the cut, specialised. Raises :class:`CannotPlan` where that kernel cannot be, and
        :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR` for text that Triton did not print."""

    def to_json(self) -> dict[str, Json]:
        """Its fields as JSON. :func:`~warpplan.kernels.compiler.strategy.recorded.strategy_from_json` reads them."""


S = TypeVar("S", bound=Strategy)


def from_fields(kind: type[S], value: Mapping[str, Json], lists: Mapping[str, Json], where: object) -> S:
    """The strategy of ``kind`` with the fields ``value``, those in ``lists`` made tuples. Raises
    :class:`MalformedFile` naming ``where``."""
    unknown = set(value) - {field.name for field in fields(kind)}  # type: ignore[arg-type]  # each is a dataclass
    if unknown:
        raise MalformedFile(where, f"a scheme has no field {min(unknown)!r}", field="scheme")
    try:
        return kind(**{**value, **{name: tuple(items) for name, items in lists.items()}})
    except (TypeError, InvalidInput) as error:
        raise MalformedFile(where, str(error), field="scheme") from None
