"""A strategy put into Triton's compile: the stage hook that lowers a kernel by it.

The hook replaces the ``ttgir`` stage: Triton's passes to the cut, our own lowering, Triton's passes
from the cut on; and mends what the ``ptx`` stage gives. On 3.6.0 a hook is no part of Triton's cache keys, so planned
compiles are kept in folders of their own, one for each strategy and each release of this module; from 3.7 on it is
asked for its key too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper.persistent import MARK, launched
from warpplan.kernels.compiler.pipeline import finish, read, run_after, run_before
from warpplan.kernels.compiler.pipeline.matrix_descriptors import with_kept_addresses
from warpplan.kernels.compiler.pointers.describing import Described
from warpplan.kernels.compiler.pointers.planned_cut import planned_cut, with_tma_loads
from warpplan.kernels.compiler.pointers.scratch import with_scratch
from warpplan.kernels.compiler.sizes.least_arguments import LEAST
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.triton_types import (
    AstSource,
    CompiledKernel,
    GpuTarget,
    Json,
    MlirModule,
    StageHook,
)

LOWERING = "12"
"""Part of the cache key: raised with every change of what a strategy is lowered to."""
_hook_lock = threading.RLock()

Edit = Callable[[str], str]


def hook(strategy: Strategy, edit: Edit | None = None, edited: str = "") -> StageHook:
    """A function for ``triton.knobs.runtime.add_stages_inspection_hook`` that compiles kernels by ``strategy``.

    ``edit`` changes the finished TTGIR (see :mod:`~...inspection.instrument`), and ``edited`` tells it from other edits
    in Triton's cache key. A compile under the hook raises :class:`CannotPlan` for a kernel that cannot be specialised.
    """
    key = cache_key(strategy, edited)

    def inspect(*arguments: Json) -> tuple[str, str] | None:
        if not arguments:  # Triton 3.7 and later ask for (key, hash)
            return key, hashlib.sha256(key.encode()).hexdigest()
        _, stages, options, _, capability = arguments

        def make_ttgir(module: MlirModule, metadata: dict[str, Json]) -> MlirModule:
            strategy.require(capability)
            context = module.context
            module, described = with_tma_loads(module, capability, stores=strategy.stores_by_tma)
            changed = dataclasses.replace(options, **strategy.options)
            run_before(module, changed, capability)
            planned = read(_lowered(strategy, str(module), described), context)
            run_after(planned, changed, capability, pipelined=strategy.pipelined, scheduled=strategy.scheduled)
            if edit is not None:
                planned = read(edit(str(planned)), context)
            metadata["tensordesc_meta"] = planned.get_tensordesc_metadata()
            metadata[MARK] = strategy.walking_programs
            metadata[LEAST] = [list(least) for least in described.least]
            return planned

        make_ptx = stages["ptx"]
        stages["ttgir"] = make_ttgir
        stages["ptx"] = lambda source, metadata: with_kept_addresses(make_ptx(source, metadata))
        return None

    return inspect


def cache_key(strategy: Strategy, edited: str = "") -> str:
    """What tells one lowering from another: the strategy, the lowering's own version, the edit of what came out."""
    return f"warpplan-{LOWERING}-{strategy.key}" + (f"-edited-{edited}" if edited else "")


def compile_with(
    source: AstSource,
    target: GpuTarget,
    options: Mapping[str, Json] | None,
    strategy: Strategy,
    cache: str | os.PathLike[str] | None = None,
    edit: Edit | None = None,
) -> CompiledKernel:
    """Compile ``source`` by ``strategy`` for ``target``.

    ``cache`` is the folder of planned compiles, by default ``warpplan`` in Triton's own. What ``edit`` makes of the
    kernel is part of the key, for a function says nothing of what it does: it runs twice. Needs no GPU. Raises
    :class:`CannotPlan`, :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR`, and Triton's own errors.
    """
    import triton

    edited = "" if edit is None else _digest(edit(finished_text(source, target, options or {}, strategy)))
    with _installed(hook(strategy, edit, edited), _folder(cache, cache_key(strategy, edited))):
        return with_scratch(launched(triton.compile(source, target=target, options=dict(options or {}))))


def finished_text(source: AstSource, target: GpuTarget, options: Mapping[str, Json], strategy: Strategy) -> str:
    """The TTGIR that :func:`compile_with` makes of ``source``, as Triton finishes it. Raises as it does."""
    at_cut = planned_cut(source, target, {**options, **strategy.options}, stores=strategy.stores_by_tma)
    lowered = _lowered(strategy, at_cut.text, at_cut.described)
    return str(
        finish(
            lowered, at_cut.options, at_cut.capability,
            pipelined=strategy.pipelined, scheduled=strategy.scheduled,
        )
    )  # fmt: skip


def _lowered(strategy: Strategy, text: str, described: Described) -> str:
    """``text`` lowered by ``strategy``; where nothing is loaded through TMA, why the loads through pointers are not."""
    try:
        return strategy.lower(text)
    except CannotPlan as error:
        if error.operation or not described.unchanged or "tt.descriptor_load" in text:
            raise
        first = described.unchanged[0]
        raise CannotPlan(first.told, "tt.load", first.load) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder(cache: str | os.PathLike[str] | None, key: str) -> Path:
    from triton import knobs

    base = Path(cache) if cache is not None else Path(knobs.cache.dir) / "warpplan"
    return base / key


@contextmanager
def _installed(new: StageHook, folder: Path) -> Iterator[None]:
    """``new`` as Triton's hook, and Triton's cache in ``folder``, for as long as the block lasts."""
    from triton import knobs

    # Scopes, for a knob assigned to stops following its environment variable, and sets it.
    with _hook_lock, knobs.runtime.scope(), knobs.cache.scope():
        knobs.runtime.add_stages_inspection_hook = new
        knobs.cache.dir = str(folder)
        yield
