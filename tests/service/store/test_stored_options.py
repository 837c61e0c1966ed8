"""Shapes with options in the store: under one text each, read back as they were, never taken for one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import Measurement
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item, check

SIZES = (("N", 98432), ("G", 3))


def requests() -> st.SearchStrategy[ConfigRequest]:
    names = st.lists(st.text("abcMNK", min_size=1), min_size=1, max_size=5, unique=True)
    values = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)

    def made(names: list[str], sizes: list[int], values: list[str]) -> ConfigRequest:
        count = min(len(names), len(sizes))
        options = [f"{name}={value}" for name, value in zip(names[count:], values, strict=False)]
        return ConfigRequest("k", tuple(names[:count]), (*sizes[:count], *options), "bfloat16", "NVIDIA H200")

    return st.builds(made, names, st.lists(st.integers(1, 1 << 31), min_size=1, max_size=3), st.lists(values))


@given(requests())
def test_a_question_is_read_back_from_its_text(request: ConfigRequest) -> None:
    assert ConfigRequest.read(request.kernel, request.shape_json, request.dtype, request.device) == request


def test_shapes_without_options_keep_their_text() -> None:
    request = check(Item("gemm", (("K", 64), ("M", 64), ("N", 128))))[0]
    assert request.shape_json == '{"M":64,"N":128,"K":64}'


def test_a_kept_shape_is_listed_as_it_was_asked(store: Store, grouped_add: str) -> None:
    workflow = Workflow(store)
    items = [Item(grouped_add, (*SIZES, *more)) for more in ((), (("spread", "narrow"),), (("sizes", [1, 2, 3]),))]
    asked = {workflow.configure(item).problem for item in items}
    assert set(store.problems()) == asked
    assert {p.canonical for p in asked} == {(98432, 3), (98432, 3, "spread=narrow"), (98432, 3, "sizes=1,2,3")}


def test_neither_an_answer_nor_a_measurement_of_another_option_is_found(store: Store, grouped_add: str) -> None:
    workflow = Workflow(store)
    wide = workflow.configure(Item(grouped_add, SIZES))
    narrow = check(Item(grouped_add, (*SIZES, ("spread", "narrow"))))[0]
    store.record(Measurement(wide.problem, wide.config, 1.25))
    assert store.find([narrow], wide.profile, wide.planner) == {}
    assert store.measured([narrow]) == {}
    assert list(store.measured([narrow, wide.problem])) == [wide.problem]
    assert workflow.configure(Item(grouped_add, (*SIZES, ("spread", "narrow")))).measured is None


def test_a_measured_configuration_is_planned_under_its_option(store: Store, grouped_add: str) -> None:
    """The fastest measured configuration need not be the planned one; its loop is that of the shape's option."""
    item = Item(grouped_add, (*SIZES, ("spread", "narrow")))
    workflow = Workflow(store)
    second = workflow.candidates(item, 2)[1][1]
    workflow.record(item, second.config, 1.25)
    answer = Workflow(store).configure(item)
    assert (answer.config, answer.config.num_warps) == (second.config, 1)
    assert answer.plan is not None
