"""Online softmax and the weighted sum of values, as the held-out attention kernels share them."""

from __future__ import annotations

from loop_attention import online_softmax
from loop_costs import THREADS
from varied_loop import VariedLoop


def softcapped(loop: VariedLoop, i: int, scores: str, elements: int) -> str:
    """c · tanh(s / c), as Gemma 2 has it: a multiplication, a special function, a multiplication."""
    small = loop.passes(f"cap_in{i}", elements, 1, scores)
    return loop.passes(f"cap_out{i}", elements, 1, loop.exponential(f"cap_tanh{i}", elements, small))


def weighted_sum(loop: VariedLoop, i: int, scores: str, v: str, d: int, n: int, emulated: float = 0.0) -> None:
    """Softmax over [rows, n] scores in registers, weights times v added to the output, which stays where it is."""
    rows = loop.rows
    alpha, weights = online_softmax(loop, i, scores, rows, n, rows * n // THREADS, 2 if loop.hopper else 1,
                                    causal=False, emulated=emulated)  # fmt: skip
    packed = loop.fed(f"convert{i}", rows * n, *weights.split())
    scaled = loop.rescaled(f"correct{i}", f"pv{i}", rows * d, alpha)
    before = [scaled] if loop.hopper else []
    loop.product(f"pv{i}", rows, d, n, packed, v, *before, a="register", resident=True)
    loop.rescaled_first(scaled, f"pv{i}")
