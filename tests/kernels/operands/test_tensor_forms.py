"""Which tensors a kernel can read, and which states of torch it would miss."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="operands are torch's")

from warpplan.kernels.operands.tensor_forms import active_transform, is_batched, special_form  # noqa: E402


class Quantised(torch.Tensor):
    pass


MATRIX = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("tensor", "form"),
    [
        (MATRIX, ""),
        (torch.nn.Parameter(MATRIX), ""),
        (MATRIX.t(), ""),
        (MATRIX.to("meta"), ""),
        (MATRIX.as_subclass(Quantised), "a Quantised"),
        (MATRIX.to_sparse(), "a tensor of layout sparse_coo"),
        (torch.nested.nested_tensor([MATRIX, MATRIX[:1]]), "a nested tensor"),
    ],
)
def test_forms(tensor, form):
    assert special_form(tensor) == form


def test_transforms():
    seen = []
    torch.func.vmap(lambda x: seen.append(active_transform()) or x)(MATRIX)
    with torch.autograd.forward_ad.dual_level():
        seen.append(active_transform())
    assert [*seen, active_transform()] == ["a torch.func transform", "forward-mode differentiation", ""]


def test_batched_gradients():
    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(is_batched(grad))
            return grad

    x, seen = MATRIX.clone().requires_grad_(), []
    torch.autograd.grad(Watched.apply(x), x, torch.ones(4, 2, 3), is_grads_batched=True)
    torch.autograd.grad(Watched.apply(x), x, MATRIX)
    assert seen == [True, False]
