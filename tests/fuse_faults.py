"""A file system that passes everything on to a directory, and fails where it is told to, as a network's does.

It is a process of its own, that FUSE asks. Nothing is cached: each call of a program is one of its operations, and
what it gives of a file that is read or written is what the program gets, a part of it too.

    with mounted(backing, target) as faulty:
        faulty.fail("link", "EPERM")
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WAIT = 60  # seconds after which something that was waited for will not come any more

#: Instead of an error: the operation does a part of what it was asked for.
SHORT = "short"

#: Before an error: the operation is done all the same, as when a network loses the answer and it is asked for again.
DONE = "done "

ONCE, SOMETIMES, ALWAYS = "once", "sometimes", "always"

_STATUS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")


class FaultyFileSystem:
    """A file system of FUSE that is mounted.

    Args:
        backing: the directory with what is in it.
        target: where it is mounted.
        process: the one that serves it.
    """

    def __init__(self, backing: Path, target: Path, process: subprocess.Popen[str]) -> None:
        self.backing = backing
        self.target = target
        self.process = process

    def fail(self, operation: str, error: str, when: str = ALWAYS, path: str = "") -> None:
        """Let an operation fail from now on, and no other; each is counted from zero.

        Args:
            operation: its name, as FUSE has it; that of `close` is `flush`.
            error: the name of an error, which may come after `DONE`; or `SHORT` for `read` and `write`. Linux does
                not forget `ENOSYS`: a file system that has said that of an operation is not asked for it again.
            when: the next time, every second time, or every time.
            path: a part of the paths for which it fails.
        """
        self._tell({"operation": operation, "error": error, "when": when, "path": path})

    def heal(self) -> Counter[str]:
        """Let nothing fail any more; what was asked for since it was last told something, and how often it failed."""
        return Counter(self._tell({}))

    def pause(self) -> None:
        """Answer nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process that serves it; the mount stays, and nothing on it can be used."""
        self.process.kill()
        self.process.wait(WAIT)

    def _tell(self, plan: dict[str, str]) -> dict[str, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(plan) + "\n")
        self.process.stdin.flush()
        counts: dict[str, int] = json.loads(self.process.stdout.readline())
        return counts


@contextlib.contextmanager
def mounted(backing: Path, target: Path) -> Iterator[FaultyFileSystem]:
    """Such a file system while the block runs; raises `OSError` with the reason where there can be none."""
    backing.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise OSError("/dev/fuse cannot be used here")
    log = target.parent / f"{target.name}.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, str(backing), str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    try:
        deadline = time.monotonic() + WAIT
        while not os.path.ismount(target):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"FUSE cannot be used here: {log.read_text().strip().splitlines()[-1:]}")
            time.sleep(0.005)
        yield FaultyFileSystem(backing, target, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        _unmount(target)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(WAIT)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _unmount(target: Path) -> None:
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    ways = [["umount", "-l", str(target)]]
    if program is not None:
        ways = [[program, "-u", str(target)], [program, "-u", "-z", str(target)], *ways]
    for way in ways:
        # It is there, or the process that served it is gone, and nothing can be asked of it.
        if str(target) not in Path("/proc/self/mountinfo").read_text():
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(way, capture_output=True, timeout=20, check=False)


# What runs in the process.


class _Plan:
    """Which operation fails, and how often each was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._plan: dict[str, str] = {}

    def take(self, plan: dict[str, str]) -> Counter[str]:
        with self._lock:
            counts, self._counts, self._plan = self._counts, Counter(), plan
            return counts

    def fault(self, operation: str, *paths: str) -> str:
        """What goes wrong with an operation; empty where nothing does."""
        with self._lock:
            self._counts[operation] += 1
            plan = self._plan
            if plan.get("operation") != operation or not any(plan["path"] in path for path in paths):
                return ""
            number = self._counts[f"{operation} matched"]
            self._counts[f"{operation} matched"] += 1
            if number and (plan["when"] == ONCE or (plan["when"] == SOMETIMES and number % 2)):
                return ""
            self._counts["failed"] += 1
            return plan["error"]


def _serve(backing: str, target: str) -> None:
    import mfusepy  # type: ignore[import-untyped]

    plan = _Plan()

    def listen() -> None:
        for line in sys.stdin:
            print(json.dumps(plan.take(json.loads(line))), flush=True)  # noqa: T201 - its answer

    def operation(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def do(self: object, *arguments: Any) -> Any:
            fault = plan.fault(name, *(argument for argument in arguments if isinstance(argument, str)))
            if fault and fault != SHORT and not fault.startswith(DONE):
                raise mfusepy.FuseOSError(getattr(errno, fault))
            try:
                value = function(*arguments, **({"part": bool(fault)} if name in {"read", "write"} else {}))
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno) from None
            if fault.startswith(DONE):
                if name in {"open", "create"}:
                    os.close(value)
                raise mfusepy.FuseOSError(getattr(errno, fault.removeprefix(DONE)))
            return value

        return do

    def real(path: str) -> str:
        return backing + path

    class PassThrough(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        @operation
        def getattr(path: str, fh: int | None = None) -> dict[str, Any]:
            status = os.lstat(real(path)) if fh is None else os.fstat(fh)
            times = {f"st_{time}time": getattr(status, f"st_{time}time_ns") for time in "amc"}
            return {name: getattr(status, name) for name in _STATUS} | times

        @operation
        def readdir(path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(real(path))]

        @operation
        def open(path: str, flags: int) -> int:
            return os.open(real(path), flags & ~os.O_NOFOLLOW)

        @operation
        def create(path: str, mode: int, fi: object = None) -> int:
            return os.open(real(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        @operation
        def read(path: str, size: int, offset: int, fh: int, part: bool = False) -> bytes:
            return os.pread(fh, max(size // 3, 1) if part else size, offset)

        @operation
        def write(path: str, data: bytes, offset: int, fh: int, part: bool = False) -> int:
            return os.pwrite(fh, data[: max(len(data) // 3, 1)] if part else data, offset)

        @operation
        def truncate(path: str, length: int, fh: int | None = None) -> None:
            os.truncate(real(path) if fh is None else fh, length)

        @operation
        def flush(path: str, fh: int) -> None: ...

        @operation
        def fsync(path: str, datasync: int, fh: int) -> None:
            os.fsync(fh)

        @operation
        def release(path: str, fh: int) -> None:
            os.close(fh)

        @operation
        def link(target: str, source: str) -> None:
            os.link(real(source), real(target))

        @operation
        def unlink(path: str) -> None:
            os.unlink(real(path))

        @operation
        def rename(old: str, new: str) -> None:
            os.rename(real(old), real(new))

        @operation
        def mkdir(path: str, mode: int) -> None:
            os.mkdir(real(path), mode)

        @operation
        def rmdir(path: str) -> None:
            os.rmdir(real(path))

        @operation
        def chmod(path: str, mode: int) -> None:
            os.chmod(real(path), mode)

        @operation
        def utimens(path: str, times: tuple[int, int] | None = None) -> None:
            os.utime(real(path), ns=times or (time.time_ns(),) * 2)

        @operation
        def symlink(target: str, source: str) -> None:
            os.symlink(source, real(target))

        @operation
        def readlink(path: str) -> str:
            return os.readlink(real(path))

        @operation
        def flock(path: str, fh: int, op: int) -> None: ...

        @operation
        def lock(path: str, fh: int, cmd: int, lock: object) -> None: ...

    threading.Thread(target=listen, daemon=True).start()
    mfusepy.FUSE(
        PassThrough(),
        target,
        foreground=True,
        nothreads=True,
        subtype="faulty",
        direct_io=True,
        hard_remove=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )


if __name__ == "__main__":
    os.umask(0)
    _serve(*sys.argv[1:])
