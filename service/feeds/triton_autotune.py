"""Entries for the disk cache of ``@triton.autotune(cache_results=True)``: whose they are, and what they hold for.

The consumer is not changed and does not know us: at its first launch of a shape Triton's autotuner looks for
``$TRITON_CACHE_DIR/<hash>/<function>.autotune.json``, takes the fastest configuration in it and benchmarks nothing.
We do not imitate that file: the consumer's own autotuner writes it (:mod:`~.paper_launch`). So an entry is right by
construction for the Triton installed here. What is written is what ``warpplan tune`` has kept of that very kernel
(:mod:`~warpplan.service.tuning.tuned_entries`): sizes and dtypes alone do not say how it is launched.

An entry is valid for all that Triton hashes: the very same build of ``libtriton`` (wheels for two Python versions
differ), ptxas, the GPU *architecture* (sm_90: an H100 and an H200 fall on one entry), the kernel's source, its line
number and the functions and constants it uses, the environment variables that change compilation, the key values and
dtypes, and the pruned list of configurations. Anything else is a miss, and the consumer tunes as it always did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.planner.values.device import Device, device
from warpplan.service.feeds import provenance
from warpplan.service.feeds.consumer_kernel import ConsumerKernel, load
from warpplan.service.feeds.machine_here import driver_for, job_machine
from warpplan.service.feeds.moe_facts.installed_consumer import find_consumer, require_tested
from warpplan.service.feeds.paper_launch import target_of
from warpplan.service.feeds.targets import FeedRequest

TARGET = "triton"
DESCRIPTION = "disk cache of @triton.autotune(cache_results=True)"
TESTED = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")

Identity = tuple[tuple[str, str], ...]


def export(request: FeedRequest) -> NoReturn:
    """Raises :class:`InvalidInput`, which names the way out: a request has no launch that a kernel could be ranked
    for."""
    kernel = request.consumer or "FILE.py:KERNEL"
    raise InvalidInput(
        f"--target triton writes what {kernel} itself was tuned for, and shapes alone do not say how it is launched: "
        f"keep its answers with `warpplan tune {kernel} --shapes ... --signature ... --grid ... --store FILE`, then "
        f"give --tuned --consumer {kernel} --store FILE, and no shapes",
        field="tuned",
    )


def verify(request: FeedRequest) -> NoReturn:
    """As :func:`export`."""
    export(request)


def note_provenance(entry: Path, device_name: str, profile_key: str, planner: str, driver: str = "") -> None:
    """What Triton's own key does not hold, beside the entry: GPU, profile, planner, date, and the driver: ``driver``,
    else this machine's."""
    import triton

    made = provenance.planned(
        TARGET, device=device_name, driver=driver_for(device_name, driver), profile=profile_key, planner=planner,
        versions={"triton": triton.__version__},
    )  # fmt: skip
    provenance.write_beside(entry, replace(made, digest=provenance.digest_of(entry.read_bytes())))


def keep_measured(entry: Path) -> tuple[str, ...]:
    """The copy of the entry at ``entry``, about to be replaced, where no plan made it; see
    :func:`~warpplan.service.feeds.provenance.keep_replaced`. Raises :class:`StoreError`."""
    found = provenance.read_beside(entry)
    if found is not None and found.profile:
        return ()
    try:
        return provenance.keep_replaced(entry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write beside {entry}: {reason}", field="out", value=str(entry.parent)) from error


def why_stale(entry: Path, device_name: str, driver: str = "") -> str:
    """Why Triton would take an entry that no longer holds where ``driver`` runs, this machine's where it is empty;
    empty where it holds, or where nobody knows: :func:`why_unknown`."""
    found = provenance.read_beside(entry)
    if found is None:
        return ""
    if found.device and found.device != device_name:
        return (
            f"Triton would take the entry for {found.device}, whose architecture is the same: export for {device_name}"
        )
    return found.stale(job_machine(driver), {})


def why_unknown(entry: Path, driver: str = "") -> str:
    """Why nobody knows what the file ``entry`` was made from, or for which driver; "" where its provenance says it."""
    found = provenance.read_beside(entry)
    if found is None:
        return provenance.why_unknown(entry)
    return found.driver_unknown(job_machine(driver))


def load_consumer(consumer: str, *, untested: bool = False) -> ConsumerKernel:
    """The kernel at ``consumer``. Raises :class:`InvalidInput`, also for a Triton that was not tested, unless
    ``untested`` allows it."""
    installed = find_consumer("triton")
    if installed is None:
        raise InvalidInput(
            "exporting to Triton's cache needs the job's own triton here: pip install 'warpplan[gpu]'",
            field="target",
            value=TARGET,
        )
    require_tested(installed, TESTED, untested=untested)
    return load(consumer)


def identity_of(consumer: ConsumerKernel, devices: Iterable[str]) -> Identity:
    """What entries are valid for, beside their own keys. Only compared and shown: Triton makes its own hash of it."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    gpus: dict[int, Device] = {device(name).capability: device(name) for name in devices}
    environment = sorted(get_cache_invalidating_env_vars().items())
    return (
        ("triton", f"{triton.__version__} (build {_digest(triton_key())})"),
        ("architecture", ", ".join(f"sm_{capability}" for capability in sorted(gpus))),
        ("ptxas", _digest("".join(make_backend(target_of(gpus[c])).hash() for c in sorted(gpus)))),
        ("source", f"{consumer.name} ({_digest(consumer.function.cache_key)})"),
        ("configurations", _digest("-".join(map(str, consumer.tuner.configs)))),
        ("environment", ", ".join(f"{k}={v}" for k, v in environment) or "(default)"),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _manifest(consumer: ConsumerKernel, out: Path) -> Path:
    # Triton looks into folders named by hashes only, so a file beside them is never in its way.
    return out / f"warpplan-{consumer.name}.json"


def write_manifest(consumer: ConsumerKernel, out: Path, identity: Identity) -> None:
    path = _manifest(consumer, out)
    fields = {"target": TARGET, "consumer": consumer.name, "identity": dict(identity)}
    try:
        provenance.write_whole(path, json.dumps(fields, indent=2).encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", field="out", value=str(out)) from error


def why_missing(consumer: ConsumerKernel, out: Path, identity: Identity) -> str:
    try:
        exported = dict(json.loads(_manifest(consumer, out).read_bytes())["identity"])
    except (FileNotFoundError, NotADirectoryError):
        return f"nothing was exported for {consumer.name} into {out}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"no entry, and {_manifest(consumer, out)} is damaged: export again"
    changed = [f"{name} {exported.get(name)}, here {value}" for name, value in identity if exported.get(name) != value]
    if changed:
        return f"exported for {'; '.join(changed)}: export again"
    return "no entry for these sizes and dtypes: export them"
