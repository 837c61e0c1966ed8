"""The GEMM kernel as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from warpplan.kernels.gemm.candidates import table, tabulate
from warpplan.kernels.gemm.graph import plan_candidate, sustained_ii
from warpplan.kernels.gemm.space import (
    ELEMENT_BYTES,
    ROW_ALIGNMENT_BYTES,
    SCHEMES,
    GemmConfig,
    Shape,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.gemm.work import SolvedTable, loop_of, relatives, solve_table, work
from warpplan.kernels.sizes import parse_sizes, require_elements
from warpplan.planner.errors import Infeasible, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.predict.ranking import RankedPlan, best_first
from warpplan.planner.predict.time_model import Prediction, Rates, predictions, terms
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

RESIDUAL = "structure."
"""Prefix of the constants that calibrate one structure (``planner.predict``)."""


class Gemm:
    """C[M, N] = A[M, K] · B[N, K]ᵀ, accumulated in fp32."""

    name = "gemm"
    description = "C[M, N] = A[M, K] · B[N, K]ᵀ, fp32 accumulation"
    dimensions = ("M", "N", "K")
    dtypes = tuple(ELEMENT_BYTES)

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        self._require_dtype(dtype)
        m, n, k = parse_sizes(self.name, self.dimensions, sizes)
        if k * ELEMENT_BYTES[dtype] % ROW_ALIGNMENT_BYTES:
            step = ROW_ALIGNMENT_BYTES // ELEMENT_BYTES[dtype]
            raise InvalidShape(
                f"K={k} makes {dtype} rows of {k * ELEMENT_BYTES[dtype]} bytes: TMA needs a multiple of "
                f"{ROW_ALIGNMENT_BYTES} bytes, so pad K to {-(-k // step) * step}",
                field="K", value=k, limit=step,
            )  # fmt: skip
        require_elements("A", m, k)
        require_elements("B", n, k)
        require_elements("C", m, n)
        return m, n, k

    def rank(
        self,
        shape: tuple[int, ...],
        dtype: str,
        device: Device,
        profile: Profile,
        *,
        limit: int = 8,
        schemes: tuple[str, ...] | None = None,
    ) -> tuple[RankedPlan, ...]:
        for scheme in schemes or ():
            if scheme not in SCHEMES:
                raise UnknownName("scheme", scheme, SCHEMES)
        ranked = self.ranked(shape, dtype, device, profile, limit=limit, schemes=schemes)
        return tuple(RankedPlan(tuning(config), prediction) for config, prediction in ranked)

    def ranked(
        self,
        shape: tuple[int, ...],
        dtype: str,
        device: Device,
        profile: Profile,
        *,
        limit: int | None = None,
        schemes: tuple[str, ...] | None = None,
    ) -> list[tuple[GemmConfig, Prediction]]:
        """The candidates with their predictions, best first; all of them where ``limit`` is ``None``.

        Candidates with operations that the profile lacks are left out. Raises :class:`Infeasible` where nothing fits
        the shape and :class:`MissingCosts` where the profile lacks operations of everything that fits.
        """
        self._require_dtype(dtype)
        m, n, k = shape
        solved = _solved(dtype, device, profile)
        all_work, grid = work(solved, dtype, device, (m, n, k))
        valid = grid.valid
        if schemes is not None:
            valid = valid & np.isin([c.scheme for c in solved.table.configs], schemes)
        rows = np.flatnonzero(valid & solved.known)
        if not rows.size:
            missing = dict.fromkeys(name for i in np.flatnonzero(valid).tolist() for name in solved.missing[i])
            if missing:
                raise MissingCosts(missing)
            among = f" of scheme {' or '.join(schemes)}" if schemes else ""
            raise Infeasible(
                f"no gemm configuration{among} fits M={m} N={n} K={k} on {device.name}", field="shape", value=shape
            )
        chosen = all_work.take(rows)
        parts, time_us = terms(chosen, Rates.of(profile, dtype), _constants(profile, chosen.structures))
        order = best_first(time_us, (chosen.split_k, -chosen.slots_in_flight), limit or rows.size)
        configs = (replace(solved.table.configs[i], group_m=int(grid.group_m[i])) for i in rows[order].tolist())
        return list(zip(configs, predictions(chosen, parts, time_us, order), strict=True))

    def predicted(
        self, configs: Sequence[GemmConfig], shape: Shape, dtype: str, device: Device, profile: Profile
    ) -> tuple[Prediction, ...]:
        """What each of ``configs`` should take at ``shape``, in their order, whether the space proposes it or not.

        Raises :class:`InvalidConfig` where one cannot run and :class:`MissingCosts` where the profile lacks an
        operation of one.
        """
        for config in configs:
            require_valid(config, dtype, device, shape)
        solved = solve_table(dtype, device, profile.costs, tabulate(configs, [0] * len(configs), device))
        if not solved.known.all():
            raise MissingCosts(dict.fromkeys(name for names in solved.missing for name in names))
        all_work, _ = work(solved, dtype, device, shape)
        parts, time_us = terms(all_work, Rates.of(profile, dtype), _constants(profile, all_work.structures))
        return predictions(all_work, parts, time_us, np.arange(len(configs)))

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernel cannot run ``config`` on ``device``."""
        self._require_dtype(dtype)
        candidate = config_of(config)
        require_valid(candidate, dtype, device)
        return plan_candidate(candidate, dtype, device, profile.costs)

    def floor_us(self, shape: tuple[int, ...], dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: the products at the tensor cores' rate, or each element of A, B and
        C crossing L2 once (data that is used again and again may never leave it). 0 where a ceiling is missing."""
        m, n, k = shape
        ceilings = dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        moved_bytes = (m * k + n * k + m * n) * ELEMENT_BYTES[dtype]
        return 1e6 * max(2 * m * n * k / flops.p50 if flops else 0.0, moved_bytes / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate, for ``kernels.solved_loops`` to record."""
        for config in dict.fromkeys(map(loop_of, table(dtype, device, profile.costs).configs)):
            sustained_ii(config, dtype, device, profile.costs)

    def _require_dtype(self, dtype: str) -> None:
        if dtype not in self.dtypes:
            raise UnknownName("dtype", dtype, self.dtypes)


@lru_cache(maxsize=16)
def _solved(dtype: str, device: Device, profile: Profile) -> SolvedTable:
    return solve_table(dtype, device, profile.costs)


@lru_cache(maxsize=16)
def _constants(profile: Profile, structures: tuple[str, ...]) -> Mapping[str, float]:
    """The calibration's constants; a structure that it does not know has the residual of its nearest relatives, the
    same block with another ring or epilogue: most of what the model misses lies in the block."""
    calibration = profile.calibration(Gemm.name)
    constants = dict(calibration.constants) if calibration else {}
    known: dict[str, list[float]] = {}
    for name, value in constants.items():
        if name.startswith(RESIDUAL):
            known.setdefault(relatives(name), []).append(value)
    for name in structures:
        if (key := RESIDUAL + name) not in constants and (kin := known.get(relatives(key))):
            constants[key] = sum(kin) / len(kin)
    return constants
