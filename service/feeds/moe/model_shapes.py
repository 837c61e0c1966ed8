"""Public mixture-of-experts models: the four sizes that a tuning table depends on, and how a checkpoint is quantised.

Each line is from the ``config.json`` that is published with the model's weights: ``n_routed_experts``, ``num_experts``
or ``num_local_experts``; ``hidden_size``; ``moe_intermediate_size`` or ``intermediate_size``; ``num_experts_per_tok``
or ``top_k``; ``n_shared_experts`` where those have a routed expert's size. Only numbers are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpplan.planner.errors import InvalidInput, UnknownName
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme

BF16, BLOCK_FP8 = "bfloat16", "fp8_w8a8_block"
MOST_SIZE = 1 << 20
"""Of any size that is given by hand: far beyond every model, far below what a 32-bit index of a tile can hold."""


@dataclass(frozen=True)
class MoeModel:
    """``scheme`` is the published checkpoint's; ``shared_experts`` those that SGLang may run as further routed ones."""

    name: str
    experts: int
    hidden: int
    intermediate: int
    top_k: int
    scheme: str = BF16
    shared_experts: int = 0


MODELS = {
    model.name: model
    for model in (
        # deepseek-ai/DeepSeek-V2-Lite, -V2, -V3 (-R1, -V3.1 and -V3.2 alike): config.json
        MoeModel("deepseek-v2-lite", 64, 2048, 1408, 6),
        MoeModel("deepseek-v2", 160, 5120, 1536, 6),
        MoeModel("deepseek-v3", 256, 7168, 2048, 8, BLOCK_FP8, 1),
        MoeModel("deepseek-r1", 256, 7168, 2048, 8, BLOCK_FP8, 1),
        # moonshotai/Kimi-K2-Instruct: config.json
        MoeModel("kimi-k2", 384, 7168, 2048, 8, BLOCK_FP8, 1),
        # Qwen/Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B, Qwen3-30B-A3B, -235B-A22B, -Coder-480B-A35B, -Next-80B-A3B: the same
        MoeModel("qwen1.5-moe-a2.7b", 60, 2048, 1408, 4),
        MoeModel("qwen2-57b-a14b", 64, 3584, 2560, 8),
        MoeModel("qwen3-30b-a3b", 128, 2048, 768, 8),
        MoeModel("qwen3-235b-a22b", 128, 4096, 1536, 8),
        MoeModel("qwen3-coder-480b-a35b", 160, 6144, 2560, 8),
        MoeModel("qwen3-next-80b-a3b", 512, 2048, 512, 10),
        # mistralai/Mixtral-8x7B-v0.1, -8x22B-v0.1: config.json
        MoeModel("mixtral-8x7b", 8, 4096, 14336, 2),
        MoeModel("mixtral-8x22b", 8, 6144, 16384, 2),
        # meta-llama/Llama-4-Scout-17B-16E, -Maverick-17B-128E: config.json, text_config
        MoeModel("llama-4-scout", 16, 5120, 8192, 1),
        MoeModel("llama-4-maverick", 128, 5120, 8192, 1),
        # zai-org/GLM-4.5, -4.5-Air: config.json
        MoeModel("glm-4.5", 160, 5120, 1536, 8, BF16, 1),
        MoeModel("glm-4.5-air", 128, 4096, 1408, 8, BF16, 1),
        # openai/gpt-oss-20b, -120b: config.json (their own checkpoints are mxfp4, which these tables do not serve)
        MoeModel("gpt-oss-20b", 32, 2880, 2880, 4),
        MoeModel("gpt-oss-120b", 128, 2880, 2880, 4),
        # MiniMaxAI/MiniMax-Text-01, -M2: config.json
        MoeModel("minimax-text-01", 32, 6144, 9216, 2),
        MoeModel("minimax-m2", 256, 3072, 1536, 8, BLOCK_FP8),
        # microsoft/Phi-3.5-MoE-instruct, ai21labs/Jamba-v0.1, databricks/dbrx-base, xai-org/grok-1: config.json
        MoeModel("phi-3.5-moe", 16, 4096, 6400, 2),
        MoeModel("jamba-v0.1", 16, 4096, 14336, 2),
        MoeModel("dbrx", 16, 6144, 10752, 4),
        MoeModel("grok-1", 8, 6144, 32768, 2),
        # baidu/ERNIE-4.5-21B-A3B, -300B-A47B; tencent/Hunyuan-A13B; allenai/OLMoE-1B-7B: config.json
        MoeModel("ernie-4.5-21b-a3b", 64, 2560, 1536, 6),
        MoeModel("ernie-4.5-300b-a47b", 64, 8192, 3584, 8),
        MoeModel("hunyuan-a13b", 64, 4096, 3072, 8),
        MoeModel("olmoe-1b-7b", 64, 2048, 1024, 8),
    )
}


@dataclass(frozen=True)
class MoeLayer:
    """A layer as one rank computes it: ``intermediate`` is its share of each expert."""

    model: str
    experts: int
    hidden: int
    intermediate: int
    top_k: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.experts, self.hidden, self.intermediate, self.top_k


def model_named(text: str) -> MoeModel:
    """The model called ``text``, or the sizes that it spells: "experts=256 hidden=7168 intermediate=2048 top-k=8".

    Raises :class:`UnknownName` listing the known models, :class:`InvalidInput` for sizes that are missing or absurd.
    """
    if "=" not in text:
        name = text.strip().lower()
        if name not in MODELS:
            raise UnknownName("model", text, MODELS)
        return MODELS[name]
    pairs = [word.partition("=")[::2] for word in re.split(r"[\s,]+", text.strip())]
    words = dict(pairs)
    wanted = ("experts", "hidden", "intermediate", "top-k")
    missing = [name for name in wanted if name not in words]
    unknown = [name for name in words if name not in wanted]
    if missing or unknown:
        said = f"lacks {missing[0]}" if missing else f"has {unknown[0]!r}"
        raise InvalidInput(
            f"--model {text!r} {said}: expected experts=, hidden=, intermediate= and top-k=", field="model", value=text
        )
    if len(pairs) > len(words):
        twice = next(name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1)
        values = " and ".join(value for name, value in pairs if name == twice)
        raise InvalidInput(f"--model gives {twice} twice: {values}; give one", field=twice, value=text)
    sizes = []
    for name in wanted:
        if not is_whole(words[name]) or not 1 <= int(words[name]) <= MOST_SIZE:
            raise InvalidInput(
                f"--model {name}={words[name]}: expected a whole number from 1 to {MOST_SIZE}",
                field=name, value=words[name], limit=MOST_SIZE,
            )  # fmt: skip
        sizes.append(int(words[name]))
    experts, hidden, intermediate, top_k = sizes
    if top_k > experts:
        raise InvalidInput(
            f"--model top-k={top_k}: a token cannot go to more than the {experts} experts",
            field="top-k", value=top_k, limit=experts,
        )  # fmt: skip
    return MoeModel("", experts, hidden, intermediate, top_k)


def is_whole(text: str) -> bool:
    """Whether ``text`` is a whole number in ASCII digits, short enough for ``int``: "²" is a digit for ``isdigit``."""
    return text.isascii() and text.isdigit() and len(text) < 100


def layer_of(model: MoeModel, tp: int, scheme: MoeScheme) -> MoeLayer:
    """One of ``tp`` ranks' layer. Raises :class:`InvalidInput` where the experts do not divide into so many shares, or
    a share is no whole number of quantisation blocks, which the consumers refuse to load."""
    if tp < 1 or model.intermediate % tp:
        raise InvalidInput(
            f"--tp {tp}: {model.intermediate} columns an expert do not divide into {tp} shares", field="tp", value=tp
        )
    share = model.intermediate // tp
    if scheme.block is not None and share % scheme.block[0]:
        raise InvalidInput(
            f"--tp {tp}: {share} columns an expert and rank are no multiple of the quantisation block's "
            f"{scheme.block[0]}: give a smaller degree, or another --dtype",
            field="tp", value=tp, limit=scheme.block[0],
        )  # fmt: skip
    return MoeLayer(model.name, model.experts, model.hidden, share, model.top_k)


def with_shared(layer: MoeLayer, shared: int) -> MoeLayer:
    """``layer`` with ``shared`` experts that every token goes to run as further routed ones."""
    return MoeLayer(layer.model, layer.experts + shared, layer.hidden, layer.intermediate, layer.top_k + shared)
