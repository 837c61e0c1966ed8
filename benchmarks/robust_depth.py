"""Is the ring that the planner calls deep enough as fast as the deepest that fits?

    python benchmarks/robust_depth.py --out benchmarks/results
    python benchmarks/robust_depth.py --dry-run        # depths and predictions, no GPU needed

Writes ``robust_depth_h200.json``: blocks of every scheme at every depth from two slots to the deepest that fits, each
with the first epilogue that then fits, at four shapes; the measured and the predicted time of each, and the fewest
slots that keep the loop's interval for the 90th percentile of a load's latency, from L2 and from DRAM.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gemm_table import SearchedShape
from plan_accuracy import DTYPE, TARGET, Shape, compile_all, measure, plans_of
from results_file import RESULTS, head, write
from time_statistics import geomean

from warpplan.kernels.gemm.graph import robust_depth
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

Row = dict[str, Any]
SHAPES: tuple[Shape, ...] = (
    (4096, 4096, 4096),  # the tensor cores and the power that they draw
    (8192, 1280, 8192),  # the same, with a ragged last wave
    (4096, 4096, 512),  # a short loop: filling the ring is a large part of it
    (64, 8192, 8192),  # DRAM
)
"""Of the shapes that constants may be fitted on (``gemm_shapes.TRAIN``), but for the short loop."""
BLOCKS: tuple[GemmConfig, ...] = (
    GemmConfig("single", 128, 128, 64, 8, 2),
    GemmConfig("single", 128, 128, 128, 8, 2),
    GemmConfig("single", 128, 256, 64, 8, 2),
    GemmConfig("single", 64, 64, 64, 4, 2),
    GemmConfig("single", 64, 128, 64, 4, 2),
    GemmConfig("single", 64, 64, 64, 4, 2, ctas_per_sm=2),
    GemmConfig("cooperative", 128, 256, 64, 4, 2),
    GemmConfig("cooperative", 192, 128, 64, 4, 2),
    GemmConfig("pingpong", 64, 256, 64, 4, 2),
    GemmConfig("pingpong", 128, 128, 64, 4, 2),
    GemmConfig("pipelined", 128, 128, 64, 4, 2),
    GemmConfig("pipelined", 128, 64, 64, 4, 2),
    GemmConfig("pipelined", 64, 64, 128, 4, 2),
)
SPLIT_TILES = 64
"""With fewer tiles than this K is split in four, as a plan would."""


def at_shape(config: GemmConfig, shape: Shape) -> GemmConfig:
    few = config.specialized and config.tiles(shape) < SPLIT_TILES
    return replace(config, split_k=4) if few else config


def rows_of(shape: Shape, profile: Profile) -> list[Row]:
    rows: list[Row] = []
    for block in BLOCKS:
        depths = {source: robust_depth(block, DTYPE, TARGET, profile.costs, source) for source in ("l2", "dram")}
        configs = [at_shape(c, shape) for c in plans_of(block)]
        times = Gemm().predicted(configs, shape, DTYPE, TARGET, profile)
        rows += [
            {
                "kernel": "gemm", "shape": shape, "config": vars(c), "robust_depth": depths,
                "predicted_us": round(p.time_us, 3), "bound_by": p.bound_by,
            }
            for c, p in zip(configs, times, strict=True)
        ]  # fmt: skip
    return rows


def by_block(rows: list[Row]) -> list[list[Row]]:
    """The rows of each shape and block, by depth."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        config = GemmConfig(**row["config"])
        key = (*row["shape"], *config.loop_key, config.ctas_per_sm)
        groups.setdefault(key, []).append(row)
    return [sorted(group, key=lambda r: r["config"]["depth"]) for group in groups.values()]


def summary(rows: list[Row]) -> dict[str, dict[str, float]]:
    """The time at the robust depth (or the deepest that fits) over the deepest's, and the best depth's."""
    found: dict[str, dict[str, float]] = {}
    groups = [[r for r in group if "measured_us" in r] for group in by_block(rows)]
    groups = [group for group in groups if group]
    for source in ("l2", "dram"):
        ratios = []
        for group in groups:
            enough = [r for r in group if r["config"]["depth"] <= r["robust_depth"][source]] or group[:1]
            ratios.append(enough[-1]["measured_us"] / group[-1]["measured_us"])
        found[source] = _spread(ratios)
    found["best"] = _spread([min(r["measured_us"] for r in g) / g[-1]["measured_us"] for g in groups])
    return found


def _spread(ratios: list[float]) -> dict[str, float]:
    return {
        "groups": len(ratios),
        "geomean": round(geomean(ratios), 4),
        "worst": round(max(ratios), 4),
        "best": round(min(ratios), 4),
    }


def read(path: Path) -> list[SearchedShape]:
    """The measured rows as ``gemm_table`` gives those of the exhaustive search, for fitting."""
    data = json.loads(path.read_text())
    by_shape: dict[Shape, dict[GemmConfig, float]] = {}
    for row in data["rows"]:
        if "measured_us" in row:
            shape, config = tuple(row["shape"]), GemmConfig(**row["config"])
            # As a plan says it: no more rows of tiles in a group than there are.
            row_tiles = -(-config.computed(shape)[0] // config.block_m)
            clipped = replace(config, group_m=min(config.group_m, row_tiles))
            by_shape.setdefault(shape, {})[clipped] = row["measured_us"]
    return [
        SearchedShape(shape, data["dtype"], "train", tuple(times), np.array(list(times.values())))
        for shape, times in by_shape.items()
    ]


def print_groups(rows: list[Row]) -> None:
    for group in by_block(rows):
        c, robust = group[0]["config"], group[0]["robust_depth"]
        blocks = " x2" if c["ctas_per_sm"] == 2 else ""
        print(f"{group[0]['shape']} {c['scheme']}{c['consumer_warps']}{blocks} {c['block_m']}x{c['block_n']}x"
              f"{c['block_k']}: robust {robust['l2']} from L2, {robust['dram']} from DRAM")  # fmt: skip
        for r in group:
            real = f"measured {r['measured_us']:9.2f}" if "measured_us" in r else ""
            ring = f"epilogue {r['config']['epilogue_split']} {r['config']['staging']}"
            print(f"  depth {r['config']['depth']} {ring:15} predicted {r['predicted_us']:9.2f} {real}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="list depths and predictions, without a GPU")
    parser.add_argument("--workers", type=int, help="children that compile at once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started = time.monotonic()
    profile = embedded(TARGET.name)
    by_shape = {shape: rows_of(shape, profile) for shape in SHAPES}
    if arguments.dry_run:
        print_groups([row for rows in by_shape.values() for row in rows])
        return
    import torch

    result = {**head("robust_depth", torch.cuda.get_device_name()), "dtype": DTYPE, "summary": {}, "rows": []}
    failed = compile_all([r for rows in by_shape.values() for r in rows], arguments.workers)
    for shape, rows in by_shape.items():
        measure(rows, failed)
        torch.cuda.empty_cache()
        result["rows"] += rows
        result["summary"]["x".join(map(str, shape))] = summary(rows)
        print_groups(rows)
        print(shape, summary(rows), f"{time.monotonic() - started:.0f} s", flush=True)
        write(arguments.out / "robust_depth_h200.json", result)
    result["summary"]["all"] = summary(result["rows"])
    print("all", result["summary"]["all"])
    write(arguments.out / "robust_depth_h200.json", result)


if __name__ == "__main__":
    main()
