"""Kept configurations of somebody's kernel in Triton's own cache: planned, or measured, for that kernel and no other.

The kernel's autotuner writes and reads the entries itself, as in :mod:`~warpplan.service.feeds.triton_autotune`; the
arguments of a launch are those of the signature that the kernel was tuned with.
"""

from __future__ import annotations

from pathlib import Path

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import device
from warpplan.service.feeds.consumer_kernel import ConsumerKernel, Launch, positional_first
from warpplan.service.feeds.feed_report import ExportedEntry, ExportReport, VerifiedEntry, VerifyReport
from warpplan.service.feeds.paper_launch import Found, read_entry, write_entry
from warpplan.service.feeds.provenance import why_unknown
from warpplan.service.feeds.triton_autotune import (
    TARGET,
    identity_of,
    keep_measured,
    load_consumer,
    note_provenance,
    why_missing,
    why_stale,
    write_manifest,
)
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import Tunings
from warpplan.service.tuning.derived_values import argument_of
from warpplan.service.tuning.kernel_choice import KernelChoice, choices
from warpplan.service.tuning.launch_ranking import sorted_kwargs


def export_tuned(spec: str, answers: KernelAnswers, tunings: Tunings, device_name: str, out: Path) -> ExportReport:
    """An entry in ``out``, the job's ``$TRITON_CACHE_DIR``, for each kept answer of the kernel at ``spec`` as it is
    now. Raises :class:`InvalidInput` where there is none, or two fall on one entry with unlike configurations."""
    consumer, found = _choices(spec, answers, tunings, device_name)
    gpu = device(device_name)
    seen: dict[str, KernelChoice] = {}
    # Looked up first, so that answers in conflict leave the cache as it was.
    for choice in found:
        path = read_entry(consumer, _launch(consumer, choice.answer), gpu, out).path
        other = seen.setdefault(path, choice)
        if other.config != choice.config:
            raise InvalidInput(
                f"{_label(other.answer)} and {_label(choice.answer)} fall on one entry of {spec} with unlike "
                "configurations: its key does not tell them apart",
                field="consumer", value=spec,
            )  # fmt: skip
    kept = [copy for path in seen for copy in keep_measured(Path(path))]
    entries = []
    for choice in found:
        answer, time_us = choice.answer, _time_us(choice)
        written = write_entry(consumer, _launch(consumer, answer), gpu, choice.config, time_us, out)
        row = _row(answer)
        entries.append(ExportedEntry(*row, written.key, written.path, choice.config, time_us))
        note_provenance(Path(written.path), answer.device, answer.profile, answer.planner)
    identity = identity_of(consumer, [device_name])
    write_manifest(consumer, out, identity)
    return ExportReport(TARGET, spec, str(out), identity, tuple(entries), kept=tuple(kept))


def verify_tuned(spec: str, answers: KernelAnswers, tunings: Tunings, device_name: str, out: Path) -> VerifyReport:
    """Will the kernel at ``spec`` find an entry in ``out`` for each kept answer, and is it the one to launch with now?
    Writes nothing. Raises as :func:`export_tuned` does."""
    consumer, found = _choices(spec, answers, tunings, device_name)
    identity = identity_of(consumer, [device_name])
    entries = []
    for choice in found:
        entry = read_entry(consumer, _launch(consumer, choice.answer), device(device_name), out)
        reason = _why_not(consumer, entry, device_name, out, identity)
        hit = entry.config is not None and not reason
        if hit and entry.config is not None:
            ours = sorted_kwargs(entry.config) == choice.config
            older = "" if ours else "not what would be exported now: an older answer, or measured by the job"
            reason = "; ".join(filter(None, (older, why_unknown(Path(entry.path)))))
        config = entry.config if hit else None
        entries.append(VerifiedEntry(*_row(choice.answer), hit, entry.path, config, reason))
    return VerifyReport(TARGET, spec, str(out), identity, tuple(entries))


def _why_not(
    consumer: ConsumerKernel, entry: Found, device_name: str, out: Path, identity: tuple[tuple[str, str], ...]
) -> str:
    if entry.damage:
        return f"the entry is damaged and the launch will fail ({entry.damage}): remove {entry.path}"
    if entry.config is None:
        return why_missing(consumer, out, identity)
    return why_stale(Path(entry.path), device_name)


def _choices(
    spec: str, answers: KernelAnswers, tunings: Tunings, device_name: str
) -> tuple[ConsumerKernel, tuple[KernelChoice, ...]]:
    consumer = load_consumer(spec, ())
    name, source = consumer.name, str(consumer.function.cache_key)
    kept = answers.of(name)
    found = choices(kept, tunings.of(name), source=source, device=device_name)
    if not found:
        others = len({answer.source for answer in kept})
        why = f"its source is another than that of the {others} kept" if others else "none is kept under its name"
        raise InvalidInput(
            f"the store has no answer for {spec} on {device_name}: {why}; tune it with `warpplan tune --store`",
            field="consumer", value=spec,
        )  # fmt: skip
    return consumer, found


def _launch(consumer: ConsumerKernel, answer: KernelAnswer) -> Launch:
    """The arguments of a launch of ``answer``, tensors as the autotuner sees them: by their dtype."""
    from warpplan.kernels.compiler.inspection.signature import parse_signature

    words = {**{name: str(size) for name, size in answer.shape}, **parse_signature(answer.signature)}
    values: dict[str, object] = {}
    for parameter in consumer.function.params:
        name = parameter.name
        if name in words and name not in consumer.tuned_names and name not in consumer.derived_names:
            values[name] = argument_of(words[name], dict(answer.shape))
    return positional_first([parameter.name for parameter in consumer.function.params], values)


def _time_us(choice: KernelChoice) -> float:
    """What the entry says that the configuration takes; Triton takes the least, and there is one."""
    if choice.measured is not None and choice.measured.time_us is not None:
        return choice.measured.time_us
    return next(time_us for config, time_us in choice.answer.ranked if config == choice.config)


def _row(answer: KernelAnswer) -> tuple[tuple[str, ...], str, str]:
    return tuple(f"{name}={size}" for name, size in answer.shape), answer.signature, answer.device


def _label(answer: KernelAnswer) -> str:
    return " ".join(f"{name}={size}" for name, size in answer.shape)
