"""The two halves of the installed Triton's ``make_ttgir``, chosen by its version, and how each is run."""

from __future__ import annotations

from warpplan.kernels.compiler.exceptions import UnsupportedTriton
from warpplan.kernels.compiler.pipeline import v3_6, v3_7, v3_8, v3_9
from warpplan.kernels.compiler.pipeline.steps import Halves, PassStep, run
from warpplan.kernels.triton_types import CompileOptions, MlirModule
from warpplan.planner.errors import InvalidInput

RELEASES: dict[str, tuple[Halves, Halves]] = {
    "3.6": (v3_6.HOPPER, v3_6.BLACKWELL),
    "3.7": (v3_7.HOPPER, v3_7.BLACKWELL),
    "3.8": (v3_8.HOPPER, v3_8.BLACKWELL),
    "3.9": (v3_9.HOPPER, v3_9.BLACKWELL),
}
"""By release: the passes for Hopper and for Blackwell."""

NESTED_DESCRIPTORS = frozenset({"3.6", "3.7"})
"""The releases that print a descriptor's block as a tensor."""

PIPELINING = frozenset({"ttgpuir.assign_latencies", "ttgpuir.schedule_loops", "ttgpuir.pipeline"})
SCHEDULING = frozenset({"ttgpuir.assign_latencies"})


def halves(version: str, capability: int) -> Halves:
    """The passes of Triton ``version`` for sm_``capability``.

    Raises :class:`UnsupportedTriton` for a release not listed, :class:`InvalidInput` for a GPU that has no warp
    specialisation.
    """
    release = RELEASES.get(".".join(version.split(".")[:2]))
    if release is None:
        raise UnsupportedTriton(
            f"triton {version}: the compiler path knows the passes of {', '.join(RELEASES)}; "
            "install one of these, for example triton==3.6.0",
            field="triton", value=version, limit=list(RELEASES),
        )  # fmt: skip
    if capability < 90:
        raise InvalidInput(
            f"sm_{capability}: warp specialisation needs sm_90 (Hopper) or newer",
            field="target",
            value=capability,
            limit=90,
        )  # fmt: skip
    hopper, blackwell = release
    return hopper if capability // 10 == 9 else blackwell


def nests_descriptors(version: str) -> bool:
    """Whether Triton ``version`` prints a descriptor's block as a tensor, ``<tensor<128x64xbf16>>``."""
    return ".".join(version.split(".")[:2]) in NESTED_DESCRIPTORS


def passes_for(version: str, capability: int) -> tuple[tuple[PassStep, ...], tuple[PassStep, ...]]:
    """(before, after) the cut."""
    found = halves(version, capability)
    return found.before, found.after


def run_before(module: MlirModule, options: CompileOptions, capability: int) -> None:
    """Take Triton's IR to the cut, in place."""
    from triton._C.libtriton import ir

    if options.maxnreg is not None:
        module.set_attr("ttg.maxnreg", ir.builder(module.context).get_int32_attr(options.maxnreg))
    run(_installed(capability).before, module, options, capability, "make_ttgir_before_cut")


def run_stock(module: MlirModule, options: CompileOptions, capability: int) -> None:
    """Triton's own pass at the cut, in place: nothing where it has none there. For comparisons only."""
    run(_installed(capability).stock, module, options, capability, "make_ttgir_stock")


def run_after(
    module: MlirModule, options: CompileOptions, capability: int, *, pipelined: bool = False, scheduled: bool = False
) -> None:
    """Take the module from the cut to finished TTGIR, in place.

    The loops of a module that is ``pipelined`` already, by rings of its own, are left as they are: Triton's pipeliner
    knows nothing of their barriers and moves a multiply's end past the release of what it reads. Those of one that is
    ``scheduled``, by ``loop.stage`` on its operations, keep that schedule.
    """
    left_out = PIPELINING if pipelined else SCHEDULING if scheduled else frozenset()
    steps = tuple(step for step in _installed(capability).after if step.name not in left_out)
    run(steps, module, options, capability, "make_ttgir_after_cut")


def _installed(capability: int) -> Halves:
    import triton

    return halves(triton.__version__, capability)
