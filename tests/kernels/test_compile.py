"""Every scheme compiles for sm_90 without a GPU: no spills, no serialised multiplies, shared memory as promised."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.candidates import structures
from warpplan.kernels.gemm.compile_gemm import compile_gemm
from warpplan.kernels.gemm.space import SMEM_OVERHEAD_BYTES, GemmConfig, violations
from warpplan.planner.errors import InvalidConfig, UnknownName
from warpplan.planner.values.device import H200

pytestmark = pytest.mark.slow

SINGLE = GemmConfig("single", 128, 256, 64, 8, 3)
COOPERATIVE = GemmConfig("cooperative", 128, 256, 64, 4, 3)
THREE = GemmConfig("cooperative", 192, 128, 64, 4, 4)
PINGPONG = GemmConfig("pingpong", 64, 256, 64, 4, 4)
PIPELINED = GemmConfig("pipelined", 128, 256, 64, 8, 4)
CONFIGS = (
    SINGLE,
    replace(SINGLE, depth=4, epilogue_split=2),
    replace(SINGLE, depth=4, epilogue_split=2, staging="ring"),
    replace(SINGLE, swap=True),
    replace(SINGLE, split_k=4),
    GemmConfig("single", 128, 128, 64, 4, 5),
    GemmConfig("single", 64, 16, 256, 4, 4, swap=True, split_k=4),
    GemmConfig("single", 64, 16, 128, 4, 5, swap=True, split_k=8, ctas_per_sm=2),
    GemmConfig("single", 256, 128, 64, 8, 3, epilogue_split=2),
    COOPERATIVE,
    replace(COOPERATIVE, depth=4, epilogue_split=4, staging="ring"),
    replace(COOPERATIVE, depth=4, epilogue_split=4, staging="ring", swap=True, split_k=3),
    replace(COOPERATIVE, swap=True, split_k=2),
    GemmConfig("cooperative", 256, 128, 64, 4, 3),
    THREE,
    replace(THREE, swap=True),
    replace(THREE, depth=5, epilogue_split=2, staging="ring", split_k=2),
    replace(THREE, split_k=3, split_tail=True),
    replace(COOPERATIVE, split_k=3, split_tail=True),
    replace(PINGPONG, split_k=2, split_tail=True),
    PINGPONG,
    replace(PINGPONG, epilogue_split=2, staging="ring"),
    replace(PINGPONG, swap=True, split_k=2),
    GemmConfig("pingpong", 128, 128, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", split_k=3),
    PIPELINED,
    GemmConfig("pipelined", 128, 128, 64, 4, 4),
)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.parametrize("tma_store", [True, False], ids=["tma", "pointer"])
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_representative_configurations(config, tma_store):
    assert not violations(config, "bfloat16", H200)
    report = compile_gemm(config, "bfloat16", tma_store=tma_store)
    assert not report.wgmma_serialized
    # What may spill comes once a tile, after the main loop: sums of a split's wide chunk, addresses of plain stores.
    sums = 256 if config.split_k > 1 else 0
    addresses = 2_560 if not tma_store and (config.split_k > 1 or not config.specialized) else 0
    assert report.spill_bytes <= sums + addresses
    promised = config.smem_bytes(2)
    assert promised <= H200.smem_bytes_per_block
    assert report.shared_bytes <= promised
    if tma_store or config.specialized:
        assert report.shared_bytes >= promised - SMEM_OVERHEAD_BYTES
    assert report.warps == config.total_warps


def test_both_dtypes():
    assert compile_gemm(COOPERATIVE, "float16").clean


@pytest.mark.parametrize("config", [SINGLE, COOPERATIVE, THREE, PINGPONG], ids=lambda c: f"{c.scheme}-{c.consumers}")
def test_every_release_of_a_slot_follows_a_barrier_of_its_consumer(config):
    """One thread arrives for its partition: the others' multiplies must have ended too (they wait a warp at a time)."""
    lines = _events(compile_gemm(config, "bfloat16").ptx)
    releases = [i for i, line in enumerate(lines) if re.search(r"mbarrier\.arrive\.shared", line)]
    assert len(releases) >= 2 * config.consumers
    for i in releases:
        assert "bar.sync" in lines[i - 1], lines[max(0, i - 3) : i + 1]


def test_a_tma_store_is_fenced_and_its_source_rewritten_only_after_it_was_read():
    lines = _events(compile_gemm(replace(SINGLE, depth=4, epilogue_split=2), "bfloat16").ptx)
    stores = [i for i, line in enumerate(lines) if "cp.async.bulk.tensor.2d.global" in line]
    assert len(stores) == 2
    for i in stores:
        before = lines[:i]
        fence = _last(before, "fence.proxy.async")
        assert fence == i - 2
        assert "bar.sync" in lines[i - 1]
        assert "bar.sync" in lines[_last(before, "cp.async.bulk.wait_group.read") + 1]


@pytest.mark.parametrize("split", [{"split_k": 4}, {"stream_k": True}], ids=str)
def test_partial_sums_are_released_and_acquired_by_one_atomic_between_barriers(split):
    report = compile_gemm(replace(COOPERATIVE, **split), "bfloat16")
    lines = _events(report.ptx)
    atomics = [i for i, line in enumerate(lines) if "atom.global" in line]
    release, acquire = "atom.global.gpu.release.add.u32", "atom.global.acquire.gpu.cas.b32"
    assert [release in lines[i] for i in atomics] == [True, False] * 2
    assert [acquire in lines[i] for i in atomics] == [False, True] * 2
    for i in atomics:
        assert "bar.sync" in lines[i - 1]
        assert "bar.sync" in lines[i + 1]


@pytest.mark.parametrize(
    "config", [COOPERATIVE, PINGPONG, GemmConfig("single", 64, 16, 128, 4, 5, ctas_per_sm=2)], ids=str
)
def test_partial_sums_go_out_and_come_in_by_16_bytes(config):
    """No value goes through shared memory on its way into register order: what a thread holds lies side by side. Of a
    small tile up to eight slots come in at once, 64 values a thread."""
    ptx = compile_gemm(replace(config, split_k=2), "bfloat16").ptx
    values = config.consumer_rows * config.block_n // (32 * config.consumer_warps)
    slots = max(1, min(8, 64 * config.epilogue_split // values))
    stores = values * config.consumers // 4
    assert (ptx.count("st.global.v4.b32"), ptx.count("ld.global.cg.v4.b32")) == (stores, slots * stores)
    assert not re.search(r"(st|ld)\.global(\.cg)?\.b32", ptx)


@pytest.mark.parametrize(
    "config",
    [GemmConfig("single", 64, 16, 64, 4, 8, ctas_per_sm=2), COOPERATIVE, THREE, replace(PINGPONG, depth=3)],
    ids=lambda c: f"{c.scheme}-{c.consumers}",
)
def test_no_barrier_lies_in_the_staging(config):
    """The compiler reuses the bytes of a barrier that it takes for dead, though the hardware may still count on it."""
    ptx = compile_gemm(config, "bfloat16").ptx
    inits = re.findall(r"mbarrier\.init\S* \[(%r\d+)\]", ptx)
    stores = re.findall(r"cp\.async\.bulk\.tensor\.2d\.global\S* \[[^]]*\], \[(%r\d+)\]", ptx)
    barriers = [_shared_offset(ptx, register) for register in inits]
    assert len(barriers) == len(set(barriers)) == 2 * config.depth + (2 if config.scheme == "pingpong" else 0)
    starts = sorted(_shared_offset(ptx, register) for register in stores)
    assert starts == [starts[0] + i * config.staging_bytes for i in range(config.consumers)]
    assert not [b for b in barriers if starts[0] - 8 < b < starts[-1] + config.staging_bytes]


def _shared_offset(ptx: str, register: str) -> int:
    """The constant part of the shared-memory address in ``register``; each warp adds its place in the tile."""
    (found,) = re.findall(rf"add\.s32\s+{register}, %r\d+, (\d+);", ptx)
    return int(found)


def _events(ptx: str) -> list[str]:
    wanted = ("bar.sync", "mbarrier.arrive", "wgmma.wait", "fence.proxy", "cp.async.bulk", "atom.", "barrier.sync")
    return [line.strip() for line in ptx.splitlines() if any(word in line for word in wanted)]


def _last(lines: list[str], word: str) -> int:
    return max(i for i, line in enumerate(lines) if word in line)


def test_a_plan_that_does_not_compile_says_so_in_one_line():
    with pytest.raises(InvalidConfig, match="does not compile") as caught:
        compile_gemm(GemmConfig("single", 64, 24, 64, 4, 2), "bfloat16")
    assert "\n" not in str(caught.value)


def test_unknown_dtype():
    with pytest.raises(UnknownName, match="float8_e5m2"):
        compile_gemm(SINGLE, "float8_e5m2")


def test_the_whole_space_promises_enough_shared_memory():
    """The deepest and the shallowest structure of each scheme: the promise covers what the compiler takes."""
    found = structures("bfloat16", H200)
    for scheme in ("single", "cooperative", "pingpong", "pipelined"):
        ordered = sorted((c for c in found if c.scheme == scheme), key=lambda c: (c.depth, c.smem_bytes(2)))
        for config in (ordered[0], ordered[-1]):
            report = compile_gemm(config, "bfloat16")
            assert report.clean
            assert report.shared_bytes <= config.smem_bytes(2)
