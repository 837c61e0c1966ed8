"""Operands in shared memory that no iteration changes, stored before the loop and not in it.

    for i:                                      copy = local_alloc v
        copy = local_alloc v          ──>       for i:
        s = dot(q[i], copy.T)                       s = dot(q[i], copy.T)

Triton's own pipeline does so behind the cut; its loop-invariant code motion before it leaves allocations alone.
"""

from __future__ import annotations

from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.names import unique_names

ALLOC = "ttg.local_alloc"


def hoist_invariant_operands(module: Module) -> None:
    """Move what fills shared memory with a value from outside of a loop in front of that loop."""
    if not any(op.name == "scf.for" and _moved(op) for op in module.function.walk()):
        return
    function = unique_names(module.function)
    replace_function(module, _with_regions(function, [_hoisted(region) for region in function.regions]))


def _hoisted(region: Region) -> Region:
    out: list[IrOperation] = []
    for operation in region.operations:
        if operation.regions:
            operation = _with_regions(operation, [_hoisted(inner) for inner in operation.regions])
        if operation.name == "scf.for":
            (body,) = operation.regions
            moved = _moved(operation)
            out += moved
            left = [op for op in body.operations if not any(op is one for one in moved)]
            operation = _with_regions(operation, [Region(left, body.label)]) if moved else operation
        out.append(operation)
    return Region(out, region.label)


def _moved(loop: IrOperation) -> list[IrOperation]:
    """What stands directly in ``loop`` and fills shared memory with what is made outside of it."""
    read = control.read_loop(loop)
    made = {name for inner in loop.walk() for name in inner.defined}
    made |= {read.variable, *(inside for inside, *_ in read.carried)}
    return [op for op in read.body.operations if op.name == ALLOC and op.operands and not made & set(op.operands)]


def _with_regions(operation: IrOperation, regions: list[Region]) -> IrOperation:
    left = iter(regions)
    changed = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
    changed.parts = [next(left) if isinstance(part, Region) else part for part in operation.parts]
    return changed
