"""A tuner's list at a launch, and what is kept of it. Imported by the launch, which waits for that: for little else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision, ListFolder, ListSituation
from warpplan.kernels.compiler.launching.autotuned.list_extend import extended
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import TunedLaunch
from warpplan.kernels.compiler.launching.decide import Decider
from warpplan.kernels.compiler.launching.decisions import Situation
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
        """The list at ``launch`` and what is kept of it; ``None`` to leave it to Triton. Raises whatever keeps it from
        being read, :class:`CannotPlan` where that is ours to say."""
        if self._decider.given:  # one plan for all: Triton's winner is launched under it
            return None
        configs = launch.pruned()
        # A hook sets what its configuration's launch is bound to.
        launch.hook(configs[0])
        first = launch.call(configs[0])
        if self._decider.capability(first.device) // 10 != HOPPER:
            return None
        own = len(configs)
        if self._extend:
            configs = extended(configs)
        situation = self._situation(self._decider.situation(first), launch, configs)
        decision = ListFolder(self._decider.folder).load(situation)
        if decision is not None:
            trusted = decision.measured or not self._decider.measures
            if not trusted or (decision.provisional and not takes_provisional):
                decision = None
        return FoundList(situation, configs, own, decision)

    def settle(self, decision: ListDecision) -> ListDecision:
        """Keep ``decision``; what holds from now on."""
        return ListFolder(self._decider.folder).settle(decision)

    def _situation(self, of_first: Situation, launch: TunedLaunch, configs: Sequence[TunerConfig]) -> ListSituation:
        return ListSituation(
            of_first.kernel, of_first.source, repr(launch.key), tuple(map(str, configs)), of_first.device,
            of_first.driver, of_first.triton, of_first.warpplan,
        )  # fmt: skip
