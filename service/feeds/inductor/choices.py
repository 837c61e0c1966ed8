"""Inductor takes its GEMM configurations from a warpplan table: on by one import in the job.

    import warpplan.service.feeds.inductor.choices    # reads $WARPPLAN_INDUCTOR_TABLE

or :func:`install`. Products that the table does not hold are chosen as Inductor does without us; with
``WARPPLAN_INDUCTOR_KEYS=FILE`` they are written there, for ``warpplan export --target inductor --consumer FILE``. A
table that is damaged, or was made for another GPU, driver, torch or Triton, is not used, and a warning says why.

Source: torch 2.11 and 2.13, ``_inductor/lookup_table/choices.py`` and ``config.inductor_choices_class``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.virtualized import V

from warpplan.planner.errors import MalformedFile
from warpplan.service.feeds.inductor.table_file import FILE_NAME, Table, digest, load_table
from warpplan.service.feeds.machine_here import Machine, machine_here
from warpplan.service.feeds.remote_artifacts import warn_once

TABLE_VARIABLE = "WARPPLAN_INDUCTOR_TABLE"
KEYS_VARIABLE = "WARPPLAN_INDUCTOR_KEYS"
PACKAGES = ("torch", "triton")


class PlannedChoices(LookupTableChoices):  # type: ignore[misc]  # torch is untyped here
    """Inductor's choices with ``table`` in the place of its configuration's; ``keys`` is the file for what it lacks."""

    def __init__(self, table: Table, keys: Path | None = None) -> None:
        super().__init__()
        self._table = {key: [dict(entry) for entry in entries] for key, entries in table.items()}
        self._digest = digest(table)
        self._keys = keys
        self._missed: set[str] = set()

    def uuid(self) -> str:
        """Part of Inductor's cache keys: what was compiled with another table is compiled again."""
        return f"warpplan-{self._digest}"

    def _get_lookup_table(self) -> dict[str, list[dict[str, Any]]]:
        return self._table

    def lookup_template_configs(
        self, kernel_inputs: Any, op_name: str, template_uids: list[str],
        template_hash_map: dict[str, str | None] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
        """The table's entries for these inputs, as torch finds them. ``EVEN_K`` says that no block of K is cut short:
        it is stated anew for each entry, since a wrong one would give wrong products."""
        found: dict[str, list[dict[str, Any]]] = super().lookup_template_configs(
            kernel_inputs, op_name, template_uids, template_hash_map
        )
        if not found:
            self._note_missing(kernel_inputs, op_name)
        for entry in (entry for entries in found.values() for entry in entries):
            if "BLOCK_K" in entry:
                entry["EVEN_K"] = _divides(entry["BLOCK_K"], kernel_inputs)
        return found

    def _note_missing(self, kernel_inputs: Any, op_name: str) -> None:
        key = self.make_lookup_key(kernel_inputs, op_name)
        if self._keys is None or key is None or key in self._missed:
            return
        self._missed.add(key)
        try:
            with self._keys.open("a", encoding="utf-8") as file:
                file.write(f"{key}\n")
        except OSError as error:
            warn_once(f"warpplan: cannot write {self._keys}: {error.strerror}")


def install(table: str | Path | None = None, *, keys: str | Path | None = None) -> bool:
    """Have Inductor choose from the file ``table`` (or the folder that holds it); ``keys`` takes what it lacks. Says
    whether a table is used; where none is, a warning says why and Inductor chooses as ever. Never raises."""
    used = usable_table(Path(table), machine_here()) if table else {}
    place = Path(keys) if keys else None
    if not used and place is None:
        return False

    def made() -> PlannedChoices:
        return PlannedChoices(used, place)

    config.inductor_choices_class = made
    V.set_choices_handler(made())
    return bool(used)


def usable_table(path: Path, machine: Machine, versions: Callable[[], Mapping[str, str]] | None = None) -> Table:
    """The table at ``path`` where it holds on ``machine``; an empty one, with a warning, where it does not."""
    if path.is_dir():
        path = path / FILE_NAME
    try:
        found = load_table(path)
    except MalformedFile as error:
        warn_once(f"warpplan: {error}: not used")
        return {}
    reason = found.stale(machine, (versions or installed_versions)())
    if reason:
        warn_once(f"warpplan: {path} is not used: {reason}: export it again")
        return {}
    return found.table


def installed_versions() -> dict[str, str]:
    """The packages whose change makes a table stale."""
    found = {"torch": str(torch.__version__).partition("+")[0]}
    with suppress(metadata.PackageNotFoundError):
        found["triton"] = metadata.version("triton").partition("+")[0]
    return found


def _divides(block: int, kernel_inputs: Any) -> bool:
    """Whether ``block`` divides K for every size that the compiled code is for."""
    from sympy import Eq, Mod

    k = kernel_inputs.mnk_symbolic()[2]
    return bool(V.graph.sizevars.statically_known_true(Eq(Mod(k, block), 0)))


if os.environ.get(TABLE_VARIABLE) or os.environ.get(KEYS_VARIABLE):
    install(os.environ.get(TABLE_VARIABLE), keys=os.environ.get(KEYS_VARIABLE))
