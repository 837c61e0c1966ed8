"""Attention of a serving engine: decoding split over keys, paged caches, prefixes, extensions, latent heads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, GATHERED, Argument, Problem, Sizes, Tensor, Tensors, cdiv, entry, output, table

FAMILY = "attention serving"
SIZES = {"B": 32, "H": 32, "KV": 8, "L": 4096, "D": 128}
CHOICES = {"B": (2, 3), "H": (8, 16), "KV": (2, 4), "L": (96, 257, 600), "D": (64, 128)}
PAGE = 16
SPLITS = 4


def key_blocks(*wanted: tuple[int, int, int]) -> list[triton.Config]:
    """(BLOCK_N, stages, warps) each."""
    return [triton.Config({"BLOCK_N": n}, num_stages=stages, num_warps=warps) for n, stages, warps in wanted]


DECODE = key_blocks((64, 2, 4), (32, 3, 4), (128, 2, 4), (64, 3, 8))


@cache
def lengths(count: int, longest: int) -> tuple[int, ...]:
    draw = Random(count * 7 + longest)
    return (longest, *(draw.randint(max(1, longest // 4), longest) for _ in range(count - 1)))


@cache
def places(count: int, longest: int, page: int) -> tuple[tuple[int, ...], ...]:
    """The pages of each sequence, shuffled over a cache that all share."""
    draw = Random(count + longest)
    wanted = [cdiv(n, page) for n in lengths(count, longest)]
    pages = list(range(sum(wanted)))
    draw.shuffle(pages)
    ends = list(itertools.accumulate(wanted))
    return tuple(tuple(pages[end - n : end]) for end, n in zip(ends, wanted, strict=True))


def slots(count: int, longest: int, page: int) -> list[list[int]]:
    """The cache slot of each token of each sequence."""
    return [
        [pages[i // page] * page + i % page for i in range(n)]
        for pages, n in zip(places(count, longest, page), lengths(count, longest), strict=True)
    ]


def one_query(q: Any, k: Any, v: Any, cap: float = 0.0) -> tuple[Any, Any]:
    """q [H, D] over k and v [tokens, KV, D]: the output and the log-sum-exp of each head, in fp32."""
    import torch

    k, v = (x.float().repeat_interleave(q.shape[0] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("hd,nhd->hn", q.float(), k) * q.shape[-1] ** -0.5
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


def decode_flops(s: Sizes) -> float:
    return 4.0 * sum(lengths(s["B"], s["L"])) * s["H"] * s["D"]


@triton.autotune(configs=DECODE, key=["H"])
@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, slot_ptr, start_ptr, scale, stride_qb, stride_qh, stride_kn, stride_kh,
    stride_vn, stride_vh, H, SHARED: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Stage one: the query heads that share a key head are the rows; keys are looked up slot by slot."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    lane = tl.arange(0, BLOCK_H)
    heads = kv_head * SHARED + lane
    mine = lane < SHARED
    dims = tl.arange(0, D)
    first = tl.load(start_ptr + sequence)
    length = tl.load(start_ptr + sequence + 1) - first
    span = tl.cdiv(length, SPLITS)
    low = part * span
    high = min(low + span, length)
    q = tl.load(
        q_ptr + sequence * stride_qb + heads[:, None] * stride_qh + dims[None, :], mask=mine[:, None], other=0.0
    )
    m_i = tl.zeros([BLOCK_H], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, D], dtype=tl.float32)
    if high > low:
        for start in range(low, high, BLOCK_N):
            at = start + tl.arange(0, BLOCK_N)
            slot = tl.load(slot_ptr + first + at, mask=at < high, other=0)
            k = tl.load(
                k_ptr + slot[None, :] * stride_kn + kv_head * stride_kh + dims[:, None], at[None, :] < high, 0.0
            )
            scores = tl.dot(q, k) * scale
            scores = tl.where(mine[:, None] & (at[None, :] < high), scores, float("-inf"))
            v = tl.load(
                v_ptr + slot[:, None] * stride_vn + kv_head * stride_vh + dims[None, :], at[:, None] < high, 0.0
            )
            m_new = tl.maximum(tl.max(scores, 1), m_i)
            m_new = tl.where(mine, m_new, 0.0)
            alpha = tl.exp(m_i - m_new)
            p = tl.exp(scores - m_new[:, None])
            acc *= alpha[:, None]
            acc += tl.dot(p.to(v.dtype), v)
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_new
        at_part = (sequence * H + heads) * SPLITS + part
        tl.store(part_ptr + at_part[:, None] * D + dims[None, :], acc / l_i[:, None], mask=mine[:, None])
        tl.store(lse_ptr + at_part, m_i + tl.log(l_i), mask=mine)


def spans(length: int) -> list[slice]:
    step = cdiv(length, SPLITS)
    return [slice(i * step, min(length, (i + 1) * step)) for i in range(SPLITS)]


def split_reference(s: Sizes, keys_of: Callable[[Tensors, int], tuple[Any, Any]]) -> Callable[[Tensors], Any]:
    """Of each part: its output and its log-sum-exp."""

    def reference(t: Tensors) -> Any:
        import torch

        found = []
        for i in range(s["B"]):
            k, v = keys_of(t, i)
            found.append([one_query(t["q"][i], k[span], v[span]) for span in spans(len(k))])
        outputs = torch.stack([torch.stack([o for o, _ in parts], 1) for parts in found])
        return outputs, torch.stack([torch.stack([lse for _, lse in parts], 1) for parts in found])

    return reference


@entry(decode_kernel, GATHERED, SIZES, family=FAMILY, choices=CHOICES, dtypes=("bfloat16", "float16"))
def decode_by_slots(s: Sizes, dtype: str) -> Problem:
    b, h, kv, d = s["B"], s["H"], s["KV"], s["D"]
    where = slots(b, s["L"], 1)
    starts = [0, *itertools.accumulate(lengths(b, s["L"]))]
    cache_of = Tensor((starts[-1], kv, d), dtype)
    return Problem(
        {"q": Tensor((b, h, d), dtype), "k": cache_of, "v": cache_of, "part": output(b, h, SPLITS, d, dtype="float32"),
         "lse": output(b, h, SPLITS, dtype="float32"), "slot": table(lambda: list(itertools.chain(*where)), starts[-1]),
         "start": table(lambda: starts, b + 1)},
        {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "part_ptr": "part", "lse_ptr": "lse", "slot_ptr": "slot",
         "start_ptr": "start", "scale": d**-0.5, "stride_qb": h * d, "stride_qh": d, "stride_kn": kv * d,
         "stride_kh": d, "stride_vn": kv * d, "stride_vh": d, "H": h},
        lambda c: (b, kv, SPLITS), ("part", "lse"),
        split_reference(s, lambda t, i: (t["k"][where[i]], t["v"][where[i]])),
        {"SHARED": h // kv, "SPLITS": SPLITS, "D": d, "BLOCK_H": max(16, triton.next_power_of_2(h // kv))},
        decode_flops(s),
    )  # fmt: skip


@triton.jit
def reduce_kernel(part_ptr, lse_ptr, o_ptr, SPLITS: tl.constexpr, D: tl.constexpr):
    """Stage two: the parts of a head joined by their log-sums. A plain loop without a product."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, D)
    total = 0.0
    top = -float("inf")
    acc = tl.zeros([D], dtype=tl.float32)
    for part in range(SPLITS):
        value = tl.load(part_ptr + (row * SPLITS + part) * D + dims)
        lse = tl.load(lse_ptr + row * SPLITS + part)
        higher = tl.maximum(lse, top)
        old = tl.exp(top - higher)
        new = tl.exp(lse - higher)
        acc = acc * old + value * new
        total = total * old + new
        top = higher
    tl.store(o_ptr + row * D + dims, (acc / total).to(o_ptr.dtype.element_ty))


@entry(reduce_kernel, AFFINE, {"B": 128, "H": 32, "S": 16, "D": 128}, family=FAMILY, has_dot=False,
       choices={"B": (2, 3), "H": (4, 32), "S": (4, 8), "D": (64, 128)},
       configs=[triton.Config({}, num_stages=2, num_warps=w) for w in (4, 1)])  # fmt: skip
def decode_reduce(s: Sizes, dtype: str) -> Problem:
    rows, parts, d = s["B"] * s["H"], s["S"], s["D"]
    return Problem(
        {"part": Tensor((rows, parts, d), "float32"), "lse": Tensor((rows, parts), "float32"),
         "o": output(rows, d, dtype=dtype)},
        {"part_ptr": "part", "lse_ptr": "lse", "o_ptr": "o"}, lambda c: (rows,), ("o",),
        lambda t: (t["lse"].softmax(-1)[:, :, None] * t["part"]).sum(1), {"SPLITS": parts, "D": d},
    )  # fmt: skip


@triton.autotune(configs=[triton.Config({}, num_stages=s, num_warps=w) for s, w in ((2, 4), (3, 4), (2, 8))], key=["H"])
@triton.jit
def paged_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, page_ptr, length_ptr, scale, H, stride_pb, SHARED: tl.constexpr, KV: tl.constexpr,
    D: tl.constexpr, BLOCK_H: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """A page an iteration: one look-up, then tiles that are linear inside of the page."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    lane = tl.arange(0, BLOCK_H)
    mine = lane < SHARED
    dims = tl.arange(0, D)
    inside = tl.arange(0, PAGE)
    length = tl.load(length_ptr + sequence)
    q_at = (sequence * H + kv_head * SHARED + lane)[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=mine[:, None], other=0.0)
    m_i = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    l_i = tl.full([BLOCK_H], 1.0, dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, D], dtype=tl.float32)
    for j in range(tl.cdiv(length, PAGE)):
        page = tl.load(page_ptr + sequence * stride_pb + j).to(tl.int64)
        base = (page * KV + kv_head) * PAGE * D
        k = tl.load(k_ptr + base + inside[None, :] * D + dims[:, None])
        v = tl.load(v_ptr + base + inside[:, None] * D + dims[None, :])
        scores = tl.dot(q, k) * scale
        scores = tl.where((j * PAGE + inside)[None, :] < length, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        acc = acc * alpha[:, None]
        l_i = l_i * alpha + tl.sum(p, 1)
        acc += tl.dot(p.to(v.dtype), v)
        m_i = m_new
    tl.store(o_ptr + q_at, (acc / l_i[:, None]).to(o_ptr.dtype.element_ty), mask=mine[:, None])


def paged_tables(s: Sizes) -> tuple[dict[str, Tensor], int, int]:
    """The page table (rows of equal length) and the lengths; pages in the cache, and of a row."""
    where = places(s["B"], s["L"], PAGE)
    across = max(map(len, where))
    flat = [page for pages in where for page in (*pages, *([0] * (across - len(pages))))]
    tensors = {
        "page": table(lambda: flat, s["B"], across), "length": table(lambda: lengths(s["B"], s["L"]), s["B"]),
    }  # fmt: skip
    return tensors, sum(map(len, where)), across


def from_pages(t: Tensors, s: Sizes, i: int) -> tuple[Any, Any]:
    """k and v of a sequence, [tokens, KV, D], out of [pages, KV, PAGE, D]."""
    pages = list(places(s["B"], s["L"], PAGE)[i])
    count = lengths(s["B"], s["L"])[i]
    k, v = (t[name][pages].transpose(1, 2).flatten(0, 1)[:count] for name in "kv")
    return k, v


@entry(paged_kernel, GATHERED, SIZES, family=FAMILY, choices=CHOICES)
def decode_by_pages(s: Sizes, dtype: str) -> Problem:
    b, h, kv, d = s["B"], s["H"], s["KV"], s["D"]
    tables, pages, across = paged_tables(s)

    def reference(t: Tensors) -> Any:
        import torch

        return torch.stack([one_query(t["q"][i], *from_pages(t, s, i))[0] for i in range(b)])

    cache_of = Tensor((pages, kv, PAGE, d), dtype)
    return Problem(
        {"q": Tensor((b, h, d), dtype), "k": cache_of, "v": cache_of, "o": output(b, h, d, dtype=dtype), **tables},
        {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "o_ptr": "o", "page_ptr": "page", "length_ptr": "length",
         "scale": d**-0.5, "H": h, "stride_pb": across},
        lambda c: (b, kv), ("o",), reference,
        {"SHARED": h // kv, "KV": kv, "D": d, "BLOCK_H": max(16, triton.next_power_of_2(h // kv)), "PAGE": PAGE},
        decode_flops(s),
    )  # fmt: skip


@triton.autotune(configs=key_blocks((64, 2, 4), (128, 2, 4), (64, 3, 4), (128, 3, 8)), key=["H"])
@triton.jit
def contiguous_decode_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, scale, H, L, stride_kb, stride_kh, stride_kn, SHARED: tl.constexpr,
    SPLITS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Flash decoding over a contiguous cache."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    lane = tl.arange(0, BLOCK_H)
    mine = lane < SHARED
    dims = tl.arange(0, D)
    keys = tl.arange(0, BLOCK_N)
    row = sequence * H + kv_head * SHARED + lane
    q = tl.load(q_ptr + row[:, None] * D + dims[None, :], mask=mine[:, None], other=0.0)
    base = sequence.to(tl.int64) * stride_kb + kv_head * stride_kh
    span = tl.cdiv(L, SPLITS)
    low = part * span
    high = min(low + span, L)
    k_ptrs = k_ptr + base + (low + keys)[:, None] * stride_kn + dims[None, :]
    v_ptrs = v_ptr + base + (low + keys)[:, None] * stride_kn + dims[None, :]
    m_i = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, D], dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        at = start + keys
        k = tl.load(k_ptrs, mask=at[:, None] < high, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(at[None, :] < high, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptrs, mask=at[:, None] < high, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
        k_ptrs += BLOCK_N * stride_kn
        v_ptrs += BLOCK_N * stride_kn
    at_part = row * SPLITS + part
    tl.store(part_ptr + at_part[:, None] * D + dims[None, :], acc / l_i[:, None], mask=mine[:, None])
    tl.store(lse_ptr + at_part, m_i + tl.log(l_i), mask=mine)


@entry(contiguous_decode_kernel, AFFINE, {**SIZES, "B": 16, "L": 8192}, family=FAMILY, choices=CHOICES,
       dtypes=("bfloat16", "float16"))  # fmt: skip
def decode_contiguous(s: Sizes, dtype: str) -> Problem:
    b, h, kv, d, length = s["B"], s["H"], s["KV"], s["D"], s["L"]
    cache_of = Tensor((b, kv, length, d), dtype)
    return Problem(
        {"q": Tensor((b, h, d), dtype), "k": cache_of, "v": cache_of, "part": output(b, h, SPLITS, d, dtype="float32"),
         "lse": output(b, h, SPLITS, dtype="float32")},
        {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "part_ptr": "part", "lse_ptr": "lse", "scale": d**-0.5, "H": h,
         "L": length, "stride_kb": kv * length * d, "stride_kh": length * d, "stride_kn": d},
        lambda c: (b, kv, SPLITS), ("part", "lse"),
        split_reference(s, lambda t, i: (t["k"][i].transpose(0, 1), t["v"][i].transpose(0, 1))),
        {"SHARED": h // kv, "SPLITS": SPLITS, "D": d, "BLOCK_H": max(16, triton.next_power_of_2(h // kv))},
        4.0 * b * h * length * d,
    )  # fmt: skip


@triton.autotune(configs=key_blocks((32, 2, 4), (64, 2, 4), (64, 3, 8)), key=["H"])
@triton.jit
def latent_kernel(
    q_ptr, cache_ptr, part_ptr, lse_ptr, slot_ptr, start_ptr, scale, stride_qb, stride_qh, stride_cn, H,
    SPLITS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Latent attention: all heads share one key of 512 + 64, whose first part is the value, too."""
    sequence = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    part = tl.program_id(2)
    mine = heads < H
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    first = tl.load(start_ptr + sequence)
    length = tl.load(start_ptr + sequence + 1) - first
    span = tl.cdiv(length, SPLITS)
    low = part * span
    high = min(low + span, length)
    q_at = q_ptr + sequence * stride_qb + heads[:, None] * stride_qh
    q = tl.load(q_at + latent[None, :], mask=mine[:, None], other=0.0)
    q_rope = tl.load(q_at + rope[None, :], mask=mine[:, None], other=0.0)
    m_i = tl.zeros([BLOCK_H], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, LATENT], dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        slot = tl.load(slot_ptr + first + at, mask=at < high, other=0).to(tl.int64)
        k = tl.load(cache_ptr + slot[None, :] * stride_cn + latent[:, None], mask=at[None, :] < high, other=0.0)
        k_rope = tl.load(cache_ptr + slot[None, :] * stride_cn + rope[:, None], mask=at[None, :] < high, other=0.0)
        scores = tl.dot(q, k)
        scores += tl.dot(q_rope, k_rope)
        scores = tl.where(at[None, :] < high, scores * scale, float("-inf"))
        m_new = tl.maximum(tl.max(scores, 1), m_i)
        alpha = tl.exp(m_i - m_new)
        p = tl.exp(scores - m_new[:, None])
        acc = acc * alpha[:, None] + tl.dot(p.to(k.dtype), tl.trans(k))
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    at_part = (sequence * H + heads) * SPLITS + part
    tl.store(part_ptr + at_part[:, None] * LATENT + latent[None, :], acc / l_i[:, None], mask=mine[:, None])
    tl.store(lse_ptr + at_part, m_i + tl.log(l_i), mask=mine)


@entry(latent_kernel, GATHERED, {"B": 32, "H": 128, "L": 4096}, family=FAMILY,
       choices={"B": (2, 3), "H": (16, 24), "L": (96, 257)})  # fmt: skip
def decode_latent(s: Sizes, dtype: str) -> Problem:
    b, h, latent, rope = s["B"], s["H"], 512, 64
    where = slots(b, s["L"], 1)
    starts = [0, *itertools.accumulate(lengths(b, s["L"]))]
    scale = (128 + rope) ** -0.5

    def reference(t: Tensors) -> Any:
        import torch

        outputs, sums = [], []
        for i in range(b):
            keys = t["cache"][where[i]].float()
            scores = [t["q"][i].float() @ keys[span].T * scale for span in spans(len(keys))]
            values = [keys[span, :latent] for span in spans(len(keys))]
            outputs.append(torch.stack([x.softmax(-1) @ v for x, v in zip(scores, values, strict=True)], 1))
            sums.append(torch.stack([x.logsumexp(-1) for x in scores], 1))
        return torch.stack(outputs), torch.stack(sums)

    return Problem(
        {"q": Tensor((b, h, latent + rope), dtype, scale=0.3), "cache": Tensor((starts[-1], latent + rope), dtype),
         "part": output(b, h, SPLITS, latent, dtype="float32"), "lse": output(b, h, SPLITS, dtype="float32"),
         "slot": table(lambda: list(itertools.chain(*where)), starts[-1]), "start": table(lambda: starts, b + 1)},
        {"q_ptr": "q", "cache_ptr": "cache", "part_ptr": "part", "lse_ptr": "lse", "slot_ptr": "slot",
         "start_ptr": "start", "scale": scale, "stride_qb": h * (latent + rope), "stride_qh": latent + rope,
         "stride_cn": latent + rope, "H": h},
        lambda c: (b, cdiv(h, 16), SPLITS), ("part", "lse"), reference,
        {"SPLITS": SPLITS, "LATENT": latent, "ROPE": rope, "BLOCK_H": 16},
        2.0 * starts[-1] * h * (2 * latent + rope),
    )  # fmt: skip


@triton.jit
def softmax_step(scores, v, m_i, l_i, acc):
    """One block of an online softmax; rows that have seen nothing stay at zero."""
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    p = tl.exp(scores - m_new[:, None])
    alpha = tl.exp(m_i - m_new)
    return m_new, l_i * alpha + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, acc * alpha[:, None])


QUERIES = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=stages, num_warps=warps)
    for m, n, stages, warps in ((64, 64, 2, 4), (128, 64, 2, 8), (64, 32, 3, 4), (128, 128, 1, 8))
]


@triton.autotune(configs=QUERIES, key=["H"])
@triton.jit
def extend_kernel(
    q_ptr, k_new_ptr, v_new_ptr, k_ptr, v_ptr, o_ptr, new_start_ptr, slot_ptr, old_start_ptr, scale, H, KV,
    PAGED: tl.constexpr, PAGE: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Two loops: over the cached prefix, by slots or by pages, and over the new tokens up to the diagonal."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // SHARED
    first = tl.load(new_start_ptr + sequence)
    count = tl.load(new_start_ptr + sequence + 1) - first
    old_first = tl.load(old_start_ptr + sequence)
    cached = tl.load(old_start_ptr + sequence + 1) - old_first
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.program_id(2) * BLOCK_M >= count:
        return
    dims = tl.arange(0, D)
    keys = tl.arange(0, BLOCK_N)
    q_at = ((first + rows) * H + head)[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=rows[:, None] < count, other=0.0)
    m_i = tl.full([BLOCK_M], -1.0e30, dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for start in range(0, cached, BLOCK_N):
        at = start + keys
        seen = at < cached
        if PAGED:
            page = tl.load(slot_ptr + old_first // PAGE + at // PAGE, mask=seen, other=0)
            slot = page.to(tl.int64) * PAGE + at % PAGE
        else:
            slot = tl.load(slot_ptr + old_first + at, mask=seen, other=0).to(tl.int64)
        where = (slot * KV + kv_head) * D
        k = tl.load(k_ptr + where[None, :] + dims[:, None], mask=seen[None, :], other=0.0)
        scores = tl.where(seen[None, :], tl.dot(q, k) * scale, float("-inf"))
        v = tl.load(v_ptr + where[:, None] + dims[None, :], mask=seen[:, None], other=0.0)
        m_i, l_i, acc = softmax_step(scores, v, m_i, l_i, acc)
    for start in range(0, min(count, (tl.program_id(2) + 1) * BLOCK_M), BLOCK_N):
        at = start + keys
        where = ((first + at) * KV + kv_head) * D
        k = tl.load(k_new_ptr + where[None, :] + dims[:, None], mask=at[None, :] < count, other=0.0)
        seen_new = (at[None, :] < count) & (rows[:, None] >= at[None, :])
        scores = tl.where(seen_new, tl.dot(q, k) * scale, float("-inf"))
        v = tl.load(v_new_ptr + where[:, None] + dims[None, :], mask=at[:, None] < count, other=0.0)
        m_i, l_i, acc = softmax_step(scores, v, m_i, l_i, acc)
    tl.store(o_ptr + q_at, (acc / l_i[:, None]).to(o_ptr.dtype.element_ty), mask=rows[:, None] < count)


EXTEND_SIZES = {"B": 8, "H": 32, "KV": 8, "L": 4096, "NEW": 1024, "D": 128}
EXTEND_CHOICES = {**CHOICES, "NEW": (70, 128, 300)}


def extended(s: Sizes, dtype: str, paged: bool) -> Problem:
    b, h, kv, d = s["B"], s["H"], s["KV"], s["D"]
    page = PAGE if paged else 1
    old = [n // page * page for n in lengths(b, s["L"])]
    where = [x[:n] for x, n in zip(slots(b, s["L"], page), old, strict=True)]
    lookup = [x[i] // page for x in where for i in range(0, len(x), page)]
    new_starts = [0, *itertools.accumulate(lengths(b, s["NEW"]))]
    old_starts = [0, *itertools.accumulate(old)]
    size = sum(cdiv(n, page) * page for n in lengths(b, s["L"]))

    def reference(t: Tensors) -> Any:
        import torch

        parts = []
        for i, (low, high) in enumerate(itertools.pairwise(new_starts)):
            k = torch.cat([t["k"][where[i]], t["k_new"][low:high]]).float().repeat_interleave(h // kv, 1)
            v = torch.cat([t["v"][where[i]], t["v_new"][low:high]]).float().repeat_interleave(h // kv, 1)
            scores = torch.einsum("mhd,nhd->hmn", t["q"][low:high].float(), k) * d**-0.5
            later = torch.ones_like(scores, dtype=torch.bool).triu(1 + old[i])
            parts.append(torch.einsum("hmn,nhd->mhd", scores.masked_fill(later, float("-inf")).softmax(-1), v))
        return torch.cat(parts)

    total, new = new_starts[-1], Tensor((new_starts[-1], kv, d), dtype)
    pairs = sum(n * (o + n / 2) for n, o in zip(lengths(b, s["NEW"]), old, strict=True))
    arguments: dict[str, Argument] = {
        "q_ptr": "q", "k_new_ptr": "k_new", "v_new_ptr": "v_new", "k_ptr": "k", "v_ptr": "v", "o_ptr": "o",
        "new_start_ptr": "new_start", "slot_ptr": "slot", "old_start_ptr": "old_start", "scale": d**-0.5, "H": h,
        "KV": kv,
    }  # fmt: skip
    return Problem(
        {"q": Tensor((total, h, d), dtype), "k_new": new, "v_new": new, "k": Tensor((size, kv, d), dtype),
         "v": Tensor((size, kv, d), dtype), "o": output(total, h, d, dtype=dtype),
         "new_start": table(lambda: new_starts, b + 1), "slot": table(lambda: lookup, len(lookup)),
         "old_start": table(lambda: old_starts, b + 1)},
        arguments, lambda c: (b, h, cdiv(s["NEW"], c["BLOCK_M"])), ("o",), reference,
        {"PAGED": paged, "PAGE": page, "SHARED": h // kv, "D": d}, 4.0 * pairs * h * d,
    )  # fmt: skip


@entry(extend_kernel, GATHERED, EXTEND_SIZES, family=FAMILY, choices=EXTEND_CHOICES, dtypes=("bfloat16", "float16"))
def extend_attention(s: Sizes, dtype: str) -> Problem:
    return extended(s, dtype, paged=False)


@entry(extend_kernel, GATHERED, EXTEND_SIZES, family=FAMILY, choices=EXTEND_CHOICES)
def prefix_prefill(s: Sizes, dtype: str) -> Problem:
    return extended(s, dtype, paged=True)
