"""How many rows each group has: named distributions of rows over groups, explicit lists, and their ends.

Names stand for what a router gives in training: a plan may depend on it, and only the device knows the real sizes.
Everything here is deterministic, so that every rank plans for the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import gcd

from warpplan.kernels.grouped_gemm.space import Product, Scales

DISTRIBUTIONS = ("balanced", "skewed", "few")
"""``balanced``: rows as equal as they can be. ``skewed``: Zipf's law, the k-th busiest group has a share of
k^-``ZIPF_EXPONENT``. ``few``: all but one group in ``BUSY_IN`` have 0 to ``FEW_ROWS`` rows; those share the rest."""

ZIPF_EXPONENT = 1.25
"""Gives the ten busiest of 64 groups three quarters of the rows, the imbalance of routers that little balances (Nie et
al., FlexMoE, SIGMOD 2023). With 1.0 they have 62 %; with 2.0 the busiest alone has 61 %."""
BUSY_IN = 8
FEW_ROWS = 4
GOLDEN = 0.6180339887498949
"""Busy groups lie apart, as experts do: rank r is group r · stride mod G with a stride near this part of G (Knuth, The
Art of Computer Programming 3, 6.4, multiplicative hashing)."""


@dataclass(frozen=True)
class GroupedShape:
    """A shape with everything that a plan depends on: ``m`` rows in all, B [groups, ``n``, ``k``], and the ``sizes`` of
    the groups in rows, one each, together at most ``m``."""

    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    product: Product = "forward"
    scales: Scales = "row"

    @property
    def groups(self) -> int:
        return len(self.sizes)

    @property
    def flops(self) -> float:
        """Of the rows that are there, without overhang."""
        return 2.0 * sum(self.sizes) * self.n * self.k


def group_sizes(name: str, rows: int, groups: int) -> tuple[int, ...]:
    """The sizes of ``groups`` groups by the distribution called ``name`` (one of :data:`DISTRIBUTIONS`) or by the list
    that ``name`` is ("3,0,5"). Named ones sum to ``rows``."""
    if name == "balanced":
        return tuple(rows // groups + (g < rows % groups) for g in range(groups))
    if name == "skewed":
        ranked = _apportioned(rows, [rank**-ZIPF_EXPONENT for rank in range(1, groups + 1)])
    elif name == "few":
        ranked = _few(rows, groups)
    else:
        return tuple(int(size) for size in name.split(","))
    sizes = [0] * groups
    stride = _stride(groups)
    for rank, size in enumerate(ranked):
        sizes[rank * stride % groups] = size
    return tuple(sizes)


def ends(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The row after each group's last: what the kernel reads on the device, as int32."""
    return tuple(accumulate(sizes))


def _apportioned(rows: int, weights: list[float]) -> list[int]:
    """``rows`` in proportion to ``weights`` by largest remainders (Hamilton's method), the earlier at a tie."""
    total = sum(weights)
    # Rounded, so that the last bit of a platform's power function decides no tie.
    shares = [round(rows * weight / total, 6) for weight in weights]
    sizes = [int(share) for share in shares]
    by_remainder = sorted(range(len(weights)), key=lambda i: (sizes[i] - shares[i], i))
    for i in by_remainder[: rows - sum(sizes)]:
        sizes[i] += 1
    return sizes


def _few(rows: int, groups: int) -> list[int]:
    busy = -(-groups // BUSY_IN)
    # Never above the mean, so that the busy groups stay the busy ones.
    idle = [min(i % (FEW_ROWS + 1), rows // groups) for i in range(groups - busy)]
    rest = rows - sum(idle)
    return [rest // busy + (i < rest % busy) for i in range(busy)] + idle


def _stride(groups: int) -> int:
    stride = max(1, round(groups * GOLDEN))
    while gcd(stride, groups) != 1:
        stride += 1
    return stride
