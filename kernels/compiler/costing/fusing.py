"""Fewer operations for the planner: neighbours in program order on one unit become one.

Run by one thread of control they follow each other without anything between them, so apart or together they keep the
unit busy for as long, and two consumers alternate on it in the same way. Half as many operations are solved in a
fraction of the time.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import UNIT, Part

_FUSED = frozenset({"elementwise", "reduce", "sfu"})
JOIN = " .. "
"""Between the first and the last operation of a run, in its id."""
SMALL = 8
"""A row's statistic next to its tile: its reader waits for the run, but does not keep the run's tile in registers."""


def fuse(loop: Body, apart: frozenset[str] = frozenset()) -> tuple[Body, dict[str, str]]:
    """``loop`` with such neighbours made one, and for each operation the id of the one that it is now part of;
    operations named in ``apart`` stay alone."""
    runs: list[list[LoopWork]] = []
    for work in loop.work:
        last = runs[-1][-1] if runs else None
        if last is not None and last.id not in apart and work.id not in apart and _alike(last, work):
            runs[-1].append(work)
        else:
            runs.append([work])
    home = {work.id: _name(run) for run in runs for work in run}
    joined = {_name(run): _joined(run, loop.flows) for run in runs}
    by_id = {work.id: work for work in loop.work}
    flows: dict[tuple[str, str, int], Flow] = {}
    for flow in loop.flows:
        src, dst = home[flow.src], home[flow.dst]
        if src == dst and flow.distance == 0:
            continue
        small = src == dst or SMALL * _bits_of(flow, by_id[flow.src]) < joined[src].register_bits
        several = src != flow.src or len(by_id[flow.src].results) > 1
        kind = "token" if several and small else flow.kind
        known = flows.get((src, dst, flow.distance))
        if known is None or known.kind == "token":
            flows[src, dst, flow.distance] = replace(flow, src=src, dst=dst, kind=kind)
        elif kind == "data":
            flows[src, dst, flow.distance] = replace(known, values=(*known.values, *flow.values))
    return replace(loop, work=tuple(joined.values()), flows=tuple(flows.values())), home


def steady(loop: Body) -> Body:
    """``loop`` without what happens in few of its iterations."""
    rare = {work.id for work in loop.work if work.rare}
    if not rare:
        return loop
    flows = tuple(flow for flow in loop.flows if not rare & {flow.src, flow.dst})
    return replace(loop, work=tuple(work for work in loop.work if work.id not in rare), flows=flows)


def lowered(loop: Body) -> Body:
    """``loop`` as plans run it in most iterations: without the masks that seldom hide anything, and without what
    exponentials do about results that nothing keeps."""
    work = tuple(replace(work, parts=() if work.seldom else tuple(map(_kept, work.parts))) for work in loop.work)
    return loop if work == loop.work else replace(loop, work=work)


def _kept(part: Part) -> Part:
    return replace(part, times=part.times - part.avoided, avoided=0.0) if part.avoided else part


def _alike(a: LoopWork, b: LoopWork) -> bool:
    return a.kind in _FUSED and b.kind in _FUSED and UNIT[a.kind] == UNIT[b.kind] and a.rows == b.rows


def _bits_of(flow: Flow, src: LoopWork) -> int:
    """Bits of registers that ``flow`` carries; all that ``src`` leaves where its values are not told apart."""
    known = dict(src.results)
    return sum(known.get(value, 0) for value in flow.values) if known and flow.values else src.register_bits


def _name(run: list[LoopWork]) -> str:
    return run[0].id if len(run) == 1 else f"{run[0].id}{JOIN}{run[-1].id}"


def _joined(run: list[LoopWork], flows: tuple[Flow, ...]) -> LoopWork:
    if len(run) == 1:
        return run[0]
    inside = {work.id for work in run}
    leaving = [flow for flow in flows if flow.src in inside and (flow.dst not in inside or flow.distance > 0)]
    kept, values = {flow.src for flow in leaving}, {value for flow in leaving for value in flow.values}
    results = tuple(result for work in run for result in work.results if result[0] in values)
    bits = [sum(dict(w.results).get(v, 0) for v in values) if w.results else w.register_bits for w in run]
    return replace(
        run[0],
        id=_name(run),
        names=tuple(name for work in run for name in work.names),
        lines=tuple(dict.fromkeys(line for work in run for line in work.lines)),
        parts=tuple(part for work in run for part in work.parts),
        register_bits=sum(n for work, n in zip(run, bits, strict=True) if work.id in kept),
        results=results,
        conditional=any(work.conditional for work in run),
    )
