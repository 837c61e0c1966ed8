"""GPU: each way in which Triton's own warp specialisation fails on Hopper, and the same kernel planned.

    python benchmarks/stock_failures.py --out benchmarks/results

Each failure is reproduced in a child with a time limit, then the kernel, unchanged, is compiled under schemes of ours
and checked against the reference. Writes ``compiler_failures_h200.json``. What fails at compile time needs no GPU:
:func:`compile_jobs` shows it anywhere.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stock_kernels
import triton
from children import each, first_line
from results_file import RESULTS, head, write
from tl_case import Case, Described, Setting, Tensor, options, source
from tl_cases import LOG2E, SMS, cdiv
from triton import knobs
from triton.backends.compiler import GPUTarget

from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

NAME = "compiler_failures_h200.json"
LIMIT_S = 60.0
TARGET = GPUTarget("cuda", 90, 32)
N = 4096


@dataclass(frozen=True, eq=False)
class Failure:
    """``expected``: "hang", "refused" (does not compile), "wrong", or "not specialised".

    ``change`` names a change to Triton's own pipeline without which this failure hides behind another: "boxes" shrinks
    the TMA boxes that Triton forgets to halve (else: a hang), "store apart" puts the store in a partition of its own.
    ``releases`` are the releases of Triton that fail so; every supported one where it is empty.
    """

    name: str
    case: Case
    setting: Setting
    expected: str
    change: str = ""
    releases: tuple[str, ...] = ()
    schemes: tuple[HopperStrategy, ...] = (HopperStrategy(2, (3,)), HopperStrategy(2, (2,)), HopperStrategy(1, (2,), 8))

    @property
    def here(self) -> bool:
        """Does the installed Triton belong to ``releases``?"""
        return not self.releases or ".".join(triton.__version__.split(".")[:2]) in self.releases


def _gemm(kernel: Any, block_m: int, block_n: int, **constants: Any) -> tuple[Case, Mapping[str, Any]]:
    persistent = "NUM_SMS" in constants

    def grid(setting: Setting) -> tuple[int, int, int]:
        return (SMS, 1, 1) if persistent else (cdiv(N, block_m), cdiv(N, block_n), 1)

    case = Case(
        name="gemm",
        kernel=kernel,
        tensors={"a": Tensor((N, N)), "b": Tensor((N, N)), "c": Tensor((N, N), poisoned=True)},
        arguments=lambda _: {
            "a_desc": Described("a", (block_m, 64)), "b_desc": Described("b", (block_n, 64)), "c_ptr": "c",
            "c_desc": Described("c", (block_m, block_n)), "M": N, "N": N, "K": N,
        },
        grid=grid,
        settings=(),
        output="c",
        reference=lambda t: t["a"].float() @ t["b"].float().T,
        flops=2.0 * N**3,
        bytes=6.0 * N**2,
    )  # fmt: skip
    return case, {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64, **constants}


def _attention(kernel: Any, block_n: int) -> tuple[Case, Mapping[str, Any]]:
    heads, length, d = 16, 2048, 128

    def arguments(setting: Setting) -> Mapping[str, Any]:
        blocks = {"q": 128, "k": block_n, "v": block_n}
        return {
            **{f"{x}_desc": Described(x, (block, d)) for x, block in blocks.items()},
            **{f"{x}_ptr": x for x in "qkvo"}, "ROWS": heads * length, "L": length, "scale": LOG2E / math.sqrt(d),
        }  # fmt: skip

    def reference(t: Mapping[str, Any]) -> Any:
        q, k, v = (t[x].view(heads, length, d).float() for x in "qkv")
        return ((q @ k.transpose(1, 2) / math.sqrt(d)).softmax(-1) @ v).view(heads * length, d)

    case = Case(
        name="attention",
        kernel=kernel,
        tensors={**{x: Tensor((heads * length, d)) for x in "qkv"}, "o": Tensor((heads * length, d), poisoned=True)},
        arguments=arguments,
        grid=lambda _: (length // 128, heads, 1),
        settings=(),
        output="o",
        reference=reference,
        flops=4.0 * heads * length * length * d,
        bytes=8.0 * heads * length * d,
    )
    return case, {"D": d, "BLOCK_M": 128, "BLOCK_N": block_n}


@functools.cache
def failures() -> tuple[Failure, ...]:
    def failure(
        name: str, made: tuple[Case, Mapping[str, Any]], warps: int, stages: int, *rest: Any, **more: Any
    ) -> Failure:
        case, constants = made
        return Failure(name, case, Setting(constants, warps, stages), *rest, **more)

    gemm, flattened = stock_kernels.gemm, stock_kernels.gemm_flattened
    host, device = stock_kernels.attention, stock_kernels.attention_device
    plain = {"DESCRIPTOR_STORE": False}
    return (
        failure("host descriptors", _gemm(gemm, 128, 256, **plain), 4, 3, "hang", releases=("3.6",)),
        failure(
            "host descriptors, 3.9", _gemm(gemm, 128, 256, **plain), 4, 3, "refused", releases=("3.9",)
        ),
        failure("descriptor store", _gemm(gemm, 128, 256, DESCRIPTOR_STORE=True), 4, 3, "refused"),
        failure("8 warps", _gemm(gemm, 128, 256, **plain), 8, 3, "not specialised"),
        failure("flatten", _gemm(flattened, 128, 128, NUM_SMS=SMS), 4, 3, "not specialised"),
        failure("shared row offset", _attention(host, 128), 4, 2, "wrong", "boxes", releases=("3.6",)),
        failure("three stages", _attention(device, 64), 4, 3, "wrong", releases=("3.6",)),
        failure("store apart", _gemm(gemm, 128, 128, **plain), 4, 3, "refused", "store apart", releases=("3.6",)),
    )  # fmt: skip


def named(name: str) -> Failure:
    return next(f for f in failures() if f.name == name)


def compile_stock(failure: Failure) -> Any:
    """As Triton compiles it, but for ``failure.change``; past the cache, whose key knows nothing of a change."""
    hooks: dict[str, Callable[..., Any]] = {"boxes": _boxes, "store apart": _store_apart}
    with knobs.runtime.scope(), knobs.compilation.scope():
        if failure.change:
            knobs.runtime.add_stages_inspection_hook = hooks[failure.change]
            knobs.compilation.always_compile = True
        return triton.compile(source(failure.case, failure.setting), target=TARGET, options=options(failure.setting))


def _boxes(backend: Any, stages: dict[str, Any], *_: Any) -> None:
    """Shrink each host descriptor's box to the tile that its copies fill (triton-lang/triton 11587)."""
    stock = stages["ttgir"]
    copy = re.compile(r"async_tma_copy_global_to_local (%[\w.]+)\[.*?tensordesc<.*?-> !ttg\.memdesc<(\d+)x(\d+)x")

    def make(module: Any, metadata: dict[str, Any]) -> Any:
        finished = stock(module, metadata)
        text = str(finished)
        signature = text[text.index("tt.func public") :].split("\n", 1)[0]
        names = re.findall(r"(%[\w.]+): !tt\.tensordesc", signature)
        for name, *tile in copy.findall(text):
            if name in names:
                described = metadata["tensordesc_meta"][names.index(name)]
                described["block_size"] = [min(a, int(b)) for a, b in zip(described["block_size"], tile, strict=True)]
        return finished

    stages["ttgir"] = make


def _store_apart(backend: Any, stages: dict[str, Any], options: Any, language: Any, capability: int) -> None:
    """Loads in partition 0, products in 1, the store in 2, and then Triton's own pass."""
    from warpplan.kernels.compiler.pipeline import read, run_after, run_before, run_stock

    tasks = {"tt.descriptor_load": 0, "ttng.warp_group_dot": 1, "tt.store": 2}

    def make(module: Any, metadata: dict[str, Any]) -> Any:
        run_before(module, options, capability)
        text = str(module)
        for operation, task in tasks.items():
            mark = f"async_task_id = array<i32: {task}>"
            text = re.sub(rf"({operation} [^{{\n]*?)( \{{(.*?)\}})? : ", rf"\1 {{\3, {mark}}} : ", text)
        edited = read(text.replace("{, ", "{"), module.context)
        run_stock(edited, options, capability)
        run_after(edited, options, capability)
        metadata["tensordesc_meta"] = edited.get_tensordesc_metadata()
        return edited

    stages["ttgir"] = make


def compile_jobs(names: list[str]) -> Iterator[dict[str, Any]]:
    """Runs in a child: what Triton makes of each failure's kernel, without a GPU."""
    for name in names:
        try:
            compiled = compile_stock(named(name))
        except Exception as error:
            yield {"status": "refused", "reason": first_line(error)}
        else:
            specialised = "ttg.warp_specialize(" in compiled.asm["ttgir"]
            boxes = [meta["block_size"] for meta in compiled.metadata.tensordesc_meta]
            yield {"status": "ok" if specialised else "not specialised", "boxes": boxes}


def run_jobs(jobs: list[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Runs in a child with the GPU: (failure, number of one of its schemes, or −1 for Triton's own)."""
    from tl_launch import allow_scratch, compile_case, direct, ended, errors, right

    allow_scratch()
    for name, number in jobs:
        failure = named(name)
        try:
            if number < 0:
                compiled = compile_stock(failure)
                if "ttg.warp_specialize(" not in compiled.asm["ttgir"]:
                    yield {"status": "not specialised"}
                    continue
            else:
                compiled = compile_case(failure.case, failure.setting, failure.schemes[number])
            found = errors(failure.case, functools.partial(direct, compiled, failure.case, failure.setting))
            yield {"status": "ok" if right(found) else "wrong", "errors": found}
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)


def compared(failure: Failure, stock: dict[str, Any], planned: list[dict[str, Any]]) -> dict[str, Any]:
    """A results row. ``planned`` is "runs right" under the first scheme that does, "falls back" where every scheme is
    refused at compile time, and otherwise what went wrong."""
    right = next((i for i, r in enumerate(planned) if r["status"] == "ok"), None)
    refused = all(r["status"] == "refused" for r in planned)
    return {
        "kernel": failure.case.name, "failure": failure.name, "setting": str(failure.setting),
        "expected": failure.expected, "stock": stock["status"], "reproduced": stock["status"] == failure.expected,
        "stock_detail": stock,
        "planned": "runs right" if right is not None else ("falls back" if refused else "fails"),
        "scheme": str(failure.schemes[right]) if right is not None else None, "planned_detail": planned,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=150.0, help="start nothing later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    import torch

    until = time.monotonic() + arguments.limit_s
    wanted = [f for f in failures() if f.here]
    jobs = [(f.name, number) for f in wanted for number in range(-1, len(f.schemes))]
    found = dict(zip(jobs, each("stock_failures:run_jobs", jobs, limit_s=LIMIT_S, until=until), strict=True))
    rows = [compared(f, found[f.name, -1], [found[f.name, n] for n in range(len(f.schemes))]) for f in wanted]
    for row in rows:
        print(
            f"{row['failure']}: Triton {row['stock']} (expected {row['expected']}); planned {row['planned']}",
            flush=True,
        )
    write(arguments.out / NAME, {**head("compiler_failures", torch.cuda.get_device_name()), "rows": rows})


if __name__ == "__main__":
    main()
