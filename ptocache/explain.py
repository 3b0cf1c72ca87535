"""Why a request hits or misses: the parts of its key, and the nearest compilation that is stored.

Nearest means: the same kernels first, then the most equal parts, then the newest.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import SourceError
from ptocache.inputs import decode_inputs
from ptocache.request import key_flags, source_digest
from ptocache.source import find_kernels
from ptocache.store.entry import Action

if TYPE_CHECKING:
    from ptocache.frontend import CompileCache, Job


class Difference(NamedTuple):
    """A part that differs between a request and a stored compilation.

    Attributes:
        part: the part's name: `source`, `arch`, `flags`, a part of the stamp, or an input.
        stored: what it was.
        now: what it is.
    """

    part: str
    stored: str
    now: str


class Nearest(NamedTuple):
    """The stored compilation that is most like a request.

    Attributes:
        key: the name of its key.
        kernels: its kernels.
        created: when it was made, in seconds since the epoch.
        differences: what keeps it from answering the request.
        diff: the unified diff of the sources, if they differ and the stored one was kept.
    """

    key: str
    kernels: list[str]
    created: float
    differences: list[Difference]
    diff: str


class Explanation(NamedTuple):
    """What there is to say of a request.

    Attributes:
        key: the name of its source key.
        hit: the tier that has it, or `None`.
        parts: the parts of the key, as text.
        inputs: what the lowering read beside the source, for a hit.
        nearest: for a miss, the stored compilation that is most like it, if there is any.
    """

    key: str
    hit: str | None
    parts: list[tuple[str, str]]
    inputs: list[str]
    nearest: Nearest | None


def explain(cache: CompileCache, job: Job) -> Explanation:
    """Explain a request without compiling anything.

    Args:
        cache: where to look.
        job: the request, from `CompileCache.prepare`.

    Returns:
        The explanation.
    """
    entry = cache.local.get(job.key, job.checker.unchanged)
    if entry is not None:
        inputs = [item.name for item in decode_inputs(entry.action.inputs) or ()]
        return Explanation(job.key.name, cache.local.name, job.parts(), inputs, None)
    return Explanation(job.key.name, None, job.parts(), [], find_nearest(cache, job))


def reason(cache: CompileCache, job: Job) -> str:
    """Why a request is a miss, in one line."""
    nearest = find_nearest(cache, job)
    if nearest is None:
        return "nothing is stored yet"
    what = ", ".join(difference.part for difference in nearest.differences) or "its output is gone"
    return f"of the stored compilations {nearest.key} ({', '.join(nearest.kernels)}) is nearest; different: {what}"


def find_nearest(cache: CompileCache, job: Job) -> Nearest | None:
    """The stored compilation that is most like a request, `None` where nothing is stored."""
    try:
        kernels = [kernel.name for kernel in find_kernels(job.request.source)]
    except SourceError:
        kernels = []
    now = dict(job.parts())
    best: tuple[tuple[bool, int, float], str, Action] | None = None
    for name, action in cache.local.all_actions():
        facts = action.details()
        if "pto" in facts:
            continue
        stored = _parts(action)
        equal = sum(stored.get(part) == value for part, value in now.items())
        rank = (facts["kernels"] == kernels, equal, action.created)
        if best is None or rank > best[0]:
            best = (rank, name, action)
    if best is None:
        return None
    _, name, action = best
    differences = [
        Difference(part, stored, now.get(part, ""))
        for part, stored in _parts(action).items()
        if stored != now.get(part, "")
    ]
    differences += [
        Difference(f"{item.kind} {item.name}", item.digest or "absent", job.checker.state(item) or "absent")
        for item in job.checker.changed(decode_inputs(action.inputs) or ())
    ]
    diff = ""
    old = cache.local.source(name)
    if old is not None and source_digest(old) != now["source"]:
        diff = "".join(
            difflib.unified_diff(
                old.splitlines(keepends=True), job.request.source.splitlines(keepends=True), "stored", "now", n=1
            )
        )
    return Nearest(name, list(action.details()["kernels"]), action.created, differences, diff)


def _parts(action: Action) -> dict[str, str]:
    facts = action.details()
    flags = " ".join(key_flags(facts["flags"]))
    return {"source": facts["source"], "arch": facts["arch"], "flags": flags, **facts["stamp"]}
