"""What Inductor's templates and Helion's kernels are to the planner: planned, and computing the same, or refused with
the operation and its line."""

from __future__ import annotations

import re
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from corpus_play import filled, printed, some
from generated_kernels import KERNELS, Generated
from plan_corpus import DEVICE, MOST_SCHEMES, lowered
from planned_machine import Tensor, running
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warpplan.kernels import planned
from warpplan.kernels.compiler.analysis.capture import Captured, capture
from warpplan.kernels.compiler.costing import hopper_ranking
from warpplan.kernels.compiler.inspection.finished import finished_text, written_text
from warpplan.kernels.compiler.inspection.player import comparison
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    PlayedInputs,
    play,
    ready,
)
from warpplan.kernels.compiler.launching import decide
from warpplan.kernels.compiler.lowering.hopper.persistent import walked_over
from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

TARGET = GPUTarget("cuda", 90, 32)
ELEMENTS = {"bfloat16": "*bf16", "float8_e4m3fn": "*fp8e4nv", "float32": "*fp32", "int32": "*i32", "uint8": "*u8"}
PLANNED = (
    "mm_pointers", "bmm", "grouped_mm", "grouped_mm_gradient", "scaled_mm", "scaled_mm_tma", "scaled_mm_blocks",
    "flex_decoding", "flex_backward", "helion_matmul", "helion_persistent_matmul", "helion_attention",
)  # fmt: skip
REFUSED = {
    "helion_softmax": (
        "tt.func",
        "def helion_softmax(x, out, _RDIM_SIZE_1: tl.constexpr):",
        "no loop: there is nothing for a producer to run ahead of",
    ),
}
"""The operation and the text of its line that keep a kernel from being planned, and how the reason begins."""


def source(made: Generated) -> Any:
    names = [parameter.name for parameter in made.kernel.params]
    signature = {name: ELEMENTS[tensor.dtype] for name, tensor in made.tensors.items()}
    signature |= dict.fromkeys(made.constants, "constexpr")
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in made.tensors}
    constants = {(names.index(name),): value for name, value in made.constants.items()}
    return ASTSource(made.kernel, {name: signature[name] for name in names}, constants, aligned)


def options(made: Generated) -> dict[str, Any]:
    return {"num_warps": made.warps, "num_stages": made.stages}


@cache
def captured(name: str) -> Captured:
    made = KERNELS[name]
    at_cut = planned_cut(source(made), TARGET, options(made))
    return explained(capture(at_cut.text), at_cut.described)


@cache
def ranking(name: str) -> tuple[Any, ...]:
    profile = embedded(DEVICE)
    return tuple(hopper_ranking.rank(captured(name), profile, H200, stages=KERNELS[name].stages))


def test_each_recorded_kernel_is_spoken_of_in_the_documentation_too() -> None:
    assert sorted((*PLANNED, *REFUSED)) == sorted(KERNELS)
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "share-decisions.md").read_text()
    rows = dict(re.findall(r"^\| .* \| `(\w+)` \| (\w+)", page, re.MULTILINE))
    assert rows == dict.fromkeys(PLANNED, "planned") | dict.fromkeys(REFUSED, "left")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_a_generated_kernel_is_planned_and_computes_the_same(name: str) -> None:
    made = KERNELS[name]
    better = [r for r in ranking(name) if r.scheme is not None and r.gain > 1.0 and not r.scheme.stores_by_tma]
    found, scheme = lowered(source(made), TARGET, options(made), better[:MOST_SCHEMES])
    assert found["status"] == "planned", found
    assert found["waits_played"]
    draw = np.random.default_rng(3)
    buffers = {key: filled(tensor, draw) for key, tensor in made.tensors.items()}
    given = PlayedInputs(buffers, tuple(BufferArgument(key) for key in buffers))
    total = int(np.prod(made.grid))
    everywhere = [place[::-1] for place in np.ndindex(*made.grid[::-1])]
    launched = -(-total // 2) if scheme.walking_programs else None
    if launched is None:
        walking = places = some(everywhere, 2)
    else:
        walking = [(0, 0, 0)]
        places = [everywhere[i] for i in walked_over(0, launched, total)]
    code = ready(written_text(source(made), TARGET, options(made)))
    wanted = play(code, given, made.grid, places=places)
    planned = play(
        ready(finished_text(source(made), TARGET, options(made), scheme)), given, made.grid, 1, launched, walking
    )
    assert any(not np.array_equal(data, buffers[key]) for key, data in wanted.buffers.items()), "something is stored"
    elements = {key: printed(tensor.dtype) for key, tensor in made.tensors.items()}
    compared = comparison.compare(wanted.buffers, planned.buffers, elements, comparison.coarsest_rounding(code))
    assert not compared.differs, str(compared)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_operation_and_its_line(name: str) -> None:
    operation, text, reason = REFUSED[name]
    assert not any(r.scheme is not None for r in ranking(name))
    obstacles = captured(name).obstacles
    found = next((each for each in obstacles if each.loop), obstacles[0])
    file, number = found.line.split("@")[0].rsplit(":", 1)
    assert file == "generated_kernels.py"
    line = (Path(__file__).parent / file).read_text().splitlines()[int(number) - 1]
    assert (found.operation, line.strip()) == (operation, text)
    assert found.reason.startswith(reason)


def test_a_tile_of_a_batch_of_one_is_loaded_by_tma() -> None:
    made = KERNELS["helion_attention"]
    at_cut = planned_cut(source(made), TARGET, options(made))
    assert len(at_cut.described.lines) == 2
    assert not at_cut.described.unchanged


def test_helion_launches_its_kernels_where_planned_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Helion 1.5.1's ``default_launcher`` does, with the options that it passes."""
    monkeypatch.setattr(decide, "gpu", lambda number: (DEVICE, 90))
    made = KERNELS["helion_matmul"]
    arguments = [Tensor(*tensor.shape) for tensor in made.tensors.values()]
    options = {"num_warps": made.warps, "num_stages": made.stages, "launch_cooperative_grid": False}
    with running(tmp_path) as machine:
        with planned(HopperStrategy(2, (3,)), measure=False, background=False), warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                made.kernel.run(*arguments, grid=made.grid, warmup=False, **options)
        assert machine.warps == [4, 12]
