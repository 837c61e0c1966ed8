"""Kernels under ``@triton.autotune`` and ``planned`` on a GPU: right results, the best of the list kept, later none of
it."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
triton = pytest.importorskip("triton", reason="needs triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "compiler"))

import kernels_under_test as kernels  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels import PlanWarning, planned  # noqa: E402
from warpplan.kernels.compiler.launching import planned as planned_module  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children import job_pool, trial_child  # noqa: E402

pytestmark = pytest.mark.gpu
TILES = [(128, 128, 64, 4, 3), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4), (256, 256, 64, 8, 4), (64, 64, 64, 4, 3)]


@triton.jit
def adding(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * SPLIT):
        acc = tl.dot(a.load([tl.program_id(0) * BM, k]), b.load([tl.program_id(1) * BN, k]).T, acc)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.atomic_add(c_ptr + rows[:, None] * N + columns[None, :], acc)


def boxes(arguments: dict[str, Any]) -> None:
    arguments["a"].block_shape = [arguments["BM"], arguments["BK"]]
    arguments["b"].block_shape = [arguments["BN"], arguments["BK"]]


def configs(**more: int) -> list[Any]:
    return [
        triton.Config({"BM": m, "BN": n, "BK": k, **more}, num_warps=w, num_stages=s, pre_hook=boxes)
        for m, n, k, w, s in TILES
    ]


class Product:
    """C = A·Bᵀ under a fresh tuner, and what it is in float64."""

    def __init__(self, kernel: Any, listed: list[Any], dtype: Any = torch.bfloat16, **options: Any) -> None:
        self.m, self.n, self.k = 2048, 1536, 2048
        a, b = (torch.randn(rows, self.k, device="cuda", dtype=torch.bfloat16) for rows in (self.m, self.n))
        self.c = torch.zeros(self.m, self.n, device="cuda", dtype=dtype)
        self.right = a.double() @ b.double().T
        self.given = [TensorDescriptor.from_tensor(each, [128, 64]) for each in (a, b)]
        self.tuner = triton.autotune(listed, key=["M", "N", "K"], **options)(JITFunction(kernel.fn))

    def __call__(self) -> None:
        def grid(meta: dict[str, int]) -> tuple[int, ...]:
            return triton.cdiv(self.m, meta["BM"]), triton.cdiv(self.n, meta["BN"]), meta.get("SPLIT", 1)

        self.tuner[grid](*self.given, self.c, self.m, self.n, self.k)

    def error(self) -> float:
        return float((self.c.double() - self.right).norm() / self.right.norm())


def decided(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.list.json")
    return dict(json.loads(file.read_text()))


def test_the_best_of_the_list_is_kept_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration of the list takes more shared memory than there is: dropped, as Triton drops it."""
    product = Product(kernels.gemm, configs())
    with planned(tmp_path, background=False), warnings.catch_warnings():
        warnings.simplefilter("error", PlanWarning)
        for _ in range(2):
            product.c.zero_()
            product()
            assert product.error() < 5e-3
    found = decided(tmp_path)
    times = {json.dumps([t["config"], t["scheme"]]): t["us"] for t in found["tried"] if t["us"] is not None}
    chosen = times[json.dumps([found["config"], found["scheme"]])]
    assert chosen <= 1.01 * min(times.values())
    assert sum("null" in name for name in times) >= 3, "configurations as they are, among them"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a child was started")

    for module in (job_pool, trial_child):
        monkeypatch.setattr(module, "Child", refuse)
    monkeypatch.setattr(planned_module, "_tables", {})
    later = Product(kernels.gemm, configs())
    with planned(tmp_path, background=False):
        later()
        later()
    assert later.error() < 5e-3


def test_a_kernel_that_adds_is_tried_on_what_its_tuner_resets(tmp_path: Path) -> None:
    product = Product(adding, configs(SPLIT=2), dtype=torch.float32, reset_to_zero=["c_ptr"])
    with planned(tmp_path, background=False):
        product()
        assert product.error() < 5e-3, "nothing of the job's own was added to by a trial"
        product.c.zero_()
        product()
    assert product.error() < 5e-3
    assert decided(tmp_path)["config"] is not None


def test_predictions_alone_run_right(tmp_path: Path) -> None:
    product = Product(kernels.gemm, configs())
    with planned(tmp_path, measure=False):
        product()
        product.c.zero_()
        product()
    assert product.error() < 5e-3
    assert decided(tmp_path)["tried"] == []


def test_beside_the_job_triton_tunes_and_its_launches_settle_what_is_faster(tmp_path: Path) -> None:
    product = Product(kernels.gemm, configs())
    until = time.monotonic() + 90
    with planned(tmp_path):
        product()
        assert product.error() < 5e-3
        assert product.tuner.cache, "Triton has tuned"
        while not (found := [json.loads(f.read_text()) for f in tmp_path.glob("*.list.json")]) or any(
            each["provisional"] for each in found
        ):
            assert time.monotonic() < until, found
            for _ in range(20):
                product()
            torch.cuda.synchronize()
        product.c.zero_()
        product()
    assert product.error() < 5e-3
    assert {t["config"] for t in found[0]["tried"] if t["us"] is not None}
