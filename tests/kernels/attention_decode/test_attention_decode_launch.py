"""Launching decoding attention without a GPU: what is refused, how K and V are described to TMA, and that a launch
specialises exactly as the compile report does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.attention_decode import gluon, launch, tl  # noqa: E402
from warpplan.kernels.attention_decode.compile_attention_decode import (  # noqa: E402
    attention_decode_source,
    combine_source,
)
from warpplan.kernels.attention_decode.reference import reference  # noqa: E402
from warpplan.kernels.attention_decode.space import DecodeConfig, tuning  # noqa: E402
from warpplan.kernels.attention_fwd import launch as attention_launch  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

CONFIG = DecodeConfig(64, 64, 2, splits=3)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """CPU tensors pass for those of an H200."""
    monkeypatch.setattr(attention_launch, "require_gpu", lambda *_: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


def operands(batch=2, heads=4, queries=3, kv_heads=2, keys=150, d=64):
    """(q, k, v) on the CPU."""
    k = zeros(batch, kv_heads, keys, d)
    return zeros(batch, heads, queries, d), k, torch.zeros_like(k)


LENGTHS = torch.tensor([150, 7], dtype=torch.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splits", "lengths", "lse"), [(1, LENGTHS, False), (1, None, True), (3, LENGTHS, True), (3, None, False)]
)
def test_a_launch_specialises_as_the_compile_report_does(monkeypatch, splits, lengths, lse):
    q, k, v = operands()
    statistic = torch.zeros(2, 4, 3) if lse else None
    config = replace(CONFIG, splits=splits)
    with monkeypatch.context() as patched:
        launches = note_launches(patched, (gluon, "attention_decode_kernel"), (tl, "combine_splits_kernel"))
        launch.prepare(q, k, v, tuning(config), torch.empty_like(q), lengths, statistic)()
    source, _ = attention_decode_source(config, "bf16", True, has_lengths=lengths is not None, stores_lse=lse)
    wanted = [(source, (2 * 2 * splits,))]
    if splits > 1:
        wanted.append((combine_source("bf16", 64, 4, lse)[0], (2 * 4 * 3,)))
    assert len(launches) == len(wanted)
    for noted, (source, grid) in zip(launches, wanted, strict=True):
        noted.require_like(source)
        assert noted.grid == grid


@pytest.mark.parametrize("by_token", [False, True])
def test_descriptors_reach_every_key_of_every_sequence(by_token):
    k = zeros(3, 150, 2, 64).transpose(1, 2) if by_token else zeros(3, 2, 150, 64)
    described = launch._describe_rows(k[:, :, :100], (1, 1, 64, 1, 64))
    rows = launch.key_rows(k[:, :, :100])
    for b, g, n, length in ((0, 0, 0, 5), (2, 1, 99, 100), (1, 1, 40, 40)):
        first = b * rows
        coordinates = (1 << 30, first + length, (1 << 30) - length + n, g, 0)
        address = sum(c * stride for c, stride in zip(coordinates, described.strides, strict=True)) % 2**64
        assert address == k[b, g, n].storage_offset()
        assert (coordinates[2] < described.shape[2]) == (n < length)


def test_sequences_lie_whole_rows_apart():
    assert launch.key_rows(zeros(1, 2, 9, 64)) == 0
    assert launch.key_rows(zeros(3, 2, 9, 64)) == 18
    assert launch.key_rows(zeros(3, 9, 2, 64).transpose(1, 2)) == 9
    apart = zeros(4096).as_strided((3, 9, 2, 64), (9 * 128 + 64, 128, 64, 1)).transpose(1, 2)
    assert launch.key_rows(apart) is None
    with pytest.raises(InvalidShape, match="as many whole rows apart in both"):
        launch.attention_decode(zeros(3, 4, 1, 64), apart, apart, CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": zeros(2, 4, 64)}, r"q has 3 dimensions"),
        ({"q": zeros(2, 4, 17, 64)}, "q has L=17 queries"),
        ({"q": zeros(2, 64, 3, 64)}, "q has L=3 queries of 32 heads"),
        ({"q": zeros(3, 4, 3, 64)}, r"expected \[B, H, L, D\] and"),
        ({"q": zeros(2, 5, 3, 64)}, "G must divide H"),
        ({"k": zeros(2, 2, 0, 64), "v": zeros(2, 2, 0, 64)}, "N=0"),
        ({"lengths": LENGTHS.long()}, "lengths is torch.int64"),
        ({"lengths": LENGTHS[:1]}, "lengths is torch.int32"),
        ({"lse": torch.zeros(2, 4)}, "lse is"),
        ({"out": zeros(2, 4, 3, 128)}, "out is"),
        ({"scale": 0.0}, "scale=0.0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, message):
    q, k, v = (change.pop(name, tensor) for name, tensor in zip("qkv", operands(), strict=True))
    with pytest.raises(InvalidShape, match=message) as caught:
        launch.attention_decode(q, k, v, CONFIG, **change)
    assert "\n" not in str(caught.value)


def test_configurations_and_dtypes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidConfig, match="is for heads of 128, and q has 64"):
        launch.attention_decode(*operands(), replace(CONFIG, head_dim=128))
    with pytest.raises(InvalidConfig, match="splits 0"):
        launch.attention_decode(*operands(), replace(CONFIG, splits=0))
    with pytest.raises(UnknownName, match="float32"):
        launch.attention_decode(*(tensor.float() for tensor in operands()), CONFIG)


def test_the_reference_is_torchs():
    q, k, v = torch.randn(2, 4, 3, 64), torch.randn(2, 2, 50, 64), torch.randn(2, 2, 50, 64)
    out, lse = reference(q, k, v, [50, 2])
    for b, length in ((0, 50), (1, 2)):
        for row in range(3):
            seen = length - (2 - row)
            if seen <= 0:
                assert not out[b, :, row].any()
                assert torch.isneginf(lse[b, :, row]).all()
                continue
            wanted = torch.nn.functional.scaled_dot_product_attention(
                q[b, :, row : row + 1].double(), k[b, :, :seen].double(), v[b, :, :seen].double(), enable_gqa=True
            )
            torch.testing.assert_close(out[b, :, row : row + 1], wanted)
