"""What differs between the releases of Triton that the kernels run on, in one place: they take Gluon from here alone.

Tested with 3.6.0 and 3.9.0. A name is looked up by presence, not by version, so the releases in between fall on one
side or the other by themselves.
"""

from __future__ import annotations

from inspect import signature

import triton

OLDEST, NEWEST = (3, 6), (3, 9)


def release(version: str) -> tuple[int, int]:
    """(major, minor) of ``version``; (0, 0) where it does not start with two numbers."""
    head = version.split(".")[:2]
    if len(head) < 2 or not all(part.isdigit() for part in head):
        return 0, 0
    return int(head[0]), int(head[1])


def require_supported(version: str) -> None:
    """Raise :class:`ImportError` unless the kernels are known to run on Triton ``version``."""
    if not OLDEST <= release(version) <= NEWEST:
        raise ImportError(
            f"triton {version}: the kernels need {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}; "
            "install one of them, for example triton==3.6.0"
        )


require_supported(triton.__version__)

from triton._C.libtriton import ir  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton.experimental.gluon.language._core import builtin  # noqa: E402
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # noqa: E402
from triton.profiler import language as proton  # noqa: E402

tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
tma_store_wait = tma.store_wait


@builtin
def _reduce_add(tensor_desc, coord, src, _semantic=None):  # type: ignore[no-untyped-def]
    """Triton's builder has the operation since 3.6, and Python a name for it later."""
    coordinates = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, tensor_desc.handle, coordinates, src.handle)


tma_reduce_add = getattr(tma, "async_atomic_add", None) or _reduce_add
"""``(desc, coordinates, tile)``: add a shared tile to a box of global memory; waited for as a store is."""
thread_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
has_clusters = "multicast" in signature(tma_load).parameters and "from_cta" in signature(mbarrier.arrive).parameters
"""Whether one TMA copy can land in all CTAs of a cluster, and a CTA arrive at another's barrier."""
reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret

__all__ = [
    "GPUTarget",
    "GluonASTSource",
    "TensorDescriptor",
    "async_copy",
    "fence_async_shared",
    "gdc_launch_dependents",
    "gdc_wait",
    "gl",
    "gluon",
    "has_clusters",
    "mbarrier",
    "mma_v2",
    "proton",
    "reinterpret",
    "release",
    "require_supported",
    "thread_barrier",
    "tma_load",
    "tma_reduce_add",
    "tma_store",
    "tma_store_wait",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
