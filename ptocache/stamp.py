"""The identity of the tools: what of them decides the bytes of a device binary, and nothing else.

A stamp is made of contents and versions. Where a tool is installed, when, and by whom does not show in it: two
hosts with the same CANN in two places share a cache, and an upgrade in place is a new stamp. Each part is a
function of its own that gives a `Fact`, so that a stamp can be explained part by part.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

import xxhash

from ptocache.digests import Digests, open_regular
from ptocache.errors import ToolError, ToolNotFoundError, explained
from ptocache.request import encode
from ptocache.tools import TOOL_VARIABLES, Toolchain, cann_version_files

T = TypeVar("T")

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

#: A longer answer than this, in characters, stands in a stamp as its digest.
_VERSION_LIMIT = 1000

# Lines with which tools that are made with LLVM say on which host and where they run.
_OF_THE_HOST = ("host cpu:", "installeddir:", "configuration file:")

# The words of a key in a version file, such as `install_path` or `buildTime`, that tell of a place or a time. Whole
# words: `runtime_running_version` says what is installed.
_PLACE_OR_TIME = re.compile(
    r"(?:^|[^a-z0-9])(?:install|build)?(?:path|dir|directory|date|time|timestamp)(?:$|[^a-z0-9])"
)

# The interpreter in a launcher that pip wrote: behind `#!`, or where its path is long or has spaces, behind `exec`.
_INTERPRETER = re.compile(rb"""\A\#!(?:/bin/sh\n'''exec'\s"([^"\n]*python[0-9.]*)"|\s*(/[^"\s]*python[0-9.]*)\s)""")

# What an installer notes beside a wheel's own files.
_INSTALLERS_NOTES = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")


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
    return _stamp(frontend, backend)


def make_compiler_stamp(bisheng: str, linker: str, environ: Mapping[str, str], digests: Digests) -> Stamp:
    """Identify the tools that compile AscendC: CANN, bisheng and its linker.

    Args:
        bisheng: the compiler's path.
        linker: the path of the `ld.lld` that links what it makes.
        environ: their environment.
        digests: which contents are known already.

    Returns:
        Their stamp; it has no frontend.

    Raises:
        ToolNotFoundError: one of them cannot be read.
    """
    cann = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME") or None
    tools = Toolchain(dict(environ), cann, ptoas="", bisheng=bisheng, linker=linker, ptodsl="")
    identities = (bisheng_identity(tools, digests), linker_identity(tools, digests), tool_variables(tools, digests))
    backend = (cann_versions(tools), *identities)
    digests.save()
    return _stamp((), backend)


def add_facts(stamp: Stamp, facts: Iterable[Fact]) -> Stamp:
    """A stamp with further facts about the back end."""
    return _stamp(stamp.frontend, (*stamp.backend, *facts))


class Recheck(Generic[T]):
    """What a look at the tools has found; it is looked again when a second has passed or a variable has changed.

    Args:
        look: looks at the tools.
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._known: tuple[T, tuple[object, ...], float] | None = None

    def __call__(self) -> T:
        """What was found; raises what looking raises."""
        places = tuple(os.environ.get(name) for name in TOOL_VARIABLES)
        variables = (*places, *((name, os.environ.get(name)) for name in tool_inputs(os.environ)))
        now = time.monotonic()
        known = self._known
        if known is None or known[1] != variables or now - known[2] > RECHECK_SECONDS:
            known = self._known = (self._look(), variables, now)
        return known[0]


def cann_versions(tools: Toolchain) -> Fact:
    """What the version files of the CANN install say, line by line, without paths and dates."""
    lines: list[str] = []
    for name in cann_version_files() if tools.cann else ():
        path = os.path.join(tools.cann or "", name)
        try:
            with open_regular(path) as file:
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
    with _naming(tools.ptoas), open_regular(tools.ptoas) as file:
        start = file.read(4096)
    interpreter = _INTERPRETER.match(start)
    if interpreter is None and not (start.startswith(b"#!") and b"python" in start.partition(b"\n")[0]):
        libraries = _shared_libraries(os.path.dirname(os.path.realpath(tools.ptoas)))
        program = _file(tools.ptoas, digests)
        if not libraries:
            return Fact("ptoas", program)
        beside = (Fact(os.path.basename(path), _file(path, digests)) for path in libraries)
        return Fact("ptoas", _digest([Fact("", program), *beside]))
    wheel = _find_wheel(tools.ptoas, os.fsdecode(interpreter[1] or interpreter[2]) if interpreter else "")
    if wheel is None:
        with _naming(tools.ptoas), open_regular(tools.ptoas) as file:
            text = file.read()
        # Without the lines that name the interpreter.
        return Fact("ptoas", xxhash.xxh3_128_hexdigest(text[interpreter.end() if interpreter else 0 :]))
    project = _editable_project(wheel)
    if project:
        return Fact("ptoas", _digest(_sources(project, digests)))
    lines = "\n".join(_installed_files(wheel))
    return Fact("ptoas", xxhash.xxh3_128_hexdigest(lines.encode("utf-8", "surrogateescape")))


def ptoas_version(tools: Toolchain, known_by: Iterable[Fact], digests: Digests) -> Fact:
    """What `ptoas --version` prints: the version of the ABI that its callers gate on is in it.

    It is asked once for each toolchain, which `known_by` identifies otherwise, and remembered: an answer for good, a
    failure in this process. A tool that gives none still compiles, and is identified by its content.
    """
    identity = bytes.fromhex(_digest(known_by))
    known = digests.fact("ptoas --version", identity)
    if known is not None:
        return Fact("ptoas --version", known.decode(errors="replace"))
    import tempfile  # the answer is nearly always known

    from ptocache.process import run_tool

    command = [tools.ptoas, "--version"]
    answered = False
    try:
        cwd = tempfile.gettempdir()
        completed = run_tool("ptoas", command, environ=tools.environ, cwd=cwd, timeout=_VERSION_TIMEOUT)
    except (ToolError, ToolNotFoundError, OSError):
        text = "no answer"
    else:
        answered = completed.returncode == 0
        text = _version_lines(completed.stdout) if answered else f"exit status {completed.returncode}"
    digests.remember("ptoas --version", identity, text.encode(), lasting=answered)
    return Fact("ptoas --version", text)


def tool_inputs(names: Iterable[str]) -> list[str]:
    """Those of the variables with these names that change what the tools make, in order."""
    return sorted(
        name
        for name in names
        if name in TOOL_INPUTS or (name.startswith(TOOL_INPUT_PREFIXES) and name not in _NOT_INPUTS)
    )


def tool_variables(tools: Toolchain, digests: Digests) -> Fact:
    """The variables in `TOOL_INPUTS`, and those with the tools' own prefixes, that are set.

    One that names the directory of the PTO-ISA headers stands for their contents, wherever they are.
    """
    lines = []
    for name in tool_inputs(tools.environ):
        value = tools.environ[name]
        if name in _HEADER_ROOTS and os.path.isdir(value):
            value = _tree(value, digests)
        lines.append(f"{name}={_one_line(value)}")
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


def _stamp(frontend: tuple[Fact, ...], backend: tuple[Fact, ...]) -> Stamp:
    cann = next(fact for fact in backend if fact.name == "cann")
    facts = dict(line.partition("=")[::2] for line in cann.value.splitlines())
    version = facts.get("version") or facts.get("Version") or "unknown"
    if facts.get("emulated") == "true":
        version = f"emulated-{version}"
    return Stamp(frontend, backend, version, f"{version}-{_digest(backend)}-{_digest(frontend)}")


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


def _tree(directory: str, digests: Digests, hidden: bool = True) -> str:
    """The digest of a directory: the names and contents of its files, links resolved, without compiled ones.

    What cannot be read as a file is no part of it: an editor's lock (a link that leads nowhere), a pipe, a socket.
    """
    facts = []
    seen = set()
    for folder, folders, files in os.walk(directory, followlinks=True):
        status = os.stat(folder)
        place = (status.st_dev, status.st_ino)
        folders[:] = [] if place in seen else sorted(name for name in folders if _counts(name, hidden))
        if place in seen:  # a link to what is there already: maybe to itself
            continue
        seen.add(place)
        for name in sorted(files):
            path = os.path.join(folder, name)
            if _counts(name, hidden) and os.path.isfile(path):
                facts.append(Fact(os.path.relpath(path, directory), _file(path, digests)))
    return _digest(facts)


def _counts(name: str, hidden: bool) -> bool:
    return name != "__pycache__" and not name.endswith((".pyc", ".pyo")) and (hidden or not name.startswith("."))


def _one_line(value: str) -> str:
    """A value as one line, so that no value imitates another variable."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _version_lines(text: str) -> str:
    """What a version's text says of the tool, rather than of this host."""
    lines = [line.strip() for line in text.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.lower().startswith(_OF_THE_HOST))
    return kept if len(kept) <= _VERSION_LIMIT else xxhash.xxh3_128_hexdigest(kept.encode())


def _says_what(line: str) -> bool:
    """Whether a line of a version file says what is installed, rather than where or when."""
    key, _, value = line.strip().lower().partition("=")
    if not key or key.startswith(("#", "/")):
        return False
    return not (value.strip(" \"'").startswith("/") or _PLACE_OR_TIME.search(key))


def _shared_libraries(directory: str) -> list[str]:
    """The shared libraries that a program brings along, in its own directory and in the `lib` beside that."""
    places = (directory, os.path.join(os.path.dirname(directory), "lib"))
    # `/usr/bin` and its like belong to everyone: what is in `/usr/lib` is not brought along by one program.
    if os.path.dirname(directory) in {"/", "/usr", "/usr/local"}:
        return []
    found = (path for place in places for path in _children(place) if ".so" in os.path.basename(path))
    return [path for path in found if os.path.isfile(path)]


def _find_wheel(launcher: str, interpreter: str) -> str | None:
    """The `.dist-info` directory of the wheel that installed a launcher: around it, or around its interpreter."""
    name = os.path.basename(launcher)
    prefixes = [os.path.dirname(os.path.dirname(path)) for path in (os.path.realpath(launcher), interpreter) if path]
    for prefix in dict.fromkeys(prefixes):
        for library in ("lib", "lib64"):
            for python in _children(os.path.join(prefix, library), "python"):
                for packages in ("site-packages", "dist-packages"):
                    for info in _children(os.path.join(python, packages)):
                        if info.endswith(".dist-info") and _offers(info, name):
                            return info
    return None


def _offers(info: str, program: str) -> bool:
    """Whether a wheel installed a program."""
    # All RECORDs of a large environment take long to read: entry points tell at once.
    named = os.path.basename(info).lower().startswith("ptoas")
    if not named:
        with contextlib.suppress(OSError), open(os.path.join(info, "entry_points.txt"), "rb") as file:
            named = program.encode("utf-8", "surrogateescape") in file.read()
    return named and any(_name(line).endswith(f"bin/{program}") for line in _record(info))


def _installed_files(info: str) -> list[str]:
    """The lines of a wheel's `RECORD` that come from the wheel: not launchers, pip's notes, compiled files.

    A launcher holds the path of the interpreter. A program that the wheel brought along as such is a part of it.
    """
    packages = os.path.dirname(info)
    kept = []
    for line in _record(info):
        name = _name(line)
        if name.endswith(".pyc") or (".dist-info/" in name and name.endswith(_INSTALLERS_NOTES)):
            continue
        if name.startswith("..") and "/bin/" in name:
            with contextlib.suppress(OSError), open(os.path.join(packages, name), "rb") as file:
                if file.read(2) != b"#!":
                    kept.append(line)
            continue
        kept.append(line)
    return sorted(kept)


def _editable_project(info: str) -> str:
    """The directory of an editable install (PEP 610), or an empty text for an ordinary one."""
    import json
    from urllib.parse import unquote

    try:
        with open(os.path.join(info, "direct_url.json"), "rb") as file:
            origin = json.load(file)
        if origin.get("dir_info", {}).get("editable"):
            return unquote(str(origin["url"])).removeprefix("file://")
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    return ""


def _sources(project: str, digests: Digests) -> Iterator[Fact]:
    """The packages of a project, or all of it where they have other names."""
    found = False
    for folder, folders, files in os.walk(project):
        depth = 0 if folder == project else os.path.relpath(folder, project).count(os.sep) + 1
        for name in ("ptoas", "ptodsl"):
            path = os.path.join(folder, name)
            if os.path.isfile(os.path.join(path, "__init__.py")):
                found = True
                folders.remove(name)
                yield Fact(os.path.relpath(path, project), _tree(path, digests))
            if f"{name}.py" in files and os.path.isfile(f"{path}.py"):
                found = True
                yield Fact(os.path.relpath(f"{path}.py", project), _file(f"{path}.py", digests))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < 2)
    if not found:
        yield Fact("", _tree(project, digests, hidden=False))


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
