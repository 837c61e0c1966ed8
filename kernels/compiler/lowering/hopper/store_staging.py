"""TMA stores and reductions of a loop: they have shared memory of their own, and the next tile's multiplies do not wait
for them.

Triton stages a store in memory that something else may take next, so it waits for the store at once. Here the staging
belongs to the stores of one type of tile, and the wait stands before its next use. A wait is for every store under way,
so more memory would let none begin earlier: the halves of a tile, and the two ends of a flattened loop, share theirs.
"""

from __future__ import annotations

from warpplan.kernels.compiler.lowering.hopper.load_rings import without_leading
from warpplan.kernels.compiler.lowering.hopper.partition_builder import Builder
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

STORE, REDUCE = "tt.descriptor_store", "tt.descriptor_reduce"


class Staging:
    """The staging buffers of one consumer; ``buffers`` are the allocations that the block makes for it, one a type."""

    def __init__(self, module: Module, builder: Builder, prefix: str) -> None:
        self.module, self.builder, self.prefix = module, builder, prefix
        self.buffers: dict[str, ShapedType] = {}

    def suits(self, operation: IrOperation) -> bool:
        """Whether ``operation`` is a TMA store or reduction whose layout in shared memory is known."""
        return operation.name in (STORE, REDUCE) and bool(self._encoding(operation))

    def _encoding(self, operation: IrOperation) -> str:
        """The layout in shared memory of the tile that ``operation`` writes: its descriptor's, without the leading
        dimensions of 1 that the tile lacks."""
        box, tensor = (parse_type(text) for text in find_types(operation.signature))
        assert box is not None
        assert tensor is not None
        if len(box.shape) == len(tensor.shape):
            return box.encoding
        return without_leading(self.module, box.encoding, len(tensor.shape))

    def store(self, out: list[IrOperation], operation: IrOperation) -> None:
        """Write ``operation``, a TMA store or reduction, through the buffer of its type."""
        *descriptor_and_place, value = operation.operands
        descriptor, *place = descriptor_and_place
        box, tensor = find_types(operation.signature)
        tensor_type = parse_type(tensor)
        assert tensor_type is not None
        kind = ShapedType(
            "!ttg.memdesc", tensor_type.shape, tensor_type.element, (self._encoding(operation), "#smem", "mutable")
        )
        name = next((n for n, other in self.buffers.items() if other == kind), None)
        if name is None:
            name = f"%wp_{self.prefix}_stage{len(self.buffers)}"
            self.buffers[name] = kind
        build, where = self.builder, operation.location
        self.wait(out)
        build.op(out, f"ttg.local_store {value}, {name} : {tensor} -> {kind}", where)
        build.op(out, "ttng.fence_async_shared {bCluster = false}", where)
        write = f"{_written(operation)} {descriptor}[{', '.join(place)}] {name} : {box}, {kind}"
        build.op(out, write, where)

    def wait(self, out: list[IrOperation]) -> None:
        """Until every store has read its buffer; before Triton 3.9 that is all the operation can mean."""
        self.builder.op(out, "ttng.async_tma_store_wait {pendings = 0 : i32, read_only}")


def _written(operation: IrOperation) -> str:
    """What writes out of shared memory as ``operation`` does out of registers; a reduction's first word is what it does
    to what is there: "add"."""
    if operation.name == STORE:
        return "ttng.async_tma_copy_local_to_global"
    return f"ttng.async_tma_reduce {operation.tokens[0]},"
