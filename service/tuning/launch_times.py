"""The times that count for kept answers: those of ``warpplan tune --measure``, and those that jobs' autotuners reported
of the same launch.

What identifies a launch is what Triton's autotuner goes by: the kernel's source, the values of its ``key=`` arguments
and the dtypes of its tensors. A reported time counts for an answer only where that is known to be the answer's launch:

- the autotuner is outermost, so that it sees the arguments that the signature gives;
- every size of the answer is the value of a ``key=`` argument, so that no other size can have the same key;
- no other kept question has the same key and other arguments;
- the configuration is one that the answer ranks.

Of any other launch the prediction stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from warpplan.kernels.compiler.inspection.signature import parse_signature
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import tuning_key
from warpplan.service.listening import key_part
from warpplan.service.store.stored_values import Environment
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer
from warpplan.service.store.tuned.launch_key_store import LaunchKey, key_text
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.tuning.derived_values import argument_of


def launch_keys_of(layers: Any, answers: Iterable[KernelAnswer]) -> list[LaunchKey]:
    """The keys of those of ``answers`` that an autotuner's report can be told to be of; ``layers`` is what jobs launch,
    and what ``answers`` are about."""
    from triton.runtime.autotuner import Autotuner

    if not isinstance(layers, Autotuner):
        return []
    found = (_launch_key(layers, answer) for answer in answers)
    return [key for key in found if key is not None]


def _launch_key(tuner: Any, answer: KernelAnswer) -> LaunchKey | None:
    shape = dict(answer.shape)
    words = {**{name: str(size) for name, size in shape.items()}, **parse_signature(answer.signature or "")}
    tuned = {name for config in tuner.configs for name in config.kwargs}
    values: dict[str, Any] = {
        name: argument_of(words[name], shape) for name in tuner.arg_names if name in words and name not in tuned
    }
    named = [name for name in tuner.keys if name in values]
    # An argument of which only the type is given has no value to compare.
    if any(values[name] is None and words[name] != "None" for name in named):
        return None
    fixed = {name for name in shape if any(name in (key, words[key]) for key in named)}
    if fixed != set(shape):
        return None
    key = tuple(key_part(part) for part in tuning_key(tuner, (), values))
    # Of what has no value here, such as a descriptor, the signature's word tells launches apart.
    told = {name: words[name] if value is None else getattr(value, "dtype", value) for name, value in values.items()}
    arguments = tuple((name, key_part(value)) for name, value in told.items())
    return LaunchKey(answer.source, answer.tuning_key, key, arguments)


def times_of(answers: Sequence[KernelAnswer], tunings: Tunings) -> tuple[TunedTime, ...]:
    """What ``tunings`` has for ``answers``, each time under its answer's own ``tuning_key``."""
    found: list[TunedTime] = []
    for source in sorted({answer.source for answer in answers}):
        times = tunings.of_source(source)
        keys = tunings.launch_keys.of_source(source) if times else {}
        for answer in answers:
            if times and answer.source == source:
                found += _of_answer(answer, times, keys)
    return tuple(found)


def _of_answer(
    answer: KernelAnswer, times: Sequence[TunedTime], keys: Mapping[tuple[str, ...], str]
) -> list[TunedTime]:
    """Those of ``times`` that are of the launch of ``answer``. ``warpplan tune`` and an autotuner time in unlike ways:
    of one environment the way that has measured more configurations counts, of equals the newer."""
    here = [time for time in times if time.device == answer.device]
    key, ranked = keys.get(answer.tuning_key), {config for config, _ in answer.ranked}
    ways = (
        [time for time in here if time.key == answer.tuning_key],
        [
            replace(time, key=answer.tuning_key) for time in here
            if time.certain and key is not None and key_text(time.key) == key and time.config in ranked
        ],
    )  # fmt: skip
    by_environment: dict[Environment, list[TunedTime]] = {}
    for environment in {time.environment for time in here}:
        same = [[time for time in way if time.environment == environment] for way in ways]
        by_environment[environment] = max(same, key=_worth)
    return [time for environment in sorted(by_environment) for time in by_environment[environment]]


def _worth(times: Sequence[TunedTime]) -> tuple[int, str]:
    return sum(time.time_us is not None for time in times), max((time.newest for time in times), default="")
