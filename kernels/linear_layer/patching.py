"""Put the planned linear layer into a model: its ``torch.nn.Linear`` modules keep their class, parameters and names.

>>> import torch
>>> from warpplan.kernels import patch
>>> print(patch(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 10))))
linear  weight    state
0       128 x 64  patched
1       10 x 128  left: its 10 outputs are no multiple of 8
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Self

import torch
from torch.nn.utils import parametrize

from warpplan.kernels.linear_layer.autograd import linear
from warpplan.kernels.linear_layer.products import ALIGNMENT, DTYPES
from warpplan.kernels.torch_types import LinearModule, Module, Tensor
from warpplan.planner.errors import InvalidInput

AUTOCAST_DTYPES = (torch.float32, *DTYPES)
"""Of weights: float32 ones are multiplied in 16 bits under autocast, and by torch without it."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class LinearState:
    """One ``torch.nn.Linear`` of a model. ``reason`` says why it was left as it is; empty where it was patched."""

    name: str
    weight: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class PatchReport:
    """What :func:`patch` did to each linear layer of a model, in the model's order; ``str()`` is a table.

    As a context manager it undoes the patch at the end of the block.
    """

    linears: tuple[LinearState, ...]
    _modules: tuple[LinearModule, ...]

    @property
    def patched(self) -> tuple[str, ...]:
        """The names of the layers that run planned."""
        return tuple(state.name for state in self.linears if not state.reason)

    @property
    def left(self) -> dict[str, str]:
        """Why each other layer was left as it is, by its name."""
        return {state.name: state.reason for state in self.linears if state.reason}

    def undo(self) -> None:
        """Give every patched layer its own forward back; a second call does nothing."""
        for module in self._modules:
            if _is_patched(module):
                del module.forward

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        if not self.linears:
            return "no torch.nn.Linear in this model"
        rows = [("linear", "weight", "state")]
        for state in self.linears:
            shown = " x ".join(map(str, state.weight)) or "-"
            rows.append((state.name or "(itself)", shown, f"left: {state.reason}" if state.reason else "patched"))
        name_width, weight_width = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(f"{name:{name_width}}  {weight:{weight_width}}  {state}" for name, weight, state in rows)


def patch(model: Module) -> PatchReport:
    """Replace the forward of every eligible ``torch.nn.Linear`` in ``model``, itself included, by
    :func:`~warpplan.kernels.linear_layer.autograd.linear`, and say which were left and why.

    Left are subclasses with a forward of their own, modules that are parametrised, hooked or patched already, weights
    that are tensor subclasses (quantised, sharded), sizes that are no multiple of 8, dtypes that no planned kernel has,
    and layers whose owner reads the weight without calling them. A patched layer is still a ``torch.nn.Linear`` with
    the same ``state_dict``; it reads ``self.weight`` at each call. Call this before ``torch.compile`` and before
    sharding. Raises :class:`InvalidInput` for what is not a ``torch.nn.Module``.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(
            f"{type(model).__name__} is not a torch.nn.Module: patch takes a model",
            field="model",
            value=repr(model)[:60],
        )
    states, modules = [], []
    for name, module, owner in _linears(model):
        reason = _reason_to_leave(module, owner)
        states.append(LinearState(name, _weight_shape(module), reason))
        if not reason:
            module.forward = MethodType(forward, module)
            modules.append(module)
    return PatchReport(tuple(states), tuple(modules))


def forward(self: LinearModule, input: Tensor) -> Tensor:
    """``torch.nn.Linear.forward``, planned. Pickling a bound method keeps its name alone: a model loaded from a file
    has torch's own forward until it is patched. A shallow copy shares this method, and with it the weights, of the
    layer that it was copied from."""
    return linear(input, self.weight, self.bias)


def _linears(model: Module) -> Iterator[tuple[str, LinearModule, Module]]:
    """(name, linear, the module that holds it), each module once."""
    owners = {id(child): module for module in model.modules() for child in module.children()}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield name, module, owners.get(id(module))


def _reason_to_leave(module: LinearModule, owner: Module) -> str:
    """Why ``module`` stays as it is; empty where it can be patched."""
    if _is_patched(module):
        return "patched already"
    if not _has_torchs_forward(module):
        return f"its forward is not torch.nn.Linear's ({type(module).__name__})"
    if isinstance(owner, torch.nn.MultiheadAttention):
        return "torch.nn.MultiheadAttention reads its weight without calling it"
    if parametrize.is_parametrized(module) or "weight" not in module._parameters:
        return "its weight is parametrised"
    if any(getattr(module, hooks) for hooks in HOOKS):
        return "it has hooks"
    weight = module.weight
    if type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.dtype not in AUTOCAST_DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
    if weight.dim() != 2:
        return f"its weight is {weight.dim()}-dimensional: patch before sharding"
    for meaning, size in zip(("outputs", "inputs"), weight.shape, strict=True):
        if size % ALIGNMENT or not size:
            return f"its {size} {meaning} are no multiple of {ALIGNMENT}"
    return ""


def _is_patched(module: LinearModule) -> bool:
    return getattr(vars(module).get("forward"), "__func__", None) is forward


def _has_torchs_forward(module: LinearModule) -> bool:
    """A patched module that was pickled has torch's forward bound to it."""
    called = vars(module).get("forward", type(module).forward)
    return getattr(called, "__func__", called) is torch.nn.Linear.forward


def _weight_shape(module: LinearModule) -> tuple[int, ...]:
    return (module.out_features, module.in_features)
