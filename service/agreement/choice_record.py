"""A job's side of agreement: every lookup is noted in memory, and in a file of its rank where one is asked for.

A lookup costs a dictionary access; a choice that is new or another than before costs one write of a line. No rank waits
for another: ranks are compared later, by ``warpplan agree``.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.service.agreement.choice_files import (
    ChoiceLine,
    RecordHeader,
    choice_text,
    end_text,
    header_text,
    read_agreed,
)
from warpplan.service.agreement.rank_choices import NO_ANSWER, ChoiceKey, RankChoices, config_text

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""What torchrun, Slurm and Open MPI call the rank, the number of ranks and the job; the first that is set counts."""
_log = logging.getLogger("warpplan")


class ChoiceDiffers(WarpplanError):
    """A strict client was told to launch differently from before, or from what the ranks agreed on.

    It is no :class:`~warpplan.service.client.ClientError`: a job that goes on with a default of its own where the
    service gave no answer would launch differently too."""

    def __init__(self, key: ChoiceKey, told: str, held: str, by: str) -> None:
        super().__init__(
            f"{key.label}: the answer is {_shown(told)}, but {by} {_shown(held)}: this rank would launch differently",
            field="config", value=told, limit=held,
        )  # fmt: skip
        self.key = key


class ChoiceRecord:
    """The choices of one rank. ``folder`` is where its file is written, ``rank-00007.jsonl``, begun anew by each job;
    ``rank`` outranks what the environment says. ``strict`` raises :class:`ChoiceDiffers` instead of taking another
    choice than before, or than the file ``agreed`` has. Safe to share between threads; a forked process writes a file
    of its own, and must have another rank.

    Raises :class:`InvalidInput` for a rank that is none, :class:`MalformedFile` for ``agreed``.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None, *, rank: int | None, strict: bool,
        agreed: str | os.PathLike[str] | None,
    ) -> None:  # fmt: skip
        # A file that is not there is named first: with strict= it would be the next complaint.
        self._agreed = None if agreed is None else read_agreed(Path(agreed))
        if agreed is not None and not strict:
            raise InvalidInput("agreed is what a strict client holds to: add strict=True", field="agreed")
        if rank is not None:
            _require_whole("rank", rank)
        self._folder = None if folder is None else Path(folder)
        self._rank, self._strict = rank, strict
        self._lock = Lock()
        self._choices = RankChoices()
        self._used: dict[ChoiceKey, int] = {}
        self._step = self._lookups = 0
        self._file, self._open, self._ended_at, self._pid = -1, False, 0, os.getpid()
        if self._folder is not None:
            atexit.register(self.close)

    @property
    def digest(self) -> str:
        """Of all choices in effect; ranks with equal digests launch alike."""
        with self._lock:
            return self._choices.digest

    def begin_step(self, number: int | None) -> None:
        """Lookups from now on are of step ``number``, or of the next one. Raises :class:`InvalidInput` for one that is
        past."""
        with self._lock:
            wanted = self._step + 1 if number is None else _require_whole("step", number)
            if wanted < self._step:
                raise InvalidInput(
                    f"step {wanted} comes before step {self._step}, which has begun: steps of a record ascend",
                    field="step", value=wanted, limit=self._step,
                )  # fmt: skip
            self._step = wanted

    def note(self, kernel: str, shape: Mapping[str, object], dtype: str, device: str, config: object) -> None:
        """One lookup and its answer; ``config`` is ``None`` where there was none."""
        key, choice = ChoiceKey.of(kernel, shape, dtype, device), config_text(config)
        with self._lock:
            if os.getpid() != self._pid:
                self._leave_file_to_parent()
            if self._folder is not None and not self._open:
                self._open_file(self._folder)
            self._lookups += 1
            before = self._choices.get(key)
            if self._strict:
                self._require_same(key, choice, before)
            used_before = before is not None and self._used.get(key) == self._step
            self._used[key] = self._step
            if choice != before:
                self._choices.put(key, choice)
                line = ChoiceLine(self._step, self._lookups, key, choice, used_before)
                self._write(choice_text(line, self._choices.digest))

    def close(self) -> None:
        """Write the record's end: it is whole. A later lookup goes on with it."""
        with self._lock:
            if self._file >= 0 and os.getpid() == self._pid:
                self._ended_at = os.fstat(self._file).st_size
                self._write(end_text(self._step, self._lookups, self._choices.digest))
                self._close_file()
                self._open = False

    def _require_same(self, key: ChoiceKey, choice: str, before: str | None) -> None:
        agreed = None if self._agreed is None else self._agreed.get(key)
        if agreed is not None and choice != agreed:
            raise ChoiceDiffers(key, choice, agreed, "the ranks agreed on")
        if before is not None and choice != before:
            raise ChoiceDiffers(key, choice, before, "before it was")

    def _leave_file_to_parent(self) -> None:
        """A forked process holds to what was chosen before, and opens a file of its own that begins with it."""
        if self._file >= 0:
            self._close_file()
        self._open, self._ended_at, self._pid = False, 0, os.getpid()

    def _open_file(self, folder: Path) -> None:
        rank = _number(RANK_VARIABLES) if self._rank is None else self._rank
        if rank is None or rank < 0:
            raise InvalidInput(
                f"record={str(folder)!r} needs the rank: give rank=, or set {RANK_VARIABLES[0]} as torchrun does",
                field="rank", value=rank,
            )  # fmt: skip
        path = folder / f"rank-{rank:05d}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidInput(
                f"record {path} cannot be written: {error.strerror or error}", field="record", value=str(path)
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InvalidInput(
                f"record {path} is being written by another process or client: each rank needs a rank of its own, "
                f"from rank= or {RANK_VARIABLES[0]}",
                field="rank", value=rank,
            ) from None  # fmt: skip
        except OSError:
            _log.debug("%s cannot be locked on this file system", path)
        self._file, self._open = file, True
        os.ftruncate(file, self._ended_at)
        if self._ended_at:
            return  # What was closed goes on without its end.
        job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), "")
        self._write(header_text(RecordHeader(rank, _number(WORLD_VARIABLES) or 0, job)))
        inherited, self._choices = self._choices, RankChoices()
        for key, choice in inherited:
            self._choices.put(key, choice)
            self._write(choice_text(ChoiceLine(self._step, self._lookups, key, choice, False), self._choices.digest))

    def _write(self, line: str) -> None:
        """One line. A disk that is full must not stop a job: the record stays without an end, and whoever compares it
        is told so."""
        if self._file < 0:
            return
        data = line.encode("utf-8", "backslashreplace")
        try:
            if os.write(self._file, data) == len(data):
                return
            reason = "No space left on device"
        except OSError as error:
            reason = error.strerror or str(error)
        _log.warning("the record of choices ends here: %s", reason)
        self._close_file()

    def _close_file(self) -> None:
        os.close(self._file)
        self._file = -1


def _require_whole(name: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidInput(f"{name} is {number!r}: expected a whole number from 0 on", field=name, value=number)
    return number


def _number(variables: tuple[str, ...]) -> int | None:
    words = (os.environ.get(name, "") for name in variables)
    return next((int(word) for word in words if word.isascii() and word.isdigit()), None)


def _shown(choice: str) -> str:
    return "none, as the service gave no answer" if choice == NO_ANSWER else choice
