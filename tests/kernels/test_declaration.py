"""Shapes: sizes in order, then the options that are not at their defaults, so that one computation has one shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels import registry
from warpplan.kernels.declaration import (
    MAX_ELEMENTS,
    MAX_LIST_CHARACTERS,
    Declaration,
    Shape,
    ShapeField,
    ShapeOption,
)
from warpplan.planner.errors import InvalidInput, InvalidShape

LAYOUT = ShapeOption("layout", "how A and B lie in memory", ("nt", "nn", "tn"), "nt")
SIZES = ShapeOption("sizes", "rows of each group", ("balanced", "skewed"), "balanced", whole_numbers=True)
GROUPED = Declaration(
    name="grouped",
    description="a product for each group",
    fields=(ShapeField("M", "rows"), ShapeField("G", "groups", greatest=256)),
    dtypes=("bfloat16",),
    examples=((4096, 8), (4096, 8, "layout=nn")),
    options=(LAYOUT, SIZES),
)
PLAIN = Declaration("plain", "no options", (ShapeField("N", "elements"),), ("bfloat16",), ((7,),))


def lists() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, MAX_ELEMENTS), min_size=1, max_size=64)


def givens() -> st.SearchStrategy[dict[str, object]]:
    """Sizes and options as people may give them: in any order, as numbers or text, options left out or at defaults."""
    sizes = st.one_of(st.integers(1, 256), st.integers(1, 256).map(str), st.integers(1, 256).map(lambda n: f" {n:05} "))
    listed = lists().map(lambda numbers: " , ".join(f"{n:04}" for n in numbers))
    fields = {
        "M": sizes,
        "G": sizes,
        "layout": st.sampled_from(["nt", " nn", "tn", None]),
        "sizes": st.one_of(st.sampled_from(["balanced", "skewed ", None]), lists(), listed),
    }
    needed = st.fixed_dictionaries({n: s for n, s in fields.items() if n.isupper()})
    optional = st.fixed_dictionaries({}, optional={n: s for n, s in fields.items() if n.islower()})
    return st.tuples(needed, optional).map(lambda parts: {**parts[1], **parts[0]})


@given(givens())
def test_a_parsed_shape_is_read_back_from_its_names(given: dict[str, object]) -> None:
    shape = GROUPED.parse_shape(given)
    assert GROUPED.parse_shape(GROUPED.named(shape)) == shape
    assert GROUPED.parse_shape({**GROUPED.named(shape), **GROUPED.chosen(shape)}) == shape
    assert GROUPED.parse_shape({name: str(value) for name, value in GROUPED.named(shape).items()}) == shape


@given(givens())
def test_sizes_and_options_of_a_shape_are_all_of_it(given: dict[str, object]) -> None:
    shape = GROUPED.parse_shape(given)
    sizes, chosen = GROUPED.sizes(shape), GROUPED.chosen(shape)
    assert len(sizes) == 2
    assert list(chosen) == ["layout", "sizes"]
    others = [f"{o.name}={chosen[o.name]}" for o in GROUPED.options if chosen[o.name] != o.default]
    assert shape == (*sizes, *others)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"M": 64, "G": 2}, (64, 2)),
        ({"M": 64, "G": 2, "layout": "nt", "sizes": "balanced"}, (64, 2)),
        ({"sizes": "skewed", "layout": "nn", "M": "64", "G": "2"}, (64, 2, "layout=nn", "sizes=skewed")),
        ({"M": 64, "G": 2, "sizes": [32, 0]}, (64, 2, "sizes=32,0")),
        ({"M": 64, "G": 2, "sizes": "32, 00"}, (64, 2, "sizes=32,0")),
        ({"M": 64, "G": 1, "sizes": "64"}, (64, 1, "sizes=64")),
    ],
)
def test_one_computation_has_one_shape(given: dict[str, object], shape: Shape) -> None:
    assert GROUPED.parse_shape(given) == shape


def test_a_shape_without_options_is_its_sizes() -> None:
    assert PLAIN.parse_shape({"N": 7}) == (7,)
    assert PLAIN.named((7,)) == {"N": 7}
    assert PLAIN.chosen((7,)) == {}


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"layout": "xx"}, "layout", "layout='xx' is unknown: expected nt, nn, tn"),
        ({"layout": 3}, "layout", "layout=3 is unknown: expected nt, nn, tn"),
        ({"layout": "1,2"}, "layout", "layout='1,2' is unknown"),
        ({"sizes": "1,,2"}, "sizes", "expected balanced, skewed, or whole numbers such as 1,2,3"),
        ({"sizes": ""}, "sizes", "sizes='' is unknown"),
        ({"sizes": []}, "sizes", r"sizes=\[\] is unknown"),
        ({"sizes": [1, -1]}, "sizes", r"sizes=\[1, -1\] is unknown"),
        ({"sizes": [True]}, "sizes", r"sizes=\[True\] is unknown"),
        ({"sizes": [1.5]}, "sizes", r"sizes=\[1.5\] is unknown"),
        ({"sizes": [10**5000]}, "sizes", "sizes holds .too long to show.: expected 2147483648 or less each"),
        ({"sizes": [7] * 1001}, "sizes", "sizes is a list of 2001 characters: expected 2000 or less, or one of"),
        ({"Layout": "nn"}, "Layout", "grouped has no dimension or option 'Layout': expected M, G, layout, sizes"),
    ],
)
def test_what_no_option_takes_is_refused_by_name(given: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(InvalidShape, match=message) as refused:
        GROUPED.parse_shape({"M": 64, "G": 2, **given})
    assert refused.value.field == field
    assert refused.value.limit is not None


def test_a_list_may_be_as_long_as_the_limit() -> None:
    numbers = [7] * (MAX_LIST_CHARACTERS // 2)
    assert GROUPED.chosen(GROUPED.parse_shape({"M": 1, "G": 1, "sizes": numbers}))["sizes"].count("7") == len(numbers)


def test_a_kernel_without_options_takes_none() -> None:
    with pytest.raises(InvalidShape, match="plain has no dimension 'layout': expected N"):
        PLAIN.parse_shape({"N": 7, "layout": "nn"})


def test_a_declaration_that_contradicts_itself_is_a_mistake_of_its_author() -> None:
    with pytest.raises(ValueError, match="the default 'x' of layout is none of nn"):
        ShapeOption("layout", "", ("nn",), "x")
    with pytest.raises(ValueError, match="plain declares a name twice: N, N"):
        Declaration("plain", "", PLAIN.fields, (), ((7,),), options=(ShapeOption("N", "", ("a",), "a"),))


def test_the_listing_says_what_each_option_takes() -> None:
    listed = GROUPED.as_dict()
    assert listed["options"] == [
        {
            "name": "layout",
            "meaning": "how A and B lie in memory",
            "choices": ["nt", "nn", "tn"],
            "default": "nt",
            "whole_numbers": False,
        },
        {
            "name": "sizes",
            "meaning": "rows of each group",
            "choices": ["balanced", "skewed"],
            "default": "balanced",
            "whole_numbers": True,
        },
    ]
    assert listed["examples"] == [{"M": 4096, "G": 8}, {"M": 4096, "G": 8, "layout": "nn"}]


def test_a_name_stands_for_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    registry.register("mine", "my.kernels:Mine")
    registry.register("mine", "my.kernels:Mine")
    for name, place, told in (
        ("gemm", "my.kernels:Mine", "is warpplan.kernels.gemm.kernel:Gemm already"),
        ("mine", "my.kernels:Other", "already"), ("other", "my.kernels.Mine", "expected module:class"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=told):
            registry.register(name, place)
