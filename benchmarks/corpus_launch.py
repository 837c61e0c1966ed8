"""Entries of the corpus on a GPU: tensors between guards, launches with and without autotuning, outputs compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import triton
from corpus_entry import TUNERS, Box, Entry, Problem, Tensor, resolved
from triton.tools.tensor_descriptor import TensorDescriptor

GUARD = 64
"""Elements in front of and behind each tensor, which no kernel may write; keeps alignment to 16 bytes and more."""
CANARY = 77
"""The value between rows and around tensors; every element type holds it exactly or nearly so."""


class Made:
    """The tensors of a problem, from a seed. ``views`` are what kernels get, ``buffers`` what they lie in."""

    def __init__(self, problem: Problem, seed: int, device: str = "cuda") -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self.problem = problem
        self.buffers: dict[str, torch.Tensor] = {}
        self.views: dict[str, torch.Tensor] = {}
        for name, tensor in problem.tensors.items():
            length = tensor.shape[0] * tensor.strides[0] + 2 * GUARD
            dtype = getattr(torch, tensor.dtype)
            buffer = torch.full((length,), CANARY, dtype=torch.float32, device=device).to(dtype)
            view = torch.as_strided(buffer, tensor.shape, tensor.strides, GUARD)
            view.copy_(filled(tensor, generator, device))
            self.buffers[name], self.views[name] = buffer, view

    def reset(self) -> None:
        """Outputs as they were before the first launch."""
        for name, tensor in self.problem.tensors.items():
            if name in self.problem.outputs:
                self.views[name].fill_(float("nan") if tensor.fill == "nan" and self.floats(name) else 0)

    def floats(self, name: str) -> bool:
        return self.views[name].dtype.is_floating_point and self.views[name].dtype.itemsize > 1

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.views[name].clone() for name in self.problem.outputs)

    def overwritten(self) -> list[str]:
        """Tensors with an element outside of them changed."""
        found = []
        for name, tensor in self.problem.tensors.items():
            outside = torch.ones_like(self.buffers[name], dtype=torch.bool)
            torch.as_strided(outside, tensor.shape, tensor.strides, GUARD).fill_(False)
            canary = torch.tensor(float(CANARY)).to(self.buffers[name].dtype).float()
            if bool((self.buffers[name].float() != canary.to(outside.device))[outside].any()):
                found.append(name)
        return found


def filled(tensor: Tensor, generator: torch.Generator, device: str) -> torch.Tensor:
    """Values as the tensor's ``fill`` says."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.fill == "values":
        assert tensor.values is not None
        return torch.tensor(list(tensor.values()), dtype=dtype, device=device).reshape(tensor.shape)
    if tensor.fill == "integers":
        whole = torch.randint(tensor.low, tensor.high, tensor.shape, generator=generator, device=device)
        return whole.to(dtype)
    if tensor.fill in ("zero", "nan"):
        floats = dtype.is_floating_point and dtype.itemsize > 1
        return torch.full(tensor.shape, float("nan") if tensor.fill == "nan" and floats else 0, device=device).to(dtype)
    draw = torch.randn if tensor.fill == "normal" else torch.rand
    return (draw(tensor.shape, generator=generator, device=device) * tensor.scale).to(dtype)


def arguments(problem: Problem, made: Mapping[str, torch.Tensor], constants: Mapping[str, Any]) -> dict[str, Any]:
    """Every run-time argument; a descriptor's block is that of ``constants``, and 16 where a name is not among them: a
    ``pre_hook`` sets it."""

    def value(argument: Any) -> Any:
        if isinstance(argument, Box):
            tensor = made[argument.tensor]
            block = [constants.get(size, 16) if isinstance(size, str) else size for size in argument.block]
            return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)
        return made[argument] if isinstance(argument, str) else argument

    return {name: value(argument) for name, argument in resolved(problem).items()}


def fixed(
    entry: Entry, problem: Problem, config: Any, made: Mapping[str, torch.Tensor], *, warmup: bool = False
) -> Callable[[], object]:
    """A launch under one configuration, without autotuning; with ``warmup`` it only compiles."""
    constants = entry.constants(problem, config)
    given = arguments(problem, made, constants)
    grid = problem.grid(constants)
    more = {} if config.maxnreg is None else {"maxnreg": config.maxnreg}
    names = set(entry.jit.arg_names)
    constants = {name: value for name, value in constants.items() if name in names}
    launch = partial(entry.jit.warmup, grid=grid) if warmup else entry.jit[grid]
    return lambda: launch(**given, **constants, num_warps=config.num_warps, num_stages=config.num_stages, **more)


def tuned(entry: Entry, problem: Problem, made: Mapping[str, torch.Tensor], kernel: Any) -> Callable[[], object]:
    """The launch that a user writes: ``kernel`` tunes itself where it is autotuned."""
    given = arguments(problem, made, problem.constants)
    return lambda: kernel[problem.grid](**given, **problem.constants)


def fresh(entry: Entry) -> Any:
    """The entry's kernel under its autotuner with nothing tuned yet; a plain list becomes one."""
    if not isinstance(entry.kernel, TUNERS):
        zeroed = [name for name, value in zeroed_arguments(entry)]
        return triton.autotune(configs=with_boxes(entry), key=[], reset_to_zero=zeroed or None)(entry.kernel)
    kernel = layer = copy.copy(entry.kernel)
    while isinstance(layer, TUNERS):
        if hasattr(layer, "cache"):
            layer.cache = {}
        if isinstance(layer.fn, TUNERS):
            layer.fn = copy.copy(layer.fn)
        layer = layer.fn
    return kernel


def with_boxes(entry: Entry) -> list[triton.Config]:
    """The plain list, each configuration with a ``pre_hook`` that gives the descriptors its block sizes."""
    found = entry.problem().arguments
    boxes = {name: value.block for name, value in found.items() if isinstance(value, Box)}

    def set_boxes(arguments: dict[str, Any]) -> None:
        for name, block in boxes.items():
            arguments[name].block_shape = [arguments[size] if isinstance(size, str) else size for size in block]

    hook = {"pre_hook": set_boxes} if boxes else {}
    return [
        triton.Config(dict(c.kwargs), num_warps=c.num_warps, num_stages=c.num_stages, maxnreg=c.maxnreg, **hook)
        for c in entry.configs
    ]


def zeroed_arguments(entry: Entry) -> list[tuple[str, str]]:
    """(parameter, tensor) of the outputs that start at zero and are added to."""
    problem = entry.problem()
    return [
        (name, value)
        for name, value in problem.arguments.items()
        if isinstance(value, str) and value in problem.outputs and problem.tensors[value].fill == "zero"
    ]


def errors(found: tuple[torch.Tensor, ...], wanted: Any) -> float:
    """The largest ‖error‖ / ‖reference‖ of the outputs; infinite where one is not finite."""
    references = wanted if isinstance(wanted, tuple) else (wanted,)
    largest = 0.0
    for output, reference in zip(found, references, strict=True):
        difference = (output.float() - reference.float()).norm()
        error = (difference / reference.float().norm().clamp(min=1e-6)).item()
        largest = max(largest, error if error == error else float("inf"))
    return largest
