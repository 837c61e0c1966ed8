"""Kernels of many kinds, as far as the cut: what the compiler path is for must reach it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from zoo import ZOO, source

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import parsing

pytestmark = pytest.mark.matrix
BACKEND = make_backend(GPUTarget("cuda", 90, 32))
UNSTRUCTURED = ("gathered_experts",)
"""An early ``return`` leaves blocks that branch; they are read as ifs, and printed as such."""


def test_there_are_kernels_of_many_kinds() -> None:
    assert len(ZOO) >= 15
    assert sum(specimen.loads for specimen in ZOO.values()) >= 10


def compiled_to_the_cut(name: str) -> str:
    return pipeline.cut(source(name), GPUTarget("cuda", 90, 32), ZOO[name].options).text


@pytest.mark.parametrize("name", ZOO)
def test_a_kernel_reaches_the_cut(name: str) -> None:
    text = compiled_to_the_cut(name)
    products = "tt.dot" in text or "ttng.warp_group_dot" in text
    assert ("tt.descriptor_load" in text and products) == ZOO[name].loads


@pytest.mark.parametrize("name", [name for name in ZOO if name not in UNSTRUCTURED])
def test_what_reaches_the_cut_is_read_and_printed_back(name: str) -> None:
    text = compiled_to_the_cut(name)
    assert str(parsing.parse(text)) == text


@pytest.mark.parametrize("name", UNSTRUCTURED)
def test_a_way_out_of_the_middle_is_read_as_a_branch(name: str) -> None:
    text = compiled_to_the_cut(name)
    assert "cf.cond_br" in text
    printed = str(parsing.parse(text))
    assert " cf." not in printed
    assert printed.count("scf.if") == text.count("cf.cond_br")
    assert str(parsing.parse(printed)) == printed
    assert str(pipeline.read(printed, pipeline.cutting.new_context(BACKEND))).count("scf.if") == 1


COPY = "transposed_copy"
"""Loads by TMA and multiplies nothing: one consumer can take its tiles."""
COUNTING = "stream_k"
"""Counts what it has added up by one atomic operation a tile, which only one consumer may."""


def scheme(name: str) -> HopperStrategy:
    """Consumers of 64 rows."""
    return HopperStrategy(1 if name == COUNTING else max(1, ZOO[name].constants.get("BM", 64) // 64), (2,))


def at_the_cut(name: str) -> tuple[Any, str]:
    """Triton's options and the text, with the warps of one consumer."""
    found = pipeline.cut(source(name), GPUTarget("cuda", 90, 32), {**ZOO[name].options, "num_warps": 4})
    return found.options, found.text


@pytest.mark.parametrize("name", [*(n for n in ZOO if ZOO[n].loads), COPY])
def test_a_kernel_that_loads_by_tma_is_specialised_and_finishes(name: str) -> None:
    options, text = at_the_cut(name)
    module = pipeline.read(specialize(text, scheme(name)), pipeline.cutting.new_context(BACKEND))
    pipeline.run_after(module, options, 90, pipelined=True)
    finished = str(module)
    assert "ttg.warp_specialize(" in finished
    assert "ttng.async_tma_copy_global_to_local" in finished
    assert "tt.descriptor_load" not in finished


def test_what_cannot_be_specialised_is_refused_with_the_users_line() -> None:
    with pytest.raises(CannotPlan, match="each would repeat it") as refused:
        specialize(at_the_cut(COUNTING)[1], HopperStrategy(2, (2,)))
    file, _, line = refused.value.line.partition(":")
    assert "lock_ptr + tile" in (Path(__file__).parent / file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("name", [n for n in ZOO if not ZOO[n].loads and n != COPY])
def test_a_kernel_without_loads_by_tma_is_left_alone_in_words(name: str) -> None:
    with pytest.raises(CannotPlan) as refused:
        specialize(at_the_cut(name)[1], HopperStrategy(1, (2,)))
    assert refused.value.reason
