"""The engines that objects can be shared through: what is asked of one, and which URL names which.

An engine is a plain store of bytes by name. It may raise any `Exception`; whoever calls it sees to the time that a
call takes, to its being asked too often, and to what it answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple, Protocol

#: A part of every name that an engine stores under: objects of another layout are never met.
VERSION = "v1"

#: The schemes, with the module that serves each, the library that it needs and the extra that installs it.
_SCHEMES = {
    "file": ("file", "", ""),
    "redis": ("redis", "redis", "redis"),
    "rediss": ("redis", "redis", "redis"),
    "s3": ("objectstore", "obstore", "s3"),
    "gs": ("objectstore", "obstore", "gs"),
    "az": ("objectstore", "obstore", "az"),
    "http": ("objectstore", "obstore", "http"),
    "https": ("objectstore", "obstore", "http"),
}

_EXAMPLES = (
    "file:///mnt/nfs/ptocache, redis://host:6379/0, rediss://host:6379/0, s3://bucket/prefix, gs://bucket/prefix, "
    "az://container/prefix, https://host/path"
)

_READONLY = "#readonly"

#: What is said of an error beyond this is cut off, in characters.
_LONGEST_PROBLEM = 400


class EngineUrl(NamedTuple):
    """Where to find an engine. As text it is without what may be secret in it.

    Attributes:
        url: the URL, as it was given, without the mark.
        readonly: whether it was marked as one that is only read.
    """

    url: str
    readonly: bool = False

    def __str__(self) -> str:
        return redact(self.url)

    def __repr__(self) -> str:
        return f"EngineUrl({redact(self.url)!r}, readonly={self.readonly})"

    @property
    def text(self) -> str:
        """How it is written in a setting, with all that is secret in it."""
        return f"{self.url}{_READONLY if self.readonly else ''}"

    @property
    def scheme(self) -> str:
        """Which kind of engine it is."""
        return self.url.partition(":")[0].lower()


class Stored(NamedTuple):
    """An object, as an engine lists it.

    Attributes:
        name: its name.
        size: how many bytes it has.
        age: how many seconds ago it was stored or used, as the engine knows it.
    """

    name: str
    size: int
    age: float


class Engine(Protocol):
    """A store of bytes by name. The names are 32 hexadecimal digits."""

    def get(self, name: str, limit: int) -> bytes | None:
        """What is stored under a name; `None` for nothing. It need not be whole where it is larger than the limit."""

    def put(self, name: str, data: bytes, replace: bool) -> bool:
        """Store something so that nobody sees a part of it.

        Returns:
            Whether it was stored: where there is something already, and that is not to be replaced, it is not.
        """

    def delete(self, name: str) -> None:
        """Remove what is stored under a name, if there is anything."""

    def list(self) -> Iterator[Stored]:
        """All that is stored; raises `NotImplementedError` where the engine cannot tell."""

    def clock(self) -> float | None:
        """The engine's time of day, in seconds since the epoch; `None` where it does not tell."""


def parse_urls(text: str) -> tuple[EngineUrl, ...]:
    """Read what `PTOCACHE_SHARED` says.

    Args:
        text: URLs, separated by white space; `#readonly` at the end of one marks it.

    Returns:
        The engines, in the order in which they are asked.

    Raises:
        ValueError: one of them cannot be used; the message says what can.
    """
    return tuple(_parse_url(word) for word in text.split())


def make_engine(url: EngineUrl, timeout: float, umask: int | None = None, readonly: bool = False) -> Engine:
    """The engine that a URL names. Its library is loaded here.

    Args:
        url: where it is.
        timeout: how long one call may take, in seconds, as far as its library can be told.
        umask: for directories that are made: the permissions that they are not to have, `None` for private ones.
        readonly: do not even mark what is used.
    """
    module = _SCHEMES[url.scheme][0]
    if module == "file":
        from ptocache.store.engines.file import FileEngine, path_of

        return FileEngine(path_of(url.url), umask, readonly)
    if module == "redis":
        from ptocache.store.engines.redis import RedisEngine

        return RedisEngine(url.url, timeout)
    from ptocache.store.engines.objectstore import ObjectStoreEngine

    return ObjectStoreEngine(url.url, timeout)


def describe(error: BaseException) -> str:
    """What an engine's library says of an error, in one line and without secrets."""
    text = (str(error) or type(error).__name__).strip()
    text = re.sub(r"(status code: \d+[A-Za-z ]*).*", r"\1", text, flags=re.DOTALL)  # what follows is the server's own
    text = re.split(r"\n|\bDebug source\b|: *<(?:html|!DOCTYPE)", text, maxsplit=1, flags=re.IGNORECASE)[0]
    return redact(text)[:_LONGEST_PROBLEM].rstrip(" .:")


def redact(text: str) -> str:
    """A text without the passwords and the signatures of the URLs in it."""
    text = re.sub(r"(\w://)[^/?#\s]*@", r"\1***@", text)  # up to the last @: a password may have one
    return re.sub(r"(\w://[^\s?]*\?)[^\s#]*", r"\1***", text)


def _parse_url(word: str) -> EngineUrl:
    readonly = word.endswith(_READONLY)
    url = word.removesuffix(_READONLY)
    # Who mistypes a URL may have a password anywhere before the @.
    shown = redact(re.sub(r"^(\w*:/*)?\S*@", r"\1***@", url))
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.lower() not in _SCHEMES:
        raise ValueError(f"expected a URL such as {_EXAMPLES}, found {shown!r}")
    if "#" in rest:
        raise ValueError(f"expected nothing or {_READONLY} after the URL, found {shown!r}")
    from urllib.parse import urlsplit  # only whoever shares pays for it

    try:
        parts = urlsplit(url)
        is_complete = bool(parts.netloc) and (parts.port is None or parts.hostname)
    except ValueError:  # what it says may have a part of a password in it
        raise ValueError(f"{shown!r} is not a URL: expected one such as {_EXAMPLES}") from None
    if scheme.lower() == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.strip("/") or "?" in rest:
            raise ValueError(f"expected an absolute path, as in file:///mnt/nfs/ptocache, found {shown!r}")
    elif not is_complete or not (parts.hostname or scheme.lower() in {"s3", "gs", "az"}):
        raise ValueError(f"there is no host in {shown!r}: expected a URL such as {_EXAMPLES}")
    if scheme.lower() in {"redis", "rediss", "http", "https"} and "@" in rest[len(parts.netloc) :].partition("?")[0]:
        raise ValueError(f"expected a password with / written as %2F, and @ as %40, found {shown!r}")
    if scheme.lower() in {"redis", "rediss"} and not re.fullmatch(r"/?\d*/?", parts.path):
        raise ValueError(f"expected a database's number after the host, as in redis://host:6379/0, found {shown!r}")
    if "%00" in rest:
        raise ValueError(f"expected a URL without %00, found {shown!r}")
    _, library, extra = _SCHEMES[scheme.lower()]
    if library and find_spec(library) is None:
        raise ValueError(f"{shown!r} needs the library {library}: pip install 'ptocache[{extra}]'")
    rest = rest.rstrip("/") if scheme.lower() in {"http", "https"} else rest
    return EngineUrl(f"{scheme.lower()}://{rest}", readonly)
