"""Known causes of hangs, each made on purpose in a finished kernel that has none: all are found, with the line."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import played  # noqa: E402
import triton.language as tl  # noqa: E402
from cut_kernels import HOPPER, OWN, own_source  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from zoo import ZOO, source  # noqa: E402

from warpplan.kernels.compiler.inspection.barrier_check import BarrierReport, check_barriers  # noqa: E402
from warpplan.kernels.compiler.inspection.finished import finished_text  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.ttgir.ir import MalformedIR  # noqa: E402

pytestmark = pytest.mark.matrix
WAIT = "ttng.wait_barrier"
SCHEMES = {
    "matmul": HopperStrategy(2, (3,)),
    "attention": HopperStrategy(2, (2,)),
    "tutorial_causal": HopperStrategy(2, (3,), 4, 0),
    "persistent_split_epilogue": HopperStrategy(1, (4,), 8),
    "chosen_blocks": HopperStrategy(1, (3,), 8),
    "gathered_experts": HopperStrategy(2, (3,)),
}


@cache
def finished(name: str) -> str:
    own = name in OWN
    options = {"num_warps": 4} if own else ZOO[name].options
    return finished_text(own_source(name) if own else source(name), HOPPER, options, SCHEMES[name])


def causes(text: str) -> set[str]:
    return {finding.cause for finding in check_barriers(text).findings}


def count(report: BarrierReport, role: str, kind: str) -> list[int]:
    return [b.count(kind) for b in report.barriers if b.role == role]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEMES)
def test_our_lowering_has_none_of_them(name: str) -> None:
    report = check_barriers(finished(name))
    assert report.findings == ()
    assert report.played > 20
    consumers = SCHEMES[name].consumers
    assert [warps for _, warps in report.partitions] == [SCHEMES[name].warps] * consumers + [1]
    # A ring has a full and an empty barrier a slot; a consumer waits for the one and arrives at the other.
    rings = [b for b in report.barriers if b.slots > 1]
    assert {b.role for b in rings} == {"full", "empty"}
    for barrier in rings:
        kind = "wait" if barrier.role == "full" else "arrive"
        assert all(barrier.count(kind, who) >= 1 for who, _ in report.partitions[:consumers])
        assert barrier.count(kind, report.partitions[-1][0]) == 0


def change(text: str, pattern: str, new: str, which: int = 0) -> str:
    """Replace one match of ``pattern``, the last of all where ``which`` is -1."""
    found = list(re.finditer(pattern, text))
    assert found, pattern
    match = found[which]
    return text[: match.start()] + match.expand(new) + text[match.end() :]


MUTATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "bytes that never come": (
        "bytes", lambda t: change(t, r"(barrier_expect %\w+), (\d+)", r"\1, 65536"),
    ),
    "a copy too few": (
        "bytes", lambda t: change(t, r" +ttng\.async_tma_copy_global_to_local [^\n]*\n", "", -1),
    ),
    "a box that is not the tile": (
        "box",
        lambda t: change(t, r"(async_tma_copy_global_to_local [^\n]*tensordesc<(?:tensor<)?)256x64", r"\g<1>128x64"),
    ),
    "an arrival too many expected": (
        "arrivals", lambda t: re.sub(r"(init_barrier %\w+), 2", r"\1, 3", t),
    ),
    "a consumer that never lets go": (
        "arrivals", lambda t: drop_from(t, "partition0", "ttng.arrive_barrier"),
    ),
    "nobody lets go": (
        "unwaited", lambda t: drop(t, "ttng.arrive_barrier"),
    ),
    "nobody waits for the loads": (
        "unwaited", lambda t: drop_from(drop_from(t, "default", WAIT), "partition0", WAIT),
    ),
    "the loader does not wait for a free slot": (
        "unwaited", lambda t: drop_from(t, "partition1", WAIT),
    ),
    "one consumer does not wait": (
        "phase", lambda t: drop_from(t, "partition0", WAIT),
    ),
    "a barrier without a beginning": (
        "init", lambda t: change(t, r" +ttng\.init_barrier [^\n]*\n", ""),
    ),
    "the loader's phase is upside down": (
        "phase", lambda t: from_partition(t, "partition1", lambda part: part.replace("arith.xori", "arith.andi")),
    ),
    "the phase never turns": (
        "phase", lambda t: change(t, r"arith\.xori %\w+, (%c1_i32\w*)", r"arith.muli \1, \1", 0),
    ),
    "a slot is let go while a product reads it": (
        "phase", lambda t: re.sub(r"pendings = 1 : i32", "pendings = 2 : i32", t),
    ),
}  # fmt: skip


def drop(text: str, operation: str) -> str:
    return "".join(line for line in text.splitlines(True) if f" {operation} " not in line)


def from_partition(text: str, name: str, edit: Callable[[str], str]) -> str:
    """``edit`` the text of one partition."""
    marks = {"default": r"\n +default \{", "partition0": r"\n +partition0\(", "partition1": r"\n +partition1\("}
    starts = sorted((m.start(), n) for n, pattern in marks.items() if (m := re.search(pattern, text)))
    begin = next(start for start, n in starts if n == name)
    end = min((start for start, _ in starts if start > begin), default=len(text))
    return text[:begin] + edit(text[begin:end]) + text[end:]


def drop_from(text: str, partition: str, operation: str) -> str:
    return from_partition(text, partition, lambda part: drop(part, operation))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_cause_is_found_where_it_is_made(mutation: str) -> None:
    cause, mutate = MUTATIONS[mutation]
    text = finished("matmul")
    broken = mutate(text)
    assert broken != text
    report = check_barriers(broken)
    assert cause in {finding.cause for finding in report.findings}, report.findings
    assert all(finding.message and finding.line for finding in report.findings if finding.cause == cause)


@triton.jit
def stock(a, b, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MADE: tl.constexpr):
    """Specialised by Triton itself; ``MADE`` makes the descriptors on the device."""
    if MADE:
        a_desc = tl.make_tensor_descriptor(a, [1024, K], [K, 1], [BM, BK])
        b_desc = tl.make_tensor_descriptor(b, [1024, K], [K, 1], [BN, BK])
    else:
        a_desc = a
        b_desc = b
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=True):
        x = a_desc.load([row, k * BK])
        y = b_desc.load([column, k * BK])
        acc = tl.dot(x, y.T, acc)
    at = (row + tl.arange(0, BM))[:, None] * N + column + tl.arange(0, BN)[None, :]
    tl.store(c_ptr + at, acc.to(tl.bfloat16))


def stock_text(made: bool) -> str:
    names = [parameter.name for parameter in stock.params]
    constants = {"BM": 128, "BN": 256, "BK": 64, "MADE": made}
    operands = (
        {"a": "*bf16", "b": "*bf16"} if made else {"a": "tensordesc<bf16[128,64]>", "b": "tensordesc<bf16[256,64]>"}
    )
    kinds = {**operands, "c_ptr": "*bf16", "N": "i32", "K": "i32", **dict.fromkeys(constants, "constexpr")}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n, kind in kinds.items() if kind.startswith("*")}
    return finished_text(
        ASTSource(stock, {n: kinds[n] for n in names}, {(names.index(n),): v for n, v in constants.items()}, aligned),
        HOPPER, {"num_warps": 4, "num_stages": 3},
    )  # fmt: skip


@pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason="what 3.6's own pass makes of it")
def test_tritons_own_hang_with_host_made_descriptors_is_found() -> None:
    """Known to hang on an H200: the tile is halved, the box that the host made is not."""
    report = check_barriers(stock_text(made=False))
    assert {"box", "bytes", "phase"} <= {finding.cause for finding in report.findings}
    assert "128x64" in str(report.findings[0])


@pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason="what 3.6's own pass makes of it")
def test_tritons_own_specialised_kernel_that_runs_passes() -> None:
    report = check_barriers(stock_text(made=True))
    assert report.findings == ()
    assert len(report.partitions) == 3
    assert report.played > 20


@pytest.mark.parametrize("name", ["matmul", "attention", "dual_swiglu", "stream_k"])
@pytest.mark.parametrize("capability", [90, 100])
def test_kernels_that_only_triton_pipelines_have_none_of_them(name: str, capability: int) -> None:
    """Several copies in flight, products that complete barriers (Blackwell), locks."""
    own = name in OWN
    text = finished_text(
        own_source(name) if own else source(name), GPUTarget("cuda", capability, 32), {"num_warps": 4, "num_stages": 3}
    )
    report = check_barriers(text)
    assert report.findings == ()
    assert report.partitions == (("default", 4),)
    assert sum(count(report, "full", "copy")) >= 2


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_rings_of_any_depth_are_played_to_the_end(depth: int) -> None:
    text = finished_text(own_source("chosen_blocks"), HOPPER, {"num_warps": 4}, HopperStrategy(1, (depth,), 4, 0))
    report = check_barriers(text)
    assert report.findings == ()
    full, empty = (next(b for b in report.barriers if b.role == role) for role in ("full", "empty"))
    assert full.phases == pytest.approx(empty.phases, abs=8)
    assert full.phases > 100


def test_a_tile_that_a_loop_without_iterations_would_have_read_may_be_filled_again() -> None:
    walking = HopperStrategy(1, (2,), 8, 0, 1)
    text = finished_text(own_source("from_the_diagonal"), HOPPER, {"num_warps": 8}, walking)
    report = check_barriers(text)
    assert report.findings == ()
    assert report.played > 100
    broken = check_barriers(drop_from(text, "partition0", "ttng.wait_barrier"))
    assert "phase" in {finding.cause for finding in broken.findings}


def test_damaged_text_is_refused_or_read_and_never_anything_else() -> None:
    lines = finished("attention").split("\n")
    chance = random.Random(2)
    for _ in range(25):
        damaged = list(lines)
        at = chance.randrange(len(damaged))
        damaged[at : at + 1] = chance.choice(([], [damaged[chance.randrange(len(damaged))]]))
        try:
            assert isinstance(check_barriers("\n".join(damaged)), BarrierReport)
        except MalformedIR:
            continue


@pytest.mark.parametrize("depth", [1, 3])
def test_a_loop_that_is_unrolled_by_two_gives_its_slot_back_twice(depth: int) -> None:
    text = finished_text(
        played.own_source("promoted"), HOPPER, {"num_warps": 4}, HopperStrategy(1, (depth,), in_flight=0)
    )
    assert check_barriers(text).findings == ()
    again = re.sub(r"( *ttng\.arrive_barrier [^\n]*\n)", r"\1\1", text)
    assert any(finding.cause in ("arrivals", "phase") for finding in check_barriers(again).findings)
