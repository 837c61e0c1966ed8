"""No GPU: FLA's launches of a case exported as ``warpplan export --target fla`` does it, and compiled for the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from bench_target import TARGET
from children import first_line
from fla_cases import CASES
from row_store import Row

from warpplan.service.feeds import FeedRequest
from warpplan.service.feeds.fla import config_feed, recorded_ranking
from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch, fla_on_paper, record_launches
from warpplan.service.workflow.profiles import Profiles, planner_version

LEAST_LISTED = 6
"""Kernels with a shorter list are not judged: four attempts would search most of it."""


def is_judged(launch: RecordedLaunch) -> bool:
    """A kernel with products and a list that is worth a search."""
    return "tl.dot" in launch.function.src and len(launch.candidates()) >= LEAST_LISTED


def text_of(config: Any) -> str:
    """A configuration, by all that FLA's files say of it."""
    return ",".join(f"{name}={value}" for name, value in fields_of(config).items() if value is not None)


def fields_of(config: Any) -> dict[str, Any]:
    return {
        **config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages, "num_ctas": config.num_ctas,
        "maxnreg": config.maxnreg,
    }  # fmt: skip


def rank_jobs(jobs: Sequence[tuple[str, str]]) -> Iterator[Row]:
    """Runs in a child: for each (case, folder) the files are written there; the ranking of each kernel."""
    for name, folder in jobs:
        try:
            yield {"status": "ok", **exported(name, Path(folder))}
        except Exception as error:
            yield {"status": "error", "reason": first_line(error)}


def exported(name: str, folder: Path) -> Row:
    """The feed's own export; of each judged kernel the whole ranking, of which the files have the first."""
    launches: dict[str, Row] = {}
    rank_configs = recorded_ranking.rank_configs

    def noted(launch: RecordedLaunch, *given: Any) -> Any:
        ranked = rank_configs(launch, *given)
        if is_judged(launch) and launch.kernel not in launches:
            launches[launch.kernel] = ranking_of(launch, ranked)
        return ranked

    profile = Profiles().of(TARGET.name).profile
    request = FeedRequest(folder, TARGET.name, profile, f"fla_cases:{name}", planner=planner_version())
    with mock.patch.object(recorded_ranking, "rank_configs", noted):
        report = config_feed.export(request)
    skipped = [[str(row.shape[0]), row.reason] for row in report.skipped]
    return {"planner": planner_version(), "launches": launches, "skipped": skipped}


def ranking_of(launch: RecordedLaunch, ranked: Sequence[tuple[Any, float]]) -> Row:
    """The list, positions in it with the first choice first, and predicted times by position."""
    listed = [text_of(config) for config in launch.candidates()]
    order = [listed.index(text_of(config)) for config, _ in ranked]
    times = [round(us, 3) for _, us in ranked]
    predicted = {str(position): us for position, us in zip(order, times, strict=True)}
    return {
        "key": [str(part) for part in launch.key.autotune_key], "configs": listed, "ranked": order,
        "predicted_us": predicted, "programs": launch.programs(ranked[0][0]),
    }  # fmt: skip


@cache
def launches_of(name: str) -> Mapping[str, RecordedLaunch]:
    """The first launch of each judged kernel, recorded without a GPU."""
    found: dict[str, RecordedLaunch] = {}
    launches = record_launches(f"fla_cases:{name}", TARGET)
    with fla_on_paper(TARGET):
        for launch in launches:
            if launch.kernel not in found and is_judged(launch):
                found[launch.kernel] = launch
    return found


def compile_jobs(jobs: Sequence[tuple[str, str, int]]) -> Iterator[Row]:
    """Runs in a child: the compiled kernel of each (case, kernel, position) is left in Triton's cache."""
    for name, kernel, position in jobs:
        try:
            launch = launches_of(name)[kernel]
            with fla_on_paper(TARGET):
                launch_with(launch, launch.candidates()[position], warmup=True)
            yield {"status": "ok"}
        except Exception as error:
            yield {"status": "error", "reason": first_line(error)}


def launch_with(launch: RecordedLaunch, config: Any, *, warmup: bool = False) -> None:
    """The kernel under the autotuner with one configuration, as the autotuner launches what it has chosen."""
    given = {**launch.keywords, **config.all_kwargs()}
    launch.tuner.fn.run(*launch.positional, grid=launch.grid, warmup=warmup, **given)


def compile_tasks(tasks: Sequence[tuple[str, str]], rankings: Mapping[str, Row]) -> list[tuple[str, str, int]]:
    """(case, kernel, position) of all (case, kernel), each compiled kernel once: cases of the same layer with the same
    heads and dimensions share theirs."""
    found: dict[tuple[Any, ...], tuple[str, str, int]] = {}
    for name, kernel in tasks:
        for position in range(len(rankings[name]["launches"][kernel]["configs"])):
            found.setdefault((kernel, CASES[name].op, *CASES[name].shape[2:], position), (name, kernel, position))
    return list(found.values())
