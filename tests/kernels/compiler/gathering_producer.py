"""A Gluon product whose producer gathers rows by cp.async and loads the other operand by TMA, both onto one barrier."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

M, N, K = 64, 64, 64
DEPTH = 2
THREADS = 128
SIGNATURE = {
    "table": "*bf16", "order": "*i32", "stride": "i32", "weights": "", "out": "*fp32", "steps": "i32",
    "num_warps": "constexpr",
}  # fmt: skip


@gluon.jit
def bring(table, order, stride, weights, left, right, full, empty, steps):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.load(order + gl.arange(0, 64, gl.SliceLayout(1, layout)))
    at = table + row[:, None] * stride + gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]
    for k in range(steps):
        slot = k % 2
        mbarrier.wait(empty.index(slot), ((k // 2) & 1) ^ 1)
        mbarrier.expect(full.index(slot), weights.block_type.nbytes)
        tma.async_copy_global_to_shared(weights, [0, k * 64], full.index(slot), right.index(slot))
        async_copy.async_copy_global_to_shared(left.index(slot), at)
        async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
        at += 64


@gluon.jit
def add_up(out, left, right, full, empty, steps):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    acc = gl.zeros((64, 64), gl.float32, layout)
    for k in range(steps):
        slot = k % 2
        mbarrier.wait(full.index(slot), (k // 2) & 1)
        fence_async_shared()
        acc = warpgroup_mma(left.index(slot), right.index(slot).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(slot), count=1)
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * 64 + columns[None, :], acc)


@gluon.jit
def gathered_product(table, order, stride, weights, out, steps, num_warps: gl.constexpr):
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    left = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], tile)
    right = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], weights.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1 + 128)  # the expect, and each thread of the producer
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (add_up, (out, left, right, full, empty, steps)),
            (bring, (table, order, stride, weights, left, right, full, empty, steps)),
        ],
        [4],
        [80],
    )


def finished_gather() -> str:
    """Its TTGIR after all of Triton's passes."""
    import triton

    layout = gl.NVMMASharedLayout.get_default_for([N, K], gl.bfloat16)
    signature = SIGNATURE | {"weights": f"tensordesc<bf16[{N}, {K}],{layout!r}>"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 4)}
    source = GluonASTSource(gathered_product, signature, {(6,): 4}, aligned)
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ttgir"])
