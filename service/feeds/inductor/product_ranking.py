"""Tiles of a product that loads through pointers, ranked by predicted time: for kernels in the manner of Inductor's
``mm``, which compile without a partition.

The kernel that is priced is our own (:mod:`~.product_kernel`), captured for the device with Triton's own passes; no GPU
is needed. What ranks first is assembled, as ``warpplan tune`` does it: where rows are not aligned, large tiles spill
and take several times their estimate. What it predicts is meant for ranking, not as a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.assembled_first import as_assembled, assembled_first
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidInput, WarpplanError
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.feeds.inductor.mm_problem import MmProblem
from warpplan.service.feeds.inductor.paper_torch import MmTile

if TYPE_CHECKING:
    from warpplan.kernels.compile import CompiledReport

ELEMENTS = {"bfloat16": "bf16", "float16": "fp16"}
"""torch's name of a dtype → Triton's. Others run on other units, which were not probed."""
ELEMENT_BYTES = 2
DIVISIBLE = 16
"""Sizes that are multiples of it are compiled for that."""


@dataclass(frozen=True)
class _ProductSource:
    """The kernel as it is compiled for a tile: problems that specialise alike share it. ``divisible`` of M, N and K."""

    dtype: str
    layout: str
    block_m: int
    block_n: int
    block_k: int
    warps: int
    even_k: bool
    divisible: tuple[bool, ...]

    @classmethod
    def of(cls, problem: MmProblem, tile: MmTile) -> _ProductSource:
        m, n, k = problem.m, problem.n, problem.k
        return cls(
            problem.dtype, problem.layout, tile.block_m, tile.block_n, tile.block_k, tile.warps, k % tile.block_k == 0,
            tuple(size % DIVISIBLE == 0 for size in (m, n, k)),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"the product of tile {self.block_m}x{self.block_n}x{self.block_k}, {self.warps} warps"

    def source(self) -> Any:
        """For Triton. Raises :class:`InvalidInput` without it."""
        try:
            import triton  # noqa: F401
        except ImportError:
            raise InvalidInput(
                "ranking tiles compiles a kernel, which needs triton: pip install 'warpplan[gpu]'", field="target"
            ) from None
        from warpplan.service.feeds.inductor.product_kernel import pointer_product

        sizes = dict(zip("MNK", (f"i32:{DIVISIBLE}" if even else "i32" for even in self.divisible), strict=True))
        along_a = (sizes["K"], "1") if self.layout[0] == "n" else ("1", sizes["M"])
        along_b = (sizes["N"], "1") if self.layout[1] == "n" else ("1", sizes["K"])
        signature = {
            **dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), f"*{ELEMENTS[self.dtype]}"), **sizes,
            "stride_am": along_a[0], "stride_ak": along_a[1], "stride_bk": along_b[0], "stride_bn": along_b[1],
            "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "GROUP_M": 8,
            "EVEN_K": self.even_k,
        }  # fmt: skip
        return source_of(pointer_product, ", ".join(f"{name}={value}" for name, value in signature.items()))


@dataclass(frozen=True)
class _PricedTile:
    """``model`` prices ``launch`` of ``tile``: as estimated or as assembled."""

    tile: MmTile
    source: _ProductSource
    model: LaunchModel
    launch: LaunchFacts

    @cached_property
    def time_us(self) -> float:
        return self.model.time(self.launch).time_us

    def assembled(self) -> _PricedTile | str:
        """This tile as ptxas makes it; why it cannot run."""
        device = self.model.device
        report = _report(self.source, self.tile.stages, device.capability)
        if isinstance(report, str):
            return report
        found = replace(self, launch=as_assembled(self.launch, report))
        return found if self.model.resident(found.launch) else f"{self.source} does not fit on {device.name}"


def rank_tiles(
    problem: MmProblem, tiles: Sequence[MmTile], profile: Profile, device: Device
) -> tuple[tuple[MmTile, float], ...]:
    """``tiles`` that fit on ``device`` with their predicted time for ``problem`` in µs, the shortest first; of equal
    ones in the given order. The first few are assembled, once for all problems that specialise alike. Deterministic.

    Raises :class:`InvalidInput` for a dtype that is not predicted and without Triton, :class:`Infeasible` where no tile
    fits.
    """
    if problem.dtype not in ELEMENTS or any(node.dtype != problem.dtype for node in problem.inputs[-2:]):
        raise InvalidInput(
            f"products of {problem.dtype} are not predicted: expected {', '.join(ELEMENTS)}",
            field="dtype", value=problem.dtype, limit=list(ELEMENTS),
        )  # fmt: skip
    priced = [_priced(problem, tile, profile, device) for tile in tiles]
    fitting = [candidate for candidate in priced if math.isfinite(candidate.time_us)]
    ranked, refused = assembled_first(fitting, lambda candidate: candidate.time_us, _PricedTile.assembled)
    if not ranked:
        why = f", such as {refused[0][1]}" if refused else ""
        raise Infeasible(f"none of {len(tiles)} tiles fits on {device.name}{why}", field="tiles", value=len(tiles))
    return tuple((candidate.tile, candidate.time_us) for candidate in ranked)


def _priced(problem: MmProblem, tile: MmTile, profile: Profile, device: Device) -> _PricedTile:
    m, n, k = problem.m, problem.n, problem.k
    source = _ProductSource.of(problem, tile)
    facts = _facts(source, device.capability)
    blocks = math.ceil(m / tile.block_m) * math.ceil(n / tile.block_n)
    trips = math.ceil(k / tile.block_k)
    unique = ELEMENT_BYTES * (m * k + k * n)
    loaded = ELEMENT_BYTES * blocks * trips * tile.block_k * (tile.block_m + tile.block_n)
    launch = LaunchFacts(
        blocks, (float(trips),) * len(facts.loops), tile.stages,
        dram_bytes=unique + ELEMENT_BYTES * m * n, cold=min(1.0, unique / loaded),
    )  # fmt: skip
    return _PricedTile(tile, source, LaunchModel(facts, profile, device), launch)


@lru_cache(maxsize=4096)
def _facts(product: _ProductSource, capability: int) -> KernelFacts:
    """The kernel compiled up to the cut. Raises :class:`InvalidInput` without Triton and where it does not compile."""
    source = product.source()
    from triton.backends.compiler import GPUTarget

    try:
        text = cut(source, GPUTarget("cuda", capability, 32), {"num_warps": product.warps}).text
    except WarpplanError:
        raise
    except Exception as error:  # Triton's front end and passes raise types of their own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"{product} does not compile: {reason}", field="tiles", value=str(product)) from None
    return facts_of(capture(text))


@lru_cache(maxsize=4096)
def _report(product: _ProductSource, stages: int, capability: int) -> CompiledReport | str:
    """What ptxas makes of the kernel, or why it does not compile."""
    from warpplan.kernels.compile import compile_report

    try:
        options = {"num_warps": product.warps, "num_stages": stages}
        return compile_report(product.source(), options, capability, what=str(product))
    except InvalidConfig as error:
        return str(error)
