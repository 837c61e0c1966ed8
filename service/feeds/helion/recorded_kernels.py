"""Calls of Helion's kernels, recorded while a job's function runs without a GPU, and what Helion launches for them.

``FILE.py:function`` makes its tensors on ``device="cuda"``: they hold no data here. A kernel that is called computes
nothing; its outputs are allocated by its own host function. Helion believes that it is on the GPU that the entries are
for, and generates for it.

Source: helion 1.4.0 and 1.5.1, ``helion/runtime/kernel.py`` (``BoundKernel``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import Device
from warpplan.service.feeds.consumer_kernel import run_consumer
from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch, fla_on_paper

RECORDED = "_warpplan_recorded"
"""Attribute of the mode that a job's tensors are made in."""
ALIGNMENT, ALIGNED_BYTES = "tensor_descriptor_runtime_alignment_signature", 16
"""Helion 1.5.1's test of a tensor: is its address a multiple of 16 bytes, and is its storage offset 0?"""


@dataclass(frozen=True)
class RecordedKernel:
    """One key of one kernel: ``bound`` is Helion's kernel for the types and shapes of ``arguments``."""

    bound: Any
    arguments: tuple[object, ...]

    @property
    def name(self) -> str:
        return str(self.bound.kernel.name)

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel and its tensors' sizes, for people."""
        shapes = ["x".join(map(str, a.shape)) for a in self.arguments if hasattr(a, "shape")]
        return (self.name, *(shape or "scalar" for shape in shapes))

    def search(self) -> Any:
        """What Helion's caches compute their keys from."""
        from helion.autotuner import PatternSearch

        return PatternSearch(self.bound, self.arguments)

    def launch(self, config: Any) -> tuple[RecordedLaunch, Any]:
        """What Helion launches under ``config``, and the warps and stages as a ``triton.Config``. Raises
        :class:`InvalidInput` where that is not one kernel, and whatever Helion raises for a configuration."""
        import triton

        launched: list[tuple[RecordedLaunch, Any]] = []

        def note(kernel: Any, grid: Any, *arguments: object, num_warps: int, num_stages: int, **other: object) -> None:
            tuner = SimpleNamespace(fn=kernel, arg_names=kernel.arg_names)
            names = {name: value for name, value in other.items() if name in kernel.arg_names}
            options = triton.Config({}, num_warps=num_warps, num_stages=num_stages)
            launched.append((RecordedLaunch(self.name, None, tuner, arguments, names, grid), options))

        host = self.bound.compile_config(config, allow_print=False)
        with _without_data():
            host(*self.arguments, _launcher=note)
        if len(launched) != 1:
            raise InvalidInput(
                f"{self.name}: {len(launched)} kernels are launched for one call; one can be predicted",
                field="consumer", value=self.name,
            )  # fmt: skip
        return launched[0]


def record_kernels(consumer: str, gpu: Device) -> tuple[RecordedKernel, ...]:
    """The kernels that ``consumer`` (``FILE.py:function`` or ``module:function``) calls and Helion would tune, each key
    once. Within :func:`helion_on_paper`.

    Raises :class:`InvalidInput` where there is no such function, it raises, or it calls none.
    """
    from helion.runtime.kernel import BoundKernel, Kernel
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    found: dict[int, RecordedKernel] = {}

    def call_bound(bound: Any, *arguments: object) -> object:
        with unset_fake_temporarily():
            host = bound.compile_config(bound.config_spec.default_config(), allow_print=False)
        chosen = len(bound.kernel.configs) == 1 or bound.kernel.settings.autotune_effort == "none"
        if not chosen:  # by the user, or Helion's default: it asks no cache then
            found.setdefault(id(bound), RecordedKernel(bound, arguments))
        return host(*arguments, _launcher=lambda *_, **__: None)

    def call(kernel: Any, *positional: object, **keywords: object) -> object:
        arguments = tuple(kernel.normalize_args(*positional, **keywords))
        with unset_fake_temporarily():
            bound = kernel.bind(arguments)
        return call_bound(bound, *arguments)

    with (
        mock.patch.object(Kernel, "__call__", call), mock.patch.object(BoundKernel, "__call__", call_bound),
        _without_data(),
    ):  # fmt: skip
        run_consumer(consumer, 'on tensors without data that it makes on device="cuda"')
    if not found:
        raise InvalidInput(
            f"consumer {consumer}: it called no kernel that Helion would tune", field="consumer", value=consumer
        )
    return tuple(found.values())


@contextmanager
def helion_on_paper(gpu: Device) -> Iterator[None]:
    """Triton, torch and what Helion asks of torch answer for ``gpu``; tensors without data have the keys of a job's.
    Raises :class:`InvalidInput` where torch's CUDA release, part of Helion's key, is not known."""
    import torch
    from torch._dynamo.device_interface import CudaInterface

    if torch.version.cuda is None:
        raise InvalidInput(
            "this torch is built without CUDA, whose release is part of Helion's key: export where the job's own torch "
            "is installed (it needs no GPU)",
            field="target", value="helion",
        )  # fmt: skip
    with fla_on_paper(gpu):
        answers: dict[str, Any] = {
            "get_device_properties": staticmethod(torch.cuda.get_device_properties),
            "get_compute_capability": staticmethod(lambda *_: gpu.capability),
        }
        worker = type("PaperWorker", (CudaInterface.Worker,), {
            **answers, "current_device": staticmethod(lambda: 0), "set_device": staticmethod(lambda _: None),
        })  # fmt: skip
        with mock.patch.multiple(CudaInterface, **answers, Worker=worker), _keys_as_in_jobs():
            yield


@contextmanager
def _keys_as_in_jobs() -> Iterator[None]:
    """Helion's keys are texts, in which sizes of tensors without data are written otherwise; and it takes none of them
    to be aligned, as memory that is allocated is."""
    from helion._compiler import compile_environment
    from helion.runtime.kernel import _specialization_extractors as extractors
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor

    concrete, traced = extractors[Tensor], extractors[FakeTensor]
    alignment = getattr(compile_environment, ALIGNMENT, lambda _: (False, False))

    def key(kernel: Any, tensor: Any) -> object:
        return (concrete if _is_recorded(tensor) else traced)(kernel, tensor)

    def aligned(value: Any) -> object:
        if not _is_recorded(value):
            return alignment(value)
        offset = value.storage_offset()
        return offset * value.element_size() % ALIGNED_BYTES == 0, offset == 0

    # 1.4.0 has no such test, and nothing calls this one.
    with (
        mock.patch.dict(extractors, {FakeTensor: key}),
        mock.patch.object(compile_environment, ALIGNMENT, aligned, create=True),
    ):
        yield


def _is_recorded(value: object) -> bool:
    """Whether it is a tensor of the job's; Helion has some without data of its own."""
    return getattr(getattr(value, "fake_mode", None), RECORDED, False)


@contextmanager
def _without_data() -> Iterator[None]:
    from torch._subclasses import fake_tensor

    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    setattr(mode, RECORDED, True)
    # The first tensor of a mode would start the GPU that torch believes in, of which there may be none.
    with mock.patch.object(fake_tensor, "init_gpu_context"), mode:
        yield
