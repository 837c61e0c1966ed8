"""Kernels of many kinds in the styles that people write, each with what it is compiled for. Needs no torch, no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import zoo_attention as attention
import zoo_products as products
import zoo_rows as rows
from triton.compiler import ASTSource


@dataclass(frozen=True, eq=False)
class Specimen:
    """``types`` names each run-time parameter's: "bf16[128,64]" a host-made descriptor's box, "*bf16" an aligned
    pointer, "i32:16" a multiple of 16; plain ``i32`` where nothing is said. ``loads`` says whether the kernel loads by
    TMA in a loop with a product: what can be specialised."""

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    loads: bool
    warps: int = 4
    stages: int = 3

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


TILE = {"BM": 128, "BN": 128, "BK": 64}
AB = {"a_desc": "bf16[128,64]", "b_desc": "bf16[128,64]"}
ABC = {**AB, "c_desc": "bf16[128,128]"}
SIZES = {"M": "i32:16", "N": "i32:16", "K": "i32:16"}
QKV = dict.fromkeys(("q_desc", "k_desc", "v_desc"), "bf16[128,64]")
HEADS = {"BM": 128, "BN": 128, "D": 64}

ZOO: dict[str, Specimen] = {
    "pointers": Specimen(
        products.pointers,
        {
            "a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", **SIZES, "stride_am": "i32:16", "stride_ak": "=1",
            "stride_bk": "i32:16", "stride_bn": "=1", "stride_cm": "i32:16", "stride_cn": "=1",
        },
        {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8, "ACTIVATION": "leaky_relu"},
        loads=False,
    ),
    "block_pointers": Specimen(
        products.block_pointers, {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16", **SIZES}, TILE, loads=False
    ),
    "persistent_flattened": Specimen(products.persistent_flattened, ABC, {**TILE, "NUM_SMS": 132}, loads=True),
    "persistent_split_epilogue": Specimen(
        products.persistent_split_epilogue, {**AB, "c_desc": "bf16[128,64]"}, {**TILE, "NUM_SMS": 132}, loads=True,
    ),
    "stream_k": Specimen(
        products.stream_k, {**AB, "c_ptr": "*fp32", "lock_ptr": "*i32"}, {**TILE, "SMS": 132}, loads=True
    ),
    "split_k": Specimen(products.split_k, {**AB, "c_ptr": "*fp32"}, {**TILE, "PARTS": 4}, loads=True),
    "fp8_scaled": Specimen(
        products.fp8_scaled,
        {
            "a_desc": "fp8e4nv[128,128]", "b_desc": "fp8e4nv[128,128]", "a_scale_ptr": "*fp32", "b_scale_ptr": "*fp32",
            "c_ptr": "*bf16",
        },
        {**TILE, "BK": 128}, loads=True,
    ),
    "int8_weights": Specimen(
        products.int8_weights, {**ABC, "b_desc": "i8[128,64]", "scale_ptr": "*fp32"}, TILE, loads=True
    ),
    "batched": Specimen(
        products.batched, {"a_desc": "bf16[1,128,64]", "b_desc": "bf16[1,64,128]", "c_desc": "bf16[1,128,128]"}, TILE,
        loads=True,
    ),
    "while_loop": Specimen(products.while_loop, ABC, TILE, loads=True),
    "dual_swiglu": Specimen(
        products.dual_swiglu,
        {
            "x_desc": "bf16[128,64]", "gate_desc": "bf16[64,64]", "up_desc": "bf16[64,64]", "y_desc": "bf16[128,64]",
        },
        {**TILE, "BN": 64}, loads=True,
    ),
    "convolution": Specimen(
        products.convolution, {"x_desc": "bf16[1,1,64,64]", "w_desc": "bf16[64,128]", "y_desc": "bf16[64,128]"},
        {**TILE, "BM": 64, "R": 3}, loads=True,
    ),
    "grouped_tutorial": Specimen(
        products.grouped_tutorial, {"a_ptrs": "*i64", "b_ptrs": "*i64", "c_ptrs": "*i64", "sizes_ptr": "*i32"},
        {**TILE, "SMS": 132}, loads=True,
    ),
    "gathered_experts": Specimen(
        products.gathered_experts,
        {
            "a_ptr": "*bf16", "b_desc": "bf16[128,64]", "c_ptr": "*bf16", "token_ptr": "*i32", "expert_ptr": "*i32",
            "count_ptr": "*i32", "N": "i32:16", "K": "i32:16",
        },
        TILE, loads=True,
    ),
    "tutorial_causal": Specimen(
        attention.tutorial_causal, {**QKV, "o_desc": "bf16[128,64]", "m_ptr": "*fp32", "scale": "fp32"}, HEADS,
        loads=True,
    ),
    "alibi_and_bias": Specimen(
        attention.alibi_and_bias,
        {**QKV, "bias_ptr": "*bf16", "slope_ptr": "*fp32", "o_desc": "bf16[128,64]", "L": "i32:16", "scale": "fp32"},
        HEADS, loads=True, warps=8,
    ),
    "flash_decoding": Specimen(
        attention.flash_decoding,
        {
            "q_ptr": "*bf16", "k_desc": "bf16[128,64]", "v_desc": "bf16[128,64]", "o_ptr": "*fp32", "lse_ptr": "*fp32",
            "scale": "fp32",
        },
        {**HEADS, "BM": 64}, loads=True,
    ),
    "linear_attention": Specimen(
        attention.linear_attention, dict.fromkeys(("q_desc", "k_desc", "v_desc", "o_desc"), "bf16[64,64]"),
        {"BM": 64, "D": 64}, loads=True,
    ),
    "dropout": Specimen(
        rows.dropout, {"x_ptr": "*fp32", "y_ptr": "*fp32", "p": "fp32"}, {"BLOCK": 1024}, loads=False
    ),
    "cross_entropy": Specimen(
        rows.cross_entropy, {"logits_ptr": "*bf16", "label_ptr": "*i64", "loss_ptr": "*fp32"}, {"BLOCK": 4096},
        loads=False,
    ),
    "rms_norm": Specimen(
        rows.rms_norm, {"x_ptr": "*bf16", "w_ptr": "*bf16", "y_ptr": "*bf16", "eps": "fp32"}, {"BLOCK": 4096},
        loads=False,
    ),
    "swiglu": Specimen(rows.swiglu, {"x_ptr": "*bf16", "y_ptr": "*bf16"}, {"BLOCK": 1024}, loads=False),
    "scan": Specimen(rows.scan, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024}, loads=False),
    "histogram": Specimen(
        rows.histogram, {"x_ptr": "*i32", "counts_ptr": "*i32"}, {"BLOCK": 1024, "BINS": 256}, loads=False
    ),
    "transposed_copy": Specimen(
        rows.transposed_copy, {"x_desc": "bf16[64,64]", "y_desc": "bf16[64,64]"}, {"BLOCK": 64}, loads=False
    ),
}  # fmt: skip

if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
    del ZOO["block_pointers"]  # gone from the language


def source(name: str, **changed: Any) -> ASTSource:
    """What Triton compiles for ``ZOO[name]``, with other constants where they are ``changed``."""
    specimen = ZOO[name]
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for index, parameter in enumerate(specimen.kernel.params):
        kind = "constexpr" if parameter.is_constexpr else specimen.types.get(parameter.name, "i32")
        if parameter.is_constexpr:
            constants[(index,)] = changed.get(parameter.name, specimen.constants[parameter.name])
        elif kind.startswith("="):
            kind, constants[(index,)] = "constexpr", int(kind[1:])
        elif kind.endswith("]"):
            kind = f"tensordesc<{kind}>"
        elif kind.startswith("*") or kind.endswith(":16"):
            kind, attributes[(index,)] = kind.removesuffix(":16"), [["tt.divisibility", 16]]
        signature[parameter.name] = kind
    return ASTSource(specimen.kernel, signature, constants, attributes)
