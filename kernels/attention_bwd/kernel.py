"""The attention backward kernels as the planner and the service see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from warpplan.kernels.attention_bwd.candidates import candidates, structures
from warpplan.kernels.attention_bwd.explain import block_name, ranked_loop
from warpplan.kernels.attention_bwd.graph import plan_candidate, sustained_ii, sustained_query_ii
from warpplan.kernels.attention_bwd.space import (
    ELEMENT_BYTES,
    HEAD_DIMS,
    AttentionBwdConfig,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.attention_bwd.work import PRODUCTS, moved_bytes, structure, work
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.kernel import ATTENTION_FWD, AttentionFwd, attention_shape
from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption
from warpplan.kernels.gemm.work import calibrated_constants
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape
from warpplan.planner.predict.alternatives import RankedCandidates, RankedLoop, compared
from warpplan.planner.predict.ranking import RankedPlan, best_first
from warpplan.planner.predict.time_model import DeviceWork, Prediction, Rates, predictions, terms
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

SHARED_OPTIONS = ("mask", "kv_heads", "kv_length", "window", "sizes")
"""Of the forward kernel's options those that this one has too."""
ATTENTION_BWD = Declaration(
    name="attention_bwd",
    description="dQ, dK and dV of softmax(Q · Kᵀ / √D + mask) · V for each head, of dO, O and the log-sum-exp",
    fields=(
        *(field for field in ATTENTION_FWD.fields if field.name != "D"),
        ShapeField("D", "elements of a head: 64 or 128", HEAD_DIMS[0], HEAD_DIMS[-1]),
    ),
    options=(
        *(option for option in ATTENTION_FWD.options if option.name in SHARED_OPTIONS),
        ShapeOption("deterministic", "the same bits in every run: dQ is summed in one order", ("no", "yes"), "no"),
    ),
    dtypes=tuple(ELEMENT_BYTES),
    examples=(
        (4, 16, 4096, 128, "mask=causal"),
        (4, 32, 4096, 128, "mask=causal", "kv_heads=8"),
        (4, 16, 4096, 64, "deterministic=yes"),
        (4, 32, 8192, 128, "mask=causal", "kv_heads=8", "sizes=8192,300,4096,1900"),
    ),
    shown_first=("KEYS", "ROWS", "DEPTH", "DQ", "CTAS_PER_SM"),
)
CONTENDERS = 5
"""Block structures that an explanation compares."""


def masked_shape(shape: Shape) -> AttentionShape:
    """``shape`` with its options as values."""
    return attention_shape(tuple(part for part in shape if part != "deterministic=yes"))


class AttentionBwd:
    """Softmax attention backward. Its time is that of the planner's own model, a block of query rows an iteration."""

    declaration = ATTENTION_BWD

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        ATTENTION_BWD.require_dtype(dtype)
        shape = ATTENTION_BWD.parse_shape(sizes)
        named = ATTENTION_BWD.named(shape)
        if named["D"] not in HEAD_DIMS:
            raise InvalidShape(
                f"D={named['D']} is none of {', '.join(map(str, HEAD_DIMS))}: pad smaller heads with zeros to the next",
                field="D", value=named["D"], limit=list(HEAD_DIMS),
            )  # fmt: skip
        repeats = {name: value for name, value in named.items() if name == "deterministic"}
        plain = AttentionFwd().parse_shape({n: v for n, v in named.items() if n not in repeats}, dtype)
        return ATTENTION_BWD.parse_shape(ATTENTION_FWD.named(plain) | repeats)

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        return tuple(
            RankedPlan(tuning(config), prediction, partial(plan_candidate, config, dtype, device, profile.costs))
            for config, prediction in self.ranked(shape, dtype, device, profile, limit=limit)
        )

    def ranked(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int | None = None
    ) -> list[tuple[AttentionBwdConfig, Prediction]]:
        """The candidates with their predictions, best first; all of them where ``limit`` is ``None``. Raises
        :class:`Infeasible` where nothing fits the shape and :class:`MissingCosts` where the profile lacks an
        operation."""
        ATTENTION_BWD.require_dtype(dtype)
        ATTENTION_BWD.require_wgmma(device)
        repeats = ATTENTION_BWD.chosen(shape)["deterministic"] == "yes"
        configs = candidates(masked_shape(shape), dtype, device, deterministic=repeats)
        if not configs:
            asked = " ".join(f"{name}={value}" for name, value in ATTENTION_BWD.named(shape).items())
            raise Infeasible(
                f"no attention_bwd configuration fits {asked} on {device.name}", field="shape", value=shape
            )
        asked_work = self._work(configs, shape, dtype, device, profile)
        constants = self.time_constants(shape, dtype, profile, asked_work.structures)
        parts, time_us = terms(asked_work, Rates.of(profile, dtype), constants)
        order = best_first(time_us, (-asked_work.slots_in_flight,), limit or len(configs))
        return list(
            zip((configs[i] for i in order.tolist()), predictions(asked_work, parts, time_us, order), strict=True)
        )

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernels cannot run ``config`` on ``device``."""
        return plan_candidate(_candidate(config, dtype, device), dtype, device, profile.costs)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The loop over query rows behind ``config``. Raises as :meth:`plan` does, and :class:`MissingCosts` naming
        what the profile lacks."""
        return ranked_loop(_candidate(config, dtype, device), dtype, device, profile.costs)

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> RankedCandidates:
        """The best candidate of each of the best :data:`CONTENDERS` block structures, best first. Raises what
        :meth:`ranked` raises."""
        best: dict[str, AttentionBwdConfig] = {}
        for config, _ in self.ranked(shape, dtype, device, profile):
            best.setdefault(structure(replace(config, persistent=True)), config)
            if len(best) == CONTENDERS:
                break

        def ask(configs: tuple[AttentionBwdConfig, ...], costs: CostTable) -> DeviceWork:
            return self._work(configs, shape, dtype, device, replace(profile, costs=costs))

        constants_of = partial(self.time_constants, shape, dtype, profile)
        return compared(tuple(best.values()), ask, block_name, tuning, constants_of, dtype, profile)

    def device_works(
        self, configs: Sequence[TuningConfig], shapes: Sequence[Shape], dtype: str, device: Device, profile: Profile
    ) -> tuple[dict[TuningConfig, int], list[DeviceWork]]:
        """What ``configs`` ask of the device at each of ``shapes``, and the row of each configuration. One that cannot
        run has no row."""
        found: dict[TuningConfig, AttentionBwdConfig] = {}
        for config in configs:
            try:
                found[config] = _candidate(config, dtype, device)
            except InvalidConfig:
                continue
        rows = {config: i for i, config in enumerate(found)}
        return rows, [self._work(tuple(found.values()), shape, dtype, device, profile) for shape in shapes]

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        """The name under which the time model is calibrated, then that whose constants of the device it begins at."""
        return (ATTENTION_BWD.name, "gemm")

    def time_constants(
        self, shape: Shape, dtype: str, profile: Profile, structures: tuple[str, ...]
    ) -> Mapping[str, float]:
        """The constants that predictions of ``shape`` are made with."""
        return calibrated_constants(profile, self.calibration_names(shape, dtype), structures)

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: five products at the tensor cores' rate, or the operands and
        gradients crossing L2 once. 0 where a ceiling is missing."""
        asked, ceilings = masked_shape(shape), dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        moved = moved_bytes(asked, ELEMENT_BYTES[dtype])
        return 1e6 * max(PRODUCTS * asked.flops / flops.p50 if flops else 0.0, moved / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loops of every candidate, for ``kernels.solved_loops`` to record."""
        for head_dim, packed in product(HEAD_DIMS, (False, True)):
            for config in structures(head_dim, dtype, device, packed):
                sustained_ii(config, dtype, device, profile.costs)
                plan_candidate(config, dtype, device, profile.costs)
                if config.dq == "separate":
                    sustained_query_ii(config, dtype, device, profile.costs)

    def _work(
        self, configs: Sequence[AttentionBwdConfig], shape: Shape, dtype: str, device: Device, profile: Profile
    ) -> DeviceWork:
        return work(configs, masked_shape(shape), dtype, device, profile.costs)


def _candidate(config: TuningConfig, dtype: str, device: Device) -> AttentionBwdConfig:
    ATTENTION_BWD.require_dtype(dtype)
    candidate = config_of(config)
    require_valid(candidate, dtype, device)
    return candidate
