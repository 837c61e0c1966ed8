"""A tuner's list at a launch, and what is kept of it. Imported by the launch, which waits for that: for little else."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision, ListFolder, ListSituation
from warpplan.kernels.compiler.launching.autotuned.list_extend import extended
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import TunedLaunch, jit_of
from warpplan.kernels.compiler.launching.decide import Decider
from warpplan.kernels.compiler.launching.dispatch import current_device
from warpplan.kernels.triton_types import TunerConfig

HOPPER = 9
"""Major compute capability of the GPUs whose predictions compare between tiles."""


@dataclass(frozen=True)
class FoundList:
    """A tuner's pruned list at a launch; ``own`` of ``configs`` are the list's own, the others were added.
    ``decision`` is what is kept of it, ``None`` where it is still to be decided on."""

    situation: ListSituation
    configs: list[TunerConfig]
    own: int
    decision: ListDecision | None

    @property
    def chosen(self) -> TunerConfig | None:
        """The configuration that was decided on; ``None``: Triton's own tuning decides."""
        number = None if self.decision is None else self.decision.config
        return None if number is None else self.configs[number]


class ListLookup:
    """Lists by the terms of ``decider``, which decides on kernels; ``extend`` adds tiles to them, where they can be
    tried."""

    def __init__(self, decider: Decider, *, extend: bool = False) -> None:
        self._decider, self._extend = decider, extend and decider.measures

    def find(self, launch: TunedLaunch, *, takes_provisional: bool = False) -> FoundList | None:
        """The list at ``launch``, and what is kept of it; ``None`` to leave it to Triton. Runs no hook: where Triton
        has tuned before, it runs none but its choice's own. Raises whatever keeps the list from being read,
        :class:`CannotPlan` where that is ours to say."""
        if self._decider.given:  # one plan for all: Triton's winner is launched under it
            return None
        device = current_device()
        if self._decider.capability(device) // 10 != HOPPER:
            return None
        configs = launch.pruned()
        own = len(configs)
        if self._extend:
            configs = extended(configs)
        place = self._decider.place_of(jit_of(launch.tuner), device)
        situation = ListSituation(
            place.kernel, place.source, repr(launch.key), tuple(map(str, configs)), place.device, place.driver,
            place.triton, place.warpplan,
        )  # fmt: skip
        decision = ListFolder(self._decider.folder).load(situation)
        if decision is not None:
            trusted = decision.measured or not self._decider.measures
            if not trusted or (decision.provisional and not takes_provisional):
                decision = None
        return FoundList(situation, configs, own, decision)

    def settle(self, decision: ListDecision) -> ListDecision:
        """Keep ``decision``; what holds from now on."""
        return ListFolder(self._decider.folder).settle(decision)
