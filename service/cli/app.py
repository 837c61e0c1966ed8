"""The command line: ``warpplan --help``. Imports what a command needs when it runs, so that small ones start fast."""

from __future__ import annotations

import errno
import io
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.service.cli import (
    agree_command,
    explain_command,
    export_command,
    pack_command,
    solve_command,
    warm_command,
    ws_command,
)
from warpplan.service.cli.measuring import calibrate_command, measure_command, tune_command
from warpplan.service.cli.shared_options import (
    DeviceName,
    Dtype,
    Json,
    KernelName,
    LineTally,
    MaybeStore,
    ProfileFile,
    ShapeWords,
    StorePlace,
    named,
    open_workflow,
    print_error,
    print_json,
    progress_bar,
    read_lines,
    require_store,
    store_name,
)

if TYPE_CHECKING:
    from warpplan.planner.predict.time_model import Prediction

BROKEN_PIPE, BAD_INPUT, INTERRUPTED = 1, 2, 130
_WRITE_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

app = typer.Typer(
    help="Plan warp-specialised kernels from measured costs, without spending GPU time on autotuning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0; 2 for bad input, with one line on stderr; 130 for Ctrl-C; 1 where
    the reader of its output left. What the terminal's encoding lacks is written as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = app(arguments, prog_name="warpplan", standalone_mode=False)
        if sys.stdout is not None:  # started with stdout closed: print writes nowhere
            sys.stdout.flush()
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except WarpplanError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("warpplan: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _WRITE_FAILED:
            raise
        _discard_output()
        return _fail(f"cannot write the output: {error.strerror}")
    except Exception as error:
        # Usage errors; their class moved between releases of typer, the method that words them did not.
        if hasattr(error, "format_message"):
            if not error.format_message():
                return BAD_INPUT  # no arguments: the help has been shown
            return _fail(f"{error.format_message()}{_not_this(error)} (see: warpplan --help)")
        raise


def _not_this(error: Exception) -> str:
    """The value that an option refused: typer 0.29's message leaves it out, and keeps it in what pydantic raised."""
    errors = getattr(error.__cause__, "errors", None)
    return f", not {str(errors()[0]['input'])[:80]!r}" if errors is not None else ""


def _discard_output() -> None:
    """Python flushes stdout once more at exit; that must not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    print_error(message)
    return BAD_INPUT


@app.command()
def kernels(as_json: Json = False) -> None:
    """List what can be planned: kernels, their sizes, options and dtypes."""
    from warpplan.kernels import registry
    from warpplan.service.cli.display import kernel_lines

    found = registry.declarations()
    if as_json:
        return print_json([declared.as_dict() for declared in found])
    for declared in found:
        for line in kernel_lines(declared):
            print(line)
    return None


@app.command()
def devices(as_json: Json = False) -> None:
    """List the known GPUs and the profiles that plan for them."""
    from dataclasses import asdict

    from warpplan.planner.values.device import DEVICES
    from warpplan.service.workflow.profiles import Profiles

    sources = Profiles().available()
    if as_json:
        return print_json(
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
    shape: ShapeWords,
    dtype: Dtype = "bfloat16",
    device: DeviceName = None,
    store: MaybeStore = None,
    profile: ProfileFile = None,
    top: Annotated[int | None, typer.Option(min=1, help="Show this many candidates, not the best one's plan.")] = None,
    as_json: Json = False,
) -> None:
    """Plan one kernel for one shape."""
    from warpplan.service.cli.display import config_line, details
    from warpplan.service.workflow.request import Item

    item = Item(kernel, tuple(named(shape).items()), dtype, device)
    if top and store:
        raise InvalidInput(
            "--top lists candidates, which no store keeps: leave --store out, or --top to keep the best",
            field="top", value=top,
        )  # fmt: skip
    workflow = open_workflow(store, profile, device=device)
    if top:
        problem, ranked = workflow.candidates(item, top)
        if as_json:
            return print_json([_candidate(r.config.as_dict(), r.prediction) for r in ranked])
        print(f"{problem.label} on {problem.device}")
        for number, r in enumerate(ranked, 1):
            p = r.prediction
            config = config_line(r.config, kernel)
            print(f"{number:>4} {p.time_us:>10.2f} us {p.tflops:>7.1f} TFLOP/s  {p.bound_by:<9} {config}")
        return None
    answer = workflow.configure(item)
    if store and answer.notice:
        print(f"warpplan: warning: not kept: {answer.notice}", file=sys.stderr)
    if as_json:
        return print_json(answer.as_dict())
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

    from warpplan.service.cli import display

    lines, tally = read_lines(shapes), LineTally(shapes)
    workflow = open_workflow(store, profile, device=device, write=True)
    errors = Console(stderr=True)
    planned = measured = 0
    if not as_json:
        print(display.HEADER)
    results = workflow.batch(lines, must_keep=True)
    for result in track(results, "planning", console=errors, transient=True, disable=not errors.is_terminal):
        if result.answer is not None:
            tally.good += 1
            planned += result.answer.kind == "planned"
            measured += result.answer.measured is not None
            name = result.item.name if result.item else ""
            if as_json:
                print_json({"line": result.line, "name": name, **result.answer.as_dict()})
            else:
                print(display.row(name, result.answer))
        elif result.error is not None:
            tally.tell(result.line, result.error)
    timed = f", {measured} measured (*)" if measured else ""
    kept = tally.good - planned
    print(
        f"{tally.good} shapes in {store_name(workflow, store)}: {planned} planned now, {kept} kept before{timed}",
        file=sys.stderr,
    )
    tally.require_all_good()


@app.command()
def serve(
    store: StorePlace = "warpplan.sqlite",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    profile: ProfileFile = None,
    solvers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Loops solved at once; half the cores if not given.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that clients may call the server by; * any. Repeat for more. If not given: any, on a "
            "local address its own names."
        ),
    ] = None,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="Write nothing to the store: answer from it, and plan what it lacks.")
    ] = False,
) -> None:
    """Serve configurations and plans over HTTP until interrupted."""
    from warpplan.service.http import server
    from warpplan.service.http.app import SOLVERS, create_app

    if readonly:
        require_store(store)
    workflow = open_workflow(store, profile, timeout_s=2.0, readonly=readonly)
    listener = _listen(host, port)
    address, bound = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    served = store_name(workflow, store) + (", read-only," if readonly else "")
    print(f"warpplan: serving {served} on http://{shown}:{bound} (documentation at /docs)", file=sys.stderr, flush=True)
    hosts = allowed_host or server.own_names(host)
    server.serve(create_app(workflow, solvers=solvers or SOLVERS, allowed_hosts=hosts), listener)


@app.command()
def profile(
    out: Annotated[Path, typer.Option(help="File for the profile.")],
    resume: Annotated[bool, typer.Option(help="Go on from an interrupted run's measurements.")] = True,
    passes: Annotated[int, typer.Option(min=1, help="How often each probe is measured; the passes are compared.")] = 2,
    add_to: Annotated[
        Path | None, typer.Option(help="A recorded profile of this GPU: measure only the costs that it lacks.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A family of probes to measure; may be given again.")] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine's GPU into a profile. Needs an NVIDIA GPU, torch and triton."""
    from warpplan.planner.values import codec
    from warpplan.profiler import stability
    from warpplan.profiler.collect import collect

    with progress_bar("starting") as tell:
        found = collect(out, resume=resume, probes=only, progress=tell, passes=passes, add_to=add_to)
    failures = [f"{failure.probe}: {failure.reason}" for failure in found.failures]
    notes = [*found.notes, *map(str, stability.spread(found))]
    costs, ceilings, gpu = len(found.costs.entries), len(found.ceilings), found.identity.gpu
    if as_json:
        counts = {"costs": costs, "ceilings": ceilings, "failures": failures, "notes": notes}
        return print_json({"out": str(out), "key": codec.key(found), "gpu": gpu, **counts})
    print(f"{out}: {costs} costs and {ceilings} ceilings of {gpu}")
    for line in (*(f"failed: {failure}" for failure in failures), *(f"note: {note}" for note in notes)):
        print(f"  {line}")
    return None


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host is called so
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {reason}: name another with --host or --port", field="port", value=port
        ) from None
    return listener


def _candidate(config: dict[str, object], prediction: Prediction) -> dict[str, object]:
    return {
        "config": config,
        "predicted": {
            "time_us": prediction.time_us,
            "tflops": prediction.tflops,
            "bound_by": prediction.bound_by,
            "parts": dict(prediction.parts),
        },
    }


# At the end: these modules add their commands to the application above.
app.command()(export_command.export)
app.command()(export_command.verify)
app.command()(tune_command.tune)
app.command()(measure_command.measure)
app.command()(calibrate_command.calibrate)
app.command()(agree_command.agree)
app.command()(solve_command.solve)
app.command()(pack_command.pack)
app.command()(explain_command.explain)
app.command()(ws_command.ws)
app.command(context_settings={"allow_interspersed_args": False})(warm_command.warm)

if __name__ == "__main__":
    sys.exit(main())
