"""The command line: ``warpplan --help``. Imports what a command needs when it runs, so that small ones start fast."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput, InvalidShape, StoreError, WarpplanError

if TYPE_CHECKING:
    from warpplan.service.shapes import Line
    from warpplan.service.workflow import Workflow

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
SHOWN_ERRORS = 20
"""Bad lines of a shapes file that are named one by one; the rest are counted."""

app = typer.Typer(
    help="Plan warp-specialised kernels from measured costs, without spending GPU time on autotuning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

KernelName = Annotated[str, typer.Argument(help="Kernel, such as gemm (see: warpplan kernels).", metavar="KERNEL")]
SizeList = Annotated[list[str], typer.Argument(help="Sizes, such as M=4096 N=4096 K=4096.", metavar="NAME=SIZE...")]
Dtype = Annotated[str, typer.Option(help="torch's name of the dtype.")]
DeviceName = Annotated[str | None, typer.Option(help="The GPU's full name (see: warpplan devices).")]
ProfileFile = Annotated[Path | None, typer.Option("--profile", help="Plan with this profile, not the embedded one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorePlace = Annotated[str, typer.Option(help="SQLite file or postgresql:// URL.", envvar="WARPPLAN_STORE")]
MaybeStore = Annotated[
    str | None, typer.Option(help="Look here first and keep the answer: SQLite file or postgresql:// URL.")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0; 2 for bad input, with one line on stderr; 130 for Ctrl-C."""
    try:
        status = app(arguments, prog_name="warpplan", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except WarpplanError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("warpplan: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader left. Python flushes once more at exit; that must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        # Usage errors; their class moved between releases of typer, the method that words them did not.
        if hasattr(error, "format_message"):
            return _fail(f"{error.format_message()} (see: warpplan --help)")
        raise


def _fail(message: str) -> int:
    print(f"warpplan: error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


@app.command()
def kernels(as_json: Json = False) -> None:
    """List what can be planned."""
    from warpplan.kernels import registry

    found = [registry.kernel(name) for name in registry.names()]
    if as_json:
        return _print_json(
            [
                {"name": k.name, "description": k.description, "dimensions": k.dimensions, "dtypes": k.dtypes}
                for k in found
            ]
        )
    for k in found:
        print(f"{k.name:<16} sizes {' '.join(k.dimensions)}, dtypes {', '.join(k.dtypes)}: {k.description}")
    return None


@app.command()
def devices(as_json: Json = False) -> None:
    """List the known GPUs and the profiles that plan for them."""
    from dataclasses import asdict

    from warpplan.planner.device import DEVICES
    from warpplan.service.profiles import Profiles

    sources = Profiles().available()
    if as_json:
        return _print_json(
            [{**asdict(d), "profile": sources[d.name].key if d.name in sources else None} for d in DEVICES.values()]
        )
    for d in DEVICES.values():
        source = sources.get(d.name)
        what = f"profile {source.key[:12]} of {source.profile.identity.date}" if source else "no embedded profile"
        print(f"{d.name:<24} sm_{d.capability}, {d.sm_count} SMs: {what}")
    return None


@app.command()
def plan(
    kernel: KernelName,
    sizes: SizeList,
    dtype: Dtype = "bfloat16",
    device: DeviceName = None,
    store: MaybeStore = None,
    profile: ProfileFile = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many candidates instead of the best one's plan.")] = 0,
    as_json: Json = False,
) -> None:
    """Plan one kernel for one shape."""
    from warpplan.service.display import config_line, details
    from warpplan.service.problem import Item

    item = Item(kernel, tuple(_sizes(sizes).items()), dtype, device)
    workflow = _workflow(store, profile)
    if top:
        problem, ranked = workflow.candidates(item, top)
        if as_json:
            return _print_json([_candidate(r.config.as_dict(), r.prediction) for r in ranked])
        print(f"{problem.label} on {problem.device}")
        for number, r in enumerate(ranked, 1):
            p = r.prediction
            print(
                f"{number:>4} {p.time_us:>10.2f} us {p.tflops:>7.1f} TFLOP/s  {p.bound_by:<9} {config_line(r.config)}"
            )
        return None
    answer = workflow.configure(item)
    if store and answer.notice:
        print(f"warpplan: warning: not kept: {answer.notice}", file=sys.stderr)
    if as_json:
        return _print_json(answer.as_dict())
    for line in details(answer):
        print(line)
    return None


@app.command()
def batch(
    shapes: Annotated[str, typer.Argument(help="A .csv or .jsonl file of shapes, or the word: bundled.")],
    store: StorePlace = "warpplan.sqlite",
    device: DeviceName = None,
    profile: ProfileFile = None,
    as_json: Json = False,
) -> None:
    """Plan many shapes into a store and print them, one line each (with --json, one JSON object a line).

    Finished lines are kept when a line is bad or the run is interrupted; a second run takes up what is there.
    """
    from rich.console import Console
    from rich.progress import track

    from warpplan.service import display
    from warpplan.service.bundled import bundled
    from warpplan.service.shapes import read_shapes

    lines: Iterable[Line] = bundled() if shapes == "bundled" else read_shapes(Path(shapes))
    workflow = _workflow(store, profile, device=device, write=True)
    errors = Console(stderr=True)
    good = bad = planned = 0
    if not as_json:
        print(display.HEADER)
    results = workflow.batch(lines, must_keep=True)
    for result in track(results, "planning", console=errors, transient=True, disable=not errors.is_terminal):
        if result.answer is not None:
            good += 1
            planned += result.answer.kind == "planned"
            name = result.item.name if result.item else ""
            if as_json:
                _print_json({"line": result.line, "name": name, **result.answer.as_dict()})
            else:
                print(display.row(name, result.answer))
        elif result.error is not None:
            bad += 1
            if bad <= SHOWN_ERRORS:
                where = "" if str(result.error).startswith(f"{shapes}:") else f"{shapes}:{result.line}: "
                _fail(f"{where}{result.error}")
    print(f"{good} shapes in {store}: {planned} planned now, {good - planned} kept before", file=sys.stderr)
    if bad:
        raise InvalidInput(f"{bad} of {good + bad} lines could not be planned, named above (the first {SHOWN_ERRORS})")


@app.command()
def serve(
    store: StorePlace = "warpplan.sqlite",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    profile: ProfileFile = None,
) -> None:
    """Serve configurations over HTTP until interrupted."""
    import uvicorn

    from warpplan.service.app import create_app

    workflow = _workflow(store, profile, timeout_s=2.0)
    listener = _listen(host, port)
    address, bound = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    print(f"warpplan: serving {store} on http://{shown}:{bound} (documentation at /docs)", file=sys.stderr, flush=True)
    server = uvicorn.Server(uvicorn.Config(create_app(workflow), log_level="warning", access_log=False))
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {reason}: name another with --host or --port", field="port", value=port
        ) from None
    return listener


def _workflow(
    store: str | None,
    profile: Path | None,
    *,
    device: str | None = None,
    write: bool = False,
    timeout_s: float = 10.0,
) -> Workflow:
    from warpplan.planner.device import device as known_device
    from warpplan.service.profiles import Profiles
    from warpplan.service.workflow import Workflow

    profiles = Profiles.load(profile) if profile else Profiles()
    if device is not None:
        profiles.default_device = known_device(device).name
    if store is None:
        return Workflow(None, profiles)
    from warpplan.service.store import Store

    opened = Store.open(store, timeout_s=timeout_s)
    if write and opened.readonly:
        raise StoreError(
            f"store {store} is read-only: make the file and its folder writable, or name another store with --store",
            field="store", value=store,
        )  # fmt: skip
    return Workflow(opened, profiles)


def _sizes(words: Sequence[str]) -> dict[str, object]:
    sizes: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidShape(f"{word!r} is no size: write NAME=SIZE, such as M=4096", field="sizes", value=word)
        if name in sizes:
            raise InvalidShape(f"{name} is given twice: {sizes[name]} and {value}", field=name, value=value)
        sizes[name] = value
    return sizes


def _candidate(config: dict[str, object], prediction: Any) -> dict[str, object]:
    return {
        "config": config,
        "predicted": {
            "time_us": prediction.time_us,
            "tflops": prediction.tflops,
            "bound_by": prediction.bound_by,
            "parts": dict(prediction.parts),
        },
    }


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    sys.exit(main())
