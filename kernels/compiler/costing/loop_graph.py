"""A captured loop with costs: the dependence graph that the planner solves.

    TMA loads ──> consumer 0: its rows of every product and tile, in program order
              └─> consumer 1: the same on other rows

A consumer runs its operations one after the other, as the lowered code does: an operation is issued when the one
before has been, and a product that somebody waits for holds up everything after it. What overlaps is therefore loads
with arithmetic, the products of one consumer with the arithmetic of another, a product issued early (lookahead) with
the arithmetic of the iteration before, and one that is put off (overlap) with that of the next. Without specialisation
one partition does it all, and its warps meet once an iteration, when a slot may be filled again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from warpplan.kernels.compiler.analysis.capture import Body, producer_slice
from warpplan.kernels.compiler.analysis.copies.bank_conflicts import PASS_BYTES, READ_CYCLES
from warpplan.kernels.compiler.analysis.copies.producer_size import LEAST_REGISTERS, PRODUCER_WARPS
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import LONGEST_EARLY, RING_KINDS, UNIT, Part, Product
from warpplan.kernels.compiler.costing.copy_costs import copy_cost, lookups
from warpplan.kernels.compiler.lowering.assigned.converter_size import CONVERTER_WARPS
from warpplan.kernels.compiler.lowering.register_shares import consumer_registers
from warpplan.planner.errors import MissingCosts
from warpplan.planner.problem.clones import MARK, data_partition
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device

THREADS = 32
"""Of a warp."""
AGAIN = ".again"
"""After the id of what the producer does, where the consumers do it, too."""
TMA_ALIGNMENT = 1_024
"""A tile swizzled by 128 bytes repeats every 1,024 (CUDA Driver API, ``CUtensorMapSwizzle``)."""
MMA_ROWS, MMA_K_BYTES, MMA_COLUMNS = 64, 32, 256
"""wgmma's m, bytes of k, and widest n (PTX ISA, "wgmma.mma_async")."""
SYNC_ROWS, SYNC_COLUMNS, TENSOR_CORES = 16, 8, 4
"""mma.sync's m and n (PTX ISA, "mma.m16n8k16"), and the tensor cores of an SM, of which each serves every fourth
warp."""
MANY_COLUMNS = 256
"""Of a warp's sums side by side: none waits for itself, as measured."""
BASE_REGISTERS = 24
"""Registers a thread of every partition before any value: the least that ``setmaxnreg`` takes (PTX ISA)."""
MOST_REGISTERS = 240
"""Registers a thread at most: what two consumer warp groups get of 65,536 next to a producer of 24 (FlashAttention-3's
kernels use the same two numbers)."""
TIMES_WGMMA = {"wgmma": 1.0, "mma": 2.0, "tcgen05": 0.5}
"""A product's time over wgmma's: of mma.sync, which reaches about half of its rate, where a profile lacks it; a B200's
data sheet has twice an H200's dense operations a cycle and SM (2,250 TFLOP/s on 148 SMs, 989 on 132)."""
WIDENED = ("widen_fp8_float16", "widen_fp8_bfloat16", "widen_int8_float16", "widen_int8_bfloat16")
"""Conversions of 8-bit operands to the 16-bit floats that are multiplied."""
STANDS_IN = {**dict.fromkeys(WIDENED, "convert"), "convert_fp8": "convert", "ldmatrix": "shared_load"}
"""What a profile that was recorded before a kind was known has in its place."""
ESTIMATED_RATES: dict[str, tuple[float, float]] = {
    "tma_load": (600, 64.0), "tma_store": (180, 32.0), "elementwise": (24, 128.0), "convert": (24, 32.0),
    "exp2": (40, 16.0), "row_max": (60, 64.0), "row_sum": (60, 64.0), "shared_load": (30, 128.0),
    "shared_store": (0, 128.0), "epilogue_store": (100, 64.0), "tmem_load": (30, 512.0), "tmem_store": (30, 512.0),
}  # fmt: skip
"""Latency in cycles and elements or bytes a cycle and SM of kinds that a profile lacks: the rates of the CUDA C++
Programming Guide ("Arithmetic Instructions"), 128 bytes a cycle of shared memory, and, assumed, one column of tensor
memory, 4 bytes in each of 128 lanes."""


@dataclass(frozen=True)
class Cost:
    """In SM cycles. ``estimated``: at least one part was not measured as what it is."""

    latency: float = 0.0
    occupancy: float = 0.0
    issue: float = 0.0
    spread: float = 0.0
    estimated: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.latency + other.latency, self.occupancy + other.occupancy, self.issue + other.issue,
            self.spread + other.spread, self.estimated or other.estimated,
        )  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """How a loop is shared out: ``consumers`` partitions of ``warps`` warps and a producer, or, where
    ``specialized`` is false, one partition that does it all. ``in_flight``: a product that nobody waits for within the
    loop runs on while the next is issued, and one that needs nothing but loads is issued an iteration early.
    ``producer_registers`` are those of a thread of the producer. ``blocks`` of the specialised kernel run on one SM at
    once. Under an assignment there are ``extra_partitions``, the converters among them with ``converter_registers`` a
    thread each."""

    consumers: int = 1
    warps: int = 4
    specialized: bool = True
    in_flight: bool = True
    producer_registers: int = LEAST_REGISTERS
    blocks: int = 1
    converter_registers: tuple[int, ...] = ()
    extra_partitions: int = 0


def loop_graph(
    loop: Body, shape: Shape, costs: CostTable, device: Device, *, source: str = "dram", smem_bytes: int | None = None
) -> DependenceGraph:
    """The dependence graph of ``loop`` under ``shape``; loads come from ``source``, "l2" or "dram".

    Latencies are medians, ``spread`` what the 90th percentile adds. Costs that the profile lacks are estimated; see
    :func:`estimated`.
    """
    produced = producer_slice(loop) if shape.specialized else frozenset(w.id for w in loop.of_kind(*RING_KINDS))
    ops: list[Operation] = []
    consumed: list[Operation] = []
    waits: dict[str, int] = {}
    products = loop.of_kind("dot")
    flying = {w.id for w in products if shape.in_flight and in_flight(loop, w, specialized=shape.specialized)}
    if shape.specialized and len(flying) < len(products):
        flying = set()  # one that is waited for ends those before it
    copying = shape.specialized and bool(loop.of_kind("copy_load"))
    for work in loop.work:
        whole = replace(shape, consumers=1, warps=CONVERTER_WARPS) if work.partition else shape
        cost = cost_of(work, costs, whole, source)
        op = operation_of(work, cost, whole)
        if work.id in produced:
            # Addresses of copies have their registers counted by the formula that says how many the producer gets.
            registers = 0 if copying or work.kind in RING_KINDS else op.registers
            warps = (
                PRODUCER_WARPS
                if copying and not work.partition and work.kind != "tma_load" and work.shape
                else op.min_warps
            )
            ops.append(replace(op, registers=registers, min_warps=warps))
            if work.kind == "copy_load" and not shape.specialized:
                # Its instructions stand in the order of the one partition, and are issued once.
                issued = Operation(f"{work.id}.issue", None, op.issue, 0, op.issue)
                ops[-1] = replace(ops[-1], issue=0)
                consumed.append(issued)
                waits[issued.id] = op.issue
            if work.kind in RING_KINDS or not read_by_consumers(loop, work.id, produced):
                continue
            op = replace(op, id=f"{work.id}{AGAIN}")
        consumed.append(op)
        awaited = work.kind == "dot" and work.id not in flying and not loop.overlapped
        waits[op.id] = op.latency if awaited else op.issue
    if not shape.specialized:
        meet = meeting_cycles(costs)
        consumed.append(Operation("meet", None, meet, 0, meet))
        waits["meet"] = meet
    ids = {op.id for op in consumed}
    edges = [edge for flow in loop.flows for edge in edges_of(flow, ids, ops, consumed)]
    early = lookups(loop)
    if copying:
        elsewhere = {work.id for work in loop.work if work.partition}
        copiers = [op for op in ops if op.id not in elsewhere]
        edges += in_order(
            copiers, {op.id: op.issue for op in copiers}, early
        )  # all its warps copy, instruction by instruction
    for number in sorted({work.partition for work in loop.of_kind("converted")}):
        mine = {work.id for work in loop.work if work.partition == number}
        converting = [op for op in ops if op.id in mine]
        edges += in_order(converting, {op.id: op.issue for op in converting})
    edges += in_order(consumed, waits, early) if not shape.specialized else _early(loop, shape, consumed, waits, costs)
    limits = Limits(
        max_partitions=1 + shape.consumers + shape.extra_partitions if shape.specialized else 1,
        smem_bytes=device.smem_bytes_per_block if smem_bytes is None else smem_bytes,
        registers=device.registers_per_sm,
        handoff_cycles=handoff(costs) if shape.specialized else 0,
        base_registers=BASE_REGISTERS,
        architecture="hopper" if device.has_wgmma else "any",
    )
    name = f"{loop.id}, {shape.consumers} x {shape.warps} warps" + ("" if shape.specialized else ", not specialised")
    graph = DependenceGraph(name, (*ops, *consumed), unique(edges), limits)
    return data_partition(graph, [op.id for op in consumed], shape.consumers) if shape.consumers > 1 else graph


def _early(
    loop: Body, shape: Shape, consumed: list[Operation], waits: dict[str, int], costs: CostTable
) -> list[Dependence]:
    """The order of a consumer's operations, some of which it issues when the iteration before their own begins.

    Where its loop is not unrolled, what has been read ahead is moved to other registers at the end of the iteration, so
    waited for there, and so is a lone product.
    """
    lookahead = lookahead_product(loop) if shape.in_flight else None
    vectors = early_vectors(loop)
    products = loop.of_kind("dot")
    ahead = frozenset(op.id for op in consumed if op.id == lookahead or op.id.removesuffix(AGAIN) in vectors)
    loads = {work.id for work in loop.of_kind("load")}
    waited = [op.id for op in consumed if op.id in ahead and op.id.removesuffix(AGAIN) in loads]
    edges = []
    if lookahead is not None:
        waits[lookahead] = next(op.issue for op in consumed if op.id == lookahead)
        if len(products) == 1:
            landed = _landed(products[0], shape, costs)
            waits[landed.id] = landed.issue
            consumed.insert(0, landed)
            waited.append(lookahead)
            edges.append(Dependence(landed.id, lookahead, 1, "token"))
    first = next((op.id for op in consumed if op.id not in ahead), None)
    if first is not None and (lookahead is not None or len(products) > 1):
        edges += [Dependence(op, first, 0, "token") for op in waited]
    if first is not None and loop.overlapped:
        edges.append(Dependence(products[-1].id, first, 1, "token"))  # it has landed where the iteration ends
    return [*edges, *in_order(consumed, waits, ahead)]


def _landed(work: LoopWork, shape: Shape, costs: CostTable) -> Operation:
    """The end of the only product of a loop, ``work``, that is issued an iteration early: it is moved to the registers
    that the next iteration reads before the product after it is issued, an instruction a register (ptxas of Triton
    3.6.0, in the code of a block-scaled fp8 GEMM)."""
    assert work.product is not None
    size = work.product.m * work.product.n // (shape.consumers if work.rows else 1)
    moved = _part(Part("elementwise", size), size, costs, "l2")
    return Operation(
        f"{work.id}.landed", UNIT["elementwise"], round(moved.latency), round(moved.occupancy), round(moved.issue),
        min_warps=shape.warps,
    )  # fmt: skip


def pinned(graph: DependenceGraph, loop: Body, shape: Shape) -> dict[str, int]:
    """The partition of each operation: consumers first, the producer last."""
    if not shape.specialized:
        return {}
    produced = producer_slice(loop)
    number_of = {work.id: work.partition for work in loop.work}
    return {
        op.id: shape.consumers + number_of[op.id]
        if op.id in produced
        else int(op.id.rpartition(MARK)[2])
        if shape.consumers > 1
        else 0
        for op in graph.ops
    }


def estimated(loop: Body, costs: CostTable) -> tuple[str, ...]:
    """The operations of ``loop`` whose cost was not measured as what they are."""
    return tuple(work.id for work in loop.work if cost_of(work, costs, Shape()).estimated)


def in_flight(loop: Body, product: LoopWork, *, specialized: bool = True) -> bool:
    """Whether nobody but the next iteration's same product wants the result within the loop, which counts, and no
    operand is written to shared memory in the loop by those who multiply: there is one place for such an operand, so
    that the product ends before the next one is written. Triton's own pipeline (``specialized`` false) has several
    places for what is loaded through pointers, too, and multiplies from registers. Warps issue an mma.sync out of
    registers, and go on."""
    readers = [flow for flow in loop.flows if flow.src == product.id and flow.kind == "data"]
    alone = loop.kind == "scf.for" and all(flow.dst == product.id and flow.accumulates for flow in readers)
    if product.product is not None and product.product.tensor_cores == "mma":
        return alone
    by_id = {work.id: work for work in loop.work}
    operands = [
        by_id[flow.src] for flow in loop.flows
        if flow.dst == product.id and flow.kind == "data" and not flow.accumulates and not flow.distance
    ]  # fmt: skip
    if specialized:
        return alone and all(work.kind in RING_KINDS for work in operands)
    return alone and not any(work.kind == "shared_store" for work in operands)


def lookahead_product(loop: Body) -> str | None:
    """The product that :mod:`~...lowering.hopper.issue_order.lookahead` issues an iteration early: the only one, or the
    first of several where the last is what the loop carries, if it needs nothing but its own loads."""
    products = loop.of_kind("dot")
    if not products or loop.kind != "scf.for" or loop.overlapped:
        return None
    first, last = products[0], products[-1]
    loads = {work.id for work in loop.of_kind(*RING_KINDS)}
    reads = [flow for flow in loop.flows if flow.dst == first.id and flow.kind == "data"]
    mine = {flow.src for flow in reads}
    only_loads = bool(reads) and mine <= loads and all(flow.distance == 0 for flow in reads)
    shared = any(flow.src in mine and flow.dst != first.id for flow in loop.flows)
    carried = any(flow.src == first.id and flow.distance for flow in loop.flows)
    kept = first is last or any(flow.src == last.id and flow.distance for flow in loop.flows)
    return first.id if only_loads and not shared and not carried and kept else None


def early_vectors(loop: Body) -> frozenset[str]:
    """The small loads of consumers that :mod:`~...lowering.slices.early_lookups` issues an iteration early, and what
    their addresses need; none of a loop that writes to memory, or holds another or a branch."""
    if loop.kind != "scf.for" or loop.of_kind("store", "tma_store", "loop") or any(w.conditional for w in loop.work):
        return frozenset()
    if loop.vectors_in_place:
        return frozenset()
    kinds = {work.id: work.kind for work in loop.work}
    found: set[str] = set()
    for load in loop.of_kind("load"):
        if load.shape and not prod(load.shape) == max(load.shape) <= LONGEST_EARLY:
            continue
        needed, before = _needed(loop, load.id, 0), _needed(loop, load.id, None)
        if all(kinds[work] == "elementwise" for work in before - {load.id}):
            found |= needed
    return frozenset(found)


def _needed(loop: Body, work: str, distance: int | None) -> set[str]:
    """``work`` and what it needs, of the same iteration where ``distance`` is 0, of any where it is ``None``."""
    needed, waiting = {work}, [work]
    while waiting:
        at = waiting.pop()
        more = {f.src for f in loop.flows if f.dst == at and (distance is None or f.distance == distance)} - needed
        needed |= more
        waiting += more
    return needed


def kept_apart(loop: Body) -> frozenset[str]:
    """What is not to be fused with its neighbours, for it is done at another time: by the producer, or early."""
    return producer_slice(loop) | early_vectors(loop)


def cost_of(work: LoopWork, costs: CostTable, shape: Shape = Shape(), source: str = "l2") -> Cost:
    """What one consumer's share of ``work`` costs."""
    share = shape.consumers if work.rows and work.kind not in RING_KINDS else 1
    if work.product is not None:
        return _product(work.product, costs, share, shape.warps)
    if work.kind == "loop":
        return Cost(estimated=True)  # as long as its trips take, which are not known
    conflicts = work.passes[0 if shape.specialized else 1]
    if work.kind == "copy_load":
        return _copy(work, costs, source, conflicts)
    total = Cost()
    for part in work.parts:
        total += _part(part, max(1, part.size // share), costs, source)
    if conflicts > 1:
        # The cost of a read as it was measured holds the first pass.
        more = READ_CYCLES * (conflicts - 1) * work.parts[0].size / share / PASS_BYTES
        total += Cost(more, more, more)
    if work.kind == "load":
        # 16 bytes a thread and instruction, four cycles each to issue.
        instructions = -(-max(1, work.parts[0].size // share) // (16 * THREADS * shape.warps))
        total = replace(total, issue=4.0 * instructions)
    return total


def _copy(work: LoopWork, costs: CostTable, source: str, conflicts: float) -> Cost:
    try:
        found, issue, is_estimated = copy_cost(work, costs, source, conflicts)
    except MissingCosts:
        whole = _part(Part("tma_load", work.parts[0].size), work.parts[0].size, costs, source)
        return replace(whole, estimated=True)
    latency = _median(found.latency)
    spread = max(0.0, found.latency.p90 - found.latency.p50) if found.latency is not None else 0.0
    busy = issue if is_estimated else max(issue, _median(found.occupancy))
    return Cost(latency + issue, busy, issue, spread, is_estimated)


def _part(part: Part, size: int, costs: CostTable, source: str) -> Cost:
    text = {"source": source} if part.kind == "tma_load" else {}
    try:
        found = costs.lookup(part.kind, size, **text)
    except MissingCosts:
        if (other := STANDS_IN.get(part.kind)) is not None:
            return _part(replace(part, kind=other, estimated=True), size, costs, source)
        latency, rate = ESTIMATED_RATES.get(part.kind, ESTIMATED_RATES["elementwise"])
        busy = size / rate
        return Cost(part.times * busy + latency, part.times * busy, part.times * busy, 0.0, True)
    issue = _median(found.issue)
    occupancy = _median(found.occupancy, issue)
    latency = _median(found.latency, occupancy)
    spread = max(0.0, found.latency.p90 - found.latency.p50) if found.latency is not None else 0.0
    # A pass after the first follows it through the unit.
    return Cost(
        latency + (part.times - 1) * occupancy, part.times * occupancy, part.times * issue, spread, part.estimated
    )


def _product(product: Product, costs: CostTable, share: int, warps: int) -> Cost:
    """All wgmma instructions of one consumer's rows, back to back. Its warp groups share out rows, then columns."""
    rows = product.m // share
    if product.tensor_cores == "mma" and (measured := _mma_sync(product, costs, rows, warps)) is not None:
        return measured
    groups = max(1, warps // 4)
    columns = groups // max(1, min(groups, rows // MMA_ROWS))
    each = min(MMA_COLUMNS, max(8, product.n // columns))
    dtype, cost = product.dtype, None
    for a in (product.a, "shared"):
        try:
            cost = costs.lookup("wgmma", each, dtype=dtype, a=a)
            break
        except MissingCosts:
            continue
    k = -(-product.k * product.element.element_bits // (8 * MMA_K_BYTES))
    # mma.sync takes 16 rows: of fewer than wgmma's it does no more than it has to, and holds the warps that issue it.
    synchronous = product.tensor_cores == "mma"
    tall = max(rows, SYNC_ROWS) / MMA_ROWS if synchronous else max(1, rows // MMA_ROWS)
    count = k * -(-product.n // each) * tall
    is_estimated = product.tensor_cores != "wgmma" or product.element.element not in ("bf16", "f16", "f8E4M3FN")
    if cost is None or cost.occupancy is None:
        # n / 2 cycles for 64 rows and 32 bytes of k (H100 whitepaper: 1,024 dense fp16 FMA a cycle and SM quarter).
        cost = OperationCost(Quantiles(each / 2 + 64, each / 2 + 64, 0), Quantiles(each / 2, each / 2, 0), None)
        is_estimated = True
    assert cost.occupancy is not None
    busy = TIMES_WGMMA[product.tensor_cores] * count * cost.occupancy.p50
    tail = max(0.0, _median(cost.latency, cost.occupancy.p50) - cost.occupancy.p50)
    spread = max(0.0, cost.latency.p90 - cost.latency.p50) if cost.latency is not None else 0.0
    issue = busy if synchronous else min(busy, count * _median(cost.issue))
    return Cost(busy + tail, busy, issue, spread, is_estimated or a != product.a)


def _mma_sync(product: Product, costs: CostTable, rows: int, warps: int) -> Cost | None:
    """All mma.sync instructions: warps share the accumulators out, and those of one tensor core alternate, so that
    together they wait for their sums as one warp does that has as many. While they wait they issue what is independent,
    as ptxas orders it. ``None`` without a measured ``mma``."""
    columns = max(SYNC_COLUMNS, max(rows, SYNC_ROWS) * product.n // (SYNC_ROWS * min(TENSOR_CORES, warps)))
    dtype = product.dtype if product.dtype != "float8_e4m3fn" else "float16"
    try:
        step, full = (costs.lookup("mma", n, dtype=dtype) for n in (columns, MANY_COLUMNS))
    except MissingCosts:
        return None
    k = -(-product.k * product.element.element_bits // (8 * MMA_K_BYTES))
    latency = k * _median(step.occupancy)
    busy = min(latency, k * columns * _median(full.occupancy) / MANY_COLUMNS)
    return Cost(latency, busy, busy, 0.0, product.element.element not in ("bf16", "f16"))


def operation_of(work: LoopWork, cost: Cost, shape: Shape) -> Operation:
    """``work`` as an operation of the planner's graph."""
    share = shape.consumers if work.rows else 1
    threads = THREADS * shape.warps
    registers = -(-work.register_bits // (32 * threads * share))
    tile = work.kind not in (*RING_KINDS, "loop") and bool(work.shape)
    return Operation(
        work.id,
        None if work.kind == "loop" else UNIT[work.kind],
        latency=round(cost.latency),
        occupancy=round(cost.occupancy),
        issue=round(cost.issue),
        min_warps=shape.warps if tile else 1,
        buffer_bytes=work.buffer_bytes,
        alignment=TMA_ALIGNMENT if work.buffer_bytes else 8,
        registers=0 if work.buffer_bytes else registers,
        spread=round(cost.spread),
    )


def edges_of(flow: Flow, ids: set[str], ops: list[Operation], consumed: list[Operation]) -> list[Dependence]:
    """``flow`` between ``ops``, the producer's, and ``consumed``, whose ids are ``ids``."""
    by_id = {op.id: op for op in (*ops, *consumed)}
    edges = []
    for dst in (flow.dst, f"{flow.dst}{AGAIN}"):
        if dst not in by_id:
            continue
        # What the consumers need of a producer's own arithmetic they compute themselves.
        src = f"{flow.src}{AGAIN}" if dst in ids and f"{flow.src}{AGAIN}" in ids else flow.src
        if dst not in ids and src in ids:
            continue
        source = by_id[src]
        follows = flow.accumulates and source.unit == "TENSOR"
        kind = "token" if flow.kind == "token" or not (source.registers or source.buffer_bytes) else "data"
        edges.append(
            Dependence(src, dst, flow.distance, kind, latency=source.occupancy if follows else None)  # type: ignore[arg-type]
        )
    return edges


def read_by_consumers(loop: Body, work: str, produced: frozenset[str]) -> bool:
    """Whether somebody reads ``work`` who is not ``produced``."""
    return any(flow.src == work and flow.dst not in produced for flow in loop.flows)


def in_order(consumed: list[Operation], waits: dict[str, int], ahead: frozenset[str] = frozenset()) -> list[Dependence]:
    """Each operation after the one before it, the first after the last of the iteration before.

    Those ``ahead`` are issued when the iteration before their own begins: after the last operation of the one before
    that.
    """
    order = [op.id for op in consumed if op.id not in ahead]
    early = [op.id for op in consumed if op.id in ahead]
    if not order:
        return []
    pairs = [
        *((a, b, 0) for a, b in pairwise(order)),
        (order[-1], order[0], 1),
        *((a, b, 0) for a, b in pairwise(early)),
    ]
    if early:
        pairs.append((order[-1], early[0], 2))
    return [Dependence(a, b, distance, "token", latency=waits[a]) for a, b, distance in pairs]


def unique(edges: list[Dependence]) -> tuple[Dependence, ...]:
    """Each of ``edges`` once."""
    return tuple(dict.fromkeys(edges))


def handoff(costs: CostTable) -> int:
    """Cycles from an arrival in one partition to the end of a wait in another."""
    found = [_lookup(costs, "handoff", scope) for scope in ("warp_to_group", "group_to_warp")]
    return round(max(_median(cost.latency, 60.0) for cost in found))


def meeting_cycles(costs: CostTable) -> int:
    """What all warps of a block spend on a full barrier and on telling each other that a slot is free."""
    ready = _median(_lookup(costs, "barrier_ready", "group").issue, 60.0)
    return round(ready + _median(_lookup(costs, "handoff", "group_to_group").latency, 70.0))


def _lookup(costs: CostTable, kind: str, scope: str) -> OperationCost:
    try:
        return costs.lookup(kind, scope=scope)
    except MissingCosts:
        return OperationCost()


def _median(quantiles: Quantiles | None, otherwise: float = 0.0) -> float:
    return quantiles.p50 if quantiles is not None else otherwise


def registers_for(shape: Shape, device: Device) -> int:
    """Registers a thread that a consumer can have, or the one partition that does it all."""
    if not shape.specialized:
        return min(device.registers_per_thread, device.registers_per_sm // (THREADS * shape.warps))
    return consumer_registers(
        shape.consumers * shape.warps,
        blocks=shape.blocks,
        producer_registers=shape.producer_registers,
        others=[(CONVERTER_WARPS, registers) for registers in shape.converter_registers],
    )
