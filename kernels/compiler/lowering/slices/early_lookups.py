"""Software pipelining of a producer's lookups: what is read of a table for the next iteration is read one ahead.

    for i:                              next = table[lower]                       where the loop runs at all
        row = table[i]           ──>    for i, row = next:
        copy a[row]                         next = table[i + step]                where there is such an iteration
                                            copy a[row]

A producer waits where it needs a number out of memory, a round trip to L2 or DRAM in each iteration; now that is under
way while the iteration before waits for its slot and copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from warpplan.kernels.compiler.analysis.copies.addresses import may_repeat, read_by
from warpplan.kernels.compiler.analysis.load_hazards import ASSEMBLY, WRITES
from warpplan.kernels.compiler.analysis.operation_kinds import LONGEST_EARLY, RING_LOADS, WGMMA
from warpplan.kernels.compiler.lowering.slices.unrolling import UNROLL
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names, with_suffix
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

LOAD = "tt.load"


Choice = Callable[[IrOperation, control.ForLoop], list[IrOperation]]
"""Which loads of an operation, a loop, are wanted ahead."""
Test = Callable[[IrOperation, control.ForLoop], bool]
"""Whether something holds of an operation, a loop."""


def with_early_vectors(function: IrOperation, in_place: Test) -> IrOperation:
    """A consumer's ``function`` with the small loads of its innermost loops an iteration ahead, but for loops of which
    ``in_place`` holds; its names unique."""

    def choice(operation: IrOperation, loop: control.ForLoop) -> list[IrOperation]:
        return [] if in_place(operation, loop) else vector_loads(loop)

    changed = IrOperation(function.name, function.results, list(function.parts), function.location)
    changed.parts = [
        Region(with_early_lookups(part.operations, choice), part.label) if isinstance(part, Region) else part
        for part in function.parts
    ]
    return unique_names(changed)


def with_early_lookups(operations: list[IrOperation], choice: Choice | None = None) -> list[IrOperation]:
    """``operations`` of a partition, whose names are unique, with the loads of each innermost ``scf.for``, or those of
    ``choice``, an iteration ahead, where all that their addresses need may be computed twice."""
    out: list[IrOperation] = []
    names: dict[str, str] = {}
    for operation in operations:
        if names:
            operation = operation.substituted(names)
        if operation.name == "scf.for" and _innermost(operation):
            made, renamed = _pipelined(operation, choice or _all_loads)
            out += made
            names |= renamed
            continue
        if operation.regions and operation.name.startswith("scf."):
            operation.parts = [
                Region(with_early_lookups(part.operations, choice), part.label) if isinstance(part, Region) else part
                for part in operation.parts
            ]
        out.append(operation)
    return out


def _all_loads(_: IrOperation, loop: control.ForLoop) -> list[IrOperation]:
    return [op for op in loop.body.operations if op.name == LOAD]


def vector_loads(loop: control.ForLoop) -> list[IrOperation]:
    """The loads of numbers and vectors of ``loop``, their addresses known without another load; none of a loop that
    reads no slots, or writes to memory, or may."""
    names = {op.name for op in loop.body.walk()}
    if not names & RING_LOADS or names & (WRITES | ASSEMBLY | {"tt.call"}):
        return []
    made_by = {name: op for op in loop.body.operations for name in op.defined}
    found = []
    for load in [op for op in loop.body.operations if op.name == LOAD]:
        tile = parse_type(_result_type(load))
        lead = _needed(load.operands, made_by, frozenset())
        small = tile is None or (math.prod(tile.shape) == max(tile.shape) <= LONGEST_EARLY)
        if small and may_repeat(load) and lead is not None and not any(op.name == LOAD for op in lead):
            found.append(load)
    return found


def _innermost(operation: IrOperation) -> bool:
    return not any(inner.name.startswith("scf.") and inner.regions for inner in operation.regions[0].walk())


def _pipelined(operation: IrOperation, choice: Choice) -> tuple[list[IrOperation], dict[str, str]]:
    """The loop with its loads an iteration ahead, and what stands before it; the loop alone where that cannot be. With
    new names of its results."""
    loop = control.read_loop(operation)
    if not loop.carried:  # MLIR leaves out a yield of nothing
        ended = loop.body.operations[-1:] and loop.body.operations[-1].name == "scf.yield"
        end = [] if ended else [control.yield_of([], operation.location)]
        loop.body = Region([*loop.body.operations, *end], loop.body.label)
    loads = choice(operation, loop)
    made_by = {name: op for op in loop.body.operations for name in op.defined}
    carried = {inside: (initial, back) for (inside, initial, *_), back in zip(loop.carried, loop.yielded, strict=True)}
    lead = _needed([name for load in loads for name in load.operands], made_by, frozenset())
    if not loads or lead is None:
        return [operation], {}
    lead = [op for op in loop.body.operations if op in lead or op in loads]
    moved = sorted(carried.keys() & {name for op in lead for name in read_by(op)})
    known = frozenset(load.result for load in loads)
    following = _needed([carried[name][1] for name in moved], made_by, known)
    if following is None:
        return [operation], {}
    where, stem = loads[0].location, with_suffix(loop.variable, "")
    runs, goes_on, following_index = (f"{stem}_wp_{n}" for n in ("runs", "goes_on", "next"))
    first = {loop.variable: loop.lower} | {name: carried[name][0] for name in moved}
    before = [_at(f"{runs} = arith.cmpi slt, {loop.lower}, {loop.upper} : {loop.kind}", where)]
    before += _copied(lead, first, "_wp_first", runs)
    back = {name: with_suffix(name, "_wp_then") for op in following for name in op.defined}
    ahead = _copied([op for op in loop.body.operations if op in following], {}, "_wp_then", "")
    ahead += [
        _at(f"{following_index} = arith.addi {loop.variable}, {loop.step} : {loop.kind}", where),
        _at(f"{goes_on} = arith.cmpi slt, {following_index}, {loop.upper} : {loop.kind}", where),
    ]
    later = {loop.variable: following_index} | {n: back.get(carried[n][1], carried[n][1]) for n in moved}
    ahead += _copied(lead, later, "_wp_ahead", goes_on)
    *rest, last = [op for op in loop.body.operations if op not in loads]
    new = [(with_suffix(load.result, "_wp_ahead"), _result_type(load)) for load in loads]
    loop.carried += [
        (load.result, with_suffix(load.result, "_wp_first"), kind, with_suffix(load.result, "_wp_left"))
        for load, (_, kind) in zip(loads, new, strict=True)
    ]
    loop.body = Region([*ahead, *rest, control.handing(last, [*control.handed(last), *new])], loop.body.label)
    if [op.name for op in loop.body.walk()].count(WGMMA) == 1:
        loop.attributes |= {UNROLL: "true"}  # the body of a loop with several products is long enough
    pack = operation.results[0].partition(":")[0] if operation.results else f"{stem}_wp_walked"
    made, renamed = control.write_loop(loop, pack)
    return [*before, made], {old: new for old, new in renamed.items() if old in operation.defined and old != new}


def _needed(names: list[str], made_by: dict[str, IrOperation], known: frozenset[str]) -> list[IrOperation] | None:
    """The operations of a body that ``names`` are computed by, up to what is ``known``; ``None`` where one of them may
    not be computed twice."""
    found: list[IrOperation] = []
    work = list(names)
    while work:
        name = work.pop()
        operation = made_by.get(name)
        if name in known or operation is None or operation in found:
            continue
        if operation.name.startswith("scf.") or not may_repeat(operation):
            return None
        found.append(operation)
        work += read_by(operation)
    return found


def _copied(operations: list[IrOperation], names: dict[str, str], suffix: str, condition: str) -> list[IrOperation]:
    """Copies that read each other and ``names``, their results named with ``suffix``; loads only where ``condition``
    holds."""
    names, out = dict(names), []
    for operation in operations:
        copy = operation.substituted(names)
        copy.results = tuple(with_suffix(result, suffix) for result in copy.results)
        names |= dict(zip(operation.defined, copy.defined, strict=True))
        out += _guarded(copy, condition) if copy.name == LOAD and condition else [copy]
    return out


def _guarded(load: IrOperation, condition: str) -> list[IrOperation]:
    """``load``, masked by the scalar ``condition``, too."""
    pointers, *rest = load.operands
    kinds = find_types(load.signature)
    tile = parse_type(kinds[0]) if kinds else None
    out, mask = [], condition
    if tile is not None:
        lanes = replace(tile, element="i1")
        out.append(_at(f"{load.result}_wp_lanes = tt.splat {condition} : i1 -> {lanes}", load.location))
        mask = f"{load.result}_wp_lanes"
    kind = "i1" if tile is None else str(replace(tile, element="i1"))
    if rest:
        out.append(_at(f"{load.result}_wp_mask = arith.andi {rest[0]}, {mask} : {kind}", load.location))
        load.parts[load.parts.index(rest[0])] = f"{load.result}_wp_mask"
    else:
        at = load.parts.index(pointers) + 1
        load.parts[at:at] = [",", " ", mask]
    return [*out, load]


def _result_type(load: IrOperation) -> str:
    kinds = find_types(load.signature)
    tile = parse_type(kinds[0]) if kinds else None
    if tile is not None:
        return str(replace(tile, element=tile.element.partition("<")[2].rpartition(">")[0]))
    return load.signature.strip().removeprefix("!tt.ptr<").rpartition(">")[0]


def _at(text: str, location: str) -> IrOperation:
    made = parse_operation(text)
    made.location = location
    return made
