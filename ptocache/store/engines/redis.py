"""Objects as values of a Redis server, and the lease that a fleet has there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import redis
from redis.backoff import NoBackoff
from redis.exceptions import LockError
from redis.lock import Lock
from redis.retry import Retry

from ptocache.store.engines import VERSION, Stored
from ptocache.store.layout import is_digest

#: What all keys begin with. `?prefix=` in the URL puts another one before it.
_PREFIX = "ptocache"

#: How many keys one step of a listing looks at.
_STEP = 500


#: What a lease's holder leaves in its place where it has no result for those who wait.
_IN_VAIN = b"in vain"

_LEAVE_IN_VAIN = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
    return 1
end
return 0
"""


class RedisLease:
    """A lock on the server that ends by itself, and that only its holder can renew or end before."""

    def __init__(self, server: Any, name: str, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self._lock = Lock(server, name, timeout=seconds, blocking=False, thread_local=False)

    def acquire(self) -> bool | None:
        """Take it, if nobody has it; `None` where there is none to wait for.

        That is so where it was held in vain, and where the server gives none, as when it is full.

        A holder that dies leaves nothing, and its lease is one to wait for.
        """
        token = uuid4().hex.encode()
        try:
            answer = self._server.set(self._lock.name, token, nx=True, px=int(self._seconds * 1000))
        except redis.ResponseError:
            return None
        if answer is True:
            self._lock.local.token = token
            return True
        if answer is not None or self._server.get(self._lock.name) == _IN_VAIN:
            return None
        return False

    def renew(self) -> bool:
        """Let it last as long again; whether it was still held."""
        try:
            return bool(self._lock.reacquire())
        except LockError:
            return False

    def release(self, in_vain: bool = False) -> bool:
        """Give it back; whether it was still held.

        Args:
            in_vain: whether those who wait would wait for nothing: they need not take turns in failing.
        """
        if in_vain:
            token = self._lock.local.token or b""
            milliseconds = int(self._seconds * 1000)
            return bool(self._server.eval(_LEAVE_IN_VAIN, 1, self._lock.name, token, _IN_VAIN, milliseconds))
        try:
            self._lock.release()
        except LockError:
            return False
        return True


class RedisEngine:
    """Objects on a Redis server (a `ptocache.store.engines.Engine`).

    Args:
        url: what `redis.Redis.from_url` takes; `?prefix=NAME` instead of the prefix `ptocache` is ours.
        timeout: how long to wait for the server, to connect and for each answer, in seconds.
    """

    def __init__(self, url: str, timeout: float) -> None:
        found = re.search(r"[?&]prefix=([^&]*)", url)
        prefix = unquote(found[1]) if found else _PREFIX
        url = re.sub(r"([?&])prefix=[^&]*&?", r"\1", url).rstrip("?&")
        self._objects = f"{prefix}:{VERSION}:object:"
        self._leases = f"{prefix}:{VERSION}:lease:"
        self._server: Any = redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )

    def get(self, name: str, limit: int) -> bytes | None:
        """What is stored under a name; an object is never empty."""
        try:
            data = self._server.getrange(self._objects + name, 0, limit)
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            return b""  # something is there, and no object
        if not isinstance(data, bytes):
            raise redis.InvalidResponse(f"expected a text, found {type(data).__name__}")
        return data or None

    def put(self, name: str, data: bytes, replace: bool) -> bool:
        """Store something, whole."""
        return bool(self._server.set(self._objects + name, data, nx=not replace))

    def delete(self, name: str) -> None:
        """Remove what is stored under a name."""
        self._server.delete(self._objects + name)

    def abort(self) -> None:
        """End what is on its way: an answer that was given up would be read on, however long it is."""
        self._server.connection_pool.disconnect()

    def list(self) -> Iterator[Stored]:
        """All that is stored. An age is the time since an object was used, where the server keeps it."""
        pattern = re.sub(r"([\\*?\[\]^-])", r"\\\1", self._objects)
        for key in self._server.scan_iter(match=f"{pattern}*", count=_STEP):
            name = key.decode("ascii", "replace").removeprefix(self._objects)
            if is_digest(name, 32):
                # Neither of these counts as a use, for which STRLEN does, and both take whatever is there.
                age, size = self._idle_time(key), self._server.memory_usage(key, samples=0)
                if size is not None:
                    yield Stored(name, int(size), age)

    def clock(self) -> float:
        """The server's time of day."""
        seconds, micros = self._server.time()
        return float(seconds) + float(micros) / 1e6

    def lease(self, name: str, seconds: float) -> RedisLease:
        """A lease on a key, to be taken.

        Args:
            name: the key's name.
            seconds: how long it lasts if it is not renewed.
        """
        return RedisLease(self._server, self._leases + name, seconds)

    def _idle_time(self, key: bytes) -> float:
        try:
            return float(self._server.object("idletime", key) or 0)
        except redis.ResponseError:  # the server counts uses instead (an LFU policy), or it is gone
            return 0.0
