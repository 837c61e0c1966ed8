"""The vector addition in Triton: a program adds ``BLOCK_SIZE`` elements; a mask covers what is left of the last one."""

from __future__ import annotations

import triton
import triton.language as tl

from warpplan.kernels.vector_add.space import VectorAddConfig


@triton.jit(do_not_specialize=["N"])
def vector_add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    # 64 bits: the last block of 2³¹ − 1 elements ends beyond what 32 bits hold.
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    offsets = start + tl.arange(0, BLOCK_SIZE)
    if start + BLOCK_SIZE <= N:
        # Without a mask Triton reads 16 bytes a thread; under one whose length it does not know, an element a time.
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + tl.load(y_ptr + offsets))
    else:
        inside = offsets < N
        total = tl.load(x_ptr + offsets, mask=inside) + tl.load(y_ptr + offsets, mask=inside)
        tl.store(out_ptr + offsets, total, mask=inside)


def constants(config: VectorAddConfig) -> dict[str, object]:
    """The kernel's constexprs."""
    return {"BLOCK_SIZE": config.block_size}


def launch_options(config: VectorAddConfig) -> dict[str, int]:
    return {"num_warps": config.num_warps, "num_stages": 1}


def signature(config: VectorAddConfig, element: str) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    tensors = ["x_ptr", "y_ptr", "out_ptr"]
    return dict.fromkeys(tensors, f"*{element}") | {"N": "i32"}, constants(config), tensors
