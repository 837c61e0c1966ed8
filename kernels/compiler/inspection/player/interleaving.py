"""Who goes on when: partitions as generators, and asynchronous operations that are done some time later.

A partition yields where it may be interrupted; what it yields says when it can go on. Which partition goes on, and
which copy lands, is drawn from a seed. Two seeds are extremes: 0 lets copies land as late as anybody can wait for them
and runs the last partition, our producer, as far ahead as it gets; 1 lands them at once and runs the first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault

LATE, EAGER = 0, 1
MOST_SPINS = 200
"""Times that partitions look into memory for something to change, before another program of the grid is started."""
MOST_ROUNDS = 200_000
"""Steps of one play; a kernel of the corpus takes some thousands."""


@dataclass(frozen=True)
class Pause:
    """``until`` says whether the partition can go on; ``told`` what it waits for; ``spins``: it looked into memory that
    others change."""

    until: Callable[[], bool] | None = None
    told: str = ""
    spins: bool = False


Steps = Generator[Pause, None, None]
GO_ON = Pause()


@dataclass(eq=False)
class Landing:
    """Something under way: ``land`` does it; it cannot be done before ``ready``. ``awaited`` names what somebody has to
    wait for, because it writes the program's shared memory."""

    land: Callable[[], None]
    ready: Callable[[], bool] = lambda: True
    landed: bool = False
    awaited: str = ""

    def finish(self) -> None:
        """Do it, if that is still to come."""
        if not self.landed:
            self.landed = True
            self.land()


class Interleaving:
    """Runs partitions to their ends, drawing from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.steps: dict[str, Steps] = {}
        self.pauses: dict[str, Pause] = {}
        self.flying: list[Landing] = []
        self.rounds = 0

    def start(self, name: str, steps: Steps) -> None:
        self.steps[name], self.pauses[name] = steps, GO_ON

    def fly(self, landing: Landing) -> Landing:
        """Have it done some time."""
        self.flying.append(landing)
        return landing

    def runs(self, name: str) -> bool:
        """Whether that partition has not come to its end."""
        return name in self.steps

    def run(self, another: Callable[[], bool]) -> None:
        """Until all have come to their ends; ``another`` starts one more program, if there is one. Raises
        :class:`KernelFault` where all wait for one another."""
        spins = 0
        while self.steps:
            self.rounds += 1
            if self.rounds > MOST_ROUNDS:
                raise KernelFault("hang", f"no end after {MOST_ROUNDS:,} steps")
            self.flying = [landing for landing in self.flying if not landing.landed]
            ready = [name for name, pause in self.pauses.items() if pause.until is None or pause.until()]
            if self._lands(bool(ready)):
                continue
            if not ready:
                if another():
                    continue
                told = "; ".join(f"{name} for {pause.told}" for name, pause in sorted(self.pauses.items()))
                raise KernelFault("hang", f"waiting for one another: {told}")
            pause = self._step(self._chosen(ready))
            spins = spins + 1 if pause is not None and pause.spins else spins
            if spins > MOST_SPINS:
                spins = 0
                another()
        for landing in self.flying:
            if landing.awaited and not landing.landed:
                raise KernelFault("unwaited", f"{landing.awaited} is under way when its program has ended")

    def _chosen(self, ready: list[str]) -> str:
        if self.seed == LATE:
            return ready[-1]
        return ready[0] if self.seed == EAGER else self.draw.choice(ready)

    def _lands(self, somebody_runs: bool) -> bool:
        landing = [each for each in self.flying if each.ready()]
        if not landing or (somebody_runs and (self.seed == LATE or (self.seed > EAGER and self.draw.random() > 0.4))):
            return False
        self.draw.choice(landing).finish()
        return True

    def _step(self, name: str) -> Pause | None:
        try:
            pause = next(self.steps[name])
        except StopIteration:
            del self.steps[name], self.pauses[name]
            return None
        self.pauses[name] = pause
        return pause
