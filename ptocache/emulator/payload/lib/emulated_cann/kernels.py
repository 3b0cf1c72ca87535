"""Finds the kernels in the cleaned text of an AscendC source, and checks that its brackets are in pairs.

A kernel is a function like these, with any further attributes before and behind `void`:

    extern "C" __global__ __vector__ void name(__gm__ float* x) { ... }
    extern "C" { __global__ __mix__(1, 2) void name(__gm__ float* x, int n) { ... } }

With `__mix__(cube, vector)` it runs on cores of both types, on the more if a number is zero. Without `extern "C"` its
symbol would be a mangled one, which is not emulated: such a function is no kernel here, and neither is a template.
Macros are not expanded, so a kernel or a bracket that one stands for is not seen. Where an `#if` has several branches,
each of them starts with the brackets that were open before it.
"""

from __future__ import annotations

import re

from .preprocessor import ELSE, ENDIF, IF, Source, shown

_PAIRS = {")": "(", "]": "[", "}": "{"}
_MARK = re.compile(rf"[{{}}()\[\]{IF}{ELSE}{ENDIF}]|\b__global__\b")
_BEFORE = (";", "{", "}", IF, ELSE, ENDIF)
_LINKAGE = re.compile(r'\bextern\s*"C"\s*\Z')
_WORD = re.compile(r'\s*(?:(?P<name>[A-Za-z_\x80-\xff][\w\x80-\xff]*|"C")|(?P<other>\S))', re.ASCII)


class Kernel:
    """One kernel: the symbols that it becomes, one a core type, and how many parameters it has."""

    __slots__ = ("parameters", "symbols")

    def __init__(self, symbols: list[str], parameters: int) -> None:
        self.symbols = symbols
        self.parameters = parameters


def find(sources: list[Source]) -> list[Kernel]:
    """The kernels of a unit, in order, each name once.

    Args:
        sources: the files of the unit that may have some; the first is the text itself.

    Raises:
        Failure: the text has a bracket without its other, a malformed kernel, or no kernel.
    """
    found: dict[str, Kernel] = {}
    for source in sources:
        for at, is_c in _entries(source, strict=source is sources[0]):
            kernel = _kernel(source, at, is_c=is_c)
            if kernel is not None:
                found.setdefault(kernel.symbols[0], kernel)
    if not found:
        raise sources[0].error(0, 'no kernel: expected the definition of an extern "C" __global__ function')
    return list(found.values())


def _entries(source: Source, *, strict: bool) -> list[tuple[int, bool]]:
    """Where `__global__` is in a text, each with whether it is in a block of `extern "C"`.

    Args:
        source: the text.
        strict: whether its brackets must be in pairs; a header may well begin what another one ends.
    """
    text = source.cleaned
    entries: list[tuple[int, bool]] = []
    opened: list[tuple[str, int, bool]] = []
    conditions: list[list[tuple[str, int, bool]]] = []
    for match in _MARK.finditer(text):
        mark, at = match[0], match.start()
        if mark in "([{":
            linkage = mark == "{" and _LINKAGE.search(text, max(0, at - 80), at) is not None
            opened.append((mark, at, linkage))
        elif mark in _PAIRS:
            if opened and opened[-1][0] == _PAIRS[mark]:
                opened.pop()
            elif strict:
                if not opened:
                    raise source.error(at, f"extraneous closing brace ('{mark}')")
                raise source.error(at, f"expected '{_closing(opened[-1][0])}'")
        elif mark == IF:
            conditions.append(list(opened))
        elif mark == ELSE:
            opened = list(conditions[-1])
        elif mark == ENDIF:
            conditions.pop()
        else:
            entries.append((at, any(linkage for _, _, linkage in opened)))
    if opened and strict:
        mark, at, _ = opened[-1]
        raise source.error(at, f"expected '{_closing(mark)}' to match this '{mark}'")
    return entries


def _kernel(source: Source, at: int, *, is_c: bool) -> Kernel | None:
    """The kernel whose declaration has a `__global__` at this place; `None` where it is no definition of one."""
    text = source.cleaned
    before, behind = _declaration(text, 1 + max(text.rfind(mark, 0, at) for mark in _BEFORE))
    words = [word for word, _ in before]
    if "template" in words or not (is_c or '"C"' in words):
        return None
    if "void" not in words:
        raise source.error(at, "a __global__ function must have a void return type")
    # Without the attributes: the name with its parameters, and what ends the declaration.
    (name, parameters), *end = [(word, arguments) for word, arguments in behind if word[:2] != "__"]
    if parameters is None:
        raise source.error(at, "a __global__ function must have a name and parameters")
    if end[0][0] not in (";", "{"):
        raise source.error(at, "expected function body after function declarator")
    if end[0][0] == ";":
        return None
    mixed = next((arguments for word, arguments in before + behind if word == "__mix__"), None)
    return Kernel(_symbols(shown(name), mixed), _count(parameters))


def _declaration(text: str, begin: int) -> tuple[list[tuple[str, str | None]], list[tuple[str, str | None]]]:
    """The words of a declaration up to `void` and behind it, each with what follows it in parentheses.

    The last is what ends the declaration: `;`, `{`, or what belongs into none.
    """
    before: list[tuple[str, str | None]] = []
    behind: list[tuple[str, str | None]] = []
    words = before
    at = begin
    while True:
        match = _WORD.match(text, at)
        if match is None:
            words.append(("", None))
            return before, behind or [("", None)]
        at = match.end()
        name, other = match["name"], match["other"]
        if name:
            words.append((name, None))
            if name == "void":
                words = behind
        elif other == "(" and words and words[-1][1] is None:
            end = _end(text, at)
            words[-1] = (words[-1][0], text[at : end - 1])
            at = end
        elif other == "[":
            at = _end(text, at)
        elif other == "<" and words and words[-1][0] == "template":
            at = text.find(">", at) + 1 or len(text)
        else:
            words.append((other, None))
            return before, behind or [(other, None)]


def _end(text: str, at: int) -> int:
    """The place behind the bracket that closes one that was opened just before."""
    depth = 1
    while depth and at < len(text):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return at


def _symbols(name: str, mixed: str | None) -> list[str]:
    """The symbols of a kernel: its name, or one a core type that `__mix__` asks for."""
    if mixed is None:
        return [name]
    cube, _, vector = (part.strip() for part in mixed.partition(","))
    symbols = [name + "_mix_aic"] * (cube != "0") + [name + "_mix_aiv"] * (vector != "0")
    return symbols or [name]


def _count(parameters: str) -> int:
    """How many parameters there are between these parentheses."""
    if parameters.strip() in ("", "void"):
        return 0
    depth = commas = 0
    for character in parameters:
        depth += (character in "([{<") - (character in ")]}>")
        commas += character == "," and depth == 0
    return commas + 1


def _closing(mark: str) -> str:
    """The bracket that closes this one."""
    return next(closing for closing, opening in _PAIRS.items() if opening == mark)
