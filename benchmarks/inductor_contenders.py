"""GPU: a product by Inductor's max-autotune, by our table, by Inductor's best Triton tile and by cuBLAS, read in turn.

Runs in a child of ``bench_inductor_table.py``. Each compiled function is made with empty caches of Inductor and Triton,
checked and captured before the next one is compiled: ``torch._dynamo.reset`` between them drops what was compiled, and
the captured graph does not need it. Written for torch 2.11 to 2.13.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from bench_inductor_table import TILE, best_tile, code_has_tile, tile_of
from bench_target import require_target
from gpu_jobs import guarded
from graph_timing import capture, interleaved, run_for, summary
from row_store import Row
from torch._inductor import config, select_algorithm
from torch._inductor import utils as inductor_utils
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.virtualized import V

from warpplan.service.feeds.inductor.choices import PlannedChoices, usable_table
from warpplan.service.feeds.machine_here import machine_here

OPTIONS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
COLD_BYTES = 192 * 2**20
"""Operands of all sets: three times the L2 of an H200."""
TOLERANCE = 5e-3
"""‖error‖ / ‖reference‖ of a bf16 result; rounding once gives 2e-3."""
ROUNDS, SHORT_ROUNDS, SHORT_US = 9, 21, 50.0
SETTLE_MS, READ_MS = 4.0, 8.0
WARM_MS = 300.0
"""A cool card that is limited by power is faster than it stays."""
PEAK_FLOPS, PEAK_BYTES = 700e12, 2.5e12
"""Of the estimate from which a graph's launches are counted; twice as much doubles a graph's length."""


class NotedChoices(PlannedChoices):  # type: ignore[misc]  # torch is untyped here
    """The choices that a job imports; ``found`` holds the entries that Inductor was given."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__(table)
        self.found: list[dict[str, Any]] = []

    def lookup_template_configs(self, *given: Any, **named: Any) -> dict[str, list[dict[str, Any]]]:
        answered: dict[str, list[dict[str, Any]]] = super().lookup_template_configs(*given, **named)
        self.found += [entry for entries in answered.values() for entry in entries]
        return answered


class MmContenders:
    """Ways to compute one product: operands, the checked and captured contenders, and why others have no time."""

    def __init__(self, m: int, n: int, k: int, layout: str) -> None:
        size = 2 * (m * k + n * k + m * n)
        b_shape = (n, k) if layout == "nt" else (k, n)
        self.sets = []
        for seed in range(max(1, -(-COLD_BYTES // size))):
            generator = torch.Generator("cuda").manual_seed(seed)
            a, b = (
                torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
                for shape in ((m, k), b_shape)
            )
            self.sets.append((a, b.T if layout == "nt" else b))
        self.right = self.sets[0][0].float() @ self.sets[0][1].float()  # torch's default has no TF32
        self.estimate_us = max(2 * m * n * k / PEAK_FLOPS, size / PEAK_BYTES) * 1e6
        self.graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
        self.errors: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._owned: list[Any] = []  # compiled kernels: a graph launches them and does not keep them

    def add(self, name: str, make: Callable[[], Callable[..., torch.Tensor]]) -> None:
        """Make the contender, call it, check it and capture it; one that is wrong has no graph."""
        begun = time.monotonic()
        try:
            call = make()
            call(*self.sets[0])
            torch.cuda.synchronize()
            self.seconds[name] = round(time.monotonic() - begun, 2)
            self.errors[name] = error = self._error(call)
            if not error < TOLERANCE:
                self.failed[name] = f"wrong: error {error:.2e}"
                return
            self.graphs[name] = capture([lambda pair=pair: call(*pair) for pair in self.sets], self.estimate_us)
            self._owned.append((call, list(PyCodeCache.modules)))
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            self.failed[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]

    def times(self) -> dict[str, dict[str, float]]:
        run_for(*next(iter(self.graphs.values())), WARM_MS)
        rounds = ROUNDS if self.estimate_us > SHORT_US else SHORT_ROUNDS
        return {n: summary(sample) for n, sample in interleaved(self.graphs, rounds, SETTLE_MS, READ_MS).items()}

    def _error(self, call: Callable[..., torch.Tensor]) -> float:
        poison = torch.full(self.right.shape, math.nan, device="cuda", dtype=torch.bfloat16)
        del poison  # the allocator gives its memory to the output of the next call
        got = call(*self.sets[0]).float()
        error = ((got - self.right).norm() / self.right.norm()).item()
        return error if error == error else math.inf


@contextmanager
def fresh(choices: InductorChoices | None = None) -> Iterator[None]:
    """Nothing compiled and nothing cached; Inductor chooses by ``choices``, or as it does without us."""
    torch._dynamo.reset()
    config.inductor_choices_class = (lambda: choices) if choices is not None else None
    V.set_choices_handler(choices if choices is not None else InductorChoices())
    try:
        with inductor_utils.fresh_cache():
            yield
    finally:
        config.inductor_choices_class = None
        V.set_choices_handler(InductorChoices())
        torch._dynamo.reset()


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(product, options=OPTIONS, dynamic=False)


def output_code() -> str:
    """What Inductor has written since its caches were emptied."""
    files = {str(getattr(module, "__file__", None) or "") for module in PyCodeCache.modules}
    return "\n".join(Path(file).read_text() for file in sorted(files) if Path(file).is_file())


@cache
def warm_up() -> None:
    """What only a process's first compilation costs, imports and the compiling processes, is no contender's."""
    pair = [torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    with fresh():
        compiled()(*pair)
    torch.cuda.synchronize()


def measure_jobs(jobs: Sequence[tuple[int, int, int, str, str]]) -> Iterator[Row]:
    """Runs in a child: a result for each (M, N, K, layout, folder of the exported table)."""
    require_target(torch.cuda.get_device_name())
    return guarded(jobs, lambda job: measured(*job))


def measured(m: int, n: int, k: int, layout: str, folder: str) -> Row:
    table = usable_table(Path(folder), machine_here())
    if not table:
        return {"status": "error", "reason": f"the table in {folder} does not hold on this machine"}
    ((key, (ours,)),) = table.items()
    warm_up()
    torch.cuda.empty_cache()  # of the row before
    contenders = MmContenders(m, n, k, layout)
    contenders.add("cublas", lambda: product)
    choices, others = autotuned(contenders)
    noted, code_hit = with_table(contenders, "table", {key: [ours]})
    result = {
        "choices": choices, "aten_us": others.pop("mm", None), "other_choices_us": others,
        "looked_up": [{name: entry.get(name) for name in TILE} for entry in noted], "in_code": code_hit,
        "hit": bool(noted) and all(e.get(name) == ours[name] for e in noted for name in TILE) and code_hit is not False,
    }  # fmt: skip
    best = best_tile(choices)
    same = best == tuple(ours[name] for name in TILE)
    if best and not same:
        tile = dict(zip(TILE, best, strict=True))
        with_table(contenders, "best_tile", {key: [{**ours, **tile, "EVEN_K": k % tile["BLOCK_K"] == 0}]})
    if not contenders.graphs:
        return {"status": "error", "reason": f"nothing ran: {contenders.failed}"}
    times = contenders.times()
    if same and "table" in times:
        times["best_tile"] = dict(times["table"])
    return {
        "status": "ok", **result, "best_is_ours": same, "times": times, "errors": contenders.errors,
        "not_timed": contenders.failed, "seconds": contenders.seconds,
    }  # fmt: skip


def autotuned(contenders: MmContenders) -> tuple[list[list[Any]], dict[str, float | None]]:
    """Adds max-autotune. Inductor's readings in µs: of its Triton tiles, each the values of ``TILE`` with its time, and
    of other choices by name; ``None`` for what did not run."""
    tiles: list[list[Any]] = []
    others: dict[str, float | None] = {}

    def keep(timings: Mapping[Any, float], *more: Any) -> None:
        for choice, milliseconds in timings.items():
            us = round(milliseconds * 1e3, 3) if math.isfinite(milliseconds) else None
            tile = tile_of(choice.name, choice.description)
            if tile is None:
                others[choice.name] = us
            else:
                tiles.append([*tile, us])

    with fresh():
        select_algorithm.add_feedback_saver(keep)
        try:
            contenders.add("max_autotune", compiled)
        finally:
            select_algorithm.clear_feedback_savers()
    return tiles, others


def with_table(
    contenders: MmContenders, name: str, table: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool | None]:
    """Adds the product with ``table`` installed. The entries that Inductor was given, and whether its code has the
    tile of the one entry of ``table``."""
    noted = NotedChoices(table)
    ((entry,),) = table.values()
    with fresh(noted):
        contenders.add(name, compiled)
        return noted.found, code_has_tile(output_code(), entry)
