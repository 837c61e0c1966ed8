"""What can be planned: kernels of our own, and with ``planned`` anyone's. Importing needs neither torch nor Triton."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.kernels.attention_layer.autograd import attention
    from warpplan.kernels.attention_layer.packed_autograd import packed_attention
    from warpplan.kernels.compiler.exceptions import PlanWarning
    from warpplan.kernels.compiler.launching.inductor import planned_inductor, tma_templates
    from warpplan.kernels.compiler.launching.planned import planned
    from warpplan.kernels.linear_layer.autograd import linear
    from warpplan.kernels.linear_layer.patching import PatchReport, patch
    from warpplan.kernels.plan_source import PlanSourceWarning, use_source

_MODULES = {
    "PatchReport": "linear_layer.patching",
    "PlanSourceWarning": "plan_source",
    "PlanWarning": "compiler.exceptions",
    "attention": "attention_layer.autograd",
    "linear": "linear_layer.autograd",
    "packed_attention": "attention_layer.packed_autograd",
    "patch": "linear_layer.patching",
    "planned": "compiler.launching.planned",
    "planned_inductor": "compiler.launching.inductor",
    "tma_templates": "compiler.launching.inductor",
    "use_source": "plan_source",
}
"""Public name → its module, imported when the name is first used."""
__all__ = [
    "PatchReport",
    "PlanSourceWarning",
    "PlanWarning",
    "attention",
    "linear",
    "packed_attention",
    "patch",
    "planned",
    "planned_inductor",
    "tma_templates",
    "use_source",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs {error.name}: pip install 'warpplan[gpu]'", name=error.name
        ) from None
    return getattr(module, name)


EXPORTS = {
    "compile": ("compile_report", "CompiledReport", "element_type", "specialized"),
    "declaration": (
        "Declaration",
        "MAX_ELEMENTS",
        "MAX_LIST_CHARACTERS",
        "options_of",
        "require_elements",
        "Shape",
        "ShapeField",
        "ShapeOption",
    ),
    "isolate": ("Child", "IsolatedResult", "Json", "run_isolated", "within"),
    "isolated_jobs": ("each",),
    "plan_source": ("configuration", "default_profile"),
    "registry": ("*",),
    "solved_loops": ("*",),
    "timing": ("input_sets", "paired", "timed_jobs"),
    "torch_types": (
        "AutogradContext",
        "Dtype",
        "InductorConfig",
        "InductorLauncher",
        "InductorResult",
        "InductorTuner",
        "LinearModule",
        "Module",
        "Tensor",
        "TorchResult",
        "TorchShape",
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
        "TunerConfig",
    ),
    "warn_once": ("warn_once",),
}
