"""The knobs that tests turn, for the frontend. They are read by the module that the tools of the install use."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

_INSTALL = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_knobs: ModuleType | None = None
_fault = ""


def begin() -> None:
    """Log, delay and fail as the knobs say, once a process, when its first kernel is compiled."""
    global _knobs, _fault  # noqa: PLW0603 - a process is one run of the frontend
    if _knobs is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "_ptodsl_knobs", os.path.join(_INSTALL, "lib", "emulated_cann", "knobs.py")
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"the emulated install at {_INSTALL} is not complete: lib/emulated_cann/knobs.py is missing")
    _knobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_knobs)
    try:
        _fault = _knobs.begin("frontend", sys.argv[1:])
    except _knobs.KnobError as error:
        sys.stderr.write(f"ptodsl: {error}\n")
        sys.stderr.flush()
        os._exit(2)


def deliver(text: str) -> str:
    """The text that a compilation gives: all of it, or what a fault leaves of it."""
    if _knobs is None or not _fault:
        return text
    damaged = _knobs.damage(_fault, text.encode())
    if damaged is None:
        os._exit(0)
    return str(damaged.decode("utf-8", "ignore"))
