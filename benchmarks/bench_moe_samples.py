"""GPU: times of random configurations of vLLM's fused-MoE kernel on training layers, each product by itself.

    python benchmarks/bench_moe_samples.py --site build/feeds/site --out benchmarks/results   # -> moe_samples_h100.json
    WARPPLAN_BENCH_DEVICE="NVIDIA H100 80GB HBM3" python benchmarks/bench_moe_samples.py --report   # no GPU

The constants of the launch model that rank such configurations are chosen on these rows, none of whose layers is one of
``bench_moe_tables.py``. A row is one layer and one number of tokens, with vLLM's default and the configurations that
were drawn for the layer, except those with far more or fewer rows a block than an expert has (:data:`ROWS_RATIO`). A
configuration has [up, down] in µs, read by CUDA graphs with the L2 cache cold, or no time where it failed or computed
something else. ``--report`` compares the recorded times with today's predictions.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import bench_moe_tables
from bench_compiler import geometric_mean
from bench_moe_tables import LIMIT_S, PEAK_BYTES, TRAINING, Job, chooser, text_of, understood
from bench_target import CARD
from children import cores, each
from consumer_moe import TOLERANCE, Config, MoeRun, default_config
from gpu_jobs import guarded
from results_file import RESULTS, head, read_rows
from row_store import Row, RowStore, add_arguments, of_shard

from warpplan.service.feeds.moe_facts.tuning_space import GROUPS, STAGES, MoeConfig, tiles

NAME = f"moe_samples_{CARD}.json"
TOKENS = (64, 768, 192, 3072, 16, 4, 1)
DRAWN, SEED = {16: 30, 32: 16, 64: 16, 128: 14, 256: 6}, 20261126
"""Configurations a layer by their rows a block."""
ROWS_RATIO = 6.0
"""``BLOCK_SIZE_M`` is at least an expert's rows over this, and at most the larger of 64 and those rows times this."""
READ_MS, WARM_MS = 4.0, 200.0


def drawn(model: str) -> list[Config]:
    """The layer's configurations at random."""
    generator = random.Random(f"{SEED} {model}")
    by_rows: dict[int, list[MoeConfig]] = {}
    for tile in tiles(understood(model)[1]):
        for stages in STAGES:
            by_rows.setdefault(tile.m, []).append(MoeConfig(tile, generator.choice(GROUPS), stages))
    return [config.entry() for rows, every in by_rows.items() for config in generator.sample(every, DRAWN[rows])]


def suitable(model: str, tokens: int, config: Config) -> bool:
    layer, _ = understood(model)
    rows = max(1.0, tokens * layer.top_k / layer.experts)
    block = config["BLOCK_SIZE_M"]
    return rows / ROWS_RATIO <= block <= max(64.0, rows * ROWS_RATIO)


def chosen(site: str, model: str, tokens: int) -> list[Config]:
    """vLLM's default, and those that were drawn."""
    default = default_config(Path(site), *understood(model), tokens)
    return [default, *(config for config in drawn(model) if suitable(model, tokens, config) and config != default)]


def compiled_for(site: str, model: str) -> list[Config]:
    """Every configuration that the layer is measured with. Few tokens, whose rows are not sorted, take other kernels of
    them, compiled when they are measured."""
    every = {text_of(config): config for tokens in TOKENS for config in chosen(site, model, tokens)}
    return list(every.values())


def compile_jobs(jobs: Sequence[tuple[Job, list[Config]]]) -> Iterator[Row]:
    return guarded(jobs, lambda job: bench_moe_tables.compiled(*job[0], job[1]))


def sample_jobs(jobs: Sequence[Job]) -> Iterator[Row]:
    return guarded(jobs, sampled)


def sampled(job: Job) -> Row:
    """µs of each product under each configuration; runs in a child."""
    from graph_timing import capture, run_for

    site, model, tokens = job
    layer, scheme = understood(model)
    run = MoeRun(Path(site), layer, scheme, tokens)
    estimate = 4.0 + 1e6 * min(layer.experts, tokens * layer.top_k) * layer.hidden * layer.intermediate / PEAK_BYTES
    found: list[Row] = []
    for config in chosen(site, model, tokens):
        row: Row = {"config": config}
        try:
            error = run.error(config)
            if not error <= TOLERANCE:
                row["reason"] = f"error {error:.2e}"
            else:
                graphs = [capture(run.launches(config, only=product), estimate, 800.0) for product in (0, 1)]
                if not found:
                    run_for(*graphs[0], WARM_MS)
                row["us"] = [round(statistics.median(run_for(*graph, READ_MS)), 2) for graph in graphs]
        except Exception as failure:
            row["reason"] = f"{type(failure).__name__}: {failure}".splitlines()[0][:120]
        found.append(row)
    return {"status": "ok", "times": found}


def judged(row: Row) -> Row:
    """Of one recorded row: what the ranking of today puts first, the best of its first four and vLLM's default, each
    over the best of what was measured."""
    predicted = predictions(row["model"], row["tokens"])
    times = {text_of(t["config"]): sum(t["us"]) for t in row["times"] if "us" in t}
    known = sorted((text for text in times if text in predicted), key=lambda text: predicted[text])
    best = min(times[text] for text in known)
    return {
        "first": times[known[0]] / best, "best_of_4": min(times[text] for text in known[:4]) / best,
        "default": times.get(text_of(row["times"][0]["config"]), math.nan) / best, "best_us": best, "of": len(known),
    }  # fmt: skip


def reported(rows: Sequence[Row]) -> None:
    found = [judged(row) for row in rows]
    for row, one in zip(rows, found, strict=True):
        figures = ", ".join(f"{name} {one[name]:.3f}" for name in ("first", "best_of_4", "default"))
        print(f"{row['model']:18} {row['tokens']:5} of {one['of']:3}: {figures} of the best's {one['best_us']:.1f} us")
    for name in ("first", "best_of_4", "default"):
        every = [one[name] for one in found if one[name] == one[name]]
        print(f"{name}: {geometric_mean(every):.4f}, largest {max(every):.3f} of {len(every)} rows")


def predictions(model: str, tokens: int) -> dict[str, float]:
    """µs of both products by configuration, from the facts that ship."""
    found = {}
    layer, _ = understood(model)
    for one in chooser("", model).predicted(layer, tokens):
        for group in GROUPS:  # Groups that read as much are predicted once.
            entry = {**one.config.entry(), "GROUP_SIZE_M": group}
            if group == one.config.group_m:
                found[text_of(entry)] = one.total_us
            else:
                found.setdefault(text_of(entry), one.total_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "models")
    parser.add_argument("--site", default="build/feeds/site", help="the folder with the installed vLLM")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    if arguments.report:
        reported(read_rows(arguments.out / NAME))
        return
    import torch

    until = time.monotonic() + arguments.limit_s
    store = RowStore(
        arguments.out / NAME, ("model", "tokens"), {"drawn": sum(DRAWN.values()), "seed": SEED}, fresh=arguments.fresh
    )
    models = [m for m in TRAINING if not arguments.only or any(word in m for word in arguments.only)]
    cases = of_shard([(m, t) for t in TOKENS for m in models], arguments.shard)
    left = [case for case in cases if case not in store.rows()]
    every = [
        ((arguments.site, model, 64), configs[i : i + 2])
        for model in models
        for configs in [compiled_for(arguments.site, model)]
        for i in range(0, len(configs), 2)
    ]
    each("bench_moe_samples:compile_jobs", every, limit_s=LIMIT_S["compile"], workers=cores(), until=until)
    print(f"compiled in {arguments.limit_s - until + time.monotonic():.0f} s", flush=True)

    def keep(job: Job, result: Row) -> None:
        _, model, tokens = job
        if result["status"] != "skipped":
            tp, scheme = TRAINING[model]
            store.add({"model": model, "tp": tp, "scheme": scheme, "tokens": tokens, **result})
            print(model, tokens, result["status"], len(result.get("times", ())), result.get("reason", ""), flush=True)

    jobs = [(arguments.site, *case) for case in left]
    each("bench_moe_samples:sample_jobs", jobs, limit_s=LIMIT_S["measure"], until=until, on_result=keep)
    rows = list(store.rows().values())
    store.write(
        head("moe_samples", torch.cuda.get_device_name()), rows, complete=len(rows) == len(TRAINING) * len(TOKENS)
    )


if __name__ == "__main__":
    main()
