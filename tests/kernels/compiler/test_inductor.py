"""Inductor's kernels: specialised as generated, and planned where a compiled graph launches them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

import triton
import triton.language as tl
from inductor_recorded import CONFIG, GRID, KERNELS, STAGES, WARPS
from planned_machine import Machine, Tensor, running
from test_background import Beside, Times
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.tools.tensor_descriptor import TensorDescriptor

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.background import background_trials
from warpplan.kernels.compiler.exceptions import CannotPlan, PlanWarning
from warpplan.kernels.compiler.launching import background_decider, decide, inductor
from warpplan.kernels.compiler.launching.inductor import planned_inductor
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.warn_once import forget_warnings

TARGET = GPUTarget("cuda", 90, 32)
SCHEME = HopperStrategy(2, (3,))
PLANNED = 12
"""Warps of two consumers and a producer."""


def meta(kernel: Any) -> dict[str, Any]:
    """``triton_meta`` as Inductor writes it, but for the device."""
    types = {"ws_ptr": "*u8"}
    names = kernel.arg_names
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
    return {"signature": {n: types.get(n, "*bf16") for n in names}, "constants": {}, "configs": [aligned]}


def source(name: str) -> ASTSource:
    m = meta(KERNELS[name])
    return ASTSource(KERNELS[name], m["signature"], m["constants"], m["configs"][0])


@pytest.mark.matrix
@pytest.mark.parametrize("name", KERNELS)
def test_a_generated_template_is_specialised(name: str) -> None:
    cut = pipeline.cut(source(name), TARGET, {"num_warps": SCHEME.warps, "num_stages": STAGES})
    text = specialize(cut.text, SCHEME)
    assert text.count("ttg.warp_specialize(") == 1
    assert "ttng.async_tma_copy_global_to_local" in text


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    pytest.importorskip("torch", reason="Inductor is part of torch")
    from torch._inductor.runtime import triton_helpers

    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA H200", 90))
    forget_warnings()
    monkeypatch.setattr(background_trials, "POLL_S", 0.01)
    with running(tmp_path) as machine:
        times = Times(machine)
        times.us = {WARPS: 10.0, PLANNED: 5.0}
        monkeypatch.setattr(background_trials, "CudaTimer", times)
        yield machine


def tuner(name: str, **more: Any) -> Any:
    """A ``CachingAutotuner`` as generated code makes it, launched by the machine."""
    from torch._inductor.runtime import triton_heuristics
    from torch._inductor.runtime.hints import DeviceProperties

    device = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
    made = triton_heuristics.template(
        num_stages=STAGES, num_warps=WARPS, triton_meta={**meta(KERNELS[name]), "device": device},
        inductor_meta={"kernel_name": name, "force_disable_caches": True, **CONFIG}, filename=__file__,
    )(KERNELS[name])  # fmt: skip
    made._make_launchers = lambda: setattr(made, "launchers", [r.make_launcher() for r in made.compile_results])
    return made


def run(made: Any, **more: Any) -> None:
    import torch

    tensors = [torch.empty(16, dtype=torch.bfloat16) for _ in made.fn.arg_names[:-1]]
    made.run(*tensors, torch.empty(16, dtype=torch.uint8), *GRID, stream=7, **more)


class Decided:
    """Stands for the decider: answers the planned kernel, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self.error = error

    def __call__(self, call: Any, launch: Callable[[], Any]) -> tuple[Any, Any]:
        self.calls.append(call)
        ran = launch()
        if self.error is not None:
            raise self.error
        return ran, compile_with(ran.src, TARGET, {"num_warps": WARPS, "num_stages": STAGES}, SCHEME)


def context(decided: Any) -> planned_inductor:
    made = planned_inductor(background=False)
    made._decide = decided
    return made


def test_a_kernel_of_a_graph_is_planned_after_its_first_launch_until_the_end(machine: Machine) -> None:
    mm = tuner("addmm")
    decided = Decided()
    run(mm)
    with context(decided):
        run(mm, benchmark_run=True)
        assert not decided.calls
        run(mm)
        run(mm)
        run(mm)
    run(mm)
    assert machine.warps == [WARPS, WARPS, WARPS, PLANNED, PLANNED, WARPS]
    assert {grid for grid, _, _ in machine.launches} == {GRID}
    assert len({tuple(map(id, arguments[:1])) for _, _, arguments in machine.launches}) == len(machine.launches)
    (call,) = decided.calls
    assert list(call.arguments) == KERNELS["addmm"].arg_names
    assert (call.grid, call.device) == (GRID, 0)


def test_the_same_decider_that_plans_hand_written_kernels_decides(machine: Machine) -> None:
    mm = tuner("mm")
    with planned_inductor(SCHEME, measure=False, background=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        run(mm)
        run(mm)
    assert machine.warps == [WARPS, PLANNED]


def test_a_failure_leaves_the_kernel_as_it_is_and_says_so_once(machine: Machine) -> None:
    mm = tuner("mm")
    decided = Decided(CannotPlan("no room"))
    with context(decided):
        with pytest.warns(PlanWarning, match="mm runs as it is, not planned: no room"):
            run(mm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(mm)
    assert machine.warps == [WARPS, WARPS]
    assert len(decided.calls) == 1


def test_an_error_of_the_launch_itself_is_the_launchs(machine: Machine) -> None:
    mm = tuner("mm")
    run(mm)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    launcher = mm.launchers[0]
    broken.config, broken.cache_hash, broken.store_cubin = launcher.config, launcher.cache_hash, False  # type: ignore
    mm.launchers, mm._cached_launcher = [broken], None
    with context(Decided()), pytest.raises(RuntimeError, match="out of memory"):
        run(mm)


def test_other_kernels_are_not_captured(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.hints import HeuristicType

    decided, mm = Decided(), tuner("mm")
    monkeypatch.setattr(inductor, "recompiled", lambda *_: pytest.fail("compiled again"))
    mm.heuristic_type = HeuristicType.POINTWISE
    with context(decided):
        run(mm)
        run(mm)
    assert machine.warps == [WARPS, WARPS]
    assert not decided.calls


@triton.jit
def by_pointers(arg_A, arg_B, out_ptr0, ws_ptr):
    rows = tl.arange(0, 128)
    inner = tl.arange(0, 64)
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, 4096, 64):
        x = tl.load(arg_A + rows[:, None] * 4096 + (k + inner)[None, :])
        y = tl.load(arg_B + (k + inner)[:, None] + rows[None, :] * 4096)
        acc = tl.dot(x, y, acc)
    tl.store(out_ptr0 + rows[:, None] * 4096 + rows[None, :], acc.to(tl.bfloat16))


@triton.jit
def row_sums(arg_A, arg_B, out_ptr0, ws_ptr):
    rows = tl.arange(0, 128)
    tl.store(out_ptr0 + rows, tl.sum(tl.load(arg_A + rows[:, None] * 128 + rows[None, :]), 1))


def test_a_template_without_a_product_is_left_alone_and_says_so_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setitem(KERNELS, "other", row_sums)
    decided, made = Decided(), tuner("other")
    with config.patch(use_static_cuda_launcher=False), context(decided):  # that one needs a GPU
        with pytest.warns(PlanWarning, match=r"has no tt\.dot: only kernels that load tiles"):
            run(made)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(made)
    assert machine.warps == [WARPS, WARPS]
    assert not decided.calls


@pytest.mark.parametrize(("name", "kernel"), [("mm", None), ("by_pointers", by_pointers)])
def test_a_template_without_a_product_is_refused(name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, too: by the IR that Triton's front end makes of it."""
    monkeypatch.setitem(KERNELS, name, kernel or KERNELS[name])
    ttir = front_end(name)
    inductor.refuse_template(ttir)
    with pytest.raises(CannotPlan, match=r"has no tt\.dot: only kernels that load tiles"):
        inductor.refuse_template(ttir.replace("tt.dot", "tt.other"))


def front_end(name: str) -> str:
    backend = make_backend(TARGET)
    options = backend.parse_options({"num_warps": WARPS})
    context = pipeline.cutting.new_context(backend)
    made = source(name).make_ir(
        TARGET, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    return str(backend.make_ttir(made, {}, options, 90))


def test_a_template_launched_with_arguments_by_name_says_so(machine: Machine) -> None:
    mm = tuner("mm")
    seen: list[dict[str, Any]] = []
    with context(Decided()) as scope, pytest.warns(PlanWarning, match="launched with extra by name"):
        scope._first(lambda tuner, *args, **kwargs: seen.append(kwargs), mm, (), 7, {"extra": 1})
    assert seen == [{"stream": 7, "extra": 1}]


def test_arguments_that_do_not_fit_the_signature_are_refused(machine: Machine) -> None:
    mm = tuner("mm")
    run(mm)
    result, _ = inductor.recompiled(mm, mm.launchers[0].config)
    mm._interpret_args_grid = lambda args, config: (args, GRID)
    with pytest.raises(CannotPlan, match="launched with 2 arguments where its signature has 4"):
        inductor.call_of(mm, mm.launchers[0].config, result, (1, 2))


@triton.jit
def product_of_the_user(a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K, stride_a, stride_1, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, 64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        kept = (k + inner) < K
        x = tl.load(a_ptr + rows[:, None] * stride_a + (k + inner)[None, :], (rows[:, None] < M) & kept[None, :], 0.0)
        y = tl.load(b_ptr + (k + inner)[:, None] + columns[None, :] * K, (columns[None, :] < N) & kept[:, None], 0.0)
        acc = tl.dot(x, y, acc)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + columns)[None, :]
    where = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :] * stride_1, acc.to(tl.bfloat16), where)


@triton.jit
def described_product_of_the_user(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a_desc.load([m, k]), b_desc.load([n, k]).T, acc)
    c_desc.store([m, n], acc.to(tl.bfloat16))


USERS_GRID = {"grid_type": "PrecomputedGrid", "extra_launcher_args": []}
BLOCKS = ({"BM": 128, "BN": 128, "num_warps": 8, "num_stages": 3}, {"BM": 128, "BN": 64, "num_warps": 4})


def of_the_user(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], configs: list[dict[str, Any]], aligned: list[int]
) -> Any:
    """What Inductor 2.13.0 writes for ``kernel``, called by a compiled function at ``configs`` of a list, or, where
    there is one, with its constants among ``constants``."""
    from torch._inductor.runtime import triton_heuristics
    from torch._inductor.runtime.hints import DeviceProperties

    device = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
    grids = [
        {"config": config, "python": ["2", "4", "1"], "cpp": ["2L", "4L", "1L"], "python_slow": ["2", "4", "1"]}
        for config in configs
    ]
    given = {"signature": types, "device": device, "constants": constants}
    made = triton_heuristics.user_autotune(
        configs=[dict(config) for config in configs], filename=__file__, custom_kernel=True,
        triton_meta={**given, "configs": [{(i,): [["tt.divisibility", 16]] for i in aligned}]},
        inductor_meta={
            **USERS_GRID, "precomputed_grids": grids, "kernel_name": kernel.__name__, "force_disable_caches": True,
            "declared_constexpr_names": [p.name for p in kernel.params if p.is_constexpr],
        },
    )(kernel)  # fmt: skip
    made._make_launchers = lambda: setattr(made, "launchers", [r.make_launcher() for r in made.compile_results])
    return made


def pointer_product(configs: list[dict[str, Any]], constants: dict[str, Any]) -> tuple[Any, list[Any]]:
    import torch

    a, b, c = (torch.empty(16, dtype=torch.bfloat16) for _ in range(3))
    names = [parameter.name for parameter in product_of_the_user.params]
    numbers = {"M": 256, "N": 512, "K": 512, "stride_a": 512, "stride_1": 1}
    types = {name: "i32" if name in numbers else "*bf16" for name in names}
    types |= dict.fromkeys(("bias_ptr", "stride_1", "BM", "BN"), "constexpr")
    made = of_the_user(
        product_of_the_user, types, {"bias_ptr": None, "stride_1": 1, **constants}, configs, [0, 1, 2, 4, 5, 6, 7]
    )
    return made, [a, b, c, None, *numbers.values()]


def test_a_kernel_of_the_user_in_a_graph_is_planned(machine: Machine) -> None:
    made, arguments = pointer_product([{"num_warps": 8, "num_stages": 3}], {"BM": 128, "BN": 128})
    with planned_inductor(SCHEME, measure=False, background=False) as scope, warnings.catch_warnings():
        warnings.simplefilter("error")
        made.run(*arguments, stream=7)
        made.run(*arguments, stream=7)
    assert machine.warps == [WARPS, PLANNED]
    assert {grid for grid, *_ in machine.launches} == {(2, 4, 1)}
    assert len({len(passed) for *_, passed in machine.launches}) == 1
    assert scope.kernels == ["product_of_the_user"]


def test_a_list_of_the_users_is_tuned_by_inductor_and_its_winner_planned(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, arguments = pointer_product([dict(config) for config in BLOCKS], {})
    benched: list[int] = []

    def bench(launcher: Any, *_: Any, **__: Any) -> float:
        benched.append(launcher.config.num_warps)
        return 1.0 / launcher.config.num_warps

    monkeypatch.setattr(made, "bench", bench)
    with planned_inductor(SCHEME, measure=False, background=False) as scope:
        for _ in range(3):
            made.run(*arguments, stream=7)
    assert sorted(benched) == [4, 8]
    assert machine.warps == [WARPS, WARPS, PLANNED]
    assert scope.kernels == ["product_of_the_user"]


def test_a_kernel_of_the_user_with_descriptors_made_by_the_host_is_planned(machine: Machine) -> None:
    types = {"a_desc": "tensordesc<bf16[128, 64]>", "b_desc": "tensordesc<bf16[128, 64]>",
             "c_desc": "tensordesc<bf16[128, 128]>", "K": "i32", "BM": "constexpr", "BN": "constexpr"}  # fmt: skip
    constants = {"BM": 128, "BN": 128}
    made = of_the_user(described_product_of_the_user, types, constants, [{"num_warps": 8, "num_stages": 3}], [3])
    boxes = [[128, 64], [128, 64], [128, 128]]
    described = [TensorDescriptor.from_tensor(Tensor(512, 512), box) for box in boxes]
    with planned_inductor(SCHEME, measure=False, background=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        made.run(*described, 512, stream=7)
        made.run(*described, 512, stream=7)
    assert machine.warps == [WARPS, PLANNED]


def test_a_kernel_of_the_user_without_a_product_says_so_once(machine: Machine) -> None:
    import torch

    types = dict.fromkeys(("arg_A", "arg_B", "out_ptr0", "ws_ptr"), "*bf16")
    made = of_the_user(row_sums, types, {}, [{"num_warps": 8}], [0, 1, 2, 3])
    tensors = [torch.empty(16, dtype=torch.bfloat16) for _ in types]
    with planned_inductor(background=False):
        with pytest.warns(PlanWarning, match=r"row_sums runs as it is, not planned: has no tt\.dot"):
            made.run(*tensors, stream=7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.run(*tensors, stream=7)
    assert machine.warps == [WARPS, WARPS]


def test_first_launches_go_on_while_a_plan_is_made_beside_the_job(machine: Machine) -> None:
    mm = tuner("mm")
    scope = planned_inductor(SCHEME, measure=False)
    with scope:
        run(mm)
        assert machine.warps == [WARPS]
        assert not scope.kernels
        until(lambda: run(mm) or machine.warps[-1] == PLANNED)
        assert scope.kernels == ["mm"]
        before = len(machine.warps)
    run(mm)
    with scope:
        run(mm)
    run(mm)
    assert machine.warps[before:] == [WARPS, PLANNED, WARPS]
    assert set(machine.warps[:before]) == {WARPS, PLANNED}


def test_the_jobs_own_launches_choose_between_a_kernel_of_a_graph_and_its_plan(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_decider, "describe", lambda *a: {"arguments": [], "storages": []})
    stand_in = Beside(1.2)
    monkeypatch.setattr(background_decider, "run_isolated", stand_in)
    monkeypatch.setattr(decide, "run_isolated", stand_in)
    mm = tuner("mm")
    scope = planned_inductor(SCHEME)
    with scope:
        until(lambda: run(mm) or scope.kernels == ["mm"])
    assert {WARPS, PLANNED} == set(machine.warps)
    assert len(stand_in.requests) == 1


def test_a_kernel_that_cannot_be_planned_beside_the_job_says_so_once(machine: Machine) -> None:
    mm = tuner("mm")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with planned_inductor(HopperStrategy(3, (3,)), measure=False):
            until(lambda: run(mm) or bool(said))
            run(mm)
    assert set(machine.warps) == {WARPS}
    assert len(said) == 1
    assert "mm runs as it is, not planned" in str(said[0].message)


def until(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60.0
    while not done():
        assert time.monotonic() < give_up, "it does not come to an end"
        time.sleep(0.01)


def test_entering_and_leaving_puts_inductor_back(machine: Machine) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    before = CachingAutotuner.run
    scope = planned_inductor()
    with scope:
        assert CachingAutotuner.run is not before
        with scope:
            pass
        assert CachingAutotuner.run is not before
    assert CachingAutotuner.run is before
