"""How one kernel is specialised: what a plan comes down to once the loops are lowered."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.errors import InvalidConfig

MOST_DEPTH = 8


@dataclass(frozen=True)
class Scheme:
    """One producer that loads, and ``consumers`` partitions of ``warps`` warps that share out the tile's rows.

    ``depths`` are the slots of the rings, an entry for each loop that loads, in the order of the program; the last one
    stands for all further loops. ``in_flight`` is 1 where a consumer keeps one wgmma group running while it issues the
    next. ``persistent`` is 1 where one program an SM walks over the programs of the grid. Raises
    :class:`InvalidConfig` naming the field.
    """

    consumers: int
    depths: tuple[int, ...]
    warps: int = 4
    in_flight: int = 1
    persistent: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("consumers", self.consumers, (1, 2, 3)),
            ("warps", self.warps, (4, 8)),
            ("in_flight", self.in_flight, (0, 1)),
            ("persistent", self.persistent, (0, 1)),
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
        if self.consumers * self.warps > 12:
            raise InvalidConfig(
                f"scheme with {self.consumers} consumers of {self.warps} warps: expected at most 12 warps beside the "
                "producer's four", field="consumers", value=self.consumers * self.warps, limit=12,
            )  # fmt: skip

    def depth(self, loop: int) -> int:
        """Slots of the rings of loop number ``loop``."""
        return self.depths[min(loop, len(self.depths) - 1)]

    def __str__(self) -> str:
        depths = "/".join(map(str, self.depths))
        flags = [name for name, on in (("in flight", self.in_flight), ("persistent", self.persistent)) if on]
        return ", ".join([f"{self.consumers} x {self.warps} warps, {depths} slots", *flags])
