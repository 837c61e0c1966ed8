"""Every probe compiles for sm_90 without a GPU, cleanly; and what they measure is what the planner asks for."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.gemm.candidates import structures
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import tuning
from warpplan.planner.errors import UnknownName
from warpplan.planner.predict.time_model import Rates
from warpplan.planner.values.device import H200
from warpplan.profiler import probes
from warpplan.profiler.probes.points import FAMILIES, Point, runs_on
from warpplan.profiler.records import profile_of

from .machines import IDENTITY, records


def test_labels_are_unique_within_a_family() -> None:
    for family in FAMILIES:
        labels = [p.label for p in probes.points(family)]
        assert len(labels) == len(set(labels))


def test_the_how_to_names_every_family() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "profile-a-gpu.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(FAMILIES)


def test_a_label_is_the_cost_entrys_own() -> None:
    point = Point.of("tma_load", source="l2", bytes=4096)
    mine = [r for r in records() if r.get("kind") == point.kind and r["parameters"] == dict(point.parameters)]
    (entry,) = profile_of(IDENTITY, [mine]).costs.entries
    assert point.label == entry.label == "tma_load(bytes=4096, source=l2)"


def test_an_unknown_family_lists_the_known() -> None:
    with pytest.raises(UnknownName, match="unknown probe 'tmo': expected one of tma, wgmma"):
        probes.points("tmo")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_planner_finds_every_cost_that_it_asks_for(dtype: str) -> None:
    profile = profile_of(IDENTITY, [records()])
    first_of_scheme = {c.scheme: c for c in reversed(structures(dtype, H200))}
    for config in first_of_scheme.values():
        assert Gemm().plan(tuning(config), dtype, H200, profile).plan is not None
    for kind, size, text in (
        ("tma_load", 32768, {"source": "dram"}),
        ("tma_store", 65536, {}),
        ("epilogue_store", 9000, {}),
    ):
        assert profile.costs.lookup(kind, size, **text).latency is not None
    assert Rates.of(profile, dtype).tensor_flops > 0


def test_the_table_of_points_imports_without_torch_or_triton() -> None:
    code = "import sys, warpplan.profiler.collect; print({'torch', 'triton'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@cache
def _cases(family: str) -> tuple[Any, ...]:
    pytest.importorskip("triton", reason="probes compile with triton")
    every = [case for point in probes.points(family) for case in probes.kernels(point, family)]
    return tuple({(c.kernel.__name__, str(c.signature()), c.constants, c.num_warps): c for c in every}.values())


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_compiles_without_spills_or_serialised_multiplies(family: str) -> None:
    import triton

    from warpplan.kernels.compile import compile_report

    if not runs_on(family, triton.__version__):
        pytest.skip(f"Triton {triton.__version__} cannot run them")
    for case in _cases(family):
        what = f"{case.kernel.__name__} {case.constants}"
        report = compile_report(case.source(), case.compile_options(), 90, what=what)
        assert report.clean, what
        assert report.shared_bytes <= H200.smem_bytes_per_block, what


@pytest.mark.parametrize("family", FAMILIES)
def test_trip_counts_stay_unknown_to_the_compiler(family: str) -> None:
    """A loop that visibly runs once is no loop, and arithmetic can leave the clock reads around it."""
    for case in _cases(family):
        numbers = {name for name, a in case.arguments if a == "i32"}
        special = {p.name for p in case.kernel.params if p.name in numbers and not p.do_not_specialize}
        assert not special, case.kernel.__name__


def test_a_describing_signature_names_every_parameter_in_order() -> None:
    for family in FAMILIES:
        for case in _cases(family):
            given = [name for name, _ in case.arguments] + [name for name, _ in case.constants]
            assert sorted(given) == sorted(p.name for p in case.kernel.params), case.kernel.__name__
            runtime = [p.name for p in case.kernel.params if not p.is_constexpr]
            assert [name for name, _ in case.arguments] == runtime, case.kernel.__name__
