"""What the right attention is, in torch: in float64 of the given values, on their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def seen_keys(q_length: int, k_length: int, causal: bool, window: int | None, device: object) -> Tensor:
    """Which key each query sees, bool [q_length, k_length]; the last query stands at the last key."""
    import torch

    position = torch.arange(k_length - q_length, k_length, device=device)[:, None]
    key = torch.arange(k_length, device=device)[None, :]
    seen = torch.ones(q_length, k_length, dtype=torch.bool, device=device)
    if causal:
        seen &= key <= position
    if window is not None:
        seen &= (key >= position - window) & (key <= position + window)
    return seen


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None,
    scales: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(softmax(``scale`` · q · kᵀ + mask) · v [B, H, L, D], log-sum-exp [B, H, L]) of q [B, H, L, D], k and v
    [B, G, M, D], a head at a time, all times their ``scales`` of one element, [H] (or [G]), or [B, H], where those are
    given. A query that sees no key has zeros, and minus infinity."""
    if scales is not None:
        q, k, v = (
            tensor.double() * of_heads.double().expand(tensor.shape[:2])[..., None, None]
            for tensor, of_heads in zip((q, k, v), scales, strict=True)
        )
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    seen = seen_keys(q.shape[2], k.shape[2], causal, window, q.device)
    sharers = q.shape[1] // k.shape[1]
    out, lse = q.double().clone(), q.double()[..., 0].clone()
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            keys, values = k[b, h // sharers].double(), v[b, h // sharers].double()
            scores = (q[b, h].double() @ keys.T * factor).masked_fill(~seen, float("-inf"))
            lse[b, h] = scores.logsumexp(-1)
            # exp(-inf - -inf) is not a number: a row that sees no key is compared with 0 instead.
            weights = (scores - lse[b, h].nan_to_num(neginf=0.0)[:, None]).exp()
            out[b, h] = weights @ values
    return out, lse


def packed_reference(
    q: Tensor, k: Tensor, v: Tensor, q_starts: list[int], k_starts: list[int], *, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same of packed sequences, q [rows, H, D], k and v [keys, G, D]: ([rows, H, D], [H, rows]). Sequence s has the
    rows and the keys from ``starts``\\ [s] to ``starts``\\ [s + 1]; rows of none have NaN."""
    out = q.double() * float("nan")
    lse = out[..., 0].T.clone()
    for first, end, k_first, k_end in zip(q_starts, q_starts[1:], k_starts, k_starts[1:], strict=False):
        if first == end:
            continue
        one = (t.transpose(0, 1)[None] for t in (q[first:end], k[k_first:k_end], v[k_first:k_end]))
        right, statistics = reference(*one, causal=causal, window=window, scale=scale)
        out[first:end], lse[:, first:end] = right[0].transpose(0, 1), statistics[0]
    return out, lse
