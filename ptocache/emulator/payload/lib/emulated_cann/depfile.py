"""Writes dependency files for make, with the layout of clang's."""

from __future__ import annotations

import re

MAX_COLUMNS = 75
"""How long a line becomes before another one is begun; a long name has its own."""


def write(targets: list[str], files: list[str], *, phony: bool) -> str:
    r"""The text of a dependency file.

    Args:
        targets: what depends on the files, as it is to stand there.
        files: the files, the text itself first.
        phony: whether every header gets a rule of its own, so that make does not stop where one is removed.

    >>> write(["k.o"], ["k.asc", "a header.h"], phony=False)
    'k.o: k.asc a\\ header.h\n'
    """
    lines = []
    line = " ".join(targets) + ":"
    for name in map(escaped, files):
        if len(line) + len(name) + len("  \\") > MAX_COLUMNS:
            lines.append(line + " \\")
            line = " "
        line += " " + name
    lines.append(line)
    if phony:
        lines += [escaped(file) + ":" for file in files[1:]]
    return "\n".join(lines) + "\n"


def escaped(name: str) -> str:
    """A file's name, with what means something to make marked: spaces, with the backslashes before them, `#`, `$`."""
    marked = re.sub(r"(\\*) ", r"\1\1\\ ", name)
    return marked.replace("#", "\\#").replace("$", "$$")
