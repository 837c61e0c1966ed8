"""What the addresses of copies cost: one is computed for each copy, not for each element of the tile.

Triton writes the pointers of all elements, but a ``cp.async`` takes the first of its vector alone and LLVM drops what
nothing reads (read in the PTX of triton 3.6.0), around the loop, too.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import elements_of


def with_thin_addresses(work: tuple[LoopWork, ...], flows: tuple[Flow, ...]) -> tuple[LoopWork, ...]:
    """``work`` of a loop with arithmetic on a copy's whole tile, of which only copies of as wide vectors read the
    result, divided by the vector."""
    by_id = {each.id: each for each in work}
    readers: dict[str, set[str]] = {}
    for flow in flows:
        readers.setdefault(flow.src, set()).add(flow.dst)
    vectors: dict[str, int] = {}
    for copy in (each for each in work if each.kind == "copy_load"):
        vector = elements_of(copy.shape) // copy.parts[-1].size
        waiting = [flow.src for flow in flows if flow.dst == copy.id]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            source = by_id[name]
            if name in seen or source.kind != "elementwise" or source.shape != copy.shape:
                continue
            seen.add(name)
            vectors[name] = min(vector, vectors.get(name, vector))
            waiting += [flow.src for flow in flows if flow.dst == name]
    kept = {name for name in vectors if _only_copies(name, readers, by_id, set(vectors))}
    return tuple(_divided(each, vectors[each.id]) if each.id in kept else each for each in work)


def _only_copies(name: str, readers: dict[str, set[str]], by_id: dict[str, LoopWork], thin: set[str]) -> bool:
    """Whether copies, and what is thin itself, are all that reads ``name``."""
    seen, waiting = {name}, [name]
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if by_id[reader].kind == "copy_load" or reader in seen:
                continue
            if reader not in thin:
                return False
            seen.add(reader)
            waiting.append(reader)
    return True


def _divided(work: LoopWork, vector: int) -> LoopWork:
    parts = tuple(replace(part, size=max(1, part.size // vector)) for part in work.parts)
    return replace(work, parts=parts, register_bits=work.register_bits // vector)
