"""MLIR text as far as the PTO key needs it: without the locations, which say where in a source an operation was.

A tracer that is asked for debug information writes `loc("kernel.py":12:3)` behind operations, and aliases such as
`#loc3 = loc(…)` at the end: file names and line numbers, that a comment moves and that are other ones on another
host. The device binary depends on them only where it carries debug information itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What can hold the letters of a location without being one, and what a location begins with. A string ends on its line.
_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<comment>//[^\n]*)
    |(?P<open>")
    |(?P<alias>^[ \t]*(?P<name>\#loc\w*)[ \t]*=[ \t]*loc(?=\())
    |(?P<trailer>[ \t]*(?<![\w.$%@^\#!-])loc(?=\())
    """,
    re.VERBOSE | re.MULTILINE,
)
_INSIDE = re.compile(r'"(?:[^"\\\n]|\\.)*"|["()]')
_ALIAS_USE = re.compile(r"#loc\w*")

# Behind these a location is an attribute's value, and so a part of the program, and not the end of an operation.
_BEFORE_VALUE = frozenset("=,:[(<{")

# ptoas flags under which locations may reach the binary, also as words inside of others (`--bisheng-flags=-O2 -g`).
# One too many here costs a few hits; one too few would cost a right answer.
_DEBUG_FLAG = re.compile(
    r"(?:^|[\s=,'\"])(?:-g|--g\d?(?:$|[\s,'\"]))|debug|dwarf|line-?(?:info|table)|location|source-?map", re.IGNORECASE
)


def text_for_key(text: str, flags: Sequence[str]) -> str:
    """What of lowered text decides the device binary.

    Args:
        text: MLIR text.
        flags: the flags of ptoas; where one asks for debug information, locations count.

    Returns:
        The text without locations, or as it is.
    """
    if "loc(" not in text or any(_DEBUG_FLAG.search(flag) for flag in flags):
        return text
    kept = []
    aliases = set()
    position = 0
    while (match := _TOKEN.search(text, position)) is not None:
        start, end = match.span()
        kind = match.lastgroup
        if kind == "open":
            return text  # not MLIR as we know it: ptoas will say what is wrong with it
        if kind in {"string", "comment"} or (kind == "trailer" and _is_value(text, start)):
            kept.append(text[position:end])
            position = end
            continue
        closing = _closing(text, end)
        if closing < 0:
            return text
        kept.append(text[position:start])
        position = closing
        if kind == "alias":
            aliases.add(match["name"])
            position += text[position : position + 1] == "\n"
    kept.append(text[position:])
    result = "".join(kept)
    # An alias that is still used is more than the place of an operation.
    return text if any(use[0] in aliases for use in _ALIAS_USE.finditer(result)) else result


def _is_value(text: str, position: int) -> bool:
    """Whether what is at a position is the value of an attribute."""
    while position and text[position - 1].isspace():
        position -= 1
    return text[position - 1 : position] in _BEFORE_VALUE


def _closing(text: str, opening: int) -> int:
    """The position behind the parenthesis that closes the one at `opening`, or -1."""
    depth = 0
    for match in _INSIDE.finditer(text, opening):
        if match[0] == '"':
            return -1
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1
