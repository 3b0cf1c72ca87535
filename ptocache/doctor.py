"""Checks whether the cache can do its work here, one function a question."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import PtocacheError, ToolNotFoundError
from ptocache.frontend import CompileCache
from ptocache.hooks import is_installed
from ptocache.request import Key
from ptocache.settings import in_force
from ptocache.startup_file import STARTUP_FILE, has_startup_file
from ptocache.store.engines import describe
from ptocache.store.entry import make_entry
from ptocache.store.files import make_directory, remove
from ptocache.store.guard import EngineError
from ptocache.store.objects import RejectedError
from ptocache.store.place import refusal
from ptocache.store.upkeep import measure
from ptocache.text import bytes_text, plural, seconds_text
from ptocache.tools import locate, tool_environ

if TYPE_CHECKING:
    from ptocache.store.shared import SharedTier

#: Less free space than this is too little for a cache to be of use, whatever its limit.
_LITTLE_SPACE = 100 << 20


class Finding(NamedTuple):
    """The answer to one question.

    Attributes:
        name: what was looked at.
        state: `ok`, `warning` (the cache works, and not as it could) or `error` (it does not).
        text: what was found, and where something is wrong, the next step.
    """

    name: str
    state: str
    text: str


def examine(cache: CompileCache) -> Iterator[Finding]:
    """Look at all that the cache needs. Nothing that is stored is changed.

    Args:
        cache: the cache, as the settings make it.

    Yields:
        A finding for each question that can be asked. Where one about the directory finds an error, the others about
        it, and about what is shared, are not asked.
    """
    for check in CHECKS:
        finding = _asked(check, cache)
        yield finding
        if finding.state == "error":
            break
    else:
        for tier in cache.shared_tiers():
            yield shared(tier)
    yield _asked(tools, cache)
    yield from stamp(cache)
    yield from settings(cache)
    yield _asked(tilelang, cache)


def _asked(check: Callable[[CompileCache], Finding], cache: CompileCache) -> Finding:
    try:
        return check(cache)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what keeps the cache from working
        return Finding(check.__name__, "error", f"{error or type(error).__name__}")


def directory(cache: CompileCache) -> Finding:
    """Where the cache is, and on what file system."""
    path, refused, moved_from, kind = cache.place
    if refused:
        return Finding("directory", "error", refused)
    if moved_from:
        text = (
            f"{path}, as {moved_from} is on a network file system ({kind}), where SQLite and file locks are not "
            "sound; that one is shared with other hosts. Set PTOCACHE_DIR to a local directory to choose another place"
        )
        return Finding("directory", "warning", text)
    if not os.path.isdir(_existing(path)) or (os.path.lexists(path) and not os.path.isdir(path)):
        return Finding("directory", "error", f"{path} is not a directory: remove it, or set PTOCACHE_DIR to another")
    found = "" if os.path.isdir(path) else ", which the first compilation makes"
    return Finding("directory", "ok", f"{path} ({kind or 'file system unknown'}){found}")


def permissions(cache: CompileCache) -> Finding:
    """Who may read and write it, and whether this process may."""
    path = _existing(cache.settings.dir)
    status = os.stat(path)
    text = f"mode {stat.S_IMODE(status.st_mode):04o}, user {status.st_uid}, group {status.st_gid}"
    if cache.settings.readonly:
        return Finding("permissions", "ok", f"{text}; PTOCACHE_READONLY is set: nothing is stored")
    layout = cache.local.layout
    parts = (layout.actions, layout.outputs, layout.sources, layout.failures, layout.locks, layout.temp, layout.index)
    for place in (path, *filter(os.path.isdir, parts)):
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            advice = "set PTOCACHE_DIR to a directory that you can write to, or PTOCACHE_READONLY=1 to only read this"
            return Finding("permissions", "error", f"{place} cannot be written to ({text}): {advice}")
    return Finding("permissions", "ok", text)


def space(cache: CompileCache) -> Finding:
    """How much is free, and how much the cache takes."""
    free = shutil.disk_usage(_existing(cache.settings.dir)).free
    entries, used = measure(cache.local)
    limit = cache.settings.size_limit
    most = f" of {bytes_text(limit)}" if limit else ""
    text = f"{plural(entries, 'entry')}, {bytes_text(used)}{most}; {bytes_text(free)} are free"
    if free < _LITTLE_SPACE:
        return Finding("space", "warning", f"{text}: too few to store much. Free some, or move PTOCACHE_DIR")
    if limit and limit - used > free:
        return Finding("space", "warning", f"{text}, less than the limit allows: lower PTOCACHE_SIZE_LIMIT")
    return Finding("space", "ok", text)


def locks(cache: CompileCache) -> Finding:
    """Whether a lock on a file keeps another one out."""
    folder = cache.local.layout.temp
    if cache.settings.readonly:
        return Finding("locks", "ok", "not needed to read")
    if not os.path.isdir(cache.settings.dir):
        return Finding("locks", "ok", "not tried: there is no directory yet")
    make_directory(cache.settings.dir, folder)
    path = f"{folder}/{os.urandom(8).hex()}"
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Finding("locks", "ok", "one lock keeps another out")
    except OSError as error:
        text = f"files cannot be locked ({error.strerror}): processes compile the same kernel at the same time"
        return Finding("locks", "warning", text)
    finally:
        remove(path)
        os.close(first)
        os.close(second)
    return Finding("locks", "warning", "locks keep nobody out: processes compile the same kernel at the same time")


def index(cache: CompileCache) -> Finding:
    """Whether the database is sound."""
    if cache.settings.readonly or not os.path.isdir(cache.local.layout.index):
        return Finding("index", "ok", "not needed to read" if cache.settings.readonly else "there is none yet")
    if not cache.local.index.is_sound():
        return Finding(
            "index", "warning", "it is damaged, or that of another version: ptocache verify --repair makes it anew"
        )
    return Finding("index", "ok", "SQLite finds it sound")


def shared(tier: SharedTier) -> Finding:
    """Whether an engine can be reached, and what is stored there read back, and how long that takes."""
    from ptocache.store.objects import OBJECT_LIMIT, decode_object, encode_object
    from ptocache.store.shared import PROBE

    steps = []
    advice = "see docs/fleets.md; kernels are compiled all the same"
    try:
        for _ in range(2):  # the first loads the engine's library and connects
            start = time.perf_counter()
            tier.reading.call(lambda: tier.engine.get(PROBE, OBJECT_LIMIT), tier.timeout)
        steps.append(f"answers in {seconds_text(time.perf_counter() - start)}")
        if tier.readonly:
            steps.append("only read")
        else:
            key = Key(os.urandom(16).hex(), bytes(32))
            entry = make_entry(b"probe", seconds=0, created=time.time(), facts={"kernels": []})
            entry = entry._replace(action=entry.action._replace(check=key.check))
            data = encode_object(key.name, key, entry, tier.signer)
            start = time.perf_counter()
            tier.reading.call(lambda: tier.engine.put(key.name, data, False), tier.timeout)
            steps.append(f"stores in {seconds_text(time.perf_counter() - start)}")
            back = tier.reading.call(lambda: tier.engine.get(key.name, OBJECT_LIMIT), tier.timeout)
            decode_object(back or b"", key.name, tier.signer)
            steps.append("gives that back")
            tier.reading.call(lambda: tier.engine.delete(key.name), tier.timeout)
            steps.append("removes it")
            clock = tier.reading.call(tier.engine.clock, tier.timeout)
            if clock is not None:
                steps.append(f"its clock differs by {abs(clock - time.time()):.0f} s")
    except (EngineError, RejectedError) as error:
        done = f"{', '.join(steps)}, but then: " if steps else ""
        return Finding("shared", "warning", f"{tier.label}: {done}{describe(error)} ({advice})")
    if not tier.signer.signs and (reason := _open_to_others(tier)):
        return Finding("shared", "warning", f"{tier.label}: {reason}; without a signing key they decide what runs here")
    if tier.has_leases:
        steps.append("has leases")
    steps.append("objects are signed" if tier.signer.signs else "objects are not signed")
    return Finding("shared", "ok", f"{tier.label}: {', '.join(steps)}")


def tools(cache: CompileCache) -> Finding:
    """Where the tools are that compile; all that is missing, and how to get it."""
    found = locate(tool_environ(cache.settings.toolchain))
    places = (("CANN", found.cann), ("ptoas", found.ptoas), ("bisheng", found.bisheng), ("ptodsl", found.ptodsl))
    text = ", ".join(f"{name} {place}" for name, place in places if place)
    if cache.settings.toolchain == "emulated":
        text = f"emulated: what they make runs on no NPU; {text}"
    return Finding("tools", "ok", text)


def stamp(cache: CompileCache) -> Iterator[Finding]:
    """What of the tools is in every key, part by part; nothing where there are none."""
    try:
        found = cache.stamp()
    except ToolNotFoundError:
        return
    except PtocacheError as error:
        yield Finding("stamp", "error", str(error))
        return
    yield Finding("stamp", "ok", found.name)
    for fact in (*found.backend, *found.frontend):
        yield Finding("stamp", "ok", f"{fact.name}: {', '.join(fact.value.splitlines()) or 'none'}")


def settings(cache: CompileCache) -> Iterator[Finding]:
    """The settings that are not the defaults, and where each comes from."""
    given = [found for found in in_force(os.environ) if found.where != "the default"]
    for found in given:
        where = "the environment" if found.where == found.setting.variable else found.where
        yield Finding("settings", "ok", f"{found.setting.variable} is {found.text or 'empty'} (from {where})")
    if not given:
        yield Finding("settings", "ok", "all are the defaults")
    if cache.settings.disable:
        advice = "PTOCACHE_DISABLE is set: nothing is looked up and nothing stored. Unset it to use the cache"
        yield Finding("settings", "error", advice)


def tilelang(_cache: CompileCache) -> Finding:
    """Whether TileLang is installed here, and whether ptocache goes below it."""
    version = _version_of("tilelang")
    if version is None:
        return Finding("tilelang", "ok", f"TileLang is not installed for {sys.executable}; nothing to go below")
    if not has_startup_file():
        text = f"TileLang {version}; {STARTUP_FILE} is not in site-packages, so only ptocache.install() goes below it"
        return Finding("tilelang", "warning", f"{text}: install ptocache with pip")
    if is_installed():
        return Finding("tilelang", "ok", f"TileLang {version}; PTOCACHE_INSTALL is set: ptocache is below it")
    text = "call ptocache.install(), or use ptocache run or PTOCACHE_INSTALL=1, to put ptocache below it"
    return Finding("tilelang", "ok", f"TileLang {version}; {text}")


def _version_of(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _open_to_others(tier: SharedTier) -> str:
    """Why others could write to a directory that is shared; nothing where they could not."""
    if tier.url.scheme != "file":
        return ""
    from ptocache.store.engines.file import path_of

    return refusal(path_of(tier.url.url), tier.umask)


#: The questions about the directory, in the order of what needs what.
CHECKS: tuple[Callable[[CompileCache], Finding], ...] = (directory, permissions, locks, index, space)


def _existing(path: str) -> str:
    """The path, or the nearest of its parents that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
