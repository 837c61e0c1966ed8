"""What ``warpplan ws`` does: one kernel captured, planned, lowered, its barriers checked. Needs Triton, no GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from warpplan.planner.errors import InvalidConfig, InvalidInput, WarpplanError
from warpplan.planner.values.profile import Profile

if TYPE_CHECKING:
    from warpplan.kernels.compiler.analysis.capture import Captured
    from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy
    from warpplan.kernels.compiler.inspection.barrier_check import BarrierReport
    from warpplan.kernels.compiler.inspection.where import Placed
    from warpplan.kernels.compiler.strategy.protocol import Strategy
    from warpplan.planner.values.device import Device
    from warpplan.planner.values.plan import Optimality

SCHEMA = "warpplan/ws-1"
HOPPER, BLACKWELL = 90, 100
STOCK, BEST = "stock", "best"
ALONE = ("left alone", "null")
"""How leaving a kernel alone is shown, as text and as JSON."""
MOST_REFUSED = 16
"""Strategies that are lowered at most until one can be: a second each. Chosen by hand."""
LIKE = {HOPPER: "NVIDIA H200", BLACKWELL: "NVIDIA B200"}
"""The GPU whose sizes are meant where the profile is of another kind of GPU than the target."""


@dataclass(frozen=True)
class Inspection:
    """``ranked`` best first, ``chosen`` among them (scheme ``None``: Triton's own lowering); ``estimated`` are
    operations whose cost was not measured. ``refused`` are better ones that could not be lowered, with the reason.
    ``barriers`` is ``None`` where the kernel could not be finished, with ``failure``. ``optimality`` compares the
    chosen plan of each loop that loads through TMA with any other partition and order of its operations (Hopper)."""

    kernel: str
    target: int
    captured: Captured
    estimated: tuple[str, ...]
    ranked: tuple[RankedStrategy, ...]
    chosen: RankedStrategy
    placed: tuple[Placed, ...]
    barriers: BarrierReport | None
    failure: str = ""
    refused: tuple[tuple[Strategy, str], ...] = ()
    optimality: tuple[Optimality, ...] = ()


def parse_scheme(text: str) -> Strategy | None:
    """What ``--scheme`` names: any form of :mod:`~warpplan.kernels.compiler.strategy.written`, or ``None`` for Triton's
    own lowering, also where it is given as it is shown. Raises :class:`InvalidConfig`."""
    from warpplan.kernels.compiler.strategy.written import strategy_from_text

    return None if text.strip() in (STOCK, *ALONE) else strategy_from_text(text, words=(STOCK, BEST))


def layers_at(spec: str) -> Any:
    """What is at ``FILE.py:function`` or ``package.module:function``, whatever stands around the kernel. Importing it
    runs its module. Raises :class:`InvalidInput` where there is nothing, or no Triton."""
    from warpplan.service.feeds.consumer_kernel import find

    try:
        import triton  # noqa: F401
    except ImportError:
        raise InvalidInput(
            f"{spec}: Triton is needed to compile it: pip install 'warpplan[gpu]'", field="kernel", value=spec
        ) from None
    return find(spec)


def innermost(layers: Any, spec: str) -> Any:
    """The ``JITFunction`` in ``layers``, taken out of ``@triton.autotune`` and the like, which were found at ``spec``.
    Raises :class:`InvalidInput` where there is none."""
    from triton.runtime.jit import JITFunction

    found = layers
    while not isinstance(found, JITFunction):
        if not hasattr(found, "fn"):
            raise InvalidInput(f"{spec} is no Triton kernel: expected a function under @triton.jit", field="kernel")
        found = found.fn
    path = found.fn.__code__.co_filename
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{spec}: Triton cannot compile {path}, whose name is not ASCII, as this process's encoding is: set "
            "PYTHONUTF8=1, or move the file",
            field="kernel", value=spec,
        ) from None  # fmt: skip
    return found


def inspect_kernel(
    kernel: Any, signature: str, profile: Profile, *, target: int = HOPPER, scheme: str = BEST, warps: int = 4,
    stages: int = 3,
) -> Inspection:  # fmt: skip
    """Everything there is to say about ``kernel`` (a ``JITFunction``), compiled for sm_``target`` under ``scheme``.

    Raises :class:`InvalidInput` for a signature that does not fit and a kernel that Triton does not compile, and what
    :func:`parse_scheme` raises.
    """
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing.loop_graph import estimated
    from warpplan.kernels.compiler.inspection.compile_errors import compile_error_line
    from warpplan.kernels.compiler.inspection.signature import source_of
    from warpplan.kernels.compiler.inspection.where import placed
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
    from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

    asked = None if scheme == BEST else parse_scheme(scheme)
    source = source_of(kernel, signature)
    gpu = GPUTarget("cuda", target, 32)
    options = {"num_warps": warps, "num_stages": stages}
    try:
        at_cut = planned_cut(source, gpu, options)
    except WarpplanError:
        raise
    except Exception as error:  # Triton's front end and passes raise types of their own
        raise InvalidInput(
            f"{kernel.__name__} does not compile for sm_{target}: {compile_error_line(error, kernel)}", field="kernel"
        ) from error
    text, captured = at_cut.text, explained(capture(at_cut.text), at_cut.described)
    if asked is not None and asked.architecture != target // 10:
        form = "apart:SLOTS, together:SLOTS or found:SLOTS" if target == BLACKWELL else "CONSUMERSxWARPS:SLOTS"
        raise InvalidConfig(
            f"scheme {scheme!r} is not for sm_{target}: expected best, stock or {form}",
            field="scheme", value=scheme, limit=target,
        )  # fmt: skip
    device = _device(profile, target)
    ranked = _ranked(captured, text, profile, device, target, stages)
    alone = next(r for r in ranked if r.scheme is None)
    chosen = alone
    if asked is not None:
        known = next((r for r in ranked if r.scheme == asked), None)
        near = next((r for r in ranked if r.scheme and r.scheme.partitioning == asked.partitioning), alone)
        level = asked.copies if isinstance(asked, HopperStrategy) else 0
        chosen = known or replace(near, scheme=asked, reason="asked for", copies=level)
    refused: list[tuple[Strategy, str]] = []
    for candidate in _in_turn(ranked, alone) if scheme == BEST else (chosen,):
        chosen, (barriers, failure) = candidate, _finish(source, gpu, options, candidate.scheme)
        if barriers is not None or candidate.scheme is None:
            break
        refused.append((candidate.scheme, failure))
    captured = captured.at(chosen.copies)
    estimated_work = tuple(name for loop in captured.loops for name in estimated(loop, profile.costs))
    return Inspection(
        kernel.__name__, target, captured, estimated_work, ranked, chosen, placed(captured, chosen), barriers, failure,
        tuple(refused if scheme == BEST else ()), _certified(captured, chosen, profile, device, target),
    )  # fmt: skip


def _in_turn(ranked: tuple[RankedStrategy, ...], alone: RankedStrategy) -> tuple[RankedStrategy, ...]:
    """What is lowered until one can be: the best first, leaving the kernel alone in its place, or last."""
    return (*ranked[: ranked.index(alone)][:MOST_REFUSED], alone)


def _device(profile: Profile, target: int) -> Device:
    """The profile's GPU where it is one of ``target``."""
    from warpplan.planner.values.device import device

    gpu = device(profile.identity.gpu)
    return gpu if gpu.capability == target else device(LIKE[target])


def _certified(
    captured: Captured, chosen: RankedStrategy, profile: Profile, gpu: Device, target: int
) -> tuple[Optimality, ...]:
    from warpplan.kernels.compiler.costing.free_problem import certificates

    return certificates(captured, chosen, profile, gpu) if target == HOPPER else ()


def _ranked(
    captured: Captured, text: str, profile: Profile, gpu: Device, target: int, stages: int
) -> tuple[RankedStrategy, ...]:
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.costing.blackwell import blackwell_ranking

    if target == BLACKWELL:
        return blackwell_ranking.rank(captured, text, profile, gpu, stages=stages)
    return hopper_ranking.rank(captured, profile, gpu, stages=stages)


def _finish(
    source: Any, gpu: Any, options: dict[str, int], scheme: Strategy | None
) -> tuple[BarrierReport | None, str]:
    from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
    from warpplan.kernels.compiler.inspection.compile_errors import compile_error_line
    from warpplan.kernels.compiler.inspection.finished import finished_text

    try:
        return check_barriers(finished_text(source, gpu, options, scheme)), ""
    except WarpplanError as error:
        return None, str(error)
    except Exception as error:
        return None, f"Triton: {compile_error_line(error, source.fn)}"


def to_json(found: Inspection) -> dict[str, Any]:
    """All of it as plain values."""
    from warpplan.planner.values import codec

    def ranked(r: RankedStrategy) -> dict[str, Any]:
        return {
            "scheme": None if r.scheme is None else r.scheme.to_json(),
            "ii_cycles": list(r.ii_cycles),
            "predicted_cycles": r.predicted_cycles,
            "gain": r.gain,
            "reason": r.reason,
        }

    report = found.barriers
    return {
        "schema": SCHEMA,
        "kernel": found.kernel,
        "target": found.target,
        "loops": [
            {
                "id": loop.id, "line": loop.line, "parent": loop.parent, "trips": loop.trips, "rows": loop.rows,
                "work": [
                    {
                        "id": w.id, "kind": w.kind, "line": w.line, "lines": list(w.lines), "operations": list(w.names),
                        "tile": list(w.shape), "buffer_bytes": w.buffer_bytes, "register_bits": w.register_bits,
                        "rows": w.rows, "conditional": w.conditional, "estimated": w.id in found.estimated,
                    }
                    for w in loop.work
                ],
                "flows": [asdict(flow) for flow in loop.flows],
            }
            for loop in found.captured.loops
        ],
        "obstacles": [asdict(o) for o in found.captured.obstacles],
        "remarks": [asdict(o) for o in found.captured.remarks],
        "stores_kept": [asdict(o) for o in found.captured.stores_kept],
        "ranked": [ranked(r) for r in found.ranked],
        "chosen": ranked(found.chosen),
        "plans": [codec.to_json(plan) for plan in found.chosen.plans],
        "optimality": [asdict(o) for o in found.optimality],
        "placed": [asdict(p) for p in found.placed],
        "barriers": None if report is None else asdict(report),
        "failure": found.failure,
        "refused": [[scheme.to_json(), reason] for scheme, reason in found.refused],
    }  # fmt: skip
