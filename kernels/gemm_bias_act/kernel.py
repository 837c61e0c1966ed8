"""The GEMM with a fused epilogue as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption, require_elements
from warpplan.kernels.gemm.candidates import CandidateTable, TileGrid, table
from warpplan.kernels.gemm.kernel import Gemm, require_rows
from warpplan.kernels.gemm.space import LAYOUTS, RESULT_BYTES, GemmConfig
from warpplan.kernels.gemm.work import SolvedTable, solve_table
from warpplan.kernels.gemm_bias_act.space import (
    ACTIVATIONS,
    ELEMENT_BYTES,
    MIN_COLUMNS,
    FusedEpilogue,
    epilogue_violations,
    require_valid,
)
from warpplan.kernels.gemm_bias_act.work import add_epilogue, add_traffic
from warpplan.planner.errors import InvalidShape
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

NO_YES = ("no", "yes")

GEMM_BIAS_ACT = Declaration(
    name="gemm_bias_act",
    description="C = activation(A[M, K] · B[N, K]ᵀ + bias) + residual, fp32 accumulation, rounded once",
    fields=(
        ShapeField("M", "rows of A and of C"),
        ShapeField("N", "rows of B; columns of C, of which swiglu leaves half"),
        ShapeField("K", "columns of A and of B, summed over"),
    ),
    options=(
        ShapeOption("layout", "how A and B are stored: n as A [M, K] and B [K, N], t transposed", LAYOUTS, LAYOUTS[0]),
        ShapeOption(
            "activation", "function of the biased product; swiglu of its columns in pairs", ACTIVATIONS, "none"
        ),
        ShapeOption("bias", "whether a number a column is added before the activation", NO_YES, "no"),
        ShapeOption("residual", "whether a matrix of C's size is added after the activation", NO_YES, "no"),
    ),
    dtypes=tuple(ELEMENT_BYTES),
    examples=((4096, 4096, 4096, "activation=gelu", "bias=yes"), (2048, 22016, 4096, "activation=swiglu")),
    shown_first=("SCHEME", "BLOCK_M", "BLOCK_N", "BLOCK_K", "DEPTH", "SPLIT_K", "GROUP_M"),
)


class GemmBiasAct(Gemm):
    """The GEMM's candidates that can run the shape's epilogue; their loops are the GEMM's own."""

    declaration = GEMM_BIAS_ACT

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        GEMM_BIAS_ACT.require_dtype(dtype)
        shape = GEMM_BIAS_ACT.parse_shape(sizes)
        m, n, k = GEMM_BIAS_ACT.sizes(shape)
        if fused_epilogue(shape).halves and n % 2:
            raise InvalidShape(f"N={n}: swiglu takes columns in pairs, so N must be even", field="N", value=n, limit=2)
        if fused_epilogue(shape).halves and n <= MIN_COLUMNS:
            raise InvalidShape(
                f"N={n}: a tile of swiglu stores {MIN_COLUMNS} columns or more, each of two, so pad N to "
                f"{MIN_COLUMNS + 2} or more",
                field="N", value=n, limit=MIN_COLUMNS + 2,
            )  # fmt: skip
        require_rows(GEMM_BIAS_ACT.chosen(shape)["layout"], m, n, k, dtype)
        require_elements("A", m, k)
        require_elements("B", n, k)
        require_elements("C", m, n)
        return shape

    def require_valid(self, config: GemmConfig, dtype: str, device: Device, shape: Shape) -> None:
        sizes = GEMM_BIAS_ACT.sizes(shape)
        product = (sizes[0], sizes[1], sizes[2]) if sizes else None
        require_valid(config, dtype, device, fused_epilogue(shape), product)

    def fitting(self, configs: Sequence[GemmConfig], shape: Shape) -> NDArray[np.bool_]:
        epilogue = fused_epilogue(shape)
        # Fused products with narrow chunks were not timed.
        fits = (not any(epilogue_violations(c, epilogue)) and not c.has_narrow_chunks for c in configs)
        return np.fromiter(fits, dtype=bool, count=len(configs))

    def solved(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> SolvedTable:
        return _solved(fused_epilogue(shape), dtype, device, profile)

    def solve(
        self, candidates: CandidateTable, shape: Shape, dtype: str, device: Device, costs: CostTable
    ) -> SolvedTable:
        return add_epilogue(solve_table(dtype, device, costs, candidates), fused_epilogue(shape), costs)

    def work(self, solved: SolvedTable, shape: Shape, dtype: str, device: Device) -> tuple[DeviceWork, TileGrid]:
        product, grid = super().work(solved, shape, dtype, device)
        return add_traffic(product, solved, fused_epilogue(shape), GEMM_BIAS_ACT.sizes(shape)), grid

    def calibrations(self, shape: Shape, dtype: str, profile: Profile) -> tuple[str, ...]:
        """The GEMM's whole calibration until there is one of this kernel: they share everything but the epilogue."""
        return (GEMM_BIAS_ACT.name if profile.calibration(GEMM_BIAS_ACT.name) else "gemm",)

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        return GEMM_BIAS_ACT.name, "gemm"

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """As :meth:`Gemm.floor_us`, with the C and the residual that there are."""
        m, n, k = GEMM_BIAS_ACT.sizes(shape)
        epilogue, ceilings = fused_epilogue(shape), dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        results = (1 + epilogue.residual) * m * (n // 2 if epilogue.halves else n)
        moved_bytes = (m * k + n * k) * ELEMENT_BYTES[dtype] + results * RESULT_BYTES
        return 1e6 * max(2 * m * n * k / flops.p50 if flops else 0.0, moved_bytes / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Nothing: every loop is one of the GEMM's."""


def fused_epilogue(shape: Shape) -> FusedEpilogue:
    """The epilogue that the options of ``shape`` name."""
    chosen = GEMM_BIAS_ACT.chosen(shape)
    return FusedEpilogue(chosen["activation"], chosen["bias"] == "yes", chosen["residual"] == "yes")


@lru_cache(maxsize=64)
def _solved(epilogue: FusedEpilogue, dtype: str, device: Device, profile: Profile) -> SolvedTable:
    return add_epilogue(_product(dtype, device, profile), epilogue, profile.costs)


@lru_cache(maxsize=16)
def _product(dtype: str, device: Device, profile: Profile) -> SolvedTable:
    return solve_table(dtype, device, profile.costs, table(dtype, device, profile.costs))
