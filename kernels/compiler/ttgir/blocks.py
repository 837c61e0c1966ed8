"""Blocks that branch become ``scf.if``: what an early ``return`` leaves of a kernel.

    ^bb0: …  cf.cond_br %done, ^bb1, ^bb2      …
    ^bb1: tt.return                        ──> scf.if %done {} else { … }
    ^bb2: …  tt.return                         tt.return

Every way through has to end by itself: ways that meet again, or go round, are not read.
"""

from __future__ import annotations

from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, tokenize

RETURN, BRANCH, JUMP = "tt.return", "cf.cond_br", "cf.br"


class Unstructured(Exception):
    """Why blocks cannot be read as branches within each other."""


def structured(blocks: list[Region]) -> list[IrOperation]:
    """The operations of a region of ``blocks``, the first its entry, as one block. Raises :class:`Unstructured`."""
    for block in blocks[1:]:
        if "(" in block.label:
            raise Unstructured("a block with arguments, where ways through the kernel meet")
    named = {block.label.rstrip(":"): block for block in blocks[1:]}
    entered = [name for block in blocks for name in _targets(block)]
    meeting = {name for name in entered if entered.count(name) > 1 and not _only_returns(named.get(name))}
    if meeting:
        raise Unstructured(f"ways through the kernel meet in {min(meeting)}: control flow other than scf is not read")
    last = blocks[0].operations[-1] if blocks[0].operations else IrOperation(RETURN)
    return [*_inlined(blocks[0], named), IrOperation(RETURN, location=last.location)]


def _inlined(block: Region, named: dict[str, Region]) -> list[IrOperation]:
    """``block`` and all that follows it, without the return at the end."""
    *body, last = block.operations or [IrOperation("")]
    if last.name == RETURN and not last.operands:
        return body
    targets = _targets(block)
    if last.name not in (BRANCH, JUMP) or not all(name in named for name in targets):
        raise Unstructured(f"a block that ends in {last.name or 'nothing'}")
    # A block that is left behind cannot come again: each is entered once.
    rest = {name: region for name, region in named.items() if region is not block}
    ways = [_inlined(named[name], rest) for name in targets]
    if last.name == JUMP:
        return [*body, *ways[0]]
    then, otherwise = (Region(way) for way in ways)
    parts: list[str | Region] = [*tokenize(f" {last.operands[0]} "), then]
    if otherwise.operations:
        parts += [" ", "else", " ", otherwise]
    return [*body, IrOperation("scf.if", (), parts, last.location)]


def _targets(block: Region) -> list[str]:
    last = block.operations[-1] if block.operations else IrOperation("")
    return [token for token in last.tokens if token.startswith("^")] if last.name in (BRANCH, JUMP) else []


def _only_returns(block: Region | None) -> bool:
    return block is not None and [operation.name for operation in block.operations] == [RETURN]
