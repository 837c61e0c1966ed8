"""Loops with iterations peeled off, for rewrites that issue a product in another iteration than it stands in.

if the loop runs:
    the first iteration, or its first product
    the loop, from the second iteration or without the last
    the last iteration, or its last product
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warpplan.kernels.compiler.analysis.operation_kinds import RING_LOADS
from warpplan.kernels.compiler.lowering.hopper.load_rings import VIEWS
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, tokenize
from warpplan.kernels.compiler.ttgir.names import unique_names, with_suffix
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.types import find_types

WAIT = "ttng.warp_group_dot_wait"
ONCE = "warpplan.once"
"""Attribute of a loop of one iteration or none, which stands for a branch."""

Rewrite = Callable[[IrOperation, control.ForLoop], list[IrOperation] | None]
"""Given a loop's operation and what it says: the operations in its place, ``None`` where the loop has another form."""


def rewrite_loops(function: IrOperation, *rewrites: Rewrite) -> IrOperation:
    """``function`` with every loop rewritten by the first of ``rewrites`` that can, its names unique."""
    changed = IrOperation(function.name, function.results, list(function.parts), function.location)
    changed.parts = [_rewritten_region(part, rewrites) if isinstance(part, Region) else part for part in function.parts]
    return unique_names(changed)


def _rewritten_region(region: Region, rewrites: tuple[Rewrite, ...]) -> Region:
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
                _rewritten_region(part, rewrites) if isinstance(part, Region) else part for part in operation.parts
            ]
        out.append(operation)
    return Region(out, region.label)


def guarded(operation: IrOperation, loop: control.ForLoop, then: list[IrOperation]) -> list[IrOperation]:
    """``then``, which ends in a yield of what ``loop`` carries, where the loop runs at all, else its initial values,
    under the names of the results of ``operation``, the loop's. Makes 1 available to ``then`` (:func:`count_to_last`).

    Written as a loop of one iteration or none, which LLVM turns into a branch: where a branch inside a loop has an
    initial value that is a constant, ``remove_layout_conversions`` of Triton 3.6.0 moves a change of layout behind it,
    a store's, into its other side (``hoistConvertIntoConditionals``). The whole fp32 accumulator is then converted
    through shared memory, not what is stored of it. The results of a loop keep their layout.
    """
    stem, where = with_suffix(loop.variable, ""), operation.location
    texts = (
        f"{stem}_none = arith.constant 0 : {loop.kind}",
        f"{stem}_one = arith.constant 1 : {loop.kind}",
        f"{stem}_ran = arith.cmpi sgt, {loop.upper}, {loop.lower} : {loop.kind}",
        f"{stem}_times = arith.extui {stem}_ran : i1 to {loop.kind}",
    )
    carried = [
        (f"{stem}_initial{i}", initial, kind, outside) for i, (_, initial, kind, outside) in enumerate(loop.carried)
    ]
    once = control.ForLoop(
        f"{stem}_once",
        f"{stem}_none",
        f"{stem}_times",
        f"{stem}_one",
        carried,
        loop.kind,
        {ONCE: "true"},
        Region(then),
        where,
    )
    made, _ = control.write_loop(once, operation.results[0].partition(":")[0])
    return [*(located(text, where) for text in texts), made]


def located(text: str, location: str) -> IrOperation:
    """The operation ``text`` at ``location``."""
    made = parse_operation(text)
    made.location = location
    return made


def lead_to(loop: control.ForLoop, operands: list[str]) -> list[IrOperation] | None:
    """What leads to ``operands`` in the body of ``loop``, in order: loads and views; ``None`` where that is more, needs
    what the loop carries, or is not loaded. Where a load reads is the producer's to know."""
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
        work += () if operation.name in RING_LOADS else operation.operands
    if not any(operation.name in RING_LOADS for operation in lead):
        return None
    return [operation for operation in loop.body.operations if operation in lead]


def wait_for(dots: Sequence[IrOperation], name: str, location: str, pending: int = 0) -> IrOperation:
    """Wait until ``dots`` are over, with ``pending`` younger ones running: their results are then ``name``#0,
    ``name``#1, …; what they read in shared memory is read until here."""
    kinds = [find_types(dot.signature) for dot in dots]
    values = {dot.result: types[-1] for dot, types in zip(dots, kinds, strict=True)}
    for dot, types in zip(dots, kinds, strict=True):
        read = zip(dot.operands[:2], types[:2], strict=True)
        values |= {name: text for name, text in read if text.startswith("!ttg.memdesc")}
    text = f" {', '.join(values)} {{pendings = {pending} : i32}} : {', '.join(values.values())}"
    return IrOperation(WAIT, (f"{name}:{len(values)}",), [*tokenize(text)], location)


def is_lead(operation: IrOperation) -> bool:
    """Whether ``operation`` is a load or a view of one."""
    return operation.name in VIEWS or operation.name in RING_LOADS


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
    return final, [located(text, where) for text in texts]


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
