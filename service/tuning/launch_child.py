"""The child's side of ``warpplan tune --measure``: launch somebody's kernel under each configuration, and time it.

Runs in a process of its own, because a configuration may hang or crash. Needs torch and a GPU; what is launched and
when is decided by :mod:`~warpplan.service.tuning.launch_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpplan.kernels.triton_types import Json

TORCH_TYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2", "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
}  # fmt: skip
"""torch's names of the elements that a signature may name."""


def identity() -> dict[str, str]:
    """This machine's GPU and versions. Raises ``RuntimeError`` where torch finds no GPU."""
    import torch

    from warpplan.service.listening import environment

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    return environment(torch.cuda.current_device())


def time_launches(jobs: Sequence[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """What became of each job of :func:`~warpplan.service.tuning.launch_jobs.launch_job`, as
    :func:`~warpplan.kernels.timing.timed_jobs` tells it."""
    from warpplan.kernels.timing import timed_jobs

    return timed_jobs(jobs, _launch)


def _launch(job: dict[str, Json]) -> Callable[[], object]:
    """A call that launches the kernel of ``job`` on random data."""
    import torch
    import triton

    from warpplan.kernels.compiler.inspection.signature import source_of
    from warpplan.service.feeds.consumer_kernel import find

    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    kernel = find(job["spec"])
    while not hasattr(kernel, "params"):  # under @triton.autotune and the like
        kernel = kernel.fn
    source = source_of(kernel, job["signature"])
    arguments: dict[str, Any] = {}
    for index, parameter in enumerate(kernel.params):
        kind = source.signature[parameter.name]
        if kind == "constexpr":
            arguments[parameter.name] = job["values"].get(parameter.name, source.constants[(index,)])
        elif kind.startswith("*"):
            arguments[parameter.name] = _tensor(TORCH_TYPES[kind[1:]], job["elements"][parameter.name])
        else:
            arguments[parameter.name] = job["values"][parameter.name]
    launch = kernel[tuple(job["grid"])]
    return lambda: launch(**arguments, **job["options"])


def _tensor(dtype: str, elements: int) -> Any:
    """Normal numbers, or zeros of an integer type: an index that is zero lies within what it points into."""
    import torch

    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.zeros(elements, dtype=kind, device="cuda")
    return torch.randn(elements, dtype=torch.float32, device="cuda").to(kind)
