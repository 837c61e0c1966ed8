"""Torch's own lookups and lists of configurations, asked on a machine without a GPU.

Inductor asks CUDA for the GPU's name and limits before it looks anything up: :func:`pretending` answers for the GPU
that a table is for, while it is made and verified. Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warpplan.planner.values.device import Device
from warpplan.service.feeds.inductor.mm_problem import MmProblem
from warpplan.service.feeds.paper_cuda import paper_cuda

TEMPLATE = "triton::mm"
ATEN = {"mm": "aten::mm", "addmm": "aten::addmm"}


@dataclass(frozen=True)
class MmTile:
    """A configuration of Inductor's ``mm`` template."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    group_m: int = 8


@contextmanager
def pretending(gpu: Device) -> Iterator[None]:
    """``torch.cuda`` as it is on a machine with ``gpu``, as far as Inductor asks before it compiles."""
    from torch._inductor.lookup_table.choices import LookupTableChoices

    # It remembers the names of devices: another GPU may have been asked for before, and the real one after.
    LookupTableChoices._get_device_key.cache_clear()
    with paper_cuda(gpu):
        try:
            yield
        finally:
            LookupTableChoices._get_device_key.cache_clear()


def listed_tiles(problem: MmProblem) -> tuple[MmTile, ...]:
    """Inductor's own candidates for ``problem``, in its order. Call it while :func:`pretending`."""
    import torch
    from torch._inductor.template_heuristics.registry import get_template_heuristic
    from torch._inductor.virtualized import V

    heuristic = get_template_heuristic(TEMPLATE, "cuda", problem.operation)
    size = getattr(torch, problem.dtype).itemsize
    with V.set_graph_handler(_empty_graph()):
        found = list(
            heuristic.get_mm_configs()(problem.m, problem.n, problem.k, dtype_size=size, op_name=problem.operation)
        )
    tiles = (
        MmTile(
            c.kwargs["BLOCK_M"], c.kwargs["BLOCK_N"], c.kwargs["BLOCK_K"], c.num_warps, c.num_stages,
            c.kwargs.get("GROUP_M", 8),
        )
        for c in found
    )  # fmt: skip
    return tuple(dict.fromkeys(tiles))


def template_hash() -> str:
    """The digest of the template's source by which Inductor drops entries made for another."""
    from torch._inductor.kernel.mm import mm_template

    return str(mm_template.src_hash)


def looked_up(choices: Any, problems: Sequence[MmProblem]) -> list[list[dict[str, Any]]]:
    """What ``choices`` (a ``LookupTableChoices``) finds for each of ``problems``: the keyword arguments of each
    template that Inductor would compile; none on a miss. Call it while :func:`pretending`."""
    import sympy
    import torch
    from torch._inductor import config, ir
    from torch._inductor.kernel.mm import aten_addmm, aten_mm, mm_template
    from torch._inductor.kernel_inputs import MMKernelInputs
    from torch._inductor.virtualized import V

    device = torch.device("cuda", 0)

    def node(name: str, problem: MmProblem, at: int) -> Any:
        its = problem.inputs[at]
        sizes, strides = ([sympy.Integer(v) for v in values] for values in (its.sizes, its.strides))
        layout = ir.FixedLayout(device, getattr(torch, its.dtype), sizes, strides)
        return ir.InputBuffer(name=name, layout=layout)

    found = []
    with V.set_graph_handler(_empty_graph()), V.set_choices_handler(choices), config.patch(max_autotune_gemm=True):
        for problem in problems:
            nodes = [node(f"in{i}", problem, i) for i in range(len(problem.inputs))]
            scalars = dict(_scalar(part) for part in problem.scalars.split("&") if part)
            last = len(nodes) - 1
            inputs = MMKernelInputs(nodes, scalars, mat1_idx=last - 1, mat2_idx=last)
            templates = [aten_mm if problem.operation == "mm" else aten_addmm, mm_template]
            hashes = {t.uid: getattr(t, "src_hash", None) for t in templates}
            uids = [t.uid for t in templates]
            entries = choices.lookup_template_configs(inputs, problem.operation, uids, hashes)
            found.append([{"template_id": uid, **entry} for uid, group in entries.items() for entry in group])
    return found


def _empty_graph() -> Any:
    """What Inductor asks whether sizes are known."""
    import torch
    from torch._inductor.graph import GraphLowering

    return GraphLowering(torch.fx.symbolic_trace(lambda x: x))


def _scalar(text: str) -> tuple[str, float | int]:
    name, _, value = text.partition("=")
    number = float(value)
    return name, int(number) if number.is_integer() and "." not in value else number
