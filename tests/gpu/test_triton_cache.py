"""On a GPU: after an export the unmodified consumer runs what was tuned for it at once, and runs it right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from warpplan.planner.values.device import DEVICES  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.feeds.consumer_kernel import load  # noqa: E402
from warpplan.service.feeds.paper_launch import tuning_of  # noqa: E402

pytestmark = pytest.mark.gpu

CONSUMER = Path(__file__).parents[1] / "service" / "feeds" / "consumer_kernel.py"
SHAPES = [(4096, 4096, 4096), (1024, 8192, 2048), (1000, 776, 1208)]


class BenchmarkedError(AssertionError):
    pass


@pytest.fixture
def gpu() -> str:
    name = torch.cuda.get_device_name()
    if name not in DEVICES or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"no predictions for {name}")
    # An H100 runs the same entry; the recorded profile is an H200's.
    return "NVIDIA H200"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The consumer's module as a job imports it, with its benchmark poisoned."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("job_kernels", CONSUMER)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def benchmark(*args: object, **kwargs: object) -> None:
        raise BenchmarkedError("the consumer benchmarked")

    module.matmul.do_bench = benchmark  # type: ignore[attr-defined]
    return module


def launch(job: Any, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)

    job.matmul[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    return c, a.float() @ b.float()


def test_without_an_export_it_benchmarks(job: ModuleType) -> None:
    with pytest.raises(BenchmarkedError):
        launch(job, SHAPES[0])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_after_an_export_it_runs_what_was_tuned_right(
    job: ModuleType, gpu: str, tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    spec, store, sizes = f"{CONSUMER}:matmul", str(tmp_path / "tuned.sqlite"), "M={} N={} K={}".format(*shape)
    signature = (
        "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, stride_am=K, stride_ak=1, stride_bk=N, stride_bn=1, stride_cm=N, "
        "stride_cn=1"
    )
    grid = "cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N)"
    tune = ("tune", spec, "--shapes", sizes, "--signature", signature, "--grid", grid, "--store", store)
    assert main([*tune, "--device", gpu]) == 0
    kept = ("--tuned", "--consumer", spec, "--store", store, "--out", str(tmp_path / "cache"), "--device", gpu)
    assert main(["export", *kept]) == 0
    c, expected = launch(job, shape)
    listed = [tuning_of(config) for config in load(spec).tuner.configs]
    best = tuning_of(job.matmul.best_config)
    assert (dict(best.kwargs), best.num_warps, best.num_stages) in [
        (dict(config.kwargs), config.num_warps, config.num_stages) for config in listed
    ]
    error = (c.float() - expected).norm() / expected.norm()
    assert error < 5e-3, f"relative error {error:.1e}"
