"""Specialised kernels played block by block: no deadlock, no race, and what they store is what the kernel stores."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import test_data_partition
from interpreter import Block
from partitions import Deadlock, Partition

from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import parsing

SCHEMES = (
    HopperStrategy(1, (3,)),
    HopperStrategy(2, (1,)),
    HopperStrategy(2, (2,)),
    HopperStrategy(2, (3,), in_flight=0),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("name", ["box_store", "persistent", "causal"])
def test_partitions_together_store_what_the_kernel_stores(
    name: str, scheme: HopperStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, run = prepared(name, monkeypatch)
    addresses, stored = Block(parsing.parse(text), *run).run()
    module = parsing.parse(specialize(text, scheme))
    for seed in range(2):
        where, what = Partition(module, *run, seed=seed).run()
        np.testing.assert_array_equal(where, addresses)
        np.testing.assert_allclose(what, stored, rtol=1e-9, atol=1e-9)


def test_a_slot_that_one_consumer_keeps_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    text, run = prepared("box_store", monkeypatch)
    module = parsing.parse(specialize(text, HopperStrategy(2, (2,))))
    regions = next(operation for operation in module.walk() if operation.name == "ttg.warp_specialize").regions
    for operation in regions[0].walk():
        for region in operation.regions:
            region.operations = [inner for inner in region.operations if inner.name != "ttng.arrive_barrier"]
    with pytest.raises(Deadlock):
        Partition(module, *run, seed=0).run()


def prepared(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, tuple]:
    """The kernel at the cut; what a block of it is run with, deep enough for every ring to wrap."""
    monkeypatch.setattr(test_data_partition, "K", 448)
    monkeypatch.setattr(
        test_data_partition, "SIZES", {"M": test_data_partition.M, "N": test_data_partition.N, "K": 448}
    )
    kernel, types, constants, values, buffers, programs = test_data_partition.case(name)
    return test_data_partition.cut(kernel, types, constants).text, (values, buffers, programs[-1])
