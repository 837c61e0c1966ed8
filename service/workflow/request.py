"""A question as a user gives it, unchecked, and the check that makes it a :class:`ConfigRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warpplan.kernels import registry
from warpplan.kernels.registry import Kernel
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import Device, device
from warpplan.service.config_request import ConfigRequest

DEFAULT_DTYPE = "bfloat16"
DEFAULT_DEVICE = "NVIDIA H200"


@dataclass(frozen=True)
class Item:
    """An unchecked question, as a query string, a line of a file or an element of a batch gives it. ``shape`` has the
    sizes and options that were given, by name."""

    kernel: str
    shape: tuple[tuple[str, object], ...]
    dtype: str = DEFAULT_DTYPE
    device: str | None = None
    name: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, object], *, kernel: str = registry.DEFAULT) -> Item:
        """Read ``{"kernel", "dtype", "device", "name"}``, and sizes and options either beside them or under ``shape``.

        ``kernel`` is what an absent one means. Raises :class:`InvalidInput` for a field of the wrong type; sizes and
        options are judged by the kernel itself in :func:`check`.
        """
        texts: dict[str, str] = {}
        shape: dict[str, object] = {}
        under = fields.get("shape")
        for name in under if isinstance(under, Mapping) else ():
            if name in fields:
                raise InvalidInput(
                    f"{name} is given twice, beside shape and in it: give it once", field=name, value=fields[name]
                )
        for field, value in fields.items():
            require_whole_text(field, value)
            if field in ("kernel", "dtype", "device", "name"):
                if value is None:
                    continue
                if not isinstance(value, str):
                    raise InvalidInput(f"{field}={value!r} is not text", field=field, value=value)
                texts[field] = value
            elif field == "shape":
                if not isinstance(value, Mapping):
                    raise InvalidInput(
                        f"shape={value!r} is not an object of sizes such as {example_size()}", field=field, value=value
                    )
                shape |= {str(name): given for name, given in value.items()}
            else:
                shape[field] = value
        return cls(
            texts.get("kernel", kernel),
            tuple(shape.items()),
            texts.get("dtype", DEFAULT_DTYPE),
            texts.get("device"),
            texts.get("name", ""),
        )


def require_whole_text(field: str, value: object) -> None:
    """Raise :class:`InvalidInput` where a field's name, its text or a text within it holds half of a character (a lone
    surrogate), which JSON can escape and nothing can print or keep. Values nest no deeper than the parser lets them."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            require_whole_text(f"{field}.{name}", item)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            require_whole_text(f"{field}[{at}]", item)
    for text in (field, value):
        if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
            shown, held = (t.encode("utf-8", "backslashreplace").decode() for t in (field, text))
            raise InvalidInput(
                f"{shown} holds half of a character (a lone surrogate): expected whole text", field=shown, value=held
            )


def check(item: Item, default_device: str = DEFAULT_DEVICE) -> tuple[ConfigRequest, Kernel, Device]:
    """The problem that ``item`` states, with its kernel and device.

    Raises :class:`UnknownName` for a kernel, dtype or device nobody knows and :class:`InvalidShape` for its sizes and
    options.
    """
    kernel = registry.kernel(item.kernel)
    kernel.declaration.require_dtype(item.dtype)
    gpu = device(default_device if item.device is None else item.device)
    shape = kernel.parse_shape(dict(item.shape), item.dtype)
    return ConfigRequest(item.kernel, kernel.declaration.dimensions, shape, item.dtype, gpu.name), kernel, gpu


def check_declared(item: Item, default_device: str = DEFAULT_DEVICE) -> ConfigRequest:
    """The problem that ``item`` states, as the kernel's declaration allows it, for a consumer whose own kernel computes
    the same: what our launches need beyond that, such as rows that TMA can address, is not asked.

    Raises as :func:`check`.
    """
    declared = registry.kernel(item.kernel).declaration
    declared.require_dtype(item.dtype)
    gpu = device(default_device if item.device is None else item.device)
    shape = declared.parse_shape(dict(item.shape))
    return ConfigRequest(item.kernel, declared.dimensions, shape, item.dtype, gpu.name)


def example_size() -> dict[str, int | str]:
    """One size by its name, for messages: the first of the default kernel's first example."""
    declared = registry.kernel(registry.DEFAULT).declaration
    return {declared.dimensions[0]: declared.examples[0][0]}
