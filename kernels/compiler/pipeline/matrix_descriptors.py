"""Matrix descriptors of wgmma in PTX, written such that ptxas keeps their addresses.

Where two tiles lie at one place of shared memory in turn, with other swizzles, LLVM makes the descriptors of both from
one register: the address, plus a constant for each. ptxas 12.8, of Triton 3.6 and 3.7, may then take some of them from
a uniform register that nothing has written: wrong results, or an illegal address (found by compute-sanitizer on an
H200; ptxas 12.9 does not). Sums from a tile's first descriptor are the same numbers, and come out right.
"""

from __future__ import annotations

import re

SUM = re.compile(r"(\s*)(or\.b64|add\.s64)(\s+)(%rd\d+), (%rd\d+), (-?\d+);(.*)")
BLOCK_ENDS = re.compile(r"\s*(\$\w+:|(@!?%p\d+\s+)?bra\b)")
ADDRESS_BITS = 14
"""The low bits of a descriptor: a shared address in units of 16 bytes (PTX ISA, "Matrix descriptor format")."""


def with_kept_addresses(ptx: str) -> str:
    """``ptx`` with the descriptors that are at risk as sums from the first one of their tile; else as it is."""
    lines = ptx.split("\n")
    sums = [_descriptor(line) for line in lines]
    kinds: dict[str, set[int]] = {}
    for found in sums:
        if found is not None:
            kinds.setdefault(found.base, set()).add(found.kind)
    shared = {base for base, those in kinds.items() if len(those) > 1}
    if not shared:
        return ptx
    first: dict[tuple[str, int], _Sum] = {}
    for number, (line, found) in enumerate(zip(lines, sums, strict=True)):
        if BLOCK_ENDS.match(line):
            first.clear()  # what another block has made may not be there
        if found is None or found.base not in shared:
            continue
        begin = first.setdefault((found.base, found.kind), found)
        if begin is not found:
            lines[number] = found.from_other(begin)
    return "\n".join(lines)


class _Sum:
    """One descriptor: ``register`` is ``base`` plus ``constant``."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.indent, _, self.space, self.register, self.base, constant, self.rest = parts
        self.constant = int(constant) % 2**64
        self.kind = self.constant >> ADDRESS_BITS  # offsets between rows and columns, swizzle

    def from_other(self, other: _Sum) -> str:
        """The line that makes it from ``other``, of the same base."""
        difference = self.constant - other.constant
        return f"{self.indent}add.s64{self.space}{self.register}, {other.register}, {difference};{self.rest}"


def _descriptor(line: str) -> _Sum | None:
    """The descriptor that ``line`` makes; an ``or`` adds where none of its constant's bits is in an address."""
    match = SUM.fullmatch(line)
    if match is None:
        return None
    found = _Sum(match.groups())
    adds = match.group(2) == "add.s64" or found.constant % 2**ADDRESS_BITS == 0
    return found if adds and found.constant >> 32 else None
