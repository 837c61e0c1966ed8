"""Row strides that are sums, of padded matrices and packed heads: TMA loads where they are proven, the kernel's own
results, and of what is not proven that load alone."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import padded_kernels as kernels
from interpreter import BUFFER
from played import HOPPER, same

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pointers import tensor_boxes
from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, explained, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

pytestmark = pytest.mark.matrix

PRODUCT = (
    "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, M=i32:16, N=i32:16, K=i32:16, A='{}', B='{}', C='K * 2', BATCHED={}, "
    "BM=128, BN=64, BK=64"
)
ADVANCED = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, M=i32:16, N=i32:16, K=i32:16, BM=128, BN=64, BK=64"
PACKED = "qkv_ptr=*bf16, o_ptr=*bf16, L=i32, H=i32, HK=i32, WHERE='{}', BM=128, BN=64, D=64"
ROWS, COLUMNS, DEPTH = 144, 80, 96
SIZES = {"a_ptr": 0, "b_ptr": BUFFER, "c_ptr": 2 * BUFFER, "M": ROWS, "N": COLUMNS, "K": DEPTH}
SUMS = ("K + 16", "K + 8", "K + 64", "K * 2 + 16", "K + N")
HEADS = {"qkv_ptr": 0, "o_ptr": BUFFER, "L": 136, "H": 4, "HK": 2}
TWO = HopperStrategy(2, (2,))


@cache
def at_cut(name: str, signature: str) -> tuple[str, PlannedCut]:
    source = source_of(getattr(kernels, name), signature)
    return pipeline.cut(source, HOPPER, {"num_warps": 4}).text, planned_cut(source, HOPPER, {"num_warps": 4})


def product(a: str, b: str, batched: bool = False) -> str:
    return PRODUCT.format(a, b, batched)


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(17)
    return [draw.integers(-4, 5, 1 << 18) / 4.0 for _ in range(2)]


def descriptors(text: str) -> list[tuple[int, str]]:
    """Dimensions of each descriptor, and its base."""
    found = re.findall(r"tt.make_tensor_descriptor (%[\w.]+), \[([^\]]*)\]", text)
    return [(sizes.count(",") + 1, base) for base, sizes in found]


@pytest.mark.parametrize("sides", ["a", "b", "both"])
@pytest.mark.parametrize("how", SUMS)
def test_rows_that_a_sum_is_between_are_loaded_by_tma_and_give_the_kernels_product(how: str, sides: str) -> None:
    a, b = (how if sides in (side, "both") else "K * 2" for side in "ab")
    original, planned = at_cut("padded", product(a, b))
    assert (len(planned.described.lines), planned.described.unchanged) == (2, ())
    assert descriptors(planned.text) == [(2, "%a_ptr"), (2, "%b_ptr")]
    assert all(least == 1 for _, least in planned.described.least)
    same(planned.text, TWO, SIZES, memory(), (2, 2, 1), seeds=1, original=original)


@pytest.mark.parametrize("persistent", [0, 1])
def test_a_batch_of_padded_matrices_is_one_dimension_more(persistent: int) -> None:
    original, planned = at_cut("padded", product("K + 16", "K + 8", True))
    assert descriptors(planned.text) == [(3, "%a_ptr"), (2, "%b_ptr")]
    scheme = HopperStrategy(2, (2,), persistent=persistent)
    same(planned.text, scheme, SIZES, memory(), (2, 2, 2), launched=3, seeds=1, original=original)


def test_pointers_that_advance_by_rows_of_a_sum_begin_where_they_began() -> None:
    original, planned = at_cut("advanced", ADVANCED)
    assert (len(planned.described.lines), planned.described.unchanged) == (2, ())
    same(planned.text, TWO, SIZES, memory(), (2, 2, 1), seeds=2, original=original)


def test_a_padded_result_is_stored_by_tma() -> None:
    signature = product("K + 16", "K + 16").replace("C='K * 2'", "C='K + 8'")
    source = source_of(kernels.padded, signature)
    original = at_cut("padded", signature)[0]
    storing = planned_cut(source, HOPPER, {"num_warps": 4}, stores=True)
    assert storing.described.stores == (128 * 64 * 2,)
    assert "tt.descriptor_store" in storing.text
    scheme = HopperStrategy(2, (2,), persistent=1, stores=1)
    same(storing.text, scheme, SIZES, memory(), (2, 2, 1), launched=3, seeds=1, original=original)


@pytest.mark.parametrize("where", ["pointer", "tile"])
def test_packed_queries_keys_and_values_are_loaded_by_tma(where: str) -> None:
    original, planned = at_cut("packed", PACKED.format(where))
    assert (len(planned.described.lines), planned.described.unchanged) == (2, ())
    assert {"H": 1, "HK": 1}.items() <= dict(planned.described.least).items()
    same(planned.text, HopperStrategy(1, (2,)), HEADS, memory(), (2, 8, 1), seeds=1, original=original)


UNPROVEN = {
    "K + 4": "its row stride is not known to be a multiple of 16 bytes",
    "K * 2 - N": "its row stride is not known to be positive",
}


@pytest.mark.parametrize("how", UNPROVEN)
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_stride_that_is_not_proven_leaves_the_other_load_its_tma_load(how: str, side: str) -> None:
    a, b = (how if mine == side else "K + 16" for mine in "ab")
    original, planned = at_cut("padded", product(a, b))
    source = Path(kernels.__file__).read_text().splitlines()
    (refused,) = planned.described.unchanged
    assert refused.reason == UNPROVEN[how]
    assert f"{side} = tl.load" in source[int(refused.load.rpartition(":")[2]) - 1]
    assert len(planned.described.lines) == 1
    assert any(UNPROVEN[how] in told.reason for told in explained(capture(planned.text), planned.described).remarks)
    same(planned.text, HopperStrategy(1, (2,)), SIZES, memory(), (2, 2, 1), seeds=1, original=original)


def test_padding_of_16_bytes_is_aligned_where_the_launch_says_that_the_size_is() -> None:
    """Triton's specialisation is the guard: another size is another kernel."""
    _, planned = at_cut("padded", product("K + 8", "K + 16").replace("K=i32:16", "K=i32"))
    assert [refused.reason for refused in planned.described.unchanged] == [UNPROVEN["K + 4"]]
    _, planned = at_cut("padded", product("K + 8", "K + 16").replace("bf16", "fp8e5"))
    assert [refused.reason for refused in planned.described.unchanged] == [UNPROVEN["K + 4"]]


def test_a_form_that_is_not_read_is_told_of_its_load_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = tensor_boxes.BoxReader.read

    def fails(self: tensor_boxes.BoxReader, tile: AffineTile, *rest: object) -> object:
        assert tile.base != "%a_ptr"
        return read(self, tile, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tensor_boxes.BoxReader, "read", fails)
    at_cut.cache_clear()
    _, planned = at_cut("padded", product("K + 16", "K + 16"))
    at_cut.cache_clear()
    (refused,) = planned.described.unchanged
    assert "a form that is not read here" in refused.reason
    assert refused.line == refused.load
    assert len(planned.described.lines) == 1
