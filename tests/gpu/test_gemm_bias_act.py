"""The fused GEMM on a GPU: every epilogue against float64, exactly where sums are exact, beside poisoned margins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.launch import gemm  # noqa: E402
from warpplan.kernels.gemm.reference import relative_error  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, tuning  # noqa: E402
from warpplan.kernels.gemm_bias_act.launch import gemm_bias_act, prepare  # noqa: E402
from warpplan.kernels.gemm_bias_act.reference import activated, reference  # noqa: E402
from warpplan.kernels.gemm_bias_act.space import ACTIVATIONS, FusedEpilogue, violations  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

CONFIGS = (
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 32, 128, 4, 4, ctas_per_sm=2),
    GemmConfig("single", 64, 64, 64, 4, 4, swap=True, split_k=2),
    GemmConfig("single", 64, 64, 64, 4, 4, swap=True, stream_k=True),
    GemmConfig("cooperative", 128, 128, 64, 4, 4, stream_k=True),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring"),
    GemmConfig("cooperative", 192, 128, 64, 4, 4, epilogue_split=2, split_k=3, split_tail=True),
    GemmConfig("cooperative", 256, 192, 64, 4, 3, epilogue_split=3),
    GemmConfig("single", 64, 192, 64, 4, 6, epilogue_split=3, swap=True),
    GemmConfig("cooperative", 128, 96, 64, 4, 6, epilogue_split=3),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True),
)
SHAPES = ((1, 2, 8), (7, 134, 72), (129, 264, 1096), (1000, 1002, 2048), (3072, 1536, 328))


def _whole(*shape, dtype=torch.bfloat16):
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)


def _runs(config, activation, shape, dtype="bfloat16"):
    if violations(config, dtype, H200, FusedEpilogue(activation), shape):
        pytest.skip("the space leaves it out")


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_exact(config, shape, activation):
    """Whole numbers make every sum exact: bias before the activation, residual after it, one rounding."""
    _runs(config, activation, shape)
    m, n, k = shape
    a, b, bias = _whole(m, k), _whole(n, k), _whole(n, dtype=torch.float32) / 2
    stored = torch.full((m + 2, n + 7), float("nan"), device="cuda", dtype=torch.bfloat16)
    residual = stored[1:-1, 3 : 3 + n].copy_(_whole(m, n))
    buffer = torch.full((m + 2, n + 5), float("nan"), device="cuda", dtype=torch.bfloat16)
    gemm_bias_act(a, b, config, bias=bias, activation=activation, residual=residual, out=buffer[1:-1, :n])
    expected = reference(a, b, bias=bias, activation=activation, residual=residual).bfloat16()
    assert torch.equal(buffer[1:-1, :n], expected)
    assert int(buffer.isnan().sum()) == buffer.numel() - m * n


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_activation(config, activation, dtype):
    """Within one unit in the last place of the result, beside what cancels in fp32 sums of K products."""
    _runs(config, activation, (520, 1040, 1024), str(dtype).removeprefix("torch."))
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 1024, device="cuda").to(dtype) / 16 for rows in (520, 1040))
    bias = torch.randn(1040, device="cuda").to(dtype)
    found = gemm_bias_act(a, b, tuning(config), bias=bias, activation=activation)
    expected = reference(a, b, bias=bias, activation=activation)
    unit = torch.finfo(dtype).eps * expected.abs() + 2e-5
    assert float(((found.double() - expected).abs() / unit).max()) <= 1.0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_residuals_of_any_stride_and_in_place(activation):
    config = CONFIGS[5]
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 512, device="cuda").bfloat16() / 16 for rows in (300, 528))
    columns = 264 if activation == "swiglu" else 528
    whole = torch.randn(300, columns + 8, device="cuda").bfloat16()
    for residual in (whole[:, :columns], whole[:, 8:], whole[:, 1 : 1 + columns], whole[:, :columns].contiguous()):
        expected = reference(a, b, activation=activation, residual=residual)
        assert relative_error(gemm_bias_act(a, b, config, activation=activation, residual=residual), expected) < 3e-3
        in_place = residual.clone()
        gemm_bias_act(a, b, config, activation=activation, residual=in_place, out=in_place)
        assert relative_error(in_place, expected) < 3e-3


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_bias_of_any_alignment(config):
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 512, device="cuda").bfloat16() / 16 for rows in (300, 528))
    whole = torch.randn(536, device="cuda")
    for bias in (whole[:528], whole[1:529], whole[:528].bfloat16(), whole.bfloat16()[3:531]):
        found = gemm_bias_act(a, b, config, bias=bias, activation="gelu")
        assert relative_error(found, reference(a, b, bias=bias, activation="gelu")) < 3e-3


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts(layout):
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 1024, device="cuda").bfloat16() for rows in (304, 528))
    plain = [gemm_bias_act(a, b, config, activation="silu") for config in CONFIGS]
    left = a if layout[0] == "n" else a.t().contiguous().t()
    right = b if layout[1] == "t" else b.t().contiguous().t()
    for config, expected in zip(CONFIGS, plain, strict=True):
        assert torch.equal(gemm_bias_act(left, right, config, activation="silu"), expected)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_without_an_epilogue_it_is_the_gemm(config):
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 1024, device="cuda").bfloat16() for rows in (520, 1040))
    assert torch.equal(gemm_bias_act(a, b, config), gemm(a, b, config))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_nan_stays_where_it_belongs(activation):
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 256, device="cuda").bfloat16() for rows in (200, 320))
    bias = torch.zeros(320, device="cuda")
    a[131, 255] = bias[7] = float("nan")
    expected = reference(a, b, bias=bias, activation=activation).isnan()
    assert torch.equal(gemm_bias_act(a, b, CONFIGS[0], bias=bias, activation=activation).isnan(), expected)


def test_large_values_saturate_as_torch_does():
    """Products of thousands: GELU and SiLU are the identity or zero there, never NaN."""
    a, b = _whole(128, 512) * 16, _whole(256, 512) * 16
    for activation in ("gelu", "gelu_tanh", "silu"):
        found = gemm_bias_act(a, b, CONFIGS[0], activation=activation)
        expected = activated((a.double() @ b.double().T), activation)
        assert not found.isnan().any()
        assert relative_error(found, expected) < 3e-3


def test_captured_in_a_graph_and_repeatable():
    a, b = (torch.randn(rows, 4096, device="cuda").bfloat16() for rows in (520, 1040))
    out, bias = torch.empty(520, 1040, device="cuda", dtype=torch.bfloat16), torch.randn(1040, device="cuda")
    for config in CONFIGS:
        run = prepare(a, b, config, out, bias=bias, activation="gelu")
        run()
        first = out.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for _ in range(3):
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, first)
