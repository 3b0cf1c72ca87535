"""The headers that a C++ compilation read, and whether they are still the same.

They are stored as names, never as where they were: two hosts with TileLang in two places share an entry. Most names are
those that the compiler looks for in its directories, so a header that takes another one's place is noticed. What it
found in another way (beside the file that asked for it, in the CANN install, in the working directory) has the number
or the name of that place before it: `<1>/x.h`, `<cann>/include/kernel_operator.h`.
"""

from __future__ import annotations

import functools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ptocache.digests import Digests
from ptocache.inputs import ABSENT, FILE, Input, Inputs, Unstable, decode_inputs

#: The options of clang that name a directory to look for headers in, in the order in which it looks. Their value
#: follows as a word, or at once.
_DIRECTORY_OPTIONS = ("-iquote", "-I", "-isystem", "-idirafter")

# A space in a dependency file that is part of a name: clang doubles the backslashes before it, and adds one.
_SPACE_IN_NAME = re.compile(r"((?:\\\\)*)\\ ")

# A name that a file asks for, with the character before it. `#if`s are not followed: it need not have been looked for.
_ASKED_FOR = re.compile(
    rb"""^[ \t]*\#[ \t]*(?:include|include_next|import)[ \t]*(?:(["<])([^">\n]+)[">]|(\w))"""
    rb"""|__has_include(?:_next)?[ \t]*\([ \t]*(["<])([^">\n]+)[">]""",
    re.MULTILINE,
)

#: A name with its place.
_PLACED = re.compile(r"<(\w+)>/(.+)", re.DOTALL)

#: Options that name a file to be read before the source.
_FILE_OPTIONS = ("-include", "-imacros", "--include", "--imacros")

#: Where a CANN install has headers, below its root, as far as a compilation that failed is concerned.
_OF_INSTALL = ("include", "compiler/include", "runtime/include")

#: A scan reads no more than this: it is for what people write, not for what lies in a directory by chance.
_LARGEST_FILE = 16 << 20
_MOST_FILES = 5000


def split_directories(options: Sequence[str], environ: Mapping[str, str] | None = None) -> tuple[list[str], list[str]]:
    """Take the directories of headers out of a compiler's options.

    Args:
        options: the words of a command line.
        environ: variables that name further ones, as `CPATH` does; none by default.

    Returns:
        The options, with nothing in the place of each directory, and the directories, as clang looks in them.
    """
    environ = environ or {}
    kept: list[str] = []
    found: dict[str, list[str]] = {option: [] for option in _DIRECTORY_OPTIONS}
    words = iter(options)
    for word in words:
        option = next((option for option in _DIRECTORY_OPTIONS if word.startswith(option)), None)
        if option is None:
            kept.append(word)
        else:
            found[option].append(word[len(option) :] or next(words, ""))
            kept.append(option)
    found["-I"] += _listed(environ, "CPATH")
    found["-isystem"] += _listed(environ, "C_INCLUDE_PATH") + _listed(environ, "CPLUS_INCLUDE_PATH")
    return kept, [_absolute(path) for paths in found.values() for path in paths if path]


def included_files(options: Sequence[str]) -> list[str]:
    """The files that options have the compiler read before the source."""
    found = []
    words = iter(options)
    for word in words:
        option, equals, value = word.partition("=")
        if word in _FILE_OPTIONS:
            found.append(next(words, ""))
        elif equals and option in _FILE_OPTIONS:
            found.append(value)
    return [name for name in found if name]


def read_dependencies(path: str) -> list[str]:
    """The files that a dependency file of clang's names (`-MD -MF`), without the first, which is the source.

    Raises:
        Unstable: it cannot be read, or is none.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            text = file.read()
    except OSError as error:
        raise Unstable(f"the compiler left no list of what it read ({error.strerror})") from None
    _, colon, rest = text.replace("\\\n", " ").partition(": ")
    if not colon:
        raise Unstable(f"{path}: not a list of dependencies")
    # make's quoting: "\ " is a space, "\#" a hash, "$$" a dollar.
    hidden = _SPACE_IN_NAME.sub(lambda match: match[1][::2] + "\0", rest).replace("\\#", "#").replace("$$", "$")
    names = [name.replace("\0", " ") for name in re.split("[ \n]+", hidden) if name]
    return [_absolute(name) for name in names[1:]]


def _listed(environ: Mapping[str, str], variable: str) -> list[str]:
    """The directories in a variable; an empty one is the working directory, as with clang."""
    value = environ.get(variable)
    return [place or "." for place in value.split(os.pathsep)] if value else []


def _absolute(name: str) -> str:
    """An absolute path, without `..` where that leads to the same file: behind a link it may not."""
    path = os.path.abspath(name)
    return path if os.path.realpath(path) == os.path.realpath(name) else os.path.join(os.getcwd(), name)


def all_files(directories: Iterable[str]) -> Iterator[str]:
    """All files below some directories."""
    for directory in directories:
        for folder, folders, names in os.walk(directory):
            folders.sort()
            yield from (os.path.join(folder, name) for name in sorted(names))


class Headers:
    """The headers that a compiler finds (a `ptocache.recipe.Checker`).

    Args:
        directories: where it looks for names, first choice first.
        digests: which contents are known already.
        places: other places that have a name: the install, the working directory.
    """

    def __init__(self, directories: Sequence[str], digests: Digests, places: Mapping[str, str] | None = None) -> None:
        self._directories = [path.rstrip("/") for path in dict.fromkeys(directories)]
        self._digests = digests
        # The last resort is where every file is.
        named = {**(places or {}), "root": "/"}
        self._places = {str(number): path for number, path in enumerate(self._directories)}
        self._places.update({name: path.rstrip("/") for name, path in named.items() if path})

    def inputs(self, paths: Iterable[str], started: int, source: str = "", included: Sequence[str] = ()) -> Inputs:
        """Name the files that a compilation read.

        Args:
            paths: the files.
            started: when it began, in nanoseconds since the epoch.
            source: the text that was compiled.
            included: the files that options had it read before that.

        Raises:
            Unstable: one is gone, or changed meanwhile.
        """
        inputs = set(self._asked_for(source.encode("utf-8", "surrogateescape"), None))
        inputs.update(item for name in included for item in self._asked(name, None, beside=False))
        for path in paths:
            place, name = self._place(path)
            inputs.add(Input(FILE, self._name(path, place, name), self._read(path, started)))
            inputs.update(self._asked_for(_content(path), (place, name)))
        self._digests.save()
        return tuple(sorted(inputs))

    def scan(self, started: int, source: str, included: Sequence[str] = ()) -> Inputs:
        """Name the files that a compilation may have read, where the compiler does not tell; see `inputs`.

        They are those that the source asks for, and that those ask for, whatever the conditions around that say.

        Raises:
            Unstable: one is gone, changed meanwhile, or is named by a macro.
        """
        waiting = deque(self._wanted(source.encode("utf-8", "surrogateescape"), None))
        waiting.extend(path for name in included if (path := self._find_included(name)))
        found: dict[str, None] = {}
        while waiting:
            path = waiting.popleft()
            if path not in found:
                if len(found) == _MOST_FILES or os.path.getsize(path) > _LARGEST_FILE:
                    raise Unstable(f"{path}: too much to read")
                found[path] = None
                waiting.extend(self._wanted(_content(path), self._place(path)))
        return self.inputs(found, started, source, included)

    def unchanged(self, data: bytes) -> bool:
        """Whether encoded inputs are all the same now."""
        inputs = decode_inputs(data)
        return inputs is not None and all(self.state(item) == item.digest for item in inputs)

    def changed(self, inputs: Inputs) -> list[Input]:
        """Those of the inputs that are not the same now."""
        return [item for item in inputs if self.state(item) != item.digest]

    def state(self, item: Input) -> str:
        """The digest that a header has now; empty where there is none."""
        # What comes from a store is a name to be looked for, and only ever read.
        if item.kind not in {FILE, ABSENT}:
            return "?"
        placed = _PLACED.fullmatch(item.name)
        if placed is None:
            return self._digest(self._find(item.name)) if _is_plain(item.name) else "?"
        place = self._places.get(placed[1])
        if place is None or not _is_plain(placed[2]):
            return "?"
        return self._digest(_file(f"{place}/{placed[2]}"))

    def _read(self, path: str, started: int) -> str:
        """The digest of a file that a compilation read."""
        try:
            status = os.stat(path)
            digest = self._digests.of(path).hex()
        except OSError as error:
            raise Unstable(f"{path}: {error.strerror}") from None
        if status.st_ctime_ns >= started:  # its other time can be set to anything
            raise Unstable(f"{path} changed while it was compiled")
        return digest

    @functools.cached_property
    def _prefixes(self) -> list[tuple[str, str]]:
        """What the paths of a place begin with; the compiler may name a file by where a link leads."""
        return [
            (f"{way}/", place)
            for place, path in self._places.items()
            for way in dict.fromkeys((path, os.path.realpath(path).rstrip("/")))
        ]

    def _place(self, path: str) -> tuple[str, str]:
        """The place that a file is in, and its name there."""
        prefix, place = next((prefix, place) for prefix, place in self._prefixes if path.startswith(prefix))
        name = path[len(prefix) :]
        if not _is_plain(name):
            raise Unstable(f"{path} has no name below a directory that is searched")
        return place, name

    def _name(self, path: str, place: str, name: str) -> str:
        """What a file is called: the name that is looked for, if that leads to it."""
        found = self._find(name) if place.isdigit() else ""
        return name if found and os.path.samefile(found, path) else f"<{place}>/{name}"

    def _asked_for(self, text: bytes, asker: tuple[str, str] | None) -> Iterator[Input]:
        """What a compiler finds by the names in a file; some of it is what was read, or is nowhere.

        When it appears it may be found first.
        """
        for asked, is_quoted in _names_in(text):
            yield from self._asked(asked, asker, beside=is_quoted)

    def _asked(self, asked: str, asker: tuple[str, str] | None, beside: bool) -> Iterator[Input]:
        if os.path.isabs(asked):
            digest = self._digest(_file(asked))
            if _is_plain(name := os.path.normpath(asked).lstrip("/")):
                yield Input(FILE if digest else ABSENT, f"<root>/{name}", digest)
            return
        if beside and asker is not None:
            place, name = asker
            near = os.path.normpath(os.path.join(os.path.dirname(name), asked))
            if _is_plain(near):
                digest = self._digest(_file(f"{self._places[place]}/{near}"))
                yield Input(FILE if digest else ABSENT, f"<{place}>/{near}", digest)
                if digest:
                    return
        plain = os.path.normpath(asked)
        if _is_plain(plain):
            digest = self._digest(self._find(plain))
            yield Input(FILE if digest else ABSENT, plain, digest)

    def _wanted(self, text: bytes, asker: tuple[str, str] | None) -> Iterator[str]:
        """The files that a file asks for, as far as they are there."""
        for asked, is_quoted in _names_in(text, strict=True):
            near = ""
            if is_quoted and asker is not None:
                place, name = asker
                near = _file(os.path.normpath(f"{self._places[place]}/{os.path.dirname(name)}/{asked}"))
            path = near or (_file(asked) if os.path.isabs(asked) else self._find(asked)) or self._find_installed(asked)
            if path:
                yield path

    def _find_included(self, name: str) -> str:
        """A file that an option names: from the working directory, else as a name in quotes."""
        return _file(os.path.abspath(name)) or self._find(name)

    def _find(self, name: str) -> str:
        """Where the compiler finds a name; empty for nowhere."""
        return next((path for place in self._directories if (path := _file(f"{place}/{name}"))), "")

    def _find_installed(self, name: str) -> str:
        """Where the install has a header, if it is in one of the usual places."""
        places = [place for label, place in self._places.items() if not label.isdigit() and label != "root"]
        ways = (f"{place}/{folder}/{name}" for place in places for folder in _OF_INSTALL)
        return next((path for way in ways if (path := _file(way))), "")

    def _digest(self, path: str) -> str:
        try:
            return self._digests.of(path).hex() if path else ""
        except (OSError, ValueError):
            return "?"


def _names_in(text: bytes, strict: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that a text asks for, each with whether it is in quotes; each once.

    Raises:
        Unstable: one is made by a macro, and that matters.
    """
    names: dict[tuple[str, bool], None] = {}
    for mark, name, macro, other_mark, other_name in _ASKED_FOR.findall(text):
        if not macro:
            names[os.fsdecode(name or other_name), (mark or other_mark) == b'"'] = None
        elif strict:
            raise Unstable("a macro names a header")
    yield from names


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unstable(f"{path}: {error.strerror}") from None


def _file(path: str) -> str:
    """A path, if there is a file."""
    try:
        return path if os.path.isfile(path) else ""
    except ValueError:
        return ""


def _is_plain(name: str) -> bool:
    return all(part not in {"", ".", ".."} for part in name.split("/"))
