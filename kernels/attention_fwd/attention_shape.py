"""What one attention asks for, as numbers: lengths, heads, and the band of keys that each query sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_LENGTH = 1 << 20
"""Of queries and of keys."""


@dataclass(frozen=True)
class AttentionShape:
    """``heads`` of Q, ``kv_heads`` of K and V in each of ``batch``. The last query stands at the last key (bottom
    right); ``causal`` hides the keys behind a query's position, ``window`` those further than so many before it and,
    where the mask is not causal, behind it."""

    batch: int
    heads: int
    q_length: int
    head_dim: int
    kv_heads: int
    k_length: int
    causal: bool = False
    window: int | None = None

    @property
    def batch_heads(self) -> int:
        return self.batch * self.heads

    @property
    def left(self) -> int | None:
        """Keys before its position that a query sees; ``None`` for all."""
        return self.window

    @property
    def right(self) -> int | None:
        """Keys behind its position that a query sees; ``None`` for all."""
        return 0 if self.causal else self.window

    def key_range(self, first: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The first key and the end of the keys that some of the queries ``first`` to ``end`` (exclusive) see."""
        shift = self.k_length - self.q_length
        begin = np.zeros_like(first) if self.left is None else np.maximum(first + shift - self.left, 0)
        last = np.full_like(end, self.k_length)
        if self.right is not None:
            last = np.minimum(end + shift + self.right, self.k_length)
        return begin, last

    def blocks(self, tile_rows: int, columns: int) -> Ints:
        """Blocks of ``columns`` keys that each tile of ``tile_rows`` queries of a head runs through; one at least."""
        first = np.arange(0, self.q_length, tile_rows, dtype=np.int64)
        begin, end = self.key_range(first, np.minimum(first + tile_rows, self.q_length))
        return np.asarray(np.maximum(-(-(end - begin) // columns), 1))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head."""
        rows = np.arange(self.q_length, dtype=np.int64)
        begin, end = self.key_range(rows, rows + 1)
        return int(np.maximum(end - begin, 0).sum())

    @property
    def flops(self) -> float:
        """Of both products: 4 · D for each pair of a query and a key that it sees."""
        return 4.0 * self.batch_heads * self.head_dim * self.pairs

    def moved_bytes(self, element_bytes: int) -> float:
        """Q, K, V and O, each moved once."""
        rows = 2.0 * self.heads * self.q_length + 2.0 * self.kv_heads * self.k_length
        return self.batch * rows * self.head_dim * element_bytes
