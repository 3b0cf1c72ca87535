"""Follows the includes of an AscendC text as clang's preprocessor does, and says precisely what is wrong with it.

It opens the files that a real compiler would open, in the same order and with the same names; where they are found
is in `search`. `#include`, `#include_next` and `#import` are known; a name may be a macro that `#define` or `-D`
made one for a name. `#pragma once`, `#import` and include guards keep a file from being entered again.

It is no real preprocessor. It expands no macros in the text. A condition is decided only where it is a number, such
as in `#if 0`; of every other one **both branches are included**, so that a unit may depend on more than it would with
a real compiler, and not on less. What is missing in such a branch, an `#error` or an open string in it, is passed
over, as it may be in the branch that a real compiler skips.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from .install import Failure, read_input
from .search import STANDARD, Found, Search

MAX_DEPTH = 200
"""How deep files may include each other, as with clang."""

MAX_INCLUSIONS = 5000
"""How often files may be entered at all: headers without guards would take for ever."""

IF, ELSE, ENDIF = "\1", "\2", "\3"
"""What stands in a cleaned text where a condition begins, goes on and ends."""

# The first group is what needs no second look, the last one what has no end.
_LEXEME = re.compile(
    r"""
      (?P<directive>(?m:^)[ \t\f\v]*\#(?:
          [^\n"/\\]+ | \\\r?\n | //(?:\\\r?\n|[^\n])* | /\*.*?\*/ | "(?:\\\r?\n|\\.|[^"\\\n])*" | [^\n] )*)
    | (?P<code>(?:[A-Za-z_]\w*(?!")|[^\w"'/\#\n])+|\n|"C"|\b[0-9](?:[eEpP][+-]|'?[\w.])*)
    | (?P<comment>/\*.*?\*/|//(?:\\\r?\n|[^\n])*)
    | (?P<string>\b(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
        |"(?:\\\r?\n|\\.|[^"\\\n])*"|'(?:\\\r?\n|\\.|[^'\\\n])*')
    | (?P<open>/\*|["'])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NO_WORD = re.compile(r"\W", re.ASCII)
_NOISE = re.compile(r"""("[^"\n]*"|<[^>\n]*>)|\\\r?\n|/\*.*?\*/|//[^\n]*""", re.DOTALL)
_SPACE = re.compile(r"(?:[ \t]|/\*.*?\*/)*", re.DOTALL)
_HEADER_NAME = re.compile(r'"([^"\n]+)"|<([^>\n]+)>')
_GUARD = re.compile(r"(?:!\s*defined\s*\(?\s*)?(\w+)\s*\)?", re.ASCII)
_NUMBER = re.compile(r"\(?\s*([0-9]+|true|false)\s*\)?", re.ASCII)

_UNTERMINATED = {
    "/*": "unterminated /* comment",
    '"': "missing terminating '\"' character",
    "'": "missing terminating ' character",
}


class Source:
    """One file while it is read.

    Attributes:
        found: where it is.
        data: its bytes.
        text: the same, a character a byte.
        parents: the files that led here, each with the line, the innermost first.
        cleaned: its text with blanks for directives, comments and strings, and with marks for conditions.
    """

    __slots__ = ("cleaned", "data", "found", "parents", "text")

    def __init__(self, found: Found, data: bytes, parents: tuple[tuple[str, int], ...] = ()) -> None:
        self.found = found
        self.data = data
        self.text = data.decode("latin-1")
        self.parents = parents
        self.cleaned = ""

    def line(self, offset: int) -> int:
        """The number of the line of a place in the text."""
        return self.text.count("\n", 0, offset) + 1

    def error(self, offset: int, message: str, kind: str = "error") -> Failure:
        """The diagnostic as clang prints it: how the file came in, place, message, source line and caret."""
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", start)
        source = self.text[start : len(self.text) if end < 0 else end].rstrip("\r")
        before = "".join("\t" if character == "\t" else " " for character in shown(source[: offset - start]))
        lines = [f"In file included from {path}:{line}:" for path, line in reversed(self.parents)]
        lines.append(f"{self.found.path}:{self.line(offset)}:{offset - start + 1}: {kind}: {message}")
        return Failure("\n".join([*lines, shown(source), before + "^", "1 error generated.\n"]))


class Unit:
    """A translation unit: a text, and all that it includes.

    Attributes:
        contents: the bytes of every file that was entered, in order.
        dependencies: every file that was opened, by its name and with whether it is a header of the system's; the
            text itself is the first.
        sources: the files that may define kernels; the text itself is the first.
    """

    def __init__(self, path: str, search: Search, macros: list[str], forced: list[str]) -> None:
        """Read a unit.

        Args:
            path: the text.
            search: where headers are.
            macros: what `-D` said, `name` or `name=value`.
            forced: the names of the headers that come before the text, from `-include`.

        Raises:
            Failure: a file is missing or malformed.
        """
        main = Source(Found(path, system=False), read_input("bisheng", path))
        self.contents: list[bytes] = []
        self.dependencies = {_plain(path): False}
        self.sources = [main]
        self._search = search
        self._macros = {name: [value] for name, _, value in (macro.partition("=") for macro in macros)}
        self._once: set[tuple[int, int]] = set()
        self._open: list[str] = []
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * MAX_DEPTH))
        asked = "".join(f'#include "{name}"\n' for name in forced)
        _Reader(self, Source(Found("<command line>", system=False), os.fsencode(asked))).read()
        self._read(main)

    def include(self, source: Source, directive: str, words: str, offset: int, *, certain: bool) -> None:
        """Do what an `#include`, `#include_next` or `#import` says.

        Args:
            source: the file that it is in.
            directive: which of them it is.
            words: what follows it.
            offset: where that begins.
            certain: whether no condition decides about it.
        """
        values = list(dict.fromkeys(self._values(words)))
        certain = certain and len(values) == 1
        for value in values:
            spelled = _HEADER_NAME.match(value)
            if spelled is None:
                if certain:
                    raise source.error(offset, 'expected "FILENAME" or <FILENAME>')
                continue
            name = os.fsdecode((spelled[1] or spelled[2]).encode("latin-1"))
            after = source.found.number if directive == "include_next" else -1
            found = self._search.find(name, source.found, quotes=spelled[1] is not None, after=after)
            if found is not None:
                self._enter(found, source, offset, certain=certain, once=directive == "import")
            elif certain and name not in STANDARD:
                raise source.error(offset, f"'{name}' file not found", "fatal error")

    def define(self, name: str, value: str, *, certain: bool) -> None:
        """Remember a macro, which may stand for the name of a header."""
        if certain:
            self._macros[name] = [value]
        else:
            self._macros.setdefault(name, []).append(value)

    def once(self, path: str) -> None:
        """Do not enter this file again."""
        self._once.add(_identity(path))

    def _values(self, words: str, depth: int = 20) -> Iterator[str]:
        """What some words may stand for: themselves, or where they are a macro, its values."""
        if words in self._macros and depth:
            for value in self._macros[words]:
                yield from self._values(value, depth - 1)
        else:
            yield words

    def _enter(self, found: Found, asks: Source, offset: int, *, certain: bool, once: bool) -> None:
        """Enter a header, unless it is not to be entered again."""
        path = found.path
        self.dependencies.setdefault(_plain(path), found.system)
        # One that is open already and includes itself under a condition would never end, as both branches are taken.
        if _identity(path) in self._once or (path in self._open and not certain):
            return
        if once:
            self.once(path)
        if len(self._open) >= MAX_DEPTH:
            raise asks.error(offset, "#include nested too deeply", "fatal error")
        source = Source(found, read_input("bisheng", path), ((asks.found.path, asks.line(offset)), *asks.parents))
        if b"__global__" in source.data:
            self.sources.append(source)
        self._read(source)

    def _read(self, source: Source) -> None:
        """Read a file, and all that it includes."""
        path = source.found.path
        if len(self.contents) >= MAX_INCLUSIONS:
            raise Failure(f"bisheng: error: {path}: more than {MAX_INCLUSIONS} inclusions\n")
        self.contents.append(source.data)
        self._open.append(path)
        _Reader(self, source).read()
        self._open.pop()


class _Condition:
    """One `#if` while its branches are read.

    Attributes:
        offset: where it begins.
        value: whether the branch at hand counts: yes, no, or nobody knows (`None`).
        taken: the same of all branches so far together.
    """

    __slots__ = ("offset", "taken", "value")

    def __init__(self, offset: int, value: bool | None) -> None:
        self.offset = offset
        self.value = self.taken = value

    def branch(self, value: bool | None) -> None:
        """Go on to the next branch, whose own condition has this value."""
        if self.taken:
            value = False
        elif self.taken is None and value is not False:
            value = None
        self.value = value
        if self.taken is False:
            self.taken = value


class _Reader:
    """Reads one file of a unit."""

    def __init__(self, unit: Unit, source: Source) -> None:
        self.unit = unit
        self.source = source
        self.conditions: list[_Condition] = []
        self.directives = 0
        self.guard = ""

    @property
    def is_active(self) -> bool:
        """Whether what comes next may count."""
        return all(condition.value is not False for condition in self.conditions)

    @property
    def is_certain(self) -> bool:
        """Whether what comes next counts for sure."""
        return all(condition.value for condition in self.conditions)

    def read(self) -> None:
        """Follow the directives, and clean the text."""
        text = self.source.text
        pieces: list[str] = []
        done = 0
        for lexeme in _LEXEME.finditer(text):
            kind = lexeme.lastgroup
            if kind == "code":
                continue
            start = lexeme.start()
            code = text[done:start]
            pieces.append(code if self.is_active else _blank(code))
            mark = " "
            if kind == "directive":
                mark = self._directive(lexeme[0], start)
            elif kind == "open" and self.is_certain:
                raise self.source.error(start, _UNTERMINATED[lexeme[0]])
            pieces.append(mark + _blank(lexeme[0][1:]))
            done = lexeme.end()
        if self.conditions:
            raise self.source.error(self.conditions[-1].offset, "unterminated conditional directive")
        self.source.cleaned = "".join([*pieces, text[done:]])

    def _directive(self, lexeme: str, start: int) -> str:
        """Follow one directive; what stands for it in the cleaned text."""
        line = _NOISE.sub(_kept, lexeme).partition("#")[2].strip()
        name = _NO_WORD.split(line, maxsplit=1)[0]
        words = line[len(name) :].strip()
        offset = start + lexeme.index("#")
        self.directives += 1
        if name.startswith("if"):
            self._if(name, words, offset)
            return IF
        if name.startswith("el"):
            self._condition(name, offset).branch(True if name == "else" else _value(name, words))
            return ELSE
        if name == "endif":
            self._condition(name, offset)
            self.conditions.pop()
            return ENDIF
        if self.is_active:
            self._act(name, words, offset)
        return " "

    def _if(self, name: str, words: str, offset: int) -> None:
        """Begin a condition."""
        guard = _GUARD.fullmatch(words)
        if self.directives == 1 and guard and (name == "ifndef" or words.startswith("!")):
            self.guard = guard[1]
        self.conditions.append(_Condition(offset, _value(name, words) if self.is_active else False))

    def _condition(self, name: str, offset: int) -> _Condition:
        """The innermost condition, about which a directive says more."""
        if not self.conditions:
            raise self.source.error(offset, f"#{name} without #if")
        return self.conditions[-1]

    def _act(self, name: str, words: str, offset: int) -> None:
        """Follow a directive that is no condition."""
        at = self.source.text.index(name, offset)
        if name in ("include", "include_next", "import"):
            space = _SPACE.match(self.source.text, at + len(name))
            at = space.end() if space else at
            self.unit.include(self.source, name, words, at, certain=self.is_certain)
        elif name == "define":
            macro, value = (*words.split(None, 1), "", "")[:2]
            if self.directives == 2 and macro == self.guard:
                self.conditions[0].value = self.conditions[0].taken = True
                self.unit.once(self.source.found.path)
            self.unit.define(macro, value, certain=self.is_certain)
        elif name == "pragma" and words == "once":
            self.unit.once(self.source.found.path)
        elif name == "error" and self.is_certain:
            raise self.source.error(at, shown(words))


def shown(text: str) -> str:
    """A part of a source's text, which has a character a byte, as it is to be printed."""
    return text.encode("latin-1").decode("utf-8", "replace")


def _identity(path: str) -> tuple[int, int]:
    """What a file is, whichever name it was found under."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _plain(path: str) -> str:
    """A path as clang writes it for make: without a leading `./`."""
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    return path


def _value(name: str, words: str) -> bool | None:
    """The value of a condition, where it is a number."""
    number = _NUMBER.fullmatch(words)
    return None if name not in ("if", "elif") or number is None else number[1] not in ("0", "false")


def _kept(noise: re.Match[str]) -> str:
    """What stays of comments, continued lines and names in a directive: only the names."""
    return noise[1] or " "


def _blank(text: str) -> str:
    """As much white space, with the same lines."""
    return re.sub(r"[^\n]", " ", text)
