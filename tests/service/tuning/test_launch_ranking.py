"""How ``warpplan tune`` ranks a kernel's configurations, once what comes first is assembled."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton (no GPU) to compile")

from warpplan.kernels.compiler.costing.pipelined.launch_traffic import MOST_PROGRAMS, NEIGHBOURS
from warpplan.kernels.compiler.paper.paper_programs import PaperKernel
from warpplan.planner.values.device import H200
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds.consumer_kernel import find
from warpplan.service.tuning.launch_ranking import Tuner, TuningTask

ROWS = """
import triton
import triton.language as tl


@triton.jit
def centred(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    start = x_ptr + tl.program_id(0) * N
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        total += tl.load(start + k + tl.arange(0, BLOCK))
    mean = tl.sum(total) / N
    for k in range(0, N, BLOCK):
        at = k + tl.arange(0, BLOCK)
        tl.store(out_ptr + tl.program_id(0) * N + at, tl.load(start + at) - mean)
"""


def test_rows_of_all_blocks_that_run_at_once_have_to_fit_into_l2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small block ptxas lets more run than was estimated: too many to find their rows in L2 again."""
    (tmp_path / "rows.py").write_text(ROWS)
    spec = f"{tmp_path}/rows.py:centred"
    configs = tuple(TuningConfig((("BLOCK", 1024),), warps, 1) for warps in (4, 16))
    tuner = Tuner(TuningTask(spec, "x_ptr=*fp32, out_ptr=*fp32", "M", configs), find(spec), embedded(H200.name), H200)
    m, n = 4096, 12_288
    runs, run = [], PaperKernel.run
    monkeypatch.setattr(PaperKernel, "run", lambda *given, **named: runs.append(1) or run(*given, **named))
    found = {one.config.num_warps: one for one in tuner.rank({"M": m, "N": n}).ranked}
    read_once, read_twice = 2 * 4 * m * n, 3 * 4 * m * n  # and written once
    assert found[4].time.resident > found[16].time.resident
    assert found[4].dram_bytes == read_twice
    assert read_once < found[16].dram_bytes < 1.25 * read_once
    assert found[16].time.time_us < found[4].time.time_us
    # Spread over the launch, and the first of it; what the assembler changes asks for no others.
    assert len(runs) == len(configs) * (2 * MOST_PROGRAMS + NEIGHBOURS)
