"""Attention on packed sequences as models call it, on a CPU: results and gradients against torch's attention of each
sequence, torch's rules for operators, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="attention is torch's")

from torch.nn.functional import scaled_dot_product_attention as torch_attention  # noqa: E402

import warpplan.kernels  # noqa: E402
from warpplan.kernels.attention_fwd.reference import seen_keys  # noqa: E402
from warpplan.kernels.attention_layer.packed_autograd import (  # noqa: E402
    packed_attention,
    packed_backward_operator,
    packed_operator,
)
from warpplan.kernels.attention_layer.packed_passes import require_usable  # noqa: E402
from warpplan.planner.errors import InvalidShape, UnknownName  # noqa: E402

BFLOAT16_ERROR = 2e-2
"""Relative: results and gradients are rounded to 8 bits."""
Q_SIZES, K_SIZES = (5, 0, 9, 1), (5, 3, 12, 4)
OUTSIDE = 3
"""Rows, and keys, of no sequence, behind the last one."""


def starts(sizes):
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


def operands(q_sizes=Q_SIZES, k_sizes=K_SIZES, heads=4, kv_heads=2, d=64, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(1)
    rows, keys = sum(q_sizes) + OUTSIDE, sum(k_sizes) + OUTSIDE
    forms = ((rows, heads, d), (keys, kv_heads, d), (keys, kv_heads, d))
    return [torch.randn(form, generator=generator).to(dtype).requires_grad_(grad) for form in forms]


def packed(query, key, value, q_sizes=Q_SIZES, k_sizes=K_SIZES, **options):
    lengths = starts(q_sizes), starts(k_sizes), max(q_sizes), max(k_sizes)
    return packed_attention(query, key, value, *lengths, **options)


def by_torch(query, key, value, q_sizes=Q_SIZES, k_sizes=K_SIZES, causal=False, window=None, scale=None):
    """Torch's attention of each sequence by itself, zeros in the rows of none."""
    parts = []
    for q, k, v in zip(query.split([*q_sizes, OUTSIDE]), key.split([*k_sizes, OUTSIDE]),
                       value.split([*k_sizes, OUTSIDE]), strict=True):  # fmt: skip
        seen = seen_keys(len(q), len(k), causal, window, "cpu")
        one = (t.transpose(0, 1)[None] for t in (q, k, v))
        parts.append(torch_attention(*one, attn_mask=seen, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat([*parts[:-1], parts[-1] * 0])


def with_gradients(function, inputs, **options):
    """The output and the gradients of all, for a random gradient of the output."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*inputs, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def relative_error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_the_public_name_is_the_function():
    assert warpplan.kernels.packed_attention is packed_attention


@pytest.mark.parametrize(("causal", "window", "scale"), [(False, None, None), (True, None, 0.3), (True, 2, None),
                                                         (False, 3, None)])  # fmt: skip
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_results_and_gradients_are_torchs(kv_heads, causal, window, scale):
    options = {"causal": causal, "window": window, "scale": scale}
    inputs = operands(kv_heads=kv_heads)
    found, expected = (with_gradients(f, inputs, **options) for f in (packed, by_torch))
    for mine, right in zip(found, expected, strict=True):
        # The log-sum-exp is kept in 32 bits, and nothing of it is left in the gradients.
        torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("d", [64, 128])
def test_16_bits(d, dtype):
    inputs = operands(d=d, dtype=dtype)
    expected = with_gradients(by_torch, [t.double() for t in inputs], causal=True)
    for mine, right in zip(with_gradients(packed, inputs, causal=True), expected, strict=True):
        assert mine.dtype == dtype
        assert relative_error(mine, right) < BFLOAT16_ERROR


@pytest.mark.parametrize("options", [{"causal": True}, {"window": 1, "scale": 0.2}], ids=str)
def test_gradients_are_differences(options):
    sizes = {"q_sizes": (2, 1), "k_sizes": (2, 3)}
    inputs = operands(**sizes, heads=2, kv_heads=1)
    assert torch.autograd.gradcheck(lambda *t: packed(*t, **sizes, **options), inputs, fast_mode=True)


def test_rows_of_no_sequence_have_zeros_whatever_lies_there():
    inputs = operands(dtype=torch.bfloat16)
    for tensor in inputs:
        tensor.data[-OUTSIDE:] = float("nan")
    out, *gradients = with_gradients(packed, inputs)
    for tensor in (out, *gradients):
        assert tensor.isfinite().all()
        assert not tensor[-OUTSIDE:].any()


def test_no_key_at_all():
    query, key, value = operands()
    sizes = {"q_sizes": Q_SIZES, "k_sizes": (0, 0, 0, 0)}
    out, of_query, of_key, _ = with_gradients(packed, (query, key[:0], value[:0]), **sizes)
    assert not out.any()
    assert not of_query.any()
    assert of_key.shape == key[:0].shape


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, True), (False, False, False)])
def test_only_gradients_that_are_needed_are_given(needs):
    inputs = [t.requires_grad_(need) for t, need in zip(operands(grad=False), needs, strict=True)]
    out = packed(*inputs)
    assert out.requires_grad == any(needs)
    if any(needs):
        out.sum().backward()
    assert [t.grad is not None for t in inputs] == list(needs)


def test_slices_of_one_projection_and_their_gradients_lie_alike():
    projection = torch.randn(18, 8, 64, requires_grad=True)
    query, key, value = projection.split((4, 2, 2), dim=1)
    out = packed(query, key, value, (5, 10), (5, 10), causal=True)
    assert out.is_contiguous()
    (gradient,) = torch.autograd.grad(out.sum(), projection)
    assert gradient.shape == projection.shape


def test_flops_of_each_sequence_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        with_gradients(packed, operands())
    pairs = sum(q * k for q, k in zip(Q_SIZES, K_SIZES, strict=True))
    assert counter.get_total_flops() == (2 + 5) * 2 * 4 * pairs * 64


def test_a_second_derivative_is_refused():
    inputs = operands()
    (first,) = torch.autograd.grad(packed(*inputs).square().sum(), inputs[:1], create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match="packed_attention_backward"):
        first.sum().backward()


def test_autocast_casts_as_for_torchs_own():
    inputs = operands(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(packed, inputs, causal=True)
    assert [t.dtype for t in found] == [torch.bfloat16, *[torch.float32] * 3]
    for mine, right in zip(found, with_gradients(by_torch, inputs, causal=True), strict=True):
        assert relative_error(mine, right) < BFLOAT16_ERROR


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic):
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def kept(graph, example_inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    backend = aot_autograd(fw_compiler=kept)
    compiled = torch.compile(packed_attention, backend=backend, fullgraph=True, dynamic=dynamic)

    def called(*inputs, q_sizes, **options):
        lengths = starts(q_sizes), starts(q_sizes), max(q_sizes), max(q_sizes)
        return compiled(*inputs, *lengths, **options)

    for sizes in ((5, 9), (8, 4, 11)):
        inputs = operands(sizes, sizes)
        found = with_gradients(called, inputs, q_sizes=sizes, causal=True)
        expected = with_gradients(packed, inputs, q_sizes=sizes, k_sizes=sizes, causal=True)
        for mine, right in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, right)
    # With dynamic sizes neither the longest sequence nor the number of sequences makes another graph.
    assert len(graphs) == (2 if dynamic else 4)
    assert "warpplan.packed_attention.default" in graphs[0]
    assert "warpplan.packed_attention_backward.default" in graphs[1]


def test_the_operators_keep_torchs_rules():
    query, key, value = operands()
    for causal, window in ((True, None), (False, 3)):
        numbers = (starts(Q_SIZES), starts(K_SIZES), 9, 12, causal, window, 0.2)
        torch.library.opcheck(packed_operator, (query, key, value, *numbers))
        out, lse = (t.detach() for t in packed_operator(query, key, value, *numbers))
        assert lse.is_contiguous()
        tensors = [t.detach() for t in (query, key, value)]
        for do in (torch.randn(out.shape).double(), torch.ones(()).double().expand(out.shape)):
            torch.library.opcheck(packed_backward_operator, (do, *tensors, out, lse, *numbers))


STARTS = starts(Q_SIZES)
QUERY, KEY, VALUE = operands(K_SIZES, K_SIZES, dtype=torch.bfloat16)
REFUSED = {
    "q has 4 dimensions": {"query": QUERY[None]},
    "expected the same shape": {"value": VALUE[1:]},
    "G must divide H": {"query": QUERY[:, :3]},
    "D must agree": {"key": KEY[..., :32], "value": VALUE[..., :32]},
    "D=32 is none of 64, 128, 256": {"query": QUERY[..., :32], "key": KEY[..., :32], "value": VALUE[..., :32]},
    "q is torch.bfloat16 on cpu and k torch.float16": {"key": KEY.half()},
    "cu_seqlens_q is torch.int64": {"cu_seqlens_q": STARTS.long()},
    "cu_seqlens_k is torch.int32 .* on meta": {"cu_seqlens_k": STARTS.to("meta")},
    "cu_seqlens_q has 5 numbers and cu_seqlens_k 4": {"cu_seqlens_k": STARTS[:4]},
    "cu_seqlens_q is a list: expected a tensor": {"cu_seqlens_q": STARTS.tolist()},
    r"cu_seqlens_q\[1\]=.* does not ascend": {"cu_seqlens_q": STARTS.flip(0).contiguous()},
    r"cu_seqlens_k\[.\]=.* does not ascend from .* to at most 27, the rows": {"cu_seqlens_k": STARTS + 20},
    r"cu_seqlens_k\[0\]=-1 does not ascend from 0 to at most 27": {"cu_seqlens_k": STARTS - 1},
    "max_seqlen_q=-1": {"max_seqlen_q": -1},
    "max_seqlen_q=None: expected a whole number from 0 to": {"max_seqlen_q": None},
    "max_seqlen_k=9.0: expected a whole number": {"max_seqlen_k": 9.0},
    "max_seqlen_k is a tensor: give a number": {"max_seqlen_k": torch.tensor(9)},
    "window=-1": {"window": -1},
    "scale=0.0": {"scale": 0.0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(message):
    fitting = {"query": QUERY, "key": KEY, "value": VALUE, "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS,
               "max_seqlen_q": 9, "max_seqlen_k": 9}  # fmt: skip
    with pytest.raises(InvalidShape, match=message) as caught:
        packed_attention(**fitting | REFUSED[message])
    assert "\n" not in str(caught.value)


def test_meta_tensors_have_the_form_of_the_result():
    query, key, value, lengths = (t.to("meta") for t in (QUERY, KEY, VALUE, STARTS))
    assert packed_attention(query, key, value, lengths, lengths, 9, 9).shape == QUERY.shape


def test_operands_on_several_devices_are_refused():
    with pytest.raises(InvalidShape, match=r"q is torch\.bfloat16 on cpu and v torch\.bfloat16 on meta"):
        require_usable(QUERY, KEY, VALUE.to("meta"), STARTS, STARTS)


def test_8_bits_are_refused():
    with pytest.raises(UnknownName, match="float8_e4m3fn"):
        packed(*(t.detach().to(torch.float8_e4m3fn) for t in operands()))


def test_heads_of_256_have_no_gradients():
    inputs = operands(d=256)
    with pytest.raises(InvalidShape, match=r"D=256 has no gradients, which heads of 64 and 128 have: call it under"):
        packed(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(packed(*inputs), by_torch(*inputs))


def test_a_cpu_needs_no_triton():
    """Nor does the module, as an installation of torch for CPUs has none."""
    code = (
        "import sys; sys.modules['triton'] = None; import torch; from warpplan.kernels import packed_attention\n"
        "q = torch.randn(3, 2, 64, requires_grad=True); s = torch.tensor([0, 3], dtype=torch.int32)\n"
        "packed_attention(q, q, q, s, s, 3, 3).sum().backward(); print(tuple(q.grad.shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(3, 2, 64)\n"
