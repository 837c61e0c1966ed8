"""Costs of the operations of the benchmarks' loops, and a loop body under construction.

**Hopper's costs** are the medians of the embedded profile of an H200, an operation's ``spread`` its p90 − p50; what is
not in the profile is derived below, each with its rate and source. **Blackwell's costs are estimates**: rates of the
vendor's documents for tcgen05 and tensor memory, the H200's medians for what did not change (special functions,
arithmetic, TMA, hand-off); nothing of them was measured on a Blackwell GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from warpplan.planner.values.dependence_graph import Architecture, Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import B200, H200
from warpplan.profiler.embedded import embedded

PROFILE = embedded(H200.name)
WARP_GROUP = 4
THREADS = 128
"""Of a warp group."""
TMA_ALIGNMENT = 1_024
"""A tile swizzled by 128 bytes repeats every 1,024 (CUDA Driver API, ``CUtensorMapSwizzle``)."""
SHARED_BYTES_PER_CYCLE = 128
"""Shared memory's rate on Hopper and on Blackwell (CUDA C++ Best Practices Guide; FlashAttention-4, §2)."""


@dataclass(frozen=True)
class Cost:
    """In SM cycles, as :class:`Operation` has them."""

    latency: int
    occupancy: int
    issue: int
    spread: int = 0


def measured(kind: str, size: int = 0, **text: str) -> Cost:
    """The H200's medians. A latency or occupancy that the profile lacks is the issue time."""
    cost = PROFILE.costs.lookup(kind, size, **text)
    issue = round(cost.issue.p50) if cost.issue else 0
    occupancy = round(cost.occupancy.p50) if cost.occupancy else issue
    latency = round(cost.latency.p50) if cost.latency else occupancy
    spread = round(cost.latency.p90 - cost.latency.p50) if cost.latency else 0
    return Cost(latency, occupancy, issue, spread)


def together(*parts: Cost) -> Cost:
    """Passes over one tile, one after the other."""
    return Cost(*(sum(getattr(part, name.name) for part in parts) for name in fields(Cost)))


def wgmma(rows: int, n: int, k: int, *, a: str = "shared", dtype: str = "bfloat16") -> Cost:
    """A [rows, n] product over k: wgmma m64 of 32 bytes of k each, back to back, without waiting for the last."""
    cost = PROFILE.costs.lookup("wgmma", n, dtype=dtype, a=a)
    count = rows // 64 * k * (1 if dtype.startswith("float8") else 2) // 32
    occupancy = round(count * cost.occupancy.p50)
    tail = round(cost.latency.p50 - cost.occupancy.p50)
    return Cost(occupancy + tail, occupancy, min(occupancy, round(count * cost.issue.p50)))


def tcgen05(n: int, k: int, *, a: str = "shared", element: int = 2) -> Cost:
    """A [128, n] product over k. Estimates: 8,192 bf16 operations a cycle and SM (2.25 PFLOP/s of the B200's data sheet
    over 148 SMs), twice that in fp8, so n / 2 cycles for 32 bytes of k, but no faster than shared memory brings the
    operands; wgmma's tail (pipeline latency); 8 cycles for the one thread that issues an instruction."""
    count = k * element // 32
    operands = (128 * 32 if a == "shared" else 0) + n * 32
    occupancy = count * max(n // 2, operands // SHARED_BYTES_PER_CYCLE)
    tail = PROFILE.costs.lookup("wgmma", 256, dtype="bfloat16", a="shared")
    return Cost(occupancy + round(tail.latency.p50 - tail.occupancy.p50), occupancy, 8 * count)


def tensor_memory(elements: int, element: int = 4) -> Cost:
    """tcgen05.ld or .st of a tile by one warp group. Estimates: each warp moves one 32-bit register of its 32 lanes a
    cycle (512 bytes a cycle and SM), after as long as a load from shared memory takes; the warps wait for it."""
    cycles = elements * element // 512
    return Cost(cycles + SHARED_LATENCY, cycles, cycles)


SHARED_LATENCY = 30
"""Cycles of one load from shared memory on Hopper (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking", table of memory latencies)."""
STATISTIC = measured("elementwise", 1_024)
"""One number a row: the least that was measured."""
STATISTIC_SFU = Cost(latency=40, occupancy=16, issue=16)
"""One special function a row, done by 256 or fewer lanes at 16 a cycle and SM (CUDA C++ Programming Guide, arithmetic
throughput); the latency is MUFU's and the conversions around it."""
ROW_LOAD = replace(measured("tma_load", 4_096, source="l2"), occupancy=8)
"""A row of a few hundred bytes: as long on the way as the smallest tile, but hardly any of the unit's time."""


def pointer_access(size: int, *, store: bool = False) -> Cost:
    """Loads or stores of ``size`` bytes by one warp group through the cache: the SM's share of the L2 rate measured, a
    load as long on its way as the smallest TMA load; 16 bytes a thread and instruction, 4 cycles each to issue."""
    ceilings = dict(PROFILE.ceilings)
    share = ceilings["l2_bytes_per_s"].p50 / H200.sm_count / ceilings["clock_hz_idle"].p50
    occupancy, issue = round(size / share), 4 * -(-size // (16 * THREADS))
    return Cost(occupancy + (0 if store else measured("tma_load", 4_096, source="l2").latency), occupancy, issue)


def gelu(elements: int) -> tuple[Cost, Cost, Cost]:
    """x · sigmoid of a cubic in x: three multiply-adds, an exponential, a reciprocal folded into two multiply-adds."""
    pass_ = measured("elementwise", elements)
    return together(pass_, pass_, pass_), measured("exp2", elements), together(pass_, pass_)


class Loop:
    """A loop body under construction."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.ops: list[Operation] = []
        self.edges: list[Dependence] = []

    def add(self, name: str, unit: str | None, cost: Cost, *reads: str | tuple[str, int], **more: object) -> str:
        """An operation and its data edges; a read is a name, or (name, distance)."""
        self.ops.append(Operation(name, unit, cost.latency, cost.occupancy, cost.issue, spread=cost.spread, **more))
        for read in reads:
            source, distance = (read, 0) if isinstance(read, str) else read
            self.edges.append(Dependence(source, name, distance))
        return name

    def load(self, name: str, size: int, cost: Cost | None = None) -> str:
        """TMA fills a buffer, from L2."""
        return self.add(name, "TMA", cost or measured("tma_load", size, source="l2"), buffer_bytes=size,
                        alignment=TMA_ALIGNMENT if cost is None else 128)  # fmt: skip

    def tile(self, name: str, unit: str, cost: Cost, *reads: str | tuple[str, int], registers: int = 0,
             warps: int = WARP_GROUP, **more: object) -> str:  # fmt: skip
        """Work of a warp group (or of ``warps``) on its tile."""
        return self.add(name, unit, cost, *reads, registers=registers, min_warps=warps, **more)

    def order(self, source: str, destination: str, distance: int = 0, latency: int | None = None) -> None:
        self.edges.append(Dependence(source, destination, distance, "token", latency))

    def carry(self, name: str, latency: int | None = None) -> None:
        """The value is updated by every iteration."""
        self.edges.append(Dependence(name, name, 1, "data", latency))

    def graph(self, name: str, partitions: int, clones: int = 1, tmem_columns: int = 512) -> DependenceGraph:
        """``clones`` copies are told apart by the digit that ends their operations' names."""
        handoff = [
            PROFILE.costs.lookup("handoff", scope=s) for s in ("warp_to_group", "group_to_warp", "group_to_group")
        ]
        crossing = (measured("shared_store", 16_384).occupancy + measured("shared_load", 16_384).occupancy) / 16
        wait, arrive = measured("barrier_ready", scope="group").issue, measured("handoff", scope="group_to_group").issue
        limits = Limits(
            max_partitions=partitions,
            smem_bytes=(B200 if self.architecture == "blackwell" else H200).smem_bytes_per_block,
            registers=H200.registers_per_sm,
            handoff_cycles=round(max(h.latency.p50 for h in handoff)),
            handoff_cycles_per_kb=round(crossing),
            barrier_cycles=round((wait + arrive) / 2),
            tmem_columns=tmem_columns,
            base_registers=24,
            architecture=self.architecture,
        )
        copies = tuple(tuple(op.id for op in self.ops if op.id.endswith(str(i))) for i in range(clones))
        return DependenceGraph(
            f"{name.split()[0]} {self.architecture} {' '.join(name.split()[1:])}",
            tuple(self.ops), tuple(self.edges), limits, clones=copies if clones > 1 else (),
        )  # fmt: skip
