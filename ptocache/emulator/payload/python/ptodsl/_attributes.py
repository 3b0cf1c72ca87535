"""Python values as MLIR attributes."""

from __future__ import annotations

import enum
import math
import re
import struct
from collections.abc import Callable
from typing import Any

from ._types import Type

Special = Callable[[Any], "str | None"]
"""Gives the text of what this module does not know, such as a traced value, or `None`."""

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")


def text(value: Any, special: Special) -> str:
    """The attribute that says what a value is.

    Args:
        value: any Python value that a program may hand to an operation.
        special: what knows more values.

    Raises:
        TypeError: nothing knows how to write it.
    """
    known = special(value)
    if known is not None:
        return known
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value, special)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return text(value.item(), special)  # a number of numpy's
    raise TypeError(f"cannot record a Python value of type {type(value).__name__} in a kernel: {value!r}")


def number(value: float, *, floating: bool = False) -> str:
    """A number. MLIR writes a float with a point, and what is no number as its bits."""
    if isinstance(value, bool) and not floating:
        return "true" if value else "false"
    if isinstance(value, int) and not floating:
        return str(value)
    value = float(value)
    if not math.isfinite(value):
        return f"0x{struct.pack('>d', value).hex().upper()}"
    digits, exponent, power = repr(value).partition("e")
    return digits + ("" if "." in digits else ".0") + exponent + power


def string(value: str) -> str:
    """A string, in quotes, with what is not printable ASCII as escapes."""
    out = []
    for byte in value.encode("utf-8", "surrogatepass"):
        plain = 32 <= byte < 127 and byte not in b'"\\'
        out.append(chr(byte) if plain else f"\\{byte:02X}")
    return f'"{"".join(out)}"'


def key_text(key: str) -> str:
    """The name of an attribute: bare where that is possible."""
    return key if _BARE.fullmatch(key) else string(key)


def symbol(name: str) -> str:
    """The name of a function."""
    return "@" + (name if _SYMBOL.fullmatch(name) else string(name))


def _items(value: Any, special: Special) -> str:
    """A sequence."""
    return f"[{', '.join(text(item, special) for item in value)}]"


def _dictionary(value: dict[Any, Any], special: Special) -> str:
    """A dictionary; one whose keys are no strings is a list of pairs."""
    if not all(isinstance(key, str) for key in value):
        return f"#pto.dict<{_items(value.items(), special)}>"
    return f"{{{', '.join(f'{key_text(key)} = {text(item, special)}' for key, item in value.items())}}}"


_WRITERS: tuple[tuple[type | tuple[type, ...], Callable[[Any, Special], str]], ...] = (
    (type(None), lambda _value, _special: "unit"),
    (enum.Enum, lambda value, _special: f"#pto.{type(value).__name__}.{value.name}"),
    ((bool, int, float), lambda value, _special: number(value)),
    (str, lambda value, _special: string(value)),
    (Type, lambda value, _special: value.text),
    (bytes, lambda value, _special: f"#pto.bytes<{string(value.hex())}>"),
    (slice, lambda value, special: f"#pto.slice<{_items((value.start, value.stop, value.step), special)}>"),
    (type(...), lambda _value, _special: "#pto.ellipsis"),
    (dict, _dictionary),
    ((set, frozenset), lambda v, special: f"#pto.set<[{', '.join(sorted(text(item, special) for item in v))}]>"),
    ((tuple, list, range), _items),
)
"""How to write the kinds of values. A member of an enumeration may be a number too, so it comes first."""
