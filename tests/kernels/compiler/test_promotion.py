"""A lone product's lookahead: the next one runs while this one is scaled and added; vectors are read an iteration
ahead."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import triton
from cut_kernels import cut as own_cut
from interpreter import BUFFER
from played import DEPTH, HOPPER, ROWS, cut, own_source, same, tensors

from warpplan.kernels.compiler.analysis.capture import Body, capture
from warpplan.kernels.compiler.costing.fusing import fuse
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.costing.loop_graph import Shape, cost_of, early_vectors, kept_apart, lookahead_product
from warpplan.kernels.compiler.costing.pressure import live_registers
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

PLAIN, TWO, ONE_SLOT = HopperStrategy(1, (2,)), HopperStrategy(2, (3,)), HopperStrategy(1, (1,))
WAITING = HopperStrategy(2, (2,), in_flight=0)
ROUNDS = [(0, 0, 1), (3, 4, 1), (2, 4, 1), (0, 7, 3), (2, 7, 2), (1, 7, 1)]


def given(low: int, high: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    made, data = tensors((ROWS, DEPTH), (64, DEPTH), (ROWS, 64), (ROWS, 1))
    values = {"a": made[0], "b": made[1], "c_ptr": 2 * BUFFER, "d_ptr": 3 * BUFFER, "low": low, "high": high}
    return values, data


def fp8_loop() -> Body:
    return capture(own_cut("fp8_scaled")).loading[0]


@pytest.mark.parametrize("scheme", [PLAIN, TWO, ONE_SLOT, WAITING, HopperStrategy(2, (3,), persistent=1)], ids=str)
@pytest.mark.parametrize(("low", "high", "step"), ROUNDS)
def test_a_loop_of_any_trip_count_and_step(low: int, high: int, step: int, scheme: HopperStrategy) -> None:
    values, buffers = given(low, high)
    lowered = same(cut("promoted", (("STEP", step),)), scheme, values, buffers, seeds=1, launched=1)
    assert lowered.count("isAsync = true") == scheme.consumers * scheme.in_flight
    pairs = re.findall(r"_wp_pairs\S* = scf\.for", lowered)
    assert len(pairs) == (0 if scheme.in_flight else scheme.consumers)  # unrolled by two


@pytest.mark.parametrize("scheme", [PLAIN, TWO, ONE_SLOT, WAITING], ids=str)
@pytest.mark.parametrize("high", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("name", ["promoted_by_pointer", "promoted_in_place"])
def test_other_scales_and_sums(name: str, high: int, scheme: HopperStrategy) -> None:
    values, buffers = given(0, high)
    if name == "promoted_in_place" and scheme.consumers > 1:
        scheme = HopperStrategy(1, scheme.depths, in_flight=0)  # two would each write the scale
    same(cut(name), scheme, values, buffers, seeds=1)


def test_a_scale_that_the_loop_writes_is_not_read_early() -> None:
    body = capture(cut("promoted_in_place")).loading[0]
    assert early_vectors(body) == frozenset()
    assert len(early_vectors(capture(cut("promoted")).loading[0])) >= 2
    loops = re.findall(r"scf\.for .*?iter_args\((.*?)\) ->", specialize(cut("promoted_in_place"), PLAIN))
    assert not any("wp_first" in carried for carried in loops)
    assert any("wp_first" in carried for carried in re.findall(
        r"scf\.for .*?iter_args\((.*?)\) ->", specialize(cut("promoted"), PLAIN)
    ))  # fmt: skip


def test_the_prediction_has_the_next_product_and_the_scales_under_way() -> None:
    costs = embedded(H200.name).costs
    body = fp8_loop()
    (product,) = body.of_kind("dot")
    assert lookahead_product(body) == product.id
    scales = {work.id for work in body.of_kind("load")}
    assert scales <= early_vectors(body) <= kept_apart(body)
    fused, _ = fuse(body, kept_apart(body))
    assert scales <= {work.id for work in fused.work}
    shape = Shape(2, 4)
    assert live_registers(body, shape) > live_registers(body, Shape(2, 4, in_flight=False))
    ranked = [r for r in rank(capture(own_cut("fp8_scaled")), embedded(H200.name), H200) if r.scheme is not None]
    narrow = rank(capture(cut("promoted")), embedded(H200.name), H200)
    flags = [
        {r.scheme.in_flight for r in found if isinstance(r.scheme, HopperStrategy) and r.scheme.consumers == 2}
        for found in (ranked, narrow)
    ]
    assert flags == [{0}, {0, 1}]  # two tiles of 64 x 128 sums beside the accumulator leave ptxas too few registers
    best = min(ii for r in ranked for ii in r.ii_cycles)
    waited = max(cost_of(work, costs, shape, "dram").latency for work in body.of_kind("load"))
    assert best < waited  # an iteration that waited for its own scales would be longer


def test_the_promotion_stands_between_the_next_product_and_its_wait_in_machine_code(tmp_path: Path) -> None:
    kernel = compile_with(own_source("promoted"), HOPPER, {}, HopperStrategy(2, (3,)), tmp_path)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    assert "STACK:0 " in told("cuobjdump", "--dump-resource-usage", cubin)  # nothing is spilled
    names = re.findall(r"HGMMA|DEPBAR\.LE gsb0|FFMA", told("nvdisasm", "-c", cubin))
    until_waits = " ".join(names).split("DEPBAR")[:-1]
    overlapped = [piece.partition("HGMMA")[2].count("FFMA") for piece in until_waits]
    assert sum(count >= 32 for count in overlapped) == 2  # 64 rows of 64 sums are 32 a thread, in each consumer's loop


def told(tool: str, *arguments: str | Path) -> str:
    """What a tool of Triton's says."""
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / tool
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
