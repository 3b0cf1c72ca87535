"""What the shared tier stores: one immutable object an action, with its output in it, that proves itself.

An object is found by its name alone, and believed only for what it carries: the key that it is for and the SHA-256 of
what that key was made of, the output's SHA-256, a digest over all of it, and with a signing key an HMAC over all of it.
An object that was damaged, cut short, copied under another name or made without the key is not one.

A key whose compilation read files beside the source may have several objects, one for each state of those files. The
first is stored under the key's own name. Whoever finds it there, and has other contents in the files that it names,
goes on to the name that is made of the key and the contents that they have now, and so on. So each object can be
immutable, a hit takes one round trip as long as the files stay the same, and nothing is ever listed.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import xxhash

from ptocache.inputs import VARIABLE, Input, Inputs, decode_inputs
from ptocache.request import Key, make_key
from ptocache.store.entry import Action, Entry, State, unknown

MAGIC = b"ptoobj01"

#: The largest output that is shared, in bytes, and the largest object. Device binaries have up to some MiB.
OUTPUT_LIMIT = 256 << 20
OBJECT_LIMIT = 272 << 20

#: The most that an object says beside its output. Inputs and facts are a few hundred bytes.
_TEXT_LIMIT = 1 << 20

#: How deep the facts may be nested; they are a mapping with a mapping or lists in it.
_DEPTH = 8

#: zstd's own default. At level 3 an aibin of 256 KiB takes about a millisecond, in the background.
_LEVEL = 3

# magic, the signing key's number, HMAC-SHA256 over what follows and both of those, XXH3-128 over what follows
_HEAD = struct.Struct("<8s8s32s16s")

# the object's name, its key's name and SHA-256, SHA-256 and XXH3-128 of the output, its size, seconds to make it,
# time of making, lengths of the inputs, of the facts and of the compressed output
_FIXED = struct.Struct("<16s16s32s32s16sQddIIQ")


class RejectedError(Exception):
    """Bytes that are no object, or none that can be believed; the message says why."""


class SharedObject(NamedTuple):
    """An object, checked.

    Attributes:
        name: the name that it is stored under, 32 hexadecimal digits.
        key: the key that it is for.
        entry: what that led to.
        is_current: whether the first of the signing keys has signed it.
    """

    name: str
    key: Key
    entry: Entry
    is_current: bool = True


class Signer:
    """Signs objects, and tells who signed them.

    Args:
        keys: the secrets. The first one signs; what any of them has signed is believed. Without one, nothing is
            signed, and everything is believed that is whole.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {hmac.digest(key, b"ptocache key number", "sha256")[:8]: key for key in keys}
        self._first = next(iter(self._keys), bytes(8))

    @property
    def signs(self) -> bool:
        """Whether there is a key."""
        return bool(self._keys)

    def sign(self, body: bytes) -> bytes:
        """The head of an object with this body."""
        digest = xxhash.xxh3_128_digest(body)
        key = self._keys.get(self._first)
        code = bytes(32) if key is None else _code(key, self._first, body)
        return _HEAD.pack(MAGIC, self._first, code, digest)

    def is_current(self, data: bytes) -> bool:
        """Whether an object that was believed is signed with the first key, or there is none."""
        return data[len(MAGIC) : len(MAGIC) + 8] == self._first or not self._keys

    def check(self, data: bytes) -> memoryview:
        """The body of an object; raises `RejectedError` where it is not whole, or not signed as it has to be."""
        if len(data) < _HEAD.size or not data.startswith(MAGIC):
            raise RejectedError("not an object of this version of ptocache")
        _, number, code, digest = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if self._keys:
            key = self._keys.get(number)
            if key is None:
                raise RejectedError("not signed" if number == bytes(8) else "signed with a key that is not ours")
            if not hmac.compare_digest(code, _code(key, number, body)):
                raise RejectedError("its signature does not match")
        if xxhash.xxh3_128_digest(body) != digest:
            raise RejectedError("it does not match its own digest")
        return body


def encode_object(name: str, key: Key, entry: Entry, signer: Signer) -> bytes:
    """The bytes of an object.

    Args:
        name: the name that it will be stored under.
        key: the key that it is for.
        entry: what that led to.
        signer: signs it.
    """
    import zstandard

    action = entry.action
    output = zstandard.ZstdCompressor(level=_LEVEL).compress(entry.aibin)
    fixed = _FIXED.pack(
        bytes.fromhex(name),
        bytes.fromhex(key.name),
        key.check,
        action.sha256,
        action.xxh3,
        action.size,
        action.seconds,
        action.created,
        len(action.inputs),
        len(action.facts),
        len(output),
    )
    body = b"".join((fixed, action.inputs, action.facts, output))
    return signer.sign(body) + body


def decode_object(data: bytes, name: str, signer: Signer) -> SharedObject:
    """Read an object, and check all of it.

    Args:
        data: the bytes.
        name: the name that they were found under.
        signer: knows the signing keys.

    Raises:
        RejectedError: they are not what may be used.
    """
    body = signer.check(data)
    if len(body) < _FIXED.size:
        raise RejectedError("it is too short")
    own, key, check, sha256, xxh3, size, seconds, created, inputs, facts, length = _FIXED.unpack_from(body)
    if own.hex() != name:
        raise RejectedError(f"it is another one, {own.hex()}")
    if inputs > _TEXT_LIMIT or facts > _TEXT_LIMIT or size > OUTPUT_LIMIT:
        raise RejectedError("it is too large")
    if len(body) != _FIXED.size + inputs + facts + length:
        raise RejectedError("its parts do not add up")
    texts = bytes(body[_FIXED.size : _FIXED.size + inputs + facts])
    action = Action(check, sha256, xxh3, size, seconds, created, texts[:inputs], texts[inputs:])
    _check_texts(action)
    aibin = _decompress(body[_FIXED.size + inputs + facts :], size)
    if hashlib.sha256(aibin).digest() != sha256 or not action.made(aibin):
        raise RejectedError("its output does not match the digest")
    return SharedObject(name, Key(key.hex(), check), Entry(action, aibin), signer.is_current(data))


def next_name(key: Key, inputs: Inputs, state: Callable[[Input], str]) -> str:
    """Where to look on when the object that was found has other inputs than there are now.

    Args:
        key: what is looked for.
        inputs: those of the object.
        state: gives the digest that an input has now.
    """
    now = sorted({(_space(item), item.name, state(item)) for item in inputs})
    parts = [("kind", b"variant"), ("key", key.check), *(("input", _joined(item)) for item in now)]
    return make_key(parts).name


def state_of(inputs: Inputs, state: State = unknown) -> State:
    """The state of the files, as a compilation that read these inputs saw them; of others, as they are now."""
    digests = {(_space(item), item.name): item.digest for item in inputs}

    def seen(item: Input) -> str:
        found = digests.get((_space(item), item.name))
        return state(item) if found is None else found

    return seen


def _space(item: Input) -> str:
    """A file that is there and one that is not share their names."""
    return VARIABLE if item.kind == VARIABLE else "file"


def _joined(words: Iterable[str]) -> bytes:
    return "\0".join(words).encode("utf-8", "surrogateescape")


def _code(key: bytes, number: bytes, body: bytes | memoryview) -> bytes:
    code = hmac.new(key, MAGIC + number, hashlib.sha256)
    code.update(body)
    return code.digest()


def _check_texts(action: Action) -> None:
    """See that what other parts of ptocache read without looking is as they expect it."""
    if action.inputs and decode_inputs(action.inputs) is None:
        raise RejectedError("its inputs cannot be read")
    if not (0 <= action.seconds < 1e9 and 0 <= action.created < 1e12):
        raise RejectedError("its times cannot be")
    try:
        details = action.details()
        kernels = details["kernels"]
        is_text = isinstance(kernels, list) and all(isinstance(kernel, str) for kernel in kernels)
        is_text = is_text and _is_flat(details, _DEPTH)
    except (ValueError, LookupError, TypeError, RecursionError):
        is_text = False
    if not is_text:
        raise RejectedError("its facts cannot be read")


def _is_flat(value: object, depth: int) -> bool:
    """Whether there is little in one another: what can be decoded here may not be where there is less stack."""
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_is_flat(part, depth - 1) for part in value))


def _decompress(data: memoryview, size: int) -> bytes:
    """Decompress an output of a known size; nothing larger is ever made."""
    import zstandard

    try:
        if zstandard.frame_content_size(data) != size:
            raise RejectedError("its output has another size")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RejectedError(f"its output cannot be decompressed ({error})") from None
