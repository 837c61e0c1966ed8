"""Entries for the disk cache of ``@triton.autotune(cache_results=True)``.

The consumer is not changed and does not know us: at its first launch of a shape Triton's autotuner looks for
``$TRITON_CACHE_DIR/<hash>/<function>.autotune.json``, takes the fastest configuration in it and benchmarks nothing.
We do not imitate that file: the consumer's own autotuner writes it (:mod:`~.paper_launch`), with the
plan's predicted time in place of a measurement. So an entry is right by construction for the Triton installed here.

An entry is valid for all that Triton hashes: the very same build of ``libtriton`` (wheels for two Python versions
differ), ptxas, the GPU *architecture* (sm_90: an H100 and an H200 fall on one entry), the kernel's source, its line
number and the functions and constants it uses, the environment variables that change compilation, the key values and
dtypes, and the pruned list of configurations. Anything else is a miss, and the consumer tunes as it always did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from warpplan.kernels import registry
from warpplan.kernels.declaration import options_of
from warpplan.kernels.registry import Kernel
from warpplan.planner.errors import Infeasible, InvalidInput, StoreError
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.tuning import Scalar, TuningConfig
from warpplan.service.feeds import provenance
from warpplan.service.feeds.consumer_kernel import ConsumerKernel, Launch, call, load, rename
from warpplan.service.feeds.feed_report import (
    ExportedEntry,
    ExportReport,
    ExportRow,
    SkippedRow,
    VerifiedEntry,
    VerifyReport,
    shape_text,
)
from warpplan.service.feeds.machine_here import machine_here
from warpplan.service.feeds.paper_launch import read_entry, target_of, tuning_of, write_entry
from warpplan.service.feeds.targets import FeedRequest

TARGET = "triton"
DESCRIPTION = "disk cache of @triton.autotune(cache_results=True)"
EVERY_PLAN = 1_000_000

Identity = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Options:
    """How a consumer's names relate to a plan's; see :func:`~warpplan.service.feeds.consumer_kernel.call` and
    :func:`~warpplan.service.feeds.consumer_kernel.rename`.

    ``kernel`` is the warpplan kernel that the consumer computes; ``renames`` plan name → consumer's constexpr;
    ``key_map`` parameter → dimension; ``tensors`` parameter → dtype or "none"; ``arguments`` parameter → value.
    ``only_listed`` keeps to configurations in the consumer's own list (Triton accepts others).
    """

    kernel: str = registry.DEFAULT
    renames: Mapping[str, str] = field(default_factory=dict)
    key_map: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    only_listed: bool = False


def export(request: FeedRequest) -> ExportReport:
    """The request's rows for the kernel that it names; see :func:`export_triton`."""
    return export_triton(_consumer(request), request.rows(), request.out, request.options, planner=request.planner)


def verify(request: FeedRequest) -> VerifyReport:
    """The same rows looked up; see :func:`verify_triton`."""
    return verify_triton(_consumer(request), request.rows(), request.out, request.options)


def _consumer(request: FeedRequest) -> str:
    if not request.consumer:
        raise InvalidInput(
            "--target triton needs --consumer: the job's autotuned kernel, FILE.py:function or module:function",
            field="consumer",
        )
    return request.consumer


def export_triton(
    consumer: str, rows: Iterable[ExportRow], out: Path, options: Options | None = None, *, planner: str = ""
) -> ExportReport:
    """Write an entry for each row into ``out``, the consumer's ``$TRITON_CACHE_DIR``; existing entries are replaced,
    and what a job has measured is kept beside. A row with an option of its shape is skipped: the consumer's key tells
    it from no other.

    ``consumer`` is ``FILE.py:function`` or ``package.module:function``; importing it runs its module. Needs triton, no
    GPU and no torch (unless the consumer's module imports it). Each entry is written atomically: ``out`` may be in use.
    Beside it lies its provenance, with ``planner``, the version that chose it.

    Raises :class:`InvalidInput` (no triton; a consumer that cannot be loaded or mapped, or that Triton would not cache;
    two rows that fall on one entry with unlike configurations: nothing is written then), :class:`Infeasible` (no plan
    is in the consumer's list, under ``only_listed``) and :class:`StoreError` (``out`` cannot be written).
    """
    options = options or Options()
    kernel = registry.kernel(options.kernel)
    loaded = load_consumer(consumer, kernel.declaration.dimensions)
    wanted, skipped = _plain(rows)
    chosen = [(row, *_choose(loaded, kernel, row, options)) for row in wanted]
    # Looked up first, so that rows in conflict leave the cache as it was.
    seen: dict[str, tuple[ExportRow, TuningConfig]] = {}
    for row, config, _ in chosen:
        path = read_entry(loaded, _launch(loaded, kernel, row, options), device(row.device), out).path
        other, theirs = seen.setdefault(path, (row, config))
        if theirs != config:
            raise InvalidInput(
                f"{_label(other)} and {_label(row)} fall on one entry of {loaded.spec} with unlike configurations: "
                "its key does not tell GPUs of one architecture or sizes outside key= apart, so export one of them",
                field="rows",
                value=[_label(other), _label(row)],
            )
    kept = [copy for path in seen for copy in keep_measured(Path(path))]
    entries = []
    for row, config, time_us in chosen:
        written = write_entry(loaded, _launch(loaded, kernel, row, options), device(row.device), config, time_us, out)
        entries.append(ExportedEntry(row.shape, row.dtype, row.device, written.key, written.path, config, time_us))
        note_provenance(Path(written.path), row.device, codec.key(row.profile), planner)
    identity = identity_of(loaded, [row.device for row, _, _ in chosen])
    write_manifest(loaded, out, identity)
    return ExportReport(TARGET, consumer, str(out), identity, tuple(entries), skipped, tuple(kept))


def verify_triton(consumer: str, rows: Iterable[ExportRow], out: Path, options: Options | None = None) -> VerifyReport:
    """Will the consumer find an entry in ``out`` for each row, and what will it run? Writes nothing.

    The answer is the consumer's own autotuner's, reading the file at the path it computes here: run it with the Triton
    and the environment of the job. Raises as :func:`export_triton` does.
    """
    options = options or Options()
    kernel = registry.kernel(options.kernel)
    loaded = load_consumer(consumer, kernel.declaration.dimensions)
    wanted, skipped = _plain(rows)
    identity = identity_of(loaded, [row.device for row in wanted])
    entries = []
    for row in wanted:
        planned, _ = _choose(loaded, kernel, row, options)
        found = read_entry(loaded, _launch(loaded, kernel, row, options), device(row.device), out)
        if found.damage:
            reason = f"the entry is damaged and the launch will fail ({found.damage}): remove {found.path}"
        elif found.config is None:
            reason = why_missing(loaded, out, identity)
        else:
            reason = why_stale(Path(found.path), row.device)
        hit = found.config is not None and not reason
        if hit:
            older = "" if found.config == planned else "not today's plan: an older one, or measured by the job"
            reason = "; ".join(filter(None, (older, provenance.why_unknown(Path(found.path)))))
        config = found.config if hit else None
        entries.append(VerifiedEntry(row.shape, row.dtype, row.device, hit, found.path, config, reason))
    return VerifyReport(TARGET, consumer, str(out), identity, tuple(entries), skipped)


def note_provenance(entry: Path, device_name: str, profile_key: str, planner: str) -> None:
    """What Triton's own key does not hold, beside the entry: GPU, driver, profile, planner and date."""
    import triton

    here = machine_here()
    made = provenance.planned(
        TARGET, device=device_name, driver=here.driver if device_name in here.gpus else "",
        profile=profile_key, planner=planner, versions={"triton": triton.__version__},
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


def why_stale(entry: Path, device_name: str) -> str:
    """Why Triton would take an entry that no longer holds; empty where it holds, or where nobody knows:
    :func:`~warpplan.service.feeds.provenance.why_unknown`."""
    found = provenance.read_beside(entry)
    if found is None:
        return ""
    if found.device and found.device != device_name:
        return (
            f"Triton would take the entry for {found.device}, whose architecture is the same: export for {device_name}"
        )
    return found.stale(machine_here(), {})


def _plain(rows: Iterable[ExportRow]) -> tuple[list[ExportRow], tuple[SkippedRow, ...]]:
    """Rows whose shapes have no options, and the others with the reason why an entry cannot stand for them. Raises
    :class:`InvalidInput` where nothing is left."""
    given = list(map(ExportRow._make, rows))
    plain = [row for row in given if not options_of(row.shape)]
    skipped = []
    for row in given:
        if named := options_of(row.shape):
            chosen = ", ".join(f"{name}={value}" for name, value in named.items())
            reason = f"{chosen} is no part of the consumer's key, and its kernel computes the default"
            skipped.append(SkippedRow(row.shape, row.dtype, row.device, reason))
    if not plain:
        every = f": every shape has an option, such as {shape_text(skipped[0].shape)}" if skipped else ""
        raise InvalidInput(
            f"there is nothing to export{every}: give shapes without options, or a store that holds some", field="rows"
        )
    return plain, tuple(skipped)


def load_consumer(consumer: str, dimensions: Sequence[str]) -> ConsumerKernel:
    """The kernel at ``consumer``, whose key should name ``dimensions``. Raises :class:`InvalidInput`."""
    if find_spec("triton") is None:
        raise InvalidInput(
            "exporting to Triton's cache needs the job's own triton here: pip install 'warpplan[gpu]'",
            field="target",
            value=TARGET,
        )
    return load(consumer, dimensions)


def _choose(consumer: ConsumerKernel, kernel: Kernel, row: ExportRow, options: Options) -> tuple[TuningConfig, float]:
    """The best-ranked plan that can be said in the consumer's names, in those names, and its predicted time in µs."""
    # Consumers are ordinary ``tl`` kernels: only a portable plan can be said in their names.
    ranked = kernel.rank(
        row.shape,
        row.dtype,
        device(row.device),
        row.profile,
        limit=EVERY_PLAN if options.only_listed else 1,
        portable=True,
    )
    listed = [tuning_of(c) for c in consumer.tuner.configs]
    for plan in ranked:
        config = rename(consumer, plan.config, options.renames, kernel.declaration.consumers)
        if not options.only_listed or config in listed:
            return config, plan.prediction.time_us
    raise Infeasible(
        f"none of the {len(ranked)} plans for {_label(row)} is in the list of {consumer.spec}: "
        "export without --only-listed, or add one to the list",
        field="consumer",
        value=consumer.spec,
    )


def _launch(consumer: ConsumerKernel, kernel: Kernel, row: ExportRow, options: Options) -> Launch:
    return call(
        consumer, kernel.declaration, row.shape, row.dtype,
        key_map=options.key_map, tensors=options.tensors, arguments=options.arguments,
    )  # fmt: skip


def _label(row: ExportRow) -> str:
    return f"{shape_text(row.shape)} {row.dtype} on {row.device}"


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
