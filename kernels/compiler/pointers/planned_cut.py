"""The cut as plans see it: loads through pointers are TMA loads there, where that is proven."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import Captured, Obstacle
from warpplan.kernels.compiler.pointers.describing import Described, Unchanged, describe
from warpplan.kernels.compiler.pointers.exit_values import with_exit_values
from warpplan.kernels.compiler.pointers.masks.seldom_masks import with_seldom_masks
from warpplan.kernels.compiler.pointers.softmax_weights import with_flushed_weights
from warpplan.kernels.compiler.ttgir.ir import MalformedIR
from warpplan.kernels.triton_types import (
    AstSource,
    CompileOptions,
    GpuTarget,
    Json,
    MlirModule,
)

HOPPER = 9
"""Major compute capability of the GPUs for which pointer loads are rewritten."""


@dataclass(frozen=True)
class PlannedCut:
    """``text`` is the module at the cut, ``options`` Triton's own of the compile, ``described`` what became of the
    loads through pointers."""

    text: str
    options: CompileOptions
    capability: int
    described: Described


def planned_cut(
    source: AstSource, target: GpuTarget, options: Mapping[str, Json] | None = None, *, stores: bool = False
) -> PlannedCut:
    """As :func:`~warpplan.kernels.compiler.pipeline.cut`, raising what that raises; with ``stores`` by TMA, too."""
    found: list[Described] = []

    def edit(module: MlirModule, capability: int) -> MlirModule:
        module, described = with_tma_loads(module, capability, stores=stores)
        found.append(described)
        return module

    at_cut = pipeline.cut(source, target, options, edit)
    return PlannedCut(at_cut.text, at_cut.options, at_cut.capability, found[0])


def with_tma_loads(module: MlirModule, capability: int, *, stores: bool = False) -> tuple[MlirModule, Described]:
    """Triton's IR ``module`` with its loads through pointers as TMA loads, and which they are, its additions of
    products as TMA reductions, and with ``stores`` its stores of products as TMA stores; what a tail's addresses take
    from the loop before it in closed form; masks of few iterations and softmax weights are marked."""
    import triton

    text = str(module)
    if capability // 10 != HOPPER or "tt.dot" not in text:
        return module, Described(text)
    try:
        closed = with_flushed_weights(with_seldom_masks(with_exit_values(text)))
        described = describe(closed, nested=pipeline.nests_descriptors(triton.__version__), stores=stores)
        changed = described.text != text
        return (pipeline.read(described.text, module.context) if changed else module), described
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError, MalformedIR):
        return module, Described(text)  # forms that are not read here: what is planned is the kernel as it is


def explained(captured: Captured, described: Described) -> Captured:
    """``captured`` with why its pointer loads stay as they are: in place of their obstacle, or as remarks on a loop
    that other loads are planned in; with what the producer copies instead, and with why stores stay as they are."""
    uncopied = {each.line: each.reason for each in captured.uncopied}
    lines = {w.line for body in (captured.body, *captured.loops) for w in body.of_kind("copy_load")}

    def told(load: Unchanged) -> str:
        if load.load in lines:
            return f"{load.told}; the producer copies it by cp.async"
        return "; ".join(filter(None, (load.told, uncopied.get(load.load, ""))))

    obstacles: list[Obstacle] = []
    for obstacle in captured.obstacles:
        mine = [u for u in described.unchanged if obstacle.operation == "tt.load" and _is_in(u, obstacle.loop)]
        obstacles += [Obstacle(told(u), obstacle.operation, u.load, obstacle.loop) for u in mine] or [obstacle]
    remarks = [
        Obstacle(told(u), "tt.load", u.load, loop.id)
        for u in described.unchanged for loop in captured.loading if _is_in(u, loop.id)
    ]  # fmt: skip
    ways = tuple(explained(replace(way, uncopied=captured.uncopied), described) for way in captured.copied)
    return replace(
        captured, obstacles=tuple(dict.fromkeys(obstacles)), copied=ways,
        remarks=tuple(dict.fromkeys((*captured.remarks, *remarks))), stored_bytes=sum(described.stores),
        stores_kept=described.kept,
    )  # fmt: skip


def _is_in(load: Unchanged, loop: str) -> bool:
    """Whether ``load`` is in the loop that a captured kernel calls ``loop``; all are in the kernel, ""."""
    return not loop or re.fullmatch(re.escape(f"loop@{load.loop}") + r"(\.\d+)?", loop) is not None
