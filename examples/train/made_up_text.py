"""A made-up language whose best possible loss is known: each token is its predecessor's one of four successors."""

from __future__ import annotations

import math

import torch
from job_shapes import LlamaSizes
from torch import Tensor

CHANCES = (0.7, 0.1, 0.1, 0.1)
"""Of a token's four successors. Their entropy, 0.94 nats, is the loss of a model that knows the language."""
BEST_LOSS = -sum(chance * math.log(chance) for chance in CHANCES)


class MadeUpText:
    """Words lie on a circle, renamed by a random permutation; from each, four steps lead on.

    The same seed gives the same language and the same batches on one kind of device.
    """

    def __init__(self, sizes: LlamaSizes, device: str, seed: int = 0) -> None:
        self.sizes, self.device, self.seed = sizes, device, seed
        random = torch.Generator(device).manual_seed(seed)
        self.names = torch.randperm(sizes.vocabulary, device=device, generator=random)
        self.steps = torch.randint(1, sizes.vocabulary, (len(CHANCES),), device=device, generator=random)
        self.chances = torch.tensor(CHANCES, device=device)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and their successors, each [batch, length] of int64."""
        random = torch.Generator(self.device).manual_seed((self.seed + 1) * 1_000_003 + number)
        batch, length, words = self.sizes.batch, self.sizes.length, self.sizes.vocabulary
        chosen = torch.multinomial(self.chances, batch * length, replacement=True, generator=random)
        start = torch.randint(words, (batch, 1), device=self.device, generator=random)
        walked = self.steps[chosen].view(batch, length).cumsum(dim=1)
        text = self.names[torch.cat([start, start + walked], dim=1) % words]
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
