"""A kernel compiled down to the cut, and an edited text taken from there to finished TTGIR. Needs no GPU."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from warpplan.kernels.compiler.pipeline.halves import run_after, run_before
from warpplan.kernels.compiler.pipeline.steps import THREADS
from warpplan.kernels.compiler.ttgir.ir import MalformedIR
from warpplan.kernels.triton_types import AstSource, Backend, CompileOptions, GpuTarget, Json, MlirContext, MlirModule

_FILE_NUMBER = 900
"""The file descriptor of a text that MLIR reads, always the same (see :func:`_as_file`): above those that a process has
open, below the usual limit of 1,024."""
_one_reads = threading.Lock()
"""Descriptors 2 and ``_FILE_NUMBER`` are the whole process's."""


@dataclass(frozen=True)
class CutModule:
    """``text`` is the module at the cut, with locations; ``options`` Triton's own parsed options of the compile."""

    text: str
    options: CompileOptions
    capability: int


ModuleEdit = Callable[[MlirModule, int], MlirModule]
"""Changes a module of Triton's IR for a GPU of compute capability (major · 10 + minor)."""


def cut(
    source: AstSource, target: GpuTarget, options: Mapping[str, Json] | None = None, edit: ModuleEdit | None = None
) -> CutModule:
    """Compile ``source`` (a Triton ``ASTSource``) for ``target`` (a ``GPUTarget``) up to the cut.

    ``edit`` changes Triton's IR before its layouts are chosen. Runs no stage hook and touches no cache. Raises
    :class:`UnsupportedTriton`, :class:`InvalidInput` for a GPU older than Hopper, and Triton's own errors where the
    kernel does not compile.
    """
    from triton.compiler import make_backend

    backend = make_backend(target)
    parsed = backend.parse_options({**(options or {}), **source.parse_options()})
    capability = backend._parse_arch(parsed.arch)
    context = new_context(backend)
    module = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    module = backend.make_ttir(module, {}, parsed, capability)
    if edit is not None:
        module = edit(module, capability)
    run_before(module, parsed, capability)
    return CutModule(str(module), parsed, capability)


def finish(
    text: str,
    options: CompileOptions,
    capability: int,
    context: MlirContext | None = None,
    *,
    pipelined: bool = False,
    scheduled: bool = False,
) -> MlirModule:
    """The finished module of an edited cut, in ``context`` or a new one; the others as for :func:`run_after`.

    The caller keeps ``module.get_tensordesc_metadata()`` as ``metadata["tensordesc_meta"]``, as ``make_ttgir`` does.
    Raises :class:`MalformedIR` where Triton does not read ``text``, ``RuntimeError`` where a pass fails on it.
    """
    if context is None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend

        context = new_context(make_backend(GPUTarget("cuda", capability, THREADS)))
    module = read(text, context)
    run_after(module, options, capability, pipelined=pipelined, scheduled=scheduled)
    return module


def new_context(backend: Backend) -> MlirContext:
    """An MLIR context with the dialects of Triton and of ``backend``."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return context


def read(text: str, context: MlirContext) -> MlirModule:
    """Triton's module of ``text``. Raises :class:`MalformedIR` with the line and MLIR's own words."""
    from triton._C.libtriton import ir

    said: list[str] = []
    with _one_reads, _as_file(text) as path:
        try:
            with taken_diagnostics(said):
                module = ir.parse_mlir_module(path, context)
        except RuntimeError as error:
            raise _malformed("".join(said), path, text) from error
    module.context = context
    return module


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path under which ``text`` can be read: always the same one, for MLIR makes it the location of whatever has none
    and so a part of what is compiled."""
    with os.fdopen(os.memfd_create("edited.ttgir"), "wb", buffering=0) as file:
        file.write(text.encode())
        try:
            number = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FILE_NUMBER)
        except OSError:  # fewer are allowed
            number = os.dup(file.fileno())
        try:
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)


def _malformed(said: str, path: str, text: str) -> MalformedIR:
    """MLIR says ``loc("file":line:column): error: why``; a rule broken by an operation is told at its source line."""
    found = re.search(r'^(?:loc\("?(.*?)"?(?::(\d+):\d+)?\): )?error: (.*)$', said, re.MULTILINE)
    if found is None:
        return MalformedIR("Triton does not read the edited TTGIR and gives no reason", field="ttgir")
    file, line, why = found.groups()
    if file == path and line:
        shown = text.split("\n")[int(line) - 1 : int(line)]
        return MalformedIR(f"line {line} of the edited TTGIR: {why}: `{''.join(shown).strip()}`", field="ttgir")
    return MalformedIR(f"edited TTGIR, from {file}:{line}: {why}" if line else f"edited TTGIR: {why}", field="ttgir")


@contextlib.contextmanager
def taken_diagnostics(said: list[str]) -> Iterator[None]:
    """Take what MLIR writes to file descriptor 2: it has no other way out of ``parse_mlir_module``. What others write
    there meanwhile is passed on where nothing fails."""
    with tempfile.TemporaryFile() as log:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            kept = os.dup(2)
        except OSError:  # a daemon without one
            yield
            return
        os.dup2(log.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            text = log.read()
            if not failed and text:
                os.write(2, text)
            said.append(text.decode("utf-8", "replace"))
