"""Deferred waits: a product is issued as soon as its operands are there, and waited for where its result is read.

A loop of several products that are not of :mod:`~.overlap`'s or :mod:`~.lookahead`'s form, as attention's backward
passes are, waits for each where it stands. Here products that need nothing but loads are issued with the first one, and
every product runs until somebody reads it:

    s = dot(k, q[i]), in flight;  dp = dot(v, do[i]), in flight
    wait for s;  p = exp2(s - lse);  dv = dot(p, do[i], dv), in flight
    wait for dp;  ds = p · (dp - delta);  dk = dot(ds, q[i], dk), in flight
    wait for dv and dk

wgmma groups end in the order in which they are issued, so that a wait says how many younger ones may run on (PTX ISA,
"wgmma.wait_group"). What an iteration issues has ended where the next one begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from warpplan.kernels.compiler.analysis.operation_kinds import WGMMA
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import is_lead, lead_to, wait_for
from warpplan.kernels.compiler.lowering.register_shares import WARP
from warpplan.kernels.compiler.lowering.slices.early_lookups import vector_loads
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

LEAST_PRODUCTS = 2
"""Of a loop with one, nothing can be issued together."""
BESIDE = 24
"""Registers a thread for addresses, counters and barriers. Chosen by hand: of attention's backward passes, those whose
vectors come ahead have none spilled by ptxas of Triton 3.6.0, and the others would."""
THREADS_OF_ROW = 4
"""How many threads share a row of a product (PTX ISA, "wgmma.mma_async", register fragments of D)."""


def add_deferred_waits(operation: IrOperation, loop: control.ForLoop) -> list[IrOperation] | None:
    """``operation``, which is ``loop``, rewritten; ``None`` where it has not this form."""
    early = issued_together(loop)
    return [_rewritten(operation, loop, early)] if early else None


def issued_together(loop: control.ForLoop) -> list[IrOperation]:
    """The products of ``loop``, but for its first one, that are issued with it, in order; none where a product does not
    stand in the loop itself."""
    operations = loop.body.operations
    dots = [op for op in operations if op.name == WGMMA]
    if len(dots) < LEAST_PRODUCTS or sum(op.name == WGMMA for op in loop.body.walk()) != len(dots):
        return []
    made = {name for op in operations for name in op.defined} | {inside for inside, *_ in loop.carried}
    return [
        dot for dot in dots[1:]
        if lead_to(loop, dot.operands[:2]) is not None and not made.intersection(dot.operands[2:])
    ]  # fmt: skip


def vectors_fit(loop: control.ForLoop, warps: int, registers: int) -> bool:
    """Whether ``registers`` of each thread of a consumer of ``warps`` hold the products of ``loop`` and its small loads
    of two iterations, as :func:`~...slices.early_lookups.with_early_vectors` has them."""
    threads = WARP * warps
    products = [find_types(op.signature) for op in loop.body.operations if op.name == WGMMA]
    tiles = sum(_registers(kinds[-1], threads) for kinds in products)
    operands = [_registers(kinds[0], threads) for kinds in products if kinds[0].startswith("tensor")]
    vectors = sum(_registers("".join(find_types(load.signature)[-1:]), threads) for load in vector_loads(loop))
    return fits(tiles, max(operands, default=0), vectors, registers)


def fits(tiles: int, operand: int, vectors: int, registers: int) -> bool:
    """Whether ``registers`` a thread are enough for the products' ``tiles``, the register ``operand`` of a product in
    flight, and the ``vectors`` of this iteration and of the next."""
    return tiles + operand + 2 * vectors + BESIDE <= registers


def vector_registers(elements: int, *, along_rows: bool, threads: int) -> int:
    """Of a thread that holds its part of a vector of 32-bit numbers which follows the rows of a product, or its
    columns, which all warps have."""
    return -(-THREADS_OF_ROW * elements // threads) if along_rows else -(-elements // THREADS_OF_ROW)


def _registers(text: str, threads: int) -> int:
    """Of a thread, for a tile of the type ``text``, or a number."""
    tile = parse_type(text)
    if tile is None:
        return 1
    if len(tile.shape) > 1:
        return -(-math.prod(tile.shape) * tile.element_bits // (32 * threads))
    return vector_registers(tile.shape[0], along_rows="dim = 0" not in tile.encoding, threads=threads)


def _rewritten(operation: IrOperation, loop: control.ForLoop, early: Sequence[IrOperation]) -> IrOperation:
    body, running, names = list[IrOperation](), list[IrOperation](), dict[str, str]()
    for op in _in_new_order(loop, early):
        _wait(body, running, names, _awaited(running, op))
        body.append(op.substituted(names))
        if op.name == WGMMA:
            body[-1].set_attribute("isAsync", "true")
            running.append(body[-1])
    end = body.pop()
    _wait(body, running, names, len(running))
    body.append(end.substituted(names))
    changed = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
    changed.parts = [Region(body, part.label) if isinstance(part, Region) else part for part in operation.parts]
    return changed


def _in_new_order(loop: control.ForLoop, early: Sequence[IrOperation]) -> list[IrOperation]:
    """The loop's operations, ``early`` and the loads and views that they read behind the first product."""
    operations = loop.body.operations
    first = next(op for op in operations if op.name == WGMMA)
    lead = [op for dot in early for op in lead_to(loop, dot.operands[:2]) or () if is_lead(op)]
    at = operations.index(first) + 1
    moved = [op for op in operations[at:] if _is_in(op, (*lead, *early))]
    return [*operations[:at], *moved, *(op for op in operations[at:] if not _is_in(op, moved))]


def _is_in(operation: IrOperation, others: Iterable[IrOperation]) -> bool:
    return any(operation is other for other in others)


def _awaited(running: Sequence[IrOperation], operation: IrOperation) -> int:
    """How many of ``running`` have to end before ``operation``, which reads the last of them; what a loop carries is
    waited for at its end."""
    if operation.name == "scf.yield":
        return 0
    read = {name for inner in operation.walk() for name in inner.operands}
    return max((i + 1 for i, dot in enumerate(running) if dot.result in read), default=0)


def _wait(body: list[IrOperation], running: list[IrOperation], names: dict[str, str], count: int) -> None:
    """Wait until the first ``count`` of ``running`` have ended: then ``names`` has what their results are called."""
    if not count:
        return
    ended = running[:count]
    done = with_suffix(ended[-1].result, "_done")
    body.append(wait_for(ended, done, ended[-1].location, pending=len(running) - count))
    names |= {dot.result: f"{done}#{i}" for i, dot in enumerate(ended)}
    del running[:count]
