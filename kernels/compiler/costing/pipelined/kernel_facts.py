"""What a launch's time depends on of a captured kernel: its operations as numbers, without names, lines or text.

:func:`facts_of` reads them off a capture; :func:`to_json` and :func:`from_json` keep them, so that a kernel can be
priced where its source is not at hand. Nothing here has a cost yet: a profile prices facts
(:mod:`~warpplan.kernels.compiler.costing.pipelined.block_time`).

What Triton's own pipeliner and ptxas will do to a loop is anticipated by four rules, each checked against compiled
kernels in the tests:

- a load whose tile reaches a product is copied ahead by cp.async (TMA for a descriptor), ``num_stages`` deep, in a
  counted loop; every other load waits where it stands;
- what a copied tile is stored to, or changes its layout through, is the ring that it was copied into: no store;
- arithmetic on indices and masks is done once for 16 bytes, not once an element;
- a store of a constant stands in a branch that ends the program early, and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from warpplan.kernels.compiler.analysis.capture import Body, Captured
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import Kind, Part, Product
from warpplan.kernels.compiler.costing.loop_graph import THREADS, in_flight
from warpplan.kernels.compiler.costing.pressure import most_at_once, slot_bytes
from warpplan.kernels.compiler.ttgir.types import ShapedType

VECTOR_BYTES = 16
"""Bytes of the widest cp.async and ld.global (PTX ISA): the elements that one address stands for."""
WHILE = "scf.while"
INDEX_PREFIXES = ("tt.addptr", "arith.cmpi", "arith.andi", "arith.ori", "arith.xori", "arith.ext", "arith.trunci")
INDEX_ARITHMETIC = frozenset({
    "arith.addi", "arith.subi", "arith.muli", "arith.remsi", "arith.remui", "arith.divsi", "arith.divui",
    "arith.shli", "arith.shrsi", "arith.minsi", "arith.maxsi", "arith.select",
})  # fmt: skip


@dataclass(frozen=True)
class ProductFacts:
    """A [m, k] · [k, n] product on ``cores``; ``element`` in MLIR's name, ``a`` "shared" or "register"."""

    m: int
    n: int
    k: int
    element: str
    a: str
    cores: str

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def as_product(self) -> Product:
        tile = ShapedType("tensor", (self.m, self.k), self.element)
        return Product(self.m, self.n, self.k, tile, self.a, self.cores)  # type: ignore[arg-type]


@dataclass(frozen=True)
class WorkFacts:
    """One operation. ``parts`` as in :class:`~warpplan.kernels.compiler.analysis.operation_kinds.Part`; ``moved_bytes``
    what it loads or stores in device memory; ``ahead`` whether it is copied iterations ahead; ``flying`` whether nobody
    waits for its product within the loop. ``needs`` are (index of the operation, iterations before) pairs.
    ``run_bytes`` of a loaded tile lie together in memory, each thread loads ``thread_elements`` of a vector in a loop
    whose layout is an accumulator's; 0 where that is not known."""

    kind: Kind
    parts: tuple[Part, ...] = ()
    product: ProductFacts | None = None
    moved_bytes: int = 0
    ahead: bool = False
    flying: bool = False
    needs: tuple[tuple[int, int], ...] = ()
    run_bytes: int = 0
    thread_elements: int = 0


@dataclass(frozen=True)
class LoopFacts:
    """A loop's operations in an order that one thread can run them in. ``id`` and ``parent`` are the capture's."""

    id: str
    parent: str
    trips: int | None
    work: tuple[WorkFacts, ...]

    @cached_property
    def ring_bytes(self) -> int:
        """What one iteration copies ahead."""
        return sum(w.moved_bytes for w in self.work if w.ahead)

    @cached_property
    def loaded_bytes(self) -> int:
        """What one iteration reads from device memory, L2 included."""
        return sum(w.moved_bytes for w in self.work if w.kind in ("load", "tma_load"))

    @cached_property
    def uses_wgmma(self) -> bool:
        return any(w.product is not None and w.product.cores == "wgmma" for w in self.work)


@dataclass(frozen=True)
class KernelFacts:
    """``body`` is what stands outside of all loops, in order, its ``loop`` operations for the outermost of ``loops``.

    ``live_registers`` are 32-bit registers a thread that tiles take at once, at least; ``staged_bytes`` the largest
    tile that passes through shared memory when no loop runs, ``kept_bytes`` what is there while one does, beside its
    ring: tiles loaded before it, and those that leave from inside of it.
    """

    kernel: str
    capability: int
    warps: int
    body: tuple[WorkFacts, ...]
    loops: tuple[LoopFacts, ...]
    live_registers: int
    staged_bytes: int
    kept_bytes: int = 0


def facts_of(captured: Captured) -> KernelFacts:
    """The facts of ``captured``. Pure and deterministic."""
    loops = tuple(LoopFacts(b.id, b.parent, b.trips, _work(b, in_loop=True)) for b in captured.loops)
    body = _work(_without_constant_stores(captured.body), in_loop=False)
    bodies = (captured.body, *captured.loops)
    live = max(_registers(b, captured.warps, in_loop=b is not captured.body) for b in bodies)
    staged = max((p.size for b in bodies for w in b.of_kind("convert_layout") for p in w.parts), default=0)
    kept = slot_bytes(captured.body) if loops else 0
    kept += sum(w.parts[0].size for b in captured.loops for w in b.of_kind("tma_store"))
    kept += sum(_operand_bytes(b) for b in captured.loops if b.kind == WHILE)
    return KernelFacts(captured.kernel, captured.capability, captured.warps, body, loops, live, staged, kept)


def _work(body: Body, *, in_loop: bool) -> tuple[WorkFacts, ...]:
    at = {work.id: i for i, work in enumerate(body.work)}
    copied = _copied_ahead(body) if in_loop else frozenset()
    through = _rings(body, copied)
    width = _vector(body)
    found = []
    for work in body.work:
        needs = sorted({(at[f.src], f.distance) for f in body.flows if f.dst == work.id and f.src in at})
        parts = () if work.kind in ("load", "tma_load") else work.parts
        if work.id in through:
            parts = tuple(p for p in parts if p.kind == "shared_load" or p.times > 1)
        elif is_index(work):
            parts = tuple(Part(p.kind, max(1, p.size // width), p.times, p.estimated) for p in parts)
        product = None if work.product is None else _product(work.product)
        moved = work.parts[0].size if work.kind in ("load", "store", "tma_load", "tma_store") and work.parts else 0
        flying = work.kind == "dot" and in_flight(body, work, specialized=False)
        form = (work.run_bytes, work.thread_elements if in_loop else 0) if work.kind == "load" else (0, 0)
        found.append(WorkFacts(work.kind, parts, product, moved, work.id in copied, flying, tuple(needs), *form))
    return tuple(found)


def is_index(work: LoopWork) -> bool:
    """Whether ``work`` computes addresses, indices or masks and nothing else."""
    return work.kind == "elementwise" and all(
        (name.startswith(INDEX_PREFIXES) and name != "arith.extf") or name in INDEX_ARITHMETIC for name in work.names
    )


def _product(product: Product) -> ProductFacts:
    return ProductFacts(product.m, product.n, product.k, product.element.element, product.a, product.tensor_cores)


def _copied_ahead(body: Body) -> frozenset[str]:
    """The loads that Triton's pipeliner takes, of counted loops alone (``scf.for``; Triton 3.6 to 3.9)."""
    return frozenset() if body.kind == WHILE else _feeding_products(body)


def _operand_bytes(body: Body) -> int:
    """What one iteration loads for its products, which read it from shared memory."""
    feeding = _feeding_products(body)
    return sum(work.parts[0].size for work in body.work if work.id in feeding and work.parts)


def _feeding_products(body: Body) -> frozenset[str]:
    """Loads whose tile reaches a product within its iteration as an operand: directly, or through what changes its
    form, not its size."""
    by_id = {work.id: work for work in body.work}
    found: set[str] = set()
    waiting = [(f.src, f.dst) for f in body.flows if f.distance == 0 and by_id[f.dst].kind == "dot"]
    seen: set[str] = set()
    while waiting:
        source, _ = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        work = by_id[source]
        if work.kind in ("load", "tma_load"):
            found.add(source)
        elif work.kind not in ("dot", "loop"):
            waiting += [(f.src, source) for f in body.flows if f.dst == source and f.distance == 0]
    return frozenset(found | {work.id for work in body.of_kind("tma_load")})


def _rings(body: Body, copied: frozenset[str]) -> frozenset[str]:
    """Stores to shared memory and changes of layout whose only tile is one that was copied into shared memory."""
    by_id = {work.id: work for work in body.work}
    found = set()
    for work in body.of_kind("shared_store", "convert_layout"):
        sources = {f.src for f in body.flows if f.dst == work.id and f.distance == 0 and not is_index(by_id[f.src])}
        if sources and sources <= copied:
            found.add(work.id)
    return frozenset(found)


def _vector(body: Body) -> int:
    """Elements that share an address: 16 bytes of the narrowest element that the body moves."""
    bits = [
        max(1, 8 * work.parts[0].size // max(1, _count(work.shape)))
        for work in body.work if work.kind in ("load", "store") and len(work.shape) > 1 and work.parts
    ]  # fmt: skip
    return max(1, 8 * VECTOR_BYTES // max(8, min(bits, default=32)))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _without_constant_stores(body: Body) -> Body:
    """``body`` without stores of what no loop, load or arithmetic made, where another store is left."""
    by_id = {work.id: work for work in body.work}
    sources: dict[str, set[str]] = {}
    for flow in body.flows:
        if flow.kind == "data" and flow.distance == 0:
            sources.setdefault(flow.dst, set()).add(flow.src)
    stores = body.of_kind("store", "tma_store")
    constant = {
        store.id for store in stores
        if all(is_index(by_id[source]) for source in sources.get(store.id, ()))
    }  # fmt: skip
    if not constant or len(constant) == len(stores):
        return body
    kept = tuple(work for work in body.work if work.id not in constant)
    flows = tuple(flow for flow in body.flows if not constant & {flow.src, flow.dst})
    return Body(body.id, body.line, body.kind, body.parent, kept, flows, body.rows, body.trips)


def _registers(body: Body, warps: int, *, in_loop: bool) -> int:
    """Registers a thread: in a loop the most that are live at once beside the tiles from outside that it keeps, its
    operations run in order and addresses counted once for 16 bytes; outside of loops, where arithmetic follows slice by
    slice, the largest tile."""
    threads, width = THREADS * max(1, warps), _vector(body)
    copied = _copied_ahead(body) if in_loop else frozenset()
    in_ring = copied | _rings(body, copied)  # operands of mma.sync come from there slice by slice

    def registers(work: LoopWork, bits: int) -> int:
        return -(-bits // (32 * threads * (width if is_index(work) else 1)))

    if not in_loop:
        tiles = ((work, bits) for work in body.work for _, bits in work.results or (("", work.register_bits),))
        return max((registers(work, bits) for work, bits in tiles), default=0)
    sizes = {work.id: 0 if work.id in in_ring else registers(work, work.register_bits) for work in body.work}
    count, at = len(body.work), {work.id: i for i, work in enumerate(body.work)}
    spans = []
    for work in body.work:
        # A value's last reader may write into its registers.
        ends = [at[f.dst] + count * f.distance - 1 for f in body.flows if f.src == work.id and f.kind == "data"]
        spans.append((at[work.id], max([at[work.id], *ends]), sizes[work.id], work))
    held = -(-sum(body.held_bits) // (32 * threads))
    return held + sum(registers for _, registers in most_at_once(spans, count))


def to_json(facts: KernelFacts) -> dict[str, object]:
    """``facts`` as plain values; what is empty is left out of an operation."""
    plain = asdict(facts)
    plain["body"] = list(map(_compact, plain["body"]))
    for loop in plain["loops"]:
        loop["work"] = list(map(_compact, loop["work"]))
    return plain


def _compact(work: dict[str, object]) -> dict[str, object]:
    parts = [{n: v for n, v in part.items() if n != "avoided"} for part in work["parts"]]  # type: ignore[attr-defined]
    return {name: value for name, value in (work | {"parts": parts}).items() if value}


def from_json(plain: dict[str, object]) -> KernelFacts:
    """What :func:`to_json` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
    return KernelFacts(
        str(plain["kernel"]), int(plain["capability"]), int(plain["warps"]),  # type: ignore[call-overload]
        tuple(map(_work_from, plain["body"])),  # type: ignore[call-overload]
        tuple(LoopFacts(of["id"], of["parent"], of["trips"], tuple(map(_work_from, of["work"])))
              for of in plain["loops"]),  # type: ignore[attr-defined]
        int(plain["live_registers"]), int(plain["staged_bytes"]),  # type: ignore[call-overload]
        int(plain.get("kept_bytes", 0)),  # type: ignore[call-overload]
    )  # fmt: skip


def _work_from(plain: dict[str, object]) -> WorkFacts:
    product = plain.get("product")
    return WorkFacts(
        plain["kind"],  # type: ignore[arg-type]
        tuple(Part(**part) for part in plain.get("parts", ())),  # type: ignore[attr-defined]
        None if product is None else ProductFacts(**product),  # type: ignore[arg-type]
        int(plain.get("moved_bytes", 0)),  # type: ignore[call-overload]
        bool(plain.get("ahead", False)),
        bool(plain.get("flying", False)),
        tuple((int(a), int(b)) for a, b in plain.get("needs", ())),  # type: ignore[attr-defined]
        int(plain.get("run_bytes", 0)),  # type: ignore[call-overload]
        int(plain.get("thread_elements", 0)),  # type: ignore[call-overload]
    )
