"""Moves entries between the local tier, engines and archives.

Everything that moves is an object (`ptocache.store.objects`): it is checked where it arrives, whoever brought it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.errors import PtocacheError, explained
from ptocache.inputs import decode_inputs
from ptocache.request import Key
from ptocache.store.catalog import Selection, choose
from ptocache.store.engines import describe
from ptocache.store.entry import Action, Entry
from ptocache.store.files import replacing
from ptocache.store.guard import EngineError
from ptocache.store.objects import (
    OBJECT_LIMIT,
    RejectedError,
    SharedObject,
    Signer,
    decode_object,
    encode_object,
    next_name,
    state_of,
)
from ptocache.text import plural

if TYPE_CHECKING:
    from ptocache.store.local import LocalTier
    from ptocache.store.shared import SharedTier

#: So many objects are on their way at a time: most of the time of each is the network's.
_WORKERS = 8

_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 128 << 20

#: What a manifest has at most for each object: two digests, and what JSON needs around them.
_MANIFEST_BYTES = 128
_SCHEMA = 1
_MEMBER = re.compile(r"objects/([0-9a-f]{32})")

#: Told after each object how many are done, and how many there are.
Progress = Callable[[int, int], None]


class ArchiveError(PtocacheError):
    """A file is no archive of `ptocache export`, or is damaged."""


class TransferError(PtocacheError):
    """Nothing could be moved."""


class Moved(NamedTuple):
    """What came of moving entries.

    Attributes:
        moved: how many were.
        bytes: of how many bytes of device binaries.
        present: how many were there already.
        rejected: how many were damaged, or not signed as they have to be.
        failed: how many could not be moved.
        problem: the first reason for one of those two; empty where there was none.
    """

    moved: int = 0
    bytes: int = 0
    present: int = 0
    rejected: int = 0
    failed: int = 0
    problem: str = ""

    def plus(self, other: Moved) -> Moved:
        """What came of both."""
        return Moved(
            self.moved + other.moved,
            self.bytes + other.bytes,
            self.present + other.present,
            self.rejected + other.rejected,
            self.failed + other.failed,
            self.problem or other.problem,
        )


def push(local: LocalTier, tier: SharedTier, selection: Selection, progress: Progress | None = None) -> Moved:
    """Store on an engine what the local tier has.

    Args:
        local: where entries come from.
        tier: the engine.
        selection: which of them.
        progress: told how far it is.

    Returns:
        What came of it.
    """
    chosen = list(choose(local, selection))

    def send(named: tuple[str, Action]) -> Moved:
        name, action = named
        entry = local.read(name, action)
        if entry is None:
            return Moved(rejected=1, problem=f"the output of {name} is gone or damaged")
        try:
            is_new = tier.store(Key(name, action.check), entry)
        except EngineError as error:
            return Moved(failed=1, problem=str(error))
        return Moved(moved=1, bytes=action.size) if is_new else Moved(present=1)

    return _in_parallel(send, chosen, progress)


def pull(local: LocalTier, tier: SharedTier, selection: Selection, progress: Progress | None = None) -> Moved:
    """Store locally what an engine has; see `push`.

    Raises:
        TransferError: the engine does not list what it has.
    """
    try:
        names = [stored.name for stored in tier.listed()]
    except Exception as error:  # noqa: BLE001 - an engine may fail in any way, and its own words have secrets
        raise TransferError(f"{tier.label} does not list what it has: {describe(error)}") from None

    keeping = threading.Lock()  # two variants of one key are kept one after the other, or one would be lost

    def receive(name: str) -> Moved:
        # Without inputs there is one entry a key; with some, this name may be that of another state of them.
        if any(not action.inputs and selection.matches(action) for action in local.actions(name)):
            return Moved(present=1)
        try:
            found = tier.fetch(name)
        except EngineError as error:
            return Moved(failed=1, problem=str(error))
        except RejectedError as reason:
            return Moved(rejected=1, problem=f"{name}: {reason}")
        if found is None or not selection.matches(found.entry.action):
            return Moved()
        with keeping:
            return _keep(local, found)

    return _in_parallel(receive, names, progress)


def export(
    local: LocalTier, path: str, selection: Selection, signer: Signer, progress: Progress | None = None
) -> Moved:
    """Write what the local tier has into an archive, a tar file compressed with zstd.

    Args:
        local: where entries come from.
        path: the archive; it appears when it is whole.
        selection: which entries.
        signer: signs them.
        progress: told how far it is.

    Returns:
        What came of it.

    Raises:
        ArchiveError: it cannot be written.
    """
    import zstandard

    chosen = list(choose(local, selection))
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(target):
        raise ArchiveError(f"{path}: the archive cannot be written: expected the name of a file, found something else")
    result = Moved()
    digests: dict[str, str] = {}
    with explained(ArchiveError, f"{path}: the archive cannot be written"), replacing(target) as file:
        with (
            zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for done, (name, action) in enumerate(chosen, 1):
                entry = local.read(name, action)
                if entry is None:
                    result = result.plus(Moved(rejected=1, problem=f"the output of {name} is gone or damaged"))
                    continue
                key = Key(name, action.check)
                own = _own_name(key, action, digests)
                data = encode_object(own, key, entry, signer)
                _add(archive, f"objects/{own}", data)
                digests[own] = hashlib.sha256(data).hexdigest()
                result = result.plus(Moved(moved=1, bytes=action.size))
                if progress is not None:
                    progress(done, len(chosen))
            manifest = {"schema": _SCHEMA, "created": time.time(), "objects": digests}
            _add(archive, _MANIFEST, json.dumps(manifest, sort_keys=True).encode())
        file.flush()
        os.fsync(file.fileno())
    return result


def import_(
    local: LocalTier, path: str, selection: Selection, signer: Signer, progress: Progress | None = None
) -> Moved:
    """Store locally what an archive has. Nothing is ever unpacked to a name that the archive chooses.

    Args:
        local: where entries go.
        path: the archive.
        selection: which entries.
        signer: tells whose objects are believed.
        progress: told how far it is, in bytes.

    Returns:
        What came of it. What was whole has been stored, whatever came after it.

    Raises:
        ArchiveError: the file is no archive, or its end is missing.
    """
    import zstandard

    result = Moved()
    digests: dict[str, str] = {}
    manifest: dict[str, str] | None = None
    with explained(ArchiveError, f"{path}: the archive cannot be read"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            stream: Any = zstandard.ZstdDecompressor().stream_reader(file, closefd=False)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    data = content.read() if content is not None else b""
                    if progress is not None and file.seekable():
                        progress(file.tell(), size)
                    if member.name == _MANIFEST:
                        if len(data) > _MANIFEST_BYTES * (len(digests) + 32):  # it comes last
                            raise ValueError("its manifest is too large for what it lists")
                        manifest = _read_manifest(data)
                        continue
                    matched = _MEMBER.fullmatch(member.name)
                    if matched is None:
                        raise ArchiveError(f"{path}: {member.name!r} is nothing that ptocache export writes")
                    if matched[1] in digests:
                        raise ArchiveError(f"{path}: {member.name!r} is in it twice")
                    digests[matched[1]] = hashlib.sha256(data).hexdigest()
                    archive.members.clear()  # type: ignore[attr-defined]  # which would keep all headers
                    try:
                        found = decode_object(data, matched[1], signer)
                        if selection.matches(found.entry.action):
                            result = result.plus(_keep(local, found))
                    except RejectedError as reason:
                        result = result.plus(Moved(rejected=1, problem=f"{matched[1]}: {reason}"))
        except (zstandard.ZstdError, tarfile.TarError, EOFError, ValueError) as error:
            raise ArchiveError(
                f"{path}: not an archive of ptocache export, or a damaged one ({error}); "
                f"{plural(result.moved, 'entry')} stored before that"
            ) from None
    if manifest is None:
        raise ArchiveError(f"{path}: the archive has no end; {plural(result.moved, 'entry')} of it stored")
    if manifest != digests:
        raise ArchiveError(
            f"{path}: the archive does not hold what its manifest lists; {plural(result.moved, 'entry')} of it stored"
        )
    return result


class _Member(tarfile.TarInfo):
    """A member of an archive: a plain file of a bounded size, or there is nothing more to read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Read a header, before anything that it announces is."""
        member = super().frombuf(buf, encoding, errors)
        most = _MANIFEST_LIMIT if member.name == _MANIFEST else OBJECT_LIMIT
        if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or not 0 <= member.size <= most:
            raise tarfile.ReadError(f"{member.name!r} is not a file of a size that can be")
        return member


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    import io

    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(data))


def _own_name(key: Key, action: Action, taken: Iterable[str]) -> str:
    """A name for an entry in an archive: the key's own for the first, as on an engine."""
    if key.name not in taken:
        return key.name
    inputs = decode_inputs(action.inputs) or ()
    return next_name(key, inputs, state_of(inputs))


def _read_manifest(data: bytes) -> dict[str, str]:
    """The SHA-256 of each object, by its name; raises `ValueError`."""
    try:
        manifest = json.loads(data)
        objects = manifest["objects"]
        if manifest["schema"] != _SCHEMA or not isinstance(objects, dict):
            raise ValueError("its manifest is of another version")
    except (LookupError, TypeError, RecursionError):
        raise ValueError("its manifest cannot be read") from None
    return objects


def _keep(local: LocalTier, found: SharedObject) -> Moved:
    """Store an object locally, unless it is there."""
    action = found.entry.action
    if _has(local, found):
        return Moved(present=1)
    try:
        local.put([found.key], Entry(action, found.entry.aibin))
    except Exception as error:  # noqa: BLE001 - a full disk, a broken index: said once, for all that follow too
        return Moved(failed=1, problem=f"the local cache cannot be written: {error}")
    if not _has(local, found):
        return Moved(failed=1, problem=f"{found.key.name} does not fit into the local cache (PTOCACHE_SIZE_LIMIT)")
    return Moved(moved=1, bytes=action.size)


def _has(local: LocalTier, found: SharedObject) -> bool:
    action = found.entry.action
    return any(have.inputs == action.inputs and have.check == action.check for have in local.actions(found.key.name))


def _in_parallel(move: Callable[[Any], Moved], items: Iterable[Any], progress: Progress | None) -> Moved:
    items = list(items)
    result = Moved()
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="ptocache-transfer")
    try:
        for done, moved in enumerate(_bounded_map(pool, move, items), 1):
            result = result.plus(moved)
            if progress is not None:
                progress(done, len(items))
    finally:
        pool.shutdown(cancel_futures=True)
    return result


def _bounded_map(pool: ThreadPoolExecutor, move: Callable[[Any], Moved], items: list[Any]) -> Iterator[Moved]:
    """As `map`, with a few steps ahead, so that an interrupt ends it soon."""
    rest = iter(items)
    ahead = [pool.submit(move, item) for item in itertools.islice(rest, 2 * _WORKERS)]
    while ahead:
        yield ahead.pop(0).result()
        ahead.extend(pool.submit(move, item) for item in itertools.islice(rest, 1))
