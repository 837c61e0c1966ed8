"""The configuration of a routed layer for each number of tokens: every one of the space predicted, the least time
taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.planner.errors import Infeasible
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.moe_launch import MoeProduct, down_product, launch_facts, up_product
from warpplan.service.feeds.moe.routing import RoutedBlocks, routed, unsorted
from warpplan.service.feeds.moe_facts.moe_kernels import MoeTile
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme
from warpplan.service.feeds.moe_facts.shipped_facts import TileFacts
from warpplan.service.feeds.moe_facts.tile_facts import KernelSource
from warpplan.service.feeds.moe_facts.tuning_space import STAGES, MoeConfig, groups_by_preference

UNSORTED_SHARE = 4
"""vLLM skips the sorting where there are four times as many experts as rows (``fused_moe.py``, 0.33.0)."""


@dataclass(frozen=True)
class PredictedConfig:
    """Predicted times in µs of the two products of one layer, each a launch."""

    config: MoeConfig
    up_us: float
    down_us: float

    @property
    def total_us(self) -> float:
        return self.up_us + self.down_us


@dataclass(frozen=True)
class ChosenPair:
    """A configuration for each product; the row blocks are alike, for both are launched on one sorting."""

    up: MoeConfig
    down: MoeConfig
    up_us: float
    down_us: float


class MoeChooser:
    """Chooses for one kernel, scheme, profile and device. ``sorts_always`` is false for a consumer that launches few
    tokens unsorted; ``shared`` experts take every token."""

    def __init__(
        self, source: KernelSource, scheme: MoeScheme, profile: Profile, device: Device, *, sorts_always: bool,
        shared: int = 0,
    ) -> None:  # fmt: skip
        self.source, self.scheme, self.device = source, scheme, device
        self.sorts_always, self.shared = sorts_always, shared
        self.models = {tile: LaunchModel(found.facts, profile, device) for tile, found in source.tiles.items()}

    def predicted(self, layer: MoeLayer, tokens: int) -> Iterator[PredictedConfig]:
        """Every configuration that fits the device; of groups that read as much from DRAM, the preferred one."""
        up, down = up_product(layer), down_product(layer)
        for tile, found in self.source.tiles.items():
            model = self.models[tile]
            blocks = self._blocks(layer, tokens, tile)
            for group, launches in self._launches((up, down), tile, found, blocks).items():
                for stages in STAGES:
                    times = [model.time(replace(launch, stages=stages)) for launch in launches]
                    if all(time.fits for time in times):
                        yield PredictedConfig(MoeConfig(tile, group, stages), times[0].time_us, times[1].time_us)

    def _launches(
        self, products: tuple[MoeProduct, ...], tile: MoeTile, found: TileFacts, blocks: RoutedBlocks
    ) -> dict[int, list[LaunchFacts]]:
        """The launches of ``products`` by group, without groups that are like one before them."""
        made: dict[int, list[LaunchFacts]] = {}
        for group in groups_by_preference(blocks.blocks_an_expert):
            launches = [
                launch_facts(
                    product,
                    self.scheme,
                    MoeConfig(tile, group, STAGES[0]),
                    blocks,
                    found.facts,
                    self.device,
                    registers=found.registers,
                    spill_bytes=found.spill_bytes,
                )
                for product in products
            ]
            if launches not in made.values():
                made[group] = launches
        return made

    def best(self, layer: MoeLayer, tokens: int) -> PredictedConfig:
        """One configuration for both products. Raises :class:`Infeasible` where none fits the device."""
        return self.ranked(layer, tokens)[0]

    def ranked(self, layer: MoeLayer, tokens: int) -> list[PredictedConfig]:
        """One configuration for both products, the best first. Raises as :meth:`best`."""
        return sorted(self._some(layer, tokens), key=lambda p: _order(p.total_us, p.config))

    def best_pair(self, layer: MoeLayer, tokens: int) -> ChosenPair:
        """One configuration for each product, of equal row blocks. Raises as :meth:`best`."""
        every = self._some(layer, tokens)
        pairs = []
        for rows in sorted({p.config.tile.m for p in every}):
            alike = [p for p in every if p.config.tile.m == rows]
            up = min(alike, key=lambda p: _order(p.up_us, p.config))
            down = min(alike, key=lambda p: _order(p.down_us, p.config))
            pairs.append(ChosenPair(up.config, down.config, up.up_us, down.down_us))
        return min(pairs, key=lambda pair: (pair.up_us + pair.down_us, pair.up.tile.m))

    def _some(self, layer: MoeLayer, tokens: int) -> list[PredictedConfig]:
        found = list(self.predicted(layer, tokens))
        if not found:
            raise Infeasible(f"no configuration of {self.source.origin} fits {self.device.name}", field="device")
        return found

    def _blocks(self, layer: MoeLayer, tokens: int, tile: MoeTile) -> RoutedBlocks:
        if not self.sorts_always and tokens * layer.top_k * UNSORTED_SHARE <= layer.experts:
            return unsorted(tokens, layer.experts, layer.top_k)
        return routed(tokens, layer.experts, layer.top_k, tile.m, shared=self.shared)


def _order(time_us: float, config: MoeConfig) -> tuple[float, ...]:
    """By time to a thousandth; of equals the one that takes least of an SM."""
    tile = config.tile
    return (round(time_us, 3), config.stages, tile.m * tile.n * tile.k, tile.warps, config.group_m, tile.m, tile.n)
