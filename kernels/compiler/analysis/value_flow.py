"""Where the values of a kernel come from, control flow included: what defines each name, and which values it may be."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list

PLAIN, VARIABLE, CARRIED, HANDED = "plain", "variable", "carried", "handed"
_FIRST = frozenset({"tt.addptr", "tt.make_tensor_descriptor"})
"""Operations whose result points to where their first operand does."""


@dataclass(frozen=True, eq=False)
class Definition:
    """What defines a name. ``kind`` is ``CARRIED`` for what a loop takes from its last iteration, ``HANDED`` for what a
    branch, or the condition of a ``scf.while``, hands on, at ``position``; ``sources`` are the values it may then be.
    """

    operation: IrOperation
    kind: str
    position: int
    sources: tuple[str, ...]


def definitions(function: IrOperation) -> dict[str, Definition]:
    """Every name of ``function`` but its arguments; names must be unique."""
    found: dict[str, Definition] = {}
    for operation in function.walk():
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            found[loop.variable] = Definition(operation, VARIABLE, 0, ())
            for i, (inside, initial, _, result) in enumerate(loop.carried):
                made = Definition(operation, CARRIED, i, (initial, loop.yielded[i]))
                found |= {inside: made, result: made}
        elif operation.name == "scf.while":
            whiled = control.read_while(operation)
            for i, (inside, initial, _) in enumerate(whiled.carried):
                found[inside] = Definition(operation, CARRIED, i, (initial, control.yielded(whiled.after)[i]))
            for i, (inside, _, result) in enumerate(whiled.handed):
                made = Definition(operation, HANDED, i, (whiled.condition.operands[1 + i],))
                found |= {inside: made, result: made}
        elif operation.name == "scf.if":
            branch = control.read_branch(operation)
            for i, (_, result) in enumerate(branch.results):
                sides = tuple(control.yielded(region)[i] for region in (branch.then, branch.otherwise))
                found[result] = Definition(operation, HANDED, i, sides)
        elif operation.name != "tt.func":
            sources = tuple(operand_list(operation))
            for i, name in enumerate(operation.defined):
                found[name] = Definition(operation, PLAIN, i, sources)
    return found


def origins(name: str, defined: dict[str, Definition]) -> set[str]:
    """The memory that pointer or descriptor ``name`` may point into, by how the kernel came by it: ``%a`` an argument,
    ``*%a`` an address read from memory that ``%a`` points into, "unknown memory" what neither is behind.

    Two that are called differently are taken to be different memory, here and in all of the compiler path: as no
    caller hands a kernel its output as another input, none lists an output in a table of inputs. A trial compares what
    a planned kernel computes with what the unplanned one does, and would see it.
    """
    found: set[str] = set()
    seen, work = set(), [name]
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        made = defined.get(value)
        if made is None:
            found.add(value)
        elif made.operation.name == "tt.load":
            found |= {f"*{table}" for table in origins(made.sources[0], defined)}
        elif made.operation.name in _FIRST:
            work.append(made.sources[0])
        elif made.operation.name == "arith.select":
            work += made.sources[1:]
        else:
            work += made.sources
    return found or {"unknown memory"}
