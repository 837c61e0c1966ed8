"""Launches that begin before the one ahead of them has ended, each of which reads what that one wrote.

Every product is with a permutation matrix, so that all results are exact, and one that is read too early is another.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.launch import prepare  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

LINKS = 60
CONFIGS = (
    GemmConfig("single", 64, 64, 64, 4, 4, ctas_per_sm=2, launch_dependents=True),
    GemmConfig("single", 64, 16, 128, 4, 5, swap=True, ctas_per_sm=2, launch_dependents=True),
    GemmConfig("single", 64, 64, 64, 4, 4, split_k=4, ctas_per_sm=2, launch_dependents=True),
    GemmConfig("single", 64, 192, 64, 4, 6, epilogue_split=3, launch_dependents=True),
    GemmConfig("single", 64, 64, 64, 4, 4, stream_k=True, ctas_per_sm=2, launch_dependents=True),
    GemmConfig("cooperative", 128, 128, 64, 4, 4, launch_dependents=True),
    GemmConfig("cooperative", 128, 128, 64, 4, 4, split_k=3, launch_dependents=True),
    GemmConfig("pingpong", 64, 128, 64, 4, 4, launch_dependents=True),
    GemmConfig("pipelined", 64, 64, 64, 4, 4),
)
SIZES = ((64, 512), (300, 512), (4096, 512))


def chain(rows, columns, config, others):
    """(a call that runs the chain, what it reads, its last result, what that should be). Every second product is of a
    kernel that lets the next one begin early; ``others`` kernels between."""
    torch.manual_seed(rows + columns)
    first = torch.randint(-100, 100, (rows, columns), device="cuda").to(torch.bfloat16)
    buffers = [first, *(torch.full_like(first, float("nan")) for _ in range(2))]
    expected = first.clone()
    launches = []
    for link in range(LINKS):
        order = torch.randperm(columns, device="cuda")
        matrix = torch.eye(columns, device="cuda", dtype=torch.bfloat16)[order].contiguous()
        source, target = buffers[0 if link == 0 else 1 + (link + 1) % 2], buffers[1 + link % 2]
        launches.append(prepare(source, matrix, CONFIGS[0] if link % 2 else config, target))
        if others and link % 3 == 0:
            launches.append(lambda target=target: target.add_(0.0))
        expected = expected[:, order]

    def run():
        for launch in launches:
            launch()

    return run, buffers, buffers[1 + (LINKS - 1) % 2], expected


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("others", [False, True])
def test_each_launch_reads_what_the_one_before_wrote(rows, columns, config, others):
    run, buffers, result, expected = chain(rows, columns, config, others)
    for _ in range(20):
        buffers[1].fill_(float("nan"))
        buffers[2].fill_(float("nan"))
        run()
        assert torch.equal(result, expected)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_same_from_a_cuda_graph(rows, columns, config):
    run, buffers, result, expected = chain(rows, columns, config, others=False)
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        buffers[1].fill_(float("nan"))
        buffers[2].fill_(float("nan"))
        graph.replay()
        graph.replay()
        assert torch.equal(result, expected)
