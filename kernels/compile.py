"""Compile a kernel for a GPU that need not be there, and read the assembler's own report of it.

Needs Triton, not torch: Triton brings its own ptxas.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warpplan.kernels.compiler.pipeline.cutting import taken_diagnostics
from warpplan.kernels.triton_types import AstSource, JitFunction
from warpplan.planner.errors import InvalidConfig, UnknownName

TRITON_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv"}
WARP = 32

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SERIALIZED = re.compile(r"wgmma[^\n]*serializ", re.IGNORECASE)


@dataclass(frozen=True)
class CompiledReport:
    """What the compiler made of one configuration.

    ``shared_bytes`` is the block's static and dynamic shared memory; ``registers`` a thread's at launch, before
    ``setmaxnreg`` moves some from the producer to the consumers; ``spill_bytes`` what ptxas stores to and loads from
    local memory; ``wgmma_serialized`` whether ptxas gave up keeping multiplies in flight (its warnings C7510 to C7519);
    ``warps`` those of a block, the workers' included; ``ptx`` the assembly itself.
    """

    shared_bytes: int
    registers: int
    spill_bytes: int
    wgmma_serialized: bool
    warps: int
    cubin_bytes: int
    ptx: str

    @property
    def clean(self) -> bool:
        """No spills and no serialised multiplies."""
        return self.spill_bytes == 0 and not self.wgmma_serialized


def specialized(
    kernel: JitFunction, signature: dict[str, str], constants: dict[str, object], aligned: Sequence[str], *,
    source: Callable[..., AstSource] = ASTSource,
) -> AstSource:  # fmt: skip
    """``kernel`` as a launch would specialise it: types of its runtime arguments by name, its constants, and which of
    the arguments are divisible by 16. ``source`` is Gluon's own class for a Gluon kernel."""
    names = [parameter.name for parameter in kernel.params]
    return source(
        kernel,
        {name: signature.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )


def element_type(dtype: str) -> str:
    """Triton's short name of ``dtype``; :class:`UnknownName` lists the known ones."""
    if dtype not in TRITON_TYPES:
        raise UnknownName("dtype", dtype, TRITON_TYPES)
    return TRITON_TYPES[dtype]


def compile_report(source: AstSource, options: dict[str, int], target: int, *, what: str) -> CompiledReport:
    """Compile ``source`` afresh, past Triton's cache, which keeps no assembler log. What MLIR says of a pass that
    fails, the whole module with it, is not printed."""
    log = io.StringIO()
    try:
        with (
            knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log), taken_diagnostics([]),
        ):  # fmt: skip
            knobs.nvidia.dump_ptxas_log = True
            knobs.compilation.always_compile = True
            compiled = triton.compile(source, target=GPUTarget("cuda", target, WARP), options=options)
    except Exception as error:  # Triton's front end, its passes and ptxas each raise types of their own
        raise InvalidConfig(f"{what} does not compile for sm_{target}: {_innermost(error)}", field="config") from error
    text = log.getvalue()
    registers, spills = _REGISTERS.findall(text), _SPILLS.findall(text)
    if not registers or not spills:
        raise InvalidConfig(f"{what}: ptxas reported no register counts for sm_{target}", field="config")
    return CompiledReport(
        shared_bytes=compiled.metadata.shared,
        registers=max(map(int, registers)),
        spill_bytes=sum(int(store) + int(load) for _, store, load in spills),
        wgmma_serialized=bool(_SERIALIZED.search(text)),
        warps=compiled.metadata.num_warps,
        cubin_bytes=len(compiled.asm["cubin"]),
        ptx=compiled.asm["ptx"],
    )


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
