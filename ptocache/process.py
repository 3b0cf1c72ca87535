"""Running one tool: in a process group of its own, with a time limit, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

from ptocache.errors import ToolError, ToolNotFoundError, ToolTimeoutError


class Completed(NamedTuple):
    """How a tool ended.

    Attributes:
        returncode: the exit status, or the negative number of the signal that killed it.
        stdout: all that it wrote there.
        stderr: all that it wrote there.
        seconds: how long it ran.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run_tool(tool: str, command: Sequence[str], *, environ: Mapping[str, str], cwd: str, timeout: float) -> Completed:
    """Run a tool and wait for it.

    The tool's process group is killed in any case before this returns or raises: what a tool leaves running
    would go on writing into a directory that is about to be removed.

    Args:
        tool: the stage's name, for messages.
        command: the program and its arguments; no shell sees them.
        environ: the tool's whole environment.
        cwd: the directory that it runs in.
        timeout: how long it may run, in seconds.

    Returns:
        How it ended, whatever its exit status.

    Raises:
        ToolNotFoundError: there is no such program.
        ToolError: the system cannot start it.
        ToolTimeoutError: it ran for too long.
    """
    # Files, not pipes: a grandchild that outlives the tool would hold a pipe open and keep the reader waiting.
    with tempfile.TemporaryFile(dir=cwd) as stdout, tempfile.TemporaryFile(dir=cwd) as stderr:
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            there = os.path.isfile(os.path.join(cwd, command[0]))
            missing = f"the interpreter that {command[0]} names" if there else error.filename
            raise ToolNotFoundError(f"{tool} cannot be started: {missing} does not exist") from error
        except OSError as error:
            raise ToolError(
                f"{tool} cannot be started: {error.strerror}", tool=tool, command=command, returncode=None
            ) from error
        with _lock:
            _running.add(process.pid)
            if _is_ending:
                os.killpg(process.pid, 9)
        try:
            in_time = _wait_for_exit(process.pid, timeout)
        finally:
            with _lock:
                _running.discard(process.pid)
            # The leader is not reaped yet, so its number cannot have passed to another process group. Unless the
            # program that we are part of ignores SIGCHLD: then the kernel reaps, and the group may be gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        seconds = time.monotonic() - start
        out, err = _text(stdout), _text(stderr)
    if not in_time:
        raise ToolTimeoutError(
            f"{tool} was ended after {timeout:g} s, the limit that PTOCACHE_COMPILE_TIMEOUT sets",
            tool=tool,
            command=command,
            returncode=None,
            stdout=out,
            stderr=err,
        )
    return Completed(process.returncode, out, err, seconds)


def end_tools() -> None:
    """Kill the tools that run, in whichever thread, and start no more: this process is about to end."""
    global _is_ending  # noqa: PLW0603 - it is the process that ends
    with _lock:  # as long as it is held, none is reaped
        _is_ending = True
        for pid in _running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, 9)


def is_ending() -> bool:
    """Whether nothing is to be waited for any more."""
    return _is_ending


_lock = threading.Lock()
_running: set[int] = set()
_is_ending = False


def _wait_for_exit(pid: int, timeout: float) -> bool:
    """Wait until a child has exited, without reaping it; False if the time is up before."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # a kernel before 5.3, a container that forbids the call, a Python without it
        return _poll_for_exit(pid, timeout)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(pidfd)


def _poll_for_exit(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while not _has_exited(pid):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(pause, remaining))
        pause = min(pause * 2, 0.02)
    return True


def _has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by the kernel
        return True


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
