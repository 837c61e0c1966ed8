"""The next iteration's first multiply runs while this one's other work is done.

A loop such as attention's multiplies, works on the product, and multiplies again:

    s = dot(q, k[i]);  p = softmax(s);  acc = dot(p, v[i], acc)

The first multiply needs nothing of the loop but its own loads, so it is issued an iteration early and left in flight:

    if the loop runs:
        s = dot(q, k[first])
        for i but the last:
            next = dot(q, k[i + step]), in flight;  p = softmax(s);  acc = dot(p, v[i], acc);  wait for both;  s = next
        the last iteration, without a next
"""

from __future__ import annotations

from collections.abc import Callable

from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOAD, WGMMA
from warpplan.kernels.compiler.lowering.hopper.load_rings import VIEWS
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, parse_operation, tokenize
from warpplan.kernels.compiler.ttgir.names import unique_names, with_suffix
from warpplan.kernels.compiler.ttgir.types import find_types

WAIT = "ttng.warp_group_dot_wait"


Rewrite = Callable[[IrOperation, control.ForLoop], list[IrOperation] | None]


def rewrite_loops(function: IrOperation, *rewrites: Rewrite) -> IrOperation:
    """``function`` with every loop rewritten by the first of ``rewrites`` that can, its names unique."""
    changed = IrOperation(function.name, function.results, list(function.parts), function.location)
    changed.parts = [_region(part, rewrites) if isinstance(part, Region) else part for part in function.parts]
    return unique_names(changed)


def _region(region: Region, rewrites: tuple[Rewrite, ...]) -> Region:
    out: list[IrOperation] = []
    for operation in region.operations:
        if operation.name == "scf.for":
            made = (rewrite(operation, control.read_loop(operation)) for rewrite in rewrites)
            found = next((operations for operations in made if operations is not None), None)
            if found is not None:
                out += found
                continue
        if operation.name in ("scf.for", "scf.if"):
            operation = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
            operation.parts = [
                _region(part, rewrites) if isinstance(part, Region) else part for part in operation.parts
            ]
        out.append(operation)
    return Region(out, region.label)


def multiply_ahead(operation: IrOperation, loop: control.ForLoop) -> list[IrOperation] | None:
    """``operation``, which is ``loop``, rewritten; ``None`` where it has not this form."""
    found = _find(loop)
    return None if found is None else _rewritten(operation, loop, *found)


def _find(loop: control.ForLoop) -> tuple[list[IrOperation], IrOperation, IrOperation] | None:
    """What leads to the loop's first multiply, that multiply, and the loop's last one; ``None`` where the first needs
    what the loop carries, or is the only one."""
    operations = loop.body.operations
    dots = [operation for operation in operations if operation.name == WGMMA]
    if len(dots) < 2 or not loop.carried:
        return None
    first, last = dots[0], dots[-1]
    lead = lead_to(loop, first.operands)
    if lead is None:
        return None
    owned = {name for op in lead if is_lead(op) for name in op.defined}
    others = [operation for operation in operations if operation is not first and operation not in lead]
    if any(name in owned for operation in others for inner in operation.walk() for name in inner.operands):
        return None
    if first.result in loop.yielded or last.result not in loop.yielded:
        return None
    return lead, first, last


def lead_to(loop: control.ForLoop, operands: list[str]) -> list[IrOperation] | None:
    """What leads to ``operands`` in the body of ``loop``, in order: loads, views and addresses; ``None`` where that is
    more, needs what the loop carries, or is not loaded."""
    made = {name: operation for operation in loop.body.operations for name in operation.defined}
    carried = {inside for inside, *_ in loop.carried}
    lead: list[IrOperation] = []
    work = list(operands)
    while work:
        name = work.pop()
        if name in carried:
            return None
        operation = made.get(name)
        if operation is None or operation in lead:
            continue
        if operation.regions or not (is_lead(operation) or operation.name.startswith("arith.")):
            return None
        lead.append(operation)
        work += operation.operands
    if not any(operation.name == TMA_LOAD for operation in lead):
        return None
    return [operation for operation in loop.body.operations if operation in lead]


def is_lead(operation: IrOperation) -> bool:
    """Whether ``operation`` is a load or a view of one."""
    return operation.name in VIEWS or operation.name == TMA_LOAD


def _rewritten(
    operation: IrOperation, loop: control.ForLoop, lead: list[IrOperation], first: IrOperation, last: IrOperation
) -> list[IrOperation]:
    stem = with_suffix(loop.variable, "")
    kind, where = loop.kind, operation.location
    product = find_types(first.signature)[-1]
    views = {name for op in lead if is_lead(op) for name in op.defined}
    rest = [op for op in loop.body.operations[:-1] if op is not first and not views.intersection(op.defined)]

    def line(text: str) -> IrOperation:
        made = parse_operation(text)
        made.location = where
        return made

    def leading(to: str, suffix: str, asynchronous: bool) -> tuple[list[IrOperation], IrOperation]:
        *before, dot = copied([*lead, first], {loop.variable: to}, suffix)
        if asynchronous:
            dot.set_attribute("isAsync", "true")
        return before, dot

    before, dot = leading(loop.lower, "_first", False)
    shorter, following, current, packed = f"{stem}_shorter", f"{stem}_following", f"{stem}_product", f"{stem}_ahead"

    ahead, next_dot = leading(following, "_next", True)
    body = [line(f"{following} = arith.addi {loop.variable}, {loop.step} : {kind}"), *ahead, next_dot]
    for op in rest:
        new = op.substituted({first.result: current})
        if op is not last:
            body.append(new)
            continue
        new.set_attribute("isAsync", "true")
        done = f"{stem}_done"
        both = [new, next_dot]
        read = [(n, t) for d in both for n, t in zip(d.operands[:2], find_types(d.signature)[:2], strict=True)]
        shared = [(n, t) for n, t in dict(read).items() if t.startswith("!ttg.memdesc")]
        values = [(new.result, find_types(new.signature)[-1]), (next_dot.result, product), *shared]
        text = f" {', '.join(n for n, _ in values)} {{pendings = 0 : i32}} : {', '.join(t for _, t in values)}"
        body += [new, IrOperation(WAIT, (f"{done}:{len(values)}",), [*tokenize(text)], where)]
    finished = {last.result: f"{stem}_done#0"}
    at = next(i for i, op in enumerate(body) if op.name == WAIT)
    body[at + 1 :] = [op.substituted(finished) for op in body[at + 1 :]]
    yielded = [finished.get(value, value) for value in loop.yielded]
    types = [c[2] for c in loop.carried]
    ending = [*zip(yielded, types, strict=True), (f"{stem}_done#1", product)]
    inner = control.ForLoop(
        loop.variable, loop.lower, shorter, loop.step,
        [*loop.carried, (current, dot.result, product, "%_product")],
        kind, loop.attributes, Region([*body, control.yield_of(ending, where)]), where,
    )  # fmt: skip
    walked, results = control.write_loop(inner, packed)

    final, final_value = count_to_last(loop, stem, where)
    names = {inside: results[outside] for inside, _, _, outside in loop.carried}
    tail = copied(rest, {**names, loop.variable: final, first.result: results["%_product"]}, "_last")
    renamed = {name: with_suffix(name, "_last") for op in rest for name in op.defined}
    outcome = [renamed.get(value, names.get(value, value)) for value in loop.yielded]
    then = [
        *before, dot, line(f"{shorter} = arith.subi {loop.upper}, {loop.step} : {kind}"), walked, *final_value, *tail,
        control.yield_of(list(zip(outcome, types, strict=True)), where),
    ]  # fmt: skip
    otherwise = [control.yield_of([(c[1], c[2]) for c in loop.carried], where)]
    branch = control.Branch(
        f"{stem}_ran", [(c[2], c[3]) for c in loop.carried], Region(then), Region(otherwise), {}, where
    )
    name = operation.results[0].partition(":")[0]
    made, _ = control.write_branch(branch, name)
    return [
        line(f"{stem}_one = arith.constant 1 : {kind}"),
        line(f"{stem}_ran = arith.cmpi sgt, {loop.upper}, {loop.lower} : {kind}"),
        made,
    ]


def count_to_last(loop: control.ForLoop, stem: str, where: str) -> tuple[str, list[IrOperation]]:
    """The variable of ``loop`` in its last iteration, where it runs, and what computes it; ``stem``_one is 1."""
    span, rounded, count, steps, final = (f"{stem}_{n}" for n in ("span", "rounded", "count", "steps", "final"))
    texts = (
        f"{span} = arith.subi {loop.upper}, {loop.lower} : {loop.kind}",
        f"{rounded} = arith.subi {span}, {stem}_one : {loop.kind}",
        f"{count} = arith.divsi {rounded}, {loop.step} : {loop.kind}",
        f"{steps} = arith.muli {count}, {loop.step} : {loop.kind}",
        f"{final} = arith.addi {loop.lower}, {steps} : {loop.kind}",
    )
    made = [parse_operation(text) for text in texts]
    for operation in made:
        operation.location = where
    return final, made


def copied(operations: list[IrOperation], names: dict[str, str], suffix: str) -> list[IrOperation]:
    """Copies whose results have ``suffix`` and that read each other's and ``names``."""
    names, copies = dict(names), []
    for operation in operations:
        copy = operation.substituted(names)
        copy.results = tuple(_suffixed(result, suffix) for result in copy.results)
        names |= dict(zip(operation.defined, copy.defined, strict=True))
        copies.append(copy)
    return copies


def _suffixed(result: str, suffix: str) -> str:
    name, mark, count = result.partition(":")
    return with_suffix(name, suffix) + mark + count
