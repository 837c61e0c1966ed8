"""Launching the fused GEMM without a GPU: what is refused, and that a launch specialises as the compile report does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.gemm import launch as product  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, tuning  # noqa: E402
from warpplan.kernels.gemm_bias_act import gluon, launch  # noqa: E402
from warpplan.kernels.gemm_bias_act.compile_gemm_bias_act import fused_source  # noqa: E402
from warpplan.kernels.gemm_bias_act.reference import activated, reference  # noqa: E402
from warpplan.kernels.gemm_bias_act.space import ACTIVATIONS, FusedEpilogue  # noqa: E402
from warpplan.kernels.operands.matrices import tma_stores  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

SINGLE = GemmConfig("single", 128, 128, 64, 8, 3)
CASES = (
    (SINGLE, "gelu", True, True),
    (GemmConfig("cooperative", 128, 128, 64, 4, 3, split_k=2), "swiglu", True, False),
    (GemmConfig("pingpong", 128, 128, 64, 4, 4), "none", False, True),
    (GemmConfig("cooperative", 128, 128, 64, 4, 3), "relu", False, False),
)


@pytest.fixture
def on_hopper(monkeypatch):
    """Whatever needs the GPU itself, answered as an H200 would; CPU tensors pass."""
    monkeypatch.setattr(launch, "require_operands", lambda a, b: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(product, "sm_count", lambda index: 132)
    monkeypatch.setattr(product, "_split_buffers", lambda *_: (torch.zeros(1), torch.zeros(1, dtype=torch.int32)))
    return monkeypatch


@pytest.fixture
def specialised(on_hopper):
    """Runs ``prepare`` up to the launch, which is noted, and returns that."""
    launches = note_launches(on_hopper, (gluon, "gemm_bias_act_kernel"))
    return lambda *a, **k: (launch.prepare(*a, **k)(), launches[-1])[1]


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "activation", "biased", "added"), CASES)
@pytest.mark.parametrize("n", [144, 138])
def test_a_launch_specialises_as_the_compile_report_does(
    specialised, on_hopper, config, activation, biased, added, n
):  # fmt: skip
    columns = n // 2 if activation == "swiglu" else n
    a, b, out = zeros(304, 256), zeros(n, 256), zeros(304, columns)
    bias, residual = zeros(n) if biased else None, zeros(304, columns) if added else None
    noted = specialised(a, b, tuning(config), out, bias=bias, activation=activation, residual=residual)
    on_hopper.undo()
    source, _ = fused_source(config, FusedEpilogue(activation, biased, added), "bf16", tma_stores(out))
    noted.require_like(source)


A, B = zeros(4, 64), zeros(6, 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias": zeros(4)}, r"bias is \(4,\): expected \(6,\)"),
        ({"bias": zeros(6, 1)}, r"bias is \(6, 1\): expected \(6,\)"),
        ({"bias": zeros(6).half()}, r"expected torch\.bfloat16 or torch\.float32"),
        ({"bias": zeros(12)[::2]}, r"bias has stride 2: expected 1; copy it first, bias\.contiguous\(\)"),
        ({"residual": zeros(6, 4)}, r"residual is torch\.bfloat16 \(6, 4\) .* expected torch\.bfloat16 \(4, 6\)"),
        ({"residual": zeros(4, 6).float()}, r"residual is torch\.float32"),
        ({"residual": zeros(6, 4).t()}, r"residual has column stride 4: expected 1"),
        ({"out": zeros(4, 5)}, r"expected torch\.bfloat16 \(4, 6\)"),
        ({"out": zeros(4, 6), "activation": "swiglu"}, r"expected torch\.bfloat16 \(4, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(on_hopper, given, message):
    given = {"out": zeros(4, 6), **given}
    with pytest.raises(InvalidShape, match=message) as caught:
        launch.prepare(A, B, SINGLE, given.pop("out"), **given)
    assert "\n" not in str(caught.value)


def test_swiglu_needs_pairs_of_columns(on_hopper):
    with pytest.raises(InvalidShape, match="N=5: swiglu takes columns in pairs"):
        launch.gemm_bias_act(A, zeros(5, 64), SINGLE, activation="swiglu")


def test_unknown_names(on_hopper):
    with pytest.raises(UnknownName, match="unknown activation 'tanh'"):
        launch.gemm_bias_act(A, B, SINGLE, activation="tanh")
    with pytest.raises(UnknownName, match="float8_e4m3fn"):
        launch.gemm_bias_act(A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn), SINGLE)


def test_a_plan_that_cannot_run_the_epilogue_is_refused(on_hopper):
    with pytest.raises(InvalidConfig, match="the pipelined scheme has no fused epilogue"):
        launch.gemm_bias_act(A, B, GemmConfig("pipelined", 128, 128, 64, 8, 3))


def test_operands_on_the_cpu_are_refused():
    with pytest.raises(InvalidShape, match="A is on cpu: move it to a GPU"):
        launch.gemm_bias_act(A, B, SINGLE)


def test_how_bias_and_residual_may_be_read():
    out = zeros(4, 16)
    assert launch._bias_access(None, out) == launch._residual_access(None, SINGLE) == "none"
    assert launch._bias_access(zeros(16), out) == "aligned"
    assert launch._bias_access(zeros(24)[1:17], out) == launch._bias_access(zeros(17), out) == "any"
    swapped = GemmConfig("single", 64, 64, 64, 4, 4, swap=True)
    assert launch._residual_access(zeros(4, 24)[:, :16], SINGLE) == "aligned"
    assert launch._residual_access(zeros(4, 17)[:, :16], SINGLE) == "any"
    assert launch._residual_access(zeros(4, 16), swapped) == "any"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_is_torchs(activation):
    torch.manual_seed(0)
    a, b, bias = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    linear = torch.nn.functional.linear(a.double(), b.double(), bias.double())
    expected = activated(linear, activation)
    assert torch.allclose(reference(a, b, bias=bias, activation=activation), expected)
    assert torch.allclose(reference(a, b, bias=bias, activation=activation, residual=expected), 2 * expected)
    assert expected.shape == ((5, 3) if activation == "swiglu" else (5, 6))


def test_the_reference_knows_its_activations():
    with pytest.raises(UnknownName, match="unknown activation 'tanh'"):
        activated(torch.zeros(1), "tanh")
