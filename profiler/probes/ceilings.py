"""What the whole device can do at most: memory rates, tensor rates at sustained power, clocks, launches.

copy_bytes_per_s      a copy of 1 GiB from device to device; bytes read and written.
value_pass_bytes_per_s  the pass that transposes V for attention in fp8, of 128 MiB; bytes read and written.
read_bytes_per_s      every SM loading 16 KB boxes by TMA from a matrix of 2 GiB, each box once.
l2_bytes_per_s        the same from a matrix of 16 MB that all SMs share.
tensor_flops_*        a product of two 8192 × 8192 matrices by cuBLAS, when seconds of it have settled power and clocks.
tensor_issue_flops_*  two warp groups on every SM multiplying m64n256 from shared memory, likewise settled.
clock_hz_idle         one block counting cycles for a millisecond while the other SMs rest.
clock_hz_tensor       one block counting cycles beside the sustained product of bfloat16 matrices.
launch_us             empty kernels back to back in one CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from warpplan.kernels.torch_types import Tensor, TorchResult
from warpplan.kernels.triton_compat import gl, gluon
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import clock, nanoseconds, probe_kernel
from warpplan.profiler.probes.harness.sampling import Record, ceiling, sm_count
from warpplan.profiler.probes.points import Point
from warpplan.profiler.probes.tma import L2_ROWS, boxes, load_cases
from warpplan.profiler.probes.wgmma import PER_GROUP, chain_case

SAMPLES = 20
SUSTAIN_S = 1.5
SIDE = 8192
COPY_BYTES = 2**30
VALUES = (4, 16, 16_384, 128)
READ_ROWS = 262_144
BOX_BYTES = 16_384
CLOCK_SAMPLES = 40
CLOCK_INTERVAL_NS = 1_000_000


@probe_kernel
def count_cycles(stamps, samples, interval_ns):
    """stamps[i] = (cycles, ns), int64, a pair each ``interval_ns``; it ends by the clock on the wall."""
    begin = nanoseconds()
    for i in range(samples):
        now = nanoseconds()
        while now < begin + i * interval_ns:
            now = nanoseconds()
        gl.store(stamps + 2 * i, clock())
        gl.store(stamps + 2 * i + 1, nanoseconds())


@gluon.jit
def nothing():
    """An empty kernel."""


def _clock_case() -> Case:
    stamps = Pointer("int64", 2 * CLOCK_SAMPLES)
    return Case(count_cycles, (("stamps", stamps), ("samples", "i32"), ("interval_ns", "i32")), (), 1)


def cases(point: Point) -> tuple[Case, ...]:
    if point.kind.startswith("clock_hz"):
        return (_clock_case(),)
    if point.kind == "launch_us":
        return (Case(nothing, (), (), 1),)
    if point.kind == "l2_bytes_per_s":
        return (load_cases(BOX_BYTES, L2_ROWS)[1],)
    if point.kind == "read_bytes_per_s":
        return (load_cases(BOX_BYTES, READ_ROWS)[1],)
    if point.kind.startswith("tensor_issue_flops_"):
        return (chain_case(256, _dtype(point), groups=2),)
    return ()


def measure(point: Point) -> Iterator[Record]:
    yield ceiling(point.kind, _measure(point))


def _measure(point: Point) -> list[float]:
    kind = point.kind
    if kind.startswith("tensor_flops_"):
        return [2.0 * SIDE**3 / s for s in _sustained(_product(_dtype(point)), SUSTAIN_S)]
    if kind == "copy_bytes_per_s":
        import torch

        source = torch.zeros(COPY_BYTES, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        return [2.0 * COPY_BYTES / s for s in _sustained(lambda: target.copy_(source), 0.2)]
    if kind == "value_pass_bytes_per_s":
        return _value_pass()
    if kind == "launch_us":
        return _launches()
    if kind == "clock_hz_idle":
        return _clock(None)
    if kind == "clock_hz_tensor":
        return _clock(_product("bfloat16"))
    live = cases(point)[0].live()
    if kind.startswith("tensor_issue_flops_"):
        reps, inner = 16, 64
        chain = dict(live.case.constants)["CHAIN"]
        multiplies = sm_count() * reps * inner * int(chain) * PER_GROUP * 2
        k = 16 if _dtype(point) != "float8_e4m3fn" else 32
        flop = 2.0 * 64 * 256 * k * multiplies
        return [
            flop / s for s in _sustained(lambda: live.launch(sm_count(), reps=reps, inner=inner, stride=1), SUSTAIN_S)
        ]
    sms = sm_count()
    rows, reps = (L2_ROWS, 16) if kind == "l2_bytes_per_s" else (READ_ROWS, 1)
    total = boxes(BOX_BYTES, rows)
    slots = int(dict(live.case.constants)["SLOTS"])
    inner = 64 if kind == "l2_bytes_per_s" else total // sms - slots
    moved = float(BOX_BYTES) * sms * (reps * inner + slots)
    numbers = {"reps": reps, "inner": inner, "stride": 1, "spread": 1, "step": sms, "mask": total - 1}
    return [moved / s for s in _sustained(partial(live.launch, sms, **numbers), 0.2)]


def _value_pass() -> list[float]:
    import torch

    from warpplan.kernels.attention_fwd.fp8.transposed_values import prepare_values

    v = torch.zeros(VALUES, dtype=torch.float8_e4m3fn, device="cuda")
    _, run = prepare_values(v)
    return [2.0 * v.numel() / s for s in _sustained(run, 0.2)]


def _dtype(point: Point) -> str:
    return point.kind.split("flops_")[1]


def _product(dtype: str) -> Callable[[], TorchResult]:
    """C = A · Bᵀ of random SIDE × SIDE matrices by cuBLAS."""
    import torch

    def operand() -> Tensor:
        return torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16).to(getattr(torch, dtype))

    a, b = operand(), operand()
    if dtype != "float8_e4m3fn":
        return lambda: a @ b.T
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _sustained(work: Callable[[], TorchResult], warm_s: float) -> list[float]:
    """Seconds a call of ``work``, SAMPLES times, after ``warm_s`` of nothing but it. Samples last some 20 ms each."""
    import torch

    def timed(calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    timed(2)
    calls = max(1, round(0.02 / timed(4)))
    until = time.perf_counter() + warm_s
    while time.perf_counter() < until:
        timed(calls)
    return [timed(calls) for _ in range(SAMPLES)]


def _launches(launches: int = 200) -> list[float]:
    """Microseconds from one empty kernel to the next in a graph."""
    import torch

    nothing[(1,)](num_warps=1)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            nothing[(1,)](num_warps=1)
    return [s / launches * 1e6 for s in _sustained(graph.replay, 0.1)]


def _clock(load: Callable[[], TorchResult] | None) -> list[float]:
    """SM cycles a second, one sample each millisecond, with ``load`` running on the rest of the device."""
    import torch

    live = _clock_case().live()
    live.launch(1, samples=2, interval_ns=1000)
    torch.cuda.synchronize()
    if load is not None:
        _sustained(load, SUSTAIN_S)
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        live.launch(1, samples=CLOCK_SAMPLES, interval_ns=CLOCK_INTERVAL_NS)
    # Enough calls queued for the whole count; the counter's SM is lost to the load, the others set the power.
    if load is not None:
        for _ in range(CLOCK_SAMPLES):
            load()
    torch.cuda.synchronize()
    stamps = live.buffers["stamps"].cpu().numpy().reshape(-1, 2)
    steps = (stamps[1:] - stamps[:-1])[2:]
    return [float(cycles) / float(ns) * 1e9 for cycles, ns in steps]
