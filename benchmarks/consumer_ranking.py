"""No GPU: how ``warpplan tune`` ranks a consumer's own list for a shape, before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from bench_target import TARGET
from children import first_line
from consumer_lists import Consumer, consumers
from corpus_entry import ELEMENTS, Box, Problem, resolved
from row_store import Row

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.tuning.launch_ranking import Tuner, TuningTask
from warpplan.service.workflow.profiles import Profiles


class LaunchTuner(Tuner):
    """A tuner whose grid is the launcher's own function, not a formula."""

    def __init__(self, consumer: Consumer, shape: Mapping[str, int]) -> None:
        self.problem, entry = consumer.entry.problem(shape), consumer.entry
        parameters = {p.name for p in entry.jit.params if p.is_constexpr}
        configs = tuple(
            TuningConfig(
                tuple((n, v) for n, v in entry.constants(self.problem, c).items() if n in parameters), c.num_warps,
                c.num_stages, c.num_ctas, c.maxnreg,
            )
            for c in entry.configs
        )  # fmt: skip
        task = TuningTask(consumer.name, signature(self.problem), "", configs)
        super().__init__(task, entry.jit, Profiles().of(TARGET.name).profile, TARGET)

    def grid(self, shape: Mapping[str, int], config: TuningConfig) -> tuple[int, int, int]:
        x, y, z = (*map(int, self.problem.grid(dict(config.kwargs))), 1, 1)[:3]
        return x, y, z


def signature(problem: Problem) -> str:
    """The run-time arguments as ``warpplan tune --signature`` takes them."""
    words = []
    for name, value in resolved(problem).items():
        if isinstance(value, Box):
            word = f"{ELEMENTS[problem.tensors[value.tensor].dtype]}[{', '.join(map(str, value.block))}]"
        elif isinstance(value, str):
            tensor = problem.tensors[value]
            word = f"*{ELEMENTS[tensor.dtype]}[{math.prod(tensor.shape)}]"
        else:
            word = f"{value:.12f}" if isinstance(value, float) else str(value)
        words.append(f"{name}={word}")
    return ", ".join(words)


@cache
def _tuner(name: str, shape: tuple[tuple[str, int], ...]) -> LaunchTuner:
    return LaunchTuner(consumers()[name], dict(shape))


def ranked(name: str, shape: Mapping[str, int]) -> Row:
    """Positions in the consumer's list, the first choice first, with their predicted times; what was refused, and why;
    Triton's hash of the kernel's source, by which a stale ranking is told."""
    tuner = _tuner(name, tuple(shape.items()))
    found = tuner.rank(shape)
    position = {config: index for index, config in enumerate(tuner.task.configs)}
    return {
        "source": tuner.kernel.cache_key, "ranked": [position[t.config] for t in found.ranked],
        "predicted_us": [round(t.time.time_us, 3) for t in found.ranked],
        "refused": {str(position[config]): reason for config, reason in found.refused},
    }  # fmt: skip


def rank_jobs(jobs: Sequence[tuple[str, dict[str, int]]]) -> Iterator[Row]:
    """Runs in a child: a row, or why there is none, for each (consumer, shape)."""
    for name, shape in jobs:
        try:
            yield {"status": "ok", **ranked(name, shape)}
        except Exception as error:
            yield {"status": "error", "reason": first_line(error)}


def labelled(shape: Mapping[str, Any]) -> list[str]:
    """A shape as rows have it."""
    return [f"{name}={size}" for name, size in shape.items()]
