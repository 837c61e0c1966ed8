"""The child's side: compile each scheme of a kernel, run it on copies of the arguments, compare, time.

Runs in a process of its own, because a wrong plan hangs, crashes or writes anywhere. What happens is streamed item by
item, so that what was found outlives a child that is killed:

    {"step": "plan", "schemes": […], …}       what will be tried, with the models of their gains at other sizes
    {"scheme": {…}, "step": "compile"}        it is being compiled; a child that dies here dies of that
    {"scheme": {…}, "step": "run", …}         compiled, with its files; about to run for the first time
    {"scheme": {…}, "step": "done", …}        right, with the times of both kernels
    {"scheme": {…}, "step": "failed", …}      why not, in one line

``gpu_s`` in the last two are the seconds from "run" on: what the trial kept the GPU busy at most.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.compiler.launching import arguments
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching.arguments import Copies, bytes_of
from warpplan.kernels.compiler.launching.decisions import Compiled
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.torch_types import Dtype, Tensor
from warpplan.kernels.triton_types import CompiledKernel, Json
from warpplan.planner.errors import MeasurementFailed

if TYPE_CHECKING:
    from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy
    from warpplan.kernels.compiler.sizes.gain_model import GainModel

Item = dict[str, Json]

ROUNDINGS = 8
"""Results may differ by this many roundings of the output's type: a plan may add in another order."""
FINEST = 2.0**-17
"""Roundings of float32 and finer results count as this much: tensor cores add 16-bit products less finely."""
MAGNITUDES = (1.0, 2.0**-4, 2.0**-8)
"""Standard deviations of the random floating-point inputs, tried in turn until most of what a kernel computes is
finite: recurrences and exponentials overflow on the first. Chosen by hand."""
MEMORY_SHARE = 0.8
"""Of the GPU's free memory, what a trial may take that the job waits for; beside a job that may want more meanwhile it
is :data:`~.arguments.MEMORY_SHARE`."""
ROUNDS, ROUND_MS, WARM_S = 20, 5.0, 0.5
"""How long a plan is timed where the job waits: rounds, milliseconds of each, seconds before the first."""
BRIEF_ROUNDS, BRIEF_ROUND_MS, BRIEF_WARM_S = 5, 1.0, 0.0
"""The same beside a busy job: to tell which plan is best, for the job's own launches say whether it is faster. Chosen
by hand: some 10 ms of the GPU."""


class NotFinite(CannotPlan):
    """Most of what the kernel computes as it is are infinities and NaN, so that no difference could be seen."""


class Differs(CannotPlan):
    """Two kernels compute different things from the same memory."""


def trial(request: dict[str, Json]) -> Iterator[Item]:
    """Items for ``request``: ``kernel`` (:mod:`~.packed`); ``launch`` (``arguments``, ``grid``
    and ``device``) or ``None`` to compile only, as far as the first that can be; ``schemes`` to try, or ``None`` to
    plan ``most``; ``cache``, the folder of planned compiles; ``beside``, whether the job runs on meanwhile."""
    kernel = request["kernel"]
    schemes, models = _schemes(request)
    yield {
        "step": "plan",
        "schemes": [scheme.to_json() for scheme in schemes],
        "models": [None if scheme not in models else asdict(models[scheme]) for scheme in schemes],
    }
    beside = bool(request.get("beside", False))
    bench = Bench(kernel, request["launch"], beside=beside) if schemes and request["launch"] is not None else None
    for scheme in schemes:
        named = {"scheme": scheme.to_json()}
        yield {**named, "step": "compile"}
        began = None
        try:
            planned = _compile(kernel, scheme, request["cache"])
            files = packing.files_of(planned)
            yield {**named, "step": "run", "hash": files.hash, "files": files.files}
            if bench is not None:
                began = time.monotonic()
                bench.check(packing.load(files, packing.source(kernel)))
                times = bench.times(packing.load(files, packing.source(kernel)))
                yield {**named, "step": "done", **times, "gpu_s": time.monotonic() - began}
            else:
                return
        except Exception as error:
            if "CUDA error" in str(error) or type(error).__name__ == "OutOfMemoryError":
                # The context, or the memory, is lost: whatever this process did next would fail for it.
                raise
            spent = 0.0 if began is None else time.monotonic() - began
            yield {**named, "step": "failed", "reason": reason_of(error, CannotPlan), "gpu_s": spent}


def _schemes(request: dict[str, Json]) -> tuple[list[Strategy], dict[Strategy, GainModel]]:
    if request["schemes"] is not None:
        return [strategy_from_json(scheme, "the plan") for scheme in request["schemes"]], {}
    ranked, models = rank(request["kernel"], request["device"], request["profile"])
    found = [entry.scheme for entry in ranked if entry.scheme is not None]
    if not found:
        raise CannotPlan(ranked[0].reason if ranked else "no scheme fits")
    if request["launch"] is None:
        # Only a measurement may find faster than the kernel itself what is predicted to be slower, or no faster.
        ahead = [entry.scheme for entry in takewhile(lambda entry: entry.scheme is not None, ranked)]
        return [s for s in ahead if s is not None and not s.stores_by_tma][: request["most"]], models
    return to_measure(found, request["most"]), models


def to_measure(schemes: list[Strategy], most: int) -> list[Strategy]:
    """``most`` of ``schemes``, best first, and one more with TMA stores, where there is one, in the second place."""
    plain = [scheme for scheme in schemes if not scheme.stores_by_tma]
    storing = [scheme for scheme in schemes if scheme.stores_by_tma][:1]
    first, *others = diverse(plain)[:most]
    return [first, *storing, *others]


def diverse(schemes: list[Strategy]) -> list[Strategy]:
    """In the order given, but the best of each family before the second of any: those that differ in depth alone are
    predicted alike and measured alike."""
    families = [scheme.family for scheme in schemes]
    place = [families[:i].count(family) for i, family in enumerate(families)]
    return [schemes[i] for i in sorted(range(len(schemes)), key=lambda i: (place[i], i))]


def rank(
    kernel: dict[str, Json], device_name: str, profile_json: Json
) -> tuple[tuple[RankedStrategy, ...], dict[Strategy, GainModel]]:
    """The planner's ranking for a packed kernel, best first, leaving it alone among them; and what is known of its
    strategies' gains at other sizes: nothing on Blackwell."""
    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.costing.blackwell import blackwell_ranking
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
    from warpplan.planner.values import codec
    from warpplan.planner.values.device import device
    from warpplan.planner.values.profile import Profile

    options, gpu = packing.options(kernel), device(device_name)
    at_cut = planned_cut(packing.source(kernel), packing.target(kernel), options)
    text, profile = at_cut.text, codec.from_json(profile_json, Profile)
    captured = explained(capture(text), at_cut.described)
    if gpu.tmem_columns:
        return blackwell_ranking.schemes(captured, text, profile, gpu, stages=options["num_stages"]), {}
    ranked = hopper_ranking.schemes(captured, profile, gpu, stages=options["num_stages"])
    return ranked, hopper_ranking.gain_models(ranked, captured, text, profile, gpu, stages=options["num_stages"])


def _compile(kernel: dict[str, Json], scheme: Strategy, cache: str) -> CompiledKernel:
    from warpplan.kernels.compiler.strategy.stage_hook import compile_with

    return compile_with(packing.source(kernel), packing.target(kernel), packing.options(kernel), scheme, cache)


class Bench:
    """The unplanned kernel, the arguments, and what both kernels make of them. Needs torch and a GPU.

    ``magnitude`` is the standard deviation of random inputs, of :data:`MAGNITUDES`."""

    magnitude = MAGNITUDES[0]

    def __init__(self, kernel: dict[str, Json], launch: dict[str, Json], *, beside: bool = False) -> None:
        import torch
        import triton

        self._beside = beside

        torch.cuda.set_device(launch["device"])
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        self._arguments, self._grid = launch["arguments"], (*launch["grid"], 1, 1)[:3]
        self._require_memory(3)
        compiled = Compiled(kernel["compiled"]["hash"], tuple(map(tuple, kernel["compiled"]["files"])))
        self._unplanned = packing.load(compiled, packing.source(kernel))

    def check(self, planned: CompiledKernel) -> None:
        """Run both twice from the same memory, and compare all of it after each. Raises :class:`CannotPlan`."""
        self.check_against(self, planned)

    def check_against(self, right: Bench, kernel: CompiledKernel) -> None:
        """Run ``right`` as it is and ``kernel``, each on its own arguments, twice from the same memory, and compare all
        of it after each, on smaller numbers where ``right`` overflows. Raises :class:`CannotPlan`."""
        for magnitude in MAGNITUDES[MAGNITUDES.index(self.magnitude) :]:
            self.magnitude = right.magnitude = magnitude
            try:
                self._check_once(right, kernel)
            except NotFinite:
                if magnitude == MAGNITUDES[-1]:
                    raise
            else:
                return

    def _check_once(self, right: Bench, kernel: CompiledKernel) -> None:
        reference, copies = right._copies(), self._copies()
        for count, number in enumerate(("first", "second"), start=1):
            right._launch(right._unplanned, reference)
            self._launch(kernel, copies)
            try:
                compare(reference, copies, number)
            except Differs as error:
                again = right._copies()
                for _ in range(count):
                    right._launch(right._unplanned, again)
                if _differ(reference, again):
                    raise CannotPlan(
                        "computes something else at each launch as it is, from the same memory: no plan can be "
                        "compared with it"
                    ) from error
                raise

    def times(self, planned: CompiledKernel) -> dict[str, float]:
        """Medians in microseconds, measured alternately, over enough copies that none is left in L2."""
        import torch

        from warpplan.kernels.timing import input_sets, paired

        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        sets = self._require_memory(1 if self._beside else input_sets(max(1, bytes_of(self._arguments)), l2))
        inputs = [self._copies(97 * i) for i in range(sets)]
        timings = paired(
            {
                "unplanned": lambda i: self._launch(self._unplanned, inputs[i], wait=False),
                "planned": lambda i: self._launch(planned, inputs[i], wait=False),
            },
            sets=sets,
            rounds=BRIEF_ROUNDS if self._beside else ROUNDS,
            round_ms=BRIEF_ROUND_MS if self._beside else ROUND_MS,
            warm_s=BRIEF_WARM_S if self._beside else WARM_S,
        )
        return {f"{name}_us": timing.median_us for name, timing in timings.items()}

    def _copies(self, seed: int = 0) -> Copies:
        return Copies(self._arguments, seed=seed, magnitude=self.magnitude)

    def _launch(self, kernel: CompiledKernel, copies: Copies, *, wait: bool = True) -> None:
        import torch

        run = kernel.run
        stream = torch.cuda.current_stream().cuda_stream
        run(*self._grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *copies.values)
        if wait:
            torch.cuda.synchronize()

    def _require_memory(self, sets: int) -> int:
        """``sets``, or fewer where memory is short. Raises :class:`MeasurementFailed` where three do not fit."""
        import torch

        torch.cuda.empty_cache()  # copies of the scheme before
        free, _ = torch.cuda.mem_get_info()
        need = max(1, bytes_of(self._arguments))
        share = arguments.MEMORY_SHARE if self._beside else MEMORY_SHARE
        if 3 * need > share * free:
            raise MeasurementFailed(
                f"three copies of the arguments need {3 * need} bytes of GPU memory, at most {share} of {free}"
            )
        return min(sets, int(share * free / need))


def compare(reference: Copies, copies: Copies, number: str) -> None:
    """Raises :class:`Differs` where ``copies`` differ from ``reference`` by more than rounding, :class:`NotFinite`
    where the reference is not finite, and another :class:`CannotPlan` where they were written out of bounds."""
    if not copies.guards_intact():
        raise CannotPlan(f"the {number} planned launch writes out of bounds")
    for right, got in zip(reference.contents(), copies.contents(), strict=True):
        scale = _scale(right) if right.dtype.is_floating_point else 0.0
        if _same_bits(right, got):
            continue
        if not right.dtype.is_floating_point:
            raise Differs(f"the {number} planned launch computes other integers")
        differing = 0
        for a, b in zip(right.split(2**24), got.split(2**24), strict=True):
            a, b = a.float() if a.element_size() < 4 else a, b.float() if b.element_size() < 4 else b
            allowed = _rounding(right.dtype) * (a.abs() + scale)
            close = (a.isfinite() & ((a - b).abs() <= allowed)) | (a == b) | (a.isnan() & b.isnan())
            differing += int((~close).sum())
        if differing:
            raise Differs(
                f"the {number} planned launch computes something else: {differing} of {right.numel()} numbers differ"
            )


def rehearse() -> None:
    """Compare two copies of a few numbers: torch loads its kernels where they are first used, and a trial that waits
    for its candidates has the time."""
    import torch

    with tempfile.TemporaryDirectory(prefix="warpplan-") as folder, contextlib.suppress(Differs):
        numbers = torch.zeros(64, dtype=torch.bfloat16, device="cuda")
        given = {"numbers": numbers, "integers": numbers.int()}
        described = arguments.describe(given, set(), arguments.Storages(Path(folder)))
        compare(Copies(described), Copies(described, seed=1), "rehearsed")


def _differ(a: Copies, b: Copies) -> bool:
    try:
        compare(a, b, "next")
    except Differs:
        return True
    return False


def _rounding(dtype: Dtype) -> float:
    import torch

    return ROUNDINGS * max(float(torch.finfo(dtype).eps), FINEST)


def _scale(values: Tensor) -> float:
    """The root mean square of the finite ``values``."""
    total, count = 0.0, 0
    for piece in values.split(2**24):
        piece = piece.float() if piece.element_size() < 4 else piece
        piece = piece[piece.isfinite()]
        total += float(piece.double().square().sum())
        count += piece.numel()
    if 2 * count < values.numel():
        raise NotFinite("gives mostly infinities and NaN on random inputs: its results cannot be compared")
    return (total / count) ** 0.5 if count else 0.0


def _same_bits(a: Tensor, b: Tensor) -> bool:
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))
