"""A kernel at the cut becomes a warp-specialised one: rings, a producer, consumers, in ``ttg.warp_specialize``.

    ring, full, empty for every load      before the partitions
    default                               consumer 0
    partition0 … partition(P-2)           the other consumers, each with its own rows
    partition(P-1)                        the producer

Triton's own Hopper pass is left out: it hangs with host-made descriptors, computes garbage where a row offset is shared
between a load and a store, and differs from release to release. The form written here is the one that Gluon kernels
have, which every release from 3.6 to 3.9 reads alike.
"""

from __future__ import annotations

from functools import partial

from warpplan.kernels.compiler.analysis.copies.copied_loads import copied_vectors, with_copies
from warpplan.kernels.compiler.analysis.copies.invariant_operands import hoist_invariant_operands
from warpplan.kernels.compiler.analysis.copies.producer_size import PRODUCER_WARPS, WARP, producer_registers
from warpplan.kernels.compiler.analysis.operation_kinds import CONVERTED, COPY_LOAD, RING_LOADS, TMA_LOAD
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.assigned.anchors import assign
from warpplan.kernels.compiler.lowering.assigned.converter_size import (
    CONVERTER_WARPS,
    MOST_REGISTERS,
    converter_registers,
)
from warpplan.kernels.compiler.lowering.assigned.partition_views import (
    consumer_view,
    converter_view,
    converters_of,
)
from warpplan.kernels.compiler.lowering.flushed_weights import with_exp2_weights
from warpplan.kernels.compiler.lowering.hopper.consumer import ConsumerWriter
from warpplan.kernels.compiler.lowering.hopper.data_partition import split
from warpplan.kernels.compiler.lowering.hopper.issue_order.deferred_waits import (
    add_deferred_waits,
    issued_together,
    vectors_fit,
)
from warpplan.kernels.compiler.lowering.hopper.issue_order.lookahead import add_lookahead
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import rewrite_loops
from warpplan.kernels.compiler.lowering.hopper.issue_order.overlap import add_overlap
from warpplan.kernels.compiler.lowering.hopper.load_rings import (
    READERS,
    Partitioning,
    Rings,
    load_number,
    number_loads,
    plan_rings,
)
from warpplan.kernels.compiler.lowering.hopper.partition_builder import BARRIER_LAYOUT, Builder
from warpplan.kernels.compiler.lowering.hopper.persistent import walking
from warpplan.kernels.compiler.lowering.hopper.producer import ProducerWriter, Slice
from warpplan.kernels.compiler.lowering.mask_guards import with_mask_guards
from warpplan.kernels.compiler.lowering.register_shares import consumer_registers
from warpplan.kernels.compiler.lowering.slices.early_lookups import with_early_lookups, with_early_vectors
from warpplan.kernels.compiler.lowering.slices.narrow_layouts import with_warps
from warpplan.kernels.compiler.lowering.slices.unrolling import with_unrolled_loops
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import arguments, replace_function, with_body
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, tokenize
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.source_locations import source_line
from warpplan.kernels.compiler.ttgir.types import ShapedType


def specialize(text: str, partitioning: Partitioning) -> str:
    """The TTGIR ``text`` at the cut, compiled for ``partitioning.warps`` warps, as a specialised module.

    Raises :class:`CannotPlan` with the obstacle's operation and source line, and
    :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR` for text that Triton did not print.
    """
    module = parse(text)
    hoist_invariant_operands(module)
    module = with_copies(module, partitioning.copies)
    if module.operation.attributes.get("ttg.num-ctas", "1").split()[0] != "1":
        raise CannotPlan("num_ctas above 1: rings of a cluster's blocks are not lowered")
    assign(module, partitioning.assignment)
    if partitioning.persistent:
        replace_function(module, walking(module))
    function = unique_names(module.function)
    replace_function(module, function)
    if number_loads(module) == 0:
        raise CannotPlan("no TMA load (tt.descriptor_load), nor one that is copied: nothing for a producer to do")
    _mark_readers(module, partitioning)
    rings = plan_rings(module, partitioning)
    if all(group.once for group in rings.groups.values()):
        raise CannotPlan("no TMA load in a loop, nor one that is copied: nothing for a producer to run ahead of")
    barrier = module.alias(BARRIER_LAYOUT)
    module.alias("#ttg.shared_memory", "smem")
    consumed = consumer_view(module) if partitioning.copies or partitioning.assignment else module
    # While one consumer waits, another one's products run. A single consumer keeps its next product in flight instead.
    overlap = partial(add_overlap, threads=WARP * partitioning.warps)
    lookahead = partial(add_lookahead, rings=_read_by(rings, 0))
    other_forms = (overlap, lookahead) if partitioning.consumers > 1 else (lookahead,)
    rewrites = (*other_forms, add_deferred_waits) if partitioning.in_flight else ()

    producer_share = producer_registers(copied_vectors(module))
    registers_each = consumer_registers(
        partitioning.consumers * partitioning.warps, blocks=partitioning.blocks, producer_registers=producer_share
    )

    def in_place(operation: IrOperation, loop: control.ForLoop) -> bool:
        """Whether small loads stay where they stand: beside the tiles of many products registers do not hold two."""
        if any(rewrite(operation, loop) is not None for rewrite in other_forms):
            return False
        return bool(issued_together(loop)) and not vectors_fit(loop, partitioning.warps, registers_each)

    clones = [
        with_exp2_weights(with_mask_guards(with_early_vectors(unique_names(clone.function), in_place)))
        for clone in split(consumed, partitioning.consumers)
    ]
    clones = [rewrite_loops(clone, *rewrites) for clone in clones] if rewrites else clones

    bodies = []
    memory = {ring.name: ring.type for ring in rings.distinct}
    for number, clone in enumerate(clones):
        consumer = ConsumerWriter(
            module, clone, _read_by(rings, 0), Builder(barrier, f"consumer{number}"), bool(partitioning.in_flight)
        )
        bodies.append((with_unrolled_loops(consumer.body()), partitioning.warps, "consumer"))
        memory |= consumer.staging.buffers
    registers = {"producer": producer_share}
    for number in converters_of(module):
        body, registers["converter"] = _converter(module, rings, barrier, number)
        bodies.append((body, CONVERTER_WARPS, "converter"))
    for number in sorted({group.filler for group in rings.groups.values() if not group.converted}):
        part = Slice(module, rings.filled_by(number))
        producer = ProducerWriter(part, Builder(barrier, f"producer{number or ''}")).body()
        if part.copies:
            producer = with_early_lookups(producer)
        producer, warps = _sized(module, part, producer, partitioning.warps)
        bodies.append((producer, warps, "producer"))
    header = clones[0]
    builder = Builder(barrier, "block")
    prologue = _prologue(memory, rings, builder, partitioning.consumers)
    partitions = _partitions(header, memory, rings, bodies, barrier, partitioning, registers)
    body = [*builder.constants.values(), *prologue, partitions, IrOperation("tt.return")]
    replace_function(module, with_body(header, body))
    return str(module)


def _prologue(memory: dict[str, ShapedType], rings: Rings, builder: Builder, consumers: int) -> list[IrOperation]:
    out: list[IrOperation] = []
    for name, tile in memory.items():
        builder.op(out, f"{name} = ttg.local_alloc : () -> {tile}")
    for group in rings.groups.values():
        kind = builder.barrier.replace("<1xi64", f"<{group.depth}x1xi64")
        full = group.boxes + WARP * PRODUCER_WARPS * group.copies  # TMA's expect, and every thread of the producer
        full += group.converted
        readers = sum(1 if reader else consumers for reader in group.readers)
        arrivals = {"full": full} | ({} if group.once else {"empty": readers})
        for name, count in arrivals.items():
            builder.op(out, f"%wp_{name}{group.number} = ttg.local_alloc : () -> {kind}")
            for slot in range(group.depth):
                place = builder.barrier_at(out, f"%wp_{name}{group.number}", group.depth, builder.constant(slot))
                builder.op(out, f"ttng.init_barrier {place}, {count} : {builder.barrier}")
    return out


def _partitions(
    header: IrOperation,
    memory: dict[str, ShapedType],
    rings: Rings,
    bodies: list[tuple[list[IrOperation], int, str]],
    barrier: str,
    partitioning: Partitioning,
    registers_of: dict[str, int],
) -> IrOperation:
    kinds = arguments(header)
    kinds |= {name: str(kind) for name, kind in memory.items()}
    for group in rings.groups.values():
        kind = Builder(barrier, "").barrier.replace("<1xi64", f"<{group.depth}x1xi64")
        kinds[f"%wp_full{group.number}"] = kind
        if not group.once:
            kinds[f"%wp_empty{group.number}"] = kind
    workers = [body for body, _, _ in bodies[1:]]
    captured = [name for name in kinds if any(_mentions(body, name) for body in workers)]
    registers = ", ".join(
        map(str, _registers(partitioning, [(warps, role) for _, warps, role in bodies], registers_of))
    )
    parts: list[str | Region] = [
        *tokenize(f"({', '.join(captured)}) attributes {{requestedRegisters = array<i32: {registers}>}}\ndefault "),
        Region([*bodies[0][0], IrOperation("ttg.warp_yield")]),
    ]
    for number, (body, warps, _) in enumerate(bodies[1:]):
        inside = {name: f"%wp_arg{number}_{i}" for i, name in enumerate(captured)}
        header_text = ", ".join(f"{inside[name]}: {kinds[name]}" for name in captured)
        parts += tokenize(f"\npartition{number}({header_text}) num_warps({warps}) ")
        parts.append(Region([*(op.substituted(inside) for op in body), IrOperation("ttg.warp_return")]))
    parts += tokenize(f" : ({', '.join(kinds[name] for name in captured)}) -> ()")
    return IrOperation("ttg.warp_specialize", (), parts)


def _sized(module: Module, part: Slice, body: list[IrOperation], warps: int) -> tuple[list[IrOperation], int]:
    """The producer's ``body`` and its warps: one where it works on scalars, else four. One that does not copy may keep
    the kernel's ``warps`` where its layouts cannot be narrowed; of one that copies, as many threads have to arrive as
    its barriers were made for."""
    if not part.has_tensors:
        return body, 1
    try:
        return with_warps(module, body, PRODUCER_WARPS), PRODUCER_WARPS
    except CannotPlan:
        if part.copies:
            raise
        return body, warps


def _mark_readers(module: Module, partitioning: Partitioning) -> None:
    """Under an assignment, write into each load of ``module`` which partitions read it."""
    if not partitioning.assignment:
        return
    views = {0: consumer_view(module)} | {n: converter_view(module, n) for n in converters_of(module)}
    loads = {
        number: {load_number(op) for op in view.function.walk() if op.name in (TMA_LOAD, COPY_LOAD)}
        for number, view in views.items()
    }
    for operation in module.function.walk():
        if operation.name in RING_LOADS:
            found = [str(n) for n, read in loads.items() if load_number(operation) in read]
            operation.set_attribute(READERS, f"array<i64: {', '.join(found)}>" if found else "array<i64>")


def _read_by(rings: Rings, partition: int) -> Rings:
    return rings.of({load for load in rings.rings if partition in rings.group_of(load).readers})


def _converter(module: Module, rings: Rings, barrier: str, number: int) -> tuple[list[IrOperation], int]:
    """The converter of that number and its registers a thread."""
    view = converter_view(module, number)
    filled, read = rings.filled_by(number), _read_by(rings, number)
    own = Rings({**filled.rings, **read.rings}, {**filled.groups, **read.groups})
    body = ConsumerWriter(module, view.function, own, Builder(barrier, f"converter{number}"), in_flight=False).body()
    registers = converter_registers(ring.slot.shape for ring in read.rings.values())
    if registers > MOST_REGISTERS:
        made = next(op for op in view.function.walk() if op.name == CONVERTED)
        why = f"what it is converted from takes {registers} registers a thread; a converter has {MOST_REGISTERS}"
        raise CannotPlan(why, "ttg.local_alloc", source_line(module, made))
    return with_warps(module, body, CONVERTER_WARPS), registers


def _registers(
    partitioning: Partitioning, partitions: list[tuple[int, str]], registers_of: dict[str, int]
) -> list[int]:
    """Registers that each worker asks for: producers and converters what ``registers_of`` says, and what that leaves in
    equal parts for the consumers. Producers of one warp share a warp group.

    Triton starts all warps alike and gives the default partition what the workers leave (its AllocateWarpGroups pass).
    """
    producers = [warps for warps, role in partitions if role == "producer"]
    others = [(warps, registers_of[role]) for warps, role in partitions if role == "converter"]
    wide = [(warps, registers_of["producer"]) for warps in producers if warps > 1]
    alone = sum(warps for warps in producers if warps == 1)
    first = alone or wide.pop()[0]
    consumer = consumer_registers(
        partitioning.consumers * partitioning.warps, first, partitioning.blocks, registers_of["producer"], others + wide
    )
    return [registers_of.get(role, consumer) for _, role in partitions[1:]]


def _mentions(body: list[IrOperation], name: str) -> bool:
    return any(name in inner.operands for operation in body for inner in operation.walk())
