"""The job end to end on a GPU: products right, the same loss as plain torch to bfloat16's noise, times that arrive."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "train"), str(EXAMPLES / "common")]

from job import ALONE, PLAIN, SERVED, TUNED, run  # noqa: E402
from job_products import add_planned, add_with_torch, pointer_product  # noqa: E402
from job_shapes import LlamaSizes, shapes  # noqa: E402
from planning_service import service  # noqa: E402
from run_record import NOISE_FACTOR, loss_gap  # noqa: E402
from torch.nn.functional import linear as torch_linear  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

SIZES = LlamaSizes(batch=2, length=500, width=512, heads=4, hidden=1408, layers=2, vocabulary=1000)
"""Rows and words that no tile divides."""
STEPS = 6
BFLOAT16_ERROR = 4e-3
"""Relative, of one product rounded once (1.7e-3)."""


def operands(*shapes):
    random = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(s, device="cuda", generator=random).bfloat16().requires_grad_() for s in shapes]


@pytest.mark.parametrize(
    ("product", "reference", "inputs"),
    [
        (add_planned, add_with_torch, ((1000, 512), (1408, 512), (1000, 1408))),
        (pointer_product, torch_linear, ((1000, 512), (1000, 512))),
    ],
    ids=["residual", "pointers"],
)
def test_products_and_their_gradients_are_right(product, reference, inputs):
    ours = operands(*inputs)
    exact = [t.detach().double().requires_grad_() for t in ours]
    y, right = product(*ours), reference(*exact)
    (gradient,) = operands(y.shape)
    found = torch.autograd.grad(y, ours, gradient)
    expected = torch.autograd.grad(right, exact, gradient.double())
    for value, good in zip((y, *found), (right, *expected), strict=True):
        assert float((value.double() - good).norm() / good.norm()) < BFLOAT16_ERROR


def test_losses_agree_and_measured_times_reach_the_service():
    with service() as url:
        results = {way: run(way, SIZES, STEPS, "cuda", url, time.monotonic()) for way in (PLAIN, TUNED, ALONE, SERVED)}
    exact = results[PLAIN]["exact"]
    gaps = {way: loss_gap(result["losses"], exact) for way, result in results.items()}
    assert max(gaps.values()) <= NOISE_FACTOR * gaps[PLAIN] + 1e-4, gaps
    served = results[SERVED]
    assert len(served["configs"]) == len(shapes(SIZES))
    assert served["tunings"]["lost"] == served["tunings"]["dropped"] == 0
    assert served["tunings"]["posted"] >= 1, "the pointer kernel's list was tried"
    assert served["measured"]["taken"] >= len(shapes(SIZES)), served["measured"]
