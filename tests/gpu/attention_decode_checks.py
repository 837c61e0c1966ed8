"""What the decoding attention's tests run on a GPU, in child processes: each check yields one line a case, empty where
right. Behind a sequence's keys lie NaN, and results in buffers of NaN; they are compared with float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from warpplan.kernels.attention_decode.launch import prepare
from warpplan.kernels.attention_decode.reference import reference
from warpplan.kernels.attention_decode.space import DecodeConfig

NAN = float("nan")
HALF_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, relative."""
HEADS = ((4, 4), (8, 2), (16, 1))
"""(heads, kv_heads)."""


def operands(plan, kind, lengths, heads, kv_heads, queries, by_token=False):
    """(q, k, v): caches of a few rows more than the longest sequence has, NaN behind each."""
    batch, keys, d = len(lengths), max(lengths) + 5, plan.head_dim
    form = (batch, keys, kv_heads, d) if by_token else (batch, kv_heads, keys, d)
    caches = []
    for _ in range(2):
        cache = torch.randn(form, device="cuda").to(kind)
        cache = cache.transpose(1, 2) if by_token else cache
        for b, length in enumerate(lengths):
            cache[b, :, length:] = NAN
        caches.append(cache)
    q = torch.randn(batch, queries, heads, d, device="cuda").to(kind).transpose(1, 2)
    return (q if by_token else q.contiguous(), *caches)


def compared(plan, kind, lengths, heads, kv_heads, queries, by_token=False):
    """What is wrong with a launch, empty where nothing is."""
    q, k, v = operands(plan, kind, lengths, heads, kv_heads, queries, by_token)
    told = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    results = []
    for _ in range(2):
        out = torch.full_like(q, NAN)
        lse = torch.full(q.shape[:3], NAN, device="cuda")
        prepare(q, k, v, plan, out, told, lse)()
        torch.cuda.synchronize()
        results.append((out, lse))
    (out, lse), again = results
    wanted, wanted_lse = reference(q, k, v, lengths)
    largest = 4 * HALF_UNIT[kind] * float(v.nan_to_num().abs().max())
    if not torch.allclose(out.double(), wanted, rtol=0, atol=largest):
        return f"largest error {float((out.double() - wanted).abs().max()):.2e}"
    if not torch.allclose(lse.double(), wanted_lse, rtol=0, atol=1e-4):
        return "log-sum-exp"
    same = torch.equal(out, again[0]) and torch.equal(lse, again[1])
    return "" if same else "other bits on another run"


def check_lengths(config: dict, dtype: str) -> Iterator[str]:
    """Sequences of any lengths, empty ones too; any numbers of queries and of heads that share keys."""
    plan, kind = DecodeConfig(**config), getattr(torch, dtype)
    for lengths in ((1,), (3000, 0, 1, 64, 65), (40_000,), (700,) * 40):
        for heads, kv_heads in HEADS:
            for queries in (1, 4):
                for by_token in (False, True):
                    wrong = compared(plan, kind, lengths, heads, kv_heads, queries, by_token)
                    case = f"{lengths[:5]} {heads}/{kv_heads} queries={queries} by_token={by_token}"
                    yield f"{case}: {wrong}" if wrong else ""
    wrong = compared(plan, kind, (5000, 5), 4, 1, 16)
    yield f"a full tile: {wrong}" if wrong else ""


def check_graph(config: dict, dtype: str) -> Iterator[str]:
    """A captured launch reads the lengths at each replay."""
    plan, kind = DecodeConfig(**config), getattr(torch, dtype)
    q, k, v = operands(plan, kind, (2000, 2000, 2000), 8, 2, 1)
    lengths = torch.full((3,), 2000, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    run = prepare(q, k, v, plan, out, lengths)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for listed in ([2000, 2000, 2000], [1, 1999, 130]):
        lengths.copy_(torch.tensor(listed, dtype=torch.int32))
        out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wanted, _ = reference(q, k, v, listed)
        error = float((out.double() - wanted).norm() / wanted.norm())
        yield "" if error < 8 * HALF_UNIT[kind] else f"relative error {error:.1e} on replay of {listed}"


def check_all(config: dict, dtype: str) -> Iterator[str]:
    """All of the above."""
    for check in (check_lengths, check_graph):
        for wrong in check(config, dtype):
            yield f"{check.__name__}: {wrong}" if wrong else ""
