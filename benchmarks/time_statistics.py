"""Statistics of measured times: their geometric mean, and the times without the drift of the card's clock."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

NEIGHBOURS = 5
"""Readings of the peer whose median is the drift at the middle one: single readings scatter by some per cent."""


def geomean(values: Iterable[float]) -> float:
    return float(np.exp(np.log(list(values)).mean()))


def steady_us(times: NDArray[np.float64], peer_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """The medians of ``times`` in µs, without the drift of the card's clock between them, so that they can be ranked.

    ``times`` [configurations, 4] has columns median, low, high and the index of the reading next to it in ``peer_us``.
    Each median is scaled by the peer's median over all readings divided by its running median there.
    """
    drift = median_filter(peer_us, size=min(NEIGHBOURS, len(peer_us)), mode="nearest")[times[:, 3].astype(int)]
    return np.asarray(times[:, 0] * np.median(peer_us) / drift)
