"""The identity of the tools: what of them decides the bytes of a device binary, and nothing else.

A stamp is made of contents and versions. Where a tool is installed, when, and by whom does not show in it: two
hosts with the same CANN in two places share a cache, and an upgrade in place is a new stamp. Each part is a
function of its own, so that a stamp can be explained.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from ptocache.errors import ToolNotFoundError, explained
from ptocache.request import Part, encode
from ptocache.tools import Toolchain, cann_version_files

#: How long a stamp is believed without looking at the tools again, in seconds: looking costs a few dozen
#: `stat` calls, more than the rest of a hit, and nobody exchanges a compiler between two kernels of one second.
RECHECK_SECONDS = 1.0

# A digest is remembered only if the file was at rest for this long when it was read, in nanoseconds: a file
# system's clock may tick as seldom as every 10 ms (a kernel's jiffy), and within a tick a change does not show.
_RACY_NS = 20_000_000

_CHUNK = 1 << 20

_FRONTEND_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptodsl_compile.py")


class Stamp(NamedTuple):
    """The identity of a toolchain.

    Attributes:
        frontend: what lowers PTODSL to MLIR, as a digest.
        backend: what turns MLIR into a device binary, as a digest.
        version: the CANN version, for people; `emulated-` before it where the install is an emulated one.
    """

    frontend: str
    backend: str
    version: str

    def __str__(self) -> str:
        return f"{self.version}-{self.backend}-{self.frontend}"


def make_stamp(tools: Toolchain) -> Stamp:
    """Identify a toolchain by looking at it now.

    Args:
        tools: from `ptocache.tools.locate`.

    Returns:
        Its stamp.

    Raises:
        ToolNotFoundError: a part of the toolchain cannot be read; the message names it.
    """
    cann = cann_versions(tools)
    facts = dict(line.partition("=")[::2] for line in cann.decode().splitlines())
    version = facts.get("version") or facts.get("Version") or "unknown"
    if facts.get("emulated") == "true":
        version = f"emulated-{version}"
    return Stamp(
        frontend=_digest(frontend_parts(tools)),
        backend=_digest([("cann", cann), *backend_parts(tools)]),
        version=version,
    )


def backend_parts(tools: Toolchain) -> list[Part]:
    """The parts of the back end beside CANN's versions: bisheng, its linker, ptoas."""
    return [
        ("bisheng", file_digest(tools.bisheng)),
        ("ld.lld", file_digest(tools.linker) if tools.linker else b""),
        ("ptoas", ptoas_identity(tools)),
    ]


def frontend_parts(tools: Toolchain) -> list[Part]:
    """The parts of the frontend: the `ptodsl` package, the script that drives it, the Python that runs both."""
    return [
        ("ptodsl", tree_digest(tools.ptodsl)),
        ("script", file_digest(_FRONTEND_SCRIPT)),
        ("python", f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}".encode()),
    ]


def cann_versions(tools: Toolchain) -> bytes:
    """What the version files of the CANN install say, line by line, without paths and dates."""
    lines = []
    for name in cann_version_files() if tools.cann else ():
        try:
            text = _read(os.path.join(tools.cann or "", name)).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        lines += [line.strip() for line in text.splitlines() if _says_what(line)]
    return "\n".join(dict.fromkeys(lines)).encode()


def ptoas_identity(tools: Toolchain) -> bytes:
    """Which ptoas this is: its wheel's files where it is a Python console script, else its own bytes.

    The launcher that pip writes holds the path of the interpreter and nothing of the program behind it.
    """
    with _naming(tools.ptoas), open(tools.ptoas, "rb") as file:
        first_line = file.readline(1024)
    if not (first_line.startswith(b"#!") and b"python" in first_line):
        return file_digest(tools.ptoas)
    records = list(_wheel_records(tools.ptoas))
    if records:
        return xxhash.xxh3_128_digest("\n".join(sorted(records)).encode())
    return xxhash.xxh3_128_digest(_read(tools.ptoas).partition(b"\n")[2])


def tree_digest(directory: str) -> bytes:
    """The digest of a package: the names and contents of its files, without compiled ones."""
    parts = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                path = os.path.join(folder, name)
                parts.append((os.path.relpath(path, directory), file_digest(path)))
    return bytes.fromhex(_digest(parts))


_digests: dict[tuple[str, int, int, int, int, int], bytes] = {}


def file_digest(path: str) -> bytes:
    """The XXH3-128 digest of a file's content, links resolved.

    It is remembered by path, device, inode, size and both times, so that a file that stays as it is is read
    once in a process.

    Raises:
        ToolNotFoundError: the file cannot be read; the message names it.
    """
    with _naming(path):
        status = os.stat(path)
        identity = (
            path,
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        known = _digests.get(identity)
        if known is not None:
            return known
        now = time.time_ns()
        hasher = xxhash.xxh3_128()
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    digest = hasher.digest()
    if now - max(status.st_mtime_ns, status.st_ctime_ns) > _RACY_NS:
        _digests[identity] = digest
    return digest


def _naming(path: str) -> contextlib.AbstractContextManager[None]:
    """Gives the error of a tool that cannot be read the tool's name and the next step."""
    return explained(
        ToolNotFoundError,
        f"{path}: this part of the toolchain cannot be read, and without it the toolchain has no identity; "
        "make it readable",
    )


def _digest(parts: list[Part]) -> str:
    return xxhash.xxh3_128_hexdigest(encode(parts))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _says_what(line: str) -> bool:
    """Whether a line of a version file says what is installed, rather than where or when."""
    key, _, value = line.strip().lower().partition("=")
    if not key or key.startswith("#"):
        return False
    return not (value.startswith("/") or any(word in key for word in ("path", "dir", "date", "time")))


def _wheel_records(launcher: str) -> Iterator[str]:
    """The lines of the `RECORD` of the wheel that installed a launcher, those of the installation left out."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    script = f"bin/{os.path.basename(launcher)},"
    for library in ("lib", "lib64"):
        for python in _children(os.path.join(prefix, library), "python"):
            site = os.path.join(python, "site-packages")
            for info in _children(site, "ptoas"):
                record = os.path.join(info, "RECORD")
                if not info.endswith(".dist-info") or not os.path.isfile(record):
                    continue
                lines = _read(record).decode(errors="replace").splitlines()
                if any(line.replace("\\", "/").lstrip("./").startswith(script) for line in lines):
                    # What pip adds (the launcher, INSTALLER, direct_url.json) and what Python compiles is left out.
                    yield from (
                        line
                        for line in lines
                        if not line.startswith("..") and ".dist-info/" not in line and ".pyc," not in line
                    )
                    return


def _children(directory: str, start: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(start)]
    except OSError:
        return []
