"""Inductor's kernels: specialised as generated, and planned where a compiled graph launches them."""

from __future__ import annotations

import sys
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
from planned_machine import Machine, running
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.exceptions import CannotPlan, PlanWarning
from warpplan.kernels.compiler.launching import decide, inductor
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
    with running(tmp_path) as machine:
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
    made = planned_inductor()
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
    with planned_inductor(SCHEME, measure=False), warnings.catch_warnings():
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


def test_entering_and_leaving_puts_inductor_back(machine: Machine) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    before = CachingAutotuner.run
    with planned_inductor():
        assert CachingAutotuner.run is not before
    assert CachingAutotuner.run is before
