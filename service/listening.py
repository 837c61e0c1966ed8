"""What a job's autotuners measure, posted to the service in the background: standard library only.

The thread that tunes appends one tuple to a queue and goes on. A daemon thread takes what has gathered once in a
while, makes JSON of it and posts it to ``/v1/tunings``. Triton 3.9 calls ``knobs.autotuning.listener`` once a tuning,
never on a launch; earlier releases have no such knob, and of theirs only the trials of ``planned()`` are posted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from importlib import metadata
from math import inf, isfinite
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any

from warpplan.kernels.compiler.launching.progress import TRIAL_LISTENERS
from warpplan.kernels.isolate import within

Json = Any
LEAST_US, MOST_US = 0.1, 1e9
"""The shortest and the longest time that the service takes. An empty kernel takes a GPU more than 1 us; as the least of
repeated reports stands, one absurd report would stand for ever. Ten times as long could refuse a real time."""
MOST_BODY_BYTES = 1 << 19
"""Of one post: half of what the service takes."""
MOST_BATCH = 64
"""Tunings of one post."""
PAUSE_S = 30.0
"""Seconds for which the thread leaves a service alone after a failed post, as :class:`~warpplan.service.client.Client`
does. What is tuned meanwhile waits in the queue; twice as long needs a queue that is twice as long."""
REFUSALS = (413, 422)
"""What the service answers to a tuning that it does not take: the others of its post may fare better."""
QUANTILE = 0
"""Of a configuration's timings in milliseconds, Triton's first is the median."""
_log = logging.getLogger("warpplan")


class TuningListener:
    """Is called by Triton, and by ``planned()``, with what was tuned. Counts: ``posted``, ``dropped`` (the queue was
    full), ``lost`` (the service was away or refused, or the tuning cannot be told), ``cached`` (read from Triton's disk
    cache: nothing was measured)."""

    def __init__(self, url: str, *, timeout: float, most_waiting: int, interval_s: float) -> None:
        self._url, self._timeout, self._interval_s = f"{url}/v1/tunings", timeout, interval_s
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[Callable[..., Json], int, tuple[Any, ...]]] = deque()
        self._before: Callable[..., object] | None = None
        self._closed, self._wake, self._posting = True, Event(), Lock()
        self._identities: dict[int, dict[str, str]] = {}
        self._away_until = 0.0
        self.posted = self.dropped = self.lost = self.cached = 0

    def start(self) -> None:
        """Listen from now on, in this process and in those that it forks."""
        self._closed = False
        knob = _knob()
        if knob is not None:
            self._before = knob.listener
            knob.listener = self
        TRIAL_LISTENERS.append(self._tried)
        self._start_thread()
        known = weakref.ref(self)

        def again() -> None:
            listener = known()
            if listener is not None and not listener._closed:
                listener._forked()

        os.register_at_fork(after_in_child=again)

    def __call__(
        self, *, fn: Any, key: Any, best_config: Any, configs_timings: Any, duration: Any = None,
        cache_hit: bool = False, **_: object,
    ) -> None:  # fmt: skip
        """The call of ``knobs.autotuning.listener``, on the thread that tunes."""
        if cache_hit:
            # The times are the entry's own: another machine's, or predictions that `warpplan export` has written.
            self.cached += 1
        elif len(self._waiting) < self._most_waiting:
            values = (fn, key, best_config, configs_timings)
            self._waiting.append((_tuning, _current_gpu(), values))
        else:
            self.dropped += 1
        if self._before is not None:
            self._before(
                fn=fn, key=key, best_config=best_config, configs_timings=configs_timings, duration=duration,
                cache_hit=cache_hit,
            )  # fmt: skip

    def _tried(self, decision: Any) -> None:
        if len(self._waiting) < self._most_waiting:
            self._waiting.append((_trial, _current_gpu(), (decision,)))
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Post what waits, now, on this thread, up to the first post that fails: what is behind it goes on waiting."""
        with self._posting:
            self._post_all()

    def close(self) -> None:
        """Stop listening, and post what waits. Where a post fails, what is behind it is lost: where the service hangs,
        this takes ``timeout`` seconds, and as long again where the background thread is waiting for a post."""
        if self._closed:
            return
        self._closed = True
        knob = _knob()
        if knob is not None and knob.listener is self:
            knob.listener = self._before
        TRIAL_LISTENERS.remove(self._tried)
        self._wake.set()
        with self._posting:
            self._post_all()
            self.lost += len(self._waiting)
            self._waiting.clear()

    def __enter__(self) -> TuningListener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _forked(self) -> None:
        """The thread stayed with the parent, and so does what waits there."""
        self._waiting.clear()
        self._wake, self._posting = Event(), Lock()
        self._start_thread()

    def _start_thread(self) -> None:
        Thread(target=self._run, name="warpplan-listener", daemon=True).start()

    def _run(self) -> None:
        while not self._wake.wait(self._interval_s):
            if time.monotonic() >= self._away_until:
                self.flush()

    def _post_all(self) -> None:
        """Post what waits, by batches, until one is not taken because the service is away."""
        # Only what is there now: a job that tunes without end must not keep a flush from its end.
        left = len(self._waiting)
        while left:
            size = min(left, MOST_BATCH)
            left -= size
            if not self._post_batch(size):
                self._away_until = time.monotonic() + PAUSE_S
                return

    def _post_batch(self, size: int) -> bool:
        """Post the next ``size`` tunings, a post for each GPU. False where the service is away."""
        bodies: dict[int, list[Json]] = {}
        for _ in range(size):
            make, gpu, values = self._waiting.popleft()
            try:
                bodies.setdefault(gpu, []).append(make(*values))
            except Exception:  # a key or a configuration of a kind that nobody has met
                self.lost += 1
                _log.debug("a tuning cannot be told", exc_info=True)
        there = True
        for gpu, tunings in bodies.items():
            if gpu not in self._identities:
                self._identities[gpu] = environment(gpu)
            if there:
                there = self._post(self._identities[gpu], tunings)
            else:
                self.lost += len(tunings)
        return there

    def _post(self, identity: Mapping[str, str], tunings: Sequence[Json]) -> bool:
        """Post ``tunings``, in parts where they are long, or where the service refuses one that is among them. False
        where the service is away; one that refuses is not."""
        body = json.dumps({"device": identity["gpu"], "environment": identity, "tunings": tunings}).encode()
        if len(body) > MOST_BODY_BYTES and len(tunings) > 1:
            return self._post_halves(identity, tunings)
        request = urllib.request.Request(self._url, data=body, headers={"Content-Type": "application/json"})
        try:
            within(self._timeout, lambda: _send(request, self._timeout))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            status = error.code if isinstance(error, urllib.error.HTTPError) else 0
            if status in REFUSALS and len(tunings) > 1:
                return self._post_halves(identity, tunings)
            self.lost += len(tunings)
            _log.debug("%d tunings are lost: %s", len(tunings), error)
            return 0 < status < 500
        self.posted += len(tunings)
        return True

    def _post_halves(self, identity: Mapping[str, str], tunings: Sequence[Json]) -> bool:
        middle = len(tunings) // 2
        if self._post(identity, tunings[:middle]):
            return self._post(identity, tunings[middle:])
        self.lost += len(tunings) - middle
        return False


def _send(request: urllib.request.Request, timeout: float) -> None:
    """Raises ``ValueError`` where the reply is not the service's: what was sent is then not kept."""
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        told = json.loads(reply.read())
    if not isinstance(told, dict) or not isinstance(told.get("recorded"), int):
        raise ValueError("the reply is not of the kind that was asked for: does the URL name a warpplan service?")


def environment(gpu: int = 0) -> dict[str, str]:
    """The machine's identity: the names of GPU number ``gpu``, driver, CUDA, Triton and torch; "unknown" for what
    cannot be told. Loads nothing that the job has not loaded."""
    torch, name, cuda = sys.modules.get("torch"), "unknown", "unknown"
    if torch is not None:
        cuda = str(torch.version.cuda)
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name(gpu)
    return {
        "gpu": name, "driver": _driver(), "cuda": cuda, "triton": _installed("triton"), "torch": _installed("torch"),
    }  # fmt: skip


def _installed(package: str) -> str:
    module = sys.modules.get(package)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    words = text.partition("Kernel Module")[2].split()
    return next((word for word in words if word[:1].isdigit()), "unknown")


def _knob() -> Any:
    """``triton.knobs.autotuning`` where it has a listener."""
    try:
        from triton import knobs
    except ImportError:
        return None
    found = getattr(knobs, "autotuning", None)
    return found if hasattr(found, "listener") else None


def _current_gpu() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())


def _tuning(fn: Any, key: Any, best_config: Any, timings: Any) -> Json:
    """One call of the listener as the service takes it. ``fn`` is a ``JITFunction``, ``timings`` lists milliseconds. A
    configuration whose time is none is left out; raises ``ValueError`` where no other is left."""
    configs = []
    for config, times in timings.items():
        try:
            configs.append({"config": _config(config), "time_us": _median_us(times)})
        except ValueError as error:
            _log.debug("a configuration is left out: %s", error)
    if not configs:
        raise ValueError("no configuration has a time")
    return {
        "kernel": f"{fn.fn.__module__}.{fn.fn.__qualname__}",
        "source": str(fn.cache_key),
        "key": [key_part(part) for part in key],
        "configs": configs,
        "best": _config(best_config),
        "hit": False,
    }


def _trial(decision: Any) -> Json:
    """A decision of ``planned()``: the kernel as it is, and with its plan."""
    where = decision.situation
    timed = [("", decision.unplanned_us)]
    if decision.scheme is not None:
        timed.append((str(decision.scheme), decision.planned_us))
    configs = [
        {"config": {"kwargs": {"PLAN": plan}, "num_warps": 1, "num_stages": 0}, "time_us": time_us}
        for plan, time_us in timed
        if time_us is not None and LEAST_US <= time_us <= MOST_US
    ]
    if not configs:
        raise ValueError(f"{where.kernel}: nothing was measured")
    return {
        "kernel": where.kernel, "source": where.source, "key": [where.specialization, *where.sizes],
        "configs": configs, "best": configs[-1]["config"], "hit": False,
    }  # fmt: skip


def key_part(part: Any) -> str | int | float | bool | None:
    """A part of a tuning key as it is posted: what JSON has stays, anything else is its text."""
    if isinstance(part, int) and abs(part) >= 1 << 63:
        return hex(part)  # JSON writes no more than 4,300 digits
    plain = part is None or isinstance(part, str | int) or (isinstance(part, float) and isfinite(part))
    return part if plain else str(part)


def _config(config: Any) -> Json:
    """The fields of a ``triton.Config``; values that JSON does not have by their text."""
    kwargs = {str(k): key_part(v) if isinstance(v, bool | int | str) else str(v) for k, v in config.kwargs.items()}
    ctas, registers = getattr(config, "num_ctas", None), getattr(config, "maxnreg", None)
    return {
        "kwargs": kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages, "num_ctas": ctas or 1,
        "maxnreg": registers,
    }  # fmt: skip


def _median_us(times: Any) -> float | None:
    """Triton gives the median first, and infinity where the configuration cannot run. Raises ``ValueError`` for what
    is no time."""
    found = 1e3 * float(times[QUANTILE] if isinstance(times, Sequence) else times)
    if found == inf:
        return None
    if not LEAST_US <= found <= MOST_US:
        raise ValueError(f"{found} us is no time of a kernel")
    return found
