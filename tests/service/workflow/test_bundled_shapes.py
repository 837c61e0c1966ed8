from __future__ import annotations

from warpplan.service.workflow.bundled_shapes import LAYERS, TOKENS, bundled
from warpplan.service.workflow.request import check


def weights(model: str) -> dict[str, tuple[int, int]]:
    return {layer.name: (layer.n, layer.k) for layer in LAYERS if layer.model == model}


def test_layers_have_the_published_parameter_counts() -> None:
    """The linear layers, repeated over the blocks, with the embeddings, are the models' published sizes."""
    for model, blocks, published in (("Llama-3-8B", 32, 8.03e9), ("Llama-3-70B", 80, 70.55e9)):
        layers = weights(model)
        n, k = layers.pop("lm_head")
        total = 2 * n * k + blocks * sum(n * k for n, k in layers.values())
        assert abs(total / published - 1) < 0.002


def test_deepseek_v3_sizes() -> None:
    assert weights("DeepSeek-V3") == {
        "q_a": (1536, 7168),
        "q_b": (24576, 1536),
        "kv_a": (576, 7168),
        "kv_b": (32768, 512),
        "attention_out": (7168, 16384),
        "dense_gate_up": (36864, 7168),
        "dense_down": (7168, 18432),
    }


def test_every_bundled_shape_is_a_problem() -> None:
    problems = [check(item)[0] for _, item in bundled()]
    assert len(problems) == len(LAYERS) * len(TOKENS) == 102
    assert {p.shape["M"] for p in problems} == {1, 16, 128, 1024, 4096, 8192}
    assert all(item.name for _, item in bundled())
