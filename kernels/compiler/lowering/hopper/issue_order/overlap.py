"""Overlap: the last product of an iteration runs while the first one of the next is computed.

A loop such as attention's multiplies, works on the product, and multiplies again:

    s = dot(q, k[i]);  p = softmax(s);  acc = dot(p, v[i], acc · alpha)

Only the next multiply of its kind wants the last one's end, so it is put off by an iteration: both multiplies are
issued together, and the work on the first one's product is done while the last one runs.

    if the loop runs:
        s = dot(q, k[first]);  p = softmax(s);  acc = acc · alpha
        for i but the first:
            s = dot(q, k[i]), in flight;  acc = dot(p, v[i - step], acc), in flight
            wait for s;  p = softmax(s);  wait for acc;  acc = acc · alpha
        acc = dot(p, v[last], acc)

It holds one product, where :mod:`~.lookahead` holds two. Where that leaves registers, q is kept in them, and not read
from shared memory again each time.

Source: Shah et al., FlashAttention-3 (2024), algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.copies.addresses import PURE, PURE_DIALECTS
from warpplan.kernels.compiler.analysis.operation_kinds import WGMMA
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import (
    copied,
    count_to_last,
    guarded,
    is_lead,
    lead_to,
    located,
    wait_for,
)
from warpplan.kernels.compiler.lowering.hopper.load_rings import uses
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, tokenize
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

WAIT_AGAIN = "warpplan.again"
"""Attribute of a wait for a product, before which the barrier of the product's slot, which has completed already, is
waited for once more: the branch of that wait keeps ptxas from hoisting arithmetic above the wgmma wait."""
HELD_REGISTERS = 200
"""Registers a thread for products and operands: the most that ``setmaxnreg`` gives, 240, less addresses and rows."""

PINNED = (
    '{result} = tt.elementwise_inline_asm "" {{constraints = "=r,0", packed_element = 2 : i32, pure = false}} '
    "{value} : {kind} -> {kind}"
)
"""No instruction: a reader of a loaded operand where it is loaded. ``reorder_instructions`` of Triton 3.6.0 moves a
load with one reader into the loop of that reader, past the barrier by which the slot has been given back."""


@dataclass(frozen=True)
class _Parts:
    """The body of a loop: its two multiplies; what leads to the operands that the first reads, and to the tile that
    the last reads, by themselves; the other operations without and with need of the accumulator, which is carried at
    ``position``."""

    first: IrOperation
    last: IrOperation
    lead: list[IrOperation]
    brought: list[IrOperation]
    front: list[IrOperation]
    back: list[IrOperation]
    position: int


def add_overlap(operation: IrOperation, loop: control.ForLoop, threads: int) -> list[IrOperation] | None:
    """``operation``, which is ``loop``, rewritten for a consumer of ``threads``; ``None`` where it has not this
    form."""
    parts = _parts(loop)
    return None if parts is None else _rewritten(operation, loop, parts, threads)


def _parts(loop: control.ForLoop) -> _Parts | None:
    operations = loop.body.operations[:-1]
    dots = [op for op in operations if op.name == WGMMA]
    if len(dots) != 2 or sum(op.name == WGMMA for op in loop.body.walk()) != 2:
        return None
    first, last = dots
    reads = [name for op in loop.body.walk() for name in op.operands]
    if reads.count(last.result) != 1 or last.result not in loop.yielded or first.result in loop.yielded:
        return None
    if not find_types(last.signature)[0].startswith("tensor"):
        return None  # its left operand would have to stay in shared memory
    position = loop.yielded.index(last.result)
    needy, back = {loop.carried[position][0]}, []
    for op in operations:
        if op is not last and any(name in needy for inner in op.walk() for name in inner.operands):
            back.append(op)
            needy.update(op.defined)
    if any(op.name not in PURE and not op.name.startswith(PURE_DIALECTS) for op in back):
        return None
    lead, brought = lead_to(loop, first.operands), lead_to(loop, last.operands[1:2])
    if lead is None or brought is None or needy.intersection(last.operands[:2]):
        return None
    owned = [{name for op in ops if is_lead(op) for name in op.defined} for ops in (lead, brought)]
    rest = [op for op in operations if op not in dots and not set.union(*owned).intersection(op.defined)]
    if any(name in owned[0] | owned[1] for op in rest for inner in op.walk() for name in inner.operands):
        return None
    loads: dict[tuple[int, int], set[tuple[bool, ...]]] = {}
    for use in uses(loop.body):
        loads.setdefault((use.first, use.last), set()).add(tuple(use.operation.result in names for names in owned))
    if any(len(parts) > 1 or (True, True) in parts for parts in loads.values()):
        return None  # what fills and empties together would be read in different iterations
    return _Parts(first, last, lead, brought, [op for op in rest if op not in back], back, position)


def _rewritten(operation: IrOperation, loop: control.ForLoop, parts: _Parts, threads: int) -> list[IrOperation]:
    stem, kind, where = with_suffix(loop.variable, ""), loop.kind, operation.location
    last = parts.last
    left, _, accumulator = last.operands[:3]
    left_type, _, product_type = find_types(last.signature)
    made = {name for op in (*parts.front, *parts.back) for name in op.defined}

    held, first = _held(parts, threads, f"{stem}_held")

    # The first iteration but for its last multiply.
    start = {inside: initial for inside, initial, *_ in loop.carried} | {loop.variable: loop.lower}
    *before, dot = copied([*parts.lead, first], start, "_first")
    work = copied([*parts.front, *parts.back], start | {first.result: dot.result}, "_first")
    head = [*before, dot, *work]
    begun = start | {name: with_suffix(name, "_first") for name in made}

    # All others, each with the last multiply of the one before it.
    scaled, operand, previous, second = (f"{stem}_{n}" for n in ("scaled", "operand", "previous", "second"))
    *before, dot = copied([*parts.lead, first], {}, "_now")
    names = {loop.variable: previous, left: operand, accumulator: scaled}
    *brought, late = copied([*parts.brought, last], names, "_late")
    product, waited = _wait(dot, 1)
    total, landed = _wait(late, 0)
    landed.set_attribute(WAIT_AGAIN, "true")
    for flying in (dot, late):
        flying.set_attribute("isAsync", "true")
    now = {first.result: product, loop.carried[parts.position][0]: total}
    body = [
        *before, dot, located(f"{previous} = arith.subi {loop.variable}, {loop.step} : {kind}", where), *brought, late,
        waited,
        *(op.substituted(now) for op in parts.front), landed, *(op.substituted(now) for op in parts.back),
    ]  # fmt: skip
    types = [kind for _, _, kind, _ in loop.carried]
    others = [i for i in range(len(types)) if i != parts.position]
    values = [(loop.carried[i][0], loop.yielded[i], types[i], loop.carried[i][3]) for i in others]
    values += [(scaled, accumulator, product_type, "%_scaled"), (operand, left, left_type, "%_operand")]
    carried = [(inside, begun.get(value, value), text, outside) for inside, value, text, outside in values]
    body.append(control.yield_of([(now.get(value, value), text) for _, value, text, _ in values], where))
    inner = control.ForLoop(
        loop.variable, second, loop.upper, loop.step, carried, kind, loop.attributes, Region(body), where
    )
    walked, results = control.write_loop(inner, f"{stem}_overlap")

    # The last multiply of all.
    final, end = count_to_last(loop, stem, where)
    names = {loop.variable: final, left: results["%_operand"], accumulator: results["%_scaled"]}
    tail = copied([*parts.brought, last], names, "_last")
    outcome = [results.get(outside, tail[-1].result) for *_, outside in loop.carried]
    then = [
        *head, located(f"{second} = arith.addi {loop.lower}, {loop.step} : {kind}", where), walked, *end, *tail,
        control.yield_of(list(zip(outcome, types, strict=True)), where),
    ]  # fmt: skip
    return [*held, *guarded(operation, loop, then)]


def _wait(dot: IrOperation, pending: int) -> tuple[str, IrOperation]:
    """Wait for ``dot`` with ``pending`` younger ones running: the name of its product after that, and the wait."""
    done = with_suffix(dot.result, "_done")
    return f"{done}#0", wait_for([dot], done, dot.location, pending)


def _held(parts: _Parts, threads: int, name: str) -> tuple[list[IrOperation], IrOperation]:
    """The first multiply with its left operand in registers, called ``name``, and what loads that; as it is where the
    operand changes from one iteration to the next, or does not fit."""
    first = parts.first
    left, kinds = first.operands[0], find_types(first.signature)
    slot, product = parse_type(kinds[0]), parse_type(kinds[-1])
    live = [*kinds[:1], *kinds[-1:], find_types(parts.last.signature)[0], find_types(parts.last.signature)[-1]]
    if slot is None or product is None or slot.kind != "!ttg.memdesc" or slot.element_bits != 16:
        return [], first
    if left in {n for op in parts.lead for n in op.defined} or sum(map(_bits, live)) > 32 * HELD_REGISTERS * threads:
        return [], first
    layout = f"#ttg.dot_op<{{opIdx = 0, parent = {product.encoding}, kWidth = 2}}>"
    kind = f"tensor<{'x'.join(map(str, slot.shape))}x{slot.element}, {layout}>"
    load = located(f"{name} = ttg.local_load {left} : {kinds[0]} -> {kind}", first.location)
    pinned = located(PINNED.format(result=f"{name}_pinned", value=name, kind=kind), first.location)
    dot = first.substituted({left: pinned.result})
    text = "".join(part for part in dot.parts if isinstance(part, str))
    at = text.rindex(dot.signature)
    parts_of = tokenize(text[:at] + text[at:].replace(kinds[0], kind, 1))
    return [load, pinned], IrOperation(dot.name, dot.results, [*parts_of], dot.location)


def _bits(text: str) -> int:
    kind = parse_type(text)
    return 0 if kind is None else math.prod(kind.shape) * kind.element_bits
