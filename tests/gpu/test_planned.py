"""``planned`` on a GPU: right results against float64, and a job that runs on whatever its trials do."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
triton = pytest.importorskip("triton", reason="needs triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "compiler"))

import copied_kernels as copied  # noqa: E402
import kernels_under_test as kernels  # noqa: E402
import lowered_kernels as lowered  # noqa: E402
import pointer_kernels as pointers  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels import PlanWarning, planned  # noqa: E402
from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel  # noqa: E402
from warpplan.kernels.compiler.launching import decide  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.triton_compat import release  # noqa: E402
from warpplan.kernels.warn_once import forget_warnings  # noqa: E402

pytestmark = pytest.mark.gpu
Case = tuple[Callable[[], Any], torch.Tensor, torch.Tensor]
"""A launch, its output, the float64 reference."""


@triton.jit
def persistent(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr):
    across = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * across, SMS):
        m, n = tile // across * BM, tile % across * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
        rows, columns = m + tl.arange(0, BM), n + tl.arange(0, BN)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=inside)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _fresh(kernel: Any) -> JITFunction:
    return JITFunction(kernel.fn)


def gemm_case(kernel: Any, m: int = 1024, n: int = 1536, k: int = 2048) -> Case:
    a, b, c = _random(m, k), _random(n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    described = [TensorDescriptor.from_tensor(matrix, [128, 64]) for matrix in (a, b)]
    options: dict[str, Any] = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8}
    grid: tuple[int, ...] = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    if "SMS" in kernel.arg_names:
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        grid, options = (sms,), {**options, "SMS": sms}
    return lambda: kernel[grid](*described, c, m, n, k, **options), c, a.double() @ b.double().T


def attention_case(kernel: Any, heads: int = 16, length: int = 2048, d: int = 64) -> Case:
    q, k, v = (_random(heads * length, d) for _ in range(3))
    o = torch.empty_like(q)
    described = [TensorDescriptor.from_tensor(matrix, [128, d]) for matrix in (q, k, v)]
    scale = math.log2(math.e) / math.sqrt(d)

    def run() -> Any:
        return kernel[(length // 128, heads)](*described, o, length, scale, BM=128, BN=128, D=d, num_warps=8)

    q64, k64, v64 = (matrix.double().view(heads, length, d) for matrix in (q, k, v))
    weights = torch.softmax(q64 @ k64.transpose(1, 2) / math.sqrt(d), dim=-1)
    return run, o, (weights @ v64).reshape(-1, d)


def four_tiles_case(kernel: Any, count: int = 3, k: int = 2048) -> Case:
    """Four programs, of which those from ``count`` on leave early or go another way."""
    a, b = _random(128, k), _random(512, k)
    c = torch.empty(128, 512, device="cuda", dtype=torch.float32)
    described = [TensorDescriptor.from_tensor(matrix, [128, 64]) for matrix in (a, b)]
    expected = a.double() @ b.double().T
    if kernel.fn is lowered.either.fn:
        other = [matrix.double().view(-1, k // 128, 2, 64)[:, :, 0].flatten(1) for matrix in (a, b)]
        expected[:, count * 128 :] = 2 * (other[0] @ other[1][count * 128 :].T)
        done = c
    else:
        done, expected = c[:, : count * 128], expected[:, : count * 128]
    return lambda: kernel[(4,)](*described, c, count, k, BM=128, BN=128, BK=64, num_warps=8), done, expected


def some_blocks_case(kernel: Any, wanted: int = 0b1101_0110_1101, count: int = 12) -> Case:
    """Loads and products that only some iterations have."""
    a, b = (_random(rows, (count + 1) * 64) for rows in (128, 64))
    c = torch.empty(128, 64, device="cuda", dtype=torch.float32)
    described = [TensorDescriptor.from_tensor(matrix, [len(matrix), 64]) for matrix in (a, b)]
    taken = [i for i in range(count) if wanted >> i & 1]
    taken += [i + 1 for i in taken if i % 2 == 0]
    blocks = [matrix.double().view(len(matrix), -1, 64)[:, taken].flatten(1) for matrix in (a, b)]
    return (
        lambda: kernel[(1,)](*described, c, wanted, count, BM=128, BN=64, BK=64, num_warps=8),
        c,
        blocks[0] @ blocks[1].T,
    )


def pointer_case(kernel: Any, m: int = 1000, n: int = 1376, k: int = 2064) -> Case:
    """A product that loads through pointers; rows are padded with NaN, which nobody may read."""
    b_shape = (n, k) if "stride_bn" in kernel.arg_names and "stride_bk" not in kernel.arg_names else (k, n)
    padded = [torch.full((rows, columns + 48), float("nan"), device="cuda", dtype=torch.bfloat16)
              for rows, columns in ((m, k), b_shape)]  # fmt: skip
    a, b = (tensor[:, :-48] for tensor in padded)
    for tensor in (a, b):
        tensor.copy_(_random(*tensor.shape))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    known = {
        "a_ptr": a, "b_ptr": b, "c_ptr": c, "M": m, "N": n, "K": k, "stride_am": a.stride(0), "stride_ak": 1,
        "stride_bk": b.stride(0), "stride_bn": 1 if "stride_bk" in kernel.arg_names else b.stride(0),
        "stride_cm": n, "stride_cn": 1, "BM": 128, "BN": 128, "BK": 64, "GROUP_M": 8,
    }  # fmt: skip
    arguments = {name: known[name] for name in kernel.arg_names}
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    if "GROUP_M" in arguments:
        grid = (grid[0] * grid[1],)
    expected = a.double() @ (b.double() if b_shape[0] == k else b.double().T)
    return lambda: kernel[grid](**arguments, num_warps=8), c, expected


def two_stage_case(kernel: Any, batch: int = 2, heads: int = 8, length: int = 2048, d: int = 64) -> Case:
    q, k, v = (_random(batch, heads, length, d) for _ in range(3))
    o, scale = torch.empty_like(q), math.log2(math.e) / math.sqrt(d)

    def run() -> Any:
        return kernel[(length // 128, batch * heads)](
            q, k, v, o, scale, *q.stride()[:3], heads, length, BM=128, BN=64, D=d, num_warps=8
        )

    scores = (q.double() @ k.double().transpose(2, 3)) / math.sqrt(d)
    later = torch.ones(length, length, device="cuda", dtype=torch.bool).triu(1)
    return run, o, torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ v.double()


def routed_case(kernel: Any, m: int = 1000, n: int = 1376, k: int = 2064) -> Case:
    """Rows by a list, some of them past the end; columns are padded with NaN, which nobody may read."""
    padded = [torch.full((rows, k + 48), float("nan"), device="cuda", dtype=torch.bfloat16) for rows in (m, n)]
    a, b = (tensor[:, :-48] for tensor in padded)
    for tensor in (a, b):
        tensor.copy_(_random(*tensor.shape))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    rows = torch.randint(0, m + 100, (triton.cdiv(m, 128) * 128,), device="cuda", dtype=torch.int32)
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    taken = torch.where((rows < m)[:m, None], a[(rows[:m] // 2).clamp(max=m - 1).long()].double(), 0.0)

    def run() -> Any:
        strides = a.stride(0), b.stride(0), c.stride(0)
        return kernel[grid](a, b, c, rows, m, n, k, *strides, BM=128, BN=128, BK=64, num_warps=8)

    return run, c, taken @ b.double().T


def paged_case(kernel: Any, length: int = 1000, d: int = 64) -> Case:
    """Attention over keys and values in the order of a table."""
    q, k, v = _random(128, d), _random(2048, d), _random(2048, d)
    o, slots = torch.empty_like(q), torch.randperm(2048, device="cuda", dtype=torch.int32)
    scores = q.double() @ k[slots[:length].long()].double().T * 0.125 * math.log(2)
    run = lambda: kernel[(1,)](q, k, v, o, slots, length, 0.125, d, BM=128, BN=64, D=d, num_warps=8)  # noqa: E731
    return run, o, torch.softmax(scores, dim=-1) @ v[slots[:length].long()].double()


COPIED: dict[str, Callable[[], Case]] = {
    "rows by a list": lambda: routed_case(_fresh(copied.routed)),
    "keys by a table": lambda: paged_case(_fresh(copied.attended)),
}
CASES: dict[str, Callable[[], Case]] = {
    "gemm": lambda: gemm_case(_fresh(kernels.gemm)),
    "gemm ragged": lambda: gemm_case(_fresh(kernels.gemm), 1000, 1368, 2056),
    "persistent": lambda: gemm_case(_fresh(persistent), 4096, 4096, 1024),
    "attention": lambda: attention_case(_fresh(kernels.attention)),
    "early return": lambda: four_tiles_case(_fresh(lowered.early)),
    "two ways": lambda: four_tiles_case(_fresh(lowered.either)),
    "some blocks": lambda: some_blocks_case(_fresh(lowered.some_blocks)),
    "pointers, rows that wrap": lambda: pointer_case(_fresh(pointers.tutorial_matmul)),
    "pointers, masked": lambda: pointer_case(_fresh(pointers.masked_matmul)),
}
if release(triton.__version__) < (3, 9):  # later releases have no block pointers
    CASES["block pointers"] = lambda: pointer_case(_fresh(pointers.block_pointer_matmul))
    CASES["block pointers, two stages"] = lambda: two_stage_case(_fresh(pointers.two_stage_attention))


def run(case: Case) -> Any:
    """One launch into poisoned memory, checked; what Triton answers."""
    call, out, reference = case
    out.fill_(float("nan"))
    kernel = call()
    error = float((out.double() - reference).norm() / reference.norm())
    assert error < 5e-3, f"relative error {error:.1e}"
    return kernel


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget_warnings()
    monkeypatch.setattr(sys.modules[planned.__module__], "_tables", {})  # no decision outlives its test
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "scheme",
    [
        HopperStrategy(1, (4,), 4),
        HopperStrategy(2, (3,)),
        HopperStrategy(1, (3,), 8),
        HopperStrategy(2, (3,), persistent=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_right(name: str, scheme: HopperStrategy) -> None:
    """Every scheme that compiles runs as it is; one that does not leaves the kernel, which is right as well."""
    case = CASES[name]()
    with warnings.catch_warnings(record=True) as caught, planned(scheme, measure=False, background=False):
        warnings.simplefilter("always")
        run(case)
        for _ in range(3):
            warps = run(case).metadata.num_warps
    said = [str(w.message) for w in caught if issubclass(w.category, PlanWarning)]
    if said:
        pytest.skip(said[0])
    assert warps == scheme.consumers * scheme.warps + 4


@pytest.mark.parametrize(
    "scheme",
    [
        HopperStrategy(1, (4,), 4, copies=1),
        HopperStrategy(2, (3,), copies=1),
        HopperStrategy(1, (3,), 8, copies=1),
        HopperStrategy(2, (3,), persistent=1, copies=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", COPIED)
def test_a_producer_that_copies_is_right(name: str, scheme: HopperStrategy) -> None:
    case = COPIED[name]()
    with planned(scheme, measure=False, background=False), warnings.catch_warnings():
        warnings.simplefilter("error", PlanWarning)
        run(case)
        for _ in range(3):
            warps = run(case).metadata.num_warps
    assert warps == scheme.consumers * scheme.warps + 4


@pytest.mark.parametrize("name", CASES)
def test_what_trials_choose_is_right_and_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with planned(tmp_path, background=False):
        case = CASES[name]()
        for _ in range(3):
            run(case)
    (file,) = tmp_path.glob("*.json")
    assert '"measured": true' in file.read_text(), file.read_text()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("decided twice")

    monkeypatch.setattr(decide, "run_isolated", refuse)
    with warnings.catch_warnings(), planned(tmp_path, background=False):
        warnings.simplefilter("error", PlanWarning)
        case = CASES[name]()
        for _ in range(2):
            run(case)


@pytest.mark.parametrize("name", ["gemm", "attention"])
def test_beside_a_job_every_launch_is_right_until_one_kernel_is_settled_on(name: str, tmp_path: Path) -> None:
    """Tried in the background, compared by the launches themselves, at two sizes of one class."""
    kernel = _fresh(kernels.gemm if name == "gemm" else kernels.attention)
    cases = [gemm_case(kernel, m) for m in (1024, 1280)] if name == "gemm" else [CASES[name]()]
    scope, until = planned(tmp_path), time.monotonic() + 240
    with scope:
        beside = scope._table()._beside
        assert beside is not None
        for case in cases:
            run(case)  # a kernel's first launch gives the kernel itself, whatever will watch it
        while time.monotonic() < until:
            ran = [run(case) for case in cases]
            if not any(isinstance(kernel, WatchedKernel) for kernel in ran):
                break
        else:
            pytest.fail("nothing was settled on in time")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cases[0][0]()
        graph.replay()
    assert beside.budget.spent_s <= beside.budget.allowed_s + beside.budget.estimate_s
    kept = "\n".join(file.read_text() for file in tmp_path.glob("*.json"))
    assert beside.budget.trials == 1, kept
    assert '"provisional": false' in kept, kept


HANG = """
import torch, triton, triton.language as tl
@triton.jit
def forever(flag):
    while tl.load(flag, volatile=True) == 0:
        pass
def check(self, planned):
    forever[(1,)](torch.zeros(1, device="cuda", dtype=torch.int32))
    torch.cuda.synchronize()
real.Bench.check = check
"""
ILLEGAL = """
import torch, triton, triton.language as tl
@triton.jit
def beyond(memory):
    tl.store(memory + (1 << 40), 1)
def check(self, planned):
    beyond[(1,)](torch.zeros(1, device="cuda", dtype=torch.int32))
    torch.cuda.synchronize()
real.Bench.check = check
"""
GARBAGE = """
from warpplan.kernels.compiler.launching import packed
compile_right = real._compile
def compile_wrong(kernel, scheme, cache):
    text = kernel["text"].replace("0.000000e+00", "1.000000e+02")
    return compile_right({**kernel, "text": text, "source_hash": "wrong"}, scheme, cache)
real._compile = compile_wrong
"""


@pytest.mark.parametrize(
    ("injected", "said"),
    [(HANG, "killed"), (ILLEGAL, "illegal memory access"), (GARBAGE, "computes something else")],
    ids=["hang", "illegal", "garbage"],
)
def test_the_job_outlives_its_trials(injected: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "injected_trial.py").write_text(
        f"from warpplan.kernels.compiler.launching import trial as real\n{injected}\ntrial = real.trial\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(decide, "CHILD", "injected_trial:trial")
    monkeypatch.setattr(decide, "default_folder", lambda: tmp_path / "decisions")
    case = gemm_case(_fresh(kernels.gemm))
    with pytest.warns(PlanWarning, match=said) as caught:
        launch_twice(planned(HopperStrategy(2, (3,)), time_limit_s=25.0, background=False), case)
    assert len(caught) == 1
    run(case)


def launch_twice(scope: planned, case: Case) -> None:
    with scope:
        alone = run(case)
        assert run(case).metadata.num_warps == alone.metadata.num_warps


def test_a_damaged_decision(tmp_path: Path) -> None:
    with planned(tmp_path, measure=False, background=False):
        run(gemm_case(_fresh(kernels.gemm)))
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text()[:100])
    with pytest.warns(PlanWarning, match="delete it"):
        launch_twice(planned(tmp_path, measure=False, background=False), gemm_case(_fresh(kernels.gemm)))


def test_graphs_and_streams() -> None:
    case = gemm_case(_fresh(kernels.gemm))
    call, out, _ = case
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with planned(HopperStrategy(2, (3,)), measure=False, background=False):
        unplanned = run(case).metadata.num_warps
        with torch.cuda.graph(graph):
            captured = call()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(case)
        side.synchronize()
    assert captured.metadata.num_warps != unplanned
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    run((lambda: graph.replay(), out, case[2]))


def test_nothing_is_planned_in_a_capture() -> None:
    call, *_ = gemm_case(_fresh(kernels.gemm))
    call()
    torch.cuda.synchronize()
    with planned(HopperStrategy(2, (3,)), measure=False, background=False), torch.cuda.graph(torch.cuda.CUDAGraph()):
        captured = call()
    with planned(HopperStrategy(2, (3,)), measure=False, background=False):
        assert call() is captured, "decided now, from the next launch on"
        assert call() is not captured


@pytest.mark.parametrize("view", ["misaligned", "expanded"])
def test_a_view_that_no_descriptor_fits_is_right_after_planning(view: str) -> None:
    """The same kernel, planned for one tensor, then given another kind of view of it."""
    kernel, scheme = _fresh(pointers.masked_matmul), HopperStrategy(2, (3,))
    b, c = _random(256, 512), torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)

    def launch(a: torch.Tensor) -> Any:
        strides = a.stride(0), b.stride(0), c.stride(0)
        ran = kernel[(2, 2)](a, b, c, 256, 256, 512, *strides, BM=128, BN=128, BK=64, num_warps=4)
        expected = a.double() @ b.double().T
        assert float((c.double() - expected).norm() / expected.norm()) < 5e-3
        return ran

    other = _random(256, 528)[:, 1:513] if view == "misaligned" else _random(1, 512).expand(256, 512)
    with warnings.catch_warnings(record=True), planned(scheme, measure=False, background=False):
        warnings.simplefilter("always")
        for _ in range(2):
            launch(_random(256, 512))
        assert launch(_random(256, 512)).metadata.num_warps == 12
        for _ in range(2):
            warps = launch(other).metadata.num_warps
        assert warps == 4 or view == "misaligned"  # whose other operand may still be loaded by TMA
