"""What the candidates of the grouped GEMM ask of the device, for one shape and its group sizes: the input of
:mod:`warpplan.planner.predict.time_model`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.candidates import CandidateTable
from warpplan.kernels.gemm.space import ELEMENT_BYTES, RESULT_BYTES
from warpplan.kernels.gemm.work import L2_RESIDENT, LINE_BYTES, SolvedTable
from warpplan.kernels.grouped_gemm.candidates import GroupGrid, grid, k_step
from warpplan.kernels.grouped_gemm.distribution import GroupedShape
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.device import Device

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def work(solved: SolvedTable, dtype: str, device: Device, shape: GroupedShape) -> tuple[DeviceWork, GroupGrid]:
    """Every row of the table as :class:`DeviceWork` for ``shape``, and the grid that says which rows count."""
    t, element = solved.table, ELEMENT_BYTES[dtype]
    g = grid(t, shape)
    resident = (t.sm_count * t.ctas_per_sm).astype(np.float64)
    units = np.maximum(1, g.units).astype(np.float64)
    blocks = np.minimum(units, resident)
    iterations = g.iterations
    tile = (t.block_m * t.block_n).astype(np.float64)
    return (
        DeviceWork(
            flops=shape.flops,
            families=solved.families,
            structures=solved.structures,
            family=solved.family,
            structure=solved.structure,
            executed_flops=2.0 * tile * iterations * t.block_k,
            loaded_bytes=iterations * solved.load_bytes,
            rounds=np.ceil(units / resident),
            trips=_busiest(t, shape),
            iterations=iterations / units,
            ii_cycles=solved.ii_cycles,
            load_bytes=solved.load_bytes,
            unaligned=_unaligned(t, shape, element),
            group_rows=np.minimum(t.group_m * t.block_m, _most_rows(shape)).astype(np.float64),
            slots_in_flight=solved.depth - 1.0,
            blocks_per_sm=np.ceil(blocks / t.sm_count),
            active_sms=np.minimum(blocks, t.sm_count),
            prologue_cycles=solved.prologue_cycles,
            epilogue_cycles=solved.epilogue_cycles,
            drain_cycles=solved.drain_cycles,
            # TMA cuts every store off at its group's end.
            plain_elements=np.zeros(units.shape),
            overlapped=solved.overlapped,
            refilled=solved.refilled,
            dram_bytes=_dram_bytes(t, g, shape, element, device),
            dram_latency_cycles=solved.dram_latency_cycles,
            filled_bytes=np.zeros(units.shape),
            split_k=np.ones(units.shape),
            split_rounds=np.zeros(units.shape),
            reduced_bytes=np.zeros(units.shape),
            reduction_trips=np.zeros(units.shape),
            narrow=np.zeros(units.shape),
            streamed=np.zeros(units.shape),
            fix_up_cycles=np.zeros(units.shape),
            launch_dependents=np.zeros(units.shape),
            early_part=np.zeros(units.shape),
        ),
        g,
    )


def _most_rows(shape: GroupedShape) -> int:
    """Of one group's result."""
    return shape.n if shape.product == "wgrad" else max(shape.sizes)


def busiest_trips(units: Ints, iterations: Ints, resident: int) -> int:
    """Loop iterations of the busiest of ``resident`` CTAs, of which CTA p runs units p, p + ``resident``, …

    Group g has ``units``\\ [g] successive units of ``iterations``\\ [g] each. Its units go round the CTAs some whole
    times, and once more over a cyclic range of them: sums over ranges are prefix sums of differences.
    """
    first = (np.cumsum(units) - units) % resident
    whole, rest = np.divmod(units, resident)
    change = np.zeros(2 * resident + 1, dtype=np.int64)
    np.add.at(change, first, iterations)
    np.add.at(change, first + rest, -iterations)
    once = np.cumsum(change)
    return int(whole @ iterations + (once[:resident] + once[resident : 2 * resident]).max())


def _busiest(t: CandidateTable, shape: GroupedShape) -> Floats:
    """:func:`busiest_trips` of every row of ``t``, a K block of which not all steps run counted as a part
    (for the latency of its copy too, which is a whole one's): computed once for each block size."""
    blocks = np.stack([t.block_m, t.block_n, t.block_k, t.ctas_per_sm], axis=1)
    distinct, row_of = np.unique(blocks, axis=0, return_inverse=True)
    sizes = np.array(shape.sizes, dtype=np.int64)
    found = []
    for block_m, block_n, block_k, ctas in distinct.tolist():
        if shape.product == "wgrad":
            units = np.full_like(sizes, -(-shape.n // block_m) * -(-shape.k // block_n))
            depth = sizes
        else:
            columns, each = (shape.n, shape.k) if shape.product == "forward" else (shape.k, shape.n)
            units = -(-sizes // block_m) * -(-columns // block_n)
            depth = np.full_like(sizes, each)
        step = int(k_step(np.array(block_k), shape.product))
        steps = np.maximum(1, -(-depth // step))
        found.append(busiest_trips(units, steps, t.sm_count * ctas) * step / block_k)
    return np.array(found)[row_of.reshape(-1)]


def _unaligned(t: CandidateTable, shape: GroupedShape, element: int) -> Floats:
    """The part of each row's loaded bytes that lies in matrix rows of no whole cache lines."""
    left, right = shape.k if shape.product == "forward" else shape.n, shape.k
    straddling = t.block_m * float(left * element % LINE_BYTES != 0) + t.block_n * float(
        right * element % LINE_BYTES != 0
    )
    return np.asarray(straddling / (t.block_m + t.block_n))


def _dram_bytes(t: CandidateTable, g: GroupGrid, shape: GroupedShape, element: int, device: Device) -> Floats:
    """Compulsory traffic, plus what the tile order makes L2 forget: group by group as a plain product's (gemm's
    ``work``). Nothing is loaded for an empty group."""
    resident = L2_RESIDENT * device.l2_bytes
    there = (g.sizes > 0).astype(np.float64)
    a_bytes = there * g.rows * g.depth * element
    b_bytes = there * g.columns * g.depth * element
    c_bytes = g.rows.astype(np.float64) * g.columns * RESULT_BYTES
    band = g.group_m[:, None]
    strips = np.ceil(g.row_tiles / band)
    strip_bytes = np.minimum(band * t.block_m[:, None], g.rows).astype(np.float64) * g.depth * element
    waves = np.maximum(1.0, band * g.column_tiles[:, None] / (t.sm_count * t.ctas_per_sm)[:, None])
    forgotten_b = np.clip((b_bytes + strip_bytes) / resident - 1.0, 0.0, 1.0)
    forgotten_a = np.clip(strip_bytes / resident - 1.0, 0.0, 1.0)
    again = b_bytes * np.maximum(0.0, strips - 1.0) * forgotten_b + a_bytes * (waves - 1.0) * forgotten_a
    return np.asarray((a_bytes + b_bytes + c_bytes + again) @ g.count.astype(np.float64))
