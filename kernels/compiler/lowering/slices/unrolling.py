"""Loop unrolling by two: what one iteration reads ahead for the next lands in the registers that the next one reads.

    for i:                       for i, in pairs:
        v = next              ──>    w = load(i + step);  work(v);  v = load(i + 2 · step);  work(w)
        next = load(i + step)    the last iteration, where they are odd
        work(v)

Without it the value is moved to another register at the end of each iteration, and the move waits for what has just
been asked for.
"""

from __future__ import annotations

from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.parsing import parse_operation

UNROLL = "warpplan.unroll"
"""Attribute of a loop that is to be unrolled once its consumer is written."""


def with_unrolled_loops(operations: list[IrOperation]) -> list[IrOperation]:
    """``operations`` with their loops marked :data:`UNROLL`, also those inside of others, unrolled by two."""
    out: list[IrOperation] = []
    for operation in operations:
        if operation.name.startswith("scf."):
            operation.parts = [
                Region(with_unrolled_loops(part.operations), part.label) if isinstance(part, Region) else part
                for part in operation.parts
            ]
        if operation.name == "scf.for" and UNROLL in operation.attributes:
            operation.drop_attribute(UNROLL)
            out += _by_two(operation)
            continue
        out.append(operation)
    return out


def _by_two(operation: IrOperation) -> list[IrOperation]:
    loop = control.read_loop(operation)
    stem, where, kind = with_suffix(loop.variable, ""), operation.location, loop.kind
    names = ("short", "twice", "second", "following", "left", "rest")
    short, twice, second, following, left, final = (f"{stem}_wp_{name}" for name in names)
    before = [
        _at(f"{short} = arith.subi {loop.upper}, {loop.step} : {kind}", where),
        _at(f"{twice} = arith.addi {loop.step}, {loop.step} : {kind}", where),
    ]
    *body, last = loop.body.operations
    types = [text for _, _, text, _ in loop.carried]
    handed = {inside: value for (inside, *_), value in zip(loop.carried, loop.yielded, strict=True)}
    again, yielded = _copied(body, {loop.variable: second} | handed, "_wp_second", loop.yielded)
    pair = [
        *body, _at(f"{second} = arith.addi {loop.variable}, {loop.step} : {kind}", where), *again,
        _at(f"{following} = arith.addi {loop.variable}, {twice} : {kind}", where),
        control.yield_of([*zip(yielded, types, strict=True), (following, kind)], last.location),
    ]  # fmt: skip
    carried = [*loop.carried, (left, loop.lower, kind, final)]
    pairs = control.ForLoop(
        loop.variable, loop.lower, short, twice, carried, kind, loop.attributes, Region(pair, loop.body.label), where
    )
    walked, results = control.write_loop(pairs, f"{stem}_wp_pairs")
    inside = {name: with_suffix(name, "_wp_odd") for name in (loop.variable, *handed)}
    odd, yielded = _copied(body, inside, "_wp_odd", loop.yielded)
    rest = control.ForLoop(
        inside[loop.variable], results[final], loop.upper, loop.step,
        [(inside[name], results[outside], text, outside) for name, _, text, outside in loop.carried], kind,
        loop.attributes,
        Region([*odd, control.yield_of([*zip(yielded, types, strict=True)], last.location)], loop.body.label), where,
    )  # fmt: skip
    pack = operation.results[0].partition(":")[0] if operation.results else f"{stem}_wp_walked"
    return [*before, walked, control.write_loop(rest, pack)[0]]


def _copied(
    operations: list[IrOperation], names: dict[str, str], suffix: str, wanted: list[str]
) -> tuple[list[IrOperation], list[str]]:
    """Copies that read each other and ``names``, and what ``wanted`` are called among them."""
    names, copies = dict(names), []
    for operation in operations:
        copy = operation.substituted(names)
        results = (result.partition(":") for result in copy.results)
        copy.results = tuple(with_suffix(name, suffix) + mark + count for name, mark, count in results)
        names |= dict(zip(operation.defined, copy.defined, strict=True))
        copies.append(copy)
    return copies, [names.get(name, name) for name in wanted]


def _at(text: str, location: str) -> IrOperation:
    made = parse_operation(text)
    made.location = location
    return made
