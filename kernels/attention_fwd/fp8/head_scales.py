"""The scales of fp8 Q, K and V on their way to the kernel: where each head's number lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpplan.planner.errors import InvalidShape

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor

SCALE_FORMS = "one element, [{heads}] or [{batch}, {heads}]"
NO_SCALES = ((None,) * 3, (0,) * 6)


def head_scales(
    scales: tuple[Tensor, Tensor, Tensor] | None, q: Tensor, batch: int, heads: int, kv_heads: int
) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """(the scales of Q, K and V or None, the strides in elements of each from one batch and from one head to the next).

    Scales multiply. Each is float32 beside ``q``, of one element, of the heads, or of the heads of each batch, with any
    strides. Raises :class:`InvalidShape` naming the scale, its shape and what it may be, where they are missing for
    fp8, or given for another dtype.
    """
    if q.element_size() > 1:
        if scales is not None:
            raise InvalidShape(f"operands of {q.dtype} have no scales: leave them out", field="scales")
        return NO_SCALES
    if scales is None or len(scales) != 3:
        raise InvalidShape("fp8 operands need scales=(of q, of k, of v) in float32", field="scales")
    strides: list[int] = []
    for name, scale, count in zip("qkv", scales, (heads, kv_heads, kv_heads), strict=True):
        if str(scale.dtype) != "torch.float32" or scale.device != q.device:
            raise InvalidShape(
                f"the scale of {name} is {scale.dtype} on {scale.device}: expected torch.float32 on {q.device}",
                field="scales",
            )
        shape, found = tuple(scale.shape), tuple(scale.stride())
        if scale.numel() == 1:
            strides += (0, 0)
        elif shape == (count,):
            strides += (0, found[0])
        elif shape == (batch, count):
            strides += found
        else:
            raise InvalidShape(
                f"the scale of {name} is {shape}: expected {SCALE_FORMS.format(batch=batch, heads=count)}",
                field="scales", value=shape, limit=(batch, count),
            )  # fmt: skip
    return scales, tuple(strides)
