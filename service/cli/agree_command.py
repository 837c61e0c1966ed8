"""``warpplan agree``: did the ranks of a job launch alike?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.service.cli.shared_options import Json, print_json

if TYPE_CHECKING:
    from warpplan.service.agreement.choice_agreement import Agreement

SCHEMA = "warpplan/agreement-1"
DIFFERENT = 1
"""Exit status where ranks differ."""

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="The ranks' records, or the folder of all.")]
Out = Annotated[Path | None, typer.Option(help="Write what the ranks agreed on, for Client(strict=True, agreed=…).")]


def agree(
    files: Files,
    out: Out = None,
    same_lookups: Annotated[
        bool, typer.Option("--same-lookups", help="A rank that did not ask for what others did differs too.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Compare ranks that still run, were killed, or left no record.")
    ] = False,
    as_json: Json = False,
) -> int | None:
    """Compare the choices that the ranks of a job recorded, and name the first difference. Exit 1 where there is one.

    Records are written by `Client(record="FOLDER")` in the job, one a rank.
    """
    from warpplan.service.agreement import choice_agreement
    from warpplan.service.agreement.choice_files import agreed_text, read_records
    from warpplan.service.workflow.text_files import require_folder, write_text

    if out is not None:
        require_folder(out)
    records = read_records(_records(files), partial=partial)
    found = choice_agreement.compare_ranks(records, same_lookups=same_lookups, partial=partial)
    if out is not None and found.difference is None:
        write_text(out, agreed_text(found.choices, found.ranks))
    if as_json:
        print_json(_plain(found))
    elif found.difference is not None:
        for line in choice_agreement.difference_lines(found.difference):
            print(line)
    else:
        ranks = choice_agreement.ranks_text(found.ranks)
        made = f"{len(found.choices)} choices up to step {found.last_step}"
        print(f"{ranks} agree on {made}, digest {found.choices.digest[:12]}")
        for key, askers in found.unshared:
            print(f"  note: only {choice_agreement.ranks_text(askers)} asked for {key.label}")
        if out is not None:
            print(f"{out}: what they agreed on")
    return DIFFERENT if found.difference is not None else None


def _records(files: list[Path]) -> list[Path]:
    """``files``, with the records of each folder in its place."""
    from warpplan.planner.errors import MalformedFile

    found: list[Path] = []
    for path in files:
        inside = sorted(path.glob("rank-*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise MalformedFile(path, "is a folder without records: expected rank-00000.jsonl and so on", field="files")
        found += inside
    return found


def _plain(found: Agreement) -> dict[str, Any]:
    difference = found.difference
    return {
        "schema": SCHEMA, "agree": difference is None, "ranks": list(found.ranks), "last_step": found.last_step,
        "choices": len(found.choices), "digest": None if difference else found.choices.digest,
        "unshared": [{**key.as_dict(), "ranks": list(ranks)} for key, ranks in found.unshared],
        "difference": None if difference is None else {
            "step": difference.step, **difference.key.as_dict(),
            "groups": [
                {"ranks": list(g.ranks), "lookup": g.lookup, "chosen": [json.loads(c) for c in g.chosen]}
                for g in difference.groups
            ],
        },
    }  # fmt: skip
