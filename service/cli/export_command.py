"""``warpplan export`` and ``warpplan verify``: plans in the caches that training jobs already read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.kernels import registry
from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import (
    DeviceName,
    Json,
    LineTally,
    ProfileFile,
    is_typed,
    open_workflow,
    print_json,
    progress_bar,
    read_lines,
    require_store,
    store_name,
    user_output_on_stderr,
)

if TYPE_CHECKING:
    from warpplan.planner.values.tuning import Scalar
    from warpplan.service.config_request import ConfigRequest
    from warpplan.service.feeds import ExportRow, FeedRequest

Shapes = Annotated[
    str | None,
    typer.Argument(help="A .csv or .jsonl file of shapes, or the word: bundled. Without it: all shapes in --store."),
]
TargetName = Annotated[str, typer.Option(help="Whose cache: triton, vllm, sglang, inductor, fla or helion.")]
ConsumerSpec = Annotated[
    str,
    typer.Option(
        help="The job's autotuned kernel, FILE.py:function or module:function; for fla a function that runs its layers "
        "on CPU tensors; for helion one that calls its kernels on cuda tensors, which hold no data; for inductor a "
        "file of keys; for vllm and sglang the folder that holds the package, where it is not this environment's."
    ),
]


def _folder(out: str) -> Path:
    """``out``, which a variable that is not set would make the current folder."""
    if not out:
        raise InvalidInput(
            "--out is empty: name the folder that the consumer reads, or . for this one; is the variable set?",
            field="out", value=out,
        )  # fmt: skip
    return Path(out)


CacheFolder = Annotated[
    Path,
    typer.Option(
        parser=_folder,
        metavar="PATH",
        help="The folder that the consumer reads: $TRITON_CACHE_DIR, $VLLM_TUNED_CONFIG_FOLDER, "
        "$SGLANG_MOE_CONFIG_DIR, $FLA_CONFIG_DIR, $WARPPLAN_INDUCTOR_TABLE.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(help='For vllm and sglang: a public model, or "experts=256 hidden=7168 intermediate=2048 top-k=8".'),
]
TensorParallel = Annotated[int, typer.Option("--tp", help="For vllm and sglang: ranks that share each expert.")]
SchemeName = Annotated[
    str | None, typer.Option(help="For vllm and sglang: how the layer is quantised; the published checkpoint's.")
]
JobTriton = Annotated[str | None, typer.Option(help="The job's Triton release, where it is not installed here.")]
JobDriver = Annotated[
    str | None, typer.Option(help="For triton, vllm and sglang: the driver under which the job runs, where not this.")
]
Untested = Annotated[bool, typer.Option("--untested", help="Go on with an untested version of consumer or Triton.")]
StoreName = Annotated[
    str | None,
    typer.Option(
        help="For inductor: the store that gives the shapes, in place of SHAPES; with --tuned: that of the kept "
        "answers. Elsewhere --store is refused, and the variable, which may be meant for other commands, is ignored.",
        envvar="WARPPLAN_STORE",
    ),
]
KernelOption = Annotated[str, typer.Option(help="For inductor: the warpplan kernel whose shapes are meant.")]
Values = Annotated[list[str] | None, typer.Option("--set", help="For inductor: aten=false keeps ATen out of the race.")]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit 1 also where a hit is not today's plan or nobody knows what it is for, or a shape was left out.",
    ),
]
Tuned = Annotated[
    bool, typer.Option("--tuned", help="For triton: what `warpplan tune --store` has kept of the consumer's kernel.")
]


def export(
    context: typer.Context,
    out: CacheFolder,
    shapes: Shapes = None,
    consumer: ConsumerSpec = "",
    target: TargetName = "triton",
    model: ModelName = None,
    tp: TensorParallel = 1,
    dtype: SchemeName = None,
    job_triton: JobTriton = None,
    job_driver: JobDriver = None,
    untested: Untested = False,
    store: StoreName = None,
    kernel: KernelOption = registry.DEFAULT,
    device: DeviceName = None,
    profile: ProfileFile = None,
    values: Values = None,
    tuned: Tuned = False,
    as_json: Json = False,
) -> None:
    """Write plans as cache entries that an unmodified consumer reads, so that it tunes nothing.

    A bad line of SHAPES is named and costs no other; the command then ends with exit status 2.
    """
    from warpplan.service import feeds

    arguments = _arguments(values)
    settings = _settings(model, tp, dtype, job_triton, job_driver)
    tally = LineTally(shapes)
    rows = partial(_rows, tally, target, shapes, store, kernel, device, profile)
    chosen = feeds.target(target)
    _require_options(
        target, shapes, consumer, settings, kernel, arguments, profile, tuned=tuned, untested=untested,
        store=is_typed(context, "store"),
    )  # fmt: skip
    with user_output_on_stderr(), progress_bar("exporting") as tell:
        request = _request(out, consumer, rows, arguments, settings, device, profile, untested)
        request = replace(request, progress=tell)
        report = _tuned(target, request, shapes, store, write=True) if tuned else chosen.export(request)
    _show(report, as_json)
    tally.require_all_good()


def verify(
    context: typer.Context,
    out: CacheFolder,
    shapes: Shapes = None,
    consumer: ConsumerSpec = "",
    target: TargetName = "triton",
    model: ModelName = None,
    tp: TensorParallel = 1,
    dtype: SchemeName = None,
    job_triton: JobTriton = None,
    job_driver: JobDriver = None,
    untested: Untested = False,
    store: StoreName = None,
    kernel: KernelOption = registry.DEFAULT,
    device: DeviceName = None,
    profile: ProfileFile = None,
    values: Values = None,
    tuned: Tuned = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Will the consumer find an entry for each shape? Exit 1 where one would miss, or is stale, 2 for a bad line."""
    # The options are those of ``export``, written again: Typer reads a command's options off its own signature.
    from warpplan.service import feeds

    arguments = _arguments(values)
    settings = _settings(model, tp, dtype, job_triton, job_driver)
    tally = LineTally(shapes)
    rows = partial(_rows, tally, target, shapes, store, kernel, device, profile)
    chosen = feeds.target(target)
    _require_options(
        target, shapes, consumer, settings, kernel, arguments, profile, tuned=tuned, untested=untested,
        store=is_typed(context, "store"),
    )  # fmt: skip
    with user_output_on_stderr():
        request = _request(out, consumer, rows, arguments, settings, device, profile, untested)
        report = _tuned(target, request, shapes, store, write=False) if tuned else chosen.verify(request)
    _show(report, as_json)
    tally.require_all_good()
    if strict and not report.all_current:
        print(report.summary(), file=sys.stderr)
        raise typer.Exit(1)
    if not report.all_hit:
        raise typer.Exit(1)


def _require_options(
    target: str, shapes: str | None, consumer: str, settings: dict[str, str], kernel: str,
    arguments: Mapping[str, Scalar], profile: Path | None, *, tuned: bool, untested: bool, store: bool,
) -> None:  # fmt: skip
    """Raise :class:`InvalidInput` for what is given and ``target`` does not read; ``store`` says whether ``--store``
    is."""
    from warpplan.service.feeds.targets import require_options

    if tuned and (target != "triton" or shapes is not None):
        return  # _tuned says what it needs
    given: dict[str, object] = {
        "SHAPES": shapes,
        "--model": settings.get("model"),
        "--tp": settings["tp"] if settings["tp"] != "1" else None,
        "--dtype": settings.get("dtype"),
        "--job-triton": settings.get("triton"),
        "--job-driver": settings.get("driver"),
        "--consumer": consumer,
        "--kernel": kernel if kernel != registry.DEFAULT else None,
        "--set": " ".join(f"{name}={value}" for name, value in arguments.items()),
        "--profile": profile,
        "--untested": untested,
        "--store": store,  # a URL may have a password, so that it is not told
    }
    found = {option: value for option, value in given.items() if value}
    require_options("triton --tuned" if tuned else target, found)
    if target == "inductor":
        _require_one_source(shapes, consumer, store=store)


def _require_one_source(shapes: str | None, consumer: str, *, store: bool) -> None:
    """Raise :class:`InvalidInput` where Inductor's products are given in more than one way. A store gives its shapes
    alone: what it has measured or tuned is of other kernels than Inductor's template."""
    sources = [f"shapes ({shapes})"] if shapes is not None else []
    sources += [f"a file of keys (--consumer {consumer})"] if consumer else []
    sources += ["the shapes of a store (--store), whose answers are for other kernels"] if store else []
    if len(sources) > 1:
        raise InvalidInput(
            f"--target inductor takes {' or '.join(sources)}, not {'both' if len(sources) == 2 else 'all'}: give one",
            field="shapes", value=shapes,
        )  # fmt: skip


def _tuned(target: str, request: FeedRequest, shapes: str | None, store: str | None, *, write: bool) -> Any:
    """The report about kept answers of the consumer's own kernel."""
    from warpplan.service.store.tuned.kernel_answer_store import KernelAnswers
    from warpplan.service.store.tuned.tuning_store import Tunings
    from warpplan.service.tuning.tuned_entries import export_tuned, verify_tuned

    if target != "triton" or not request.consumer or store is None or shapes is not None:
        raise InvalidInput(
            "--tuned writes what a store has kept of one kernel into Triton's cache: give --target triton, --consumer "
            "FILE.py:function and --store, and no shapes",
            field="tuned",
        )
    require_store(store)
    opened = open_workflow(store, None).store
    assert opened is not None
    run = export_tuned if write else verify_tuned
    return run(request, KernelAnswers(opened.database), Tunings(opened.database))


def _settings(
    model: str | None, tp: int, dtype: str | None, job_triton: str | None, job_driver: str | None
) -> dict[str, str]:
    """What was given of the words that only some targets know."""
    given = {"model": model, "tp": str(tp), "dtype": dtype, "triton": job_triton, "driver": job_driver}
    return {name: value for name, value in given.items() if value is not None}


def _request(
    out: Path, consumer: str, rows: Callable[[], Sequence[ExportRow]], arguments: Mapping[str, Scalar],
    settings: dict[str, str], device: str | None, profile: Path | None, untested: bool,
) -> FeedRequest:  # fmt: skip
    from warpplan.service.feeds import FeedRequest
    from warpplan.service.workflow.profiles import planner_version

    profiles = open_workflow(None, profile, device=device).profiles
    name = profiles.default_device
    return FeedRequest(
        out, name, profiles.of(name).profile, consumer, rows, settings, untested, arguments, planner_version()
    )


def _rows(
    tally: LineTally, target: str, shapes: str | None, store: str | None, kernel: str, device: str | None,
    profile: Path | None,
) -> list[ExportRow]:  # fmt: skip
    from warpplan.service.feeds import ExportRow
    from warpplan.service.feeds.targets import PRICED_THEMSELVES
    from warpplan.service.workflow.request import Item, check, check_declared

    if shapes is None and store is None:
        raise InvalidInput("nothing to export: name a file of shapes, or a store with --store", field="shapes")
    if shapes is None and store is not None:
        require_store(store)
    workflow = open_workflow(None if shapes else store, profile, device=device)
    known = registry.kernel(kernel).declaration.name
    problems: Iterable[ConfigRequest] = workflow.store.problems() if workflow.store else ()
    if shapes:
        default = workflow.profiles.default_device

        def take(item: Item) -> ConfigRequest:
            return check_declared(item, default) if target in PRICED_THEMSELVES else check(item, default)[0]

        problems = tally.good_ones(read_lines(shapes, known), take)
    rows = [
        ExportRow(p.canonical, p.dtype, p.device, workflow.profiles.of(p.device).profile)
        for p in problems
        if p.kernel == known
    ]
    if not rows:
        tally.require_all_good()
        holder = shapes or store_name(workflow, store)
        raise InvalidInput(
            f"{holder} holds no shape of {known}: name the kernel that the consumer computes with --kernel",
            field="kernel", value=kernel,
        )  # fmt: skip
    return rows


def _arguments(values: Sequence[str] | None) -> dict[str, Scalar]:
    return {name: _scalar(text) for name, text in _pairs("--set", values).items()}


def _pairs(option: str, words: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise InvalidInput(f"{option} {word!r}: write it as NAME=VALUE", field=option, value=word)
        pairs[name] = value
    return pairs


def _scalar(text: str) -> int | str | bool:
    if text in ("True", "False", "true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return text


def _show(report: Any, as_json: bool) -> None:
    if as_json:
        print_json(_plain(report))
        return
    for line in report.lines():
        print(line)


def _plain(report: Any) -> dict[str, Any]:
    """A report as JSON; keys of consumers may hold dtypes, which only have text."""
    fields = asdict(report)
    fields["identity"] = dict(fields["identity"])
    for entry, its in zip(fields["entries"], report.entries, strict=True):
        entry["config"] = its.config.as_dict() if its.config else None
        if "key" in entry:
            entry["key"] = [part if isinstance(part, int | str) else str(part) for part in its.key]
    return fields
