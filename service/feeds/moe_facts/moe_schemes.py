"""How a mixture-of-experts layer is quantised, in the words of those who read its tuning tables."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.errors import UnknownName


@dataclass(frozen=True)
class MoeScheme:
    """``selector`` is the ``dtype=`` of a table's name, "" for none; ``block`` the quantisation block's [n, k];
    ``per_channel`` whether each output channel and each token has a scale. Bytes are an element's."""

    name: str
    selector: str
    activation_bytes: int
    weight_bytes: int
    block: tuple[int, int] | None = None
    per_channel: bool = False

    @property
    def is_fp8(self) -> bool:
        return self.selector == "fp8_w8a8"


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        MoeScheme("bfloat16", "", 2, 2),
        MoeScheme("fp8_w8a8", "fp8_w8a8", 1, 1),
        MoeScheme("fp8_w8a8_per_channel", "fp8_w8a8", 1, 1, per_channel=True),
        MoeScheme("fp8_w8a8_block", "fp8_w8a8", 1, 1, block=(128, 128)),
        MoeScheme("int8_w8a8_per_channel", "int8_w8a8", 1, 1, per_channel=True),
        MoeScheme("int8_w8a8_block", "int8_w8a8", 1, 1, block=(128, 128)),
        MoeScheme("int8_w8a16", "int8_w8a16", 2, 1),
    )
}
"""float16 layers read bfloat16's table in both consumers."""


def scheme_named(name: str, known: tuple[str, ...]) -> MoeScheme:
    """The scheme called ``name`` among those that a consumer reads, ``known``; "float16" is bfloat16's.

    Raises :class:`UnknownName` listing them.
    """
    name = "bfloat16" if name == "float16" else name
    if name not in known:
        raise UnknownName("dtype", name, known)
    return SCHEMES[name]
