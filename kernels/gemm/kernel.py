"""The GEMM kernel as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption, require_elements
from warpplan.kernels.gemm.candidates import CandidateTable, TileGrid, table, tabulate
from warpplan.kernels.gemm.explain import race, ranked_loop
from warpplan.kernels.gemm.graph import plan_candidate, sustained_ii
from warpplan.kernels.gemm.space import (
    ELEMENT_BYTES,
    LAYOUTS,
    RESULT_BYTES,
    ROW_ALIGNMENT_BYTES,
    SCALES,
    SCHEMES,
    GemmConfig,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.gemm.work import (
    SolvedTable,
    calibrated_constants,
    calibrations,
    loop_of,
    solve_table,
    structure,
    work,
)
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.predict.alternatives import RankedCandidates, RankedLoop
from warpplan.planner.predict.ranking import RankedPlan, best_first
from warpplan.planner.predict.time_model import DeviceWork, Prediction, Rates, predictions, terms
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

GEMM = Declaration(
    name="gemm",
    description="C[M, N] = A[M, K] · B[N, K]ᵀ, fp32 accumulation",
    fields=(
        ShapeField("M", "rows of A and of C"),
        ShapeField("N", "rows of B, columns of C"),
        ShapeField("K", "columns of A and of B, summed over"),
    ),
    options=(
        ShapeOption(
            "layout", "how A and B are stored: n as A [M, K] and B [K, N], t transposed", LAYOUTS, default=LAYOUTS[0]
        ),
        ShapeOption("scales", "how fp8 operands are scaled: a number a tensor, a row, or a block", SCALES, SCALES[0]),
    ),
    dtypes=tuple(ELEMENT_BYTES),
    examples=((4096, 4096, 4096), (16, 14336, 4096), (512, 1024, 2048)),
    shown_first=("SCHEME", "BLOCK_M", "BLOCK_N", "BLOCK_K", "DEPTH", "SPLIT_K", "GROUP_M"),
)

CONTENDERS = 5
"""Block structures that an explanation compares."""
EARLY_US = 9.0
"""Only a specialised kernel predicted to take less lets the next launch begin early, where not all CTAs of that find
room beside its own. Of training shapes launched in a row from a CUDA graph, 29 of 30 such that took less gained, and 39
that took longer lost 3 % in the mean, one of them 25 % (``launches`` and ``waits`` in
``benchmarks/results/early_launch_<card>.json``, of both cards)."""
EARLY_BESIDE_US = 15.0
"""The same where all find room: each of 33 shapes gained 0.2 to 0.8 us, the longest of 14 us."""


class Gemm:
    """C[M, N] = A[M, K] · B[N, K]ᵀ, accumulated in fp32."""

    declaration = GEMM
    launches_dependents = True
    """Whether the kernel can let the next launch begin early."""

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        GEMM.require_dtype(dtype)
        shape = GEMM.parse_shape(sizes)
        m, n, k = GEMM.sizes(shape)
        require_rows(GEMM.chosen(shape)["layout"], m, n, k, dtype)
        _require_fp8(GEMM.chosen(shape), dtype)
        require_elements("A", m, k)
        require_elements("B", n, k)
        require_elements("C", m, n)
        return shape

    def rank(
        self,
        shape: Shape,
        dtype: str,
        device: Device,
        profile: Profile,
        *,
        limit: int = 8,
    ) -> tuple[RankedPlan, ...]:
        return tuple(
            RankedPlan(self.tuning(config), prediction, partial(self.planned, config, dtype, device, profile.costs))
            for config, prediction in self.ranked(shape, dtype, device, profile, limit=limit)
        )

    def ranked(
        self,
        shape: Shape,
        dtype: str,
        device: Device,
        profile: Profile,
        *,
        limit: int | None = None,
        schemes: tuple[str, ...] | None = None,
    ) -> list[tuple[GemmConfig, Prediction]]:
        """The candidates with their predictions, best first; all of them where ``limit`` is ``None``.

        Candidates with operations that the profile lacks are left out. Raises :class:`Infeasible` where nothing fits
        the shape, :class:`MissingCosts` where the profile lacks operations of everything that fits and
        :class:`UnknownName` for a scheme that there is not.
        """
        self.declaration.require_dtype(dtype)
        self.declaration.require_wgmma(device)
        for scheme in schemes or ():
            if scheme not in SCHEMES:
                raise UnknownName("scheme", scheme, SCHEMES)
        solved = self.solved(shape, dtype, device, profile)
        all_work, grid = self.work(solved, shape, dtype, device)
        valid = grid.valid & self.fitting(solved.table.configs, shape)
        if schemes is not None:
            valid = valid & np.isin([c.scheme for c in solved.table.configs], schemes)
        rows = np.flatnonzero(valid & solved.known)
        if not rows.size:
            missing = dict.fromkeys(name for i in np.flatnonzero(valid).tolist() for name in solved.missing[i])
            if missing:
                raise MissingCosts(missing)
            among = f" of scheme {' or '.join(schemes)}" if schemes else ""
            asked = " ".join(f"{name}={value}" for name, value in self.declaration.named(shape).items())
            raise Infeasible(
                f"no {self.declaration.name} configuration{among} fits {asked} on {device.name}",
                field="shape",
                value=shape,
            )
        chosen = all_work.take(rows)
        constants = calibrated_constants(profile, self.calibrations(shape, dtype, profile), chosen.structures)
        rates = Rates.of(profile, dtype)
        parts, time_us = terms(chosen, rates, constants)
        early = np.zeros(rows.size, dtype=np.bool_)
        if self.launches_dependents:
            short = time_us < np.where(chosen.early_part < 1.0, EARLY_US, EARLY_BESIDE_US)
            tried = np.flatnonzero(solved.table.specialized[rows] & short)
            launching = replace(chosen.take(tried), launch_dependents=np.ones(tried.size))
            early_parts, early_us = terms(launching, rates, constants)
            gains = early_us < time_us[tried]
            early[tried[gains]] = True
            parts[:, early], time_us[early] = early_parts[:, gains], early_us[gains]
        order = best_first(time_us, (chosen.split_k, -chosen.slots_in_flight), limit or rows.size)
        configs = (
            replace(solved.table.configs[rows[i]], group_m=int(grid.group_m[rows[i]]), launch_dependents=bool(early[i]))
            for i in order.tolist()
        )
        return list(zip(configs, predictions(chosen, parts, time_us, order), strict=True))

    def predicted(
        self, configs: Sequence[GemmConfig], shape: Shape, dtype: str, device: Device, profile: Profile
    ) -> tuple[Prediction, ...]:
        """What each of ``configs`` should take at ``shape``, in their order, whether the space proposes it or not.

        Raises :class:`InvalidConfig` where one cannot run and :class:`MissingCosts` where the profile lacks an
        operation of one.
        """
        for config in configs:
            self.require_valid(config, dtype, device, shape)
        solved = self.solve(tabulate(configs, [0] * len(configs), device), shape, dtype, device, profile.costs)
        if not solved.known.all():
            raise MissingCosts(dict.fromkeys(name for names in solved.missing for name in names))
        all_work, _ = self.work(solved, shape, dtype, device)
        constants = calibrated_constants(profile, self.calibrations(shape, dtype, profile), all_work.structures)
        parts, time_us = terms(all_work, Rates.of(profile, dtype), constants)
        return predictions(all_work, parts, time_us, np.arange(len(configs)))

    def device_works(
        self, configs: Sequence[TuningConfig], shapes: Sequence[Shape], dtype: str, device: Device, profile: Profile
    ) -> tuple[dict[TuningConfig, int], list[DeviceWork]]:
        """What ``configs`` ask of the device at each of ``shapes``, which have their options in common, and the row of
        each configuration. One that cannot run, or of which the profile lacks an operation, has no row."""
        candidates: dict[TuningConfig, GemmConfig] = {}
        for config in configs:
            try:
                candidates[config] = self._candidate(config, dtype, device, shapes[0])
            except InvalidConfig:
                continue
        table = tabulate(list(candidates.values()), [0] * len(candidates), device)
        solved = self.solve(table, shapes[0], dtype, device, profile.costs)
        known = np.flatnonzero(solved.known)
        named = list(candidates)
        rows = {named[i]: row for row, i in enumerate(known.tolist())}
        return rows, [self.work(solved, shape, dtype, device)[0].take(known) for shape in shapes]

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        """The name under which the time model is calibrated for ``shape``, then those that it begins at."""
        return calibrations(self.declaration.name, dtype, is_promoted(shape))

    def time_constants(
        self, shape: Shape, dtype: str, profile: Profile, structures: tuple[str, ...]
    ) -> Mapping[str, float]:
        """The constants that predictions of ``shape`` are made with."""
        return calibrated_constants(profile, self.calibrations(shape, dtype, profile), structures)

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernel cannot run ``config`` on ``device``."""
        return self.planned(self._candidate(config, dtype, device, shape), dtype, device, profile.costs)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The main loop behind ``config``. Raises :class:`InvalidConfig` as :meth:`plan` does, and
        :class:`MissingCosts` naming what the profile lacks."""
        candidate = self._candidate(config, dtype, device, shape)
        outcome = self.planned(candidate, dtype, device, profile.costs)
        return ranked_loop(candidate, outcome, dtype, device, profile.costs)

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> RankedCandidates:
        """The best candidate of each of the best :data:`CONTENDERS` block structures, best first.

        Raises what :meth:`ranked` raises.
        """
        best: dict[str, GemmConfig] = {}
        for config, _ in self.ranked(shape, dtype, device, profile):
            if len(best) == CONTENDERS:
                break
            best.setdefault(structure(config), config)
        return race(
            tuple(best.values()),
            dtype,
            device,
            profile,
            self.calibrations(shape, dtype, profile),
            self.tuning,
            lambda table, costs: self.solve(table, shape, dtype, device, costs),
            lambda solved: self.work(solved, shape, dtype, device)[0],
        )

    def _candidate(self, config: TuningConfig, dtype: str, device: Device, shape: Shape) -> GemmConfig:
        self.declaration.require_dtype(dtype)
        candidate = self.config_of(config)
        # Of the shape only the options count here.
        self.require_valid(candidate, dtype, device, tuple(word for word in shape if isinstance(word, str)))
        return candidate

    # What a kernel with this main loop and another epilogue, or other operands, has of its own.

    def tuning(self, config: GemmConfig) -> TuningConfig:
        """``config`` as it is handed out."""
        return tuning(config)

    def config_of(self, config: TuningConfig) -> GemmConfig:
        """The inverse of :meth:`tuning`; raises :class:`InvalidConfig`."""
        return config_of(config)

    def planned(self, config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
        """The plan of ``config``'s main loop. Raises :class:`MissingCosts` naming what the profile lacks."""
        return plan_candidate(config, dtype, device, costs)

    def require_valid(self, config: GemmConfig, dtype: str, device: Device, shape: Shape) -> None:
        """Raise :class:`InvalidConfig` where ``config`` cannot run; a shape without sizes has its options alone."""
        require_valid(config, dtype, device, _three(self.declaration.sizes(shape)))

    def fitting(self, configs: Sequence[GemmConfig], shape: Shape) -> NDArray[np.bool_]:
        """Which of the GEMM's candidates the kernel can run with the options of ``shape``."""
        return np.ones(len(configs), dtype=bool)

    def solved(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> SolvedTable:
        """Every candidate with its loop solved."""
        return _solved(dtype, device, profile, is_promoted(shape))

    def solve(
        self, candidates: CandidateTable, shape: Shape, dtype: str, device: Device, costs: CostTable
    ) -> SolvedTable:
        """``candidates`` with their loops solved."""
        return solve_table(dtype, device, costs, candidates)

    def work(self, solved: SolvedTable, shape: Shape, dtype: str, device: Device) -> tuple[DeviceWork, TileGrid]:
        """What each row of ``solved`` asks of the device, and how its tiles cover the matrix."""
        m, n, k = self.declaration.sizes(shape)
        return work(solved, dtype, device, (m, n, k), self.declaration.chosen(shape)["layout"])

    def calibrations(self, shape: Shape, dtype: str, profile: Profile) -> tuple[str, ...]:
        """The names under which the time model may be calibrated, the closest first."""
        return calibrations(self.declaration.name, dtype, is_promoted(shape))

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: the products at the tensor cores' rate, or each element of A, B and
        C crossing L2 once (data that is used again and again may never leave it). 0 where a ceiling is missing."""
        m, n, k = self.declaration.sizes(shape)
        ceilings = dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        moved_bytes = (m * k + n * k) * ELEMENT_BYTES[dtype] + m * n * RESULT_BYTES
        return 1e6 * max(2 * m * n * k / flops.p50 if flops else 0.0, moved_bytes / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate and certify it, for ``kernels.solved_loops`` to record."""
        for promoted in (False, True) if ELEMENT_BYTES[dtype] == 1 else (False,):
            for config in dict.fromkeys(map(loop_of, table(dtype, device, profile.costs, promoted).configs)):
                sustained_ii(config, dtype, device, profile.costs)
                plan_candidate(config, dtype, device, profile.costs)


def is_promoted(shape: Shape) -> bool:
    """Whether the scales of ``shape`` need sums in registers."""
    return GEMM.chosen(shape)["scales"] == "block"


def _require_fp8(chosen: Mapping[str, str], dtype: str) -> None:
    """Raise :class:`InvalidShape` for scales without fp8 operands, and for a layout that fp8 operands cannot have."""
    if ELEMENT_BYTES[dtype] > 1:
        if chosen["scales"] != SCALES[0]:
            raise InvalidShape(
                f"scales={chosen['scales']} with {dtype}: only fp8 operands have scales",
                field="scales", value=chosen["scales"], limit=SCALES[0],
            )  # fmt: skip
    elif chosen["layout"] != LAYOUTS[0]:
        raise InvalidShape(
            f"layout={chosen['layout']} with {dtype}: the tensor cores read fp8 operands with K contiguous alone, so "
            f"layout={LAYOUTS[0]}",
            field="layout", value=chosen["layout"], limit=LAYOUTS[0],
        )  # fmt: skip


def require_rows(layout: str, m: int, n: int, k: int, dtype: str) -> None:
    """Raise :class:`InvalidShape` where TMA cannot address packed rows of A or of B as they are stored."""
    element = ELEMENT_BYTES[dtype]
    step = ROW_ALIGNMENT_BYTES // element
    rows = (("A", *(("K", k) if layout[0] == "n" else ("M", m))), ("B", *(("K", k) if layout[1] == "t" else ("N", n))))
    for operand, name, size in rows:
        if size % step:
            raise InvalidShape(
                f"{name}={size} makes {dtype} rows of {size * element} bytes in {operand}: TMA needs a multiple of "
                f"{ROW_ALIGNMENT_BYTES} bytes, so pad {name} to {-(-size // step) * step}",
                field=name, value=size, limit=step,
            )  # fmt: skip


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int] | None:
    return (sizes[0], sizes[1], sizes[2]) if sizes else None


@lru_cache(maxsize=16)
def _solved(dtype: str, device: Device, profile: Profile, promoted: bool = False) -> SolvedTable:
    return solve_table(dtype, device, profile.costs, table(dtype, device, profile.costs, promoted))
