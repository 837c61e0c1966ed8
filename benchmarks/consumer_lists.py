"""Kernels of consumers with the lists that people tune them over, and the shapes that exported entries are judged on.

Kernels come from the corpus. Their lists here are the long ones of tutorials and tuning scripts, not the corpus's short
ones. Shapes are drawn once from what models use, with :data:`SEED`; of each kernel's six the first three are for
training: the predicting constants may be looked at with those alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from random import Random

import corpus_registry
import triton
from corpus_entry import Entry

SEED = 18
SHAPES = 6
TRAIN = 3
Sizes = dict[str, int]


@dataclass(frozen=True)
class Consumer:
    """``entry`` has the consumer's list; ``shapes`` are what it is launched with."""

    name: str
    entry: Entry
    shapes: tuple[Sizes, ...]

    def split(self, shape: Mapping[str, int]) -> str:
        return "train" if dict(shape) in self.shapes[:TRAIN] else "heldout"


def blocks(names: Sequence[str], *wanted: tuple[int, ...], **more: int) -> list[triton.Config]:
    """Values of ``names``, then stages and warps, each."""
    return [
        triton.Config({**dict(zip(names, sizes, strict=False)), **more}, num_stages=sizes[-2], num_warps=sizes[-1])
        for sizes in wanted
    ]


MNK = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
POINTER_TUTORIAL = blocks(
    MNK, (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2), (128, 256, 128, 3, 8), (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4), (64, 256, 128, 4, 4), (128, 128, 128, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4), GROUP_M=8,
)  # fmt: skip
"""Of Triton's tutorial 03, both of its lists for CUDA."""
DESCRIPTOR_TUTORIAL = blocks(MNK, *product((128,), (128, 256), (64, 128), (2, 3, 4), (4, 8)), GROUP_M=8)
"""Of Triton's tutorial 09."""
ATTENTION_TUTORIAL = [
    config
    for config in blocks(("BLOCK_M", "BLOCK_N"), *product((64, 128), (32, 64, 128), (2, 3, 4), (4, 8)))
    if config.num_warps == 4 or prod(config.kwargs.values()) >= 128 * 128
]
"""Of Triton's tutorial 06 with what it keeps on Hopper."""
EXPERTS = blocks(("BLOCK_N", "BLOCK_K", "GROUP_M"), *product((64, 128, 256), (64, 128), (1, 16), (3, 4), (4, 8)))
"""Part of what vLLM's and SGLang's scripts cross; the rows of a block are decided before the launch."""
SCALED = blocks((*MNK, "GROUP_M"), *product((16, 32, 64, 128), (64, 128), (128,), (32,), (3, 5), (4, 8)))
"""Part of what SGLang's script for block-scaled fp8 products crosses."""
ROWS = blocks(("BLOCK",), *product((512, 1024, 2048, 4096, 8192), (3,), (4, 8, 16)))
PRODUCTS = {
    "M": (16, 64, 256, 1024, 4096, 8192), "N": (1024, 2048, 4096, 7168, 11008), "K": (512, 1024, 2048, 4096, 8192),
}  # fmt: skip
HEADS = {"B": (1, 4, 8), "H": (16, 32), "L": (512, 1024, 2048, 4096), "D": (64, 128)}
ROUTED = {"T": (16, 64, 256, 1024, 4096), "E": (8, 64), "TOP": (2, 8), "N": (2048, 4096, 7168), "K": (2048, 4096)}
NORMED = {"M": (512, 4096, 16384), "N": (768, 1024, 2048, 4096, 8192, 16384)}
LISTS: dict[str, tuple[list[triton.Config], Mapping[str, Sequence[int]]]] = {
    "gemm_wrapped_rows": (POINTER_TUTORIAL, PRODUCTS),
    "gemm_block_pointers": (POINTER_TUTORIAL, PRODUCTS),
    "gemm_host_descriptors": (DESCRIPTOR_TUTORIAL, PRODUCTS),
    "gemm_device_descriptors": (DESCRIPTOR_TUTORIAL, PRODUCTS),
    "attention_pointers": (ATTENTION_TUTORIAL, HEADS),
    "attention_host_descriptors": (ATTENTION_TUTORIAL, HEADS),
    "fused_moe_up": (EXPERTS, ROUTED),
    "w8a8_block_scaled": (SCALED, PRODUCTS),
    "layer_norm_forward": (ROWS, NORMED),
}
"""The corpus's name of each kernel: its list, and what each of its sizes is drawn from."""


def drawn(pool: Mapping[str, Sequence[int]], seed: str) -> tuple[Sizes, ...]:
    """:data:`SHAPES` different shapes of ``pool``, the same on every machine."""
    draw = Random(seed)
    found: list[Sizes] = []
    while len(found) < SHAPES:
        shape = {name: draw.choice(sizes) for name, sizes in pool.items()}
        if shape not in found:
            found.append(shape)
    return tuple(found)


@cache
def consumers() -> dict[str, Consumer]:
    """By name; without those whose language the installed Triton no longer has."""
    every = corpus_registry.entries()
    return {
        name: Consumer(name, replace(every[name], plain_configs=tuple(configs)), drawn(pool, f"{SEED}:{name}"))
        for name, (configs, pool) in LISTS.items()
        if name in every
    }
