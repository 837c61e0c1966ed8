"""Stream-K: ranges cover every K block once, and the kernel's own source is right on a machine of any schedule, even
where CTAs start one after another."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
KERNEL = HERE.parents[2] / "kernels" / "gemm" / "gluon.py"

_spec = importlib.util.spec_from_file_location("gluon_machine", HERE / "gluon_machine.py")
machine = importlib.util.module_from_spec(_spec)
sys.modules["gluon_machine"] = machine
_spec.loader.exec_module(machine)

PLANS = (
    {"SCHEME": "single"},
    {"SCHEME": "single", "EPILOGUE_SPLIT": 2, "STAGING_IN_RING": True, "BLOCK_K": 4},
    {"SCHEME": "cooperative"},
    {"SCHEME": "cooperative", "CONSUMERS": 3, "BLOCK_M": 6},
    {"SCHEME": "pingpong"},
    {"SCHEME": "pingpong", "SWAP": True, "TMA_STORE": False},
)
PLAN = {"EPILOGUE_SPLIT": 1, "STAGING_IN_RING": False, "SWAP": False, "TMA_STORE": True, "DEPTH": 2}
BLOCK = {"BLOCK_M": 4, "BLOCK_N": 4, "BLOCK_K": 2}


@pytest.fixture(scope="module")
def kernel():
    return machine.load_kernel(KERNEL)


def product(kernel, m, n, k, *, seed, whole=False, **options):
    """C and what it should be; of fractions, sums depend on their order, of whole numbers they do not."""
    rng = np.random.default_rng(m * n * k)
    a, b = (
        rng.integers(-4, 5, size).astype(float) if whole else rng.standard_normal(size) for size in ((m, k), (n, k))
    )
    c, margin = machine.run_gemm(kernel, a, b, seed=seed, stream_k=True, **PLAN | BLOCK | options)
    assert np.isnan(margin).all(), "wrote outside of C"
    return c, a @ b.T


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("programs", [1, 2, 3, 5])
@pytest.mark.parametrize("tiles", [1, 2, 5, 7])
def test_every_number_of_tiles_and_of_ctas(kernel, plan, programs, tiles):
    """A range may be a part of a tile, a tile, or end, middle and start of three; whole waves may come before."""
    rows = plan.get("BLOCK_M", 4)
    for k_blocks in (5, 6):
        for waves in range((tiles - 1) // programs + 1):
            c, expected = product(
                kernel, rows, 4 * tiles, k_blocks * plan.get("BLOCK_K", 2), seed=waves, whole=True, programs=programs,
                whole_tiles=waves * programs, **plan | ({"BLOCK_N": rows, "BLOCK_M": 4} if plan.get("SWAP") else {}),
            )  # fmt: skip
            np.testing.assert_array_equal(c, expected)


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    consumers=st.sampled_from((2, 3)),
    depth=st.integers(2, 5),
    m=st.integers(1, 13),
    n=st.integers(1, 13),
    k=st.integers(1, 30),
    programs=st.integers(1, 6),
    resident=st.integers(0, 3),
    waves=st.integers(0, 3),
    chunks=st.sampled_from((1, 2)),
    swap=st.booleans(),
    tma_store=st.booleans(),
    a_major=st.sampled_from("km"),
    b_major=st.sampled_from("kn"),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plan_any_schedule_and_any_number_of_resident_ctas(
    kernel, scheme, consumers, depth, m, n, k, programs, resident, waves, chunks, swap, tma_store, a_major, b_major,
    seed,
):  # fmt: skip
    """A launch has a K block for every CTA, and whole waves only where a full wave is streamed beside the tail."""
    consumers = {"single": 1, "cooperative": consumers, "pingpong": 2}[scheme]
    rows = 2 * consumers if scheme == "cooperative" else 4
    lines, columns = (n, m) if swap else (m, n)
    tiles, k_blocks = -(-lines // rows) * -(-columns // 4), -(-k // 2)
    programs = min(programs, tiles * k_blocks)
    c, expected = product(
        kernel, m, n, k, seed=seed, whole=True, programs=programs, resident=resident,
        whole_tiles=min(waves, max(tiles // programs - 1, 0)) * programs, SCHEME=scheme, CONSUMERS=consumers,
        DEPTH=depth, EPILOGUE_SPLIT=chunks, SWAP=swap, TMA_STORE=tma_store, BLOCK_M=rows, a_major=a_major,
        b_major=b_major,
    )  # fmt: skip
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_schedule_rounds_alike(kernel, plan):
    first, expected = product(kernel, 12, 10, 23, seed=0, programs=5, **plan)
    np.testing.assert_allclose(first, expected, rtol=1e-12, atol=1e-12)
    for seed in range(1, 12):
        again, _ = product(kernel, 12, 10, 23, seed=seed, programs=5, resident=seed % 4, **plan)
        assert (again == first).all()


def test_ranges_are_equal_within_a_block_and_cover_every_block_once():
    stream = machine.load_kernel(machine.DEVICE / "stream_k.py")
    for tiles, blocks, ctas in ((1, 1, 1), (1, 7, 5), (7, 3, 5), (13, 4, 5), (66, 32, 132), (133, 16, 132)):
        total = tiles * blocks
        covered, lengths = [], []
        for cta in range(ctas):
            machine._CTA.program, machine._CTA.programs = cta, ctas
            found = [stream.segment(i, total, blocks) for i in range(stream.segment_count(total, blocks))]
            assert all(count > 0 for _, _, count in found)
            assert all(first == 0 for _, first, _ in found[1:])
            own = [tile * blocks + first + i for tile, first, count in found for i in range(count)]
            assert {int(stream.range_of(block, total)) for block in own} == {stream.own_range()}
            covered += own
            lengths.append(len(own))
        assert sorted(covered) == list(range(total))
        assert max(lengths) - min(lengths) <= 1


def test_a_warp_writes_an_accumulator_in_whole_lines():
    """Element by element of the order that the PTX ISA gives for wgmma's register fragment D, and back."""
    stream = machine.load_kernel(machine.DEVICE / "stream_k.py")
    tile = np.arange(64 * 32).reshape(64, 32)
    line = stream.in_register_order(machine.Tensor(tile))
    at = 0
    for warp in range(4):
        for columns in range(0, 32, 8):
            for lane in range(32):
                row, column = 16 * warp + lane // 4, columns + lane % 4 * 2
                mine = [tile[row, column], tile[row, column + 1], tile[row + 8, column], tile[row + 8, column + 1]]
                assert line.data[at : at + 4].tolist() == mine
                at += 4
    assert (stream.from_register_order(line, machine.Tensor(tile)).data == tile).all()


MUTATIONS = {
    "ranges run with the CTAs": ("gl.num_programs(0) - 1 - gl.program_id(0)", "gl.program_id(0)"),
    "the owner waits for nobody": ("    while gl.atomic_cas(", "    while False and gl.atomic_cas("),
    "counters are not set back": ("gl.atomic_cas(counter, count, 0,", "gl.atomic_cas(counter, count, count,"),
    "the owner leaves the last range out": (
        "end = last_range(tile, count, sizes, BLOCK) + 1", "end = last_range(tile, count, sizes, BLOCK)",
    ),
    "the partial sums of the tile's first range are read": (
        "gl.where(first == 0, mine + 1, mine), 1, end", "mine, 1, gl.where(first == 0, end - 1, end)",
    ),
    "a range arrives before its sums are written": (
        "            for i in gl.static_range(CHUNKS):\n"
        "                store_partial_sums(parts[i], first, out.workspace, SHARERS, PART, CHUNKS, i)\n"
        "            arrive(out.counters + number * SHARERS + PART)\n",
        "            arrive(out.counters + number * SHARERS + PART)\n"
        "            for i in gl.static_range(CHUNKS):\n"
        "                store_partial_sums(parts[i], first, out.workspace, SHARERS, PART, CHUNKS, i)\n",
    ),
    "consumers share a counter": (
        "arrive(out.counters + number * SHARERS + PART)", "arrive(out.counters + number)",
    ),
    "every range is as long as the longest": (
        "number * (total // ranges) + gl.minimum(number, total % ranges)", "number * (total // ranges + 1)",
    ),
    "segments count from the first tile": (
        "gl.where(streams, whole + tile, unit)", "gl.where(streams, tile, unit)",
    ),
    "a CTA takes as many units as the others": (
        "segment_count(split * blocks, blocks) * gl.num_programs(0)", "2 * gl.num_programs(0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_stream_is_noticed(name):
    old, new = MUTATIONS[name]
    sources = [KERNEL, KERNEL.with_name("units.py"), *machine.DEVICE.glob("*.py")]
    assert sum(path.read_text().count(old) for path in sources) == 1, "the source changed: adapt the mutation"
    broken = machine.load_kernel(KERNEL, lambda text: text.replace(old, new))

    def any_schedule():
        """Nine tiles after a whole wave of them, all CTAs at once or one by one; a tile of ranges of one K block."""
        for seed in range(20):
            for n, k, whole_tiles, resident in ((12, 10, 4, 0), (12, 10, 4, 1), (4, 4, 0, 0)):
                c, expected = product(
                    broken, n, n, k, seed=seed, whole=True, programs=4 if n > 4 else 2, resident=resident,
                    whole_tiles=whole_tiles, SCHEME="cooperative", EPILOGUE_SPLIT=2,
                )  # fmt: skip
                np.testing.assert_array_equal(c, expected)

    with pytest.raises(AssertionError):
        any_schedule()
