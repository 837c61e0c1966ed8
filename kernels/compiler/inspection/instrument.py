"""Proton's records around the operations of a finished kernel, specialised or not, without a change of its source.

``proton.scope`` in ``tl`` source is moved about by the pipeliner, so the records are put into the finished TTGIR, by a
stage hook that runs while Proton's instrumentation backend is started. Each stretch of operations of one kind becomes a
scope named ``kind@file.py:12`` after its first operation's line. The kinds are those that this project's own kernels
record and two more:

``producer_wait``, ``consumer_wait``   a wait for a free slot, for data
``tma_issue``                          TMA loads issued
``mma``                                products, with the wait for them where it follows
``epilogue``                           stores
``load``                               loads through pointers
``math``                               arithmetic on tiles inside a loop

The scopes of what is asynchronous show its issue. The assembler may still move arithmetic past a record.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from warpplan.kernels.compiler.analysis.operation_kinds import FREE
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import ONCE
from warpplan.kernels.compiler.pipeline import read
from warpplan.kernels.compiler.ttgir.control import read_loop
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, is_value
from warpplan.kernels.compiler.ttgir.parsing import parse, parse_operation
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.triton_types import Json, MlirModule, StageHook
from warpplan.planner.errors import UnknownName

KINDS = ("producer_wait", "tma_issue", "consumer_wait", "mma", "epilogue", "load", "math")
_COPIES = frozenset({"ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather"})
_OF_KIND = {
    "tma_issue": _COPIES | {"ttng.barrier_expect"},
    "mma": frozenset({
        "ttng.warp_group_dot", "ttng.warp_group_dot_wait", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled",
        "ttng.tc_gen5_commit", "tt.dot",
    }),
    "epilogue": frozenset({
        "tt.store", "tt.atomic_rmw", "ttng.async_tma_copy_local_to_global", "ttng.async_tma_reduce",
        "ttng.async_tma_scatter", "ttng.async_tma_store_wait", "ttng.async_tma_store_token_wait",
    }),
    "load": frozenset({"tt.load", "ttg.async_copy_global_to_local", "ttg.async_wait"}),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _OF_KIND.items() for name in names}
_WAIT = "ttng.wait_barrier"
_QUIET = ("arith.", "math.", "ttg.memdesc", "tt.addptr", "ttg.convert_layout", "ttg.local_alloc", "tt.fp_to_fp")
_TILE_WORK = ("arith.", "math.", '"tt.reduce"', "ttg.convert_layout", "tt.fp_to_fp", "tt.elementwise", "tt.gather")


def instrument(text: str, kinds: Collection[str] = KINDS) -> str:
    """``text``, a finished kernel, with records around its operations of ``kinds``.

    Reading it needs a context with Proton's dialect, which Triton loads while Proton is started. Raises
    :class:`UnknownName` for a kind that is not in ``KINDS``, :class:`MalformedIR` for text that is no kernel.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName("kind", kind, KINDS)
    module = parse(text)
    if kinds:
        _write_zeros_first(module)
    _Recorder(module, frozenset(kinds)).region(module.function.regions[0], producer=False, loop=False)
    return str(module)


def scopes(text: str) -> tuple[str, ...]:
    """The names of the scopes in ``text``, in order, each once."""
    names = [o.tokens[1].strip('"') for o in parse(text).walk() if o.name == "proton.record"]
    return tuple(dict.fromkeys(names))


def hook(kinds: Collection[str] = KINDS) -> StageHook:
    """A function for ``triton.knobs.runtime.add_stages_inspection_hook`` that records kernels compiled as they are; for
    planned ones :func:`warpplan.kernels.compiler.strategy.stage_hook.hook` takes :func:`instrument` as its ``edit``."""

    def inspect(*arguments: Json) -> tuple[str, str] | None:
        if not arguments:  # Triton 3.7 and later ask for (key, hash)
            key = f"warpplan-recorded-{'-'.join(sorted(kinds))}"
            return key, key
        stages = arguments[1]
        finish = stages["ttgir"]

        def make_ttgir(module: MlirModule, metadata: dict[str, Json]) -> MlirModule:
            context = module.context
            return read(instrument(str(finish(module, metadata)), kinds), context)

        stages["ttgir"] = make_ttgir
        return None

    return inspect


def _write_zeros_first(module: Module) -> None:
    """Accumulators that start as a constant start as values that the compiler knows nothing of.

    It writes constants into registers where paths meet, for a loop that runs no iteration after the loop, too. With
    records in the loop it no longer splits those paths, and ptxas, seeing other instructions write accumulators before
    the last wait, serializes every wgmma (C7514): another kernel than the one to be traced.
    """
    constants = {o.result for o in module.walk() if o.name == "arith.constant"}
    counter = itertools.count()
    for outer in module.walk():
        for region in outer.regions:
            for loop in [o for o in region.operations if o.name == "scf.for"]:
                at = region.operations.index(loop)
                flying = _in_flight(loop)
                for inside, initial, kind, _ in read_loop(loop).carried:
                    if inside in flying and initial in constants and "xf32, " in kind:
                        zero = f"%warpplan_zero_{next(counter)}"
                        region.operations.insert(at, parse_operation(_OPAQUE.format(zero, initial, kind)))
                        _replace_initial(loop, inside, zero)


_OPAQUE = (
    '{0} = tt.elementwise_inline_asm "mov.b32 $0, $1;" '
    '{{constraints = "=r,r", packed_element = 1 : i32, pure = false}} {1} : {2} -> {2}'
)


def _in_flight(loop: IrOperation) -> set[str]:
    """What the wgmmas of ``loop`` read that run on while the loop goes on."""
    body = loop.regions[0].operations
    flying = [o for o in body if o.name == "ttng.warp_group_dot" and o.attributes.get("isAsync") == "true"]
    return {value for operation in flying for value in operation.operands}


def _replace_initial(loop: IrOperation, inside: str, new: str) -> None:
    """``iter_args(%inside = %old, …)`` becomes ``iter_args(%inside = %new, …)``."""
    at = loop.parts.index(inside)
    at += next(i for i, part in enumerate(loop.parts[at + 1 :], 1) if isinstance(part, str) and is_value(part))
    loop.parts[at] = new


@dataclass
class _Recorder:
    module: Module
    kinds: frozenset[str]
    taken: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.locations = SourceLocations(self.module)

    def region(self, region: Region, *, producer: bool, loop: bool) -> None:
        """Put records into one block and, each on its own, into the blocks inside."""
        recorded: list[IrOperation] = []
        held: list[IrOperation] = []
        open_scope, kind_open = "", ""
        for operation in region.operations:
            kind = self.kind(operation, producer, loop)
            if open_scope and kind != kind_open and not (kind is None and _quiet(operation)):
                recorded += [_record("end", open_scope), *held]
                open_scope, held = "", []
            if kind is None:
                self.inside(operation, producer, loop)
                (held if open_scope else recorded).append(operation)
                continue
            if not open_scope:
                open_scope, kind_open = self.name(kind, operation), kind
                recorded.append(_record("start", open_scope))
            recorded += [*held, operation]
            held = []
        if open_scope:
            recorded.append(_record("end", open_scope))
        region.operations[:] = recorded + held

    def inside(self, operation: IrOperation, producer: bool, loop: bool) -> None:
        if operation.name == "ttg.warp_specialize":
            self.taken.clear()
            for region in operation.regions:
                self.region(region, producer=_produces(region), loop=False)
                self.taken.clear()
            return
        repeats = operation.name in ("scf.for", "scf.while") and ONCE not in operation.attributes
        for region in operation.regions:
            self.region(region, producer=producer, loop=loop or repeats)

    def kind(self, operation: IrOperation, producer: bool, loop: bool) -> str | None:
        if operation.name == _WAIT:
            kind: str | None = "producer_wait" if producer else "consumer_wait"
        else:
            kind = _KIND_OF.get(operation.name)
        if kind is None and loop and operation.name.startswith(_TILE_WORK) and "tensor<" in operation.signature:
            kind = "math"
        return kind if kind in self.kinds else None

    def name(self, kind: str, operation: IrOperation) -> str:
        """``kind@file.py:12``; a second stretch that starts on the line of another of its partition ends in ``#2``."""
        location = self.locations.of(operation)
        name = f"{kind}@{location}" if location.file else kind
        self.taken[name] += 1
        return name if self.taken[name] == 1 else f"{name}#{self.taken[name]}"


def _produces(region: Region) -> bool:
    """Whether a partition loads and computes nothing."""
    names = {operation.name for operation in region.walk()}
    return bool(names & _COPIES) and not names & _OF_KIND["mma"]


def _quiet(operation: IrOperation) -> bool:
    """What may stand inside of a stretch: names of values, scalars and addresses."""
    return operation.name in FREE - {"scf.yield", "tt.return"} or (
        operation.name.startswith(_QUIET) and not operation.regions
    )


def _record(which: str, name: str) -> IrOperation:
    return IrOperation("proton.record", parts=[" ", which, " ", f'"{name}"'])
