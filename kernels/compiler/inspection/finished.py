"""Finished TTGIR with warp partitions: made without a GPU, and read for analysis.

    ttg.warp_specialize(%ring, %full, …) default {…} partition0(%a: …, %b: …) num_warps(4) {…} …

A worker sees nothing but its arguments, which are the captures in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Module, Region, is_value, split_list
from warpplan.kernels.triton_types import AstSource, Backend, GpuTarget, Json

SPECIALIZE = "ttg.warp_specialize"
DEFAULT = "default"
COPY, LAND = "ttg.async_copy_global_to_local", "ttng.async_copy_mbarrier_arrive"
"""``cp.async`` of a tile of addresses, and the arrival of every thread once its own copies have landed."""
THREADS = 32
"""Of a warp."""


def finished_text(
    source: AstSource, target: GpuTarget, options: Mapping[str, Json], scheme: Strategy | None = None
) -> str:
    """What Triton's passes make of ``source`` (an ``ASTSource``) on ``target``: lowered by ``scheme``, or with Triton's
    own specialisation where the source asks for it. Raises :class:`CannotPlan` and what :func:`pipeline.cut` does."""
    from warpplan.kernels.compiler.pipeline import cut, read, run_after, run_stock
    from warpplan.kernels.compiler.pipeline.cutting import new_context
    from warpplan.kernels.compiler.strategy import stage_hook

    if scheme is not None:
        return stage_hook.finished_text(source, target, options, scheme)
    at_cut = cut(source, target, options)
    module = read(at_cut.text, new_context(_backend(target)))
    run_stock(module, at_cut.options, at_cut.capability)
    run_after(module, at_cut.options, at_cut.capability)
    return str(module)


def written_text(source: AstSource, target: GpuTarget, options: Mapping[str, Json]) -> str:
    """``source`` in Triton's IR as it is written: inlined and simplified, no layout chosen and nothing planned. Raises
    what :func:`pipeline.cut` does."""
    from triton.compiler import make_backend

    from warpplan.kernels.compiler.pipeline.cutting import new_context

    backend = make_backend(target)
    parsed = backend.parse_options({**options, **source.parse_options()})
    capability = backend._parse_arch(parsed.arch)
    context = new_context(backend)
    module = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    return str(backend.make_ttir(module, {}, parsed, capability))


def _backend(target: GpuTarget) -> Backend:
    from triton.compiler import make_backend

    return make_backend(target)


@dataclass(frozen=True)
class Worker:
    """One partition of a ``ttg.warp_specialize``; ``arguments`` are (name inside, name outside)."""

    name: str
    warps: int
    region: Region
    arguments: tuple[tuple[str, str], ...]


def workers(operation: IrOperation, warps: int) -> list[Worker]:
    """The partitions of a ``ttg.warp_specialize``, the default one, of ``warps`` warps, first. Raises
    :class:`MalformedIR` for another form than Triton prints."""
    found: list[Worker] = []
    text = ""
    captures: list[str] = []
    for part in operation.parts:
        if isinstance(part, str):
            text += part
            continue
        if not found:
            captures = [t for t in split_list(_bracketed(text)) if is_value(t)]
            found.append(Worker(DEFAULT, warps, part, ()))
        else:
            head = text.strip()
            inside = ["%" + a.partition(":")[0].strip().lstrip("%") for a in split_list(_bracketed(head))]
            _, named, count = head.rpartition("num_warps(")
            if not named or len(inside) != len(captures):
                raise MalformedIR(f"a partition {head[:40]!r}: expected its captures and num_warps", field="ttgir")
            name = head.partition("(")[0].strip()
            found.append(Worker(name, int(count.partition(")")[0]), part, tuple(zip(inside, captures, strict=True))))
        text = ""
    return found


def warps_of(module: Module) -> int:
    """``ttg.num-warps`` of the module: the default partition's."""
    digits = module.operation.attributes.get("ttg.num-warps", "4").partition(":")[0].strip()
    return int(digits) if digits.isdigit() else 4


def _bracketed(text: str) -> str:
    """What the first pair of round brackets holds."""
    start = text.find("(")
    depth = 0
    for i in range(max(0, start), len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if start >= 0 and depth == 0:
            return text[start + 1 : i]
    raise MalformedIR(f"brackets that do not close in {text[:40]!r}", field="ttgir")


@dataclass(frozen=True)
class Copy:
    """Operands of ``ttng.async_tma_copy_global_to_local``; ``predicate`` "" where it has none."""

    descriptor: str
    buffer: str
    barrier: str
    predicate: str = ""


def read_copy(operation: IrOperation) -> Copy:
    """Take a TMA copy apart. Raises :class:`MalformedIR`."""
    text = "".join(part for part in operation.parts if isinstance(part, str))
    head, _, rest = text.partition("[")
    after = rest.partition("]")[2].partition(" : ")[0].partition("{")[0]
    names = [name for name in split_list(after) if is_value(name)]
    if not head.strip() or len(names) < 2:
        raise MalformedIR(f"a TMA copy that reads {text[:60]!r}: expected descriptor, slot and barrier", field="ttgir")
    return Copy(head.strip(), *names[:3])


def landed_arrivals(operation: IrOperation, warps: int) -> int:
    """Arrivals of a ``ttng.async_copy_mbarrier_arrive`` of a partition of ``warps`` warps: one a thread; none where
    each thread raises the count of the phase by its own first (PTX ISA, ``cp.async.mbarrier.arrive``)."""
    return THREADS * warps if "noIncrement" in operation.attributes else 0


def completed(operation: IrOperation) -> list[tuple[str, str]]:
    """(value, predicate) of every operand of a tcgen05 product or commit, ``%bar[%when]`` or ``%bar``: those that are
    barriers get an arrival once the products before are done. The predicate is "" where there is none; a commit prints
    its own as a second operand."""
    if operation.name == "ttng.tc_gen5_commit":
        barrier, *when = plain_operands(operation)
        return [(barrier, when[0] if when else "")]
    tokens = operation.tokens
    found = []
    for i, token in enumerate(tokens):
        if token in (":", "{"):
            break
        if is_value(token) and (i == 0 or tokens[i - 1] != "["):
            found.append((token, tokens[i + 2] if tokens[i + 1 : i + 2] == ["["] else ""))
    return found


def plain_operands(operation: IrOperation) -> list[str]:
    """The operands before ``deps`` and the types: what a barrier operation acts on."""
    found = []
    for token in operation.tokens:
        if token in ("deps", ":", "{"):
            break
        if is_value(token):
            found.append(token)
    return found
