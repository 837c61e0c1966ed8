"""Launching without a GPU: what is refused, how operands are described to TMA, and that a launch specialises exactly as
the compile report does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.gemm.space import GemmConfig  # noqa: E402
from warpplan.kernels.grouped_gemm import gluon, launch  # noqa: E402
from warpplan.kernels.grouped_gemm.compile_grouped_gemm import grouped_gemm_source  # noqa: E402
from warpplan.kernels.grouped_gemm.space import tuning  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

CONFIGS = (
    GemmConfig("single", 64, 128, 64, 4, 3),
    GemmConfig("cooperative", 128, 128, 64, 4, 3, epilogue_split=2),
    GemmConfig("pingpong", 64, 128, 64, 4, 4),
)
PRODUCTS = ("forward", "dgrad", "wgrad")


@pytest.fixture
def no_gpu(monkeypatch):
    """CPU tensors pass for those of an H200."""
    monkeypatch.setattr(launch, "_require_gpu", lambda *_: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(launch, "sm_count", lambda index: 132)


@pytest.fixture
def launched(monkeypatch, no_gpu):
    """Runs a prepared call up to the launch, which is noted, and returns that."""
    launches = note_launches(monkeypatch, (gluon, "grouped_gemm_kernel"))
    return lambda *a: (launch.prepare(*a)(), launches[-1])[1]


def operands(product, m=100, n=64, k=128, groups=3, dtype=torch.bfloat16):
    """(left, right, ends, out) on the CPU."""
    a, dc, b = (torch.zeros(*s, dtype=dtype) for s in ((m, k), (m, n), (groups, n, k)))
    ends = torch.arange(1, groups + 1, dtype=torch.int32) * (m // groups)
    return {
        "forward": (a, b, ends, torch.zeros_like(dc)),
        "dgrad": (dc, b, ends, torch.zeros_like(a)),
        "wgrad": (dc, a, ends, torch.zeros_like(b)),
    }[product]


@pytest.mark.slow
@pytest.mark.parametrize(("product", "config"), tuple(zip(PRODUCTS, CONFIGS, strict=True)), ids=PRODUCTS)
def test_a_launch_specialises_as_the_compile_report_does(launched, monkeypatch, config, product):
    left, right, ends, out = operands(product)
    noted = launched(product, left, right, ends, tuning(config), out)
    monkeypatch.undo()
    source, _ = grouped_gemm_source(config, "bf16", product, ends.shape[0])
    noted.require_like(source)
    assert noted.grid[0] >= 1


FP8 = GemmConfig("single", 64, 128, 128, 4, 3)


def scaled(left_scales=(100,), right_scales=(3, 136), dtype=torch.float8_e4m3fn):
    """(left, right, ends, out, scales of left, scales of right), with N = 136 and K = 144."""
    left, right = torch.zeros(100, 144).to(dtype), torch.zeros(3, 136, 144).to(dtype)
    ends = torch.tensor([10, 20, 30], dtype=torch.int32)
    return left, right, ends, zeros(100, 136), torch.ones(left_scales), torch.ones(right_scales)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["row", "block"])
def test_a_scaled_launch_specialises_as_the_compile_report_does(launched, monkeypatch, kind):
    config = replace(FP8, promoted=kind == "block")
    scales = ((100, 2), (3, 2, 2)) if kind == "block" else ((100,), (3, 136))
    left, right, ends, out, *found = scaled(*scales)
    noted = launched("forward", left, right, ends, tuning(config), out, *found)
    monkeypatch.undo()
    source, _ = grouped_gemm_source(config, "fp8e4nv", "forward", 3, kind)
    noted.require_like(source)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (((100,), (3, 135)), r"expected \(\(100,\), \(3, 136\)\)"),
        (((100, 2), (3, 136)), "expected"),
        (((100, 1), (3, 2, 2)), "expected"),
        ((1, 1), "expected"),
    ],
)
def test_scales_of_other_shapes_are_refused(no_gpu, scales, message):
    left, right, ends, out, *found = scaled(*scales)
    with pytest.raises(InvalidShape, match=message):
        launch.prepare("forward", left, right, ends, FP8, out, *found)


def test_scales_must_fit_the_operands_and_the_plan(no_gpu):
    left, right, ends, out, of_a, of_b = scaled()
    with pytest.raises(InvalidShape, match="one is missing"):
        launch.prepare("forward", left, right, ends, FP8, out, of_a)
    with pytest.raises(InvalidShape, match=r"expected torch\.float32"):
        launch.prepare("forward", left, right, ends, FP8, out, of_a.half(), of_b)
    with pytest.raises(InvalidConfig, match="those of a row"):
        launch.prepare("forward", left, right, ends, replace(FP8, promoted=True), out, of_a, of_b)
    left, right, ends, out = operands("forward")
    with pytest.raises(InvalidShape, match="have no scales"):
        launch.prepare("forward", left, right, ends, CONFIGS[0], out, of_a, of_b)
    with pytest.raises(UnknownName, match="float8"):
        launch._require_operands("dgrad", *scaled()[:3])


def test_operands_on_the_cpu_are_refused():
    left, right, ends, _ = operands("forward")
    with pytest.raises(InvalidShape, match=r"A is on cpu: move it to a GPU"):
        launch.grouped_gemm(left, right, ends, CONFIGS[0])


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("product", "left", "right", "message"),
    [
        ("forward", zeros(8, 64), zeros(3, 16, 72), "K must agree"),
        ("forward", zeros(8, 64), zeros(2, 16, 64), "B has 2 groups and ends 3"),
        ("forward", zeros(8, 64), zeros(16, 64), r"B has 2 dimensions, expected \[G, N, K\]"),
        ("forward", zeros(8, 64), zeros(3, 16, 64, dtype=torch.float16), "expected the same"),
        ("forward", zeros(8, 60), zeros(3, 16, 60), "K=60: .* multiple of 8"),
        ("forward", zeros(8, 64), zeros(3, 20, 64), "N=20: .* multiple of 8"),
        ("forward", zeros(8, 64), zeros(3, 64, 16).transpose(1, 2), r"B has strides .*B\.contiguous\(\)"),
        ("forward", zeros(8, 65)[:, 1:], zeros(3, 16, 64), "A has strides"),
        ("forward", zeros(1, 64).expand(8, 64), zeros(3, 16, 64), "A has strides"),
        ("dgrad", zeros(8, 24), zeros(3, 16, 64), "N must agree"),
        ("dgrad", zeros(8, 24, 1), zeros(3, 24, 64), r"dC has 3 dimensions, expected \[M, N\]"),
        ("wgrad", zeros(8, 24), zeros(9, 64), "M must agree"),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_one_line(no_gpu, product, left, right, message):
    ends = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(InvalidShape, match=message) as caught:
        launch._require_operands(product, left, right, ends)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"expected torch\.int32 \[G\]"),
        (torch.zeros(3, 1, dtype=torch.int32), r"expected torch\.int32 \[G\]"),
        (torch.zeros(6, dtype=torch.int32)[::2], "contiguous"),
        (torch.zeros(3, dtype=torch.int32, device="meta"), "on meta"),
    ],
)
def test_ends_of_another_form_are_refused(no_gpu, ends, message):
    left, right, _, _ = operands("forward")
    with pytest.raises(InvalidShape, match=message):
        launch._require_operands("forward", left, right, ends)


def test_unknown_names(no_gpu):
    left, right, ends, _ = operands("forward", dtype=torch.float32)
    with pytest.raises(UnknownName, match="float32"):
        launch._require_operands("forward", left, right, ends)
    with pytest.raises(UnknownName, match="backward"):
        launch._require_operands("backward", left, right, ends)


@pytest.mark.parametrize("product", PRODUCTS)
def test_outputs_that_do_not_fit_are_refused(no_gpu, product):
    left, right, ends, out = operands(product)
    for wrong in (out[..., :8], out.half(), out.to("meta")):
        with pytest.raises(InvalidShape, match="out is"):
            launch.prepare(product, left, right, ends, CONFIGS[0], wrong)
    with pytest.raises(InvalidShape, match="out has strides"):
        launch.prepare(product, left, right, ends, CONFIGS[0], torch.zeros(*out.shape, 2, dtype=out.dtype)[..., 0])


def test_an_invalid_configuration_is_refused(no_gpu):
    left, right, ends, out = operands("forward")
    with pytest.raises(InvalidConfig, match="split_k"):
        launch.prepare("forward", left, right, ends, GemmConfig("single", 64, 128, 64, 4, 3, split_k=2), out)


def test_no_rows_leave_a_wgrad_of_zeros(no_gpu):
    left, right, ends, out = operands("wgrad", m=0)
    launch.prepare("wgrad", left, right, ends, CONFIGS[0], out.fill_(1))()
    assert not out.any()
    left, right, ends, out = operands("forward", m=0)
    launch.prepare("forward", left, right, ends, CONFIGS[0], out)()


@given(row=st.integers(0, 5_000), end=st.integers(0, 5_000), stride=st.integers(1, 4_000).map(lambda i: 8 * i))
def test_ragged_coordinates_reach_the_row_and_stop_at_the_end(row, end, stride):
    """The address arithmetic of TMA, modulo 2^64."""
    matrix = torch.empty(stride + 8, dtype=torch.bfloat16).as_strided((2, 8), (stride, 1))
    described = launch._describe(matrix, (1, 1, 64, 8))
    c0, c1, c2, _ = gluon.ragged.fn(row, 0, end)
    offset = sum(int(c) * s for c, s in zip((c0, c1, c2), described.strides[:3], strict=True)) * 2
    assert offset % 2**64 == row * stride * 2
    assert (int(c2) < described.shape[2]) == (row < end)
    assert all(0 <= int(c) < 2**31 for c in (c0, c1, c2))


def test_the_grid_is_what_is_resident_or_all_tiles():
    config = CONFIGS[1]
    assert launch.grid_size(config, "forward", (4096, 4096), 8, 132) == 132
    assert launch.grid_size(config, "forward", (1, 128), 64, 132) == 1
    assert launch.grid_size(config, "forward", (128, 128), 3, 132) == 4
    assert launch.grid_size(config, "wgrad", (5, 129, 128), 5, 132) == 10
