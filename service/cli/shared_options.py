"""Options and arguments that several commands share, and what they open."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from warpplan.planner.errors import InvalidShape, StoreError

if TYPE_CHECKING:
    from warpplan.planner.values.deadline import Interruption
    from warpplan.service.workflow.configure import Workflow

T = TypeVar("T")
INTERRUPTED = 130
"""Exit status of what Ctrl-C ended."""

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
    timeout_s: float = 10.0,
) -> Workflow:
    """The use cases over a store (none where ``store`` is ``None``) and the embedded or the given profile.

    ``device`` is the one meant where a problem names none; ``write`` raises :class:`StoreError` for a read-only store.
    """
    from warpplan.service.workflow.configure import Workflow
    from warpplan.service.workflow.profiles import Profiles

    profiles = Profiles.given(profile, device)
    if store is None:
        return Workflow(None, profiles)
    from warpplan.service.store.answer_store import Store

    opened = Store.open(store, timeout_s=timeout_s)
    if write and opened.readonly:
        raise StoreError(
            f"store {store} is read-only: make the file and its folder writable, or name another with --store",
            field="store", value=store,
        )  # fmt: skip
    return Workflow(opened, profiles)


def require_store(store: str) -> None:
    """Raise :class:`StoreError` where ``store`` is a file that is not there: a command that only reads makes none."""
    if "://" not in store and not Path(store).exists():
        raise StoreError(
            f"store {store} does not exist: name another with --store, or make it with `warpplan batch`",
            field="store", value=store,
        )  # fmt: skip


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


def finish_on_ctrl_c(work: Callable[[], T], interruption: Interruption) -> T:
    """What ``work`` returns; Ctrl-C calls ``interruption``, after which ``work`` is to return what it has by then."""
    answer: Future[T] = Future()

    def work_on() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    # OR-Tools keeps its thread from hearing of Ctrl-C; this one hears of it.
    Thread(target=work_on, daemon=True).start()
    try:
        return answer.result()
    except KeyboardInterrupt:
        while not answer.done():
            interruption.call()
            wait([answer], timeout=0.1)
        return answer.result()


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """What a user's file prints while it is imported, pruned or compiled (``tl.static_print``) goes to stderr: stdout
    holds the command's answer alone, so that ``--json`` can be parsed."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def print_json(value: object) -> None:
    """One line of JSON on stdout; in ASCII where stdout is not UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(json.dumps(value, ensure_ascii="utf" not in encoding.lower(), allow_nan=False))
