"""Objects in S3, Google Cloud Storage, Azure, or on an HTTP server that takes GET and PUT (WebDAV), through obstore.

obstore takes credentials and regions from the environment and from the machine's own identity, as the tools of each
provider do. Its work is done by threads that a forked child does not have, and that cannot be made anew there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from ptocache.errors import PtocacheError
from ptocache.store.engines import VERSION, Stored
from ptocache.store.layout import is_digest


class ForkedError(PtocacheError):
    """An engine cannot be used in a forked child of a process that has used it."""


class ObjectStoreEngine:
    """Objects in an object store (a `ptocache.store.engines.Engine`).

    Args:
        url: `s3://`, `gs://`, `az://`, `http://` or `https://`.
        timeout: how long a request may take, and how long to connect, in seconds.
    """

    def __init__(self, url: str, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        plain = url.lower().startswith("http:") or endpoint.lower().startswith("http:")
        url, headers = _without_credentials(url)
        self._store: Any = from_url(
            url,
            client_options={
                "timeout": limit,
                "connect_timeout": limit,
                "allow_http": plain,
                "default_headers": headers,
            },
            retry_config={"max_retries": 0, "retry_timeout": limit},
        )
        self._is_web = url.lower().startswith("http")
        self._creates = not self._is_web
        _begin_process()

    def get(self, name: str, limit: int) -> bytes | None:
        """What is stored under a name."""
        _see_that_it_works_here()
        try:
            found = self._store.get(_path(name))
        except FileNotFoundError:
            return None
        if found.meta["size"] > limit:
            return b""  # something is there, and no object
        return bytes(found.bytes())

    def put(self, name: str, data: bytes, replace: bool) -> bool:
        """Store something, whole: what is half sent is not stored by any of these."""
        _see_that_it_works_here()
        if not replace and self._creates:
            try:
                self._store.put(_path(name), data, mode="create")
                return True
            except AlreadyExistsError:
                return False
            except NotImplementedError:  # a server without conditional writes
                self._creates = False
        if not replace and self._exists(name):
            return False
        self._store.put(_path(name), data)
        return True

    def delete(self, name: str) -> None:
        """Remove what is stored under a name."""
        _see_that_it_works_here()
        with contextlib.suppress(FileNotFoundError):
            self._store.delete(_path(name))

    def list(self) -> Iterator[Stored]:
        """All that is stored; a web server has to answer PROPFIND for this."""
        _see_that_it_works_here()
        now = time.time()
        for chunk in self._directories() if self._is_web else self._store.list(f"{VERSION}/"):
            for found in chunk:
                name = found["path"].rpartition("/")[2]
                if is_digest(name, 32):
                    yield Stored(name, found["size"], now - found["last_modified"].timestamp())

    def _directories(self) -> Iterator[Any]:
        """What is in each directory: web servers do not list a whole tree at once (RFC 4918, 9.1)."""
        for folder in self._store.list_with_delimiter(VERSION)["common_prefixes"]:
            name = folder.rpartition("/")[2]
            if is_digest(name, 2):
                yield self._store.list_with_delimiter(f"{VERSION}/{name}")["objects"]

    def clock(self) -> float | None:
        """The time that the store gives to an object that is stored now, whole seconds."""
        _see_that_it_works_here()
        path = f"{VERSION}/clock-{os.urandom(8).hex()}"
        self._store.put(path, b"clock")
        modified: float = self._store.head(path)["last_modified"].timestamp()
        self._store.delete(path)
        return modified

    def _exists(self, name: str) -> bool:
        try:
            self._store.head(_path(name))
        except FileNotFoundError:
            return False
        return True


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """A URL without its user and password, and the header that says them, which obstore does not make of them."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.username is None or parts.scheme not in {"http", "https"}:
        return url, {}
    import base64

    said = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {base64.b64encode(said).decode()}"}


def _path(name: str) -> str:
    return f"{VERSION}/{name[:2]}/{name}"


#: The process in which obstore's threads were started.
_process: list[int] = []


def _begin_process() -> None:
    if not _process:
        _process.append(os.getpid())


def _see_that_it_works_here() -> None:
    if _process[0] != os.getpid():
        raise ForkedError(
            "object stores and web servers cannot be reached from a forked child of a process that has used them "
            "(their library's threads stay behind): start processes with spawn or forkserver, or use Redis or file://"
        )
