"""List the entries of the cache.

On a terminal it is a table; the KEY there is long enough for ptocache show, and a * marks a toolchain that is not
today's. Elsewhere it is a line for each entry, without a heading, with these fields between tabs:

  key, kernels (with commas), arch, bytes of the device binary, made and last used (seconds since 1970), uses,
  seconds to compile, toolchain's stamp, "stale" or "current" ("-" where that cannot be told here)

Uses are the requests that were hits. With --json it is one JSON array, an entry a line.

for example:
  ptocache ls                                         the newest first
  ptocache ls --sort size --limit 20                  the 20 largest
  ptocache ls --unused-for 30d --sort age -r          what nobody used for a month, the oldest first
  ptocache ls --kernel 'attention_*' | cut -f1        their keys
  ptocache ls --json | jq 'map(.bytes) | add'
  ptocache ls --failures                              the failures that are remembered
"""

from __future__ import annotations

import argparse
import heapq
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ptocache.cli import UsageError
from ptocache.cli.selection import add_filters, selection
from ptocache.cli.style import Style
from ptocache.frontend import CompileCache
from ptocache.recipe import PTODSL
from ptocache.statistics import today_stamp, version_of
from ptocache.store.catalog import Listed, Selection, list_entries
from ptocache.store.local import LocalTier
from ptocache.text import bytes_text, plural, printable, short_bytes, short_seconds

#: What entries can be sorted by, with what comes first.
SORTS: dict[str, tuple[str, Callable[[Listed], Any]]] = {
    "age": ("the newest", lambda row: -row.created),
    "size": ("the largest", lambda row: -row.bytes),
    "uses": ("the most used", lambda row: -row.uses),
    "kernel": ("by name", lambda row: row.kernels),
    "seconds": ("what took longest to compile", lambda row: -row.seconds),
}

#: So many digits of a key are shown on a terminal, or more, where others begin so too.
KEY_DIGITS = 12

#: A column of names is made no narrower than this, as long as another column can be left out.
_NAMES_WIDTH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_filters(parser, with_failures=True)
    orders = ", ".join(f"{name} ({first})" for name, (first, _) in SORTS.items())
    parser.add_argument("--sort", metavar="BY", choices=SORTS, default="age", help=f"the order: {orders}")
    parser.add_argument("-r", "--reverse", action="store_true", help="the other way round")
    parser.add_argument("--limit", metavar="N", help="no more than the first N")
    parser.add_argument("--json", action="store_true", help="print them as one JSON array")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    limit = _limit(options.limit)
    with CompileCache() as cache:
        cache.require_directory()
        chosen = selection(options, cache)
        if chosen.failures:
            print_failures(cache, options.json, limit)
        else:
            print_entries(_sorted(listed(cache, chosen), options.sort, options.reverse, limit), options)
    return 0


def listed(cache: CompileCache, chosen: Selection) -> Iterator[Listed]:
    """The entries of the local cache that are chosen, in no order; nothing that is stored is touched."""
    stamp = None if chosen.today is not None else today_stamp(cache)
    today = chosen.today or ({PTODSL: stamp} if stamp is not None else {})
    return list_entries(LocalTier(cache.settings.dir, readonly=True), chosen, cache.counters.uses(), today)


def print_entries(rows: Iterable[Listed], options: argparse.Namespace) -> None:
    """Print entries: as a table on a terminal, as plain lines elsewhere, as JSON if that was asked for."""
    if options.json:
        _print_json(map(_entry_facts, rows))
    elif sys.stdout.isatty():
        _print_table(list(rows), getattr(options, "sort", ""))
    else:
        sys.stdout.writelines(f"{_line(row)}\n" for row in rows)


def print_failures(cache: CompileCache, as_json: bool, limit: int | None = None) -> None:
    """Print the failures that are remembered, the newest first: key, seconds ago, tool, what went wrong."""
    found = sorted(cache.failures.all(), key=lambda named: (named[1].age, named[0]))[:limit]
    facts = [
        {
            "key": name,
            "age": round(failure.age, 3),
            "tool": failure.error.tool,
            "summary": failure.error.summary.partition("\n")[0],
        }
        for name, failure in found
    ]
    if as_json:
        _print_json(facts)
    elif sys.stdout.isatty():
        style, width = Style(sys.stdout), shutil.get_terminal_size().columns
        for name, (age, _, error) in found:
            line = f"{short_seconds(age):>4} {name[:KEY_DIGITS]} {error.tool}: {error.summary}".partition("\n")[0]
            sys.stdout.write(f"{_fit(printable(line), width, style).rstrip()}\n")
    else:
        for row in facts:
            sys.stdout.write("\t".join(printable(str(value)) for value in row.values()) + "\n")


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--limit: expected a number from 1 on, found {text!r}")
    return int(text)


def _sorted(rows: Iterable[Listed], by: str, is_reverse: bool, limit: int | None) -> list[Listed]:
    _, order = SORTS[by]

    def key(row: Listed) -> tuple[Any, str]:
        return order(row), row.key

    if limit is not None:
        return heapq.nlargest(limit, rows, key) if is_reverse else heapq.nsmallest(limit, rows, key)
    return sorted(rows, key=key, reverse=is_reverse)


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    import json

    between = "["
    for row in rows:
        sys.stdout.write(f"{between}{json.dumps(row)}")
        between = ",\n"
    sys.stdout.write("]\n" if between != "[" else "[]\n")


def _entry_facts(row: Listed) -> dict[str, Any]:
    facts = row._asdict()
    facts["version"] = version_of(row.toolchain)
    facts["seconds"] = round(row.seconds, 3)
    return facts


def _line(row: Listed) -> str:
    age = {True: "stale", False: "current", None: "-"}[row.stale]
    fields = (
        row.key,
        ",".join(row.kernels) or "-",
        row.arch or "-",
        str(row.bytes),
        f"{row.created:.0f}",
        f"{row.used:.0f}",
        str(row.uses),
        f"{row.seconds:.3f}",
        row.toolchain or "-",
        age,
    )
    return "\t".join(map(printable, fields))


class _Column(NamedTuple):
    """A column of the table."""

    title: str
    texts: list[str]
    is_number: bool
    width: int


def _print_table(rows: list[Listed], sort: str) -> None:
    style = Style(sys.stdout)
    if not rows:
        sys.stdout.write("no entries\n")
        return
    longest = max(len("KERNEL"), *(_cells(_names(row)) for row in rows))
    room = shutil.get_terminal_size().columns - 1
    columns = _columns(rows)
    # What says least goes first where it does not fit, and never what the rows are sorted by.
    for name in ("time", "used", "uses", "toolchain", "arch", "age", "size"):
        if room - _width(columns) < min(_NAMES_WIDTH, longest) and name != {"seconds": "time"}.get(sort, sort):
            del columns[name]
    names = min(max(room - _width(columns), _NAMES_WIDTH // 2), longest)
    heading = [_fit("KERNEL", names, style), *(_cell(column, column.title) for column in columns.values())]
    sys.stdout.write(f"{style.bold(' '.join(heading))}\n")
    for number, row in enumerate(rows):
        cells = [_cell(column, column.texts[number]) for column in columns.values()]
        line = " ".join([_fit(_names(row), names, style), *cells])
        sys.stdout.write(f"{style.warn(line) if row.stale else line}\n")
    total = f"{plural(len(rows), 'entry')}, {bytes_text(sum(row.bytes for row in rows))}"
    stale = sum(row.stale is True for row in rows)
    note = f"; {stale} of another toolchain than today's (*)" if stale else ""
    sys.stdout.write(style.dim(f"{total}{note}") + "\n")


def _columns(rows: list[Listed]) -> dict[str, _Column]:
    """All columns but that of the names."""
    now = time.time()
    digits = _key_digits([row.key for row in rows])
    texts = {
        "arch": ("ARCH", [printable(row.arch)[:12] for row in rows], False),
        "size": ("SIZE", [short_bytes(row.bytes) for row in rows], True),
        "age": ("AGE", [short_seconds(now - row.created) for row in rows], True),
        "used": ("USED", [short_seconds(now - row.used) for row in rows], True),
        "uses": ("USES", [str(row.uses) for row in rows], True),
        "time": ("TIME", [f"{row.seconds:.1f}s" for row in rows], True),
        "toolchain": ("TOOLCHAIN", [_version(row) for row in rows], False),
        "key": ("KEY", [row.key[:digits] for row in rows], False),
    }
    return {
        name: _Column(title, cells, is_number, max(map(len, (title, *cells))))
        for name, (title, cells, is_number) in texts.items()
    }


def _width(columns: dict[str, _Column]) -> int:
    """The width of these columns, with the spaces between them."""
    return sum(column.width + 1 for column in columns.values()) - 1


def _cell(column: _Column, text: str) -> str:
    if column.title == "KEY":  # the last: nothing after it
        return text
    return text.rjust(column.width) if column.is_number else text.ljust(column.width)


def _names(row: Listed) -> str:
    return printable(", ".join(row.kernels)) or "-"


def _version(row: Listed) -> str:
    version = printable(version_of(row.toolchain))[:15] or "-"
    return f"{version}*" if row.stale else version


def _key_digits(keys: list[str]) -> int:
    """How many digits tell these keys apart, and at least the usual number."""
    return next(digits for digits in range(KEY_DIGITS, 33) if len({key[:digits] for key in keys}) == len(keys))


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: some letters take two."""
    from rich.cells import cell_len  # only where there is a terminal

    return cell_len(text)


def _fit(text: str, width: int, style: Style) -> str:
    """A text in just so many columns of a terminal."""
    from rich.cells import set_cell_size

    return set_cell_size(text, width) if _cells(text) <= width else set_cell_size(text, width - 1) + style.ellipsis
