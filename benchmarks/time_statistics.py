"""Statistics of measured times: their geometric mean, the least of noisy ones, and times without the clock's drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

NEIGHBOURS = 5
"""Readings of the peer whose median is the drift at the middle one: single readings scatter by some per cent."""


def geomean(values: Iterable[float]) -> float:
    return float(np.exp(np.log(list(values)).mean()))


def least_us(samples: Sequence[Sequence[float]]) -> float:
    """The time of the fastest contender, each of which has a reading of every round: chosen by every other round and
    read in the rest, then the other way round. The least of several noisy times would be shorter than it is."""
    rounds = np.asarray(samples, dtype=np.float64)
    halves = [rounds[:, 0::2].mean(axis=1), rounds[:, 1::2].mean(axis=1)] if rounds.shape[1] > 1 else [rounds[:, 0]] * 2
    return float(np.mean([read[np.argmin(chosen)] for chosen, read in (halves, reversed(halves))]))


def steady_us(times: NDArray[np.float64], peer_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """The medians of ``times`` in µs, without the drift of the card's clock between them, so that they can be ranked.

    ``times`` [configurations, 4] has columns median, low, high and the index of the reading next to it in ``peer_us``.
    Each median is scaled by the peer's median over all readings divided by its running median there.
    """
    drift = median_filter(peer_us, size=min(NEIGHBOURS, len(peer_us)), mode="nearest")[times[:, 3].astype(int)]
    return np.asarray(times[:, 0] * np.median(peer_us) / drift)
