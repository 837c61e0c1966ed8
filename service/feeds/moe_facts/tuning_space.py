"""The configurations that vLLM's and SGLang's own tuning scripts try, and those of them that compute the right thing.

Both scripts cross the same lists for NVIDIA GPUs (vLLM 0.33 ``benchmarks/kernels/benchmark_moe.py``, SGLang 0.5
``benchmark/kernels/fused_moe_triton``): 1,920 configurations, of which each takes minutes of a GPU per number of
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds.moe_facts.moe_kernels import MoeTile
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (32, 64, 128, 256)
BLOCK_K = (64, 128, 256)
WARPS = (4, 8)
GROUPS = (1, 16, 32, 64)
STAGES = (2, 3, 4, 5)
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens that both scripts tune for. A reader takes the nearest, so all are written."""


@dataclass(frozen=True)
class MoeConfig:
    """One configuration; ``group_m`` is the number of row blocks that share each column block in launch order."""

    tile: MoeTile
    group_m: int
    stages: int

    def tuning(self) -> TuningConfig:
        """In the names of both consumers' files."""
        kwargs = {name: value for name, value in self.entry().items() if not name.startswith("num_")}
        return TuningConfig(tuple(kwargs.items()), self.tile.warps, self.stages)

    def entry(self) -> dict[str, int]:
        """As it stands in a file."""
        tile = self.tile
        sizes = {"BLOCK_SIZE_M": tile.m, "BLOCK_SIZE_N": tile.n, "BLOCK_SIZE_K": tile.k, "GROUP_SIZE_M": self.group_m}
        return {**sizes, "num_warps": tile.warps, "num_stages": self.stages}


def valid(scheme: MoeScheme, tile: MoeTile) -> bool:
    """Whether the kernels compute the right thing: a step along k stays within one quantisation block, for its scale is
    read once, and a tile's columns are whole blocks or a whole part of one."""
    if scheme.block is None:
        return True
    block_n, block_k = scheme.block
    return block_k % tile.k == 0 and (block_n % tile.n == 0 or tile.n % block_n == 0)


def tiles(scheme: MoeScheme) -> tuple[MoeTile, ...]:
    """Every tile of the space that is valid for ``scheme``, smaller ones first."""
    every = (MoeTile(m, n, k, w) for m, n, k, w in product(BLOCK_M, BLOCK_N, BLOCK_K, WARPS))
    return tuple(tile for tile in every if valid(scheme, tile))


def groups_by_preference(blocks_an_expert: float) -> tuple[int, ...]:
    """The groups, those first that one would take if nothing else told them apart: all of an expert's row blocks in
    one group, and no more than that."""
    return tuple(sorted(GROUPS, key=lambda group: (group < blocks_an_expert, abs(group - blocks_an_expert))))
