from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidGraph, InvalidInput, MalformedFile
from warpplan.planner.values.codec import SCHEMAS, canonical, from_json, key, loads, schema, to_json
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Operation
from warpplan.planner.values.profile import Identity, Profile, Rate
from warpplan.planner.values.tuning import TuningConfig

from .. import strategies as given_

GRAPH = DependenceGraph(
    "two",
    (Operation("a", "TMA", 7, 2, 1), Operation("b", None, 1, 0, 1)),
    (Dependence("a", "b"), Dependence("b", "a", 1)),
)
GRAPH_FILE = {
    "schema": "warpplan/graph-1",
    "name": "two",
    "ops": [
        {"id": "a", "unit": "TMA", "latency": 7, "occupancy": 2, "issue": 1},
        {"id": "b", "unit": None, "latency": 1, "occupancy": 0, "issue": 1},
    ],
    "edges": [{"src": "a", "dst": "b"}, {"src": "b", "dst": "a", "distance": 1}],
}


@given(given_.graphs() | given_.plans | given_.outcomes | given_.profiles | given_.configs | given_.timelines)
def test_every_value_survives_json(value):
    assert from_json(to_json(value)) == value
    again = from_json(json.loads(canonical(value)), type(value))
    assert canonical(again) == canonical(value)
    assert key(again) == key(value)


@given(given_.plans | given_.profiles | given_.configs)
def test_order_is_kept_even_in_canonical_bytes(value):
    assert loads(canonical(value)) == value


def test_the_graph_file_of_the_specification_reads_with_defaults():
    assert from_json(GRAPH_FILE) == GRAPH
    assert from_json(GRAPH_FILE | {"units": {"TENSOR": 1, "TMA": 1, "ALU": 1, "LSU": 1, "SFU": 1}}) == GRAPH


def test_canonical_bytes_are_pinned():
    """A change here changes every stored key: it needs a new schema version."""
    config = TuningConfig.of({"BLOCK_M": 128, "SWAP": False}, num_warps=8, num_stages=1)
    assert canonical(config) == (
        b'{"kwargs":{"BLOCK_M":128,"SWAP":false},"maxnreg":null,"num_ctas":1,"num_stages":1,"num_warps":8,'
        b'"schema":"warpplan/config-1"}'
    )
    assert key(config) == "fc60bc77ab4882c3a669e747fc0df058765292bfe1cc121ee3ad28e0abfaab54"


def test_whole_numbers_and_floats_of_equal_value_share_a_key():
    def profile(value: float) -> Profile:
        return Profile(Identity(*"abcdefgh"), CostTable(()), (("copy", Rate(value, value, value, 1)),))

    assert canonical(profile(1)) == canonical(profile(1.0))


def test_the_key_does_not_depend_on_the_hash_seed():
    code = "import sys; from warpplan.planner.values.codec import key, loads; print(key(loads(sys.stdin.read())))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], input=canonical(GRAPH).decode(), env=os.environ | {"PYTHONHASHSEED": seed},
            check=True, capture_output=True, text=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }  # fmt: skip
    assert seen == {key(GRAPH)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "warpplan/graph-2"}, "newer"),
        ({"schema": "warpplan/graph-0"}, "older"),
        ({"schema": "warpplan/kernel-1"}, "unknown schema 'warpplan/kernel-1'"),
        ({"schema": 3}, "schema is missing"),
        ({"name": 3}, "name is 3: expected text"),
        ({"edges": {}}, "edges is {}: expected a list"),
        ({"edges": [{"src": "a"}]}, "edges[0].dst is missing"),
        ({"edges": [{"src": "a", "dst": "b", "kind": "maybe"}]}, "edges[0].kind is 'maybe': expected one of data"),
        ({"ops": [GRAPH_FILE["ops"][0] | {"latency": 1.5}]}, "ops[0](a).latency is 1.5: expected a whole number"),
        ({"ops": [GRAPH_FILE["ops"][0] | {"latency": True}]}, "ops[0](a).latency is True: expected a whole number"),
        ({"ops": [GRAPH_FILE["ops"][0] | {"occupency": 1}]}, "unknown field ops[0](a).occupency"),
        ({"units": {"TMA": "one"}}, "units.TMA is 'one': expected a whole number"),
        ({"limits": {"smem": 1}}, "unknown field limits.smem"),
        ({"ops": 7 * [GRAPH_FILE["ops"][0]]}, "operation 'a' appears twice"),
    ],
)
def test_a_bad_graph_is_one_line_that_names_the_element(change, message):
    with pytest.raises(InvalidInput) as caught:
        from_json(GRAPH_FILE | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_schema_that_is_missing_or_unknown_is_told_the_one_that_is_read():
    for found in ({}, {"schema": "graph"}):
        with pytest.raises(InvalidInput, match=r"expected one of warpplan/graph-1$"):
            from_json(found, DependenceGraph)


def test_graph_errors_keep_their_kind_outside_files_and_their_file_inside():
    twice = GRAPH_FILE | {"ops": 2 * [GRAPH_FILE["ops"][0]]}
    with pytest.raises(InvalidGraph):
        from_json(twice)
    with pytest.raises(MalformedFile, match=r"^loop\.json: operation 'a' appears twice"):
        loads(json.dumps(twice), "loop.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "warpplan/graph-1",\n "name"', "loop.json:2: not JSON"),
        ("", "loop.json:1: not JSON"),
        (b"\xff\xfe\x00", "loop.json: not JSON"),
        ('{"schema": "warpplan/config-1", "kwargs": {"x": NaN}}', "kwargs.x is nan: expected"),
        ('{"schema": "warpplan/config-1", "kwargs": {"x": -Infinity}}', "kwargs.x is -inf: expected"),
        ('{"schema": "warpplan/config-1", "num_warps": 4, "num_warps": 8}', "field 'num_warps' is given twice"),
        ('{"schema": "warpplan/config-1", "num_warps": ' + "9" * 5000 + "}", "has 5000 digits"),
        (r'{"schema": "warpplan/graph-1", "name": "\ud800"}', r"name is '\ud800': expected text"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "the document is [1]: expected an object"),
        ("null", "the document is None"),
    ],
)
def test_text_that_is_no_value_names_the_file_and_the_line(text, message):
    with pytest.raises(MalformedFile) as caught:
        loads(text, "loop.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
def test_infinities_spelt_as_numbers_are_refused(number):
    profile = to_json(Profile(Identity(*"abcdefgh"), CostTable(()), (("copy", Rate(1.5, 1.0, 2.0, 1)),)))
    text = json.dumps(profile).replace("1.5", number)
    with pytest.raises(MalformedFile, match=r"ceilings.copy.p50"):
        loads(text)


def test_infinity_cannot_be_written():
    profile = Profile(Identity(*"abcdefgh"), CostTable(()), (("copy", Rate(float("inf"), 1.0, 2.0, 1)),))
    with pytest.raises(InvalidInput, match=r"ceilings.copy.p50 is inf"):
        to_json(profile)


def test_another_kind_than_the_one_expected_is_refused():
    with pytest.raises(InvalidInput, match="'warpplan/graph-1' is not the 'warpplan/profile-1'"):
        from_json(GRAPH_FILE, Profile)


def test_schema_names():
    assert sorted(schema(kind) for kind in SCHEMAS) == [
        "warpplan/config-1", "warpplan/graph-1", "warpplan/outcome-1", "warpplan/plan-1", "warpplan/profile-1",
        "warpplan/timeline-1",
    ]  # fmt: skip


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | given_.texts,
    lambda inner: st.lists(inner) | st.dictionaries(given_.texts, inner),
)


@given(anything)
def test_arbitrary_json_is_refused_and_never_crashes(data):
    with pytest.raises(InvalidInput):
        from_json(data)
