"""Layers of FLA (flash-linear-attention) at fixed sizes: as consumers of ``--target fla``, and on a GPU's tensors.

``fla_cases:gla_0`` is a function without arguments, as ``warpplan export --consumer`` takes it: it runs the layer on
CPU tensors of the case's sizes. Their memory is never touched.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

SEED, SHAPES, TRAIN = 20, 6, 3
TOKENS, BATCHES, HEADS, DIMENSIONS = (32768, 65536), (1, 2, 4, 8), (8, 16, 32), (64, 128)
LEAST_ELEMENTS, MOST_ELEMENTS = 2**26, 2**27
"""Of a tensor of tokens × heads × dimension: 128 MiB in bfloat16, more than the L2 cache holds; 0.5 GiB in float32."""
OPS = ("gla", "gdn", "kda")
"""``chunk_gla`` forward and backward; ``chunk_gated_delta_rule`` and ``chunk_kda`` forward: FLA refuses the former's
backward pass on Hopper with Triton 3.6."""


@dataclass(frozen=True)
class FlaCase:
    """A layer and its sizes: batch, tokens a sequence, heads, dimensions of keys and of values."""

    op: str
    index: int
    shape: tuple[int, int, int, int, int]

    @property
    def name(self) -> str:
        return f"{self.op}_{self.index}"

    @property
    def split(self) -> str:
        return "train" if self.index < TRAIN else "heldout"

    @property
    def words(self) -> list[str]:
        """As rows of results have it."""
        return [f"op={self.op}", *(f"{name}={size}" for name, size in zip("BTHKV", self.shape, strict=True))]


def drawn(op: str) -> list[tuple[int, int, int, int, int]]:
    """The sizes of a layer's cases, none twice."""
    rng = random.Random(f"{SEED}:{op}")
    found: list[tuple[int, int, int, int, int]] = []
    while len(found) < SHAPES:
        tokens, batch, heads = rng.choice(TOKENS), rng.choice(BATCHES), rng.choice(HEADS)
        keys, values = rng.choice(DIMENSIONS), rng.choice(DIMENSIONS)
        shape = (batch, tokens // batch, heads, keys, values)
        if LEAST_ELEMENTS <= tokens * heads * max(keys, values) <= MOST_ELEMENTS and shape not in found:
            found.append(shape)
    return found


CASES = {case.name: case for op in OPS for case in (FlaCase(op, index, shape) for index, shape in enumerate(drawn(op)))}


def inputs(case: FlaCase, device: str) -> dict[str, Any]:
    """The layer's tensors: random on a GPU, untouched memory on the CPU. Keys have unit length and gates are below 1,
    as in a trained layer: states stay finite."""
    import torch
    from torch.nn.functional import logsigmoid, normalize

    batch, length, heads, keys, values = case.shape
    rows, scalars = (batch, length, heads, keys), (batch, length, heads)
    sizes = {"q": rows, "k": rows, "v": (batch, length, heads, values), "g": scalars if case.op == "gdn" else rows}
    if case.op != "gla":
        sizes["beta"] = scalars
    types = {name: torch.float32 if name == "g" else torch.bfloat16 for name in sizes}
    if device == "cpu":
        return {name: torch.empty(size, dtype=types[name]) for name, size in sizes.items()}
    generator = torch.Generator(device).manual_seed(case.index)
    found = {
        name: torch.randn(size, dtype=types[name], device=device, generator=generator) for name, size in sizes.items()
    }
    found["g"] = logsigmoid(found["g"] + 3.0)
    found["k"], found["q"] = normalize(found["k"], dim=-1), normalize(found["q"], dim=-1)
    return found if case.op == "gla" else {**found, "beta": found["beta"].sigmoid()}


def step(case: FlaCase, device: str) -> None:
    """Runs the layer once."""
    import torch

    given = inputs(case, device)
    if case.op == "gla":
        from fla.ops.gla import chunk_gla

        output = chunk_gla(**{name: tensor.requires_grad_() for name, tensor in given.items()})[0]
        output.backward(given["v"].detach())
        return
    with torch.no_grad():
        if case.op == "gdn":
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule

            chunk_gated_delta_rule(**given)
        else:
            from fla.ops.kda import chunk_kda

            chunk_kda(**given)


def __getattr__(name: str) -> Callable[[], None]:
    """The consumer's function of the case ``name``."""
    if name not in CASES:
        raise AttributeError(f"no case {name}")
    return partial(step, CASES[name], "cpu")
