"""Registers that a GEMM consumer needs besides its accumulator, from ptxas's own reports; no GPU needed.

    python benchmarks/fit_registers.py --out benchmarks/results

Writes ``gemm_registers_sm90.json``. Of the pipelined kernels ptxas reports what they use. Of the specialised ones it
reports what they were granted, so the registers at launch, and the consumers' grant with them, are lowered step by
step until something spills, or until ptxas refuses: a wgmma needs its own accumulator and some more *at launch*,
whatever the consumers are granted later. ``base`` is the last grant less the accumulator, an upper bound where ptxas
refused first; ``at_launch`` what the refusal asked for, less the accumulator of one wgmma.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from results_file import RESULTS, head, write

from warpplan.kernels.compile import TRITON_TYPES, CompiledReport, compile_report
from warpplan.kernels.gemm.candidates import structures
from warpplan.kernels.gemm.compile_gemm import gemm_source
from warpplan.kernels.gemm.space import MAX_REGISTERS, PRODUCER_REGISTERS, WARP_GROUP, GemmConfig
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import H200

DTYPE = "bfloat16"
SPECIALIZED: tuple[GemmConfig, ...] = (
    GemmConfig("single", 128, 128, 64, 8, 5),
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 128, 128, 64, 4, 4),
    GemmConfig("single", 128, 128, 64, 4, 4, swap=True),
    GemmConfig("single", 128, 64, 64, 4, 4),
    GemmConfig("cooperative", 128, 256, 64, 4, 3),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("cooperative", 256, 128, 64, 4, 3),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 6, epilogue_split=2, staging="ring"),
)
_TARGET = re.compile(r"register target of (\d+) or higher")


def compiled(config: GemmConfig, tma_store: bool, maxnreg: int | None = None) -> CompiledReport:
    """``config`` with ``maxnreg`` registers a thread at launch instead of its own."""
    source, options = gemm_source(config, TRITON_TYPES[DTYPE], tma_store)
    if maxnreg is not None:
        options = {**options, "maxnreg": maxnreg}
        names = [parameter.name for parameter in source.fn.params]
        source.constants[(names.index("CONSUMER_REGISTERS"),)] = granted(config, maxnreg)
    return compile_report(source, options, 90, what=repr(config))


def granted(config: GemmConfig, maxnreg: int) -> int:
    """What the consumers get of it: all that the producer's warp group leaves."""
    left = maxnreg * config.total_warps - PRODUCER_REGISTERS * WARP_GROUP
    return min(MAX_REGISTERS, left // (config.consumers * config.consumer_warps) // 8 * 8)


def least_grant(config: GemmConfig, tma_store: bool, spill_bytes: int) -> dict[str, int]:
    """The smallest grant with which no more spills than ``spill_bytes``, or than ptxas refuses."""
    least = config.consumer_registers
    for maxnreg in range(config.max_registers - 8, PRODUCER_REGISTERS, -8):
        try:
            if compiled(config, tma_store, maxnreg).spill_bytes > spill_bytes:
                break
        except InvalidConfig as error:
            asked = _TARGET.search(str(error.__cause__))
            if asked is None:
                raise
            return {"registers": least, "at_launch": int(asked[1]) - config.block_n // 2}
        least = granted(config, maxnreg)
    return {"registers": least}


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for config in (*(c for c in structures(DTYPE, H200) if not c.specialized), *SPECIALIZED):
        for tma_store in (True, False):
            report = compiled(config, tma_store)
            row = {"kernel": "gemm", "config": vars(config), "tma_store": tma_store, "spill_bytes": report.spill_bytes}
            if config.specialized:
                row |= least_grant(config, tma_store, report.spill_bytes)
            else:
                row["registers"] = report.registers
            row["base"] = row["registers"] - config.accumulator_registers
            found.append(row)
            tile = f"{config.scheme}{config.consumer_warps} {config.block_m}x{config.block_n}x{config.block_k}"
            print(tile, f"depth {config.depth}", "tma" if tma_store else "plain",
                  {k: row.get(k) for k in ("base", "at_launch", "spill_bytes")}, flush=True)  # fmt: skip
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, int]:
    """The largest of each kind: with TMA stores (plain ones may spill, once a tile), where nothing refused first."""
    tma = [r for r in found if r["tma_store"]]
    return {
        "base_pipelined": max(r["base"] for r in tma if r["config"]["scheme"] == "pipelined"),
        "base_specialized": max(
            r["base"] for r in tma if r["config"]["scheme"] != "pipelined" and "at_launch" not in r
        ),
        "at_launch": max(r["at_launch"] for r in found if "at_launch" in r),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = rows()
    print(summary(found))
    result = {**head("gemm_registers", "sm_90"), "dtype": DTYPE, "summary": summary(found), "rows": found}
    write(arguments.out / "gemm_registers_sm90.json", result)


if __name__ == "__main__":
    main()
