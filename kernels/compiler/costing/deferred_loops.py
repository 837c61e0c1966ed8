"""A captured loop as :mod:`~warpplan.kernels.compiler.lowering.hopper.issue_order.deferred_waits` writes it: products
that need nothing but loads are issued with the first one, and each is waited for where its result is read."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import RING_KINDS
from warpplan.kernels.compiler.costing.loop_graph import THREADS, Shape, early_vectors, lookahead_product
from warpplan.kernels.compiler.costing.overlapped_loops import overlapped
from warpplan.kernels.compiler.lowering.hopper.issue_order.deferred_waits import fits, vector_registers
from warpplan.kernels.compiler.lowering.register_shares import consumer_registers


def as_issued(loop: Body, shape: Shape) -> Body:
    """``loop`` as consumers of ``shape`` issue its products: overlapped, issued together, or in the loop's order."""
    found = overlapped(loop, shape)
    if found.overlapped or not shape.specialized or lookahead_product(loop) is not None:
        return found
    early, first = issued_together(loop), loop.of_kind("dot")[:1]
    if not early:
        return loop
    in_place = not _vectors_fit(loop, shape)
    moved = early if shape.in_flight else ()
    # ptxas issues what waits for nothing as early as registers allow.
    work = [one for one in loop.work if in_place and one.id in early_vectors(loop)]
    for one in loop.work:
        if one not in (*work, *moved):
            work.append(one)
        if one in first:
            work += moved
    return replace(loop, work=tuple(work), overlapped=shape.in_flight, vectors_in_place=in_place)


def _vectors_fit(loop: Body, shape: Shape) -> bool:
    """Whether small loads may come an iteration ahead, as :func:`~...deferred_waits.vectors_fit` has it."""
    tiles, operand = _products(loop, shape)
    ahead = early_vectors(loop)
    vectors = sum(_vector_registers(load, shape) for load in loop.of_kind("load") if load.id in ahead)
    registers = consumer_registers(
        shape.consumers * shape.warps, blocks=shape.blocks, producer_registers=shape.producer_registers
    )
    return fits(tiles, operand, vectors, registers)


def products_at_once(loop: Body, shape: Shape) -> int:
    """Registers a thread of the results of all products of a ``loop`` whose products could be issued together, and of
    an operand out of registers: ptxas, which nothing bounds in a kernel without partitions, gives each its own. 0 for
    other loops."""
    return sum(_products(loop, shape)) if issued_together(loop) else 0


def _products(loop: Body, shape: Shape) -> tuple[int, int]:
    """Registers a thread of the results of all products of ``loop``, and of their largest operand in registers."""
    threads = THREADS * shape.warps * shape.consumers
    products = [work.product for work in loop.of_kind("dot") if work.product is not None]
    operands = [-(-p.m * p.k * p.element.element_bits // (32 * threads)) for p in products if p.a == "register"]
    return sum(-(-p.m * p.n // threads) for p in products), max(operands, default=0)


def _vector_registers(load: LoopWork, shape: Shape) -> int:
    elements = prod(load.shape) // (shape.consumers if load.rows else 1)
    return vector_registers(elements, along_rows=load.rows, threads=THREADS * shape.warps) if load.shape else 1


def issued_together(loop: Body) -> tuple[LoopWork, ...]:
    """The products of ``loop``, but for its first one, that need nothing but what is loaded for them, and add to
    nothing that the loop carries; none where the loop has a product in a branch."""
    products = loop.of_kind("dot")
    if loop.kind != "scf.for" or any(work.conditional or not _is_wgmma(work) for work in products):
        return ()
    rings = {work.id for work in loop.of_kind(*RING_KINDS)}
    return tuple(work for work in products[1:] if _needs_loads_alone(loop, work.id, rings))


def _needs_loads_alone(loop: Body, product: str, rings: set[str]) -> bool:
    reads = [flow for flow in loop.flows if flow.dst == product and flow.kind == "data"]
    return bool(reads) and all(flow.src in rings and not flow.distance for flow in reads)


def _is_wgmma(work: LoopWork) -> bool:
    return work.product is not None and work.product.tensor_cores == "wgmma"
