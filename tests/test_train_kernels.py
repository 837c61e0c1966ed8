"""The kernels of the training example at its model's sizes, compiled for sm_90 without a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

FOLDER = Path(__file__).parents[1] / "examples" / "train"
sys.path.insert(0, str(FOLDER))

from job_shapes import LlamaSizes, shapes  # noqa: E402

from warpplan.kernels.gemm.compile_gemm import compile_gemm  # noqa: E402
from warpplan.kernels.gemm.space import config_of  # noqa: E402
from warpplan.kernels.gemm_bias_act.compile_gemm_bias_act import compile_gemm_bias_act  # noqa: E402
from warpplan.kernels.gemm_bias_act.kernel import fused_epilogue  # noqa: E402
from warpplan.kernels.registry import kernel  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402

pytestmark = pytest.mark.slow

MATMUL = f"{FOLDER / 'pointer_matmul.py'}:matmul"
TENSORS = "a_ptr=*bf16:16, b_ptr=*bf16:16, c_ptr=*bf16:16"
BY_ROWS = ("i32:16", "1")
PRODUCTS = {
    "logits": ((16384, 8192, 2048), BY_ROWS, BY_ROWS[::-1]),
    "gradient of the rows": ((16384, 2048, 8192), BY_ROWS, BY_ROWS),
    "gradient of the weight": ((8192, 2048, 16384), BY_ROWS[::-1], BY_ROWS),
}
"""(M, N, K) and the strides of A [M, K] and B [K, N] as the head launches its kernel, which Triton specialises for."""


def best_plans():
    """What has to be compiled for the best plan of each of the step's products; the order of tiles and the number of
    splits are arguments of a launch."""
    found = {}
    for name, shape in shapes(LlamaSizes()):
        best = config_of(kernel(name).rank(shape, "bfloat16", H200, embedded(H200.name), limit=1)[0].config)
        layout = kernel(name).declaration.chosen(shape)["layout"]
        config = replace(best, group_m=1, split_k=min(best.split_k, 2), split_tail=False)
        found.setdefault((name, config, layout), shape)
    return [pytest.param(*plan, shape, id="-".join(map(str, (plan[0], *shape)))) for plan, shape in found.items()]


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.parametrize(("name", "config", "layout", "shape"), best_plans())
def test_the_plans_of_a_step_compile_clean(name, config, layout, shape):
    if name == "gemm":
        report = compile_gemm(config, "bfloat16", layout=layout)
    else:
        report = compile_gemm_bias_act(config, fused_epilogue(shape), "bfloat16", layout=layout)
    assert report.clean, (shape, report.spill_bytes)
    assert report.shared_bytes <= H200.smem_bytes_per_block


@pytest.mark.parametrize("product", PRODUCTS)
def test_somebody_elses_kernel_is_planned_over_its_list(product, capsys):
    (m, n, k), (am, ak), (bk, bn) = PRODUCTS[product]
    sizes = f"M={m}, N={n}, K={k}, stride_am={am}, stride_ak={ak}, stride_bk={bk}, stride_bn={bn}"
    signature = f"{TENSORS}, {sizes}, stride_cm=i32:16, stride_cn=1"
    assert main(["ws", MATMUL, "--signature", signature, "--json"]) == 0, "its barriers can hang"
    found = json.loads(capsys.readouterr().out)
    assert (len(found["list"]), found["obstacles"], found["failure"]) == (8, [], "")
    assert found["barriers"]["findings"] == []
    assert found["chosen"]["gain"] > 1.0
