"""Attention as models call it, without a GPU: torch's own where it stands aside, and its formulas around the reference.

``as_on_hopper`` lets operands on the CPU take the path of a Hopper GPU up to the launch, which is the reference here.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="attention is torch's")

from torch.nn.functional import scaled_dot_product_attention as torch_attention  # noqa: E402

import warpplan.kernels  # noqa: E402
from warpplan.kernels.attention_layer import autograd  # noqa: E402
from warpplan.kernels.attention_layer.autograd import (  # noqa: E402
    attend,
    attend_backward,
    attention,
    attention_operator,
    backward_operator,
    why_torch,
    why_torch_backward,
)

BFLOAT16_ERROR = 2e-2
"""Relative: weights and results are rounded to 8 bits, in another order here than there."""


@pytest.fixture
def as_on_hopper(monkeypatch):
    """Yields the list of planned forward calls: (q_length, k_length, causal)."""
    made = []

    def noted(query, key, value, causal, scale):
        made.append((query.shape[2], key.shape[2], causal))
        return attend(query, key, value, causal, scale)

    monkeypatch.setattr(autograd, "runs_on", lambda index: True)
    monkeypatch.setattr(autograd, "attend", noted)
    return made


@pytest.fixture
def planned_backward(monkeypatch, as_on_hopper):
    """Yields the list of planned backward calls: the strides of the result's gradient."""
    made = []

    def noted(do, *others):
        made.append(do.stride())
        return attend_backward(do, *others)

    monkeypatch.setattr(autograd, "attend_backward", noted)
    return made


def operands(q_length=33, k_length=33, heads=4, kv_heads=4, d=64, dtype=torch.bfloat16, grad=False):
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, heads, q_length, d), (2, kv_heads, k_length, d), (2, kv_heads, k_length, d))
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_(grad) for size in sizes]


def with_gradients(function, inputs, **options):
    """The output and the gradients of all that require one, for a random gradient of the output."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    out = function(*inputs, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in inputs)]


def relative_error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_the_public_name_is_the_function():
    assert warpplan.kernels.attention is attention


def test_meta_tensors_are_torchs():
    query, key, value = (t.to("meta") for t in operands())
    assert attention(query, key, value, is_causal=True).shape == query.shape
    assert why_torch(query, key, value) == "no Hopper GPU"


def test_forward_mode_is_torchs(as_on_hopper):
    inputs = operands(dtype=torch.float16)
    with torch.autograd.forward_ad.dual_level():
        assert why_torch(*inputs) == "forward-mode differentiation"
    assert why_torch(*inputs) == ""


def test_nested_tensors_are_torchs(as_on_hopper):
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 64), torch.randn(4, 5, 64)]).bfloat16()
    assert why_torch(nested, nested, nested) == "a nested tensor"
    assert attention(nested, nested, nested).is_nested


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("q_length", "k_length"), [(33, 33), (7, 40), (40, 7), (1, 9)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_mask_is_torchs(q_length, k_length, kv_heads, is_causal, as_on_hopper):
    """Upper left where lengths differ; with fewer keys than queries the mask is left to torch."""
    inputs = operands(q_length, k_length, kv_heads=kv_heads)
    options = {"is_causal": is_causal, "enable_gqa": kv_heads != 4}
    wanted = torch_attention(*(t.double() for t in inputs), **options)
    assert relative_error(attention(*inputs, **options), wanted) < BFLOAT16_ERROR
    if is_causal and q_length > k_length:
        assert as_on_hopper == []
        assert why_torch(*inputs, **options) == "a causal mask with more queries than keys"
    else:
        assert as_on_hopper == [(q_length, min(q_length, k_length) if is_causal else k_length, is_causal)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("k_length", "kv_heads", "scale"), [(33, 4, None), (50, 2, 0.3), (20, 1, 1)])
def test_gradients_are_planned(k_length, kv_heads, scale, is_causal, as_on_hopper, planned_backward):
    inputs = operands(33 if k_length >= 33 else 20, k_length, kv_heads=kv_heads, grad=True)
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": True}
    assert why_torch_backward(*inputs, **options) == ""
    found = with_gradients(attention, inputs, **options)
    expected = with_gradients(torch_attention, [t.detach().double().requires_grad_() for t in inputs], **options)
    for mine, right in zip(found, expected, strict=True):
        assert relative_error(mine, right) < BFLOAT16_ERROR
    assert (len(as_on_hopper), len(planned_backward)) == (1, 1)


def test_gradients_of_other_heads_are_torchs_own(planned_backward):
    inputs = operands(d=256, grad=True)
    assert why_torch(*inputs) == ""
    assert why_torch_backward(*inputs) == "heads of 256"
    found, expected = (with_gradients(f, inputs, is_causal=True) for f in (attention, torch_attention))
    for mine, torchs in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(mine, torchs)
    assert planned_backward == []


@pytest.mark.parametrize(("d", "saved"), [(64, 5), (128, 5), (256, 3)])
def test_the_result_is_kept_for_planned_gradients_alone(d, saved, as_on_hopper):
    assert len(attention(*operands(d=d, grad=True)).grad_fn.saved_tensors) == saved


@pytest.mark.parametrize("d", [64, 256])
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, True), (False, False, False)])
def test_only_gradients_that_are_needed_are_given(needs, d, as_on_hopper):
    inputs = [t.requires_grad_(need) for t, need in zip(operands(d=d), needs, strict=True)]
    out = attention(*inputs)
    assert out.requires_grad == any(needs)
    if any(needs):
        out.float().sum().backward()
    assert [t.grad is not None for t in inputs] == list(needs)


def test_gradients_lie_as_their_operands_do(planned_backward):
    """Of [B, L, H, D] transposed, where a sum's gradient has one element for all."""
    query, key, value = (torch.randn(2, 33, 4, 64).bfloat16().transpose(1, 2).requires_grad_() for _ in range(3))
    out = attention(query, key, value)
    for operand, found in zip((query, key, value), torch.autograd.grad(out.sum(), (query, key, value)), strict=True):
        assert found.stride() == operand.stride()
    assert planned_backward == [(0, 0, 0, 0)]


def test_differentiable_twice(planned_backward):
    def curvature(function):
        query, key, value = operands(9, 9, grad=True)
        before = len(planned_backward)
        (first,) = torch.autograd.grad(function(query, key, value).float().square().sum(), query, create_graph=True)
        assert len(planned_backward) == before
        return torch.autograd.grad(first.float().square().sum(), (query, key, value))

    # torch's fused attention on a CPU has no second derivative.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for mine, torchs in zip(curvature(attention), curvature(torch_attention), strict=True):
            assert relative_error(mine, torchs) < 0.1


def test_batched_gradients_and_those_of_subclasses_are_torchs(planned_backward):
    class Collected(torch.Tensor):
        pass

    inputs = operands(grad=True)
    out = attention(*inputs)
    grads = torch.randn(3, *out.shape).bfloat16()
    batched = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    one = torch.autograd.grad(out, inputs, grads[1].as_subclass(Collected), retain_graph=True)
    assert planned_backward == []
    planned = torch.autograd.grad(out, inputs, grads[1])
    for many, single, mine in zip(batched, one, planned, strict=True):
        assert relative_error(many[1], mine) < BFLOAT16_ERROR
        assert relative_error(single, mine) < BFLOAT16_ERROR
    assert len(planned_backward) == 1


LEFT_TO_TORCH = {
    "a mask given as a tensor": lambda q, k, v: ((q, k, v), {"attn_mask": torch.ones(33, 33, dtype=torch.bool)}),
    "dropout": lambda q, k, v: ((q, k, v), {"dropout_p": 0.5}),
    "scale=-1.0": lambda q, k, v: ((q, k, v), {"scale": -1.0}),
    "float32 operands": lambda q, k, v: ((q.float(), k.float(), v.float()), {}),
    "heads of 96": lambda q, k, v: (operands(d=96), {}),
    "empty operands": lambda q, k, v: ((q[:, :, :0], k, v), {}),
    "operands that are not [B, H, L, D], [B, G, M, D], [B, G, M, D]": lambda q, k, v: ((q[0], k[0], v[0]), {}),
    "a causal mask with more queries than keys": lambda q, k, v: ((q, k[:, :, :5], v[:, :, :5]), {"is_causal": True}),
}


@pytest.mark.parametrize("reason", LEFT_TO_TORCH)
def test_what_is_left_to_torch_says_why_and_has_torchs_bits(reason, as_on_hopper):
    inputs, options = LEFT_TO_TORCH[reason](*operands())
    assert why_torch(*inputs, **options) == reason
    torch.manual_seed(3)
    mine = attention(*inputs, **options)
    torch.manual_seed(3)
    assert torch.equal(mine, torch_attention(*inputs, **options))
    assert as_on_hopper == []


def test_a_cpu_is_left_to_torch():
    inputs = operands()
    assert why_torch(*inputs) == "no Hopper GPU"
    assert torch.equal(attention(*inputs, is_causal=True), torch_attention(*inputs, is_causal=True))


def test_errors_are_torchs_own(as_on_hopper):
    query, key, value = operands()
    for wrong in ((query, key[:, :2], value[:, :2]), (query, key[..., :32], value), (query, key.float(), value)):
        with pytest.raises(RuntimeError) as torchs:
            torch_attention(*wrong)
        with pytest.raises(RuntimeError) as mine:
            attention(*wrong)
        assert str(mine.value) == str(torchs.value)


def test_transforms_and_subclasses_stay_with_torch(as_on_hopper):
    query, key, value = operands()
    batched = torch.func.vmap(lambda q: attention(q, key, value))(query.expand(3, *query.shape))
    assert torch.equal(batched[0], torch_attention(query, key, value))

    class Sharded(torch.Tensor):
        pass

    assert why_torch(query.as_subclass(Sharded), key, value) == "a Sharded"
    assert as_on_hopper == []


def test_autocast_casts_as_torch_does(as_on_hopper):
    inputs = operands(dtype=torch.float32, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        mine, torchs = (with_gradients(f, inputs, is_causal=True) for f in (attention, torch_attention))
    assert mine[0].dtype == torchs[0].dtype == torch.bfloat16
    assert [g.dtype for g in mine[1:]] == [torch.float32] * 3
    for found, expected in zip(mine, torchs, strict=True):
        assert relative_error(found, expected) < BFLOAT16_ERROR
    assert as_on_hopper == [(33, 33, True)]


def test_the_result_lies_as_the_query_does(as_on_hopper):
    """Of [B, L, H, D] transposed, so that the heads are joined without a copy."""
    by_token = torch.randn(2, 33, 4, 64).bfloat16().transpose(1, 2)
    assert attention(by_token, by_token, by_token).stride() == by_token.stride()
    packed = torch.randn(2, 33, 3, 4, 64).bfloat16()
    query, key, value = (packed[:, :, i].transpose(1, 2) for i in range(3))
    assert attention(query, key, value).transpose(1, 2).is_contiguous()
    columns = torch.randn(2, 4, 64, 33).bfloat16().transpose(2, 3)
    assert attention(columns, columns, columns).stride(-1) == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("is_causal", "d"), [(False, 64), (True, 64), (True, 256)])
def test_compiled_whole(is_causal, d, dynamic, monkeypatch):
    monkeypatch.setattr(autograd, "runs_on", torch.compiler.assume_constant_result(lambda index: True))
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def kept(graph, example_inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    compiled = torch.compile(attention, backend=aot_autograd(fw_compiler=kept), fullgraph=True, dynamic=dynamic)
    inputs = operands(20, 31, kv_heads=2, d=d, grad=True)
    options = {"is_causal": is_causal, "enable_gqa": True}
    found, expected = (with_gradients(f, inputs, **options) for f in (compiled, torch_attention))
    for mine, torchs in zip(found, expected, strict=True):
        assert relative_error(mine, torchs) < BFLOAT16_ERROR
    forward, backward = graphs
    assert "warpplan.attention.default" in forward
    assert ("warpplan.attention_backward.default" in backward) == (d == 64)


def by_token(tensor):
    """``tensor`` [B, H, L, D] with a token's heads adjacent in memory, as projections leave them."""
    return tensor.detach().transpose(1, 2).contiguous().transpose(1, 2)


def test_flops_are_counted_as_torchs_own(planned_backward):
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    inputs = operands(q_length=20, k_length=30, kv_heads=2, grad=True)
    with FlopCounterMode(display=False) as counter:
        with_gradients(attention, inputs, enable_gqa=True)
    query, key, value = (tuple(t.shape) for t in inputs)
    expected = sdpa_flop_count(query, key, value) + sdpa_backward_flop_count(query, query, key, value)
    assert counter.get_total_flops() == expected


def test_the_operators_keep_torchs_rules():
    query, key, value = operands(5, 7, dtype=torch.float64, grad=True)
    for causal in (False, True):
        torch.library.opcheck(attention_operator, (query, key, value, causal, 0.2))
    query, key, value = by_token(query), by_token(key), value.detach()
    torch.library.opcheck(attention_operator, (query, key, value, True, 0.2))
    out, lse = attention_operator(query, key, value, True, 0.2)
    assert lse.is_contiguous()
    for do in (torch.randn(out.shape).double(), torch.ones(()).double().expand(out.shape)):
        torch.library.opcheck(backward_operator, (do, query, key, value, out, lse, True, 0.2))
