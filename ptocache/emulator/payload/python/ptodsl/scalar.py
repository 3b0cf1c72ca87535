"""The name space `scalar`: operations on scalars. Any name is one of them."""

from __future__ import annotations

from typing import Any

from . import _record


def __getattr__(name: str) -> Any:
    return _record.lookup("scalar", name)
