"""The types of what operations give. What is not known here is opaque, and shown only where it is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ._ir import Node
from ._types import F32, I32, I64, OPAQUE, Scalar, Tile, Type, Vector, bits_of, full_vreg, mask


class Call:
    """A call whose result types are wanted.

    Attributes:
        name: the operation, without its name space.
        args: what it was called with.
        kwargs: the same, by keyword.
        operands: the types of its operands.
        asked: the last type among its arguments, if any: what a cast or an allocation names.
    """

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], nodes: list[Node]) -> None:
        self.name = name.rpartition(".")[2]
        self.args = args
        self.kwargs = kwargs
        self.operands = [node.type for node in nodes]
        named = (value for value in (*kwargs.values(), *reversed(args)) if isinstance(value, Type))
        self.asked = next(named, None)

    @property
    def first(self) -> Type:
        """The type of the first operand."""
        return self.operands[0] if self.operands else OPAQUE


def types_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], nodes: list[Node]) -> list[Type] | None:
    """The types of an operation's results, or `None` where they are not known.

    Args:
        name: the operation, with its name space: `pto.vadd`.
        args: what it was called with.
        kwargs: the same, by keyword.
        nodes: its operands.
    """
    call = Call(name, args, kwargs, nodes)
    for pattern, rule in _RULES:
        if pattern.fullmatch(call.name):
            types = rule(call)
            if types is not None:
                return types
    return None


def _allocated(call: Call) -> list[Type]:
    """A new tile or buffer."""
    shape = call.kwargs.get("shape", call.args[0] if call.args and not isinstance(call.args[0], Type) else ())
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    static = bool(sizes) and all(type(size) is int for size in sizes)
    return [Tile("buffer" if call.name == "alloc_buffer" else "tile", call.asked, sizes if static else None)]


def _short_vector(call: Call) -> list[Type] | None:
    """`pto.Vec(dtype, size)`."""
    size = call.args[1] if len(call.args) > 1 else call.kwargs.get("size")
    return [Vector(size, call.asked)] if isinstance(size, int) and call.asked is not None else None


def _tail_mask(call: Call) -> list[Type]:
    """`pto.make_mask(dtype, n)`: the mask, and what is left of `n`."""
    return [mask(bits_of(call.asked or F32)), call.operands[-1] if call.operands else I32]


def _mask_of_suffix(call: Call) -> list[Type]:
    """`pto.pset_b32(...)`."""
    return [mask(int(call.name.rpartition("_b")[2]))]


def _compared(call: Call) -> list[Type]:
    """A comparison of vector registers."""
    return [mask(bits_of(call.first.element or F32))]


def _as_asked(call: Call) -> list[Type] | None:
    """What names the type of its result: casts, and loads with a type."""
    return None if call.asked is None else [call.asked]


def _selected(call: Call) -> list[Type] | None:
    """One of two values."""
    return call.operands[1:2] or None


def _loaded(call: Call) -> list[Type] | None:
    """An element of what a pointer points to, or a vector of them."""
    element, lanes = call.first.element, call.kwargs.get("contiguous", 1)
    if element is None:
        return None
    return [Vector(lanes, element) if isinstance(lanes, int) and lanes > 1 else element]


def _filled_vreg(call: Call) -> list[Type] | None:
    """A vector register, from a pointer, a tile or a scalar."""
    element = call.first if isinstance(call.first, Scalar) else call.first.element
    return None if element is None else [full_vreg(element)]


def _item(call: Call) -> list[Type] | None:
    """A subscript: an element of a buffer or a vector, or a part of a tile."""
    source = call.first
    if source.element is None or not isinstance(source, (Vector, Tile)):
        return None
    if isinstance(source, Vector) or source.text.startswith("!pto.buffer"):
        return [source.element]
    return [Tile("tile_ref", source.element, None)]


def _same_vreg(call: Call) -> list[Type] | None:
    """A vector operation: as its first vector register."""
    return [type_ for type_ in call.operands if type_.text.startswith("!pto.vreg")][:1] or None


def _same(call: Call) -> list[Type] | None:
    """As its first operand."""
    return None if call.first == OPAQUE else [call.first]


def _query(call: Call) -> list[Type] | None:
    """A number about the place where the code runs: of the block, or of the thread."""
    if call.operands:
        return None
    return [I32 if call.name.startswith(("get_tid", "get_lane", "get_warp")) else I64]


_RULES: list[tuple[re.Pattern[str], Callable[[Call], list[Type] | None]]] = [
    (re.compile(pattern), rule)
    for pattern, rule in (
        ("alloc_tile|alloc_buffer", _allocated),
        ("Vec", _short_vector),
        ("make_mask", _tail_mask),
        ("p[a-z]+_b(8|16|32)", _mask_of_suffix),
        ("vcmp.*", _compared),
        ("(?!v?st|mte|set_|wait_).*", _as_asked),
        ("select", _selected),
        ("load", _loaded),
        ("vld.*|vdup.*|vbr.*", _filled_vreg),
        ("subscript", _item),
        ("v(?!st|scatter).*", _same_vreg),
        ("get_.*", _query),
        ("addptr|subptr|(add|sub|mul|div|rem|max|min)[if]?|mulhi|fma|fmax|fmin|pow", _same),
        ("abs[if]?|neg|exp2?|log2?|sqrt|rsqrt|rcp|sin|cos|tanh?|relu|round|rint|floor|ceil|trunc", _same),
        ("redux_.*|shuffle_.*", _same),
    )
]
"""For the names that a pattern matches, what gives the types. The first rule that knows them wins."""
