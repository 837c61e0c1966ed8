"""Proton's records in kernels compiled for sm_90 without a GPU, planned and not; what they record runs only on one."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels_under_test import KERNELS, source  # noqa: E402
from triton import knobs  # noqa: E402
from triton import profiler as proton  # noqa: E402
from triton._C.libtriton import proton as libproton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.profiler.hooks.instrumentation import InstrumentationHook  # noqa: E402
from triton.runtime import driver  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.inspection import instrument  # noqa: E402
from warpplan.kernels.compiler.pipeline import cutting  # noqa: E402
from warpplan.kernels.compiler.strategy import stage_hook  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.ttgir import ir, parsing  # noqa: E402
from warpplan.planner.errors import UnknownName  # noqa: E402

pytestmark = pytest.mark.matrix
TARGET = GPUTarget("cuda", 90, 32)
BYTES_PER_WARP = 4096
SCHEME = HopperStrategy(2, (2,))
WARPS = 12
"""Two consumers of four, and a producer whose one warp counts as four."""


class NoGpu:
    """What Proton asks the driver for when it starts."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 232448})

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        return TARGET


@contextlib.contextmanager
def recording(warps: int) -> Iterator[None]:
    """Proton's instrumentation backend started, as ``proton.start`` does it, for a GPU that is not there."""
    former = driver._active
    driver.set_active(NoGpu())
    mode = proton.mode.Default(
        optimizations="clock32,time_shift", buffer_type="global", buffer_size=warps * BYTES_PER_WARP
    )
    hook = InstrumentationHook(mode)
    hook.activate()
    try:
        yield
    finally:
        hook.deactivate()
        driver._active = former


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def finished(name: str, capability: int = 90) -> str:
    cut = pipeline.cut(source(name), GPUTarget("cuda", capability, 32), {"num_warps": 4})
    return str(pipeline.finish(cut.text, cut.options, capability))


def records(text: str) -> list[tuple[str, str]]:
    return [(o.tokens[0], o.tokens[1]) for o in parsing.parse(text).walk() if o.name == "proton.record"]


def names_that_proton_reads(text: str) -> set[str]:
    """As its launch hook reads them from the kernel's TTGIR, to name what comes back from the GPU."""
    context = cutting.new_context(triton.compiler.make_backend(TARGET))
    libproton.load_dialects(context)
    module = cutting.read(text, context)
    libproton.get_scope_id_parents(module)
    return {name for _, name in libproton.get_scope_id_names(module)}


def kinds_of(names: tuple[str, ...]) -> set[str]:
    return {name.split("@")[0].split("#")[0] for name in names}


def assert_paired(region: ir.Region) -> None:
    """In each block every scope that starts ends, before another starts and before control leaves."""
    running = None
    for operation in region.operations:
        if operation.name == "proton.record":
            which, name = operation.tokens
            assert (which, running) == ("start", None) or (which, running) == ("end", name)
            running = name if which == "start" else None
            continue
        if operation.regions:
            assert running is None
        for inner in operation.regions:
            assert_paired(inner)
    assert running is None


@pytest.mark.parametrize("name", ["gemm", "attention"])
def test_a_planned_kernel_is_recorded_in_every_partition(name: str) -> None:
    """It compiles to a binary that reads the clock, with a buffer for all of its warps, and whose multiplies stay in
    flight: constant accumulators, left alone, would make ptxas serialize the GEMM's."""
    log = io.StringIO()
    with recording(WARPS), knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        compiled = stage_hook.compile_with(source(name), TARGET, {"num_warps": 4}, SCHEME, edit=instrument.instrument)
    assert "isAsync = true" in compiled.asm["ttgir"]
    assert "registers" in log.getvalue(), "no report to judge by"
    assert "serialized" not in log.getvalue()
    assert compiled.metadata.num_warps == WARPS
    assert compiled.metadata.profile_scratch_size >= WARPS * BYTES_PER_WARP
    text = compiled.asm["ttgir"]
    assert compiled.asm["ptx"].count("%clock") == len(records(text))
    found = instrument.scopes(text)
    assert names_that_proton_reads(text) == set(found)
    assert {"producer_wait", "tma_issue", "consumer_wait", "mma", "epilogue"} <= kinds_of(found)
    assert ("math" in kinds_of(found)) == (name == "attention")
    (specialized,) = [op for op in parsing.parse(text).walk() if op.name == "ttg.warp_specialize"]
    per_partition = [
        {o.tokens[1].strip('"').split("@")[0].split("#")[0] for o in region.walk() if o.name == "proton.record"}
        for region in specialized.regions
    ]
    *consumers, producer = per_partition
    assert producer == {"producer_wait", "tma_issue"}
    for consumer in consumers:
        assert {"consumer_wait", "mma", "epilogue"} <= consumer
        assert not consumer & {"producer_wait", "tma_issue"}


@pytest.mark.parametrize(("name", "kinds"), [("gemm", {"mma", "tma_issue"}), ("softmax", {"load", "epilogue"})])
def test_an_unplanned_kernel_is_recorded_by_the_hook(
    name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(4):
        monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", instrument.hook())
        compiled = triton.compile(source(name), target=TARGET, options={"num_warps": 4})
    assert compiled.asm["ptx"].count("%clock") == len(records(compiled.asm["ttgir"])) > 0
    assert kinds <= kinds_of(instrument.scopes(compiled.asm["ttgir"]))


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_scopes_are_paired_and_nothing_else_changes(name: str, capability: int) -> None:
    text = finished(name, capability)
    recorded = instrument.instrument(text)
    assert_paired(parsing.parse(recorded).function.regions[0])
    stripped = [line for line in recorded.splitlines() if "proton.record" not in line and "_inline_asm" not in line]
    assert [re.sub(r"%warpplan_zero_\d+", "%cst", line) for line in stripped] == [
        re.sub(r"%cst\w*", "%cst", line) if "warpplan_zero" in now else line
        for line, now in zip(text.splitlines(), stripped, strict=True)
    ]


def test_scopes_are_named_after_kind_and_line() -> None:
    line = KERNELS["gemm"][0].fn.__code__.co_firstlineno
    names = instrument.scopes(instrument.instrument(finished("gemm"), ["mma"]))
    assert {name.split("#")[0] for name in names} >= {f"mma@kernels_under_test.py:{line + 8}"}
    assert kinds_of(names) == {"mma"}
    assert len(set(names)) == len(names)


def test_only_the_kinds_asked_for_are_recorded() -> None:
    assert instrument.instrument(finished("attention"), []) == finished("attention")
    assert kinds_of(instrument.scopes(instrument.instrument(finished("attention"), ["math"]))) == {"math"}
    with pytest.raises(UnknownName, match="unknown kind 'dot': expected one of producer_wait"):
        instrument.instrument(finished("softmax"), ["dot"])


def test_the_hook_has_a_key_that_tells_what_is_recorded() -> None:
    """Triton 3.7 and later put it into the cache's key."""
    assert instrument.hook(["mma"])()[0] != instrument.hook(["math"])()[0]
