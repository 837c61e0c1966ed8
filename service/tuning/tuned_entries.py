"""Kept configurations of somebody's kernel in Triton's own cache: planned, or measured, for that kernel and no other.

The kernel's autotuner writes and reads the entries itself, as in :mod:`~warpplan.service.feeds.triton_autotune`; the
arguments of a launch are those of the signature that the kernel was tuned with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values import codec
from warpplan.planner.values.device import device
from warpplan.service.feeds.consumer_kernel import ConsumerKernel, Launch, positional_first
from warpplan.service.feeds.feed_report import ExportedEntry, ExportReport, SkippedRow, VerifiedEntry, VerifyReport
from warpplan.service.feeds.machine_here import driver_for
from warpplan.service.feeds.paper_launch import Found, read_entry, write_entry
from warpplan.service.feeds.provenance import read_beside
from warpplan.service.feeds.targets import FeedRequest
from warpplan.service.feeds.triton_autotune import (
    TARGET,
    identity_of,
    keep_measured,
    load_consumer,
    note_provenance,
    why_missing,
    why_stale,
    why_unknown,
    write_manifest,
)
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import Tunings
from warpplan.service.tuning.derived_values import argument_of
from warpplan.service.tuning.kernel_choice import KernelChoice, RankingOrigin, choices
from warpplan.service.tuning.launch_ranking import sorted_kwargs
from warpplan.service.tuning.launch_times import times_of


def export_tuned(request: FeedRequest, answers: KernelAnswers, tunings: Tunings) -> ExportReport:
    """An entry in the request's folder, the job's ``$TRITON_CACHE_DIR``, for each kept answer of its consumer as that
    is now. An answer of another profile, planner or Triton is left out.

    Raises :class:`InvalidInput` where there is none, two fall on one entry with unlike configurations, or the Triton
    that is installed was not tested.
    """
    found = _found(request, answers, tunings)
    consumer, gpu, out = found.consumer, device(request.device), request.out
    if not found.current:
        _, why = found.stale[0]
        raise InvalidInput(
            f"the store has no answer for {request.consumer} on {request.device} that holds: {why}",
            field="consumer", value=request.consumer,
        )  # fmt: skip
    seen: dict[str, KernelChoice] = {}
    # Looked up first, so that answers in conflict leave the cache as it was.
    for choice in found.current:
        path = read_entry(consumer, _launch(consumer, choice.answer), gpu, out).path
        other = seen.setdefault(path, choice)
        if other.config != choice.config:
            raise InvalidInput(
                f"{_label(other.answer)} and {_label(choice.answer)} fall on one entry of {request.consumer} with "
                "unlike configurations: its key does not tell them apart",
                field="consumer", value=request.consumer,
            )  # fmt: skip
    kept = [copy for path in seen for copy in keep_measured(Path(path))]
    entries = []
    for choice in found.current:
        answer = choice.answer
        written = write_entry(consumer, _launch(consumer, answer), gpu, choice.config, _time_us(choice), out)
        made_of = (*_row(answer), written.key, written.path, choice.config, choice.predicted_us, choice.measured_us)
        entries.append(ExportedEntry(*made_of))
        note_provenance(
            Path(written.path), answer.device, answer.profile, answer.planner, _driver(request, choice)
        )  # fmt: skip
    identity = identity_of(consumer, [request.device])
    write_manifest(consumer, out, identity)
    skipped = tuple(SkippedRow(*_row(choice.answer), why) for choice, why in found.stale)
    return ExportReport(
        TARGET, request.consumer, str(out), (*identity, _driver_words(request, found.current)), tuple(entries), skipped,
        tuple(kept),
    )  # fmt: skip


def verify_tuned(request: FeedRequest, answers: KernelAnswers, tunings: Tunings) -> VerifyReport:
    """Will the request's consumer find an entry in the folder for each kept answer, and is it the one to launch with
    now? An answer of another profile, planner or Triton is a miss. Writes nothing. Raises as :func:`export_tuned` does
    for what it does not know."""
    found = _found(request, answers, tunings)
    consumer, out = found.consumer, request.out
    identity = identity_of(consumer, [request.device])
    entries = []
    for choice, stale in (*((choice, "") for choice in found.current), *found.stale):
        entry = read_entry(consumer, _launch(consumer, choice.answer), device(request.device), out)
        reason = stale or _why_not(consumer, entry, request, choice, identity)
        hit = entry.config is not None and not reason
        if hit and entry.config is not None:
            ours = sorted_kwargs(entry.config) == choice.config
            older = "" if ours else "not what would be exported now: an older answer, or measured by the job"
            older = older or _why_older(Path(entry.path), choice)
            reason = "; ".join(filter(None, (older, why_unknown(Path(entry.path), _told_driver(request)))))
        config = entry.config if hit else None
        entries.append(VerifiedEntry(*_row(choice.answer), hit, entry.path, config, reason))
    told = (*identity, _driver_words(request, found.current))
    return VerifyReport(TARGET, request.consumer, str(out), told, tuple(entries))


def _why_not(
    consumer: ConsumerKernel, entry: Found, request: FeedRequest, choice: KernelChoice,
    identity: tuple[tuple[str, str], ...],
) -> str:  # fmt: skip
    """Why the job would not launch with what is exported."""
    if entry.damage:
        return f"the entry is damaged and the launch will fail ({entry.damage}): remove {entry.path}"
    if entry.config is None:
        return why_missing(consumer, request.out, identity)
    return why_stale(Path(entry.path), request.device, _told_driver(request))


def _why_older(entry: Path, choice: KernelChoice) -> str:
    """Why the file ``entry``, which has the configuration of ``choice``, would not be written so today; a time that was
    measured comes from no profile."""
    made = read_beside(entry)
    if made is None or choice.measured is not None:
        return ""
    if made.profile != choice.answer.profile:
        return "planned from another profile: export again"
    return "" if made.planner == choice.answer.planner else f"planned by {made.planner}, not today's planner"


@dataclass(frozen=True)
class _FoundChoices:
    """What a store has of ``consumer``: the choices that hold, and the others with the reason in words."""

    consumer: ConsumerKernel
    current: tuple[KernelChoice, ...]
    stale: tuple[tuple[KernelChoice, str], ...]


def _found(request: FeedRequest, answers: KernelAnswers, tunings: Tunings) -> _FoundChoices:
    spec = request.consumer
    consumer = load_consumer(spec, untested=request.untested)
    import triton

    today = RankingOrigin(codec.key(request.profile), request.planner, triton.__version__)
    name, source = consumer.name, str(consumer.function.cache_key)
    kept = answers.of(name, lambda answer: not today.why_stale(answer))
    found = choices(kept, times_of(kept, tunings), source=source, device=request.device)
    if not found:
        raise InvalidInput(
            f"the store has no answer for {spec} on {request.device}: {_why_none(kept, source)}; tune it with "
            "`warpplan tune --store`",
            field="consumer", value=spec,
        )  # fmt: skip
    judged = [(choice, choice.why_stale(today)) for choice in found]
    current = tuple(choice for choice, why in judged if not why)
    return _FoundChoices(consumer, current, tuple((choice, why) for choice, why in judged if why))


def _why_none(kept: Sequence[KernelAnswer], source: str) -> str:
    if not kept:
        return "none is kept under its name"
    if any(answer.source == source for answer in kept):
        return "what is kept of it is for another GPU, or none of its configurations ran"
    count = len(kept)
    others = "answer that is" if count == 1 else "answers that are"
    return f"its source is another than that of the {count} {others} kept under its name"


def _told_driver(request: FeedRequest) -> str:
    """The job's driver, where the user gives it."""
    return request.settings.get("driver", "")


def _driver(request: FeedRequest, choice: KernelChoice) -> str:
    """The driver that ``choice`` is for: the job's, else the one under which it was measured."""
    measured = choice.measured
    return _told_driver(request) or (dict(measured.environment).get("driver", "") if measured else "")


def _driver_words(request: FeedRequest, current: Sequence[KernelChoice]) -> tuple[str, str]:
    """The drivers that the entries are for, as a pair of a report's identity."""
    known = {driver_for(request.device, _driver(request, choice)) for choice in current}
    words = sorted(driver or "unknown (--job-driver gives the job's)" for driver in known)
    return "driver", ", ".join(words) or "unknown"


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
    time_us = choice.predicted_us if choice.measured_us is None else choice.measured_us
    assert time_us is not None  # a choice was ranked or measured
    return time_us


def _row(answer: KernelAnswer) -> tuple[tuple[str, ...], str, str]:
    return tuple(f"{name}={size}" for name, size in answer.shape), answer.signature, answer.device


def _label(answer: KernelAnswer) -> str:
    return " ".join(f"{name}={size}" for name, size in answer.shape)
