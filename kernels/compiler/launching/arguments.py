"""A launch's arguments as a child process can make them again.

Tensors of another process's GPU memory cannot be had cheaply, and need not be: shapes, strides, types and aliasing are
kept, integers travel with their values, for those steer control flow, and floating point is drawn anew, the same
for every kernel that is compared. Nothing here launches anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.torch_types import Dtype, Tensor
from warpplan.kernels.triton_types import Json, KernelArgument
from warpplan.planner.errors import MeasurementFailed

MOST_INTEGER_BYTES = 64 * 2**20
"""Integers above this are not sent; they are a kernel's data then, not its offsets."""
MEMORY_SHARE = 0.25
"""Of the GPU's free memory, what copies beside a running job may take. Chosen by hand; doubled, a job that grows by
half of what is free meanwhile is pushed out of memory."""
GUARD_BYTES = 4096
"""Bytes before and after each copy, to detect writes out of bounds; a multiple of every alignment that Triton
specialises on."""
GUARD = 0xA5
"""The byte that guards are filled with: any that kernels seldom write."""


Later = list[Callable[[], None]]
"""What is left to do for a description, by a thread that may wait for the GPU."""


def describe(arguments: dict[str, KernelArgument], constants: set[str], storages: Storages) -> dict[str, Json]:
    """``{"arguments": […], "storages": […]}`` of bound ``arguments``, JSON but for the integers' values, which go to
    the files of ``storages``. ``constants`` are the names of constexprs, which a compiled kernel no longer takes.

    Waits for the GPU where there are integers, unless what writes them is done later. Raises :class:`CannotPlan` for an
    argument that cannot be copied, and :class:`MeasurementFailed` where there is no memory for such copies.
    """
    described = [
        {"kind": "constant"} if name in constants else _describe(name, value, storages)
        for name, value in arguments.items()
    ]
    return {"arguments": described, "storages": list(storages.found.values())}


class Storages:
    """The memory behind a launch's tensors, by its address. The integers in it go to files in ``folder``: at once, or
    copied on the GPU in the order of the stream and written by what is put into ``later``."""

    def __init__(self, folder: Path, later: Later | None = None) -> None:
        self.found: dict[int, dict[str, Json]] = {}
        self._folder, self._later = folder, later

    def index(self, name: str, tensor: Tensor) -> int:
        """The number of the storage of ``tensor``."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self.found:
            self.found[address] = _storage(name, tensor, len(self.found), self._folder, self._later)
        return list(self.found).index(address)


def _describe(name: str, value: KernelArgument, storages: Storages) -> dict[str, Json]:
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    if value is None or isinstance(value, (bool, int, float)):
        return {"kind": "scalar", "value": value}
    if type(value) is tuple:
        return {"kind": "tuple", "items": [_describe(name, item, storages) for item in value]}
    if isinstance(value, TensorDescriptor):
        return {
            "kind": "descriptor",
            "base": _describe(name, value.base, storages),
            "shape": [int(size) for size in value.shape],
            "strides": [int(stride) for stride in value.strides],
            "block_shape": [int(size) for size in value.block_shape],
            "padding": value.padding,
        }
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise CannotPlan(f"argument {name!r} of type {type(value).__name__} cannot be copied to the trial's process")
    if value.is_complex():
        raise CannotPlan(f"argument {name!r} of {value.dtype} cannot be copied to the trial's process")
    return {
        "kind": "tensor",
        "storage": storages.index(name, value),
        "dtype": _name(value.dtype),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "offset": value.data_ptr() - value.untyped_storage().data_ptr(),
    }


def _storage(name: str, tensor: Tensor, number: int, folder: Path, later: Later | None) -> dict[str, Json]:
    import torch

    storage = tensor.untyped_storage()
    size = storage.nbytes()
    file = None
    if not tensor.is_floating_point():
        if size > MOST_INTEGER_BYTES and tensor.element_size() > 1:
            raise CannotPlan(
                f"argument {name!r}: {size} bytes of {tensor.dtype} are too many to send to the trial's process, at "
                f"most {MOST_INTEGER_BYTES}"
            )
        if size <= MOST_INTEGER_BYTES:
            file = str(folder / f"{number}.bin")
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (size,))
            if later is None:
                Path(file).write_bytes(raw.cpu().numpy().tobytes())
            else:
                later.append(_writing(raw, Path(file)))
    return {"bytes": size, "dtype": _name(tensor.dtype), "file": file}


def _writing(raw: Tensor, file: Path) -> Callable[[], None]:
    """What writes the bytes of ``raw`` as they are at this place in the stream."""
    import torch

    on_gpu = raw.device.type == "cuda"
    if on_gpu and raw.numel() > MEMORY_SHARE * torch.cuda.mem_get_info(raw.device)[0]:
        raise MeasurementFailed(
            f"a copy of {raw.numel()} bytes of integers needs more than {MEMORY_SHARE} of what is free"
        )
    copy = raw.clone()
    done = torch.cuda.current_stream(raw.device).record_event() if on_gpu else None

    def write() -> None:
        if done is None:
            file.write_bytes(copy.numpy().tobytes())
            return
        done.synchronize()
        with torch.cuda.stream(torch.cuda.Stream(copy.device)):  # nothing of the job's waits for this copy
            file.write_bytes(copy.cpu().numpy().tobytes())

    return write


class Copies:
    """Arguments made from a description on the current device: each has memory of its own, all the same values; or
    that of ``memory``, for other views of the same storages. Floating-point numbers are normal, of standard deviation
    ``magnitude``."""

    def __init__(
        self, description: dict[str, Json], *, device: str = "cuda", seed: int = 0, magnitude: float = 1.0,
        memory: Copies | None = None,
    ) -> None:  # fmt: skip
        self._buffers: list[Tensor] = (
            [_filled(storage, seed + i, device, magnitude) for i, storage in enumerate(description["storages"])]
            if memory is None
            else memory._buffers
        )
        self._dtypes = [storage["dtype"] for storage in description["storages"]]
        self.values = [self._value(argument) for argument in description["arguments"]]

    def _value(self, argument: dict[str, Json]) -> KernelArgument:
        import torch

        kind = argument["kind"]
        if kind == "constant":
            return None
        if kind == "scalar":
            return argument["value"]
        if kind == "tuple":
            return tuple(self._value(item) for item in argument["items"])
        if kind == "descriptor":
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(
                self._value(argument["base"]),
                argument["shape"],
                argument["strides"],
                argument["block_shape"],
                argument["padding"],
            )
        dtype = getattr(torch, argument["dtype"])
        buffer = self._buffers[argument["storage"]]
        offset = (GUARD_BYTES + argument["offset"]) // dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=buffer.device)
        return empty.set_(buffer.untyped_storage(), offset, argument["shape"], argument["stride"])

    def contents(self) -> list[Tensor]:
        """Each storage as one flat tensor of its element type."""
        import torch

        return [
            buffer[GUARD_BYTES:-GUARD_BYTES].view(torch.uint8)[: _whole(buffer, dtype)].view(getattr(torch, dtype))
            for buffer, dtype in zip(self._buffers, self._dtypes, strict=True)
        ]

    def guards_intact(self) -> bool:
        """Whether nothing was written outside of the copies."""
        return all(
            bool((edge == GUARD).all())
            for buffer in self._buffers
            for edge in (buffer[:GUARD_BYTES], buffer[-GUARD_BYTES:])
        )


def bytes_of(description: dict[str, Json]) -> int:
    return sum(storage["bytes"] + 2 * GUARD_BYTES for storage in description["storages"])


def _whole(buffer: Tensor, dtype: str) -> int:
    import torch

    size = buffer.numel() - 2 * GUARD_BYTES
    return int(size - size % getattr(torch, dtype).itemsize)


def _filled(storage: dict[str, Json], seed: int, device: str, magnitude: float) -> Tensor:
    import torch

    dtype, size = getattr(torch, storage["dtype"]), storage["bytes"]
    buffer = torch.full((size + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
    content = buffer[GUARD_BYTES : GUARD_BYTES + size]
    if storage["file"] is not None:
        content.copy_(_sent(storage["file"], device)[:size])
        return buffer
    generator = torch.Generator(device=device).manual_seed(seed)
    typed = content[: size - size % dtype.itemsize].view(dtype)
    if dtype.is_floating_point:
        # In pieces: float32 on the way to an 8-bit type is four times the memory.
        for piece in typed.split(2**24):
            piece.copy_(torch.randn(piece.numel(), generator=generator, device=device).mul_(magnitude))
    else:
        content.random_(0, 2 if dtype is torch.bool else 256, generator=generator)
    return buffer


@functools.lru_cache(maxsize=4)
def _sent(file: str, device: str) -> Tensor:
    """The bytes of ``file``, which many copies begin with."""
    import torch

    return torch.frombuffer(bytearray(Path(file).read_bytes() or b"\0"), dtype=torch.uint8).to(device)


def _name(dtype: Dtype) -> str:
    return str(dtype).removeprefix("torch.")
