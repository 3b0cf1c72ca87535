"""The knobs that tests turn, for the frontend. They are read by the module that the tools of the install use."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

_INSTALL = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _load_knobs() -> ModuleType:
    path = os.path.join(_INSTALL, "lib", "emulated_cann", "knobs.py")
    spec = importlib.util.spec_from_file_location("_ptodsl_knobs", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ImportError(f"the emulated install at {_INSTALL} is not complete: {path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# With the package and not with its first kernel: whoever watches what a kernel reads must not see it.
_knobs = _load_knobs()
_begun = False
_fault = ""


def begin() -> None:
    """Log, delay and fail as the knobs say, once a process, when its first kernel is compiled."""
    global _begun, _fault  # noqa: PLW0603 - a process is one run of the frontend
    if _begun:
        return
    _begun = True
    try:
        _fault = _knobs.begin("frontend", sys.argv[1:])
    except _knobs.KnobError as error:
        sys.stderr.write(f"ptodsl: {error}\n")
        sys.stderr.flush()
        os._exit(2)


def deliver(text: str) -> str:
    """The text that a compilation gives: all of it, or what a fault leaves of it."""
    if not _fault:
        return text
    damaged = _knobs.damage(_fault, text.encode())
    if damaged is None:
        os._exit(0)
    return str(damaged.decode("utf-8", "ignore"))
