"""A loop body under construction, its costs and its shared memory drawn at random; parts that many kernels have.

Tiles are of 64 rows a warp group on Hopper (one wgmma high) and of 128 rows on Blackwell (the lanes of tensor memory).
A product's result is in registers on Hopper and in tensor memory on Blackwell, from where warps load it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

from loop_costs import (
    ROW_LOAD,
    STATISTIC,
    THREADS,
    TMA_ALIGNMENT,
    Cost,
    Loop,
    measured,
    tcgen05,
    tensor_memory,
    together,
    wgmma,
)

from warpplan.planner.values.dependence_graph import Architecture, Dependence, DependenceGraph

FACTORS = (0.6, 1.7)
"""Each operation kind's costs are multiplied by a factor between these, its logarithm drawn evenly."""
CAPACITY_KB = (60, 227)
"""Shared memory of a block: drawn between these, but never less than one slot of every ring. 227 KB is the most that
Hopper and Blackwell give to one block of the 228 KB that an SM has (CUDA C++ Programming Guide)."""


Family = Callable[[Architecture, Random], DependenceGraph]


def numbered(build: Family, family: str, number: int, seed: int) -> DependenceGraph:
    """Number ``number`` of ``family``: even ones are for Hopper, odd ones for Blackwell."""
    architecture: Architecture = "blackwell" if number % 2 else "hopper"
    graph = build(architecture, Random(f"{seed} {family} {number}"))
    return replace(graph, name=f"{graph.name} #{number:02}")


class VariedLoop(Loop):
    """``draw`` decides everything random. Operations of one kind have one factor: the kind is the name up to a dot,
    without the digit of the clone, so that clones stay equal."""

    def __init__(self, architecture: Architecture, draw: Random) -> None:
        super().__init__(architecture)
        self.draw = draw
        self.factors: dict[str, float] = {}

    @property
    def hopper(self) -> bool:
        return self.architecture == "hopper"

    @property
    def rows(self) -> int:
        """Of one warp group's tile."""
        return 64 if self.hopper else 128

    def add(self, name: str, unit: str | None, cost: Cost, *reads: str | tuple[str, int], **more: object) -> str:
        kind = name.partition(".")[0].rstrip("0123456789")
        low, high = FACTORS
        if kind not in self.factors:
            self.factors[kind] = low * (high / low) ** self.draw.random()
        factor = self.factors[kind]
        scaled = Cost(
            *(max(0, round(factor * cycles)) for cycles in (cost.latency, cost.occupancy, cost.issue, cost.spread))
        )
        return super().add(name, unit, scaled, *reads, **more)

    # Loads and stores

    def fill(self, name: str, size: int, *reads: str | tuple[str, int], source: str = "l2") -> str:
        """TMA fills a tile of ``size`` bytes, from ``source``."""
        cost = measured("tma_load", size, source=source)
        return self.add(name, "TMA", cost, *reads, buffer_bytes=size, alignment=TMA_ALIGNMENT)

    def row(self, name: str, size: int, *reads: str | tuple[str, int]) -> str:
        """A row of a few hundred bytes, likewise."""
        return self.add(name, "TMA", ROW_LOAD, *reads, buffer_bytes=size, alignment=128)

    def read(self, name: str, elements: int, source: str, element: int = 2) -> str:
        """A tile from shared memory into the registers of one warp group."""
        size = elements * element
        return self.tile(name, "LSU", measured("shared_load", size), source, registers=max(1, size // 4 // THREADS))

    def keep(self, name: str, elements: int, *reads: str | tuple[str, int], element: int = 2) -> str:
        """Registers into shared memory, where the tensor core or TMA reads them next: the store, and its fence."""
        size = elements * element
        store, fenced = measured("shared_store", size), measured("epilogue_store", size // 2)
        cost = Cost(fenced.latency, store.occupancy, store.issue)
        return self.tile(name, "LSU", cost, *reads, buffer_bytes=size, alignment=TMA_ALIGNMENT)

    def put(self, name: str, elements: int, value: str, element: int = 2) -> None:
        """Registers to global memory: staged in shared memory, written from there by TMA."""
        size = elements * element
        staged = self.tile(f"stage_{name}", "LSU", measured("epilogue_store", size // 2), value, buffer_bytes=size,
                           alignment=TMA_ALIGNMENT)  # fmt: skip
        self.add(f"write_{name}", "TMA", measured("tma_store", size), staged)

    # Arithmetic

    def passes(self, name: str, elements: int, count: int, *reads: str | tuple[str, int], half: bool = False) -> str:
        """``count`` passes of one warp group over its tile, one instruction an element each."""
        registers = max(1, elements // THREADS // (2 if half else 1))
        return self.tile(name, "ALU", together(*count * [measured("elementwise", elements)]), *reads,
                         registers=registers)  # fmt: skip

    def exponential(self, name: str, elements: int, *reads: str | tuple[str, int]) -> str:
        registers = max(1, elements // THREADS)
        return self.tile(name, "SFU", measured("exp2", elements), *reads, registers=registers)

    # Products

    def product(
        self, name: str, rows: int, n: int, k: int, *reads: str | tuple[str, int], a: str = "shared",
        dtype: str = "bfloat16", resident: bool = False,
    ) -> str:  # fmt: skip
        """A [rows, n] product over k. ``resident``: on Blackwell the result is in columns of tensor memory that the
        loop never gives back, and that are no ring."""
        if self.hopper:
            return self.tile(name, "TENSOR", wgmma(rows, n, k, a=a, dtype=dtype), *reads,
                             registers=rows * n // THREADS)  # fmt: skip
        cost = tcgen05(n, k, a="tmem" if a == "register" else a, element=1 if dtype.startswith("float8") else 2)
        ring = {} if resident else {"buffer_bytes": 128 * n * 4, "memory": "tmem"}
        return self.add(name, "TENSOR", cost, *reads, **ring)

    def fetched(self, name: str, rows: int, n: int, k: int, *reads: str | tuple[str, int],
                dtype: str = "bfloat16", a: str = "shared") -> str:  # fmt: skip
        """A product whose result is needed in registers: the name of what has it there."""
        result = self.product(name, rows, n, k, *reads, dtype=dtype, a=a)
        return result if self.hopper else self.fetch(name, rows * n, result)

    def fetch(self, name: str, elements: int, source: str) -> str:
        """Tensor memory into the registers of one warp group."""
        return self.tile(f"fetch_{name}", "LSU", tensor_memory(elements), source, registers=elements // THREADS)

    def fed(self, name: str, elements: int, *values: str) -> str:
        """fp32 registers as the bf16 A operand of a product: in registers on Hopper, in tensor memory on Blackwell."""
        convert = measured("convert", elements)
        if self.hopper:
            return self.tile(name, "ALU", convert, *values, registers=elements // 2 // THREADS)
        packing = together(convert, tensor_memory(elements, 2))
        return self.tile(name, "ALU", packing, *values, buffer_bytes=elements * 2, memory="tmem")

    def accumulate(self, *names: str, carried: bool = True) -> None:
        """The products add to one accumulator in this order, each as soon as the one before has been issued in full:
        within an iteration, and, where ``carried``, from the last to the next iteration's first."""
        occupancy = {op.id: op.occupancy for op in self.ops}
        kind = "data" if self.hopper else "token"
        pairs = [(a, b, 0) for a, b in pairwise(names)]
        for a, b, distance in [*pairs, *([(names[-1], names[0], 1)] if carried else [])]:
            self.edges.append(Dependence(a, b, distance, kind, occupancy[a]))

    def rescaled(self, name: str, product: str, elements: int, *factors: str) -> str:
        """``product``'s accumulator, which every iteration multiplies by ``factors`` before it adds to it: to be called
        before the product is added. What the product has to read (Hopper); on Blackwell :meth:`rescaled_first` adds the
        order."""
        if self.hopper:
            return self.passes(name, elements, 1, *factors, (product, 1))
        touch = together(tensor_memory(elements), STATISTIC, tensor_memory(elements))
        return self.tile(name, "LSU", touch, *factors, registers=32)

    def rescaled_first(self, scaled: str, product: str) -> None:
        """On Blackwell, where both work in place: ``scaled``, ``product``, then the next iteration's ``scaled``."""
        if not self.hopper:
            self.order(product, scaled, 1)
            self.order(scaled, product)

    # The whole loop

    def finish(self, name: str, partitions: int, clones: int = 1, tmem_columns: int = 512) -> DependenceGraph:
        """The loop, with a shared memory drawn at random. ``tmem_columns`` are what accumulators leave (Blackwell)."""
        graph = self.graph(name, partitions, clones, 512 if self.hopper else tmem_columns)
        slots = (-(-op.buffer_bytes // op.alignment) * op.alignment for op in graph.ops if op.memory == "smem")
        low, high = CAPACITY_KB
        capacity = 1024 * self.draw.randint(max(low, -(-sum(slots) // 1024)), high)
        return replace(graph, limits=replace(graph.limits, smem_bytes=capacity))
