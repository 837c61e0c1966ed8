"""One product of a routed layer as a launch: blocks, iterations, and what comes from DRAM in the order of the launch.

Programs are numbered so that ``group_m`` row blocks share a column block before the next one's turn. Within such a
group an expert's weights are read once from DRAM, in the column's turn; the next group of the same expert finds them
in L2 where a group's bytes fit there, or while both groups run at once, and reads them again otherwise. Rows are read
from DRAM once if they fit in L2, and once a routed copy if not.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.costing.kernel_facts import KernelFacts
from warpplan.kernels.compiler.costing.launch_time import LaunchFacts
from warpplan.planner.values.device import Device
from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.routing import RoutedBlocks
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme
from warpplan.service.feeds.moe_facts.tuning_space import MoeConfig

USABLE_L2 = 0.6
"""Of L2 that one launch's tiles keep: lines of both halves are held twice on Hopper where both read them. Chosen by
hand. Doubled: large groups stop being needed for many tokens."""
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
        dram_bytes=weights + rows + written,
        cold=min(1.0, (weights + rows) / max(1.0, working * moved * loaded)),
        loaded=loaded,
    )


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
    again = 1.0 if group_bytes <= capacity or at_once else max(1.0, each / group)
    distinct = blocks.rows / product.copies * product.k * scheme.activation_bytes
    routed = blocks.rows * product.k * scheme.activation_bytes
    return blocks.hit * expert * again, distinct if distinct <= capacity else float(routed)
