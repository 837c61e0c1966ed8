"""The attention forward kernel as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH, AttentionShape
from warpplan.kernels.attention_fwd.candidates import candidates, structures
from warpplan.kernels.attention_fwd.explain import block_name, ranked_loop
from warpplan.kernels.attention_fwd.graph import plan_candidate, sustained_ii
from warpplan.kernels.attention_fwd.space import (
    ELEMENT_BYTES,
    HEAD_DIMS,
    SIXTEEN_BIT,
    AttentionConfig,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.attention_fwd.work import structure, work
from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption, require_elements
from warpplan.kernels.gemm.work import calibrated_constants, calibrations
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape
from warpplan.planner.predict.alternatives import RankedCandidates, RankedLoop, compared
from warpplan.planner.predict.ranking import RankedPlan, best_first
from warpplan.planner.predict.time_model import DeviceWork, Prediction, Rates, predictions, terms
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

MAX_HEADS = 1 << 12
SAME, ALL, PADDED, EQUAL = "same", "all", "padded", "equal"
NUMBERS = {"kv_heads": (1, MAX_HEADS), "kv_length": (1, MAX_LENGTH), "window": (0, MAX_LENGTH)}
"""The options that are one number each: the least and the greatest."""
ATTENTION_FWD = Declaration(
    name="attention_fwd",
    description="O = softmax(Q · Kᵀ / √D + mask) · V for each head, with its log-sum-exp; O of fp8 is bfloat16",
    fields=(
        ShapeField("B", "sequences of the batch", greatest=1 << 16),
        ShapeField("H", "heads of Q and O in each", greatest=MAX_HEADS),
        ShapeField("L", "queries of each", greatest=MAX_LENGTH),
        ShapeField("D", "elements of a head: 64, 128 or 256", HEAD_DIMS[0], HEAD_DIMS[-1]),
    ),
    options=(
        ShapeOption(
            "mask", "causal: a query sees no key behind its position; the last one stands at the last key",
            ("full", "causal"), "full",
        ),
        ShapeOption("kv_heads", "heads of K and V, a divisor of H", (SAME,), SAME, whole_numbers=True),
        ShapeOption("kv_length", "keys of each sequence", (SAME,), SAME, whole_numbers=True),
        ShapeOption(
            "window", "keys that a query sees before its position, and behind it unless the mask is causal",
            (ALL,), ALL, whole_numbers=True,
        ),
        ShapeOption(
            "sizes", "of packed sequences, one behind the other: B numbers of queries, L the largest, or equal ones; "
            "each has as many keys more as kv_length is above L",
            (PADDED, EQUAL), PADDED, whole_numbers=True,
        ),
    ),
    dtypes=tuple(ELEMENT_BYTES),
    examples=(
        (4, 16, 4096, 128, "mask=causal"),
        (4, 32, 4096, 128, "mask=causal", "kv_heads=8"),
        (1, 32, 16384, 128, "mask=causal", "kv_heads=8", "window=4095"),
        (4, 32, 8192, 128, "mask=causal", "kv_heads=8", "sizes=8192,300,4096,1900"),
    ),
    shown_first=("CONSUMERS", "ROWS", "COLUMNS", "DEPTH", "LOOKAHEAD", "PINGPONG"),
)  # fmt: skip
CONTENDERS = 5
"""Block structures that an explanation compares."""


def attention_shape(shape: Shape) -> AttentionShape:
    """``shape`` with its options as values."""
    batch, heads, length, head_dim = ATTENTION_FWD.sizes(shape)
    chosen = ATTENTION_FWD.chosen(shape)

    def number(name: str, otherwise: int) -> int:
        return otherwise if chosen[name] == SAME else int(chosen[name])

    window = None if chosen["window"] == ALL else int(chosen["window"])
    sizes = None
    if chosen["sizes"] != PADDED:
        sizes = (length,) * batch if chosen["sizes"] == EQUAL else tuple(map(int, chosen["sizes"].split(",")))
    return AttentionShape(
        batch, heads, length, head_dim, number("kv_heads", heads), number("kv_length", length),
        chosen["mask"] == "causal", window, sizes,
    )  # fmt: skip


class AttentionFwd:
    """Softmax attention forward. Its time is that of the planner's own model, a block of keys an iteration."""

    declaration = ATTENTION_FWD

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        ATTENTION_FWD.require_dtype(dtype)
        shape = ATTENTION_FWD.parse_shape(sizes)
        for name, (least, greatest) in NUMBERS.items():
            _require_one_number(name, ATTENTION_FWD.chosen(shape)[name], least, greatest)
        asked = attention_shape(shape)
        _require_sizes(asked, dtype)
        if asked.head_dim not in HEAD_DIMS:
            raise InvalidShape(
                f"D={asked.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}: pad the heads with zeros to the next",
                field="D", value=asked.head_dim, limit=list(HEAD_DIMS),
            )  # fmt: skip
        if asked.heads % asked.kv_heads:
            raise InvalidShape(
                f"kv_heads={asked.kv_heads} does not divide H={asked.heads}: as many heads of Q share each",
                field="kv_heads", value=asked.kv_heads, limit=asked.heads,
            )  # fmt: skip
        require_elements("rows of Q", asked.batch_heads, asked.q_length)
        require_elements("rows of K", asked.batch * asked.kv_heads, asked.k_length)
        # One computation has one shape: what an option says at its default is left out.
        same = {"kv_heads": asked.kv_heads == asked.heads, "kv_length": asked.k_length == asked.q_length}
        return ATTENTION_FWD.parse_shape({n: v for n, v in ATTENTION_FWD.named(shape).items() if not same.get(n)})

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        return tuple(
            RankedPlan(tuning(config), prediction, partial(plan_candidate, config, dtype, device, profile.costs))
            for config, prediction in self.ranked(shape, dtype, device, profile, limit=limit)
        )

    def ranked(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int | None = None
    ) -> list[tuple[AttentionConfig, Prediction]]:
        """The candidates with their predictions, best first; all of them where ``limit`` is ``None``. Raises
        :class:`Infeasible` where nothing fits the shape and :class:`MissingCosts` where the profile lacks an
        operation."""
        ATTENTION_FWD.require_dtype(dtype)
        ATTENTION_FWD.require_wgmma(device)
        configs = candidates(attention_shape(shape), dtype, device)
        if not configs:
            asked = " ".join(f"{name}={value}" for name, value in ATTENTION_FWD.named(shape).items())
            raise Infeasible(
                f"no attention_fwd configuration fits {asked} on {device.name}", field="shape", value=shape
            )
        asked_work = self._work(configs, shape, dtype, device, profile)
        constants = self.time_constants(shape, dtype, profile, asked_work.structures)
        parts, time_us = terms(asked_work, Rates.of(profile, dtype), constants)
        order = best_first(time_us, (-asked_work.slots_in_flight,), limit or len(configs))
        return list(
            zip((configs[i] for i in order.tolist()), predictions(asked_work, parts, time_us, order), strict=True)
        )

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernel cannot run ``config`` on ``device``."""
        return plan_candidate(_candidate(config, dtype, device), dtype, device, profile.costs)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The loop over keys behind ``config``. Raises as :meth:`plan` does, and :class:`MissingCosts` naming what the
        profile lacks."""
        return ranked_loop(_candidate(config, dtype, device), dtype, device, profile.costs)

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> RankedCandidates:
        """The best candidate of each of the best :data:`CONTENDERS` block structures, best first. Raises what
        :meth:`ranked` raises."""
        best: dict[str, AttentionConfig] = {}
        for config, _ in self.ranked(shape, dtype, device, profile):
            best.setdefault(structure(replace(config, persistent=True)), config)
            if len(best) == CONTENDERS:
                break

        def ask(configs: tuple[AttentionConfig, ...], costs: CostTable) -> DeviceWork:
            return self._work(configs, shape, dtype, device, replace(profile, costs=costs))

        constants_of = partial(self.time_constants, shape, dtype, profile)
        return compared(tuple(best.values()), ask, block_name, tuning, constants_of, dtype, profile)

    def device_works(
        self, configs: Sequence[TuningConfig], shapes: Sequence[Shape], dtype: str, device: Device, profile: Profile
    ) -> tuple[dict[TuningConfig, int], list[DeviceWork]]:
        """What ``configs`` ask of the device at each of ``shapes``, and the row of each configuration. One that cannot
        run has no row."""
        found: dict[TuningConfig, AttentionConfig] = {}
        for config in configs:
            try:
                found[config] = _candidate(config, dtype, device)
            except InvalidConfig:
                continue
        rows = {config: i for i, config in enumerate(found)}
        return rows, [self._work(tuple(found.values()), shape, dtype, device, profile) for shape in shapes]

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        """The name under which the time model is calibrated, then that whose constants of the device it begins at."""
        own, gemms = (calibrations(kernel, dtype) for kernel in (ATTENTION_FWD.name, "gemm"))
        return (*own, *gemms)

    def time_constants(
        self, shape: Shape, dtype: str, profile: Profile, structures: tuple[str, ...]
    ) -> Mapping[str, float]:
        """The constants that predictions of ``shape`` are made with."""
        return calibrated_constants(profile, self.calibration_names(shape, dtype), structures)

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: both products at the tensor cores' rate, or Q, K, V and O crossing
        L2 once; without the pass before fp8's kernel. 0 where a ceiling is missing."""
        asked, ceilings = attention_shape(shape), dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        moved = asked.moved_bytes(ELEMENT_BYTES[dtype])
        return 1e6 * max(asked.flops / flops.p50 if flops else 0.0, moved / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate, for ``kernels.solved_loops`` to record."""
        for head_dim, packed in product(HEAD_DIMS, (False, True)):
            for config in structures(head_dim, dtype, device, packed):
                sustained_ii(config, dtype, device, profile.costs)
                plan_candidate(config, dtype, device, profile.costs)

    def _work(
        self, configs: Sequence[AttentionConfig], shape: Shape, dtype: str, device: Device, profile: Profile
    ) -> DeviceWork:
        return work(configs, attention_shape(shape), dtype, device, profile)


def _candidate(config: TuningConfig, dtype: str, device: Device) -> AttentionConfig:
    ATTENTION_FWD.require_dtype(dtype)
    candidate = config_of(config)
    require_valid(candidate, dtype, device)
    return candidate


def _require_one_number(name: str, text: str, least: int, greatest: int) -> None:
    """Raise :class:`InvalidShape` unless the option ``name`` is at its default or one number of the range."""
    if text in (SAME, ALL):
        return
    if "," in text or not least <= int(text) <= greatest:
        raise InvalidShape(
            f"{name}={text}: expected one number from {least} to {greatest}", field=name, value=text, limit=greatest
        )


def _require_sizes(asked: AttentionShape, dtype: str) -> None:
    """Raise :class:`InvalidShape` unless packed sequences are as many as B, the longest as long as L, and not fp8."""
    if asked.sizes is None:
        return
    if dtype not in SIXTEEN_BIT:
        raise InvalidShape(
            f"sizes with {dtype}: packed sequences are of {' or '.join(SIXTEEN_BIT)}", field="sizes", limit=[PADDED]
        )
    if len(asked.sizes) != asked.batch or max(asked.sizes) != asked.q_length:
        raise InvalidShape(
            f"sizes has {len(asked.sizes)} numbers, the largest {max(asked.sizes)}: expected B={asked.batch} numbers "
            f"and L={asked.q_length} as the largest",
            field="sizes", value=len(asked.sizes), limit=asked.batch,
        )  # fmt: skip
