"""Descriptors in PTX: the same numbers, made such that ptxas 12.8 keeps them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.pipeline.matrix_descriptors import SUM, with_kept_addresses

WIDE, NARROW = 0x4000004000000000, 0x8000002000000000
"""The descriptors' upper bits of tiles of 128 and of 64 bytes a row."""


def signed(constant: int) -> int:
    """As PTX prints it."""
    return constant - 2**64 if constant >= 2**63 else constant


def line(register: int, base: str, constant: int) -> str:
    operation = "or.b64" if constant % 2**14 == 0 else "add.s64"
    return f"\t{operation} \t%rd{register}, {base}, {signed(constant)};"


def values(ptx: str, bases: dict[str, int]) -> dict[str, int]:
    """What each register of the sums in ``ptx`` holds; :class:`KeyError` where one is read before it is made."""
    found = dict(bases)
    for text in ptx.split("\n"):
        match = SUM.fullmatch(text)
        if match is not None:
            _, _, _, register, base, constant, _ = match.groups()
            found[register] = (found[base] + int(constant)) % 2**64
    return found


TWO_TILES = "\n".join([
    "\tcvt.u64.u32 \t%rd1, %r1;",
    line(2, "%rd1", WIDE), line(3, "%rd1", WIDE + 128), line(4, "%rd1", WIDE + 256),
    line(5, "%rd1", NARROW), line(6, "%rd1", NARROW + 64),
])  # fmt: skip


def test_two_tiles_at_one_place_are_counted_from_their_own_first_descriptors() -> None:
    mended = with_kept_addresses(TWO_TILES)
    assert [text.strip() for text in mended.split("\n")[2:]] == [
        "add.s64 \t%rd3, %rd2, 128;", "add.s64 \t%rd4, %rd2, 256;",
        f"or.b64 \t%rd5, %rd1, {signed(NARROW)};", "add.s64 \t%rd6, %rd5, 64;",
    ]  # fmt: skip


def test_tiles_of_one_kind_stay_as_they_are() -> None:
    alone = "\n".join(text for text in TWO_TILES.split("\n") if str(signed(NARROW))[:6] not in text)
    assert with_kept_addresses(alone) == alone
    apart = alone + "\n" + line(7, "%rd9", NARROW) + "\n" + line(8, "%rd9", NARROW + 64)
    assert with_kept_addresses(apart) == apart


@pytest.mark.parametrize("between", ["$L__BB0_2:", "\t@%p3 bra \t$L__BB0_4;", "\tbra.uni \t$L__BB0_4;"])
def test_what_another_block_makes_is_not_counted_from(between: str) -> None:
    lines = TWO_TILES.split("\n")
    split = "\n".join([*lines[:5], between, lines[5], between, lines[6 - 1].replace("%rd5", "%rd7")])
    mended = with_kept_addresses(split)
    assert "%rd1, " in mended.split("\n")[6]
    assert mended.split("\n")[5:] == split.split("\n")[5:]


def test_other_sums_are_left_alone() -> None:
    others = "\n".join([
        "\tor.b64 \t%rd61, %rd57, %rd2;", "\tadd.s64 \t%rd62, %rd57, 64;", f"\tor.b64 \t%rd63, %rd57, {NARROW + 1};",
        f"\tadd.s64 \t%rd64, %rd57, {WIDE};",
    ])  # fmt: skip
    assert with_kept_addresses(others) == others


@given(
    st.lists(st.tuples(st.sampled_from(["%rd1", "%rd2"]), st.sampled_from([WIDE, NARROW, WIDE + 2**20]),
                       st.integers(0, 2**14 - 1), st.booleans()), max_size=12),
    st.lists(st.integers(0, 2**14 - 1), min_size=2, max_size=2),
)  # fmt: skip
def test_every_descriptor_is_the_number_that_it_was(
    sums: list[tuple[str, int, int, bool]], addresses: list[int]
) -> None:
    text = []
    for number, (base, kind, offset, ends) in enumerate(sums, start=10):
        text += [line(number, base, kind + offset)] + ["$L__BB0_1:"] * ends
    bases = dict(zip(("%rd1", "%rd2"), addresses, strict=True))
    ptx = "\n".join(text)
    assert values(with_kept_addresses(ptx), bases) == values(ptx, bases)
    assert with_kept_addresses(with_kept_addresses(ptx)) == with_kept_addresses(ptx)


def test_a_planned_kernel_of_two_tiles_at_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that showed it: illegal addresses and wrong results on an H200, by every strategy."""
    pytest.importorskip("triton", reason="needs triton")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import corpus_registry
    from corpus_entry import options, source
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.strategy.stage_hook import compile_with
    from warpplan.kernels.compiler.strategy.written import strategy_from_text

    entry = corpus_registry.entries()["delta_transformed"]
    config = next(c for c in entry.configs if (c.kwargs["BK"], c.kwargs["BV"]) == (32, 64))
    made = source(entry, entry.problem({"B": 2, "H": 2, "K": 128, "T": 512, "V": 64}), config)
    strategy = strategy_from_text("1 x 4 warps, 4 slots, persistent, 3 blocks")
    ptx = compile_with(made, GPUTarget("cuda", 90, 32), options(config), strategy, tmp_path).asm["ptx"]
    sums: dict[str, list[int]] = {}
    for text in ptx.split("\n"):
        match = SUM.fullmatch(text)
        if match is not None and int(match.group(6)) % 2**64 >> 32:
            sums.setdefault(match.group(5), []).append(int(match.group(6)) % 2**64 >> 14)
    shared = [kinds for kinds in sums.values() if len(set(kinds)) > 1]
    assert shared, "two tiles lie at one place"
    assert all(len(set(kinds)) == len(kinds) for kinds in shared), "of each kind one descriptor"
    assert re.search(r"wgmma\.mma_async\S*m64n32k16", ptx)
