"""GPU: predicted configurations of vLLM's fused-MoE kernel, against vLLM's defaults and a search of its tuning list.

    python benchmarks/bench_moe_tables.py --site build/feeds/site --out benchmarks/results   # -> moe_tables_h200.json

``--site`` holds the installed vLLM wheel, of which two files are used (see ``consumer_moe.py``). Each row is one layer
for one number of tokens: both products, launched by vLLM's own launcher with the L2 cache cold, checked into poisoned
outputs and read in turn by CUDA graphs. ``default_us`` is what vLLM takes without a table, ``chosen_us`` the predicted
configuration, ``best_of_4_us`` the best of the first four. On the ``SEARCHED`` rows all of vLLM's tiles, warps and
stages are timed, at the group that the launch order prefers; around the :data:`REFINED` best of them the other groups
too; and the best :data:`FINALISTS` once more in turn with the rest: ``best_us``. Everything is compiled beforehand in
parallel children; seconds of search and of compiling are told apart. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench_compiler import geometric_mean
from bench_target import CARD, TARGET
from children import cores, each
from consumer_moe import TOLERANCE, Config, MoeRun, default_config
from gpu_jobs import guarded
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard

from warpplan.service.feeds.moe.model_shapes import MODELS, MoeLayer, layer_of
from warpplan.service.feeds.moe.moe_choice import MoeChooser
from warpplan.service.feeds.moe.routing import routed
from warpplan.service.feeds.moe_facts.installed_consumer import find_consumer
from warpplan.service.feeds.moe_facts.moe_kernels import VLLM
from warpplan.service.feeds.moe_facts.moe_schemes import SCHEMES, MoeScheme
from warpplan.service.feeds.moe_facts.tile_facts import kernel_source
from warpplan.service.feeds.moe_facts.tuning_space import GROUPS, STAGES, MoeConfig, groups_by_preference, tiles
from warpplan.service.workflow.profiles import Profiles

NAME = f"moe_tables_{CARD}.json"
LAYERS = {
    "deepseek-v3": (8, "fp8_w8a8_block"), "qwen3-30b-a3b": (1, "bfloat16"), "mixtral-8x7b": (2, "bfloat16"),
    "glm-4.5-air": (2, "bfloat16"), "ernie-4.5-21b-a3b": (1, "bfloat16"),
}  # fmt: skip
"""Of each model: the degree of tensor parallelism and the scheme."""
TRAINING = {
    "kimi-k2": (8, "fp8_w8a8_block"), "minimax-m2": (4, "fp8_w8a8_block"), "qwen3-235b-a22b": (4, "bfloat16"),
    "mixtral-8x22b": (4, "bfloat16"), "olmoe-1b-7b": (1, "bfloat16"), "hunyuan-a13b": (2, "bfloat16"),
}  # fmt: skip
"""Layers of ``bench_moe_samples.py``, on which constants are chosen: none of those above."""
TOKENS = (1, 8, 32, 128, 256, 512, 1024, 4096)
SEARCHED = [(model, tokens) for model in ("deepseek-v3", "qwen3-30b-a3b") for tokens in (8, 128, 1024)]
FIRST, FINALISTS, REFINED = 4, 16, 24
GOALS = {"default_over_chosen": 1.25, "chosen_over_best": 1.05, "best_of_4_over_best": 1.01}
ROUNDS, SETTLE_MS, READ_MS, SCREEN_MS, WARM_MS = 11, 4.0, 8.0, 4.0, 300.0
LIMIT_S = {"compile": 180.0, "measure": 300.0}
"""The longest silence of a child; ptxas takes a minute for the largest tiles."""
PEAK_BYTES = 4.8e12
Job = tuple[str, str, int]
"""Site, model, tokens."""


def understood(model: str) -> tuple[MoeLayer, MoeScheme]:
    tp, scheme = {**TRAINING, **LAYERS}[model]
    return layer_of(MODELS[model], tp, SCHEMES[scheme]), SCHEMES[scheme]


@cache
def chooser(site: str, model: str) -> MoeChooser:
    """As ``warpplan export --target vllm`` has it."""
    _, scheme = understood(model)
    source = kernel_source(VLLM, scheme, find_consumer("vllm", site))
    return MoeChooser(source, scheme, Profiles().of(TARGET.name).profile, TARGET, sorts_always=False)


def predicted(site: str, model: str, tokens: int) -> list[tuple[Config, float]]:
    """The first configurations with their predicted times in µs; the first is what the table says."""
    found = chooser(site, model).ranked(understood(model)[0], tokens)[:FIRST]
    return [(one.config.entry(), one.total_us) for one in found]


def listed(model: str, tokens: int) -> list[Config]:
    """vLLM's tiles, warps and stages, each at the group that is preferred for the launch."""
    layer, scheme = understood(model)
    found = []
    for tile in tiles(scheme):
        group = groups_by_preference(routed(tokens, layer.experts, layer.top_k, tile.m).blocks_an_expert)[0]
        found += [MoeConfig(tile, group, stages).entry() for stages in STAGES]
    return found


def of_other_groups(configs: Sequence[Config]) -> list[Config]:
    return [{**c, "GROUP_SIZE_M": group} for c in configs for group in GROUPS if group != c["GROUP_SIZE_M"]]


def compile_jobs(jobs: Sequence[tuple[str, str, int, list[Config]]]) -> Iterator[Row]:
    """Runs in a child: the kernels of each (site, model, tokens, configurations) are left in Triton's cache."""
    return guarded(jobs, lambda job: compiled(*job))


@cache
def run_of(site: str, model: str, tokens: int, most: int) -> MoeRun:
    return MoeRun(Path(site), *understood(model), tokens, most=most)


def compiled(site: str, model: str, tokens: int, configs: Sequence[Config]) -> Row:
    for config in configs:
        run_of(site, model, tokens, 1).launches(config, compile_only=True)[0]()
    return {"status": "ok"}


def screen_jobs(jobs: Sequence[tuple[Job, list[Config]]]) -> Iterator[Row]:
    return guarded(jobs, lambda job: screened(*job))


def screened(job: Job, search: Sequence[Config]) -> Row:
    """The best :data:`REFINED` of ``search`` by one short reading each."""
    timing = Timing(MoeRun(Path(job[0]), *understood(job[1]), job[2]))
    begun = time.monotonic()
    found = timing.screened(search)
    best = sorted(found, key=lambda text: found[text])[:REFINED]
    seconds = round(time.monotonic() - begun, 1)
    return {"status": "ok", "best": [timing.configs[text] for text in best], "tried": len(search), "seconds": seconds}


def measure_jobs(jobs: Sequence[tuple[Job, list[Config]]]) -> Iterator[Row]:
    return guarded(jobs, lambda job: measured(*job))


def measured(job: Job, search: Sequence[Config]) -> Row:
    """Times of the default and of the first predicted, and of the best of ``search``, in turn."""
    site, model, tokens = job
    timing = Timing(MoeRun(Path(site), *understood(model), tokens))
    ranked = predicted(site, model, tokens)
    begun = time.monotonic()
    found = timing.screened(search)
    finalists = [timing.configs[text] for text in sorted(found, key=lambda text: found[text])[:FINALISTS]]
    screened_s, begun = time.monotonic() - begun, time.monotonic()
    default = default_config(Path(site), *understood(model), tokens)
    times = timing.compared([default, *(config for config, _ in ranked), *finalists])
    return {
        "status": "ok", "default": default, "ranked": [config for config, _ in ranked],
        "predicted_us": [round(us, 3) for _, us in ranked], "times_us": times, "failed": timing.failed,
        "finalists": finalists, "screen_s": round(screened_s, 1), "compare_s": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def text_of(config: Config) -> str:
    return ",".join(map(str, config.values()))


class Timing:
    """Reads configurations of one run; those that do not run or compute something else are in ``failed``."""

    def __init__(self, run: MoeRun) -> None:
        self.run, self.configs, self.failed = run, dict[str, Config](), dict[str, str]()
        layer, scheme = run.layer, run.scheme
        hit = routed(run.tokens, layer.experts, layer.top_k, 16).hit
        self.estimate_us = 1e6 * hit * 3 * layer.intermediate * layer.hidden * scheme.weight_bytes / PEAK_BYTES + 4.0

    def screened(self, configs: Sequence[Config]) -> dict[str, float]:
        """A short reading of each configuration, µs, by its text."""
        from graph_timing import run_for

        found: dict[str, float] = {}
        for config in configs:
            graph = self._captured(config)
            if graph is not None:
                found[text_of(config)] = min(run_for(*graph, SCREEN_MS))
        return found

    def compared(self, configs: Sequence[Config]) -> dict[str, float]:
        """Medians of readings in turn, µs, by the configurations' texts."""
        from graph_timing import interleaved, run_for, summary

        graphs = {text_of(config): graph for config in configs if (graph := self._captured(config)) is not None}
        if not graphs:
            return {}
        run_for(*next(iter(graphs.values())), WARM_MS)
        found = interleaved(graphs, ROUNDS, SETTLE_MS, READ_MS)
        return {text: round(summary(sample)["us"], 3) for text, sample in found.items()}

    def _captured(self, config: Config) -> Any:
        import torch
        from graph_timing import capture

        text = text_of(config)
        self.configs[text] = config
        if text in self.failed:
            return None
        try:
            error = self.run.error(config)
            if not error <= TOLERANCE:
                self.failed[text] = f"wrong: error {error:.2e}"
                return None
            return capture(self.run.launches(config), self.estimate_us, 1_000.0)
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            self.failed[text] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            return None


def judged(model: str, tokens: int, result: Row) -> Row:
    """A row of the results file."""
    tp, scheme = LAYERS[model]
    base = {"kernel": "fused_moe_kernel", "shape": [model, f"tp={tp}", f"tokens={tokens}"], "dtype": scheme, **result}
    if result["status"] != "ok":
        return base
    times = result["times_us"]
    default = times.get(text_of(result["default"]))
    first = [times.get(text_of(config)) for config in result["ranked"]]
    ran = [us for us in first if us is not None]
    row = {
        **base, "default_us": default, "chosen_us": first[0], "best_of_4_us": min(ran, default=None),
        "default_over_chosen": round(default / first[0], 4) if default and first[0] else None,
    }  # fmt: skip
    if not result["searched"] or not times:
        return row
    best = min(times.values())
    return {
        **row, "best_us": best, "chosen_over_best": round(first[0] / best, 4) if first[0] else None,
        "best_of_4_over_best": round(min(ran) / best, 4) if ran else None,
    }  # fmt: skip


def summarised(rows: Sequence[Row]) -> Row:
    """The goals' figures. A row without a figure because its configuration did not run makes the goal unmet."""
    ok = [r for r in rows if r["status"] == "ok"]
    searched = [r for r in ok if r["searched"] and "chosen_over_best" in r]

    def mean(name: str, chosen: Sequence[Row]) -> float | None:
        found = [r[name] for r in chosen]
        return geometric_mean(found) if found and all(found) else None

    figures = {
        "default_over_chosen": mean("default_over_chosen", ok), "chosen_over_best": mean("chosen_over_best", searched),
        "best_of_4_over_best": mean("best_of_4_over_best", searched),
    }  # fmt: skip
    met = {
        name: value is not None and (value >= GOALS[name] if name == "default_over_chosen" else value <= GOALS[name])
        for name, value in figures.items()
    }
    return {
        **figures, "rows": len(ok), "searched": len(searched), "goals": GOALS, "met": met,
        "worst_over_default": min((r["default_over_chosen"] or 0.0 for r in ok), default=None),
        "worst_regret": max((r["chosen_over_best"] or 0.0 for r in searched), default=None),
        "search_s": round(sum(r["search_s"] for r in searched), 1),
        "compared_s": round(sum(r["compare_s"] for r in ok), 1),
        "failed": [[r["shape"], r["reason"]] for r in rows if r["status"] != "ok"],
    }  # fmt: skip


def compile_all(jobs: Sequence[tuple[Job, list[Config]]], until: float, workers: int) -> float:
    """Seconds that it took. A job compiles two configurations, so that no child is silent for long."""
    begun = time.monotonic()
    every = [(*job, configs[i : i + 2]) for job, configs in jobs for i in range(0, len(configs), 2)]
    each("bench_moe_tables:compile_jobs", every, limit_s=LIMIT_S["compile"], workers=workers, until=until)
    return round(time.monotonic() - begun, 1)


def compared_with(job: Job) -> list[Config]:
    """The default and the first predicted."""
    site, model, tokens = job
    first = [config for config, _ in predicted(site, model, tokens)]
    return [default_config(Path(site), *understood(model), tokens), *first]


def compare(jobs: Sequence[Job], until: float, workers: int, keep: Any) -> None:
    """The rows that are not searched."""
    seconds = compile_all([(job, compared_with(job)) for job in jobs], until, workers)
    print(f"compiled for {len(jobs)} rows in {seconds} s", flush=True)

    def on_result(job: tuple[Job, list[Config]], result: Row) -> None:
        keep(job[0], {**result, "searched": 0})

    measured = [(job, []) for job in jobs]
    each("bench_moe_tables:measure_jobs", measured, limit_s=LIMIT_S["measure"], until=until, on_result=on_result)


def search(job: Job, until: float, workers: int, keep: Any) -> None:
    """One row with the best of vLLM's list."""
    every = listed(job[1], job[2])
    compiled_s = compile_all([(job, [*compared_with(job), *every])], until, workers)
    (first,) = each("bench_moe_tables:screen_jobs", [(job, every)], limit_s=LIMIT_S["measure"], until=until)
    if first["status"] != "ok":
        keep(job, first)
        return
    others = of_other_groups(first["best"])
    compiled_s += compile_all([(job, others)], until, workers)
    refined = [(job, [*first["best"], *others])]
    (found,) = each("bench_moe_tables:measure_jobs", refined, limit_s=LIMIT_S["measure"], until=until)
    if found["status"] == "ok":
        found["searched"] = first["tried"] + len(others)
        found["search_s"], found["compile_s"] = round(first["seconds"] + found["screen_s"], 1), compiled_s
    keep(job, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "models")
    parser.add_argument("--site", default="build/feeds/site", help="the folder with the installed vLLM")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--phase", choices=("compare", "search"), action="append", help="both without it")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    import torch

    until, phases = time.monotonic() + arguments.limit_s, arguments.phase or ["compare", "search"]
    store = RowStore(arguments.out / NAME, ("label",), {"tokens": list(TOKENS)}, fresh=arguments.fresh)
    models = [m for m in LAYERS if not arguments.only or any(word in m for word in arguments.only)]
    cases = of_shard([(m, t) for m in models for t in TOKENS], arguments.shard)

    def keep(job: Job, result: Row) -> None:
        _, model, tokens = job
        if result["status"] == "skipped":
            return
        row = judged(model, tokens, result)
        store.add({**row, "label": f"{model} {tokens}"})
        shown = ("default_over_chosen", "chosen_over_best", "best_of_4_over_best", "searched", "reason")
        print(f"{model} {tokens}: { ({name: row[name] for name in shown if name in row}) }", flush=True)

    rows = store.rows()
    searches = [
        case for case in cases if case in SEARCHED and not rows.get((f"{case[0]} {case[1]}",), {}).get("searched")
    ]
    compares = [c for c in cases if (f"{c[0]} {c[1]}",) not in rows and (c not in SEARCHED or "search" not in phases)]
    if "compare" in phases and compares:
        compare([(arguments.site, *case) for case in compares], until, arguments.workers, keep)
    for case in searches if "search" in phases else []:
        if time.monotonic() < until:
            search((arguments.site, *case), until, arguments.workers, keep)
    found = list(store.rows().values())
    summary = summarised(found)
    complete = len(found) == len(LAYERS) * len(TOKENS) and summary["searched"] == len(SEARCHED)
    store.write({**head("moe_tables", torch.cuda.get_device_name()), "summary": summary}, found, complete=complete)
    print(summary)


if __name__ == "__main__":
    main()
