"""A kernel with options, for tests of the service: vector_add's plans, under a declaration of its own.

``spread`` decides which configurations it can run, so that an answer of one option is none for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption
from warpplan.kernels.vector_add.kernel import VECTOR_ADD, VectorAdd
from warpplan.planner.errors import InvalidConfig, InvalidShape
from warpplan.planner.predict.alternatives import RankedLoop
from warpplan.planner.predict.ranking import RankedPlan
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

EVERY = 1 << 20
GROUPED_ADD = Declaration(
    name="grouped_add",
    description="out[N] = x[N] + y[N] in G groups",
    fields=(ShapeField("N", "elements of all groups"), ShapeField("G", "groups", greatest=256)),
    dtypes=VECTOR_ADD.dtypes,
    examples=((98432, 4), (98432, 4, "spread=narrow")),
    shown_first=VECTOR_ADD.shown_first,
    options=(
        ShapeOption("spread", "warps of a program", ("wide", "narrow"), "wide"),
        ShapeOption("sizes", "elements of each group", ("balanced", "skewed"), "balanced", whole_numbers=True),
    ),
)


class GroupedAdd:
    """``spread=narrow`` has one warp a program, ``wide`` several."""

    declaration = GROUPED_ADD

    def __init__(self) -> None:
        self._inner = VectorAdd()

    def parse_shape(self, given: Mapping[str, object], dtype: str) -> Shape:
        GROUPED_ADD.require_dtype(dtype)
        shape = GROUPED_ADD.parse_shape(given)
        elements, groups = GROUPED_ADD.sizes(shape)
        listed = GROUPED_ADD.chosen(shape)["sizes"]
        if listed not in ("balanced", "skewed"):
            numbers = [int(word) for word in listed.split(",")]
            if len(numbers) != groups:
                raise InvalidShape(
                    f"sizes lists {len(numbers)} groups: expected G={groups}",
                    field="sizes", value=listed, limit=groups,
                )  # fmt: skip
            if sum(numbers) > elements:
                raise InvalidShape(
                    f"sizes sum to {sum(numbers)}: expected N={elements} or less",
                    field="sizes", value=listed, limit=elements,
                )  # fmt: skip
        return shape

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        length, _ = GROUPED_ADD.sizes(shape)
        found = self._inner.rank((length,), dtype, device, profile, limit=EVERY)
        return tuple(plan for plan in found if _runs(plan.config, shape))[:limit]

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        _require(config, shape)
        return self._inner.plan(config, dtype, device, profile)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        _require(config, shape)
        return self._inner.loop(config, dtype, device, profile)

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> None:
        return None


def _runs(config: TuningConfig, shape: Shape) -> bool:
    return (config.num_warps == 1) == (GROUPED_ADD.chosen(shape)["spread"] == "narrow")


def _require(config: TuningConfig, shape: Shape) -> None:
    if not _runs(config, shape):
        spread = GROUPED_ADD.chosen(shape)["spread"]
        raise InvalidConfig(
            f"spread={spread} does not run {config.num_warps} warps", field="num_warps", value=config.num_warps
        )
