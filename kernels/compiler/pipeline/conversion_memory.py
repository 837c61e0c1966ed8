"""How much shared memory Triton takes to change a tensor's layout, as its own allocation says it.

Where threads keep the same part of the index in registers before and after, Triton (3.6.0 to 3.9.0) moves the tensor
in pieces: a tile of 128x256 bf16 on its way from wgmma's registers to rows of 512 bytes takes 32 KB, not 64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from warpplan.kernels.compiler.pipeline.cutting import new_context, read
from warpplan.kernels.compiler.pipeline.steps import THREADS
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

SMALL_BYTES = 4_096
"""Tensors up to this size are not asked about: a slot more of a ring never hangs on them."""
PTX_VERSION = 80
"""Which of the instructions for 8-bit elements there are on Blackwell; on Hopper it changes nothing."""
_NAME = re.compile(r"#\w+")


def scratch_of_conversions(
    aliases: Sequence[str], function: IrOperation, warps: int, capability: int
) -> Mapping[str, int]:
    """Bytes of shared memory, by the result of each change of layout in ``function`` that is not a small one's."""
    defined = {line.partition(" = ")[0].strip(): line for line in aliases}
    found = {}
    for operation in function.walk():
        if operation.name != "ttg.convert_layout":
            continue
        source, result = find_types(operation.signature)
        tile = parse_type(result)
        if tile is not None and tile.bytes > SMALL_BYTES:
            found[operation.result] = min(
                tile.bytes, _asked(source, result, _needed(f"{source} {result}", defined), warps, capability)
            )
    return found


def _needed(text: str, defined: Mapping[str, str]) -> tuple[str, ...]:
    """The definitions of the layouts that ``text`` names, and of those that these name, in order."""
    names, waiting = set(), [text]
    while waiting:
        for name in _NAME.findall(waiting.pop()):
            if name in defined and name not in names:
                names.add(name)
                waiting.append(defined[name].partition(" = ")[2])
    return tuple(line for name, line in defined.items() if name in names)


@lru_cache(maxsize=1024)
def _asked(source: str, result: str, aliases: tuple[str, ...], warps: int, capability: int) -> int:
    """Triton's own answer; the whole tensor, or more, where it does not read the layouts."""
    from triton._C.libtriton import ir, nvidia
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    attributes = (
        f'"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = {warps} : i32, ttg.target = "cuda:{capability}", '
        f'"ttg.threads-per-warp" = {THREADS} : i32'
    )
    text = "\n".join([
        *aliases, f"module attributes {{{attributes}}} {{", f"tt.func public @change(%from: {source}) {{",
        f"%to = ttg.convert_layout %from : {source} -> {result}", "tt.return", "}", "}", "",
    ])  # fmt: skip
    try:
        module = read(text, new_context(make_backend(GPUTarget("cuda", capability, THREADS))))
        manager = ir.pass_manager(module.context)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, capability, PTX_VERSION)
        manager.run(module, "allocate_scratch")
    except (MalformedIR, RuntimeError):
        tile = parse_type(result)
        return tile.bytes if tile is not None else 0
    return int(module.get_int_attr("ttg.shared"))
