"""Kernels of many kinds, as far as the cut: what the compiler path is for must reach it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from triton.backends.compiler import GPUTarget
from zoo import ZOO, source

from warpplan.kernels.compiler import ir, pipeline

pytestmark = pytest.mark.matrix
UNSTRUCTURED = ("gathered_experts",)
"""An early ``return`` leaves blocks and branches instead of loops and ifs."""


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
    assert str(ir.parse(text)) == text


@pytest.mark.parametrize("name", UNSTRUCTURED)
def test_a_way_out_of_the_middle_is_refused_in_words(name: str) -> None:
    with pytest.raises(ir.MalformedIR, match="several blocks in one region"):
        ir.parse(compiled_to_the_cut(name))
