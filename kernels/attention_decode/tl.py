"""Combine what the splits of a sequence's keys gave: an ordinary Triton kernel, one program a row.

    m = max lse_s,  w_s = exp(lse_s - m),  O = Σ w_s · O_s / Σ w_s,  lse = m + log Σ w_s

The splits are added up in the order of their keys, so that the same operands give the same bits. A row that no split
has a key for is zero, and its log-sum-exp minus infinity.
"""

from __future__ import annotations

import triton
import triton.language as tl

TOGETHER = 8
"""Splits whose results a program holds at once: 8 rows of 256 in fp32 are 16 registers a thread."""


@triton.jit(do_not_specialize=["SHARERS", "QUERIES", "KV_HEADS", "SPLITS"])
def combine_splits_kernel(
    parts, part_lse, out, lse, OUT_BATCH, OUT_HEAD, OUT_QUERY, SHARERS, QUERIES, KV_HEADS, SPLITS,
    HEAD_DIM: tl.constexpr, MOST_SPLITS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """``parts`` is fp32 [batch, KV_HEADS, SPLITS, QUERIES · SHARERS, HEAD_DIM], ``part_lse`` the same without the last;
    ``lse`` fp32 [batch, heads, QUERIES] or None. ``MOST_SPLITS`` is a power of two, SPLITS or more."""
    rows = QUERIES * SHARERS
    row = tl.program_id(0) % rows
    first = (tl.program_id(0) // rows).to(tl.int64) * SPLITS
    every = tl.arange(0, MOST_SPLITS)
    all_lse = tl.load(part_lse + (first + every) * rows + row, mask=every < SPLITS, other=float("-inf"))
    most = tl.maximum(tl.max(all_lse, 0), -3.0e38)
    column = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    total = 0.0
    for begin in range(0, SPLITS, TOGETHER):
        split = begin + tl.arange(0, TOGETHER)
        there = split < SPLITS
        its = tl.load(part_lse + (first + split) * rows + row, mask=there, other=float("-inf"))
        weight = tl.exp(its - most)
        at = ((first + split) * rows + row) * HEAD_DIM
        values = tl.load(parts + at[:, None] + column[None, :], mask=there[:, None], other=0.0)
        acc += tl.sum(values * weight[:, None], 0)
        total += tl.sum(weight, 0)
    acc = tl.where(total > 0.0, acc / total, 0.0)
    group = tl.program_id(0) // rows
    head = group % KV_HEADS * SHARERS + row % SHARERS
    batch = (group // KV_HEADS).to(tl.int64)
    query = row // SHARERS
    place = batch * OUT_BATCH + head.to(tl.int64) * OUT_HEAD + query * OUT_QUERY
    tl.store(out + place + column, acc.to(out.dtype.element_ty))
    if lse is not None:
        tl.store(lse + (batch * KV_HEADS * SHARERS + head) * QUERIES + query, most + tl.log(total))
