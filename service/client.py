"""What a training job imports to ask the service: standard library only, quick to give up.

>>> client = Client("http://planner:8000")                                      # doctest: +SKIP
>>> answer = client.config("gemm", M=4096, N=4096, K=4096, dtype="bfloat16")    # doctest: +SKIP
>>> triton.Config(**answer["config"])                                           # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from warpplan.planner.errors import WarpplanError
from warpplan.service.agreement.choice_record import ChoiceDiffers as ChoiceDiffers
from warpplan.service.agreement.choice_record import ChoiceRecord

if TYPE_CHECKING:
    from warpplan.service.listening import TuningListener

Json = dict[str, Any]
ShapeValue = int | str | Sequence[int]
"""A size, or an option: text, or whole numbers where the kernel takes a list of them."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
MOST_BODY_BYTES = 1 << 20
"""What the service takes in one request (``MAX_BODY_BYTES`` in ``warpplan.service.http.app``)."""
_NO_SERVICE = "the reply is not of the kind that was asked for: does the URL name a warpplan service?"


class ClientError(WarpplanError):
    """The service gave no answer that can be used."""


class ServiceUnavailable(ClientError):
    """The service could not be reached, did not answer in time, or answered that it cannot now (5xx)."""


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

    ``timeout`` is the longest wait for one reply in seconds. After a failure to reach it the service is left alone for
    ``pause`` seconds, so that a job with a thousand shapes does not wait a thousand times. ``on_error="none"`` makes an
    unreachable service a ``None`` instead of :class:`ServiceUnavailable`; a refusal always raises, because asking again
    does not help. Answers are remembered with their entity tag and fetched again only when they have changed. Safe to
    share between threads and across fork.

    Ranks that must launch alike: ``record`` is a folder in which each rank writes what it was told, for ``warpplan
    agree`` to compare; ``rank`` is by default what torchrun, Slurm or Open MPI say. ``strict`` raises
    :class:`ChoiceDiffers` in place of an answer that differs from what this client answered before, or from the file
    ``agreed`` that ``warpplan agree --out`` has written; no answer differs from every answer.
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
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ClientError(f"service URL {url!r}: expected http://host:port", field="url", value=url)
        if not timeout > 0:
            raise ClientError(f"timeout={timeout!r}: expected seconds, more than 0", field="timeout", value=timeout)
        if on_error not in ("raise", "none"):
            raise ClientError(f"on_error={on_error!r}: expected raise or none", field="on_error", value=on_error)
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._pause = pause
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
        does not take, :class:`ServiceUnavailable` where there is no service, :class:`ChoiceDiffers` where ``strict``
        and another configuration was given before.
        """
        query = urllib.parse.urlencode({**_written(shape), "dtype": dtype, "device": device})
        path = f"/v1/configs/{urllib.parse.quote(kernel, safe='')}?{query}"
        answer: Json | None = None
        try:
            answer = self._get(path, "config", dict)
        except ServiceUnavailable:
            if not self._quiet:
                raise
        self._choices.note(kernel, shape, dtype, device, None if answer is None else answer["config"])
        return answer

    def tuned(self, kernel: Any, *, device: str = "NVIDIA H200", signature: str = "", **shape: int) -> Json | None:
        """The kept configuration of somebody's Triton ``kernel`` (the function, under ``@triton.autotune`` or not) for
        one shape, as ``warpplan tune --store`` keeps them: ``config`` has the fields of ``triton.Config``.

        ``None`` where nothing is kept for this very source, or, with ``on_error="none"``, there is no service.
        ``signature`` chooses among answers for unlike arguments; without it :class:`ClientError` lists them.
        """
        while not hasattr(kernel, "cache_key"):
            if not hasattr(kernel, "fn"):
                raise ClientError("not a Triton kernel: expected a function under @triton.jit", field="kernel")
            kernel = kernel.fn
        words = {
            "kernel": kernel.__name__, "source": kernel.cache_key, "device": device, "signature": signature, **shape,
        }  # fmt: skip
        query = urllib.parse.urlencode({name: word for name, word in words.items() if word != ""})
        found: list[Json] = []
        try:
            found = self._get(f"/v1/tuned-kernels?{query}", "answers", list)["answers"]
        except ServiceUnavailable:
            if not self._quiet:
                raise
        if len(found) > 1:
            known = "; ".join(answer["signature"] for answer in found)
            raise ClientError(f"{kernel.__name__} is known with unlike arguments: name signature= of {known}")
        answer = found[0] if found else None
        asked = {**shape, "signature": signature, "source": kernel.cache_key}
        self._choices.note(kernel.__name__, asked, "", device, None if answer is None else answer["config"])
        return answer

    def configs(self, items: Sequence[Mapping[str, object]]) -> list[Json | ClientError] | None:
        """The answers for many shapes in one request, in their order: a job's at its start. An item has ``kernel``,
        ``shape`` by name, ``dtype`` and ``device``. Where an item has no answer, a :class:`ServiceRefused` or
        :class:`ServiceUnavailable` stands in the list and is not raised, so that the others are not lost.

        ``None`` only with ``on_error="none"``. Raises :class:`ServiceRefused` for a batch that is too large,
        :class:`ServiceUnavailable` where there is no service.
        """
        if not items:
            return []
        body = json.dumps({"items": list(items)}).encode()
        if len(body) > MOST_BODY_BYTES:
            # The service would hang up in the middle of it, as one does that has crashed.
            told = (
                f"{len(items)} items of {len(body)} bytes: at most {MOST_BODY_BYTES} in one request, send them in parts"
            )
            raise ServiceRefused({"detail": told, "field": "items", "value": len(items), "limit": MOST_BODY_BYTES})
        try:
            reply, _ = self._send("/v1/configs:batch", {"Content-Type": "application/json"}, body)
        except ServiceUnavailable:
            if self._quiet:
                return None
            raise
        results = _object(reply).get("results")
        if not isinstance(results, list) or len(results) != len(items):
            raise ClientError(_NO_SERVICE, field="url")
        return [_entry(found) for found in results]

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
        False where the service had the same report, or, with ``on_error="none"``, could not be reached."""
        body = {
            "kernel": kernel, "shape": _written(shape), "dtype": dtype, "device": device, "config": dict(config),
            "time_us": time_us, "samples": samples, "environment": dict(environment or {}), "run": run,
        }  # fmt: skip
        try:
            reply, _ = self._send("/v1/measurements", {"Content-Type": "application/json"}, json.dumps(body).encode())
        except ServiceUnavailable:
            if self._quiet:
                return False
            raise
        return bool(_object(reply).get("recorded"))

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
        options = {"time_limit_s": time_limit_s, "depth": depth, "slack_cycles": slack_cycles}
        try:
            return self._planned(json.dumps({"graph": graph, "options": options}).encode(), wait)
        except ServiceUnavailable:
            if self._quiet:
                return None
            raise

    def _planned(self, request: bytes, wait: float) -> Json:
        until = time.monotonic() + wait
        reply, _ = self._send("/v1/plans", {"Content-Type": "application/json"}, request)
        path = f"/v1/plans/{_object(reply).get('id')}"
        pause = SHORTEST_POLL_S
        while True:
            plan = _object(self._send(path, {}, None)[0])
            if plan.get("state") == "failed":
                raise PlanFailed(plan.get("problem") or {})
            if plan.get("state") == "done":
                return plan
            if time.monotonic() + pause > until:
                message = (
                    f"plan {plan.get('id')} at {self._url} is still {plan.get('state')} after {wait:g} s: ask again"
                )
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
        request = urllib.request.Request(self._url + path, data=data, headers={"Accept": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as reply:
                return reply.read(), reply.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 304:
                    return None, ""
                if error.code >= 500:
                    # It lives: other questions may fare better, so no pause.
                    detail = _problem(error).get("detail")
                    raise ServiceUnavailable(f"the service at {self._url} answers {error.code}: {detail}") from None
                raise ServiceRefused(_problem(error)) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._down(f"cannot be reached: {reason or type(error).__name__}") from None

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
    comes beyond that and what the service does not take within ``timeout`` seconds is dropped and counted. A launch
    costs nothing. Raises :class:`ClientError` for a URL that is none.
    """
    from warpplan.service.listening import TuningListener

    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ClientError(f"service URL {url!r}: expected http://host:port", field="url", value=url)
    listener = TuningListener(url.rstrip("/"), timeout=timeout, most_waiting=most_waiting, interval_s=interval_s)
    listener.start()
    return listener


def _written(shape: Mapping[str, ShapeValue]) -> dict[str, ShapeValue]:
    """``shape`` with lists as text, "1,2,3": a query string knows no other."""
    return {name: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for name, v in shape.items()}


def _entry(found: object) -> Json | ClientError:
    """What one item of a batch got."""
    answer, problem = (found.get("answer"), found.get("error")) if isinstance(found, dict) else (None, None)
    if isinstance(answer, dict):
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


def _problem(error: urllib.error.HTTPError) -> Json:
    try:
        found = json.loads(error.read())
    except (ValueError, RecursionError, OSError, HTTPException):
        found = None
    # urllib words some reasons in several lines.
    reason = " ".join(f"HTTP {error.code} {error.reason}".split())
    return found if isinstance(found, dict) else {"status": error.code, "detail": reason}
