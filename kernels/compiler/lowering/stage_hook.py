"""A scheme put into Triton's compile: the stage hook that lowers a kernel by it.

The hook replaces the ``ttgir`` stage: Triton's passes to the cut, our own lowering, Triton's passes
from the cut on. On 3.6.0 a hook is no part of Triton's cache keys, so planned compiles are kept in
folders of their own, one for each scheme and each release of this module; from 3.7 on it is asked for its key too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.blackwell.annotate import annotate, roles_of
from warpplan.kernels.compiler.lowering.hopper.persistent import MARK, launched
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.pipeline import cut, finish, read, run_after, run_before
from warpplan.kernels.compiler.strategy.blackwell import Steered
from warpplan.kernels.compiler.strategy.hopper import Scheme

LOWERING = "3"
"""Part of the cache key: raised with every change of what a scheme is lowered to."""
HOPPER, BLACKWELL = 9, 10
_hook_lock = threading.RLock()

Hook = Callable[..., Any]
Edit = Callable[[str], str]


def hook(scheme: Scheme | Steered, edit: Edit | None = None, edited: str = "") -> Hook:
    """A function for ``triton.knobs.runtime.add_stages_inspection_hook`` that compiles kernels by ``scheme``: on Hopper
    a :class:`Scheme`, on Blackwell a :class:`Steered`.

    ``edit`` changes the finished TTGIR (see :mod:`~...inspection.instrument`), and ``edited`` tells it from other edits
    in Triton's cache key. A compile under the hook raises :class:`CannotPlan` for a kernel that cannot be specialised.
    """
    key = cache_key(scheme, edited)

    def inspect(*arguments: Any) -> Any:
        if not arguments:  # Triton 3.7 and later ask for (key, hash)
            return key, hashlib.sha256(key.encode()).hexdigest()
        _, stages, options, _, capability = arguments

        def make_ttgir(module: Any, metadata: dict[str, Any]) -> Any:
            if isinstance(scheme, Steered) and capability // 10 != BLACKWELL:
                raise CannotPlan(f"sm_{capability}: only sm_100 and sm_103 have tensor memory")
            if isinstance(scheme, Scheme) and capability // 10 != HOPPER:
                raise CannotPlan(f"sm_{capability}: schemes are lowered for sm_90 (Hopper)")
            context = module.context
            changed = dataclasses.replace(options, **options_of(scheme))
            run_before(module, changed, capability)
            planned = read(lowered(str(module), scheme), context)
            run_after(planned, changed, capability, **left_out(scheme))
            if edit is not None:
                planned = read(edit(str(planned)), context)
            metadata["tensordesc_meta"] = planned.get_tensordesc_metadata()
            metadata[MARK] = not isinstance(scheme, Steered) and bool(scheme.persistent)
            return planned

        stages["ttgir"] = make_ttgir
        return None

    return inspect


def options_of(scheme: Scheme | Steered) -> dict[str, int]:
    """The options of the compile that ``scheme`` changes."""
    return {"num_stages": scheme.depth} if isinstance(scheme, Steered) else {"num_warps": scheme.warps}


def lowered(text: str, scheme: Scheme | Steered) -> str:
    """The cut ``text`` by ``scheme``. Raises what :func:`specialize` and :func:`annotate` do."""
    return annotate(text, roles_of(scheme)) if isinstance(scheme, Steered) else specialize(text, scheme)


def left_out(scheme: Scheme | Steered) -> dict[str, bool]:
    """What :func:`run_after` leaves out after ``scheme``."""
    return {"scheduled": bool(scheme.stages)} if isinstance(scheme, Steered) else {"pipelined": True}


def cache_key(scheme: Scheme | Steered, edited: str = "") -> str:
    """What tells one lowering from another: the scheme, the lowering's own version, the edit of what came out."""
    edit = f"-edited-{edited}" if edited else ""
    if isinstance(scheme, Steered):
        staged = f"-{_digest(repr(scheme.stages))}" if scheme.stages else ""
        return f"warpplan-{LOWERING}-{scheme.workers}-{scheme.depth}-{scheme.double}{staged}{edit}"
    depths = ".".join(map(str, scheme.depths))
    flags = f"{scheme.in_flight}{scheme.persistent}"
    return f"warpplan-{LOWERING}-{scheme.consumers}x{scheme.warps}-{depths}-{flags}{edit}"


def compile_with(
    source: Any,
    target: Any,
    options: Mapping[str, Any] | None,
    scheme: Scheme | Steered,
    cache: str | os.PathLike[str] | None = None,
    edit: Edit | None = None,
) -> Any:
    """Compile ``source`` (a Triton ``ASTSource``) by ``scheme`` for ``target`` (a ``GPUTarget``): a ``CompiledKernel``.

    ``cache`` is the folder of planned compiles, by default ``warpplan`` in Triton's own. What ``edit`` makes of the
    kernel is part of the key, for a function says nothing of what it does: it runs twice. Needs no GPU. Raises
    :class:`CannotPlan`, :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR`, and Triton's own errors.
    """
    import triton

    edited = "" if edit is None else _digest(edit(finished_text(source, target, options or {}, scheme)))
    with _installed(hook(scheme, edit, edited), _folder(cache, cache_key(scheme, edited))):
        return launched(triton.compile(source, target=target, options=dict(options or {})))


def finished_text(source: Any, target: Any, options: Mapping[str, Any], scheme: Scheme | Steered) -> str:
    """The TTGIR that :func:`compile_with` makes of ``source``, as Triton finishes it. Raises as it does."""
    at_cut = cut(source, target, {**options, **options_of(scheme)})
    return str(finish(lowered(at_cut.text, scheme), at_cut.options, at_cut.capability, **left_out(scheme)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder(cache: str | os.PathLike[str] | None, key: str) -> Path:
    from triton import knobs

    base = Path(cache) if cache is not None else Path(knobs.cache.dir) / "warpplan"
    return base / key


@contextmanager
def _installed(new: Hook, folder: Path) -> Iterator[None]:
    """``new`` as Triton's hook, and Triton's cache in ``folder``, for as long as the block lasts."""
    from triton import knobs

    # Scopes, for a knob assigned to stops following its environment variable, and sets it.
    with _hook_lock, knobs.runtime.scope(), knobs.cache.scope():
        knobs.runtime.add_stages_inspection_hook = new
        knobs.cache.dir = str(folder)
        yield
