"""One configuration of a list as the front end takes it, and the compiles of its strategies by children."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from warpplan.kernels.compiler.launching.autotuned.front_end import FrontEnd
from warpplan.kernels.compiler.launching.autotuned.list_children.job_pool import JobPool
from warpplan.kernels.compiler.launching.autotuned.list_children.list_jobs import COMPILE
from warpplan.kernels.compiler.launching.autotuned.list_choice import Candidate
from warpplan.kernels.compiler.launching.dispatch import Call
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.triton_types import Json, TunerConfig


@dataclass(frozen=True)
class Listed:
    """One configuration of the list: its ``call`` and what the front end makes of it, ``None`` with the ``reason``
    where it does not compile."""

    config: TunerConfig
    call: Call
    front: FrontEnd | None
    reason: str = ""

    @property
    def bound_us(self) -> float | None:
        return None if self.front is None else self.front.bound_us

    @property
    def alike(self) -> str:
        """Equal for configurations that differ in nothing but what a strategy sets by itself."""
        if self.front is None:
            return ""
        options = {k: v for k, v in self.front.packed["options"].items() if k not in ("num_warps", "num_stages")}
        return json.dumps([self.front.packed["text"], options, self.front.grid], default=str, sort_keys=True)


class ListCompiles:
    """Compiles by ``pool`` of a list's candidates, each once; ``listed`` are its configurations by number, and may
    grow. ``shared`` as :func:`.list_jobs.compile_job` takes it."""

    def __init__(self, pool: JobPool, listed: Mapping[int, Listed], shared: dict[str, Json]) -> None:
        self._pool, self._listed, self._shared = pool, listed, shared
        self._begun: dict[tuple[int, Strategy | None], Future[dict[str, Json]]] = {}

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Begin with those of ``candidates`` that are not begun, in their order; nothing is waited for."""
        for candidate in candidates:
            key = candidate.config, candidate.scheme
            if key not in self._begun:
                scheme = None if candidate.scheme is None else candidate.scheme.to_json()
                job = {"kernel": front_of(self._listed[candidate.config]).packed, "scheme": scheme}
                self._begun[key] = self._pool.submit(COMPILE, self._shared, job)

    def files(self, candidates: Sequence[Candidate]) -> dict[Candidate, dict[str, Json]]:
        """Of each of ``candidates`` its files, ``hash`` and ``files``, or the ``reason`` why it has none."""
        self.submit(candidates)
        return {candidate: self._begun[candidate.config, candidate.scheme].result() for candidate in candidates}


def rank_job(listed: Listed) -> dict[str, Json]:
    """What :func:`.list_jobs.rank` takes of one configuration."""
    front = front_of(listed)
    return {"kernel": front.packed, "numbers": front.numbers, "grid": list(front.grid), "bytes": front.bytes}


def front_of(listed: Listed) -> FrontEnd:
    """What the front end made of one that compiles: no other is a candidate."""
    assert listed.front is not None
    return listed.front
