"""A kernel as one partition of an assignment sees it: what it fills or reads, and nothing else.

To the consumers a converted operand is a slot, as a copied load is. A converter has nothing but its operands to make:
stores, products and whatever only they need are left out.
"""

from __future__ import annotations

import copy

from warpplan.kernels.compiler.analysis.operation_kinds import CONTROL, CONVERTED, COPY_LOAD, RING_LOADS
from warpplan.kernels.compiler.lowering.assigned.anchors import FILLER
from warpplan.kernels.compiler.lowering.slices.dead_values import without_dead_values
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, tokenize
from warpplan.kernels.compiler.ttgir.types import find_types

_ENDS = frozenset({"scf.yield", "scf.condition", "tt.return"})


def filler_of(operation: IrOperation) -> int:
    """The number of the partition that fills the slot of a load or a converted operand."""
    return int(operation.attributes.get(FILLER, "0").split()[0])


def converters_of(module: Module) -> list[int]:
    """The numbers of the partitions that compute operands."""
    return sorted({filler_of(op) for op in module.function.walk() if op.name == CONVERTED})


def consumer_view(module: Module) -> Module:
    """``module`` as its consumers see it: a copied load and a converted operand are slots to them, and nothing is
    computed for either."""
    function = copy.deepcopy(module.function)
    for operation in function.walk():
        if operation.name in (COPY_LOAD, CONVERTED):
            tensor = find_types(operation.signature)[-1]
            kept = {n: v for n, v in operation.attributes.items() if n in ("warpplan.load", "warpplan.slot")}
            operation.name, operation.parts = COPY_LOAD, [*tokenize(f" : {tensor}")]
            for name, value in kept.items():
                operation.set_attribute(name, value)
    return _of(module, _without_unread_loads(without_dead_values(function)))


def converter_view(module: Module, partition: int) -> Module:
    """``module`` as the converter of that number sees it."""

    def dead(operation: IrOperation) -> bool:
        """Whether it goes where nothing reads its results."""
        if operation.name == CONVERTED:
            return filler_of(operation) != partition
        return operation.name not in (*CONTROL, *_ENDS)

    return _of(module, without_dead_values(copy.deepcopy(module.function), dead))


def _without_unread_loads(function: IrOperation) -> IrOperation:
    """``function`` without the loads into rings whose tiles it does not read."""
    read = {name for operation in function.walk() for name in operation.operands}

    def clean(outer: IrOperation) -> None:
        for region in outer.regions:
            region.operations[:] = [
                op for op in region.operations if op.name not in RING_LOADS or op.result in read
            ]  # fmt: skip
            for operation in region.operations:
                clean(operation)

    clean(function)
    return without_dead_values(function)


def _of(module: Module, function: IrOperation) -> Module:
    seen = Module(module.aliases, copy.copy(module.operation), module.locations)
    seen.operation.parts = [
        Region(list(part.operations), part.label) if isinstance(part, Region) else part for part in seen.operation.parts
    ]
    replace_function(seen, function)
    return seen
