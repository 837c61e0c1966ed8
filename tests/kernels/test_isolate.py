"""Real children that crash, hang, raise and print garbage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from warpplan.kernels.isolate import Child, run_isolated


def test_a_value_comes_back_with_its_time() -> None:
    result = run_isolated("math:hypot", [3, 4], time_limit_s=30)
    assert (result.status, result.value, result.reason) == ("ok", 5.0, "")
    assert 0 < result.seconds < 30


def test_keyword_arguments_reach_the_function() -> None:
    assert run_isolated("builtins:int", ["ff"], {"base": 16}, time_limit_s=30).value == 255


def test_an_exception_is_one_line() -> None:
    result = run_isolated("math:sqrt", [-1], time_limit_s=30)
    assert result.status == "error"
    assert result.reason.startswith("ValueError: ")
    assert "\n" not in result.reason


@pytest.mark.parametrize("target", ["no_such_module:f", "math:no_such_function", "nonsense"])
def test_a_target_that_is_not_there_is_an_error(target: str) -> None:
    assert run_isolated(target, time_limit_s=30).status == "error"


def test_an_abort_is_a_crash_that_names_the_signal() -> None:
    result = run_isolated("os:abort", time_limit_s=30)
    assert result.status == "crash"
    assert "SIGABRT" in result.reason


def test_a_silent_exit_is_a_crash_with_its_status_and_last_words() -> None:
    code = "import os, sys; print('out of luck', flush=True); os._exit(7)"
    result = run_isolated("builtins:exec", [code], time_limit_s=30)
    assert result.status == "crash"
    assert result.reason == "exit status 7: out of luck"


def test_a_hang_is_killed_at_the_limit() -> None:
    result = run_isolated("time:sleep", [600], time_limit_s=1.0)
    assert result.status == "timeout"
    assert result.seconds < 20
    assert "1 s" in result.reason


def test_a_hang_takes_its_descendants_along(tmp_path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, time, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    assert run_isolated("builtins:exec", [code], time_limit_s=3.0).status == "timeout"
    descendant = int(pid_file.read_text())
    for _ in range(100):
        if not _runs(descendant):
            return
        time.sleep(0.05)
    pytest.fail(f"descendant {descendant} is still running")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_what_a_child_prints_does_not_disturb_its_answer() -> None:
    code = "import os, sys; os.write(1, b'{\\xff garbage\\n' * 100_000); os.write(2, b'}{')"
    result = run_isolated("builtins:exec", [code], time_limit_s=30)
    assert (result.status, result.value) == ("ok", None)


def test_garbage_in_place_of_an_answer_is_an_error() -> None:
    code = "import os, sys; os.write(int(sys.argv[1]), b'\\xff\\xfe not a message\\n')"
    result = run_isolated("builtins:exec", [code], time_limit_s=30)
    assert result.status == "error"
    assert "no message" in result.reason


def test_a_value_that_is_not_json_is_an_error() -> None:
    result = run_isolated("builtins:object", time_limit_s=30)
    assert result.status == "error"
    assert "JSON" in result.reason


def test_items_stream_and_survive_a_crash() -> None:
    code = "[1, 2, __import__('os')]"
    seen: list[object] = []
    expression = f"(os.abort() if os else x for x in {code} for os in [x if hasattr(x, 'abort') else None])"
    result = run_isolated("builtins:eval", [expression], time_limit_s=30, on_item=seen.append)
    assert result.status == "crash"
    assert result.items == (1, 2)
    assert seen == [1, 2]


def test_each_item_renews_the_time_limit() -> None:
    expression = "(__import__('time').sleep(0.6) for _ in range(4))"
    result = run_isolated("builtins:eval", [expression], time_limit_s=2.0)
    assert result.status == "ok"
    assert len(result.items) == 4
    assert result.seconds > 2.0


def test_the_first_item_has_a_limit_of_its_own() -> None:
    code = "(__import__('time').sleep(s) or s for s in (0, 600))"
    result = run_isolated("builtins:eval", [code], time_limit_s=1.0, start_limit_s=120.0)
    assert (result.status, result.items) == ("timeout", (0,))
    late = run_isolated("builtins:eval", ["__import__('time').sleep(2)"], time_limit_s=0.01, start_limit_s=120.0)
    assert late.status == "ok"


ONE_THEN_SLEEP = "(__import__('time').sleep(s) or s for s in (0, 600))"


def test_a_child_is_stopped_when_the_caller_says_so() -> None:
    seen: list[object] = []
    result = run_isolated(
        "builtins:eval", [ONE_THEN_SLEEP], time_limit_s=60, on_item=seen.append, stop=lambda: bool(seen)
    )
    assert (result.status, result.items) == ("stopped", (0,))
    assert result.seconds < 50


def test_the_limit_after_one_item_may_be_another() -> None:
    result = run_isolated(
        "builtins:eval", [ONE_THEN_SLEEP], time_limit_s=60, limit_after=lambda item: 0.3 if item == 0 else None
    )
    assert (result.status, result.reason) == ("timeout", "no answer for 0.3 s: killed")


def test_a_child_takes_one_request_after_another() -> None:
    with Child() as child:
        first = child.call("os:getpid", time_limit_s=30)
        assert child.call("math:sqrt", [-1], time_limit_s=30).reason.startswith("ValueError: ")
        streamed = child.call("builtins:eval", ["(x for x in (1, 2))"], time_limit_s=30)
        assert (streamed.status, streamed.items) == ("ok", (1, 2))
        assert child.call("os:getpid", time_limit_s=30).value == first.value
        assert child.alive
        assert child.call("time:sleep", [600], time_limit_s=0.5).status == "timeout"
        assert not child.alive
    assert not _runs(first.value)


def test_a_child_that_answers_garbage_is_not_asked_again() -> None:
    code = "import os, sys; os.write(int(sys.argv[1]), b'\\xff\\xfe not a message\\n')"
    with Child() as child:
        assert child.call("builtins:exec", [code], time_limit_s=30).status == "error"
        assert not child.alive


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed kills nobody."""
    file = tmp_path / "pid"
    expression = f"open({str(file)!r}, 'w').write(str(__import__('os').getpid())) and __import__('time').sleep(600)"
    code = (
        "from warpplan.kernels.isolate import run_isolated\n"
        f"run_isolated('builtins:eval', [{expression!r}], time_limit_s=60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        until(lambda: file.exists() and file.read_text() != "")
    finally:
        parent.kill()
        parent.wait()
    stat = Path(f"/proc/{file.read_text()}/stat")
    until(lambda: not stat.exists() or stat.read_text().split()[2] == "Z")  # ended; nobody has asked how


def until(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.05)
