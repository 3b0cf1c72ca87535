"""MLIR text as far as the PTO key needs it: without the locations, which say where in a source an operation was.

A tracer that is asked for debug information writes `loc("kernel.py":12:3)` behind operations, and aliases such as
`#loc3 = loc(…)` at the end: file names and line numbers, that a comment moves and that are other ones on another
host. The device binary depends on them only where it carries debug information itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What can hold the letters of a location without being one, and what a location begins with.
_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*")
    |(?P<comment>//[^\n]*)
    |(?P<alias>^[ \t]*\#loc\w*[ \t]*=[ \t]*loc(?=\())
    |(?P<trailer>[ \t]*(?<![\w.$%@\#!])loc(?=\())
    """,
    re.VERBOSE | re.MULTILINE,
)
_PARENTHESES = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')

# ptoas flags under which locations may reach the binary. Those that only print are not among them.
_DEBUG_FLAG = re.compile(r"^-{1,2}(g\d?$|.*debug)", re.IGNORECASE)


def text_for_key(text: str, flags: Sequence[str]) -> str:
    """What of lowered text decides the device binary.

    Args:
        text: MLIR text.
        flags: the flags of ptoas; where one asks for debug information, locations count.

    Returns:
        The text without locations, or as it is.
    """
    if "loc(" not in text or any(_DEBUG_FLAG.match(flag) for flag in flags):
        return text
    kept = []
    position = 0
    while (match := _TOKEN.search(text, position)) is not None:
        start, end = match.span()
        if match.lastgroup in {"string", "comment"}:
            kept.append(text[position:end])
            position = end
            continue
        closing = _closing(text, end)
        if closing < 0:
            return text  # not MLIR as we know it: ptoas will say what is wrong with it
        kept.append(text[position:start])
        position = closing
        if match.lastgroup == "alias" and text[position : position + 1] == "\n":
            position += 1
    kept.append(text[position:])
    return "".join(kept)


def _closing(text: str, opening: int) -> int:
    """The position behind the parenthesis that closes the one at `opening`, or -1."""
    depth = 0
    for match in _PARENTHESES.finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1
