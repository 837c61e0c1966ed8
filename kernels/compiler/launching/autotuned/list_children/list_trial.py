"""The child's side of a list's trial: check each planned kernel against its own configuration as it is, time them all.

What happens is streamed item by item, so that what was found outlives a child that is killed:

    {"step": "start"}                          the GPU answers
    {"step": "check", "candidate": 3}          about to run; a child that dies here dies of that
    {"step": "right", "candidate": 3}          ran, and planned computes what it computes as it is
    {"step": "failed", "candidate": 3, …}      why not, in one line
    {"step": "time"}                           all that are right are timed, each in turn
    {"step": "untimed", "candidate": 3, …}     its timing failed, in one line; the others are timed without it
    {"step": "times", "us": {"3": …}}          medians of one process, over memory that is not left in L2; beside a
                                               job 10th percentiles
    {"step": "times", "us": {"3": …}}          those that lie close, timed again, each alone for a while: these count;
                                               not beside a job, whose own launches do

``gpu_s`` in "right", "failed" and "times" are the seconds for which it kept the GPU busy at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching.arguments import Copies, bytes_of
from warpplan.kernels.compiler.launching.decisions import Compiled
from warpplan.kernels.compiler.launching.trial import Bench, rehearse
from warpplan.kernels.triton_types import CompiledKernel, Json, KernelArgument
from warpplan.planner.errors import MeasurementFailed

Item = dict[str, Json]
Candidates = Sequence[dict[str, Json]]

ROUNDS, WARM_S = 10, 0.2
"""Rounds in which all are timed in turn, and seconds of such launches before the first that is timed: it tells who may
be the fastest. Chosen by hand."""
BRIEF_ROUNDS, BRIEF_ROUND_MS, BRIEF_WARM_S, BRIEF_SETS = 20, 1.0, 0.02, 2
"""The same beside a busy job, with the milliseconds of a round and the sets of arguments: short enough for some rounds
to be over before the GPU turns to the job, so that a low percentile is a time without it. The job's own launches say
whether what is chosen is faster. Chosen by hand."""
FINAL_ROUNDS = 3
"""Rounds in which those that lie close are timed again. Chosen by hand."""
SETTLE_S = 0.06
"""Seconds that each of them runs alone before it is read: on a card at its power limit the clock follows what a kernel
draws, some 50 ms later. Chosen by hand."""
NEAR, MOST_FINALISTS = 1.06, 4
"""Candidates within this factor of the fastest are timed again, at most this many. Chosen by hand: twice as far takes
in candidates that a shared clock cannot have put in the wrong order, and lengthens the first launch."""


def open_gpu(device: int) -> None:
    """Make a context on the GPU of that number, import Triton, and do once what a trial does."""
    import torch
    from triton.runtime import driver

    torch.cuda.set_device(device)
    driver.active.get_current_target()
    rehearse()
    torch.cuda.synchronize()


def tried(request: dict[str, Json]) -> Iterator[Item]:
    """Items for ``request``: ``candidates``, each with ``kernel`` (packed, its files under ``compiled``), ``launch``
    (``arguments``, ``grid``, ``device``) and ``planned`` (files, or ``None`` for the kernel as it is), ``against`` (the
    number of the candidate that it is compared with, or ``None``); ``right``, the numbers of those that another child
    has checked; ``dropped``, of those that are out; ``resets``; ``beside``, whether the job runs on meanwhile."""
    import torch

    candidates, resets, beside = request["candidates"], request["resets"], request["beside"]
    benches = {
        number: benched(candidate, resets, beside=beside)
        for number, candidate in enumerate(candidates) if number not in request["dropped"]
    }  # fmt: skip
    yield {"step": "start"}
    for number in [n for n in benches if n not in request["right"]]:
        yield {"step": "check", "candidate": number}
        began = None
        try:
            kernel, against = _planned(candidates[number]), _against(candidates[number], benches)
            benches[number].load(kernel)
            began = time.monotonic()
            benches[number].run_and_check(kernel, against)
        except Exception as error:
            if "CUDA error" in str(error) or type(error).__name__ == "OutOfMemoryError":
                raise  # the context, or the memory, is lost: whatever this process did next would fail for it
            del benches[number]
            reason = reason_of(error, CannotPlan)
            yield {"step": "failed", "candidate": number, "reason": reason, "gpu_s": _since(began)}
        else:
            yield {"step": "right", "candidate": number, "gpu_s": _since(began)}
    yield {"step": "time"}
    planned = {number: _planned(candidates[number]) for number in benches}
    for number, bench in benches.items():
        bench.load(planned[number])
    began = time.monotonic()
    while True:
        try:
            us = times_beside(benches, planned) if beside else times(benches, planned)
        except MeasurementFailed as error:
            if error.field != "candidate" or "CUDA error" in str(error):
                raise
            number = int(str(error.value))
            del benches[number]
            yield {"step": "untimed", "candidate": number, "reason": reason_of(error, MeasurementFailed)}
        else:
            break
    yield {"step": "times", "us": us, "gpu_s": _since(began)}
    if len(last := finalists(us)) > 1 and not beside:
        close = {n: benches[n] for n in last}
        yield {"step": "times", "us": times(close, planned, rounds=FINAL_ROUNDS, warm_s=0.0, settle_s=SETTLE_S)}
    torch.cuda.empty_cache()  # the job may want the memory before this process has ended


def _since(began: float | None) -> float:
    return 0.0 if began is None else time.monotonic() - began


def finalists(us: Mapping[str, float]) -> list[int]:
    """The fastest and those that lie close to it, by their numbers. Timed in turn, the clock is one that power allows
    the mix: candidates that draw little lend it to those that draw much, and the order may turn."""
    order = sorted(us, key=lambda name: us[name])
    return [int(name) for name in order if us[name] <= NEAR * us[order[0]]][:MOST_FINALISTS]


def _against(candidate: dict[str, Json], benches: Mapping[int, ListBench]) -> ListBench | None:
    """The configuration of the list that one that was added to it is compared with."""
    number = candidate["against"]
    if number is not None and number not in benches:
        raise CannotPlan("no configuration of the list is left to compare it with")
    return None if number is None else benches[number]


def benched(candidate: dict[str, Json], resets: dict[str, Json], *, beside: bool = False) -> ListBench:
    """A bench of one of :func:`tried`'s candidates."""
    return ListBench(candidate["kernel"], candidate["launch"], resets, beside=beside)


def _planned(candidate: dict[str, Json]) -> CompiledKernel | None:
    files = candidate["planned"]
    if files is None:
        return None
    compiled = Compiled(files["hash"], tuple(map(tuple, files["files"])))
    return packing.load(compiled, packing.source(candidate["kernel"]))


class ListBench(Bench):
    """One configuration, with what its tuner does to arguments before each launch: ``resets`` has ``zero`` and
    ``restore``, names of tensors, and ``integers``, whether those of whole numbers are restored."""

    def __init__(
        self, kernel: dict[str, Json], launch: dict[str, Json], resets: dict[str, Json], *, beside: bool = False
    ) -> None:
        self._names, self._resets = list(kernel["arg_names"]), resets
        super().__init__(kernel, launch, beside=beside)

    def load(self, planned: CompiledKernel | None) -> None:
        """Make the launchers, which takes this process a while and the GPU nothing."""
        self._unplanned.run  # noqa: B018  # loads it
        if planned is not None:
            planned.run  # noqa: B018

    def run_and_check(self, planned: CompiledKernel | None, against: ListBench | None = None) -> None:
        """Run the kernel as it is, and compare what it computes with ``against``; or what ``planned`` computes with
        it. Raises :class:`CannotPlan`."""
        if planned is not None:
            self.check(planned)
        elif against is None:
            self._launch(self._unplanned, self._copies())
        else:
            self.check_against(against, self._unplanned)

    def launch_on(self, planned: CompiledKernel | None, copies: Copies) -> None:
        """Launch without waiting."""
        self._launch(planned or self._unplanned, copies, wait=False)

    def on(self, memory: Copies) -> ResetCopies:
        """This configuration's arguments in ``memory``."""
        return self._made(memory=memory)

    def sets(self, wanted: int) -> int:
        """How many sets of arguments fit into memory."""
        return self._require_memory(wanted)

    @property
    def bytes(self) -> int:
        return bytes_of(self._arguments)

    def _copies(self, seed: int = 0) -> ResetCopies:
        return self._made(seed=seed)

    def _made(self, seed: int = 0, memory: Copies | None = None) -> ResetCopies:
        return ResetCopies(
            self._arguments, self._names, self._resets, seed=seed, magnitude=self.magnitude, memory=memory
        )

    def _launch(self, kernel: CompiledKernel, copies: Copies, *, wait: bool = True) -> None:
        if isinstance(copies, ResetCopies):
            copies.reset()
        super()._launch(kernel, copies, wait=wait)


class ResetCopies(Copies):
    """Copies that go back to what a launch is to find."""

    def __init__(
        self, description: dict[str, Json], names: Sequence[str], resets: dict[str, Json], *, device: str = "cuda",
        seed: int = 0, magnitude: float = 1.0, memory: Copies | None = None,
    ) -> None:  # fmt: skip
        super().__init__(description, device=device, seed=seed, magnitude=magnitude, memory=memory)
        self._zeroed = [
            _tensor(value) for name, value in zip(names, self.values, strict=True) if name in resets["zero"]
        ]
        restored = {
            argument.get("base", argument)["storage"]
            for name, argument in zip(names, description["arguments"], strict=True)
            if name in resets["restore"]
        }
        if resets["integers"]:
            restored |= {i for i, storage in enumerate(description["storages"]) if storage["file"] is not None}
        if isinstance(memory, ResetCopies):
            self._saved: dict[int, KernelArgument] = memory._saved
        else:
            self._saved = {i: self._buffers[i].clone() for i in sorted(restored)}

    def reset(self) -> None:
        """Zero and restore, on the current stream."""
        for number, saved in self._saved.items():
            self._buffers[number].copy_(saved)
        for tensor in self._zeroed:
            tensor.zero_()


def _tensor(value: KernelArgument) -> KernelArgument:
    """The tensor that an argument is, or that a descriptor is of."""
    return getattr(value, "base", value) if hasattr(value, "block_shape") else value


def times(
    benches: Mapping[int, ListBench], planned: Mapping[int, CompiledKernel | None], *, rounds: int = ROUNDS,
    warm_s: float = WARM_S, settle_s: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """Median microseconds of each, resets included, as in Triton's own benchmark; measured in turn on the same sets of
    arguments, over enough of them that none is left in L2, after ``warm_s`` seconds of all, and ``settle_s`` of each
    before it is read."""
    import torch

    from warpplan.kernels.timing import input_sets, paired

    if not benches:
        return {}
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    calls, sets = _calls(benches, planned, input_sets(max(1, next(iter(benches.values())).bytes), l2))
    found = paired(calls, sets=sets, rounds=rounds, warm_s=warm_s, settle_s=settle_s)
    return {name: timing.median_us for name, timing in found.items()}


def times_beside(benches: Mapping[int, ListBench], planned: Mapping[int, CompiledKernel | None]) -> dict[str, float]:
    """The same while a job uses the GPU, in brief: 10th percentiles, for the GPU turns to the job in many a round."""
    from warpplan.kernels.timing import paired

    if not benches:
        return {}
    calls, sets = _calls(benches, planned, BRIEF_SETS)
    found = paired(calls, sets=sets, rounds=BRIEF_ROUNDS, round_ms=BRIEF_ROUND_MS, warm_s=BRIEF_WARM_S)
    return {name: timing.p10_us for name, timing in found.items()}


def _calls(
    benches: Mapping[int, ListBench], planned: Mapping[int, CompiledKernel | None], wanted: int
) -> tuple[dict[str, Callable[[int], object]], int]:
    """Launches of each of ``benches`` on the same sets of arguments, and how many of the ``wanted`` sets there are."""
    first = next(iter(benches.values()))
    first.magnitude = min(bench.magnitude for bench in benches.values())
    count = first.sets(wanted)
    memory = [first._copies(97 * i) for i in range(count)]
    arguments = {number: [bench.on(each) for each in memory] for number, bench in benches.items()}

    def launches(number: int) -> Callable[[int], object]:
        return lambda at: benches[number].launch_on(planned[number], arguments[number][at])

    return {str(number): launches(number) for number in benches}, count
