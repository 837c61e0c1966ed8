"""The facts that a consumer's configurations are priced by: captured from the installed kernel, or the ones that ship
where that is the very kernel they were captured from, or where none is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from warpplan.planner.errors import InvalidConfig, InvalidInput
from warpplan.service.feeds.moe_facts.installed_consumer import InstalledConsumer
from warpplan.service.feeds.moe_facts.moe_kernels import MoeKernel, MoeTile, captured
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme
from warpplan.service.feeds.moe_facts.shipped_facts import TileFacts, kernel_digest, shipped
from warpplan.service.feeds.moe_facts.tuning_space import tiles


@dataclass(frozen=True)
class KernelSource:
    """``tiles`` with their facts; ``origin`` says in words where they are from; ``digest`` of the kernel. Two of one
    kernel and origin are equal."""

    tiles: Mapping[MoeTile, TileFacts] = field(compare=False)
    origin: str
    digest: str
    scheme: str


def kernel_source(kernel: MoeKernel, scheme: MoeScheme, installed: InstalledConsumer | None) -> KernelSource:
    """What ``scheme`` is planned from. Capturing takes a few tenths of a second a tile.

    Raises :class:`InvalidInput` where the installed kernel is another than the one that ships and Triton is absent, or
    where there is neither.
    """
    recorded = shipped(kernel.consumer, scheme.name)
    digest = kernel_digest(installed.site / kernel.path, kernel.function) if installed is not None else ""
    if recorded is not None and (installed is None or digest == recorded.kernel):
        origin = f"{recorded.consumer} {recorded.version}, captured with triton {recorded.triton} on {recorded.date}"
        return KernelSource(recorded.tiles, origin, recorded.kernel, scheme.name)
    if installed is None:
        raise InvalidInput(
            f"no facts of {kernel.consumer}'s kernel for {scheme.name} ship: install {kernel.consumer} and triton, "
            "or give the folder that holds it with --consumer",
            field="consumer", value=kernel.consumer,
        )  # fmt: skip
    if find_spec("triton") is None:
        raise InvalidInput(
            f"the kernel of {kernel.consumer} {installed.version} is not the one whose facts ship: capturing it needs "
            "triton here: pip install 'warpplan[gpu]'",
            field="consumer", value=installed.version,
        )  # fmt: skip
    import triton

    function = kernel.load(installed.site)
    found = {}
    for tile in tiles(scheme):
        with contextlib.suppress(InvalidConfig):  # what this Triton does not compile, the job's does not run
            found[tile] = TileFacts(captured(kernel, function, scheme, tile))
    origin = f"{kernel.consumer} {installed.version}, captured here with triton {triton.__version__}"
    return KernelSource(found, origin, digest, scheme.name)
