"""The decoding attention kernel as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from warpplan.kernels.attention_decode.space import (
    MAX_QUERIES,
    MAX_ROWS,
    DecodeConfig,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.attention_decode.work import (
    DecodeShape,
    candidates,
    loop_cycles,
    structure,
    structures,
    work,
)
from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH
from warpplan.kernels.attention_fwd.graph import loop_graph, plan_candidate, sustained_ii
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, HEAD_DIMS, SIXTEEN_BIT
from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption, require_elements
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

SAME = "same"
ATTENTION_DECODE = Declaration(
    name="attention_decode",
    description="O = softmax(Q · Kᵀ / √D) · V of a few queries over many keys, split among blocks",
    fields=(
        ShapeField("B", "sequences of the batch", greatest=1 << 16),
        ShapeField("H", "heads of Q and O in each", greatest=1 << 12),
        ShapeField("N", "keys of each; of the longest where the device knows the lengths", greatest=MAX_LENGTH),
        ShapeField("D", "elements of a head: 64, 128 or 256", HEAD_DIMS[0], HEAD_DIMS[-1]),
    ),
    options=(
        ShapeOption("kv_heads", "heads of K and V, a divisor of H", (SAME,), SAME, whole_numbers=True),
        ShapeOption(
            "queries", f"queries of each sequence, 1 to {MAX_QUERIES}; the last stands at the last key", ("1",), "1",
            whole_numbers=True,
        ),
    ),
    dtypes=SIXTEEN_BIT,
    examples=(
        (16, 32, 8192, 128, "kv_heads=8"),
        (1, 64, 131072, 128, "kv_heads=8"),
        (8, 32, 4096, 128, "kv_heads=8", "queries=4"),
    ),
    shown_first=("COLUMNS", "DEPTH", "SPLITS", "LOOKAHEAD"),
)  # fmt: skip
CONTENDERS = 5
"""Block structures that an explanation compares."""


def decode_shape(shape: Shape) -> DecodeShape:
    """``shape`` with its options as values."""
    batch, heads, keys, head_dim = ATTENTION_DECODE.sizes(shape)
    chosen = ATTENTION_DECODE.chosen(shape)
    kv_heads = heads if chosen["kv_heads"] == SAME else int(chosen["kv_heads"])
    return DecodeShape(batch, heads, keys, head_dim, kv_heads, int(chosen["queries"]))


class AttentionDecode:
    """Attention of a few queries over many keys. Its loop over keys is ``attention_fwd``'s, of one consumer."""

    declaration = ATTENTION_DECODE

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        ATTENTION_DECODE.require_dtype(dtype)
        shape = ATTENTION_DECODE.parse_shape(sizes)
        for name, text in ATTENTION_DECODE.chosen(shape).items():
            if "," in text:
                raise InvalidShape(f"{name}={text}: expected one number", field=name, value=text)
        asked = decode_shape(shape)
        if asked.head_dim not in HEAD_DIMS:
            raise InvalidShape(
                f"D={asked.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}: pad the heads with zeros to the next",
                field="D", value=asked.head_dim, limit=list(HEAD_DIMS),
            )  # fmt: skip
        if not asked.kv_heads or asked.heads % asked.kv_heads:
            raise InvalidShape(
                f"kv_heads={asked.kv_heads} does not divide H={asked.heads}: as many heads of Q share each",
                field="kv_heads", value=asked.kv_heads, limit=asked.heads,
            )  # fmt: skip
        if not 1 <= asked.queries <= MAX_QUERIES or asked.rows > MAX_ROWS:
            raise InvalidShape(
                f"queries={asked.queries} of {asked.heads // asked.kv_heads} heads that share a key head: expected 1 "
                f"to {MAX_QUERIES}, and {MAX_ROWS} rows together or fewer; attention_fwd takes more",
                field="queries", value=asked.queries, limit=MAX_QUERIES,
            )  # fmt: skip
        require_elements("rows of K", asked.batch * asked.kv_heads, asked.keys)
        given = ATTENTION_DECODE.named(shape)
        if asked.kv_heads == asked.heads:
            # One computation has one shape: what an option says at its default is left out.
            given.pop("kv_heads", None)
        return ATTENTION_DECODE.parse_shape(given)

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        return tuple(
            RankedPlan(
                tuning(config), prediction, partial(plan_candidate, config.attention, dtype, device, profile.costs)
            )
            for config, prediction in self.ranked(shape, dtype, device, profile, limit=limit)
        )

    def ranked(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int | None = None
    ) -> list[tuple[DecodeConfig, Prediction]]:
        """The candidates with their predictions, best first; all of them where ``limit`` is ``None``. Raises
        :class:`Infeasible` where nothing fits and :class:`MissingCosts` where the profile lacks an operation."""
        ATTENTION_DECODE.require_dtype(dtype)
        ATTENTION_DECODE.require_wgmma(device)
        configs = candidates(decode_shape(shape), dtype, device)
        if not configs:
            asked = " ".join(f"{name}={value}" for name, value in ATTENTION_DECODE.named(shape).items())
            raise Infeasible(
                f"no attention_decode configuration fits {asked} on {device.name}", field="shape", value=shape
            )
        asked_work = work(configs, decode_shape(shape), dtype, device, profile)
        constants = self.time_constants(shape, dtype, profile, asked_work.structures)
        parts, time_us = terms(asked_work, Rates.of(profile, dtype), constants)
        # At one time: the deeper ring, then the fewer splits.
        order = best_first(time_us, (-asked_work.slots_in_flight, asked_work.split_k), limit or len(configs))
        return list(
            zip((configs[i] for i in order.tolist()), predictions(asked_work, parts, time_us, order), strict=True)
        )

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernel cannot run ``config`` on ``device``."""
        return plan_candidate(_candidate(config, dtype, device).attention, dtype, device, profile.costs)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The loop over keys behind ``config``. Raises as :meth:`plan` does, and :class:`MissingCosts` naming what the
        profile lacks."""
        chosen = _candidate(config, dtype, device)
        epilogue = loop_cycles(replace(chosen, splits=1), dtype, device, profile.costs)["epilogue_cycles"]
        outcome = plan_candidate(chosen.attention, dtype, device, profile.costs)
        return RankedLoop(loop_graph(chosen.attention, dtype, device, profile.costs), outcome, round(epilogue))

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> RankedCandidates:
        """The best candidate of each of the best :data:`CONTENDERS` block structures, best first. Raises what
        :meth:`ranked` raises."""
        best: dict[str, DecodeConfig] = {}
        for config, _ in self.ranked(shape, dtype, device, profile):
            best.setdefault(structure(config), config)
            if len(best) == CONTENDERS:
                break

        def ask(configs: tuple[DecodeConfig, ...], costs: CostTable) -> DeviceWork:
            return work(configs, decode_shape(shape), dtype, device, replace(profile, costs=costs))

        constants_of = partial(self.time_constants, shape, dtype, profile)
        return compared(tuple(best.values()), ask, _block_name, tuning, constants_of, dtype, profile)

    def device_works(
        self, configs: Sequence[TuningConfig], shapes: Sequence[Shape], dtype: str, device: Device, profile: Profile
    ) -> tuple[dict[TuningConfig, int], list[DeviceWork]]:
        """What ``configs`` ask of the device at each of ``shapes``, and the row of each configuration. One that cannot
        run has no row."""
        found: dict[TuningConfig, DecodeConfig] = {}
        for config in configs:
            try:
                found[config] = _candidate(config, dtype, device)
            except InvalidConfig:
                continue
        rows = {config: i for i, config in enumerate(found)}
        known = tuple(found.values())
        return rows, [work(known, decode_shape(shape), dtype, device, profile) for shape in shapes]

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        """The name under which the time model is calibrated, then that whose constants of the device it begins at."""
        return (ATTENTION_DECODE.name, "gemm")

    def time_constants(
        self, shape: Shape, dtype: str, profile: Profile, structures: tuple[str, ...]
    ) -> Mapping[str, float]:
        """The constants that predictions of ``shape`` are made with."""
        return calibrated_constants(profile, self.calibration_names(shape, dtype), structures)

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: K, V, Q and O crossing L2 once. 0 where the ceiling is missing."""
        l2 = dict(profile.ceilings).get("l2_bytes_per_s")
        return 1e6 * decode_shape(shape).moved_bytes(ELEMENT_BYTES[dtype]) / l2.p50 if l2 else 0.0

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate, for ``kernels.solved_loops`` to record."""
        for head_dim in HEAD_DIMS:
            for config in structures(head_dim, dtype, device):
                sustained_ii(config.attention, dtype, device, profile.costs)
                plan_candidate(config.attention, dtype, device, profile.costs)


def _candidate(config: TuningConfig, dtype: str, device: Device) -> DecodeConfig:
    ATTENTION_DECODE.require_dtype(dtype)
    candidate = config_of(config)
    require_valid(candidate, dtype, device)
    return candidate


def _block_name(config: DecodeConfig) -> str:
    """What tells block structures apart, in words."""
    order = "lookahead" if config.lookahead else "serial"
    return f"{config.columns} keys, {order}, depth {config.depth}, {config.splits} splits"
