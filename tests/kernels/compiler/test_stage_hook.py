"""Compiles under a scheme: what Triton finishes, and what keeps one from being taken for another."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels_under_test import source as gemm
from played import HOPPER, cut, zoo_cut
from triton import knobs
from triton.backends.compiler import GPUTarget
from zoo import source

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper import persistent
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy import stage_hook
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import ir, parsing


def test_every_scheme_has_a_key_of_its_own() -> None:
    fields = itertools.product((1, 2), ((2,), (3,), (2, 3), (3, 2)), (4,), (0, 1), (0, 1))
    schemes = [HopperStrategy(*values) for values in fields] + [HopperStrategy(1, (2,), 8)]
    assert len({stage_hook.cache_key(scheme) for scheme in schemes}) == len(schemes)


def test_the_hook_gives_triton_its_key() -> None:
    one, two = stage_hook.hook(HopperStrategy(1, (2,))), stage_hook.hook(HopperStrategy(1, (3,)))
    key, digest = one()
    assert key == stage_hook.cache_key(HopperStrategy(1, (2,)))
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert one() == (key, digest)
    assert not set(two()) & {key, digest}


@pytest.mark.parametrize(
    ("name", "scheme", "warps", "counts"),
    [
        ("dual_swiglu", HopperStrategy(2, (3,), persistent=1), 12, {1: 9, 2: 9}),
        ("grouped_tutorial", HopperStrategy(2, (2,)), 12, {1: 2, 2: 2}),
        ("while_loop", HopperStrategy(1, (3,), 8), 12, {1: 6}),
    ],
)
def test_a_kernel_is_compiled_without_a_gpu(
    name: str, scheme: HopperStrategy, warps: int, counts: dict[int, int], tmp_path: Path
) -> None:
    """Partitions, warps, and how many barriers wait for how many arrivals are what the scheme says."""
    kernel = stage_hook.compile_with(source(name), HOPPER, {"num_warps": 4}, scheme, tmp_path)
    module = parsing.parse(kernel.asm["ttgir"])
    (block,) = (operation for operation in module.walk() if operation.name == "ttg.warp_specialize")
    assert len(block.regions) == scheme.consumers + 1
    widths = [int(n) for n in re.findall(r"num_warps\((\d+)\)", kernel.asm["ttgir"])]
    assert widths == [scheme.warps] * (scheme.consumers - 1) + [1]
    assert kernel.metadata.num_warps == warps
    inits = [operation for operation in module.walk() if operation.name == "ttng.init_barrier"]
    arrivals = [int("".join(operation.tokens).split(",")[1].split(":")[0]) for operation in inits]
    assert {count: arrivals.count(count) for count in arrivals} == counts
    assert len(kernel.asm["cubin"]) > 0
    assert getattr(kernel.metadata, persistent.MARK) == scheme.persistent
    assert len(kernel.src.signature) == len(source(name).signature) + 3 * scheme.persistent
    assert [folder.name for folder in tmp_path.iterdir()] == [stage_hook.cache_key(scheme)]


def test_edits_of_one_kernel_never_share_a_binary(tmp_path: Path) -> None:
    """Made by one function, called alike: only what they do tells them apart."""

    def swap(new: str) -> stage_hook.Edit:
        return lambda text: text.replace("arith.maxnumf", new)

    def compiled(edit: stage_hook.Edit | None) -> str:
        kernel = stage_hook.compile_with(gemm("gemm_bias_relu"), HOPPER, None, HopperStrategy(1, (2,)), tmp_path, edit)
        return str(kernel.asm["ttgir"])

    for name in ("arith.minnumf", "arith.addf", "arith.maxnumf"):
        assert f"{name} " in compiled(swap(name))
    assert "arith.maxnumf " in compiled(None)
    assert len(list(tmp_path.iterdir())) == 4
    assert compiled(swap("arith.minnumf")) == compiled(swap("arith.minnumf"))


def test_triton_is_left_as_it_was(tmp_path: Path) -> None:
    before = (knobs.runtime.add_stages_inspection_hook, knobs.cache.dir)
    with pytest.raises(CannotPlan, match="no TMA load"):
        stage_hook.compile_with(source("swiglu"), HOPPER, None, HopperStrategy(1, (2,)), tmp_path)
    assert (knobs.runtime.add_stages_inspection_hook, knobs.cache.dir) == before


def test_schemes_are_for_hopper(tmp_path: Path) -> None:
    with pytest.raises(CannotPlan, match="sm_100: schemes are lowered for sm_90"):
        stage_hook.compile_with(
            source("while_loop"), GPUTarget("cuda", 100, 32), None, HopperStrategy(1, (2,)), tmp_path
        )


def partitions(text: str) -> list[list[ir.IrOperation]]:
    """The operations of each partition, consumers first."""
    block = next(operation for operation in parsing.parse(text).walk() if operation.name == "ttg.warp_specialize")
    return [list(region.walk()) for region in block.regions]


def places(operations: list[ir.IrOperation], *names: str) -> list[str]:
    """Which of ``names`` come after one another."""
    return [operation.name for operation in operations if operation.name in names]


STORE, WAIT, WRITE = "ttng.async_tma_copy_local_to_global", "ttng.async_tma_store_wait", "ttg.local_store"


def test_a_staged_store_is_waited_for_before_its_memory_is_used_again_and_at_the_end() -> None:
    for operations in partitions(specialize(zoo_cut("persistent_split_epilogue"), HopperStrategy(2, (2,))))[:2]:
        assert places(operations, STORE, WAIT, WRITE) == [WAIT, WRITE, STORE] * 2 + [WAIT]
        copies = [operation for operation in operations if operation.name == STORE]
        assert len({operation.operands[-1] for operation in copies}) == 1


def test_a_store_at_the_end_of_a_kernel_is_left_to_triton() -> None:
    for operations in partitions(specialize(zoo_cut("dual_swiglu"), HopperStrategy(2, (2,))))[:2]:
        assert places(operations, STORE, "tt.descriptor_store") == ["tt.descriptor_store"]


def test_a_descriptor_is_not_made_anew_while_copies_through_the_old_one_are_under_way() -> None:
    """A loop's descriptor has one place in memory, which TMA reads when a copy starts, not when it is asked for."""
    make, wait, copy = "tt.make_tensor_descriptor", "ttng.wait_barrier", "ttng.async_tma_copy_global_to_local"
    *consumers, producer = partitions(specialize(zoo_cut("grouped_tutorial"), HopperStrategy(2, (3,))))
    assert places(producer, make, wait, copy) == [wait] * 3 + [make] * 2 + [wait] + [copy] * 2
    for operations in consumers:
        assert places(operations, make, WAIT, STORE) == [WAIT, make, WAIT, STORE, WAIT]
    (producer,) = partitions(specialize(cut("its_own_input"), HopperStrategy(1, (3,))))[1:]
    assert places(producer, make, wait, copy) == [make, wait, copy, copy]
