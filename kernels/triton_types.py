"""Names for Triton's values, which have no types of their own: the one module where they are ``Any``.

Triton ships neither stubs nor a ``py.typed`` marker and need not be installed, so mypy knows nothing of what comes from
it. A signature that says :data:`CompiledKernel` instead of ``Any`` tells the reader what is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

JitFunction = Any
"""``triton.runtime.jit.JITFunction``: a kernel under ``@triton.jit``."""
Autotuner = Any
"""``triton.runtime.autotuner.Autotuner``, or another layer around a :data:`JitFunction` that has ``fn`` and ``run``."""
TunerConfig = Any
"""``triton.Config``: one configuration of an :data:`Autotuner`'s list."""
CompiledKernel = Any
"""``triton.compiler.CompiledKernel``."""
AstSource = Any
"""``triton.compiler.ASTSource``: a kernel with its signature, constants and attributes."""
GpuTarget = Any
"""``triton.backends.compiler.GPUTarget``."""
Backend = Any
"""``triton.backends.compiler.BaseBackend``, as ``make_backend`` gives."""
CompileOptions = Any
"""The backend's parsed options of one compile (``CUDAOptions``)."""
MlirModule = Any
"""``triton._C.libtriton.ir.module``."""
MlirContext = Any
"""``triton._C.libtriton.ir.context``."""
Specialization = Any
"""What ``JITFunction``'s binder makes of the arguments: types, divisibilities, constants."""
Grid = Any
"""A launch grid: a tuple, or a function of the bound arguments."""
KernelArgument = Any
"""What a launch passes for one parameter: a tensor, a descriptor, a number, a tuple of these."""
TableKey = Any
"""What a launch is looked up by."""
Stages = dict[str, Callable[..., Any]]
"""The compile's stages by name, as a stage inspection hook is given them."""
StageHook = Callable[..., Any]
"""A function for ``triton.knobs.runtime.add_stages_inspection_hook``."""
PassArgument = Any
"""An argument of a compiler pass: a number, a flag, a field of the options."""
TritonModule = Any
"""A module, a class or another object of Triton's own, imported at run time."""
Json = Any
"""A JSON value, not yet read: checked where it is turned into a value of ours."""
TmaDescriptor = Any
"""A host-made TMA descriptor, Triton's or Gluon's."""
Launcher = Any
"""A :data:`JitFunction` with its grid: ``kernel[grid]``."""
GluonLayout = Any
"""A layout of ``triton.experimental.gluon.language``."""
