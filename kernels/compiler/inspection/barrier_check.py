"""Barriers of a finished kernel, and the known causes of hangs, in Triton's own specialised kernels and in ours.

Read off the text: per barrier how often each partition expects bytes, copies, arrives and waits, and
- bytes      a barrier expects other bytes than the copies on it bring (a TMA box cut, or not cut, with its tile)
- arrivals   other arrivals a phase than the barrier was initialised with
- unwaited   a barrier that nobody waits for; and one that somebody waits for and nobody completes
- box        a descriptor's box that is not the tile that it is copied to or from
- init       a barrier that is used and was never initialised, or with a count of 0
Phases, which no count shows, are simulated by :mod:`~warpplan.kernels.compiler.inspection.barrier_play`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from warpplan.kernels.compiler.inspection.barrier_play import play
from warpplan.kernels.compiler.inspection.finished import (
    DEFAULT,
    LAND,
    SPECIALIZE,
    completed,
    landed_arrivals,
    plain_operands,
    read_copy,
    warps_of,
    workers,
)
from warpplan.kernels.compiler.ttgir.control import read_loop
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Module, Region
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

Use = Literal["init", "expect", "copy", "land", "arrive", "wait"]
Cause = Literal["bytes", "arrivals", "unwaited", "box", "init", "phase"]
_USES: dict[str, Use] = {
    "ttng.init_barrier": "init", "ttng.barrier_expect": "expect", "ttng.arrive_barrier": "arrive",
    "ttng.wait_barrier": "wait", LAND: "land",
}  # fmt: skip
LOOPS = frozenset({"scf.for", "scf.while"})
PRODUCT = "ttng.tc_gen5"
"""Products of Blackwell and their commits arrive at barriers when they are done."""
COPY = "ttng.async_tma_copy_global_to_local"
STORE = "ttng.async_tma_copy_local_to_global"
_VIEWS = frozenset({"ttg.memdesc_index", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttg.memdesc_reinterpret"})


@dataclass(frozen=True)
class BarrierUse:
    """``amount`` is a count of arrivals, or bytes of an expect or a copy; threads arrive ("land") when what each copied
    by ``cp.async`` is there. ``block`` numbers the region it stands in,
    ``slot`` is the index into the array as printed; ``loops`` of its partition are around it, −1 before and after the
    partitions run."""

    kind: Use
    partition: str
    amount: int
    line: str
    block: int
    slot: str = ""
    loops: int = 0


@dataclass(frozen=True)
class Barrier:
    """An array of ``slots`` barriers; ``role`` is "full" where copies complete it, "empty" where arrivals alone do.
    ``phases`` are those that all slots came through in the longest game."""

    name: str
    slots: int
    uses: tuple[BarrierUse, ...]
    phases: int = 0

    @property
    def role(self) -> str:
        kinds = {use.kind for use in self.uses}
        return "full" if kinds & {"copy", "land"} else "empty" if "arrive" in kinds else "barrier"

    def count(self, kind: Use, partition: str | None = None) -> int:
        """How many operations of ``kind`` there are, of one partition or of all."""
        return sum(use.kind == kind and partition in (None, use.partition) for use in self.uses)


@dataclass(frozen=True)
class BarrierFinding:
    """A cause of hangs or of wrong results that is in the kernel."""

    cause: Cause
    message: str
    barrier: str = ""
    line: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}" + (f" ({self.line})" if self.line else "")


@dataclass(frozen=True)
class BarrierReport:
    """``partitions`` are (name, warps); ``played`` says for how many waits the kernel was played."""

    partitions: tuple[tuple[str, int], ...]
    barriers: tuple[Barrier, ...]
    findings: tuple[BarrierFinding, ...]
    played: int = 0


def check_barriers(text: str) -> BarrierReport:
    """Read finished TTGIR. Raises :class:`MalformedIR` where it is no kernel."""
    module = parse(text)
    try:
        reader = _BarrierReader(module)
        reader.visit(module.function.regions[0], DEFAULT, {}, 0)
        result = play(module)
        barriers = tuple(b for b in reader.barriers(dict(result.phases)) if b.uses)
        visits = _visits(barriers)
        found = [*reader.found, *(f for b in barriers for f in _findings(b, visits))]
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError) as error:
        raise MalformedIR(f"an operation without the operands or types of its kind ({error})", field="ttgir") from error
    found += [BarrierFinding("phase", fault.message, fault.barrier, fault.line) for fault in result.faults]
    return BarrierReport(tuple(reader.partitions), barriers, tuple(dict.fromkeys(found)), result.waits)


def _findings(barrier: Barrier, visits: dict[str, int]) -> list[BarrierFinding]:
    return [*_initialised(barrier), *_arrivals(barrier, visits), *_bytes(barrier), *_waited(barrier)]


def _visits(barriers: tuple[Barrier, ...]) -> dict[str, int]:
    """How often each partition comes by the same slot in its busiest block: twice in a loop that is unrolled by two,
    where a ring has one slot."""
    found: dict[str, int] = {}
    for barrier in barriers:
        for partition, count in _busiest(barrier, "wait").items():
            found[partition] = max(count, found.get(partition, 1))
    return found


def _initialised(barrier: Barrier) -> list[BarrierFinding]:
    inits = [use for use in barrier.uses if use.kind == "init"]
    if not inits:
        return [
            BarrierFinding("init", f"{barrier.name} is used and never initialised", barrier.name, barrier.uses[0].line)
        ]
    if len({use.slot for use in inits}) < barrier.slots and all(use.block == 0 for use in inits):
        why = f"{len(inits)} of the {barrier.slots} barriers of {barrier.name} are initialised"
        return [BarrierFinding("init", why, barrier.name, inits[0].line)]
    if any(use.amount < 1 for use in inits) or len({use.amount for use in inits}) > 1:
        counts = ", ".join(str(use.amount) for use in inits)
        return [
            BarrierFinding("init", f"{barrier.name} is initialised with counts {counts}", barrier.name, inits[0].line)
        ]
    return []


def _arrivals(barrier: Barrier, visits: dict[str, int]) -> list[BarrierFinding]:
    """A phase ends with as many arrivals as the count. A partition arrives once more than its busiest block for no
    phase: other blocks are other loops, or the iteration before and after one. What is around the partitions is a phase
    of its own, and an iteration has as many phases as somebody waits for in it, or as those who arrive have ``visits``.
    """
    inits = [use.amount for use in barrier.uses if use.kind == "init"]
    if len({use.partition for use in barrier.uses if use.kind != "init"}) < 2:
        return []  # one partition's own pipeline comes by a barrier in several iterations of one block
    arrivals = _busiest(barrier, "arrive", "expect", "land")
    if not inits or not arrivals:
        return []
    phases = max(_busiest(barrier, "wait").values(), default=1)
    own = max(visits.get(partition, 1) for partition in arrivals)
    if sum(arrivals.values()) in (inits[0], phases * inits[0], own * inits[0]):
        return []
    told = " and ".join(f"{count} of {partition}" for partition, count in arrivals.items())
    line = next(use.line for use in barrier.uses if use.kind in ("arrive", "expect", "land"))
    return [
        BarrierFinding("arrivals", f"{barrier.name} is initialised with {inits[0]} and gets {told}", barrier.name, line)
    ]


def _busiest(barrier: Barrier, *kinds: Use) -> dict[str, int]:
    """How much of ``kinds`` each partition does in its busiest block, slot by slot: of its innermost loop's, for what
    is around that loop is some of its iterations, peeled off."""
    each: dict[str, dict[tuple[int, str], int]] = defaultdict(lambda: defaultdict(int))
    uses = [use for use in barrier.uses if use.kind in kinds and use.loops >= 0]
    for use in uses:
        if use.loops == max(other.loops for other in uses if other.partition == use.partition):
            each[use.partition][use.block, use.slot] += 1 if use.kind in ("expect", "wait") else use.amount
    return {partition: max(blocks.values()) for partition, blocks in each.items()}


def _bytes(barrier: Barrier) -> list[BarrierFinding]:
    expected: dict[tuple[str, int], int] = defaultdict(int)
    brought: dict[tuple[str, int], int] = defaultdict(int)
    lines: dict[tuple[str, int], str] = {}
    for use in barrier.uses:
        if use.kind in ("expect", "copy"):
            (expected if use.kind == "expect" else brought)[use.partition, use.block] += use.amount
            lines.setdefault((use.partition, use.block), use.line)
    return [
        BarrierFinding(
            "bytes", f"{barrier.name} expects {expected[at]} bytes and its copies bring {brought[at]}", barrier.name,
            lines[at],
        )
        for at in lines if expected[at] != brought[at]
    ]  # fmt: skip


def _waited(barrier: Barrier) -> list[BarrierFinding]:
    completes = [use for use in barrier.uses if use.kind in ("arrive", "expect", "copy", "land")]
    waits = [use for use in barrier.uses if use.kind == "wait"]
    if completes and not waits:
        return [BarrierFinding("unwaited", f"nobody waits for {barrier.name}", barrier.name, completes[0].line)]
    if waits and not completes:
        return [
            BarrierFinding(
                "unwaited", f"nobody completes {barrier.name}, which is waited for", barrier.name, waits[0].line
            )
        ]
    return []


class _BarrierReader:
    """Walks the text with what each name stands for: the array behind a view, and the view's index."""

    def __init__(self, module: Module) -> None:
        self.lines = SourceLocations(module).lines_in(module.function)
        self.arrays: dict[str, ShapedType] = {}
        self.uses: dict[str, list[BarrierUse]] = defaultdict(list)
        self.found: list[BarrierFinding] = []
        self.partitions: list[tuple[str, int]] = [(DEFAULT, warps_of(module))]
        self.blocks = 0
        self.loops = -1

    def barriers(self, phases: dict[str, int]) -> list[Barrier]:
        named = []
        for number, (array, kind) in enumerate(self.arrays.items()):
            slots = kind.shape[0] if len(kind.shape) > 1 else 1
            name = f"barrier {number} ({array}, {slots} slot{'s' * (slots > 1)})"
            named.append(Barrier(name, slots, tuple(self.uses[array]), phases.get(array, 0)))
        return named

    def visit(self, region: Region, partition: str, behind: dict[str, tuple[str, str]], block: int) -> None:
        for operation in region.operations:
            name = operation.name
            if name == SPECIALIZE:
                self._specialized(operation, behind)
                continue
            if name == "ttg.local_alloc":
                self._allocated(operation, behind)
            elif name in _VIEWS and operation.operands[0] in behind:
                array, slot = behind[operation.operands[0]]
                index = ",".join(operation.operands[1:2]) or slot
                behind[operation.result] = (array, index if name == "ttg.memdesc_index" else slot)
            elif name in _USES:
                self._used(operation, _USES[name], partition, behind, block)
            elif name.startswith(PRODUCT):
                self._completed(operation, partition, behind, block)
            elif name == COPY:
                self._copied(operation, partition, behind, block)
            elif name == STORE:
                self._boxed(operation)
            if name == "scf.for":
                behind |= {i: behind[first] for i, first, _, _ in read_loop(operation).carried if first in behind}
            inside = int(name in LOOPS and self.loops >= 0)
            self.loops += inside
            for inner in operation.regions:
                self.blocks += 1
                self.visit(inner, partition, dict(behind), self.blocks)
            self.loops -= inside

    def _specialized(self, operation: IrOperation, behind: dict[str, tuple[str, str]]) -> None:
        for worker in workers(operation, self.partitions[0][1]):
            if worker.name != DEFAULT:
                self.partitions.append((worker.name, worker.warps))
            captured = {inside: behind[outside] for inside, outside in worker.arguments if outside in behind}
            self.blocks += 1
            self.loops = 0
            self.visit(worker.region, worker.name, captured if worker.arguments else dict(behind), self.blocks)
        self.loops = -1

    def _allocated(self, operation: IrOperation, behind: dict[str, tuple[str, str]]) -> None:
        kind = parse_type(find_types(operation.signature)[-1])
        if kind is not None and kind.element == "i64" and not operation.operands:
            self.arrays[operation.result] = kind
            behind[operation.result] = (operation.result, "")

    def _used(
        self, operation: IrOperation, kind: Use, partition: str, behind: dict[str, tuple[str, str]], block: int
    ) -> None:
        barrier = plain_operands(operation)[0]
        if barrier not in behind:
            return
        array, slot = behind[barrier]
        numbers = [int(t) for t in operation.tokens[: operation.tokens.index(":")] if t.isdigit()]
        amount = numbers[0] if numbers and kind != "wait" else 1
        if kind == "land":
            amount = landed_arrivals(operation, dict(self.partitions)[partition])
        line = self.lines[id(operation)]
        self.uses[array].append(BarrierUse(kind, partition, amount, line, block, slot, self.loops))

    def _completed(
        self, operation: IrOperation, partition: str, behind: dict[str, tuple[str, str]], block: int
    ) -> None:
        for value, _ in completed(operation):
            if value in behind:
                array, slot = behind[value]
                line = self.lines[id(operation)]
                self.uses[array].append(BarrierUse("arrive", partition, 1, line, block, slot, self.loops))

    def _copied(self, operation: IrOperation, partition: str, behind: dict[str, tuple[str, str]], block: int) -> None:
        copy = read_copy(operation)
        box = self._boxed(operation)
        if copy.barrier in behind:
            array, slot = behind[copy.barrier]
            line = self.lines[id(operation)]
            self.uses[array].append(BarrierUse("copy", partition, box, line, block, slot, self.loops))

    def _boxed(self, operation: IrOperation) -> int:
        """Bytes of the descriptor's box; a finding where the tile is another."""
        types = [t for t in map(parse_type, find_types(operation.signature)) if t is not None]
        box = next(t for t in types if t.kind == "!tt.tensordesc")
        tile = [t for t in types if t.kind == "!ttg.memdesc"][-1]
        line = self.lines[id(operation)]
        if box.bytes != tile.bytes:
            sizes = ["x".join(map(str, t.shape)) for t in (box, tile)]
            self.found.append(BarrierFinding("box", f"a TMA box of {sizes[0]} and a tile of {sizes[1]}", "", line))
        return box.bytes
