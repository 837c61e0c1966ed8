"""Warp specialisation on Blackwell: Triton's own pass is kept, and steered by attributes of loops and operations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.strategy.protocol import MOST_DEPTH, Strategy, from_fields
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import InvalidConfig, MalformedFile

if TYPE_CHECKING:
    from warpplan.kernels.compiler.lowering.blackwell.annotate import Roles

APART, TOGETHER, FOUND = "apart", "together", "found"
"""Workers of the TMA loads and of the products: one each, one for both, or what Triton finds best."""
REST = "default"
"""The partition of the kernel's own warps."""
BLACKWELL = 10
"""Major compute capability."""


@dataclass(frozen=True)
class BlackwellStrategy(Strategy):
    """``workers`` is one of ``APART``, ``TOGETHER``, ``FOUND``; ``depth`` the slots of all rings of TMA loads (the
    compile's ``num_stages``); ``stages`` the pipeline stage of products in a worker of their own, by source line, empty
    where Triton schedules; ``double`` is 0 where each product's result has one place in tensor memory, 1 where it may
    have two that alternate. Everything else is the default partition's, of the kernel's own warps. Raises
    :class:`InvalidConfig` naming the field.
    """

    workers: str = APART
    depth: int = 3
    stages: tuple[tuple[str, int], ...] = ()
    double: int = 1

    def __post_init__(self) -> None:
        if self.workers not in (APART, TOGETHER, FOUND):
            raise InvalidConfig(
                f"workers {self.workers!r}: expected {APART}, {TOGETHER} or {FOUND}",
                field="workers", value=self.workers, limit=[APART, TOGETHER, FOUND],
            )  # fmt: skip
        if not 1 <= self.depth <= MOST_DEPTH:
            raise InvalidConfig(
                f"depth {self.depth}: expected 1 to {MOST_DEPTH}", field="depth", value=self.depth, limit=MOST_DEPTH
            )
        if self.stages and self.workers != APART:
            raise InvalidConfig(
                f"stages with workers {self.workers!r}: expected {APART}; Triton 3.6 fails on loads that are pipelined "
                "beside products", field="stages", value=self.workers, limit=APART,
            )  # fmt: skip
        if self.double not in (0, 1) or (not self.double and self.workers != APART):
            raise InvalidConfig(
                f"double {self.double} with workers {self.workers!r}: expected 1, or 0 with {APART}; one worker that "
                "loads and multiplies hangs with a single place for its results", field="double", value=self.double,
            )  # fmt: skip
        if any(stage < 0 for _, stage in self.stages):
            raise InvalidConfig(f"stages {self.stages}: expected 0 or more", field="stages")

    @property
    def architecture(self) -> int:
        return BLACKWELL

    @property
    def options(self) -> Mapping[str, int]:
        return {"num_stages": self.depth}

    @property
    def key(self) -> str:
        staged = f"-{hashlib.sha256(repr(self.stages).encode()).hexdigest()[:16]}" if self.stages else ""
        return f"{self.workers}-{self.depth}-{self.double}{staged}"

    @property
    def partitioning(self) -> str:
        return self.workers

    @property
    def family(self) -> tuple[int | str, ...]:
        return self.workers, bool(self.stages)

    @property
    def complexity(self) -> tuple[int, ...]:
        return (APART, TOGETHER, FOUND).index(self.workers), self.depth, self.double, len(self.stages)

    @property
    def walking_programs(self) -> int:
        return 0

    @property
    def stores_by_tma(self) -> bool:
        return False

    @property
    def pipelined(self) -> bool:
        return False

    @property
    def scheduled(self) -> bool:
        return bool(self.stages)

    def ring_depths(self, loops: int) -> tuple[int, ...]:
        return (self.depth,) * loops

    def partitions_outside(self, kind: str) -> tuple[str, ...]:
        return (REST,) if self.workers != FOUND else ()

    def require(self, capability: int) -> None:
        if capability // 10 != BLACKWELL:
            raise CannotPlan(f"sm_{capability}: only sm_100 and sm_103 have tensor memory")

    def roles(self) -> Roles | None:
        """What the lowering writes into a loop; ``None`` where Triton finds partitions itself."""
        # Imported here, for a job that only names a strategy needs no lowering.
        from warpplan.kernels.compiler.lowering.blackwell.annotate import Roles

        if self.workers == FOUND:
            return None
        return Roles(1 if self.workers == TOGETHER else 2, 1, dict(self.stages), bool(self.double))

    def lower(self, text: str) -> str:
        from warpplan.kernels.compiler.lowering.blackwell.annotate import annotate

        return annotate(text, self.roles())

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json], where: object) -> BlackwellStrategy:
        """Raises :class:`MalformedFile` naming ``where``."""
        found = value.get("stages", ())
        pairs = isinstance(found, (list, tuple)) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in found)
        if not pairs or not all(isinstance(line, str) and type(stage) is int for line, stage in found):
            raise MalformedFile(
                where, f"stages {found!r}: expected pairs of a source line and a number", field="scheme"
            )
        return from_fields(cls, value, {"stages": [tuple(pair) for pair in found]}, where)

    def __str__(self) -> str:
        who = {
            APART: "loads and products apart", TOGETHER: "loads and products together", FOUND: "as Triton finds best",
        }  # fmt: skip
        staged = ", staged " + " ".join(f"({line}) {stage}" for line, stage in self.stages) if self.stages else ""
        return f"{who[self.workers]}, {self.depth} slots{staged}{', single' * (not self.double)}"
