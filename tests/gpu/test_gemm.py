"""Each scheme of the GEMM on a GPU, exactly: small whole numbers make every sum exact, so results match to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.launch import gemm, prepare  # noqa: E402
from warpplan.kernels.gemm.reference import reference, relative_error  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, tuning, violations  # noqa: E402
from warpplan.kernels.operands.matrices import layout_of  # noqa: E402
from warpplan.kernels.triton_compat import has_clusters  # noqa: E402
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
    GemmConfig("single", 128, 256, 64, 8, 3, stream_k=True),
    GemmConfig("single", 64, 32, 128, 4, 4, swap=True, ctas_per_sm=2, stream_k=True),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring", stream_k=True),
    GemmConfig("cooperative", 192, 128, 64, 4, 4, stream_k=True),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, stream_k=True),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True),
    GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3),
    GemmConfig("cooperative", 256, 192, 64, 4, 3, epilogue_split=3),
    GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3, split_k=2),
    GemmConfig("single", 64, 192, 64, 4, 6, epilogue_split=3, swap=True),
    GemmConfig("single", 64, 96, 128, 4, 4, epilogue_split=3, swap=True, split_k=2),
    GemmConfig("pingpong", 128, 96, 64, 4, 6, epilogue_split=3),
    GemmConfig("single", 128, 160, 64, 8, 4, epilogue_split=5, split_k=2),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5, swap=True),
    GemmConfig("pingpong", 64, 192, 64, 4, 4, epilogue_split=3, stream_k=True),
    GemmConfig("pipelined", 128, 256, 64, 8, 3),
)
SHAPES = ((1, 1, 8), (7, 133, 72), (129, 264, 1096), (1000, 1001, 2048), (3072, 1536, 328))


CLUSTERS = (
    GemmConfig("single", 256, 256, 64, 8, 4, epilogue_split=2, cluster=2),
    GemmConfig("single", 256, 128, 64, 8, 4, swap=True, cluster=2),
    GemmConfig("cooperative", 256, 256, 64, 4, 4, epilogue_split=2, cluster=2),
    GemmConfig("cooperative", 384, 128, 64, 4, 4, epilogue_split=2, cluster=2),
    GemmConfig("pingpong", 128, 256, 64, 4, 4, epilogue_split=4, cluster=2),
    GemmConfig("pingpong", 256, 128, 64, 4, 4, epilogue_split=2, cluster=2),
)


def _whole(rows, columns, dtype):
    return torch.randint(-4, 5, (rows, columns), device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", [*CONFIGS, *(CLUSTERS if has_clusters else ())], ids=repr)
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


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.split != "none"], ids=repr)
def test_split_k_rounds_alike_every_time(config):
    rows = 2600 if config.split_tail else 520
    a, b = (torch.randn(rows, 4096, device="cuda").bfloat16() for _ in range(2))
    first = gemm(a, b, tuning(config))
    assert relative_error(first, reference(a, b)) < 3e-3
    for _ in range(10):
        assert torch.equal(gemm(a, b, tuning(config)), first)


STREAMS = [c for c in CONFIGS if c.stream_k]
STREAM_SHAPES = ((200, 4104, 4096), (520, 520, 16384), (2601, 2600, 1032), (4999, 5003, 520))
"""Few tiles, few tiles of deep K, odd sizes, and whole waves before the stream."""


def _poisoned(m, n):
    return torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", STREAM_SHAPES, ids=str)
@pytest.mark.parametrize("config", STREAMS, ids=repr)
def test_a_stream_is_exact_over_many_launches(config, shape):
    """Each launch finds the flags as the one before left them, and the partial sums of other operands."""
    m, n, k = shape
    for _ in range(20):
        a, b, out = _whole(m, k, torch.bfloat16), _whole(n, k, torch.bfloat16), _poisoned(m, n)
        gemm(a, b, config, out=out)
        assert torch.equal(out, reference(a, b).bfloat16())


@pytest.mark.parametrize("config", STREAMS, ids=repr)
def test_streams_of_two_cuda_streams_run_beside_each_other(config):
    """Neither launch has all SMs, so CTAs of one start while those of the other wait for their partial sums."""
    shapes = ((200, 4104, 4096), (2601, 2600, 1032))
    beside = [torch.cuda.Stream() for _ in shapes]
    operands = [(_whole(m, k, torch.bfloat16), _whole(n, k, torch.bfloat16)) for m, n, k in shapes]
    expected = [reference(a, b).bfloat16() for a, b in operands]
    outs = [[_poisoned(m, n) for _ in range(20)] for m, n, _ in shapes]
    runs = []
    for stream, (a, b), mine in zip(beside, operands, outs, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            runs.append([prepare(a, b, config, out) for out in mine])
    for launches in zip(*runs, strict=True):
        for stream, run in zip(beside, launches, strict=True):
            with torch.cuda.stream(stream):
                run()
    torch.cuda.synchronize()
    for found, right in zip(outs, expected, strict=True):
        assert all(torch.equal(out, right) for out in found)


@pytest.mark.parametrize("config", STREAMS, ids=repr)
def test_a_stream_is_replayed_from_a_cuda_graph(config):
    m, n, k = 520, 1032, 8192
    a, b, out = _whole(m, k, torch.bfloat16), _whole(n, k, torch.bfloat16), _poisoned(m, n)
    gemm(a, b, config, out=out)  # compiles
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        run = prepare(a, b, config, out)
        for _ in range(3):
            run()
    for _ in range(5):
        a.copy_(_whole(m, k, torch.bfloat16))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, reference(a, b).bfloat16())
