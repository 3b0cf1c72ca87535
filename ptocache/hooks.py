"""Puts ptocache below TileLang, and takes it away again: patches that are applied when a module is imported.

A patch is applied at once where its module is there already, and otherwise right after its import, also in modules
that have bound the patched function by name.

This runs at the start of every process of an environment, so it imports nothing that a bare interpreter has not
loaded; `typing` and `contextlib` alone would take longer than all the rest. For the same reason the two dozen lines
that watch imports are our own: wrapt, which has them too, takes 45 to 120 ms to import. Nothing here imports
TileLang, and nothing else of ptocache before TileLang is there.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

#: The modules of TileLang that are patched, with the functions of `ptocache.tilelang` that do it.
PATCHED = {
    "tilelang.contrib.bisheng": "patch_bisheng",
    "tilelang.contrib.pto_toolchain": "patch_pto_toolchain",
    "tilelang.cache.kernel_cache": "patch_kernel_cache",
    "tilelang.cache.ascend_binary_cache": "patch_binary_cache",
    "tilelang.autotuner.tuner": "patch_autotuner",
}

_lock = RLock()
_applied: list[_Patch] = []
_installed = False
_for_good = False
_blocks = 0
_asking: set[tuple[int, str]] = set()
_warned = False


def install() -> None:
    """Answer TileLang's compilations for Ascend from the cache, in this process, from now on.

    Works before and after TileLang is imported; calling it again changes nothing. Where something in ptocache
    fails, TileLang compiles as it would without it.
    """
    global _for_good  # noqa: PLW0603 - a process has one TileLang
    _for_good = True
    _put()


def uninstall() -> None:
    """Give TileLang back every function that `install` replaced."""
    global _for_good  # noqa: PLW0603
    _for_good = False
    _take()


class installed:
    """Have ptocache installed while a `with` block runs, or another one does; where it was before, it stays."""

    def __enter__(self) -> None:
        global _blocks  # noqa: PLW0603
        with _lock:
            _blocks += 1
        _put()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _blocks  # noqa: PLW0603
        with _lock:
            _blocks -= 1
            if not (_blocks or _for_good):
                _take()


def is_installed() -> bool:
    """Whether TileLang's compilations are answered now. A replaced function that somebody kept asks, too."""
    return _installed


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a module or a class, wherever it was bound by name.

    Args:
        owner: the module or the class.
        name: the function's name in it.
        make: given the original, makes what stands in for it.

    Raises:
        AttributeError: the owner has none of this name.
    """
    try:
        original = vars(owner)[name]
    except KeyError:
        raise AttributeError(f"{getattr(owner, '__name__', owner)} has no {name}") from None
    with _lock:
        if any(patch.replacement is original for patch in _applied):  # two finders may have found one module
            return
        patch = _Patch(owner, name, original, make(original))
        patch.apply()
        _applied.append(patch)


class _Patch:
    """A function that was replaced."""

    def __init__(self, owner: Any, name: str, original: Any, replacement: Any) -> None:
        self.owner = owner
        self.name = name
        self.original = original
        self.replacement = replacement

    def apply(self) -> None:
        setattr(self.owner, self.name, self.replacement)
        _rebind(self.original, self.replacement)

    def undo(self) -> None:
        if vars(self.owner).get(self.name) is self.replacement:  # or somebody else has replaced it since
            setattr(self.owner, self.name, self.original)
        _rebind(self.replacement, self.original)


def _put() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        _installed = True
        if _finder not in sys.meta_path:  # or somebody has put an earlier list back
            sys.meta_path.insert(0, _finder)
    for name in PATCHED:
        if name in sys.modules:
            try:
                module = _loaded(name)  # without the lock: whoever imports it may need it, to patch another one
            except ImportError:  # that one is told
                continue
            with _lock:
                if _installed:
                    _patch(module)


def _take() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        if not _installed:
            return
        # The finder stays, and finds nothing: a thread that is just importing something would leave out the one
        # behind a finder that is removed, and with a new list it would not be the one that others have at hand.
        _installed = False
        while _applied:
            _applied.pop().undo()


def _rebind(old: Any, new: Any) -> None:
    """Replace a function in all modules that have it in a variable."""
    for module in list(sys.modules.values()):
        try:
            variables = object.__getattribute__(module, "__dict__")  # a lazy module is not to be loaded by this
        except AttributeError:
            continue
        for name, value in list(variables.items()):
            if value is old:
                try:  # noqa: SIM105 - without contextlib
                    setattr(module, name, new)
                except Exception:  # noqa: BLE001, S110 - a module of somebody's that takes no attributes keeps what it has
                    pass


def _patch(module: ModuleType) -> None:
    """Patch a module of TileLang's; where it is not as it was, say so and leave it alone."""
    global _warned  # noqa: PLW0603 - once in a process
    try:
        from ptocache import tilelang
    except Exception as error:  # noqa: BLE001 - one of our own dependencies is broken, and TileLang is not
        if not _warned:
            _warned = True
            from ptocache.log import get_logger

            get_logger(__name__).warning("TileLang compiles without ptocache, which cannot be loaded: %r", error)
        return
    tilelang.patch(module, PATCHED[module.__name__])


def _loaded(name: str) -> ModuleType:
    """A module that is in `sys.modules`, once whoever imports it has done so."""
    from importlib import import_module

    return import_module(name)


class _Finder:
    """Finds the modules that are to be patched as anybody would, and patches them when they have been run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The hook that `import` calls; see `importlib.abc.MetaPathFinder`."""
        asked = (get_ident(), name)
        if name not in PATCHED or not _installed or asked in _asking:  # by another finder that asks them all
            return None
        _asking.add(asked)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    _patch_after(spec)
                    return spec
            return None
        finally:
            _asking.discard(asked)


def _patch_after(spec: ModuleSpec) -> None:
    """Have a module patched as soon as its loader has run it."""
    loader: Any = spec.loader
    run = getattr(loader, "exec_module", None)
    if run is None or isinstance(loader, type):
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        with _lock:
            if _installed and module.__name__ in PATCHED:  # a loader may be one for several modules
                _patch(module)

    try:  # noqa: SIM105 - without contextlib
        loader.exec_module = exec_module
    except AttributeError:  # a loader that takes no attributes: `install` again, once the module is there
        pass


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that is not there may have held it
    _lock = RLock()


_finder = _Finder()
os.register_at_fork(after_in_child=_after_fork)
