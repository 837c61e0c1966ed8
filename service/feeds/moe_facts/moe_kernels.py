"""The fused-MoE kernels of vLLM and SGLang as their launchers specialise them: from a configuration to a capture.

Each kernel computes, for blocks of token rows sorted by expert, rows · the expert's weights; rows are gathered by
their sorted ids, each block's expert is looked up, and padding rows are masked. The names and values below are those
that the consumer's own launcher passes for contiguous tensors whose sizes are multiples of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warpplan.planner.errors import InvalidConfig, InvalidInput, WarpplanError
from warpplan.service.feeds.moe_facts.absent_imports import run_file
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme

if TYPE_CHECKING:
    from warpplan.kernels.compile import CompiledReport
    from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts
    from warpplan.kernels.triton_types import AstSource, JitFunction

HOPPER = 90
SWAPPED_ROWS, SWAPPED_COLUMNS = 64, 64
"""Both consumers multiply transposed on Hopper in fp8 where a tile has fewer rows and at least as many columns."""
_TENSORS = (
    "c_ptr=*bf16, topk_weights_ptr=*fp32, sorted_token_ids_ptr=*i32, expert_ids_ptr=*i32, "
    "num_tokens_post_padded_ptr=*i32, N=i32:16, K=i32:16, EM=i32:16, num_valid_tokens=i32:16, stride_am=i32:16, "
    "stride_ak=1, stride_be=i32:16, stride_bk=1, stride_bn=i32:16, stride_cm=i32:16, stride_cn=1, "
    "MUL_ROUTED_WEIGHT=False, top_k=8, compute_type=tl.bfloat16"
)
_VLLM = (
    "b_bias_ptr=None, stride_bbe=0, stride_bbn=0, naive_block_assignment=False, SPLIT_K=1, HAS_BIAS=False, "
    "SWAP_AB={swap}, USE_TD=False"
)
_SGLANG = (
    "a_desc=None, b_desc=None, bias_ptr=None, add_mask_ptr=None, stride_bias_e=0, stride_bias_n=0, even_Ks=True, "
    "c_sorted=False, swap_ab={swap}, FUSE_ADD_TO_OUTPUT=False, MASK_OUTPUT=False, FUSE_SUM_ALL_REDUCE=False, "
    "ROUTER_TOPK=8"
)


@dataclass(frozen=True)
class MoeTile:
    """What of a configuration the compiled kernel depends on, ``num_stages`` aside."""

    m: int
    n: int
    k: int
    warps: int

    @property
    def label(self) -> str:
        return f"{self.m}x{self.n}x{self.k}w{self.warps}"


@dataclass(frozen=True)
class MoeKernel:
    """Where a consumer keeps its kernel, ``path`` below the folder with its packages, and what ``arguments`` its
    launcher adds to what both have."""

    consumer: str
    path: str
    arguments: str
    absent: tuple[str, ...]
    function: str = "fused_moe_kernel"

    def load(self, site: Path) -> JitFunction:
        """The kernel of the consumer installed in ``site``, unchanged. Raises :class:`InvalidInput`."""
        import triton
        import triton.language as tl

        module = run_file(site / self.path, self.absent, {"vllm.triton_utils": {"tl": tl, "triton": triton}})
        kernel = getattr(module, self.function, None)
        if kernel is None or not hasattr(kernel, "params"):
            raise InvalidInput(
                f"{self.path} has no Triton kernel {self.function}: another version of {self.consumer} than was tested",
                field="consumer", value=str(site),
            )  # fmt: skip
        return kernel


VLLM = MoeKernel("vllm", "vllm/model_executor/layers/fused_moe/fused_moe.py", _VLLM, ("vllm", "torch"))
SGLANG = MoeKernel("sglang", "sglang/kernels/ops/moe/fused_moe_triton_kernels.py", _SGLANG, ("sglang", "torch"))


def swapped(scheme: MoeScheme, tile: MoeTile) -> bool:
    """Whether the launchers have the kernel multiply the transposed product."""
    return scheme.is_fp8 and tile.m < SWAPPED_ROWS and tile.n >= SWAPPED_COLUMNS


def source(kernel: MoeKernel, function: JitFunction, scheme: MoeScheme, tile: MoeTile) -> AstSource:
    """``function`` as the consumer specialises it for ``scheme`` and ``tile``. Raises :class:`InvalidInput` where it
    has other parameters than the tested versions'."""
    from warpplan.kernels.compiler.inspection.signature import source_of

    blocks = f"BLOCK_SIZE_M={tile.m}, BLOCK_SIZE_N={tile.n}, BLOCK_SIZE_K={tile.k}, GROUP_SIZE_M=8"
    own = kernel.arguments.format(swap=swapped(scheme, tile))
    try:
        return source_of(function, ", ".join((_TENSORS, own, _operands(scheme), blocks)))
    except InvalidInput as error:
        raise InvalidInput(
            f"{kernel.path}: {kernel.function} is called otherwise than in the versions of {kernel.consumer} that were "
            f"tested ({error}): export where one of those is installed, or none",
            field="consumer", value=kernel.path,
        ) from error  # fmt: skip


def _operands(scheme: MoeScheme) -> str:
    weights = "*fp8e4nv" if scheme.is_fp8 else "*i8" if scheme.weight_bytes == 1 else "*bf16"
    rows = "*bf16" if scheme.activation_bytes == 2 else weights
    a_scale = "*fp32" if scheme.activation_bytes == 1 else "None"
    b_scale = "*fp32" if scheme.weight_bytes == 1 else "None"
    group_n, group_k = scheme.block or (0, 0)
    by_token, by_channel = (scheme.per_channel or scheme.block is not None), scheme.weight_bytes == 1
    of_rows = "stride_asm=i32, stride_ask=1" if by_token else "stride_asm=0, stride_ask=0"
    of_weights = (
        "stride_bse=i32, stride_bsk=1, stride_bsn=i32" if by_channel else "stride_bse=0, stride_bsk=0, stride_bsn=0"
    )
    return (
        f"a_ptr={rows}, b_ptr={weights}, a_scale_ptr={a_scale}, b_scale_ptr={b_scale}, {of_rows}, {of_weights}, "
        f"group_n={group_n}, group_k={group_k}, use_fp8_w8a8={scheme.is_fp8}, "
        f"use_int8_w8a8={scheme.selector == 'int8_w8a8'}, use_int8_w8a16={scheme.selector == 'int8_w8a16'}, "
        f"per_channel_quant={scheme.per_channel}"
    )


def captured(kernel: MoeKernel, function: JitFunction, scheme: MoeScheme, tile: MoeTile) -> KernelFacts:
    """The facts of ``function`` captured for ``scheme`` and ``tile``. Needs Triton, no GPU; a few tenths of a second.

    Raises :class:`InvalidConfig` where the installed Triton does not compile it.
    """
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing.pipelined.kernel_facts import facts_of
    from warpplan.kernels.compiler.pipeline.cutting import cut, taken_diagnostics

    made = source(kernel, function, scheme, tile)
    try:
        with taken_diagnostics([]):
            text = cut(made, GPUTarget("cuda", HOPPER, 32), {"num_warps": tile.warps}).text
    except WarpplanError:
        raise
    except Exception as error:  # Triton's front end and passes raise types of their own
        raise InvalidConfig(f"{kernel.consumer} {scheme.name} {tile.label} does not compile", field="config") from error
    return facts_of(capture(text))


def compiled(
    kernel: MoeKernel, function: JitFunction, scheme: MoeScheme, tile: MoeTile, stages: int
) -> CompiledReport:  # fmt: skip
    """What the compiler makes of it: registers, spills, shared memory. A second or more."""
    from warpplan.kernels.compile import compile_report

    made = source(kernel, function, scheme, tile)
    options = {"num_warps": tile.warps, "num_stages": stages}
    return compile_report(made, options, HOPPER, what=f"{kernel.consumer} {scheme.name} {tile.label}")
