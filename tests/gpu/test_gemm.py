"""Each scheme of the GEMM on a GPU, exactly: small whole numbers make every sum exact, so results match to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.launch import gemm  # noqa: E402
from warpplan.kernels.gemm.reference import reference, relative_error  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, tuning, violations  # noqa: E402
from warpplan.kernels.operands.matrices import layout_of  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

CONFIGS = (
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 16, 128, 4, 4, swap=True, split_k=4, ctas_per_sm=2),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring"),
    GemmConfig("cooperative", 128, 128, 64, 4, 4, split_k=3),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("cooperative", 192, 128, 64, 4, 4, epilogue_split=2, split_k=3, split_tail=True),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, split_k=3, split_tail=True),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True),
    GemmConfig("pipelined", 128, 256, 64, 8, 3),
)
SHAPES = ((1, 1, 8), (7, 133, 72), (129, 264, 1096), (1000, 1001, 2048), (3072, 1536, 328))


def _whole(rows, columns, dtype):
    return torch.randint(-4, 5, (rows, columns), device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_exact(config, shape, dtype):
    if violations(config, str(dtype).removeprefix("torch."), H200, shape):
        pytest.skip("this split leaves a range of K empty")
    m, n, k = shape
    a, b = _whole(m, k, dtype), _whole(n, k, dtype)
    buffer = torch.full((m + 2, n + 5), float("nan"), device="cuda", dtype=dtype)
    gemm(a, b, config, out=buffer[1:-1, :n])
    assert torch.equal(buffer[1:-1, :n], reference(a, b).to(dtype))
    assert int(buffer.isnan().sum()) == buffer.numel() - m * n


LAYOUT_SHAPES = ((1, 1, 8), (7, 133, 72), (129, 264, 1096), (1000, 1001, 2048))
"""Sizes that need not be whole 16 bytes are none, save K where an operand lies with K contiguous: the strides are."""


def _lying(rows, k, by_k, dtype):
    """Whole numbers [rows, k], K contiguous or stored [k, rows], in a larger matrix of NaN with 16-byte rows."""
    lines, columns = (rows, k) if by_k else (k, rows)
    buffer = torch.full((lines + 2, columns // 8 * 8 + 24), float("nan"), device="cuda", dtype=dtype)
    stored = buffer[1:-1, 8 : 8 + columns]
    stored.copy_(_whole(lines, columns, dtype))
    return stored if by_k else stored.t()


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("shape", [*LAYOUT_SHAPES, (136, 264, 1001), (8, 200, 3)], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_exact_in_every_layout(config, shape, layout):
    """Neither the margins of the operands, which are NaN, nor those of the result are touched."""
    m, n, k = shape
    if violations(config, "bfloat16", H200, shape):
        pytest.skip("this split leaves a range of K empty")
    if k % 8 and layout != "tn":
        pytest.skip("K is contiguous in an operand and no multiple of 16 bytes")
    a = _lying(m, k, layout[0] == "n", torch.bfloat16)
    b = _lying(n, k, layout[1] == "t", torch.bfloat16)
    assert layout_of(a, b) == layout or 1 in shape
    buffer = torch.full((m + 2, n + 5), float("nan"), device="cuda", dtype=torch.bfloat16)
    gemm(a, b, config, out=buffer[1:-1, :n])
    assert torch.equal(buffer[1:-1, :n], reference(a, b).bfloat16())
    assert int(buffer.isnan().sum()) == buffer.numel() - m * n


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_nan_reaches_its_row_and_its_column_alone(config, layout):
    if violations(config, "float16", H200, (200, 328, 1096)):
        pytest.skip("this split leaves a range of K empty")
    a, b = _lying(200, 1096, layout[0] == "n", torch.float16), _lying(328, 1096, layout[1] == "t", torch.float16)
    a[131, 1095] = float("nan")
    b[7, 500] = float("nan")
    expected = reference(a, b).half()
    assert torch.equal(gemm(a, b, config).isnan(), expected.isnan())
    assert int(expected.isnan().sum()) == 328 + 200 - 1


def test_layouts_round_alike():
    """The order of the sums does not depend on how the operands lie."""
    a, b = (torch.randn(520, 1024, device="cuda").bfloat16() for _ in range(2))
    for config in CONFIGS:
        plain = gemm(a, b, config)
        for left, right in ((a, b.t().contiguous().t()), (a.t().contiguous().t(), b.t().contiguous().t())):
            assert torch.equal(gemm(left, right, config), plain)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.split_k > 1], ids=repr)
def test_split_k_rounds_alike_every_time(config):
    rows = 2600 if config.split_tail else 520
    a, b = (torch.randn(rows, 4096, device="cuda").bfloat16() for _ in range(2))
    first = gemm(a, b, tuning(config))
    assert relative_error(first, reference(a, b)) < 3e-3
    for _ in range(10):
        assert torch.equal(gemm(a, b, tuning(config)), first)
