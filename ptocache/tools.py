"""Where the tools are: the CANN install, ptoas, bisheng with its linker, and the PTODSL frontend.

The variables that say so keep the meaning that they have for the tools themselves. The emulated install is
reached in the same way, through an environment in which it is the toolchain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ptocache.errors import ToolNotFoundError

#: The variables that say where the tools are.
TOOL_VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "BISHENG_HOME",
    "PATH",
    "PTOAS_BIN",
    "PYTHONPATH",
)

#: Where CANN keeps its compiler, below the install's own directory.
_COMPILER_BIN = ("bin", os.path.join("compiler", "ccec_compiler", "bin"))


class Toolchain(NamedTuple):
    """The tools of one environment.

    Attributes:
        environ: the environment in which they run.
        cann: the CANN install's directory, or `None` where no variable names one.
        ptoas: the assembler's path.
        bisheng: the compiler driver's path.
        linker: the path of the `ld.lld` beside it, or `None`.
        ptodsl: the directory of the `ptodsl` package.
    """

    environ: dict[str, str]
    cann: str | None
    ptoas: str
    bisheng: str
    linker: str | None
    ptodsl: str


def tool_environ(toolchain: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which the tools are looked for and run.

    Args:
        toolchain: the setting: `emulated`, or empty for the installed tools.
        environ: `os.environ` by default.

    Returns:
        A copy, without what ptocache does at the start of a process, and in which the emulated install is the
        toolchain if that was asked for.
    """
    environ = dict(os.environ if environ is None else environ)
    environ.pop("PTOCACHE_INSTALL", None)  # the tools' own Python processes compile nothing with TileLang
    if toolchain != "emulated":
        return environ
    from ptocache import emulator  # not everyone emulates

    return emulator.environment(emulator.ensure_install(), environ)


def locate(environ: Mapping[str, str]) -> Toolchain:
    """Find all tools.

    Args:
        environ: the tools' environment, from `tool_environ`.

    Returns:
        The toolchain.

    Raises:
        ToolNotFoundError: at least one is missing; the message lists every missing one, where it was looked
            for, and how to go on.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for name, find in (("ptoas", find_ptoas), ("bisheng", find_bisheng), ("ptodsl", find_ptodsl)):
        try:
            found[name] = find(environ)
        except ToolNotFoundError as error:
            missing.append(str(error))
    if missing:
        raise ToolNotFoundError(
            "cannot compile PTO kernels here, as tools are missing:\n  "
            + "\n  ".join(missing)
            + "\nTo try ptocache without them, use its emulated CANN install: "
            "pass --emulate, or set PTOCACHE_TOOLCHAIN=emulated."
        )
    return Toolchain(
        environ=dict(environ),
        cann=environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME") or None,
        linker=find_linker(found["bisheng"]),
        **found,
    )


def find_ptoas(environ: Mapping[str, str]) -> str:
    """The path of ptoas: what `PTOAS_BIN` names, else the first on `PATH`; raises `ToolNotFoundError`."""
    named = environ.get("PTOAS_BIN") or "ptoas"
    candidates = [named] if os.sep in named else _on_path(named, environ)
    return _first("ptoas", candidates, "set PTOAS_BIN, or put ptoas on PATH")


def find_bisheng(environ: Mapping[str, str]) -> str:
    """The path of bisheng: below `BISHENG_HOME`, in the CANN install, on `PATH`; raises `ToolNotFoundError`."""
    candidates = []
    if home := environ.get("BISHENG_HOME"):
        candidates.append(os.path.join(home, "bin", "bisheng"))
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if home := environ.get(variable):
            candidates += [os.path.join(home, directory, "bisheng") for directory in _COMPILER_BIN]
    candidates += _on_path("bisheng", environ)
    return _first("bisheng", candidates, "install CANN and source its set_env.sh, or set BISHENG_HOME")


def find_linker(bisheng: str) -> str | None:
    """The `ld.lld` that bisheng runs, or `None`.

    A driver looks beside itself with links resolved: `bin/bisheng` of an install may be a link into the compiler's
    own directory. A link that leads nowhere counts as one: it is a broken install, not one without a linker.
    """
    for place in dict.fromkeys((os.path.realpath(bisheng), bisheng)):
        linker = os.path.join(os.path.dirname(place), "ld.lld")
        if os.path.lexists(linker):
            return linker
    return None


def find_ptodsl(environ: Mapping[str, str]) -> str:
    """The directory of the `ptodsl` package, as another interpreter of this kind would find it.

    Nothing is imported.

    Raises:
        ToolNotFoundError: there is no such package.
    """
    for root in import_roots(environ):
        directory = os.path.join(root, "ptodsl")
        if os.path.isfile(os.path.join(directory, "__init__.py")):
            return directory
    # An editable install may be known to an import hook alone.
    import importlib.util  # rarely needed

    spec = importlib.util.find_spec("ptodsl")
    if spec is not None and spec.origin and os.path.dirname(os.path.dirname(spec.origin)) != _own_root():
        return os.path.dirname(spec.origin)
    raise ToolNotFoundError(
        f"ptodsl: no such package on PYTHONPATH, nor installed for {sys.executable} (it comes with ptoas)"
    )


def cann_version_files() -> list[str]:
    """The files that may say which CANN is installed, whether they exist or not; relative to the install."""
    machines = dict.fromkeys((os.uname().machine, "aarch64", "x86_64"))
    return [
        *(os.path.join(f"{machine}-linux", "ascend_toolkit_install.info") for machine in machines),
        "version.info",
        os.path.join("compiler", "version.info"),
        "version.cfg",
    ]


def python_path(environ: Mapping[str, str]) -> list[str]:
    """The entries of `PYTHONPATH` as absolute paths; an empty one means the working directory and is left out."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        return [os.path.abspath(entry) for entry in entries]
    except FileNotFoundError:  # the working directory was removed, and what is relative to it with it
        return [entry for entry in entries if os.path.isabs(entry)]


def import_roots(environ: Mapping[str, str]) -> list[str]:
    """The directories in which another interpreter of this kind looks for modules, first choice first.

    Args:
        environ: the environment of that interpreter.
    """
    inherited = [path for path in sys.path if path]
    own = _own_root()
    if own in inherited:  # once: where it is on the path a second time, an install put it there
        inherited.remove(own)
    return list(dict.fromkeys([*python_path(environ), *inherited]))


def _own_root() -> str:
    """What Python put on this program's path for it alone: after `-m` the working directory, else its script's."""
    try:
        if getattr(sys.modules.get("__main__"), "__spec__", None) is not None:
            return os.getcwd()
        return os.path.dirname(os.path.abspath(sys.argv[0] if sys.argv else ""))
    except FileNotFoundError:  # the working directory was removed
        return ""


def _first(name: str, candidates: Iterable[str], hint: str) -> str:
    tried = list(dict.fromkeys(candidates))
    for path in tried:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise ToolNotFoundError(f"{name}: looked for {', '.join(tried) or 'nothing: PATH is empty'} ({hint})")


def _on_path(name: str, environ: Mapping[str, str]) -> list[str]:
    # A relative entry depends on where one stands, and an empty one means just that: not a place to find tools.
    return [os.path.join(entry, name) for entry in environ.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]
