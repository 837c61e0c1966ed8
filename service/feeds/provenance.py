"""What an entry of a consumer's cache was made from and for, in a file beside it: ``ENTRY.warpplan.json``.

Consumers compare little: Triton's key has no driver and no GPU model, vLLM's file name no Triton. What they do not
compare is compared by ``verify`` and by our own backends. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from warpplan.service.feeds.machine_here import Machine

SUFFIX = ".warpplan.json"
SCHEMA = "warpplan/provenance-1"
LOCK_FILE = ".warpplan.lock"
"""Locked in a folder by who changes its files. It is opened for writing, since NFS locks nothing else for one writer;
and it stays, since another may wait for it."""
LOCK_WAIT_S = 30.0
"""Seconds that an export waits for another that writes into its folder. Chosen by hand: to read and write a table takes
milliseconds, and a process that was suspended meanwhile is told of in half a minute; doubled, in a minute."""


@dataclass(frozen=True)
class EntryProvenance:
    """``target`` names the feed; ``digest`` is the entry's SHA-256; ``device`` the GPU that it is for; ``driver`` the
    driver of the machine that it is for, as far as known; ``profile`` the key of the profile and ``planner`` the
    version of the planner that it comes from, empty where it was measured; ``versions`` the consumer's packages,
    sorted; ``date`` in UTC, ISO 8601."""

    target: str
    digest: str
    device: str = ""
    driver: str = ""
    profile: str = ""
    planner: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    date: str = ""

    def stale(self, machine: Machine, versions: Mapping[str, str] | None = None) -> str:
        """Why the entry no longer holds on ``machine`` with the packages ``versions``; empty where it does. What is not
        known on either side is not compared."""
        changed = []
        if self.device and machine.gpus and self.device not in machine.gpus:
            changed.append(f"the GPU (was {self.device}, is {', '.join(machine.gpus)})")
        if self.driver and machine.driver and self.driver != machine.driver:
            changed.append(f"the driver (was {self.driver}, is {machine.driver})")
        for name, version in self.versions:
            now = (versions or {}).get(name, version)
            if now != version:
                changed.append(f"{name} (was {version}, is {now})")
        return f"stale: made {self.date[:10]}, and changed since: {'; '.join(changed)}" if changed else ""

    def driver_unknown(self, machine: Machine) -> str:
        """Why nobody can compare the driver of ``machine``, in words; "" where it is compared, or not known either."""
        return driver_unknown(self.driver, machine)


def driver_unknown(driver: str, machine: Machine) -> str:
    """What to say of an entry made for ``driver``, "" where that is not known, on ``machine``; "" for nothing."""
    if driver or not machine.driver:
        return ""
    return f"the driver that it was made for is not known, and here is {machine.driver}: export again with --job-driver"


def planned(
    target: str, *, device: str, driver: str, profile: str, planner: str, versions: Mapping[str, str]
) -> EntryProvenance:
    """The provenance, of today, of an entry that a plan made; its digest is for who writes it to add."""
    return EntryProvenance(target, "", device, driver, profile, planner, tuple(sorted(versions.items())), _today())


def measured(target: str, data: bytes, machine: Machine) -> EntryProvenance:
    """The provenance of an entry that a job on ``machine`` measured now; which of several unlike GPUs is not known."""
    device = machine.gpus[0] if len(machine.gpus) == 1 else ""
    return EntryProvenance(target, digest_of(data), device, machine.driver, date=_today())


def digest_of(data: bytes) -> str:
    """The SHA-256 by which an entry is known again."""
    return hashlib.sha256(data).hexdigest()


def beside(entry: Path) -> Path:
    """Where the provenance of the file ``entry`` lies."""
    return entry.with_name(entry.name + SUFFIX)


def write_beside(entry: Path, provenance: EntryProvenance) -> None:
    """Keep ``provenance`` beside ``entry``, replacing it atomically. A folder that cannot be written keeps none."""
    fields = {"schema": SCHEMA, **asdict(provenance), "versions": dict(provenance.versions)}
    try:
        write_whole(beside(entry), json.dumps(fields, indent=2).encode() + b"\n")
    except OSError:
        return


def read_beside(entry: Path) -> EntryProvenance | None:
    """The provenance of the file ``entry``; ``None`` where there is none, or it is of an earlier state of that file."""
    found = _read(beside(entry))
    try:
        return found if found is not None and found.digest == digest_of(entry.read_bytes()) else None
    except OSError:
        return None


def why_unknown(entry: Path) -> str:
    """Why nobody knows what the file ``entry`` was made from and for; "" where its provenance says it."""
    path = beside(entry)
    if read_beside(entry) is not None:
        return ""
    if not path.exists():
        return f"its provenance is missing: no {path.name}; export again"
    if _read(path) is None:
        return f"its provenance {path.name} is damaged: export again"
    return f"it was changed since its provenance {path.name} was written: export again"


def _read(path: Path) -> EntryProvenance | None:
    """What is in the file ``path``; ``None`` where it is missing or damaged."""
    try:
        fields: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.pop("schema", None) != SCHEMA:
        return None
    try:
        versions = tuple(sorted((str(k), str(v)) for k, v in fields.pop("versions").items()))
        return EntryProvenance(versions=versions, **{str(name): str(value) for name, value in fields.items()})
    except (KeyError, TypeError, AttributeError):
        return None


def why_stale(entry: Path, machine: Machine, *, device: str, profile: str, versions: Mapping[str, str]) -> str:
    """Why the file ``entry``, if there is one, does not hold for ``device``, the profile with the key ``profile`` and
    the consumer's packages ``versions`` on ``machine``; "" where it does."""
    if not entry.exists():
        return ""
    found = read_beside(entry)
    if found is None:
        return f"{entry.name} was not written by export, or was changed since: export again"
    if found.device != device:
        return f"made for {found.device}, not {device}: export again"
    if reason := found.stale(machine, versions):
        return f"{reason}: export again"
    return "" if found.profile == profile else "planned from another profile: export again"


def why_not_today(entry: Path, planner: str) -> str:
    """Why the file ``entry`` may not be what the planner of version ``planner`` would write; "" where it wrote it.
    Nothing is planned again for that."""
    made = read_beside(entry)
    if made is None or made.planner == planner:
        return ""
    return f"planned by {made.planner or 'an unknown planner'}, not today's planner: export again"


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader finds all of the old file or all of the new. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def one_writer(folder: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Within, no other export changes the files of ``folder``, which is made where it is missing: what another had read
    by then would lack these entries. Not all file systems have locks; on one without, nothing is locked.

    Raises ``OSError`` where the folder cannot be written, ``TimeoutError`` where another holds it for ``wait_s``
    seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    another_users = path.exists() and not os.access(path, os.W_OK)
    with path.open("rb" if another_users else "ab") as file:
        until = time.monotonic() + wait_s
        while not _locked(file.fileno()):
            if time.monotonic() >= until:
                raise TimeoutError(f"another export has been writing there for {wait_s:g} s: is it suspended?")
            time.sleep(0.02)
        yield


def _locked(handle: int) -> bool:
    """Whether the open file is locked now, or cannot be."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def keep_replaced(path: Path, by: bytes | None = None) -> tuple[str, ...]:
    """Copy the file ``path``, of which nobody knows that we wrote it, before it is replaced: hours of tuning may be in
    it. The copy's path, ``NAME.replaced-DIGEST``, which no consumer reads; none where there is no file, or it holds
    what it is replaced ``by``. Raises ``OSError``."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    if data == by:
        return ()
    copy = path.with_name(f"{path.name}.replaced-{digest_of(data)[:12]}")
    write_whole(copy, data)
    return (str(copy),)


def _today() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
