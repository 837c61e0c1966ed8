"""The GEMMs of published language models at common token counts: what ``make run`` plans.

Sizes follow from each model's ``config.json`` on the Hugging Face hub: meta-llama/Meta-Llama-3-8B,
meta-llama/Meta-Llama-3-70B and deepseek-ai/DeepSeek-V3. A linear layer of ``K`` inputs and ``N`` outputs over ``M``
tokens is one GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.kernels import registry
from warpplan.service.workflow.request import Item

KERNEL = "gemm"
TOKENS = (1, 16, 128, 1024, 4096, 8192)


@dataclass(frozen=True)
class Layer:
    """One linear layer: ``n`` outputs, ``k`` inputs."""

    model: str
    name: str
    n: int
    k: int


def _llama(
    model: str, *, hidden: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int
) -> tuple[Layer, ...]:
    """Grouped-query attention with fused QKV, SwiGLU with gate and up fused (``LlamaForCausalLM``)."""
    head = hidden // heads
    return (
        Layer(model, "qkv", (heads + 2 * kv_heads) * head, hidden),
        Layer(model, "attention_out", hidden, heads * head),
        Layer(model, "gate_up", 2 * intermediate, hidden),
        Layer(model, "down", hidden, intermediate),
        Layer(model, "lm_head", vocabulary, hidden),
    )


def _deepseek_v3() -> tuple[Layer, ...]:
    """Multi-head latent attention and the first three, dense feed-forward layers (``DeepseekV3ForCausalLM``).

    hidden_size 7168, num_attention_heads 128, q_lora_rank 1536, kv_lora_rank 512, qk_nope_head_dim 128,
    qk_rope_head_dim 64, v_head_dim 128, intermediate_size 18432.
    """
    model, hidden, heads, q_rank, kv_rank, nope, rope, v, intermediate = (
        "DeepSeek-V3", 7168, 128, 1536, 512, 128, 64, 128, 18432,
    )  # fmt: skip
    return (
        Layer(model, "q_a", q_rank, hidden),
        Layer(model, "q_b", heads * (nope + rope), q_rank),
        Layer(model, "kv_a", kv_rank + rope, hidden),
        Layer(model, "kv_b", heads * (nope + v), kv_rank),
        Layer(model, "attention_out", hidden, heads * v),
        Layer(model, "dense_gate_up", 2 * intermediate, hidden),
        Layer(model, "dense_down", hidden, intermediate),
    )


LAYERS = (
    *_llama("Llama-3-8B", hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocabulary=128256),
    *_llama("Llama-3-70B", hidden=8192, heads=64, kv_heads=8, intermediate=28672, vocabulary=128256),
    *_deepseek_v3(),
)


def bundled() -> Iterator[tuple[int, Item]]:
    """Each layer at each token count, as a numbered item."""
    declared = registry.kernel(KERNEL).declaration
    number = 0
    for layer in LAYERS:
        for tokens in TOKENS:
            number += 1
            shape = tuple(declared.named((tokens, layer.n, layer.k)).items())
            yield number, Item(declared.name, shape, name=f"{layer.model} {layer.name}")
