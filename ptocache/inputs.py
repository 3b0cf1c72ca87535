"""What a lowering read beside the source, and whether it is still the same.

The frontend's process reports every module that the source pulled in, every file that it opened and every
variable that it asked for. With the action they are stored as names and digests: a file by its name below an
import root, never by where it was. A stored action answers a request only if all its inputs are the same now.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple

import xxhash

from ptocache.digests import RACY_NS, Digests

FILE, ABSENT, VARIABLE = "file", "absent", "variable"

_SEPARATOR = "\0"

# Linux takes no longer path (PATH_MAX).
_LONGEST_NAME = 4096

#: Gives the value of an environment variable, `None` where it is not set.
Variable = Callable[[str], "str | None"]


class Input(NamedTuple):
    """One thing that a lowering read.

    Attributes:
        kind: `FILE`, `ABSENT` (a file that was looked for and was not there) or `VARIABLE`.
        name: the path below an import root, with `/`; or the variable's name.
        digest: XXH3-128 of the content or the value, in hexadecimal; empty for what was absent or unset.
    """

    kind: str
    name: str
    digest: str


Inputs = tuple[Input, ...]


class Unstable(Exception):
    """The inputs of a lowering cannot be stored; the message says why."""


def read_report(path: str, digests: Digests, variable: Variable) -> Inputs:
    """Turn the report of a frontend process into inputs.

    Args:
        path: the report, as `ptodsl_compile.py` writes it.
        digests: which contents are known already.
        variable: gives a variable of the process's environment.

    Returns:
        The inputs, in an order that does not depend on the order of reading.

    Raises:
        Unstable: there is no report; a file changed while the source was lowered; or a file was read that has no
            name below an import root, so that no other host could find it.
    """
    import json  # a hit reads no report

    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        raise Unstable(f"the frontend left no report of what it read ({error})") from None
    if report["outside"]:
        raise Unstable(f"it read {report['outside'][0]}, which has no name below an import root")
    inputs = [Input(ABSENT, name, "") for name, _ in report["absent"]]
    appeared = [where for _, where in report["absent"] if where and os.path.lexists(where)]
    if appeared:
        raise Unstable(f"{appeared[0]} appeared while the source was lowered")
    for name, where, status in report["files"]:
        try:
            digest = digests.of(where).hex()
            now = os.stat(where)
        except OSError as error:
            raise Unstable(f"{where}: {error.strerror}") from None
        # The time of the last change of the file itself tells; the other one can be set to anything.
        if [now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns] != status or status[3] >= report["started"]:
            raise Unstable(f"{where} changed while the source was lowered")
        inputs.append(Input(FILE, name, digest))
    inputs += (Input(VARIABLE, name, _value_digest(variable(name))) for name in report["variables"])
    digests.save()
    return tuple(sorted(set(inputs)))


def encode_inputs(inputs: Inputs) -> bytes:
    """The inputs as bytes; the empty text for none."""
    return "".join(f"{_SEPARATOR.join(item)}{_SEPARATOR}" for item in inputs).encode("utf-8", "surrogateescape")


def decode_inputs(data: bytes) -> Inputs | None:
    """Read inputs; `None` for bytes that are none."""
    try:
        words = data.decode("utf-8", "surrogateescape").split(_SEPARATOR)
    except UnicodeDecodeError:
        return None
    if len(words) % 3 != 1 or words[-1]:
        return None
    inputs = tuple(Input(*words[i : i + 3]) for i in range(0, len(words) - 1, 3))
    return inputs if all(item.kind in {FILE, ABSENT, VARIABLE} for item in inputs) else None


class Checker:
    """Tells whether inputs are the same now as they were.

    Args:
        digests: which contents are known already.
        roots: where a frontend process would look for modules, first choice first.
        variable: gives a variable of the environment that it would have now.
    """

    def __init__(self, digests: Digests, roots: Iterable[str], variable: Variable) -> None:
        self._digests = digests
        self._variable = variable
        self._roots = [root for root in roots if not _is_standard(root)]
        self._listings: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}

    def unchanged(self, data: bytes) -> bool:
        """Whether encoded inputs are all the same now."""
        if not data:
            return True
        inputs = decode_inputs(data)
        return inputs is not None and not any(self._changes(inputs))

    def changed(self, inputs: Inputs) -> list[Input]:
        """Those of the inputs that are not the same now."""
        return [item for item, is_changed in zip(inputs, self._changes(inputs), strict=True) if is_changed]

    def state(self, item: Input) -> str:
        """The digest that an input has now; empty for what is absent or unset, `?` where it cannot be read."""
        return self._state(item, _Glance({}, {}))

    def _changes(self, inputs: Inputs) -> Iterator[bool]:
        glance = _Glance({}, {})
        return (self._state(item, glance) != item.digest for item in inputs)

    def _state(self, item: Input, glance: _Glance) -> str:
        if item.kind == VARIABLE:
            return _value_digest(self._variable(item.name))
        # What comes from a store is a name to be looked for below the import roots, and cannot lead out of them.
        if not _is_plain(item.name):
            return "?"
        try:
            return self._digests.of(self._find(item.name, glance)).hex()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return "?"

    def _find(self, name: str, glance: _Glance) -> str:
        """Where a module, or a file beside one, is now, as `import` would choose."""
        package, _, base = name.rpartition("/")
        for folder in self._package(package, glance):
            if base.endswith(".py"):
                path = self._module(folder, base[:-3], glance)
            else:
                path = f"{folder}/{base}" if base in self._names(folder, glance) else ""
            if path and os.path.isfile(path):
                return path
        for root in _hooked_root(name):
            if os.path.isfile(path := f"{root}/{name}"):
                return path
        raise FileNotFoundError(name)

    def _package(self, name: str, glance: _Glance) -> list[str]:
        """The directories of a package: one where a module or an initialiser has its name, else all of that name."""
        folders, path = self._roots, ""
        for part in name.split("/") if name else ():
            path = f"{path}/{part}"
            known = glance.folders.get(path)
            if known is None:
                # A module of that name hides the packages behind it, too: nothing is found in its directory.
                chosen = next((folder for folder in folders if self._module(folder, part, glance)), None)
                known = [f"{folder}/{part}" for folder in (folders if chosen is None else [chosen])]
                glance.folders[path] = known
            folders = known
        return folders

    def _module(self, folder: str, name: str, glance: _Glance) -> str:
        """The file in a directory that `import` takes for a module or a package; empty where there is none."""
        names = self._names(folder, glance)
        if name in names and os.path.isfile(path := f"{folder}/{name}/__init__.py"):
            return path
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if f"{name}{suffix}" in names and os.path.isfile(path := f"{folder}/{name}{suffix}"):
                return path
        return ""

    def _names(self, folder: str, glance: _Glance) -> frozenset[str]:
        """What is in a directory. It is read again when its time of change is another, or may not show the last one."""
        names = glance.names.get(folder)
        if names is None:
            names = frozenset()
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(folder)
                identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
                listed, names = self._listings.get(folder, (None, names))
                if listed != identity:
                    now = time.time_ns()
                    names = frozenset(os.listdir(folder))
                    if now - status.st_mtime_ns > RACY_NS:
                        self._listings[folder] = (identity, names)
            glance.names[folder] = names
        return names


class _Glance(NamedTuple):
    """What one look at inputs has found: names of directories, and directories of packages."""

    names: dict[str, frozenset[str]]
    folders: dict[str, list[str]]


def _hooked_root(name: str) -> list[str]:
    """The import root of a top-level module that only an import hook knows (an editable install)."""
    top, slash, _ = name.partition("/")
    module = top if slash else top.removesuffix(".py")
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith(("_frozen_importlib", "importlib.")):
            continue
        spec = None
        with contextlib.suppress(Exception):  # a hook is anybody's code
            spec = finder.find_spec(module, None) if module.isidentifier() else None
        if spec is not None:
            places = spec.submodule_search_locations if slash else [spec.origin]
            return [os.path.dirname(place) for place in places or () if place]
    return []


def _is_plain(name: str) -> bool:
    return len(name) < _LONGEST_NAME and all(part not in {"", ".", ".."} for part in name.split("/"))


def _is_standard(root: str) -> bool:
    """Whether an import root is the standard library's: nothing of it is an input."""
    return root == os.path.dirname(os.__file__) or root.endswith((".zip", "lib-dynload"))


def _value_digest(value: str | None) -> str:
    return "" if value is None else xxhash.xxh3_128_hexdigest(value.encode("utf-8", "surrogateescape"))
