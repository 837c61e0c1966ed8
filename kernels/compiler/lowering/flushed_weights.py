"""Softmax weights without the instructions for subnormal results: ``exp`` is written as ``exp2``, which flushes them.

    p = exp(s)      ──>      p = exp2(s * log2 e)

Triton makes ``ex2.approx`` of both, after the same product; that of ``exp`` compares each argument with -126, halves
it and squares the result. What is flushed nothing keeps (:mod:`~..pointers.softmax_weights`); all else is the same to
the bit.
"""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.operation_kinds import FLUSHED
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.parsing import parse_operation

LOG2E = 1.4426950408889634


def with_exp2_weights(operation: IrOperation) -> IrOperation:
    """A copy of ``operation`` with the marked exponentials of its regions as ``math.exp2``."""
    changed = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
    for i, part in enumerate(operation.parts):
        if isinstance(part, Region):
            out: list[IrOperation] = []
            for inner in part.operations:
                out += _as_exp2(inner) if FLUSHED in inner.attributes else [with_exp2_weights(inner)]
            changed.parts[i] = Region(out, part.label)
    return changed


def _as_exp2(operation: IrOperation) -> list[IrOperation]:
    result, kind = operation.result, operation.signature.strip()
    factor, scaled = with_suffix(result, "_log2e"), with_suffix(result, "_scaled")
    out = [
        parse_operation(f"{factor} = arith.constant dense<{LOG2E}> : {kind}"),
        parse_operation(f"{scaled} = arith.mulf {operation.operands[0]}, {factor} : {kind}"),
        parse_operation(f"{result} = math.exp2 {scaled} : {kind}"),
    ]
    for made in out:
        made.location = operation.location
    return out
