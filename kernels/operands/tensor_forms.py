"""What tensors are beside matrices of numbers, and what torch does with calls beside computing them: a planned kernel
reads strided memory alone, and no transform sees its launch."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from warpplan.kernels.torch_types import Tensor

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Not their subclasses (DTensor, quantised weights): those have products of their own."""


def special_form(tensor: Tensor) -> str:
    """What ``tensor`` is other than a strided tensor of torch's own, in a few words; empty where it is just that."""
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    return ""


# A graph that torch.compile made is valid for the transforms that it was made under: it holds the answer as a constant.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def active_transform() -> str:
    """What torch does with the calls of this moment that no launch of a kernel takes part in, in a few words; empty
    where it computes them alone."""
    if torch._C._are_functorch_transforms_active():
        return "a torch.func transform"
    return "forward-mode differentiation" if forward_ad._current_level >= 0 else ""


def is_batched(tensor: Tensor) -> bool:
    """Whether ``tensor`` is one of those that ``torch.autograd.grad`` hands on with ``is_grads_batched``: it has no
    storage, and no kernel can read it."""
    return not torch._C._has_storage(tensor)
