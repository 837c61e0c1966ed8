"""Memory for the descriptors that a planned kernel makes, where the job has set no allocator for Triton."""

from __future__ import annotations

from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument


def with_scratch(kernel: CompiledKernel) -> CompiledKernel:
    """``kernel``; one that needs global scratch memory takes torch's at each launch without an allocator.

    Torch's allocator frees in the order of the stream, and inside of a graph's capture from the graph's own pool.
    """
    if not getattr(kernel.metadata, "global_scratch_size", 0):
        return kernel
    prepare = kernel._init_handles

    def _init_handles() -> None:
        if kernel.module is not None:
            return
        prepare()
        from triton.runtime import _allocation

        launch, current = kernel._run, _allocation._allocator
        nothing = type(_allocation._NULL_ALLOCATOR)

        def run(*arguments: KernelArgument) -> object:
            if not isinstance(current.get(), nothing):
                return launch(*arguments)
            before = current.set(_from_torch)
            try:
                return launch(*arguments)
            finally:
                current.reset(before)

        kernel._run = run

    kernel._init_handles = _init_handles
    return kernel


def _from_torch(size: int, alignment: int, stream: int | None) -> Tensor:
    import torch

    return torch.empty(size, dtype=torch.int8, device="cuda")
