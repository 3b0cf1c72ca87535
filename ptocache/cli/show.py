"""Show all that is known of an entry.

KEY is a key, as ptocache ls, stats and compile show it, or the SHA-256 of a device binary; its first digits will do, at
least 4, where no other begins so. Nothing that is stored is changed, and it does not count as a use.
Exit status: 0, done; 1, there is no such entry, or its device binary is damaged; 2, KEY stands for several.

for example:
  ptocache show 0df8
  ptocache show 0df8 --source > kernel.py
  ptocache show 0df8 -o kernel.aibin
  ptocache show 0df8 --json | jq '.actions[0].symbols'
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ptocache.aibin import sections, symbols
from ptocache.cli import UsageError
from ptocache.cli.ls import KEY_DIGITS
from ptocache.cli.output import print_json, write_file
from ptocache.errors import DeviceBinaryError, PtocacheError
from ptocache.frontend import CompileCache
from ptocache.inputs import decode_inputs
from ptocache.recipe import PTODSL
from ptocache.statistics import today_stamp
from ptocache.store.catalog import facts_of, find_keys, find_outputs, is_of_pto_key, keys_of, look_at_output
from ptocache.store.entry import Action
from ptocache.store.failures import Remembered
from ptocache.store.local import LocalTier
from ptocache.text import bytes_text, plural, printable, seconds_text, short_seconds

#: Fewer digits of a key are more likely a slip than a choice.
_LEAST_DIGITS = 4

#: So many of the keys that begin alike are named.
_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    key = parser.add_argument("key", metavar="KEY", help="a key, or the SHA-256 of a device binary, or how it begins")
    key.completer = complete_key  # type: ignore[attr-defined]  # argcomplete looks there
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--source", action="store_true", help="print the source that is kept, and nothing else")
    form.add_argument("--json", action="store_true", help="print what is known as one JSON object")
    parser.add_argument("-o", "--output", metavar="OUT", help="write the device binary there, and no page")


def complete_key(prefix: str, **_: object) -> list[str]:
    """The keys that begin so, for a shell."""
    with CompileCache() as cache:
        return find_keys(cache.local, prefix) if prefix and _is_hexadecimal(prefix) else []


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        cache.require_directory()
        local = LocalTier(cache.settings.dir, readonly=True)
        name, output = _resolve(local, options.key)
        actions = [action for action in local.actions(name) if action.sha256.hex().startswith(output)]
        source = local.source(name)
        failure = cache.failures.peek(name)
        if not actions and failure is None:
            raise PtocacheError(f"{local.layout.action(name)}: damaged: ptocache verify --repair removes it")
        if options.source:
            return _print_source(name, source)
        looked = [look_at_output(local, action) for action in actions]
        if options.output is not None:
            _write(options.output, name, actions, looked)
        facts: dict[str, Any] = {
            "key": name,
            "source_bytes": len(source.encode("utf-8", "surrogateescape")) if source is not None else None,
            "uses": _uses(cache, name),
            "actions": [_facts(cache, local, *named) for named in zip(actions, looked, strict=True)],
            "failure": _failure_facts(failure) if failure is not None else None,
        }
    if options.json:
        print_json(facts)
    elif options.output is not None:
        sys.stdout.write(f"{options.output}: {bytes_text(actions[0].size)}, SHA-256 {actions[0].sha256.hex()}\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _page(facts))
    return 1 if any(action["problem"] for action in facts["actions"]) else 0


def _is_hexadecimal(text: str) -> bool:
    return not text.strip("0123456789abcdef")


def _resolve(local: LocalTier, text: str) -> tuple[str, str]:
    """The key that is meant, and of its outputs the one that was named; an empty text where that was the key."""
    prefix = text.strip().lower()
    if not _is_hexadecimal(prefix) or not _LEAST_DIGITS <= len(prefix) <= 64:
        raise UsageError(f"expected at least {_LEAST_DIGITS} hexadecimal digits of a key, found {text!r}")
    keys = find_keys(local, prefix)
    if len(keys) == 1:
        return keys[0], ""
    outputs = find_outputs(local, prefix) if not keys else []
    if len(outputs) == 1 and (keys_there := keys_of(local, outputs[0])):
        return keys_there[0], outputs[0]
    if keys or len(outputs) > 1:
        raise UsageError(_ambiguous(prefix, keys or outputs))
    raise PtocacheError(f"nothing is stored under a key that begins with {prefix}: see ptocache ls")


def _ambiguous(prefix: str, names: list[str]) -> str:
    digits = max(len(prefix) + 1, KEY_DIGITS)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    named = ", ".join(name[:digits] for name in names[:_NAMED])
    return f"{prefix} stands for {plural(len(names), 'key')}: {named}{more}. Give more digits"


def _print_source(name: str, source: str | None) -> int:
    if source is None:
        raise PtocacheError(f"the source of {name} is not kept: lowered texts, and what was pulled, have none")
    sys.stdout.write(printable(source, kept="\n\t") if sys.stdout.isatty() else source)
    return 0


def _write(path: str, name: str, actions: list[Action], looked: list[tuple[bytes, str]]) -> None:
    """Write the device binary, if it is whole and there is only one."""
    found = {action.sha256.hex(): binary for action, binary in zip(actions, looked, strict=True)}
    if len(found) > 1:
        named = ", ".join(output[:KEY_DIGITS] for output in found)
        raise UsageError(f"{name} has {len(found)} device binaries: name the one to write by its SHA-256: {named}")
    for binary, problem in found.values():
        if problem:
            raise PtocacheError(f"nothing is written: {problem}")
        write_file(path, binary, "the device binary")
    if not found:
        raise PtocacheError(f"nothing is written: {name} has no device binary, but a failure that is remembered")


def _uses(cache: CompileCache, name: str) -> int:
    use = cache.counters.uses().get(name)
    return use.hits if use is not None else 0


def _facts(cache: CompileCache, local: LocalTier, action: Action, looked: tuple[bytes, str]) -> dict[str, Any]:
    """What is known of an action, as `json` takes it."""
    own = facts_of(action)
    stamp = today_stamp(cache) if own.kind == PTODSL else None
    details: dict[str, Any] = {}
    if own.kind or own.kernels:  # else its facts cannot be read
        details = action.details()
    binary, problem = looked
    inputs = decode_inputs(action.inputs)
    facts: dict[str, Any] = {
        "kind": own.kind,
        "of_pto_key": is_of_pto_key(action),
        "kernels": list(own.kernels),
        "arch": own.arch,
        "flags": details.get("flags", []),
        "toolchain": own.toolchain,
        "stale": own.is_stale({PTODSL: stamp} if stamp is not None else {}),
        "stamp": details.get("stamp", {}),
        "source": details.get("source", ""),
        "inputs": [item._asdict() for item in inputs or ()],
        "seconds": round(action.seconds, 6),
        "created": action.created,
        "used": local.last_used(action.sha256.hex()) or None,
        "sha256": action.sha256.hex(),
        "bytes": action.size,
        "problem": problem,
        "sections": [],
        "symbols": [],
    }
    if not problem:
        try:
            facts["sections"] = [one._asdict() for one in sections(binary)]
            facts["symbols"] = [one._asdict() for one in symbols(binary)]
        except DeviceBinaryError as error:
            facts["problem"] = str(error)
    return facts


def _failure_facts(failure: Remembered) -> dict[str, Any]:
    error = failure.error
    return {
        "age": round(failure.age, 3),
        "tool": error.tool,
        "command": error.command,
        "returncode": error.returncode,
        "inputs": [item._asdict() for item in decode_inputs(failure.inputs) or ()],
        "message": str(error),
    }


def _page(facts: dict[str, Any]) -> Iterator[str]:
    yield f"key {facts['key']}"
    for number, action in enumerate(facts["actions"], 1):
        yield ""
        if len(facts["actions"]) > 1:
            yield f"compilation {number} of {len(facts['actions'])}, by what was read beside the source"
        yield from _rows(_summary(facts, action))
        yield from _titled("stamp", action["stamp"].items())
        yield from _titled("read beside the source", _inputs(action["inputs"]))
        yield from _binary(action)
    if facts["failure"] is not None:
        yield from _failure(facts["failure"])


def _summary(facts: dict[str, Any], action: dict[str, Any]) -> Iterator[tuple[str, object]]:
    age = {True: " (stale)", False: " (today's)", None: ""}[action["stale"]]
    size = facts["source_bytes"]
    kind = "the text that a source was lowered to" if action["of_pto_key"] else "a source"
    yield "kernels", ", ".join(action["kernels"])
    yield "key of", f"{kind} ({action['kind']})" if action["kind"] not in {"", PTODSL} else kind
    yield "arch", action["arch"]
    yield "flags", " ".join(map(str, action["flags"]))
    yield "toolchain", f"{action['toolchain']}{age}"
    yield "compiled in", seconds_text(action["seconds"])
    yield "made", _moment(action["created"])
    yield "last used", _moment(action["used"])
    yield "uses", facts["uses"]
    yield "source", f"kept, {bytes_text(size)} (--source prints it)" if size is not None else "not kept"


def _inputs(inputs: Iterable[dict[str, str]]) -> Iterator[tuple[str, str]]:
    for item in inputs:
        yield item["kind"], f"{item['name']} {item['digest']}".rstrip()


def _binary(action: dict[str, Any]) -> Iterator[str]:
    rows = [("SHA-256", action["sha256"]), ("size", f"{bytes_text(action['bytes'])} ({action['bytes']} bytes)")]
    if action["problem"]:
        rows.append(("DAMAGED", f"{action['problem']}; ptocache verify --repair removes it"))
    yield from _titled("device binary", rows)
    if action["sections"]:
        yield from ("", "sections")
        yield f"  {'type':14}{'address':>18}{'size':>10}  name"
        for one in action["sections"]:
            yield f"  {one['type'].removeprefix('SHT_'):14}{one['address']:#18x}{one['size']:10}  {one['name']}"
    if action["symbols"]:
        yield from ("", "symbols")
        yield f"  {'type':8}{'binding':8}{'section':>8}{'value':>18}{'size':>10}  name"
        for one in action["symbols"]:
            kind, binding = one["type"].removeprefix("STT_"), one["binding"].removeprefix("STB_")
            where = one["section"].removeprefix("SHN_")
            yield f"  {kind:8}{binding:8}{where:>8}{one['value']:#18x}{one['size']:10}  {one['name']}"


def _failure(failure: dict[str, Any]) -> Iterator[str]:
    status = "" if failure["returncode"] is None else f", exit status {failure['returncode']}"
    yield from ("", f"remembered failure of {failure['tool']}{status}, {short_seconds(failure['age'])} ago")
    yield from (f"  {line}" for line in failure["message"].splitlines())
    yield from _titled("read beside the source", _inputs(failure["inputs"]))


def _titled(title: str, rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Rows below a title; nothing where there are none."""
    lines = list(_rows(rows))
    if lines:
        yield from ("", title, *lines)


def _rows(rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values; the further lines of a value below the first."""
    for name, value in rows:
        first, *rest = str(value).splitlines() or ["none"]
        yield f"  {name:18}{first}"
        yield from (f"  {'':18}{line}" for line in rest)


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return f"{date} ({short_seconds(time.time() - seconds)} ago)"
