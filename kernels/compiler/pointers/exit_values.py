"""What a loop leaves of the numbers that it counts with, in closed form: the rewriting of exit values of scalar
evolution (LLVM's ``IndVarSimplify``).

    for …: acc, at = tl.dot(…, acc), at + 64      ──>   at = at0 + 64 · trips      after the loop
    tail = desc.load([row, at])

A tail's load would need the loop's result otherwise, and with it the products: no producer could run ahead to it.
"""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.value_flow import PLAIN
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.scalars.scalar_writer import ScalarWriter
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse


def with_exit_values(text: str) -> str:
    """The TTIR ``text`` of a kernel, in which what a loop with a product leaves of a number that it adds the same to in
    each iteration no longer comes from the loop; ``text`` itself where there is none. Raises
    :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR` for text that Triton did not print."""
    module = parse(text)
    function = unique_names(module.function)
    scalars = ScalarReader(function)
    used = {token for operation in function.walk() if operation is not function for token in operation.operands}
    left: dict[str, str] = {}
    for region, loop in list(_loops(function)):
        for position, (*_, result) in enumerate(control.read_loop(loop).carried):
            if result in used:
                writer = ScalarWriter(scalars, f"%wp_exit{len(left)}", loop.location)
                closed = _closed(loop, position, writer)
                if closed:
                    left[result] = closed
                    after = next(i for i, each in enumerate(region.operations) if each is loop) + 1
                    region.operations[after:after] = writer.out
    if not left:
        return text
    replace_function(module, function.substituted(left))
    return str(module)


def _loops(operation: IrOperation) -> list[tuple[Region, IrOperation]]:
    """Counted loops with a product in them, each with the region that it is in."""
    found = []
    for region in operation.regions:
        for inner in region.operations:
            if inner.name == "scf.for" and any(each.name == "tt.dot" for each in inner.walk()):
                found.append((region, inner))
            found += _loops(inner)
    return found


def _closed(operation: IrOperation, position: int, writer: ScalarWriter) -> str:
    """The name of the value in closed form, written; "" where it has none."""
    loop, scalars = control.read_loop(operation), writer.scalars
    inside, initial, kind, _ = loop.carried[position]
    made = scalars.defined.get(loop.yielded[position])
    step = scalars.read(loop.step).value
    if kind != loop.kind or kind not in ("i32", "i64") or step is None or step <= 0:
        return ""
    if made is None or made.kind != PLAIN or made.operation.name != "arith.addi" or inside not in made.sources:
        return ""
    added = next((source for source in made.sources if source != inside), inside)
    if added == inside or scalars.inside(added, operation):
        return ""
    span = writer.op(f"$ = arith.subi {loop.upper}, {loop.lower} : {kind}")
    if step > 1:
        rounded = writer.op(f"$ = arith.addi {span}, {writer.constant(step - 1, kind)} : {kind}")
        span = writer.op(f"$ = arith.divsi {rounded}, {writer.constant(step, kind)} : {kind}")
    trips = writer.op(f"$ = arith.maxsi {span}, {writer.constant(0, kind)} : {kind}")
    more = writer.op(f"$ = arith.muli {trips}, {added} : {kind}")
    return writer.op(f"$ = arith.addi {initial}, {more} : {kind}")
