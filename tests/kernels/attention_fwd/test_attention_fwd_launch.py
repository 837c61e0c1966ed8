"""Launching without a GPU: what is refused, how tensors are described to TMA, and that a launch specialises exactly as
the compile report does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.attention_fwd import gluon, launch  # noqa: E402
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape  # noqa: E402
from warpplan.kernels.attention_fwd.compile_attention_fwd import attention_fwd_source  # noqa: E402
from warpplan.kernels.attention_fwd.fp8 import transposed_values  # noqa: E402
from warpplan.kernels.attention_fwd.fp8.head_scales import head_scales  # noqa: E402
from warpplan.kernels.attention_fwd.fp8.tl import transpose_source  # noqa: E402
from warpplan.kernels.attention_fwd.packed_launch import packed_attention  # noqa: E402
from warpplan.kernels.attention_fwd.reference import reference  # noqa: E402
from warpplan.kernels.attention_fwd.space import AttentionConfig, tuning  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

CONFIG = AttentionConfig(64, 2, 64, 64, 2)


@pytest.fixture
def no_gpu(monkeypatch):
    """CPU tensors pass for those of an H200."""
    monkeypatch.setattr(launch, "require_gpu", lambda *_: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(launch, "sm_count", lambda index: 132)


@pytest.fixture
def launched(monkeypatch, no_gpu):
    """Runs a prepared call up to its launches, which are noted, and returns them."""
    launches = note_launches(
        monkeypatch, (gluon, "attention_fwd_kernel"), (transposed_values, "transpose_values_kernel")
    )
    return lambda *a, **k: (launch.prepare(*a, **k)(), launches)[1]


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


def operands(batch=2, heads=4, length=100, kv_heads=2, k_length=150, d=64):
    """(q, k, v, out) on the CPU."""
    q, k = zeros(batch, heads, length, d), zeros(batch, kv_heads, k_length, d)
    return q, k, torch.zeros_like(k), torch.zeros_like(q)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("causal", "window", "lse"), [(False, None, True), (True, None, False), (True, 5, True), (False, 5, True)]
)
def test_a_launch_specialises_as_the_compile_report_does(launched, monkeypatch, causal, window, lse):
    q, k, v, out = operands()
    statistic = torch.zeros(2, 4, 100) if lse else None
    (noted,) = launched(q, k, v, tuning(CONFIG), out, statistic, causal=causal, window=window)
    monkeypatch.undo()
    bounded = (window is not None, causal or window is not None)
    source, _ = attention_fwd_source(CONFIG, "bf16", *bounded, stores_lse=lse)
    noted.require_like(source)
    assert noted.grid == (8,)


def test_descriptors_have_the_strides_of_any_order(no_gpu):
    by_token = zeros(2, 100, 4, 64).transpose(1, 2)
    described = launch.describe(by_token, (1, 1, 64, 64))
    assert list(described.shape) == [2, 4, 100, 64]
    assert list(described.strides) == [25600, 64, 256, 1]
    # A dimension of one may have any stride.
    alone = zeros(1, 1, 1, 64).as_strided((1, 1, 1, 64), (3, 3, 3, 1))
    assert list(launch.describe(alone, (1, 1, 64, 64)).strides) == [64, 64, 64, 1]


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        (zeros(8, 9, 64), zeros(1, 8, 9, 64), r"q has 3 dimensions, expected \[B, H, L, D\]"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 64), r"k has 3 dimensions, expected \[B, G, M, D\]"),
        (zeros(1, 8, 9, 64), zeros(1, 3, 9, 64), "G must divide H"),
        (zeros(1, 2, 9, 64), zeros(1, 4, 9, 64), "G must divide H"),
        (zeros(1, 8, 9, 64), zeros(2, 8, 9, 64), "B must agree"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 9, 128), "D must agree"),
        (zeros(1, 8, 9, 96), zeros(1, 8, 9, 96), "D=96 is none of 64, 128, 256"),
        (zeros(0, 8, 9, 64), zeros(0, 8, 9, 64), "B=0: expected 1 or more"),
        (zeros(1, 8, 0, 64), zeros(1, 8, 9, 64), "L=0: expected 1 to"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 0, 64), "M=0: expected 1 to"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 9, 64, dtype=torch.float16), "expected the same"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 9, 64).to("meta"), "expected the same"),
        (zeros(1, 8, 9, 65)[..., 1:], zeros(1, 8, 9, 64), "q has strides"),
        (zeros(1, 8, 64, 9).transpose(2, 3), zeros(1, 8, 9, 64), r"q has strides .*q\.contiguous\(\)"),
        (zeros(1, 1, 9, 64).expand(1, 8, 9, 64), zeros(1, 8, 9, 64), "q has strides"),
        (zeros(1, 8, 9, 64), zeros(1, 8, 9 * 64 + 8)[:, :, 3 : 9 * 64 + 3].view(1, 8, 9, 64), "k has strides"),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_one_line(no_gpu, q, k, message):
    with pytest.raises(InvalidShape, match=message) as caught:
        launch.attention(q, k, k, CONFIG)
    assert "\n" not in str(caught.value)


def test_values_must_be_shaped_as_keys(no_gpu):
    q, k, _, out = operands()
    with pytest.raises(InvalidShape, match="expected the same shape"):
        launch.prepare(q, k, k[:, :, :9], CONFIG, out)


def test_tensors_on_the_cpu_and_of_other_dtypes_are_refused():
    q, k, v, _ = operands()
    with pytest.raises(InvalidShape, match="q is on cpu: move it to a GPU"):
        launch.attention(q, k, v, CONFIG)
    with pytest.raises(UnknownName, match="float32"):
        launch.attention(q.float(), k.float(), v.float(), CONFIG)


def test_results_that_do_not_fit_are_refused(no_gpu):
    q, k, v, out = operands()
    for wrong in (out[:, :2], out.half(), out.to("meta")):
        with pytest.raises(InvalidShape, match="out is"):
            launch.prepare(q, k, v, CONFIG, wrong)
    with pytest.raises(InvalidShape, match="some share an address"):
        launch.prepare(q, k, v, CONFIG, zeros(2 * 4 * 64 * 100).as_strided((2, 4, 100, 64), (256, 64, 64, 1)))
    good = torch.zeros(2, 4, 100)
    for wrong in (good.double(), good[:, :2], torch.zeros(2, 100, 4).transpose(1, 2), good.to("meta")):
        with pytest.raises(InvalidShape, match="lse is"):
            launch.prepare(q, k, v, CONFIG, out, wrong)


@pytest.mark.parametrize("window", [-1, 1.5, True])
def test_a_window_is_a_number_of_keys(no_gpu, window):
    with pytest.raises(InvalidShape, match="window="):
        launch.prepare(*operands()[:3], CONFIG, operands()[3], window=window)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_above_zero(no_gpu, scale):
    with pytest.raises(InvalidShape, match="scale="):
        launch.prepare(*operands()[:3], CONFIG, operands()[3], scale=scale)


def test_an_invalid_configuration_is_refused(no_gpu):
    q, k, v, out = operands()
    with pytest.raises(InvalidConfig, match="depth 1"):
        launch.prepare(q, k, v, replace(CONFIG, depth=1), out)
    with pytest.raises(InvalidConfig, match="for heads of 128, and q has 64"):
        launch.prepare(q, k, v, AttentionConfig(128, 2, 64, 64, 2), out)


def eight_bit(batch=2, heads=4, length=100, kv_heads=2, k_length=150, d=64):
    """(q, k, v, out, scales) on the CPU."""
    fp8 = torch.float8_e4m3fn
    q, k = zeros(batch, heads, length, d, dtype=fp8), zeros(batch, kv_heads, k_length, d, dtype=fp8)
    return q, k, torch.zeros_like(k), zeros(batch, heads, length, d), (torch.ones(1),) * 3


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, 5)])
def test_a_launch_in_fp8_specialises_as_the_compile_report_does(launched, monkeypatch, causal, window):
    """The pass over V before it, too."""
    q, k, v, out, scales = eight_bit()
    before, noted = launched(q, k, v, tuning(CONFIG), out, causal=causal, window=window, scales=scales)
    monkeypatch.undo()
    source, _ = attention_fwd_source(CONFIG, "fp8e4nv", window is not None, causal, stores_lse=False)
    noted.require_like(source)
    before.require_like(transpose_source(64)[0])
    # 150 keys are 160 places, two programs for each of 4 heads.
    assert (noted.grid, before.grid) == ((8,), (8,))


def test_values_are_laid_out_in_whole_steps_of_keys():
    transposed, _ = transposed_values.prepare_values(eight_bit()[2])
    assert transposed.shape == (2, 2, 64, 160)
    assert transposed.dtype == torch.float8_e4m3fn
    assert launch.addressable(transposed)


def test_scales_are_of_all_of_each_head_or_of_each_batchs():
    q = eight_bit()[0]
    one, heads = torch.ones(()), torch.ones(4)
    for of_q, of_k, strides in (
        (one, torch.ones(2), (0, 0, 0, 1, 0, 0)),
        (heads, torch.ones(1, 1), (0, 1, 0, 0, 0, 0)),
        (torch.ones(4, 2).T, torch.ones(2, 2), (1, 2, 2, 1, 0, 0)),
    ):
        assert head_scales((of_q, of_k, one), q, 2, 4, 2) == ((of_q, of_k, one), strides)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (None, r"fp8 operands need scales=\(of q, of k, of v\)"),
        ((torch.ones(1),) * 2, "fp8 operands need scales="),
        (
            (torch.ones(1), torch.ones(3), torch.ones(1)),
            r"the scale of k is \(3,\): expected one element, \[2\] or \[2, 2\]",
        ),
        ((torch.ones(4, 2), torch.ones(1), torch.ones(1)), r"the scale of q is \(4, 2\): expected one element, \[4\]"),
        ((torch.ones(1), torch.ones(1), torch.ones(1).double()), "the scale of v is torch.float64 on cpu"),
    ],
)
def test_scales_that_do_not_fit_are_refused(no_gpu, scales, message):
    q, k, v, out, _ = eight_bit()
    with pytest.raises(InvalidShape, match=message):
        launch.prepare(q, k, v, CONFIG, out, scales=scales)


def test_what_fp8_does_not_take_is_refused(no_gpu):
    q, k, v, out, scales = eight_bit()
    with pytest.raises(InvalidShape, match=r"out is torch.float8_e4m3fn .* expected torch.bfloat16"):
        launch.prepare(q, k, v, CONFIG, torch.zeros_like(q), scales=scales)
    with pytest.raises(InvalidShape, match=r"operands of torch.bfloat16 have no scales"):
        launch.prepare(*(t.bfloat16() for t in (q, k, v)), CONFIG, out, scales=scales)
    with pytest.raises(InvalidConfig, match="staging q with float8_e4m3fn"):
        launch.prepare(q, k, v, replace(CONFIG, staging="q"), out, scales=scales)
    starts = torch.tensor([0, 5], dtype=torch.int32)
    packed = (torch.zeros(5, 4, 64, dtype=torch.float8_e4m3fn),) * 3
    with pytest.raises(UnknownName, match="unknown dtype 'float8_e4m3fn': expected one of bfloat16, float16"):
        packed_attention(*packed, starts, starts, 5, 5, replace(CONFIG, packed=True))


def test_the_reference_scales_each_head():
    q, k, v, _, _ = eight_bit()
    q, k, v = (torch.randn(t.shape).to(t.dtype) for t in (q, k, v))
    scales = (torch.rand(4) + 0.5, torch.rand(2, 2) + 0.5, torch.rand(1) + 0.5)
    out, lse = reference(q, k, v, causal=True, scales=scales)
    whole = (
        q.double() * scales[0].double()[None, :, None, None],
        k.double() * scales[1].double()[..., None, None],
        v.double() * float(scales[2]),
    )
    wanted, wanted_lse = reference(*whole, causal=True)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)


def test_the_grid_is_a_program_a_unit_or_no_more_than_sms():
    shape = AttentionShape(2, 16, 1000, 64, 16, 1000)
    assert launch.grid_size(CONFIG, shape, 132) == 132
    assert launch.grid_size(replace(CONFIG, persistent=False), shape, 132) == 2 * 16 * 8
    assert launch.grid_size(CONFIG, replace(shape, batch=1, q_length=1), 132) == 16


def test_the_reference_is_torchs():
    """Where lengths agree; where they differ, torch's causal mask is aligned upper left, ours bottom right."""
    q, k, v = torch.randn(2, 4, 33, 64), torch.randn(2, 2, 33, 64), torch.randn(2, 2, 33, 64)
    for causal in (False, True):
        out, lse = reference(q, k, v, causal=causal)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True
        )
        torch.testing.assert_close(out, wanted)
        assert lse.shape == (2, 4, 33)
    out, _ = reference(q[:, :, :5], k, v, causal=True, window=7, scale=0.3)
    for row in range(5):
        seen = slice(28 + row - 7, 28 + row + 1)
        scores = k[1, 1, seen].double() @ q[1, 3, row].double() * 0.3
        torch.testing.assert_close(out[1, 3, row], scores.softmax(0) @ v[1, 1, seen].double())


def test_a_query_without_keys_has_zeros():
    q, k = torch.randn(1, 1, 5, 64), torch.randn(1, 1, 2, 64)
    out, lse = reference(q, k, k, causal=True)
    assert not out[0, 0, :3].any()
    assert torch.isneginf(lse[0, 0, :3]).all()
    assert torch.isfinite(lse[0, 0, 3:]).all()
