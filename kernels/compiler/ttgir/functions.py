"""A kernel's function: its arguments, another body for it, another function for its module."""

from __future__ import annotations

from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, split_list


def arguments(function: IrOperation) -> dict[str, str]:
    """Name to type of the arguments of ``function``."""
    text = "".join(part for part in function.parts if isinstance(part, str))
    start = text.index("(")
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            break
    found = {}
    for entry in split_list(text[start + 1 : end]):
        name, _, kind = entry.partition(":")
        kind = kind.partition(" loc(")[0].strip()
        found[name.strip()] = kind.partition(" {")[0].strip()
    return found


def with_body(function: IrOperation, body: list[IrOperation]) -> IrOperation:
    """``function`` with the operations ``body`` instead of its own."""
    parts = [Region(body) if isinstance(part, Region) else part for part in function.parts]
    return IrOperation(function.name, function.results, parts, function.location)


def replace_function(module: Module, function: IrOperation) -> None:
    """Make ``function`` the kernel of ``module``."""
    region = module.operation.regions[0]
    old = module.function
    region.operations = [function if operation is old else operation for operation in region.operations]
