"""Kernels under Triton's own Autotuner on a machine without a GPU, and what stands for the children that rank and try
their lists. Front end and compiles are real."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import triton
from planned_machine import Machine, gemm_arguments

from warpplan.kernels.compiler.launching.autotuned.list_children import list_jobs
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.isolate import IsolatedResult

TWO, ONE = HopperStrategy(2, (3,)), HopperStrategy(1, (4,))
Json = dict[str, Any]
WIDE, SMALL, LEAST = {"BM": 128, "BN": 64}, {"BM": 64, "BN": 64}, {"BM": 64, "BN": 32}


def boxes(arguments: Json) -> None:
    """The ``pre_hook`` of a configuration: descriptors get the blocks that it loads."""
    arguments["a"].block_shape = [arguments["BM"], arguments["BK"]]
    arguments["b"].block_shape = [arguments["BN"], arguments["BK"]]


def config(tile: Json, warps: int = 4, stages: int = 3, hook: Any = boxes, **more: int) -> Any:
    return triton.Config({"BK": 32, **tile, **more}, num_warps=warps, num_stages=stages, pre_hook=hook)


class Bench:
    """Triton's benchmark: launches and answers a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.count = machine, 0

    def __call__(self, call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        self.count += 1
        return [float(self.machine.warps[-1])] * 3


def launch(tuner: Any, m: int = 4096, k: int = 128, **options: Any) -> Any:
    def grid(meta: Json) -> tuple[int, int]:
        return triton.cdiv(m, meta["BM"]), triton.cdiv(4096, meta["BN"])

    return tuner[grid](*gemm_arguments(m, 4096, k)[:6], **options)


PREDICTED = {
    (128, 64, 4, None): 30.0, (128, 64, 4, TWO): 16.0, (128, 64, 4, ONE): 18.0,
    (64, 64, 4, None): 24.0, (64, 64, 4, ONE): 20.0,
}  # fmt: skip
TIMES = {
    (128, 64, 4, None): 31.0, (128, 64, 4, TWO): 15.0, (128, 64, 4, ONE): 19.0,
    (64, 64, 4, None): 22.0, (64, 64, 4, ONE): 21.0,
}  # fmt: skip
"""The best as it is is the 64 x 64 tile, the best of all the 128 x 64 one under two consumers."""
UNTIMED = -1.0
"""Stands for the time of one whose timing fails."""
HANG = IsolatedResult("timeout", None, "no answer for 60 s: killed", 60.0)


class Children:
    """Stands for the children. A configuration's ranking and times are by its tile and warps: ``predicted`` and ``us``
    map (BM, BN, warps, strategy or ``None``) to microseconds; a text in ``us`` is the reason of a failure, an
    ``IsolatedResult`` the end of the child that is at it. Compiles are real."""

    def __init__(self, predicted: dict[Any, float], us: dict[Any, Any]) -> None:
        self.predicted, self.us = predicted, us
        self.ranked: list[Any] = []
        self.compiled: list[Any] = []
        self.trials: list[Json] = []

    def job(self, target: str, shared: Json, job: Json) -> Json:
        assert json.loads(json.dumps([shared, job]))
        if target == list_jobs.COMPILE:
            self.compiled.append((*named(job["kernel"]), strategy(job["scheme"])))
            return json.loads(json.dumps(list_jobs.compile_job(shared, job)))
        self.ranked.append(named(job["kernel"]))
        mine = {key[-1]: us for key, us in self.predicted.items() if key[:3] == named(job["kernel"])}
        order = sorted(mine, key=lambda s: mine[s])
        return {
            "strategies": [[None if s is None else s.to_json(), mine[s]] for s in order] or [[None, None]],
            "obstacle": "" if set(mine) - {None} else "no loop loads anything",
        }

    def trial(self, request: Json) -> IsolatedResult:
        assert json.loads(json.dumps(request))
        self.trials.append(json.loads(json.dumps(request)))
        items: list[Json] = [{"step": "start"}]
        right = list(request["right"])
        for number, candidate in enumerate(request["candidates"]):
            if number in request["dropped"] or number in right:
                continue
            items.append({"step": "check", "candidate": number})
            outcome = self.us[self.key(candidate)]
            if isinstance(outcome, IsolatedResult):
                return IsolatedResult(outcome.status, None, outcome.reason, 1.0, tuple(items))
            if isinstance(outcome, str):
                items.append({"step": "failed", "candidate": number, "reason": outcome})
            else:
                items.append({"step": "right", "candidate": number})
                right.append(number)
        items.append({"step": "time"})
        untimed = [n for n in right if self.us[self.key(request["candidates"][n])] == UNTIMED]
        items += [{"step": "untimed", "candidate": n, "reason": "no memory in a capture"} for n in untimed]
        us = {str(n): self.us[self.key(request["candidates"][n])] for n in right if n not in untimed}
        items.append({"step": "times", "us": us})
        return IsolatedResult("ok", None, "", 1.0, tuple(items))

    def key(self, candidate: Json) -> Any:
        files = candidate["planned"]
        scheme = None
        if files is not None:
            folder = Path(files["files"][0][1]).parents[1].name
            scheme = next(s for s in (TWO, ONE) if folder.endswith(s.key))
        return (*named(candidate["kernel"]), scheme)


def pooled(work: Callable[[str, Json, Json], Json], size: int = 1) -> Callable[..., Any]:
    """Stands for ``JobPool``: jobs are done where they are submitted."""

    class Pool:
        def __init__(self, prepare: str, *profile: str, most: int, time_limit_s: float, stop: Any = None) -> None:
            assert prepare == (list_jobs.PREPARE if profile else list_jobs.PREPARE_COMPILES)
            assert time_limit_s == 60.0
            assert all(map(json.loads, profile))
            self.size = min(size, most)

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

        def submit(self, target: str, shared: Json, job: Json) -> Future[Json]:
            answer: Future[Json] = Future()
            answer.set_result(work(target, shared, job))
            return answer

    return Pool


def trying(run: Callable[[Json], IsolatedResult]) -> Callable[..., Any]:
    """Stands for ``TrialChild``."""

    class Trial:
        def __init__(self, device: int, time_limit_s: float, stop: Any = None) -> None:
            self.run = run

        def __enter__(self) -> Trial:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

        def another(self) -> Trial:
            return self

    return Trial


def named(kernel: Json) -> tuple[int, int, int]:
    """(BM, BN, warps) of a packed kernel."""
    descriptors = [kind for kind in kernel["signature"].values() if str(kind).startswith("tensordesc")]
    bm, bn = (int(kind.partition("[")[2].partition(",")[0]) for kind in descriptors[:2])
    return bm, bn, kernel["options"]["num_warps"]


def strategy(value: Json | None) -> HopperStrategy | None:
    return None if value is None else HopperStrategy.from_json(value, "a test")
