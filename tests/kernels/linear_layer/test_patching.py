"""The patch on models of torch's own parts: which layers it takes, what it leaves and why, and how it is undone."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="a patch needs torch")

import warpplan.kernels  # noqa: E402
from warpplan.kernels.linear_layer import autograd, patching  # noqa: E402
from warpplan.kernels.linear_layer.patching import patch  # noqa: E402
from warpplan.planner.errors import InvalidInput  # noqa: E402


class FeedForward(torch.nn.Module):
    """Two blocks of a transformer's feed-forward, and a head that shares its weight with the embedding."""

    def __init__(self, width=16, inner=48, words=40):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.up = torch.nn.ModuleList(torch.nn.Linear(width, inner) for _ in range(2))
        self.down = torch.nn.ModuleList(torch.nn.Linear(inner, width, bias=False) for _ in range(2))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.nn.functional.gelu(up(x)))
        return self.head(x)


class Doubled(torch.nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class Named(torch.nn.Linear):
    """A subclass that computes what its base does."""


@pytest.fixture
def model():
    torch.manual_seed(0)
    return FeedForward()


@pytest.fixture
def calls(monkeypatch):
    """The shapes of the weights that patched layers multiply by."""
    seen = []

    def noted(x, weight, bias=None):
        seen.append(tuple(weight.shape))
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(patching, "linear", noted)
    return seen


TOKENS = torch.arange(12).reshape(3, 4)


def loss_and_gradients(model):
    model.zero_grad()
    loss = model(TOKENS).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def test_the_public_names_are_these():
    assert warpplan.kernels.patch is patch
    assert warpplan.kernels.PatchReport is patching.PatchReport


def test_a_patched_model_computes_the_same(model, calls):
    before, keys = loss_and_gradients(model), list(model.state_dict())
    report = patch(model)
    assert report.patched == ("up.0", "up.1", "down.0", "down.1", "head")
    assert report.left == {}
    for found, expected in zip(loss_and_gradients(model), before, strict=True):
        assert torch.equal(found, expected)
    assert calls == [(48, 16), (16, 48)] * 2 + [(40, 16)]
    assert list(model.state_dict()) == keys
    assert all(type(layer) is torch.nn.Linear for layer in (*model.up, *model.down, model.head))


def test_undone_it_is_as_before(model, calls):
    report = patch(model)
    report.undo()
    report.undo()
    model(TOKENS)
    assert calls == []
    assert all("forward" not in vars(module) for module in model.modules())
    with patch(model):
        model(TOKENS)
    assert len(calls) == 5
    model(TOKENS)
    assert len(calls) == 5


def test_undoing_leaves_what_came_after(model):
    report = patch(model)
    mine = model.head.forward = lambda x: x
    report.undo()
    assert model.head.forward is mine


def test_weights_are_read_at_each_call(model, calls):
    patch(model)
    model.head.weight = torch.nn.Parameter(torch.zeros(8, 16))
    assert torch.equal(model(TOKENS), torch.zeros(3, 4, 8))
    weights = dict(model.named_parameters()) | {"head.weight": torch.ones(24, 16)}
    assert torch.func.functional_call(model, weights, TOKENS).shape == (3, 4, 24)


def _hooked():
    layer = torch.nn.Linear(16, 16)
    layer.register_forward_hook(lambda *_: None)
    return layer


def _forwarded():
    layer = torch.nn.Linear(16, 16)
    layer.forward = lambda x: x
    return layer


def _subclassed():
    class Quantised(torch.Tensor):
        pass

    layer = torch.nn.Linear(16, 16, bias=False)
    layer.weight = torch.nn.Parameter(layer.weight.detach().as_subclass(Quantised))
    return layer


def _flattened():
    """As FullyShardedDataParallel leaves the weights of a model whose parameters keep their names."""
    layer = torch.nn.Linear(16, 16)
    layer.weight = torch.nn.Parameter(torch.zeros(128))
    return layer


def _patched():
    layer = torch.nn.Linear(16, 16)
    patch(layer)
    return layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: Doubled(16, 16), "its forward is not torch.nn.Linear's (Doubled)"),
        (_forwarded, "its forward is not torch.nn.Linear's (Linear)"),
        (_patched, "patched already"),
        (_hooked, "it has hooks"),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 16)),
            "its weight is parametrised",
        ),
        (lambda: torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(16, 16)), "its weight is parametrised"),
        (_subclassed, "its weight is a Quantised"),
        (lambda: torch.nn.Linear(16, 16, dtype=torch.float64), "its weight is float64"),
        (lambda: torch.nn.Linear(16, 10), "its 10 outputs are no multiple of 8"),
        (lambda: torch.nn.Linear(12, 16), "its 12 inputs are no multiple of 8"),
        (lambda: torch.nn.LazyLinear(16), "it has hooks"),
        (_flattened, "its weight is 1-dimensional: patch before sharding"),
    ],
)
def test_what_is_left_and_why(layer, reason):
    model = torch.nn.ModuleDict({"odd": layer(), "even": torch.nn.Linear(16, 16)})
    own = vars(model["odd"]).get("forward")
    report = patch(model)
    assert report.left == {"odd": reason}
    assert report.patched == ("even",)
    report.undo()
    assert vars(model["odd"]).get("forward") == own


def test_a_subclass_without_a_forward_of_its_own_is_taken():
    assert patch(Named(16, 16)).patched == ("",)


def test_a_transformer_layer_of_torchs(calls):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 48, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    expected = layer(x)
    report = patch(layer)
    assert report.patched == ("linear1", "linear2")
    assert report.left == {"self_attn.out_proj": "torch.nn.MultiheadAttention reads its weight without calling it"}
    assert torch.equal(layer(x), expected)
    assert calls == [(48, 16), (16, 48)]


def test_a_module_in_two_places_is_patched_once():
    layer = torch.nn.Linear(16, 16)
    assert patch(torch.nn.Sequential(layer, layer)).patched == ("0",)


def test_the_table():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    assert str(patch(model)).splitlines() == [
        "linear  weight    state",
        "0       128 x 64  patched",
        "2       10 x 128  left: its 10 outputs are no multiple of 8",
    ]
    assert str(patch(torch.nn.Linear(8, 8))).splitlines()[1] == "(itself)  8 x 8   patched"
    assert str(patch(torch.nn.ReLU())) == "no torch.nn.Linear in this model"


def test_only_models_are_patched():
    with pytest.raises(InvalidInput, match=r"list is not a torch\.nn\.Module"):
        patch([torch.nn.Linear(8, 8)])


def test_a_copy_reads_its_own_weights(model, calls):
    report = patch(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head.weight.zero_()
    assert not copied(TOKENS).any()
    assert model(TOKENS).any()
    report.undo()
    assert copied.head.forward.__self__ is copied.head


def test_a_pickled_model_loads(model):
    patch(model)
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_a_pickled_model_is_patched_again(model, calls):
    patch(model)
    loaded = pickle.loads(pickle.dumps(model))
    with patch(loaded) as report:
        assert report.left == {}
        loaded(TOKENS)
        assert len(calls) == 5
    assert all("forward" not in vars(module) for module in loaded.modules())


def test_a_patched_model_compiles_whole(model):
    expected = loss_and_gradients(model)
    patch(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for found, right in zip(loss_and_gradients(compiled), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_under_autocast_it_compiles_whole(model, monkeypatch):
    monkeypatch.setattr(autograd, "_runs_on", torch.compiler.assume_constant_result(lambda index: True))
    patch(model)
    graphs = []

    def kept(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(model, backend=kept, fullgraph=True)(TOKENS).sum().backward()
    assert sum("warpplan.linear" in str(node.target) for node in graphs[0].graph.nodes) == 5
    assert all(p.grad is not None for p in model.parameters())
