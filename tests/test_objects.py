"""An object of the shared tier is believed only if it is whole, its own, signed as it has to be, and harmless."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ptocache.counters import Counters
from ptocache.inputs import ABSENT, FILE, VARIABLE, Input, Inputs, decode_inputs, encode_inputs
from ptocache.request import Key, make_key
from ptocache.store import objects
from ptocache.store.engines import EngineUrl, Stored
from ptocache.store.entry import Entry, json_bytes, make_entry
from ptocache.store.objects import RejectedError, Signer, decode_object, encode_object, next_name, state_of
from ptocache.store.shared import VARIANTS, SharedTier
from ptocache.store.uploads import Uploads

KEY, OTHER = make_key([("text", b"kernel")]), make_key([("text", b"other kernel")])
ANN, BOB = b"the key of ann, a secret", b"the key of bob, a secret"
NOBODY, SIGNER = Signer(), Signer([ANN])
INPUTS: Inputs = (Input(ABSENT, "pkg/gone.py", ""), Input(FILE, "pkg/a.py", "ab" * 16), Input(VARIABLE, "HOME", ""))
BIG = random.Random(1).randbytes(100_000)


def made(aibin: bytes = b"a device binary " * 4, inputs: Inputs = INPUTS, **facts: Any) -> Entry:
    facts = {"kernels": ["main_kernel"], **facts}
    entry = make_entry(aibin, seconds=1.5, created=1.7e9, facts=facts, inputs=encode_inputs(inputs))
    return entry._replace(action=entry.action._replace(check=KEY.check))


ENTRY = made()


def forged(signer: Signer = NOBODY, entry: Entry = ENTRY, **changes: Any) -> bytes:
    """An object with a right digest and signature, and something changed in it."""
    action = entry.action
    texts = {
        "inputs": changes.pop("inputs", action.inputs),
        "facts": changes.pop("facts", action.facts),
        "output": changes.pop("output", zstandard.compress(entry.aibin)),
    }
    fields = {
        "name": bytes.fromhex(KEY.name),
        "key": bytes.fromhex(KEY.name),
        "check": KEY.check,
        "sha256": action.sha256,
        "xxh3": action.xxh3,
        "size": action.size,
        "seconds": action.seconds,
        "created": action.created,
        **{f"{part}_length": len(text) for part, text in texts.items()},
    }
    assert not set(changes) - set(fields)
    body = objects._FIXED.pack(*{**fields, **changes}.values()) + b"".join(texts.values())
    return signer.sign(body) + body


def rejected(data: bytes, name: str = KEY.name, signer: Signer = NOBODY) -> str:
    """The reason for which these bytes are no object."""
    with pytest.raises(RejectedError) as caught:
        decode_object(data, name, signer)
    return str(caught.value)


signers = pytest.mark.parametrize("signer", [NOBODY, SIGNER], ids=["unsigned", "signed"])

# What is whole.


@signers
@pytest.mark.parametrize("aibin", [b"", b"x", b"a device binary", bytes(1 << 20), BIG], ids=len)
@pytest.mark.parametrize("inputs", [(), INPUTS], ids=["alone", "with inputs"])
def test_what_was_stored_is_found(signer: Signer, aibin: bytes, inputs: Inputs) -> None:
    entry = made(aibin, inputs, text="é ☃", nothing=None)
    found = decode_object(encode_object(KEY.name, KEY, entry, signer), KEY.name, signer)
    assert found == (KEY.name, KEY, entry, True)


@given(
    st.binary(max_size=400),
    st.lists(
        st.builds(
            Input,
            st.sampled_from([FILE, ABSENT, VARIABLE]),
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
            st.sampled_from(["", "ab" * 16]),
        ),
        max_size=4,
    ).map(tuple),
    st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.text(max_size=5) | st.integers(), max_size=4),
    st.booleans(),
)
def test_whatever_was_stored_is_found(aibin: bytes, inputs: Inputs, facts: dict[str, Any], is_signed: bool) -> None:
    signer = SIGNER if is_signed else NOBODY
    facts.pop("kernels", None)
    entry = made(aibin, inputs, **facts)
    assert decode_object(encode_object(KEY.name, KEY, entry, signer), KEY.name, signer).entry == entry


def test_the_forger_of_these_tests_makes_what_would_be_believed() -> None:
    for signer in (NOBODY, SIGNER):
        assert decode_object(forged(signer), KEY.name, signer).entry == ENTRY


# What is damaged.


@signers
def test_every_bit_counts(signer: Signer) -> None:
    """Of who signed it, to whoever asks for no signature, only the answer: it is the same object."""
    data = encode_object(KEY.name, KEY, ENTRY, signer)
    free = range(8, 48) if signer is NOBODY else range(0)
    for place in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[place] ^= 1 << bit
            if place in free:
                assert decode_object(bytes(wrong), KEY.name, signer).entry == ENTRY
            else:
                rejected(bytes(wrong), signer=signer)


@signers
def test_every_byte_counts_of_how_many_there_are(signer: Signer) -> None:
    data = encode_object(KEY.name, KEY, ENTRY, signer)
    for length in range(len(data)):
        rejected(data[:length], signer=signer)
        if length:
            rejected(data[length:], signer=signer)
    for more in (b"\0", b"more", data):
        rejected(data + more, signer=signer)
    rejected(b"\0" + data, signer=signer)


@signers
def test_every_byte_that_is_missing_or_too_many_shows_with_a_right_digest_too(signer: Signer) -> None:
    """A writer of somebody else's made it, and signed what it made."""
    body = encode_object(KEY.name, KEY, ENTRY, signer)[objects._HEAD.size :]
    for length in range(len(body)):
        rejected(signer.sign(body[:length]) + body[:length], signer=signer)
    for more in (b"\0", body):
        rejected(signer.sign(body + more) + body + more, signer=signer)


@signers
def test_every_bit_that_a_writer_gets_wrong_gives_an_object_that_says_so_or_is_harmless(signer: Signer) -> None:
    """With a digest over what is wrong, what is believed is another time, another fact or another input."""
    body = encode_object(KEY.name, KEY, ENTRY, signer)[objects._HEAD.size :]
    for place in range(len(body)):
        for bit in range(8):
            changed = bytearray(body)
            changed[place] ^= 1 << bit
            wrong = bytes(changed)
            try:
                found = decode_object(signer.sign(wrong) + wrong, KEY.name, signer)
            except RejectedError:
                continue
            assert found.entry.aibin == ENTRY.aibin
            assert found.name == KEY.name


@signers
def test_under_another_name_it_is_another_ones(signer: Signer) -> None:
    data = encode_object(KEY.name, KEY, ENTRY, signer)
    for name in (OTHER.name, "0" * 32, KEY.name.upper()):
        assert "another one" in rejected(data, name, signer)


@given(st.binary(max_size=300), st.booleans(), st.booleans(), st.booleans())
def test_whatever_bytes_there_are_nothing_else_is_raised(
    data: bytes, has_magic: bool, has_head: bool, is_signed: bool
) -> None:
    signer = SIGNER if is_signed else NOBODY
    if has_head:
        data = signer.sign(data) + data
    elif has_magic:
        data = objects.MAGIC + data
    rejected(data, signer=signer)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_parts_are_nothing_else_is_raised(data: st.DataObject) -> None:
    """Each part may be right, or anything; the digest and the name are right."""
    changes: dict[str, Any] = {}
    raw = st.binary(max_size=60)
    for part in data.draw(st.sets(st.sampled_from(["inputs", "facts", "output"]))):
        json_like = st.recursive(st.none() | st.text(max_size=3) | st.floats(), st.lists, max_leaves=5)
        options = {
            "inputs": st.lists(st.sampled_from([b"file", b"absent", b"", b"\xff", b"x"])).map(b"\0".join),
            "facts": st.dictionaries(st.sampled_from(["kernels", "x"]), json_like).map(json_bytes),
            "output": raw.map(lambda text: zstandard.compress(text)[: len(text) + 4]),
        }
        changes[part] = data.draw(options[part] | raw)
    numbers = {"size": 64, "inputs_length": 32, "facts_length": 32, "output_length": 64}
    for field in data.draw(st.sets(st.sampled_from([*numbers, "seconds", "created"]))):
        is_time = field not in numbers
        changes[field] = data.draw(st.floats() if is_time else st.integers(0, 2 ** numbers[field] - 1))
    for signer in (NOBODY, SIGNER):
        try:
            found = decode_object(forged(signer, **changes), KEY.name, signer)
        except RejectedError:
            continue
        action = found.entry.action
        assert found.entry.aibin == ENTRY.aibin
        assert math.isfinite(action.seconds)
        assert math.isfinite(action.created)
        assert all(isinstance(kernel, str) for kernel in action.details()["kernels"])


# Who signed it.


def test_without_a_key_nothing_is_signed_and_everything_is_believed() -> None:
    assert not NOBODY.signs
    for signer in (NOBODY, SIGNER, Signer([BOB])):
        assert decode_object(encode_object(KEY.name, KEY, ENTRY, signer), KEY.name, NOBODY).entry == ENTRY


def test_with_a_key_only_what_it_signed_is_believed() -> None:
    assert SIGNER.signs
    assert rejected(encode_object(KEY.name, KEY, ENTRY, NOBODY), signer=SIGNER) == "not signed"
    stranger = encode_object(KEY.name, KEY, ENTRY, Signer([BOB]))
    assert rejected(stranger, signer=SIGNER) == "signed with a key that is not ours"


def test_any_key_is_believed_and_the_first_one_signs() -> None:
    both, turned = Signer([BOB, ANN]), Signer([ANN, BOB])
    for signer in (SIGNER, Signer([BOB]), both, turned):
        data = encode_object(KEY.name, KEY, ENTRY, signer)
        assert decode_object(data, KEY.name, both).entry == decode_object(data, KEY.name, turned).entry == ENTRY
    assert encode_object(KEY.name, KEY, ENTRY, both) == encode_object(KEY.name, KEY, ENTRY, Signer([BOB]))
    rejected(encode_object(KEY.name, KEY, ENTRY, both), signer=SIGNER)


def test_a_key_that_is_named_twice_is_one() -> None:
    data = encode_object(KEY.name, KEY, ENTRY, Signer([ANN, ANN]))
    assert decode_object(data, KEY.name, SIGNER).entry == ENTRY


@pytest.mark.parametrize(
    "changes",
    [
        {"name": bytes.fromhex(OTHER.name)},
        {"key": bytes.fromhex(OTHER.name)},
        {"check": OTHER.check},
        {"seconds": 2.0},
        {"created": 1.8e9},
        {"inputs": encode_inputs(INPUTS[1:])},
        {"inputs": b""},
        {"facts": json_bytes({"kernels": []})},
        {
            "output": zstandard.compress(b"another"),
            "size": 7,
            "sha256": made(b"another").action.sha256,
            "xxh3": made(b"another").action.xxh3,
        },
    ],
    ids=" ".join,
)
def test_a_signature_covers_every_part(changes: dict[str, Any]) -> None:
    """What was changed without the key has the digest that it should have, and keeps the signature of what it was."""
    name = changes.get("name", bytes.fromhex(KEY.name)).hex()
    right, wrong = forged(SIGNER), forged(**changes)
    magic, number, code, _ = objects._HEAD.unpack_from(right)
    digest = objects._HEAD.unpack_from(wrong)[3]
    assert decode_object(wrong, name, NOBODY).name == name  # it is only the signature that is wrong
    body = wrong[objects._HEAD.size :]
    assert rejected(objects._HEAD.pack(magic, number, code, digest) + body, name, SIGNER).startswith("its signature")
    assert rejected(objects._HEAD.pack(magic, number, bytes(32), digest) + body, name, SIGNER).startswith("its sig")


def test_a_signature_is_of_one_key() -> None:
    """Who has one of the keys cannot say that it was the other one."""
    both = Signer([ANN, BOB])
    head, other = forged(SIGNER)[: objects._HEAD.size], forged(Signer([BOB]))[: objects._HEAD.size]
    magic, _, code, digest = objects._HEAD.unpack(head)
    number = objects._HEAD.unpack(other)[1]
    wrong = objects._HEAD.pack(magic, number, code, digest) + forged()[objects._HEAD.size :]
    assert rejected(wrong, signer=both).startswith("its signature")


def test_nothing_tells_the_key() -> None:
    data = encode_object(KEY.name, KEY, ENTRY, SIGNER)
    assert ANN not in data
    assert ANN.decode() not in repr(SIGNER)


# What is too much.


def rle_frame(size: int | None, blocks: int, window: int = 17, last: bool = True) -> bytes:
    """A zstd frame of so many blocks of 128 KiB of zeros, 4 bytes each, that says that it has this size."""
    head = b"\x28\xb5\x2f\xfd"
    window_byte = bytes([(window - 10) << 3])
    head += b"\x00" + window_byte if size is None else b"\xc0" + window_byte + size.to_bytes(8, "little")
    block = (128 << 10) << 3 | 1 << 1
    chunks = [block.to_bytes(3, "little") + b"\0"] * (blocks - 1)
    return head + b"".join(chunks) + (block | last).to_bytes(3, "little") + b"\0"


MANY = 32768  # blocks: 4 GiB

#: What is believed of it by its digest and its own size, and would take much more.
BOMBS: dict[str, dict[str, Any]] = {
    "that says nothing of its size": {"output": rle_frame(None, MANY)},
    "that says a small size": {"output": rle_frame(ENTRY.action.size, MANY)},
    "that says its size": {"output": rle_frame(MANY << 17, MANY)},
    "that says its size inside and out": {"output": rle_frame(MANY << 17, MANY), "size": MANY << 17},
    "that says a size beyond any": {"output": rle_frame(2**63, 1)},
    "that says a size beyond any, inside and out": {"output": rle_frame(2**64 - 2, 1), "size": 2**64 - 2},
    "that says it is of unknown size": {"output": rle_frame(2**64 - 1, 1), "size": 2**64 - 1},
    "with the largest window": {"output": rle_frame(ENTRY.action.size, 1, window=41)},
    "with the largest window and no size": {"output": rle_frame(None, 1, window=41)},
    "with a large window": {"output": rle_frame(ENTRY.action.size, 1, window=31)},
    "without an end": {"output": rle_frame(ENTRY.action.size, 1, last=False)},
    "one byte above the limit": {"size": objects.OUTPUT_LIMIT + 1, "output": rle_frame(objects.OUTPUT_LIMIT + 1, 2049)},
    "of facts": {"facts": b'{"kernels": [' + b'"",' * (2 << 20) + b'""]}'},
    "of inputs": {"inputs": b"file\0x\0y\0" * (1 << 20)},
    "of nested facts": {"facts": b'{"kernels": [], "x": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"},
}


@pytest.mark.parametrize("what", BOMBS)
@signers
def test_a_bomb_is_rejected(what: str, signer: Signer) -> None:
    rejected(forged(signer, **BOMBS[what]), signer=signer)


LITTLE_MEMORY = """
import pathlib, resource, sys
from ptocache.store.objects import RejectedError, Signer, decode_object
import json, zstandard
name, *paths = sys.argv[1:]
data = [pathlib.Path(path).read_bytes() for path in paths]
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path, one in zip(paths, data):
    try:
        decode_object(one, name, Signer())
        print("believed:", path)
    except RejectedError:
        pass
    except BaseException as error:
        print(type(error).__name__, path)
"""


def test_bombs_take_no_more_memory_than_an_object_may(tmp_path: Any) -> None:
    """48 MiB, in all: less than any of them would take."""
    paths = []
    for what, changes in BOMBS.items():
        paths.append(tmp_path / what)
        paths[-1].write_bytes(forged(**changes))
    command = [sys.executable, "-c", LITTLE_MEMORY, KEY.name, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_largest_output_is_found_and_one_byte_more_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "OUTPUT_LIMIT", len(BIG))
    data = encode_object(KEY.name, KEY, made(BIG), NOBODY)
    assert decode_object(data, KEY.name, NOBODY).entry.aibin == BIG
    assert "too large" in rejected(encode_object(KEY.name, KEY, made(BIG + b"x"), NOBODY))


LENGTHS = [2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1]


@pytest.mark.parametrize(
    "changes",
    [
        *({f"{part}_length": length} for part in ("inputs", "facts") for length in LENGTHS),
        *({"output_length": length} for length in (*LENGTHS, 2**63, 2**64 - 1, 0)),
        *({"size": size} for size in (0, ENTRY.action.size - 1, ENTRY.action.size + 1, 2**63, 2**64 - 1)),
        {"inputs_length": 0},
        {"facts_length": 0},
        {"inputs_length": len(ENTRY.action.inputs) + 1, "facts_length": len(ENTRY.action.facts) - 1},
        {"inputs_length": len(ENTRY.action.inputs) - 3, "facts_length": len(ENTRY.action.facts) + 3},
    ],
    ids=str,
)
def test_lengths_that_do_not_add_up_are_rejected(changes: dict[str, Any]) -> None:
    rejected(forged(**changes))


# What other parts would stumble over.


@pytest.mark.parametrize(
    "facts",
    [
        b"",
        b"{",
        b"null",
        b"1",
        b'"kernels"',
        b"[]",
        b"{}",
        b'["kernels"]',
        b'{"kernels": null}',
        b'{"kernels": "main_kernel"}',
        b'{"kernels": {"main_kernel": 1}}',
        b'{"kernels": [1]}',
        b'{"kernels": [["main_kernel"]]}',
        b'{"kernels": [null]}',
        b'{"kernels": ["\xff"]}',
        b'{"kernels": []} more',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"kernels": [], "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"kernels": [], "x": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda facts: facts[:40].decode(errors="replace"),
)
def test_facts_that_cannot_be_read_are_rejected(facts: bytes) -> None:
    assert "facts" in rejected(forged(facts=facts))


def test_facts_that_are_believed_can_be_read_anywhere_in_a_program() -> None:
    """Not only where they were checked: further down there is less room for what is nested."""

    def deeper(calls: int, entry: Entry) -> None:
        if calls:
            deeper(calls - 1, entry)
        else:
            entry.action.details()

    believed = []
    for depth in range(5, 1200, 5):
        facts = b'{"kernels": [], "x": ' + b"[" * depth + b"]" * depth + b"}"
        try:
            believed.append(decode_object(forged(facts=facts), KEY.name, NOBODY).entry)
        except RejectedError:
            break
    assert believed
    deeper(50, believed[-1])


@pytest.mark.parametrize(
    "inputs",
    [
        b"nonsense",
        b"\0",
        b"file\0name\0digest",
        b"file\0name\0digest\0more",
        b"link\0name\0digest\0",
        b"\0\0\0",
        b"file\0\xff\0",
        b"file\0name\0digest\0\0",
    ],
)
def test_inputs_that_are_none_are_rejected(inputs: bytes) -> None:
    assert "inputs" in rejected(forged(inputs=inputs))


@pytest.mark.parametrize("field", ["seconds", "created"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -1e-300, 1e13, sys.float_info.max])
def test_times_that_cannot_be_are_rejected(field: str, value: float) -> None:
    assert "times" in rejected(forged(**dict[str, Any]({field: value})))


@pytest.mark.parametrize("changes", [{"sha256": bytes(32)}, {"xxh3": bytes(16)}, {"output": zstandard.compress(b"x")}])
def test_an_output_that_is_not_the_one_that_is_named_is_rejected(changes: dict[str, Any]) -> None:
    assert "its output" in rejected(forged(**changes))


@pytest.mark.parametrize(
    "output",
    [
        b"",
        ENTRY.aibin,
        zstandard.compress(ENTRY.aibin)[:-1],
        zstandard.compress(ENTRY.aibin) + b"\0",
        zstandard.compress(ENTRY.aibin[:10]) + zstandard.compress(ENTRY.aibin[10:]),
        zstandard.ZstdCompressor(write_content_size=False).compress(ENTRY.aibin),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstandard.compress(ENTRY.aibin),
        zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(ENTRY.aibin)).compress(ENTRY.aibin),
    ],
    ids=[
        "none",
        "plain",
        "cut short",
        "and more",
        "in two",
        "of unknown size",
        "behind something",
        "with a dictionary",
    ],
)
def test_an_output_that_is_not_one_frame_is_rejected(output: bytes) -> None:
    assert "its output" in rejected(forged(output=output))


def test_a_skipped_frame_is_no_empty_output() -> None:
    empty = made(b"")
    try:
        found = decode_object(forged(entry=empty, output=b"\x50\x2a\x4d\x18\0\0\0\0"), KEY.name, NOBODY)
    except RejectedError:
        return
    assert found.entry.aibin == b""


# Where the states of the files that were read are found.


class MemoryEngine:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def get(self, name: str, limit: int) -> bytes | None:
        self.asked.append(name)
        return self.objects.get(name)

    def put(self, name: str, data: bytes, replace: bool) -> bool:
        with self._lock:
            if name in self.objects and not replace:
                return False
            self.objects[name] = data
            return True

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)

    def list(self) -> Iterator[Stored]:
        return (Stored(name, len(data), 0.0) for name, data in self.objects.items())

    def clock(self) -> float | None:
        return None


World = dict[str, str]  # what is in the files that are there; and the variables that are set, with a $ before them


class Program:
    """A lowering: what it reads next depends on what it has read, and what it makes on all of it.

    Args:
        seed: which one it is.
    """

    NAMES = ("a.py", "b.py", "c.py", "$V")

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, world: World) -> Entry:
        seen: dict[str, str | None] = {}
        while True:
            choices = [name for name in self.NAMES if name not in seen]
            choice = random.Random(repr((self._seed, sorted(seen.items(), key=str)))).choice([*choices, None])
            if choice is None:
                break
            seen[choice] = world.get(choice)
        inputs = tuple(sorted(now(name, world) for name in seen))
        return made(repr((self._seed, sorted(seen.items(), key=str))).encode(), inputs)


def now(name: str, world: World) -> Input:
    if name.startswith("$"):
        return Input(VARIABLE, name[1:], world.get(name, ""))
    return Input(FILE, name, world[name]) if name in world else Input(ABSENT, name, "")


def state_in(world: World) -> Any:
    return lambda item: world.get(f"${item.name}" if item.kind == VARIABLE else item.name, "")


def accept_in(world: World) -> Any:
    def accept(data: bytes) -> bool:
        inputs = decode_inputs(data)
        assert inputs is not None
        return all(state_in(world)(item) == item.digest for item in inputs)

    return accept


def tier_with(engine: MemoryEngine, **options: Any) -> SharedTier:
    tier = SharedTier(EngineUrl("file:///memory"), NOBODY, 60.0, Counters(""), Uploads(60.0), **options)
    tier._lazy_engine = engine
    return tier


WORLDS = st.dictionaries(st.sampled_from(Program.NAMES), st.sampled_from(["11" * 16, "22" * 16]))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.lists(WORLDS, min_size=1, max_size=8))
def test_who_has_the_same_files_finds_what_was_stored(seed: int, worlds: list[World]) -> None:
    """And whoever has others does not; nor does what is stored later hide it."""
    program, engine = Program(seed), MemoryEngine()
    kept: list[World] = []
    for world in worlds:
        writer, entry = tier_with(engine), program.run(world)
        before = writer.get(KEY, accept_in(world), state_in(world))
        is_stored = writer.store(KEY, entry, state=state_in(world))
        assert not (before and is_stored)
        if before or is_stored:
            kept.append(world)
        else:
            assert len(engine.objects) >= VARIANTS
    for world in worlds:
        engine.asked.clear()
        found = tier_with(engine).get(KEY, accept_in(world), state_in(world))
        assert found == program.run(world) if found is not None or world in kept else True
        assert len(engine.asked) <= VARIANTS
        assert len(set(engine.asked)) == len(engine.asked)


def test_as_many_states_of_one_file_as_there_may_be_are_found_and_no_more_are_stored() -> None:
    engine = MemoryEngine()
    worlds: list[World] = [{"a.py": f"{number:032x}"} for number in range(1, VARIANTS + 3)]

    def entry(world: World) -> Entry:
        return made(repr(world).encode(), (now("a.py", world),))

    stored = [tier_with(engine).store(KEY, entry(world), state=state_in(world)) for world in worlds]
    # Each of them is at the second place of the chain: that is named by the one file, whatever was first.
    found = [tier_with(engine).get(KEY, accept_in(world), state_in(world)) for world in worlds]
    assert stored == [one is not None for one in found]
    assert all(one == entry(world) for one, world in zip(found, worlds, strict=True) if one)
    assert all(stored[:VARIANTS])


def test_a_file_that_appears_and_goes_away_again_has_both_its_states_found() -> None:
    engine = MemoryEngine()
    worlds: tuple[World, ...] = ({}, {"a.py": "11" * 16})
    for world in (*worlds, *worlds):
        tier = tier_with(engine)
        is_first = tier.get(KEY, accept_in(world), state_in(world)) is None
        assert tier.store(KEY, made(repr(world).encode(), (now("a.py", world),)), state=state_in(world)) == is_first
    for world in worlds:
        found = tier_with(engine).get(KEY, accept_in(world), state_in(world))
        assert found is not None
        assert found.aibin == repr(world).encode()
    assert len(engine.objects) == 2


def test_an_equal_one_is_replaced_only_where_that_is_asked_for() -> None:
    engine = MemoryEngine()
    first, second = made(b"first"), made(b"second")
    tier = tier_with(engine)
    assert tier.store(KEY, first)
    assert not tier.store(KEY, second)
    assert tier.get(KEY) == first
    assert tier.store(KEY, second, replace=True)
    assert tier.get(KEY) == second
    assert len(engine.objects) == 1


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", encode_object(KEY.name, OTHER, ENTRY, NOBODY)])
def test_rubbish_anywhere_in_a_chain_is_replaced(rubbish: bytes) -> None:
    engine = MemoryEngine()
    worlds: list[World] = [{"a.py": "11" * 16}, {"a.py": "22" * 16}]
    entries = [made(repr(world).encode(), (now("a.py", world),)) for world in worlds]
    for entry, world in zip(entries, worlds, strict=True):
        assert tier_with(engine).store(KEY, entry, state=state_in(world))
    for name in list(engine.objects):
        whole = engine.objects[name]
        engine.objects[name] = rubbish
        for entry, world in zip(entries, worlds, strict=True):
            found = tier_with(engine).get(KEY, accept_in(world), state_in(world))
            assert found in (None, entry)
            if found is None:
                tier_with(engine).store(KEY, entry, state=state_in(world))
                assert tier_with(engine).get(KEY, accept_in(world), state_in(world)) == entry
        engine.objects[name] = whole


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    """A forger without a digest to find cannot make one; this one has the names given to him."""
    engine = MemoryEngine()
    names = [KEY.name]
    for _ in range(VARIANTS + 3):
        entry = made(inputs=(Input(FILE, "a.py", "33" * 16),))
        engine.objects[names[-1]] = encode_object(names[-1], KEY, entry, NOBODY)
        names.append(next_name(KEY, (Input(FILE, "a.py", ""),), lambda item: "11" * 16))
    world: World = {"a.py": "11" * 16}
    assert tier_with(engine).get(KEY, accept_in(world), state_in(world)) is None
    assert len(engine.asked) <= VARIANTS


INPUT = st.builds(Input, st.sampled_from([FILE, ABSENT, VARIABLE]), st.text("ab/.", max_size=3), st.sampled_from("12"))


@given(st.lists(INPUT, max_size=5), st.randoms(use_true_random=False))
def test_the_next_name_depends_on_the_state_of_the_files_and_not_on_their_order(
    items: list[Input], shuffle: random.Random
) -> None:
    other = items[:]
    shuffle.shuffle(other)
    state = state_of(tuple(items))
    assert next_name(KEY, tuple(items), state) == next_name(KEY, tuple(other), state)
    assert next_name(KEY, tuple(items), state) != next_name(OTHER, tuple(items), state)
    changed = next_name(KEY, tuple(items), lambda item: state(item) + "changed")
    assert (changed == next_name(KEY, tuple(items), state)) == (not items)


def test_whether_a_file_was_there_does_not_change_where_to_look_on() -> None:
    """A reader that finds a file where there was none goes the way of the writer that found it too."""
    absent, there = (Input(ABSENT, "a.py", ""),), (Input(FILE, "a.py", "11" * 16),)
    for state in (lambda item: "", lambda item: "22" * 16):
        assert next_name(KEY, absent, state) == next_name(KEY, there, state)
    variable = (Input(VARIABLE, "a.py", ""),)
    assert next_name(KEY, variable, lambda item: "") != next_name(KEY, absent, lambda item: "")
    assert state_of(absent)(there[0]) == ""
    assert state_of(there)(absent[0]) == "11" * 16
    assert state_of(variable, lambda item: "now")(there[0]) == "now"


def test_names_that_are_no_utf_8_have_a_next_name() -> None:
    inputs = decode_inputs(b"file\0\xff\xfe.py\0digest\0")
    assert inputs is not None
    assert len(next_name(KEY, inputs, lambda item: item.digest)) == 32


def test_a_key_that_has_another_check_is_another_key() -> None:
    engine = MemoryEngine()
    tier_with(engine).store(KEY, ENTRY)
    tier = tier_with(engine)
    assert tier.get(Key(KEY.name, OTHER.check)) is None
    assert tier.get(KEY) == ENTRY
