"""Finished kernels broken by hand, one operation at a time, in the ways that a lowering goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

Lines = list[str]
_WAIT = re.compile(r"(ttng\.wait_barrier %[\w#]+), (%[\w#]+)")
_INDEX = re.compile(r"(%[\w#]+ = ttg\.memdesc_index %\w+)\[(%\w+)\]( : !ttg\.memdesc<(\d+)x.*)")
_PENDING = re.compile(r"(warp_group_dot_wait .*\{.*pendings = )(\d)")


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """What was done, and the kernel that came of it; every line of the partitions that can be broken is, once."""
    lines = text.split("\n")
    begin = next(i for i, line in enumerate(lines) if "ttg.warp_specialize" in line)
    for i, line in enumerate(lines):
        if "init_barrier" in line and i < begin:
            yield f"line {i}: count", _with(lines, i, re.sub(r", (\d+) :", lambda m: f", {int(m[1]) + 1} :", line))
        if i <= begin:
            continue
        for told, broken in _broken(lines, i):
            yield f"line {i}: {told}", broken


def _broken(lines: Lines, i: int) -> Iterator[tuple[str, str]]:
    line = lines[i]
    if "wait_barrier" in line:
        yield "no wait", _with(lines, i, "")
        phase = _WAIT.search(line)
        assert phase is not None
        turned = "%one_more = arith.constant 1 : i32 loc(#loc1)\n"
        turned += f"%turned = arith.xori {phase[2]}, %one_more : i32 loc(#loc1)\n"
        yield "other phase", _with(lines, i, turned + _WAIT.sub(r"\1, %turned", line))
    if "arrive_barrier" in line:
        yield "no release", _with(lines, i, "")
        yield "released twice", _with(lines, i, f"{line}\n{line}")
    if "barrier_expect" in line:
        yield "other bytes", _with(lines, i, re.sub(r", (\d+),", lambda m: f", {int(m[1]) // 2},", line))
    if "warp_group_dot_wait" in line:
        yield "waits less", _with(lines, i, _PENDING.sub(lambda m: f"{m[1]}{int(m[2]) + 1}", line))
    if "fence_async_shared" in line:
        yield "no fence", _with(lines, i, "")
    if "async_tma_store_wait" in line:
        yield "no wait for stores", _with(lines, i, "")
    if "async_tma_copy" in line:
        yield "no copy", _with(lines, i, "")
        swapped = re.sub(r"\[(%\w+), (%\w+)\]", r"[\2, \1]", line)
        if swapped != line:
            yield "coordinates swapped", _with(lines, i, swapped)
    found = _INDEX.search(line)
    if found is not None and int(found[4]) > 1:
        made = (
            f"%other_c = arith.constant {int(found[4])} : i32 loc(#loc1)\n%one_c = arith.constant 1 : i32 loc(#loc1)\n"
        )
        made += f"%other_n = arith.addi {found[2]}, %one_c : i32 loc(#loc1)\n"
        made += "%other_s = arith.remsi %other_n, %other_c : i32 loc(#loc1)\n"
        yield "other slot", _with(lines, i, made + f"{found[1]}[%other_s]{found[3]}")


def _with(lines: Lines, i: int, line: str) -> str:
    return "\n".join([*lines[:i], line, *lines[i + 1 :]])
