"""Failures that will repeat, remembered for a while: an autotuner must not pay twice for a kernel that cannot be.

    failures/3f/9c…       why a compilation failed: small files named by their key

Only what the tools said of the source itself is remembered: a rejection, with its diagnostics. A timeout, a
signal, a missing tool or a full disk is not the source's fault.
"""

from __future__ import annotations

import os
import re
import time

import xxhash

from ptocache import errors
from ptocache.errors import FrontendUnavailableError, LoweringError, SourceImportError, ToolError, ToolTimeoutError
from ptocache.request import Key
from ptocache.store.entry import Accept
from ptocache.store.files import DamagedError, make_root, publish, read_file, remove

_LIMIT = 16 << 20
_DIGEST_SIZE = 16

#: What a tool prints when the machine, and not its input, is at fault.
_MACHINE = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|out of memory|bad_alloc|MemoryError"
    r"|Read-only file system|Permission denied|Too many open files|Input/output error"
    r"|ModuleNotFoundError|ImportError",  # installing what is missing changes no part of the key
    re.IGNORECASE,
)


class Failures:
    """The remembered failures of a cache directory.

    Args:
        directory: the cache directory.
        seconds: how long a failure is remembered; 0 for not at all.
        readonly: remember nothing new.
    """

    def __init__(self, directory: str, seconds: float, readonly: bool = False) -> None:
        self._directory = directory
        self._seconds = seconds
        self._readonly = readonly

    def get(self, key: Key, accept: Accept) -> ToolError | None:
        """The failure that is remembered for a key whose inputs are the same now, or `None`."""
        if not self._seconds:
            return None
        path = self._path(key)
        try:
            data, status = read_file(path, _LIMIT)
        except (OSError, DamagedError):
            return None
        age = time.time() - status.st_mtime
        if not 0 <= age < self._seconds or xxhash.xxh3_128_digest(data[_DIGEST_SIZE:]) != data[:_DIGEST_SIZE]:
            if not self._readonly:
                remove(path)
            return None
        import json

        facts = json.loads(data[_DIGEST_SIZE:])
        if facts["check"] != key.check.hex() or not accept(bytes.fromhex(facts["inputs"])):
            return None
        kind = getattr(errors, facts["kind"], ToolError)
        error: ToolError = kind(
            f"{facts['summary']}\n(remembered: the same compilation failed {age:.0f} s ago; "
            "PTOCACHE_FAILURE_TTL=0 compiles it again)",
            tool=facts["tool"],
            command=facts["command"],
            returncode=facts["returncode"],
            stdout=facts["stdout"],
            stderr=facts["stderr"],
        )
        error.remembered = True
        return error

    def put(self, key: Key, error: ToolError, inputs: bytes) -> None:
        """Remember a failure, and forget those beside it that are too old."""
        if not self._seconds or self._readonly:
            return
        facts = {
            "check": key.check.hex(),
            "inputs": inputs.hex(),
            "kind": type(error).__name__,
            "summary": error.summary,
            "tool": error.tool,
            "command": error.command,
            "returncode": error.returncode,
            "stdout": error.stdout,
            "stderr": error.stderr,
        }
        import json

        body = json.dumps(facts).encode()
        make_root(self._directory)
        path = self._path(key)
        self._forget_old(os.path.dirname(path))
        publish(self._directory, path, xxhash.xxh3_128_digest(body) + body)

    def _forget_old(self, folder: str) -> None:
        try:
            with os.scandir(folder) as entries:
                old = [entry.path for entry in entries if time.time() - entry.stat().st_mtime > self._seconds]
        except OSError:
            return
        for path in old:
            remove(path)

    def _path(self, key: Key) -> str:
        return f"{self._directory}/failures/{key.name[:2]}/{key.name[2:]}"


def will_repeat(error: ToolError) -> bool:
    """Whether the same request would fail again for the same reason: the frontend or ptoas rejected it."""
    if isinstance(error, ToolTimeoutError | FrontendUnavailableError) or _MACHINE.search(error.stderr):
        return False
    if isinstance(error, SourceImportError | LoweringError):
        return True
    # 1 is how ptoas says that its input is at fault; 126 and 127 are how a shell says that a tool is.
    return error.tool == "ptoas" and error.returncode == 1 and bool(error.stderr.strip())
