"""Random examples are the same on every run; ``make fuzz`` (``HYPOTHESIS_PROFILE=fresh``) draws new ones. What is known
to compile clean is not compiled anew: ``make known-compiles``."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.pop("WARPPLAN_BENCH_DEVICE", None)
"""Benchmarks are of the H200 here, whatever card a shell benchmarks."""
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Numpy's products are small here: more threads wait for each other and take the cores from other workers."""
settings.register_profile("repeated", derandomize=True)
settings.register_profile("fresh", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeated"))

KNOWN_COMPILES = Path(__file__).with_name("known_compiles.jsonl")
RECORDS = "RECORD_COMPILES" in os.environ
"""Whether everything is compiled and written to :data:`KNOWN_COMPILES`, line by line, by whichever worker."""
EVERY = 8
"""One in eight known compiles, by its digest, runs every time and must give the recorded report. Chosen by hand;
doubled, half as many are compiled and a change of the compiler that no hash shows is seen later."""


@pytest.fixture(scope="session")
def compiled_anew() -> dict[str, Any]:
    """The reports of what was compiled all the same, by digest: kernels beside those of a configuration are often the
    same ones."""
    return {}


@pytest.fixture
def known_compiles(monkeypatch: pytest.MonkeyPatch, compiled_anew: dict[str, Any]) -> None:
    """``compile_report`` answers what it answered before for the same IR, options, Triton and ptxas; without the
    assembly, which is not kept."""
    pytest.importorskip("triton", reason="compiling needs triton")
    known = _known()

    def report(original: Any, source: Any, options: dict[str, int], target: int, *, what: str) -> Any:
        module = _made(source, options, target)
        digest = _digest(module, options, target)
        found = known.get(digest)
        if found is not None and int(digest, 16) % EVERY and not RECORDS:
            return original.__globals__["CompiledReport"](**found, ptx="")
        if digest in compiled_anew and not RECORDS:
            return compiled_anew[digest]
        with pytest.MonkeyPatch.context() as once:
            # What Triton's front end took most of the time for is not made again.
            once.setattr(source, "make_ir", lambda *_: module)
            fresh = original(source, options, target, what=what)
        fields = {name: value for name, value in asdict(fresh).items() if name != "ptx"}
        if RECORDS:
            with KNOWN_COMPILES.open("a") as file:
                file.write(json.dumps({"digest": digest, **fields}) + "\n")
        elif found is not None:
            # The paths of sources are part of a cubin.
            assert {**fields, "cubin_bytes": found["cubin_bytes"]} == found, (
                f"{what} compiles to something else than it is known to: make known-compiles"
            )
        compiled_anew[digest] = fresh
        return fresh

    importlib.import_module("warpplan.kernels.compile")
    for module in list(sys.modules.values()):
        # By its name: a test before this one may have imported the module anew.
        original = vars(module).get("compile_report") if hasattr(module, "__dict__") else None
        if getattr(original, "__module__", "") == "warpplan.kernels.compile":
            monkeypatch.setattr(module, "compile_report", functools.partial(report, original))


def _made(source: Any, options: dict[str, int], target: int) -> Any:
    """The IR that Triton's front end makes of ``source``."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from warpplan.kernels.compiler.pipeline.cutting import new_context

    gpu = GPUTarget("cuda", target, 32)
    backend = make_backend(gpu)
    parsed = backend.parse_options(dict(options))
    return source.make_ir(
        gpu, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), new_context(backend)
    )


def _digest(module: Any, options: dict[str, int], target: int) -> str:
    """Of the IR ``module``, and of what compiles it. Triton's own hash of a source will not do: it orders equal names
    of several modules by where they lie in memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", target, 32))
    made_of = [triton.__version__, backend.hash(), module.str_nodebug(), sorted(options.items())]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]


def _known() -> dict[str, dict[str, Any]]:
    if not KNOWN_COMPILES.exists():
        return {}
    lines = [json.loads(line) for line in KNOWN_COMPILES.read_text().splitlines()]
    return {line.pop("digest"): line for line in lines}
