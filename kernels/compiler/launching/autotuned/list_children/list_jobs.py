"""Jobs of the children that a list is shared out to: rank one configuration, compile one. No GPU.

A job is JSON and so is its result; one that raises is a result with a ``reason``, as a configuration that does not
compile is dropped by Triton's own tuning, never a failure.
"""

from __future__ import annotations

import functools
import json

from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching.autotuned.front_end import launch_size
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.triton_types import CompiledKernel, Json
from warpplan.planner.errors import WarpplanError
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

Job = dict[str, Json]
Result = dict[str, Json]
PREPARE, PREPARE_COMPILES, RANK, COMPILE = (
    f"{__name__}:{name}" for name in ("prepare", "prepare_compiles", "rank", "compile_job")
)


def prepare_compiles() -> None:
    """Import what compiles of kernels as they are need, and hash Triton's files."""
    import triton.compiler  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()


def prepare(profile: str) -> None:
    """Import what jobs need, read the ``profile`` that they rank by, and hash Triton's files: once a process."""
    import ortools.sat.python.cp_model  # noqa: F401
    from triton.runtime.cache import triton_key

    from warpplan.kernels.compiler.analysis.capture import capture  # noqa: F401
    from warpplan.kernels.compiler.costing import hopper_ranking  # noqa: F401
    from warpplan.kernels.compiler.pointers.planned_cut import planned_cut  # noqa: F401
    from warpplan.kernels.compiler.strategy.stage_hook import compile_with  # noqa: F401

    triton_key()
    _profile(profile)


def rank(shared: Job, job: Job) -> Result:
    """For ``job`` (``kernel``, ``numbers``, ``grid``, ``bytes`` as :class:`.FrontEnd` has them): ``strategies``,
    [strategy or ``None`` for the kernel as it is, microseconds of the launch or ``None``] each, best first; or
    ``reason``. ``shared`` has ``device`` and ``profile``, a JSON text."""
    from warpplan.planner.values.device import device

    try:
        return rank_one(job, _profile(shared["profile"]), device(shared["device"]))
    except Exception as error:
        return {"reason": reason_of(error, CannotPlan)}


def compile_job(shared: Job, job: Job) -> Result:
    """For ``job`` (``kernel``, ``scheme`` or ``None``): ``hash`` and ``files``; or ``reason``. ``shared`` has
    ``device`` and ``cache``, the folder of planned compiles."""
    from warpplan.planner.values.device import device

    try:
        return compile_one(job, shared["cache"], device(shared["device"]).smem_bytes_per_block)
    except Exception as error:
        return {"reason": reason_of(error, CannotPlan)}


@functools.cache
def _profile(text: str) -> Profile:
    from warpplan.planner.values import codec

    return codec.from_json(json.loads(text), Profile)


def rank_one(job: Job, profile: Profile, gpu: Device) -> Result:
    """The result of :func:`rank`. A configuration that compiles and cannot be ranked stays as it is,
    with the ``obstacle``: it may be the fastest."""
    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut

    options = packing.options(job["kernel"])
    at_cut = planned_cut(packing.source(job["kernel"]), packing.target(job["kernel"]), options)
    try:
        captured = explained(capture(at_cut.text), at_cut.described)
        size = launch_size(at_cut.text, job["numbers"], tuple(job["grid"]), job["bytes"])
        ranked = hopper_ranking.rank(captured, profile, gpu, stages=options["num_stages"], launch=size)
    except WarpplanError as error:
        return {"strategies": [[None, None]], "obstacle": reason_of(error, CannotPlan)}
    found = [[None if r.scheme is None else r.scheme.to_json(), r.launch_us] for r in ranked]
    return {"strategies": found, "obstacle": ranked[0].reason if len(ranked) == 1 else ""}


def compile_one(job: Job, cache: str, most_shared: int) -> Result:
    """The result of :func:`compile_job`. Raises :class:`CannotPlan` for a kernel that needs more than
    ``most_shared`` bytes of shared memory: Triton finds that out where it loads it."""
    scheme = None if job["scheme"] is None else strategy_from_json(job["scheme"], "a list's strategy")
    compiled = _compiled(job["kernel"], scheme, cache)
    if compiled.metadata.shared > most_shared:
        raise CannotPlan(f"out of resource: {compiled.metadata.shared} bytes of shared memory, at most {most_shared}")
    files = packing.files_of(compiled)
    return {"hash": files.hash, "files": [list(file) for file in files.files]}


def _compiled(kernel: dict[str, Json], scheme: Strategy | None, cache: str) -> CompiledKernel:
    """As it is, into Triton's own cache, where the job will find it; or by ``scheme``, into ours."""
    source, target, options = packing.source(kernel), packing.target(kernel), packing.options(kernel)
    if scheme is not None:
        from warpplan.kernels.compiler.strategy.stage_hook import compile_with

        return compile_with(source, target, options, scheme, cache)
    import triton

    return triton.compile(source, target=target, options=options)
