"""Dead code elimination through structured control flow: what nothing reads is left out, loop-carried values too.

A consumer's loads have no addresses any more, so that pointers and masks are advanced around its loops for nobody.
Triton's own passes keep what a loop carries for itself alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from warpplan.kernels.compiler.analysis.copies.addresses import may_repeat, read_by, steered_by
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region

_T = TypeVar("_T")
_REMOVABLE = frozenset({"ttg.local_load", "ttg.memdesc_trans", "tt.join", "tt.split", "tt.fp_to_fp", "tt.clampf"})
"""Beside what a producer may repeat."""


def without_dead_values(function: IrOperation, removable: Callable[[IrOperation], bool] | None = None) -> IrOperation:
    """``function``, whose names are unique, without the operations, carried values and branch results that nothing
    reads. What acts on memory stays, and so does every loop and branch; or what ``removable`` says goes unless its
    results are read."""
    return _Sweep(function, removable or _removable).function()


class _Sweep:
    def __init__(self, function: IrOperation, removable: Callable[[IrOperation], bool]) -> None:
        self.whole, self.removable = function, removable
        self.live: set[str] = set()
        self._feeds: dict[str, list[str]] = {}
        self._work: list[str] = []
        self._collect(function, [])
        while self._work:
            name = self._work.pop()
            if name not in self.live:
                self.live.add(name)
                self._work += self._feeds.get(name, ())
        self.names: dict[str, str] = {}

    def _collect(self, outer: IrOperation, ending: list[list[str]]) -> None:
        """Note what each value is made of; ``ending`` are the values that those which end a region of ``outer`` make,
        position by position."""
        for region in outer.regions:
            for operation in region.operations:
                if operation.name == "scf.for":
                    loop = control.read_loop(operation)
                    for inside, initial, _, result in loop.carried:
                        self._feed(inside, [initial])
                        self._feed(result, [initial])
                    self._work += steered_by(operation)
                    self._collect(operation, [[inside, result] for inside, _, _, result in loop.carried])
                elif operation.name == "scf.if":
                    self._work += steered_by(operation)
                    self._collect(operation, [[result] for _, result in control.read_branch(operation).results])
                elif operation.name == "scf.yield":
                    for names, value in zip(ending, [v for v, _ in control.handed(operation)], strict=True):
                        for name in names:
                            self._feed(name, [value])
                elif self.removable(operation):
                    for name in operation.defined:
                        self._feed(name, read_by(operation))
                else:
                    self._work += read_by(operation)  # it acts, or is a form of control flow that is left whole

    def _feed(self, name: str, sources: list[str]) -> None:
        self._feeds.setdefault(name, []).extend(sources)

    def function(self) -> IrOperation:
        new = IrOperation(self.whole.name, self.whole.results, [], self.whole.location)
        new.parts = [self._region(p, None) if isinstance(p, Region) else p for p in self.whole.parts]
        return new

    def _region(self, region: Region, kept: set[int] | None) -> Region:
        """``region``, of what it yields only the positions ``kept``, all of it where that is ``None``."""
        out: list[IrOperation] = []
        for operation in region.operations:
            if operation.name == "scf.for":
                out.append(self._loop(operation))
            elif operation.name == "scf.if":
                out.append(self._branch(operation))
            elif operation.name == "scf.yield" and kept is not None:
                ending = control.handing(operation, _at(control.handed(operation), kept))
                out.append(ending.substituted(self.names))
            elif not self.removable(operation) or operation.result_in(self.live):
                out.append(operation.substituted(self.names))
        return Region(out, region.label)

    def _loop(self, operation: IrOperation) -> IrOperation:
        loop = control.read_loop(operation.substituted(self.names, deep=False))
        kept = {i for i, (inside, *_, result) in enumerate(loop.carried) if {inside, result} & self.live}
        if len(kept) == len(loop.carried):
            operation = operation.substituted(self.names, deep=False)
            operation.parts = [self._region(p, None) if isinstance(p, Region) else p for p in operation.parts]
            return operation
        loop.carried, loop.body = _at(loop.carried, kept), self._region(loop.body, kept)
        made, renamed = control.write_loop(loop, operation.results[0].partition(":")[0])
        self.names |= renamed
        return made

    def _branch(self, operation: IrOperation) -> IrOperation:
        branch = control.read_branch(operation.substituted(self.names, deep=False))
        kept = {i for i, (_, result) in enumerate(branch.results) if result in self.live}
        if len(kept) == len(branch.results):
            operation = operation.substituted(self.names, deep=False)
            operation.parts = [self._region(p, None) if isinstance(p, Region) else p for p in operation.parts]
            return operation
        branch.results = _at(branch.results, kept)
        branch.then, branch.otherwise = self._region(branch.then, kept), self._region(branch.otherwise, kept)
        made, renamed = control.write_branch(branch, operation.results[0].partition(":")[0])
        self.names |= renamed
        return made


def _removable(operation: IrOperation) -> bool:
    if not operation.results or operation.name in ("scf.for", "scf.if", "scf.while"):
        return False
    return may_repeat(operation) or operation.name in _REMOVABLE


def _at(values: list[_T], positions: set[int]) -> list[_T]:
    return [value for i, value in enumerate(values) if i in positions]
