"""Warnings that are given once in a process for each thing that they are about.

A kernel is launched thousands of times: its first launch says why it runs unplanned, the others say nothing. Python's
own "once" filter would not do: it counts a message and a line of code, and users may replace filters at any time.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable

_given: set[Hashable] = set()
_lock = threading.Lock()


def warn_once(about: Hashable, message: str, category: type[Warning] = UserWarning, *, stacklevel: int = 1) -> None:
    """Warn with ``message`` unless a warning ``about`` the same thing was given before. ``stacklevel`` counts as in
    :func:`warnings.warn`, from the caller of this function."""
    with _lock:
        if about in _given:
            return
        _given.add(about)
    warnings.warn(message, category, stacklevel=stacklevel + 1)


def forget_warnings() -> None:
    """Give every warning anew. For tests."""
    with _lock:
        _given.clear()
