"""fp8 products on a GPU, with every way of scaling, against float64 of the same fp8 numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.launch import gemm  # noqa: E402
from warpplan.kernels.gemm.reference import relative_error  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, violations  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

CONFIGS = (
    GemmConfig("cooperative", 128, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("single", 128, 256, 128, 8, 4, epilogue_split=2),
    GemmConfig("single", 64, 128, 128, 4, 4, split_k=3),
    GemmConfig("single", 64, 128, 128, 4, 4, stream_k=True),
    GemmConfig("pingpong", 64, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("pingpong", 128, 128, 128, 4, 4, swap=True),
    GemmConfig("single", 64, 16, 256, 4, 4, swap=True, ctas_per_sm=2),
    GemmConfig("cooperative", 256, 192, 128, 4, 3, epilogue_split=3),
    GemmConfig("single", 64, 192, 128, 4, 4, epilogue_split=3, swap=True),
    GemmConfig("pingpong", 64, 96, 128, 4, 6, epilogue_split=3),
    GemmConfig("cooperative", 128, 160, 128, 4, 5, epilogue_split=5, swap=True),
)
PROMOTED = (
    GemmConfig("cooperative", 128, 128, 128, 4, 6, promoted=True),
    GemmConfig("single", 128, 128, 128, 8, 5, promoted=True),
    GemmConfig("pingpong", 64, 128, 128, 4, 6, promoted=True),
    GemmConfig("single", 64, 64, 128, 4, 4, split_k=3, promoted=True),
    GemmConfig("single", 64, 64, 128, 4, 4, stream_k=True, promoted=True),
)
SHAPES = ((1, 1, 16), (7, 133, 144), (129, 264, 1104), (1000, 1001, 2048))
FAST = 2**-8 + 2**-11
"""Between the bfloat16 result, of which a single element is rounded by up to 2⁻⁸, and the product: tensor cores keep
some 14 bits of a sum."""


def _operands(m, n, k):
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    return a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)


def _positive(*shape):
    return torch.rand(shape, device="cuda") + 0.5


def _scaled(matrix, scales, rows):
    """``matrix`` in float64 times its scales, one for ``rows`` rows and 128 columns."""
    spread = scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return matrix.double() * spread[: matrix.shape[0], : matrix.shape[1]]


@pytest.mark.parametrize("scheme", ["tensor", "row"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_scales_of_tensors_and_rows(config, shape, scheme):
    if violations(config, "float8_e4m3fn", H200, shape):
        pytest.skip("this split leaves a range of K empty")
    m, n, k = shape
    a, b = _operands(m, n, k)
    scale_a, scale_b = (_positive(1), _positive(1)) if scheme == "tensor" else (_positive(m, 1), _positive(1, n))
    buffer = torch.full((m + 2, n + 5), float("nan"), device="cuda", dtype=torch.bfloat16)
    out = buffer[1:-1, :n]
    gemm(a, b, config, out=out, scale_a=scale_a, scale_b=scale_b)
    expected = (a.double() @ b.double().T) * scale_a.double() * scale_b.double()
    assert relative_error(out, expected) < FAST
    assert int(buffer.isnan().sum()) == buffer.numel() - m * n
    again = gemm(a, b, config, scale_a=scale_a, scale_b=scale_b)
    assert torch.equal(out, again)


@pytest.mark.parametrize("major", ["rows", "blocks"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", PROMOTED, ids=repr)
def test_scales_of_blocks(config, shape, major):
    if violations(config, "float8_e4m3fn", H200, shape):
        pytest.skip("this split leaves a range of K empty")
    m, n, k = shape
    a, b = _operands(m, n, k)
    blocks = -(-k // 128)
    scale_a = _positive(m, blocks) if major == "rows" else _positive(blocks, m).t()
    scale_b = _positive(-(-n // 128), blocks)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    gemm(a, b, config, out=out, scale_a=scale_a, scale_b=scale_b)
    assert relative_error(out, _scaled(a, scale_a, 1) @ _scaled(b, scale_b, 128).T) < FAST
    assert torch.equal(out, gemm(a, b, config, scale_a=scale_a, scale_b=scale_b))


def test_nan_and_infinity_propagate():
    a, b = _operands(256, 256, 512)
    a[3, 5] = float("nan")
    scale_a, scale_b = _positive(256, 1), _positive(1, 256)
    scale_b[0, 7] = float("inf")
    out = gemm(a, b, CONFIGS[0], scale_a=scale_a, scale_b=scale_b)
    assert bool(out[3].isnan().all())
    assert bool(out[torch.arange(256) != 3][:, 7].isinf().all())
    assert bool(out[4:, 8:].isfinite().all())


def test_scales_that_do_not_fit_are_refused_before_any_launch():
    a, b = _operands(128, 256, 512)
    one = _positive(1)
    with pytest.raises(InvalidShape, match="need scale_a"):
        gemm(a, b, CONFIGS[0])
    with pytest.raises(InvalidShape, match=r"expected torch\.float32"):
        gemm(a, b, CONFIGS[0], scale_a=one.double(), scale_b=one)
    with pytest.raises(InvalidShape, match=r"scale_a is \(127, 1\)"):
        gemm(a, b, CONFIGS[0], scale_a=_positive(127, 1), scale_b=_positive(1, 256))
    with pytest.raises(InvalidShape, match="K contiguous"):
        gemm(a, b.t().contiguous().t(), CONFIGS[0], scale_a=one, scale_b=one)
    with pytest.raises(InvalidConfig, match="scales=block"):
        gemm(a, b, CONFIGS[0], scale_a=_positive(128, 4), scale_b=_positive(2, 4))
    with pytest.raises(InvalidShape, match="have no scales"):
        gemm(a.bfloat16(), b.bfloat16(), GemmConfig("single", 64, 128, 64, 4, 4), scale_a=one, scale_b=one)
