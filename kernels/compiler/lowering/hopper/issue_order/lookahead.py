"""Lookahead: the next iteration's first product is issued early, and runs while this iteration's other work is done.

A loop such as attention's multiplies, works on the product, and multiplies again:

    s = dot(q, k[i]);  p = softmax(s);  acc = dot(p, v[i], acc)

The first multiply needs nothing of the loop but its own loads, so it is issued an iteration early and left in flight:

    if the loop runs:
        s = dot(q, k[first])
        for i but the last:
            next = dot(q, k[i + step]), in flight;  p = softmax(s);  acc = dot(p, v[i], acc);  wait for both;  s = next
        the last iteration, without a next

A loop with a single product that it works on, as a block-scaled sum does, is the same without the second multiply: the
next product runs while this one is scaled and added (promoted), and is waited for at the end of the iteration.

    next = dot(a[i + step], b[i + step]), in flight;  acc = acc + s · scale[i];  wait for next;  s = next
"""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.operation_kinds import RING_LOADS, WGMMA
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import (
    copied,
    count_to_last,
    guarded,
    is_lead,
    lead_to,
    located,
    wait_for,
)
from warpplan.kernels.compiler.lowering.hopper.load_rings import Rings, load_number
from warpplan.kernels.compiler.lowering.slices.unrolling import UNROLL
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.types import find_types


def add_lookahead(operation: IrOperation, loop: control.ForLoop, rings: Rings) -> list[IrOperation] | None:
    """``operation``, which is ``loop``, rewritten; ``None`` where it has not this form."""
    found = _find(loop, rings)
    return None if found is None else _rewritten(operation, loop, *found)


def _find(
    loop: control.ForLoop, rings: Rings
) -> tuple[list[IrOperation], IrOperation, IrOperation | None] | None:  # fmt: skip
    """What leads to the loop's first product, that product, and the loop's last one where there are several; ``None``
    where the first needs what the loop carries."""
    operations = loop.body.operations
    dots = [operation for operation in operations if operation.name == WGMMA]
    if not dots or not loop.carried:
        return None
    first, last = dots[0], dots[-1] if len(dots) > 1 else None
    lead = lead_to(loop, first.operands)
    if lead is None:
        return None
    owned = {name for op in lead if is_lead(op) for name in op.defined}
    others = [operation for operation in operations if operation is not first and operation not in lead]
    if any(name in owned for operation in others for inner in operation.walk() for name in inner.operands):
        return None
    if first.result in loop.yielded or (last is not None and last.result not in loop.yielded):
        return None
    if last is None and _starves(loop, lead, rings):
        return None
    return lead, first, last


def _starves(loop: control.ForLoop, lead: list[IrOperation], rings: Rings) -> bool:
    """Whether the producer could not load for the next product before this iteration's work is done: what that work
    reads has one slot."""
    loads = [op for op in loop.body.operations if op.name in RING_LOADS and op not in lead]
    return any((n := load_number(op)) in rings.rings and rings.group_of(n).depth < 2 for op in loads)


def _rewritten(
    operation: IrOperation,
    loop: control.ForLoop,
    lead: list[IrOperation],
    first: IrOperation,
    last: IrOperation | None,
) -> list[IrOperation]:
    stem, where = with_suffix(loop.variable, ""), operation.location
    views = {name for op in lead if is_lead(op) for name in op.defined}
    rest = [op for op in loop.body.operations[:-1] if op is not first and not views.intersection(op.defined)]
    types = [kind for _, _, kind, _ in loop.carried]
    shorter = f"{stem}_shorter"

    before = copied([*lead, first], {loop.variable: loop.lower}, "_first")
    all_but_last = _all_but_last(loop, lead, first, last, rest, (before[-1].result, shorter))
    walked, results = control.write_loop(all_but_last, f"{stem}_lookahead")

    final, final_value = count_to_last(loop, stem, where)
    names = {inside: results[outside] for inside, _, _, outside in loop.carried}
    tail = copied(rest, {**names, loop.variable: final, first.result: results["%_product"]}, "_last")
    renamed = {name: with_suffix(name, "_last") for op in rest for name in op.defined}
    outcome = [renamed.get(value, names.get(value, value)) for value in loop.yielded]
    then = [
        *before, located(f"{shorter} = arith.subi {loop.upper}, {loop.step} : {loop.kind}", where), walked,
        *final_value, *tail, control.yield_of(list(zip(outcome, types, strict=True)), where),
    ]  # fmt: skip
    return guarded(operation, loop, then)


def _all_but_last(
    loop: control.ForLoop, lead: list[IrOperation], first: IrOperation, last: IrOperation | None,
    rest: list[IrOperation], given: tuple[str, str],
) -> control.ForLoop:  # fmt: skip
    """``loop`` up to its last iteration, each of its iterations issuing the next one's ``first`` product; ``given`` are
    the first iteration's product and the upper bound."""
    stem, where, product = with_suffix(loop.variable, ""), loop.location, find_types(first.signature)[-1]
    following, current, done = f"{stem}_following", f"{stem}_product", f"{stem}_done"
    *early, next_dot = copied([*lead, first], {loop.variable: following}, "_next")
    next_dot.set_attribute("isAsync", "true")
    body = [located(f"{following} = arith.addi {loop.variable}, {loop.step} : {loop.kind}", where), *early, next_dot]
    finished: dict[str, str] = {}
    for op in rest:
        new = op.substituted({first.result: current} | finished)
        body.append(new)
        if op is last:
            new.set_attribute("isAsync", "true")
            body.append(wait_for([next_dot, new], done, where))
            finished = {last.result: f"{done}#1"}
    if last is None:
        body.append(wait_for([next_dot], done, where))
    yielded = [finished.get(value, value) for value in loop.yielded]
    ending = [*zip(yielded, [kind for _, _, kind, _ in loop.carried], strict=True), (f"{done}#0", product)]
    first_product, upper = given
    # Unrolled, ptxas (Triton 3.6.0) puts off one iteration's work into the next one's, and keeps a tile more for it.
    attributes = {name: value for name, value in loop.attributes.items() if name != UNROLL}
    return control.ForLoop(
        loop.variable, loop.lower, upper, loop.step, [*loop.carried, (current, first_product, product, "%_product")],
        loop.kind, attributes, Region([*body, control.yield_of(ending, where)]), where,
    )  # fmt: skip
