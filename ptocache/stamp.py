"""The identity of the tools: what of them decides the bytes of a device binary, and nothing else.

A stamp is made of contents and versions. Where a tool is installed, when, and by whom does not show in it: two
hosts with the same CANN in two places share a cache, and an upgrade in place is a new stamp. Each part is a
function of its own that gives a `Fact`, so that a stamp can be explained part by part.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from ptocache.digests import Digests
from ptocache.errors import ToolNotFoundError, explained
from ptocache.request import encode
from ptocache.tools import Toolchain, cann_version_files

#: How long a stamp is believed without looking at the tools again, in seconds: looking costs a few dozen
#: `stat` calls, more than the rest of a hit, and nobody exchanges a compiler between two kernels of one second.
RECHECK_SECONDS = 1.0

#: Variables that change what the tools make of the same input, with the reason. Those that only say where a tool
#: is are not here: the tool itself is identified.
TOOL_INPUTS = {
    "CPATH": "clang, and so bisheng, looks for headers there",
    "C_INCLUDE_PATH": "the same, for C",
    "CPLUS_INCLUDE_PATH": "the same, for C++",
    "LIBRARY_PATH": "clang looks for libraries there",
    "COMPILER_PATH": "clang looks for its own programs there",
    "CCC_OVERRIDE_OPTIONS": "clang edits its command line with it",
    "CCC_ADD_ARGS": "an older name of the same",
    "SOURCE_DATE_EPOCH": "clang takes the date for __DATE__ and __TIME__ from it",
    "LD_PRELOAD": "puts code into every tool",
    "PTO_ISA_PATH": "ptoas compiles with the headers below it",
    "PTO_ISA_ROOT": "an older name of the same",
}

#: All variables of the tools themselves, since new ones appear with new versions.
TOOL_INPUT_PREFIXES = ("PTOAS_", "PTODSL_")

# Of those prefixes, what says where something is or is only for looking on.
_NOT_INPUTS = frozenset({"PTOAS_BIN", "PTODSL_CACHE_DIR"})

_HEADER_ROOTS = frozenset({"PTO_ISA_PATH", "PTO_ISA_ROOT"})

_FRONTEND_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptodsl_compile.py")

#: How long `ptoas --version` may take, in seconds.
_VERSION_TIMEOUT = 30


class Fact(NamedTuple):
    """One part of a stamp: its name, and what it was found to be, as text."""

    name: str
    value: str


class Stamp(NamedTuple):
    """The identity of a toolchain.

    Attributes:
        frontend: what lowers PTODSL to MLIR.
        backend: what turns MLIR into a device binary.
        version: the CANN version, for people; `emulated-` before it where the install is an emulated one.
        name: the version and a digest of each half: what a key is made with.
    """

    frontend: tuple[Fact, ...]
    backend: tuple[Fact, ...]
    version: str
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def backend_name(self) -> str:
        """The name of the back end alone: what a PTO key is made with."""
        return self.name.rpartition("-")[0]


def make_stamp(tools: Toolchain, digests: Digests | None = None) -> Stamp:
    """Identify a toolchain by looking at it now.

    Args:
        tools: from `ptocache.tools.locate`.
        digests: which contents are known already.

    Returns:
        Its stamp.

    Raises:
        ToolNotFoundError: a part of the toolchain cannot be read; the message names it.
    """
    digests = Digests() if digests is None else digests
    cann = cann_versions(tools)
    ptoas = ptoas_identity(tools, digests)
    backend = (
        cann,
        bisheng_identity(tools, digests),
        linker_identity(tools, digests),
        ptoas,
        ptoas_version(tools, (cann, ptoas), digests),
        tool_variables(tools, digests),
    )
    frontend = (ptodsl_identity(tools, digests), script_identity(digests), python_version())
    digests.save()
    facts = dict(line.partition("=")[::2] for line in cann.value.splitlines())
    version = facts.get("version") or facts.get("Version") or "unknown"
    if facts.get("emulated") == "true":
        version = f"emulated-{version}"
    return Stamp(frontend, backend, version, f"{version}-{_digest(backend)}-{_digest(frontend)}")


def cann_versions(tools: Toolchain) -> Fact:
    """What the version files of the CANN install say, line by line, without paths and dates."""
    lines: list[str] = []
    for name in cann_version_files() if tools.cann else ():
        path = os.path.join(tools.cann or "", name)
        try:
            with open(path, "rb") as file:
                text = file.read().decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ToolNotFoundError(f"{path}: this part of the toolchain cannot be read: {error.strerror}") from error
        lines += [line.strip() for line in text.splitlines() if _says_what(line)]
    return Fact("cann", "\n".join(dict.fromkeys(lines)))


def bisheng_identity(tools: Toolchain, digests: Digests) -> Fact:
    """The content of bisheng, links resolved."""
    return Fact("bisheng", _file(tools.bisheng, digests))


def linker_identity(tools: Toolchain, digests: Digests) -> Fact:
    """The content of the `ld.lld` beside bisheng, links resolved; empty where there is none."""
    return Fact("ld.lld", _file(tools.linker, digests) if tools.linker else "")


def ptoas_identity(tools: Toolchain, digests: Digests) -> Fact:
    """Which ptoas this is.

    For a Python console script its wheel's files, as `RECORD` lists them, or the sources of an editable install:
    the launcher that pip writes holds the path of the interpreter and nothing of the program behind it. For
    anything else its bytes, and those of the shared libraries beside it.
    """
    with _naming(tools.ptoas), open(tools.ptoas, "rb") as file:
        first_line = file.readline(1024)
    if not (first_line.startswith(b"#!") and b"python" in first_line):
        libraries = _shared_libraries(os.path.dirname(os.path.realpath(tools.ptoas)))
        parts = [_file(path, digests) for path in (tools.ptoas, *libraries)]
        return Fact("ptoas", parts[0] if len(parts) == 1 else _digest(Fact(str(i), p) for i, p in enumerate(parts)))
    wheel = _find_wheel(tools.ptoas)
    if wheel is None:
        with _naming(tools.ptoas), open(tools.ptoas, "rb") as file:
            return Fact("ptoas", xxhash.xxh3_128_hexdigest(file.read().partition(b"\n")[2]))
    sources = _editable_sources(wheel)
    if sources:
        return Fact("ptoas", _digest(Fact(os.path.basename(path), _tree(path, digests)) for path in sources))
    return Fact("ptoas", xxhash.xxh3_128_hexdigest("\n".join(_installed_files(wheel)).encode()))


def ptoas_version(tools: Toolchain, known_by: Iterable[Fact], digests: Digests) -> Fact:
    """What `ptoas --version` prints: the version of the ABI that its callers gate on is in it.

    It is asked once for each toolchain, which `known_by` identifies otherwise, and remembered.
    """
    identity = bytes.fromhex(_digest(known_by))
    known = digests.fact("ptoas --version", identity)
    if known is not None:
        return Fact("ptoas --version", known.decode(errors="replace"))
    import subprocess

    with _naming(tools.ptoas):
        try:
            result = subprocess.run(
                [tools.ptoas, "--version"],
                env=tools.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_VERSION_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Fact("ptoas --version", "no answer")
    text = result.stdout.strip() if result.returncode == 0 else b"exit status %d" % result.returncode
    if result.returncode == 0:
        digests.remember("ptoas --version", identity, text)
    return Fact("ptoas --version", text.decode(errors="replace"))


def tool_variables(tools: Toolchain, digests: Digests) -> Fact:
    """The variables in `TOOL_INPUTS`, and those with the tools' own prefixes, that are set.

    One that names the directory of the PTO-ISA headers stands for their contents, wherever they are.
    """
    lines = [
        f"{name}={_tree(value, digests) if name in _HEADER_ROOTS and os.path.isdir(value) else value}"
        for name, value in sorted(tools.environ.items())
        if name in TOOL_INPUTS or (name.startswith(TOOL_INPUT_PREFIXES) and name not in _NOT_INPUTS)
    ]
    return Fact("variables", "\n".join(lines))


def ptodsl_identity(tools: Toolchain, digests: Digests) -> Fact:
    """The files of the `ptodsl` package, by name and content."""
    return Fact("ptodsl", _tree(tools.ptodsl, digests))


def script_identity(digests: Digests) -> Fact:
    """The script that drives the frontend: how it names modules and merges kernels shows in the text."""
    return Fact("ptodsl_compile.py", _file(_FRONTEND_SCRIPT, digests))


def python_version() -> Fact:
    """The Python that runs the frontend, which traces Python code."""
    return Fact("python", f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}")


def _naming(path: str) -> contextlib.AbstractContextManager[None]:
    """Gives the error of a tool that cannot be read the tool's name and the next step."""
    return explained(
        ToolNotFoundError,
        f"{path}: this part of the toolchain cannot be read, and without it the toolchain has no identity; "
        "make it readable",
    )


def _digest(facts: Iterable[Fact]) -> str:
    return xxhash.xxh3_128_hexdigest(encode((name, value.encode("utf-8", "surrogateescape")) for name, value in facts))


def _file(path: str, digests: Digests) -> str:
    try:
        return digests.of(path).hex()
    except OSError:
        with _naming(path):
            raise


def _tree(directory: str, digests: Digests) -> str:
    """The digest of a package: the names and contents of its files, without compiled ones."""
    facts = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                path = os.path.join(folder, name)
                facts.append(Fact(os.path.relpath(path, directory), _file(path, digests)))
    return _digest(facts)


def _says_what(line: str) -> bool:
    """Whether a line of a version file says what is installed, rather than where or when."""
    key, _, value = line.strip().lower().partition("=")
    if not key or key.startswith("#"):
        return False
    return not (value.startswith("/") or any(word in key for word in ("path", "dir", "date", "time")))


def _shared_libraries(directory: str) -> list[str]:
    """The shared libraries that a program brings along, in its own directory and in the `lib` beside that."""
    places = (directory, os.path.join(os.path.dirname(directory), "lib"))
    # `/usr/bin` and its like belong to everyone: what is in `/usr/lib` is not brought along by one program.
    if os.path.dirname(directory) in {"/", "/usr", "/usr/local"}:
        return []
    return [path for place in places for path in _children(place) if ".so" in os.path.basename(path)]


def _find_wheel(launcher: str) -> str | None:
    """The `.dist-info` directory of the wheel that installed a launcher."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    script = f"bin/{os.path.basename(launcher)}"
    for library in ("lib", "lib64"):
        for python in _children(os.path.join(prefix, library), "python"):
            for info in _children(os.path.join(python, "site-packages"), "ptoas"):
                if info.endswith(".dist-info") and any(_name(line).endswith(script) for line in _record(info)):
                    return info
    return None


def _installed_files(info: str) -> list[str]:
    """The lines of a wheel's `RECORD` that come from the wheel: not the launcher, pip's notes, compiled files."""
    return sorted(
        line
        for line in _record(info)
        if not _name(line).startswith("..") and ".dist-info/" not in _name(line) and not _name(line).endswith(".pyc")
    )


def _editable_sources(info: str) -> list[str]:
    """The packages of an editable install (PEP 610), or nothing for an ordinary one."""
    import json

    try:
        with open(os.path.join(info, "direct_url.json"), "rb") as file:
            origin = json.load(file)
        if not origin.get("dir_info", {}).get("editable"):
            return []
        project = str(origin["url"]).removeprefix("file://")
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    found = []
    for folder, folders, _ in os.walk(project):
        depth = os.path.relpath(folder, project).count(os.sep)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < 2)
        for name in ("ptoas", "ptodsl"):
            if os.path.isfile(os.path.join(folder, name, "__init__.py")):
                found.append(os.path.join(folder, name))
                folders.remove(name)
    return found


def _record(info: str) -> Iterator[str]:
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8", errors="replace") as file:
            yield from file.read().splitlines()
    except OSError:
        return


def _name(record_line: str) -> str:
    return record_line.rpartition(",")[0].rpartition(",")[0].replace("\\", "/")


def _children(directory: str, start: str = "") -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(start)]
    except OSError:
        return []
