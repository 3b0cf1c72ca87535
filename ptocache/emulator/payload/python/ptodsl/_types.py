"""The types of traced values, as `pto.f32` and `pto.ptr(pto.f32, "gm")` name them."""

from __future__ import annotations

import re
from typing import Any

_INTEGER = re.compile(r"(int|uint|si|ui|i|s|u)([1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"(bfloat|float|hif|bf|f)([1-9][0-9]*)(?:_?(e[0-9]+m[0-9]+\w*))?(?:_?(x[0-9]+))?", re.ASCII)

VREG_BYTES = 256
"""A vector register of the a5 has 256 bytes: 64 f32, as in the `pto.vreg_type(64, pto.f32)` that TileLang emits."""


class Type:
    """A type: its text, and, where there is one, the type of an element."""

    def __init__(self, text: str, element: Type | None = None) -> None:
        self.text = text
        self.element = element

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __call__(self, value: Any) -> Any:
        """`pto.i32(value)`: a constant or a cast, as the type of a Python number would."""
        from ._record import call  # which is built on this module

        if isinstance(value, (int, float)):
            return call("pto.const", (value,), {"dtype": self})
        return call("pto.cast", (value, self), {})

    def resolve(self) -> Type:
        """The type itself; in the real DSL a name is resolved in a context."""
        return self


class Scalar(Type):
    """A number.

    Attributes:
        kind: `i` signed or signless, `u` unsigned, `f` floating, `x` the index type.
        bits: how wide it is in memory.
    """

    def __init__(self, text: str, kind: str, bits: int) -> None:
        super().__init__(text)
        self.kind = kind
        self.bits = bits


class Vector(Type):
    """A short vector of scalars, `pto.Vec(dtype, size)`."""

    def __init__(self, size: int, element: Type) -> None:
        super().__init__(f"vector<{size}x{element}>", element)
        self.size = size


class Tile(Type):
    """A tile. `shape` is known where the program gave Python numbers."""

    def __init__(self, name: str, element: Type | None, shape: tuple[int, ...] | None) -> None:
        dimensions = "" if shape is None else "".join(f"{size}x" for size in shape)
        super().__init__(f"!pto.{name}<{dimensions}{element or 'any'}>", element)
        self.shape = shape


I1 = Scalar("i1", "i", 1)
I32 = Scalar("i32", "i", 32)
I64 = Scalar("i64", "i", 64)
F32 = Scalar("f32", "f", 32)
INDEX = Scalar("index", "x", 64)
OPAQUE = Type("!pto.value")
"""A value whose type only the real DSL knows."""


def named(name: str) -> Scalar | None:
    """The scalar type of a name such as `f32`, `float32`, `bf16`, `ui8`, `u8`, `int64`, `index`, or `None`."""
    if name == "index":
        return INDEX
    if name == "bool":
        return I1
    if match := _INTEGER.fullmatch(name):
        unsigned = match[1] in ("uint", "ui", "u")
        signed = match[1] in ("si", "s")
        return Scalar(
            f"{'u' if unsigned else 's' if signed else ''}i{match[2]}", "u" if unsigned else "i", int(match[2])
        )
    if match := _FLOAT.fullmatch(name):
        prefix = {"bfloat": "bf", "float": "f"}.get(match[1], match[1])
        lanes = int((match[4] or "x1")[1:])
        return Scalar(f"{prefix}{match[2]}{(match[3] or '').upper()}{match[4] or ''}", "f", int(match[2]) * lanes)
    return None


def pointer(element: Type, space: Any = "gm") -> Type:
    """The type of a pointer; the space is a name, or a member of `pto.MemorySpace`."""
    return Type(f"!pto.ptr<{element}, {str(space).rpartition('.')[2].lower()}>", element)


def vreg(lanes: Any, element: Type) -> Type:
    """The type of a vector register."""
    return Type(f"!pto.vreg<{lanes}x{element}>", element)


def full_vreg(element: Type) -> Type:
    """The vector register that is full of such elements."""
    return vreg(lanes_of(element), element)


def lanes_of(element: Type) -> int:
    """How many such elements a vector register holds."""
    return VREG_BYTES * 8 // bits_of(element)


def bits_of(element: Type) -> int:
    """How wide an element is in memory; 32 where that is not known."""
    return element.bits if isinstance(element, Scalar) else 32


def mask(bits: int) -> Type:
    """The type of a predicate for elements of this width."""
    return Type(f"!pto.mask<b{bits}>")
