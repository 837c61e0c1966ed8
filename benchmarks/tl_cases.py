"""What the plain kernels are run on: shapes, tiles that a careful user would try, references and peers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import tl_kernels
from tl_case import Case, Described, Setting, Tensor, Tensors

LOG2E = 1.4426950408889634
SMS = 132
SHARED_BYTES = 227 * 1024


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


GEMM_TILES = ((128, 256, 64), (256, 128, 64), (128, 128, 64), (128, 128, 128), (64, 256, 64), (64, 128, 64))


def gemm_settings(tiles: tuple[tuple[int, int, int], ...] = GEMM_TILES, **extra: Any) -> tuple[Setting, ...]:
    """Tiles of 16-bit operands that fit shared memory and leave an accumulator of at most 128 registers a thread."""
    return tuple(
        Setting({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **extra}, warps, stages)
        for (m, n, k), warps, stages in itertools.product(tiles, (4, 8), (3, 4, 5))
        if (m + n) * k * 2 * stages <= SHARED_BYTES and m * n <= 128 * 32 * warps and (m >= 128 or warps == 4)
    )


def _gemm_arguments(*sizes: str, **shape: int) -> Callable[[Setting], Mapping[str, Any]]:
    def arguments(setting: Setting) -> Mapping[str, Any]:
        c = setting.constants
        return {
            "a_desc": Described("a", (c["BLOCK_M"], c["BLOCK_K"])),
            "b_desc": Described("b", (c["BLOCK_N"], c["BLOCK_K"])),
            "c_desc": Described("c", (c["BLOCK_M"], c["BLOCK_N"])),
            "a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "bias_ptr": "bias",
            **{size: shape[size] for size in sizes},
        }  # fmt: skip

    return arguments


def _gemm_slot(setting: Setting) -> int:
    c = setting.constants
    return 2 * c["BLOCK_K"] * (c["BLOCK_M"] + c["BLOCK_N"])


def _gemm_reference(t: Tensors) -> Any:
    return t["a"].float() @ t["b"].float().T


def _cublas(t: Tensors) -> Callable[[], object]:
    import torch

    return lambda: torch.mm(t["a"], t["b"].T, out=t["c"])


def _gelu_reference(t: Tensors) -> Any:
    import torch

    return torch.nn.functional.gelu(_gemm_reference(t) + t["bias"].float(), approximate="tanh")


def _cublas_gelu(t: Tensors) -> Callable[[], object]:
    """cuBLASLt's own epilogue: bias and tanh-gelu in one kernel."""
    import torch

    return lambda: torch._addmm_activation(t["bias"], t["a"], t["b"].T, use_gelu=True)


def gemm(kind: str, m: int, n: int, k: int) -> Case:
    """``kind``: 2d, grouped_order, device_descriptors, persistent or bias_gelu."""
    kernel = getattr(tl_kernels, f"gemm_{kind}")
    order = {} if kind == "2d" else {"GROUP_M": 8}
    if kind == "persistent":
        order["NUM_SMS"] = SMS

    def grid(setting: Setting) -> tuple[int, int, int]:
        rows, columns = cdiv(m, setting.constants["BLOCK_M"]), cdiv(n, setting.constants["BLOCK_N"])
        if kind == "2d":
            return rows, columns, 1
        return (min(SMS, rows * columns) if kind == "persistent" else rows * columns), 1, 1

    fused = kind == "bias_gelu"
    tensors = {"a": Tensor((m, k)), "b": Tensor((n, k)), "c": Tensor((m, n), poisoned=True)}
    return Case(
        name=f"gemm_{kind} {m}x{n}x{k}",
        kernel=kernel,
        tensors={**tensors, "bias": Tensor((n,))} if fused else tensors,
        arguments=_gemm_arguments(*(("K",) if kind == "2d" else ("M", "N", "K")), M=m, N=n, K=k),
        grid=grid,
        settings=gemm_settings(GEMM_TILES if kind in ("persistent", "grouped_order") else GEMM_TILES[:3], **order),
        output="c",
        reference=_gelu_reference if fused else _gemm_reference,
        flops=2.0 * m * n * k,
        bytes=2.0 * (m * k + n * k + m * n),
        peers={"cublas": _cublas_gelu if fused else _cublas},
        slot=_gemm_slot,
        resident=lambda s: 2 * s.constants["BLOCK_M"] * s.constants["BLOCK_N"],
        family=f"gemm_{kind}",
    )


def grouped(name: str, sizes: tuple[int, ...], n: int, k: int) -> Case:
    """Rows of each expert, ragged; the row tiles' table depends on the tile and stands in the tensors."""
    offsets = (0, *itertools.accumulate(sizes))
    total = offsets[-1]

    def table(block_m: int) -> list[tuple[int, int]]:
        return [(g, row) for g, size in enumerate(sizes) for row in range(offsets[g], offsets[g] + size, block_m)]

    tensors = {
        "a": Tensor((total, k)), "b": Tensor((len(sizes) * n, k)), "c": Tensor((total, n), poisoned=True),
        "offsets": Tensor((len(offsets),), "int32", offsets),
    }  # fmt: skip
    for block_m in (128, 256):
        groups, rows = zip(*table(block_m), strict=True)
        tensors[f"group{block_m}"] = Tensor((len(groups),), "int32", groups)
        tensors[f"row{block_m}"] = Tensor((len(rows),), "int32", rows)

    def arguments(setting: Setting) -> Mapping[str, Any]:
        c = setting.constants
        return {
            "a_desc": Described("a", (c["BLOCK_M"], c["BLOCK_K"])),
            "b_desc": Described("b", (c["BLOCK_N"], c["BLOCK_K"])),
            "c_ptr": "c", "tile_group_ptr": f"group{c['BLOCK_M']}", "tile_row_ptr": f"row{c['BLOCK_M']}",
            "offsets_ptr": "offsets", "N": n, "K": k,
        }  # fmt: skip

    def reference(t: Tensors) -> Any:
        import torch

        experts = t["b"].view(len(sizes), n, k)
        return torch.cat(
            [t["a"][s:e].float() @ experts[g].float().T for g, (s, e) in enumerate(itertools.pairwise(offsets))]
        )

    def cublas(t: Tensors) -> Callable[[], object]:
        import torch

        experts = t["b"].view(len(sizes), n, k).transpose(1, 2)
        return lambda: torch._grouped_mm(t["a"], experts, offs=t["offsets"][1:], out_dtype=torch.bfloat16)

    return Case(
        name=f"grouped_gemm {name} {n}x{k}",
        kernel=tl_kernels.grouped_gemm,
        tensors=tensors,
        arguments=arguments,
        grid=lambda s: (cdiv(n, s.constants["BLOCK_N"]), len(table(s.constants["BLOCK_M"])), 1),
        settings=gemm_settings(GEMM_TILES[:3]),
        output="c",
        reference=reference,
        flops=2.0 * total * n * k,
        bytes=2.0 * (total * k + len(sizes) * n * k + total * n),
        peers={"torch._grouped_mm": cublas},
        slot=_gemm_slot,
        resident=lambda s: s.constants["BLOCK_M"] * s.constants["BLOCK_N"],
        family="grouped_gemm",
    )


def attention_settings(d: int, causal: bool) -> tuple[Setting, ...]:
    return tuple(
        Setting({"D": d, "BLOCK_M": m, "BLOCK_N": n, "CAUSAL": causal}, warps, stages)
        for m, n, warps, stages in itertools.product((64, 128), (64, 128), (4, 8), (2, 3, 4))
        if m % n == 0 or not causal
        if 2 * d * (m + 2 * n * stages) <= SHARED_BYTES and (m >= 128 or warps == 4)
    )


def attention(b: int, h: int, length: int, d: int, causal: bool) -> Case:
    rows = b * h * length

    def arguments(setting: Setting) -> Mapping[str, Any]:
        m, n = setting.constants["BLOCK_M"], setting.constants["BLOCK_N"]
        return {
            "q_desc": Described("q", (m, d)), "k_desc": Described("k", (n, d)), "v_desc": Described("v", (n, d)),
            "o_desc": Described("o", (m, d)), "L": length, "scale": LOG2E / math.sqrt(d),
        }  # fmt: skip

    def reference(t: Tensors) -> Any:
        import torch

        q, k, v = (t[x].view(b * h, length, d).float() for x in "qkv")
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril() if causal else None
        heads = []
        for head in range(b * h):
            scores = q[head] @ k[head].T / math.sqrt(d)
            heads.append(torch.softmax(scores if mask is None else scores.masked_fill(~mask, -math.inf), -1) @ v[head])
        return torch.cat(heads)

    def cudnn(t: Tensors) -> Callable[[], object]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (t[x].view(b, h, length, d) for x in "qkv")

        def launch() -> object:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return launch

    return Case(
        name=f"attention {b},{h},{length},{d}{' causal' if causal else ''}",
        kernel=tl_kernels.attention,
        tensors={**{x: Tensor((rows, d)) for x in "qkv"}, "o": Tensor((rows, d), poisoned=True)},
        arguments=arguments,
        grid=lambda s: (length // s.constants["BLOCK_M"], b * h, 1),
        settings=attention_settings(d, causal),
        output="o",
        reference=reference,
        flops=4.0 * rows * length * d * (0.5 if causal else 1.0),
        bytes=8.0 * rows * d,
        peers={"cudnn": cudnn},
        slot=lambda s: 4 * d * s.constants["BLOCK_N"],
        resident=lambda s: 4 * d * s.constants["BLOCK_M"],
        family=f"attention D {d}{' causal' if causal else ''}",
    )


def layer_norm(rows: int, n: int) -> Case:
    def reference(t: Tensors) -> Any:
        import torch

        return torch.nn.functional.layer_norm(t["x"].double(), (n,), t["w"].double(), t["b"].double(), 1e-5)

    return Case(
        name=f"layer_norm {rows}x{n}",
        kernel=tl_kernels.layer_norm,
        tensors={"x": Tensor((rows, n)), "w": Tensor((n,)), "b": Tensor((n,)), "y": Tensor((rows, n), poisoned=True)},
        arguments=lambda _: {"x_ptr": "x", "w_ptr": "w", "b_ptr": "b", "y_ptr": "y", "N": n, "eps": 1e-5},
        grid=lambda _: (rows, 1, 1),
        settings=tuple(
            Setting({"BLOCK": block}, warps, 3) for block in (1024, 2048, 4096) if block <= n for warps in (4, 8)
        ),
        output="y",
        reference=reference,
        flops=8.0 * rows * n,
        bytes=4.0 * rows * n,
        family="layer_norm",
    )


def softmax(rows: int, n: int) -> Case:
    block = 1 << (n - 1).bit_length()
    return Case(
        name=f"softmax {rows}x{n}",
        kernel=tl_kernels.softmax,
        tensors={"x": Tensor((rows, n)), "y": Tensor((rows, n), poisoned=True)},
        arguments=lambda _: {"x_ptr": "x", "y_ptr": "y", "ROWS": rows, "N": n},
        grid=lambda _: (SMS * 4, 1, 1),
        settings=tuple(Setting({"BLOCK": block, "STAGES": s}, warps, s) for warps in (4, 8) for s in (2, 4)),
        output="y",
        reference=lambda t: t["x"].double().softmax(-1),
        flops=5.0 * rows * n,
        bytes=4.0 * rows * n,
        family="softmax",
    )


def vector_add(n: int) -> Case:
    return Case(
        name=f"vector_add {n}",
        kernel=tl_kernels.vector_add,
        tensors={"x": Tensor((n,)), "y": Tensor((n,)), "z": Tensor((n,), poisoned=True)},
        arguments=lambda _: {"x_ptr": "x", "y_ptr": "y", "z_ptr": "z", "N": n},
        grid=lambda s: (cdiv(n, s.constants["BLOCK"]), 1, 1),
        settings=tuple(Setting({"BLOCK": block}, warps, 3) for block in (1024, 4096) for warps in (4, 8)),
        output="z",
        reference=lambda t: t["x"].double() + t["y"].double(),
        flops=1.0 * n,
        bytes=6.0 * n,
        family="vector_add",
    )


GEMM_SHAPES = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096), (512, 8192, 4096),
    (4096, 4096, 14336),
)  # fmt: skip
RAGGED = (512, 1311, 96, 2048, 777, 1024, 1, 2423)
"""Rows of eight experts: whole tiles, half ones, one row."""


def all_cases() -> tuple[Case, ...]:
    """In the order in which they are worth having when time runs out."""
    return (
        *(gemm("persistent", *shape) for shape in GEMM_SHAPES),
        *(gemm("grouped_order", *shape) for shape in GEMM_SHAPES),
        attention(4, 16, 4096, 128, False),
        attention(4, 16, 4096, 128, True),
        attention(4, 16, 4096, 64, False),
        attention(4, 16, 4096, 64, True),
        gemm("bias_gelu", 4096, 4096, 4096),
        gemm("bias_gelu", 8192, 14336, 4096),
        gemm("device_descriptors", 4096, 4096, 4096),
        gemm("2d", 4096, 4096, 4096),
        grouped("8 ragged", RAGGED, 4096, 4096),
        grouped("8x4096", (4096,) * 8, 4096, 7168),
        layer_norm(8192, 4096),
        softmax(8192, 4096),
        vector_add(1 << 26),
    )
