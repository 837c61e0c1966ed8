"""How one kernel is specialised on Blackwell, where Triton's own specialisation is kept and steered."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.strategy.hopper import MOST_DEPTH
from warpplan.planner.errors import InvalidConfig

APART, TOGETHER, FOUND = "apart", "together", "found"
"""Workers of the TMA loads and of the products: one each, one for both, or what Triton finds best."""


@dataclass(frozen=True)
class Steered:
    """``workers`` is one of ``APART``, ``TOGETHER``, ``FOUND``; ``depth`` the slots of all rings of TMA loads (the
    compile's ``num_stages``); ``stages`` the pipeline stage of products in a worker of their own, by source line, empty
    where Triton schedules; ``double`` is 0 where each product's result has one place in tensor memory, 1 where it may
    have two by turns. Everything else is the default partition's, of the kernel's own warps. Raises
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

    def __str__(self) -> str:
        who = {
            APART: "loads and products apart", TOGETHER: "loads and products together", FOUND: "as Triton finds best",
        }  # fmt: skip
        return (
            f"{who[self.workers]}, {self.depth} slots{', staged' * bool(self.stages)}{', single' * (not self.double)}"
        )
