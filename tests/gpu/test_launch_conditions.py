"""Where a launch happens: on a GPU that is not the current one, and while a CUDA graph is being captured."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm import launch as gemm_launch  # noqa: E402
from warpplan.kernels.gemm.launch import gemm  # noqa: E402
from warpplan.kernels.gemm.reference import reference  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig  # noqa: E402
from warpplan.kernels.gemm_bias_act.launch import gemm_bias_act  # noqa: E402
from warpplan.kernels.grouped_gemm.launch import grouped_gemm  # noqa: E402
from warpplan.kernels.linear_layer.autograd import linear  # noqa: E402
from warpplan.kernels.vector_add.launch import vector_add  # noqa: E402
from warpplan.kernels.vector_add.space import VectorAddConfig  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

PLAIN = GemmConfig("cooperative", 128, 128, 64, 4, 4)
SPLIT = GemmConfig("cooperative", 128, 128, 64, 4, 4, split_k=3)
STREAM = GemmConfig("cooperative", 128, 128, 64, 4, 4, stream_k=True)


def whole(*shape, device="cuda"):
    return torch.randint(-4, 5, shape, device=device).bfloat16()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kernel", ["gemm", "split", "gemm_bias_act", "grouped_gemm", "linear", "vector_add"])
def test_a_gpu_that_is_not_the_current_one(kernel):
    assert torch.cuda.current_device() == 0
    a, b = whole(200, 512, device="cuda:1"), whole(136, 512, device="cuda:1")
    ends = torch.tensor([200], dtype=torch.int32, device="cuda:1")
    right = reference(a, b).bfloat16()
    if kernel == "vector_add":
        right = a[0] + a[1]
    found = {
        "gemm": lambda: gemm(a, b, PLAIN),
        "split": lambda: gemm(a, b, SPLIT),
        "gemm_bias_act": lambda: gemm_bias_act(a, b, PLAIN),
        "grouped_gemm": lambda: grouped_gemm(a, b[None], ends, PLAIN),
        "linear": lambda: linear(a, b),
        "vector_add": lambda: vector_add(a[0], a[1], VectorAddConfig(256, 4)),
    }[kernel]()
    assert found.device == a.device
    assert torch.equal(found, right)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("config", [SPLIT, STREAM], ids=lambda c: c.split)
def test_captured_splits_keep_their_buffers_to_themselves(config):
    """Two graphs of a process share no counters: each zeroes its own, and only when it runs."""
    a, b = whole(256, 1024), whole(256, 1024)
    gemm(a, b, config)  # compiles
    kept = dict(gemm_launch._BUFFERS)
    graphs, outs = [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outs.append(gemm(a, b, config))
    assert {key: tuple(map(id, pair)) for key, pair in gemm_launch._BUFFERS.items()} == {
        key: tuple(map(id, pair)) for key, pair in kept.items()
    }
    a.copy_(whole(256, 1024))
    right = reference(a, b).bfloat16()
    for graph, out in reversed(list(zip(graphs, outs, strict=True))):
        for _ in range(2):
            out.zero_()
            graph.replay()
            assert torch.equal(out, right)


@pytest.mark.parametrize("config", [SPLIT, STREAM], ids=lambda c: c.split)
def test_splits_of_two_streams(config):
    a, b = whole(256, 4096), whole(256, 4096)
    right = reference(a, b).bfloat16()
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    outs = []
    for stream in 8 * streams:
        with torch.cuda.stream(stream):
            outs.append(gemm(a, b, config))
    torch.cuda.synchronize()
    assert all(torch.equal(out, right) for out in outs)
