"""Data that a mixture of experts learns quickly: tokens in clusters, each cluster with a target function of its own."""

from __future__ import annotations

import torch
from layer import LayerSizes
from torch import Tensor

RANK = 16
"""Of a cluster's target function, so that it can be learned from the tokens of a few hundred steps."""
NOISE = 0.5
"""Standard deviation of a token around its cluster's centre, whose elements have 1."""


class Teacher:
    """``target = silu(token · A) · B`` with one pair of random matrices for each cluster, as many clusters as experts.

    The same seed gives the same teacher and the same batches on one kind of device.
    """

    def __init__(self, sizes: LayerSizes, device: str, seed: int = 0) -> None:
        self.sizes, self.device, self.seed = sizes, device, seed
        random = torch.Generator(device).manual_seed(seed)
        clusters, width = sizes.experts, sizes.width
        self.centres = torch.randn(clusters, 1, width, device=device, generator=random)
        self.down = torch.randn(clusters, width, RANK, device=device, generator=random) * width**-0.5
        self.up = torch.randn(clusters, RANK, width, device=device, generator=random) * RANK**-0.5

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of one step, each [tokens, width] in float32, clusters of equal size, shuffled."""
        random = torch.Generator(self.device).manual_seed((self.seed + 1) * 1_000_003 + step)
        tokens, clusters, width = self.sizes.tokens, self.sizes.experts, self.sizes.width
        each = -(-tokens // clusters)
        noise = torch.randn(clusters, each, width, device=self.device, generator=random)
        x = self.centres + NOISE * noise
        target = torch.nn.functional.silu(x @ self.down) @ self.up
        shuffled = torch.randperm(clusters * each, device=self.device, generator=random)[:tokens]
        return x.flatten(0, 1)[shuffled], target.flatten(0, 1)[shuffled]
