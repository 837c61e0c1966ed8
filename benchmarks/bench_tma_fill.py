"""GPU: how fast TMA copies boxes that lie partly or wholly outside of their tensor, which it fills with zeros.

    python benchmarks/bench_tma_fill.py --out benchmarks/results    # -> tma_fill_<card>.json

One CTA an SM copies boxes of bf16 into a ring of slots and does nothing else. The box is the same for all SMs, so that
they share what they read through L2, as tiles of one row or column do, or every SM has its own. ``bytes_per_cycle``
are of the box, inside or not, by the clock that the card has meanwhile. With 4 slots, what whole boxes take is
the latency of a copy more than the rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench_target import CARD, TARGET, require_target
from children import each
from results_file import RESULTS, head, write

from warpplan.kernels.device.boxes import RAGGED_ROWS, ragged_form
from warpplan.kernels.triton_compat import TensorDescriptor, gl, gluon, mbarrier, tma_load

DEPTH = 4
COPIES = 4096
READINGS = 7
LIMIT_S = 120.0


@dataclass(frozen=True)
class Box:
    """``rows`` by ``columns`` elements, of which ``rows_inside`` and ``columns_inside`` lie in the tensor; ``ragged``
    where a descriptor of four dimensions says how many rows there are; ``own`` where each SM has a box of its own."""

    rows: int
    columns: int
    rows_inside: int
    columns_inside: int
    ragged: bool = False
    own: bool = False


def _boxes() -> Iterator[Box]:
    for inside in (64, 48, 32, 16, 1, 0):
        yield Box(64, 64, inside, 64)
        yield Box(64, 64, inside, 64, ragged=True)
        yield Box(64, 64, inside, 64, ragged=True, own=True)
    for inside in (64, 48, 32, 16, 0):
        yield Box(64, 64, 64, inside, own=True)
    for inside in (16, 15, 8, 1):
        yield Box(16, 64, inside, 64, ragged=True)


BOXES = tuple(_boxes())


@gluon.jit
def copy_boxes(
    desc, cycles, row, column, end, stride, COPIES: gl.constexpr, DEPTH: gl.constexpr, RAGGED: gl.constexpr,
    SLOTS: gl.constexpr,
):  # fmt: skip
    """Copy a box ``COPIES`` times; CTA p's lies ``p * stride`` rows further."""
    slots = gl.allocate_shared_memory(desc.dtype, SLOTS, desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(DEPTH):
        mbarrier.init(full.index(i), count=1)
    first = row + gl.program_id(0) * stride
    last = end + gl.program_id(0) * stride
    started = _clock()
    for i in range(COPIES):
        slot = i % DEPTH
        mbarrier.wait(full.index(slot), i // DEPTH & 1 ^ 1)
        mbarrier.expect(full.index(slot), desc.block_type.nbytes)
        if RAGGED:
            tma_load(desc, [RAGGED_ROWS, last, RAGGED_ROWS - last + first, column], full.index(slot), slots.index(slot))
        else:
            tma_load(desc, [first, column], full.index(slot), slots.index(slot))
    for i in gl.static_range(DEPTH):
        mbarrier.wait(full.index(i), (COPIES // DEPTH - 1) & 1)
    gl.store(cycles + gl.program_id(0), _clock() - started)


@gluon.jit
def _clock():
    """This SM's cycles."""
    return gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)


def copied(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Runs in a child: the median cycles of each box of ``jobs``, of all SMs and readings."""
    import torch

    sms = torch.cuda.get_device_properties().multi_processor_count
    for job in jobs:
        box = Box(**job)
        tensor = torch.randn(sms * box.rows, 256, device="cuda").bfloat16()
        end = box.rows if box.ragged else len(tensor)
        row = 0 if box.own and not box.ragged else end - box.rows_inside
        sizes, strides, block = list(tensor.shape), list(tensor.stride()), [box.rows, box.columns]
        if box.ragged:
            (sizes, strides), block = ragged_form(sizes, strides), [1, 1, *block]
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
        descriptor = TensorDescriptor(tensor, sizes, strides, block, layout)
        cycles = torch.zeros(READINGS, sms, dtype=torch.int64, device="cuda")
        for reading in cycles:
            copy_boxes[(sms,)](
                descriptor, reading, row, tensor.shape[1] - box.columns_inside, end, box.rows if box.own else 0, COPIES,
                DEPTH, box.ragged, (DEPTH, *block), num_warps=4,
            )  # fmt: skip
        found = float(cycles.float().median()) / COPIES
        yield {
            "cycles": round(found, 1), "bytes_per_cycle": round(2 * box.rows * box.columns / found, 1),
            "device": torch.cuda.get_device_name(),
        }  # fmt: skip


NAMED = {
    "whole_shared": Box(64, 64, 64, 64), "quarter_shared": Box(64, 64, 16, 64), "outside_shared": Box(64, 64, 0, 64),
    "whole_own": Box(64, 64, 64, 64, own=True), "quarter_own": Box(64, 64, 16, 64, ragged=True, own=True),
    "half_of_columns_own": Box(64, 64, 64, 32, own=True), "outside_own": Box(64, 64, 64, 0, own=True),
}  # fmt: skip
"""What the documentation quotes."""


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Cycles and bytes a cycle of the :data:`NAMED` boxes."""
    found = {Box(**{f.name: row[f.name] for f in fields(Box)}): row for row in rows if "cycles" in row}
    return {
        name: {key: found[box][key] for key in ("cycles", "bytes_per_cycle")}
        for name, box in NAMED.items()
        if box in found
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    jobs = [asdict(box) for box in BOXES]
    results = each("bench_tma_fill:copied", jobs, limit_s=LIMIT_S)
    rows = []
    for job, result in zip(jobs, results, strict=True):
        if "device" in result:
            require_target(result.pop("device"))
        print(job, result, flush=True)
        rows.append({"kernel": "tma_load", **job, **result})
    result = {**head("tma_fill", TARGET.name), "copies": COPIES, "summary": summary(rows), "rows": rows}
    write(options.out / f"tma_fill_{CARD}.json", result)


if __name__ == "__main__":
    main()
