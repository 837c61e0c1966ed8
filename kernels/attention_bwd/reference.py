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
