"""How many blocks a routed layer's launch has: tokens to experts, rows to blocks, padding.

Routing is taken as uniform: each of M tokens goes to ``top_k`` distinct experts of E, all alike, so an expert's rows
are binomial, Bin(M, top_k / E). That is what both consumers' tuning scripts measure (random gating); a trained
router is less even. Shared experts run as routed ones get every token and are counted so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom


@dataclass(frozen=True)
class RoutedBlocks:
    """Expected values: ``hit`` experts with any row, ``row_blocks`` with any row in them, ``launched`` row blocks of
    the grid, of which those without rows return at once."""

    rows: int
    hit: float
    row_blocks: float
    launched: int

    @property
    def blocks_an_expert(self) -> float:
        return self.row_blocks / self.hit


@lru_cache(maxsize=4096)
def routed(tokens: int, experts: int, top_k: int, block_m: int, *, shared: int = 0) -> RoutedBlocks:
    """The blocks of ``tokens`` × ``top_k`` rows sorted by ``experts`` and padded to ``block_m`` an expert; ``shared``
    of the experts and of ``top_k`` take every token."""
    rows = tokens * top_k
    others, chosen = experts - shared, top_k - shared
    hit, blocks = float(shared), float(shared * -(-tokens // block_m))
    if chosen:
        share = chosen / others
        counts = np.arange(tokens + 1)
        chance = binom.pmf(counts, tokens, share)
        hit += others * float(1.0 - chance[0])
        blocks += others * float((chance * -(-counts // block_m)).sum())
    # moe_align_block_size of both: room for every expert's last block; fewer rows than experts touch as many at most.
    padded = rows + experts * (block_m - 1)
    if rows < experts:
        padded = min(padded, rows * block_m)
    if tokens < block_m:
        padded = min(padded, rows * block_m)
    return RoutedBlocks(rows, hit, blocks, max(1, -(-padded // block_m)))


def unsorted(tokens: int, experts: int, top_k: int) -> RoutedBlocks:
    """vLLM's way for few tokens: a block for each row, in the order in which they come, nothing sorted."""
    rows = tokens * top_k
    hit = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
    return RoutedBlocks(rows, hit, float(rows), rows)
