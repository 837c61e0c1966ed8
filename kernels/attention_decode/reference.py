"""What the right decoding attention is, in torch: in float64 of the given values, on their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpplan.kernels.attention_fwd.reference import reference as attention_reference

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def reference(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int] | None = None, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(result [B, H, L, D], log-sum-exp [B, H, L]) of q [B, H, L, D] over the first ``lengths``\\ [b] keys of k and v
    [B, G, N, D], all of them by default; the last query stands at the last key."""
    import torch

    found = []
    for b in range(q.shape[0]):
        length = k.shape[2] if lengths is None else lengths[b]
        one = (q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length])
        found.append(attention_reference(*one, causal=True, scale=scale))
    out, lse = zip(*found, strict=True)
    return torch.cat(out), torch.cat(lse)
