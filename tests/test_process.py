"""A tool is run in a group of its own, its time is bounded, and nothing of it is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptocache.errors import ToolError, ToolNotFoundError, ToolTimeoutError
from ptocache.process import Completed, run_tool

WAIT = 60  # seconds after which something that was waited for will not come any more


def run(cwd: Path, *command: str, timeout: float = WAIT, **environ: str) -> Completed:
    return run_tool("ptoas", command, environ={"PATH": os.defpath, **environ}, cwd=str(cwd), timeout=timeout)


def python(cwd: Path, script: str, timeout: float = WAIT) -> Completed:
    return run(cwd, sys.executable, "-c", script, timeout=timeout)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only waiting to be reaped by whoever adopted it."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] not in "ZX"
    return False


def children() -> set[int]:
    """The children of this process, those included that nobody has reaped."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.fixture(params=["pidfd", "no pidfd", "a Python without pidfd"], autouse=True)
def waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is run for each way of waiting: kernels before 5.3 and some containers have no pidfd_open."""
    if request.param == "pidfd":
        if not hasattr(os, "pidfd_open"):
            pytest.skip("this Python has no pidfd_open")
    elif request.param == "no pidfd":

        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    else:
        monkeypatch.delattr(os, "pidfd_open", raising=False)


# What comes back.


def test_the_exit_status_and_both_outputs_come_back(tmp_path: Path):
    done = run(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done[:3] == (7, "out\n", "err\n")
    assert 0 < done.seconds < WAIT


def test_a_tool_that_says_nothing(tmp_path: Path):
    assert run(tmp_path, "true")[:3] == (0, "", "")
    assert run(tmp_path, "false")[:3] == (1, "", "")


def test_large_outputs_come_back_whole(tmp_path: Path):
    script = (
        "import os, sys\n"
        "for fd, byte in ((2, b'e'), (1, b'o')):\n"
        "    data = byte * (8 << 20)\n"
        "    while data: data = data[os.write(fd, data):]\n"
    )
    done = python(tmp_path, script)
    assert done.returncode == 0
    assert done.stdout == "o" * (8 << 20)
    assert done.stderr == "e" * (8 << 20)


def test_output_that_is_not_utf8_is_shown_as_far_as_it_can_be(tmp_path: Path):
    done = run(tmp_path, "sh", "-c", r"printf 'caf\351 \303\251'")
    assert done.stdout == "caf\ufffd é"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_that_ended_the_tool_is_told(tmp_path: Path, number: int):
    done = run(tmp_path, "sh", "-c", f"echo before; ulimit -c 0; kill -{int(number)} $$")
    assert done[:2] == (-number, "before\n")


def test_the_tool_gets_its_arguments_environment_and_directory_and_no_input(tmp_path: Path):
    script = "import os, sys; print(sys.argv[1:], sorted(os.environ), os.getcwd(), sys.stdin.read() == '')"
    words = ["a b", "$HOME", "'", "*", "caf\udce9"]
    done = run(tmp_path, sys.executable, "-I", "-c", script, *words, ONLY="1", LC_ALL="C.UTF-8")
    assert done.stderr == ""
    assert done.stdout == f"{words!r} ['LC_ALL', 'ONLY', 'PATH'] {tmp_path} True\n"


def test_nothing_is_left_in_the_directory(tmp_path: Path):
    before = sorted(os.listdir(tmp_path))
    run(tmp_path, "echo", "x")
    assert sorted(os.listdir(tmp_path)) == before


# What cannot be started.


def test_a_program_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ToolNotFoundError, match="ptoas cannot be started: /no/such/ptoas does not exist"):
        run(tmp_path, "/no/such/ptoas", "kernel.pto")
    with pytest.raises(ToolNotFoundError, match="no-such-program-anywhere does not exist"):
        run(tmp_path, "no-such-program-anywhere")


def test_a_script_whose_interpreter_is_gone_is_not_said_to_be_missing_itself(tmp_path: Path):
    """As a console script is when its virtual environment was removed."""
    tool = tmp_path / "ptoas"
    tool.write_text("#!/no/such/python\n")
    tool.chmod(0o755)
    with pytest.raises(ToolNotFoundError, match=f"the interpreter that {tool} names does not exist"):
        run(tmp_path, str(tool))


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [(b"#!/bin/sh\n", 0o644, "Permission denied"), (b"\x7fELF nonsense", 0o755, "Exec format error")],
)
def test_a_file_that_is_no_program_is_told_with_the_systems_reason(
    tmp_path: Path, content: bytes, mode: int, reason: str
):
    tool = tmp_path / "ptoas"
    tool.write_bytes(content)
    tool.chmod(mode)
    with pytest.raises(ToolError, match=f"ptoas cannot be started: {reason}") as caught:
        run(tmp_path, str(tool), "-x")
    assert not isinstance(caught.value, ToolNotFoundError)
    assert caught.value.command == [str(tool), "-x"]
    assert caught.value.returncode is None
    assert f"command: {tool} -x" in str(caught.value)


def test_a_directory_and_a_command_line_that_is_too_long_are_no_programs(tmp_path: Path):
    with pytest.raises(ToolError, match="Permission denied"):
        run(tmp_path, str(tmp_path))
    with pytest.raises(ToolError, match="Argument list too long"):
        run(tmp_path, "true", "x" * (8 << 20))


# What takes too long, and what stays behind.

FAMILY = """
deaf() {
  trap '' TERM HUP INT
  read me rest < /proc/self/stat
  echo $$ $me > pids.tmp; mv pids.tmp pids
  while :; do sleep 1; done
}
deaf &
echo out; echo err >&2
"""


def family(cwd: Path) -> list[int]:
    return [int(word) for word in (cwd / "pids").read_text().split()]


def test_a_tool_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path):
    """Also a grandchild that ignores every polite request."""
    # The timeout counts from the start: it is long enough for the family to be there on the slowest machine.
    for timeout in (0.5, 5, 30):
        with pytest.raises(ToolTimeoutError) as caught:
            run(tmp_path, "sh", "-c", f"{FAMILY}\nwait", timeout=timeout)
        if (tmp_path / "pids").exists():
            break
    assert f"ptoas was ended after {timeout:g} s" in str(caught.value)
    assert "PTOCACHE_COMPILE_TIMEOUT" in str(caught.value)
    assert caught.value.returncode is None
    assert caught.value.stdout == "out\n"
    assert caught.value.stderr == "err\n"
    wait_until(lambda: not any(map(is_running, family(tmp_path))), "the end of the family")


def test_what_a_tool_leaves_running_is_ended_and_does_not_delay(tmp_path: Path):
    """The grandchild keeps standard output open: whoever waited for its end would wait for ever."""
    done = run(tmp_path, "sh", "-c", f"{FAMILY}\nwhile [ ! -e pids ]; do sleep 0.01; done; exit 3", timeout=WAIT)
    assert done[:3] == (3, "out\n", "err\n")
    wait_until(lambda: not any(map(is_running, family(tmp_path))), "the end of the family")


def test_a_tool_that_stops_itself_is_ended_in_time(tmp_path: Path):
    with pytest.raises(ToolTimeoutError):
        run(tmp_path, "sh", "-c", "kill -STOP $$", timeout=0.2)


def test_a_tool_may_not_reach_the_terminal_or_the_group_of_its_caller(tmp_path: Path):
    done = python(tmp_path, "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert done.stdout == "True\n"


PARENT = """
import os, sys
from ptocache.process import run_tool
if sys.argv[2] != "pidfd":
    del os.pidfd_open
try:
    run_tool("ptoas", ["sh", "-c", sys.argv[1]], environ=os.environ, cwd=os.getcwd(), timeout=60)
except KeyboardInterrupt:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("interrupted, no child left")
"""


def test_an_interrupt_while_waiting_ends_the_tool_and_passes_on(tmp_path: Path):
    way = "pidfd" if hasattr(os, "pidfd_open") else "none"
    command = [sys.executable, "-c", PARENT, f"{FAMILY}\nwait", way]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        wait_until((tmp_path / "pids").exists, "the start of the family")
        parent.send_signal(signal.SIGINT)
        out, _ = parent.communicate(timeout=WAIT)
    assert out == "interrupted, no child left\n"
    wait_until(lambda: not any(map(is_running, family(tmp_path))), "the end of the family")


def test_a_program_that_ignores_its_childrens_ends_can_run_tools(tmp_path: Path):
    """Some servers do, and a program inherits it: the kernel then reaps what ends."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(tmp_path, "sh", "-c", "echo out").stdout == "out\n"
        with pytest.raises(ToolTimeoutError):
            run(tmp_path, "sleep", str(WAIT), timeout=0.2)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_many_runs_leave_no_child_and_no_open_file(tmp_path: Path):
    def open_files() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    run(tmp_path, "true")
    gc.collect()  # what earlier tests left to be closed
    before = open_files()
    for number in range(70):  # for each of the three ways of waiting
        assert run(tmp_path, "sh", "-c", f"exit {number % 3}").returncode == number % 3
        with contextlib.suppress(ToolError, ToolNotFoundError):
            run(tmp_path, ["/no/such/tool", str(tmp_path)][number % 2])
    with pytest.raises(ToolTimeoutError):
        run(tmp_path, "sleep", str(WAIT), timeout=0.01)
    assert open_files() <= before
