from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warpplan.kernels import registry
from warpplan.planner.errors import InvalidConfig, InvalidShape, MalformedFile, MissingCosts, StoreError, UnknownName
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow import configure as workflow_module
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import Profiles, planner_version
from warpplan.service.workflow.request import Item

Gemm = Callable[..., Item]


def count(store: Store, table: str = "configs") -> int:
    with sqlite3.connect(store.name) as connection:
        return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_a_miss_is_planned_and_kept(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    answer = workflow.configure(gemm(512, 1024, 2048))
    assert (answer.kind, answer.kept, answer.notice) == ("planned", True, "")
    again = Workflow(store).configure(gemm(512, 1024, 2048))
    assert again == replace(answer, kind="exact")
    assert again.etag in answer.etags
    assert answer.etag in again.etags
    assert answer.etag != again.etag


def test_the_answer_is_the_best_ranked_plan(workflow: Workflow, gemm: Gemm) -> None:
    kernel, device = registry.kernel("gemm"), DEVICES["NVIDIA H200"]
    profile = workflow.profiles.of(device.name).profile
    answer = workflow.configure(gemm(512, 1024, 2048)).as_dict()
    best, *_ = kernel.rank((512, 1024, 2048), "bfloat16", device, profile)
    assert answer["config"] == best.config.as_dict()
    p = best.prediction
    assert answer["predicted"] == {"time_us": p.time_us, "tflops": p.tflops, "bound_by": p.bound_by}
    plan = codec.to_json(kernel.plan(best.config, "bfloat16", device, profile))
    del plan["solve_seconds"]
    assert answer["plan"] == json.loads(json.dumps(plan))
    assert answer["shape"] == {"M": 512, "N": 1024, "K": 2048}
    assert answer["provenance"]["profile"] == codec.key(profile)
    assert answer["provenance"]["planner"] == planner_version()
    assert answer["provenance"]["source"] == "predicted"


def test_two_services_give_the_same_bytes(tmp_path: Path, gemm: Gemm) -> None:
    one, two = (Workflow(Store.open(tmp_path / name)).configure(gemm(64, 64, 64)) for name in ("1.sqlite", "2.sqlite"))
    assert one.body == two.body


@pytest.mark.parametrize("what", ["profile", "planner"])
def test_a_stale_answer_is_planned_again(
    workflow: Workflow, store: Store, gemm: Gemm, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    workflow.configure(gemm(64, 64, 64))
    profiles = workflow.profiles
    if what == "profile":
        embedded = profiles.of("NVIDIA H200").profile
        profiles = Profiles(replace(embedded, notes=(*embedded.notes, "measured again")))
    else:
        monkeypatch.setattr(workflow_module, "planner_version", lambda: "another")
    later = Workflow(store, profiles)
    assert later.configure(gemm(64, 64, 64)).kind == "planned"
    assert Workflow(store, profiles).configure(gemm(64, 64, 64)).kind == "exact"
    assert count(store) == 2


def test_without_a_store_nothing_is_kept(gemm: Gemm) -> None:
    answer = Workflow().configure(gemm(64, 64, 64))
    assert (answer.kind, answer.kept) == ("planned", False)
    assert answer.notice == "no store was named"


def test_a_store_that_cannot_be_written_does_not_stop_an_answer(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    workflow.configure(gemm(64, 64, 64))
    store.database.readonly = True
    reader = Workflow(store)
    assert reader.configure(gemm(64, 64, 64)).kind == "exact"
    fresh = reader.configure(gemm(128, 64, 64))
    assert (fresh.kind, fresh.kept) == ("planned", False)
    assert "read-only" in fresh.notice


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ((None, 64, 64), "M"), ((0, 64, 64), "M"), ((-5, 64, 64), "M"), ((64, "12.5", 64), "N"), ((64, 1e3, 64), "N"),
        ((64, 12.0, 64), "N"), ((64, True, 64), "N"), ((64, "1e3", 64), "N"), ((64, "", 64), "N"),
        ((64, 64, [64]), "K"),
        ((64, 64, "9" * 5000), "K"), ((2**31, 2**31, 64), None), ((64, 64, 10**30), "K"), ((64, 64, 7), "K"),
        ((64, 64, "٣"), "K"),
    ],
)  # fmt: skip
def test_sizes_that_are_none(
    workflow: Workflow, store: Store, gemm: Gemm, sizes: tuple[object, ...], field: str
) -> None:
    with pytest.raises(InvalidShape) as caught:
        workflow.configure(gemm(*sizes))
    assert "\n" not in str(caught.value)
    if field:
        assert caught.value.field == field
    assert count(store) == 0


@pytest.mark.parametrize(
    ("item", "field", "known"),
    [
        (Item("gem", ()), "kernel", "gemm"),
        (Item("gemm", (), dtype="bf16"), "dtype", "bfloat16"),
        (Item("gemm", (), device="H200"), "device", "NVIDIA H200"),
    ],
)
def test_names_that_nobody_knows(workflow: Workflow, item: Item, field: str, known: str) -> None:
    with pytest.raises(UnknownName, match=known) as caught:
        workflow.configure(item)
    assert caught.value.field == field


def test_a_missing_and_an_unknown_dimension(workflow: Workflow) -> None:
    with pytest.raises(InvalidShape, match="needs K"):
        workflow.configure(Item("gemm", (("M", 64), ("N", 64))))
    with pytest.raises(InvalidShape, match="no dimension or option 'L'"):
        workflow.configure(Item("gemm", (("M", 64), ("N", 64), ("K", 64), ("L", 1))))


def test_a_profile_that_lacks_what_planning_needs(store: Store, gemm: Gemm) -> None:
    embedded = Profiles().of("NVIDIA H200").profile
    bare = Workflow(store, Profiles(replace(embedded, ceilings=())))
    with pytest.raises(MissingCosts, match="the profile has no measured cost for"):
        bare.configure(gemm(64, 64, 64))
    results = list(bare.batch([(1, gemm(64, 64, 64)), (2, gemm(64, 64, 0))]))
    assert [type(r.error) for r in results] == [MissingCosts, InvalidShape]


def test_batch_answers_in_order_and_keeps_going(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    bad = MalformedFile("f.csv", "no", line=3)
    lines = [(1, gemm(64, 64, 64)), (2, gemm(0, 64, 64)), (3, bad), (4, gemm(64, 64, 64)), (5, gemm(128, 64, 64))]
    results = list(workflow.batch(lines))
    assert [r.line for r in results] == [1, 2, 3, 4, 5]
    assert [r.answer.kind if r.answer else type(r.error).__name__ for r in results] == [
        "planned", "InvalidShape", "MalformedFile", "exact", "planned",
    ]  # fmt: skip
    assert count(store) == 2
    single = Workflow(store).configure(gemm(128, 64, 64))
    assert results[4].answer is not None
    assert single.etag in results[4].answer.etags


def test_batch_keeps_each_chunk_before_it_reads_on(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    def lines() -> object:
        for number in range(1, 100):
            if number == 9:
                raise KeyboardInterrupt
            yield number, gemm(16 * number, 64, 64)

    with pytest.raises(KeyboardInterrupt):
        list(workflow.batch(lines(), chunk=4))
    assert count(store) == 8
    kinds = [r.answer.kind for r in workflow.batch((n, gemm(16 * n, 64, 64)) for n in range(1, 11)) if r.answer]
    assert kinds == ["exact"] * 8 + ["planned"] * 2


def test_batch_that_must_keep_stops_at_a_store_that_cannot(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    store.database.readonly = True
    with pytest.raises(StoreError):
        list(workflow.batch([(1, gemm(64, 64, 64))], must_keep=True))


def other_config(workflow: Workflow, item: Item) -> TuningConfig:
    return workflow.candidates(item, 3)[1][1].config


def test_a_faster_measured_configuration_is_served_from_then_on(workflow: Workflow, store: Store, gemm: Gemm) -> None:
    item = gemm(512, 1024, 2048)
    planned = workflow.configure(item)
    other = other_config(workflow, item)
    assert workflow.record(item, other, 4.5, samples=20)[1]
    answer = workflow.configure(item).as_dict()
    assert answer["config"] == other.as_dict()
    assert answer["measured"] == {"time_us": 4.5, "samples": 20}
    assert answer["provenance"]["source"] == "measured"
    assert [answer["provenance"][name] for name in ("gpu", "driver", "triton")] == ["NVIDIA H200", "unknown", "unknown"]
    assert answer["predicted"]["time_us"] == workflow.candidates(item, 3)[1][1].prediction.time_us
    assert answer["plan"]["graph"]
    # Another process sees it too, and so does another planner: a measurement does not age with the prediction.
    assert Workflow(store).configure(item).config == other
    assert planned.config != other


def test_measuring_the_plan_slower_than_another_gives_way_to_it(workflow: Workflow, gemm: Gemm) -> None:
    item = gemm(512, 1024, 2048)
    planned, other = workflow.configure(item), other_config(workflow, item)
    time_us = planned.time_us
    assert time_us is not None
    workflow.record(item, other, 3 * time_us)
    assert workflow.configure(item).config == planned.config
    workflow.record(item, planned.config, 4 * time_us)
    assert workflow.configure(item).config == other


def test_a_configuration_that_the_kernel_cannot_run_is_not_recorded(
    workflow: Workflow, store: Store, gemm: Gemm
) -> None:
    with pytest.raises(InvalidConfig):
        workflow.record(gemm(64, 64, 64), TuningConfig.of({"BLOCK_M": 7}, num_warps=4, num_stages=1), 1.0)
    assert count(store, "measurements") == 0


def test_memory_holds_an_answer_for_a_while_only(store: Store, gemm: Gemm) -> None:
    now = 0.0
    workflow = Workflow(store, remember_s=5.0, clock=lambda: now)
    item = gemm(64, 64, 64)
    workflow.configure(item)
    elsewhere = Workflow(store)
    elsewhere.record(item, other_config(elsewhere, item), 0.5)
    assert workflow.configure(item).measured is None
    now = 6.0
    assert workflow.configure(item).measured is not None


def test_memory_is_bounded(store: Store, gemm: Gemm) -> None:
    workflow = Workflow(store, remember=2)
    for m in (16, 32, 48):
        workflow.configure(gemm(m, 64, 64))
    assert len(workflow._memory) == 2


def test_planner_version_names_release_and_source() -> None:
    release, _, digest = planner_version().partition("+")
    assert release
    assert len(digest) == 12
