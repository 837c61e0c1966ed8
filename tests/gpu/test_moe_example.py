"""The mixture-of-experts example on a GPU: the same losses and gradients, to bfloat16's noise, and no waiting host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "moe"), str(EXAMPLES / "common")]

from data import Teacher  # noqa: E402
from experts import PRODUCTS, expert_loop  # noqa: E402
from layer import LayerSizes  # noqa: E402
from measure import Student, deviations, train  # noqa: E402
from run_record import loss_gap  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

SIZES = LayerSizes(tokens=1500, width=512, hidden=384, experts=16, top_k=3)
"""About 280 rows an expert, of which no count is a multiple of a tile."""


@pytest.fixture(scope="module")
def teacher():
    return Teacher(SIZES, "cuda")


def test_losses_agree(teacher):
    students = {name: Student(SIZES, product, "cuda", torch.bfloat16) for name, product in PRODUCTS.items()}
    students["float32"] = Student(SIZES, expert_loop, "cuda", torch.float32)
    losses = train(students, teacher, 5)
    gaps = {name: loss_gap(losses[name], losses["float32"]) for name in PRODUCTS}
    assert losses["warpplan"][-1] < losses["warpplan"][0]
    assert gaps["warpplan"] <= 2 * gaps["expert loop"] + 1e-4, gaps


def test_output_and_gradients_deviate_from_float32_as_the_loop_does(teacher):
    errors = deviations(SIZES, PRODUCTS, teacher)
    for part, error in errors["warpplan"].items():
        assert error <= 2 * errors["expert loop"][part], (part, errors)


def test_the_host_never_waits_and_a_second_run_gives_the_same_bits(teacher):
    tokens, target = teacher.batch(0)
    tokens = tokens.bfloat16()
    student = Student(SIZES, PRODUCTS["warpplan"], "cuda", torch.bfloat16)
    student.gradients(tokens, target)  # compiles
    first = [weight.grad.clone() for weight in student.layer.parameters()]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        student.gradients(tokens, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for weight, gradient in zip(student.layer.parameters(), first, strict=True):
        assert torch.equal(weight.grad, gradient)
