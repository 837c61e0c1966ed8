"""What one block of a kernel without a partition takes on an SM: its operations issued in order, priced by a profile.

The warps of such a block run one program: an operation is issued when those before it have been and what it reads is
there; a unit works for one operation at a time; what was copied ahead is there already (memory that cannot deliver in
time is the part of :mod:`~warpplan.kernels.compiler.costing.pipelined.launch_time`). Played for a few iterations, the
cycles between two ends are the loop's *serial* interval: the least with one block on the SM. Several blocks fill each
other's waits until a unit is full, which ``busy`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import UNIT
from warpplan.kernels.compiler.costing.loop_graph import Cost, meeting_cycles
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, LoopFacts, WorkFacts
from warpplan.kernels.compiler.costing.pipelined.pointer_costs import lsu_cycles, missing_points, price
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.profile import Profile

PLAYED = 6
"""Iterations that are played; the interval is the mean of the last half. Doubled: the same, to a cycle."""

SCHEDULERS = "SCHEDULERS"
"""The unit that every instruction passes, whichever it goes to: one a cycle from each of an SM's four schedulers, so
that blocks on one SM share what each takes to issue (CUDA C++ Programming Guide, "Compute Capability 9.x")."""

WARP_CYCLES = 40.0
"""Of :data:`SCHEDULERS`, what each warp issues in an iteration that copies ahead, whatever its tile: addresses,
predicates, barriers. Measured: blocks of 4 and 8 warps on the smallest tiles of
``benchmarks/results/moe_samples_h100.json`` take 41 cycles a warp."""
PLAIN_WARP_CYCLES = 2.5
"""The same of any other iteration: its counter, comparison and branch, ten instructions on one of four schedulers.
Estimated."""


@dataclass(frozen=True)
class LoopPrice:
    """Of one iteration, in SM cycles and bytes: ``busy`` of the unit with most work; ``ring_bytes`` copied ahead,
    ``copied`` by threads rather than TMA, ``loaded_bytes`` read in all; latencies of the slowest copy. ``wgmma`` is
    whether it multiplies, ``flying`` whether none of its products is waited for within the iteration."""

    serial_cycles: float
    busy_cycles: float
    ring_bytes: int
    copied: bool
    loaded_bytes: int
    latency_l2: float
    latency_dram: float
    wgmma: bool
    flying: bool
    flops: int
    element: str


@dataclass(frozen=True)
class BlockPrice:
    """``prologue_cycles`` until the first loop, of which the busiest unit works ``prologue_busy``; ``epilogue_cycles``
    from the end of the last, with ``epilogue_busy``. ``stored_bytes`` of the body. ``missing`` are kinds of
    :data:`~warpplan.kernels.compiler.costing.pipelined.pointer_costs.WANTED` that were priced by a fall-back."""

    loops: tuple[LoopPrice, ...]
    prologue_cycles: float
    prologue_busy: float
    epilogue_cycles: float
    epilogue_busy: float
    stored_bytes: int
    warps: int
    missing: tuple[str, ...]


def block_price(facts: KernelFacts, profile: Profile) -> BlockPrice:
    """``facts`` priced by ``profile``. Pure."""
    costs = profile.costs
    loops = tuple(_loop(loop, costs, facts.warps) for loop in facts.loops)
    first, first_busy, end, busy = _body(facts.body, costs, facts.warps)
    every = (*facts.body, *(w for loop in facts.loops for w in loop.work))
    missing = {kind for w in every if (kind := missing_points(w, costs)) is not None}
    stored = sum(w.moved_bytes for w in facts.body if w.kind in ("store", "tma_store"))
    return BlockPrice(loops, first, first_busy, end, busy, stored, facts.warps, tuple(sorted(missing)))


def _loop(loop: LoopFacts, costs: CostTable, warps: int) -> LoopPrice:
    prices = [price(w, costs, warps) for w in loop.work]
    meeting = float(meeting_cycles(costs)) if loop.ring_bytes else 0.0
    serial = _serial(loop.work, prices, meeting)
    ahead = [w for w in loop.work if w.ahead]
    busy = _busy(loop.work, prices, warps, WARP_CYCLES if ahead else PLAIN_WARP_CYCLES)
    products = [w.product for w in loop.work if w.product is not None]
    return LoopPrice(
        serial, max(busy.values()), loop.ring_bytes, any(w.kind == "load" for w in ahead), loop.loaded_bytes,
        max((price(w, costs, warps, "l2").latency for w in ahead), default=0.0),
        max((price(w, costs, warps, "dram").latency for w in ahead), default=0.0),
        loop.uses_wgmma, bool(products) and all(w.flying for w in loop.work if w.product is not None),
        sum(p.flops for p in products), products[0].element if products else "",
    )  # fmt: skip


def _busy(work: Sequence[WorkFacts], prices: Sequence[Cost], warps: int, each: float = 0.0) -> dict[str, float]:
    """Cycles of each unit where other blocks fill every wait: of what a price says bytes count alone, not what passes
    before the first of them. ``each`` is what every warp issues beside."""
    found = {SCHEDULERS: each * warps}
    for w, cost in zip(work, prices, strict=True):
        unit = UNIT[w.kind]
        if unit == "LSU":
            found[unit] = found.get(unit, 0.0) + lsu_cycles(w, warps)
        else:
            found[unit] = found.get(unit, 0.0) + cost.occupancy
            found[SCHEDULERS] += cost.issue
    return found


def _serial(work: Sequence[WorkFacts], prices: Sequence[Cost], meeting: float) -> float:
    """Cycles an iteration of a block that has the SM to itself."""
    ends = []
    ready: dict[tuple[int, int], float] = {}
    free: dict[str, float] = {}
    clock = 0.0
    for r in range(PLAYED):
        clock += meeting
        for i, (w, cost) in enumerate(zip(work, prices, strict=True)):
            for j, distance in w.needs:
                if not (i == j and w.flying) and not work[j].ahead:
                    clock = max(clock, ready.get((r - distance, j), 0.0))
            unit = UNIT[w.kind]
            begin = max(clock, free.get(unit, 0.0)) if cost.occupancy else clock
            free[unit] = begin + cost.occupancy
            ready[r, i] = begin + cost.latency
            clock += cost.issue
        ends.append(max(clock, *free.values(), 0.0) if free else clock)
    half = PLAYED // 2
    return (ends[-1] - ends[-1 - half]) / half


def _body(work: Sequence[WorkFacts], costs: CostTable, warps: int) -> tuple[float, float, float, float]:
    """Cycles until the first loop begins and the busiest unit's of them; those from the last one's end, likewise."""
    prices = [price(w, costs, warps) for w in work]
    loops = [i for i, w in enumerate(work) if w.kind == "loop"]
    first, last = (loops[0], loops[-1]) if loops else (len(work), len(work))
    needed = _needed_by(work, loops)
    before = [i for i in range(len(work)) if i in needed or (i < first and not _after(work, i, loops))]
    after = [i for i in range(len(work)) if i > last and i not in needed]
    begin = _play(work, prices, before)
    begin_busy = max(_busy([work[i] for i in before], [prices[i] for i in before], warps).values())
    if not loops:
        return begin, begin_busy, 0.0, 0.0
    units: dict[str, float] = {}
    for i in after:
        units[UNIT[work[i].kind]] = units.get(UNIT[work[i].kind], 0.0) + prices[i].occupancy
    return begin, begin_busy, _play(work, prices, after), max(units.values(), default=0.0)


def _needed_by(work: Sequence[WorkFacts], targets: Sequence[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(targets)
    while waiting:
        for j, distance in work[waiting.pop()].needs:
            if distance == 0 and j not in found:
                found.add(j)
                waiting.append(j)
    return found - set(targets)


def _after(work: Sequence[WorkFacts], at: int, loops: Sequence[int]) -> bool:
    """Whether ``at`` depends on a loop."""
    return bool(set(loops) & _needed_by(work, [at]))


def _play(work: Sequence[WorkFacts], prices: Sequence[Cost], chosen: Sequence[int]) -> float:
    """Cycles that ``chosen`` take in order: until the last is issued, units are free and what was loaded is there."""
    clock = 0.0
    ready: dict[int, float] = {}
    free: dict[str, float] = {}
    for i in chosen:
        for j, distance in work[i].needs:
            if distance == 0:
                clock = max(clock, ready.get(j, 0.0))
        unit = UNIT[work[i].kind]
        begin = max(clock, free.get(unit, 0.0))
        free[unit] = begin + prices[i].occupancy
        ready[i] = begin + prices[i].latency
        clock += prices[i].issue
    loaded = (ready[i] for i in chosen if work[i].kind == "load")
    return max([clock, *free.values(), *loaded])
