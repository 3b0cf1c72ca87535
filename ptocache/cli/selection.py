"""The options that choose compilations, and what is said of them, the same for all commands that have them."""

from __future__ import annotations

import argparse
import sys

from ptocache.cli import UsageError
from ptocache.cli.output import print_json
from ptocache.errors import PtocacheError
from ptocache.frontend import CompileCache
from ptocache.recipe import PTODSL
from ptocache.settings import parse_age
from ptocache.store.catalog import Selection
from ptocache.store.transfer import Moved
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser, is_local: bool = True) -> None:
    """Declare those of a command that moves compilations, and `--json`; see `add_filters`."""
    add_filters(parser, is_local)
    parser.add_argument("--json", action="store_true", help="print what was done as one JSON object")


def add_filters(parser: argparse.ArgumentParser, is_local: bool = True, with_failures: bool = False) -> None:
    """Declare the options that choose.

    Args:
        parser: where.
        is_local: whether it is the local cache that they choose from: elsewhere nobody knows what was used when.
        with_failures: whether remembered failures can be chosen too.
    """
    chosen = parser.add_argument_group("which compilations", "all, or those that match all of these")
    chosen.add_argument("--kernel", metavar="GLOB", help="those of a kernel with such a name: 'attention_*'")
    chosen.add_argument("--arch", metavar="A", help="those for this arch: a5")
    chosen.add_argument("--toolchain", metavar="STAMP", help="those whose toolchain's stamp begins so: 9.0.0")
    chosen.add_argument(
        "--stale",
        action="store_true",
        help="those that another toolchain made than the one that would compile now (AscendC is never stale)",
    )
    chosen.add_argument("--newer-than", metavar="AGE", help="those made since then: 7d, 12h")
    chosen.add_argument("--older-than", metavar="AGE", help="those made before: 7d, 12h")
    if is_local:
        chosen.add_argument("--unused-for", metavar="AGE", help="those that nobody used since: 30d (to the hour)")
    if with_failures:
        chosen.add_argument("--failures", action="store_true", help="remembered failures, and nothing else")


def selection(options: argparse.Namespace, cache: CompileCache) -> Selection:
    """What they say.

    Raises:
        UsageError: they cannot be used.
        PtocacheError: today's toolchain is asked for, and there is none.
    """
    kernel, arch, toolchain = (_text(name, getattr(options, name)) for name in ("kernel", "arch", "toolchain"))
    newer, older, unused = (
        _age(name, getattr(options, name, None)) for name in ("newer_than", "older_than", "unused_for")
    )
    chosen = Selection(kernel, arch, toolchain, newer, older, unused)
    if getattr(options, "failures", False):
        if options.stale or not chosen.is_everything:
            raise UsageError("--failures goes with no other choice: a remembered failure has no kernel, arch or tools")
        return Selection(failures=True)
    return chosen._replace(today={PTODSL: _today(cache)}) if options.stale else chosen


def _text(name: str, text: str | None) -> str:
    if text is not None and not text.strip():  # a variable that is not set must not mean everything
        raise UsageError(f"--{name}: expected a text, found nothing")
    return (text or "").strip()


def _age(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error}") from None


def _today(cache: CompileCache) -> str:
    """The name of today's toolchain's stamp."""
    try:
        return cache.stamp().name
    except PtocacheError as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise PtocacheError(
            f"--stale: today's toolchain is not known: {reason}. Source CANN's set_env.sh, or set PTOCACHE_TOOLCHAIN"
        ) from error


def report(results: dict[str, Moved], verb: str, as_json: bool) -> int:
    """Print what came of it for each engine, and return the exit status."""
    if as_json:
        print_json({label: moved._asdict() for label, moved in results.items()})
    else:
        for label, moved in results.items():
            sys.stdout.write(f"{label}: {describe(moved, verb)}\n")
    return 1 if any(moved.failed or moved.rejected for moved in results.values()) else 0


def describe(moved: Moved, verb: str) -> str:
    """What came of it, in one line: `12 entries sent, 340.2 KiB; 3 were there already`."""
    parts = [f"{plural(moved.moved, 'entry')} {verb}, {bytes_text(moved.bytes)}"]
    if moved.present:
        parts.append(f"{moved.present} {'was' if moved.present == 1 else 'were'} there already")
    if moved.rejected:
        parts.append(f"{moved.rejected} not used")
    if moved.failed:
        parts.append(f"{moved.failed} failed")
    text = "; ".join(parts)
    return f"{text} ({moved.problem})" if moved.problem else text
