"""The list of ``make bench-gemm-many``: matrix products of public model families, drawn once and kept in a file.

    python benchmarks/many_shapes.py    # writes gemm_many_shapes.json as it was drawn

A model's layers are (inputs, outputs); ``tokens`` rows pass through one. Of a linear layer with weight W [out, in] the
three products are forward X·Wᵀ (``nt``), the gradient of the input dY·W (``nn``) and that of the weight dYᵀ·X (``tn``).
Sizes are modelled on those of public models. The draw takes each stratum (kind of model, product, tokens)
in turn, so that every prefix of the list has about the same mixture; a third of each stratum is for training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemm_shapes import HELDOUT, TRAIN
from kernel_cases.bench_rows import BenchRow, make_row

LIST = Path(__file__).parent / "gemm_many_shapes.json"
TABLE = "gemm_many"
SEED = 20261123
COUNTS = {"dense": 432, "moe": 312, "vision": 264, "recommender": 192}
"""Shapes of each kind of model: 1,200 in all."""
TOKENS = ((1, 16), (17, 256), (257, 1024), (1025, 4096), (4097, 16384))
"""Ranges of the number of tokens; the first is decoding, which has no backward products."""
MAX_FLOPS = 1e13
"""A shape above this, 14 ms on an H200, would take several seconds to compare: it is drawn anew."""
TRAIN_EVERY = 3
PRODUCTS = {"forward": "nt", "dgrad": "nn", "wgrad": "tn"}
"""The layout of each product's operands (:data:`warpplan.kernels.gemm.space.LAYOUTS`)."""

Layers = tuple[tuple[int, int], ...]


def transformer(width: int, qkv: int, heads: int, hidden: int, gated: bool, vocabulary: int = 0) -> Layers:
    """(inputs, outputs) of attention in and out, feed-forward up (gate and up together where ``gated``) and down, and
    the head; ``heads`` is the width of all query heads."""
    layers = ((width, qkv), (heads, width), (width, hidden * (2 if gated else 1)), (hidden, width))
    return (*layers, (width, vocabulary)) if vocabulary else layers


FAMILIES: dict[str, dict[str, Layers]] = {
    "dense": {
        "GPT-2": transformer(768, 2304, 768, 3072, False, 50257),
        "GPT-2 XL": transformer(1600, 4800, 1600, 6400, False, 50257),
        "GPT-3 175B": transformer(12288, 36864, 12288, 49152, False),
        "Llama 2 7B": transformer(4096, 12288, 4096, 11008, True, 32000),
        "Llama 2 13B": transformer(5120, 15360, 5120, 13824, True, 32000),
        "Llama 3 8B": transformer(4096, 6144, 4096, 14336, True, 128256),
        "Llama 3 70B": transformer(8192, 10240, 8192, 28672, True, 128256),
        "Llama 3 405B": transformer(16384, 18432, 16384, 53248, True),
        "Llama 3.2 1B": transformer(2048, 3072, 2048, 8192, True, 128256),
        "Llama 3.2 3B": transformer(3072, 5120, 3072, 8192, True, 128256),
        "Qwen 2.5 0.5B": transformer(896, 1152, 896, 4864, True, 151936),
        "Qwen 2.5 1.5B": transformer(1536, 2048, 1536, 8960, True, 151936),
        "Qwen 2.5 7B": transformer(3584, 4608, 3584, 18944, True, 152064),
        "Qwen 2.5 32B": transformer(5120, 7168, 5120, 27648, True, 152064),
        "Qwen 2.5 72B": transformer(8192, 10240, 8192, 29568, True, 152064),
        "Gemma 2 2B": transformer(2304, 4096, 2048, 9216, True, 256000),
        "Gemma 2 9B": transformer(3584, 8192, 4096, 14336, True, 256000),
        "Gemma 2 27B": transformer(4608, 8192, 4096, 36864, True, 256000),
        "Phi-2": transformer(2560, 7680, 2560, 10240, False, 51200),
        "Phi-3 mini": transformer(3072, 9216, 3072, 8192, True, 32064),
        "Falcon 7B": transformer(4544, 4672, 4544, 18176, False, 65024),
        "BERT base": transformer(768, 2304, 768, 3072, False, 30522),
        "BERT large": transformer(1024, 3072, 1024, 4096, False, 30522),
    },
    "moe": {
        "Mixtral 8x7B": (*transformer(4096, 6144, 4096, 14336, True), (4096, 8)),
        "Mixtral 8x22B": (*transformer(6144, 8192, 6144, 16384, True), (6144, 8)),
        "DeepSeek-V3": (
            (7168, 1536), (1536, 24576), (7168, 576), (512, 32768), (16384, 7168), (7168, 4096), (2048, 7168),
            (7168, 36864), (18432, 7168), (7168, 256),
        ),
        "DeepSeek MoE 16B": (*transformer(2048, 6144, 2048, 1408, True), (2048, 21888), (10944, 2048), (2048, 64)),
        "Qwen 1.5 MoE": (*transformer(2048, 6144, 2048, 1408, True), (2048, 11264), (5632, 2048), (2048, 60)),
        "Qwen 3 30B-A3B": (*transformer(2048, 5120, 4096, 768, True), (2048, 128)),
        "Qwen 3 235B-A22B": (*transformer(4096, 9216, 8192, 1536, True), (4096, 128)),
        "DBRX": (*transformer(6144, 8192, 6144, 10752, True), (6144, 16)),
        "gpt-oss 120B": (*transformer(2880, 5120, 4096, 2880, True), (2880, 128)),
        "OLMoE": (*transformer(2048, 6144, 2048, 1024, True), (2048, 64)),
        "Llama 4 Scout": (*transformer(5120, 7168, 5120, 8192, True), (5120, 16)),
    },
    "vision": {
        "ViT-B/16": (*transformer(768, 2304, 768, 3072, False), (768, 1000)),
        "ViT-L/14": (*transformer(1024, 3072, 1024, 4096, False), (588, 1024)),
        "ViT-H/14": (*transformer(1280, 3840, 1280, 5120, False), (588, 1280)),
        "SigLIP So400m": transformer(1152, 3456, 1152, 4304, False),
        "DINOv2 g": transformer(1536, 4608, 1536, 4096, True),
        "Swin-B": tuple(
            layer for width in (128, 256, 512, 1024) for layer in transformer(width, 3 * width, width, 4 * width, False)
        ),
        "ConvNeXt-B": tuple(pair for c in (128, 256, 512, 1024) for pair in ((c, 4 * c), (4 * c, c))),
        "ResNet-50": (
            (64, 64), (64, 256), (256, 64), (256, 128), (128, 512), (512, 128), (512, 256), (256, 1024), (1024, 256),
            (1024, 512), (512, 2048), (2048, 512), (2048, 1000),
        ),
        "Stable Diffusion": tuple(
            pair for c in (320, 640, 1280) for pair in ((c, c), (768, c), (c, 8 * c), (4 * c, c))
        ),
        "DiT-XL/2": (*transformer(1152, 3456, 1152, 4608, False), (1152, 6912)),
        "FLUX.1": ((3072, 9216), (3072, 3072), (3072, 12288), (12288, 3072), (3072, 21504), (15360, 3072)),
    },
    "recommender": {
        "DLRM": ((13, 512), (512, 256), (256, 128), (479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)),
        "DLRM-DCNv2": ((3456, 512), (512, 3456), (3456, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)),
        "Wide & Deep": ((1200, 1024), (1024, 512), (512, 256)),
        "YouTube DNN": ((1024, 2048), (2048, 1024), (1024, 512), (512, 256)),
        "DeepFM": ((624, 400), (400, 400), (400, 1)),
        "DLRM-RMC3": ((2560, 512), (512, 32), (512, 128)),
        "NCF": ((256, 256), (256, 128)),
    },
}  # fmt: skip
"""Layers of public models by kind and name; products of a mixture's experts are those of one expert."""


@dataclass(frozen=True)
class DrawnShape:
    """One shape of the list; ``sizes`` are M, N and K of the product, ``stratum`` its range of tokens."""

    kind: str
    model: str
    product: str
    tokens: int
    sizes: tuple[int, int, int]
    split: str

    @property
    def row(self) -> BenchRow:
        """The shape as benchmarks of kernels take it."""
        return make_row(TABLE, "gemm", self.sizes, "bfloat16", self.split, layout=PRODUCTS[self.product])

    @property
    def stored(self) -> tuple[int, int, int]:
        """Elements in a row of A, of B and of C as they are stored."""
        m, n, k = self.sizes
        a, b = PRODUCTS[self.product]
        return (k if a == "n" else m), (k if b == "t" else n), n

    @property
    def odd_width(self) -> bool:
        """Whether a row of A, B or C is no multiple of 16 bytes: TMA cannot address it, and cuBLAS is several times
        slower."""
        return any(elements % 8 for elements in self.stored)

    @property
    def odd_pitch(self) -> bool:
        """Whether a row of A, B or C is no multiple of 128 bytes, a cache line."""
        return any(elements % 64 for elements in self.stored)


def sizes_of(product: str, tokens: int, inputs: int, outputs: int) -> tuple[int, int, int]:
    """M, N and K of a layer's product."""
    return {
        "forward": (tokens, outputs, inputs), "dgrad": (tokens, inputs, outputs), "wgrad": (outputs, inputs, tokens),
    }[product]  # fmt: skip


def strata(kind: str) -> Iterator[tuple[str, tuple[int, int], int]]:
    """(product, range of tokens, shapes) of each stratum of a kind."""
    found = [(product, span) for product in PRODUCTS for span in TOKENS if product == "forward" or span != TOKENS[0]]
    for index, (product, span) in enumerate(found):
        yield product, span, COUNTS[kind] * (index + 1) // len(found) - COUNTS[kind] * index // len(found)


def number_of_tokens(random_: random.Random, low: int, high: int) -> int:
    """Two in three are powers of two or one and a half of them, as batches are; the others are any number."""
    usual = [t for p in range(15) for t in (2**p, 3 * 2**p) if low <= t <= high]
    return random_.choice(usual) if random_.random() < 2 / 3 else round(low * (high / low) ** random_.random())


def draw() -> list[DrawnShape]:
    """The list, each shape once and none of those that the GEMM's time model was fitted to or reported on before."""
    random_ = random.Random(SEED)
    taken = {(*sizes, "nt") for sizes in (*TRAIN, *HELDOUT)}
    placed: list[tuple[float, DrawnShape]] = []
    for kind in COUNTS:
        for stratum, (product, (low, high), count) in enumerate(strata(kind)):
            for index in range(count):
                while True:
                    model = random_.choice(sorted(FAMILIES[kind]))
                    inputs, outputs = random_.choice(FAMILIES[kind][model])
                    tokens = number_of_tokens(random_, low, high)
                    sizes = sizes_of(product, tokens, inputs, outputs)
                    key = (*sizes, PRODUCTS[product])
                    if key not in taken and 2.0 * sizes[0] * sizes[1] * sizes[2] <= MAX_FLOPS:
                        break
                taken.add(key)
                split = "heldout" if (index + stratum) % TRAIN_EVERY else "train"
                place = (index + random_.random()) / count
                placed.append((place, DrawnShape(kind, model, product, tokens, sizes, split)))
    return [shape for _, shape in sorted(placed, key=lambda pair: pair[0])]


def read_list(path: Path = LIST) -> list[DrawnShape]:
    """The committed list, in its order."""
    return [
        DrawnShape(**{**values, "sizes": tuple(values["sizes"])}) for values in json.loads(path.read_text())["rows"]
    ]


def shape_of(values: Mapping[str, Any]) -> DrawnShape:
    """The shape of a row of ``bench_gemm_many.py``."""
    m, n, k = values["shape"][:3]
    named = (values["kind"], values["model"], values["product"], values["tokens"])
    return DrawnShape(*named, (m, n, k), values["split"])


def as_text(shapes: list[DrawnShape]) -> str:
    """The file's text: one shape a line."""
    rows = ",\n".join(json.dumps(asdict(shape), separators=(",", ":")) for shape in shapes)
    return f'{{"seed":{SEED},"rows":[\n{rows}\n]}}\n'


if __name__ == "__main__":
    LIST.write_text(as_text(draw()))
