"""Options and arguments that several commands share, and what they open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from warpplan.kernels import registry
from warpplan.planner.errors import InvalidInput, InvalidShape, StoreError, WarpplanError

if TYPE_CHECKING:
    from warpplan.planner.values.deadline import Interruption
    from warpplan.service.workflow.configure import Workflow
    from warpplan.service.workflow.request import Item
    from warpplan.service.workflow.shape_files import Line

T = TypeVar("T")
INTERRUPTED = 130
"""Exit status of what Ctrl-C, or SIGTERM during a search, ended."""
LONGEST_S = 1e6
"""The most seconds that an option takes, eleven days, chosen by hand. No operating system waits for an infinity, and
JSON has none."""
SHOWN_ERRORS = 20
"""Bad lines of a shapes file that are named one by one; the rest are counted."""

KernelName = Annotated[str, typer.Argument(help="Kernel (see: warpplan kernels).", metavar="KERNEL")]
ShapeWords = Annotated[
    list[str], typer.Argument(help="The kernel's sizes and options (see: warpplan kernels).", metavar="NAME=VALUE...")
]
Dtype = Annotated[str, typer.Option(help="torch's name of the dtype.")]
DeviceName = Annotated[str | None, typer.Option(help="The GPU's full name (see: warpplan devices).")]
ProfileFile = Annotated[Path | None, typer.Option("--profile", help="Plan with this profile, not the embedded one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorePlace = Annotated[str, typer.Option(help="SQLite file or postgresql:// URL.", envvar="WARPPLAN_STORE")]
MaybeStore = Annotated[
    str | None, typer.Option(help="Look here first and keep the answer: SQLite file or postgresql:// URL.")
]


def open_workflow(
    store: str | None,
    profile: Path | None,
    *,
    device: str | None = None,
    write: bool = False,
    readonly: bool = False,
    timeout_s: float = 10.0,
) -> Workflow:
    """The use cases over a store (none where ``store`` is ``None``) and the embedded or the given profile.

    ``device`` is the one meant where a problem names none; ``write`` raises :class:`StoreError` for a read-only store,
    ``readonly`` opens any store so.
    """
    from warpplan.service.workflow.configure import Workflow
    from warpplan.service.workflow.profiles import Profiles

    profiles = Profiles.given(profile, device)
    if store is None:
        return Workflow(None, profiles)
    from warpplan.service.store.answer_store import Store

    opened = Store.open(store, timeout_s=timeout_s, readonly=readonly)
    if write and opened.readonly:
        raise StoreError(
            f"store {store} is read-only: make the file and its folder writable, or name another with --store",
            field="store", value=store,
        )  # fmt: skip
    return Workflow(opened, profiles)


def store_name(workflow: Workflow, given: str | None) -> str:
    """The store of ``workflow`` as it may be shown: without the password of its URL."""
    return workflow.store.name if workflow.store is not None else str(given)


def require_store(store: str) -> None:
    """Raise :class:`StoreError` where ``store`` is a file that is not there: a command that only reads makes none."""
    if "://" not in store and not Path(store).exists():
        raise StoreError(
            f"store {store} does not exist: name another with --store, or make it with `warpplan batch`",
            field="store", value=store,
        )  # fmt: skip


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the command line has the option ``name``; the environment may give one that is meant for other
    commands."""
    assert name in context.params, name
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def require_unused(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise :class:`InvalidInput` where the command line has one of the options ``names``, saying ``why`` it must
    not."""
    for name in names:
        if is_typed(context, name):
            raise InvalidInput(f"--{name.replace('_', '-')}: {why}", field=name, value=context.params[name])


def named(words: Sequence[str]) -> dict[str, object]:
    """``["NAME=VALUE", …]`` as sizes and options by name; :class:`InvalidShape` for a word that is none, or twice the
    same."""
    from warpplan.service.workflow.request import example_size

    shape: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            (example,) = (f"{name}={size}" for name, size in example_size().items())
            raise InvalidShape(
                f"{word!r} is no size or option: write NAME=VALUE, such as {example}", field="shape", value=word
            )
        if name in shape:
            raise InvalidShape(f"{name} is given twice: {shape[name]} and {value}", field=name, value=value)
        shape[name] = value
    return shape


def read_lines(shapes: str, kernel: str = registry.DEFAULT) -> Iterator[Line]:
    """The lines of a file of shapes, or the bundled shapes; a line that names no kernel is of ``kernel``."""
    from warpplan.service.workflow.bundled_shapes import bundled
    from warpplan.service.workflow.shape_files import read_shapes

    return bundled() if shapes == "bundled" else read_shapes(Path(shapes), kernel)


class LineTally:
    """Counts the lines of a file of shapes. A bad one is told on stderr and costs no good one, but the command ends
    with exit status 2."""

    def __init__(self, shapes: str | None) -> None:
        self._shapes = shapes or ""
        self.good = self.bad = 0

    def tell(self, line: int, error: WarpplanError) -> None:
        from warpplan.service.workflow.shape_files import at_line

        self.bad += 1
        if self.bad <= SHOWN_ERRORS:
            print_error(str(at_line(self._shapes, line, error)))

    def good_ones(self, lines: Iterable[Line], take: Callable[[Item], T]) -> Iterator[T]:
        """What ``take`` makes of each line, where it raises no :class:`InvalidInput`."""
        for line, item in lines:
            try:
                if isinstance(item, WarpplanError):
                    raise item
                taken = take(item)
            except InvalidInput as error:
                self.tell(line, error)
            else:
                self.good += 1
                yield taken

    def require_all_good(self) -> None:
        """Raise :class:`InvalidInput` where a line was bad, once the good ones are done."""
        if self.bad:
            first = f" (the first {SHOWN_ERRORS})" if self.bad > SHOWN_ERRORS else ""
            raise InvalidInput(
                f"{self.bad} of {self.good + self.bad} lines could not be planned, named above{first}", field="shapes"
            )


def finish_on_ctrl_c(work: Callable[[], T], interruption: Interruption) -> T:
    """What ``work`` returns; Ctrl-C or SIGTERM calls ``interruption``, after which ``work`` is to return what it has by
    then."""
    answer: Future[T] = Future()

    def work_on() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    # OR-Tools keeps its thread from hearing of Ctrl-C; this one hears of it.
    Thread(target=work_on, daemon=True).start()
    with _sigterm_as_ctrl_c():
        try:
            return answer.result()
        except KeyboardInterrupt:
            while not answer.done():
                interruption.call()
                wait([answer], timeout=0.1)
            return answer.result()


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Within, SIGTERM, with which ``timeout`` and batch systems end a job, raises :class:`KeyboardInterrupt` as Ctrl-C
    does. Python lets the main thread alone change what a signal does."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """What a user's file prints while it is imported, run, pruned or compiled (``tl.static_print``) goes to stderr:
    stdout holds the command's answer alone, so that ``--json`` can be parsed. Descriptor 1 moves too: programs that the
    file starts and libraries in C print there."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(OSError):  # started with stdout or stderr closed
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        yield


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr that begins with ``what`` and is gone at the end; none where stderr is no terminal. Yields a
    function to call with what is done, of how many, and what is at work."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    errors = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield tell


def print_error(message: str) -> None:
    """One line on stderr."""
    print(f"warpplan: error: {' '.join(message.split())}", file=sys.stderr)


def print_json(value: object) -> None:
    """One line of JSON on stdout; in ASCII where stdout is not UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(json.dumps(value, ensure_ascii="utf" not in encoding.lower(), allow_nan=False))
