"""What the background thread and the launches tell each other: launches without their tensors, and choices for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from warpplan.kernels.compiler.background.launch_comparison import LaunchPairs
from warpplan.kernels.compiler.sizes.gain_model import GainModel
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument

PRIOR_GAIN = 1.1
"""What a plan is expected to gain before anything is known of a kernel. Chosen by hand: it orders trials by the time
that a kernel takes, among kernels of which nothing is known."""

Snapshot = Any
"""The arguments of one launch, described so that another process can make them again."""


@dataclass(frozen=True)
class WatchedLaunch:
    """One class of launches, without their tensors. ``call`` is what decides, ``family`` all that it is told from but
    its sizes, ``names`` those of the parameters in the order of a launch's values, ``sizes`` those of its first
    launch, and ``aliases`` the parameters that shared memory in it, pair by pair."""

    call: Any
    name: str
    family: Hashable
    names: tuple[str, ...]
    sizes: LaunchSizes
    aliases: tuple[str, ...] = ()

    def sizes_of(self, grid: tuple[int, ...], values: tuple[KernelArgument, ...]) -> LaunchSizes:
        """The sizes of another launch of the class."""
        integers = tuple((n, v) for n, v in zip(self.names, values, strict=False) if type(v) is int)
        return LaunchSizes(integers, grid)


@dataclass(frozen=True)
class PlanChoice:
    """``kernel`` is the loaded plan, ``None`` where the kernel stays as it is.

    ``final`` says that nothing is left to compare. ``pool`` is the comparison of all launches for which the plan
    was tried once, at the sizes ``reference``; without one the plan was settled on at other sizes: it is used
    at once, and compared now and then. ``model`` predicts its times. ``decision`` is what is kept of it;
    ``predicted`` says that no launch was timed for it: another trial may say otherwise.
    """

    kernel: CompiledKernel | None
    final: bool
    decision: Any = None
    model: GainModel | None = None
    reference: LaunchSizes | None = None
    pool: LaunchPairs | None = None
    predicted: bool = False


@dataclass(frozen=True)
class TrialOutcome:
    """``choice`` of a trial, ``None`` where the machine failed and another may succeed, with the ``reason``, or where
    an ``error`` shows that none will; ``gpu_s`` is what it kept the GPU busy."""

    choice: PlanChoice | None
    gpu_s: float = 0.0
    reason: str = ""
    stopped: bool = False
    error: Exception | None = None


class PlanRunner(Protocol):
    """What looks plans up, tries them and remembers them."""

    needs_arguments: bool
    """Whether a trial runs on copies of a launch's arguments, and takes GPU time."""

    def known(self, launch: WatchedLaunch) -> PlanChoice | None:
        """What this process knows already, in well below 50 ms: called in a launch."""

    def find(self, launch: WatchedLaunch, unplanned: CompiledKernel) -> PlanChoice | None:
        """What is kept anywhere. In the background."""

    def snapshot(self, launch: WatchedLaunch, grid: tuple[int, ...], values: tuple[KernelArgument, ...]) -> Snapshot:
        """One launch of the class, with its arguments as they are now. Called in it, before it runs."""

    def try_plans(
        self, launch: WatchedLaunch, unplanned: CompiledKernel, snapshot: Snapshot, stop: Callable[[], bool]
    ) -> TrialOutcome:
        """Try plans in a child process, and keep what is found. In the background."""

    def expected_gain(self, launch: WatchedLaunch) -> float:
        """What a plan is predicted to gain, ``PRIOR_GAIN`` where nothing is known."""

    def settle(self, launch: WatchedLaunch, choice: PlanChoice, times: tuple[float, float] | None) -> None:
        """Keep the times that the job's own launches took, planned and as it is; without any, what the trial found
        stands. In the background."""

    def left(self, launch: WatchedLaunch, error: Exception) -> None:
        """Say once that a kernel stays as it is, and why."""
