"""A launch's time without a partition: facts of captured kernels, what the compiler makes of them, and how the
prediction moves with each thing that it depends on."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="needs triton (no GPU) to capture kernels")
sys.path.insert(0, str(Path(__file__).parent))

import paper_kernels as pk
import triton
from triton.backends.compiler import GPUTarget

from warpplan.kernels.compile import compile_report
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.block_time import block_price
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of, from_json, to_json
from warpplan.kernels.compiler.costing.pipelined.launch_time import (
    SHARED_GAIN,
    USUAL_DISTINCT,
    LaunchFacts,
    LaunchModel,
    estimated_registers,
    launch_time,
    ring_bytes,
    slots_in_flight,
)
from warpplan.kernels.compiler.costing.pipelined.launch_traffic import (
    SHORT_RUN,
    launch_memory,
    launch_tiles,
    neighbour_loads,
    round_of,
    run_slowdown,
)
from warpplan.kernels.compiler.costing.pipelined.pointer_costs import WANTED
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.paper.paper_programs import UNKNOWN_TRIPS, PaperKernel
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.kernels.triton_compat import release
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

PROFILE = embedded("NVIDIA H200")
TARGET = GPUTarget("cuda", 90, 32)
TILES = {"wgmma": (128, 128, 64, 4), "mma": (16, 64, 128, 4)}
SIZES = {"M": 1024, "N": 2048, "K": 512, "stride_am": 512, "stride_bk": 2048, "stride_cm": 2048}


def source(tile: tuple[int, int, int, int], kernel: Any = pk.pointer_product, more: str = pk.STRIDES) -> Any:
    m, n, k, _ = tile
    blocks = f"BLOCK_M={m}, BLOCK_N={n}, BLOCK_K={k}"
    return source_of(kernel, ", ".join(part for part in (pk.POINTERS, more, blocks) if part))


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: cut(source(tile), TARGET, {"num_warps": tile[3]}).text for name, tile in TILES.items()}


@pytest.fixture(scope="module")
def facts(texts: dict[str, str]) -> dict[str, KernelFacts]:
    return {name: facts_of(capture(text)) for name, text in texts.items()}


def launch(blocks: float = 1024, trips: float = 64, stages: int = 3, **more: Any) -> LaunchFacts:
    return LaunchFacts(blocks, (trips,), stages, **more)


def without(profile: Profile, kind: str) -> Profile:
    """``profile`` as if ``kind`` had never been measured."""
    return replace(profile, costs=CostTable(tuple(e for e in profile.costs.entries if e.kind != kind)))


class TestFacts:
    def test_both_operands_are_copied_ahead_and_nothing_is_stored_twice(self, facts: dict[str, KernelFacts]) -> None:
        for name, (m, n, k, _) in TILES.items():
            (loop,) = facts[name].loops
            assert loop.ring_bytes == loop.loaded_bytes == 2 * k * (m + n)
            assert not any(p.kind == "shared_store" for w in loop.work for p in w.parts)
            (product,) = [w.product for w in loop.work if w.product is not None]
            assert (product.m, product.n, product.k, product.cores) == (m, n, k, name)

    @pytest.mark.parametrize("name", TILES)
    def test_shared_memory_is_what_the_compiler_takes(self, facts: dict[str, KernelFacts], name: str) -> None:
        for stages in (2, 4):
            report = compile_report(source(TILES[name]), {"num_warps": 4, "num_stages": stages}, 90, what=name)
            assert ring_bytes(facts[name], stages) == report.shared_bytes
            assert estimated_registers(facts[name]) == pytest.approx(report.registers, rel=0.35)

    def test_facts_survive_json(self, facts: dict[str, KernelFacts]) -> None:
        for found in facts.values():
            assert from_json(json.loads(json.dumps(to_json(found)))) == found

    @pytest.mark.parametrize("name", TILES)
    def test_a_while_loop_copies_nothing_ahead_and_keeps_one_slot(self, name: str) -> None:
        made = source(TILES[name], pk.while_product)
        found = facts_of(capture(cut(made, TARGET, {"num_warps": 4}).text))
        (loop,) = found.loops
        m, n, k, _ = TILES[name]
        assert (loop.ring_bytes, loop.loaded_bytes) == (0, 2 * k * (m + n))
        for stages in (2, 4):
            report = compile_report(
                source(TILES[name], pk.while_product), {"num_warps": 4, "num_stages": stages}, 90, what=name
            )
            assert ring_bytes(found, stages) == report.shared_bytes
        model = LaunchModel(found, PROFILE, H200)
        assert model.time(launch(stages=2)).time_us == model.time(launch(stages=4)).time_us

    def test_a_load_that_feeds_no_product_is_not_copied_ahead(self) -> None:
        made = source_of(pk.triangular_sum, "x_ptr=*fp32, out_ptr=*fp32, N=i32:16, BLOCK=256")
        found = facts_of(capture(cut(made, TARGET, {"num_warps": 4}).text))
        assert [loop.ring_bytes for loop in found.loops] == [0]
        assert [loop.loaded_bytes for loop in found.loops] == [1024]


class TestTime:
    @given(
        blocks=st.integers(1, 20_000), trips=st.integers(1, 300), stages=st.integers(2, 5), more=st.integers(1, 1000),
        dram=st.floats(0, 1e11),
    )  # fmt: skip
    @settings(deadline=None, max_examples=60)
    def test_more_work_never_takes_less_time(
        self, facts: dict[str, KernelFacts], blocks: int, trips: int, stages: int, more: int, dram: float
    ) -> None:
        for found in facts.values():
            model = LaunchModel(found, PROFILE, H200)
            base = model.time(launch(blocks, trips, stages, dram_bytes=dram))
            assert base.fits
            assert model.time(launch(blocks, trips + more, stages, dram_bytes=dram)).time_us >= base.time_us
            assert model.time(launch(blocks, trips, stages, dram_bytes=dram + 1e6 * more)).time_us >= base.time_us
            twice = model.time(launch(2 * blocks, trips, stages, dram_bytes=dram))
            assert twice.time_us >= base.time_us
            assert model.time(launch(blocks, trips, stages, dram_bytes=dram, cold=0.0)).time_us <= base.time_us

    def test_what_neighbours_copy_too_takes_less_of_l2(self, facts: dict[str, KernelFacts]) -> None:
        for found in facts.values():
            model = LaunchModel(found, PROFILE, H200)
            times = [model.time(launch(distinct_share=share)).time_us for share in (0.1, USUAL_DISTINCT, 1.0)]
            assert times[0] < times[1] < times[2] < times[0] / (1.0 - SHARED_GAIN)
            assert times[1] == model.time(launch()).time_us
            by_tma = tuple(replace(loop, copied=False) for loop in model.price.loops)
            vars(model)["price"] = replace(model.price, loops=by_tma)
            assert model.time(launch(distinct_share=0.1)).time_us == model.time(launch(distinct_share=1.0)).time_us

    def test_a_full_wave_takes_as_long_as_one_block_but_for_power_and_bandwidth(
        self, facts: dict[str, KernelFacts]
    ) -> None:
        model = LaunchModel(facts["mma"], PROFILE, H200)
        one, wave, more = (dict(model.time(launch(n, 64)).parts)["blocks"] for n in (1, 132, 133))
        assert wave == pytest.approx(one, rel=0.25)
        assert more >= wave

    def test_slots_hide_latency_until_shared_memory_is_full(self, facts: dict[str, KernelFacts]) -> None:
        model = LaunchModel(facts["wgmma"], PROFILE, H200)
        times = [model.time(launch(132, 256, stages)).time_us for stages in (2, 3, 4, 5, 6)]
        assert times == sorted(times, reverse=True)
        assert not model.time(launch(stages=8)).fits
        assert math.isinf(model.time(launch(stages=8)).time_us)

    def test_compiled_registers_outrank_the_estimate(self, facts: dict[str, KernelFacts]) -> None:
        model = LaunchModel(facts["mma"], PROFILE, H200)
        assert model.resident(launch(registers=255)) < model.resident(launch(registers=32))
        spilled = model.time(launch(registers=255, spill_bytes=400)).time_us
        assert spilled > model.time(launch(registers=255, spill_bytes=0)).time_us

    def test_serialised_products_take_longer(self, facts: dict[str, KernelFacts]) -> None:
        model = LaunchModel(facts["wgmma"], PROFILE, H200)
        free, serialised = (model.time(launch(serialized=value)) for value in (False, True))
        assert serialised.time_us > free.time_us
        assert serialised.bound_by == "serialised wgmma"

    def test_the_function_and_the_model_agree(self, facts: dict[str, KernelFacts]) -> None:
        asked = launch(dram_bytes=1e8)
        for found in facts.values():
            assert launch_time(found, asked, PROFILE, H200) == LaunchModel(found, PROFILE, H200).time(asked)

    def test_units_are_busy_with_bytes_however_they_are_divided(self, facts: dict[str, KernelFacts]) -> None:
        whole = facts["wgmma"]
        (loop,) = whole.loops
        halves = [replace(w, moved_bytes=w.moved_bytes // 2) if w.ahead else w for w in loop.work]
        more = tuple(w for w in halves if w.ahead)
        apart = replace(whole, loops=(replace(loop, work=(*halves, *more)),))
        found = [block_price(every, PROFILE).loops[0] for every in (whole, apart)]
        assert found[0].ring_bytes == found[1].ring_bytes
        assert found[0].busy_cycles == found[1].busy_cycles
        assert found[0].serial_cycles < found[1].serial_cycles

    def test_each_warp_issues_what_no_tile_shares(self, facts: dict[str, KernelFacts]) -> None:
        nothing = replace(facts["mma"], loops=(replace(facts["mma"].loops[0], work=()),))
        four, eight = (block_price(replace(nothing, warps=warps), PROFILE).loops[0].busy_cycles for warps in (4, 8))
        assert eight == 2 * four > 0

    def test_blocks_share_an_sms_units_outside_of_loops_too(self, facts: dict[str, KernelFacts]) -> None:
        straight = replace(facts["mma"], loops=(), body=facts["mma"].loops[0].work)
        model = LaunchModel(straight, PROFILE, H200)
        small = LaunchFacts(132.0, (), 3, registers=32, shared_bytes=1024)
        assert model.resident(small) == 16
        one, sixteen = (dict(model.time(replace(small, blocks=n * 132.0)).parts)["blocks"] for n in (1, 16))
        shared_us = 16 * model.price.prologue_busy / model.clock_hz * 1e6
        assert one < shared_us < sixteen

    def test_a_kernel_without_a_loop_takes_what_its_operations_take(self, facts: dict[str, KernelFacts]) -> None:
        work = facts["mma"].loops[0].work
        once, twice = (
            block_price(replace(facts["mma"], loops=(), body=body), PROFILE)
            for body in (work, (*work, *(w for w in work if w.kind == "elementwise")))
        )
        assert 0 < once.prologue_busy < once.prologue_cycles < twice.prologue_cycles

    def test_iterations_that_copy_nothing_ahead_issue_less(self, facts: dict[str, KernelFacts]) -> None:
        (loop,) = facts["mma"].loops
        small = replace(next(w for w in loop.work if w.ahead), moved_bytes=512, needs=())
        copying, waiting = (
            block_price(replace(facts["mma"], loops=(replace(loop, work=(replace(small, ahead=ahead),)),)), PROFILE)
            for ahead in (True, False)
        )
        assert waiting.loops[0].busy_cycles < copying.loops[0].busy_cycles

    def test_few_warps_that_wait_for_their_loads_take_longer(self) -> None:
        """Of a row of one length the same work, in blocks of few warps and in as many more warps."""
        text = cut(source_of(pk.row_twice, "x_ptr=*fp32, out_ptr=*fp32, N=i32, BLOCK=8192"), TARGET, {}).text
        found = replace(facts_of(capture(text)), live_registers=24)
        few, many = (replace(found, warps=warps) for warps in (4, 16))
        taken = [
            LaunchModel(one, PROFILE, H200).time(LaunchFacts(4096.0, (64.0, 64.0), 1, registers=registers)).time_us
            for one, registers in ((few, 120), (many, 30))
        ]
        assert taken[0] > taken[1]

    def test_a_product_that_is_waited_for_leaves_its_slot_a_copy_earlier(self, facts: dict[str, KernelFacts]) -> None:
        (flying,) = block_price(facts["wgmma"], PROFILE).loops
        assert flying.flying
        assert 2 <= slots_in_flight(flying, 4) < 3
        assert slots_in_flight(replace(flying, flying=False), 4) == 3
        assert slots_in_flight(flying, 2) < 1

    def test_what_was_not_measured_is_named(self, facts: dict[str, KernelFacts]) -> None:
        assert block_price(facts["wgmma"], without(PROFILE, "gather_load")).missing == ("gather_load",)
        assert block_price(facts["mma"], PROFILE).missing == ()
        older = PROFILE
        for kind in WANTED:
            older = without(older, kind)
        assert block_price(facts["mma"], older).missing == ("gather_load", "ldmatrix", "mma")

    def test_a_measured_point_takes_the_fall_backs_place(self, facts: dict[str, KernelFacts]) -> None:
        quick = OperationCost(Quantiles(10, 10, 1), Quantiles(5, 5, 1), Quantiles(3, 3, 1))
        points = tuple(
            CostEntry("gather_load", (("bytes", size), ("source", place)), quick)
            for size in (8192, 32768) for place in ("l2", "dram")
        )  # fmt: skip
        measured = replace(PROFILE, costs=CostTable((*without(PROFILE, "gather_load").costs.entries, *points)))
        assert block_price(facts["wgmma"], measured).missing == ()
        assert block_price(facts["wgmma"], measured).loops[0].latency_dram == 10


class TestPaper:
    def test_loops_are_as_long_as_the_sizes_say(self, texts: dict[str, str]) -> None:
        done = PaperKernel(texts["wgmma"]).run(SIZES, (3, 0, 0), (128, 1, 1))
        assert done.trips == [512 / 64]
        assert {a.base for a in done.accesses} == {"a_ptr", "b_ptr", "c_ptr"}

    def test_tiles_begin_where_the_kernel_says(self, texts: dict[str, str]) -> None:
        kernel = PaperKernel(texts["wgmma"])
        for pid in (0, 5, 17, 127):
            found = {a.base: a.at for a in kernel.run(SIZES, (pid, 0, 0), (128, 1, 1)).accesses}
            row, col = pid // 16 * 128, pid % 16 * 128
            assert found == {"a_ptr": (row * 512,), "b_ptr": (col,), "c_ptr": (row * 2048 + col,)}

    def test_what_fits_in_l2_is_read_once(self, texts: dict[str, str]) -> None:
        memory = launch_memory(PaperKernel(texts["wgmma"]), SIZES, (128, 1, 1), H200, 132)
        assert memory.known
        assert memory.dram_bytes == 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
        assert memory.loaded_bytes == 128 * 8 * 2 * 64 * 256

    def test_what_does_not_fit_is_read_again_each_round(self, texts: dict[str, str]) -> None:
        n = 16_384
        sizes = {"M": n, "N": n, "K": n, "stride_am": n, "stride_bk": n, "stride_cm": n}
        memory = launch_memory(PaperKernel(texts["wgmma"]), sizes, (n // 128 * (n // 128), 1, 1), H200, 132)
        assert memory.dram_loaded_bytes > 3 * 2 * 2 * n * n
        assert memory.dram_loaded_bytes < memory.loaded_bytes

    def test_runs_of_half_a_cache_line_take_dram_longer(self) -> None:
        def slowdown(k: int) -> float:
            facts = facts_of(capture(cut(source((128, 128, k, 4)), TARGET, {"num_warps": 4}).text))
            runs = {w.run_bytes for loop in facts.loops for w in loop.work if w.kind == "load"}
            assert runs == {2 * k, 256}, "A lies along K, B along N"
            return run_slowdown(facts, (8.0,))

        assert slowdown(64) == 1.0
        assert slowdown(32) == pytest.approx((SHORT_RUN + 1.0) / 2)

    def test_what_a_program_reads_again_comes_from_l2(self) -> None:
        text = cut(source_of(pk.row_twice, "x_ptr=*fp32, out_ptr=*fp32, N=i32, BLOCK=1024"), TARGET, {}).text
        rows, n = 4096, 16_384
        memory = launch_memory(PaperKernel(text), {"N": n}, (rows, 1, 1), H200, 2 * H200.sm_count)
        assert memory.loaded_bytes == 2 * 4 * rows * n
        assert memory.dram_loaded_bytes == 4 * rows * n
        assert memory.dram_bytes == 2 * 4 * rows * n
        longer = launch_memory(PaperKernel(text), {"N": 64 * n}, (rows, 1, 1), H200, 4 * H200.sm_count)
        assert longer.dram_loaded_bytes == longer.loaded_bytes

    def test_l2_keeps_less_of_it_the_more_programs_run_at_once(self) -> None:
        text = cut(source_of(pk.row_twice, "x_ptr=*fp32, out_ptr=*fp32, N=i32, BLOCK=1024"), TARGET, {}).text
        rows, n = 4096, 16_384
        read = [
            launch_memory(PaperKernel(text), {"N": n}, (rows, 1, 1), H200, count * H200.sm_count).dram_loaded_bytes
            for count in (1, 2, 4, 6, 8, 16)
        ]
        assert read == sorted(read)
        assert (read[0], read[-1]) == (4 * rows * n, 2 * 4 * rows * n)
        assert read[1] < read[2] < read[3] < read[-1]

    def test_programs_are_not_run_again_to_know_what_l2_keeps_for_more_of_them(self) -> None:
        text = cut(source_of(pk.row_twice, "x_ptr=*fp32, out_ptr=*fp32, N=i32, BLOCK=1024"), TARGET, {}).text
        launch = PaperKernel(text), {"N": 16_384}, (4096, 1, 1), H200
        tiles = launch_tiles(*launch, 2 * H200.sm_count)
        for count in (2, 4, 6, 8):
            at_once = count * H200.sm_count
            assert round_of(4096, at_once) == tiles.round
            assert tiles.memory(H200, at_once) == launch_memory(*launch, at_once)
        assert round_of(4096, H200.sm_count) < tiles.round

    @pytest.mark.skipif(release(triton.__version__) >= (3, 9), reason="Triton 3.9 has no block pointers")
    def test_block_pointers_are_read_alike(self) -> None:
        text = cut(source(TILES["wgmma"], pk.block_pointer_product, ""), TARGET, {"num_warps": 4}).text
        kernel = PaperKernel(text)
        sizes = {"M": 1024, "N": 2048, "K": 512}
        memory = launch_memory(kernel, sizes, (8, 16, 1), H200, 132)
        assert memory.trips == (8.0,)
        assert memory.dram_bytes == 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048)

    def test_neighbours_share_what_they_look_up_alike(self) -> None:
        arguments = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, ids_ptr=*i32, expert_ptr=*i32, count_ptr=*i32"
        a, b, ids = 64 * 512 * 2, 256 * 512 * 2, 2 * 64 * 4  # ids once for loads, once for stores
        found = {}
        for group in (1, 8):
            blocks = f"N=i32:16, K=i32:16, BLOCK_M=64, BLOCK_N=256, BLOCK_K=64, GROUP_M={group}"
            made = source_of(pk.expert_product, f"{arguments}, {blocks}")
            kernel = PaperKernel(cut(made, TARGET, {"num_warps": 4}).text)
            sizes, grid = {"N": 2048, "K": 512}, (1024, 1, 1)
            found[group] = neighbour_loads(kernel, sizes, grid)
            memory = launch_memory(kernel, sizes, grid, H200, 132)
            assert not memory.known
            rows, once = 1024 // 8, a + 64 * 2048 * 2
            # 128 blocks of rows: each has rows of its own, read once for all columns, and as far as is known an expert.
            assert memory.dram_bytes == pytest.approx(rows * (once + 8 * b), rel=0.01)
            experts = launch_memory(kernel, sizes, grid, H200, 132, {"b_ptr": 4 * 2048 * 512})
            assert experts.dram_bytes == pytest.approx(rows * once + 4 * 8 * b, rel=0.06), "a sample misses some rows"
        assert found[1].different_bytes == 2 * (a + ids) + 8 * b  # 16 programs: two row blocks of eight columns
        assert found[8].different_bytes == 8 * (a + ids) + 2 * b
        assert found[1].loaded_bytes == found[8].loaded_bytes == 16 * (a + b + ids)
        assert found[8].distinct_share < found[1].distinct_share < 1.0

    def test_what_is_looked_up_says_where_and_not_how_large(self) -> None:
        made = source_of(pk.sequence_sum, "x_ptr=*fp32, out_ptr=*fp32, starts_ptr=*i32, N=i32:16, BLOCK=256, HEADS=2")
        kernel = PaperKernel(cut(made, TARGET, {"num_warps": 4}).text)
        done = [kernel.run({"N": 4096}, (program, 0, 0), (64, 1, 1)) for program in range(4)]
        for program in done:
            assert not program.counted
            assert program.trips == [UNKNOWN_TRIPS]  # behind a branch that depends on what is looked up
        places = [{(a.base, a.looked_up): a.at for a in program.accesses} for program in done]
        assert set(places[0]) == {("x_ptr", True), ("out_ptr", False)}
        assert places[0][("x_ptr", True)] == places[1][("x_ptr", True)]
        assert places[2][("x_ptr", True)] == places[3][("x_ptr", True)] != places[0][("x_ptr", True)]
        assert len({place[("out_ptr", False)] for place in places}) == 4

    @pytest.mark.parametrize("how", ["plain", "guarded", "limited", "difference"])
    def test_rows_that_are_looked_up_at_unlike_places_are_unlike(self, how: str) -> None:
        signature = f"x_ptr=*fp32, out_ptr=*fp32, ids_ptr=*i32, N=i32:16, BLOCK=1024, HOW={how!r}"
        kernel = PaperKernel(cut(source_of(pk.looked_up_rows, signature), TARGET, {"num_warps": 4}).text)
        launch = kernel, {"N": 64}, (4096, 1, 1), H200, 132
        every = launch_memory(*launch)
        assert every.dram_loaded_bytes == pytest.approx(4096 * 4096, rel=1e-6)
        assert launch_memory(*launch, {"x_ptr": 64 * 1024}).dram_loaded_bytes == pytest.approx(64 * 4096, rel=1e-6)

    def test_rows_that_are_gathered_from_more_than_l2_holds_are_read_again(self) -> None:
        arguments = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, ids_ptr=*i32, expert_ptr=*i32, count_ptr=*i32"
        blocks = "N=i32:16, K=i32:16, BLOCK_M=64, BLOCK_N=256, BLOCK_K=64, GROUP_M=1"
        kernel = PaperKernel(cut(source_of(pk.expert_product, f"{arguments}, {blocks}"), TARGET, {"num_warps": 4}).text)
        row_bytes, expert_bytes, at_once = 64 * 65_536 * 2, 256 * 65_536 * 2, 132
        arrays = {"a_ptr": 32 * row_bytes, "b_ptr": 4 * expert_bytes}  # 268 and 134 MB
        elements = {name: size // 2 for name, size in arrays.items()}
        memory = launch_memory(kernel, {"N": 256, "K": 65_536}, (4096, 1, 1), H200, at_once, elements)
        rounds = 4096 / at_once
        assert memory.dram_loaded_bytes == pytest.approx(rounds * arrays["a_ptr"] + arrays["b_ptr"], rel=0.01)

    def test_arrays_have_as_many_bytes_as_their_elements(self) -> None:
        made = source_of(pk.sequence_sum, "x_ptr=*fp32, out_ptr=*bf16, starts_ptr=*i64, N=i32:16, BLOCK=256, HEADS=2")
        kernel = PaperKernel(cut(made, TARGET, {"num_warps": 4}).text)
        assert kernel.array_bytes({"x_ptr": 3, "out_ptr": 5, "N": 7}) == {"x_ptr": 12, "out_ptr": 10}

    def test_loops_of_unequal_length_are_averaged(self) -> None:
        made = source_of(pk.triangular_sum, "x_ptr=*fp32, out_ptr=*fp32, N=i32:16, BLOCK=256")
        kernel = PaperKernel(cut(made, TARGET, {"num_warps": 4}).text)
        memory = launch_memory(kernel, {"N": 4096}, (64, 1, 1), H200, 132)
        assert memory.trips == (1.0,)
        done = [kernel.run({"N": 4096}, (row, 0, 0), (4096, 1, 1)).trips[0] for row in (0, 255, 256, 4095)]
        assert done == [1, 1, 2, 16]

    def test_a_while_loop_is_read_as_a_counted_one(self, texts: dict[str, str]) -> None:
        counted = launch_memory(PaperKernel(texts["wgmma"]), SIZES, (128, 1, 1), H200, 132)
        text = cut(source(TILES["wgmma"], pk.while_product), TARGET, {"num_warps": 4}).text
        assert launch_memory(PaperKernel(text), SIZES, (128, 1, 1), H200, 132) == counted
        assert counted.counted

    def test_tiles_that_programs_take_in_turn_are_each_touched_once(self) -> None:
        made = source_of(pk.tiles_by_turns, "x_ptr=*fp32, out_ptr=*fp32, N=i32:16, BLOCK=256")
        kernel = PaperKernel(cut(made, TARGET, {"num_warps": 4}).text)
        memory = launch_memory(kernel, {"N": 256 * 60}, (16, 1, 1), H200, 132)
        assert memory.trips == (60 / 16,)
        assert memory.dram_bytes == 2 * 4 * 256 * 60
        assert kernel.run({"N": 256 * 4}, (9, 0, 0), (16, 1, 1)).accesses == []

    @pytest.mark.parametrize(
        ("kind", "step", "trips"),
        [
            ("down", 3, 34), ("down", 4, 25), ("down", 200, 1), ("up to", 4, 26), ("up to", 3, 34), ("until", 4, 25),
            ("until", 3, None), ("doubling", 2, None), ("looked up", 1, None),
        ],
    )  # fmt: skip
    def test_a_while_loop_that_steps_evenly_is_counted(self, kind: str, step: int, trips: int | None) -> None:
        made = source_of(pk.counting, f'out_ptr=*i32, N=i32, STEP={step}, KIND="{kind}"')
        kernel = PaperKernel(cut(made, TARGET, {"num_warps": 1}).text)
        done = kernel.run({"N": 100}, (0, 0, 0), (1, 1, 1))
        assert (done.counted, done.trips[0]) == (trips is not None, trips or UNKNOWN_TRIPS)
