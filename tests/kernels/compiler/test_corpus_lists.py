"""The corpus' own lists, read as they stand on real autotuners: each configuration is taken through the front end as
Triton would compile it, and bounded."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="the corpus is Triton kernels")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "benchmarks")]

import corpus_registry  # noqa: E402
import plan_lists  # noqa: E402
from corpus_entry import Box, Entry, Problem, resolved, source  # noqa: E402
from planned_machine import Dtype, Machine, Tensor, running  # noqa: E402
from triton import knobs  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.front_end import front_end  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children.list_jobs import compile_one  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import (  # noqa: E402
    TunedLaunch,
    heuristics,
    resets_of,
    tuning_key,
)
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

ENTRIES = corpus_registry.entries()
READ = [
    "gemm_masked", "gemm_split_k_atomic", "gemm_host_descriptors", "gemm_host_persistent", "attention_host_descriptors",
    "fused_moe_up", "w4a16_packed_columns", "attention_backward_dkdv", "space_chunk_scan",
]  # fmt: skip
"""With hooks, with pruning, with heuristics over the configuration, with arguments that are reset, and without."""
PROFILE = embedded(H200.name)


class Strided(Tensor):
    """A tensor with strides of its own."""

    def __init__(self, tensor: Any) -> None:
        size = {"float32": 4, "int32": 4, "int64": 8, "bfloat16": 2, "float16": 2}.get(tensor.dtype, 1)
        super().__init__(*tensor.shape, dtype=Dtype(tensor.dtype, size))
        self.strides = tensor.strides

    def stride(self) -> tuple[int, ...]:
        return self.strides


def launched(entry: Entry, problem: Problem) -> TunedLaunch:
    """The launch that a user writes, of a fresh copy of the entry's tuner."""
    tensors = {name: Strided(tensor) for name, tensor in problem.tensors.items()}
    given: dict[str, Any] = {}
    for name, value in resolved(problem).items():
        if isinstance(value, Box):
            tensor = tensors[value.tensor]
            given[name] = TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [16] * len(value.block))
        else:
            given[name] = tensors[value] if isinstance(value, str) else value
    tuner = copy.copy(entry.kernel)
    tuner.cache = {}
    kwargs = {"grid": problem.grid, "warmup": False, **given, **problem.constants}
    return TunedLaunch(tuner, (), kwargs, tuning_key(tuner, (), kwargs))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running(tmp_path_factory.mktemp("triton")) as machine:
        yield machine


@pytest.mark.parametrize("name", READ)
def test_every_configuration_is_what_triton_would_compile(machine: Machine, name: str) -> None:
    entry = ENTRIES[name]
    problem = entry.problem()
    launch = launched(entry, problem)
    for config in launch.pruned():
        launch.hook(config)
        front = front_end(launch.call(config), PROFILE, H200)
        assert front.packed["source_hash"] == source(entry, problem, config).hash()
        assert front.packed["options"]["num_warps"] == config.num_warps
        assert front.packed["options"]["num_stages"] == config.num_stages
        assert front.grid == tuple(problem.grid(entry.constants(problem, config)))
        assert front.bound_us > 0
        assert front.bytes > 0
        assert json.loads(json.dumps(front.packed))


def test_what_a_child_compiles_is_what_the_job_finds_in_its_cache(machine: Machine) -> None:
    entry = ENTRIES["gemm_host_descriptors"]
    launch = launched(entry, entry.problem())
    config = launch.pruned()[-1]
    launch.hook(config)
    call = launch.call(config)
    job = {"kernel": json.loads(json.dumps(front_end(call, PROFILE, H200).packed)), "scheme": None}
    compiled = compile_one(job, "", H200.smem_bytes_per_block)
    hits: list[bool] = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit, **more: hits.append(cache_hit)
        run = entry.jit.run(**call.arguments, grid=None, warmup=True, **call.options)
    assert hits == [True]
    assert run.hash == compiled["hash"]


def test_lists_are_pruned_as_their_authors_say(machine: Machine) -> None:
    entry = ENTRIES["attention_host_descriptors"]
    assert len(launched(entry, entry.problem()).pruned()) == len(entry.configs)
    narrow = launched(entry, entry.problem({"L": 192}))
    assert 0 < len(narrow.pruned()) < len(entry.configs)


def test_what_is_reset_is_read_from_the_tuner() -> None:
    assert resets_of(ENTRIES["gemm_split_k_atomic"].kernel).zero == ("c_ptr",)
    assert resets_of(ENTRIES["gemm_masked"].kernel).zero == ()
    assert [list(values) for _, values in heuristics(ENTRIES["gemm_split_k_atomic"].kernel)] == [["EVEN_K"]]


def test_a_layer_that_is_not_known_leaves_the_list_to_triton() -> None:
    inner = ENTRIES["gemm_masked"].kernel
    outer = triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=["M"])(inner)
    with pytest.raises(CannotPlan, match="Autotuner between its autotuner and the kernel"):
        heuristics(outer)


def test_what_is_predicted_of_a_list_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["plan_lists.py", "gemm_host_descriptors", "norm_forward", "--out", str(tmp_path)]
    )  # fmt: skip
    plan_lists.main()
    found = json.loads((tmp_path / plan_lists.NAME).read_text())
    gemm, norm = found["rows"]
    assert (gemm["status"], norm["status"]) == ("ranked", "left")
    assert gemm["gain"] >= gemm["winner_planned"] >= 1
    assert gemm["best_us"] > 0
    assert "has no loads that feed a product" in norm["reason"]
    assert found["summary"]["compiled"] <= found["summary"]["configurations"]
    assert found["summary"]["defects"] == []
