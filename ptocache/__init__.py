"""ptocache: a compilation cache for PTO kernels on Ascend NPUs.

    import ptocache
    aibin = ptocache.compile(source)
    ptocache.install()                # TileLang's compilations for Ascend are answered from the cache from now on

The names below are loaded when they are first used: importing ptocache costs next to nothing, and a hit loads
only what a hit needs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ptocache.errors import (
        CacheIndexError,
        DeviceBinaryError,
        FrontendUnavailableError,
        ImageError,
        LoweringError,
        NotACacheError,
        PtocacheError,
        RefusedDirectoryError,
        SettingsError,
        SourceError,
        SourceImportError,
        ToolError,
        ToolNotFoundError,
        ToolTimeoutError,
    )
    from ptocache.frontend import CompileCache, CompileResult, compile
    from ptocache.hooks import install, installed, uninstall
    from ptocache.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "CacheIndexError",
    "CompileCache",
    "CompileResult",
    "DeviceBinaryError",
    "FrontendUnavailableError",
    "ImageError",
    "LoweringError",
    "NotACacheError",
    "PtocacheError",
    "RefusedDirectoryError",
    "Settings",
    "SettingsError",
    "SourceError",
    "SourceImportError",
    "ToolError",
    "ToolNotFoundError",
    "ToolTimeoutError",
    "__version__",
    "compile",
    "install",
    "installed",
    "uninstall",
]

_HOMES = {
    "CompileCache": "frontend",
    "CompileResult": "frontend",
    "compile": "frontend",
    "install": "hooks",
    "installed": "hooks",
    "uninstall": "hooks",
    "Settings": "settings",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
