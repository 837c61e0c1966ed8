"""The barrier protocol of every scheme: the kernel's own source, run on a machine that schedules adversarially."""

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
    {"SCHEME": "cooperative"},
    {"SCHEME": "cooperative", "CONSUMERS": 3, "BLOCK_M": 6},
    {"SCHEME": "pingpong"},
)
BLOCK = {"BLOCK_M": 4, "BLOCK_N": 4, "BLOCK_K": 2}


@pytest.fixture(scope="module")
def kernel():
    return machine.load_kernel(KERNEL)


@pytest.fixture(scope="module")
def scaled_kernel():
    """The kernel with a scale for every 4 of K, so that a few numbers have several."""
    return machine.load_kernel(KERNEL, lambda text: text.replace("SCALE_BLOCK = gl.constexpr(128)", "SCALE_BLOCK = 4"))


def check(kernel, m, n, k, *, seed, programs, **options):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-4, 5, (m, k)).astype(float), rng.integers(-4, 5, (n, k)).astype(float)
    options = {"EPILOGUE_SPLIT": 1, "STAGING_IN_RING": False, "SWAP": False, "TMA_STORE": True, **BLOCK, **options}
    c, margin = machine.run_gemm(kernel, a, b, programs=programs, seed=seed, **options)
    np.testing.assert_array_equal(c, a @ b.T)
    assert np.isnan(margin).all(), "wrote outside of C"


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("depth", [2, 3, 8])
@pytest.mark.parametrize("tiles", range(6))
def test_every_number_of_units(kernel, plan, depth, tiles):
    """One CTA takes 0 to 5 tiles (0: a second CTA has none), of fewer K blocks than the ring has slots, and of more."""
    for k_blocks in (1, 3, 9):
        check(kernel, 4, 4 * max(tiles, 1), 2 * k_blocks, seed=depth, programs=2 if tiles == 0 else 1, DEPTH=depth,
              **plan)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("split", [1, 2])
def test_the_next_launch_begins_when_the_last_copies_are_issued(kernel, plan, split):
    """By each CTA once, one without a unit too."""
    for seed, tiles in enumerate((1, 3, 4)):
        check(kernel, 4, 4 * tiles, 14, seed=seed, programs=3, split_k=split, DEPTH=3, LAUNCH_DEPENDENTS=True, **plan)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("programs", [1, 2, 3])
@pytest.mark.parametrize("whole", range(6))
def test_whole_tiles_and_a_split_tail(kernel, plan, programs, whole):
    """Of five tiles the last five to none are split, three ways: units of unlike length follow one another."""
    for seed in range(4):
        check(kernel, 6, 20, 14, seed=seed, programs=programs, split_k=3, whole_tiles=whole, DEPTH=3,
              **{"BLOCK_M": 6} | plan)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("k", "n"), ("m", "k"), ("m", "n")])
def test_tiles_of_two_accumulators(kernel, plan, swap, a_major, b_major):
    """Six columns are four and two, each with tiles of B of its own; the result goes in three chunks of two."""
    for seed, split in enumerate((1, 1, 2, 3)):
        check(kernel, 11, 13, 14, seed=seed, programs=3, DEPTH=2 + seed % 2, SWAP=swap, a_major=a_major,
              b_major=b_major, split_k=split, **{**plan, "BLOCK_N": 6, "EPILOGUE_SPLIT": 3})  # fmt: skip


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    consumers=st.sampled_from((2, 3)),
    depth=st.integers(2, 8),
    m=st.integers(1, 13),
    n=st.integers(1, 13),
    k=st.integers(1, 13),
    programs=st.integers(1, 4),
    group_m=st.integers(1, 3),
    chunks=st.sampled_from((1, 2, 4)),
    in_ring=st.booleans(),
    swap=st.booleans(),
    tma_store=st.booleans(),
    split=st.integers(1, 4),
    whole=st.integers(0, 12),
    a_major=st.sampled_from("km"),
    b_major=st.sampled_from("kn"),
    block=st.sampled_from(((4, 4, 2), (4, 8, 4), (8, 4, 4), (4, 4, 8))),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plan_and_any_schedule(
    kernel, scheme, consumers, depth, m, n, k, programs, group_m, chunks, in_ring, swap, tma_store, split, whole,
    a_major, b_major, block, seed,
):  # fmt: skip
    block_m, block_n, block_k = block
    consumers = {"single": 1, "cooperative": consumers, "pingpong": 2}[scheme]
    k_blocks = -(-k // block_k)
    while -(-k_blocks // -(-k_blocks // split)) != split:  # as the space demands: no split is empty
        split -= 1
    rows = block_m
    if scheme == "cooperative":
        rows, block_m = block_m // 2, block_m // 2 * consumers
    lines, columns = (n, m) if swap else (m, n)
    tiles = -(-lines // block_m) * -(-columns // block_n)
    held = rows * block_k if scheme == "cooperative" else max(block_m, block_n) * block_k
    check(
        kernel, m, n, k, seed=seed, programs=programs, group_m=group_m, split_k=split, whole_tiles=min(whole, tiles),
        SCHEME=scheme, CONSUMERS=consumers, DEPTH=depth,
        EPILOGUE_SPLIT=chunks, STAGING_IN_RING=in_ring and rows * block_n // chunks <= held, SWAP=swap,
        TMA_STORE=tma_store, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, a_major=a_major, b_major=b_major,
    )  # fmt: skip


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    consumers=st.sampled_from((2, 3)),
    depth=st.integers(2, 8),
    m=st.integers(1, 25),
    n=st.integers(1, 13),
    k=st.integers(1, 13),
    programs=st.integers(1, 3),
    group_m=st.integers(1, 3),
    chunks=st.sampled_from((1, 2, 4)),
    swap=st.booleans(),
    tma_store=st.booleans(),
    a_major=st.sampled_from("km"),
    b_major=st.sampled_from("kn"),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_clusters_of_two(
    kernel, scheme, consumers, depth, m, n, k, programs, group_m, chunks, swap, tma_store, a_major, b_major, seed
):
    """The first CTA copies B for both, which share the rows of each consumer."""
    consumers = {"single": 1, "cooperative": consumers, "pingpong": 2}[scheme]
    check(
        kernel, m, n, k, seed=seed, programs=programs, group_m=group_m, cluster=2, SCHEME=scheme, CONSUMERS=consumers,
        DEPTH=depth, EPILOGUE_SPLIT=chunks, SWAP=swap, TMA_STORE=tma_store, a_major=a_major, b_major=b_major,
        BLOCK_M=4 * (consumers if scheme == "cooperative" else 1), BLOCK_N=4, BLOCK_K=2,
    )  # fmt: skip


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    kind=st.sampled_from(("tensor", "row", "block")),
    m=st.integers(1, 13),
    n=st.integers(1, 13),
    k=st.integers(1, 13),
    programs=st.integers(1, 3),
    depth=st.integers(2, 4),
    split=st.integers(1, 3),
    swap=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_scaled_products(scaled_kernel, scheme, kind, m, n, k, programs, depth, split, swap, seed):
    """Scales of powers of two: every sum is exact. A block is 4 of K here, as the tile of K is."""
    rng = np.random.default_rng(seed)
    blocks = -(-k // 4)
    while -(-blocks // -(-blocks // split)) != split:
        split -= 1
    swap = swap and kind != "block"
    a, b = rng.integers(-4, 5, (m, k)).astype(float), rng.integers(-4, 5, (n, k)).astype(float)
    shapes = {"tensor": ((1, 1), (1, 1)), "row": ((m, 1), (n, 1)), "block": ((m, blocks), (-(-n // 4), blocks))}
    of_a, of_b = (2.0 ** rng.integers(-2, 3, shape) for shape in shapes[kind])
    c, margin = machine.run_gemm(
        scaled_kernel, a, b, programs=programs, seed=seed, split_k=split, scales=(of_b, of_a) if swap else (of_a, of_b),
        SCALES=kind, SCHEME=scheme, DEPTH=depth, EPILOGUE_SPLIT=1, STAGING_IN_RING=False, SWAP=swap, TMA_STORE=True,
        BLOCK_M=4, BLOCK_N=4, BLOCK_K=4,
    )  # fmt: skip
    if kind == "block":
        of_a, of_b = of_a.repeat(4, 1)[:, :k], of_b.repeat(4, 0)[:n].repeat(4, 1)[:, :k]
        np.testing.assert_array_equal(c, (a * of_a) @ (b * of_b).T)
    else:
        np.testing.assert_array_equal(c, a @ b.T * of_a * of_b.T)
    assert np.isnan(margin).all(), "wrote outside of C"


RELEASE = "release(ring, last, BLOCK)\n"
STORE_WAIT = "    if BLOCK.tma_store:\n        tma_store_wait(0)\n"
SINGLE = {"SCHEME": "single", "EPILOGUE_SPLIT": 2}
IN_RING = {"SCHEME": "single", "STAGING_IN_RING": True, "BLOCK_K": 4}
PINGPONG = {"SCHEME": "pingpong"}
COOPERATIVE = {"SCHEME": "cooperative"}
CLUSTER = {"SCHEME": "single", "cluster": 2}
TAIL = {"SCHEME": "pingpong", "split_k": 2, "whole_tiles": 4}
WIDE = {"SCHEME": "cooperative", "BLOCK_N": 6, "EPILOGUE_SPLIT": 3}
THIRDS = {"SCHEME": "cooperative", "split_k": 3}
# what breaks: (the source's text, its replacement, a plan that suffers)
MUTATIONS = {
    "the slot of the multiply in flight is released": (
        "release(ring, previous_slot(index, BLOCK.depth), BLOCK, k > 0)",
        "release(ring, slot, BLOCK)",
        SINGLE,
    ),
    "the last slot is never released": (f"{RELEASE}                FINISH(", "FINISH(", SINGLE),
    "the producer waits for no slot": ("(index // DEPTH & 1) ^ 1", "None", SINGLE),
    "the consumer waits for no bytes": (
        "index % DEPTH), index // DEPTH & 1)",
        "index % DEPTH), None)",
        SINGLE,
    ),
    "staging is rewritten under its store": (
        "    if TMA_STORE:\n        tma_store_wait(0)\n    thread_barrier()",
        "    thread_barrier()",
        SINGLE,
    ),
    "the writes are not fenced": ("        fence_async_shared()\n        tma_store", "        tma_store", SINGLE),
    "the kernel ends under its stores": (f"{STORE_WAIT}\n\n", "\n\n", SINGLE),
    "a slot is released under the store that reads it": (
        "                if BLOCK.tma_store:\n                    tma_store_wait(0)\n                else:",
        "                if not BLOCK.tma_store:",
        IN_RING,
    ),
    "the second consumer misses its start": (
        "index = other.blocks",
        "index = 0",
        PINGPONG,
    ),
    "the consumers wait for each other's turn": ("(done & 1) ^ (1 - ID)", "done & 1", PINGPONG),
    "a consumer takes the other's unit to be as long as its own": (
        "LOCATE(gl.minimum(unit + programs, units - 1), work",
        "LOCATE(gl.minimum(unit, units - 1), work",
        TAIL,
    ),
    "split tiles count from the first whole tile": (
        "        number = opaque(tile - sizes.whole_tiles)\n        owns",
        "        number = opaque(tile)\n        owns",
        TAIL,
    ),
    "both accumulators have the first columns": (
        "b_row = tile.b_row + i * BLOCK.widths[0]",
        "b_row = tile.b_row",
        WIDE,
    ),
    "the wider accumulator's tiles are copied again": (
        "tma_load(b_desc[i], b_at, full, into)",
        "tma_load(b_desc[0], b_at, full, ring.b[0].index(slot))",
        WIDE,
    ),
    "the narrower accumulator's multiplies are not waited for": (
        "num_outstanding=2 * SLOTS",
        "num_outstanding=1 + SLOTS",
        WIDE,
    ),
    "the owner waits for one of the others": ("(end - first) // step)", "1)", THIRDS),
    "the first range of a split tile stores it, before the others have begun": (
        "owns = split == splits - 1",
        "owns = split == 0",
        TAIL,
    ),
    "the other ranges' slots are one range apart": (
        "number + split * tiles), tiles, number",
        "number + split * tiles), 1, number",
        TAIL,
    ),
    "nobody waits for the kernel before": ("    wait_for_previous_kernel()\n", "", SINGLE),
    "the next launch begins before the last copies": (
        "    if BLOCK.launch_dependents:\n        launch_dependents()",
        "        if BLOCK.launch_dependents:\n            launch_dependents()",
        {**SINGLE, "LAUNCH_DEPENDENTS": True},
    ),
    "one arrival frees a shared slot": ("DEPTH, BLOCK.sharers)", "DEPTH, 1)", COOPERATIVE),
    "the halves swap": (
        "slot * BLOCK.sharers + PART)\n    if BLOCK.a_major",
        "slot * BLOCK.sharers + 1 - PART)\n    if BLOCK.a_major",
        COOPERATIVE,
    ),
    "a CTA copies into slots that the other still reads": (
        "wait_empty(ring.all_empty, index, BLOCK.depth)",
        "pass",
        CLUSTER,
    ),
    "a CTA copies into slots that it still reads": (
        "wait_empty(ring.empty, index, BLOCK.depth)",
        "pass",
        CLUSTER,
    ),
    "nobody tells the first CTA": ("mbarrier.arrive(ring.all_empty.index(slot), count=1, pred=pred)", "pass", CLUSTER),
    "the first CTA waits for itself alone": ("BLOCK.cluster, True)", "BLOCK.cluster)", CLUSTER),
    "each CTA expects the whole of A": ("block_type.nbytes // BLOCK.cluster", "block_type.nbytes", CLUSTER),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_protocol_is_noticed(name):
    old, new, plan = MUTATIONS[name]
    sources = [KERNEL, KERNEL.with_name("units.py"), *machine.DEVICE.glob("*.py")]
    assert sum(path.read_text().count(old) for path in sources) == 1, "the source changed: adapt the mutation"
    broken = machine.load_kernel(KERNEL, lambda text: text.replace(old, new))

    def any_schedule():
        for seed in range(30):
            check(broken, 12, 12, 10, seed=seed, programs=2, DEPTH=2, **plan)

    with pytest.raises(AssertionError):
        any_schedule()


def test_a_chunk_larger_than_its_slot_is_refused(kernel):
    with pytest.raises(AssertionError, match="of 0 shared tiles"):
        check(kernel, 4, 4, 2, seed=0, programs=1, SCHEME="cooperative", DEPTH=2, STAGING_IN_RING=True)
