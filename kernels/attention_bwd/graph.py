"""One block of queries of one unit as a dependence graph, and its plan; and the like of the kernel of dQ alone.

    load_q ─> s* ─> weigh*, exp*, convert* ─> dv* ──────────────> release_do*
    load_do ─> dp* ─> slope*, round* ─> store_ds* ═> dk* ─> release_q*
                                                   └─> dq* ─> store_dq* ═> reduce

with one of each * a warp group of the consumer, in the order in which the device code issues them; an operation follows
the one before once that is issued, a block the block before. At ═> all warp groups meet. All wgmma of an SM share one
TENSOR unit, all exponentials one SFU, the rest of the arithmetic one ALU. The kernel of dQ has neither store nor
meeting: its slopes are the left operand of the last product.

A reduction is priced as ``tma_reduce``, and where the profile has no such cost as a ``tma_store`` of as many bytes,
which moves the same bytes but adds nothing: a lower bound.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from warpplan.kernels import solved_loops
from warpplan.kernels.attention_bwd.space import ELEMENT_BYTES, MMA_ROWS, PRODUCER_REGISTERS, AttentionBwdConfig
from warpplan.kernels.attention_fwd.graph import (
    BARRIER_BYTES,
    TMA_ALIGNMENT,
    arithmetic_operation,
    blocked_cycles,
    handoff_cycles,
    load_operation,
    measured_cycles,
    product_operation,
)
from warpplan.kernels.gemm.space import WARP, WARP_GROUP
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import FREE_PARTITIONS, ExtraBuffer, PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome


def loop_graph(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> DependenceGraph:
    """The loop body of dK and dV (and of dQ where it is reduced) with Q and dO in L2. Raises :class:`MissingCosts`
    naming what the profile lacks."""
    c, reduces = config, config.dq == "reduce"
    groups = c.consumer_warps // WARP_GROUP
    ops = [load_operation(name, c.slot_bytes(ELEMENT_BYTES[dtype]), costs) for name in ("load_q", "load_do")]
    full, empty, meet = (handoff_cycles(costs, s) for s in ("warp_to_group", "group_to_warp", "group_to_group"))
    edges: list[Dependence] = []
    clones: list[tuple[str, ...]] = []
    for i in range(groups):
        own = _group_operations(c, dtype, costs, i)
        ops += own.values()
        clones.append(tuple(op.id for op in own.values()))
        edges += _data(c, i, groups, full, empty, meet)
        edges += _in_order(list(own.values()))
    if reduces:
        ops.append(_reduction(c, costs))
        for i in range(groups):
            edges.append(Dependence(f"store_dq{i}", "reduce", kind="token", handoff=meet))
            # The bytes that dQ passes through are free once the reduction has read them.
            edges.append(Dependence("reduce", f"store_ds{i}", 1, kind="token", handoff=meet))
    where = "registers" if c.ds_in_registers else "shared memory"
    name = f"attention_bwd {c.dq} D{c.head_dim} {c.keys}x{c.rows} {dtype}, dS in {where}, {c.ctas_per_sm} an SM"
    # The reduction is issued by one of the warp groups, which are then not alike.
    alike = tuple(clones) if groups > 1 and not reduces else ()
    return DependenceGraph(name, tuple(ops), tuple(edges), _limits(c, device, max(full, empty)), clones=alike)


def query_graph(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> DependenceGraph:
    """The loop body of the kernel of dQ alone: a block of keys. Raises as :func:`loop_graph`."""
    c, groups = config, config.consumer_warps // WARP_GROUP
    block, output = MMA_ROWS * c.rows, MMA_ROWS * c.head_dim
    size = 2 * c.rows * c.head_dim * ELEMENT_BYTES[dtype]
    full, empty = (handoff_cycles(costs, scope) for scope in ("warp_to_group", "group_to_warp"))
    ops, edges = [load_operation("load", size, costs)], list[Dependence]()
    clones: list[tuple[str, ...]] = []
    for i in range(groups):
        own = [
            product_operation(f"s{i}", costs, dtype, MMA_ROWS, c.rows, c.head_dim, "shared", block // 128),
            product_operation(f"dp{i}", costs, dtype, MMA_ROWS, c.rows, c.head_dim, "shared", block // 128),
            *_weights(costs, block, i),
            arithmetic_operation(f"slope{i}", "ALU", costs, "elementwise", 2 * block),
            arithmetic_operation(f"round{i}", "ALU", costs, "convert", block, block // 256),
            product_operation(f"dq{i}", costs, dtype, MMA_ROWS, c.head_dim, c.rows, "register", output // 128),
            _release(f"release{i}", costs),
        ]
        ops += own
        clones.append(tuple(op.id for op in own))
        flows = [("s", "weigh"), ("weigh", "exp"), ("exp", "slope"), ("dp", "slope"), ("slope", "round")]
        edges += [Dependence(f"{a}{i}", f"{b}{i}") for a, b in [*flows, ("round", "dq")]]
        edges += [Dependence("load", f"{name}{i}", handoff=full) for name in ("s", "dp", "dq")]
        edges += [Dependence(f"dq{i}", f"dq{i}", 1), Dependence(f"dq{i}", f"release{i}", kind="token")]
        edges += [Dependence("load", f"release{i}", handoff=empty), *_in_order(own)]
    name = f"attention_bwd dq D{c.head_dim} {c.keys}x{c.rows} {dtype}, {c.ctas_per_sm} an SM"
    alike = tuple(clones) if groups > 1 else ()
    return DependenceGraph(name, tuple(ops), tuple(edges), _limits(c, device, max(full, empty)), clones=alike)


def plan_candidate(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
    """The plan of ``config``: its partitions and its depth, with the smallest interval that they allow. Its certificate
    compares it with every other partition of the same operations. Raises :class:`MissingCosts` naming what the profile
    lacks."""
    graph, options = _query(config, dtype, device, costs)
    free = replace(graph, limits=replace(graph.limits, max_partitions=FREE_PARTITIONS))
    return solved_loops.certified(solved_loops.solved(graph, options), graph, options, free, config.depth)


def sustained_ii(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> int:
    """The interval in cycles that the plan of ``config`` sustains with its rings (``planner.solve.effective_ii``).
    Raises :class:`MissingCosts`."""
    return _sustained(*_query(config, dtype, device, costs), config.depth)


def sustained_query_ii(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> int:
    """The same of the kernel of dQ alone."""
    return _sustained(*_queries_query(config, dtype, device, costs), config.depth)


def reduction_cost(costs: CostTable, size: int) -> OperationCost:
    """Of adding ``size`` bytes to global memory by TMA. Raises :class:`MissingCosts`."""
    try:
        return costs.lookup("tma_reduce", size)
    except MissingCosts:
        return costs.lookup("tma_store", size)


def _sustained(graph: DependenceGraph, options: SolveOptions, depth: int) -> int:
    def compute() -> int:
        from warpplan.planner.solve import effective_ii

        outcome = solved_loops.solved(graph, options)
        assert outcome.plan is not None  # every structure of the table is feasible by construction
        return effective_ii(outcome.plan, depth)

    return solved_loops.derived(graph, options, "sustained_ii", compute)


def _query(
    config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable
) -> tuple[DependenceGraph, SolveOptions]:
    graph = loop_graph(config, dtype, device, costs)
    element = ELEMENT_BYTES[dtype]
    extra = [ExtraBuffer("held", 2 * config.held_bytes(element), TMA_ALIGNMENT)]
    if config.dq == "reduce":
        extra.append(ExtraBuffer("slopes", config.keys * config.rows * element, TMA_ALIGNMENT))
        extra.append(ExtraBuffer("staging", config.reduced_bytes, TMA_ALIGNMENT))
    return graph, _options(config, graph, 2 + 4 * config.depth, extra)


def _queries_query(
    config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable
) -> tuple[DependenceGraph, SolveOptions]:
    graph = query_graph(config, dtype, device, costs)
    extra = [ExtraBuffer("held", 2 * config.held_bytes(ELEMENT_BYTES[dtype]), TMA_ALIGNMENT)]
    return graph, _options(config, graph, 2 + 2 * config.depth, extra)


def _options(
    config: AttentionBwdConfig, graph: DependenceGraph, barriers: int, extra: list[ExtraBuffer]
) -> SolveOptions:
    """A partition for each warp group of the consumer, and one for the producer."""
    groups = config.consumer_warps // WARP_GROUP

    def partition(op: Operation) -> int:
        return groups if op.id.startswith("load") else 0 if op.id == "reduce" else int(op.id[-1])

    consumers = [PartitionSpec(f"consumer{i}", WARP_GROUP, config.consumer_registers) for i in range(groups)]
    return SolveOptions(
        depth=config.depth,
        pinned={op.id: partition(op) for op in graph.ops},
        partitions=(*consumers, PartitionSpec("producer", 1, PRODUCER_REGISTERS)),
        extra_buffers=(ExtraBuffer("barriers", barriers * BARRIER_BYTES, BARRIER_BYTES), *extra),
    )


def _limits(config: AttentionBwdConfig, device: Device, handoff: int) -> Limits:
    return Limits(
        1 + config.consumer_warps // WARP_GROUP,
        min(device.smem_bytes_per_block, device.smem_bytes_per_sm // config.ctas_per_sm),
        device.registers_per_sm // config.ctas_per_sm,
        handoff_cycles=handoff,
        base_registers=PRODUCER_REGISTERS,
        architecture="hopper",
    )


def _weights(costs: CostTable, block: int, i: int) -> list[Operation]:
    """A warp group's exponentials of ``block`` scores; they overwrite those, which live on until they are used."""
    return [
        arithmetic_operation(f"weigh{i}", "ALU", costs, "elementwise", block),
        arithmetic_operation(f"exp{i}", "SFU", costs, "exp2", block),
    ]


def _group_operations(config: AttentionBwdConfig, dtype: str, costs: CostTable, i: int) -> dict[str, Operation]:
    """A warp group's operations by kind, in the order in which they are issued."""
    c, groups = config, config.consumer_warps // WARP_GROUP
    block, threads = MMA_ROWS * c.rows, WARP * WARP_GROUP
    registers, gradient = block // threads, MMA_ROWS * c.head_dim // threads
    slopes = "register" if c.ds_in_registers else "shared"
    weigh, exp = _weights(costs, block, i)
    made = {
        "s": product_operation(f"s{i}", costs, dtype, MMA_ROWS, c.rows, c.head_dim, "shared", registers),
        "dp": product_operation(f"dp{i}", costs, dtype, MMA_ROWS, c.rows, c.head_dim, "shared", registers),
        "weigh": weigh,
        "exp": exp,
        "convert": arithmetic_operation(f"convert{i}", "ALU", costs, "convert", block, registers // 2),
        "dv": product_operation(f"dv{i}", costs, dtype, MMA_ROWS, c.head_dim, c.rows, "register", gradient),
        "slope": arithmetic_operation(f"slope{i}", "ALU", costs, "elementwise", 2 * block),
        "round": arithmetic_operation(f"round{i}", "ALU", costs, "convert", block, registers // 2),
    }
    if c.dq == "reduce":
        made["store_ds"] = _shared_store(f"store_ds{i}", costs, block * ELEMENT_BYTES[dtype])
    made["dk"] = product_operation(f"dk{i}", costs, dtype, MMA_ROWS, c.head_dim, c.rows, slopes, gradient)
    made["release_do"] = _release(f"release_do{i}", costs)
    if c.dq == "reduce":
        part = c.rows * c.head_dim // groups
        # 64 rows are one warp group's product, whose columns the groups share; of more, each has its own rows.
        columns = part // MMA_ROWS
        made["dq"] = product_operation(f"dq{i}", costs, dtype, MMA_ROWS, columns, c.keys, "shared", part // threads)
    made["release_q"] = _release(f"release_q{i}", costs)
    if c.dq == "reduce":
        made["store_dq"] = _shared_store(f"store_dq{i}", costs, c.reduced_bytes // groups)
    return made


def _data(config: AttentionBwdConfig, i: int, groups: int, full: int, empty: int, meet: int) -> list[Dependence]:
    """What a warp group's operations need of each other, of the loads and of the other groups."""
    flows = [("s", "weigh"), ("weigh", "exp"), ("s", "exp"), ("exp", "convert"), ("s", "convert"), ("convert", "dv")]
    flows += [("s", "slope"), ("exp", "slope"), ("dp", "slope"), ("dp", "round"), ("slope", "round"), ("round", "dk")]
    reduces = config.dq == "reduce"
    if reduces:
        flows += [("round", "store_ds"), ("dq", "store_dq")]
    edges = [Dependence(f"{a}{i}", f"{b}{i}") for a, b in flows]
    edges += [Dependence(f"{name}{i}", f"{name}{i}", 1) for name in ("dk", "dv")]
    edges += [Dependence("load_q", f"{name}{i}", handoff=full) for name in ("s", "dk")]
    edges += [Dependence("load_do", f"{name}{i}", handoff=full) for name in ("dp", "dv")]
    for load, product, release in (("load_q", "dk", "release_q"), ("load_do", "dv", "release_do")):
        edges.append(Dependence(f"{product}{i}", f"{release}{i}", kind="token"))
        # A release frees the slot: what crosses is the producer's leave to fill it again.
        edges.append(Dependence(load, f"{release}{i}", handoff=empty))
    if reduces:
        edges += [Dependence(f"store_ds{j}", f"dk{i}", kind="token", handoff=meet) for j in range(groups)]
        edges += [Dependence(f"store_ds{j}", f"dq{i}", kind="token", handoff=meet) for j in range(groups)]
        # The registers of P are those of dQ: the product before has read them.
        edges.append(Dependence(f"dv{i}", f"dq{i}", kind="token"))
    return edges


def _in_order(listed: list[Operation]) -> list[Dependence]:
    """Each operation follows the one before once that is issued, and a block the block before."""
    edges = [Dependence(a.id, b.id, kind="token", latency=a.issue) for a, b in pairwise(listed)]
    edges.append(Dependence(listed[-1].id, listed[0].id, 1, kind="token", latency=listed[-1].issue))
    return edges


def _release(name: str, costs: CostTable) -> Operation:
    blocked = blocked_cycles(costs.lookup("handoff", scope="group_to_warp"))
    return Operation(name, None, latency=0, occupancy=0, issue=blocked)


def _shared_store(name: str, costs: CostTable, size: int) -> Operation:
    """``size`` bytes from a warp group's registers; they are there once the stores are issued."""
    cost = costs.lookup("shared_store", size)
    issue = measured_cycles(cost.issue, f"shared_store(bytes={size}) issue")
    occupancy = measured_cycles(cost.occupancy, f"shared_store(bytes={size}) occupancy")
    return Operation(name, "LSU", latency=issue, occupancy=occupancy, issue=issue, min_warps=WARP_GROUP)


def _reduction(config: AttentionBwdConfig, costs: CostTable) -> Operation:
    size = config.reduced_bytes
    cost, label = reduction_cost(costs, size), f"tma_reduce(bytes={size})"
    return Operation(
        "reduce",
        "TMA",
        latency=measured_cycles(cost.latency, f"{label} latency"),
        occupancy=measured_cycles(cost.occupancy, f"{label} occupancy"),
        issue=blocked_cycles(cost),
    )
