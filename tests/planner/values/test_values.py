"""The small values that everything passes around: devices, profiles, tuning configurations, errors."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner import errors
from warpplan.planner.errors import InvalidGraph, InvalidInput, MalformedFile, MissingCosts, UnknownName, WarpplanError
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import DEVICES, H200, device
from warpplan.planner.values.profile import Identity
from warpplan.planner.values.tuning import TuningConfig

from .. import strategies as given_

IDENTITY = Identity("NVIDIA H200", "580", "13.0", "3.6.0", "2.11.0", "3.12.3", "2026-01-01", "warpplan profile")


def test_devices_by_name():
    assert device("NVIDIA H200") is H200
    with pytest.raises(UnknownName, match=r"unknown device 'RTX': expected one of NVIDIA H200, NVIDIA H100"):
        device("RTX")


@pytest.mark.parametrize("found", DEVICES.values(), ids=lambda d: d.name)
def test_devices_do_not_contradict_themselves(found):
    assert found.smem_bytes_per_block < found.smem_bytes_per_sm
    assert found.registers_per_sm == 65_536
    assert found.has_wgmma == (found.capability == 90)
    assert (found.tmem_columns > 0) == (found.capability >= 100)


@given(given_.profiles)
def test_a_profile_is_hashed_by_its_identity_and_compared_by_everything(profile):
    other = replace(profile, costs=CostTable(()), notes=(*profile.notes, "changed"))
    assert hash(other) == hash(profile)
    assert other != profile
    assert replace(profile) == profile


@pytest.mark.parametrize("name", ["gpu", "driver", "cuda", "triton", "torch"])
def test_profiles_of_unlike_machines_are_not_comparable(name):
    assert not IDENTITY.comparable(replace(IDENTITY, **{name: "other"}))


def test_date_python_and_command_do_not_matter():
    assert IDENTITY.comparable(replace(IDENTITY, date="2027-01-01", python="3.13", command="x"))


@given(st.permutations([("B", 1), ("A", "x"), ("C", True)]))
def test_a_tuning_configuration_does_not_depend_on_the_order_of_its_arguments(pairs):
    config = TuningConfig.of(dict(pairs), num_warps=4, num_stages=2)
    assert config == TuningConfig((("A", "x"), ("B", 1), ("C", True)), 4, 2)
    assert config.as_dict() == {
        "kwargs": {"A": "x", "B": 1, "C": True}, "num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None,
    }  # fmt: skip


def test_a_tuning_configuration_is_a_triton_config():
    triton = pytest.importorskip("triton")
    config = TuningConfig.of({"BLOCK": 64}, num_warps=8, num_stages=3, maxnreg=168)
    made = triton.Config(**config.as_dict())
    assert (made.kwargs, made.num_warps, made.num_stages, made.num_ctas, made.maxnreg) == ({"BLOCK": 64}, 8, 3, 1, 168)


def test_every_error_is_one_of_ours_and_the_drawing_shows_them_all():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) > 8
    drawn = errors.__doc__ or ""
    for found in classes:
        assert issubclass(found, WarpplanError)
        assert found.__name__ in drawn


def test_the_drawing_is_the_tree():
    """A name's parent is the last name above it that is drawn further left."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if "Warpplan" in line[:20] or "─" in line]
    drawn = [(len(line) - len(line.lstrip("│├└─ ")), line.lstrip("│├└─ ").split()[0]) for line in lines]
    for i, (depth, name) in enumerate(drawn[1:], start=1):
        parent = next(n for d, n in reversed(drawn[:i]) if d < depth)
        assert getattr(errors, name).__base__ is getattr(errors, parent), name


def test_errors_carry_the_field_its_value_and_what_it_may_be():
    error = UnknownName("kernel", "gemv", ("gemm",))
    assert (error.field, error.value, error.limit) == ("kernel", "gemv", ["gemm"])
    assert isinstance(error, InvalidInput)
    assert str(UnknownName("target", "x", ())) == "unknown target 'x': expected one of (none)"
    missing = MissingCosts(name for name in "ab")
    assert missing.operations == ("a", "b")
    assert "for a, b: record them with `warpplan profile --out FILE`" in str(missing)


def test_a_malformed_file_says_where():
    assert str(MalformedFile("p.json", "no identity")) == "p.json: no identity"
    error = MalformedFile("p.csv", "K is missing", line=3)
    assert (str(error), error.line, error.path) == ("p.csv:3: K is missing", 3, "p.csv")


@pytest.mark.parametrize(
    ("folder", "may"),
    [
        ("values", {"errors", "later_fields", "values"}),
        ("check", {"errors", "values", "check"}),
        ("simulate", {"errors", "values", "simulate"}),
    ],
)
def test_folders_import_only_what_lies_below_them(folder, may):
    root = Path(inspect.getfile(errors)).parent
    for module in (root / folder).rglob("*.py"):
        imported = {n.module or "" for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.ImportFrom)}
        own = {name.split(".")[2] for name in imported if name.startswith("warpplan.planner.")}
        assert own <= may, module


OPS = tuple(Operation(name, "TMA", 1, 1, 1) for name in "abcd")


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        (("ab", "bb", "bc"), ["b"]),
        (("ab", "bc", "cb", "cd"), ["b", "c"]),
        (("ca", "ad", "dc", "ab"), ["a", "c", "d"]),
    ],
)
def test_a_cycle_of_distance_0_names_its_operations_alone(edges, cycle):
    with pytest.raises(InvalidGraph, match=f"^operations {', '.join(cycle)} form a cycle of distance 0") as caught:
        DependenceGraph("g", OPS, tuple(Dependence(*ends) for ends in edges))
    assert caught.value.value == cycle


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": ()}, r"unknown unit 'TMA': expected one of \(none\) or null"),
        ({"units": (("TMA", 1.5),)}, "unit 'TMA' has capacity 1.5: expected a whole number of 1 or more"),
        ({"units": (("TMA", 1), ("TMA", 2))}, "unit 'TMA' is given twice"),
        ({"limits": Limits(architecture="ampere")}, "limits.architecture is 'ampere': expected one of any, hopper"),
        ({"ops": (replace(OPS[0], memory="l2"),)}, "operation 'a' has memory 'l2': expected one of smem, tmem"),
        ({"ops": (replace(OPS[0], lanes=64.0),)}, "operation 'a' has lanes 64.0: expected one of 64, 128"),
        ({"edges": (Dependence("a", "b", kind="war"),)}, "edge a -> b has kind 'war': expected one of data, token"),
    ],
)
def test_a_graph_that_was_not_read_from_a_file_is_checked_as_strictly(change, message):
    with pytest.raises(InvalidGraph, match=message):
        DependenceGraph(**{"name": "g", "ops": OPS, "edges": (), **change})
