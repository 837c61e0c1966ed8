"""What vector_add declares is all that the exporter needs to know of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds import ExportRow, Options, export_triton, verify_triton

pytest.importorskip("triton", reason="needs triton (no GPU) to compute its cache keys")

CONSUMER = f"{Path(__file__).with_name('add_consumer.py')}:add_kernel"


def test_the_tutorials_kernel_is_fed_without_an_option(tmp_path: Path) -> None:
    rows = [ExportRow((n,), "float32", H200.name, embedded(H200.name)) for n in (98432, 1 << 24)]
    options = Options(kernel="vector_add")
    report = export_triton(CONSUMER, rows, tmp_path, options)
    assert verify_triton(CONSUMER, rows, tmp_path, options).all_hit
    for entry in report.entries:
        assert dict(entry.config.kwargs).keys() == {"BLOCK_SIZE"}
        assert entry.shape[0] in entry.key
