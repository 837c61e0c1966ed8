"""Groups found by a warp alone: what the compiler makes of it. The grouped GEMM's protocol tests see what is found."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.compile import compile_report, specialized
from warpplan.kernels.device.groups import Groups, count_units, find_group, first_window, window_groups
from warpplan.kernels.triton_compat import GluonASTSource, gl, gluon

PRODUCER_REGISTERS = 40


@gluon.jit
def search(ends, out, count, rows, columns, WINDOW: gl.constexpr):
    groups = Groups(ends, count, rows)
    window = first_window(groups, columns, 128, False, WINDOW)
    for unit in range(gl.program_id(0), count_units(window, groups, columns, 128, False, WINDOW), gl.num_programs(0)):
        group, window = find_group(unit, window, groups, columns, 128, False, WINDOW)
        gl.store(out + unit, group.index + group.first + group.end + group.unit)


@gluon.jit
def idle(out):
    pass


@gluon.jit
def kernel(ends, out, count, rows, columns, WINDOW: gl.constexpr, WARPS: gl.constexpr, REGISTERS: gl.constexpr):
    gl.warp_specialize([(idle, (out,)), (search, (ends, out, count, rows, columns, WINDOW))], [WARPS], [REGISTERS])


def test_windows_are_whole_lanes_and_bounded():
    assert [window_groups(count) for count in (1, 32, 33, 64, 65, 1024)] == [32, 32, 64, 64, 64, 64]


@pytest.mark.slow
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("groups", [8, 1024])
def test_a_search_fits_a_producer_and_needs_no_shared_memory(groups, warps):
    types = {"ends": "*i32", "out": "*i32", "count": "i32", "rows": "i32", "columns": "i32"}
    constants = {"WINDOW": window_groups(groups), "WARPS": warps, "REGISTERS": PRODUCER_REGISTERS}
    source = specialized(kernel, types, constants, ["ends", "out"], source=GluonASTSource)
    report = compile_report(source, {"num_warps": 4, "num_stages": 1, "maxnreg": 168}, 90, what="search")
    assert report.spill_bytes == 0
    assert "redux.sync" in report.ptx
    # The arguments of the worker and its state: a scan or a sum across warps would take a word a warp more.
    assert report.shared_bytes <= 64
