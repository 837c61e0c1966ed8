"""The grouped GEMM's own source on the machine of barriers, copies and multiplies that the plain GEMM is tested on:
groups of any sizes, ends of any kind, every scheme and product, in adversarial schedules."""

from __future__ import annotations

import functools
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
KERNEL = ROOT / "kernels" / "grouped_gemm" / "gluon.py"

_spec = importlib.util.spec_from_file_location(
    "gluon_machine", ROOT / "tests" / "kernels" / "gemm" / "gluon_machine.py"
)
machine = importlib.util.module_from_spec(_spec)
sys.modules["gluon_machine"] = machine
_spec.loader.exec_module(machine)

PRODUCTS = ("forward", "dgrad", "wgrad")
PLANS = ({"SCHEME": "single"}, {"SCHEME": "cooperative"}, {"SCHEME": "pingpong"})
BLOCK = {"BLOCK_M": 4, "BLOCK_N": 4, "BLOCK_K": 4, "DEPTH": 3}
RAGGED_ROWS = 1 << 30


class Ragged(machine.Descriptor):
    """A matrix [rows, columns] that ends where the coordinates say; see the launch's tests for their arithmetic."""

    def inside(self, at, box):
        origin, end, row, column = at
        assert origin == RAGGED_ROWS
        first = row - RAGGED_ROWS + end
        assert first >= 0
        assert end <= len(self.array)
        rows = self.array[first : max(first, min(first + box[2], end)), column : column + box[3]]
        return rows[None, None]


def descriptors(kernel, product, left, right, out, plan):
    """Of the left operand, of the right one by the block's widths, of the result, and of wgrad's steps."""
    rows, depth = plan["BLOCK_M"] // (2 if plan["SCHEME"] == "cooperative" else 1), plan["BLOCK_K"]
    chunk = (rows, plan["BLOCK_N"] // plan["EPILOGUE_SPLIT"])
    wgrad = product == "wgrad"
    forms = {"forward": lambda n: (1, n, depth), "dgrad": lambda n: (1, depth, n), "wgrad": lambda n: (depth, n)}
    widths = kernel.accumulator_widths(plan["BLOCK_N"])
    return (
        described(left, (depth, rows) if wgrad else (rows, depth)),
        *padded(described(right, forms[product](n)) for n in widths),
        described(out, (1, *chunk) if wgrad else (1, 1, *chunk)),
        described(left, kernel.step_box(rows)) if wgrad else None,
        *padded(described(right, kernel.step_box(n)) for n in widths if wgrad),
    )


def padded(descriptors):
    """Of each of two widths, None where there is none."""
    return (*descriptors, None, None)[:2]


def described(array, box):
    return (Ragged if len(box) == array.ndim + 2 else machine.Descriptor)(array, box)


def run(kernel, product, left, right, ends, *, programs, seed, group_m=2, window=32, scales=None, **plan):
    """The result, NaN where nothing was written. ``scales`` are (kind, of A's rows, of all groups' B)."""
    plan = {"EPILOGUE_SPLIT": 1, "STAGING_IN_RING": False, **BLOCK, **plan}
    shape = {
        "forward": (len(left), right.shape[-2]),
        "dgrad": (len(left), right.shape[-1]),
        "wgrad": (len(ends), left.shape[1], right.shape[1]),
    }[product]
    out = np.full(shape, machine.POISON)
    descs = descriptors(kernel, product, left, right, out, plan)
    kind, *arrays = scales or ("none",)
    pointers = [machine.Pointer(s.reshape(-1)) for s in arrays] or [None, None]
    strides = (arrays[0].shape[1], 1) if arrays else (0, 0)
    runner = machine.Machine(seed)
    runner.programs = programs
    for cta in range(programs):
        machine._CTA.program, machine._CTA.programs, machine._CTA.partitions = cta, programs, []
        kernel.grouped_gemm_kernel(
            *descs, machine.Pointer(np.asarray(ends, dtype=np.int32)), *pointers, len(ends), len(left), *shape[-2:],
            left.shape[1], group_m, *strides, SCALES=kind, PRODUCT=product, WINDOW=window,
            CONSUMERS=1 if plan["SCHEME"] == "single" else 2, PRODUCER_REGISTERS=40, CONSUMER_REGISTERS=232, **plan,
        )  # fmt: skip
        for i, (function, arguments) in enumerate(machine._CTA.partitions):
            name = f"{function.__name__} {i}"
            runner.partitions.append(machine.Partition(runner, cta, name, functools.partial(function, *arguments)))
    runner.run()
    return out


def expected(product, left, right, ends):
    """As ``reference`` has it in torch; NaN in rows of no group."""
    held = np.maximum.accumulate(np.clip(ends, 0, len(left)))
    groups = list(pairwise([0, *held]))
    if product == "wgrad":
        return np.array([left[a:b].T @ right[a:b] for a, b in groups])
    factors = right.transpose(0, 2, 1) if product == "forward" else right
    out = np.full((len(left), factors.shape[2]), np.nan)
    for g, (a, b) in enumerate(groups):
        out[a:b] = left[a:b] @ factors[g]
    return out


def operands(product, rng, rows, n, k, groups):
    a, dc, b = (rng.integers(-4, 5, size).astype(float) for size in ((rows, k), (rows, n), (groups, n, k)))
    return {"forward": (a, b), "dgrad": (dc, b), "wgrad": (dc, a)}[product]


def check(kernel, product, ends, *, rows=None, n=6, k=7, seed=0, programs=2, **options):
    rows = max(ends[-1], 1) if rows is None else rows
    left, right = operands(product, np.random.default_rng(seed), rows, n, k, len(ends))
    found = run(kernel, product, left, right, ends, programs=programs, seed=seed, **options)
    np.testing.assert_array_equal(found, expected(product, left, right, ends))


def smaller(text):
    """The source with steps of 2 of K and panels of 2 columns, so that small blocks have several."""
    return text.replace("STEP = gl.constexpr(K_STEP)", "STEP = gl.constexpr(2)").replace("PANEL = 64", "PANEL = 2")


@pytest.fixture(scope="module")
def kernel():
    return machine.load_kernel(KERNEL, smaller)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    "ends",
    [
        (1,), (4,), (3, 8, 13), (0, 5, 5, 10), (0, 0, 17), (9, 9, 9), (4, 8, 12, 16), (0, 0),
        tuple(range(0, 80, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_groups_of_any_size(kernel, product, plan, ends):
    for programs in (1, 3):
        check(kernel, product, ends, rows=ends[-1] + 3, programs=programs, **plan)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("columns", [6, 3])
def test_tiles_of_two_accumulators(kernel, product, plan, columns):
    """6 columns are 4 and 2, each with tiles of B of its own; of 3 the narrower has 1, less than a panel."""
    for ends in ((1,), (3, 8, 13), (0, 5, 5, 10)):
        check(kernel, product, ends, rows=17, n=11, k=14, programs=2, **plan, BLOCK_N=columns, EPILOGUE_SPLIT=3)


@given(
    product=st.sampled_from(PRODUCTS),
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    ends=st.lists(st.integers(-3, 30), min_size=1, max_size=70),
    ordered=st.booleans(),
    rows=st.integers(1, 25),
    n=st.integers(1, 9),
    k=st.integers(1, 9),
    block=st.sampled_from(((4, 4, 4), (4, 8, 8), (8, 4, 4))),
    depth=st.integers(2, 5),
    chunks=st.sampled_from((1, 2)),
    programs=st.integers(1, 4),
    group_m=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_ends_and_any_schedule(
    kernel, product, scheme, ends, ordered, rows, n, k, block, depth, chunks, programs, group_m, seed
):
    """Ends that fall, or lie outside of the rows, are held within them; a window of groups is 32."""
    check(
        kernel, product, sorted(ends) if ordered else ends, rows=rows, n=n, k=k, seed=seed, programs=programs,
        group_m=group_m, SCHEME=scheme, DEPTH=depth, EPILOGUE_SPLIT=chunks,
        **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True)),
    )  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("columns", [{}, {"BLOCK_N": 6, "EPILOGUE_SPLIT": 3}], ids=str)
def test_a_nan_stays_within_its_group(kernel, product, poison, plan, columns):
    """Groups share K blocks and row tiles with their neighbours, whose NaN must not leak, from neither operand."""
    ends = (3, 3, 8, 13)
    left, right = operands(product, np.random.default_rng(1), 15, 6, 7, len(ends))
    left[3:8] = left[13:] = poison
    if product == "wgrad":
        right[3:8] = right[13:] = poison
    else:
        right[0] = poison
    with np.errstate(invalid="ignore"):
        found = run(kernel, product, left, right, ends, programs=2, seed=3, **plan, **columns)
        np.testing.assert_array_equal(found, expected(product, left, right, ends))
    assert np.isfinite(found[8:13] if product != "wgrad" else found[[0, 1, 3]]).all()


@pytest.fixture(scope="module")
def scaled_kernel():
    """The kernel with a scale for every 4 of K, so that a few numbers have several."""
    return machine.load_kernel(KERNEL, lambda text: text.replace("gl.constexpr(128)", "gl.constexpr(4)"))


@given(
    scheme=st.sampled_from(("single", "cooperative", "pingpong")),
    kind=st.sampled_from(("row", "block")),
    ends=st.lists(st.integers(0, 20), min_size=1, max_size=9).map(sorted),
    n=st.integers(1, 9),
    k=st.integers(1, 13),
    programs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_scaled_products(scaled_kernel, scheme, kind, ends, n, k, programs, seed):
    """Scales of powers of two: every sum is exact. A block is 4 of K here, as the tile of K is."""
    rng = np.random.default_rng(seed)
    rows, blocks, bands = 23, -(-k // 4), -(-n // 4)
    a, b = operands("forward", rng, rows, n, k, len(ends))
    shapes = ((rows, 1), (len(ends), n, 1)) if kind == "row" else ((rows, blocks), (len(ends), bands, blocks))
    of_a, of_b = (2.0 ** rng.integers(-3, 4, shape) for shape in shapes)
    found = run(
        scaled_kernel, "forward", a, b, ends, programs=programs, seed=seed, scales=(kind, of_a, of_b), SCHEME=scheme,
        BLOCK_K=4,
    )  # fmt: skip
    if kind == "block":
        of_a, of_b = of_a.repeat(4, 1)[:, :k], of_b.repeat(4, 1).repeat(4, 2)[:, :n, :k]
    np.testing.assert_array_equal(found, expected("forward", a * of_a, b * of_b, ends))


@pytest.mark.parametrize("staging_in_ring", [False, True])
def test_a_chunk_may_leave_through_its_ring_slot(kernel, staging_in_ring):
    check(kernel, "forward", (3, 8, 13), SCHEME="single", BLOCK_K=4, STAGING_IN_RING=staging_in_ring)


# what breaks: (the source's text, its replacement, a product that suffers)
HELD = "gl.maximum(gl.minimum(end, groups.rows), first)"
MUTATIONS = {
    "a tile's rows do not stop at its group's end": (
        "ragged(row, column, tile.end), as_box",
        "ragged(row, column, 1 << 20), as_box",
        "forward",
    ),
    "a reduction does not stop at its group's end": (
        "    return [RAGGED_ROWS, end, RAGGED_ROWS - end + row, column]",
        "    end += 1\n    return [RAGGED_ROWS, end, RAGGED_ROWS - end + row, column]",
        "wgrad",
    ),
    "an empty group has no block": (
        "gl.maximum(gl.cdiv(height, BLOCK.block_k), 1)",
        "gl.cdiv(height, BLOCK.block_k)",
        "wgrad",
    ),
    "a last block is taken for a whole one": (
        "whole = height // BLOCK.block_k",
        "whole = gl.cdiv(height, BLOCK.block_k)",
        "wgrad",
    ),
    "steps that were not copied are multiplied": ("        if i < steps:\n", "        if i < steps + 1:\n", "wgrad"),
    "the slot before a last block is let go early": (
        "        acc = finished(acc, 0)\n        release(",
        "        release(",
        "wgrad",
    ),
    "B does not stop at its group's end": (
        "load_step(work.launch.b_step[width], b, row, column, tile.end, full, i)",
        "load_step(work.launch.b_step[width], b, row, column, work.launch.groups.rows, full, i)",
        "wgrad",
    ),
    "both widths are copied in the wider's boxes": ("work.launch.b_step[width]", "work.launch.b_step[0]", "wgrad"),
    "a step's panels are all the first": ("row, column + i * COLUMNS, end", "row, column, end", "wgrad"),
    "an empty group has no step": (
        "gl.maximum(gl.cdiv(height - whole * BLOCK.block_k, STEP), 1)",
        "gl.cdiv(height - whole * BLOCK.block_k, STEP)",
        "wgrad",
    ),
    "every window begins anew": ("gl.max(search.ends, 0)\n", "0\n", "forward"),
    "ends that fall are believed": (HELD, "gl.minimum(end, groups.rows)", "forward"),
    "ends beyond the rows are believed": (HELD, "gl.maximum(end, first)", "forward"),
    "both accumulators have the first columns": (
        "column = tile.column + i * BLOCK.widths[0]",
        "column = tile.column",
        "forward",
    ),
}
CASES = (
    ((3, 3, 8, 13), 17),
    ((5, 2, 9, 40), 36),
    ((40,) * 32, 36),
    ((*range(0, 66, 2), 70), 70),
    ((0, 4, 4, 9, 9, 9, 30), 30),
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_noticed(name):
    old, new, product = MUTATIONS[name]
    sources = [KERNEL, *machine.DEVICE.glob("*.py")]
    assert sum(path.read_text().count(old) for path in sources) == 1, "the source changed: adapt the mutation"
    broken = machine.load_kernel(KERNEL, lambda text: smaller(text.replace(old, new)))

    def any_ends():
        for seed, (ends, rows) in enumerate(CASES):
            check(broken, product, ends, rows=rows, n=4, seed=seed, SCHEME="single")
            for columns in (6, 3):
                check(broken, product, ends, rows=rows, seed=seed, SCHEME="single", BLOCK_N=columns, EPILOGUE_SPLIT=3)
        test_a_nan_stays_within_its_group(broken, product, np.nan, {"SCHEME": "single"}, {})

    with pytest.raises(AssertionError):
        any_ends()
