"""What the attention backward kernels' tests run on a GPU, in child processes: each check yields one line a case, empty
where right. Inputs are fresh random numbers; results are compared with float64 and lie in buffers of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch
from attention_fwd_checks import HALF_UNIT, MARGIN, MASKS, NAN, framed, operands

from warpplan.kernels.attention_bwd.launch import attention_backward, prepare
from warpplan.kernels.attention_bwd.packed_sequences.launch import prepare_packed
from warpplan.kernels.attention_bwd.reference import gradients, packed_gradients
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.attention_fwd.reference import packed_reference, reference

NAMES = ("dq", "dk", "dv")
SUMS = 5e-5
"""What fp32 sums of a thousand such terms may be off, where the right gradient is zero."""


def forward(q, k, v, **options):
    """(do, o, lse) of a forward pass in float64, rounded."""
    wanted, lse = reference(q, k, v, **options)
    o, _ = framed(*q.shape, q.dtype)
    o.copy_(wanted)
    do, _ = framed(*q.shape, q.dtype, torch.randn)
    return do, o, lse.float().contiguous()


def launched(do, q, k, v, o, lse, config, **options):
    """(gradients, what is wrong around them)."""
    results = [framed(*like.shape, like.dtype) for like in (q, k, v)]
    prepare(do, q, k, v, o, lse, config, *(inner for inner, _ in results), **options)()
    torch.cuda.synchronize()
    frames = [part for _, whole in results for part in (whole[:, :, :MARGIN], whole[:, :, -MARGIN:])]
    written = any(not bool(part.isnan().all()) for part in frames)
    return [inner for inner, _ in results], "elements around the result were written" if written else ""


def wrong_gradients(found, wanted, dtype) -> str:
    """What is wrong with them: of each the root of the mean square of its errors is within some roundings of that of
    its elements."""
    for name, got, right in zip(NAMES, found, wanted, strict=True):
        error = (got.double() - right).square().mean().sqrt()
        limit = 2 * HALF_UNIT[dtype] * right.square().mean().sqrt() + SUMS
        if not bool(error <= limit):
            return f"{name}: error {float(error):.2e} above {float(limit):.2e}"
    return ""


def compared(q, k, v, config, **options):
    """What is wrong with a launch, empty where nothing is."""
    do, o, lse = forward(q, k, v, **options)
    found, wrong = launched(do, q, k, v, o, lse, config, **options)
    wrong = wrong or wrong_gradients(found, gradients(do, q, k, v, o, **options), q.dtype)
    if wrong:
        return wrong
    again, _ = launched(do, q, k, v, o, lse, config, **options)
    repeated = NAMES if config.dq == "separate" else NAMES[1:]
    other = [n for n, a, b in zip(NAMES, found, again, strict=True) if n in repeated and not torch.equal(a, b)]
    return f"other bits on another run: {', '.join(other)}" if other else ""


def check_lengths(config: dict, dtype: str) -> Iterator[str]:
    """Lengths around tiles and blocks, equal and not, under every mask."""
    plan = AttentionBwdConfig(**config)
    tile, block = plan.keys, plan.rows
    lengths = ((1, 1), (block - 1, tile - 1), (block, tile), (block + 1, tile + 1), (331, 331), (1, 1009), (257, 64))
    lengths += ((523, tile + 1), (1000, 1), (3 * block - 1, 2 * tile), (40, 700))
    for q_length, k_length in lengths:
        for causal, window in MASKS:
            q, k, v = operands(1, 2, 1, q_length, k_length, plan.head_dim, getattr(torch, dtype))
            wrong = compared(q, k, v, plan, causal=causal, window=window)
            yield f"{q_length} x {k_length} causal={causal} window={window}: {wrong}" if wrong else ""


def check_heads(config: dict, dtype: str) -> Iterator[str]:
    """Heads that share keys, by several batches, more units than SMs."""
    plan = AttentionBwdConfig(**config)
    for batch, heads, kv_heads, length in ((1, 6, 6, 200), (3, 8, 2, 777), (2, 32, 8, 1500)):
        for causal in (False, True):
            q, k, v = operands(batch, heads, kv_heads, length, length, plan.head_dim, getattr(torch, dtype))
            wrong = compared(q, k, v, plan, causal=causal)
            yield f"{batch} {heads}/{kv_heads} {length} causal={causal}: {wrong}" if wrong else ""


def check_layouts(config: dict, dtype: str) -> Iterator[str]:
    """[B, L, H, D] transposed, slices of a packed projection, another scale, no result given, same bits asked for."""
    plan, kind = AttentionBwdConfig(**config), getattr(torch, dtype)
    packed = torch.randn(2, 300, 3, 4, plan.head_dim, device="cuda").to(kind)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    for scale in (None, 0.31):
        do, o, lse = forward(q, k, v, causal=True, scale=scale)
        found = attention_backward(do, q, k, v, o, lse, plan, causal=True, scale=scale)
        wanted = gradients(do, q, k, v, o, causal=True, scale=scale)
        wrong = wrong_gradients(found, wanted, kind)
        yield f"packed, scale {scale}: {wrong}" if wrong else ""
        twice = [
            attention_backward(do, q, k, v, o, lse, plan, causal=True, scale=scale, deterministic=True)[0]
            for _ in range(2)
        ]
        same = torch.equal(*twice)
        yield "" if same else "other bits where the same were asked for"


def check_graph(config: dict, dtype: str) -> Iterator[str]:
    """Captured launches read their operands at each replay, and sum dQ from zero."""
    plan = AttentionBwdConfig(**config)
    q, k, v = operands(1, 4, 2, 500, 500, plan.head_dim, getattr(torch, dtype))
    do, o, lse = forward(q, k, v, causal=True)
    results = [torch.empty_like(like) for like in (q, k, v)]
    run = prepare(do, q, k, v, o, lse, plan, *results, causal=True)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        do.copy_(torch.randn_like(do))
        for result in results:
            result.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wrong = wrong_gradients(results, gradients(do, q, k, v, o, causal=True), q.dtype)
        yield f"on replay: {wrong}" if wrong else ""


def check_packed(config: dict, dtype: str) -> Iterator[str]:
    """Packed sequences under every mask: unlike lengths, empty ones, more than a warp looks at together."""
    plan, kind = AttentionBwdConfig(**config), getattr(torch, dtype)
    many = [1 + 37 * i % 211 for i in range(150)]
    for q_sizes, k_sizes in (([300, 0, 1, 1000, 65], [300, 5, 700, 1000, 0]), (many, many), (many, many[::-1])):
        for causal, window in MASKS:
            wrong = packed(plan, kind, q_sizes, k_sizes, causal=causal, window=window)
            yield f"{q_sizes[:5]} {k_sizes[:5]} causal={causal} window={window}: {wrong}" if wrong else ""


def packed(plan, kind, q_sizes, k_sizes, **options):
    """What is wrong with a launch on packed sequences, empty where nothing is."""
    q_starts, k_starts = ([0, *accumulate(sizes)] for sizes in (q_sizes, k_sizes))
    heads, kv_heads, d = 4, 2, plan.head_dim
    q, do = (torch.randn(q_starts[-1] + MARGIN, heads, d, device="cuda").to(kind) for _ in range(2))
    k, v = (torch.randn(k_starts[-1] + MARGIN, kv_heads, d, device="cuda").to(kind) for _ in range(2))
    wanted, lse = packed_reference(q, k, v, q_starts, k_starts, **options)
    o = wanted.to(kind)
    starts = [torch.tensor(s, dtype=torch.int32, device="cuda") for s in (q_starts, k_starts)]
    results = [torch.full_like(like, NAN) for like in (q, k, v)]
    prepare_packed(
        do, q, k, v, o, lse.float().contiguous(), *starts, max(q_sizes), max(k_sizes), plan, *results, **options
    )()
    torch.cuda.synchronize()
    right = packed_gradients(do, q, k, v, o, q_starts, k_starts, **options)
    if any(not torch.equal(found.isnan(), value.isnan()) for found, value in zip(results, right, strict=True)):
        return "NaN where there is none, or none where it is"
    ends = (q_starts[-1], k_starts[-1], k_starts[-1])
    inside = ([t[:end] for t, end in zip(tensors, ends, strict=True)] for tensors in (results, right))
    return wrong_gradients(*inside, kind)


CHECKS = (check_lengths, check_heads, check_layouts, check_graph)


def check_all(config: dict, dtype: str) -> Iterator[str]:
    """All of the above."""
    for check in CHECKS:
        for wrong in check(config, dtype):
            yield f"{check.__name__}: {wrong}" if wrong else ""
