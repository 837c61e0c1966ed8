"""A kernel's finished TTGIR without the machine code, which takes most of a compile and which no player reads."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.compiler.compiler import get_cache_invalidating_env_vars, get_cache_key
from triton.runtime.cache import get_cache_manager

from warpplan.kernels.compiler.inspection.player.played_program import ready
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.pipeline.cutting import new_context

HOPPER = GPUTarget("cuda", 90, 32)
KEPT = "finished.ttgir"


def finished_text(source: Any, options: dict[str, Any]) -> str:
    """``triton.compile(source, target=HOPPER, options=options).asm["ttgir"]``, in Triton's cache under its own key."""
    backend = make_backend(HOPPER)
    parsed = backend.parse_options({**options, **source.parse_options()})
    key = f"{KEPT}-{get_cache_key(source, backend, parsed, env_vars=get_cache_invalidating_env_vars())}"
    kept = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    path = kept.get_file(KEPT)
    if path is None:
        stages: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        backend.add_stages(stages, parsed, source.language)
        implementations = backend.get_codegen_implementation(parsed)
        module = source.make_ir(HOPPER, parsed, implementations, backend.get_module_map(), new_context(backend))
        for name in list(stages)[: list(stages).index("ttgir") + 1]:
            module = stages[name](module, metadata)
        path = kept.put(str(module), KEPT, binary=False)
    return Path(path).read_text()


def finished_code(source: Any, options: dict[str, Any]) -> ReadyCode:
    """The same, ready to be played."""
    return _read(finished_text(source, options))


_read = lru_cache(maxsize=32)(ready)
"""Many configurations have the same small kernels beside their own."""
