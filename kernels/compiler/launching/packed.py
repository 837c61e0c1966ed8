"""A compiled kernel as JSON that another process can compile again or load, without the user's Python.

Triton keeps the module that its front end made, as text. Compiling that text gives the same code as compiling the
source, so a child process needs neither the module that holds the kernel nor anything that importing it would run.
"""

from __future__ import annotations

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching.decisions import Compiled
from warpplan.kernels.compiler.lowering.hopper.persistent import launched
from warpplan.kernels.compiler.pointers.scratch import with_scratch
from warpplan.kernels.triton_types import (
    AstSource,
    CompiledKernel,
    CompileOptions,
    GpuTarget,
    Json,
    MlirContext,
    MlirModule,
    TritonModule,
)


def files_of(kernel: CompiledKernel) -> Compiled:
    """Where Triton keeps ``kernel``, a ``CompiledKernel``."""
    return Compiled(kernel.hash, tuple(sorted((str(name), str(path)) for name, path in kernel.metadata_group.items())))


def pack(kernel: CompiledKernel) -> dict[str, Json]:
    """``kernel`` for :func:`source` and :func:`load`.

    Raises :class:`CannotPlan` where its text is not kept, has nothing for a producer to load, or turns integers into
    pointers: memory that a copy of the arguments would not hold.
    """
    text = kernel.asm.get("source")
    if text is None:
        raise CannotPlan("Triton kept no source of the compiled kernel: clear its cache")
    options = {
        name: value for name, value in kernel.metadata._asdict().items() if name not in ("target", "hash", "name")
    }
    compiled = files_of(kernel)
    return {
        **pack_source(kernel.src, kernel.metadata.target, options, text),
        "compiled": {"hash": compiled.hash, "files": [list(file) for file in compiled.files]},
    }


def pack_source(source: AstSource, target: GpuTarget, options: dict[str, Json], text: str) -> dict[str, Json]:
    """``source``, whose module Triton's front end makes as ``text``, before it is compiled: as :func:`pack`, without
    the files."""
    if "tt.descriptor_load" not in text and not ("tt.load" in text and "tt.dot" in text):
        raise CannotPlan("has no loads that feed a product, nor any through TMA, for a producer to take over")
    if "tt.int_to_ptr" in text:
        raise CannotPlan("makes pointers out of integers, which cannot be copied", "tt.int_to_ptr")
    return {
        "name": source.name,
        "arg_names": list(source.fn.arg_names),
        "signature": dict(source.signature),
        "constants": [list(path) for path in source.constants],
        "source_hash": source.hash(),
        "text": text,
        "target": [target.backend, target.arch, target.warp_size],
        "options": options,
    }


def source(packed: dict[str, Json]) -> AstSource:
    """The kernel's text as a Triton ``ASTSource``: ``triton.compile`` takes it as it takes the kernel."""
    from triton.compiler import ASTSource

    class TextSource(ASTSource):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(_Function(packed), {n: _tuples(type_) for n, type_ in packed["signature"].items()})
            self.constants = {tuple(path): None for path in packed["constants"]}

        def hash(self) -> str:
            return str(packed["source_hash"])

        def make_ir(
            self,
            target: GpuTarget,
            options: CompileOptions,
            codegen_fns: TritonModule,
            module_map: TritonModule,
            context: MlirContext,
        ) -> MlirModule:
            from warpplan.kernels.compiler.pipeline import read

            return read(packed["text"], context)

    return TextSource()


def target(packed: dict[str, Json]) -> GpuTarget:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(*packed["target"])


def options(packed: dict[str, Json]) -> dict[str, Json]:
    """What the kernel was compiled with; Triton takes from it the fields that are options."""
    return {name: _tuples(value) for name, value in packed["options"].items()}


def load(compiled: Compiled, source: AstSource) -> CompiledKernel:
    """The ``CompiledKernel`` in ``compiled``'s files, to be launched with ``source``'s signature."""
    from triton import compiler

    return with_scratch(launched(compiler.CompiledKernel(source, dict(compiled.files), compiled.hash)))


def _tuples(value: Json) -> Json:
    """JSON knows no tuples, and lists do not hash."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class _Function:
    """What Triton asks of the function behind a source that is already text."""

    launch_metadata = None

    def __init__(self, packed: dict[str, Json]) -> None:
        self.__name__ = packed["name"]
        self.arg_names = packed["arg_names"]
        self.cache_key = packed["source_hash"]
