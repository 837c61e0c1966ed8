"""Names for torch's values, which is not installed where types are checked: the one module where they are ``Any``."""

from __future__ import annotations

from typing import Any

Tensor = Any
"""``torch.Tensor``."""
Dtype = Any
"""``torch.dtype``."""
TorchShape = Any
"""``torch.Size``."""
InductorTuner = Any
"""``torch._inductor.runtime.triton_heuristics.CachingAutotuner``."""
InductorConfig = Any
"""``triton.Config`` as Inductor keeps it beside a launcher."""
InductorResult = Any
"""``torch._inductor.runtime.triton_heuristics.TritonCompileResult``."""
InductorLauncher = Any
"""The function that a ``TritonCompileResult`` makes to launch its kernel."""
Module = Any
"""``torch.nn.Module``, or ``None`` for what none holds."""
LinearModule = Any
"""``torch.nn.Linear``."""
AutogradContext = Any
"""What a ``torch.autograd.Function`` keeps between forward and backward."""
CudaGraph = Any
"""``torch.cuda.CUDAGraph``."""
TorchResult = Any
"""What a torch function gave and nobody looks at."""
