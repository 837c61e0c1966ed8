"""What one attention asks for, as numbers: lengths, heads, and the band of keys that each query sees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.space import RESULT_BYTES

Ints = NDArray[np.int64]

MAX_LENGTH = 1 << 20
"""Of queries and of keys."""


@dataclass(frozen=True)
class AttentionShape:
    """``heads`` of Q, ``kv_heads`` of K and V in each of ``batch``. The last query stands at the last key (bottom
    right); ``causal`` hides the keys behind a query's position, ``window`` those further than so many before it and,
    where the mask is not causal, behind it. ``sizes`` are the queries of each of ``batch`` packed sequences, of which
    ``q_length`` is the most; each has so many keys more as ``k_length`` has. ``None``: all are alike."""

    batch: int
    heads: int
    q_length: int
    head_dim: int
    kv_heads: int
    k_length: int
    causal: bool = False
    window: int | None = None
    sizes: tuple[int, ...] | None = None

    @property
    def packed(self) -> bool:
        return self.sizes is not None

    @property
    def sequences(self) -> tuple[tuple[int, AttentionShape], ...]:
        """(how many, what one of them asks for) of the sequences that have queries, alike ones that follow each other
        together."""
        if self.sizes is None:
            return ((self.batch, replace(self, batch=1)),)
        more, found = self.k_length - self.q_length, list[tuple[int, int]]()
        for size in filter(None, self.sizes):
            if found and found[-1][1] == size:
                found[-1] = (found[-1][0] + 1, size)
            else:
                found.append((1, size))
        return tuple((n, replace(self, batch=1, q_length=s, k_length=max(s + more, 0), sizes=None)) for n, s in found)

    @property
    def q_rows(self) -> int:
        """Queries of all sequences."""
        return sum(count * one.q_length for count, one in self.sequences)

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

    def blocks(self, tile_rows: int, columns: int, step: int = 1) -> Ints:
        """Blocks of ``columns`` keys that each tile of ``tile_rows`` queries of a head runs through; one at least. The
        first key of a tile is a multiple of ``step``."""
        first = np.arange(0, self.q_length, tile_rows, dtype=np.int64)
        begin, end = self.key_range(first, np.minimum(first + tile_rows, self.q_length))
        begin = begin // step * step
        return np.asarray(np.maximum(-(-(end - begin) // columns), 1))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of one sequence."""
        rows = np.arange(self.q_length, dtype=np.int64)
        begin, end = self.key_range(rows, rows + 1)
        return int(np.maximum(end - begin, 0).sum())

    @property
    def flops(self) -> float:
        """Of both products: 4 · D for each pair of a query and a key that it sees."""
        return 4.0 * self.heads * self.head_dim * sum(count * one.pairs for count, one in self.sequences)

    def moved_bytes(self, element_bytes: int) -> float:
        """Q, K and V of ``element_bytes``, and O of 16 bits, each moved once."""
        keys = sum(count * one.k_length for count, one in self.sequences)
        operands = float(self.heads * self.q_rows + 2 * self.kv_heads * keys) * element_bytes
        return (operands + self.heads * self.q_rows * RESULT_BYTES) * self.head_dim
