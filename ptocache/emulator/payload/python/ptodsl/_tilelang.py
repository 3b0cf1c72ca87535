"""Stands in for `tilelang.contrib.ptodsl`, the helper modules of TileLang's PTO back end, where there is no TileLang.

The sources that TileLang generates import them as `tl`. A real TileLang is never shadowed: the finder is the last one
of `sys.meta_path`, and is asked only for what no other one found. Any `tl.name(...)` is an operation, as with `pto`;
a few are defined here, because they are Python and no operations: those work on lists, or take functions.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from . import _ir, _kernels, _record, _rewritten
from ._types import Type
from ._values import Traced, Value, node_of

_HELPERS = "tilelang.contrib.ptodsl"


def as_logical_bool(value: Any) -> Any:
    """A scalar as a condition."""
    return Traced(_ir.truth(node_of(value))) if isinstance(value, Value) else bool(value)


def logical_not(value: Any) -> Any:
    """The opposite of a scalar condition."""
    return value == 0


def if_then_else(condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """A conditional expression, with functions for the two values."""
    return _rewritten.choose(condition, one, other)


def vector_from_list(dtype: Type, values: Sequence[Any]) -> Any:
    """A vector of scalars in a Python list."""
    return _record.call("pto.Vec", (dtype, len(values)), {"init": tuple(values)})


def vector_to_list(value: Any) -> list[Any]:
    """The scalars of a vector as a Python list."""
    return [value[lane] for lane in range(value.size)]


def store_vector_to_list(target: list[Any], offset: int, value: Any) -> None:
    """Put the scalars of a vector into a Python list."""
    target[offset : offset + value.size] = vector_to_list(value)


def scalar_div(left: Any, right: Any) -> Any:
    """The quotient of two scalars."""
    return left / right


finalize_mixed_kernel = _kernels.mark_mixed

_DEFINED: dict[str, Callable[..., Any]] = {
    "as_logical_bool": as_logical_bool,
    "finalize_mixed_kernel": finalize_mixed_kernel,
    "if_then_else": if_then_else,
    "logical_not": logical_not,
    "scalar_div": scalar_div,
    "store_vector_to_list": store_vector_to_list,
    "vector_from_list": vector_from_list,
    "vector_to_list": vector_to_list,
}


class Helpers(ModuleType):
    """The helper module: what is defined above, and any other name as an operation."""

    __path__: list[str]

    def __getattr__(self, name: str) -> Any:
        return _DEFINED[name] if name in _DEFINED else _record.lookup("tl", name)


class Finder:
    """Finds and loads the helpers, and empty packages around them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if it is one of ours."""
        del path, target
        parent = name.rpartition(".")[0]
        ours = isinstance(sys.modules.get(parent), Helpers) and parent.startswith(_HELPERS)
        if name in ("tilelang", "tilelang.contrib", _HELPERS) or ours:
            return importlib.machinery.ModuleSpec(name, cast("Any", self), origin="ptodsl", is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty package, or the helpers."""
        return Helpers(spec.name) if spec.name.startswith(_HELPERS) else ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


def offer() -> None:
    """Offer the helpers to imports that find no others."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
