"""What the right gradients of attention are, in torch: in float64 of the given values, on their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpplan.kernels.attention_fwd.reference import seen_keys

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, causal: bool = False, window: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq, dk, dv) of softmax(``scale`` · q · kᵀ + mask) · v by ``do``, of q, o and do [B, H, L, D], k and v
    [B, G, M, D], a head at a time; dk and dv are sums over the heads that share a key head. ``o`` is the forward
    pass's result as it was rounded."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    seen = seen_keys(q.shape[2], k.shape[2], causal, window, q.device)
    sharers = q.shape[1] // k.shape[1]
    dq, dk, dv = (tensor.double() * 0 for tensor in (q, k, v))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            keys, values = k[b, h // sharers].double(), v[b, h // sharers].double()
            queries, slopes = q[b, h].double(), do[b, h].double()
            scores = (queries @ keys.T * factor).masked_fill(~seen, float("-inf"))
            # exp(-inf - -inf) is not a number: a row that sees no key is compared with 0 instead.
            weights = (scores - scores.logsumexp(-1).nan_to_num(neginf=0.0)[:, None]).exp()
            delta = (slopes * o[b, h].double()).sum(-1, keepdim=True)
            by_score = weights * (slopes @ values.T - delta) * factor
            dq[b, h] = by_score @ keys
            dk[b, h // sharers] += by_score.T @ queries
            dv[b, h // sharers] += weights.T @ slopes
    return dq, dk, dv


def packed_gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, q_starts: list[int], k_starts: list[int], *,
    causal: bool = False, window: int | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same of packed sequences, q, o and do [rows, H, D], k and v [keys, G, D], as
    :func:`~warpplan.kernels.attention_fwd.reference.packed_reference` has them; rows and keys of none have NaN."""
    found = [tensor.double() * float("nan") for tensor in (q, k, v)]
    for first, end, k_first, k_end in zip(q_starts, q_starts[1:], k_starts, k_starts[1:], strict=False):
        parts = (slice(first, end), slice(k_first, k_end), slice(k_first, k_end))
        if first == end or k_first == k_end:
            right = tuple(whole[part] * 0 for whole, part in zip((q, k, v), parts, strict=True))
        else:
            one = (t[part].transpose(0, 1)[None] for t, part in zip((do, q, k, v, o), (parts[0], *parts, parts[0]),
                                                                    strict=True))  # fmt: skip
            made = gradients(*one, causal=causal, window=window, scale=scale)
            right = tuple(tensor[0].transpose(0, 1) for tensor in made)
        for whole, part, values in zip(found, parts, right, strict=True):
            whole[part] = values
    return found[0], found[1], found[2]
