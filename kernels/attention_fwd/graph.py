"""One block of keys of one unit as a dependence graph, and its plan.

    lookahead   load_k ─> qk(i)*, pv(i-1)* ──> release_k* ──> max* ──> exp* ──> sum*, convert* ──> release_v*, rescale*
    serial      load_k ─> qk(i)* ──> release_k* ──> max* ──> exp* ──> sum*, convert*, rescale* ──> pv(i)* ──> release_v*

with one of each * a consumer, in the order in which the device code issues them; a consumer's warps issue one after the
other, so that an operation follows the one before once that is issued. All wgmma of an SM share one TENSOR unit, all
exponentials one SFU and the rest of the softmax one ALU. ``exp`` overwrites the scores, which is why their registers
live until ``convert`` and it has none. By turns (ping-pong), a consumer issues its products after its neighbour's.
Masked blocks, of which a unit has one or two, cost what the others do. (With lookahead, ptxas of Triton 3.6.0 converts
to 16 bits after the wait for the product, which here comes before ``release_v``; to 8 bits it converts before.)
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from warpplan.kernels import solved_loops
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, MMA_ROWS, AttentionConfig
from warpplan.kernels.gemm.space import RESULT_BYTES, WARP_GROUP
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import FREE_PARTITIONS, ExtraBuffer, PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome

TMA_ALIGNMENT = 1_024
"""A tile swizzled by 128 bytes repeats every 1,024 (CUDA Driver API, ``CUtensorMapSwizzle``)."""
MMA_K_BYTES = 32
"""What a wgmma reduces over of each row: 16 elements of 16 bits, 32 of 8."""
BARRIER_BYTES = 8


def loop_graph(config: AttentionConfig, dtype: str, device: Device, costs: CostTable) -> DependenceGraph:
    """The loop body of ``config`` with K and V in L2. Raises :class:`MissingCosts` naming what the profile lacks.

    Latencies are medians; ``spread`` is what the 90th percentile adds, so that a ring is deep enough for it.
    """
    c = config
    ops = [load_operation(name, c.slot_bytes(ELEMENT_BYTES[dtype]), costs) for name in ("load_k", "load_v")]
    edges: list[Dependence] = []
    clones: list[tuple[str, ...]] = []
    full, empty = (handoff_cycles(costs, scope) for scope in ("warp_to_group", "group_to_warp"))
    for i in range(c.consumers):
        own = _consumer_operations(c, dtype, costs, i)
        ops += own.values()
        clones.append(tuple(op.id for op in own.values()))
        edges += _data(c, own, full, empty)
        edges += _in_order(c, own)
    if c.pingpong:
        edges += _turns(c, {op.id: op for op in ops}, handoff_cycles(costs, "group_to_group"))
    limits = Limits(
        1 + c.consumers,
        device.smem_bytes_per_block,
        device.registers_per_sm,
        handoff_cycles=max(full, empty),
        base_registers=config.producer_registers,
        architecture="hopper",
    )
    kind = ("lookahead" if c.lookahead else "serial") + (" pingpong" if c.pingpong else "")
    query = ", Q in registers" if c.q_in_registers else ""
    name = f"attention_fwd {kind} D{c.head_dim} {c.consumers}x{c.rows}x{c.columns} {dtype}{query}"
    # Turns have an order, so that consumers who take them are not alike.
    alike = tuple(clones) if c.consumers > 1 and not c.pingpong else ()
    return DependenceGraph(name, tuple(ops), tuple(edges), limits, clones=alike)


def plan_candidate(config: AttentionConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
    """The plan of ``config``: its partitions and its depth, with the smallest interval that they allow. Its certificate
    compares it with every other partition of the same operations. Raises :class:`MissingCosts` naming what the profile
    lacks."""
    graph, options = _query(config, dtype, device, costs)
    free = replace(graph, limits=replace(graph.limits, max_partitions=FREE_PARTITIONS))
    return solved_loops.certified(solved_loops.solved(graph, options), graph, options, free, config.depth)


def sustained_ii(config: AttentionConfig, dtype: str, device: Device, costs: CostTable) -> int:
    """The interval in cycles that the plan of ``config`` sustains with its rings (``planner.solve.effective_ii``).
    Raises :class:`MissingCosts`."""
    graph, options = _query(config, dtype, device, costs)

    def compute() -> int:
        from warpplan.planner.solve import effective_ii

        outcome = solved_loops.solved(graph, options)
        assert outcome.plan is not None  # every structure of the table is feasible by construction
        return effective_ii(outcome.plan, config.depth)

    return solved_loops.derived(graph, options, "sustained_ii", compute)


def _query(
    config: AttentionConfig, dtype: str, device: Device, costs: CostTable
) -> tuple[DependenceGraph, SolveOptions]:
    graph = loop_graph(config, dtype, device, costs)
    consumers = [PartitionSpec(f"consumer{i}", WARP_GROUP, config.consumer_registers) for i in range(config.consumers)]
    options = SolveOptions(
        depth=config.depth,
        pinned={op.id: config.consumers if op.unit == "TMA" else int(op.id[-1]) for op in graph.ops},
        partitions=(*consumers, PartitionSpec("producer", 1, config.producer_registers)),
        extra_buffers=_extra_buffers(config, dtype),
    )
    return graph, options


def _consumer_operations(config: AttentionConfig, dtype: str, costs: CostTable, i: int) -> dict[str, Operation]:
    """A consumer's operations by kind, in the order in which they are issued."""
    c = config
    scores, output = c.rows * c.columns, c.rows * c.head_dim
    query = "register" if c.q_in_registers else "shared"
    release = blocked_cycles(costs.lookup("handoff", scope="group_to_warp"))
    element = ELEMENT_BYTES[dtype]
    weights = c.score_registers * element // 4
    # 8-bit weights change registers once the product has read those before: a move is taken to cost what a multiply-add
    # does.
    moved = scores // 4 if element == 1 and c.lookahead else 0
    made = {
        "qk": product_operation(f"qk{i}", costs, dtype, c.rows, c.columns, c.head_dim, query, c.score_registers),
        "pv": product_operation(f"pv{i}", costs, dtype, c.rows, c.head_dim, c.columns, "register", c.output_registers),
        "release_k": Operation(f"release_k{i}", None, latency=0, occupancy=0, issue=release),
        "max": arithmetic_operation(f"max{i}", "ALU", costs, "row_max", scores),
        "exp": arithmetic_operation(f"exp{i}", "SFU", costs, "exp2", scores),
        "sum": arithmetic_operation(f"sum{i}", "ALU", costs, "row_sum", scores),
        "convert": arithmetic_operation(f"convert{i}", "ALU", costs, conversion(dtype, costs), scores, weights),
        "release_v": Operation(f"release_v{i}", None, latency=0, occupancy=0, issue=release),
        "rescale": arithmetic_operation(f"rescale{i}", "ALU", costs, "elementwise", output + moved),
    }
    if c.lookahead:
        return made
    order = ("qk", "release_k", "max", "exp", "sum", "convert", "rescale", "pv", "release_v")
    return {kind: made[kind] for kind in order}


def _data(config: AttentionConfig, own: dict[str, Operation], full: int, empty: int) -> list[Dependence]:
    """What a consumer's operations need of each other and of the loads. With lookahead ``pv`` is that of the block
    before."""
    ids = {kind: op.id for kind, op in own.items()}
    behind = 1 if config.lookahead else 0
    flows = [("qk", "max", 0), ("qk", "exp", 0), ("max", "exp", 0), ("qk", "sum", 0), ("exp", "sum", 0)]
    flows += [("qk", "convert", 0), ("exp", "convert", 0), ("convert", "pv", behind)]
    # O is rescaled in place: it stays the product's value.
    flows += [("max", "rescale", 0), ("pv", "rescale", 1 - behind), ("pv", "pv", 1)]
    edges = [Dependence(ids[src], ids[dst], distance) for src, dst, distance in flows]
    edges.append(Dependence(ids["rescale"], ids["pv"], behind, kind="token"))
    edges += [
        Dependence(ids["qk"], ids["release_k"], kind="token"),
        Dependence(ids["pv"], ids["release_v"], kind="token"),
    ]
    edges.append(Dependence("load_k", ids["qk"], handoff=full))
    edges.append(Dependence("load_v", ids["pv"], behind, handoff=full))
    # A release frees the slot: what crosses is the producer's leave to fill it again.
    edges.append(Dependence("load_k", ids["release_k"], handoff=empty))
    edges.append(Dependence("load_v", ids["release_v"], behind, handoff=empty))
    return edges


def _in_order(config: AttentionConfig, own: dict[str, Operation]) -> list[Dependence]:
    """Each operation follows the one before once that is issued, and a block the block before; the serial scheme waits
    for P · V first."""
    listed = list(own.values())
    edges = [Dependence(a.id, b.id, kind="token", latency=a.issue) for a, b in pairwise(listed)]
    edges.append(Dependence(listed[-1].id, listed[0].id, 1, kind="token", latency=listed[-1].issue))
    return edges


def _turns(config: AttentionConfig, ops: dict[str, Operation], handoff: int) -> list[Dependence]:
    """A consumer's products are issued once its neighbour's are, the first one's after the last one's a block later."""
    return [
        Dependence(f"pv{i}", f"qk{(i + 1) % config.consumers}", int(i + 1 == config.consumers), "token",
                   ops[f"pv{i}"].issue, handoff)
        for i in range(config.consumers)
    ]  # fmt: skip


def conversion(dtype: str, costs: CostTable) -> str:
    """The kind of cost of rounding weights to ``dtype``. Where a profile lacks ``pack_fp8``, what the kernel does, that
    is taken to cost what Triton's own conversion does, which has an instruction more for each four numbers."""
    if ELEMENT_BYTES[dtype] > 1:
        return "convert"
    return "pack_fp8" if "pack_fp8" in costs.kinds() else "convert_fp8"


def load_operation(name: str, size: int, costs: CostTable) -> Operation:
    label = f"tma_load(bytes={size}, source=l2)"
    cost = costs.lookup("tma_load", size, source="l2")
    return Operation(
        name,
        "TMA",
        latency=measured_cycles(cost.latency, f"{label} latency"),
        occupancy=measured_cycles(cost.occupancy, f"{label} occupancy"),
        issue=blocked_cycles(cost),
        buffer_bytes=size,
        alignment=TMA_ALIGNMENT,
        spread=latency_spread(cost),
    )


def product_operation(
    name: str, costs: CostTable, dtype: str, rows: int, columns: int, depth: int, a: str, registers: int
) -> Operation:
    """All wgmma instructions of ``rows`` x ``columns`` over ``depth``, back to back; ``a`` is where the left operand
    lies."""
    label = f"wgmma(n={columns}, dtype={dtype}, a={a})"
    cost = costs.lookup("wgmma", columns, dtype=dtype, a=a)
    if cost.occupancy is None:
        raise MissingCosts([f"{label} occupancy"])
    count = depth * ELEMENT_BYTES[dtype] // MMA_K_BYTES * (rows // MMA_ROWS)
    occupancy = round(count * cost.occupancy.p50)
    last = measured_cycles(cost.latency, f"{label} latency") - round(cost.occupancy.p50)
    return Operation(
        name,
        "TENSOR",
        latency=occupancy + max(0, last),
        occupancy=occupancy,
        # The warps issue one instruction after the other, and never for longer than the unit takes.
        issue=min(occupancy, count * blocked_cycles(cost)),
        min_warps=WARP_GROUP,
        registers=registers,
        spread=latency_spread(cost),
    )


def arithmetic_operation(
    name: str, unit: str, costs: CostTable, kind: str, elements: int, registers: int = 0
) -> Operation:
    """``kind`` on a tile of ``elements``, measured for one warp group."""
    cost = costs.lookup(kind, elements)
    label = f"{kind}(elements={elements})"
    return Operation(
        name,
        unit,
        latency=measured_cycles(cost.latency, f"{label} latency"),
        occupancy=measured_cycles(cost.occupancy, f"{label} occupancy"),
        issue=measured_cycles(cost.issue, f"{label} issue"),
        min_warps=WARP_GROUP,
        registers=registers,
    )


def _extra_buffers(config: AttentionConfig, dtype: str) -> tuple[ExtraBuffer, ...]:
    """Barriers (full and empty of Q and of each slot, a turn a consumer for ping-pong), Q, and O where it has bytes of
    its own."""
    barriers = 2 + 4 * config.depth + (config.consumers if config.pingpong else 0)
    query, staging = (config.consumers * config.tile_bytes(size) for size in (ELEMENT_BYTES[dtype], RESULT_BYTES))
    extra = [
        ExtraBuffer("barriers", barriers * BARRIER_BYTES, BARRIER_BYTES),
        ExtraBuffer("query", query, TMA_ALIGNMENT),
    ]
    if config.staging == "own":
        extra.append(ExtraBuffer("staging", staging, TMA_ALIGNMENT))
    return tuple(extra)


def handoff_cycles(costs: CostTable, scope: str) -> int:
    return measured_cycles(costs.lookup("handoff", scope=scope).latency, f"handoff(scope={scope}) latency")


def blocked_cycles(cost: OperationCost) -> int:
    """Issue cycles; an issue too short to have been measured blocks nobody."""
    return round(cost.issue.p50) if cost.issue is not None else 0


def latency_spread(cost: OperationCost) -> int:
    return max(0, round(cost.latency.p90 - cost.latency.p50)) if cost.latency is not None else 0


def measured_cycles(measured: Quantiles | None, label: str) -> int:
    if measured is None:
        raise MissingCosts([label])
    return round(measured.p50)
