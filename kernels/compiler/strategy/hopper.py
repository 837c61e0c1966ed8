"""Warp specialisation on Hopper: one producer that loads through TMA, consumers that multiply, rings between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import EVERYTHING, OPERANDS, RING_KINDS
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.register_shares import starting_registers
from warpplan.kernels.compiler.strategy.protocol import MOST_DEPTH, Strategy, from_fields
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import InvalidConfig

PRODUCER = "producer"
HOPPER = 9
"""Major compute capability."""
COPIED = {OPERANDS: "copied operands", EVERYTHING: "all copied"}
"""How the levels of ``copies`` are shown."""
MOST_CONSUMER_WARPS = 12
"""Three warp groups, and a fourth for the producer: of four, each thread can still start with 128 registers."""
MOST_ASSIGNED = 3
"""Partitions of an assignment at most, beside a producer and consumers: warps for more are not left."""
MOST_BLOCKS = 4
"""Blocks on an SM at most: of five, even one consumer of four warps could not have 80 registers a thread."""


@dataclass(frozen=True)
class HopperStrategy(Strategy):
    """One producer that loads, and ``consumers`` partitions of ``warps`` warps that share out the tile's rows.

    ``depths`` are the slots of the rings, an entry for each loop that loads, in the order of the program; the last one
    stands for all further loops. ``in_flight`` is 1 where a consumer keeps one wgmma group running while it issues the
    next. ``persistent`` is 1 where as many programs as run at once walk over the programs of the grid. ``copies`` is 1
    where the producer also copies, by ``cp.async``, the operands of products that are loaded through pointers, 2 where
    it copies what else is loaded beside them. ``blocks`` run on one SM at once, which divide its registers.
    ``assignment`` gives loads and computed operands partitions of their own
    (:mod:`~...lowering.assigned.anchors`). ``stores`` is 1 where TMA stores what the kernel stores of its products
    through pointers (:mod:`~...pointers.tma_stores`). Raises :class:`InvalidConfig` naming the field.
    """

    consumers: int
    depths: tuple[int, ...]
    warps: int = 4
    in_flight: int = 1
    persistent: int = 0
    copies: int = 0
    blocks: int = 1
    assignment: tuple[int, ...] = ()
    stores: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("consumers", self.consumers, (1, 2, 3)),
            ("warps", self.warps, (4, 8)),
            ("in_flight", self.in_flight, (0, 1)),
            ("persistent", self.persistent, (0, 1)),
            ("stores", self.stores, (0, 1)),
            ("copies", self.copies, (0, OPERANDS, EVERYTHING)),
            ("blocks", self.blocks, tuple(range(1, MOST_BLOCKS + 1))),
        ):
            if value not in allowed:
                raise InvalidConfig(
                    f"scheme with {name} {value}: expected one of {', '.join(map(str, allowed))}",
                    field=name, value=value, limit=list(allowed),
                )  # fmt: skip
        if not self.depths or any(not 1 <= depth <= MOST_DEPTH for depth in self.depths):
            raise InvalidConfig(
                f"scheme with depths {self.depths}: expected one or more, each from 1 to {MOST_DEPTH}",
                field="depths", value=list(self.depths), limit=MOST_DEPTH,
            )  # fmt: skip
        if any(not 0 <= number <= MOST_ASSIGNED for number in self.assignment):
            raise InvalidConfig(
                f"scheme with assignment {self.assignment}: expected numbers from 0 to {MOST_ASSIGNED}",
                field="assignment", value=list(self.assignment), limit=MOST_ASSIGNED,
            )  # fmt: skip
        if self.consumers * self.warps > MOST_CONSUMER_WARPS:
            raise InvalidConfig(
                f"scheme with {self.consumers} consumers of {self.warps} warps: expected at most "
                f"{MOST_CONSUMER_WARPS} warps beside the producer's four",
                field="consumers", value=self.consumers * self.warps, limit=MOST_CONSUMER_WARPS,
            )  # fmt: skip

    def depth(self, loop: int) -> int:
        """Slots of the rings of loop number ``loop``."""
        return self.depths[min(loop, len(self.depths) - 1)]

    @property
    def architecture(self) -> int:
        return HOPPER

    @property
    def options(self) -> Mapping[str, int]:
        if self.blocks == 1:
            return {"num_warps": self.warps}
        return {"num_warps": self.warps, "maxnreg": starting_registers(self.consumers * self.warps, blocks=self.blocks)}

    @property
    def key(self) -> str:
        depths = ".".join(map(str, self.depths))
        blocks = f"-{self.blocks}" if self.blocks > 1 else ""
        assigned = f"-a{'.'.join(map(str, self.assignment))}" if self.assignment else ""
        return (
            f"{self.consumers}x{self.warps}-{depths}-{self.in_flight}{self.persistent}{self.copies or ''}"
            f"{blocks}{assigned}{'-t' * self.stores}"
        )

    @property
    def partitioning(self) -> str:
        return f"{self.consumers} consumers" + (f", copies {self.copies}" if self.copies else "") + self._assigned

    @property
    def family(self) -> tuple[int | str, ...]:
        return self.consumers, self.warps, self.persistent, self.copies, self.blocks, self.stores, *self.assignment

    @property
    def complexity(self) -> tuple[int, ...]:
        partitions = len({n for n in self.assignment if n})
        return (
            self.blocks, self.consumers + partitions, self.warps, *self.depths, self.persistent, self.copies,
            self.stores, *self.assignment,
        )  # fmt: skip

    @property
    def _assigned(self) -> str:
        """How the assignment is shown."""
        return f", assigned {'/'.join(map(str, self.assignment))}" if self.assignment else ""

    @property
    def walking_programs(self) -> int:
        return self.blocks if self.persistent else 0

    @property
    def stores_by_tma(self) -> bool:
        return bool(self.stores)

    @property
    def pipelined(self) -> bool:
        return True

    @property
    def scheduled(self) -> bool:
        return False

    def ring_depths(self, loops: int) -> tuple[int, ...]:
        return tuple(map(self.depth, range(loops)))

    def partitions_outside(self, kind: str) -> tuple[str, ...]:
        return (PRODUCER,) if kind in RING_KINDS else tuple(f"consumer{i}" for i in range(self.consumers))

    def require(self, capability: int) -> None:
        if capability // 10 != HOPPER:
            raise CannotPlan(f"sm_{capability}: schemes are lowered for sm_90 (Hopper)")

    def lower(self, text: str) -> str:
        # Imported here, for a job that only names a strategy needs no lowering.
        from warpplan.kernels.compiler.lowering.hopper.specialize import specialize

        return specialize(text, self)

    def to_json(self) -> dict[str, Json]:
        fields = asdict(self)
        if not self.assignment:
            del fields["assignment"]  # as strategies were recorded before there was any
        if not self.stores:
            del fields["stores"]  # as above
        return fields

    @classmethod
    def from_json(cls, value: Mapping[str, Json], where: object) -> HopperStrategy:
        """Raises :class:`MalformedFile` naming ``where``."""
        lists = {name: value[name] for name in ("depths", "assignment") if name in value}
        return from_fields(cls, value, lists, where)

    def __str__(self) -> str:
        depths = "/".join(map(str, self.depths))
        flags = [name for name, on in (("in flight", self.in_flight), ("persistent", self.persistent)) if on]
        flags += [COPIED[self.copies]] if self.copies else []
        flags += [f"{self.blocks} blocks"] if self.blocks > 1 else []
        flags += ["TMA stores"] if self.stores else []
        return ", ".join([f"{self.consumers} x {self.warps} warps, {depths} slots", *flags]) + self._assigned
