"""Layouts of a kernel's warps rewritten for fewer warps, so that a partition may have fewer than the kernel.

Triton gives a kernel of 8 warps layouts of 8 warps; a producer of 4 has each of them with a factor of two taken from
its largest count of warps. All layouts of the partition change alike, so that what agreed before agrees after.
"""

from __future__ import annotations

import json
import math
import re

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.source_locations import source_line

_WARPS = re.compile(r"warpsPerCTA = \[([\d, ]+)\]")
_WARP_BASES = re.compile(r"warp = (\[.*?\]\]|\[\])")
_REGISTER_BASES = re.compile(r"register = (\[.*?\]\]|\[\])")
_INFERRED = frozenset({"tt.reshape", "tt.join", "tt.split"})
"""Operations whose result's layout Triton computes from the operand's in ways that need not commute with this."""


def with_warps(module: Module, operations: list[IrOperation], warps: int) -> list[IrOperation]:
    """``operations``, whose layouts are for ``module``'s warps, with layouts for ``warps``, a power of two below. New
    layouts are defined in ``module``. Raises :class:`CannotPlan` with the operation and its source line where layouts
    may not agree afterwards."""
    factor = int(module.operation.attributes["ttg.num-warps"].split()[0]) // warps
    if factor <= 1:
        return operations
    inferred = next((op for outer in operations for op in outer.walk() if op.name in _INFERRED), None)
    if inferred is not None:
        why = f"the producer needs it, in a layout that is not known for its {warps} warps"
        raise CannotPlan(why, inferred.name, source_line(module, inferred))
    renamed: dict[str, str] = {}
    for line in list(module.aliases):
        name, _, text = line.partition(" = ")
        narrowed = _narrowed(text, factor)
        if narrowed != text:
            renamed[name] = module.alias(narrowed, name[1:].rstrip("0123456789"))
    for line in list(module.aliases):  # layouts that name another one, which Triton prints before them
        name, _, text = line.partition(" = ")
        if name not in renamed and not _names(text).isdisjoint(renamed):
            renamed[name] = module.alias(_substituted(text, renamed), name[1:].rstrip("0123456789"))
    return [_rewritten(operation, renamed) for operation in operations]


def _narrowed(text: str, factor: int) -> str:
    found = _WARPS.search(text)
    if found is not None:
        counts = [int(n) for n in found[1].split(",")]
        while factor > 1 and math.prod(counts) > 1:
            largest = counts.index(max(counts))
            counts[largest] //= 2
            factor //= 2
        return text[: found.start()] + f"warpsPerCTA = {counts}" + text[found.end() :]
    if not text.startswith("#ttg.linear<"):
        return text
    bases, registers = _WARP_BASES.search(text), _REGISTER_BASES.search(text)
    if bases is None or registers is None:
        return text
    warp, dropped = json.loads(bases[1]), int(math.log2(factor))
    # A thread takes the elements of the warps that are gone: without them Triton aborts, the tile is not covered.
    taken = [base for base in warp[len(warp) - dropped :] if any(base)]
    text = text[: bases.start()] + f"warp = {json.dumps(warp[: len(warp) - dropped])}" + text[bases.end() :]
    return _REGISTER_BASES.sub(f"register = {json.dumps([*json.loads(registers[1]), *taken])}", text)


def _names(text: str) -> set[str]:
    return set(re.findall(r"#[\w$]+(?![\w$.])", text))


def _substituted(text: str, renamed: dict[str, str]) -> str:
    return re.sub(r"#[\w$]+(?![\w$.])", lambda found: renamed.get(found[0], found[0]), text)


def _rewritten(operation: IrOperation, renamed: dict[str, str]) -> IrOperation:
    parts: list[str | Region] = [
        Region([_rewritten(inner, renamed) for inner in part.operations], _substituted(part.label, renamed))
        if isinstance(part, Region) else renamed.get(part, part)
        for part in operation.parts
    ]  # fmt: skip
    return IrOperation(operation.name, operation.results, parts, operation.location)
