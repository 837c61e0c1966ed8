"""Work that takes long shows a terminal how far it is, and nothing but a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from warpplan.service.cli.shared_options import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_terminal_sees_what_is_at_work(stderr: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar("starting") as tell:
        tell(1, 3, "1024x1024x512 bfloat16")
    assert ("1/3" in stderr.getvalue(), "1024x1024x512 bfloat16" in stderr.getvalue()) == (shown, shown)
    assert shown or stderr.getvalue() == ""
