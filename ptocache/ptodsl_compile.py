"""Lowers one PTODSL source to MLIR text: `python ptodsl_compile.py SOURCE KERNEL_NAMES_JSON OUT`.

Runs in a process of its own, since the DSL traces into globals of its process. It imports nothing of ptocache.
The exit status tells what failed: 2, the frontend could not be imported; 3, the lowering failed; 4, the source
could not be imported. The traceback is on standard error.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FRONTEND_UNAVAILABLE = 2
LOWERING_FAILED = 3
SOURCE_NOT_IMPORTED = 4

#: Under this name the source is imported: private, so that no `import` of it finds a file by accident.
MODULE_NAME = "_ptocache_ptodsl_source"

HELPERS = "tilelang.contrib.ptodsl"
_PARENTS = ("tilelang", "tilelang.contrib")


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
                f"{name} cannot be imported by a PTODSL source: of TileLang, only {HELPERS} is there",
                name=name,
            )
        return None


def main(source_path: str, kernel_names: list[str], out_path: str) -> int:
    """Lower the kernels of a source and return the exit status."""
    sys.meta_path.insert(0, HelperFinder())
    try:
        from ptodsl import pto
    except BaseException:  # noqa: BLE001 - whatever it raises, SystemExit included, the parent must see it
        traceback.print_exc()
        return FRONTEND_UNAVAILABLE
    try:
        module = load_source(source_path)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return SOURCE_NOT_IMPORTED
    try:
        text = lower(module, kernel_names, pto)
        with open(out_path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return LOWERING_FAILED
    return 0


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
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]))
