"""Tiles that are stored to shared memory element by element: loaded along one dimension, wanted along the other.

wgmma reads 16-bit operands along either dimension, 8-bit ones along K alone (PTX ISA, wgmma.mma_async: only 16-bit
types have ``imm-trans``). A loaded tile that lies along the other is therefore read into registers, and Triton stores
each of its elements by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from warpplan.kernels.compiler.analysis.copies.thread_elements import neighbours
from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, TMA_LOADS, TRANSPOSED, short_name
from warpplan.kernels.compiler.ttgir.ir import Module
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type


def mark_transposed_stores(module: Module) -> None:
    """Write :data:`TRANSPOSED` into each copy of a loaded tile into shared memory that lies along another dimension."""
    named = dict(line.partition(" = ")[::2] for line in module.aliases)
    operations = list(module.function.walk())
    made = {result: operation for operation in operations for result in operation.defined}
    for operation in operations:
        load = made.get(operation.operands[0]) if operation.name == "ttg.local_alloc" and operation.operands else None
        if load is None or (load.name not in ("tt.load", COPY_LOAD) and short_name(load) not in TMA_LOADS):
            continue
        tile, slot = (parse_type(find_types(each.signature)[-1]) for each in (load, operation))
        if tile is None or slot is None or len(tile.shape) < 2:
            continue
        rank = len(tile.shape)
        along = rank - 1 if short_name(load) in TMA_LOADS else neighbours(tile.encoding, module.aliases, rank)[0]
        wanted = _fastest(slot.encoding, named, rank)
        if wanted is not None and wanted != along:
            operation.set_attribute(TRANSPOSED, "unit")


def _fastest(encoding: str, named: Mapping[str, str], rank: int) -> int | None:
    """The dimension along which shared memory of the layout ``encoding`` lies; ``None`` where it does not say."""
    text = named.get(encoding, encoding)
    if text.startswith("#ttg.nvmma_shared<"):
        return rank - 2 if "transposed = true" in text else rank - 1
    order = re.search(r"#ttg\.swizzled_shared<.*\border = \[(\d+)", text)
    return None if order is None else int(order[1])
