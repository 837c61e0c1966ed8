"""The mixture-of-experts example without a GPU: its parts against obvious ones, then the whole of it, small."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[1] / "examples" / "moe"
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "common")]

from data import Teacher  # noqa: E402
from experts import BLOCK, PRODUCTS, blocks, expert_loop  # noqa: E402
from layer import Combine, Dispatch, LayerSizes, MoELayer, Router  # noqa: E402
from measure import Student, deviations, train  # noqa: E402
from run_record import loss_gap  # noqa: E402

SMALL = LayerSizes(tokens=60, width=32, hidden=16, experts=5, top_k=2)
group_sizes = st.lists(st.integers(0, 2 * BLOCK + 3), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def one_thread():
    """The products are so small that threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).int()


def test_the_router_sorts_every_choice_by_its_expert():
    torch.manual_seed(0)
    router, x = Router(SMALL), torch.randn(SMALL.tokens, SMALL.width).abs()
    with torch.no_grad():
        router.weight[3] = -10.0  # an expert that nobody chooses
        routing = router(x)
        weights, chosen = (x @ router.weight.T).softmax(-1).topk(SMALL.top_k)
    sizes = chosen.flatten().bincount(minlength=SMALL.experts)
    assert sizes[3] == 0
    assert routing.ends.tolist() == sizes.cumsum(0).tolist()
    assert routing.ends.dtype == torch.int32
    assert (chosen.flatten()[routing.order].diff() >= 0).all()
    assert torch.equal(routing.order[routing.inverse], torch.arange(SMALL.rows))
    expected = (weights / weights.sum(-1, keepdim=True)).flatten()
    torch.testing.assert_close(routing.weights[routing.inverse], expected)


def test_dispatch_and_combine_are_adjoint():
    """Gradients against finite differences."""
    torch.manual_seed(0)
    tokens, top_k, width = 7, 3, 4
    order = torch.randperm(tokens * top_k)
    inverse = order.argsort()
    x = torch.randn(tokens, width, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(tokens * top_k, width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Dispatch.apply(x, order, inverse, top_k), x)
    assert torch.autograd.gradcheck(lambda rows: Combine.apply(rows, order, inverse, top_k), rows)


def test_the_layer_is_the_weighted_sum_over_each_tokens_experts():
    torch.manual_seed(0)
    layer, x = MoELayer(SMALL, expert_loop, torch.float32), torch.randn(SMALL.tokens, SMALL.width)
    with torch.no_grad():
        y, _ = layer(x)
        weights, chosen = (x @ layer.router.weight.T).softmax(-1).topk(SMALL.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        for token in range(SMALL.tokens):
            expected = torch.zeros(SMALL.width)
            for weight, expert in zip(weights[token], chosen[token], strict=True):
                gate, up = (layer.gate_up[expert] @ x[token]).chunk(2)
                expected += weight * (layer.down[expert] @ (torch.nn.functional.silu(gate) * up))
            torch.testing.assert_close(y[token], expected)


@given(group_sizes)
@settings(deadline=None)
def test_blocks_cover_each_row_once_and_stay_within_an_expert(sizes):
    found = list(blocks(ends_of(sizes), sum(sizes)))
    assert [row for start, stop, _ in found for row in range(start, stop)] == list(range(sum(sizes)))
    owners = [group for group, size in enumerate(sizes) for _ in range(size)]
    for start, stop, expert in found:
        assert set(owners[start:stop]) == {expert}
        assert stop - start <= BLOCK


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("sizes", [(40, 0, 150, 2), (0, 192, 0, 0)], ids=["ragged", "all tokens to one expert"])
def test_the_products_and_their_gradients_agree(name, sizes):
    torch.manual_seed(0)
    ends = ends_of(sizes)
    rows, weights = torch.randn(sum(sizes), 32).bfloat16(), torch.randn(len(sizes), 48, 32).bfloat16()
    gradient = torch.randn(sum(sizes), 48).bfloat16()
    found, exact = [], []
    for product, dtype, into in ((PRODUCTS[name], torch.bfloat16, found), (expert_loop, torch.float32, exact)):
        a, b = (t.to(dtype, copy=True).requires_grad_() for t in (rows, weights))
        out = product(a, b, ends)
        out.backward(gradient.to(dtype))
        into += [out.detach(), a.grad, b.grad]
    for value, right in zip(found, exact, strict=True):
        assert value.dtype == torch.bfloat16
        # Two blocks of one expert add up in bfloat16, hence two roundings.
        assert float((value.float() - right).norm() / right.norm()) < 2 * 2**-8


def test_the_same_seed_gives_the_same_data():
    first, again = Teacher(SMALL, "cpu"), Teacher(SMALL, "cpu")
    for a, b in zip(first.batch(3), again.batch(3), strict=True):
        assert a.shape == (SMALL.tokens, SMALL.width)
        assert torch.equal(a, b)
    assert not torch.equal(first.batch(3)[0], first.batch(4)[0])
    assert not torch.equal(first.batch(3)[0], Teacher(SMALL, "cpu", seed=1).batch(3)[0])


def test_students_in_either_precision_start_from_the_same_weights():
    one, other = (Student(SMALL, expert_loop, "cpu", dtype).layer for dtype in (torch.bfloat16, torch.float32))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.float(), b)


def test_losses_fall_alike_and_deviations_are_those_of_bfloat16():
    sizes = replace(SMALL, tokens=200)
    teacher = Teacher(sizes, "cpu")
    students = {name: Student(sizes, product, "cpu", torch.bfloat16) for name, product in PRODUCTS.items()}
    students["float32"] = Student(sizes, expert_loop, "cpu", torch.float32)
    losses = train(students, teacher, 20)
    assert all(curve[-1] < 0.7 * curve[0] for curve in losses.values())
    assert max(loss_gap(losses[name], losses["float32"]) for name in PRODUCTS) < 0.02
    errors = deviations(sizes, PRODUCTS, teacher)
    assert max(error for parts in errors.values() for error in parts.values()) < 0.01


@pytest.mark.slow
def test_it_runs_beside_a_service_of_its_own(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra examples")
    command = [sys.executable, FOLDER / "train.py", "--device", "cpu", "--steps", "5", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "moe.json").read_text())
    assert [row["name"] for row in result["rows"]] == list(PRODUCTS)
    assert len(result["configs"]) == 6
    assert {len(curve) for curve in result["losses"].values()} == {5}
    assert (tmp_path / "moe.png").read_bytes().startswith(b"\x89PNG")
