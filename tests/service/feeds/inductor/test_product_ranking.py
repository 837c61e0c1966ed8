"""Tiles of a product that loads through pointers, ranked as ptxas makes them; without torch."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs triton (no GPU) to compile")

from warpplan.planner.values.device import device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds.inductor import product_ranking
from warpplan.service.feeds.inductor.mm_problem import plain_product
from warpplan.service.feeds.inductor.paper_torch import MmTile
from warpplan.service.feeds.inductor.product_kernel import pointer_product
from warpplan.service.tuning.launch_ranking import Tuner, TuningTask

H200 = device("NVIDIA H200")
PROFILE = embedded("NVIDIA H200")
SMALL, LARGE = MmTile(128, 128, 64, 8, 5), MmTile(128, 256, 64, 8, 4)
SIGNATURE = (
    "a_ptr=*fp16[M*K], b_ptr=*fp16[K*N], c_ptr=*fp16[M*N], stride_am=K, stride_ak=1, stride_bk=1, stride_bn=K, "
    "EVEN_K=False"
)


@pytest.mark.slow
def test_a_tile_that_spills_is_priced_as_tune_prices_it() -> None:
    """Rows of 777 elements are copied one by one: the larger tile needs more registers than there are, as estimates
    do not show."""
    ranked = product_ranking.rank_tiles(plain_product(1000, 3000, 777, "float16"), [LARGE, SMALL], PROFILE, H200)
    assert [tile for tile, _ in ranked] == [SMALL, LARGE]
    configs = [
        TuningConfig.of(
            {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP_M": 8},
            num_warps=tile.warps, num_stages=tile.stages,
        )
        for tile in (SMALL, LARGE)
    ]  # fmt: skip
    task = TuningTask("pointer_product", SIGNATURE, "cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)", tuple(configs))
    tuned = Tuner(task, pointer_product, PROFILE, H200).rank({"M": 1000, "N": 3000, "K": 777}).ranked
    assert [found.config for found in tuned] == configs
    assert [time_us for _, time_us in ranked] == pytest.approx([found.time.time_us for found in tuned], rel=0.02)
    compiled = product_ranking._report.cache_info().misses
    product_ranking.rank_tiles(plain_product(1064, 3000, 777, "float16"), [LARGE, SMALL], PROFILE, H200)
    assert product_ranking._report.cache_info().misses == compiled, "products that specialise alike share what is made"
