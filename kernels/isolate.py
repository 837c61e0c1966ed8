"""Run a function in a child process with a time limit. A crash, a hang or an exception is a result, never raised here.

The child is a fresh interpreter in a session of its own: ``python -m warpplan.kernels.isolate FD``. It reads requests,
JSON lines, from stdin and answers in JSON lines on descriptor FD, apart from stdout and stderr, where libraries write
as they like. A function that returns an iterator streams its items, and what was streamed outlives the child. A child
whose parent is gone ends by itself.

:func:`within` bounds a request to a service, in a thread of the same process. Training jobs import this module, so it
imports the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal, TypeVar

Json = Any
"""A JSON value: whoever reads it knows what it asked for."""
T = TypeVar("T")
Status = Literal["ok", "error", "crash", "timeout", "stopped"]
EXIT_GRACE_S = 5.0
"""A child that has answered may still hang while its libraries shut down; it is not waited for longer."""
TAIL_CHARACTERS = 400
STOP_POLL_S = 0.1
"""Seconds between two looks at ``stop``. Chosen by hand; doubled, an interpreter that exits waits twice as long."""
ORPHAN_POLL_S = 1.0
"""Seconds until a child sees that its parent is gone. Chosen by hand."""


@dataclass(frozen=True)
class IsolatedResult:
    """``status``: "ok" with ``value``; "error" the function raised or answered what is not JSON; "crash" the child died
    without an answer; "timeout" it was silent for too long and was killed; "stopped" the caller had it killed.
    ``reason`` is one line, empty when ok."""

    status: Status
    value: Json
    reason: str
    seconds: float
    items: tuple[Json, ...] = ()


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; :class:`TimeoutError` after ``seconds``.

    In a thread: socket timeouts bound single operations, not a reply that trickles in or a name that is not resolved.
    A process that can start no more threads, such as one that is ending, runs ``work`` on the caller's thread.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="warpplan-exchange", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return work()
    thread.join(seconds)
    if done:
        return done[0]
    if failed:
        raise failed[0]
    raise TimeoutError(f"no whole reply within {seconds:g} s")


def run_isolated(
    target: str,
    args: Sequence[Json] = (),
    kwargs: Mapping[str, Json] | None = None,
    *,
    time_limit_s: float,
    start_limit_s: float | None = None,
    on_item: Callable[[Json], None] | None = None,
    limit_after: Callable[[Json], float | None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> IsolatedResult:
    """Call ``target`` ("module:function") with JSON arguments in a child process.

    ``time_limit_s`` is the longest silence: from the start, and from one streamed item to the next; ``start_limit_s``
    that before the first, where it is another, and ``limit_after`` that after one item, where it answers a number.
    ``on_item`` sees each item as it comes. ``stop`` is looked at ten times a second: once it says so the child is
    killed. The whole process group is killed at the end, also when this process is interrupted.
    """
    with Child() as child:
        result = child.call(
            target, args, kwargs, time_limit_s=time_limit_s, start_limit_s=start_limit_s, on_item=on_item,
            limit_after=limit_after, stop=stop,
        )  # fmt: skip
        if result.status in ("ok", "error"):
            child.end()
    return result


class Child:
    """A child process that takes one request after another, so that what it has imported serves them all. It starts at
    once, and nothing waits for that. Leaving it kills its whole process group.

    A child that crashed, was silent for too long or was stopped is killed there and then, and not ``alive`` any more.
    """

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
        self._reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "warpplan.kernels.isolate", str(writer)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            os.close(self._reader)
            self._output.close()
            raise
        finally:
            os.close(writer)
        self.alive = True

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def call(
        self,
        target: str,
        args: Sequence[Json] = (),
        kwargs: Mapping[str, Json] | None = None,
        *,
        time_limit_s: float,
        start_limit_s: float | None = None,
        on_item: Callable[[Json], None] | None = None,
        limit_after: Callable[[Json], float | None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> IsolatedResult:
        """What comes of one request: see :func:`run_isolated`, which is one call of a child of its own."""
        begin = time.monotonic()
        request = json.dumps({"target": target, "args": list(args), "kwargs": dict(kwargs or {})})
        items: list[Json] = []
        try:
            # A child that dies at once closes its end early.
            with contextlib.suppress(BrokenPipeError):
                assert self._process.stdin is not None
                self._process.stdin.write(request.encode() + b"\n")
                self._process.stdin.flush()
            listening = _ChildListener(self._reader, time_limit_s, items, on_item, limit_after, stop)
            status, value, reason = listening.listen(start_limit_s or time_limit_s)
            if status == "crash":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(EXIT_GRACE_S)
                reason = _death(self._process.poll(), self._output)
        except BaseException:
            self.kill()
            raise
        if status not in ("ok", "error") or listening.garbled:
            self.kill()
        return IsolatedResult(status, value, reason, time.monotonic() - begin, tuple(items))

    def end(self) -> None:
        """Let the child end by itself, for a while."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(EXIT_GRACE_S)

    def kill(self) -> None:
        """Kill the child and whatever it has started."""
        if not self.alive:
            return
        self.alive = False
        _kill(self._process)
        os.close(self._reader)
        self._output.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """This process's own, with its import path: the child must find what the parent found."""
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(p) for p in sys.path if os.path.exists(p)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


@dataclass
class _ChildListener:
    """The parent's side of a child's answers; the fields are those of :func:`run_isolated`."""

    reader: int
    time_limit_s: float
    items: list[Json]
    on_item: Callable[[Json], None] | None
    limit_after: Callable[[Json], float | None] | None
    stop: Callable[[], bool] | None
    garbled: bool = False
    """Whether what came was no message: what comes next may be none of the next request's."""

    def listen(self, limit_s: float) -> tuple[Status, Json, str]:
        """Collect the child's lines until it answers, closes its end, is silent for too long or is to stop."""
        pending = b""
        while True:
            waited = self._wait(limit_s)
            if waited == "stopped":
                return "stopped", None, "stopped before it had answered: killed"
            if waited == "timeout":
                return "timeout", None, f"no answer for {limit_s:g} s: killed"
            chunk = os.read(self.reader, 65536)
            if not chunk:
                return "crash", None, ""
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                    if "item" in message:
                        limit_s = self._take(message["item"])
                    elif "value" in message:
                        return "ok", message["value"], ""
                    else:
                        return "error", None, str(message["error"])
                except (ValueError, KeyError, TypeError):
                    self.garbled = True
                    return "error", None, f"the child answered with what is no message: {line[:80]!r}"

    def _wait(self, limit_s: float) -> str:
        until = time.monotonic() + limit_s
        while True:
            if self.stop is not None and self.stop():
                return "stopped"
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self.reader], [], [], left if self.stop is None else min(left, STOP_POLL_S))
            if ready:
                return "ready"
            if time.monotonic() >= until:
                return "timeout"

    def _take(self, item: Json) -> float:
        """Keep ``item``. How long the child may now be silent."""
        self.items.append(item)
        if self.on_item is not None:
            self.on_item(item)
        limit = None if self.limit_after is None else self.limit_after(item)
        return self.time_limit_s if limit is None else limit


def _death(code: int | None, output: IO[bytes]) -> str:
    """Why a child that gave no answer is gone, with the last line that it printed."""
    if code is None:
        how = "it closed its answers but did not end"
    elif code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    else:
        how = f"exit status {code}"
    output.seek(0)
    printed = output.read().decode(errors="replace").strip().splitlines()
    return f"{how}: {printed[-1].strip()[:TAIL_CHARACTERS]}" if printed else how


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole group; its descendants outlive it otherwise."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _answer(descriptor: int) -> None:
    """The child's side: one request a line, until there are no more."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(descriptor, "w", buffering=1) as answers:

        def say(message: dict[str, Json]) -> None:
            answers.write(json.dumps(message) + "\n")

        for line in sys.stdin:
            request = json.loads(line)
            try:
                module, _, name = request["target"].partition(":")
                value = getattr(importlib.import_module(module), name)(*request["args"], **request["kwargs"])
                if isinstance(value, Iterator):
                    for item in value:
                        say({"item": item})
                    value = None
                say({"value": value})
            except Exception as error:
                first = (str(error).splitlines() or [""])[0]
                say({"error": f"{type(error).__name__}: {first}".rstrip(": ")})


def _end_with(parent: int) -> None:
    """End this process, and what it has started, once ``parent`` is gone: nobody would kill it."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    _answer(int(sys.argv[1]))
