"""Lowers one PTODSL source to MLIR text: `python ptodsl_compile.py SOURCE KERNEL_NAMES_JSON OUT [REPORT]`.

Runs in a process of its own, since the DSL traces into globals of its process. It imports nothing of ptocache.
The exit status tells what failed: 2, the frontend could not be imported; 3, the lowering failed; 4, the source
could not be imported. The traceback is on standard error. Into REPORT goes what the source read beside itself.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FRONTEND_UNAVAILABLE = 2
LOWERING_FAILED = 3
SOURCE_NOT_IMPORTED = 4

#: Under this name the source is imported: private, so that no `import` of it finds a file by accident.
MODULE_NAME = "_ptocache_ptodsl_source"

HELPERS = "tilelang.contrib.ptodsl"
_PARENTS = ("tilelang", "tilelang.contrib")

#: The packages that the toolchain's stamp identifies: what they read is no input of its own.
IDENTIFIED = ("ptodsl", "ptoas")

# Places that describe the machine of the moment; no file there says what a kernel is.
_SYSTEM = ("/dev/", "/proc/", "/sys/")

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


class Recorder:
    """Records what the source reads: modules, files that it opens, variables that it asks for.

    What the interpreter's own library and the identified packages read is left out. Not seen are reads below
    Python (a C extension's own), listings of directories, and what programs read that the source starts.

    Args:
        source_path: the source, which is no input of its own.
    """

    def __init__(self, source_path: str) -> None:
        self.started = time.time_ns()
        self._own = {source_path, os.path.abspath(__file__)}
        self._work = os.getcwd() + os.sep
        paths = sysconfig.get_paths()
        self._library = tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib"))
        self._identified: tuple[str, ...] = ()
        self._opened: dict[str, None] = {}
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
                for name in super().__iter__():
                    recorder.note_variable(name)
                    yield name

        os.environ.__class__ = Environ

    def note_variable(self, name: object) -> None:
        """Note that a variable is asked for, unless it is the interpreter's library or the frontend that asks."""
        frame = sys._getframe(2)
        while frame.f_globals.get("__name__") in {"os", "_collections_abc"} and frame.f_back is not None:
            frame = frame.f_back
        if (
            isinstance(name, str)
            and not name.startswith(_OWN_VARIABLES)
            and not self._is_left_out(frame.f_code.co_filename)
        ):
            self._variables[name] = None

    def write(self, path: str) -> None:
        """Write the report."""
        roots = sorted({os.path.join(os.path.abspath(entry), "") for entry in sys.path}, key=len, reverse=True)
        files: dict[str, tuple[str, str, list[int]]] = {}
        absent, outside = [], []
        for file, known_root in self._read_files():
            if file in files:
                continue
            root = known_root or next((entry for entry in roots if file.startswith(entry)), None)
            if root is None:
                outside.append(file)
                continue
            name = os.path.relpath(file, root)
            try:
                status = os.stat(file)
            except OSError:
                absent.append(name)
            else:
                times = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
                files[file] = (name, file, times)
        report = {
            "started": self.started,
            "files": list(files.values()),
            "absent": absent,
            "outside": outside,
            "variables": sorted(self._variables),
        }
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as out:
            json.dump(report, out, ensure_ascii=False)

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
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return
        writes = any(letter in mode for letter in "wax") if isinstance(mode, str) else _writes(flags)
        path = os.path.abspath(path)
        if not (writes or path.startswith(_SYSTEM) or "__pycache__" in path or self._is_left_out(path)):
            self._opened[path] = None

    def _is_left_out(self, path: str) -> bool:
        if path in self._own or path.startswith(("<", self._work, *self._identified)):
            return True
        return any(
            path.startswith(library) and not path.startswith(("site-packages", "dist-packages"), len(library))
            for library in self._library
        )


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY


def main(source_path: str, kernel_names: list[str], out_path: str, report_path: str = "") -> int:
    """Lower the kernels of a source and return the exit status."""
    recorder = Recorder(source_path)
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
