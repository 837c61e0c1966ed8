"""The benchmark of a decoder block: its rows, and the block itself where torch is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_block


def result(ours: float, eager: float, compiled: float, status: str = "ok") -> dict[str, Any]:
    times = {bench_block.OURS: ours, bench_block.EAGER: eager, bench_block.COMPILED: compiled}
    return {"status": status, "times": {name: {"us": us} for name, us in times.items()}, "flops": 8_000_000}


def test_the_faster_peer_counts_and_a_wrong_block_has_no_ratio():
    rows = [
        bench_block.compared("train", 1, 2048, result(100.0, 150.0, 110.0)),
        bench_block.compared("train", 2, 4096, result(100.0, 121.0, 140.0)),
        bench_block.compared("heldout", 1, 4096, result(100.0, 90.0, 140.0, "wrong")),
        bench_block.compared("heldout", 4, 2048, {"status": "hang", "reason": "no answer"}),
    ]
    assert [row.get("over", {}).get("best") for row in rows] == [1.1, 1.21, None, None]
    assert rows[0]["tflops"] == 0.1
    summary = bench_block.summary_of(rows)
    assert summary["train"] == {"mean": pytest.approx((1.1 * 1.21) ** 0.5, abs=1e-4), "least": 1.1, "cases": 2}
    assert "heldout" not in summary
    assert summary["failed"] == [[1, 4096, "wrong"], [4, 2048, "hang"]]


def test_the_block_is_right_in_bfloat16_and_an_attention_that_looks_ahead_is_not():
    torch = pytest.importorskip("torch", reason="the block is torch's")
    from llama_block import BlockSizes, block, gradients, relative_errors
    from torch.nn.functional import scaled_dot_product_attention as attention

    sizes = BlockSizes(2, 24, width=64, heads=4, kv_heads=2, hidden=96)
    generator = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(2, 24, 64, generator=generator) for _ in range(2))
    exact = block(sizes, attention, "cpu", torch.float64)
    right = gradients(exact, exact, x.double(), dy.double())
    assert {"output", "input", "qkv.weight", "down.weight", "feed_norm.weight"} <= set(right)
    rounded = block(sizes, attention, "cpu", torch.bfloat16)
    errors = relative_errors(gradients(rounded, rounded, x.bfloat16(), dy.bfloat16()), right)
    assert 0 < max(errors.values()) < 0.03
    peeking = block(sizes, lambda q, k, v, is_causal, enable_gqa: attention(q, k, v, enable_gqa=enable_gqa), "cpu",
                    torch.float64)  # fmt: skip
    assert max(relative_errors(gradients(peeking, peeking, x.double(), dy.double()), right).values()) > 0.05


def test_the_block_counts_the_operations_of_its_products_and_of_half_the_scores():
    pytest.importorskip("torch", reason="the block is torch's")
    from llama_block import BlockSizes

    sizes = BlockSizes(1, 2, width=4, heads=2, kv_heads=1, hidden=3)
    products = 2 * 2 * (4 * 8 + 4 * 4 + 4 * 6 + 3 * 4)  # qkv, out, gate and up, down, each on two tokens
    assert sizes.flops == 3 * products + 3.5 * (2 * 2 * 2 * 2 * 2)
