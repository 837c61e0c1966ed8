"""``warpplan warm``: a script is run once, so that what its kernels run under is decided before the job starts."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import LONGEST_S, Json, print_json, user_output_on_stderr

SCHEMA = "warpplan/warm-1"
FAILED = 1
"""Exit status of a script that raised."""

Script = Annotated[str, typer.Argument(metavar="SCRIPT.py", help="Runs as `python SCRIPT.py` does.")]
ScriptArguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own.")]


def warm(
    script: Script,
    arguments: ScriptArguments = None,
    plans: Annotated[
        str, typer.Option(help="Folder of decisions, or a service's URL; by default in Triton's cache.")
    ] = "",
    measure: Annotated[bool, typer.Option(help="Try plans on the GPU, or trust what is predicted.")] = True,
    time_limit: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="Seconds that one step of a trial may take.")
    ] = 60.0,
    as_json: Json = False,
) -> int | None:
    """Run SCRIPT.py with `planned()` around it, and keep what is decided on its kernels: later runs wait for nothing.

    Each kernel is decided on at its first launch with sizes of one class; a line is printed for each. A script that
    does one step of a job is enough. Options come before SCRIPT.py, what follows it is the script's. With --json the
    script's output goes to stderr.
    """
    from warpplan.kernels import planned
    from warpplan.kernels.compiler.launching.decisions import Decision, to_json
    from warpplan.kernels.compiler.launching.progress import observed

    if not Path(script).is_file():
        raise InvalidInput(f"no file {script}", field="script", value=script)
    made: list[Decision] = []

    def show(decision: Decision, line: str) -> None:
        made.append(decision)
        if not as_json:
            print(line, flush=True)

    scope = planned(plans or None, measure=measure, time_limit_s=time_limit, background=False)
    with user_output_on_stderr() if as_json else contextlib.nullcontext(), observed(show), scope:
        status = _run(script, arguments or [])
    if as_json:
        print_json({"schema": SCHEMA, "decisions": [to_json(decision) for decision in made]})
    else:
        print(f"{len(made)} decisions on {len({decision.situation.kernel for decision in made})} kernels")
    return status


def _run(script: str, arguments: list[str]) -> int | None:
    """The script's exit status, its traceback on standard error."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).resolve().parent), *path]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if end.code is None or isinstance(end.code, int) else FAILED
    except Exception:
        traceback.print_exc()
        return FAILED
    finally:
        sys.argv, sys.path = argv, path
    return None
