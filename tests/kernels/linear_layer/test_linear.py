"""The linear layer without a GPU: torch's own where it stands aside, and its formulas around torch's product.

``as_on_hopper`` lets operands on the CPU take the path of a Hopper GPU up to the product itself, which is torch's here.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="a linear layer needs torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.functional import linear as torch_linear  # noqa: E402

import warpplan.kernels  # noqa: E402
from warpplan.kernels import registry  # noqa: E402
from warpplan.kernels.gemm.reference import relative_error  # noqa: E402
from warpplan.kernels.linear_layer import autograd, products  # noqa: E402
from warpplan.kernels.linear_layer.autograd import linear, linear_operator  # noqa: E402

BFLOAT16_ERROR = 4e-3
"""Relative, of one product rounded once (1.7e-3) and of gradients whose operands were rounded before."""


@pytest.fixture
def as_on_hopper(monkeypatch):
    """Yields the list of products made: (rows, columns, depth, layout)."""
    made = []

    def noted(a, b, bias=None):
        made.append((a.shape[0], b.shape[0], a.shape[1], products.operand_layout(a, b)))
        return products.multiply(a, b, bias)

    monkeypatch.setattr(autograd, "_runs_on", lambda index: True)
    monkeypatch.setattr(autograd, "multiply", noted)
    return made


def operands(lead, n, k, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((*lead, k), (n, k), (n,))
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def with_gradients(function, x, weight, bias, seed=1):
    """The output and the gradients of all that require one, for a random gradient of the output."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in (x, weight, bias) if t is not None]
    out = function(*inputs)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in inputs)]


def test_the_public_name_is_the_function():
    assert warpplan.kernels.linear is linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_cpu_has_torchs_own_bits(lead, bias, dtype):
    x, weight, b = operands(lead, 24, 16, dtype)
    b = b if bias else None
    for mine, torchs in zip(
        with_gradients(linear, x, weight, b), with_gradients(torch_linear, x, weight, b), strict=True
    ):
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize(("n", "k"), [(24, 15), (23, 16), (0, 16)])
def test_sizes_off_alignment_stay_with_torch(n, k, as_on_hopper):
    x, weight, bias = operands((4,), n, k, torch.bfloat16)
    assert torch.equal(linear(x, weight, bias), torch_linear(x, weight, bias))
    assert as_on_hopper == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wide_dtypes_stay_with_torch(dtype, as_on_hopper):
    x, weight, bias = operands((4,), 24, 16, dtype)
    assert torch.equal(linear(x, weight, bias), torch_linear(x, weight, bias))
    assert as_on_hopper == []


def test_transforms_stay_with_torch(as_on_hopper):
    x, weight, _ = operands((4,), 24, 16, torch.bfloat16)
    for function in (linear, torch_linear):
        gradient = torch.func.grad(lambda x, function=function: function(x, weight).float().sum())(x)
        batched = torch.func.vmap(lambda x, function=function: function(x, weight))(x.expand(3, 4, 16))
        if function is linear:
            mine = gradient, batched
    assert torch.equal(mine[0], gradient)
    assert torch.equal(mine[1], batched)
    assert as_on_hopper == []


def test_transforms_in_a_graph_stay_with_torch(monkeypatch):
    monkeypatch.setattr(autograd, "_runs_on", torch.compiler.assume_constant_result(lambda index: True))
    x, weight, _ = (t.detach() for t in operands((4,), 24, 16, torch.bfloat16))

    def gradient(x, function=linear):
        return torch.func.grad(lambda x: function(x, weight).float().sum())(x)

    compiled = torch.compile(gradient, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), gradient(x, torch_linear))


def test_forward_mode_stays_with_torch(as_on_hopper):
    x, weight, bias = operands((4,), 24, 16, torch.bfloat16)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        mine, torchs = (forward_ad.unpack_dual(f(dual, weight, bias)).tangent for f in (linear, torch_linear))
    assert torch.equal(mine, torchs)
    assert as_on_hopper == []


def test_batched_gradients_are_torchs(as_on_hopper):
    x, weight, bias = operands((4,), 24, 16, torch.bfloat16)
    grads = torch.randn(3, 4, 24).bfloat16()
    mine, torchs = (
        torch.autograd.grad(f(x, weight, bias), (x, weight, bias), grads, is_grads_batched=True)
        for f in (linear, torch_linear)
    )
    assert len(as_on_hopper) == 1
    for found, expected in zip(mine, torchs, strict=True):
        assert relative_error(found, expected) < BFLOAT16_ERROR


def test_nested_and_sparse_tensors_stay_with_torch(as_on_hopper):
    x, weight, _ = (t.detach() for t in operands((4,), 24, 16, torch.bfloat16))
    nested = torch.nested.nested_tensor([x[:1], x[1:]])
    for found, rows in zip(linear(nested, weight).unbind(), (x[:1], x[1:]), strict=True):
        assert torch.equal(found, torch_linear(rows, weight))
    # Of wide elements, whose sparse product a CPU has.
    sparse = weight.float().to_sparse_csr()
    assert torch.equal(linear(x.float(), sparse), torch_linear(x.float(), sparse))
    assert as_on_hopper == []


def test_errors_are_torchs_own(as_on_hopper):
    x, weight, bias = operands((4,), 24, 16, torch.bfloat16)
    for wrong in ((x, weight[:, :8], None), (x, weight, bias[:8]), (x.float(), weight, None), (x, weight, bias.half())):
        with pytest.raises(RuntimeError) as torchs:
            torch_linear(*wrong)
        with pytest.raises(RuntimeError) as mine:
            linear(*wrong)
        assert str(mine.value) == str(torchs.value)


@pytest.mark.parametrize("lead", [(), (40,), (2, 20), (2, 4, 5)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_match_float64(lead, bias, as_on_hopper):
    x, weight, b = operands(lead, 24, 16, torch.bfloat16)
    b = b if bias else None
    wide = [None if t is None else t.double() for t in (x, weight, b)]
    for t in wide:
        if t is not None:
            t.detach_().requires_grad_()
    mine, right = with_gradients(linear, x, weight, b), with_gradients(torch_linear, *wide)
    # Both gradients of the output are drawn alike; the wide one is rounded as the narrow one is.
    for found, expected in zip(mine, right, strict=True):
        assert found.dtype == torch.bfloat16
        assert found.shape == expected.shape
        assert relative_error(found, expected) < BFLOAT16_ERROR
    rows = x.numel() // 16
    assert sorted(as_on_hopper) == sorted([(rows, 24, 16, "nt"), (rows, 16, 24, "nn"), (24, 16, rows, "tn")])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_formulas_match_numerical_gradients(lead, n, k, bias):
    x, weight, b = operands((max(1, torch.Size(lead).numel()),), n, k, torch.float64, seed=n + 10 * k)
    inputs = (x, weight, b if bias else None)
    assert torch.autograd.gradcheck(linear_operator, inputs)
    assert torch.autograd.gradgradcheck(linear_operator, inputs)
    assert torch.autograd.gradcheck(autograd._product, inputs)
    assert torch.autograd.gradgradcheck(autograd._product, inputs)


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_gradients_that_are_needed_are_made(needs, as_on_hopper):
    tensors = [
        t.detach().requires_grad_(need) for t, need in zip(operands((8,), 24, 16, torch.bfloat16), needs, strict=True)
    ]
    out = linear(*tensors)
    assert out.requires_grad == any(needs)
    if any(needs):
        out.backward(torch.ones_like(out))
    assert [t.grad is not None for t in tensors] == list(needs)
    assert len(as_on_hopper) == 1 + needs[0] + needs[1]


def test_what_no_gradient_needs_is_not_saved(as_on_hopper):
    x, weight, bias = (t.detach() for t in operands((8,), 24, 16, torch.bfloat16))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        linear(x.requires_grad_(), weight, bias)
    assert saved == [weight.shape]


def test_an_expanded_gradient_is_made_contiguous(as_on_hopper):
    x, weight, bias = operands((2, 20), 24, 16, torch.bfloat16)
    linear(x, weight, bias).sum().backward()
    assert [layout for *_, layout in as_on_hopper] == ["nt", "nn", "tn"]
    assert torch.equal(bias.grad, torch.full_like(bias, 40))


def test_rows_of_a_wider_tensor_are_read_where_they_lie(as_on_hopper):
    wide = torch.randn(6, 64).bfloat16()
    _, weight, _ = operands((), 24, 16, torch.bfloat16)
    for x in (wide[:, 16:32], wide.t()[16:32, :].t(), wide[::2, :16]):
        assert torch.equal(linear(x, weight), torch_linear(x, weight))
    assert [layout for *_, layout in as_on_hopper] == ["nt"] * 3
    assert products.operand_layout(wide[:, 4:20], weight) is None, "starts between two units of 16 bytes"
    assert products.operand_layout(wide[:, :20], weight) is None, "20 elements are no whole units of 16 bytes"
    assert products.operand_layout(wide[:, :16], weight.t().contiguous().t()) == "nn"


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("bias", [False, True])
def test_shapes_are_those_that_the_kernels_declare(bias, layout):
    kernel, shape = products._planned_shape((64, 32, 16), bias, layout)
    declaration = registry.kernel(kernel).declaration
    assert declaration.parse_shape(declaration.named(shape)) == shape
    assert declaration.chosen(shape)["layout"] == layout
    assert declaration.chosen(shape).get("bias", "no") == ("yes" if bias else "no")


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[st.integers(1, 40)] * 2), st.tuples(*[st.integers(0, 16)] * 2), st.booleans(), st.integers(1, 2))
def test_the_launch_reads_the_layout_alike(shape, offsets, transposed, step):
    matrices = pytest.importorskip("warpplan.kernels.operands.matrices", reason="operands are torch's")
    wide = torch.zeros(64, 64, dtype=torch.bfloat16)
    a = wide[offsets[0] : offsets[0] + shape[0] : step, offsets[1] : offsets[1] + shape[1]]
    a = a.t() if transposed else a
    layout = products.operand_layout(a, a)
    assert layout in (None, matrices.layout_of(a, a))


def test_autocast_casts_as_torch_does(as_on_hopper):
    x, weight, bias = operands((8,), 24, 16)
    with torch.autocast("cpu", torch.bfloat16):
        mine, torchs = (with_gradients(f, x, weight, bias) for f in (linear, torch_linear))
    assert mine[0].dtype == torchs[0].dtype == torch.bfloat16
    assert [g.dtype for g in mine[1:]] == [g.dtype for g in torchs[1:]] == [torch.float32] * 3
    assert len(as_on_hopper) == 3
    for found, expected in zip(mine, torchs, strict=True):
        assert relative_error(found, expected) < BFLOAT16_ERROR


def test_autocast_leaves_float64_to_torch(as_on_hopper):
    x, weight, bias = operands((8,), 24, 16, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch_linear(x, weight, bias).dtype
    assert as_on_hopper == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic, monkeypatch):
    monkeypatch.setattr(autograd, "_runs_on", torch.compiler.assume_constant_result(lambda index: True))
    graphs = []

    def kept(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(linear, backend=kept, fullgraph=True, dynamic=dynamic)
    x, weight, bias = operands((2, 20), 24, 16, torch.bfloat16)
    for found, expected in zip(
        with_gradients(compiled, x, weight, bias), with_gradients(torch_linear, x, weight, bias), strict=True
    ):
        assert relative_error(found, expected) < BFLOAT16_ERROR
    assert any("warpplan.linear" in str(node.target) for node in graphs[0].graph.nodes)


def test_the_operator_keeps_torchs_rules():
    a, b, bias = operands((8,), 24, 16, torch.float64)
    for arguments in ((a, b, bias), (a, b, None), (a.detach(), b, None)):
        torch.library.opcheck(linear_operator, arguments)


def test_flops_are_counted_as_torchs_own(as_on_hopper):
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for function in (linear, torch_linear):
        x, weight, bias = operands((2, 20), 24, 16, torch.bfloat16)
        with FlopCounterMode(display=False) as counter:
            with_gradients(function, x, weight, bias)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 40 * 24 * 16


def test_flops_of_a_symbolic_size_stay_symbolic():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils.flop_counter import FlopCounterMode

    mode = FakeTensorMode(shape_env=ShapeEnv())
    a, b = (mode.from_tensor(torch.randn(size)) for size in ((40, 16), (24, 16)))
    with mode, FlopCounterMode(display=False) as counter:
        linear_operator(a, b, None)
    assert isinstance(counter.get_total_flops(), torch.SymInt)


def test_a_dispatch_mode_sees_the_operator(as_on_hopper):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, weight, bias = operands((8,), 24, 16, torch.bfloat16)
    with Watch():
        linear(x, weight, bias)
    assert "warpplan.linear.default" in seen


def test_a_subclass_of_tensor_stays_with_torch(as_on_hopper):
    class Quantised(torch.Tensor):
        pass

    x, weight, _ = operands((8,), 24, 16, torch.bfloat16)
    assert type(linear(x, weight.detach().as_subclass(Quantised))) is Quantised
    assert as_on_hopper == []
