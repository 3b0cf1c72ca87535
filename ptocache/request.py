"""What is asked for, and the two keys that name it.

A key is made over a canonical encoding of named parts: a schema number, then each part as its name's length,
its name, its value's length and its value. Nothing separates the parts, so nothing inside them can imitate a
separator; no `repr` and no JSON is involved, so neither a Python version nor a dictionary's order shows.
"""

from __future__ import annotations

import hashlib
import shlex
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import xxhash

from ptocache.errors import SettingsError, SourceError

#: Part of every key. Raise it when the meaning of a part or of what is stored changes.
SCHEMA = 1

#: The architectures that ptoas takes for `--pto-arch`: `a5` is what TileLang emits; a3 and a2 came before it.
ARCHS = ("a5", "a3", "a2")

#: Appended where no `--pto-backend` is given, as TileLang does: the back end that writes fat objects.
DEFAULT_BACKEND = "--pto-backend=vpto"

# Flags that would take the output away from where the pipeline looks for it, or make none. LLVM's tools take a long
# option with one dash as well as with two.
_OWN_PLACE = "the output's place is ptocache's"
_PRINTS_ONLY = "it makes ptoas print and not compile"
_REFUSED_FLAGS = {
    "o": _OWN_PLACE,
    "output": _OWN_PLACE,
    "pto-arch": "use --arch or PTO_ARCH",
    "version": _PRINTS_ONLY,
    "help": _PRINTS_ONLY,
    "h": _PRINTS_ONLY,
}

# Flags that change what ptoas prints and nothing of what it writes.
_QUIET_FLAGS = frozenset({"-v", "--verbose", "-q", "--quiet"})

#: After these comes a word that means something else there.
_TAKE_A_WORD = frozenset({"-mllvm", "-Xassembler", "-Xclang", "-Xlinker"})

Part = tuple[str, bytes]
Fact = tuple[str, str]

_LENGTHS = struct.Struct("<IQ")


class CompileRequest(NamedTuple):
    """One compilation, as it is asked for.

    Attributes:
        source: the PTODSL module's text.
        arch: for `--pto-arch`, one of `ARCHS`.
        flags: the other arguments of ptoas, in order.
    """

    source: str
    arch: str
    flags: tuple[str, ...]


class Key(NamedTuple):
    """The name of an action.

    Attributes:
        name: XXH3-128 of the encoded parts, 32 hexadecimal digits. Fast, not cryptographic: it finds.
        check: SHA-256 of the same bytes. It decides: a stored action with another one is a miss.
    """

    name: str
    check: bytes


def make_request(source: str, arch: str, flags: Sequence[str] | str) -> CompileRequest:
    """Put a request into its canonical form.

    Args:
        source: the PTODSL module's text.
        arch: the ptoas architecture; case and surrounding space do not matter.
        flags: arguments of ptoas: words, or one text to be split as a shell splits it.

    Returns:
        The request, with the default back end added where `flags` names none.

    Raises:
        SourceError: the source cannot be written as UTF-8.
        SettingsError: an unknown arch, or flags that do not split into words.
    """
    check_source(source)
    if not isinstance(arch, str):
        raise SettingsError(f"expected a PTO arch as text, found {arch!r}")
    if not isinstance(flags, Iterable) or isinstance(flags, bytes):
        raise SettingsError(f"expected ptoas flags as text or as a list of words, found {flags!r}")
    word = arch.strip().lower()
    if word not in ARCHS:
        raise SettingsError(f"unknown PTO arch {arch!r}: expected one of {', '.join(ARCHS)} (PTO_ARCH or --arch)")
    if isinstance(flags, str):
        flags = split_flags(flags)
    words = tuple(flags)
    for flag in words:
        if not isinstance(flag, str) or "\0" in flag:
            raise SettingsError(f"expected ptoas flags without NUL characters, found {flag!r}")
        try:
            flag.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise SettingsError(f"expected ptoas flags that can be written as UTF-8, found {flag!r}") from None
    return CompileRequest(source, word, _canonical_flags(words))


def check_source(source: str) -> None:
    """See that a source is text that can be written as UTF-8; raises `SourceError`."""
    if not isinstance(source, str):
        raise SourceError(f"expected the PTODSL source as text, found {type(source).__name__}")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        raise SourceError(f"line {line}: the PTODSL source cannot be written as UTF-8: {error.reason}", line) from None


def _canonical_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Refuse what directs the output, write the back end in one word, add the default one; keep the order."""
    flags: list[str] = []
    rest = iter(words)
    for flag in rest:
        option, equals, value = flag.partition("=")
        name = option.lstrip("-") if option.startswith("-") else ""
        if name in _REFUSED_FLAGS:
            raise SettingsError(
                f"the ptoas flag {flag!r} (--flag or PTO_FLAGS) cannot be passed on: {_REFUSED_FLAGS[name]}"
            )
        if name == "pto-backend":
            value = value if equals else next(rest, "")
            if not value:
                raise SettingsError(f"the ptoas flag {flag!r} needs a value, such as --pto-backend=vpto")
            flags.append(f"--pto-backend={value}")
        else:
            flags.append(flag)
    if not any(flag.startswith("--pto-backend=") for flag in flags):
        flags.append(DEFAULT_BACKEND)
    return tuple(flags)


def key_flags(flags: Sequence[str]) -> list[str]:
    """The flags that are part of a key: all but those that only make ptoas say more or less."""
    before = ("", *flags)
    return [
        flag
        for previous, flag in zip(before, flags, strict=False)
        if flag not in _QUIET_FLAGS or previous in _TAKE_A_WORD
    ]


def split_flags(text: str) -> list[str]:
    """Split a line of ptoas flags as a shell would; raises `SettingsError` for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"PTO_FLAGS: {text!r} does not split into words: {error}") from None


def source_parts(request: CompileRequest, stamp: str, kind: str = "source", extra: Iterable[Fact] = ()) -> list[Part]:
    """The parts of the source key: all that decides what the whole compilation makes.

    Args:
        request: what is compiled.
        stamp: the name of the tools' stamp.
        kind: the kind of compilation.
        extra: what else it depends on, by name.
    """
    return _parts(kind, request, stamp, request.source, extra)


def pto_parts(mlir: str, request: CompileRequest, stamp: str, extra: Iterable[Fact] = ()) -> list[Part]:
    """The parts of the PTO key: all that decides what ptoas and bisheng make of a request's lowered text."""
    return _parts("pto", request, stamp, mlir, extra)


def source_digest(source: str) -> str:
    """The digest of a source alone, for telling people whether it is the same one."""
    return xxhash.xxh3_128_hexdigest(source.encode())


def make_key(parts: Iterable[Part]) -> Key:
    """Hash parts into a key."""
    encoded = encode(parts)
    return Key(xxhash.xxh3_128_hexdigest(encoded), hashlib.sha256(encoded).digest())


def encode(parts: Iterable[Part]) -> bytes:
    """Encode parts so that different parts never give the same bytes."""
    chunks = [_LENGTHS.pack(SCHEMA, 0)]
    for name, value in parts:
        label = name.encode()
        chunks += (_LENGTHS.pack(len(label), len(value)), label, value)
    return b"".join(chunks)


def _parts(kind: str, request: CompileRequest, stamp: str, text: str, extra: Iterable[Fact]) -> list[Part]:
    # What came from a command line or a tool may hold bytes that are not UTF-8, as surrogates: those bytes count.
    return [
        ("kind", kind.encode()),
        ("arch", request.arch.encode()),
        *(("flag", flag.encode("utf-8", "surrogateescape")) for flag in key_flags(request.flags)),
        *((name, value.encode("utf-8", "surrogateescape")) for name, value in extra),
        ("stamp", stamp.encode()),
        ("text", text.encode("utf-8", "surrogateescape")),
    ]
