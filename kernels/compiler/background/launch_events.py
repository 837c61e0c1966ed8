"""Times of single launches by CUDA events, which no launch waits for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from warpplan.kernels.torch_types import TorchResult

RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``, cuda.h."""


class LaunchTimer(Protocol):
    """The time of one launch on the current stream."""

    def begin(self) -> None: ...
    def end(self) -> None: ...

    def elapsed_us(self) -> float | None:
        """Microseconds from ``begin`` to ``end``, ``None`` while the GPU has not come to that."""


class CudaTimer:
    """Two events around a launch. Needs torch and a GPU."""

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        import torch

        self._before: TorchResult = torch.cuda.Event(enable_timing=True)
        self._after: TorchResult = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        self._before.record()

    def end(self) -> None:
        self._after.record()

    def elapsed_us(self) -> float | None:
        with apart_from_captures():
            if not self._after.query():
                return None
            return float(self._before.elapsed_time(self._after)) * 1e3


@contextmanager
def apart_from_captures() -> Iterator[None]:
    """What the block asks of CUDA neither fails nor breaks a graph that another thread captures.

    A capture in the "global" mode, which is torch's own, forbids every thread to ask whether an event is over, or to
    load a kernel; a thread in the "relaxed" mode is exempt. Source: CUDA driver API, cuThreadExchangeStreamCaptureMode.
    """
    mode = ctypes.c_int(RELAXED)
    exchange = _exchange()
    if exchange is None or exchange(ctypes.byref(mode)) != 0:
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _exchange() -> TorchResult:
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
