"""What a lowering read beside the source, and whether it is still the same.

The frontend's process reports every module that the source pulled in, every file that it opened and every
variable that it asked for. With the action they are stored as names and digests: a file by its name below an
import root, never by where it was. A stored action answers a request only if all its inputs are the same now.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import xxhash

from ptocache.digests import Digests

FILE, ABSENT, VARIABLE = "file", "absent", "variable"

_SEPARATOR = "\0"

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
        raise Unstable(f"it read {report['outside'][0]}, which is below no import root")
    inputs = [Input(ABSENT, name, "") for name in report["absent"]]
    for name, where, status in report["files"]:
        try:
            digest = digests.of(where).hex()
            now = os.stat(where)
        except OSError as error:
            raise Unstable(f"{where}: {error.strerror}") from None
        if [now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns] != status or max(status[2:]) >= report[
            "started"
        ]:
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
    return tuple(Input(*words[i : i + 3]) for i in range(0, len(words) - 1, 3))


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

    def unchanged(self, data: bytes) -> bool:
        """Whether encoded inputs are all the same now."""
        if not data:
            return True
        inputs = decode_inputs(data)
        return inputs is not None and all(self.state(item) == item.digest for item in inputs)

    def changed(self, inputs: Inputs) -> list[Input]:
        """Those of the inputs that are not the same now."""
        return [item for item in inputs if self.state(item) != item.digest]

    def state(self, item: Input) -> str:
        """The digest that an input has now; empty for what is absent or unset, `?` where it cannot be read."""
        if item.kind == VARIABLE:
            return _value_digest(self._variable(item.name))
        # What comes from a store is a name to be looked for below the import roots, and cannot lead out of them.
        if not _is_plain(item.name):
            return "?"
        try:
            return self._digests.of(self._find(item.name)).hex()
        except FileNotFoundError:
            return ""
        except OSError:
            return "?"

    def _find(self, name: str) -> str:
        package = f"{name[:-3]}/__init__.py" if name.endswith(".py") else ""
        for root in [*self._roots, *_hooked_root(name)]:
            if package and os.path.isfile(os.path.join(root, package)):
                return os.path.join(root, package)  # a package comes before a module of its name
            path = os.path.join(root, name)
            if os.path.isfile(path):
                return path
        raise FileNotFoundError(name)


def _hooked_root(name: str) -> list[str]:
    """The import root of a top-level package that only an import hook knows (an editable install)."""
    top = name.partition("/")[0]
    if "/" not in name or not top.isidentifier() or top in sys.builtin_module_names:
        return []
    import importlib.util

    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    locations = spec.submodule_search_locations if spec is not None else None
    return [os.path.dirname(location) for location in locations or ()]


def _is_plain(name: str) -> bool:
    return bool(name) and not name.startswith("/") and all(part not in {"", ".", ".."} for part in name.split("/"))


def _is_standard(root: str) -> bool:
    """Whether an import root is the standard library's: nothing of it is an input."""
    return root == os.path.dirname(os.__file__) or root.endswith((".zip", "lib-dynload"))


def _value_digest(value: str | None) -> str:
    return "" if value is None else xxhash.xxh3_128_hexdigest(value.encode("utf-8", "surrogateescape"))
