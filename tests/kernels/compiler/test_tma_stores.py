"""Stores through pointers as TMA stores: which are, which are not and why, and what is then stored."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import batched_kernels as kernels
from interpreter import BUFFER
from played import HOPPER, same

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing import hopper_ranking
from warpplan.kernels.compiler.costing.pressure import shared_bytes
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
from warpplan.kernels.compiler.inspection.finished import finished_text, written_text
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.launching.autotuned.list_choice import MOST_PLANNED, Candidate, to_try
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings
from warpplan.kernels.compiler.launching.trial import to_measure
from warpplan.kernels.compiler.pointers import tma_stores
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, explained, planned_cut
from warpplan.kernels.compiler.pointers.tma_stores import pointer_stores
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.service.workflow.profiles import Profiles

pytestmark = pytest.mark.matrix

SIGNATURE = (
    "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, d_ptr=*bf16, flag_ptr=*i32, M=i32, N=i32, K=i32, top=i32, "
    "stride_am=i32:16, stride_bn=i32:16, stride_cm=i32:16, HOW='{}', BM=128, BN=64, BK=64"
)
ROWS, COLUMNS, DEPTH, STRIDE = 136, 80, 90, 96
GRID = (2, 2, 1)
VALUES = {
    "a_ptr": 0, "b_ptr": BUFFER, "c_ptr": 2 * BUFFER, "d_ptr": 3 * BUFFER, "flag_ptr": 4 * BUFFER, "M": ROWS,
    "N": COLUMNS, "K": DEPTH, "top": 50, "stride_am": STRIDE, "stride_bn": STRIDE, "stride_cm": STRIDE + 16,
}  # fmt: skip
STORED = {
    "bounds": 1, "tighter": 1, "columns alone": 1, "everywhere": 1, "sometimes": 1, "two tensors": 2,
}  # fmt: skip
KEPT = {
    "from a row on": "its mask lets through what lies before the tensor, or cuts off more than that",
    "triangle": "its mask is no bound of one dimension",
    "wrapped": "its rows or columns wrap around",
    "turned": "its columns are not one after the other",
    "shifted": "its base is not known to be a multiple of 16 bytes",
    "past caches": "it says what caches are to do",
    "every iteration": "a loop repeats it",
    "stored again": "the kernel reads or writes the same memory elsewhere",
    "read before": "the kernel reads or writes the same memory elsewhere",
    "read after": "the kernel reads or writes the same memory elsewhere",
    "told": "tt.atomic_rmw after it may tell another program of it",
    "met": "barrier after it may tell another program of it",
}


@cache
def at_cut(how: str, signature: str = SIGNATURE, stores: bool = True) -> tuple[str, PlannedCut]:
    source = source_of(kernels.stored, signature.format(how))
    options = {"num_warps": 4}
    return pipeline.cut(source, HOPPER, options).text, planned_cut(source, HOPPER, options, stores=stores)


def reasons(how: str, signature: str = SIGNATURE) -> list[str]:
    source = source_of(kernels.stored, signature.format(how))
    module = parse(written_text(source, HOPPER, {"num_warps": 4}))
    return [kept.reason for kept in pointer_stores(unique_names(module.function)).kept]


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(13)
    return [*(draw.integers(-4, 5, 1 << 16) / 4.0 for _ in range(4)), np.zeros(4)]


@pytest.mark.parametrize("how", [how for how, count in STORED.items() if count])
def test_a_tile_whose_mask_is_a_box_is_stored_by_tma(how: str) -> None:
    _, planned = at_cut(how)
    assert planned.text.count("tt.descriptor_store") == STORED[how]
    assert "tt.store" not in planned.text
    assert planned.described.stores == (128 * 64 * 2,)  # tiles of one type are stored from the same memory


@pytest.mark.parametrize("how", KEPT)
def test_any_other_store_stays_with_the_reason(how: str) -> None:
    _, planned = at_cut(how)
    assert "tt.descriptor_store" not in planned.text
    assert planned.described.stores == ()
    assert any(KEPT[how] in reason for reason in reasons(how))
    captured = explained(capture(planned.text), planned.described)
    assert captured.stores_left
    assert any(KEPT[how] in kept.reason and kept.line for kept in captured.stores_kept)


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("how", [how for how, count in STORED.items() if count])
def test_the_same_elements_are_stored(how: str, persistent: int) -> None:
    original, planned = at_cut(how)
    scheme = HopperStrategy(2, (2,), persistent=persistent, stores=1)
    values = {**VALUES, **({"M": 256, "N": 128} if how == "everywhere" else {}), "stride_cm": 144}
    lowered = same(planned.text, scheme, values, memory(), GRID, launched=3, seeds=2, original=original)
    if persistent:
        assert lowered.count("async_tma_copy_local_to_global") == 2 * STORED[how]


@pytest.mark.parametrize("top", [-3, 0, 1, 127, 128, 129])
def test_a_mask_tighter_than_the_tensor_is_the_box_end(top: int) -> None:
    original, planned = at_cut("tighter")
    scheme = HopperStrategy(2, (2,), persistent=1, stores=1)
    values = {**VALUES, "top": top}
    if dict(planned.described.least).get("top", top) <= top:  # a launch with less is refused
        same(planned.text, scheme, values, memory(), GRID, launched=3, seeds=1, original=original)


MISFITS = {
    "stride_cm=i32:16": ("stride_cm=i32", "its row stride is not known to be a multiple of 16 bytes"),
    "c_ptr=*bf16": ("c_ptr=*bf16:1", "its base is not known to be a multiple of 16 bytes"),
}


@pytest.mark.parametrize("known", MISFITS)
def test_what_the_specialisation_does_not_say_is_not_assumed(known: str) -> None:
    unknown, reason = MISFITS[known]
    assert reasons("bounds", SIGNATURE.replace(known, unknown)) == [reason]


def test_arguments_that_have_to_be_positive_are_named() -> None:
    least = dict(at_cut("bounds")[1].described.least)
    assert least == dict.fromkeys(("M", "N", "K", "stride_am", "stride_bn", "stride_cm"), 1)
    assert "stride_cm" not in dict(at_cut("bounds", SIGNATURE, False)[1].described.least)


def test_without_the_strategy_stores_stay_as_they_are() -> None:
    _, planned = at_cut("bounds", SIGNATURE, False)
    assert "tt.descriptor_store" not in planned.text
    assert planned.described.stores == (128 * 64 * 2,)


def test_the_finished_kernel_stores_by_tma_within_its_walk_from_descriptors_made_before() -> None:
    source = source_of(kernels.stored, SIGNATURE.format("bounds"))
    text = finished_text(source, HOPPER, {"num_warps": 4}, HopperStrategy(2, (2,), persistent=1, stores=1))
    assert not check_barriers(text).findings
    assert text.count("ttng.async_tma_copy_local_to_global") == 2
    lines = text.splitlines()
    made = [len(line) - len(line.lstrip()) for line in lines if "ttng.tensormap_create" in line]
    copied = [len(line) - len(line.lstrip()) for line in lines if "ttng.async_tma_copy_local_to_global" in line]
    assert len(made) == 4
    assert max(made) < min(copied)


@cache
def profile() -> Profile:
    return Profiles().of("NVIDIA H200").profile


def ranked(how: str) -> tuple[hopper_ranking.RankedStrategy, ...]:
    _, planned = at_cut(how, SIGNATURE, False)
    captured = explained(capture(planned.text), planned.described)
    return hopper_ranking.rank(captured, profile(), device("NVIDIA H200"))


def test_the_best_plan_that_walks_is_tried_with_tma_stores_right_after_it() -> None:
    schemes = [r.scheme for r in ranked("bounds")]
    (at,) = [i for i, scheme in enumerate(schemes) if scheme is not None and scheme.stores_by_tma]
    former = schemes[at - 1]
    assert schemes[at] == HopperStrategy(**{**vars(former), "stores": 1})
    assert former.persistent


def test_a_kernel_whose_store_stays_has_no_such_plan() -> None:
    assert not any(r.scheme is not None and r.scheme.stores_by_tma for r in ranked("told"))


def test_one_plan_with_tma_stores_is_measured_beside_as_many_as_without() -> None:
    plain = [HopperStrategy(consumers, (3,), persistent=1) for consumers in (1, 2, 3)]
    storing = [HopperStrategy(consumers, (3,), persistent=1, stores=1) for consumers in (2, 3)]
    assert to_measure([*plain, *storing], 2) == [plain[0], storing[0], plain[1]]
    assert to_measure(plain, 2) == plain[:2]


def test_of_a_list_one_is_tried_beside_as_many_as_without() -> None:
    def candidate(config: int, consumers: int | None, stores: int, us: float) -> Candidate:
        scheme = None if consumers is None else HopperStrategy(consumers, (3,), persistent=1, stores=stores)
        return Candidate(config, scheme, us)

    plain = [candidate(config, 2, 0, 10.0 + config) for config in range(7)]
    storing = [candidate(config, 2, 1, 10.0 + config) for config in range(7)]
    found, _, spare = to_try(
        [*plain, *storing, *(candidate(i, None, 0, 20.0) for i in range(7))], range(7), KnownTimings()
    )
    assert found == [plain[0], storing[0], *plain[1:MOST_PLANNED]]
    assert spare == plain[MOST_PLANNED:]


def test_shared_memory_counts_tiles_that_tma_stores() -> None:
    _, planned = at_cut("bounds", SIGNATURE, False)
    captured = explained(capture(planned.text), planned.described)
    assert captured.stored_bytes == 128 * 64 * 2
    assert shared_bytes(captured, (3,), storing=True) >= shared_bytes(captured, (3,))


def test_switched_off_no_store_is_one_of_tma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tma_stores, "ENABLED", False)
    at_cut.cache_clear()
    _, planned = at_cut("bounds")
    at_cut.cache_clear()
    assert planned.described.stores == ()
    assert "tt.descriptor_store" not in planned.text


@pytest.mark.parametrize("stores", [0, 1])
def test_a_strategy_is_recorded_with_its_stores_and_without_as_before(stores: int) -> None:
    scheme = HopperStrategy(2, (3,), persistent=1, stores=stores)
    recorded: dict[str, Any] = scheme.to_json()
    assert ("stores" in recorded) == bool(stores)
    assert strategy_from_json(recorded, "a test") == scheme
    assert scheme.key == "2x4-3-11" + "-t" * stores
    assert ("TMA stores" in str(scheme)) == bool(stores)
