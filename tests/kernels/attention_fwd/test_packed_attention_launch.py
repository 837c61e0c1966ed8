"""Launching packed sequences without a GPU: what is refused, how tensors are described to TMA, and that a launch
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

from warpplan.kernels.attention_fwd import gluon, launch, packed_launch  # noqa: E402
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape  # noqa: E402
from warpplan.kernels.attention_fwd.compile_attention_fwd import attention_fwd_source  # noqa: E402
from warpplan.kernels.attention_fwd.kernel import attention_shape  # noqa: E402
from warpplan.kernels.attention_fwd.reference import packed_reference  # noqa: E402
from warpplan.kernels.attention_fwd.space import AttentionConfig, tuning  # noqa: E402
from warpplan.kernels.device.boxes import ragged_box  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

CONFIG = AttentionConfig(64, 2, 64, 64, 2, packed=True)
STARTS = torch.tensor([0, 60, 60, 100], dtype=torch.int32)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """CPU tensors pass for those of an H200."""
    monkeypatch.setattr(launch, "require_gpu", lambda *_: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(packed_launch, "sm_count", lambda index: 132)


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


def operands(rows=100, heads=4, kv_heads=2, d=64):
    """(q, k, v) on the CPU, as slices of one packed projection."""
    packed = zeros(rows, heads + 2 * kv_heads, d)
    return packed.split((heads, kv_heads, kv_heads), dim=1)


def prepared(*tensors, config=CONFIG, q_starts=STARTS, k_starts=STARTS, longest=60, out=None, lse=None, **options):
    out = torch.empty_like(tensors[0]) if out is None else out
    return packed_launch.prepare_packed(*tensors, q_starts, k_starts, longest, longest, config, out, lse, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "window", "with_lse"), [(False, None, True), (True, None, False), (True, 5, True)])
def test_a_launch_specialises_as_the_compile_report_does(monkeypatch, causal, window, with_lse):
    lse = torch.zeros(4, 100) if with_lse else None
    with monkeypatch.context() as patched:
        launches = note_launches(patched, (gluon, "attention_fwd_kernel"))
        prepared(*operands(), config=tuning(CONFIG), lse=lse, causal=causal, window=window)()
    bounded = (window is not None, causal or window is not None)
    source, _ = attention_fwd_source(CONFIG, "bf16", *bounded, stores_lse=with_lse, sequences=3)
    (noted,) = launches
    noted.require_like(source)
    assert noted.grid == (12,)


def test_ragged_descriptors_end_where_the_coordinates_say():
    q, _, _ = operands()
    described = packed_launch.describe_ragged(q, (1, 1, 64, 1, 64))
    row = 8 * 64
    assert list(described.strides) == [2**34 - row, row, row, 64, 1]
    assert list(described.shape)[2:] == [1 << 30, 4, 64]
    for first, end, r in ((0, 60, 3), (60, 100, 99), (7, 8, 8)):
        c = ragged_box.fn(2, r, end)
        address = sum(int(x) * stride for x, stride in zip(c, described.strides, strict=True)) % 2**64
        assert address == r * row + 2 * 64
        assert (int(c[2]) < described.shape[2]) == (r < end), first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": zeros(1, 4, 9, 64)}, r"q has 4 dimensions, expected \[rows, H, D\]"),
        ({"k": zeros(100, 3, 64), "v": zeros(100, 3, 64)}, "G must divide H"),
        ({"v": zeros(99, 2, 64)}, "expected the same shape"),
        ({"k": zeros(100, 2, 128), "v": zeros(100, 2, 128)}, "D must agree"),
        ({"q": zeros(100, 4, 96), "k": zeros(100, 2, 96), "v": zeros(100, 2, 96)}, "D=96 is none of 64, 128, 256"),
        ({"q": zeros(100, 4, 65)[..., 1:]}, "q has strides"),
        ({"q_starts": STARTS.long()}, "cu_seqlens_q is torch.int64"),
        ({"k_starts": torch.zeros(8, dtype=torch.int32)[::2]}, "cu_seqlens_k is"),
        ({"k_starts": STARTS[:3]}, "cu_seqlens_q has 4 numbers and cu_seqlens_k 3"),
        ({"q_starts": STARTS[:1], "k_starts": STARTS[:1]}, "expected one more than sequences each"),
        ({"longest": -1}, "max_seqlen_q=-1"),
        ({"lse": torch.zeros(100, 4)}, "lse is"),
        ({"out": zeros(100, 4, 128)}, "out is"),
        ({"window": -1}, "window=-1"),
        ({"scale": 0.0}, "scale=0.0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, message):
    q, k, v = operands()
    tensors = [change.pop(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v))]
    with pytest.raises(InvalidShape, match=message) as caught:
        prepared(*tensors, **change)
    assert "\n" not in str(caught.value)


def test_configurations_and_dtypes_that_do_not_fit_are_refused():
    with pytest.raises(
        InvalidConfig, match="is for sequences of one length, and these are packed sequences: plan with"
    ):
        prepared(*operands(), config=replace(CONFIG, packed=False))
    with pytest.raises(InvalidConfig, match="is for heads of 128, and q has 64"):
        prepared(*operands(), config=replace(CONFIG, head_dim=128))
    with pytest.raises(UnknownName, match="float32"):
        prepared(*(tensor.float() for tensor in operands()))
    batch = zeros(1, 4, 9, 64)
    with pytest.raises(InvalidConfig, match="plan with sizes=padded"):
        launch.prepare(batch, batch, batch, CONFIG, torch.empty_like(batch))


def test_nothing_to_do_is_done_without_a_kernel():
    q, k, v = operands()
    prepared(q[:0], k, v)()
    out, lse = torch.full_like(q, 7.0), torch.zeros(4, 100)
    prepared(q, k[:0], v[:0], out=out, lse=lse)()
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_the_grid_has_a_program_for_every_unit_there_may_be():
    shape = AttentionShape(3, 4, 1000, 64, 4, 1000)
    once = replace(CONFIG, persistent=False)
    assert packed_launch.packed_grid(CONFIG, shape, 900, 132) == 4 * (1000 // 128 + 3)
    assert packed_launch.packed_grid(once, shape, 100, 132) == 4 * 3
    assert packed_launch.packed_grid(CONFIG, replace(shape, q_length=100_000), 100_000, 132) == 132
    for sizes in ((1, 1, 998), (400, 300, 300), (0, 0, 1000)):
        units = 4 * sum(-(-size // once.tile_rows) for size in sizes)
        assert units <= packed_launch.packed_grid(once, shape, max(sizes), 132)


def test_the_reference_is_torchs_of_each_sequence():
    q, k, v = torch.randn(100, 4, 64), torch.randn(90, 2, 64), torch.randn(90, 2, 64)
    out, lse = packed_reference(q, k, v, [0, 60, 60, 95], [0, 60, 70, 90], causal=False)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(t.double().transpose(0, 1)[None] for t in (q[60:95], k[70:90], v[70:90])), enable_gqa=True
    )
    torch.testing.assert_close(out[60:95], wanted[0].transpose(0, 1))
    assert torch.isnan(out[95:]).all()
    assert torch.isnan(lse[:, 95:]).all()
    assert torch.isfinite(lse[:, :95]).all()


@pytest.mark.parametrize("options", [(), ("mask=causal", "kv_heads=2", "kv_length=150"), ("sizes=equal",),
                                     ("kv_length=130", "window=5", "sizes=100,0,7")], ids=str)  # fmt: skip
def test_a_launch_for_timing_has_the_shape_that_was_asked_for(options, monkeypatch):
    seen = []
    monkeypatch.setattr(launch, "_launch", lambda *a: seen.append(a[6]))
    monkeypatch.setattr(packed_launch, "_launch", lambda *a: seen.append(a[8]))
    for name in ("randn", "tensor"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, made=made, **k: made(*a, **{**k, "device": "cpu"}))
    shape = (3, 4, 100, 64, *options)
    asked = attention_shape(shape)
    launch.random_launch(shape, "bfloat16", tuning(replace(CONFIG, packed=asked.packed)))
    (found,) = seen
    assert (found.heads, found.kv_heads, found.causal, found.window) == (
        4, asked.kv_heads, asked.causal, asked.window,
    )  # fmt: skip
    if asked.packed:
        assert found.q_length == asked.q_rows
        assert found.k_length == sum(count * one.k_length for count, one in asked.sequences) + (
            30 if 0 in asked.sizes else 0
        )
    else:
        assert found == asked
