"""What the attention kernel's tests run on a GPU, in child processes: each check yields one line a case, empty where
right. Inputs are fresh random numbers; results are compared with float64 and lie in buffers of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch

from warpplan.kernels.attention_fwd.launch import attention, prepare
from warpplan.kernels.attention_fwd.packed_launch import prepare_packed
from warpplan.kernels.attention_fwd.reference import packed_reference, reference
from warpplan.kernels.attention_fwd.space import AttentionConfig

NAN = float("nan")
MARGIN = 3
"""Rows of NaN before and behind each head."""
HALF_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, relative."""
MASKS = ((False, None), (True, None), (True, 0), (True, 70), (False, 33))
"""(causal, window)."""


def framed(batch, heads, length, d, dtype, fill=None):
    """(a tensor [batch, heads, length, d], the whole buffer): a frame of NaN around each head."""
    whole = torch.full((batch, heads, length + 2 * MARGIN, d), NAN, device="cuda", dtype=dtype)
    inner = whole[:, :, MARGIN:-MARGIN]
    if fill is not None:
        inner.copy_(fill(batch, heads, length, d, device="cuda"))
    return inner, whole


def operands(batch, heads, kv_heads, q_length, k_length, d, dtype):
    q, _ = framed(batch, heads, q_length, d, dtype, torch.randn)
    k, _ = framed(batch, kv_heads, k_length, d, dtype, torch.randn)
    v, _ = framed(batch, kv_heads, k_length, d, dtype, torch.randn)
    return q, k, v


def launched(q, k, v, config, **options):
    """(result, log-sum-exp, what is wrong around them)."""
    out, whole = framed(*q.shape, q.dtype)
    statistics = torch.full((q.shape[0] * q.shape[1] * q.shape[2] + 2 * MARGIN,), NAN, device="cuda")
    lse = statistics[MARGIN:-MARGIN].view(q.shape[:3])
    prepare(q, k, v, config, out, lse, **options)()
    torch.cuda.synchronize()
    frame = (whole[:, :, :MARGIN], whole[:, :, -MARGIN:], statistics[:MARGIN], statistics[-MARGIN:])
    written = any(not bool(part.isnan().all()) for part in frame)
    return out, lse, "elements around the result were written" if written else ""


def compared(q, k, v, config, **options):
    """What is wrong with a launch, empty where nothing is: weights and result are rounded to 16 bits, sums are not."""
    out, lse, wrong = launched(q, k, v, config, **options)
    if wrong:
        return wrong
    wanted, wanted_lse = reference(q, k, v, **options)
    worst = float((out.double() - wanted).abs().max())
    if not worst <= 4 * HALF_UNIT[q.dtype] * float(v.abs().max()):
        return f"largest error {worst:.2e}"
    seen = ~torch.isneginf(wanted_lse)
    if not torch.equal(torch.isneginf(lse), ~seen):
        return "log-sum-exp of rows that see no key"
    worst = float((lse.double() - wanted_lse)[seen].abs().max()) if bool(seen.any()) else 0.0
    if not worst < 1e-4:
        return f"largest error of the log-sum-exp {worst:.2e}"
    again, again_lse, _ = launched(q, k, v, config, **options)
    same = torch.equal(again, out) and torch.equal(again_lse, lse)
    return "" if same else "other bits on another run"


def check_lengths(config: dict, dtype: str) -> Iterator[str]:
    """Lengths around tiles and blocks, equal and not, under every mask."""
    plan = AttentionConfig(**config)
    tile, block = plan.tile_rows, plan.columns
    lengths = ((1, 1), (tile - 1, tile - 1), (tile, tile), (tile + 1, tile + 1), (331, 331), (1, 1009), (257, 64))
    lengths += ((block, 5 * block), (523, block + 1), (1000, 1), (2 * tile, 3 * block - 1))
    for q_length, k_length in lengths:
        for causal, window in MASKS:
            q, k, v = operands(1, 2, 1, q_length, k_length, plan.head_dim, getattr(torch, dtype))
            wrong = compared(q, k, v, plan, causal=causal, window=window)
            yield f"{q_length} x {k_length} causal={causal} window={window}: {wrong}" if wrong else ""


def check_heads(config: dict, dtype: str) -> Iterator[str]:
    """Heads that share keys, by several batches, more units than SMs."""
    plan = AttentionConfig(**config)
    for batch, heads, kv_heads, length in ((1, 6, 6, 200), (3, 8, 2, 777), (2, 32, 1, 1500)):
        for causal in (False, True):
            q, k, v = operands(batch, heads, kv_heads, length, length, plan.head_dim, getattr(torch, dtype))
            wrong = compared(q, k, v, plan, causal=causal)
            yield f"{batch} {heads}/{kv_heads} {length} causal={causal}: {wrong}" if wrong else ""


def check_layouts(config: dict, dtype: str) -> Iterator[str]:
    """[B, L, H, D] transposed, slices of a packed projection, another scale, no result given."""
    plan, kind = AttentionConfig(**config), getattr(torch, dtype)
    packed = torch.randn(2, 300, 3, 4, plan.head_dim, device="cuda").to(kind)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    for scale in (None, 0.37):
        out = attention(q, k, v, plan, causal=True, scale=scale)
        wanted, _ = reference(q, k, v, causal=True, scale=scale)
        error = float((out.double() - wanted).norm() / wanted.norm())
        yield "" if error < 8 * HALF_UNIT[kind] else f"packed, scale {scale}: relative error {error:.1e}"


def check_neighbours(config: dict, dtype: str) -> Iterator[str]:
    """A NaN in one head's keys reaches that head's result alone; one that no query sees reaches none."""
    plan, kind = AttentionConfig(**config), getattr(torch, dtype)
    q, k, v = operands(2, 4, 4, 300, 300, plan.head_dim, kind)
    k[1, 2, 17, 5] = NAN
    out, _, _ = launched(q, k, v, plan)
    clean = out.isnan().logical_not().all(-1).all(-1)
    yield "" if int(clean.sum()) == 7 and not bool(clean[1, 2]) else "a NaN leaks, or is lost"
    out, _, _ = launched(q, k, v, plan, causal=True)
    yield "" if not bool(out[1, 2, :17].isnan().any()) else "a NaN that the mask hides is seen"


def check_graph(config: dict, dtype: str) -> Iterator[str]:
    """A captured launch reads its operands at each replay."""
    plan = AttentionConfig(**config)
    q, k, v = operands(1, 4, 2, 500, 500, plan.head_dim, getattr(torch, dtype))
    out = torch.empty_like(q)
    run = prepare(q, k, v, plan, out, causal=True)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wanted, _ = reference(q, k, v, causal=True)
        error = float((out.double() - wanted).norm() / wanted.norm())
        yield "" if error < 8 * HALF_UNIT[q.dtype] else f"relative error {error:.1e} on replay"


def check_packed(config: dict, dtype: str) -> Iterator[str]:
    """Packed sequences under every mask: unlike lengths, empty ones, more than a warp looks at together; a neighbour of
    NaN; a captured launch that finds other lengths at replay."""
    plan, kind = AttentionConfig(**config), getattr(torch, dtype)
    many = [1 + 37 * i % 211 for i in range(150)]
    for q_sizes, k_sizes in (([300, 0, 1, 1000, 65], [300, 5, 700, 1000, 0]), (many, many), (many, many[::-1])):
        for causal, window in MASKS:
            wrong = packed(plan, kind, q_sizes, k_sizes, causal=causal, window=window)
            yield f"{q_sizes[:5]} {k_sizes[:5]} causal={causal} window={window}: {wrong}" if wrong else ""
    wrong = packed(plan, kind, [200] * 3, [200] * 3, broken=1)
    yield f"a neighbour of NaN: {wrong}" if wrong else ""
    yield from replayed(plan, kind)


def packed(plan, kind, q_sizes, k_sizes, broken=None, **options):
    """What is wrong with a launch on packed sequences, empty where nothing is. ``broken``: a sequence whose keys and
    values are NaN."""
    q_starts, k_starts = ([0, *accumulate(sizes)] for sizes in (q_sizes, k_sizes))
    heads, kv_heads, d = 4, 2, plan.head_dim
    q = torch.randn(q_starts[-1] + MARGIN, heads, d, device="cuda").to(kind)
    k, v = (torch.randn(k_starts[-1] + MARGIN, kv_heads, d, device="cuda").to(kind) for _ in range(2))
    if broken is not None:
        k[k_starts[broken] : k_starts[broken + 1]] = v[k_starts[broken] : k_starts[broken + 1]] = NAN
    results = []
    for _ in range(2):
        out = torch.full_like(q, NAN)
        lse = torch.full((heads, q.shape[0]), NAN, device="cuda")
        starts = (torch.tensor(s, dtype=torch.int32, device="cuda") for s in (q_starts, k_starts))
        prepare_packed(q, k, v, *starts, max(q_sizes), max(k_sizes), plan, out, lse, **options)()
        torch.cuda.synchronize()
        results.append((out, lse))
    (out, lse), again = results
    wanted, wanted_lse = packed_reference(q, k, v, q_starts, k_starts, **options)
    if not torch.equal(out.isnan(), wanted.isnan()) or not torch.equal(lse.isnan(), wanted_lse.isnan()):
        return "NaN where there is none, or none where it is"
    largest = 4 * HALF_UNIT[kind] * float(v.nan_to_num().abs().max())
    if not torch.allclose(out.double(), wanted, rtol=0, atol=largest, equal_nan=True):
        return f"largest error {float((out.double() - wanted).nan_to_num().abs().max()):.2e}"
    if not torch.allclose(lse.double(), wanted_lse, rtol=0, atol=1e-4, equal_nan=True):
        return "log-sum-exp"
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip((out, lse), again, strict=True))
    return "" if same else "other bits on another run"


def replayed(plan, kind) -> Iterator[str]:
    q, k, v = (torch.randn(1000, 2, plan.head_dim, device="cuda").to(kind) for _ in range(3))
    starts = torch.tensor([0, 100, 900, 1000], dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    run = prepare_packed(q, k, v, starts, starts, 1000, 1000, plan, out, causal=True)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for listed in ([0, 100, 900, 1000], [0, 0, 1, 1000], [0, 1000, 1000, 1000]):
        starts.copy_(torch.tensor(listed, dtype=torch.int32))
        out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wanted, _ = packed_reference(q, k, v, listed, listed, causal=True)
        error = float((out.double() - wanted).norm() / wanted.norm())
        yield "" if error < 8 * HALF_UNIT[kind] else f"relative error {error:.1e} on replay of {listed}"


# fp8

FP8 = torch.float8_e4m3fn
ACCUMULATOR = 2.0**-13
"""What the tensor cores drop at most where they add the products of 32 e4m3 numbers to a sum, of the largest magnitude
in it: they keep some 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2)."""


def eight_bit(batch, heads, kv_heads, q_length, k_length, d, by_token=False, alike=False):
    """(q, k, v with frames of NaN, their scales of all three forms, which stand for normal numbers)."""
    tensors = []
    for count, length in ((heads, q_length), (kv_heads, k_length), (kv_heads, k_length)):
        whole = torch.full((batch, count, length + 2 * MARGIN, d), NAN, device="cuda")
        whole[:, :, MARGIN:-MARGIN] = torch.randn(batch, count, length, d, device="cuda")
        if by_token:
            whole = whole.transpose(1, 2).contiguous().to(FP8).transpose(1, 2)
        tensors.append(whole.to(FP8)[:, :, MARGIN:-MARGIN])
    if alike:
        tensors[0].view(torch.uint8).zero_()
    scales = (
        torch.rand(heads, device="cuda") + 0.5,
        torch.rand(kv_heads, batch, device="cuda").T + 0.5,
        torch.rand((), device="cuda") + 0.5,
    )
    return *tensors, scales


def compared_in_fp8(q, k, v, scales, config, alike=False, **options):
    """What is wrong with a launch, empty where nothing is. Each weight is within 2^-4 of itself, or 2^-18 of its row's
    largest; where all are alike (queries of zeros) they are exact. Their errors are independent: the norm of the
    result's is 2.6 % of its own, for errors that are uniform over a mantissa that is."""
    out, whole = framed(*q.shape, torch.bfloat16)
    lse = torch.full(q.shape[:3], NAN, device="cuda")
    prepare(q, k, v, config, out, lse, scales=scales, **options)()
    torch.cuda.synchronize()
    if not bool(whole[:, :, :MARGIN].isnan().all() and whole[:, :, -MARGIN:].isnan().all()):
        return "elements around the result were written"
    wanted, wanted_lse = reference(q, k, v, scales=scales, **options)
    magnitudes = v.double().abs()
    weighted, _ = reference(q, k, magnitudes, scales=scales, **options)
    keys, largest = k.shape[2], float(magnitudes.max() * scales[2])
    dropped = -(-keys // 32) * ACCUMULATOR
    bound = (dropped + (0.0 if alike else 2.0**-4)) * weighted + HALF_UNIT[torch.bfloat16] * wanted.abs()
    scores = _largest_score(q, k, scales) * q.shape[3] // 32 * ACCUMULATOR
    error = (out.double() - wanted).abs()
    if not bool((error <= bound * (1.0 + 2.0 * scores) + 2.0**-18 * keys * largest).all()):
        return f"largest error {float(error.max()):.2e}, {float((error - bound).max()):.2e} more than its bound"
    norm = float(error.norm() / wanted.norm()) if bool(wanted.any()) else 0.0
    if error.numel() > 1 << 13 and not norm <= 2.0**-5 + dropped:
        return f"relative error {norm:.2e}"
    seen = ~torch.isneginf(wanted_lse)
    if not torch.equal(torch.isneginf(lse), ~seen):
        return "log-sum-exp of rows that see no key"
    worst = float((lse.double() - wanted_lse)[seen].abs().max()) if bool(seen.any()) else 0.0
    return "" if worst < 1e-4 + scores else f"largest error of the log-sum-exp {worst:.2e}"


def _largest_score(q, k, scales):
    """The largest sum of a score's magnitudes, scaled."""
    sharers = q.shape[1] // k.shape[1]
    magnitudes = q.float().abs() @ k.float().abs().repeat_interleave(sharers, 1).transpose(2, 3)
    return float(magnitudes.max() * scales[0].max() * scales[1].max()) * q.shape[3] ** -0.5


def check_fp8(config: dict) -> Iterator[str]:
    """Lengths around tiles, blocks and steps of keys under every mask; heads that share keys; by token; replays."""
    plan = AttentionConfig(**config)
    tile, block = plan.tile_rows, plan.columns
    lengths = ((1, 1), (tile - 1, tile + 15), (tile, tile), (331, 331), (1, 1009), (257, 64), (block, 5 * block))
    for q_length, k_length in (*lengths, (523, block + 1), (1000, 1), (2 * tile, 3 * block - 1)):
        for causal, window in MASKS:
            for alike in (False, True):
                operands = eight_bit(1, 2, 1, q_length, k_length, plan.head_dim, alike=alike)
                wrong = compared_in_fp8(*operands, plan, alike, causal=causal, window=window)
                case = f"{q_length} x {k_length} causal={causal} window={window} alike={alike}"
                yield f"{case}: {wrong}" if wrong else ""
    for batch, heads, kv_heads, length in ((1, 6, 6, 200), (3, 8, 2, 777), (2, 32, 1, 1500)):
        for causal in (False, True):
            operands = eight_bit(batch, heads, kv_heads, length, length, plan.head_dim, by_token=True)
            wrong = compared_in_fp8(*operands, plan, causal=causal)
            yield f"{batch} {heads}/{kv_heads} {length} causal={causal}: {wrong}" if wrong else ""
    yield from replayed_in_fp8(plan)


def replayed_in_fp8(plan) -> Iterator[str]:
    """A captured launch reads its operands and their scales at each replay, V too."""
    q, k, v, scales = eight_bit(1, 4, 2, 500, 500, plan.head_dim)
    out = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
    run = prepare(q, k, v, plan, out, causal=True, scales=scales)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        for tensor in (q, k, v):
            tensor.copy_(torch.randn(tensor.shape, device="cuda").to(FP8))
        scales[2].mul_(1.5)
        out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wanted, _ = reference(q, k, v, causal=True, scales=scales)
        error = float((out.double() - wanted).norm() / wanted.norm())
        yield "" if error <= 2.0**-5 + 500 // 32 * ACCUMULATOR else f"relative error {error:.1e} on replay"


def check_long_fp8(config: dict) -> Iterator[str]:
    """How the tensor cores' short sums grow with the number of keys: all weights alike, 64k of them."""
    plan = AttentionConfig(**config)
    for k_length in (4096, 65536):
        for alike in (False, True):
            operands = eight_bit(1, 1, 1, 200, k_length, plan.head_dim, alike=alike)
            wrong = compared_in_fp8(*operands, plan, alike)
            yield f"{k_length} keys alike={alike}: {wrong}" if wrong else ""


CHECKS = (check_lengths, check_heads, check_layouts, check_neighbours, check_graph)


def check_all(config: dict, dtype: str) -> Iterator[str]:
    """All of the above."""
    for check in CHECKS:
        for wrong in check(config, dtype):
            yield f"{check.__name__}: {wrong}" if wrong else ""
