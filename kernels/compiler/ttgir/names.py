"""One name, one value: Triton's printer uses a name again in a sibling region."""

from __future__ import annotations

from itertools import pairwise

from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, is_value, pack_of, tokenize


def unique_names(function: IrOperation) -> IrOperation:
    """A copy of ``function`` in which no name is defined twice."""
    return _Renaming().operation(function, {})


class _Renaming:
    def __init__(self) -> None:
        self.taken: set[str] = set()

    def fresh(self, name: str) -> str:
        new, count = name, 0
        while new in self.taken:
            count += 1
            new = with_suffix(name, f"_r{count}")
        self.taken.add(new)
        return new

    def operation(self, operation: IrOperation, scope: dict[str, str]) -> IrOperation:
        inner = dict(scope)
        for name in header_definitions(operation):
            inner[name] = self.fresh(name)
        results = []
        outer_names = {}
        for result in operation.results:
            name, mark, count = result.partition(":")
            outer_names[name] = self.fresh(name)
            results.append(outer_names[name] + mark + count)
        copy = IrOperation(operation.name, tuple(results), [], operation.location)
        for part in operation.parts:
            copy.parts.append(self.region(part, inner) if isinstance(part, Region) else _token(part, inner))
        scope.update(outer_names)
        return copy

    def region(self, region: Region, scope: dict[str, str]) -> Region:
        inner = dict(scope)
        tokens = tokenize(region.label)
        for token in tokens:
            if is_value(token):
                inner[token] = self.fresh(token)
        label = "".join(_token(token, inner) for token in tokens)
        return Region([self.operation(operation, inner) for operation in region.operations], label)


def with_suffix(name: str, suffix: str) -> str:
    """``name`` made another one: ``%x`` with ``suffix``, and so ``%12``, which takes a letter first, and ``%x#1``."""
    stem, mark, number = name.partition("#")
    if stem[1].isdigit():
        stem = f"%v{stem[1:]}"
    return stem + suffix + mark + number


def header_definitions(operation: IrOperation) -> list[str]:
    """What the head of ``operation`` defines for its regions: arguments of a function, variables of a loop."""
    tokens = operation.tokens
    mark = ":" if operation.name == "tt.func" else "="
    return [name for name, after in pairwise(tokens) if is_value(name) and after == mark]


def _token(token: str, scope: dict[str, str]) -> str:
    if not is_value(token):
        return token
    name = pack_of(token)
    return scope.get(name, name) + token[len(name) :]
