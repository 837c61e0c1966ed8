"""Tiles of a product that loads through pointers, ranked by predicted time: for kernels in the manner of Inductor's
``mm``, which compile without a partition.

The kernel that is priced is our own (:mod:`~.product_kernel`), captured for the device with Triton's own passes; no GPU
is needed. What it predicts is meant for ranking, not as a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.planner.errors import Infeasible, InvalidInput, WarpplanError
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.feeds.inductor.mm_problem import MmProblem
from warpplan.service.feeds.inductor.paper_torch import MmTile

ELEMENTS = {"bfloat16": "bf16", "float16": "fp16"}
"""torch's name of a dtype → Triton's. Others run on other units, which were not probed."""
ELEMENT_BYTES = 2
DIVISIBLE = 16
"""Sizes that are multiples of it are compiled for that."""


def rank_tiles(
    problem: MmProblem, tiles: Sequence[MmTile], profile: Profile, device: Device
) -> tuple[tuple[MmTile, float], ...]:
    """``tiles`` that fit on ``device`` with their predicted time for ``problem`` in µs, the shortest first; of equal
    ones in the given order. Deterministic.

    Raises :class:`InvalidInput` for a dtype that is not predicted and without Triton, :class:`Infeasible` where no tile
    fits.
    """
    if problem.dtype not in ELEMENTS or any(node.dtype != problem.dtype for node in problem.inputs[-2:]):
        raise InvalidInput(
            f"products of {problem.dtype} are not predicted: expected {', '.join(ELEMENTS)}",
            field="dtype", value=problem.dtype, limit=list(ELEMENTS),
        )  # fmt: skip
    timed = [(tile, _time_us(problem, tile, profile, device)) for tile in tiles]
    fitting = sorted((found for found in timed if math.isfinite(found[1])), key=lambda found: found[1])
    if not fitting:
        raise Infeasible(f"none of {len(tiles)} tiles fits on {device.name}", field="tiles", value=len(tiles))
    return tuple(fitting)


def _time_us(problem: MmProblem, tile: MmTile, profile: Profile, device: Device) -> float:
    m, n, k = problem.m, problem.n, problem.k
    facts = _facts(
        problem.dtype, problem.layout, tile.block_m, tile.block_n, tile.block_k, tile.warps, k % tile.block_k == 0,
        tuple(size % DIVISIBLE == 0 for size in (m, n, k)), device.capability,
    )  # fmt: skip
    blocks = math.ceil(m / tile.block_m) * math.ceil(n / tile.block_n)
    trips = math.ceil(k / tile.block_k)
    unique = ELEMENT_BYTES * (m * k + k * n)
    loaded = ELEMENT_BYTES * blocks * trips * tile.block_k * (tile.block_m + tile.block_n)
    launch = LaunchFacts(
        blocks, (float(trips),) * len(facts.loops), tile.stages,
        dram_bytes=unique + ELEMENT_BYTES * m * n, cold=min(1.0, unique / loaded),
    )  # fmt: skip
    return LaunchModel(facts, profile, device).time(launch).time_us


@lru_cache(maxsize=4096)
def _facts(
    dtype: str, layout: str, block_m: int, block_n: int, block_k: int, warps: int, even_k: bool,
    divisible: tuple[bool, ...], capability: int,
) -> KernelFacts:  # fmt: skip
    """The kernel compiled up to the cut. Raises :class:`InvalidInput` without Triton and where it does not compile."""
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        raise InvalidInput(
            "ranking tiles compiles a kernel, which needs triton: pip install 'warpplan[gpu]'", field="target"
        ) from None
    from warpplan.service.feeds.inductor.product_kernel import pointer_product

    element = ELEMENTS[dtype]
    sizes = dict(zip("MNK", (f"i32:{DIVISIBLE}" if even else "i32" for even in divisible), strict=True))
    along_a = ("i32:16" if divisible[2] else "i32", "1") if layout[0] == "n" else ("1", sizes["M"])
    along_b = (sizes["N"], "1") if layout[1] == "n" else ("1", sizes["K"])
    signature = {
        **dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), f"*{element}"), **sizes,
        "stride_am": along_a[0], "stride_ak": along_a[1], "stride_bk": along_b[0], "stride_bn": along_b[1],
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8, "EVEN_K": even_k,
    }  # fmt: skip
    source: Any = source_of(pointer_product, ", ".join(f"{name}={value}" for name, value in signature.items()))
    try:
        text = cut(source, GPUTarget("cuda", capability, 32), {"num_warps": warps}).text
    except WarpplanError:
        raise
    except Exception as error:  # Triton's front end and passes raise types of their own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        tile = f"{block_m}x{block_n}x{block_k}, {warps} warps"
        raise InvalidInput(
            f"the product of tile {tile} does not compile: {reason}", field="tiles", value=tile
        ) from None
    return facts_of(capture(text))
