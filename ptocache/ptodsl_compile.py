"""Lowers one PTODSL source to MLIR text: `python ptodsl_compile.py SOURCE KERNEL_NAMES_JSON OUT [REPORT]`.

Runs in a process of its own, since the DSL traces into globals of its process. It imports nothing of ptocache.
The exit status tells what failed: 2, the frontend could not be imported; 3, the lowering failed; 4, the source
could not be imported. The traceback is on standard error. Into REPORT goes what the source read beside itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source
from types import FrameType, ModuleType

FRONTEND_UNAVAILABLE = 2
LOWERING_FAILED = 3
SOURCE_NOT_IMPORTED = 4

#: Under this name the source is imported: private, so that no `import` of it finds a file by accident.
MODULE_NAME = "_ptocache_ptodsl_source"

HELPERS = "tilelang.contrib.ptodsl"
_PARENTS = ("tilelang", "tilelang.contrib")

#: The packages that the toolchain's stamp identifies: what they read is no input of its own.
IDENTIFIED = ("ptodsl", "ptoas")

# Places that describe the machine of the moment; no file there says what a kernel is. But /dev/shm holds files.
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108

# Packages that look for modules, or for variables, on behalf of who calls them: `os.environ.get` is a method of
# `collections.abc`.
_AGENTS = ("importlib", "os", "posixpath", "collections")

#: How long after a module's source was changed a compiled file must have been written to be trusted, in seconds.
_BYTECODE_AGE = 2.0

# Variables that the caller sets for every frontend process, or that belong to ptocache and its emulated tools.
_OWN_VARIABLES = ("PYTHON", "PTOCACHE_")


class HelperFinder:
    """Gives empty stand-ins for the packages above TileLang's PTODSL helpers.

    The initialiser of `tilelang` loads torch and the NPU runtime, and a second process then fights over the
    device. The helpers need neither: they are loaded from where they are, below parents without code.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The hook that `import` calls; see `importlib.abc.MetaPathFinder`."""
        if name in _PARENTS:
            for finder in sys.meta_path:
                found = None if finder is self else finder.find_spec(name, path, target)
                if found is not None and found.submodule_search_locations is not None:
                    parent = ModuleSpec(name, None, is_package=True)
                    parent.submodule_search_locations = list(found.submodule_search_locations)
                    return parent
        elif name.startswith("tilelang.") and name != HELPERS and not name.startswith(f"{HELPERS}."):
            raise ModuleNotFoundError(
                f"{name} cannot be imported by a PTODSL source: of TileLang, only {HELPERS} is there", name=name
            )
        return None


class MissingFinder:
    """Notes the modules that nobody found: a source may do another thing when there is one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The hook that `import` calls last."""
        self._recorder.note_missing(name)
        return None


def distrust_bytecode() -> None:
    """Load modules from their source where a compiled file may be of an earlier one.

    Python takes a compiled file if it notes the source's size and the second of its last change. A helper that was
    changed twice in a second would be lowered as it was at first, and kept under the digest of what it is now.
    """
    library = _library()
    original = SourceFileLoader.path_stats

    def path_stats(self: SourceFileLoader, path: str) -> Mapping[str, float]:
        status = original(self, path)
        if _is_library(path, library):
            return status
        identified = self.name.partition(".")[0] in IDENTIFIED
        installed = any(f"{os.sep}{folder}{os.sep}" in path for folder in ("site-packages", "dist-packages"))
        # An error from here is the loader's way of leaving compiled files alone. What is being written is small.
        if not (identified or installed) or time.time() - status["mtime"] < _BYTECODE_AGE:
            raise OSError(f"{path}: not from a compiled file")
        compiled = cache_from_source(path)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(compiled).st_mtime - status["mtime"] < _BYTECODE_AGE:
                os.unlink(compiled)  # a new one is written, and is old enough; where it is not, the error stands
        return status

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


class Recorder:
    """Records what the source reads: modules, files that it opens, variables that it asks for.

    What the interpreter's own library and the identified packages read is left out. Not seen are reads below
    Python (a C extension's own), questions whether a file exists, listings of directories, and what programs read
    that the source starts.

    Args:
        source_path: the source, which is no input of its own.
    """

    def __init__(self, source_path: str) -> None:
        self.started = time.time_ns()
        self._own = {source_path, os.path.abspath(__file__)}
        self._work = os.getcwd() + os.sep
        self._library = _library()
        self._identified: tuple[str, ...] = ()
        self._opened: dict[str, list[int] | None] = {}
        self._outside: dict[str, None] = {}
        self._missing: dict[str, None] = {}
        self._variables: dict[str, None] = {}
        self._at_start = set(sys.modules)

    def start(self) -> None:
        """Record files and variables from now on: the frontend has been imported, the source has not."""
        self._identified = tuple(
            os.path.join(os.path.dirname(os.path.abspath(file)), "")
            for name in IDENTIFIED
            if (file := getattr(sys.modules.get(name), "__file__", None))
        )
        sys.addaudithook(self._on_event)
        sys.meta_path.append(MissingFinder(self))
        recorder = self

        class Environ(type(os.environ)):  # type: ignore[misc]
            def __getitem__(self, name: str) -> str:
                recorder.note_variable(name)
                value: str = super().__getitem__(name)
                return value

            def __contains__(self, name: object) -> bool:
                recorder.note_variable(name)
                return bool(super().__contains__(name))

            def __iter__(self) -> Iterator[str]:
                recorder.note_whole_environment()
                names: Iterator[str] = super().__iter__()
                return names

        for environ in (os.environ, os.environb):  # both are views of the same
            environ.__class__ = Environ

    def note_variable(self, name: object) -> None:
        """Note that a variable is asked for, unless it is the interpreter's library or the frontend that asks."""
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if isinstance(name, str) and self._is_asked_for(name):
            self._variables[name] = None

    def note_whole_environment(self) -> None:
        """Note that all variables are gone through: also one that is not set now would be seen then."""
        if self._is_of_source(_asker(sys._getframe(2))):
            self._outside["the environment as a whole"] = None

    def note_missing(self, name: str) -> None:
        """Note that a module was looked for in vain, unless the interpreter's library or the frontend did."""
        if name.partition(".")[0] not in IDENTIFIED and self._is_of_source(_asker(sys._getframe(2))):
            self._missing[name] = None

    def write(self, path: str) -> None:
        """Write the report. A file is in it as it was when it was opened first, a module's as it is now."""
        roots = sorted({os.path.join(os.path.abspath(entry), "") for entry in sys.path}, key=len, reverse=True)
        files: dict[str, tuple[str, str, list[int]]] = {}
        absent = [(f"{name.replace('.', '/')}.py", "") for name in self._absent_modules()]
        outside = list(self._outside)
        for file, known_root in self._read_files():
            if file in files:
                continue
            root = known_root or next((entry for entry in roots if file.startswith(entry)), None)
            if root is None:
                outside.append(file)
                continue
            name = os.path.relpath(file, root)
            status = self._opened[file] if file in self._opened else _status(file)
            if status is None and file in self._opened:
                absent.append((name, file))
            else:
                files[file] = (name, file, status or [])
        report = {
            "started": self.started,
            "files": list(files.values()),
            "absent": absent,
            "outside": outside,
            "variables": sorted(self._variables),
        }
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as out:
            json.dump(report, out, ensure_ascii=False)

    def _absent_modules(self) -> Iterator[str]:
        """The modules that have no file and could have one: looked for in vain, a namespace, made by a hook."""
        yield from (name for name in self._missing if name not in sys.modules)
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if (
                name not in self._at_start
                and name not in _PARENTS
                and name.partition(".")[0] not in IDENTIFIED
                and spec is not None
                and spec.origin not in {"built-in", "frozen"}
                and not getattr(module, "__file__", None)
            ):
                yield name

    def _read_files(self) -> Iterator[tuple[str, str | None]]:
        """What was read, each with its import root where that is known."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name in self._at_start or not isinstance(file, str):
                continue
            file = os.path.abspath(file)
            if self._is_left_out(file):
                continue
            levels = name.count(".") + (2 if os.path.basename(file).startswith("__init__.") else 1)
            root = file
            for _ in range(levels):
                root = os.path.dirname(root)
            yield file, root
        for file in list(self._opened):
            yield file, None

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, mode, flags = arguments
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        writes = any(letter in mode for letter in "wax") if isinstance(mode, str) else _writes(flags)
        path = os.path.abspath(os.fsdecode(path))
        if path in self._opened or writes or f"{os.sep}__pycache__{os.sep}" in path or self._is_left_out(path):
            return
        if not path.startswith(_SYSTEM) or path.startswith(_SHARED_MEMORY):
            self._opened[path] = _status(path)

    def _is_asked_for(self, name: str) -> bool:
        """Whether a variable that somebody asks for is an input, and can be one at all."""
        try:
            possible = b"\0" not in os.fsencode(name)
        except UnicodeEncodeError:
            possible = False
        return possible and not name.startswith(_OWN_VARIABLES) and self._is_of_source(_asker(sys._getframe(3)))

    def _is_of_source(self, file: str) -> bool:
        """Whether code in a file asks on behalf of the source: it is neither the library's nor the frontend's."""
        return not (
            file == os.path.abspath(__file__)
            or file.startswith(("<frozen ", *self._identified))
            or _is_library(file, self._library)
        )

    def _is_left_out(self, path: str) -> bool:
        """Whether a file that is read is no input: the source and what is made of it, the library, the frontend."""
        return (
            path in self._own
            or path.startswith(("<", self._work, *self._identified))
            or _is_library(path, self._library)
        )


def _library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib"))


def _is_library(path: str, library: tuple[str, ...]) -> bool:
    """Whether a file is one of the interpreter's own library, which the Python version stands for."""
    return any(
        path.startswith(place) and not path.startswith(("site-packages", "dist-packages"), len(place))
        for place in library
    )


def _asker(frame: FrameType) -> str:
    """The file of the code that asks for something, through whatever helps it to ask."""
    while frame.f_globals.get("__name__", "").partition(".")[0] in _AGENTS and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename


def _status(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY


def main(source_path: str, kernel_names: list[str], out_path: str, report_path: str = "") -> int:
    """Lower the kernels of a source and return the exit status."""
    recorder = Recorder(source_path)
    distrust_bytecode()
    sys.meta_path.insert(0, HelperFinder())
    try:
        from ptodsl import pto
    except BaseException:  # noqa: BLE001 - whatever it raises, SystemExit included, the parent must see it
        traceback.print_exc()
        return FRONTEND_UNAVAILABLE
    if report_path:
        recorder.start()
    status = 0
    try:
        module = load_source(source_path)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = SOURCE_NOT_IMPORTED
    else:
        try:
            text = lower(module, kernel_names, pto)
            with open(out_path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            status = LOWERING_FAILED
    if report_path:
        # Without a report nothing is stored under this source; its text is as good as with one.
        with contextlib.suppress(Exception):
            recorder.write(report_path)
    return status


def load_source(path: str) -> ModuleType:
    """Import a source file under the private module name.

    Not through Python's own loader: that one trusts a compiled file beside the source if size and second agree.
    """
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = ModuleType(MODULE_NAME)
    module.__file__ = path
    sys.modules[MODULE_NAME] = module
    exec(code, module.__dict__)  # noqa: S102 - running the source is what tracing is
    return module


def lower(module: ModuleType, kernel_names: list[str], pto: ModuleType) -> str:
    """Lower the named kernels of a module, several of them into one MLIR module."""
    kernels = []
    for name in kernel_names:
        kernel = getattr(module, name)
        if not (callable(getattr(kernel, "build", None)) and callable(getattr(kernel, "compile", None))):
            raise TypeError(f"{name} is not a kernel that PTODSL can compile: it is {type(kernel).__name__!r}")
        kernels.append(kernel)
    if len(kernels) == 1:
        return str(kernels[0].compile().mlir_text())
    merge = getattr(pto, "merge_jit_modules", None)
    if not callable(merge):
        raise RuntimeError(
            "this ptodsl has no pto.merge_jit_modules, which a source with several kernels needs: install a newer one"
        )
    return str(merge(*kernels))


if __name__ == "__main__":
    # Python puts the directory of a script first on the path: that of ptocache's own modules.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]))
