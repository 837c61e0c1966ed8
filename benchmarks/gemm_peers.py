"""What the chosen plan is compared with: cuBLAS, an autotuned persistent kernel, Inductor's max-autotune."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from gemm_operands import Operands
from triton.tools.tensor_descriptor import TensorDescriptor

Launch = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Peer:
    """A launch for each operand set, and the seconds of search on this GPU that it took to get there."""

    launches: list[Launch]
    search_seconds: float
    config: str = ""


def cublas(sets: list[Operands]) -> Peer:
    return Peer([lambda o=o: torch.mm(o.a, o.b.T, out=o.c) for o in sets], 0.0)


def _set_blocks(arguments: dict[str, object]) -> None:
    block_m, block_n, block_k = (arguments[f"BLOCK_SIZE_{d}"] for d in "MNK")
    arguments["a_desc"].block_shape = [block_m, block_k]  # type: ignore[attr-defined]
    arguments["b_desc"].block_shape = [block_n, block_k]  # type: ignore[attr-defined]


def configs() -> list[triton.Config]:
    """A list as the persistent-matmul tutorial has it, widened to the tiles that matter on Hopper."""
    return [
        triton.Config(
            {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8},
            num_stages=stages, num_warps=warps, pre_hook=_set_blocks,
        )
        for m, n in ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
        for k in (64, 128)
        for stages in (3, 4)
        for warps in (4, 8)
        if (m + n) * k * 2 * stages <= 200_000 and m * n // (32 * warps) <= 128
    ]  # fmt: skip


@triton.jit
def _persistent(
    a_desc, b_desc, c_ptr, M, N, K, stride_cm,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    NUM_SMS: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0)
    row_tiles = tl.cdiv(M, BLOCK_SIZE_M)
    column_tiles = tl.cdiv(N, BLOCK_SIZE_N)
    in_group = GROUP_SIZE_M * column_tiles
    for tile in tl.range(start, row_tiles * column_tiles, NUM_SMS, flatten=True):
        first = tile // in_group * GROUP_SIZE_M
        size = min(row_tiles - first, GROUP_SIZE_M)
        row = (first + tile % in_group % size) * BLOCK_SIZE_M
        column = tile % in_group // size * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_SIZE_K):
            accumulator = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, accumulator)
        rows = row + tl.arange(0, BLOCK_SIZE_M)
        columns = column + tl.arange(0, BLOCK_SIZE_N)
        tl.store(
            c_ptr + rows[:, None].to(tl.int64) * stride_cm + columns[None, :],
            accumulator.to(c_ptr.dtype.element_ty),
            mask=(rows[:, None] < M) & (columns[None, :] < N),
        )


def _launch(kernel: object, o: Operands) -> None:
    (m, k), n = o.a.shape, o.b.shape[0]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    dummy = [64, 64]
    kernel[(sms,)](  # type: ignore[index]
        TensorDescriptor.from_tensor(o.a, dummy), TensorDescriptor.from_tensor(o.b, dummy), o.c, m, n, k,
        o.c.stride(0), NUM_SMS=sms,
    )  # fmt: skip


def autotuned(sets: list[Operands], bench_ms: int = 20) -> Peer:
    """Triton's own autotuner; ``search_seconds`` is its compile and benchmark time in this process."""

    def bench(call: Callable[[], object], quantiles: list[float]) -> object:
        return triton.testing.do_bench(call, warmup=5, rep=bench_ms, quantiles=quantiles)

    kernel = triton.autotune(configs=configs(), key=["M", "N", "K"], do_bench=bench)(_persistent)
    started = time.monotonic()
    _launch(kernel, sets[0])
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    return Peer([lambda o=o: _launch(kernel, o) for o in sets], seconds, str(kernel.best_config))


def inductor(sets: list[Operands]) -> Peer:
    """``torch.compile`` with max-autotune: its Triton templates and ATen, as it comes."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: a @ b.T, mode="max-autotune-no-cudagraphs", dynamic=False)
    started = time.monotonic()
    compiled(sets[0].a, sets[0].b)
    torch.cuda.synchronize()
    return Peer([lambda o=o: compiled(o.a, o.b) for o in sets], time.monotonic() - started)


PEERS: dict[str, Callable[[list[Operands]], Peer]] = {"cublas": cublas, "autotune": autotuned, "inductor": inductor}


def warm_autotune(index: int) -> None:
    """Compile one configuration of the autotuned peer into Triton's disk cache."""
    config = configs()[index]
    from gemm_operands import operands

    _launch(
        triton.autotune(configs=[config], key=["M"])(_persistent), operands((512, 512, 512), torch.bfloat16, sets=1)[0]
    )
    torch.cuda.synchronize()
