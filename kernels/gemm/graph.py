"""One K iteration of one tile as a dependence graph, and its plan.

    load_a*, load_b (TMA) ──> mma* (TENSOR) ──> release*          one mma and release a consumer

``mma`` stands for all wgmma instructions of one iteration: block_k / 16 steps of consumer_rows / 64 instructions. The
consumer keeps one group in flight, so ``release`` of iteration i frees the slots of iteration i − 1: it waits for the
mma of iteration i to be *issued* and for that of i − 1 to be *done*. That a slot is refilled only then is the ring's
depth, not an edge. All wgmma of an SM share one TENSOR unit, since one warp group's instruction keeps all four tensor
cores busy; a ping-pong graph holds one consumer alone, because its partner multiplies only while this one stores, and
two resident blocks take turns in the same way. Promoted sums add an operation a consumer, ``mma`` ──> ``promote``
(ALU), and the slots of iteration i are free once its own mma is done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from warpplan.kernels import solved_loops
from warpplan.kernels.gemm.space import (
    BASE_REGISTERS,
    ELEMENT_BYTES,
    PRODUCER_REGISTERS,
    RESULT_BYTES,
    SMEM_RESERVED_BYTES,
    WARP_GROUP,
    GemmConfig,
)
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import FREE_PARTITIONS, ExtraBuffer, PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome

TMA_ALIGNMENT = 1_024
"""A tile swizzled by 128 bytes repeats every 1,024 (CUDA Driver API, ``CUtensorMapSwizzle``)."""
MMA_ROWS = 64
MMA_K_BYTES = 32
BARRIER_BYTES = 8
UNLIMITED_BYTES = 1 << 30

Source = Literal["l2", "dram"]


def loop_graph(
    config: GemmConfig, dtype: str, device: Device, costs: CostTable, source: Source = "l2"
) -> DependenceGraph:
    """The loop body of ``config``, its operands in L2 or in DRAM. Raises :class:`MissingCosts` naming what the profile
    lacks.

    Latencies are medians; ``spread`` is what the 90th percentile adds, so that a ring is deep enough for it.
    """
    c, element = config, ELEMENT_BYTES[dtype]
    consumers = 1 if c.scheme == "pingpong" else c.consumers
    # A cooperative consumer multiplies its own rows of A by the whole of B.
    loads = [(_a(i, consumers), c.consumer_rows * c.block_k * element) for i in range(consumers)]
    loads.append(("load_b", c.block_n * c.block_k * element))
    ops = [_load(name, size, costs, source, c.cluster > 1 and name == "load_b") for name, size in loads]
    edges: list[Dependence] = []
    full = _handoff(costs, "warp_to_group") if c.specialized else 0
    empty = _handoff(costs, _release_scope(c)) if c.specialized else 0
    arrive = _blocked(costs.lookup("handoff", scope="group_to_warp")) if c.specialized else 0
    for i in range(consumers):
        mma, release = _consumer(c, dtype, costs, i, arrive)
        ops += [mma, release]
        for load in (_a(i, consumers), "load_b"):
            edges.append(Dependence(load, mma.id, handoff=full))
            # It frees the slot: what crosses is the producer's leave to fill it again.
            edges.append(Dependence(load, release.id, distance=0 if c.promoted else 1, handoff=empty))
        if c.promoted:
            promote = _promotion(c, costs, i)
            ops.append(promote)
            # The warps wait for the product, let its slot go, add it up, and only then issue the next one.
            edges.append(Dependence(mma.id, release.id, kind="token"))
            edges.append(Dependence(mma.id, promote.id))
            edges.append(Dependence(promote.id, promote.id, distance=1))
            edges.append(Dependence(promote.id, mma.id, distance=1, kind="token"))
            continue
        # Successive wgmma on one accumulator follow each other through the tensor cores without a gap.
        edges.append(Dependence(mma.id, mma.id, distance=1, latency=mma.occupancy))
        edges.append(Dependence(mma.id, release.id, kind="token", latency=mma.issue))
        edges.append(Dependence(mma.id, release.id, distance=1, kind="token"))
    partitions = 1 + c.consumers if c.specialized else 1
    promoted = " promoted" if c.promoted else ""
    cluster = f" cluster of {c.cluster}" if c.cluster > 1 else ""
    name = f"gemm {c.scheme} {c.block_m}x{c.block_n}x{c.block_k} {c.consumer_warps} warps {dtype}{promoted}{cluster}"
    limits = Limits(
        partitions,
        _smem_share(c, device),
        device.registers_per_sm // c.ctas_per_sm,
        handoff_cycles=max(full, empty),
        # One number for all partitions: what the least of them is dimensioned with.
        base_registers=PRODUCER_REGISTERS if c.specialized else BASE_REGISTERS,
        architecture="hopper",
    )
    return DependenceGraph(name, tuple(ops), tuple(edges), limits)


def plan_candidate(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
    """The plan of ``config``: its scheme's partitions and its depth, with the smallest interval that they allow.

    The interval is that of a ring of ``config.depth`` slots: a ring too short for its live range has already made it
    longer. A ping-pong plan lists both consumers; the second runs the first one's operations, half a turn later.
    Its certificate compares it with every other partition of the same tile. Raises :class:`MissingCosts` naming what
    the profile lacks.
    """
    graph, options = _candidate_query(config, dtype, device, costs)
    outcome = solved_loops.solved(graph, options)
    return solved_loops.certified(outcome, graph, options, free_graph(config, dtype, device, costs), config.depth)


def free_graph(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> DependenceGraph:
    """The loop of ``config`` as its free joint problem: the same operations, any of which may be in any partition.

    Crossing costs its hand-off whatever the scheme, and each partition needs at least the producer's registers, the
    fewest. A release costs its arrival also where no other partition waits for it. Raises :class:`MissingCosts`.
    """
    graph = loop_graph(config, dtype, device, costs)
    full, empty = _handoff(costs, "warp_to_group"), _handoff(costs, _release_scope(config))
    edges = tuple(
        replace(edge, handoff=empty if edge.dst.startswith("release") else full)
        if edge.src.startswith("load")
        else edge
        for edge in graph.edges
    )
    limits = replace(
        graph.limits,
        max_partitions=max(graph.limits.max_partitions, FREE_PARTITIONS),
        handoff_cycles=max(full, empty),
        base_registers=PRODUCER_REGISTERS,
    )
    return replace(graph, name=f"{graph.name}, any partition", edges=edges, limits=limits)


def sustained_ii(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> int:
    """The interval in cycles that the plan of ``config`` sustains with its ring (``planner.solve.effective_ii``).
    Raises :class:`MissingCosts`."""
    graph, options = _candidate_query(config, dtype, device, costs)

    def compute() -> int:
        from warpplan.planner.solve import effective_ii

        outcome = solved_loops.solved(graph, options)
        assert outcome.plan is not None  # every structure of the table is feasible by construction
        return effective_ii(outcome.plan, config.depth)

    return solved_loops.derived(graph, options, "sustained_ii", compute)


def _candidate_query(
    config: GemmConfig, dtype: str, device: Device, costs: CostTable
) -> tuple[DependenceGraph, SolveOptions]:
    graph = loop_graph(config, dtype, device, costs)
    options = SolveOptions(
        depth=config.depth,
        pinned=_pinned(config, graph),
        partitions=_partitions(config),
        extra_buffers=_extra_buffers(config),
    )
    return graph, options


def robust_depth(config: GemmConfig, dtype: str, device: Device, costs: CostTable, source: Source = "l2") -> int:
    """The fewest slots with which the loop keeps the interval that its units allow, loads taking their 90th percentile
    from ``source``; however much memory that takes. ``config.depth`` and the epilogue play no part.

    Both operands are acquired together, so the deeper ring decides. Raises :class:`MissingCosts`.
    """
    graph = loop_graph(config, dtype, device, costs, source)
    graph = replace(graph, limits=replace(graph.limits, smem_bytes=UNLIMITED_BYTES))
    options = SolveOptions(pinned=_pinned(config, graph), partitions=_partitions(config))

    def compute() -> int:
        from warpplan.planner.solve import fewest_slots

        return fewest_slots(graph, options)

    return solved_loops.derived(graph, options, "robust_depth", compute)


def _pinned(config: GemmConfig, graph: DependenceGraph) -> dict[str, int]:
    if not config.specialized:
        return {}
    return {op.id: config.consumers if op.unit == "TMA" else int(op.id[-1]) for op in graph.ops}


def _a(consumer: int, sharers: int) -> str:
    return f"load_a{consumer}" if sharers > 1 else "load_a"


def _release_scope(config: GemmConfig) -> str:
    """Between which threads a slot is given back: in a cluster also to the producer of its first CTA."""
    return "cluster" if config.cluster > 1 else "group_to_warp"


def _load(name: str, size: int, costs: CostTable, source: Source, multicast: bool) -> Operation:
    kind = "tma_multicast" if multicast else "tma_load"
    label = f"{kind}(bytes={size}, source={source})"
    cost = costs.lookup(kind, size, source=source)
    return Operation(
        name,
        "TMA",
        latency=_cycles(cost.latency, f"{label} latency"),
        occupancy=_cycles(cost.occupancy, f"{label} occupancy"),
        issue=_blocked(cost),
        buffer_bytes=size,
        alignment=TMA_ALIGNMENT,
        spread=_spread(cost),
    )


def _consumer(
    config: GemmConfig, dtype: str, costs: CostTable, consumer: int, release_issue: int
) -> tuple[Operation, Operation]:
    """The multiply and the release of one consumer; a multiply is all its wgmma instructions, back to back. Two of a
    K step take what they were measured to take together, but for latency and issue, which are those of one as wide."""
    label = f"wgmma(n={config.block_n}, dtype={dtype}, a=shared)"
    cost = costs.lookup("wgmma", config.block_n, dtype=dtype, a="shared")
    step = costs.lookup(config.mma_kind, config.block_n, dtype=dtype, a="shared").occupancy
    if cost.occupancy is None or step is None:
        raise MissingCosts([f"{label} occupancy"])
    count = config.block_k * ELEMENT_BYTES[dtype] // MMA_K_BYTES * (config.consumer_rows // MMA_ROWS)
    occupancy = round(count * step.p50)
    last = _cycles(cost.latency, f"{label} latency") - round(cost.occupancy.p50)
    mma = Operation(
        f"mma{consumer}",
        "TENSOR",
        latency=occupancy + max(0, last),
        occupancy=occupancy,
        # The warps issue one instruction after the other, and never for longer than the unit takes.
        issue=min(occupancy, count * _blocked(cost)),
        min_warps=config.consumer_warps,
        registers=config.accumulator_registers,
        spread=_spread(cost),
    )
    return mma, Operation(f"release{consumer}", None, latency=0, occupancy=0, issue=release_issue)


def _promotion(config: GemmConfig, costs: CostTable, consumer: int) -> Operation:
    """Adding a consumer's product, scaled, to its sums, measured for one warp group; a profile that was recorded
    without it has ``elementwise``, a multiply and an addition an element too."""
    elements = config.consumer_rows * config.block_n // (config.consumer_warps // WARP_GROUP)
    kind = "promote" if "promote" in costs.kinds() else "elementwise"
    cost = costs.lookup(kind, elements)
    return Operation(
        f"promote{consumer}",
        "ALU",
        latency=_cycles(cost.latency, f"{kind} latency"),
        occupancy=_cycles(cost.occupancy, f"{kind} occupancy"),
        issue=_cycles(cost.issue, f"{kind} issue"),
        min_warps=config.consumer_warps,
        registers=config.accumulator_registers,
    )


def _partitions(config: GemmConfig) -> tuple[PartitionSpec, ...]:
    if not config.specialized:
        return (PartitionSpec("default", config.consumer_warps, config.consumer_registers),)
    consumers = [
        PartitionSpec(f"consumer{i}", config.consumer_warps, config.consumer_registers) for i in range(config.consumers)
    ]
    return (*consumers, PartitionSpec("producer", 1, config.producer_registers))


def _extra_buffers(config: GemmConfig) -> tuple[ExtraBuffer, ...]:
    """Barriers (full and empty of each slot, two turns for ping-pong) and the staging of each consumer's epilogue.

    Staging inside a ring takes the slot that its consumer alone still holds when its loop ends; which slot that is
    changes from tile to tile, so slot i stands for consumer i's.
    """
    widest = "load_a" if config.block_m >= config.block_n else "load_b"
    if not config.specialized:
        tile = config.block_m * config.block_n * RESULT_BYTES
        return (ExtraBuffer("staging", tile, TMA_ALIGNMENT, widest),)
    barriers = 2 * config.depth + (2 if config.scheme == "pingpong" else 0)
    extra = [ExtraBuffer("barriers", barriers * BARRIER_BYTES, BARRIER_BYTES)]
    size = config.staging_bytes
    for i in range(config.consumers):
        name = f"staging{i}"
        if config.staging == "own":
            extra.append(ExtraBuffer(name, size, TMA_ALIGNMENT))
        elif config.scheme == "cooperative":
            extra.append(ExtraBuffer(name, size, TMA_ALIGNMENT, _a(i, config.consumers)))
        else:
            extra.append(ExtraBuffer(name, size, TMA_ALIGNMENT, widest, slot=i))
    return tuple(extra)


def _smem_share(config: GemmConfig, device: Device) -> int:
    """Bytes that one of the resident blocks can have."""
    return min(device.smem_bytes_per_block, device.smem_bytes_per_sm // config.ctas_per_sm - SMEM_RESERVED_BYTES)


def _handoff(costs: CostTable, scope: str) -> int:
    return _cycles(costs.lookup("handoff", scope=scope).latency, f"handoff(scope={scope}) latency")


def _blocked(cost: OperationCost) -> int:
    """Issue cycles; an issue too short to have been measured blocks nobody."""
    return round(cost.issue.p50) if cost.issue is not None else 0


def _spread(cost: OperationCost) -> int:
    return max(0, round(cost.latency.p90 - cost.latency.p50)) if cost.latency is not None else 0


def _cycles(measured: Quantiles | None, label: str) -> int:
    if measured is None:
        raise MissingCosts([label])
    return round(measured.p50)
