"""The grouped GEMM as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from warpplan.kernels.declaration import Declaration, Shape, ShapeField, ShapeOption, require_elements
from warpplan.kernels.gemm.candidates import TileGrid
from warpplan.kernels.gemm.graph import sustained_ii
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import ELEMENT_BYTES, RESULT_BYTES, ROW_ALIGNMENT_BYTES, GemmConfig
from warpplan.kernels.gemm.work import SolvedTable, calibrations, loop_of, solve_table
from warpplan.kernels.grouped_gemm.candidates import table
from warpplan.kernels.grouped_gemm.distribution import DISTRIBUTIONS, GroupedShape, group_sizes
from warpplan.kernels.grouped_gemm.graph import plan_candidate
from warpplan.kernels.grouped_gemm.space import (
    FP8,
    MAX_GROUPS,
    MAX_ROWS,
    PRODUCTS,
    SCALES,
    SIXTEEN_BIT,
    Product,
    Scales,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.grouped_gemm.work import work
from warpplan.planner.errors import InvalidShape
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

GROUPED_GEMM = Declaration(
    name="grouped_gemm",
    description="C[M, N] = A[M, K] · B[g, N, K]ᵀ for the rows of each group g, and its gradients; fp32 accumulation",
    fields=(
        ShapeField("M", "rows of all groups together", greatest=MAX_ROWS),
        ShapeField("N", "rows of each group's B, columns of C; rows of a multiple of 16 bytes"),
        ShapeField("K", "columns of A and of B; rows of a multiple of 16 bytes"),
        ShapeField("G", "groups, such as experts", greatest=MAX_GROUPS),
    ),
    options=(
        ShapeOption(
            "product",
            "C = A · Bᵀ, its gradient for A (dC · B), or its gradient for B (dCᵀ · A, group by group)",
            PRODUCTS,
            "forward",
        ),
        ShapeOption(
            "sizes",
            "rows of each group that the plan is made for; other sizes run as right, only not as fast",
            DISTRIBUTIONS,
            "balanced",
            whole_numbers=True,
        ),
        ShapeOption("scales", "of float8_e4m3fn operands: one a row, or 1x128 of A and 128x128 of B", SCALES, "row"),
    ),
    dtypes=(*SIXTEEN_BIT, FP8),
    examples=(
        # DeepSeek-V3-16B: 64 experts, the top 6 of 8,192 tokens.
        (49152, 1408, 2048, 64),
        (49152, 2048, 1408, 64),
        (49152, 1408, 2048, 64, "product=wgrad", "sizes=skewed"),
        # A few tokens an expert.
        (256, 2048, 7168, 256, "sizes=few"),
    ),
    shown_first=("SCHEME", "BLOCK_M", "BLOCK_N", "BLOCK_K", "DEPTH", "GROUP_M"),
)


def grouped_shape(shape: Shape) -> GroupedShape:
    """``shape`` with its group sizes and its options as values."""
    m, n, k, groups = GROUPED_GEMM.sizes(shape)
    return GroupedShape(m, n, k, group_sizes(GROUPED_GEMM.chosen(shape)["sizes"], m, groups), *_chosen(shape))


class GroupedGemm(Gemm):
    """One product a group of rows, all in one launch; forward, dgrad and wgrad. The main loop of a tile is the GEMM's,
    with registers of its own."""

    declaration = GROUPED_GEMM
    launches_dependents = False

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        GROUPED_GEMM.require_dtype(dtype)
        shape = GROUPED_GEMM.parse_shape(sizes)
        m, n, k, groups = GROUPED_GEMM.sizes(shape)
        chosen = GROUPED_GEMM.chosen(shape)
        # Rows of B and of A have K elements, those of the result of forward N.
        _require_alignment("K", k, ELEMENT_BYTES[dtype])
        _require_alignment("N", n, RESULT_BYTES)
        _require_options(chosen, dtype)
        require_elements("A", m, k)
        require_elements("C", m, n)
        # B is addressed by its row and its column, so that only their numbers are limited.
        require_elements("a column of B", groups, n)
        if chosen["sizes"] not in DISTRIBUTIONS:
            _require_sizes(chosen["sizes"], m, groups)
        return shape

    def tuning(self, config: GemmConfig) -> TuningConfig:
        return tuning(config)

    def config_of(self, config: TuningConfig) -> GemmConfig:
        return config_of(config)

    def planned(self, config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
        return plan_candidate(config, dtype, device, costs)

    def require_valid(self, config: GemmConfig, dtype: str, device: Device, shape: Shape) -> None:
        product, _ = _chosen(shape)
        require_valid(config, dtype, device, product)

    def solved(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> SolvedTable:
        return _solved(dtype, device, profile, *_chosen(shape))

    def work(self, solved: SolvedTable, shape: Shape, dtype: str, device: Device) -> tuple[DeviceWork, TileGrid]:
        return work(solved, dtype, device, grouped_shape(shape))

    def calibrations(self, shape: Shape, dtype: str, profile: Profile) -> tuple[str, ...]:
        """This kernel's, or gemm's where the profile has none: blocks, loops and epilogues are its."""
        _, scales = _chosen(shape)
        own, gemms = (calibrations(kernel, dtype, scales == "block") for kernel in (GROUPED_GEMM.name, "gemm"))
        return own if any(map(profile.calibration, own)) else gemms

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]:
        promoted = _chosen(shape)[1] == "block"
        return (*calibrations(GROUPED_GEMM.name, dtype, promoted), *calibrations("gemm", dtype, promoted))

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """What the measured ceilings allow at best: the products at the tensor cores' rate, or each element of A, C and
        the B of groups with rows crossing L2 once. 0 where a ceiling is missing."""
        asked = grouped_shape(shape)
        rows, matrices = sum(asked.sizes), sum(size > 0 for size in asked.sizes)
        ceilings = dict(profile.ceilings)
        flops, l2 = ceilings.get(f"tensor_flops_{dtype}"), ceilings.get("l2_bytes_per_s")
        operands = {"A": rows * asked.k, "B": matrices * asked.n * asked.k, "C": rows * asked.n}
        result = {"forward": "C", "dgrad": "A", "wgrad": "B"}[asked.product]
        moved = sum(n * (RESULT_BYTES if name == result else ELEMENT_BYTES[dtype]) for name, n in operands.items())
        return 1e6 * max(asked.flops / flops.p50 if flops else 0.0, moved / l2.p50 if l2 else 0.0)

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the loop of every candidate and certify it, for ``kernels.solved_loops`` to record."""
        for scales in SCALES if dtype == FP8 else SCALES[:1]:
            configs = table(dtype, device, profile.costs, "forward", scales).configs
            for config in dict.fromkeys(map(loop_of, configs)):
                sustained_ii(config, dtype, device, profile.costs)
                plan_candidate(config, dtype, device, profile.costs)


@lru_cache(maxsize=32)
def _solved(dtype: str, device: Device, profile: Profile, product: Product, scales: Scales) -> SolvedTable:
    return solve_table(dtype, device, profile.costs, table(dtype, device, profile.costs, product, scales))


def _chosen(shape: Shape) -> tuple[Product, Scales]:
    chosen = GROUPED_GEMM.chosen(shape)
    product: Product = next(p for p in PRODUCTS if p == chosen["product"])
    scales: Scales = next(s for s in SCALES if s == chosen["scales"])
    return product, scales


def _require_alignment(name: str, value: int, element: int) -> None:
    if value * element % ROW_ALIGNMENT_BYTES:
        step = ROW_ALIGNMENT_BYTES // element
        raise InvalidShape(
            f"{name}={value} makes rows of {value * element} bytes: TMA needs a multiple of {ROW_ALIGNMENT_BYTES} "
            f"bytes, so pad {name} to {-(-value // step) * step}",
            field=name, value=value, limit=step,
        )  # fmt: skip


def _require_options(chosen: Mapping[str, str], dtype: str) -> None:
    if dtype == FP8 and chosen["product"] != "forward":
        raise InvalidShape(
            f"product={chosen['product']} with {dtype}: gradients are of {' or '.join(SIXTEEN_BIT)}",
            field="product", value=chosen["product"], limit=["forward"],
        )  # fmt: skip
    if dtype != FP8 and chosen["scales"] != "row":
        raise InvalidShape(
            f"scales={chosen['scales']} with {dtype}: only {FP8} has scales, so leave the option out",
            field="scales", value=chosen["scales"], limit=["row"],
        )  # fmt: skip


def _require_sizes(text: str, rows: int, groups: int) -> None:
    sizes = group_sizes(text, rows, groups)
    if len(sizes) != groups:
        raise InvalidShape(
            f"sizes has {len(sizes)} numbers for G={groups} groups: give one a group",
            field="sizes", value=len(sizes), limit=groups,
        )  # fmt: skip
    if not 1 <= sum(sizes) <= rows:
        raise InvalidShape(
            f"sizes sum to {sum(sizes)} of M={rows} rows: expected 1 to {rows}, so change M or a size",
            field="sizes", value=sum(sizes), limit=rows,
        )  # fmt: skip
