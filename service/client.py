"""What a training job imports to ask the service: standard library only, quick to give up.

>>> client = Client("http://planner:8000")                                      # doctest: +SKIP
>>> answer = client.config("gemm", M=4096, N=4096, K=4096, dtype="bfloat16")    # doctest: +SKIP
>>> triton.Config(**answer["config"])                                           # doctest: +SKIP
"""

from __future__ import annotations

import json
import operator
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from numbers import Integral, Number, Real
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from warpplan.kernels.isolate import within
from warpplan.planner.errors import WarpplanError
from warpplan.service.agreement.choice_record import ChoiceDiffers as ChoiceDiffers
from warpplan.service.agreement.choice_record import ChoiceRecord

if TYPE_CHECKING:
    from warpplan.service.listening import TuningListener

Json = dict[str, Any]
ShapeValue = int | str | Sequence[int]
"""A size, or an option: text, or whole numbers where the kernel takes a list of them."""
PLAN_STATES = ("queued", "running", "done", "failed")
"""What the service says of a plan (``State`` in ``warpplan.service.solving.plan_queue``)."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
MOST_BODY_BYTES = 1 << 20
"""What the service takes in one request (``MAX_BODY_BYTES`` in ``warpplan.service.http.app``)."""
LONGEST_WAIT_S = 86_400.0
"""Seconds, a day: the longest ``timeout`` and ``interval_s``, chosen by hand. No operating system waits infinitely."""
DEFAULT_KERNEL, DEFAULT_DTYPE, DEFAULT_DEVICE = "gemm", "bfloat16", "NVIDIA H200"
"""What the service takes where an item of a batch names none (``warpplan.service.workflow.request``)."""
_ITEM_FIELDS = ("kernel", "shape", "dtype", "device", "name")
"""What an item of a batch has beside its sizes and options."""
_NO_SERVICE = "the reply is not of the kind that was asked for: does the URL name a warpplan service?"


class ClientError(WarpplanError):
    """The service gave no answer that can be used."""


class ServiceUnavailable(ClientError):
    """The service could not be reached, did not answer in time, or answered that it cannot now (5xx), or that it keeps
    nothing (403)."""


class ServiceRefused(ClientError):
    """The service understood and refused; ``problem`` is its problem document."""

    def __init__(self, problem: Json) -> None:
        super().__init__(
            str(problem.get("detail") or problem), field=problem.get("field"), value=problem.get("value"),
            limit=problem.get("limit"),
        )  # fmt: skip
        self.problem = problem


class PlanFailed(ServiceRefused):
    """The service has tried to solve a plan and could not; ``problem`` says why."""


class Client:
    """Asks the service at ``url``.

    ``timeout`` is the longest wait for one whole reply in seconds, however slowly it arrives. After a failure to reach
    it the service is left alone for ``pause`` seconds, so that a job with a thousand shapes does not wait a thousand
    times. ``on_error="none"`` makes an unreachable service a ``None`` instead of :class:`ServiceUnavailable`, and so a
    kernel of which :meth:`tuned` finds nothing kept; a refusal always raises, because asking again does not help.
    Answers are remembered with their entity tag and fetched again only when they have changed. Safe to share between
    threads and across fork.

    Ranks that must launch alike: ``record`` is a folder in which each rank writes what it was told, for ``warpplan
    agree`` to compare; ``rank`` is by default what torchrun, Slurm or Open MPI say. ``strict`` raises
    :class:`ChoiceDiffers` in place of an answer that differs from what this client answered before, or from the file
    ``agreed`` that ``warpplan agree --out`` has written. A lookup that ends in a :class:`ClientError` is recorded as no
    answer, and no answer differs from every answer.

    Raises :class:`ClientError` for a URL, a ``timeout``, a ``pause`` or an ``on_error`` that cannot be used.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 2.0,
        *,
        pause: float = 30.0,
        on_error: Literal["raise", "none"] = "raise",
        record: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        strict: bool = False,
        agreed: str | os.PathLike[str] | None = None,
    ) -> None:
        _require_url(url)
        _require_seconds("timeout", timeout)
        _require_period("pause", pause)
        if on_error not in ("raise", "none"):
            raise ClientError(f"on_error={on_error!r}: expected raise or none", field="on_error", value=on_error)
        self._url = url.rstrip("/")
        self._timeout = float(timeout)
        self._pause = float(pause)
        self._quiet = on_error == "none"
        self._known: dict[str, tuple[str, bytes]] = {}
        self._down_until = 0.0
        self._down_because = ""
        self._lock = Lock()
        self._choices = ChoiceRecord(record, rank=rank, strict=strict, agreed=agreed)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the record of choices, where there is one; the end of the process does it too, but not its death."""
        self._choices.close()

    def begin_step(self, number: int | None = None) -> None:
        """Lookups from now on are of this training step, the next one where ``number`` is not given. Raises
        :class:`~warpplan.planner.errors.InvalidInput` for a step that is past."""
        self._choices.begin_step(number)

    @property
    def choices_digest(self) -> str:
        """SHA-256 digits of all choices in effect: equal on ranks that launch alike, in whatever order they asked. A
        job may compare it where its ranks meet anyway."""
        return self._choices.digest

    def config(
        self, kernel: str, *, dtype: str = "bfloat16", device: str = "NVIDIA H200", **shape: ShapeValue
    ) -> Json | None:
        """The service's answer for one shape, its sizes and options by name: ``config`` holds the fields of
        ``triton.Config``.

        ``None`` only with ``on_error="none"``. Raises :class:`ServiceRefused` for a shape, dtype or name the service
        does not take, :class:`ServiceUnavailable` where there is no service, :class:`ChoiceDiffers`, instead of these
        too, where ``strict`` and another configuration was given before. What cannot be written in a request is a
        :class:`ClientError`, and no lookup.
        """
        query = _query({**_written(shape), "dtype": dtype, "device": device})
        path = f"/v1/configs/{_quoted('kernel', kernel)}?{query}"
        try:
            answer = self._get(path, "config", dict)
        except ClientError as error:
            self._choices.note(kernel, shape, dtype, device, None)
            if self._quiet and isinstance(error, ServiceUnavailable):
                return None
            raise
        self._choices.note(kernel, shape, dtype, device, answer["config"])
        return answer

    def tuned(self, kernel: Any, *, device: str = "NVIDIA H200", signature: str = "", **shape: int) -> Json | None:
        """The kept configuration of somebody's Triton ``kernel`` (the function, under ``@triton.autotune`` or not) for
        one shape, as ``warpplan tune --store`` keeps them: ``config`` has the fields of ``triton.Config``.

        ``None`` only with ``on_error="none"``: nothing is kept for this very source and shape, or there is no service.
        Otherwise a :class:`ClientError` says what is missing, or :class:`ServiceUnavailable` is raised. ``signature``
        chooses among answers for unlike arguments; without it :class:`ClientError` lists them. Recorded and held to as
        :meth:`config` is.
        """
        while not hasattr(kernel, "cache_key"):
            if not hasattr(kernel, "fn"):
                raise ClientError("not a Triton kernel: expected a function under @triton.jit", field="kernel")
            kernel = kernel.fn
        words = {
            "kernel": kernel.__name__, "source": kernel.cache_key, "device": device, "signature": signature, **shape,
        }  # fmt: skip
        asked = {**shape, "signature": signature, "source": kernel.cache_key}
        query = _query({name: word for name, word in words.items() if word != ""})
        try:
            found = self._get(f"/v1/tuned-kernels?{query}", "answers", list)["answers"]
            if not all(isinstance(answer, dict) and isinstance(answer.get("config"), dict) for answer in found):
                raise ClientError(_NO_SERVICE, field="url")
            if len(found) > 1:
                known = "; ".join(str(answer.get("signature")) for answer in found)
                raise ClientError(f"{kernel.__name__} is known with unlike arguments: name signature= of {known}")
        except ClientError as error:
            self._choices.note(kernel.__name__, asked, "", device, None)
            if self._quiet and isinstance(error, ServiceUnavailable):
                return None
            raise
        answer: Json | None = found[0] if found else None
        self._choices.note(kernel.__name__, asked, "", device, None if answer is None else answer["config"])
        if answer is None and not self._quiet:
            raise self._untuned(kernel.__name__, shape, device, signature)
        return answer

    def _untuned(self, kernel: str, shape: Mapping[str, int], device: str, signature: str) -> ClientError:
        """That nothing is kept of ``kernel`` for ``shape``, and what to do about it."""
        sizes = " ".join(f"{name}={size}" for name, size in shape.items())
        arguments = f" with {signature}" if signature else ""
        return ClientError(
            f"the service at {self._url} keeps no configuration of {kernel}, as its source is now, for "
            f"{sizes or 'any shape'} on {device}{arguments}: keep one with `warpplan tune FILE.py:{kernel} "
            f'--shapes "{sizes or "NAME=SIZE"}" --store ...`, on the store that the service reads',
            field="kernel", value=kernel,
        )  # fmt: skip

    def configs(self, items: Sequence[Mapping[str, object]]) -> list[Json | ClientError] | None:
        """The answers for many shapes in one request, in their order: a job's at its start. An item has ``kernel``,
        ``shape`` by name, ``dtype`` and ``device``. Where an item has no answer, a :class:`ServiceRefused` or
        :class:`ServiceUnavailable` stands in the list and is not raised, so that the others are not lost.

        Each item is recorded and held to as a lookup of :meth:`config` is, in the items' order. A batch that is refused
        as a whole, such as one that is too large, is no lookup.

        ``None`` only with ``on_error="none"``. Raises :class:`ServiceRefused` for a batch that is too large,
        :class:`ServiceUnavailable` where there is no service, :class:`ChoiceDiffers` where ``strict`` and an item was
        given another configuration before.
        """
        if not items:
            return []
        body = _json_bytes({"items": list(items)})
        if len(body) > MOST_BODY_BYTES:
            # The service would hang up in the middle of it, as one does that has crashed.
            told = (
                f"{len(items)} items of {len(body)} bytes: at most {MOST_BODY_BYTES} in one request, send them in parts"
            )
            raise ServiceRefused({"detail": told, "field": "items", "value": len(items), "limit": MOST_BODY_BYTES})
        try:
            reply, _ = self._send("/v1/configs:batch", {"Content-Type": "application/json"}, body)
            results = _object(reply).get("results")
            if not isinstance(results, list) or len(results) != len(items):
                raise ClientError(_NO_SERVICE, field="url")
            entries = [_entry(found) for found in results]
        except ServiceRefused:
            raise
        except ClientError as error:
            for item in items:
                self._note_item(item, error)
            if self._quiet and isinstance(error, ServiceUnavailable):
                return None
            raise
        for item, entry in zip(items, entries, strict=True):
            self._note_item(item, entry)
        return entries

    def _note_item(self, item: Mapping[str, object], entry: Json | ClientError) -> None:
        """Note the answer of one item of a batch under the key that :meth:`config` notes."""
        if not isinstance(item, Mapping):
            return
        under = item.get("shape")
        shape = {name: value for name, value in item.items() if name not in _ITEM_FIELDS}
        shape |= under if isinstance(under, Mapping) else {}
        kernel, dtype, device = (
            default if item.get(name) is None else str(item[name])
            for name, default in (("kernel", DEFAULT_KERNEL), ("dtype", DEFAULT_DTYPE), ("device", DEFAULT_DEVICE))
        )
        self._choices.note(kernel, shape, dtype, device, entry["config"] if isinstance(entry, dict) else None)

    def measured(
        self,
        kernel: str,
        config: Mapping[str, object],
        time_us: float,
        *,
        dtype: str = "bfloat16",
        device: str = "NVIDIA H200",
        samples: int = 1,
        environment: Mapping[str, str] | None = None,
        run: str = "",
        **shape: ShapeValue,
    ) -> bool:
        """Report the median time of ``samples`` launches of ``config`` in microseconds. True where it was recorded now;
        False where the service had the same report, or, with ``on_error="none"``, could not be reached.

        ``environment`` names the versions of driver, cuda, triton and torch: ``warpplan calibrate`` uses no report that
        lacks one of them."""
        body = {
            "kernel": kernel, "shape": _written(shape), "dtype": dtype, "device": device, "config": dict(config),
            "time_us": time_us, "samples": samples, "environment": dict(environment or {}), "run": run,
        }  # fmt: skip
        try:
            reply, _ = self._send("/v1/measurements", {"Content-Type": "application/json"}, _json_bytes(body))
        except ServiceUnavailable:
            if self._quiet:
                return False
            raise
        recorded = _object(reply).get("recorded")
        if not isinstance(recorded, bool):
            # A page of something else is no sign that the time is kept.
            raise ClientError(_NO_SERVICE, field="url")
        return recorded

    def plan(
        self,
        graph: Mapping[str, object],
        *,
        time_limit_s: float = 10.0,
        depth: int | None = None,
        slack_cycles: int = 0,
        wait: float = 600.0,
    ) -> Json | None:
        """Have a loop body (schema warpplan/graph-1) planned and wait up to ``wait`` seconds for it. ``outcome`` in the
        answer is what ``warpplan solve --json`` prints. The same question is solved once, whoever asks;
        ``time_limit_s`` counts work in seconds of a slow core (``--work-limit``), so that every server answers alike.

        ``None`` only with ``on_error="none"``. Raises :class:`ServiceRefused` for a graph or options that cannot be
        planned, naming the element, :class:`PlanFailed` where solving failed, :class:`ServiceUnavailable` where there
        is no service, too many plans wait, or this one is not done in time: ask again, it goes on.
        """
        _require_period("wait", wait)
        options = {"time_limit_s": time_limit_s, "depth": depth, "slack_cycles": slack_cycles}
        try:
            return self._planned(_json_bytes({"graph": graph, "options": options}), wait)
        except ServiceUnavailable:
            if self._quiet:
                return None
            raise

    def _planned(self, request: bytes, wait: float) -> Json:
        until = time.monotonic() + wait
        reply, _ = self._send("/v1/plans", {"Content-Type": "application/json"}, request)
        plan_id = _object(reply).get("id")
        if not isinstance(plan_id, str):
            raise ClientError(_NO_SERVICE, field="url")
        path = f"/v1/plans/{_quoted('id', plan_id)}"
        pause = SHORTEST_POLL_S
        while True:
            plan = _object(self._send(path, {}, None)[0])
            if plan.get("state") not in PLAN_STATES:
                raise ClientError(_NO_SERVICE, field="url")
            if plan["state"] == "failed":
                problem = plan.get("problem")
                raise PlanFailed(problem if isinstance(problem, dict) else {"detail": f"plan {plan_id} failed"})
            if plan["state"] == "done":
                return plan
            if time.monotonic() + pause > until:
                message = f"plan {plan.get('id')} at {self._url} is still {plan['state']} after {wait:g} s: ask again"
                raise ServiceUnavailable(message, field="wait", value=wait)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_S)

    def _get(self, path: str, holds: str, kind: type) -> Json:
        """The answer at ``path``, which holds a ``kind`` under ``holds``; :class:`ClientError` where it does not."""
        with self._lock:
            etag, body = self._known.get(path, ("", b""))
        reply, tag = self._send(path, {"If-None-Match": etag} if etag else {}, None)
        # Parsed anew each time: callers may change what they are given.
        found = _object(body if reply is None else reply)
        if not isinstance(found.get(holds), kind):
            raise ClientError(_NO_SERVICE, field="url")
        if reply is not None:
            with self._lock:
                self._known[path] = (tag, reply)
        return found

    def _send(self, path: str, headers: dict[str, str], data: bytes | None) -> tuple[bytes | None, str]:
        """Body and entity tag of the reply; the body is ``None`` where the client's copy is current."""
        with self._lock:
            if time.monotonic() < self._down_until:
                raise ServiceUnavailable(self._down_because, field="url", value=self._url)
        headers = {"Accept": "application/json", **headers}
        try:
            request = urllib.request.Request(self._url + path, data=data, headers=headers)
            status, reason, body, tag = within(self._timeout, lambda: _reply(request, self._timeout))
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise self._down(f"cannot be reached: {why or type(error).__name__}") from None
        except ValueError as error:
            raise ClientError(f"the request to {self._url} cannot be written: {error}", field="url") from None
        if status == 304:
            return None, ""
        if status >= 500 or status == 403:  # 403: it writes nothing to its store
            # It lives: other lookups may fare better, so no pause.
            detail = _problem(status, reason, body).get("detail")
            raise ServiceUnavailable(f"the service at {self._url} answers {status}: {detail}")
        if status >= 300:
            raise ServiceRefused(_problem(status, reason, body))
        return body, tag

    def _down(self, reason: str) -> ServiceUnavailable:
        message = f"the service at {self._url} {' '.join(reason.split())}"
        with self._lock:
            self._down_until = time.monotonic() + self._pause
            self._down_because = message
        return ServiceUnavailable(message, field="url", value=self._url)


def listen(url: str, *, timeout: float = 2.0, most_waiting: int = 1024, interval_s: float = 1.0) -> TuningListener:
    """Post what this process tunes to the service at ``url``, in the background, until ``close()`` or the end of a
    ``with`` block: the timings of every ``@triton.autotune`` (Triton 3.9 and newer) and every trial of ``planned()``.

    The job never waits: at most ``most_waiting`` tunings are kept until the next ``interval_s`` seconds are over, what
    comes beyond that and what the service does not take within ``timeout`` seconds is dropped and counted. After a
    failed post the service is left alone for a while. ``close()`` ends at the first post that fails, so that it takes
    about ``timeout`` seconds where the service hangs. A launch costs nothing. Raises :class:`ClientError` for a URL, a
    ``timeout``, a ``most_waiting`` or an ``interval_s`` that cannot be used.
    """
    from warpplan.service.listening import TuningListener

    _require_url(url)
    _require_seconds("timeout", timeout)
    _require_seconds("interval_s", interval_s)
    if isinstance(most_waiting, bool) or not isinstance(most_waiting, Integral) or most_waiting < 1:
        raise ClientError(
            f"most_waiting={most_waiting!r}: expected a whole number of tunings, at least 1",
            field="most_waiting", value=most_waiting, limit=1,
        )  # fmt: skip
    listener = TuningListener(url.rstrip("/"), timeout=timeout, most_waiting=most_waiting, interval_s=interval_s)
    listener.start()
    return listener


def _require_url(url: str) -> None:
    """Raise :class:`ClientError` for a URL that no request can be sent to."""
    reason = ""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
        # What a connection does with the name of the host: a label has 1 to 63 characters.
        (parts.hostname or "").encode("idna")
        parts.path.encode("ascii")
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, TypeError, AttributeError) as error:
        named, reason = False, f" ({error})"
    if not named:
        raise ClientError(
            f"service URL {url!r}: expected http://host:port{reason}", field="url", value=url, limit="http://host:port"
        )


def _require_seconds(name: str, seconds: float) -> None:
    """Raise :class:`ClientError` for a wait that no operating system takes."""
    if not _is_real(seconds) or not 0 < seconds <= LONGEST_WAIT_S:
        raise ClientError(
            f"{name}={seconds!r}: expected seconds, more than 0 and at most {LONGEST_WAIT_S:g}",
            field=name, value=seconds, limit=LONGEST_WAIT_S,
        )  # fmt: skip


def _require_period(name: str, seconds: float) -> None:
    """Raise :class:`ClientError` for what is no period of time. Infinity is one: it is compared, never slept."""
    if not _is_real(seconds) or not seconds >= 0:
        raise ClientError(f"{name}={seconds!r}: expected seconds, 0 or more", field=name, value=seconds, limit=0)


def _is_real(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool)


def _query(words: Mapping[str, object]) -> str:
    """``words`` as a query string. Raises :class:`ClientError` for text that cannot be sent."""
    return "&".join(f"{_quoted(name, name)}={_quoted(name, _text(name, word))}" for name, word in words.items())


def _text(name: str, value: object) -> str:
    """``value`` in digits or words. Raises :class:`ClientError` for a number that Python does not write in digits."""
    try:
        return str(value)
    except ValueError:
        if not isinstance(value, int | list | tuple):
            raise
        limit = sys.get_int_max_str_digits()
        raise ClientError(
            f"{name} has more than {limit} digits: no size is as large", field=name, limit=limit
        ) from None


def _quoted(name: str, text: str) -> str:
    try:
        return urllib.parse.quote(text, safe="")
    except UnicodeEncodeError:
        raise ClientError(
            f"{name}={text!r} has half of a surrogate pair: expected text that UTF-8 can write", field=name, value=text
        ) from None


def _json_bytes(body: object) -> bytes:
    """``body`` as JSON. Raises :class:`ClientError` for a value that JSON does not have."""
    try:
        return json.dumps(body, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(f"the request cannot be written as JSON: {error}", field="body") from None


def _plain(value: object) -> object:
    """A value that :mod:`json` does not know, as one that it does: a number of another library, such as numpy's, or a
    mapping. Raises ``TypeError`` for any other."""
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        if isinstance(value, Number):
            return float(value)  # type: ignore[arg-type]
        raise


def _written(shape: Mapping[str, ShapeValue]) -> dict[str, ShapeValue]:
    """``shape`` with lists as text, "1,2,3": a query string knows no other."""
    return {
        name: ",".join(_text(name, e) for e in v) if isinstance(v, list | tuple) else v for name, v in shape.items()
    }


def _entry(found: object) -> Json | ClientError:
    """What one item of a batch got."""
    answer, problem = (found.get("answer"), found.get("error")) if isinstance(found, dict) else (None, None)
    if isinstance(answer, dict) and isinstance(answer.get("config"), dict):
        return answer
    if not isinstance(problem, dict):
        raise ClientError(_NO_SERVICE, field="url")
    status = problem.get("status")
    if isinstance(status, int) and status >= 500:
        return ServiceUnavailable(str(problem.get("detail") or problem))
    return ServiceRefused(problem)


def _object(body: bytes | None) -> Json:
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ClientError(_NO_SERVICE, field="url")
    return found


def _reply(request: urllib.request.Request, timeout: float) -> tuple[int, str, bytes, str]:
    """Status, reason, body and entity tag of the reply, an error's too."""
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.status, "", reply.read(), reply.headers.get("ETag", "")
    except urllib.error.HTTPError as error:
        with error:
            try:
                body = error.read()
            except (OSError, HTTPException):
                body = b""
            return error.code, str(error.reason), body, ""


def _problem(status: int, reason: str, body: bytes) -> Json:
    """The problem document of a reply, or one that names its status."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    # urllib words some reasons in several lines.
    detail = " ".join(f"HTTP {status} {reason}".split())
    return found if isinstance(found, dict) else {"status": status, "detail": detail}
