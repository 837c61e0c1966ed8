"""The CUDA context of a thread that is about to encode TMA descriptors.

A thread has a context from its first call of the CUDA runtime on. PyTorch's backward threads may come to a kernel
before any: their memory comes out of the allocator's cache. Triton's launcher sets the context, but it encodes
descriptors before that, through the driver, which fails with "invalid device context" (Triton 3.6.0, on an H100,
2026-11-25).
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Protocol

_threads = threading.local()


class TorchDevice(Protocol):
    """``torch.device``."""

    type: str
    index: int | None


def bind_context(device: TorchDevice, driver: Any = None) -> None:
    """Make the primary context of GPU ``device`` current in this thread where it has none.

    Nothing is enqueued: it may be called while a CUDA graph is captured. The context is retained once a thread. Does
    nothing for other devices, and where there is no driver. ``driver`` stands in for libcuda in tests. Raises
    :class:`RuntimeError` with the driver's error number.
    """
    if device.type != "cuda" or getattr(_threads, "bound", False):
        return
    try:
        cuda = ctypes.CDLL("libcuda.so.1") if driver is None else driver
    except OSError:
        return
    context = ctypes.c_void_p()
    _require(cuda.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
    if not context.value:
        _require(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.index or 0), "cuDevicePrimaryCtxRetain")
        _require(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    _threads.bound = True


def _require(error: int, call: str) -> None:
    if error:
        raise RuntimeError(
            f"{call} failed with CUDA error {error}: the thread has no GPU context to encode descriptors in"
        )
