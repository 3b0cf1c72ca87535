"""Turns calls into operations: `pto.any_name(...)`, whatever the name and the arguments are.

Traced values and Python numbers that come by position are operands. All else is an attribute: under its keyword, or as
`argN` by its position. A traced value inside of one is an operand too, and the attribute says which:
`nburst = [#pto.operand<2>, 64, 64]`. So no two different calls are the same text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from . import _attributes, _ir, _results
from ._ir import Node
from ._types import INDEX, OPAQUE, Type, named
from ._values import Deferred, Number, Traced, Value, node_of


class Symbol:
    """Something that is called by its name: a sub-kernel, whose text is recorded when it is."""

    def symbol(self) -> str:
        """The name in the module that is being traced."""
        raise NotImplementedError


class Name:
    """A name in a name space: an operation to call, a name space itself, or a member of an enumeration."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Name:
        if name.startswith("_"):
            raise AttributeError(f"{self._path} has no attribute {name!r}")
        member = Name(f"{self._path}.{name}")
        setattr(self, name, member)
        return member

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(self._path, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return self._path


def lookup(space: str, name: str) -> Any:
    """What a name space has under a name: a type, or else anything.

    Raises:
        AttributeError: the name is Python's own.
    """
    if name.startswith("_"):
        raise AttributeError(f"{space} has no attribute {name!r}")
    return named(name) or Name(f"{space}.{name}")


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call; outside of a kernel, keep it until one uses it, or take it as a decorator."""
    if not _ir.is_tracing():
        if len(args) == 1 and isinstance(args[0], FunctionType) and not kwargs:
            return Deferred(name, (), {})(args[0])
        return Deferred(name, args, kwargs)
    return record(name, args, kwargs)


def const(value: Any, *args: Any, **kwargs: Any) -> Any:
    """`pto.const(1)`, `pto.const(1, dtype=pto.i32)`: a constant, by default of the index type."""
    dtype = kwargs.get("dtype", args[0] if args else INDEX)
    if isinstance(value, Value):
        return Traced(_ir.convert(value._node(), dtype))
    return Traced(_ir.constant(value, dtype))


DEFINED: dict[str, Callable[..., Any]] = {"pto.const": const, "scalar.const": const}
"""The calls that are more than an operation, by name."""


def record(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, plain: bool = False) -> Any:
    """Record a call, in the kernel that is being traced; its first result.

    Args:
        name: the operation, with its name space.
        args: what it was called with.
        kwargs: the same, by keyword.
        plain: record an operation even if `DEFINED` has the name.
    """
    if not plain and name in DEFINED:
        return DEFINED[name](*args, **kwargs)
    operands: list[Node] = []
    regions: list[Callable[..., Any]] = []

    def special(value: Any) -> str | None:
        if isinstance(value, Value):
            operands.append(value._node())
            return f"#pto.operand<{len(operands) - 1}>"
        if isinstance(value, Name):
            return f"#{value}"
        if isinstance(value, Symbol):
            return _attributes.symbol(value.symbol())
        if callable(value) and not isinstance(value, (Type, type)):
            regions.append(value)
            return f"#pto.region<{len(regions) - 1}>"
        return None

    attributes = {}
    for position, value in enumerate(args):
        if isinstance(value, (Value, *Number)):
            operands.append(node_of(value))
        else:
            attributes[f"arg{position}"] = _attributes.text(value, special)
    for key, value in kwargs.items():
        attributes[_attributes.key_text(key)] = _attributes.text(value, special)
    types = _results.types_of(name, args, kwargs, operands)
    operation = _ir.emit(name, operands, types or [OPAQUE], attributes)
    operation.optional = types is None
    for function in regions:
        operation.regions.append(_function_region(function))
    return Traced(operation.results[0])


def _function_region(function: Callable[..., Any]) -> _ir.Block:
    """A Python function that was an argument: a region, its parameters the arguments of the block."""
    block = _ir.Block(_ir.current())
    parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    with _ir.inside(block):
        result = function(*(Traced(block.argument(OPAQUE)) for _ in parameters))
        values = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
        _ir.emit("pto.yield", [node_of(value) for value in values], [])
    return block
