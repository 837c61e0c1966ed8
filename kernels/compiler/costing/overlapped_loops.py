"""A captured loop as :mod:`~warpplan.kernels.compiler.lowering.hopper.issue_order.overlap` writes it: its last product
put off by an iteration, and issued behind the first one.

    s = dot(q, k[i]);  acc = dot(p, v[i - 1], acc);  p = softmax(s);  acc = acc · alpha;  operand = p in 16 bits

Putting an operation off is retiming (Leiserson and Saxe 1991): what flows into it does so an iteration later, what
flows out of it an iteration earlier. Retimed, the loop is one in program order like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import RING_KINDS
from warpplan.kernels.compiler.costing.loop_graph import THREADS, Shape
from warpplan.kernels.compiler.lowering.hopper.issue_order.overlap import HELD_REGISTERS

_PURE = frozenset({"elementwise", "sfu", "reduce", "convert_layout"})
"""Kinds of work that may wait for the accumulator: they leave nothing but their result."""
_NARROWING = frozenset({"arith.truncf", "tt.fp_to_fp", "ttg.convert_layout"})
"""What makes an operand of a tile. ptxas (Triton 3.6.0) does that once the product before is done, for its operand is
in the registers until then."""
_FLOAT_BITS = 32
"""Of an accumulator's element."""


@dataclass(frozen=True)
class _Retiming:
    """The two products; the loads that the first reads; what needs no accumulator, in order; what does, or makes the
    last product's operand."""

    first: LoopWork
    last: LoopWork
    lead: frozenset[str]
    front: tuple[LoopWork, ...]
    back: tuple[LoopWork, ...]


def overlapped(loop: Body, shape: Shape) -> Body:
    """``loop`` as consumers of ``shape`` run it: retimed where several of them overlap its products."""
    if loop.overlapped or not (shape.specialized and shape.in_flight and shape.consumers > 1):
        return loop
    parts = _parts(loop)
    return loop if parts is None else _retimed(loop, parts, shape)


def _parts(loop: Body) -> _Retiming | None:
    """The parts of ``loop``, ``None`` where it has not this form, as :mod:`~...lowering.hopper.issue_order.overlap` has
    it."""
    products = loop.of_kind("dot")
    if loop.kind != "scf.for" or len(products) != 2 or any(work.conditional for work in products):
        return None
    first, last = products
    if any(flow.src == first.id and flow.distance for flow in loop.flows):
        return None
    results = [flow for flow in loop.flows if flow.src == last.id]
    if not results or any(flow.distance != 1 for flow in results):
        return None
    if not all(_is_wgmma(work) for work in products) or not _in_registers(last):
        return None
    rings = {work.id for work in loop.of_kind(*RING_KINDS)}
    if _feeding(loop, rings) & {first.id, last.id}:
        return None
    lead, read = _sources(loop, first.id), _sources(loop, last.id)
    needy = _after(loop, last.id)
    if not lead or not lead <= rings or needy & read or len(read & rings) != 1 or lead & read:
        return None
    if any(flow.src in lead | (read & rings) and flow.dst not in (first.id, last.id) for flow in loop.flows):
        return None  # what is loaded for a product would be read in two iterations
    by_id = {work.id: work for work in loop.work}
    if any(by_id[work].kind not in _PURE for work in needy):
        return None
    late = {work for work in read - rings if _NARROWING.issuperset(by_id[work].names)}
    apart = {first.id, last.id, *needy, *late}
    back = [work for work in loop.work if work.id in needy] + [work for work in loop.work if work.id in late]
    front = tuple(work for work in loop.work if work.id not in apart)
    return _Retiming(first, last, frozenset(lead), front, tuple(back))


def _retimed(loop: Body, parts: _Retiming, shape: Shape) -> Body:
    last = parts.last.id
    flows = [_put_off(flow, last) for flow in loop.flows]
    # The operand of the product under way keeps its registers until that has landed, which ``back`` waits for.
    operands = [flow for flow in flows if flow.dst == last and flow.kind == "data" and not flow.accumulates]
    loads = {work.id for work in loop.of_kind(*RING_KINDS)}
    flows += [replace(flow, dst=parts.back[0].id) for flow in operands if flow.src not in loads and parts.back]
    rows, others = loop.held_bits
    # Gathered tiles have their addresses computed, or loaded, before.
    before = loads | _feeding(loop, loads)
    loading = [work for work in parts.front if work.id in before]
    front = [work for work in parts.front if work.id not in before]
    work = (*loading, parts.first, parts.last, *front, *parts.back)
    held = (rows + _held_bits(parts, shape), others)
    return replace(loop, work=work, flows=tuple(flows), held_bits=held, overlapped=True)


def _put_off(flow: Flow, work: str) -> Flow:
    """``flow`` where ``work`` is done an iteration later than it stands."""
    return replace(flow, distance=flow.distance + (flow.dst == work) - (flow.src == work))


def _held_bits(parts: _Retiming, shape: Shape) -> int:
    """Bits of the first product's left operand, where it stays in registers."""
    first, last = parts.first.product, parts.last.product
    assert first is not None
    assert last is not None
    if first.a != "shared" or first.element.element_bits != 16 or len(parts.lead) > 1:
        return 0
    operands = (p.m * p.k * p.element.element_bits for p in (first, last))
    live = sum(operands) + sum(p.m * p.n * _FLOAT_BITS for p in (first, last))
    fits = live <= _FLOAT_BITS * HELD_REGISTERS * THREADS * shape.warps * shape.consumers
    return first.m * first.k * first.element.element_bits if fits else 0


def _sources(loop: Body, work: str) -> set[str]:
    """What ``work`` reads of its own iteration, but for what it adds to."""
    return {f.src for f in loop.flows if f.dst == work and f.kind == "data" and not (f.distance or f.accumulates)}


def _feeding(loop: Body, works: set[str]) -> set[str]:
    """What ``works`` need of their own iteration."""
    found: set[str] = set()
    while more := {f.src for f in loop.flows if f.dst in works | found and not f.distance} - works - found:
        found |= more
    return found


def _after(loop: Body, last: str) -> set[str]:
    """What needs the product ``last`` of the iteration before, but for the next one."""
    found = {flow.dst for flow in loop.flows if flow.src == last} - {last}
    while more := {f.dst for f in loop.flows if f.src in found and not f.distance} - found - {last}:
        found |= more
    return found


def _is_wgmma(product: LoopWork) -> bool:
    return product.product is not None and product.product.tensor_cores == "wgmma"


def _in_registers(product: LoopWork) -> bool:
    """Whether its left operand is there."""
    return product.product is not None and product.product.a == "register"
