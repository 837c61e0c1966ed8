"""The fused-MoE kernel of an installed vLLM, used in place: its file is executed as it was installed, between stand-ins
for the rest of vLLM, and its own launcher launches its kernel.

Two files of the wheel are needed: ``fused_moe.py`` and ``utils.py`` in ``vllm/model_executor/layers/fused_moe``. vLLM's
sorting of rows is a compiled extension; :func:`aligned` sorts as its documentation says, outside of what is timed.
Needs torch; imports without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.routing import routed
from warpplan.service.feeds.moe_facts.absent_imports import run_file
from warpplan.service.feeds.moe_facts.moe_kernels import VLLM
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme

COLD_BYTES = 192 * 2**20
"""Three times the L2 of an H200."""
MOST_SETS = 32
UNSORTED_SHARE = 4
"""``_prepare_expert_assignment`` skips the sorting where there are four times as many experts as rows."""
TOLERANCE = 2e-2
"""‖error‖ / ‖reference‖: bf16 results of products in fp8 with 14 bits of accumulation."""
MODULES = "vllm.model_executor.layers.fused_moe"
Config = Mapping[str, int]


class Platform:
    """What vLLM's ``current_platform`` answers on an H200."""

    simple_compile_backend = "inductor"

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def is_device_capability(self, capability: int) -> bool:
        return capability == 90


@cache
def consumer(site: Path) -> Any:
    """The module ``fused_moe`` of the vLLM under ``site``. Raises
    :class:`~warpplan.planner.errors.InvalidInput` where a file is not there or does not run."""
    import triton
    import triton.language as tl

    given: dict[str, dict[str, object]] = {
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.platforms": {"current_platform": Platform()},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False, "VLLM_TRITON_USE_TD": None},
    }
    path = site / VLLM.path
    helpers = run_file(path.with_name("utils.py"), ("vllm",), given)
    used = ("enable_swap_ab", "resolve_moe_use_td", "warn_if_moe_use_td_ineffective")
    given[f"{MODULES}.utils"] = {name: getattr(helpers, name) for name in used}
    return run_file(path, ("vllm",), given)


def default_config(site: Path, layer: MoeLayer, scheme: MoeScheme, tokens: int) -> dict[str, int]:
    """What vLLM takes where it finds no table."""
    block = list(scheme.block) if scheme.block else None
    made = consumer(site).get_default_config(
        tokens, layer.experts, layer.intermediate, layer.hidden, layer.top_k, scheme.selector or None, block
    )
    return {name: value for name, value in made.items() if name != "SPLIT_K"}


def aligned(ids: Any, block: int, experts: int) -> tuple[Any, Any, Any]:
    """Slots sorted by expert, each expert's padded to whole blocks with the number of slots; each block's expert; the
    number of padded slots. As ``moe_align_block_size`` documents it."""
    import torch

    flat = ids.flatten()
    slots = flat.numel()
    most = slots + experts * (block - 1)
    if slots < experts:
        most = min(most, slots * block)
    counts = torch.bincount(flat, minlength=experts)
    padded = (counts + block - 1) // block * block
    starts = padded.cumsum(0) - padded
    order = flat.argsort(stable=True)
    rank = torch.arange(slots, device=ids.device) - (counts.cumsum(0) - counts)[flat[order]]
    table = torch.full((most,), slots, dtype=torch.int32, device=ids.device)
    table[starts[flat[order]] + rank] = order.int()
    owners = torch.zeros(-(-most // block), dtype=torch.int32, device=ids.device)
    of_blocks = torch.repeat_interleave(torch.arange(experts, device=ids.device), padded // block)
    owners[: len(of_blocks)] = of_blocks.int()
    return table, owners, padded.sum().int().reshape(1)


class Compiles:
    """A kernel of which a launch only compiles."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., object]:
        return partial(self.kernel.warmup, grid=grid)


@dataclass(frozen=True)
class Operands:
    """One product: ``rows`` [tokens or slots, K], each expert's ``weights`` [experts, N, K], and their scales."""

    rows: Any
    weights: Any
    row_scale: Any
    weight_scale: Any
    out: Any
    weighted: bool
    top_k: int


class MoeRun:
    """A layer for some tokens: input sets whose use leaves the L2 cache cold for the next, and its launches."""

    def __init__(
        self,
        site: Path,
        layer: MoeLayer,
        scheme: MoeScheme,
        tokens: int,
        *,
        device: str = "cuda",
        most: int = MOST_SETS,
    ) -> None:
        import torch

        self.module, self.layer, self.scheme, self.tokens, self.device = consumer(site), layer, scheme, tokens, device
        self.generator = torch.Generator(device).manual_seed(tokens)
        each = 3 * layer.intermediate * layer.hidden * scheme.weight_bytes
        hit = routed(tokens, layer.experts, layer.top_k, 16).hit
        count = max(1, min(most, -(-COLD_BYTES // int(hit * each))))
        copies = max(1, min(count, -(-2 * COLD_BYTES // (each * layer.experts))))
        weights = [self._weights() for _ in range(copies)]
        self.sets = [self._set(*weights[i % copies]) for i in range(count)]

    def launches(
        self, config: Config, *, compile_only: bool = False, only: int | None = None
    ) -> list[Callable[[], object]]:
        """Both products of each input set under ``config``, or ``only`` one, as the consumer's launcher does it."""
        chosen = slice(None) if only is None else slice(only, only + 1)
        return [partial(self._launch, routed_set, config, compile_only, chosen) for routed_set in self.sets]

    def error(self, config: Config) -> float:
        """The larger ‖error‖ / ‖reference‖ of the two products into poisoned outputs; infinite where one is not
        finite."""
        first = self.sets[0]
        for product in first.products:
            product.out.fill_(float("nan"))
        self._launch(first, config)
        largest = 0.0
        for product, wanted in zip(first.products, self.wanted, strict=True):
            error = ((product.out.float() - wanted).norm() / wanted.norm()).item()
            largest = max(largest, error if error == error else float("inf"))
        return largest

    @cached_property
    def wanted(self) -> tuple[Any, ...]:
        """Of the first input set, in fp32."""
        return tuple(reference(product, self.sets[0]) for product in self.sets[0].products)

    def _launch(
        self, chosen: RoutedSet, config: Config, compile_only: bool = False, products: slice = slice(None)
    ) -> None:
        scheme, module = self.scheme, self.module
        sorted_ids, owners, padded = chosen.sorting(config["BLOCK_SIZE_M"])
        kernel = module.fused_moe_kernel
        if compile_only:
            module.fused_moe_kernel = Compiles(kernel)
        try:
            for p in chosen.products[products]:
                module.invoke_fused_moe_triton_kernel(
                    p.rows, p.weights, p.out, p.row_scale, p.weight_scale, chosen.share, sorted_ids, owners, padded,
                    p.weighted, p.top_k, dict(config), compute_type=module.tl.bfloat16, use_fp8_w8a8=scheme.is_fp8,
                    use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False,
                    block_shape=list(scheme.block) if scheme.block else None,
                )  # fmt: skip
        finally:
            module.fused_moe_kernel = kernel

    def _weights(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        e, h, i = self.layer.experts, self.layer.hidden, self.layer.intermediate
        return self._quantised((e, 2 * i, h), weight=True), self._quantised((e, h, i), weight=True)

    def _set(self, up: tuple[Any, Any], down: tuple[Any, Any]) -> RoutedSet:
        import torch

        layer, device = self.layer, self.device
        chance = torch.rand(self.tokens, layer.experts, generator=self.generator, device=device)
        ids = chance.topk(layer.top_k, dim=1).indices
        share = torch.rand(self.tokens, layer.top_k, generator=self.generator, device=device)
        rows, row_scale = self._quantised((self.tokens, layer.hidden))
        inner, inner_scale = self._quantised((self.tokens * layer.top_k, layer.intermediate))

        def out(columns: int) -> Any:
            return torch.empty(self.tokens, layer.top_k, columns, dtype=torch.bfloat16, device=device)

        products = (
            Operands(rows, up[0], row_scale, up[1], out(2 * layer.intermediate), False, layer.top_k),
            Operands(inner, down[0], inner_scale, down[1], out(layer.hidden), True, 1),
        )
        return RoutedSet(ids, share, products, layer.experts)

    def _quantised(self, shape: tuple[int, ...], *, weight: bool = False) -> tuple[Any, Any]:
        """Normal numbers, in bf16 or in fp8 with a scale a block of :attr:`MoeScheme.block`."""
        import torch

        values = torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_(generator=self.generator)
        if self.scheme.block is None:
            return values, None
        n, k = self.scheme.block
        scaled = (*shape[:-2], -(-shape[-2] // n), -(-shape[-1] // k)) if weight else (shape[0], -(-shape[1] // k))
        scale = torch.rand(scaled, generator=self.generator, device=self.device) + 0.5
        return values.to(torch.float8_e4m3fn), scale


class RoutedSet:
    """One routing of tokens with what both products read and write."""

    def __init__(self, ids: Any, share: Any, products: tuple[Operands, ...], experts: int) -> None:
        self.ids, self.share, self.products, self.experts = ids, share, products, experts
        self._sorted: dict[int, tuple[Any, Any, Any]] = {}

    def sorting(self, block: int) -> tuple[Any, Any, Any]:
        """What the launcher takes for row blocks of ``block``; few rows are not sorted."""
        import torch

        if block not in self._sorted:
            if self.ids.numel() * UNSORTED_SHARE <= self.experts:
                padded = torch.full((1,), self.ids.numel() * block, dtype=torch.int32, device=self.ids.device)
                self._sorted[block] = None, self.ids.reshape(-1).int(), padded
            else:
                self._sorted[block] = aligned(self.ids, block, self.experts)
        return self._sorted[block]


def reference(product: Operands, chosen: RoutedSet) -> Any:
    """The product in fp32, expert by expert."""
    import torch

    rows = product.rows.float()
    if product.row_scale is not None:
        rows = rows * product.row_scale.repeat_interleave(128, 1)[:, : rows.shape[1]]
    rows = rows.repeat_interleave(product.top_k, 0)
    flat = chosen.ids.flatten()
    found = torch.zeros(product.out.shape, device=rows.device).flatten(0, 1)
    for expert in flat.unique().tolist():
        weights = product.weights[expert].float()
        if product.weight_scale is not None:
            scale = product.weight_scale[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
            weights = weights * scale[: weights.shape[0], : weights.shape[1]]
        mine = (flat == expert).nonzero().flatten()
        found[mine] = rows[mine] @ weights.T
    if product.weighted:
        found = found * chosen.share.flatten()[:, None]
    return found.view(product.out.shape)
