"""The vector addition on a GPU, to the bit: random values of awkward lengths, and nothing written beside the result."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.vector_add.kernel import VectorAdd  # noqa: E402
from warpplan.kernels.vector_add.launch import vector_add  # noqa: E402
from warpplan.kernels.vector_add.reference import reference  # noqa: E402
from warpplan.kernels.vector_add.space import ELEMENT_BYTES, candidates, tuning  # noqa: E402
from warpplan.planner.errors import InvalidShape, UnknownName  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

LENGTHS = (1, 127, 128, 1_000_003, 2**26 + 5)
BESIDE = 8192
"""Elements of poison after the result: more than the largest block writes beyond its end without a mask."""


def check(config, length, dtype, offset=0):
    """Operands ``offset`` elements into their buffers: 0 starts them on 16 bytes, 1 does not."""
    generator = torch.Generator("cuda").manual_seed(length)
    x, y = (torch.randn(length + offset, device="cuda", generator=generator).to(dtype)[offset:] for _ in range(2))
    buffer = torch.full((offset + length + BESIDE,), float("nan"), device="cuda", dtype=dtype)
    out = buffer[offset : offset + length]
    assert vector_add(x, y, config, out=out) is out
    # In pieces: a float64 copy of the longest vectors would take gigabytes.
    for piece in range(0, length, 1 << 24):
        part = slice(piece, piece + (1 << 24))
        assert torch.equal(out[part], reference(x[part], y[part]))
    assert bool(buffer[:offset].isnan().all())
    assert bool(buffer[offset + length :].isnan().all()), "wrote behind the end"


@pytest.mark.parametrize("dtype", list(ELEMENT_BYTES))
@pytest.mark.parametrize("length", LENGTHS)
def test_the_chosen_configuration(length, dtype):
    best = VectorAdd().rank((length,), dtype, H200, embedded(H200.name), limit=1)[0]
    check(best.config, length, getattr(torch, dtype))


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("config", candidates("float32"), ids=repr)
def test_every_configuration(config, offset):
    for dtype in ELEMENT_BYTES:
        check(tuning(config), 1_000_003, getattr(torch, dtype), offset)


def test_operands_that_cannot_be_added():
    config = candidates("float32")[0]
    x = torch.zeros(64, device="cuda")
    for y, field in (
        (torch.zeros(63, device="cuda"), "y"),
        (torch.zeros(64, device="cuda", dtype=torch.float16), "y"),
        (torch.zeros(64), "y"),
        (torch.zeros(128, device="cuda")[::2], "y"),
    ):
        with pytest.raises(InvalidShape) as caught:
            vector_add(x, y, config)
        assert caught.value.field == field
    for bad in (torch.zeros(8, 8, device="cuda"), torch.zeros(0, device="cuda"), torch.zeros(64)):
        with pytest.raises(InvalidShape):
            vector_add(bad, bad, config)
    with pytest.raises(UnknownName, match="float64"):
        vector_add(x.double(), x.double(), config)
    with pytest.raises(InvalidShape, match="out is"):
        vector_add(x, x, config, out=torch.zeros(65, device="cuda"))
