"""What can be planned: kernels of our own, and with ``planned`` anyone's. Importing needs neither torch nor Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.kernels.compiler.exceptions import PlanWarning
    from warpplan.kernels.compiler.launching.inductor import planned_inductor, tma_templates
    from warpplan.kernels.compiler.launching.planned import planned

__all__ = ["PlanWarning", "planned", "planned_inductor", "tma_templates"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("planned_inductor", "tma_templates"):
        from warpplan.kernels.compiler.launching import inductor

        return getattr(inductor, name)
    from warpplan.kernels.compiler.launching import planned

    return getattr(planned, name)


EXPORTS = {
    "compile": ("compile_report", "CompiledReport", "element_type", "specialized"),
    "declaration": ("ConsumerNames", "Declaration", "MAX_ELEMENTS", "require_elements", "Shape", "ShapeField"),
    "isolate": ("IsolatedResult", "Json", "run_isolated"),
    "plan_source": ("default_profile",),
    "registry": ("*",),
    "solved_loops": ("*",),
    "timing": ("input_sets", "paired"),
    "torch_types": (
        "Dtype",
        "InductorConfig",
        "InductorLauncher",
        "InductorResult",
        "InductorTuner",
        "Tensor",
        "TorchResult",
    ),
    "triton_compat": ("*",),
    "triton_types": (
        "AstSource",
        "Autotuner",
        "Backend",
        "CompiledKernel",
        "CompileOptions",
        "GluonLayout",
        "GpuTarget",
        "Grid",
        "JitFunction",
        "Json",
        "KernelArgument",
        "Launcher",
        "MlirContext",
        "MlirModule",
        "PassArgument",
        "Specialization",
        "StageHook",
        "TableKey",
        "TmaDescriptor",
        "TritonModule",
    ),
    "warn_once": ("warn_once",),
}
