"""Compiles many sources at once, to fill a cache before they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import NamedTuple

from ptocache.errors import PtocacheError, explained
from ptocache.frontend import CompileCache, CompileResult
from ptocache.process import end_tools
from ptocache.requestlog import read_log
from ptocache.source import has_kernel


class Wanted(NamedTuple):
    """A source that is to be in the cache.

    Attributes:
        name: what it is called in messages.
        source: the PTODSL source.
        arch: the ptoas architecture; `None` for the default.
        flags: the other arguments of ptoas; `None` for the default.
    """

    name: str
    source: str
    arch: str | None
    flags: tuple[str, ...] | None


class Failure(NamedTuple):
    """A source that could not be compiled, and why."""

    name: str
    error: str


class Warmed(NamedTuple):
    """What came of it.

    Attributes:
        hits: how many were in the cache.
        compiled: how many were compiled.
        failures: those that could not be.
    """

    hits: int = 0
    compiled: int = 0
    failures: tuple[Failure, ...] = ()

    @property
    def done(self) -> int:
        """How many that is."""
        return self.hits + self.compiled + len(self.failures)


def sources_below(directory: str, on_error: Callable[[str, OSError], None]) -> Iterator[tuple[str, str | None]]:
    """The Python files below a directory, in order, each with its text; `None` for one that is no PTODSL source.

    Hidden directories are left out, and so are links to directories.

    Args:
        directory: where to look.
        on_error: told which file or directory cannot be read, and why; the search goes on.
    """
    for folder, folders, files in os.walk(directory, onerror=lambda error: on_error(error.filename, error)):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path):  # no pipe, which may never have anything to read
                try:
                    source = _ptodsl_source(path)
                except OSError as error:
                    on_error(path, error)
                else:
                    yield path, source


def logged(path: str) -> Iterator[Wanted | None]:
    """What a request log has; `None` for a line that is damaged.

    Raises:
        PtocacheError: it cannot be read.
    """
    with explained(PtocacheError, f"{path}: the log cannot be read"):
        for number, request in enumerate(read_log(path), 1):
            if request is None:
                yield None
            else:
                yield Wanted(f"{path}, request {number}", request.source, request.arch, request.flags)


def distinct(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Each source once for an arch and flags, under the first of its names. No more than those are held in memory."""
    found: dict[tuple[object, ...], Wanted] = {}
    for item in wanted:
        found.setdefault((item.source, item.arch, item.flags), item)
    return list(found.values())


def warm(
    cache: CompileCache,
    wanted: Iterable[Wanted],
    jobs: int,
    progress: Callable[[Warmed, int], None] | None = None,
) -> Warmed:
    """Have sources in the cache, each once, several at a time.

    When this is interrupted, the tools that run are ended, and nothing of what they made is stored.

    Args:
        cache: the cache.
        wanted: the sources.
        jobs: how many are compiled at a time.
        progress: told after each what came of those so far, and how many there are.

    Returns:
        What came of all.
    """
    each = distinct(wanted)
    warmed = Warmed()
    waiting: dict[Future[CompileResult], str] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="ptocache-warm") as pool:
        try:
            for item in each:
                waiting[pool.submit(cache.compile, item.source, item.arch, item.flags)] = item.name
            for future in as_completed(waiting):
                warmed = _plus(warmed, waiting.pop(future), future)
                if progress is not None:
                    progress(warmed, len(each))
        except BaseException:
            _end(pool, waiting)
            raise
    return warmed


def _plus(warmed: Warmed, name: str, future: Future[CompileResult]) -> Warmed:
    try:
        result = future.result()
    except PtocacheError as error:
        return warmed._replace(failures=(*warmed.failures, Failure(name, str(error))))
    if result.via is None:
        return warmed._replace(compiled=warmed.compiled + 1)
    return warmed._replace(hits=warmed.hits + 1)


def _end(pool: ThreadPoolExecutor, waiting: Iterable[Future[CompileResult]]) -> None:
    """Let what runs fail soon, and what does not run yet never begin."""
    pool.shutdown(wait=False, cancel_futures=True)
    end_tools()
    wait([future for future in waiting if not future.cancelled()])


def _ptodsl_source(path: str) -> str | None:
    """The text of a file if it is a PTODSL source; raises `OSError` where it cannot be read."""
    with open(path, "rb") as file:
        data = file.read()
    if b"pto" not in data:  # most files: there is no reason to parse them
        return None
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return source if has_kernel(source) else None
