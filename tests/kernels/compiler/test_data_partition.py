"""Kernels shared out by rows: their clones store together what the kernel stores, each element once, and compile."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import split_kernels as kernels  # noqa: E402
from interpreter import BUFFER, Block, Descriptor  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from zoo import ZOO, source  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOAD as LOAD  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.lowering.hopper.data_partition import split  # noqa: E402
from warpplan.kernels.compiler.lowering.hopper.load_rings import NUMBER, ROWS  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.ttgir import ir, parsing  # noqa: E402
from warpplan.kernels.compiler.ttgir.printed_shapes import shapes_in, sliced  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
M, N, K = 200, 240, 128
TILE = {"BM": 128, "BN": 128, "BK": 64}
SIZES = {"M": M, "N": N, "K": K}


def cut(kernel: Any, arguments: dict[str, Any], constants: dict[str, int], num_warps: int = 4) -> pipeline.Cut:
    """``arguments`` are the shape of a descriptor's block, or a type."""
    names = [parameter.name for parameter in kernel.params]
    blocks = {n: f"tensordesc<bf16[{','.join(map(str, a))}]>" for n, a in arguments.items() if isinstance(a, tuple)}
    signature = {n: blocks.get(n, arguments.get(n, "constexpr")) for n in names}
    wide = {(names.index(n),): [["tt.divisibility", 16]] for n, a in arguments.items() if str(a).startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, wide)
    return pipeline.cut(source, HOPPER, {"num_warps": num_warps})


I32 = dict.fromkeys(SIZES, "i32")
A, B, AT, BT = (128, 64), (128, 64), (64, 128), (64, 128)
F32 = "*fp32"


def tensor(number: int, rows: int, columns: int) -> tuple[Descriptor, np.ndarray]:
    """Buffer ``number`` as a descriptor of rows × columns."""
    data = np.random.default_rng(number).integers(-4, 5, rows * columns) / 4.0
    return Descriptor(number * BUFFER, (rows, columns), (columns, 1)), data


def case(name: str) -> tuple[Any, dict[str, Any], dict[str, int], dict[str, Any], list[np.ndarray], list[tuple]]:
    """Kernel, argument types, constants; argument values, buffers, programs to run."""
    grid = [(0, 0, 0), (1, 1, 0)]
    a, a_data = tensor(0, M, K)
    b, b_data = tensor(1, N, K)
    c, c_data = tensor(2, M, N)
    wide, wide_data = tensor(1, K, N)
    pointers = {"a_ptr": 0, "b_ptr": BUFFER, "c_ptr": 2 * BUFFER}
    three = [a_data, b_data, c_data]
    if name == "bias_residual":
        bias, residual = tensor(3, 1, N)[1], tensor(4, M, N)[1]
        values = {"a": a, "b": b, "c_ptr": 2 * BUFFER, "bias_ptr": 3 * BUFFER, "residual_ptr": 4 * BUFFER, **SIZES}
        types = {"a": A, "b": B, "c_ptr": "*bf16", "bias_ptr": F32, "residual_ptr": F32, **I32}
        return kernels.bias_residual, types, TILE, values, [*three, bias, residual], grid
    if name == "box_store":
        types = {"a": A, "b": B, "c": (128, 128), **I32}
        return kernels.box_store, types, TILE, {"a": a, "b": b, "c": c, **SIZES}, three, grid
    if name == "transposed":
        turned, turned_data = tensor(0, K, M)
        out, out_data = tensor(2, N, M)
        types = {"a": AT, "b": BT, "c": (128, 128), **I32}
        values = {"a": turned, "b": wide, "c": out, **SIZES}
        return kernels.transposed, types, TILE, values, [turned_data, wide_data, out_data], grid
    if name == "persistent":
        types = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16", **I32, "BLOCKS": "i32"}
        return kernels.persistent, types, TILE, {**pointers, **SIZES, "BLOCKS": 3}, three, [(0, 0, 0), (1, 0, 0)]
    if name == "normalised":
        narrow = {"M": M, "N": 104, "K": K}
        b, b_data = tensor(1, K, 104)
        values = {"a": a, "b": b, "c_ptr": 2 * BUFFER, "scale_ptr": 3 * BUFFER, "mean_ptr": 4 * BUFFER}
        values |= {"count_ptr": 5 * BUFFER, **narrow, "eps": 1e-3}
        types = {"a": A, "b": BT, "c_ptr": F32, "scale_ptr": F32, "mean_ptr": F32, "count_ptr": "*i32", **I32}
        buffers = [a_data, b_data, c_data, tensor(3, 1, 104)[1], np.zeros(M), np.zeros(2)]
        return kernels.normalised, {**types, "eps": "fp32"}, TILE, values, buffers, [(0, 0, 0), (1, 0, 0)]
    if name == "branches":
        types = {"a": A, "b": BT, "c_ptr": F32, **I32, "relu": "i32"}
        values = {"a": a, "b": wide, "c_ptr": 2 * BUFFER, **SIZES, "relu": 1}
        return kernels.branches, types, TILE, values, [a_data, wide_data, c_data], [(0, 0, 0), (1, 0, 0)]
    if name.startswith("batched"):
        sizes = {"M": M, "N": 128, "K": K if name == "batched" else 0}
        shapes = ((2, M, K), (2, K, 128), (2, M, 128))
        described = [tensor(i, math.prod(shape[:2]), shape[2]) for i, shape in enumerate(shapes)]
        strides = [(math.prod(shape[1:]), shape[2], 1) for shape in shapes]
        values = {n: Descriptor(i * BUFFER, shapes[i], strides[i]) for i, n in enumerate("abc")} | sizes
        types = {"a": (1, 128, 64), "b": (1, 64, 128), "c": (1, 128, 128), **I32}
        return kernels.batched, types, TILE, values, [data for _, data in described], [(0, 0, 0), (1, 1, 0)]
    length, width = 256, 64
    described = [tensor(i, 2 * length, width) for i in range(4)]
    values = dict(zip("qkvo", (d for d, _ in described), strict=True))
    values |= {"lse_ptr": 4 * BUFFER, "L": length, "scale": 0.5}
    types = {"q": (128, 64), "k": (64, 64), "v": (64, 64), "o": (128, 64), "lse_ptr": F32, "L": "i32", "scale": "fp32"}
    constants = {"CAUSAL": name == "causal", "BM": 128, "BN": 64, "D": 64}
    buffers = [data for _, data in described] + [np.zeros(2 * length)]
    return kernels.attention, types, constants, values, buffers, [(0, 0, 0), (1, 1, 0)]


CASES = (
    "bias_residual", "box_store", "transposed", "persistent", "normalised", "branches", "attention",
    "causal", "batched", "batched_zeros",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_clones_store_together_what_the_kernel_stores(name: str) -> None:
    kernel, types, constants, values, buffers, programs = case(name)
    compare(cut(kernel, types, constants).text, values, buffers, programs)


def compare(text: str, values: dict[str, Any], buffers: list[np.ndarray], programs: list[tuple[int, ...]]) -> None:
    module = parsing.parse(text)
    clones = split(module, 2)
    for program in programs:
        addresses, stored = Block(module, values, buffers, program).run()
        halves = [Block(clone, values, buffers, program).run() for clone in clones]
        assert all(where.size for where, _ in halves)
        together, half_values = (np.concatenate(arrays) for arrays in zip(*halves, strict=True))
        order = np.argsort(together)
        assert np.unique(addresses).size == addresses.size
        np.testing.assert_array_equal(together[order], addresses)
        np.testing.assert_allclose(half_values[order], stored, rtol=1e-9, atol=1e-9)


ZOO_BY_ROWS = (
    "pointers", "persistent_flattened", "persistent_split_epilogue", "split_k", "fp8_scaled", "int8_weights", "batched",
    "dual_swiglu", "tutorial_causal", "alibi_and_bias",
)  # fmt: skip


@pytest.mark.parametrize("name", ZOO_BY_ROWS)
def test_kernels_of_many_kinds_store_the_same_by_rows(name: str) -> None:
    """On arguments that mean nothing but are in range: what is stored where must not depend on the cut."""
    specimen, named = ZOO[name], {**SIZES, "L": 256, "H": 2, "scale": 0.5}
    values: dict[str, Any] = {}
    buffers: list[np.ndarray] = []
    for parameter in specimen.kernel.params:
        kind = specimen.types.get(parameter.name, "i32")
        if parameter.is_constexpr or kind.startswith("="):
            continue
        values[parameter.name] = named.get(parameter.name, N if "stride" in parameter.name else 3)
        if kind.endswith("]"):
            sizes = (2, 3 * M, N)[-kind.count(",") - 1 :]
            strides = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
            values[parameter.name] = Descriptor(len(buffers) * BUFFER, sizes, strides)
        elif kind.startswith("*"):
            values[parameter.name] = len(buffers) * BUFFER
        buffers.append(tensor(len(buffers), 6 * M, N)[1])
    text = pipeline.cut(source(name), HOPPER, {**specimen.options, "num_warps": 4}).text
    compare(text, values, buffers, [(1, 1, 1)])


def alone(module: ir.Module) -> str:
    """A clone that can be compiled by itself: its loads fetch its own rows only (at the wrong place)."""
    cuts = {}
    for load in [operation for operation in module.walk() if operation.name == LOAD]:
        rows = load.attributes.get(ROWS)
        load.drop_attribute(ROWS)
        load.drop_attribute(NUMBER)
        if rows is not None:
            dimension, _, size = (int(n) for n in rows.partition(":")[2].strip("> ").split(","))
            block, tile = shapes_in(load.parts)
            cuts[load.operands[0]] = (dimension + len(block.shape) - len(tile.shape), size)
    for operation in module.walk():
        if operation.name not in (LOAD, "tt.func", "tt.make_tensor_descriptor"):
            continue
        for name, (dimension, size) in cuts.items():
            if name in (*operation.parts, *operation.defined):
                at = operation.parts.index(name) if name in operation.parts else -1
                shape = next(p for p in shapes_in(operation.parts) if p.at > at)
                operation.parts[shape.at] = sliced(str(operation.parts[shape.at]), dimension, size)
    return str(module)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_triton_takes_every_clone_through_the_remaining_passes(name: str) -> None:
    kernel, types, constants, *_ = case(name)
    before = cut(kernel, types, constants)
    for clone in split(parsing.parse(before.text), 2):
        finished = str(pipeline.finish(alone(clone), before.options, before.capability))
        assert "ttng.warp_group_dot" in finished


@pytest.mark.matrix
@pytest.mark.parametrize("hint", ["", "range", "rows", "tile"])
def test_what_an_author_knows_of_gathered_rows_holds_for_each_consumers_part(hint: str) -> None:
    a_data, (b, b_data), c_data = tensor(0, M, K)[1], tensor(1, N, K), tensor(2, M, N)[1]
    values = {"a_ptr": 0, "rows_ptr": 3 * BUFFER, "b": b, "c_ptr": 2 * BUFFER, **SIZES}
    types = {"a_ptr": "*bf16", "rows_ptr": "*i32", "b": B, "c_ptr": "*bf16", **I32}
    before = cut(kernels.gathered, types, {**TILE, "HINT": hint})
    rows = np.random.default_rng(3).integers(0, 2 * M, M).astype(float)
    compare(before.text, values, [a_data, b_data, c_data, rows], [(0, 0, 0), (1, 0, 0)])
    lowered = HopperStrategy(2, (2,)).lower(before.text)
    finished = str(pipeline.finish(lowered, before.options, before.capability, pipelined=True))
    assert finished.count("ttng.warp_group_dot ") == 2


def test_loads_are_numbered_alike_and_keep_the_whole_tile() -> None:
    kernel, types, constants, *_ = case("box_store")
    clones = split(parsing.parse(cut(kernel, types, constants).text), 2)
    for consumer, clone in enumerate(clones):
        first, second = (operation for operation in clone.walk() if operation.name == LOAD)
        assert [load.attributes[NUMBER] for load in (first, second)] == ["0 : i64", "1 : i64"]
        assert first.attributes[ROWS] == f"array<i64: 0, {64 * consumer}, 64>"
        assert ROWS not in second.attributes
        assert [shape.shape for shape in shapes_in(first.parts)] == [(128, 64), (64, 64)]
        (store,) = (operation for operation in clone.walk() if operation.name == "tt.descriptor_store")
        assert [shape.shape for shape in shapes_in(store.parts)] == [(64, 128), (64, 128)]
        assert [shape.shape for shape in shapes_in(clone.function.parts)] == [(128, 64), (128, 64), (64, 128)]


def test_what_is_stored_whole_is_stored_by_consumer_0() -> None:
    kernel, types, constants, *_ = case("normalised")
    clones = split(parsing.parse(cut(kernel, types, constants).text), 2)
    assert [sum(operation.name == "tt.store" for operation in clone.walk()) for clone in clones] == [3, 2]


def test_one_part_is_the_kernel_with_its_loads_numbered() -> None:
    kernel, types, constants, *_ = case("box_store")
    module = parsing.parse(cut(kernel, types, constants).text)
    (only,) = split(module, 1)
    assert [operation.name for operation in only.walk()] == [operation.name for operation in module.walk()]
    assert [o.attributes[NUMBER] for o in only.walk() if o.name == LOAD] == ["0 : i64", "1 : i64"]


def test_the_module_given_is_left_as_it_was() -> None:
    kernel, types, constants, *_ = case("causal")
    text = cut(kernel, types, constants).text
    module = parsing.parse(text)
    split(module, 2)
    assert str(module) == str(parsing.parse(text))


PLAIN = {"a": A, "b": BT, "c_ptr": F32, **I32}


@pytest.mark.parametrize(
    ("kernel", "types", "constants", "parts", "operation", "reason"),
    [
        (kernels.columns_sum, PLAIN, TILE, 2, "tt.reduce", "combines the rows"),
        (kernels.rows_as_columns, PLAIN, TILE, 2, "ttng.warp_group_dot", "along two of its dimensions"),
        (kernels.counted, PLAIN, TILE, 2, "tt.atomic_rmw", "each would repeat it"),
        (kernels.in_place, {"a": A, "b": BT, "c": (128, 128), **I32}, TILE, 2, "tt.descriptor_store", "both for whole"),
        (kernels.columns_sum, {**PLAIN, "a": (64, 64)}, {**TILE, "BM": 64}, 2, "ttng.warp_group_dot", "64 rows over 2"),
        (kernels.branches, {**PLAIN, "relu": "i32"}, TILE, 3, "ttng.warp_group_dot", "128 rows over 3"),
        (kernels.shared_memory, PLAIN, TILE, 2, "tt.load", "reads whole what is also written"),
        (kernels.copied, PLAIN, TILE, 2, "tt.descriptor_load", "would not free its slot"),
        (kernels.added, {"x_ptr": F32, "y_ptr": F32, "n": "i32"}, {"BLOCK": 256}, 2, "", "no wgmma accumulator"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused(
    kernel: Any, types: dict[str, Any], constants: dict[str, int], parts: int, operation: str, reason: str
) -> None:
    module = parsing.parse(cut(kernel, types, constants).text)
    with pytest.raises(CannotPlan, match=reason) as refused:
        split(module, parts)
    assert refused.value.operation == operation
    assert refused.value.line.startswith("split_kernels.py:" if operation else "")
