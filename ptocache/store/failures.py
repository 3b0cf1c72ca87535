"""Failures that will repeat, remembered for a while: an autotuner must not pay twice for a kernel that cannot be.

    failures/3/f9c…       why a compilation failed: small files named by their key

Only what the tools said of the source itself is remembered: a rejection, with its diagnostics. A timeout, a
signal, a missing tool or a full disk is not the source's fault.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from ptocache.errors import LoweringError, SourceImportError, ToolError
from ptocache.request import Key
from ptocache.store.entry import Accept
from ptocache.store.files import DamagedError, publish, read_file, remove
from ptocache.store.layout import Layout, blocks, is_digest, list_directory
from ptocache.store.local import FAILURES_LIMIT

#: How many directories there are below `failures`: few enough that each can hold some failures of a small cache,
#: many enough that the one which is looked through for each new failure is small.
FOLDERS = 16

#: A failure whose diagnostics are longer than this is not remembered. Usual ones are 2 to 8 KiB; TileLang's have the
#: whole source in them.
_LIMIT = 1 << 20

_DIGEST_SIZE = 16

#: The errors that are remembered. What a file names is looked up here, and nowhere else.
_KINDS = {kind.__name__: kind for kind in (ToolError, SourceImportError, LoweringError)}

#: What a tool prints when the machine, and not its input, is at fault. Compiled when it is needed: not by a hit.
_MACHINE = (
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|out of memory|bad_alloc|MemoryError"
    r"|Read-only file system|Permission denied|Too many open files|Input/output error"
    r"|Resource temporarily unavailable|Device or resource busy|Text file busy|Stale (?:NFS )?file handle"
    r"|File too large|can't start new thread|timed out|Connection re(?:fused|set)|Broken pipe"
    r"|\bKilled\b|KeyboardInterrupt|Segmentation fault|core dumped|PLEASE submit a bug report"
    # What is missing may be there the next time, and no part of the key tells.
    r"|No such file or directory|command not found|unable to execute|error while loading shared libraries"
    r"|ModuleNotFoundError|ImportError"
)


class Remembered(NamedTuple):
    """A failure as its file has it.

    Attributes:
        age: how long ago it was, in seconds.
        inputs: what was read beside the source, as `ptocache.inputs` encodes it.
        error: what is raised again.
    """

    age: float
    inputs: bytes
    error: ToolError


class Failures:
    """The remembered failures of a cache directory.

    Args:
        layout: the cache directory.
        seconds: how long a failure is remembered; 0 for not at all.
        limit: how many bytes on disk they may take, all together.
        readonly: remember nothing new.
    """

    def __init__(self, layout: Layout, seconds: float, limit: int = FAILURES_LIMIT, readonly: bool = False) -> None:
        self._layout = layout
        self._seconds = seconds
        self._folder_limit = limit // FOLDERS
        self._readonly = readonly

    def get(self, key: Key, accept: Accept) -> ToolError | None:
        """The failure that is remembered for a key whose inputs are the same now, or `None`."""
        if not self._seconds:
            return None
        path = self._layout.failure(key.name)
        try:
            data, status = read_file(path, _LIMIT)
        except (OSError, DamagedError):
            return None
        found = _decode(data, key, time.time() - status.st_mtime)
        if found is None or not 0 <= found.age < self._seconds:
            if not self._readonly:
                remove(path)
            return None
        return found.error if accept(found.inputs) else None

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
            "original": error.original,
        }
        import json

        body = json.dumps(facts).encode()
        data = xxhash.xxh3_128_digest(body) + body
        size = blocks(len(data))
        if size > min(self._folder_limit, _LIMIT):
            return
        path = self._layout.failure(key.name)
        self._make_room(os.path.dirname(path), size)
        publish(self._layout.root, path, data)

    def peek(self, name: str) -> Remembered | None:
        """The failure that is remembered for the key with this name, for people; `None` where there is none."""
        try:
            data, status = read_file(self._layout.failure(name), _LIMIT)
        except (OSError, DamagedError):
            return None
        found = _decode(data, None, time.time() - status.st_mtime)
        return found if found is not None and 0 <= found.age < self._seconds else None

    def all(self) -> Iterator[tuple[str, Remembered]]:
        """All that are remembered, each with the name of its key, in no order."""
        for folder in list_directory(self._layout.failures):
            for file in list_directory(folder.path):
                name = f"{folder.name}{file.name}"
                if is_digest(name, 32) and (found := self.peek(name)) is not None:
                    yield name, found

    def clear(self) -> int:
        """Forget all; the number of files that were removed."""
        forgotten = 0
        for folder in list_directory(self._layout.failures):
            for file in list_directory(folder.path):
                remove(file.path)
                forgotten += not os.path.lexists(file.path)
        return forgotten

    def prune(self) -> int:
        """Forget what is too old, or damaged; the number of files that were removed."""
        forgotten = 0
        for folder in list_directory(self._layout.failures):
            for file in list_directory(folder.path):
                if not self._is_alive(file):
                    remove(file.path)
                    forgotten += not os.path.lexists(file.path)
        return forgotten

    def damaged(self) -> Iterator[str]:
        """The paths of the files that are no failures."""
        for folder in list_directory(self._layout.failures):
            for file in list_directory(folder.path):
                if not _is_whole(file.path):
                    yield file.path

    def _is_alive(self, file: os.DirEntry[str]) -> bool:
        with contextlib.suppress(OSError):
            return time.time() - file.stat(follow_symlinks=False).st_mtime <= self._seconds and _is_whole(file.path)
        return True  # gone, or it will have to stay

    def _make_room(self, folder: str, size: int) -> None:
        """Forget what is too old, and as many of the others, the oldest first, as a failure of this size needs."""
        files = []
        with contextlib.suppress(OSError):
            for entry in list_directory(folder):
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, blocks(status.st_size), entry.path))
        now = time.time()
        for changed, length, path in sorted(files, reverse=True):
            size += length
            if now - changed > self._seconds or size > self._folder_limit:
                remove(path)


def _is_whole(path: str) -> bool:
    try:
        data, _ = read_file(path, _LIMIT)
    except DamagedError:
        return False
    except OSError:
        return True  # not damaged: gone, or somebody else's
    return xxhash.xxh3_128_digest(data[_DIGEST_SIZE:]) == data[:_DIGEST_SIZE]


def _decode(data: bytes, key: Key | None, age: float) -> Remembered | None:
    """Read a failure, of any key where none is given; `None` for bytes that are none, or one of another key."""
    if xxhash.xxh3_128_digest(data[_DIGEST_SIZE:]) != data[:_DIGEST_SIZE]:
        return None
    import json  # a hit reads no failure

    try:
        facts = json.loads(data[_DIGEST_SIZE:])
        texts = (facts[name] for name in ("summary", "tool", "stdout", "stderr", "original"))
        if (key is not None and facts["check"] != key.check.hex()) or not all(isinstance(text, str) for text in texts):
            return None
        note = f"(remembered: the same compilation failed {age:.0f} s ago; PTOCACHE_FAILURE_TTL=0 compiles it again)"
        error: ToolError = _KINDS[facts["kind"]](
            f"{facts['summary']}\n{note}",
            tool=facts["tool"],
            command=facts["command"],
            returncode=facts["returncode"],
            stdout=facts["stdout"],
            stderr=facts["stderr"],
        )
        error.remembered = True
        error.note = note
        error.original = facts["original"]
        return Remembered(age, bytes.fromhex(facts["inputs"]), error)
    except (ValueError, LookupError, TypeError, AttributeError):  # well made, and not by us
        return None


def will_repeat(error: ToolError) -> bool:
    """Whether the same request would fail again: the frontend or ptoas rejected it, and said why."""
    if not error.stderr.strip():
        return False
    if any(re.search(_MACHINE, text, re.IGNORECASE) for text in (error.stderr, error.stdout)):
        return False
    if isinstance(error, SourceImportError | LoweringError):
        return True
    # 1 is how a compiler says that its input is at fault; 126 and 127 are how a shell says that a tool is.
    return type(error) is ToolError and error.tool in {"ptoas", "ascendc"} and error.returncode == 1
