"""One product of a routed layer as a launch: blocks, iterations, and what comes from DRAM in the order of the launch.

Programs are numbered so that ``group_m`` row blocks share a column block before the next one's turn. Within such a
group an expert's weights are read once from DRAM, in the column's turn; the next group of the same expert finds them
in L2 where a group's bytes fit there, or while both groups run at once, and reads them again otherwise. Rows are read
from DRAM once if they fit in L2, and once a routed copy if not. Both come in tiles, a short run of bytes from each of
many rows, which DRAM delivers more slowly than one long run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts
from warpplan.planner.values.device import Device
from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.routing import RoutedBlocks
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme
from warpplan.service.feeds.moe_facts.tuning_space import MoeConfig

USABLE_L2 = 0.6
"""Of L2 that one launch's tiles keep: lines of both halves are held twice on Hopper where both read them. Chosen by
hand. Doubled: large groups stop being needed for many tokens."""
APART = 0.5
"""Of a group's reads of weights which another group of the expert makes, too, those that come too late to find them in
L2 although both groups run at once. Chosen by hand on ``benchmarks/results/moe_samples_h100.json``."""
TILED, SHORT_RUN_BYTES, RUN_POWER = 1.06, 50.0, 3.0
"""Time to read tiles from DRAM over that to read as much at one place: ``TILED`` · (1 + (``SHORT_RUN_BYTES`` / run) ^
``RUN_POWER``), with ``run`` bytes of each row. Chosen by hand on ``benchmarks/results/moe_samples_h100.json``, as are
the next two: runs of 64 bytes, half of a cache line, take 1.45 times as long as those of 128."""
BURST, BURST_BYTES = 0.04, 16_384.0
"""What every doubling of a stage beyond ``BURST_BYTES`` adds: blocks ask for all of it at once, and wait for the last
of it."""
OUTPUT_BYTES = 2


@dataclass(frozen=True)
class MoeProduct:
    """``rows`` [K] · each expert's [K, N]: ``copies`` of each row are read, one for every expert it goes to."""

    n: int
    k: int
    copies: int


def up_product(layer: MoeLayer) -> MoeProduct:
    """Gate and up projection at once: hidden → 2 · intermediate."""
    return MoeProduct(2 * layer.intermediate, layer.hidden, layer.top_k)


def down_product(layer: MoeLayer) -> MoeProduct:
    """Down projection: intermediate → hidden, each routed row its own."""
    return MoeProduct(layer.hidden, layer.intermediate, 1)


def launch_facts(
    product: MoeProduct, scheme: MoeScheme, config: MoeConfig, blocks: RoutedBlocks, facts: KernelFacts, device: Device,
    *, registers: int | None = None, spill_bytes: int | None = None,
) -> LaunchFacts:  # fmt: skip
    """``product`` launched with ``config`` for the tokens that ``blocks`` routes."""
    tile = config.tile
    columns = -(-product.n // tile.n)
    trips = -(-product.k // tile.k)
    working = blocks.row_blocks * columns
    weights, rows = _read_bytes(product, scheme, config, blocks, device, working)
    moved = trips * sum(loop.loaded_bytes for loop in facts.loops)
    valid = min(1.0, blocks.rows / (blocks.row_blocks * tile.m))
    row_bytes = tile.m * tile.k * scheme.activation_bytes
    ring = max(1, sum(loop.ring_bytes for loop in facts.loops))
    loaded = 1.0 - (1.0 - valid) * min(1.0, row_bytes / ring)
    written = blocks.rows * product.n * OUTPUT_BYTES
    return LaunchFacts(
        blocks=working,
        trips=(float(trips),) * len(facts.loops),
        stages=config.stages,
        idle_blocks=max(0.0, (blocks.launched - blocks.row_blocks) * columns),
        registers=registers,
        spill_bytes=spill_bytes,
        dram_bytes=weights * _slowdown(tile.k * scheme.weight_bytes, ring)
        + rows * _slowdown(tile.k * scheme.activation_bytes, ring)
        + written,
        cold=min(1.0, (weights + rows) / max(1.0, working * moved * loaded)),
        loaded=loaded,
    )


def _slowdown(run_bytes: int, stage_bytes: int) -> float:
    burst = 1.0 + BURST * max(0.0, math.log2(stage_bytes / BURST_BYTES))
    return TILED * (1.0 + math.pow(SHORT_RUN_BYTES / run_bytes, RUN_POWER)) * burst


def _read_bytes(
    product: MoeProduct, scheme: MoeScheme, config: MoeConfig, blocks: RoutedBlocks, device: Device, working: float
) -> tuple[float, float]:
    """Bytes of weights and of rows that come from DRAM."""
    capacity = USABLE_L2 * device.l2_bytes
    expert = float(product.n * product.k * scheme.weight_bytes)
    each = max(1.0, blocks.blocks_an_expert)
    group = min(float(config.group_m), blocks.row_blocks)
    in_group = group / each if group > each else 1.0
    group_bytes = in_group * expert + group * config.tile.m * product.k * scheme.activation_bytes
    columns = -(-product.n // config.tile.n)
    at_once = 2 * group * columns <= device.sm_count
    again = 1.0 if group_bytes <= capacity else 1.0 + max(0.0, each / group - 1.0) * (APART if at_once else 1.0)
    distinct = blocks.rows / product.copies * product.k * scheme.activation_bytes
    routed = blocks.rows * product.k * scheme.activation_bytes
    return blocks.hit * expert * again, distinct if distinct <= capacity else float(routed)
